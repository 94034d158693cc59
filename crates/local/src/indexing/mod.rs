//! Joining, splitting, picking and placing elements: values move, and are put together where several
//! come to one place.
//!
//! `indices` checks what the caller names, `places` turns it into runs of memory and moves their `bits`,
//! `accumulate` adds values up. The other files are the operations.

mod accumulate;
mod advanced;
mod bits;
mod diagonal;
mod indices;
mod join;
mod mask;
mod pad;
mod pick;
mod places;
mod rearrange;
mod region;
mod repeat;
mod scatter;
mod slices;
mod triangle;

pub use accumulate::ScatterReduce;
pub(crate) use bits::{bits, by_size, filled, scalar_of, write_bits};
pub use pad::PadMode;
pub use rearrange::MeshIndexing;
