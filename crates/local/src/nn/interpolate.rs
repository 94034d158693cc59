//! Resizing of one to three spatial dims, to the nearest elements or between them.

use super::{
    real::{Real, by_real, check_float, check_shape, rounded, widened},
    windows::{shape_of, spatial},
};
use crate::{LocalError, Result, Tensor, dims::Dims, simd::vectorized, threads};

/// How large the result of [`Tensor::interpolate`] is: one number for all spatial dims, or one per dim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InterpolateSize<'a> {
    /// This large.
    To(&'a [usize]),
    /// So many times as large as the input, rounded down. The factor itself, not what the rounding has made of it, says
    /// which elements an output lies between.
    Times(&'a [f64]),
}

/// Where the values of [`Tensor::interpolate`] come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InterpolateMode {
    /// The element at or before the place of the output, as PyTorch's `nearest`.
    #[default]
    Nearest,
    /// The element whose middle is nearest to that of the output, as PyTorch's `nearest-exact`.
    NearestExact,
    /// The two, four or eight elements around, by their distance: `linear`, `bilinear` or `trilinear`.
    Linear,
}

/// Settings of [`Tensor::interpolate`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interpolate<'a> {
    /// How large the result is.
    pub size: InterpolateSize<'a>,
    /// Where its values come from.
    pub mode: InterpolateMode,
    /// For [`InterpolateMode::Linear`]: whether the middles of the first and the last elements of input and output lie on
    /// each other, instead of their outer edges.
    pub align_corners: bool,
}

impl Tensor {
    /// `[N, C, spatial...]` in another spatial size, for one to three spatial dims. As
    /// `torch.nn.functional.interpolate`.
    ///
    /// ```
    /// use dtensor_local::{Tensor, nn::{Interpolate, InterpolateMode, InterpolateSize}};
    ///
    /// let x = Tensor::from_vec(vec![0.0_f32, 3.0], &[1, 1, 2])?;
    /// let (size, align_corners) = (InterpolateSize::To(&[4]), true);
    /// let y = x.interpolate(&Interpolate { size, mode: InterpolateMode::Linear, align_corners })?;
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 1.0, 2.0, 3.0]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn interpolate(&self, settings: &Interpolate) -> Result<Tensor> {
        let op = "interpolate";
        let resize = Resize::new(op, self.shape(), settings)?;
        check_float(op, self)?;
        let shape = resize.shape(self.shape(), resize.output);
        if self.is_meta() {
            return Tensor::meta(&shape, self.dtype());
        }
        let wide = widened(op, self)?;
        let out = by_real!(wide, R => {
            let x = wide.as_slice::<R>()?;
            let sources = resize.sources::<R>();
            Tensor::write(op, &shape, |out: &mut [R]| resize.forward(&sources, x, out))?
        });
        rounded(op, out, self.dtype())
    }

    /// The gradient of [`Tensor::interpolate`] with respect to its input with these spatial sizes, where `self` is the
    /// gradient of the result.
    pub fn interpolate_backward(
        &self,
        input_size: &[usize],
        settings: &Interpolate,
    ) -> Result<Tensor> {
        let op = "interpolate_backward";
        let n_leading = self.n_dims().min(2);
        let input: Dims = self.shape()[..n_leading].iter().chain(input_size).copied().collect();
        let resize = Resize::new(op, &input, settings)?;
        check_float(op, self)?;
        let want = resize.shape(&input, resize.output);
        check_shape(op, self, &want, "a gradient has the shape of the result")?;
        if self.is_meta() {
            return Tensor::meta(&input, self.dtype());
        }
        let wide = widened(op, self)?;
        let out = by_real!(wide, R => {
            let grad = wide.as_slice::<R>()?;
            let sources = resize.sources::<R>();
            Tensor::write(op, &input, |out: &mut [R]| resize.backward(&sources, grad, out))?
        });
        rounded(op, out, self.dtype())
    }
}

/// Sizes and settings that fit each other.
struct Resize {
    n_spatial: usize,
    input: [usize; 3],
    output: [usize; 3],
    /// What the caller has scaled by, if that is how the size was given.
    factors: [Option<f64>; 3],
    mode: InterpolateMode,
    align_corners: bool,
}

