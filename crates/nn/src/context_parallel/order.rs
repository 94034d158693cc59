//! The order in which every rank has a part of the beginning and a part of the end.

use dtensor::{DTensor, DeviceMesh, Result, Tensor, distribute_tensor_from, ops::nn::Positions};

use crate::{Spot, init};

/// The positions of a sequence in the order in which its elements lie if `n` ranks share it, each with a part of the
/// beginning and a part of the end: see [`Positions::HeadTail`].
pub fn head_tail_order(length: usize, n: usize) -> Vec<i64> {
    Positions::HeadTail(n).of(length).into_iter().map(|position| position as i64).collect()
}

/// Where in that order every position is.
pub fn head_tail_inverse(length: usize, n: usize) -> Vec<i64> {
    let mut inverse = vec![0; length];
    for (index, position) in Positions::HeadTail(n).of(length).into_iter().enumerate() {
        inverse[position] = index as i64;
    }
    inverse
}

/// A sequence along a dim in [`head_tail_order`] and cut over an axis. Tokens, targets, and whatever else has positions
/// are brought there before a model with a balanced [`ContextParallel`](crate::ContextParallel) sees them.
///
/// ```
/// use dtensor::{DType, DeviceMesh, Placement::{Replicate, Shard}, Runner, arange};
/// use dtensor_nn::{context_parallel_shard, context_parallel_unshard};
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "cp")?;
///     let tokens = arange(0, 8, 1, DType::I64, &mesh, &[Replicate])?;
///     let cut = context_parallel_shard(&tokens, 0, "cp")?;
///     assert_eq!(cut.placements(), [Shard(0)]);
///     assert_eq!(cut.to_vec::<i64>()?, [0, 1, 6, 7, 2, 3, 4, 5]);
///     assert_eq!(context_parallel_unshard(&cut, 0, "cp")?.to_vec::<i64>()?, tokens.to_vec::<i64>()?);
///     Ok::<_, dtensor::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn context_parallel_shard(x: &DTensor, dim: isize, axis: &str) -> Result<DTensor> {
    let number = x.mesh().axis_index(axis)?;
    let n = x.mesh().mesh().axis_size(number);
    let ordered = permuted(x, dim, |length| head_tail_order(length, n))?;
    Spot::Shard(dim).place(&ordered, number)
}

/// The same sequence from the first position to the last, on every rank of the axis.
pub fn context_parallel_unshard(x: &DTensor, dim: isize, axis: &str) -> Result<DTensor> {
    let number = x.mesh().axis_index(axis)?;
    let n = x.mesh().mesh().axis_size(number);
    let whole = Spot::Replicate.place(x, number)?;
    permuted(&whole, dim, |length| head_tail_inverse(length, n))
}

/// The slices of a dim at the indices that `order` gives for its length.
fn permuted(x: &DTensor, dim: isize, order: impl Fn(usize) -> Vec<i64>) -> Result<DTensor> {
    let n_dims = x.n_dims().cast_signed();
    let place = if dim < 0 { dim + n_dims } else { dim };
    // Of a dim that is not there, the operation says so.
    let length = usize::try_from(place).ok().and_then(|dim| x.shape().get(dim)).copied();
    x.index_select(dim, &indices(&order(length.unwrap_or(0)), x.mesh())?)
}

/// A list as a tensor, a copy on every rank.
pub(super) fn indices(list: &[i64], mesh: &DeviceMesh) -> Result<DTensor> {
    let plain = Tensor::from_slice(list, &[list.len()])?;
    distribute_tensor_from(&plain, mesh, &init::copies(mesh), None)
}
