//! What the tests of every crate stand on.
//!
//! * [`spmd`](fn@spmd) runs a closure on ranks in one process, results in rank order;
//! * [`oracle`] proves sharding rules by brute force, on [`dense`] tensors that [`placed`] cuts and
//!   joins;
//! * [`generate`] has proptest strategies that prefer values in which mistakes show;
//! * [`golden`] reads the cases that PyTorch and JAX computed;
//! * [`tensors`] holds the operations of the core crate against their dense results;
//! * [`suite`] lists the cases that run on every kind of world, and `mpi-suite` runs them under
//!   mpirun.
//!
//! ```
//! use dtensor_layout::{DType, Layout, Mesh};
//! use dtensor_testing::{dense::Dense, noise::Noise, placed::{gather, scatter}};
//!
//! let mesh = Mesh::from_sizes(&[3])?;
//! let layout = Layout::parse(&[5, 2], DType::F64, &mesh, "[S(0)]")?;
//! let whole = Dense::from_fn(&[5, 2], |index| (10 * index[0] + index[1]) as f64);
//!
//! let parts = scatter(&whole, &layout, &mut Noise::new(1));
//! assert_eq!(parts[2].data(), [40.0, 41.0]); // 5 rows on 3 ranks: 2, 2 and 1
//! assert_eq!(gather(&parts, &layout), Ok(whole));
//! # Ok::<(), dtensor_layout::LayoutError>(())
//! ```
//!
//! # Trade-offs
//!
//! The reference is slow on purpose: plain loops over `f64`, a copy at every step, so that it can be
//! believed by reading it. Samples are small.
//!
//! This crate is not published. Its functions panic with a readable message where a test should
//! fail; that is their purpose.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used)]

pub mod dense;
pub mod generate;
pub mod golden;
pub mod noise;
pub mod oracle;
pub mod placed;
mod spmd;
pub mod suite;
pub mod tensors;

pub use spmd::{Failure, panic_text, spmd};
