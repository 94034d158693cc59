use dtensor_layout::{
    Layout, ReduceOp,
    rule::{Law::Linear, Rule},
};
use dtensor_local::{LocalError, Tensor};

use super::over::Over;
use crate::{
    DTensor, Error, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
};

/// The mean over dims: of equal parts the mean of their means, of others the sum of their shares.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Mean {
    over: Over,
    parts: Parts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Parts {
    /// Of one size: a pending mean.
    Even,
    /// Of any size: a pending sum.
    Any,
}

/// The mean with whatever parts as a pending sum, for what is computed from it.
pub(super) fn pending_mean(x: &DTensor, over: &Over) -> Result<DTensor> {
    call_one(&Mean { over: over.clone(), parts: Parts::Any }, &[x])
}

impl Op for Mean {
    fn name(&self) -> &'static str {
        "mean"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let by = match self.parts {
            Parts::Even => ReduceOp::Avg,
            Parts::Any => ReduceOp::Sum,
        };
        let rule = self.over.rule("mean", &operands[0], by)?;
        rule.with_laws(&[Linear]).map_err(Error::rule("mean"))
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let (held, all) = match self.parts {
            Parts::Even => (1, 1),
            Parts::Any => self.over.counts("mean", x[0], context)?,
        };
        match held {
            0 if all > 0 => one(self.over.filled(x[0], 0.0)),
            _ => {
                let mean = x[0].mean(&self.over.dims, self.over.keep_dims)?;
                one(if held == all { Ok(mean) } else { mean.mul_scalar(held as f64 / all as f64) })
            }
        }
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.parts == Parts::Even
            && self
                .over
                .dims_of("mean", operands[0].global_shape())
                .is_ok_and(|dims| dims.iter().any(|dim| !is_even(operands[0], *dim)))
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        Ok([pending_mean(operands[0], &self.over)?].into())
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let shape = backward.shape(0);
        let n = self.over.count("mean", shape)? as f64;
        backward.first(|| self.over.spread("mean", &backward.grad()?.div(n)?, shape))
    }
}

/// Whether all parts of a dim are of one size.
fn is_even(layout: &Layout, dim: usize) -> bool {
    let cuts = layout.order().cuts(dim);
    let parts: usize = cuts.iter().map(|cut| layout.mesh().axis_size(cut.axis)).product();
    layout.global_shape()[dim].is_multiple_of(parts) && cuts.iter().all(|cut| cut.split_factor == 1)
}

impl DTensor {
    /// The mean over these dims, or over all if the list is empty; of floats only. Of parts of equal size it
    /// is a pending mean, of others a pending sum; nothing is sent.
    pub fn mean(&self, dims: &[isize], keep_dims: bool) -> Result<DTensor> {
        call_one(&Mean { over: Over::new(dims, keep_dims), parts: Parts::Even }, &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "mean",
    samples: || {
        let mean =
            |dims: &[isize], keep_dims, parts| Mean { over: Over::new(dims, keep_dims), parts };
        vec![
            Sample::new(mean(&[1], false, Parts::Even), &[&[4, 6]]),
            Sample::new(mean(&[0, -1], true, Parts::Even), &[&[3, 2, 5]]),
            Sample::new(mean(&[], false, Parts::Even), &[&[4, 3]]),
            Sample::new(mean(&[0], false, Parts::Any), &[&[5, 2]]),
        ]
    },
}];
