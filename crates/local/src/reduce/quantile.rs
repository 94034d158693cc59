//! Quantiles.

use super::{
    arrange::Reduced,
    error::{not_nothing, only_floats},
};
use crate::{DType, Element, LocalError, Result, Tensor, dims::Dims};

/// What a quantile is that falls between two values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Interpolation {
    /// On the line between them.
    #[default]
    Linear,
    /// The lower one.
    Lower,
    /// The higher one.
    Higher,
    /// The nearer one; of two equally near, the one with the even place.
    Nearest,
    /// Their mean.
    Midpoint,
}

impl Tensor {
    /// The quantiles `q`, each from 0 to 1, along a dim or of all elements. The result has a new first dim
    /// that counts them. Of floats only; NaN where there is one. A place that is that of one value gives this
    /// value, also if it is infinite, where PyTorch gives NaN.
    ///
    /// ```
    /// use dtensor_local::{Interpolation, Tensor};
    ///
    /// let x = Tensor::from_vec(vec![4.0_f32, 1.0, 3.0, 2.0], &[4])?;
    /// let quartiles = x.quantile(&[0.25, 0.5], None, false, Interpolation::Linear)?;
    /// assert_eq!(quartiles.to_vec::<f32>()?, [1.75, 2.5]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn quantile(
        &self,
        q: &[f64],
        dim: Option<isize>,
        keep_dims: bool,
        interpolation: Interpolation,
    ) -> Result<Tensor> {
        quantile("quantile", self, q, dim, keep_dims, interpolation)
    }

    /// As [`quantile`](Tensor::quantile) without the NaN; NaN where there is nothing else.
    pub fn nanquantile(
        &self,
        q: &[f64],
        dim: Option<isize>,
        keep_dims: bool,
        interpolation: Interpolation,
    ) -> Result<Tensor> {
        quantile("nanquantile", self, q, dim, keep_dims, interpolation)
    }
}

fn quantile(
    op: &'static str,
    x: &Tensor,
    q: &[f64],
    dim: Option<isize>,
    keep_dims: bool,
    interpolation: Interpolation,
) -> Result<Tensor> {
    only_floats(op, x)?;
    if let Some(bad) = q.iter().find(|q| !(0.0..=1.0).contains(*q)) {
        let got = bad.to_string();
        return Err(LocalError::BadNumber { op, name: "q", got, want: "numbers from 0 to 1" });
    }
    let dims: Dims<isize> = dim.into_iter().collect();
    let reduced = Reduced::of(op, x, &dims, keep_dims)?;
    not_nothing(op, x, reduced.n)?;
    let shape: Dims = [q.len()].into_iter().chain(reduced.shape.iter().copied()).collect();
    if x.is_meta() {
        return Tensor::meta(&shape, x.dtype());
    }
    let lines = match dim {
        Some(dim) if x.n_dims() > 0 => x.transpose(dim, -1)?,
        _ => x.reshape(&[x.numel()])?,
    };
    let (sorted, _) = lines.sort(-1, false)?;
    let line = Line { skip_nan: op == "nanquantile", interpolation };
    // Half precision is computed in f32 and rounded once.
    let found = match x.dtype() {
        DType::F64 => line.all(op, sorted.as_slice::<f64>()?, reduced.n, q, |x| x, |x| x),
        _ => {
            let sorted = sorted.to_dtype(DType::F32)?;
            line.all(op, sorted.as_slice::<f32>()?, reduced.n, q, f64::from, |x| x as f32)
        }
    }?;
    // One value per line, in the order of the lines: the reduced dim, whose size is 1 now, goes back.
    let mut sizes: Dims = [q.len()].into_iter().chain(lines.shape().iter().copied()).collect();
    let last = sizes.len() - 1;
    sizes[last] = 1;
    let found = found.reshape(&sizes)?;
    let found = match dim {
        Some(dim) if x.n_dims() > 0 => {
            let dim = if dim < 0 { dim } else { dim + 1 };
            found.transpose(dim, -1)?.contiguous()
        }
        _ => found,
    };
    found.reshape(&shape)?.to_dtype(x.dtype())
}

/// How quantiles of a sorted line are found.
#[derive(Clone, Copy)]
struct Line {
    skip_nan: bool,
    interpolation: Interpolation,
}

impl Line {
    /// The quantiles of all lines of `n` values: those of the first `q`, then of the second.
    fn all<T: Element>(
        self,
        op: &'static str,
        sorted: &[T],
        n: usize,
        q: &[f64],
        wide: impl Fn(T) -> f64,
        narrow: impl Fn(f64) -> T,
    ) -> Result<Tensor> {
        let n_lines = sorted.len() / n;
        Tensor::write(op, &[q.len(), n_lines], |out: &mut [T]| {
            for (line, sorted) in sorted.chunks_exact(n).enumerate() {
                // NaN are the last.
                #[allow(clippy::eq_op)] // That is what a NaN is.
                let numbers = sorted.partition_point(|x| x == x);
                for (q, out) in q.iter().zip(out.chunks_exact_mut(n_lines)) {
                    let all = if self.skip_nan { numbers } else { n };
                    out[line] = if all == 0 || numbers < all {
                        narrow(f64::NAN)
                    } else {
                        narrow(self.at(&sorted[..all], *q, &wide))
                    };
                }
            }
        })
    }

    fn at<T: Element>(self, sorted: &[T], q: f64, wide: impl Fn(T) -> f64) -> f64 {
        let rank = q * (sorted.len() - 1) as f64;
        let rank = match self.interpolation {
            Interpolation::Lower => rank.floor(),
            Interpolation::Higher => rank.ceil(),
            Interpolation::Nearest => rank.round_ties_even(),
            Interpolation::Linear | Interpolation::Midpoint => rank,
        };
        let (low, high) = (wide(sorted[rank.floor() as usize]), wide(sorted[rank.ceil() as usize]));
        // Equal values, infinite ones among them, have no distance to divide.
        if low == high {
            return low;
        }
        match self.interpolation {
            Interpolation::Midpoint => low + (high - low) * 0.5,
            _ => {
                let weight = rank - rank.floor();
                if weight < 0.5 {
                    low + weight * (high - low)
                } else {
                    high - (high - low) * (1.0 - weight)
                }
            }
        }
    }
}
