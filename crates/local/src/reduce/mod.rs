//! Reductions, scans and order statistics.
//!
//! A reduction is brought to the form *outer x n x inner* of consecutive elements of which the middle
//! is folded ([`arrange`]), without a copy for every tensor that is dense in some order of its dims.
//! Rows (`inner` is 1) and columns are then folded in pieces of a fixed size, which are joined as a tree
//! ([`fold`]): the result does not depend on the number of threads, and the rounding error of a sum grows
//! with the logarithm of the number of pieces rather than with the number of elements.

mod arrange;
mod error;
mod extremes;
mod fold;
mod histogram;
mod key;
mod lanes;
mod logsumexp;
mod moments;
mod number;
mod order;
mod quantile;
mod scan;
mod scan_extremes;
mod search;
mod sums;
mod truth;
mod unique;

pub use quantile::Interpolation;
pub use unique::Unique;
