use dtensor_layout::{Layout, Placement, ReduceOp, rule::Rule};
use dtensor_local::{LocalError, Tensor};
use smallvec::smallvec;

use super::over::Over;
use crate::{
    DTensor, Error, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
};

/// The logarithm of the sum of exponentials over dims.
///
/// Over dims that are cut: every rank takes that of its part, the largest of these is found, and the
/// exponentials of the distances from it are added. Two small reductions, and nothing overflows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LogSumExp(Over);

/// The same of every part. Said to be pending as the largest of them, which is what is asked of it first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OfParts(Over);

impl Op for LogSumExp {
    fn name(&self) -> &'static str {
        "logsumexp"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        self.0.rule_of_whole_dims("logsumexp", &operands[0])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].logsumexp(&self.0.dims, self.0.keep_dims))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.0.is_cut("logsumexp", operands[0])
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let parts = call_one(&OfParts(self.0.clone()), &[&operands[0].settled()?])?;
        // Infinities are not taken out: the difference of two is none, and they overrule all others anyway.
        let largest = parts.settled()?.nan_to_num(f64::NAN, Some(0.0), Some(0.0))?;
        let share = parts.local().sub(largest.local())?.exp()?;
        let added = |placement: &Placement| match placement {
            Placement::Partial(_) => Placement::Partial(ReduceOp::Sum),
            other => *other,
        };
        let placements: Vec<Placement> = parts.placements().iter().map(added).collect();
        let cuts: Vec<_> = parts.layout().order().dims().map(<[_]>::to_vec).collect();
        let mesh = parts.mesh();
        let layout =
            Layout::with_cuts(parts.shape(), parts.dtype(), mesh.mesh(), &placements, &cuts);
        let layout = layout.map_err(Error::layout("logsumexp"))?;
        let sum = DTensor::from_parts(share, layout, mesh.clone());
        Ok(smallvec![sum.settled()?.log()?.add(&largest)?])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::OPERANDS.and(Keep::RESULTS))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (x, result) = (backward.operand(0)?, backward.result(0)?);
        // Where all is nothing, so is the gradient.
        let result = result.masked_fill(&result.eq(f64::NEG_INFINITY)?, 0.0)?;
        let share = x.sub(&self.0.kept("logsumexp", &result, x.shape())?)?.exp()?;
        let grad = self.0.kept("logsumexp", &backward.grad()?, x.shape())?;
        backward.first(|| grad.mul(&share))
    }
}

impl Op for OfParts {
    fn name(&self) -> &'static str {
        "logsumexp"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        self.0.rule("logsumexp", &operands[0], ReduceOp::Max)
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].logsumexp(&self.0.dims, self.0.keep_dims))
    }
}

impl DTensor {
    /// The logarithm of the sum of exponentials over these dims, or over all if the list is empty; of floats
    /// only. Nothing overflows.
    pub fn logsumexp(&self, dims: &[isize], keep_dims: bool) -> Result<DTensor> {
        call_one(&LogSumExp(Over::new(dims, keep_dims)), &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "logsumexp",
    samples: || {
        vec![
            Sample::new(LogSumExp(Over::new(&[1], false)), &[&[4, 3]]),
            Sample::new(LogSumExp(Over::new(&[0, -1], true)), &[&[3, 2, 5]]),
            Sample::new(LogSumExp(Over::new(&[], false)), &[&[5, 3]]),
        ]
    },
}];
