//! What is drawn, and for which dtypes.

use crate::{DType, LocalError, Result, bf16, f16};

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
    /// The exponential of a Gaussian number; floating point.
    LogNormal {
        /// Mean of the logarithm.
        mean: f64,
        /// Standard deviation of the logarithm.
        std: f64,
    },
    /// Of density `sigma / (pi * (sigma^2 + (x - median)^2))`; floating point.
    Cauchy {
        /// The middle.
        median: f64,
        /// Half of the values are nearer to the middle than this; positive.
        sigma: f64,
    },
    /// How many coins, each one with this probability, are thrown until the first one, which is counted; any
    /// dtype but `bool`. What is more than the dtype holds is its largest value.
    Geometric {
        /// More than 0 and less than 1.
        probability: f64,
    },
    /// All 64-bit patterns, evenly: `i64`. Sorted, they put their indices into a random order; see
    /// [`Tensor::random_permutation`](crate::Tensor::random_permutation).
    Keys,
    /// Integers in `low..high`, evenly; dtypes that hold them all exactly.
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
            Distribution::LogNormal { .. } => "log_normal",
            Distribution::Cauchy { .. } => "cauchy",
            Distribution::Geometric { .. } => "geometric",
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
            | Distribution::LogNormal { .. }
            | Distribution::Cauchy { .. }
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
            Distribution::Geometric { .. } if dtype == DType::Bool => {
                Err(LocalError::WrongDType { op, got: dtype, want: DType::I64 })
            }
            Distribution::Geometric { probability }
                if !(probability > 0.0 && probability < 1.0) =>
            {
                bad("probability", probability.to_string(), "a number between 0 and 1")
            }
            Distribution::Cauchy { median, sigma }
                if !(sigma > 0.0 && sigma.is_finite() && median.is_finite()) =>
            {
                bad(
                    "median and sigma",
                    format!("{median} and {sigma}"),
                    "finite numbers, the second positive",
                )
            }
            Distribution::Normal { std, mean } | Distribution::LogNormal { std, mean }
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
                // Of floating point the integers up to which there are no gaps.
                let exact = |bits: u32| -(1 << bits)..=1 << bits;
                let range = match dtype {
                    DType::I64 => i64::MIN..=i64::MAX,
                    DType::I32 => i64::from(i32::MIN)..=i64::from(i32::MAX),
                    DType::U8 => 0..=i64::from(u8::MAX),
                    DType::Bool => 0..=1,
                    DType::F64 => exact(f64::MANTISSA_DIGITS),
                    DType::F32 => exact(f32::MANTISSA_DIGITS),
                    DType::F16 => exact(f16::MANTISSA_DIGITS),
                    DType::Bf16 => exact(bf16::MANTISSA_DIGITS),
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
