//! How a tensor is cut into shards.

mod chunk;
mod enumerable;
mod infer;
mod layout;
mod overlap;
mod overlap_many;
mod validate;

use std::{any::Any, fmt, ops::Deref, sync::Arc};

use crate::{Result, ShardedTensorMetadata, TensorProperties};

pub use chunk::{ChunkShardingSpec, chunk_of_rank, chunked_dim_size, split_size};
pub use enumerable::EnumerableShardingSpec;
pub use infer::infer_sharding_spec;
pub use layout::{layout_of_metadata, sharding_spec_of_layout};
pub use validate::{check_covers, check_no_overlap};

pub(crate) use layout::{mesh_and_placements, of_layout};

/// A way to cut tensors: it gives the boxes of a tensor of any size, and where they lie. Write your own for
/// others than [chunks](ChunkShardingSpec) and [lists](EnumerableShardingSpec):
///
/// ```
/// use dtensor_sharded::{DType, Device, Result, Runner, ShardMetadata, ShardPlacement, ShardedTensorMetadata,
///     ShardingSpec, TensorProperties, zeros};
///
/// /// Squares of a matrix, one per rank, row by row.
/// #[derive(Clone, Debug)]
/// struct Grid {
///     side: usize,
/// }
///
/// impl ShardingSpec for Grid {
///     fn build_metadata(&self, size: &[usize], properties: &TensorProperties) -> Result<ShardedTensorMetadata> {
///         let (rows, columns) = (size[0] / self.side, size[1] / self.side);
///         let squares = (0..self.side * self.side).map(|rank| {
///             let placement = ShardPlacement::on_rank(rank, Device::CPU);
///             let offsets = [rank / self.side * rows, rank % self.side * columns];
///             ShardMetadata::new(&offsets, &[rows, columns], Some(placement))
///         });
///         Ok(ShardedTensorMetadata {
///             shards_metadata: squares.collect::<Result<_>>()?,
///             size: size.to_vec(),
///             tensor_properties: properties.clone(),
///         })
///     }
/// }
///
/// Runner::threads(4).run(|world| {
///     let x = zeros(Grid { side: 2 }, &[6, 4], DType::F32, world)?;
///     assert_eq!(x.local_tensor()?.shape(), [3, 2]);
///     Ok::<_, dtensor_sharded::Error>(())
/// })?;
/// # Ok::<(), dtensor_sharded::RunError>(())
/// ```
pub trait ShardingSpec: Any + fmt::Debug + Send + Sync {
    /// The shards of a tensor of this size. It must be the same on every rank, and the shards must cover the
    /// tensor without overlaps: that is checked where a tensor is made.
    fn build_metadata(
        &self,
        size: &[usize],
        properties: &TensorProperties,
    ) -> Result<ShardedTensorMetadata>;

    /// Whether what it builds always covers a tensor without overlaps, so that nobody needs to check it.
    fn is_exact(&self) -> bool {
        false
    }
}

/// Any [`ShardingSpec`]. Cloning is cheap.
#[derive(Clone)]
pub struct Spec(Arc<dyn ShardingSpec>);

impl Spec {
    /// A spec of some kind.
    pub fn new(spec: impl ShardingSpec) -> Spec {
        Spec(Arc::new(spec))
    }

    /// The spec, if it is of this kind.
    pub fn downcast_ref<S: ShardingSpec>(&self) -> Option<&S> {
        let any: &dyn Any = &*self.0;
        any.downcast_ref()
    }

    /// As chunks, if it is that.
    pub fn as_chunk(&self) -> Option<&ChunkShardingSpec> {
        self.downcast_ref()
    }

    /// The kind of the spec.
    pub(crate) fn kind(&self) -> std::any::TypeId {
        let any: &dyn Any = &*self.0;
        any.type_id()
    }
}

impl<S: ShardingSpec> From<S> for Spec {
    fn from(spec: S) -> Spec {
        Spec::new(spec)
    }
}

impl From<&Spec> for Spec {
    fn from(spec: &Spec) -> Spec {
        spec.clone()
    }
}

impl Deref for Spec {
    type Target = dyn ShardingSpec;

    fn deref(&self) -> &dyn ShardingSpec {
        &*self.0
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
