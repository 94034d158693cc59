//! What ranks tell each other: small records on which they agree, and boxes of elements.

mod agree;
mod boxes;
mod index;

pub(crate) use agree::{agree, all_records};
pub(crate) use boxes::{pack_shards, received, unpack_shards, view};
pub(crate) use index::BoxIndex;
