//! The grammar of placements in text, shared by everything that parses them.
//!
//! ```text
//! list      := "[" placement ("," placement)* "]"     (the brackets may be left out)
//! placement := "R" | "P" | "P(" op ")" | cut [ "[" position "]" ]
//! cut       := "S(" dim ")" | "_S(" dim "," factor ")"
//! ```
//!
//! `S(0)[1]` is the second cut of dim 0 (an explicit shard order); `_S(0, 2)` is PyTorch's
//! `_StridedShard(0, split_factor=2)`: without positions it is read as PyTorch means it, with
//! positions as it stands. PyTorch's long names are read as well.

use crate::{LayoutError, ReduceOp, Result};

/// One placement as written, before the shape is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlacementText {
    Replicate,
    Partial(ReduceOp),
    Shard { dim: isize, position: Option<usize>, split_factor: Option<usize> },
}

impl PlacementText {
    pub(crate) fn parse(text: &str) -> Result<PlacementText> {
        let bad = |why| bad(text, "placement", why);
        let trimmed = text.trim();
        let (name, rest) = trimmed.split_at(trimmed.find(['(', '[']).unwrap_or(trimmed.len()));
        let (arguments, tail) = match rest.strip_prefix('(') {
            Some(rest) => {
                let (arguments, tail) =
                    rest.split_once(')').ok_or_else(|| bad("`(` without `)`"))?;
                (Some(arguments.trim()), tail.trim())
            }
            None => (None, rest.trim()),
        };
        let position = match tail.strip_prefix('[').map(|tail| tail.strip_suffix(']')) {
            None if tail.is_empty() => None,
            Some(Some(position)) => {
                Some(position.trim().parse().map_err(|_| bad("the cut's position is a number"))?)
            }
            _ => return Err(bad("unexpected text after the placement")),
        };
        let dim = |text: &str| {
            let text = text.trim();
            let digits = text.strip_prefix("dim=").unwrap_or(text);
            digits.parse::<isize>().map_err(|_| bad("the dim is a number"))
        };
        match (name, arguments, position) {
            ("R" | "Replicate", None | Some(""), None) => Ok(PlacementText::Replicate),
            ("P" | "Partial", None | Some(""), None) => Ok(PlacementText::Partial(ReduceOp::Sum)),
            ("P" | "Partial", Some(op), None) => {
                let op = op.trim_matches(['\'', '"']).parse();
                Ok(PlacementText::Partial(
                    op.map_err(|_| bad("the reduction is one of sum, avg, max, min, product"))?,
                ))
            }
            ("S" | "Shard", Some(arguments), position) => {
                Ok(PlacementText::Shard { dim: dim(arguments)?, position, split_factor: None })
            }
            ("_S" | "_StridedShard", Some(arguments), position) => {
                let (left, right) = arguments
                    .split_once(',')
                    .ok_or_else(|| bad("a strided shard has a dim and a split factor"))?;
                let right = right.trim();
                let digits = ["sf=", "split_factor="]
                    .iter()
                    .find_map(|key| right.strip_prefix(key))
                    .unwrap_or(right);
                let factor: usize =
                    digits.parse().map_err(|_| bad("the split factor is a number"))?;
                if factor == 0 {
                    return Err(bad("the split factor is at least 1"));
                }
                Ok(PlacementText::Shard { dim: dim(left)?, position, split_factor: Some(factor) })
            }
            _ => Err(bad("expected R, S(dim), S(dim)[position], _S(dim, factor) or P(reduction)")),
        }
    }

    /// Parses a list of placements, with or without its brackets.
    pub(crate) fn parse_list(text: &str) -> Result<Vec<PlacementText>> {
        let trimmed = text.trim();
        let inner = match trimmed.strip_prefix('[') {
            Some(rest) => {
                rest.strip_suffix(']').ok_or_else(|| bad(text, "placements", "`[` without `]`"))?
            }
            None => trimmed,
        };
        split_top_level(inner).map(PlacementText::parse).collect()
    }
}

/// A parse error with its text and reason.
pub(crate) fn bad(text: &str, what: &'static str, why: &'static str) -> LayoutError {
    LayoutError::Parse { what, text: text.to_string(), why }
}

/// Splits at the commas that are outside of all brackets; the empty text has no parts.
pub(crate) fn split_top_level(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0usize;
    let parts = text.split(move |c| {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.filter(|_| !text.trim().is_empty())
}
