//! Counting values.

use super::{error::only_floats, number::by_float, search::place};
use crate::{DType, LocalError, Result, Tensor};

impl Tensor {
    /// How often each number from 0 to the largest is there, or the sum of the weights of its elements; at
    /// least `min_length` results. For a tensor of one dim of integers that are not negative.
    ///
    /// As in PyTorch the result is `i64` without weights, `f32` for weights of `f32`, else `f64`. Sums are
    /// made in `f64`. Its shape depends on the values, so a meta tensor has none: an error.
    pub fn bincount(&self, weights: Option<&Tensor>, min_length: usize) -> Result<Tensor> {
        const OP: &str = "bincount";
        if self.dtype().is_float() || self.dtype() == DType::Bool {
            return Err(LocalError::UnsupportedDType { op: OP, dtype: self.dtype() });
        }
        if self.n_dims() != 1 || weights.is_some_and(|weights| weights.shape() != self.shape()) {
            let to = weights.map_or_else(Vec::new, |weights| weights.shape().to_vec());
            let why = "values, and weights if there are any, have the same single dim";
            return Err(LocalError::ShapeMismatch { op: OP, from: self.shape().to_vec(), to, why });
        }
        if self.is_meta() || weights.is_some_and(Tensor::is_meta) {
            return Err(LocalError::Meta { op: OP, shape: self.shape().to_vec() });
        }
        let x = self.to_dtype(DType::I64)?.contiguous();
        let x = x.as_slice::<i64>()?;
        if let Some(negative) = x.iter().find(|x| **x < 0) {
            let (name, got) = ("a value", negative.to_string());
            return Err(LocalError::BadNumber { op: OP, name, got, want: "numbers from 0 on" });
        }
        let n = x.iter().max().map_or(0, |max| (*max as usize).saturating_add(1)).max(min_length);
        let Some(weights) = weights else {
            let mut counts = Tensor::zeros(&[n], DType::I64)?;
            let out = counts.as_mut_slice::<i64>()?;
            x.iter().for_each(|x| out[*x as usize] += 1);
            return Ok(counts);
        };
        let dtype = if weights.dtype() == DType::F32 { DType::F32 } else { DType::F64 };
        let weights = weights.to_dtype(DType::F64)?.contiguous();
        let mut sums = Tensor::zeros(&[n], DType::F64)?;
        let out = sums.as_mut_slice::<f64>()?;
        for (x, weight) in x.iter().zip(weights.as_slice::<f64>()?) {
            out[*x as usize] += weight;
        }
        sums.to_dtype(dtype)
    }

    /// How many elements are in each of `bins` equal parts of `min..=max`, in the dtype of the tensor; if
    /// the two are equal, of the range of its values. Of floats only. Elements outside, and NaN, do not
    /// count; the largest belongs to the last part.
    pub fn histc(&self, bins: usize, min: f64, max: f64) -> Result<Tensor> {
        const OP: &str = "histc";
        check_bins(OP, self, bins)?;
        if self.is_meta() {
            return Tensor::meta(&[bins], self.dtype());
        }
        let (min, max) = range(OP, self, min, max)?;
        let mut counts = vec![0_i64; bins];
        let mut count = |inside: bool, place: f64| {
            if inside {
                counts[(place as usize).min(bins - 1)] += 1;
            }
        };
        // Places are computed in the type of the elements, as PyTorch does: what is near the end of a part
        // then falls into the same one.
        if self.dtype() == DType::F64 {
            for x in self.contiguous().as_slice::<f64>()? {
                count(min <= *x && *x <= max, (x - min) * bins as f64 / (max - min));
            }
        } else {
            let (min, max) = (min as f32, max as f32);
            for x in self.to_dtype(DType::F32)?.contiguous().as_slice::<f32>()? {
                count(min <= *x && *x <= max, f64::from((x - min) * bins as f32 / (max - min)));
            }
        }
        Tensor::from_vec(counts, &[bins])?.to_dtype(self.dtype())
    }

