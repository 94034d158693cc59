//! What several modules of tests need.

use dtensor_sharded::{
    ChunkShardingSpec, Device, EnumerableShardingSpec, Error, ProcessGroup, Result, ShardMetadata,
    ShardPlacement, ShardedTensor, ShardedTensorMetadata, ShardingSpec, Spec, Tensor,
    TensorProperties, World, shard_tensor,
};

/// A tensor in which every element has its own value.
pub fn numbered(size: &[usize]) -> Tensor {
    let n: usize = size.iter().product();
    Tensor::from_vec((0..n).map(|index| index as f32).collect(), size).unwrap()
}

/// A box on a rank.
pub fn boxed(offsets: &[usize], sizes: &[usize], rank: usize) -> ShardMetadata {
    ShardMetadata::new(offsets, sizes, Some(ShardPlacement::on_rank(rank, Device::CPU))).unwrap()
}

/// Chunks of a dim on ranks.
pub fn chunks(dim: isize, ranks: &[usize]) -> Spec {
    ChunkShardingSpec::over_ranks(dim, ranks.iter().copied()).unwrap().into()
}

/// A list of boxes.
pub fn boxes(list: &[(&[usize], &[usize], usize)]) -> Spec {
    let shards = list.iter().map(|(offsets, sizes, rank)| boxed(offsets, sizes, *rank)).collect();
    EnumerableShardingSpec::new(shards).unwrap().into()
}

/// A numbered tensor, cut by a spec, from the first rank of the group.
pub fn cut(size: &[usize], spec: &Spec, group: impl Into<ProcessGroup>) -> Result<ShardedTensor> {
    shard_tensor(&numbered(size), spec, 0, group)
}

/// The pieces of a tensor of this size after some cuts, on any ranks.
pub fn partition(size: &[usize], cuts: &[(usize, usize, usize, usize)], n_ranks: usize) -> Spec {
    let mut parts = vec![(vec![0; size.len()], size.to_vec(), 0)];
    for (which, dim, at, rank) in cuts {
        let index = which % parts.len();
        let (offsets, sizes, owner) = parts[index].clone();
        let dim = dim % size.len();
        if sizes[dim] < 2 {
            continue;
        }
        let at = 1 + at % (sizes[dim] - 1);
        let mut left = (offsets.clone(), sizes.clone(), owner);
        let mut right = (offsets, sizes, rank % n_ranks);
        left.1[dim] = at;
        right.0[dim] += at;
        right.1[dim] -= at;
        parts[index] = left;
        parts.push(right);
    }
    let shards = parts.iter().map(|(offsets, sizes, rank)| boxed(offsets, sizes, *rank)).collect();
    EnumerableShardingSpec::new(shards).unwrap().into()
}

/// Rows of squares of a matrix, one per placement: a spec as users write their own.
#[derive(Clone, Debug)]
pub struct Grid {
    pub side: usize,
    pub placements: Vec<ShardPlacement>,
}

impl Grid {
    pub fn over_ranks(side: usize, ranks: impl IntoIterator<Item = usize>) -> Grid {
        let place = |rank| ShardPlacement::on_rank(rank, Device::CPU);
        Grid { side, placements: ranks.into_iter().map(place).collect() }
    }
}

impl ShardingSpec for Grid {
    fn build_metadata(
        &self,
        size: &[usize],
        properties: &TensorProperties,
    ) -> Result<ShardedTensorMetadata> {
        let [rows, columns] = *size else {
            return Err(Error::WrongDims { tensor: size.len(), shards: 2 });
        };
        let part = [rows / self.side, columns / self.side];
        let squares = self.placements.iter().enumerate().map(|(index, placement)| {
            let offsets = [index / self.side * part[0], index % self.side * part[1]];
            ShardMetadata::new(&offsets, &part, Some(placement.clone()))
        });
        Ok(ShardedTensorMetadata {
            shards_metadata: squares.collect::<Result<_>>()?,
            size: size.to_vec(),
            tensor_properties: properties.clone(),
        })
    }
}

/// The errors of all ranks, which must be the same one.
#[track_caller]
pub fn same_error<T>(n_ranks: usize, body: impl Fn(&World) -> Result<T> + Sync) -> Error {
    let errors = dtensor_testing::spmd(n_ranks, |world| {
        let error = body(world).err();
        // Whoever failed early would have left the others waiting.
        world.group().barrier()?;
        Ok(error)
    });
    let first = errors[0].clone().expect("rank 0 has no error");
    assert!(errors.iter().all(|error| error.as_ref() == Some(&first)), "{errors:#?}");
    first
}
