//! Sharded tensors: any boxes of a tensor on any ranks.
//!
//! A distributed tensor ([`dtensor::DTensor`]) lies on a mesh, cut into regular parts. A [`ShardedTensor`] is
//! cut into boxes of any size, of which a rank has any number: what the tables of recommendation models need,
//! and what older programs are written with. It is PyTorch's ShardedTensor, built anew.
//!
//! ```
//! use dtensor_sharded::{ChunkShardingSpec, DType, EnumerableShardingSpec, Runner, ShardMetadata, rand};
//!
//! fn main() -> Result<(), dtensor_sharded::RunError> {
//!     Runner::threads(3).run(|world| {
//!         // Rows, of which each rank has a chunk.
//!         let rows = ChunkShardingSpec::new(0, &["rank:0/cpu", "rank:1/cpu", "rank:2/cpu"])?;
//!         let mut x = rand(rows, &[5, 4], DType::F32, world)?;
//!         let before = x.full_tensor()?;
//!
//!         // Two boxes on rank 2, one on rank 0, nothing on rank 1. Every element that moves is sent once.
//!         let shard = |at: [usize; 2], size: [usize; 2], rank: usize| {
//!             ShardMetadata::new(&at, &size, Some(format!("rank:{rank}/cpu").parse()?))
//!         };
//!         x.reshard(EnumerableShardingSpec::new(vec![
//!             shard([0, 0], [5, 1], 2)?, shard([0, 1], [2, 3], 0)?, shard([2, 1], [3, 3], 2)?,
//!         ])?)?;
//!         assert_eq!(x.local_shards().len(), [1, 0, 2][world.rank()]);
//!         assert!(x.full_tensor()?.equal(&before)?);
//!         Ok::<_, dtensor_sharded::Error>(())
//!     })?;
//!     Ok(())
//! }
//! ```
//!
//! # What there is
//!
//! - [`ShardPlacement`], [`ShardMetadata`], [`Shard`], [`TensorProperties`], [`ShardedTensorMetadata`]: values
//!   that say what lies where. All of them can be stored with `serde`.
//! - [`ShardingSpec`]: how a tensor is cut. [`ChunkShardingSpec`], [`EnumerableShardingSpec`], or your own;
//!   [found](infer_sharding_spec) from shards, and from [layouts](sharding_spec_of_layout) and back.
//! - [`ShardedTensor`]: made in the ways below; [gathered](ShardedTensor::gather),
//!   [resharded](ShardedTensor::reshard) to any spec, [compared](ShardedTensor::equal),
//!   [stored](ShardedTensor::to_bytes), and [turned](ShardedTensor::to_dtensor) into a distributed tensor and
//!   [back](ShardedTensor::from_dtensor) without a copy, where the cut is a layout.
//! - [`remote_shards`](ShardedTensor::remote_shards): references to the shards of other ranks, for tensors
//!   made with [`TensorOptions::init_rrefs`]; a [`RemoteShard`] is fetched when one rank needs it, and its
//!   owner does not take part. [`rpc`] is what carries them.
//! - [`ops`]: operations, and registering your own. [`embedding`]: rows of sharded tables.
//! - [`module`], [`optim`]: sharding the tensors of modules by a plan, and optimizers on shards.
//! - [`checkpoint`]: saving and loading beside distributed tensors, and into each other.
//!
//! # Ways to a sharded tensor
//!
//! | from | sends | cut by | checked on this rank | checked among ranks |
//! |---|---|---|---|---|
//! | a factory: [`empty`], [`zeros`], [`ones`], [`full`], [`rand`], [`randn`] | nothing | a spec | properties, devices; overlap and coverage of specs of users | |
//! | [`ShardedTensor::from_local_shards`] | records | what the shards are | rank, device, dtype, contiguity | size, dtype, gradients, pinned memory; overlap, coverage |
//! | [`ShardedTensor::from_local_rows`] | records | rows in rank order | as above, one shard | as above, and the size of a row |
//! | [`ShardedTensor::from_local_shards_and_metadata`] | nothing | a spec, or what the metadata are | number and boxes of shards, dtype, contiguity; overlap, coverage | |
//! | [`ShardedTensorBase::new`] | nothing; needs no group | as above | properties; overlap, coverage | |
//! | [`ShardedTensor::from_local_tensor`] | nothing | a spec | size, contiguity | |
//! | [`shard_tensor`] | records, elements | a spec | contiguity | source, spec, size, dtype |
//! | [`ShardedTensor::from_bytes`] | nothing | what was stored | ranks and sizes as they were | |
//! | [`ShardedTensor::from_dtensor`] | nothing | a layout | | |
//!
//! With [`TensorOptions::init_rrefs`], all but `shard_tensor`, `ShardedTensorBase::new` and `from_dtensor`
//! also send references, to all ranks of the world.
//!
//! Where ranks tell each other something, a rank on which something is wrong takes part and tells that: all get
//! the same error, and nobody waits. Where nothing is sent, what only one rank can see is an error on that
//! rank.
//!
//! # For those who know PyTorch's
//!
//! - A tensor is a value. `clone`, `copy.deepcopy` and passing it on are [`Clone`]; what changes a tensor
//!   ([`reshard`](ShardedTensor::reshard), [`copy_from`](ShardedTensor::copy_from), ...) changes no other.
//! - There is no default group: every way takes a [`ProcessGroup`], or the [`World`] for all of its ranks.
//!   Placements name ranks of the world; sources and destinations count within the group.
//! - Empty chunks begin at the end of the dim, not beyond. Metadata in which they begin beyond are taken.
//! - Random values do not depend on how a tensor is cut, `kaiming_uniform_` has the fan of the whole tensor,
//!   `gather` keeps the dtype, `*_like` keep dtype, group and the wish for gradients, and means of bags do not
//!   count padding.
//! - `reshard` takes any spec, also on parts of the world. `shard_tensor` takes any spec, also one that leaves
//!   ranks out.
//! - Agents ([`rpc::init_rpc`]) are values, passed where references or names of workers are wanted.
//!   References are exchanged over the world: a rank that fails before is an error on all. Cloning does not
//!   communicate; a clone's references are exchanged when it is first asked for them. After `reshard` there
//!   are new ones, and the old say that they are stale. Names of workers work wherever ranks do.
//!
//! # Trade-offs
//!
//! - *Every rank knows every box.* That is what makes arbitrary boxes possible without questions, and it costs
//!   time and memory in proportion to the number of shards: 10,000 of them are a matter of milliseconds. For
//!   more ranks than that, use the layouts of distributed tensors, which are computed from coordinates.
//! - *Each element lies once.* There are no copies and no pending sums; those are distributed tensors.
//! - *Operations are those of distributed tensors*, where a cut is a layout. For others there is what works
//!   element by element, rows of tables, and `reshard`.

