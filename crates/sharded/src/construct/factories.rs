//! New tensors: every rank makes its own shards, and nothing is sent.

use std::sync::Arc;

use dtensor::{Scalar, random};
use dtensor_local::{
    Tensor,
    random::{Distribution, Stream},
};

use super::planned;
use crate::{
    Device, ProcessGroup, Result, Shard, ShardMetadata, ShardPlacement, ShardedTensor, Spec,
    TensorOptions, TensorProperties, remote,
};

/// Any values. For tensors that are written before they are read.
pub fn empty(
    spec: impl Into<Spec>,
    size: &[usize],
    properties: impl Into<TensorProperties>,
    options: impl Into<TensorOptions>,
) -> Result<ShardedTensor> {
    let properties = properties.into();
    let dtype = properties.dtype;
    make("empty", spec, size, properties, options, |shard| Ok(Tensor::empty(shard.sizes(), dtype)?))
}

/// Zeros (false, for `bool`).
///
/// ```
/// use dtensor_sharded::{ChunkShardingSpec, DType, Runner, zeros};
///
/// Runner::threads(4).run(|world| {
///     let rows = ChunkShardingSpec::over_ranks(0, 0..4)?;
///     let x = zeros(rows, &[10, 3], DType::F32, world)?;
///     assert_eq!(x.local_tensor()?.shape(), [[3, 3], [3, 3], [3, 3], [1, 3]][world.rank()]);
///     Ok::<_, dtensor_sharded::Error>(())
/// })?;
/// # Ok::<(), dtensor_sharded::RunError>(())
/// ```
pub fn zeros(
    spec: impl Into<Spec>,
    size: &[usize],
    properties: impl Into<TensorProperties>,
    options: impl Into<TensorOptions>,
) -> Result<ShardedTensor> {
    let properties = properties.into();
    let dtype = properties.dtype;
    make("zeros", spec, size, properties, options, |shard| Ok(Tensor::zeros(shard.sizes(), dtype)?))
}

/// Ones (true, for `bool`).
pub fn ones(
    spec: impl Into<Spec>,
    size: &[usize],
    properties: impl Into<TensorProperties>,
    options: impl Into<TensorOptions>,
) -> Result<ShardedTensor> {
    let properties = properties.into();
    let dtype = properties.dtype;
    make("ones", spec, size, properties, options, |shard| Ok(Tensor::ones(shard.sizes(), dtype)?))
}

/// The same value everywhere, cast to the dtype.
pub fn full(
    spec: impl Into<Spec>,
    size: &[usize],
    value: impl Into<Scalar>,
    properties: impl Into<TensorProperties>,
    options: impl Into<TensorOptions>,
) -> Result<ShardedTensor> {
    let (properties, value) = (properties.into(), value.into());
    let dtype = properties.dtype;
    make("full", spec, size, properties, options, |shard| {
        Ok(Tensor::empty(shard.sizes(), dtype)?.full_like(value)?)
    })
}

/// Values evenly in `0..1`, from the random state of this rank ([`dtensor::random`]). All ranks call it, and
/// the values do not depend on how the tensor is cut: they are those of [`dtensor::rand`] with the same seed.
pub fn rand(
    spec: impl Into<Spec>,
    size: &[usize],
    properties: impl Into<TensorProperties>,
    options: impl Into<TensorOptions>,
) -> Result<ShardedTensor> {
    drawn("rand", Distribution::Uniform { low: 0.0, high: 1.0 }, spec, size, properties, options)
}

/// Gaussian values of mean 0 and standard deviation 1; see [`rand`].
pub fn randn(
    spec: impl Into<Spec>,
    size: &[usize],
    properties: impl Into<TensorProperties>,
    options: impl Into<TensorOptions>,
) -> Result<ShardedTensor> {
    drawn("randn", Distribution::Normal { mean: 0.0, std: 1.0 }, spec, size, properties, options)
}

/// The random numbers of a box of a tensor, which are those that the whole tensor would have there.
pub(crate) fn random_shard(
    shard: &ShardMetadata,
    size: &[usize],
    properties: &TensorProperties,
    distribution: Distribution,
    stream: Stream,
) -> Result<Tensor> {
    let boxes = if shard.is_empty() { Vec::new() } else { vec![shard.index_box().0] };
    let dtype = properties.dtype;
    Ok(Tensor::random_shard(shard.sizes(), dtype, distribution, stream, size, &boxes)?)
}

/// The stream of the next random operation of this rank.
pub(crate) fn take_stream() -> Stream {
    let state = random::state();
    random::set_state(random::RandomState { offset: state.offset.wrapping_add(1), ..state });
    Stream { seed: state.seed, offset: state.offset }
}

fn drawn(
    op: &'static str,
    distribution: Distribution,
    spec: impl Into<Spec>,
    size: &[usize],
    properties: impl Into<TensorProperties>,
    options: impl Into<TensorOptions>,
) -> Result<ShardedTensor> {
    let properties = properties.into();
    // What is wrong is so on every rank, also on one that has nothing to fill.
    Tensor::random(&[0], properties.dtype, distribution, Stream::default())?;
    let stream = take_stream();
    let of = properties.clone();
    make(op, spec, size, properties, options, |shard| {
        random_shard(shard, size, &of, distribution, stream)
    })
}

/// A tensor whose shards on this rank `fill` makes, where they are on a device with memory.
fn make(
    op: &'static str,
    spec: impl Into<Spec>,
    size: &[usize],
    properties: TensorProperties,
    options: impl Into<TensorOptions>,
    fill: impl Fn(&ShardMetadata) -> Result<Tensor>,
) -> Result<ShardedTensor> {
    let TensorOptions { group, init_rrefs } = options.into();
    let made = made(op, spec.into(), size, properties, &group, fill);
    remote::with_references(op, made, &group, init_rrefs)
}

/// The same without references. What this rank cannot make is its own error, which the others are told where
/// there are references.
fn made(
    op: &'static str,
    spec: Spec,
    size: &[usize],
    properties: TensorProperties,
    group: &ProcessGroup,
    fill: impl Fn(&ShardMetadata) -> Result<Tensor>,
) -> Result<ShardedTensor> {
    let metadata = planned(op, &spec, size, &properties, group)?;
    let made = |shard: &ShardMetadata| -> Result<Arc<Shard>> {
        let tensor = match shard.placement().map(ShardPlacement::device) {
            Some(Device::META) => Tensor::meta(shard.sizes(), properties.dtype)?,
            _ => fill(shard)?,
        };
        Ok(Arc::new(Shard::new(tensor, shard.clone())?))
    };
    let own = metadata.shards_of(group.world_rank()).map(made).collect::<Result<Vec<_>>>()?;
    Ok(ShardedTensor::assemble(spec, metadata, own, group.clone()))
}
