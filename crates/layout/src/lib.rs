//! Where every element of a distributed tensor lies, and how to move it elsewhere: as values.
//!
//! A [`Layout`] says how a tensor of a given shape and dtype lies on a [`Mesh`] of ranks: one
//! [`Placement`] per mesh axis. A [`Plan`](plan::Plan) says how to get from one layout to another.
//! A [`Rule`](rule::Rule) says which layouts an operation maps to which.
//!
//! ```
//! use dtensor_layout::{DType, Layout, Mesh, Placement::{Replicate, Shard}};
//!
//! let mesh = Mesh::new(&[("dp", 2), ("tp", 2)])?;
//! let layout = Layout::new(&[13, 8], DType::F32, &mesh, &[Shard(0), Shard(1)])?;
//!
//! assert_eq!(layout.to_string(), "[S(0), S(1)]");
//! // 13 rows over 2 ranks: 7 and 6, as torch.chunk cuts them.
//! assert_eq!(layout.local_shape(&[1, 0]), [6, 4]);
//! assert_eq!(layout.local_offset(&[1, 0]), [7, 0]);
//! // Element (12, 5) is on the rank at dp=1, tp=1.
//! assert_eq!(layout.owner(&[12, 5])?, [1, 1]);
//! # assert_ne!(layout, Layout::new(&[13, 8], DType::F32, &mesh, &[Shard(0), Replicate])?);
//! # Ok::<(), dtensor_layout::LayoutError>(())
//! ```
//!
//! # Trade-offs
//!
//! * Everything here is pure: no threads, no I/O, no kernels, no world. That makes it testable for
//!   262,144 ranks on a laptop; it also means that nothing here can look at data.
//! * Nothing costs time or memory in proportion to the number of ranks: a mesh is sizes and
//!   strides, a layout is a list of cuts, a plan is computed from coordinates.
//! * Layouts are interned: equal layouts are one allocation, so comparing them, or using them as
//!   the key of a cache, costs a pointer. The price is one locked table, visited when a layout is
//!   made, never when it is used.

#![forbid(unsafe_code)]

mod chunk;
mod error;
mod index_box;
pub mod interchange;
mod intern;
mod layout;
mod mesh;
mod order;
mod placement;
pub mod plan;
pub mod rule;
mod text;
mod torch;

pub use chunk::{Intervals, chunk};
pub use dtensor_dtype::{DType, ReduceOp};
pub use error::{LayoutError, Result};
pub use index_box::IndexBox;
pub use layout::{Layout, Owners};
pub use mesh::{Factor, Mesh, MeshAxis};
pub use order::{Cut, ShardOrder};
pub use placement::Placement;
pub use torch::TorchPlacement;
