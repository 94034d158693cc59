//! Operations on sharded tensors.
//!
//! An operation is called by its name ([`call`]) or by the method that has it. Who carries it out is looked for
//! in three places, in this order: what was [registered for the operation](register_op), what was [registered
//! for it and the kind of spec](register_spec_op) of the first sharded operand, and the [table](OPS) of those
//! that are there. An operation that is in none of them is an error, on every rank.
//!
//! Most are those of distributed tensors: where a spec [is a layout](crate::ShardedTensor::to_dtensor) they are
//! done by those, with gradients, and the result is a sharded tensor again. What works element by element is
//! done for every other spec as well, shard by shard.
//!
//! ```
//! use dtensor_sharded::{ChunkShardingSpec, DType, Runner, full, ops};
//!
//! // An operation of one's own, by a name of one's own.
//! ops::register_op("double", |call| {
//!     let x = call.sharded(0)?;
//!     Ok(x.add(x)?.into())
//! });
//! Runner::threads(2).run(|world| {
//!     let x = full(ChunkShardingSpec::over_ranks(0, 0..2)?, &[3], 2.0, DType::F32, world)?;
//!     let y = ops::call("double", &[x.into()])?.into_sharded("double")?;
//!     assert_eq!(y.full_tensor()?.to_vec::<f32>()?, [4.0; 3]);
//!     assert!(ops::call("halve", &[y.into()]).is_err());
//!     Ok::<_, dtensor_sharded::Error>(())
//! })?;
//! # Ok::<(), dtensor_sharded::RunError>(())
//! ```

mod delegate;
mod dispatch;
mod elementwise;
mod in_place;
mod nn;
mod shape;
mod table;
mod value;

pub use dispatch::{OpCall, call, register_op, register_spec_op};
pub use nn::linear;
pub use table::{OPS, OpRecord};
pub use value::OpValue;

pub(crate) use delegate::{copies_beside, is_cut_everywhere, sharded_result};
