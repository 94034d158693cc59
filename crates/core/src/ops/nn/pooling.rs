//! Pooling: the largest element or the mean of every window.

use dtensor_layout::{
    DType, Layout,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor};
use smallvec::SmallVec;

pub use dtensor_local::nn::{AvgPool, MaxPool};

use super::{
    halo::{Arranged, Window, fetched, held},
    steps::{cuts, filled, letter, letters, rule},
};
use crate::{
    DTensor, Result,
    dispatch::{call_one, call_two},
    op::{LocalContext, Meta, Op, OpRecord, Outputs, Sample, SampleValues, one, two},
};

type Sizes = SmallVec<[usize; 3]>;

/// The settings of windows that slide.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sliding {
    /// Number of spatial dims.
    n: usize,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
}

/// The largest elements and their indices. Batches and channels may be cut; where spatial dims are, ranks fetch what
/// their windows see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MaxPooling(Sliding);

/// The means. As [`MaxPooling`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct AvgPooling {
    sliding: Sliding,
    count_include_pad: bool,
    divisor_override: Option<usize>,
}

/// Poolings whose windows divide the input, and gradients, along spatial dims that are whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Planes {
    AdaptiveAvg {
        size: Sizes,
    },
    AdaptiveMax {
        size: Sizes,
    },
    AvgBackward {
        of: AvgPooling,
        size: Sizes,
    },
    AdaptiveAvgBackward {
        size: Sizes,
    },
    /// Of gradient and indices.
    MaxBackward {
        size: Sizes,
    },
}

impl Sliding {
    /// The first spatial dim.
    fn first(&self, n_dims: usize) -> usize {
        n_dims.saturating_sub(self.n)
    }

    fn is_cut(&self, layout: &Layout) -> bool {
        cuts(layout, |dim| dim >= self.first(layout.n_dims()))
    }

    fn max_pool(&self) -> MaxPool<'_> {
        MaxPool {
            kernel: &self.kernel,
            stride: &self.stride,
            padding: &self.padding,
            dilation: &self.dilation,
            ceil_mode: self.ceil_mode,
        }
    }

    /// Windows without padding, of an input that has just what they see, in these dims.
    fn within(&self, first: usize, dims: &[usize]) -> Sliding {
        let mut within = self.clone();
        for dim in dims {
            within.padding[dim - first] = 0;
        }
        within
    }

    /// The sizes of all settings are those of the spatial dims.
    fn is_complete(&self) -> bool {
        [&self.kernel, &self.stride, &self.padding, &self.dilation]
            .iter()
            .all(|sizes| sizes.len() == self.n)
    }

    /// What this rank's windows see, with `fill` for the padding; and which dims were cut.
    fn fetch(
        &self,
        op: &'static str,
        arranged: &Arranged,
        fill: f64,
    ) -> Result<(Tensor, Vec<usize>)> {
        let (x, result) = (&arranged.operands[0], &arranged.results[0]);
        let first = self.first(x.n_dims());
        let cut: Vec<usize> =
            (first..x.n_dims()).filter(|dim| cuts(x.layout(), |one| one == *dim)).collect();
        let window = |coord: &[usize], dim: usize| self.seen(result, coord, dim, first);
        Ok((fetched(op, x, &cut, &window, fill)?, cut))
    }

    fn seen(&self, result: &Layout, coord: &[usize], dim: usize, first: usize) -> Window {
        let (outputs, spatial) = (held(result, dim, coord), dim - first);
        let start = (outputs.start * self.stride[spatial]) as isize;
        let extent = self.dilation[spatial] * (self.kernel[spatial] - 1) + 1;
        let len = match outputs.len() {
            0 => 0,
            n => (n - 1) * self.stride[spatial] + extent,
        };
        Window { start: start.wrapping_sub_unsigned(self.padding[spatial]), len }
    }

    /// The operand, arranged such that windows can be fetched.
    fn arrange(&self, op: &dyn Op, operands: &[&DTensor], n_results: usize) -> Result<Arranged> {
        let n_dims = operands[0].n_dims();
        let row = |dim: usize| {
            let results = vec![format!("S({dim})"); n_results].join(" ");
            format!("S({dim}) -> {results}")
        };
        Arranged::new(op, operands, &(self.first(n_dims)..n_dims).map(row).collect::<Vec<_>>())
    }
}