/// The one or two elements of a dim that an output is made of.
#[derive(Clone, Copy)]
struct Source<R> {
    first: usize,
    second: usize,
    /// How much of the second.
    share: R,
}

impl Resize {
    fn new(op: &'static str, shape: &[usize], settings: &Interpolate) -> Result<Resize> {
        let n = shape.len().saturating_sub(2);
        let mismatch = |why| {
            let (from, to) = (shape.to_vec(), vec![1; 5]);
            Err(LocalError::ShapeMismatch { op, from, to, why })
        };
        if !(1..=3).contains(&n) {
            return mismatch("it has a batch, channels, and one to three spatial dims");
        }
        if shape[2..].contains(&0) {
            return mismatch("the spatial dims have at least one element");
        }
        let bad = |name, got, want| Err(LocalError::BadNumber { op, name, got, want });
        let align_corners = settings.align_corners;
        if align_corners && settings.mode != InterpolateMode::Linear {
            return bad("align_corners", align_corners.to_string(), "it for the linear mode only");
        }
        let input = spatial(shape);
        let (mut output, mut factors) = ([1; 3], [None; 3]);
        match settings.size {
            InterpolateSize::To(sizes) => {
                if (sizes.len() != n && sizes.len() != 1) || sizes.contains(&0) {
                    let want = "one number, or one per spatial dim, at least 1";
                    return bad("size", format!("{sizes:?}"), want);
                }
                for dim in 0..n {
                    output[3 - n + dim] = sizes[dim.min(sizes.len() - 1)];
                }
            }
            InterpolateSize::Times(scales) => {
                for dim in 0..n {
                    let at = 3 - n + dim;
                    let fits = scales.len() == n || scales.len() == 1;
                    let scale = if fits { scales[dim.min(scales.len() - 1)] } else { 0.0 };
                    let size = input[at] as f64 * scale;
                    if !(1.0..2.0_f64.powi(53)).contains(&size) {
                        let want = "one number, or one per spatial dim, of which something is left";
                        return bad("scale_factor", format!("{scales:?}"), want);
                    }
                    (output[at], factors[at]) = (size as usize, Some(scale));
                }
            }
        }
        let mode = settings.mode;
        Ok(Resize { n_spatial: n, input, output, factors, mode, align_corners })
    }

    fn shape(&self, input: &[usize], spatial: [usize; 3]) -> Dims {
        shape_of([input[0], input[1]], spatial, self.n_spatial)
    }

    /// The sources of every output, per dim. Places are computed as PyTorch computes them, for a rounding to another
    /// element would be another result: in the type of the values, and cut to whole numbers by way of `f32`.
    fn sources<R: Real>(&self) -> [Vec<Source<R>>; 3] {
        [0, 1, 2].map(|dim| {
            let (n_in, n_out) = (self.input[dim], self.output[dim]);
            let nearest = |place: R| {
                let first = (place.wide() as f32 as usize).min(n_in - 1);
                Source { first, second: first, share: R::ZERO }
            };
            let source = |output: usize| match self.mode {
                InterpolateMode::Linear => {
                    let place = self.place::<R>(dim, output);
                    let first = (place.wide() as usize).min(n_in - 1);
                    let share = (place - R::of(first as f64)).wide().clamp(0.0, 1.0);
                    Source { first, second: (first + 1).min(n_in - 1), share: R::of(share) }
                }
                InterpolateMode::Nearest => nearest(R::of(output as f64) * self.scale(dim)),
                InterpolateMode::NearestExact => nearest(self.place::<R>(dim, output) + R::of(0.5)),
            };
            (0..n_out).map(source).collect()
        })
    }

    /// Where the middle of an output lies among the middles of the inputs.
    fn place<R: Real>(&self, dim: usize, output: usize) -> R {
        let (n_in, n_out) = (self.input[dim] as f64, self.output[dim] as f64);
        let (output, half) = (R::of(output as f64), R::of(0.5));
        if self.align_corners {
            let scale = if n_out > 1.0 { R::of(n_in - 1.0) / R::of(n_out - 1.0) } else { R::ZERO };
            return output * scale;
        }
        let place = self.scale::<R>(dim) * (output + half) - half;
        if place < R::ZERO { R::ZERO } else { place }
    }

