//! The algebra: which pending reductions may pass through an op.

use std::{fmt, str::FromStr};

use super::Row;
use crate::{Placement, ReduceOp};

/// A claim about the mathematics of an op: which pending reductions it lets through.
///
/// Below, `f` is the op, `x` and `y` are operands, `x_r` is what rank `r` holds of a pending `x`,
/// and the other operands are whole (`R`). "Elementwise" means that each result element depends on
/// at most one element of the operand in question. A law is a claim about the *whole domain*:
/// `log` is increasing, but the values that ranks hold under `P(max)` need not be positive, so it
/// does not get [`Increasing`](Law::Increasing).
///
/// Prints as it is written here (`LinearIn(0)`, `Joint(max)`) and parses back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Law {
    /// Linear in all operands together (`add`, `sub`, `neg`, `sum`).
    ///
    /// Proof of its rows: `f(sum x_r, sum y_r) = sum f(x_r, y_r)`, and both sides may be divided by
    /// the number of ranks.
    Linear,
    /// Linear in each operand alone (`mul`, `matmul`).
    ///
    /// Proof: `f(sum x_r, y) = sum f(x_r, y)`; never both, since `(a + b)(c + d)` has four terms.
    Multilinear,
    /// Linear in this operand, the others whole (the numerator of `div`, the incoming gradient of a
    /// backward op).
    ///
    /// Proof: `f(sum x_r, y) = sum f(x_r, y)`.
    LinearIn(usize),
    /// Linear up to a constant in each operand alone (`add` of a bias).
    ///
    /// Proof: `avg(x_r) + y = avg(x_r + y)`; not `sum`, which would count `y` once per rank.
    Affine,
    /// Elementwise and non-decreasing in each operand alone, on its whole domain (`exp`, `relu`).
    ///
    /// Proof: `f(max x_r) = max f(x_r)`, since the largest stays the largest; `min` alike.
    Increasing,
    /// As [`Increasing`](Law::Increasing), in this operand only.
    IncreasingIn(usize),
    /// Elementwise and non-increasing in each operand alone, on its whole domain (`neg`).
    ///
    /// Proof: `f(max x_r) = min f(x_r)`, since the largest becomes the smallest; `min` alike.
    Decreasing,
    /// As [`Decreasing`](Law::Decreasing), in this operand only (the second of `sub`).
    DecreasingIn(usize),
    /// Commutes with this reduction of all operands together (`maximum`, `amax`; `mul` and
    /// `product`).
    ///
    /// Proof, for `max`: `max(max x_r, max y_r) = max over r of max(x_r, y_r)`.
    Joint(ReduceOp),
    /// Only moves elements: each result element is one operand element or a constant 0 (views,
    /// `permute`, `cat`).
    ///
    /// Proof: whatever the reduction, it is applied to the same values at another place.
    Moves,
    /// As [`Moves`](Law::Moves), of this operand only, the others whole (the source of a `gather`,
    /// whose index says where to).
    MovesIn(usize),
}

/// What a law adds: these operands pending with the first reduction give the second.
struct Passage {
    operands: Pending,
    from: ReduceOp,
    to: ReduceOp,
}

enum Pending {
    Together,
    EachAlone,
    Only(usize),
}

impl Law {
    /// The rows that the law adds, for this many operands and results.
    pub(super) fn rows(self, n_operands: usize, n_results: usize) -> Vec<Row> {
        let mut rows = Vec::new();
        for Passage { operands, from, to } in self.passages() {
            let pending = |is_pending: &dyn Fn(usize) -> bool| Row {
                operands: (0..n_operands)
                    .map(|i| match is_pending(i) {
                        true => Placement::Partial(from),
                        false => Placement::Replicate,
                    })
                    .collect(),
                results: vec![Placement::Partial(to); n_results],
            };
            match operands {
                Pending::Together => rows.push(pending(&|_| true)),
                Pending::Only(one) => rows.push(pending(&|i| i == one)),
                Pending::EachAlone => {
                    rows.extend((0..n_operands).map(|one| pending(&|i| i == one)));
                }
            }
        }
        rows
    }

