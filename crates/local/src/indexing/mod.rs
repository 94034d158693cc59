//! Joining, splitting and picking elements: values move, none is computed.

mod by_dtype;
mod join;
mod pick;

pub(crate) use by_dtype::by_dtype;
