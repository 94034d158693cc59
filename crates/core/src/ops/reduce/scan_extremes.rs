//! Running extremes along a dim, with their indices.

use dtensor_layout::{DType, Layout, Placement, rule::Rule};
use dtensor_local::{LocalError, Tensor};
use smallvec::smallvec;

use super::{
    carry::{Direction, Scan, needs_carry},
    scan::{samples, scan_rule},
};
use crate::{
    DTensor, Result,
    dispatch::call_two,
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::Index, two,
    },
    zeros,
};

/// Rows `Type method reaches;`: a value that reaches the one so far takes its place, as a NaN does.
macro_rules! running {
    ($($(#[$doc:meta])* $Op:ident $name:ident $reaches:ident;)*) => {
        $(
            #[derive(Clone, Debug, PartialEq, Eq, Hash)]
            struct $Op(isize);

            impl Op for $Op {
                fn name(&self) -> &'static str {
                    stringify!($name)
                }

                fn rule(&self, operands: &[Meta]) -> Result<Rule> {
                    scan_rule(self.name(), self.0, &operands[0], 2, &[])
                }

                fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
                    two(x[0].$name(self.0))
                }

                fn decomposes(&self, operands: &[&Layout]) -> bool {
                    needs_carry(self.name(), operands[0], self.0)
                }

                fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
                    let (x, dtype) = (operands[0].settled()?, operands[0].dtype());
                    let scan = Scan::new(self.name(), &x, self.0)?;
                    let Some(local) = scan.local() else {
                        return Ok(smallvec![
                            scan.result(None, dtype)?,
                            scan.result(None, DType::I64)?
                        ]);
                    };
                    let dim = scan.dim as isize;
                    let (mut value, place) = local.$name(dim)?;
                    let mut place = place.add_scalar(scan.start() as i64)?;
                    let totals = |of| scan.totals_before(of, Direction::Ascending);
                    let (values, places) = (totals(&value)?, totals(&place)?);
                    if let (Some(values), Some(places)) = (values, places) {
                        // The last of the totals so far, and from which part it is.
                        let last = values.shape()[scan.dim] - 1;
                        let (values, parts) = values.$name(dim)?;
                        let carry = values.narrow(dim, last, 1)?;
                        let carry_place = places.gather(dim, &parts.narrow(dim, last, 1)?)?;
                        let mut stays = value.$reaches(&carry)?;
                        if dtype.is_float() {
                            stays = stays.logical_or(&value.isnan()?)?;
                        }
                        value = stays.where_self(&value, &carry)?;
                        place = stays.where_self(&place, &carry_place)?;
                    }
                    Ok(smallvec![
                        scan.result(Some(value), dtype)?,
                        scan.result(Some(place), DType::I64)?
                    ])
                }

                fn keeps(&self) -> Option<Keep> {
                    Some(Keep::results(&[1]))
                }

                fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
                    let (grad, index) = (backward.grad()?, backward.result(1)?);
                    backward.first(|| match grad.n_dims() {
                        0 => Ok(grad),
                        _ => zeros_along(backward, self.0)?.scatter_add(self.0, &index, &grad),
                    })
                }
            }
        )*

        impl DTensor {
            $(
                $(#[$doc])*
                pub fn $name(&self, dim: isize) -> Result<(DTensor, DTensor)> {
                    call_two(&$Op(dim), &[self])
                }
            )*
        }

        pub(super) const RECORDS: &[OpRecord] = &[$(
            OpRecord {
                name: stringify!($name),
                samples: || {
                    let mut all = samples($Op);
                    // Few values, so that many are equal.
                    all.push(Sample::new($Op(0), &[&[7, 2]]).with(0, Index(3)));
                    all
                },
            },
        )*];
    };
}

/// Zeros that lie as the operand does, but whole along a dim: what ranks add to them is a pending sum.
fn zeros_along(backward: &Backward<'_>, dim: isize) -> Result<DTensor> {
    let dim = backward.meta(0).dim("backward", dim)?;
    let whole = |placement: &Placement| match placement.shard_dim() {
        Some(cut) if cut != dim => *placement,
        _ => Placement::Replicate,
    };
    let layout = backward.layout(0);
    let placements: Vec<Placement> = layout.placements().iter().map(whole).collect();
    zeros(layout.global_shape(), layout.dtype(), backward.mesh(0), &placements)
}

running! {
    /// The largest value so far along a dim and, as `i64`, its index: the last one of equal values. From a
    /// NaN on it is NaN.
    Cummax cummax ge;
    /// The smallest value so far along a dim and, as `i64`, its index: the last one of equal values. From a
    /// NaN on it is NaN.
    Cummin cummin le;
}