    /// The operand that the law names, if it names one.
    pub(super) fn operand(self) -> Option<usize> {
        match self {
            Law::LinearIn(operand)
            | Law::IncreasingIn(operand)
            | Law::DecreasingIn(operand)
            | Law::MovesIn(operand) => Some(operand),
            _ => None,
        }
    }

    fn passages(self) -> Vec<Passage> {
        use Pending::{EachAlone, Only, Together};
        use ReduceOp::{Avg, Max, Min, Sum};
        let pass = |operands, from, to| Passage { operands, from, to };
        match self {
            Law::Linear => vec![pass(Together, Sum, Sum), pass(Together, Avg, Avg)],
            Law::Multilinear => vec![pass(EachAlone, Sum, Sum), pass(EachAlone, Avg, Avg)],
            Law::LinearIn(i) => vec![pass(Only(i), Sum, Sum), pass(Only(i), Avg, Avg)],
            Law::Affine => vec![pass(EachAlone, Avg, Avg)],
            Law::Increasing => vec![pass(EachAlone, Max, Max), pass(EachAlone, Min, Min)],
            Law::IncreasingIn(i) => vec![pass(Only(i), Max, Max), pass(Only(i), Min, Min)],
            Law::Decreasing => vec![pass(EachAlone, Max, Min), pass(EachAlone, Min, Max)],
            Law::DecreasingIn(i) => vec![pass(Only(i), Max, Min), pass(Only(i), Min, Max)],
            Law::Joint(op) => vec![pass(Together, op, op)],
            Law::Moves => ReduceOp::ALL.map(|op| pass(Together, op, op)).into(),
            Law::MovesIn(i) => ReduceOp::ALL.map(|op| pass(Only(i), op, op)).into(),
        }
    }
}

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Law::Linear => f.write_str("Linear"),
            Law::Multilinear => f.write_str("Multilinear"),
            Law::LinearIn(operand) => write!(f, "LinearIn({operand})"),
            Law::Affine => f.write_str("Affine"),
            Law::Increasing => f.write_str("Increasing"),
            Law::IncreasingIn(operand) => write!(f, "IncreasingIn({operand})"),
            Law::Decreasing => f.write_str("Decreasing"),
            Law::DecreasingIn(operand) => write!(f, "DecreasingIn({operand})"),
            Law::Joint(op) => write!(f, "Joint({op})"),
            Law::Moves => f.write_str("Moves"),
            Law::MovesIn(operand) => write!(f, "MovesIn({operand})"),
        }
    }
}

/// A text that names no [`Law`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown law `{0}`: one of Linear, Multilinear, LinearIn(operand), Affine, Increasing, \
     IncreasingIn(operand), Decreasing, DecreasingIn(operand), Joint(reduction), Moves, MovesIn(operand)"
)]
pub struct UnknownLaw(pub String);

impl FromStr for Law {
    type Err = UnknownLaw;

    fn from_str(text: &str) -> Result<Law, UnknownLaw> {
        let unknown = || UnknownLaw(text.trim().to_string());
        let trimmed = text.trim();
        let (name, argument) = match trimmed.split_once('(') {
            Some((name, rest)) => (name, Some(rest.strip_suffix(')').ok_or_else(unknown)?)),
            None => (trimmed, None),
        };
        let operand = |argument: &str| argument.parse().map_err(|_| unknown());
        match (name, argument) {
            ("Linear", None) => Ok(Law::Linear),
            ("Multilinear", None) => Ok(Law::Multilinear),
            ("LinearIn", Some(argument)) => Ok(Law::LinearIn(operand(argument)?)),
            ("Affine", None) => Ok(Law::Affine),
            ("Increasing", None) => Ok(Law::Increasing),
            ("IncreasingIn", Some(argument)) => Ok(Law::IncreasingIn(operand(argument)?)),
            ("Decreasing", None) => Ok(Law::Decreasing),
            ("DecreasingIn", Some(argument)) => Ok(Law::DecreasingIn(operand(argument)?)),
            ("Joint", Some(argument)) => Ok(Law::Joint(argument.parse().map_err(|_| unknown())?)),
            ("Moves", None) => Ok(Law::Moves),
            ("MovesIn", Some(argument)) => Ok(Law::MovesIn(operand(argument)?)),
            _ => Err(unknown()),
        }
    }
}