impl Op for MaxPooling {
    fn name(&self) -> &'static str {
        ["max_pool1d", "max_pool2d", "max_pool3d"][self.0.n.clamp(1, 3) - 1]
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [x, out] = plane_letters(operands[0].n_dims(), self.0.n);
        rule(self.name(), &format!("{x} -> {out}, {out}"), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let settings = self.0.max_pool();
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
}

impl MaxPooling {
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
            let x = super::steps::widened(&x)?;
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
}

impl AvgPooling {
    fn settings(&self) -> AvgPool<'_> {
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

impl Op for Planes {
    fn name(&self) -> &'static str {
        let n = |size: &Sizes| size.len().clamp(1, 3) - 1;
        match self {
            Planes::AdaptiveAvg { size } => {
                ["adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"][n(size)]
            }
            Planes::AdaptiveMax { size } => {
                ["adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"][n(size)]
            }
            Planes::AvgBackward { .. } => "avg_pool_backward",
            Planes::AdaptiveAvgBackward { .. } => "adaptive_avg_pool_backward",
            Planes::MaxBackward { .. } => "max_pool_backward",
        }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let [x, out] = plane_letters(operands[0].n_dims(), self.size().len());
        let (text, laws): (String, &[Law]) = match self {
            Planes::AdaptiveMax { .. } => (format!("{x} -> {out}, {out}"), &[]),
            Planes::MaxBackward { .. } => {
                // Windows may be cut: every rank adds what the indices of its own say.
                let windows = letters(0..operands[0].n_dims(), |_| false);
                (format!("{windows}, {windows} -> {out}"), &[Law::LinearIn(0)])
            }
            _ => (format!("{x} -> {out}"), &[Law::Linear]),
        };
        rule(self.name(), &text, laws)
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        match self {
            Planes::AdaptiveAvg { size } => one(match size.len() {
                1 => x[0].adaptive_avg_pool1d(size),
                2 => x[0].adaptive_avg_pool2d(size),
                _ => x[0].adaptive_avg_pool3d(size),
            }),
            Planes::AdaptiveMax { size } => two(match size.len() {
                1 => x[0].adaptive_max_pool1d(size),
                2 => x[0].adaptive_max_pool2d(size),
                _ => x[0].adaptive_max_pool3d(size),
            }),
            Planes::AvgBackward { of, size } => one(x[0].avg_pool_backward(size, &of.settings())),
            Planes::AdaptiveAvgBackward { size } => one(x[0].adaptive_avg_pool_backward(size)),
            Planes::MaxBackward { size } => one(x[0].max_pool_backward(x[1], size)),
        }
    }
}

impl Planes {
    fn size(&self) -> &Sizes {
        match self {
            Planes::AdaptiveAvg { size }
            | Planes::AdaptiveMax { size }
            | Planes::AvgBackward { size, .. }
            | Planes::AdaptiveAvgBackward { size }
            | Planes::MaxBackward { size } => size,
        }
    }
}

/// The letters of what has planes of `n` dims, and of the same with planes of another size. Planes are whole.
pub(super) fn plane_letters(n_dims: usize, n: usize) -> [String; 2] {
    let first = n_dims.saturating_sub(n);
    let side = |offset: usize| {
        let one = |dim: usize| match dim < first {
            true => letter(dim),
            false => letter(dim + offset) + "!",
        };
        (0..n_dims).map(one).collect::<Vec<_>>().join(" ")
    };
    [side(0), side(n)]
}

/// A setting that is one number for all dims, or one per dim.
fn each(values: &[usize], n: usize) -> Sizes {
    match values {
        [one] => SmallVec::from_elem(*one, n),
        // Of a wrong length: for the kernel to say.
        values => values.into(),
    }
}

fn max_pooling(n: usize, settings: &MaxPool) -> MaxPooling {
    let MaxPool { kernel, stride, padding, dilation, ceil_mode } = *settings;
    let stride = if stride.is_empty() { kernel } else { stride };
    let [kernel, stride, padding, dilation] =
        [kernel, stride, padding, dilation].map(|values| each(values, n));
    MaxPooling(Sliding { n, kernel, stride, padding, dilation, ceil_mode })
}

fn avg_pooling(n: usize, settings: &AvgPool) -> AvgPooling {
    let AvgPool { kernel, stride, padding, ceil_mode, count_include_pad, divisor_override } =
        *settings;
    let stride = if stride.is_empty() { kernel } else { stride };
    let [kernel, stride, padding] = [kernel, stride, padding].map(|values| each(values, n));
    let dilation = SmallVec::from_elem(1, n);
    let sliding = Sliding { n, kernel, stride, padding, dilation, ceil_mode };
    AvgPooling { sliding, count_include_pad, divisor_override }
}

macro_rules! poolings {
    ($($n:literal $spatial:literal $max:ident $avg:ident $adaptive_max:ident $adaptive_avg:ident;)*) => {
        impl DTensor {
            $(
                #[doc = concat!(
                    "The largest element of every window of `[N, C, ", $spatial, "]` or `[C, ", $spatial, "]`, and its ",
                    "index within the flattened spatial dims (`i64`), which is -1 for a window without elements. Where ",
                    "spatial dims are cut, one exchange between neighbours. As `torch.nn.functional.", stringify!($max),
                    "` with `return_indices`.",
                )]
                pub fn $max(&self, settings: &MaxPool) -> Result<(DTensor, DTensor)> {
                    call_two(&max_pooling($n, settings), &[self])
                }

                #[doc = concat!(
                    "The mean of every window of `[N, C, ", $spatial, "]` or `[C, ", $spatial, "]`. Where spatial dims are ",
                    "cut, one exchange between neighbours. As `torch.nn.functional.", stringify!($avg), "`.",
                )]
                pub fn $avg(&self, settings: &AvgPool) -> Result<DTensor> {
                    call_one(&avg_pooling($n, settings), &[self])
                }

