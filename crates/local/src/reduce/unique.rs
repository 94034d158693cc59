//! Different values, and how often they are there.

use super::{arrange::lenient_dim, key::Key};
use crate::{Element, LocalError, Result, Tensor, by_dtype::by_dtype, dims::Dims};

/// The different values of a tensor.
#[derive(Clone)]
pub struct Unique {
    /// Each value once.
    pub values: Tensor,
    /// For every element the index of its value, as `i64`: `values[inverse]` is the tensor again.
    pub inverse: Tensor,
    /// How often each value is there, as `i64`.
    pub counts: Tensor,
}

impl Tensor {
    /// The different values of all elements, sorted. Two NaN are different, as in PyTorch. The shape of the
    /// result depends on the values, so a meta tensor has none: an error.
    ///
    /// ```
    /// use dtensor_local::Tensor;
    ///
    /// let unique = Tensor::from_vec(vec![3_i64, 1, 3, 2], &[2, 2])?.unique()?;
    /// assert_eq!(unique.values.to_vec::<i64>()?, [1, 2, 3]);
    /// assert_eq!(unique.inverse.to_vec::<i64>()?, [2, 0, 2, 1]);
    /// assert_eq!(unique.counts.to_vec::<i64>()?, [1, 1, 2]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn unique(&self) -> Result<Unique> {
        not_meta("unique", self)?;
        let (sorted, order) = self.reshape(&[self.numel()])?.sort(0, false)?;
        let order = order.as_slice::<i64>()?;
        by_dtype!(self.dtype(), T => {
            let sorted = sorted.as_slice::<T>()?;
            let groups = Groups::of(order, |before, i| sorted[before] == sorted[i]);
            groups.finish::<T>(sorted, self.shape())
        })
    }

    /// As [`unique`](Tensor::unique), but only equal neighbours become one, and their order stays.
    pub fn unique_consecutive(&self) -> Result<Unique> {
        not_meta("unique_consecutive", self)?;
        let flat = self.reshape(&[self.numel()])?.contiguous();
        let order: Vec<i64> = (0..self.numel() as i64).collect();
        by_dtype!(self.dtype(), T => {
            let x = flat.as_slice::<T>()?;
            let groups = Groups::of(&order, |before, i| x[before] == x[i]);
            groups.finish::<T>(x, self.shape())
        })
    }

    /// The different slices along a dim, sorted by their values in order. `inverse` has one element per
    /// slice. A NaN equals itself here (in PyTorch it does not, and slices with one are not sorted).
    pub fn unique_dim(&self, dim: isize) -> Result<Unique> {
        const OP: &str = "unique_dim";
        not_meta(OP, self)?;
        let normal = lenient_dim(OP, dim, self.shape())?;
        let rows = if self.n_dims() == 0 { self.reshape(&[1])? } else { self.clone() };
        let n = rows.shape()[normal];
        // The dim first, the others in their order: that in which slices are compared.
        let others = (0..rows.n_dims()).filter(|dim| *dim != normal);
        let order: Dims<isize> =
            [normal].into_iter().chain(others).map(|dim| dim as isize).collect();
        let rows = rows.permute(&order)?.contiguous();
        // As keys, so that rows of every dtype are compared by one function.
        let keys = by_dtype!(self.dtype(), T => keys(rows.as_slice::<T>()?));
        let width = keys.len().checked_div(n).unwrap_or(0);
        let row = |i: usize| &keys[i * width..(i + 1) * width];
        let mut order: Vec<i64> = (0..n as i64).collect();
        order.sort_by(|a, b| row(*a as usize).cmp(row(*b as usize)));
        let groups =
            Groups::of(&order, |before, i| row(order[before] as usize) == row(order[i] as usize));
        let firsts: Vec<i64> = groups.firsts.iter().map(|first| order[*first]).collect();
        let firsts = Tensor::from_vec(firsts, &[groups.firsts.len()])?;
        let values = match self.n_dims() {
            0 => self.reshape(&[1])?,
            _ => self.index_select(normal as isize, &firsts)?,
        };
        groups.with_values(values, &[n])
    }
}

/// Stretches of equal elements of an ordered list.
struct Groups {
    /// Where each begins, in the list.
    firsts: Vec<usize>,
    /// The group of every element, by the place where it was before it was ordered.
    inverse: Vec<i64>,
}

impl Groups {
    /// `order` says where each element of the list was, `is_same` whether two neighbours are equal.
    fn of(order: &[i64], is_same: impl Fn(usize, usize) -> bool) -> Groups {
        let mut groups = Groups { firsts: Vec::new(), inverse: vec![0; order.len()] };
        for (i, was) in order.iter().enumerate() {
            if i == 0 || !is_same(i - 1, i) {
                groups.firsts.push(i);
            }
            groups.inverse[*was as usize] = groups.firsts.len() as i64 - 1;
        }
        groups
    }

    fn finish<T: Element>(self, list: &[T], shape: &[usize]) -> Result<Unique> {
        let values: Vec<T> = self.firsts.iter().map(|first| list[*first]).collect();
        let n = values.len();
        self.with_values(Tensor::from_vec(values, &[n])?, shape)
    }

    fn with_values(self, values: Tensor, shape: &[usize]) -> Result<Unique> {
        let ends = self.firsts.iter().skip(1).copied().chain([self.inverse.len()]);
        let counts: Vec<i64> =
            self.firsts.iter().zip(ends).map(|(first, end)| (end - first) as i64).collect();
        let n = counts.len();
        Ok(Unique {
            values,
            inverse: Tensor::from_vec(self.inverse, shape)?,
            counts: Tensor::from_vec(counts, &[n])?,
        })
    }
}

fn keys<T: Key>(x: &[T]) -> Vec<u64> {
    x.iter().map(|x| x.key()).collect()
}

fn not_meta(op: &'static str, x: &Tensor) -> Result<()> {
    if !x.is_meta() {
        return Ok(());
    }
    Err(LocalError::Meta { op, shape: x.shape().to_vec() })
}
