//! Running sums, products and logarithms of sums along a dim.

use dtensor_layout::{
    Layout, ReduceOp,
    rule::{
        Law::{self, Joint, Linear},
        Rule,
    },
};
use dtensor_local::{LocalError, Tensor};
use smallvec::smallvec;

use super::{
    carry::{Scan, needs_carry},
    over::Over,
};
use crate::{
    DTensor, Error, Result,
    dispatch::call_one,
    op::{LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
    ops::letters::rule,
};

/// Rows `Type method [laws] [reductions that may stay pending] fold |carry, part| join;`: the fold of the
/// totals of all parts before is joined to the scan of a part.
macro_rules! scans {
    ($($(#[$doc:meta])* $Op:ident $name:ident [$($law:expr),*] [$($pending:ident),*]
        $fold:ident |$part:ident, $carry:ident| $join:expr;)*) => {
        $(
            #[derive(Clone, Debug, PartialEq, Eq, Hash)]
            struct $Op(isize);

            impl Op for $Op {
                fn name(&self) -> &'static str {
                    stringify!($name)
                }

                fn rule(&self, operands: &[Meta]) -> Result<Rule> {
                    scan_rule(self.name(), self.0, &operands[0], 1, &[$($law),*])
                }

                fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
                    one(x[0].$name(self.0))
                }

                fn decomposes(&self, operands: &[&Layout]) -> bool {
                    needs_carry(self.name(), operands[0], self.0)
                }

                fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
                    let pending: &[ReduceOp] = &[$(ReduceOp::$pending),*];
                    let dtype = self.infer(&[Meta::of_layout(operands[0].layout())])?[0].dtype;
                    // Integers that are contributions may not become wider before they are reduced.
                    let may_stay = operands[0].dtype() == dtype
                        && operands[0]
                            .placements()
                            .iter()
                            .filter_map(|placement| placement.reduce_op())
                            .all(|op| pending.contains(&op));
                    let x = if may_stay { operands[0].clone() } else { operands[0].settled()? };
                    let scan = Scan::new(self.name(), &x, self.0)?;
                    let Some(local) = scan.local() else {
                        return Ok(smallvec![scan.result(None, dtype)?]);
                    };
                    let dim = scan.dim as isize;
                    let $part = local.$name(dim)?;
                    let result = match scan.totals_before(&$part)? {
                        Some(totals) => {
                            let $carry = totals.$fold(&[dim], true)?;
                            $join?
                        }
                        None => $part,
                    };
                    Ok(smallvec![scan.result(Some(result), dtype)?])
                }
            }
        )*

        impl DTensor {
            $(
                $(#[$doc])*
                pub fn $name(&self, dim: isize) -> Result<DTensor> {
                    call_one(&$Op(dim), &[self])
                }
            )*
        }

        pub(super) const RECORDS: &[OpRecord] = &[$(
            OpRecord { name: stringify!($name), samples: || samples($Op) },
        )*];
    };
}

scans! {
    /// Running sums along a dim. Integers and bools give `i64`.
    Cumsum cumsum [Linear] [Sum, Avg] sum |part, carry| part.add(&carry);
    /// Running products along a dim. Integers and bools give `i64`.
    Cumprod cumprod [Joint(ReduceOp::Product)] [Product] prod |part, carry| part.mul(&carry);
    /// The logarithms of running sums of exponentials along a dim; of floats only.
    Logcumsumexp logcumsumexp [] [] logsumexp |part, carry| part.logaddexp(&carry);
}

/// The rule of a scan with this many results, all of the shape of the operand.
pub(super) fn scan_rule(
    op: &'static str,
    dim: isize,
    operand: &Meta,
    n_results: usize,
    laws: &[Law],
) -> Result<Rule> {
    let letters = Over::new(&[dim], false).letters(op, operand, "!")?.operand;
    let results = vec![letters.as_str(); n_results].join(", ");
    let rule = rule(op, &format!("{letters} -> {results}"), &[])?;
    rule.with_laws(laws).map_err(Error::rule(op))
}

pub(super) fn samples<O: Op>(op: fn(isize) -> O) -> Vec<Sample> {
    vec![
        Sample::new(op(1), &[&[3, 4]]),
        Sample::new(op(0), &[&[7, 2]]),
        Sample::new(op(-2), &[&[2, 5, 2]]),
    ]
}
