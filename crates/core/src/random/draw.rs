//! The only way to random numbers.

use std::ops::Range;

use dtensor_layout::Layout;
use dtensor_local::{
    Tensor,
    random::{Distribution, Stream},
};

use super::next_stream;
use crate::{
    DTensor, DeviceMesh, Result,
    tensor::{Part, make_layout},
};

macro_rules! random_ops {
    ($($op:ident $name:literal,)*) => {
        /// Who draws.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum RandomOp {
            $($op,)*
        }

        impl RandomOp {
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(RandomOp::$op => $name,)*
                }
            }
        }

        /// The names of all operations that draw random numbers, each of which takes one offset of the
        /// [`RandomState`](super::RandomState). Others, as [`dropout`](DTensor::dropout), are made of these.
        pub const OPS: &[&str] = &[$($name,)*];
    };
}

random_ops! {
    Rand "rand",
    Randn "randn",
    Randint "randint",
    Randperm "randperm",
    Uniform "uniform",
    Normal "normal",
    LogNormal "log_normal",
    Exponential "exponential",
    Cauchy "cauchy",
    Geometric "geometric",
    Bernoulli "bernoulli",
    RandLike "rand_like",
    RandnLike "randn_like",
    RandintLike "randint_like",
    UniformLike "uniform_like",
    NormalLike "normal_like",
    LogNormalLike "log_normal_like",
    ExponentialLike "exponential_like",
    CauchyLike "cauchy_like",
    GeometricLike "geometric_like",
    BernoulliLike "bernoulli_like",
    BernoulliEach "bernoulli_each",
    Multinomial "multinomial",
    DropoutMask "dropout_mask",
}

/// A tensor of random numbers, of which every rank makes its part.
pub(crate) fn of_layout(
    op: RandomOp,
    layout: &Layout,
    mesh: &DeviceMesh,
    distribution: Distribution,
) -> Result<DTensor> {
    let dtype = layout.dtype();
    // What is wrong is so on every rank, also on one that has nothing to fill.
    Tensor::random(&[0], dtype, distribution, Stream::default())?;
    by_stream(op, layout, mesh, |stream, part| {
        let boxes = boxes(part);
        let global = layout.global_shape();
        Ok(Tensor::random_shard(&part.shape, dtype, distribution, stream, global, &boxes)?)
    })
}

/// A tensor of which every rank makes its part out of the bits of one stream.
pub(super) fn by_stream(
    op: RandomOp,
    layout: &Layout,
    mesh: &DeviceMesh,
    part: impl FnOnce(Stream, &Part) -> Result<Tensor>,
) -> Result<DTensor> {
    let stream = next_stream();
    make_layout(op.name(), layout, mesh, |of| part(stream, of))
}

/// Every combination of the ranges of the dims.
fn boxes(part: &Part) -> Vec<Vec<Range<usize>>> {
    part.ranges.iter().fold(vec![Vec::new()], |boxes, ranges| {
        let extended = boxes.iter().flat_map(|done: &Vec<Range<usize>>| {
            ranges.iter().map(|range| [done.as_slice(), std::slice::from_ref(range)].concat())
        });
        extended.collect()
    })
}
