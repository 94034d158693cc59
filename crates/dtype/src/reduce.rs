use std::{fmt, str::FromStr};

use crate::DType;

/// How the values that ranks hold combine into one.
///
/// The order is fixed everywhere: from the first rank of the group to the last, so that the result
/// is the same bit for bit on every rank, in every run and in every world. `bf16` and `f16` are
/// accumulated in `f32` and rounded once, at the end. Integer sums and products wrap. A NaN in any
/// operand of `max` or `min` is the result. On `bool`, `sum` and `max` are *or*, `product` and
/// `min` are *and*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReduceOp {
    /// The sum.
    Sum,
    /// The sum divided by the number of ranks; floating point only.
    Avg,
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// The product.
    Product,
}

/// A text that names no [`ReduceOp`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown reduction `{0}`: one of sum, avg, max, min, product")]
pub struct UnknownReduceOp(pub String);

impl ReduceOp {
    /// Every reduction, in the order of the documentation.
    pub const ALL: [ReduceOp; 5] =
        [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max, ReduceOp::Min, ReduceOp::Product];

    /// Whether the reduction is defined on `dtype`: all are, but the mean of integers and bools,
    /// which is in general not one.
    pub const fn supports(self, dtype: DType) -> bool {
        !matches!(self, ReduceOp::Avg) || dtype.is_float()
    }

    /// The name that [`Display`](fmt::Display) prints and [`FromStr`] parses.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Avg => "avg",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
            ReduceOp::Product => "product",
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownReduceOp;

    fn from_str(text: &str) -> Result<ReduceOp, UnknownReduceOp> {
        ReduceOp::ALL
            .into_iter()
            .find(|op| op.name() == text.trim())
            .ok_or_else(|| UnknownReduceOp(text.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reduction_prints_and_parses_back() {
        for op in ReduceOp::ALL {
            assert_eq!(op.to_string().parse(), Ok(op));
        }
        assert!("mean".parse::<ReduceOp>().is_err());
    }
}
