//! Running sums, products and logarithms of sums along a dim.

use super::{
    arrange::lenient_dim,
    error::only_floats,
    number::{Number, Real, Wide, by_float},
};
use crate::{
    Element, Result, Tensor,
    threads::{for_pieces, for_pieces_of},
};
use crate::{by_dtype::by_dtype, disjoint::Disjoint};

/// Elements that are worth a hand-over to another thread.
const GRAIN: usize = 1 << 15;

/// Lines that are scanned together: their states stay in the first-level cache.
const STRIP: usize = 128;

impl Tensor {
    /// Running sums along a dim. Integers and bools give `i64` and wrap; floats keep their dtype and are
    /// added in `f64`, so that each result is rounded once.
    pub fn cumsum(&self, dim: isize) -> Result<Tensor> {
        let lines = Lines::of("cumsum", self, dim)?;
        if self.dtype().is_float() {
            return by_float!(self.dtype(), T => lines.scan("cumsum", 0.0, |sum, x: T, _| sum + x.wide().double(), rounded::<T>));
        }
        by_dtype!(self.dtype(), T => lines.scan("cumsum", 0, |sum: i64, x: T, _| sum.wrapping_add(integer(x)), |sum| sum))
    }

    /// Running products along a dim, as [`Tensor::cumsum`].
    pub fn cumprod(&self, dim: isize) -> Result<Tensor> {
        let lines = Lines::of("cumprod", self, dim)?;
        if self.dtype().is_float() {
            return by_float!(self.dtype(), T => lines.scan("cumprod", 1.0, |product, x: T, _| product * x.wide().double(), rounded::<T>));
        }
        by_dtype!(self.dtype(), T => lines.scan("cumprod", 1, |product: i64, x: T, _| product.wrapping_mul(integer(x)), |product| product))
    }

    /// The logarithms of running sums of exponentials along a dim; of floats only.
    pub fn logcumsumexp(&self, dim: isize) -> Result<Tensor> {
        only_floats("logcumsumexp", self)?;
        let lines = Lines::of("logcumsumexp", self, dim)?;
        let start = (f64::NEG_INFINITY, 0.0);
        by_float!(self.dtype(), T => lines.scan(
            "logcumsumexp",
            start,
            |acc, x: T, _| add_exponential(acc, x.wide().double()),
            |(max, sum): (f64, f64)| rounded::<T>(max + sum.ln()),
        ))
    }
}

/// The lines of a tensor along a dim: its elements as `outer x n x inner`.
pub(super) struct Lines {
    x: Tensor,
    n: usize,
    inner: usize,
}

impl Lines {
    pub fn of(op: &'static str, x: &Tensor, dim: isize) -> Result<Lines> {
        let dim = lenient_dim(op, dim, x.shape())?;
        let n = x.shape().get(dim).copied().unwrap_or(1);
        let inner = x.shape().iter().skip(dim + 1).fold(1, |n: usize, m| n.saturating_mul(*m));
        Ok(Lines { x: x.contiguous(), n, inner })
    }

    /// A tensor of the same shape. Steps along every line from `start`, with the value and its index; each
    /// state gives a result.
    pub fn scan<T: Element, U: Element, S: Copy + Send + Sync>(
        &self,
        op: &'static str,
        start: S,
        step: impl Fn(S, T, usize) -> S + Sync,
        result: impl Fn(S) -> U + Sync,
    ) -> Result<Tensor> {
        if self.x.is_meta() {
            return Tensor::meta(self.x.shape(), U::DTYPE);
        }
        let (x, n, inner) = (self.x.as_slice::<T>()?, self.n, self.inner);
        Tensor::write(op, self.x.shape(), |out: &mut [U]| {
            if out.is_empty() {
                return;
            }
            if inner == 1 {
                for_pieces_of(out, n, GRAIN.div_ceil(n), |lines, out| {
                    for (line, out) in lines.zip(out.chunks_mut(n)) {
                        let mut state = start;
                        let x = &x[line * n..(line + 1) * n];
                        for (i, (x, out)) in x.iter().zip(out).enumerate() {
                            state = step(state, *x, i);
                            *out = result(state);
                        }
                    }
                });
                return;
            }
            // Neighbouring lines together, in the order of memory.
            let strips = inner.div_ceil(STRIP);
            let n_pieces = out.len() / (n * inner) * strips;
            let out = Disjoint::new(out);
            for_pieces(n_pieces, GRAIN.div_ceil(n * inner.min(STRIP)), &|pieces| {
                for piece in pieces {
                    let (outer, first) = (piece / strips, piece % strips * STRIP);
                    let width = STRIP.min(inner - first);
                    let mut states = [start; STRIP];
                    for i in 0..n {
                        let at = (outer * n + i) * inner + first;
                        // SAFETY: A strip is written by the piece of its number alone, row after row.
                        let out = unsafe { out.part(at..at + width) };
                        let row = states.iter_mut().zip(&x[at..at + width]).zip(out);
                        for ((state, x), out) in row {
                            *state = step(*state, *x, i);
                            *out = result(*state);
                        }
                    }
                }
            });
        })
    }
}

/// A running sum of exponentials: the largest exponent, and the sum with that taken out.
fn add_exponential((max, sum): (f64, f64), x: f64) -> (f64, f64) {
    if x.is_nan() || max.is_nan() {
        (f64::NAN, f64::NAN)
    } else if x == f64::NEG_INFINITY || max == f64::INFINITY {
        (max, sum)
    } else if x > max {
        (x, if x == f64::INFINITY { 1.0 } else { sum * (max - x).exp() + 1.0 })
    } else {
        (max, sum + (x - max).exp())
    }
}

fn rounded<T: Number<Wide: Real>>(value: f64) -> T {
    T::narrow(T::Wide::of(value))
}

/// An integer or bool as `i64`.
fn integer<T: Number>(x: T) -> i64 {
    x.wide().as_integer()
}