    /// Elements of the input per element of the output.
    fn scale<R: Real>(&self, dim: usize) -> R {
        match self.factors[dim] {
            Some(factor) => R::of(1.0 / factor),
            None => R::of(self.input[dim] as f64) / R::of(self.output[dim] as f64),
        }
    }

    /// Calls `row` with the first element and the share of every row of the input that a row of the output is made of.
    #[inline(always)]
    fn each_row<R: Real>(
        &self,
        sources: &[Vec<Source<R>>; 3],
        output_row: usize,
        mut row: impl FnMut(usize, R),
    ) {
        let [_, height, width] = self.input;
        let outer = sources[0][output_row / self.output[1]];
        let inner = sources[1][output_row % self.output[1]];
        for (i_0, share_0) in outer.elements().into_iter().flatten() {
            for (i_1, share_1) in inner.elements().into_iter().flatten() {
                row((i_0 * height + i_1) * width, share_0 * share_1);
            }
        }
    }

    fn forward<R: Real>(&self, sources: &[Vec<Source<R>>; 3], x: &[R], out: &mut [R]) {
        let [n_in, width, n_out] = [self.input.iter().product(), self.input[2], self.output[2]];
        let n_rows = self.output[0] * self.output[1];
        threads::for_pieces_of(out, n_out, 32 * 1024 / n_out.max(width), |rows, out| {
            let mut mixed = vec![R::ZERO; width];
            for (row, out) in rows.zip(out.chunks_exact_mut(n_out)) {
                let plane = &x[row / n_rows * n_in..][..n_in];
                if self.mode == InterpolateMode::Linear {
                    mixed.fill(R::ZERO);
                    self.each_row(sources, row % n_rows, |first, share| {
                        add_scaled(&plane[first..][..width], share, &mut mixed);
                    });
                    for (out, source) in out.iter_mut().zip(&sources[2]) {
                        let Source { first, second, share } = *source;
                        *out = (R::ONE - share) * mixed[first] + share * mixed[second];
                    }
                } else {
                    self.each_row(sources, row % n_rows, |first, _| {
                        let from = &plane[first..][..width];
                        for (out, source) in out.iter_mut().zip(&sources[2]) {
                            *out = from[source.first];
                        }
                    });
                }
            }
        });
    }

    /// The adjoint of [`Resize::forward`].
    fn backward<R: Real>(&self, sources: &[Vec<Source<R>>; 3], grad: &[R], out: &mut [R]) {
        let [n_in, width]: [usize; 2] = [self.input.iter().product(), self.input[2]];
        let [n_rows, n_out] = [self.output[0] * self.output[1], self.output[2]];
        let grain = 32 * 1024 / n_in.max(n_rows * n_out);
        threads::for_pieces_of(out, n_in, grain, |planes, out| {
            let mut mixed = vec![R::ZERO; width];
            for (plane, out) in planes.zip(out.chunks_exact_mut(n_in)) {
                out.fill(R::ZERO);
                for row in 0..n_rows {
                    mixed.fill(R::ZERO);
                    let grad = &grad[(plane * n_rows + row) * n_out..][..n_out];
                    for (grad, source) in grad.iter().zip(&sources[2]) {
                        let Source { first, second, share } = *source;
                        mixed[first] += (R::ONE - share) * *grad;
                        mixed[second] += share * *grad;
                    }
                    self.each_row(sources, row, |first, share| {
                        add_scaled(&mixed, share, &mut out[first..][..width]);
                    });
                }
            }
        });
    }
}

impl<R: Real> Source<R> {
    /// The elements and their shares.
    #[inline(always)]
    fn elements(self) -> [Option<(usize, R)>; 2] {
        if self.first == self.second {
            return [Some((self.first, R::ONE)), None];
        }
        [Some((self.first, R::ONE - self.share)), Some((self.second, self.share))]
    }
}

vectorized! {
    fn add_scaled<R: Real>(from: &[R], factor: R, to: &mut [R]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = factor.mul_add::<FMA>(*from, *to);
        }
    }
}
