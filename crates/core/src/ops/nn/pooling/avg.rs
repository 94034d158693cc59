//! The mean of every window.

use dtensor_layout::{
    Layout,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor, nn::AvgPool};

use super::sliding::{Sliding, plane_letters, sample_shape};
use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
    ops::nn::{
        halo::{Arranged, held},
        steps::{each, filled, rule, widened},
    },
};

/// The means. Batches and channels may be cut; where spatial dims are, ranks fetch what their windows see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AvgPooling {
    sliding: Sliding,
    count_include_pad: bool,
    divisor_override: Option<usize>,
}

impl Op for AvgPooling {
    fn name(&self) -> &'static str {
        ["avg_pool1d", "avg_pool2d", "avg_pool3d"][self.sliding.n.clamp(1, 3) - 1]
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [x, out] = plane_letters(operands[0].n_dims(), self.sliding.n);
        rule(self.name(), &format!("{x} -> {out}"), &[Law::Linear])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let settings = self.settings();
        one(match self.sliding.n {
            1 => x[0].avg_pool1d(&settings),
            2 => x[0].avg_pool2d(&settings),
            _ => x[0].avg_pool3d(&settings),
        })
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.sliding.is_complete() && self.sliding.is_cut(operands[0])
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let arranged = self.sliding.arrange(self, operands, 1)?;
        arranged.results(|coord| {
            let (x, cut) = self.sliding.fetch(self.name(), &arranged, 0.0)?;
            let result = &arranged.results[0];
            let shape = result.local_shape(coord);
            if shape.contains(&0) {
                return Ok([filled(&x, &shape, x.dtype(), 0.0)?].into());
            }
            let first = self.sliding.first(x.n_dims());
            // Sums, since a rank does not see which part of its windows is padding.
            let sums = AvgPooling {
                sliding: self.sliding.within(first, &cut),
                count_include_pad: true,
                divisor_override: Some(1),
            };
            let dtype = x.dtype();
            let x = widened(&x)?;
            let mut out = sums.eval(&[&x], &LocalContext::whole())?;
            for out in out.iter_mut().filter(|out| !out.is_meta()) {
                *out = out.div(&self.divisors(&arranged, coord)?.to_dtype(out.dtype())?)?;
                *out = out.to_dtype(dtype)?;
            }
            if x.is_meta() {
                return Ok([Tensor::meta(&shape, dtype)?].into());
            }
            Ok(out)
        })
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let size = &backward.shape(0)[self.sliding.first(backward.shape(0).len())..];
        backward.first(|| backward.grad()?.avg_pool_backward(size, &self.settings()))
    }
}

impl AvgPooling {
    pub(super) fn settings(&self) -> AvgPool<'_> {
        AvgPool {
            kernel: &self.sliding.kernel,
            stride: &self.sliding.stride,
            padding: &self.sliding.padding,
            ceil_mode: self.sliding.ceil_mode,
            count_include_pad: self.count_include_pad,
            divisor_override: self.divisor_override,
        }
    }

    /// What the sums of this rank's windows are divided by, to stand beside them.
    fn divisors(&self, arranged: &Arranged, coord: &[usize]) -> Result<Tensor> {
        if let Some(divisor) = self.divisor_override {
            return Ok(Tensor::scalar(divisor as f64));
        }
        let (x, result, sliding) = (&arranged.operands[0], &arranged.results[0], &self.sliding);
        let first = sliding.first(x.n_dims());
        let mut product = Tensor::scalar(1.0_f64);
        for dim in first..x.n_dims() {
            let (size, padding) = (x.shape()[dim], sliding.padding[dim - first]);
            let count = |output: usize| {
                let start = output * sliding.stride[dim - first];
                let end = start + sliding.kernel[dim - first];
                match self.count_include_pad {
                    true => end.min(size + 2 * padding) - start,
                    false => {
                        end.clamp(padding, size + padding) - start.clamp(padding, size + padding)
                    }
                }
            };
            // A window of nothing but padding has the sum zero, whatever it is divided by.
            let counts = held(result, dim, coord).map(|output| count(output).max(1) as f64);
            let mut shape = vec![1; x.n_dims()];
            shape[dim] = counts.len();
            product = product.mul(&Tensor::from_vec(counts.collect(), &shape)?)?;
        }
        Ok(product)
    }
}

pub(super) fn avg_pooling(n: usize, settings: &AvgPool) -> AvgPooling {
    let AvgPool { kernel, stride, padding, ceil_mode, count_include_pad, divisor_override } =
        *settings;
    let stride = if stride.is_empty() { kernel } else { stride };
    let [kernel, stride, padding] = [kernel, stride, padding].map(|values| each(values, n));
    let dilation = each(&[1], n);
    let sliding = Sliding { n, kernel, stride, padding, dilation, ceil_mode };
    AvgPooling { sliding, count_include_pad, divisor_override }
}

macro_rules! avg_pools {
    ($($n:literal $spatial:literal $pool:ident;)*) => {
        impl DTensor {
            $(
                #[doc = concat!(
                    "The mean of every window of `[N, C, ", $spatial, "]` or `[C, ", $spatial, "]`. Where spatial dims are ",
                    "cut, one exchange between neighbours. As `torch.nn.functional.", stringify!($pool), "`.",
                )]
                pub fn $pool(&self, settings: &AvgPool) -> Result<DTensor> {
                    call_one(&avg_pooling($n, settings), &[self])
                }
            )*
        }

        pub(in crate::ops::nn) const RECORDS: &[OpRecord] = &[$(
            OpRecord { name: stringify!($pool), samples: || samples($n) },
        )*];
    };
}

avg_pools! {
    1 "L" avg_pool1d;
    2 "H, W" avg_pool2d;
    3 "D, H, W" avg_pool3d;
}

fn samples(n: usize) -> Vec<Sample> {
    let all = AvgPool {
        kernel: &[3],
        stride: &[2],
        padding: &[1],
        ceil_mode: true,
        ..AvgPool::default()
    };
    let inside = AvgPool { count_include_pad: false, ..all };
    let divided = AvgPool { divisor_override: Some(5), ceil_mode: false, ..all };
    let settings = if n == 1 { vec![all, inside, divided] } else { vec![inside] };
    settings.iter().map(|one| Sample::new(avg_pooling(n, one), &[sample_shape(n)])).collect()
}
