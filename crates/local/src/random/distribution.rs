//! What is drawn, and for which dtypes.

use crate::{DType, LocalError, Result};

/// How random values are distributed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Evenly in `low..high`; floating point.
    Uniform {
        /// Smallest value.
        low: f64,
        /// The values stay below it, but that rounding to `bf16` or `f16` may reach it.
        high: f64,
    },
    /// Gaussian; floating point.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// One with this probability, else zero; any dtype.
    Bernoulli {
        /// From 0 to 1.
        probability: f64,
    },
    /// Positive numbers of density `rate * exp(-rate * x)`; floating point.
    Exponential {
        /// One over the mean; positive.
        rate: f64,
    },
    /// All 64-bit patterns, evenly: `i64`. Sorted, they put their indices into a random order; see
    /// [`Tensor::random_permutation`](crate::Tensor::random_permutation).
    Keys,
    /// Integers in `low..high`, evenly; integer dtypes.
    Randint {
        /// Smallest value.
        low: i64,
        /// The values stay below it.
        high: i64,
    },
}

impl Distribution {
    /// The operation, for errors.
    pub(super) fn op(self) -> &'static str {
        match self {
            Distribution::Uniform { .. } => "uniform",
            Distribution::Normal { .. } => "normal",
            Distribution::Bernoulli { .. } => "bernoulli",
            Distribution::Exponential { .. } => "exponential",
            Distribution::Keys => "keys",
            Distribution::Randint { .. } => "randint",
        }
    }

    /// Refuses settings that describe no distribution, and dtypes that cannot hold its values.
    pub(super) fn check(self, dtype: DType) -> Result<()> {
        let op = self.op();
        let bad = |name, got: String, want| Err(LocalError::BadNumber { op, name, got, want });
        match self {
            Distribution::Uniform { .. }
            | Distribution::Normal { .. }
            | Distribution::Exponential { .. }
                if !dtype.is_float() =>
            {
                Err(LocalError::NotFloat { op, got: dtype })
            }
            Distribution::Exponential { rate } if !(rate > 0.0 && rate.is_finite()) => {
                bad("rate", rate.to_string(), "a positive number")
            }
            Distribution::Keys if dtype != DType::I64 => {
                Err(LocalError::WrongDType { op, got: dtype, want: DType::I64 })
            }
            Distribution::Uniform { low, high } if !(low <= high && (high - low).is_finite()) => {
                bad(
                    "low..high",
                    format!("{low}..{high}"),
                    "finite numbers, the first not the larger",
                )
            }
            Distribution::Normal { std, mean }
                if !(std >= 0.0 && std.is_finite() && mean.is_finite()) =>
            {
                bad(
                    "mean and std",
                    format!("{mean} and {std}"),
                    "finite numbers, the second not negative",
                )
            }
            Distribution::Bernoulli { probability } if !(0.0..=1.0).contains(&probability) => {
                bad("probability", probability.to_string(), "a number from 0 to 1")
            }
            Distribution::Randint { low, high } => {
                let range = match dtype {
                    DType::I64 => i64::MIN..=i64::MAX,
                    DType::I32 => i64::from(i32::MIN)..=i64::from(i32::MAX),
                    DType::U8 => 0..=i64::from(u8::MAX),
                    got => return Err(LocalError::WrongDType { op, got, want: DType::I64 }),
                };
                if low < high && range.contains(&low) && range.contains(&(high - 1)) {
                    return Ok(());
                }
                bad(
                    "low..high",
                    format!("{low}..{high}"),
                    "a range that is not empty and fits the dtype",
                )
            }
            _ => Ok(()),
        }
    }
}
