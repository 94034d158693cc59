//! Numbers at equal distances. They are computed in `f64`, or `i64` for integer dtypes, and cast.

use crate::{DType, LocalError, Result, Scalar, Tensor, threads::for_pieces_of};

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
        let (op, start, step) = ("arange", start.into(), step.into());
        not_bool(op, dtype)?;
        let n = length(start, end.into(), step)?;
        if dtype.is_float() {
            let (first, step) = (start.to_f64(), step.to_f64());
            return floats(op, n, dtype, &|index| first + index as f64 * step);
        }
        let (first, step) = (whole(start), whole(step));
        let numbers = Tensor::write(op, &[n], |out: &mut [i64]| {
            for_pieces_of(out, 1, GRAIN, |piece, out| {
                for (index, out) in piece.zip(out) {
                    *out = first.wrapping_add(step.wrapping_mul(index as i64));
                }
            });
        })?;
        numbers.to_dtype(dtype)
    }

    /// `steps` numbers from `start` to `end`, both included. Not defined on `bool`; integer dtypes cut the
    /// fractions of `start` and `end` first and of the numbers last.
    pub fn linspace(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        steps: usize,
        dtype: DType,
    ) -> Result<Tensor> {
        not_bool("linspace", dtype)?;
        let point = between(start.into(), end.into(), steps, dtype);
        floats("linspace", steps, dtype, &point)
    }

    /// `base` to the power of the numbers of [`linspace`](Tensor::linspace).
    pub fn logspace(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        steps: usize,
        base: f64,
        dtype: DType,
    ) -> Result<Tensor> {
        not_bool("logspace", dtype)?;
        let point = between(start.into(), end.into(), steps, dtype);
        floats("logspace", steps, dtype, &|index| base.powf(point(index)))
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

/// The numbers from `start` to `end` by their index. The second half is counted from the end, as in PyTorch,
/// so that the last number is `end` exactly.
fn between(start: Scalar, end: Scalar, steps: usize, dtype: DType) -> impl Fn(usize) -> f64 + Sync {
    let number = |scalar: Scalar| match dtype.is_float() {
        true => scalar.to_f64(),
        false => whole(scalar) as f64,
    };
    let (first, last) = (number(start), number(end));
    let step = (last - first) / steps.saturating_sub(1).max(1) as f64;
    move |index| {
        if index < steps / 2 || steps == 1 {
            first + step * index as f64
        } else {
            last - step * (steps - 1 - index) as f64
        }
    }
}

fn floats(
    op: &'static str,
    n: usize,
    dtype: DType,
    value: &(dyn Fn(usize) -> f64 + Sync),
) -> Result<Tensor> {
    let numbers = Tensor::write(op, &[n], |out: &mut [f64]| {
        for_pieces_of(out, 1, GRAIN, |piece, out| {
            for (index, out) in piece.zip(out) {
                *out = value(index);
            }
        });
    })?;
    numbers.to_dtype(dtype)
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
