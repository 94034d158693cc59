//! Running extremes along a dim.

use super::{
    number::{Number, Wide, by_number},
    scan::Lines,
};
use crate::{Result, Tensor};

impl Tensor {
    /// The largest value so far along a dim and, as `i64`, its index: the last one of equal values, as in
    /// PyTorch. From a NaN on it is NaN.
    pub fn cummax(&self, dim: isize) -> Result<(Tensor, Tensor)> {
        let lines = Lines::of("cummax", self, dim)?;
        by_number!(self.dtype(), T => running::<T>("cummax", &lines, |x, best| x >= best))
    }

    /// The smallest value so far along a dim and, as `i64`, its index: the last one of equal values, as in
    /// PyTorch. From a NaN on it is NaN.
    pub fn cummin(&self, dim: isize) -> Result<(Tensor, Tensor)> {
        let lines = Lines::of("cummin", self, dim)?;
        by_number!(self.dtype(), T => running::<T>("cummin", &lines, |x, best| x <= best))
    }
}

fn running<T: Number>(
    op: &'static str,
    lines: &Lines,
    reaches: impl Fn(T::Wide, T::Wide) -> bool + Sync,
) -> Result<(Tensor, Tensor)> {
    let inner = lines.inner;
    let is_new = |x: T, best: T| {
        let (x, best) = (x.wide(), best.wide());
        x.is_not_a_number() || reaches(x, best)
    };
    let values = lines.write(op, |x: &[T], out: &mut [T]| {
        for i in 0..x.len() {
            let so_far = i.checked_sub(inner).map(|before| out[before]);
            out[i] = so_far.filter(|best| !is_new(x[i], *best)).unwrap_or(x[i]);
        }
    })?;
    let indices = lines.write(op, |x: &[T], out: &mut [i64]| {
        for i in 0..x.len() {
            // The best so far is where the last index says.
            let so_far = i.checked_sub(inner).map(|before| out[before]);
            let best = |index: i64| x[index as usize * inner + i % inner];
            let new = (i / inner) as i64;
            out[i] = so_far.filter(|index| !is_new(x[i], best(*index))).unwrap_or(new);
        }
    })?;
    Ok((values, indices))
}