                #[doc = concat!(
                    "The largest elements of `[N, C, ", $spatial, "]` or `[C, ", $spatial, "]` in windows of about the same ",
                    "size, such that the result has this spatial size; and their indices. As `torch.nn.functional.",
                    stringify!($adaptive_max), "` with `return_indices`.",
                )]
                pub fn $adaptive_max(&self, output_size: &[usize]) -> Result<(DTensor, DTensor)> {
                    call_two(&Planes::AdaptiveMax { size: each(output_size, $n) }, &[self])
                }

                #[doc = concat!(
                    "The means of `[N, C, ", $spatial, "]` or `[C, ", $spatial, "]` in windows of about the same size, such ",
                    "that the result has this spatial size. As `torch.nn.functional.", stringify!($adaptive_avg), "`.",
                )]
                pub fn $adaptive_avg(&self, output_size: &[usize]) -> Result<DTensor> {
                    call_one(&Planes::AdaptiveAvg { size: each(output_size, $n) }, &[self])
                }
            )*
        }

        pub(super) const RECORDS: &[OpRecord] = &[
            $(
                OpRecord { name: stringify!($max), samples: || max_samples($n) },
                OpRecord { name: stringify!($avg), samples: || avg_samples($n) },
                OpRecord {
                    name: stringify!($adaptive_max),
                    samples: || vec![adaptive_sample($n, |size| Planes::AdaptiveMax { size })],
                },
                OpRecord {
                    name: stringify!($adaptive_avg),
                    samples: || vec![adaptive_sample($n, |size| Planes::AdaptiveAvg { size })],
                },
            )*
            OpRecord {
                name: "avg_pool_backward",
                samples: || {
                    let settings = AvgPool { kernel: &[3], stride: &[2], padding: &[1], ..AvgPool::default() };
                    let (of, size) = (avg_pooling(1, &settings), each(&[5], 1));
                    vec![Sample::new(Planes::AvgBackward { of, size }, &[&[2, 3, 3]])]
                },
            },
            OpRecord {
                name: "adaptive_avg_pool_backward",
                samples: || {
                    let op = Planes::AdaptiveAvgBackward { size: each(&[5], 1) };
                    vec![Sample::new(op, &[&[2, 3, 2]])]
                },
            },
            OpRecord {
                name: "max_pool_backward",
                samples: || {
                    let op = Planes::MaxBackward { size: each(&[5], 1) };
                    let sample = Sample::new(op, &[&[2, 3, 2], &[2, 3, 2]]);
                    vec![sample.with(1, SampleValues::Index(5))]
                },
            },
        ];
    };
}

