//! Rows of sharded tables by their numbers.
//!
//! Every rank looks up its own ids, different ones and any number of them. All ranks tell each other the ids;
//! then the owners send every rank the rows that it asked for, whatever boxes the table is cut into. So the
//! result has exactly the elements of the table, and sums over bags are made in one order by the rank that
//! wants them: bit for bit what one rank with the whole table would compute.
//!
//! The price: for bags of many ids more is sent than partial sums would be, in return for results that do not
//! depend on the sharding.
//!
//! # Gradients
//!
//! What is looked up is a plain tensor of this rank, and so is no part of a tape: a table may be cut into boxes
//! that no distributed tensor has, and every rank goes on with rows of its own. The way back is a call:
//! [`embedding_backward`] and [`embedding_bag_backward`] make the gradient of the table, cut as the table is,
//! from the gradients of what every rank has got; and the latter also those of the weights of ids. An
//! [optimizer](crate::optim) takes them as they are. What is done with the rows may well be on a tape:
//!
//! ```
//! use dtensor::{DTensor, DeviceMesh, Placement::Replicate};
//! use dtensor_sharded::{ChunkShardingSpec, DType, Runner, Tensor, embedding::*, ones};
//!
//! Runner::threads(2).run(|world| {
//!     let table = ones(ChunkShardingSpec::over_ranks(0, [1, 0])?, &[5, 1], DType::F32, world)?;
//!     let (ids, means) = (Tensor::from_vec(vec![4_i64, world.rank() as i64], &[1, 2])?, BagOptions::default());
//!     let bags = embedding_bag(&ids, None, &table, &means)?;
//!
//!     // The rest of the model, on this rank alone.
//!     let alone = DeviceMesh::of_world(world, "ranks")?.alone()?;
//!     let bags = DTensor::from_local(&bags, &alone, &[Replicate])?.requires_grad()?;
//!     let gradients = bags.square()?.sum(&[], false)?.backward()?;
//!
//!     let grad = gradients.get(&bags).unwrap().to_local();
//!     let gradient = embedding_bag_backward(&grad, &ids, None, &table, &means)?.table;
//!     assert_eq!(gradient.full_tensor()?.to_vec::<f32>()?, [1.0, 1.0, 0.0, 0.0, 2.0]);
//!     Ok::<_, dtensor_sharded::Error>(())
//! })?;
//! # Ok::<(), dtensor_sharded::RunError>(())
//! ```

mod bag;
mod bag_backward;
mod bags;
mod lookup;
mod renorm;

use dtensor_dtype::DType;
use dtensor_local::{LocalError, Tensor};

use crate::{
    Error, Result, ShardedTensor,
    ops::{OpCall, OpValue, call},
};

pub use bag::{BagMode, BagOptions, embedding_bag, embedding_bag_renormed};
pub use bag_backward::{BagGradients, embedding_bag_backward};
pub use lookup::embedding_backward;
pub use renorm::{MaxNorm, renorm_rows};

pub(crate) use bag::embedding_bag_op;

/// The rows of a sharded table `[V, E]` at the ids of this rank (`i64` or `i32`, any shape and number): `[...,
/// E]`. All ranks of the group call it, each with its own ids. An id that is not within `0..V` is the same
/// error on all.
///
/// As `torch.nn.functional.embedding`; with its `max_norm` it is [`embedding_renormed`], and for gradients see
/// [`embedding_backward`].
///
/// ```
/// use dtensor_sharded::{ChunkShardingSpec, Runner, Tensor, embedding::embedding, shard_tensor};
///
/// Runner::threads(2).run(|world| {
///     let table = Tensor::from_vec((0..10).map(|n| n as f32).collect(), &[5, 2])?;
///     let table = shard_tensor(&table, ChunkShardingSpec::over_ranks(0, 0..2)?, 0, world)?;
///     let ids = Tensor::from_vec(vec![4 - world.rank() as i64, 0], &[2])?;
///     let rows = embedding(&ids, &table)?;
///     assert_eq!(rows.to_vec::<f32>()?, [[8.0, 9.0, 0.0, 1.0], [6.0, 7.0, 0.0, 1.0]][world.rank()]);
///     Ok::<_, dtensor_sharded::Error>(())
/// })?;
/// # Ok::<(), dtensor_sharded::RunError>(())
/// ```
pub fn embedding(ids: &Tensor, table: &ShardedTensor) -> Result<Tensor> {
    call("embedding", &[ids.into(), table.into()])?.into_plain("embedding")
}

/// As [`embedding`], with `max_norm`: the rows that any rank asks for are shortened in the table first, where they
/// are longer. The ranks tell each other their ids once. It is carried out here, also where somebody has
/// [registered](crate::ops::register_op) the operation.
///
/// ```
/// use dtensor_sharded::{ChunkShardingSpec, DType, Runner, Tensor, embedding::*, full};
///
/// Runner::threads(2).run(|world| {
///     let mut table = full(ChunkShardingSpec::over_ranks(1, 0..2)?, &[3, 4], 1.0, DType::F64, world)?;
///     let ids = Tensor::from_vec(vec![world.rank() as i64], &[1])?;
///     let rows = embedding_renormed(&ids, &mut table, MaxNorm::new(1.0))?;
///     assert!(rows.to_vec::<f64>()?.iter().all(|value| (value - 0.5).abs() < 1e-6));
///     assert_eq!(table.full_tensor()?.to_vec::<f64>()?[8..], [1.0; 4]); // not looked up
///     Ok::<_, dtensor_sharded::Error>(())
/// })?;
/// # Ok::<(), dtensor_sharded::RunError>(())
/// ```
pub fn embedding_renormed(
    ids: &Tensor,
    table: &mut ShardedTensor,
    max_norm: MaxNorm,
) -> Result<Tensor> {
    const OP: &str = "embedding_renormed";
    max_norm.check(OP, table)?;
    let all = lookup::all_ids(OP, lookup::ids_of(OP, ids, table), table)?;
    max_norm.apply(OP, &all, table)?;
    let shape = [ids.shape(), &table.size()[1..]].concat();
    Ok(lookup::rows_of(OP, &all, table)?.reshape(&shape)?)
}

pub(crate) fn embedding_op(call: &OpCall<'_>) -> Result<OpValue> {
    let (ids, table) = (call.plain(0)?, call.sharded(1)?);
    check_table(call.name(), table)?;
    let wanted = lookup::ids_of(call.name(), ids, table);
    let rows = lookup::rows(call.name(), wanted, table)?;
    let shape = [ids.shape(), &table.size()[1..]].concat();
    Ok(rows.reshape(&shape)?.into())
}

/// As [`check_table`], and floats.
fn check_float_table(op: &'static str, table: &ShardedTensor) -> Result<()> {
    check_table(op, table)?;
    match table.dtype().is_float() {
        true => Ok(()),
        false => Err(LocalError::WrongDType { op, got: table.dtype(), want: DType::F32 }.into()),
    }
}

/// A table has two dims and values.
fn check_table(op: &'static str, table: &ShardedTensor) -> Result<()> {
    if table.n_dims() != 2 {
        let what = format!("a table of {} dims", table.n_dims());
        return Err(Error::refused(op, what, "a table has two: rows and columns"));
    }
    table.check_values(op)
}