    /// Counts as [`histc`](Tensor::histc), and the `bins + 1` edges of the parts. Without a range, that of
    /// the values is taken. An element belongs to the part whose edges enclose it; on an edge, to the one
    /// above, but the largest to the last part.
    pub fn histogram(&self, bins: usize, of: Option<(f64, f64)>) -> Result<(Tensor, Tensor)> {
        const OP: &str = "histogram";
        check_bins(OP, self, bins)?;
        if self.is_meta() {
            let counts = Tensor::meta(&[bins], self.dtype())?;
            return Ok((counts, Tensor::meta(&[bins + 1], self.dtype())?));
        }
        let (min, max) = of.unwrap_or((0.0, 0.0));
        let (min, max) = range(OP, self, min, max)?;
        // From both ends, so that both are exact.
        let step = (max - min) / bins as f64;
        let edge = |i: usize| match i {
            _ if i <= bins / 2 => min + step * i as f64,
            _ => max - step * (bins - i) as f64,
        };
        let edges: Vec<f64> = (0..=bins).map(edge).collect();
        let edges = Tensor::from_vec(edges, &[bins + 1])?.to_dtype(self.dtype())?;
        Ok((self.histogram_of_edges(&edges)?, edges))
    }

    /// How many elements are between each two neighbours of the sorted `edges`, as
    /// [`histogram`](Tensor::histogram).
    pub fn histogram_of_edges(&self, edges: &Tensor) -> Result<Tensor> {
        const OP: &str = "histogram_of_edges";
        only_floats(OP, self)?;
        if edges.dtype() != self.dtype() {
            let (got, want) = (edges.dtype(), self.dtype());
            return Err(LocalError::WrongDType { op: OP, got, want });
        }
        let &[n_edges @ 2..=usize::MAX] = edges.shape() else {
            return Err(LocalError::ShapeMismatch {
                op: OP,
                from: edges.shape().to_vec(),
                to: self.shape().to_vec(),
                why: "the edges have one dim, and are two at least",
            });
        };
        let bins = n_edges - 1;
        if self.is_meta() || edges.is_meta() {
            return Tensor::meta(&[bins], self.dtype());
        }
        let mut counts = vec![0_i64; bins];
        let (x, edges) = (self.contiguous(), edges.contiguous());
        by_float!(self.dtype(), T => {
            let (x, edges) = (x.as_slice::<T>()?, edges.as_slice::<T>()?);
            for x in x.iter().filter(|x| edges[0] <= **x && **x <= edges[bins]) {
                let after = place(edges, *x, true);
                counts[after.clamp(1, bins) - 1] += 1;
            }
        });
        Tensor::from_vec(counts, &[bins])?.to_dtype(self.dtype())
    }
}

fn check_bins(op: &'static str, x: &Tensor, bins: usize) -> Result<()> {
    only_floats(op, x)?;
    if bins > 0 {
        return Ok(());
    }
    Err(LocalError::BadNumber { op, name: "bins", got: bins.to_string(), want: "at least 1" })
}

/// The range of a histogram: as given, or that of the values if it is empty, or one around a single value.
fn range(op: &'static str, x: &Tensor, min: f64, max: f64) -> Result<(f64, f64)> {
    let (mut min, mut max) = (min, max);
    if min == max && x.numel() > 0 {
        let value = |extreme: Tensor| extreme.to_dtype(DType::F64)?.item::<f64>();
        (min, max) = (value(x.amin(&[], false)?)?, value(x.amax(&[], false)?)?);
    }
    if min == max {
        (min, max) = (min - 1.0, max + 1.0);
    }
    if min < max && (max - min).is_finite() {
        return Ok((min, max));
    }
    let (got, want) = (format!("{min}..={max}"), "finite numbers, the first not the larger");
    Err(LocalError::BadNumber { op, name: "range", got, want })
}