poolings! {
    1 "L" max_pool1d avg_pool1d adaptive_max_pool1d adaptive_avg_pool1d;
    2 "H, W" max_pool2d avg_pool2d adaptive_max_pool2d adaptive_avg_pool2d;
    3 "D, H, W" max_pool3d avg_pool3d adaptive_max_pool3d adaptive_avg_pool3d;
}

impl DTensor {
    /// The gradient of [`avg_pool1d`](DTensor::avg_pool1d), [`avg_pool2d`](DTensor::avg_pool2d) or
    /// [`avg_pool3d`](DTensor::avg_pool3d) with respect to the input with these spatial sizes, where `self` is the gradient
    /// of the result.
    pub fn avg_pool_backward(&self, input_size: &[usize], settings: &AvgPool) -> Result<DTensor> {
        let of = avg_pooling(input_size.len(), settings);
        call_one(&Planes::AvgBackward { of, size: input_size.into() }, &[self])
    }

    /// The gradient of [`adaptive_avg_pool1d`](DTensor::adaptive_avg_pool1d) and those of more dims with respect to the
    /// input with these spatial sizes, where `self` is the gradient of the result.
    pub fn adaptive_avg_pool_backward(&self, input_size: &[usize]) -> Result<DTensor> {
        call_one(&Planes::AdaptiveAvgBackward { size: input_size.into() }, &[self])
    }

    /// The gradient of [`max_pool1d`](DTensor::max_pool1d), [`adaptive_max_pool1d`](DTensor::adaptive_max_pool1d) and those
    /// of more dims with respect to the input with these spatial sizes, where `self` is the gradient of the first result,
    /// and `indices` is the second.
    pub fn max_pool_backward(&self, indices: &DTensor, input_size: &[usize]) -> Result<DTensor> {
        call_one(&Planes::MaxBackward { size: input_size.into() }, &[self, indices])
    }
}

/// An input with planes of `n` dims.
fn sample_shape(n: usize) -> &'static [usize] {
    [&[2, 3, 7][..], &[1, 2, 5, 4], &[1, 1, 3, 4, 3]][n - 1]
}

fn max_samples(n: usize) -> Vec<Sample> {
    let plain = MaxPool { kernel: &[2], ..MaxPool::default() };
    let all =
        MaxPool { kernel: &[3], stride: &[2], padding: &[1], dilation: &[1], ceil_mode: true };
    let dilated = MaxPool { kernel: &[2], stride: &[1], dilation: &[2], ..plain };
    let settings = if n == 1 { vec![all, plain, dilated] } else { vec![all] };
    settings.iter().map(|one| Sample::new(max_pooling(n, one), &[sample_shape(n)])).collect()
}

fn avg_samples(n: usize) -> Vec<Sample> {
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

fn adaptive_sample<O: Op>(n: usize, op: fn(Sizes) -> O) -> Sample {
    Sample::new(op(each(&[2], n)), &[sample_shape(n)])
}
