//! Operations that compute every element of the result from the same element of the operands.
//!
//! `promote` says which dtype the result has, `layout` lays operands of several shapes over one,
//! `driver` walks them in blocks, and `kinds` turns the rows of the other files, one per operation, into
//! kernels and methods.

mod activation;
mod activation_backward;
mod arithmetic;
mod cast;
mod close;
mod compare;
mod driver;
mod in_place;
mod int;
mod kinds;
mod layout;
pub(crate) mod math32;
pub(crate) mod math64;
mod promote;
mod ternary;
mod unary;
mod values;

pub use promote::{Scalar, promote};
