//! Context parallel: the positions of a sequence are cut over a mesh axis, and attention sends keys and values around.
//!
//! Everything in a transformer but attention treats positions apart, so cut positions need nothing there. What needs the
//! true position of an element (a causal mask, embeddings of positions, rotations) is told the order of the sequence.

mod order;
mod sequence;
mod style;

pub use order::{
    context_parallel_shard, context_parallel_unshard, head_tail_inverse, head_tail_order,
};
pub use sequence::Sequence;
pub use style::{ContextParallel, context_plan};
