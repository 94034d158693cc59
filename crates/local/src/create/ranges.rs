//! Numbers at equal distances. They are computed in `f64`, or `i64` for integer dtypes, and cast.

use std::ops::Range;

use crate::{DType, Element, LocalError, Result, Scalar, Tensor, threads::for_pieces_of};

/// Elements that are worth a hand-over to another thread.
const GRAIN: usize = 1 << 15;

impl Tensor {
    /// The numbers `start`, `start + step`, ... before `end`: `ceil((end - start) / step)` of them. Not
    /// defined on `bool`.
    ///
    /// The length is exact if all three are integers, else computed in `f64`. As in PyTorch, an integer
    /// dtype has the values of the start and step without their fractions, and wraps.
    ///
    /// ```
    /// use dtensor_local::{DType, Tensor};
    /// assert_eq!(Tensor::arange(5, 0, -2, DType::I64)?.to_vec::<i64>()?, [5, 3, 1]);
    /// assert_eq!(Tensor::arange(0.0, 1.0, 0.4, DType::F32)?.to_vec::<f32>()?, [0.0, 0.4, 0.8]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn arange(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
        dtype: DType,
    ) -> Result<Tensor> {
        Sequence::arange(start, end, step, dtype)?.whole()
    }

    /// `steps` numbers from `start` to `end`, both included. Not defined on `bool`; integer dtypes cut the
    /// fractions of `start` and `end` first and of the numbers last.
    pub fn linspace(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        steps: usize,
        dtype: DType,
    ) -> Result<Tensor> {
        Sequence::linspace(start, end, steps, dtype)?.whole()
    }

    /// `base` to the power of the numbers of [`linspace`](Tensor::linspace).
    pub fn logspace(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        steps: usize,
        base: f64,
        dtype: DType,
    ) -> Result<Tensor> {
        Sequence::logspace(start, end, steps, base, dtype)?.whole()
    }
}

/// The numbers of a range, of which any part can be made alone with the same bits.
///
/// ```
/// use dtensor_local::{DType, Sequence};
/// let numbers = Sequence::arange(0, 100, 7, DType::I32)?;
/// assert_eq!(numbers.len(), 15);
/// assert_eq!(numbers.part(&[2..4, 14..15])?.to_vec::<i32>()?, [14, 21, 98]);
/// # Ok::<(), dtensor_local::LocalError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    op: &'static str,
    dtype: DType,
    n: usize,
    numbers: Numbers,
}

#[derive(Clone, Copy, Debug)]
enum Numbers {
    Integers { first: i64, step: i64 },
    Floats { first: f64, step: f64 },
    Between { first: f64, last: f64, base: Option<f64> },
}

impl Sequence {
    /// See [`Tensor::arange`].
    pub fn arange(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
        dtype: DType,
    ) -> Result<Sequence> {
        let (op, start, step) = ("arange", start.into(), step.into());
        not_bool(op, dtype)?;
        let numbers = match dtype.is_float() {
            true => Numbers::Floats { first: start.to_f64(), step: step.to_f64() },
            false => Numbers::Integers { first: whole(start), step: whole(step) },
        };
        Ok(Sequence { op, dtype, n: length(start, end.into(), step)?, numbers })
    }

    /// See [`Tensor::linspace`].
    pub fn linspace(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        steps: usize,
        dtype: DType,
    ) -> Result<Sequence> {
        Sequence::between("linspace", start.into(), end.into(), steps, None, dtype)
    }

    /// See [`Tensor::logspace`].
    pub fn logspace(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        steps: usize,
        base: f64,
        dtype: DType,
    ) -> Result<Sequence> {
        Sequence::between("logspace", start.into(), end.into(), steps, Some(base), dtype)
    }

