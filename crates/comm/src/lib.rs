//! Worlds and process groups: typed collectives between ranks that are threads, MPI processes or
//! nothing at all, that never hang and never return wrong data silently.
//!
//! A program is a function of one rank's [`World`]. The same function runs on threads of one process
//! and, under mpirun, on processes:
//!
//! ```
//! use dtensor_comm::{CommError, ReduceOp, RunError, Runner};
//!
//! fn main() -> Result<(), RunError> {
//!     // `dtensor_comm::run` takes the number of ranks from the environment.
//!     let means = Runner::threads(4).run(|world| {
//!         let mut loss = [world.rank() as f32];
//!         world.group().tag("loss").all_reduce(&mut loss, ReduceOp::Avg)?;
//!
//!         // Rows of a 2 x 2 mesh; other rows do the same beside us.
//!         let row = world.rank() / 2 * 2;
//!         let row = world.subgroup(&[row, row + 1])?;
//!         let mut all = [0; 2];
//!         row.all_gather(&[world.rank() as i64], &mut all)?;
//!         assert_eq!(all[row.rank()], world.rank() as i64);
//!
//!         Ok::<_, CommError>(loss[0])
//!     })?;
//!     assert_eq!(means, [1.5; 4]);
//!     Ok(())
//! }
//! ```
//!
//! # What there is
//!
//! - [`run`] and [`Runner`] start the ranks, and turn the first failure into one readable [`RunError`].
//! - [`Group`] has the calls: `barrier`, `broadcast`, `scatter`, `gather`, `all_gather`,
//!   `reduce_scatter`, `all_reduce`, `all_to_all`, the uneven `_v` forms, `send` and `recv`. Each also
//!   on memory whose dtype is known at run time ([`Group::erased`]) and as a [`Pending`] handle
//!   (`start_...`).
//! - [`World::subgroup`] makes groups, without communication.
//! - [`World::fake`] is one rank of a world that does not exist, for plans and byte counts.
//! - [`World::recorder`] has the last calls of a rank; a failing run prints it.
//! - [`conformance`] is what every world must do, as a list of cases.
//!
//! # Reductions are canonical
//!
//! Element by element, in the order of the group's ranks, with `bf16` and `f16` accumulated in `f32`
//! and rounded once. So every rank has the same bits, every run has, and threads and MPI have.
//!
//! # Fingerprints
//!
//! Before data moves, the members of a group compare what they called: kind, dtype, counts, root,
//! reduction, [tag](Group::tag), [subject](Group::about) and position in the sequence of calls. If
//! they differ, every member gets the same [`CommError::Mismatch`], no buffer is touched, and the
//! error shows who called what:
//!
//! ```text
//! the ranks called different things: no data was moved
//! collective 3 of group [0, 1]:
//!   rank 0: all_reduce(f32 x 12, sum, tag "loss")
//!   rank 1: all_reduce(f32 x 12, sum, tag "grad")
//! ```
//!
//! A rank that returned, panicked, died or does not come within the deadline is named in the same
//! way. The first failure ends the world: who waits is woken with it, and later calls fail at once
//! with it. On threads this is always on; on MPI it costs one small message per member and
//! [can be switched](Runner::checks).
//!
//! # Trade-offs
//!
//! - *The whole world dies with the first failure*, not only its group. Ranks that disagree in one
//!   place cannot be trusted to agree in another, and a program that goes on with half of its ranks
//!   hangs later and farther away. Wrong arguments are different: they are found before anything is
//!   sent, and the group lives on.
//! - *Canonical order costs MPI its own reduction trees.* [`Runner::native_reductions`] gives them
//!   back, and the bits with them.
//! - *Counts are known to everybody.* `all_gather_v` and its like take the whole list on every rank,
//!   where MPI would let some ranks pass nothing: the list is compared, and it is what a layout knows
//!   anyway.
//! - *`send` waits for its receiver*, also for small messages, so that a program which depends on
//!   buffering fails on a laptop and not on the cluster.
//! - *Pending calls own their buffers*; see [`Pending`] for the reason.
//! - *Up to 64 calls per group of threads are in flight*; one more waits for the oldest.
//!
//! # How it works
//!
//! Typed and erased calls become one checked description, whose arguments fit each other and the
//! group. It is numbered, recorded, and handed to the transport of the world, a small trait with three
//! implementations. On threads, ranks publish the addresses of their buffers, the last one to arrive
//! compares the fingerprints, and then data moves straight from the owner's memory to its place, each
//! byte written once; ranks spin for microseconds and then sleep, so that a thousand of them share two
//! cores. On MPI (feature `mpi`) everything is a non-blocking call and a test loop with a deadline.
//! The fake world stops after recording.

// The only crate of the workspace with unsafe code: ranks read and write each other's buffers, and
// MPI is a C library. The arguments are in `threads/round.rs` and beside each block.
#![allow(unsafe_code)]

mod call;
pub mod conformance;
mod erased;
mod error;
mod fake;
mod group;
mod launch;
mod lists;
#[cfg(feature = "mpi")]
mod mpi;
mod operation;
mod pending;
mod ranks;
mod recorder;
mod reduce;
mod run;
mod run_error;
mod start;
mod table;
mod threads;
mod transport;
mod values;
mod world;

pub use call::CallKind;
pub use dtensor_dtype::{DType, Element, RecvBuffer, ReduceOp, SendBuffer, bf16, f16};
pub use erased::Erased;
pub use error::CommError;
pub use group::Group;
pub use launch::{is_launched, launched_rank, launched_ranks};
pub use pending::Pending;
pub use recorder::{CallEnd, RECORDER_CALLS, Record, Recorder};
pub use run::{Runner, run};
pub use run_error::RunError;
pub use table::{CallRow, CallTable, Did};
pub use values::{Values, ValuesMut};
pub use world::{World, WorldKind};
