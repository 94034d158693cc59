//! Chunks of one dim.

use dtensor_layout::chunk;
use serde::{Deserialize, Serialize};

use super::ShardingSpec;
use crate::{
    Device, Error, Result, ShardMetadata, ShardPlacement, ShardedTensorMetadata, TensorProperties,
};

/// Chunks of one dim, one per placement and in their order: as `torch.chunk` cuts, but always as many as there
/// are placements. Each is `ceil(n / placements)` long, the last ones are short or empty. A rank may have
/// several.
///
/// An empty chunk begins where the dim ends. (PyTorch lets it begin beyond, and then cannot use the tensor.)
///
/// ```
/// use dtensor_sharded::{ChunkShardingSpec, DType, ShardingSpec};
///
/// let spec = ChunkShardingSpec::new(0, &["rank:1/cpu", "rank:0/cpu", "rank:2/cpu", "rank:3/cpu"])?;
/// let built = spec.build_metadata(&[5, 2], &DType::F32.into())?;
/// let shards: Vec<String> = built.shards_metadata.iter().map(|shard| shard.to_string()).collect();
/// assert_eq!(shards, [
///     "[0..2, 0..2] on rank:1/cpu",
///     "[2..4, 0..2] on rank:0/cpu",
///     "[4..5, 0..2] on rank:2/cpu",
///     "[5..5, 0..2] on rank:3/cpu",
/// ]);
/// # Ok::<(), dtensor_sharded::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Stored")]
pub struct ChunkShardingSpec {
    dim: isize,
    placements: Vec<ShardPlacement>,
}

impl ChunkShardingSpec {
    /// Chunks of a dim, which counts from the end if it is negative, in places given as text.
    pub fn new<P: AsRef<str>>(dim: isize, placements: &[P]) -> Result<ChunkShardingSpec> {
        let parsed = placements.iter().map(|text| text.as_ref().parse());
        ChunkShardingSpec::with_placements(dim, parsed.collect::<Result<_>>()?)
    }

    /// Chunks of a dim in these places.
    pub fn with_placements(
        dim: isize,
        placements: Vec<ShardPlacement>,
    ) -> Result<ChunkShardingSpec> {
        match placements.is_empty() {
            true => Err(Error::NoPlacements),
            false => Ok(ChunkShardingSpec { dim, placements }),
        }
    }

    /// Chunks of a dim on the CPUs of these ranks of the world.
    pub fn over_ranks(
        dim: isize,
        ranks: impl IntoIterator<Item = usize>,
    ) -> Result<ChunkShardingSpec> {
        let place = |rank| ShardPlacement::on_rank(rank, Device::CPU);
        ChunkShardingSpec::with_placements(dim, ranks.into_iter().map(place).collect())
    }

    /// The dim, as it was given.
    pub fn dim(&self) -> isize {
        self.dim
    }

    /// The places of the chunks, in the order of the chunks.
    pub fn placements(&self) -> &[ShardPlacement] {
        &self.placements
    }

    /// The dim of a tensor of so many dims.
    pub(crate) fn normal_dim(&self, n_dims: usize) -> Result<usize> {
        let dim = match self.dim {
            dim if dim < 0 => n_dims.checked_add_signed(dim),
            dim => usize::try_from(dim).ok(),
        };
        dim.filter(|dim| *dim < n_dims).ok_or_else(|| Error::DimOutOfRange {
            op: "chunk sharding".into(),
            dim: self.dim,
            n_dims,
        })
    }
}

impl ShardingSpec for ChunkShardingSpec {
    fn build_metadata(
        &self,
        size: &[usize],
        properties: &TensorProperties,
    ) -> Result<ShardedTensorMetadata> {
        let dim = self.normal_dim(size.len())?;
        let (mut offsets, mut sizes) = (vec![0; size.len()], size.to_vec());
        let n_chunks = self.placements.len();
        let shards = self.placements.iter().enumerate().map(|(index, placement)| {
            let range = chunk(size[dim], n_chunks, index);
            (offsets[dim], sizes[dim]) = (range.start, range.len());
            ShardMetadata::new(&offsets, &sizes, Some(placement.clone()))
        });
        Ok(ShardedTensorMetadata {
            shards_metadata: shards.collect::<Result<_>>()?,
            size: size.to_vec(),
            tensor_properties: properties.clone(),
        })
    }

    fn is_exact(&self) -> bool {
        true
    }
}

/// What was stored, perhaps by somebody else: without placements there would be nothing to divide by.
#[derive(Deserialize)]
struct Stored {
    dim: isize,
    placements: Vec<ShardPlacement>,
}

impl TryFrom<Stored> for ChunkShardingSpec {
    type Error = Error;

    fn try_from(Stored { dim, placements }: Stored) -> Result<ChunkShardingSpec> {
        ChunkShardingSpec::with_placements(dim, placements)
    }
}

/// The length of the chunks of a dim that is cut into `n_chunks`, but for the last ones.
pub fn split_size(dim_size: usize, n_chunks: usize) -> usize {
    dim_size.div_ceil(n_chunks.max(1))
}

/// The length of one chunk of a dim that is cut into pieces of `split_size`.
pub fn chunked_dim_size(dim_size: usize, split_size: usize, index: usize) -> usize {
    let start = split_size.saturating_mul(index).min(dim_size);
    split_size.min(dim_size - start)
}

/// The first index and the length of the chunk of a dim that lies on a rank of the world, if exactly one does.
pub fn chunk_of_rank(
    dim_size: usize,
    spec: &ChunkShardingSpec,
    rank: usize,
) -> Option<(usize, usize)> {
    let mut own =
        spec.placements.iter().enumerate().filter(|(_, place)| place.rank() == Some(rank));
    let (Some((index, _)), None) = (own.next(), own.next()) else { return None };
    let range = chunk(dim_size, spec.placements.len(), index);
    Some((range.start, range.len()))
}
