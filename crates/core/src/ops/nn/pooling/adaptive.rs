//! Poolings whose windows divide the input.

use dtensor_layout::{
    Layout,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor};

use super::{
    backward::max_gradient,
    sliding::{plane_letters, sample_shape},
};
use crate::{
    DTensor, Result,
    dispatch::{call_one, call_two},
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Number, Op, OpRecord, Outputs, Sample, one, two,
    },
    ops::nn::{
        moments::Sums,
        steps::{Scaled, Sizes, cuts, each, rule},
    },
};

/// The pooling to a size.
pub(super) fn adaptive_avg(x: &DTensor, size: &[usize]) -> Result<DTensor> {
    call_one(&AdaptiveAvg { size: size.into() }, &[x])
}

/// The means. Where a spatial dim is cut of which the result has one element, every rank sums what it has: a pending sum.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct AdaptiveAvg {
    size: Sizes,
}

/// The largest elements and their indices, along spatial dims that are whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct AdaptiveMax {
    size: Sizes,
}

impl AdaptiveAvg {
    /// The dims that are cut, if the result has one element of each.
    fn summed(&self, layout: &Layout) -> Option<Vec<usize>> {
        let first = layout.n_dims().checked_sub(self.size.len())?;
        let dims = first..layout.n_dims();
        let cut: Vec<usize> = dims.filter(|dim| cuts(layout, |one| one == *dim)).collect();
        let all_one = cut.iter().all(|dim| self.size[dim - first] == 1);
        Some(cut).filter(|cut| !cut.is_empty() && all_one)
    }
}

impl Op for AdaptiveAvg {
    fn name(&self) -> &'static str {
        ["adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"]
            [self.size.len().clamp(1, 3) - 1]
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [x, out] = plane_letters(operands[0].n_dims(), self.size.len());
        rule(self.name(), &format!("{x} -> {out}"), &[Law::Linear])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(match self.size.len() {
            1 => x[0].adaptive_avg_pool1d(&self.size),
            2 => x[0].adaptive_avg_pool2d(&self.size),
            _ => x[0].adaptive_avg_pool3d(&self.size),
        })
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.summed(operands[0]).is_some()
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let x = operands[0].settled_as(self.name())?;
        let over = self.summed(x.layout()).unwrap_or_default();
        let count: f64 = over.iter().map(|dim| x.shape()[*dim] as f64).product();
        let sums = call_one(&Sums { over: over.into(), squared: false }, &[&x])?;
        // The mean of means is the mean, since a window is a box.
        let means = call_one(self, &[&sums])?;
        Ok([call_one(&Scaled { divisor: Number(count), dtype: x.dtype() }, &[&means])?].into())
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let input = backward.shape(0);
        let size = &input[input.len().saturating_sub(self.size.len())..];
        backward.first(|| backward.grad()?.adaptive_avg_pool_backward(size))
    }
}

impl Op for AdaptiveMax {
    fn name(&self) -> &'static str {
        ["adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"]
            [self.size.len().clamp(1, 3) - 1]
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [x, out] = plane_letters(operands[0].n_dims(), self.size.len());
        rule(self.name(), &format!("{x} -> {out}, {out}"), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        two(match self.size.len() {
            1 => x[0].adaptive_max_pool1d(&self.size),
            2 => x[0].adaptive_max_pool2d(&self.size),
            _ => x[0].adaptive_max_pool3d(&self.size),
        })
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::results(&[1]))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        max_gradient(backward, self.size.len())
    }
}

macro_rules! adaptive_pools {
    ($($n:literal $spatial:literal $avg:ident $max:ident;)*) => {
        impl DTensor {
            $(
                #[doc = concat!(
                    "The means of `[N, C, ", $spatial, "]` or `[C, ", $spatial, "]` in windows of about the same size, such ",
                    "that the result has this spatial size (one number for all dims, or one per dim). A dim of which it ",
                    "has one element may be cut: a pending sum. As `torch.nn.functional.", stringify!($avg), "`.",
                )]
                pub fn $avg(&self, output_size: &[usize]) -> Result<DTensor> {
                    call_one(&AdaptiveAvg { size: each(output_size, $n) }, &[self])
                }

                #[doc = concat!(
                    "The largest elements of `[N, C, ", $spatial, "]` or `[C, ", $spatial, "]` in windows of about the same ",
                    "size, such that the result has this spatial size (one number for all dims, or one per dim); and their ",
                    "indices. As `torch.nn.functional.", stringify!($max), "` with `return_indices`.",
                )]
                pub fn $max(&self, output_size: &[usize]) -> Result<(DTensor, DTensor)> {
                    call_two(&AdaptiveMax { size: each(output_size, $n) }, &[self])
                }
            )*
        }

        pub(in crate::ops::nn) const RECORDS: &[OpRecord] = &[$(
            OpRecord {
                name: stringify!($avg),
                samples: || {
                    let sample = |size: usize| {
                        Sample::new(AdaptiveAvg { size: each(&[size], $n) }, &[sample_shape($n)])
                    };
                    vec![sample(2), sample(1)]
                },
            },
            OpRecord {
                name: stringify!($max),
                samples: || {
                    vec![Sample::new(AdaptiveMax { size: each(&[2], $n) }, &[sample_shape($n)])]
                },
            },
        )*];
    };
}

adaptive_pools! {
    1 "L" adaptive_avg_pool1d adaptive_max_pool1d;
    2 "H, W" adaptive_avg_pool2d adaptive_max_pool2d;
    3 "D, H, W" adaptive_avg_pool3d adaptive_max_pool3d;
}
