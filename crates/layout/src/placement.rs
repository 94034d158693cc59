use std::{fmt, str::FromStr};

use crate::{LayoutError, ReduceOp, Result};

/// How a tensor lies along one mesh axis.
///
/// Prints as `S(0)`, `R`, `P(sum)` and parses back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Placement {
    /// Each rank of the axis holds one chunk of this tensor dim, as `torch.chunk` cuts it:
    /// ceil-sized, the last ones short or empty.
    Shard(usize),
    /// Each rank of the axis holds the same values.
    Replicate,
    /// Each rank of the axis holds a contribution; the value is their reduction, still pending.
    Partial(ReduceOp),
}

impl Placement {
    /// [`Shard`](Placement::Shard) of a dim that may count from the end, as PyTorch allows:
    /// `-1` is the last of `n_dims` dims. This is the edge where negative dims disappear.
    ///
    /// ```
    /// use dtensor_layout::Placement;
    /// assert_eq!(Placement::shard(-1, 3)?, Placement::Shard(2));
    /// assert!(Placement::shard(3, 3).is_err());
    /// # Ok::<(), dtensor_layout::LayoutError>(())
    /// ```
    pub fn shard(dim: isize, n_dims: usize) -> Result<Placement> {
        let counted = if dim < 0 { dim.checked_add_unsigned(n_dims) } else { Some(dim) };
        match counted.and_then(|dim| usize::try_from(dim).ok()) {
            Some(normal) if normal < n_dims => Ok(Placement::Shard(normal)),
            _ => Err(LayoutError::DimOutOfRange { dim, n_dims }),
        }
    }

    /// The tensor dim that this placement cuts, if it cuts one.
    pub fn shard_dim(self) -> Option<usize> {
        match self {
            Placement::Shard(dim) => Some(dim),
            Placement::Replicate | Placement::Partial(_) => None,
        }
    }

    /// The pending reduction, if there is one.
    pub fn reduce_op(self) -> Option<ReduceOp> {
        match self {
            Placement::Partial(op) => Some(op),
            Placement::Replicate | Placement::Shard(_) => None,
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Shard(dim) => write!(f, "S({dim})"),
            Placement::Replicate => f.write_str("R"),
            Placement::Partial(op) => write!(f, "P({op})"),
        }
    }
}

impl FromStr for Placement {
    type Err = LayoutError;

    /// Parses one printed placement. A dim that counts from the end needs the number of dims: see
    /// [`Layout::parse`](crate::Layout::parse).
    fn from_str(text: &str) -> Result<Placement> {
        match crate::text::PlacementText::parse(text)? {
            crate::text::PlacementText::Replicate => Ok(Placement::Replicate),
            crate::text::PlacementText::Partial(op) => Ok(Placement::Partial(op)),
            crate::text::PlacementText::Shard { dim, position: None, split_factor: None } => {
                let dim = usize::try_from(dim).map_err(|_| {
                    crate::text::bad(
                        text,
                        "placement",
                        "a negative dim needs a shape to count from",
                    )
                })?;
                Ok(Placement::Shard(dim))
            }
            crate::text::PlacementText::Shard { .. } => Err(crate::text::bad(
                text,
                "placement",
                "a shard order or split factor belongs to a whole layout",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_print_and_parse_back() {
        let partials = ReduceOp::ALL.map(Placement::Partial);
        for placement in [Placement::Shard(0), Placement::Shard(17), Placement::Replicate]
            .into_iter()
            .chain(partials)
        {
            assert_eq!(placement.to_string().parse(), Ok(placement));
        }
    }

    #[test]
    fn pytorchs_long_names_parse_too() {
        for (text, want) in [
            ("Shard(1)", Placement::Shard(1)),
            ("Shard(dim=1)", Placement::Shard(1)),
            ("Replicate()", Placement::Replicate),
            ("Replicate", Placement::Replicate),
            ("Partial(max)", Placement::Partial(ReduceOp::Max)),
            ("P", Placement::Partial(ReduceOp::Sum)),
        ] {
            assert_eq!(text.parse(), Ok(want), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_placement_is_refused() {
        for text in [
            "",
            "S",
            "S()",
            "S(x)",
            "S(1",
            "Q",
            "P(mean)",
            "R(1)",
            "S(-1)",
            "S(0)[1]",
            "_S(0, 2)",
            "S(99999999999999999999)",
        ] {
            assert!(text.parse::<Placement>().is_err(), "{text}");
        }
    }

    #[test]
    fn dims_count_from_both_ends_and_not_beyond() {
        assert_eq!(Placement::shard(-2, 2), Ok(Placement::Shard(0)));
        for (dim, n_dims) in [(-3, 2), (2, 2), (0, 0), (-1, 0), (isize::MIN, 2), (isize::MAX, 2)] {
            assert_eq!(
                Placement::shard(dim, n_dims),
                Err(LayoutError::DimOutOfRange { dim, n_dims })
            );
        }
    }
}
