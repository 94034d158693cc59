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
    carry::{Direction, Scan, needs_carry},
    over::Over,
};
use crate::{
    DTensor, Error, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
    ops::letters::rule,
};

/// Which way a scan goes. Descending scans are what gradients are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Along {
    dim: isize,
    direction: Direction,
}

impl Along {
    fn opposite(self) -> Along {
        Along { direction: self.direction.opposite(), ..self }
    }

    /// By a kernel, which ascends.
    fn scan(
        self,
        x: &Tensor,
        kernel: fn(&Tensor, isize) -> Result<Tensor, LocalError>,
    ) -> Result<Tensor, LocalError> {
        match self.direction {
            Direction::Ascending => kernel(x, self.dim),
            Direction::Descending => kernel(&x.flip(self.dim)?, self.dim)?.flip(self.dim),
        }
    }
}

/// Rows `Type method [laws] [reductions that may stay pending] fold |part, carry| join, keeps WHAT,
/// |backward, scan, grad| gradient;`: the fold of the totals of all parts before is joined to the scan of a part.
macro_rules! scans {
    ($($(#[$doc:meta])* $Op:ident $name:ident [$($law:expr),*] [$($pending:ident),*]
        $fold:ident |$part:ident, $carry:ident| $join:expr,
        keeps $keep:expr, |$backward:ident, $own:ident, $grad:ident| $gradient:expr;)*) => {
        $(
            #[derive(Clone, Debug, PartialEq, Eq, Hash)]
            struct $Op(Along);

            impl Op for $Op {
                fn name(&self) -> &'static str {
                    stringify!($name)
                }

                fn rule(&self, operands: &[Meta]) -> Result<Rule> {
                    scan_rule(self.name(), self.0.dim, &operands[0], 1, &[$($law),*])
                }

                fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
                    one(self.0.scan(x[0], Tensor::$name))
                }

                fn decomposes(&self, operands: &[&Layout]) -> bool {
                    needs_carry(self.name(), operands[0], self.0.dim)
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
                    let scan = Scan::new(self.name(), &x, self.0.dim)?;
                    let Some(local) = scan.local() else {
                        return Ok(smallvec![scan.result(None, dtype)?]);
                    };
                    let dim = scan.dim as isize;
                    let $part = self.0.scan(local, Tensor::$name)?;
                    let result = match scan.totals_before(&$part, self.0.direction)? {
                        Some(totals) => {
                            let $carry = totals.$fold(&[dim], true)?;
                            $join?
                        }
                        None => $part,
                    };
                    Ok(smallvec![scan.result(Some(result), dtype)?])
                }

                fn keeps(&self) -> Option<Keep> {
                    Some($keep)
                }

                fn gradient(&self, $backward: &Backward<'_>) -> Result<Grads> {
                    let ($own, $grad) = (self.0, $backward.grad()?);
                    $backward.first(|| $gradient)
                }
            }
        )*

        impl DTensor {
            $(
                $(#[$doc])*
                pub fn $name(&self, dim: isize) -> Result<DTensor> {
                    call_one(&$Op(Along { dim, direction: Direction::Ascending }), &[self])
                }
            )*
        }

        pub(super) const RECORDS: &[OpRecord] = &[$(
            OpRecord { name: stringify!($name), samples: || both_directions($Op) },
        )*];
    };
}

scans! {
    /// Running sums along a dim. Integers and bools give `i64`.
    Cumsum cumsum [Linear] [Sum, Avg] sum |part, carry| part.add(&carry),
        keeps Keep::NOTHING, |backward, scan, grad| sums(&grad, scan.opposite());
    /// Running products along a dim. Integers and bools give `i64`.
    Cumprod cumprod [Joint(ReduceOp::Product)] [Product] prod |part, carry| part.mul(&carry),
        keeps Keep::OPERANDS, |backward, scan, grad| of_products(&backward.operand(0)?, scan, &grad);
    /// The logarithms of running sums of exponentials along a dim; of floats only.
    Logcumsumexp logcumsumexp [] [] logsumexp |part, carry| part.logaddexp(&carry),
        keeps Keep::OPERANDS.and(Keep::RESULTS), |backward, scan, grad| {
            of_logarithms(&backward.operand(0)?, &backward.result(0)?, scan, &grad)
        };
}

fn sums(x: &DTensor, along: Along) -> Result<DTensor> {
    call_one(&Cumsum(along), &[x])
}

/// The gradient of running products: at an element that is not 0, the sum of all from there on, divided by it. The first
/// zero ends them: its own gradient is the sum of the products without it, and what comes later has none.
///
/// Its own gradient is right where no element is 0: a zero is left out here, not a factor.
fn of_products(x: &DTensor, along: Along, grad: &DTensor) -> Result<DTensor> {
    let x = x.settled()?;
    let is_zero = x.eq(0.0)?;
    let zeros_so_far = sums(&is_zero, along)?;
    let ended = zeros_so_far.gt(0)?;
    let is_first = is_zero.logical_and(&zeros_so_far.eq(1)?)?;
    let products = call_one(&Cumprod(along), &[&x.masked_fill(&is_first, 1.0)?])?;
    let terms = grad.mul(&products)?;
    let of_first = sums(&terms, along.opposite())?;
    let of_others = sums(&terms.masked_fill(&ended, 0.0)?, along.opposite())?;
    let of_others = of_others.div(&x.masked_fill(&is_zero, 1.0)?)?;
    is_first.where_self(&of_first, &of_others.masked_fill(&ended, 0.0)?)
}

/// The gradient of logarithms of running sums: the sum of all from an element on, each times the share that the element
/// has in it. By logarithms too, of the gradients above and below 0 apart: shares alone would overflow.
fn of_logarithms(x: &DTensor, result: &DTensor, along: Along, grad: &DTensor) -> Result<DTensor> {
    let (x, grad) = (x.settled()?, grad.settled()?);
    // Where all is nothing, so are the shares.
    let result = result.masked_fill(&result.eq(f64::NEG_INFINITY)?, 0.0)?;
    let of = |grad: &DTensor| {
        let absent = grad.le(0.0)?;
        let logarithm = grad.masked_fill(&absent, 1.0)?.log()?;
        let logarithm = logarithm.masked_fill(&absent, f64::NEG_INFINITY)?.sub(&result)?;
        call_one(&Logcumsumexp(along.opposite()), &[&logarithm])?.add(&x)?.exp()
    };
    of(&grad)?.sub(&of(&grad.neg()?)?)
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

fn both_directions<O: Op>(op: fn(Along) -> O) -> Vec<Sample> {
    let sample =
        |dim, shape: &[usize], direction| Sample::new(op(Along { dim, direction }), &[shape]);
    vec![
        sample(1, &[3, 4], Direction::Ascending),
        sample(0, &[7, 2], Direction::Ascending),
        sample(-2, &[2, 5, 2], Direction::Ascending),
        sample(0, &[7, 2], Direction::Descending),
        sample(-1, &[2, 5], Direction::Descending),
    ]
}