#![forbid(unsafe_code)]

mod bytes_form;
pub mod checkpoint;
mod construct;
mod device;
pub mod embedding;
mod error;
mod exchange;
mod group;
mod metadata;
pub mod module;
pub mod ops;
pub mod optim;
mod placement;
mod remote;
mod shard;
mod spec;
mod state;
mod tensor;

pub use construct::{LocalShardsOptions, empty, full, ones, rand, randn, shard_tensor, zeros};
pub use device::Device;
pub use dtensor::{DType, RunError, Runner, Scalar, Tensor, World};
pub use dtensor_rpc as rpc;
pub use error::{Error, Result, Text};
pub use group::ProcessGroup;
pub use metadata::{
    MemoryFormat, ShardMetadata, ShardedTensorMetadata, TensorLayout, TensorProperties,
};
pub use placement::ShardPlacement;
pub use remote::{FetchedShard, RemoteShard, RemoteShards, TensorOptions};
pub use shard::Shard;
pub use spec::{
    ChunkShardingSpec, EnumerableShardingSpec, ShardingSpec, Spec, check_covers, check_no_overlap,
    chunk_of_rank, chunked_dim_size, infer_sharding_spec, layout_of_metadata,
    sharding_spec_of_layout, split_size,
};
pub use state::load_with_process_group;
pub use tensor::{Fan, Nonlinearity, ShardedTensor, ShardedTensorBase, ShardedTensorId};
