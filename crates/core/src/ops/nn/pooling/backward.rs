//! Gradients of poolings, along spatial dims that are whole.

use dtensor_layout::rule::{Law, Rule};
use dtensor_local::{LocalError, Tensor, nn::AvgPool};

use super::{
    adaptive::adaptive_avg,
    avg::{AvgPooling, avg_pooling},
    sliding::plane_letters,
};
use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, SampleValues, one,
    },
    ops::nn::steps::{Sizes, each, letters, rule},
};

/// The gradient of an input with these spatial sizes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PoolBackward {
    of: Kind,
    size: Sizes,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Avg(AvgPooling),
    AdaptiveAvg,
    /// From gradient and indices. Windows may be cut: every rank adds what the indices of its own say.
    Max,
}

impl Op for PoolBackward {
    fn name(&self) -> &'static str {
        match self.of {
            Kind::Avg(_) => "avg_pool_backward",
            Kind::AdaptiveAvg => "adaptive_avg_pool_backward",
            Kind::Max => "max_pool_backward",
        }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let n_dims = operands[0].n_dims();
        let [grad, input] = plane_letters(n_dims, self.size.len());
        match self.of {
            Kind::Max => {
                let grad = letters(0..n_dims, |_| false);
                rule(self.name(), &format!("{grad}, {grad} -> {input}"), &[Law::LinearIn(0)])
            }
            _ => rule(self.name(), &format!("{grad} -> {input}"), &[Law::Linear]),
        }
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(match &self.of {
            Kind::Avg(of) => x[0].avg_pool_backward(&self.size, &of.settings()),
            Kind::AdaptiveAvg => x[0].adaptive_avg_pool_backward(&self.size),
            Kind::Max => x[0].max_pool_backward(x[1], &self.size),
        })
    }

    fn may_refuse(&self, operand: usize, _: &[Meta]) -> bool {
        operand == 1
    }

    fn keeps(&self) -> Option<Keep> {
        Some(if self.of == Kind::Max { Keep::operands(&[1]) } else { Keep::NOTHING })
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (grad, windows) = (backward.grad()?, backward.shape(0));
        let first = windows.len().saturating_sub(self.size.len());
        // Each is the transpose of the pooling.
        backward.first(|| match &self.of {
            Kind::Avg(of) => call_one(of, &[&grad]),
            Kind::AdaptiveAvg => adaptive_avg(&grad, &windows[first..]),
            Kind::Max => {
                let flat = |x: &DTensor| x.flatten(first as isize, -1);
                let indices = flat(&backward.operand(1)?)?;
                let is_nowhere = indices.lt(0)?;
                let picked = flat(&grad)?.gather(-1, &indices.masked_fill(&is_nowhere, 0)?)?;
                let sizes: Vec<isize> = windows.iter().map(|size| size.cast_signed()).collect();
                picked.masked_fill(&is_nowhere, 0)?.reshape(&sizes)
            }
        })
    }
}

/// The gradient of a pooling of the largest in planes of `n` dims, whose second result has their indices.
pub(super) fn max_gradient(backward: &Backward<'_>, n: usize) -> Result<Grads> {
    let input = backward.shape(0);
    let size = &input[input.len().saturating_sub(n)..];
    backward.first(|| backward.grad()?.max_pool_backward(&backward.result(1)?, size))
}

impl DTensor {
    /// The gradient of [`avg_pool1d`](DTensor::avg_pool1d), [`avg_pool2d`](DTensor::avg_pool2d) or
    /// [`avg_pool3d`](DTensor::avg_pool3d) with respect to the input with these spatial sizes, where `self` is the gradient
    /// of the result.
    pub fn avg_pool_backward(&self, input_size: &[usize], settings: &AvgPool) -> Result<DTensor> {
        let of = Kind::Avg(avg_pooling(input_size.len(), settings));
        call_one(&PoolBackward { of, size: input_size.into() }, &[self])
    }

    /// The gradient of [`adaptive_avg_pool1d`](DTensor::adaptive_avg_pool1d) and those of more dims with respect to the
    /// input with these spatial sizes, where `self` is the gradient of the result.
    pub fn adaptive_avg_pool_backward(&self, input_size: &[usize]) -> Result<DTensor> {
        call_one(&PoolBackward { of: Kind::AdaptiveAvg, size: input_size.into() }, &[self])
    }

    /// The gradient of [`max_pool1d`](DTensor::max_pool1d), [`adaptive_max_pool1d`](DTensor::adaptive_max_pool1d) and those
    /// of more dims with respect to the input with these spatial sizes, where `self` is the gradient of the first result,
    /// and `indices` is the second. A pending sum where windows are cut.
    pub fn max_pool_backward(&self, indices: &DTensor, input_size: &[usize]) -> Result<DTensor> {
        call_one(&PoolBackward { of: Kind::Max, size: input_size.into() }, &[self, indices])
    }
}

pub(in crate::ops::nn) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "avg_pool_backward",
        samples: || {
            let settings =
                AvgPool { kernel: &[3], stride: &[2], padding: &[1], ..AvgPool::default() };
            let of = Kind::Avg(avg_pooling(1, &settings));
            vec![Sample::new(PoolBackward { of, size: each(&[5], 1) }, &[&[2, 3, 3]])]
        },
    },
    OpRecord {
        name: "adaptive_avg_pool_backward",
        samples: || {
            let op = PoolBackward { of: Kind::AdaptiveAvg, size: each(&[5], 1) };
            vec![Sample::new(op, &[&[2, 3, 2]])]
        },
    },
    OpRecord {
        name: "max_pool_backward",
        samples: || {
            let op = PoolBackward { of: Kind::Max, size: each(&[5], 1) };
            let sample = Sample::new(op, &[&[2, 3, 2], &[2, 3, 2]]);
            vec![sample.with(1, SampleValues::Index(5))]
        },
    },
];