    fn between(
        op: &'static str,
        start: Scalar,
        end: Scalar,
        n: usize,
        base: Option<f64>,
        dtype: DType,
    ) -> Result<Sequence> {
        not_bool(op, dtype)?;
        let number = |scalar: Scalar| match dtype.is_float() {
            true => scalar.to_f64(),
            false => whole(scalar) as f64,
        };
        let numbers = Numbers::Between { first: number(start), last: number(end), base };
        Ok(Sequence { op, dtype, n, numbers })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.n
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// All of them.
    pub fn whole(&self) -> Result<Tensor> {
        self.part(std::slice::from_ref(&(0..self.n)))
    }

    /// Those with these indices, one range after the other.
    pub fn part(&self, ranges: &[Range<usize>]) -> Result<Tensor> {
        let Sequence { op, n: size, .. } = *self;
        if let Some(range) = ranges.iter().find(|range| range.start > range.end || range.end > size)
        {
            let (start, end) = (range.start, range.end);
            return Err(LocalError::BadRange { op, start, end, step: 1, dim: 0, size });
        }
        let n = ranges.iter().map(Range::len).sum();
        let numbers = match self.numbers {
            Numbers::Integers { first, step } => Tensor::write(op, &[n], |out: &mut [i64]| {
                fill(ranges, out, &|index| first.wrapping_add(step.wrapping_mul(index as i64)));
            }),
            Numbers::Floats { first, step } => Tensor::write(op, &[n], |out: &mut [f64]| {
                fill(ranges, out, &|index| first + index as f64 * step);
            }),
            Numbers::Between { first, last, base } => {
                let point = between(first, last, size);
                Tensor::write(op, &[n], |out: &mut [f64]| match base {
                    Some(base) => fill(ranges, out, &|index| base.powf(point(index))),
                    None => fill(ranges, out, &point),
                })
            }
        };
        numbers?.to_dtype(self.dtype)
    }
}

fn fill<T: Element>(
    ranges: &[Range<usize>],
    mut out: &mut [T],
    value: &(dyn Fn(usize) -> T + Sync),
) {
    for range in ranges {
        let (now, rest) = out.split_at_mut(range.len());
        for_pieces_of(now, 1, GRAIN, |piece, out| {
            for (index, out) in piece.zip(out) {
                *out = value(range.start + index);
            }
        });
        out = rest;
    }
}

/// The number of elements of an `arange`.
fn length(start: Scalar, end: Scalar, step: Scalar) -> Result<usize> {
    let wrong = |name, got: String, want| LocalError::BadNumber { op: "arange", name, got, want };
    if step.to_f64() == 0.0 {
        return Err(wrong("the step", "0".to_string(), "another number"));
    }
    let distance = end.to_f64() - start.to_f64();
    let count = distance / step.to_f64();
    // An infinite step is as wrong as an infinite distance: the second element would be none.
    if !distance.is_finite() || !step.to_f64().is_finite() {
        let got = format!("{:?} to {:?} by {:?}", start.to_f64(), end.to_f64(), step.to_f64());
        return Err(wrong("the range", got, "finite numbers"));
    }
    let integers = match (start, end, step) {
        (Scalar::Int(start), Scalar::Int(end), Scalar::Int(step)) => {
            let (distance, step) = (i128::from(end) - i128::from(start), i128::from(step));
            // Rounded up: towards zero, and one more for a rest that is on the way.
            let rest = distance % step != 0 && (distance < 0) == (step < 0);
            Some(distance / step + i128::from(rest))
        }
        _ => None,
    };
    if distance != 0.0 && (distance < 0.0) != (step.to_f64() < 0.0) {
        return Err(wrong(
            "the sign of the step",
            step.to_f64().signum().to_string(),
            "the other sign, from start to end",
        ));
    }
    Ok(match integers {
        Some(count) => usize::try_from(count).unwrap_or(usize::MAX),
        // A conversion that saturates; memory is too small long before.
        None => count.ceil() as usize,
    })
}

/// The numbers from `first` to `last` by their index. The second half is counted from the end, as in PyTorch,
/// so that the last number is exact.
fn between(first: f64, last: f64, steps: usize) -> impl Fn(usize) -> f64 + Sync {
    let step = (last - first) / steps.saturating_sub(1).max(1) as f64;
    move |index| {
        if index < steps / 2 || steps == 1 {
            first + step * index as f64
        } else {
            last - step * (steps - 1 - index) as f64
        }
    }
}

/// Without the fraction.
fn whole(scalar: Scalar) -> i64 {
    match scalar {
        Scalar::Float(value) => value as i64,
        Scalar::Int(value) => value,
        Scalar::Bool(value) => i64::from(value),
    }
}

fn not_bool(op: &'static str, dtype: DType) -> Result<()> {
    match dtype {
        DType::Bool => Err(LocalError::UnsupportedDType { op, dtype }),
        _ => Ok(()),
    }
}
