//! Running extremes along a dim.

use super::{
    number::{Number, Wide},
    scan::Lines,
};
use crate::{Result, Tensor, by_dtype::by_dtype};

impl Tensor {
    /// The largest value so far along a dim and, as `i64`, its index: the last one of equal values, as in
    /// PyTorch. From a NaN on it is NaN.
    pub fn cummax(&self, dim: isize) -> Result<(Tensor, Tensor)> {
        let lines = Lines::of("cummax", self, dim)?;
        by_dtype!(self.dtype(), T => running::<T>("cummax", &lines, |x, best| x >= best))
    }

    /// The smallest value so far along a dim and, as `i64`, its index: the last one of equal values, as in
    /// PyTorch. From a NaN on it is NaN.
    pub fn cummin(&self, dim: isize) -> Result<(Tensor, Tensor)> {
        let lines = Lines::of("cummin", self, dim)?;
        by_dtype!(self.dtype(), T => running::<T>("cummin", &lines, |x, best| x <= best))
    }
}

fn running<T: Number>(
    op: &'static str,
    lines: &Lines,
    reaches: impl Fn(T::Wide, T::Wide) -> bool + Sync,
) -> Result<(Tensor, Tensor)> {
    // The best so far and its index.
    let step = |best: (T, i64), x: T, i: usize| {
        let (wide, so_far) = (x.wide(), best.0.wide());
        let is_new = i == 0 || wide.is_not_a_number() || reaches(wide, so_far);
        if is_new { (x, i as i64) } else { best }
    };
    let start = (T::default(), 0);
    let values = lines.scan(op, start, step, |(best, _)| best)?;
    let indices = lines.scan(op, start, step, |(_, index)| index)?;
    Ok((values, indices))
}
