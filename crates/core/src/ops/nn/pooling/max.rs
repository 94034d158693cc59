//! The largest element of every window.

use dtensor_layout::{DType, Layout, rule::Rule};
use dtensor_local::{LocalError, Tensor, nn::MaxPool};

use super::{
    backward::max_gradient,
    sliding::{Sliding, plane_letters, sample_shape},
};
use crate::{
    DTensor, Result,
    dispatch::call_two,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, two},
    ops::nn::steps::{each, filled, rule},
};

/// The largest elements and their indices. Batches and channels may be cut; where spatial dims are, ranks fetch what
/// their windows see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MaxPooling(Sliding);

impl Op for MaxPooling {
    fn name(&self) -> &'static str {
        ["max_pool1d", "max_pool2d", "max_pool3d"][self.0.n.clamp(1, 3) - 1]
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [x, out] = plane_letters(operands[0].n_dims(), self.0.n);
        rule(self.name(), &format!("{x} -> {out}, {out}"), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let settings = self.settings();
        two(match self.0.n {
            1 => x[0].max_pool1d(&settings),
            2 => x[0].max_pool2d(&settings),
            _ => x[0].max_pool3d(&settings),
        })
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.0.is_complete() && self.0.is_cut(operands[0])
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let arranged = self.0.arrange(self, operands, 2)?;
        arranged.results(|coord| {
            let (x, cut) = self.0.fetch(self.name(), &arranged, f64::NEG_INFINITY)?;
            let result = &arranged.results[0];
            let shape = result.local_shape(coord);
            if shape.contains(&0) {
                let out = filled(&x, &shape, x.dtype(), 0.0)?;
                return Ok([out, filled(&x, &shape, DType::I64, 0.0)?].into_iter().collect());
            }
            let first = self.0.first(x.n_dims());
            let local = MaxPooling(self.0.within(first, &cut));
            let mut results = local.eval(&[&x], &LocalContext::whole())?;
            if let Some(indices) = results.last_mut().filter(|indices| !indices.is_meta()) {
                let starts: Vec<isize> = (first..x.n_dims())
                    .map(|dim| match cut.contains(&dim) {
                        true => self.0.seen(result, coord, dim, first).start,
                        false => 0,
                    })
                    .collect();
                let global = &arranged.operands[0].shape()[first..];
                *indices = self.global_indices(indices, &x.shape()[first..], &starts, global)?;
            }
            Ok(results)
        })
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::results(&[1]))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        max_gradient(backward, self.0.n)
    }
}

impl MaxPooling {
    fn settings(&self) -> MaxPool<'_> {
        MaxPool {
            kernel: &self.0.kernel,
            stride: &self.0.stride,
            padding: &self.0.padding,
            dilation: &self.0.dilation,
            ceil_mode: self.0.ceil_mode,
        }
    }

    /// Indices into what was fetched, as indices into the whole planes.
    fn global_indices(
        &self,
        indices: &Tensor,
        local: &[usize],
        starts: &[isize],
        global: &[usize],
    ) -> Result<Tensor> {
        let to_global = |index: i64| -> i64 {
            let Ok(mut rest) = usize::try_from(index) else { return -1 };
            let (mut at, mut scale) = (0, 1);
            for dim in (0..local.len()).rev() {
                let mut place = (rest % local[dim]) as isize + starts[dim];
                rest /= local[dim];
                // Padding is the largest only of what is all -inf, whose first element is the next tap.
                let step = self.0.dilation[dim];
                if place < 0 {
                    place = place.wrapping_add_unsigned(place.unsigned_abs().div_ceil(step) * step);
                }
                match usize::try_from(place).ok().filter(|place| *place < global[dim]) {
                    Some(place) => at += place * scale,
                    None => return -1,
                }
                scale *= global[dim];
            }
            at as i64
        };
        let moved: Vec<i64> = indices.to_vec::<i64>()?.into_iter().map(to_global).collect();
        Ok(Tensor::from_vec(moved, indices.shape())?)
    }
}

fn max_pooling(n: usize, settings: &MaxPool) -> MaxPooling {
    let MaxPool { kernel, stride, padding, dilation, ceil_mode } = *settings;
    let stride = if stride.is_empty() { kernel } else { stride };
    let [kernel, stride, padding, dilation] =
        [kernel, stride, padding, dilation].map(|values| each(values, n));
    MaxPooling(Sliding { n, kernel, stride, padding, dilation, ceil_mode })
}

macro_rules! max_pools {
    ($($n:literal $spatial:literal $pool:ident;)*) => {
        impl DTensor {
            $(
                #[doc = concat!(
                    "The largest element of every window of `[N, C, ", $spatial, "]` or `[C, ", $spatial, "]`, and its ",
                    "index within the flattened spatial dims (`i64`), which is -1 for a window without elements. Where ",
                    "spatial dims are cut, one exchange between neighbours. As `torch.nn.functional.", stringify!($pool),
                    "` with `return_indices`.",
                )]
                pub fn $pool(&self, settings: &MaxPool) -> Result<(DTensor, DTensor)> {
                    call_two(&max_pooling($n, settings), &[self])
                }
            )*
        }

        pub(in crate::ops::nn) const RECORDS: &[OpRecord] = &[$(
            OpRecord { name: stringify!($pool), samples: || samples($n) },
        )*];
    };
}

max_pools! {
    1 "L" max_pool1d;
    2 "H, W" max_pool2d;
    3 "D, H, W" max_pool3d;
}

fn samples(n: usize) -> Vec<Sample> {
    let plain = MaxPool { kernel: &[2], ..MaxPool::default() };
    let all =
        MaxPool { kernel: &[3], stride: &[2], padding: &[1], dilation: &[1], ceil_mode: true };
    let dilated = MaxPool { kernel: &[2], stride: &[1], dilation: &[2], ..plain };
    let settings = if n == 1 { vec![all, plain, dilated] } else { vec![all] };
    settings.iter().map(|one| Sample::new(max_pooling(n, one), &[sample_shape(n)])).collect()
}
