//! Whether boxes make up a tensor.

use super::overlap::find_overlap;
use crate::{Error, Result, ShardMetadata, metadata::volume};

/// An error if two shards have common elements, or other numbers of dims. A shard that is empty in a dim overlaps what it would cut in
/// two, but not what it lies beside.
///
/// `n` shards that differ in one dim or two take `n log n` steps, as sorting them does. If they differ in `d`
/// dims, `n log^(d-1) n`, and for shards that are empty as many times more as there are ways of being empty
/// among them: one for chunks, `2^d - 1` at most.
pub fn check_no_overlap(shards: &[ShardMetadata]) -> Result<()> {
    // Shards come from users, other ranks and files, and boxes are compared dim by dim.
    check_one_number_of_dims(shards)?;
    match find_overlap(shards) {
        None => Ok(()),
        Some((first, second)) => Err(Error::Overlap {
            first: Box::new(shards[first].clone()),
            second: Box::new(shards[second].clone()),
        }),
    }
}

/// An error if shards that do not overlap reach beyond a tensor of this size, or leave some of it out.
pub fn check_covers(shards: &[ShardMetadata], size: &[usize]) -> Result<()> {
    let first = shards.first().ok_or_else(|| Error::NoShards { op: "coverage".into() })?;
    if first.n_dims() != size.len() {
        return Err(Error::WrongDims { tensor: size.len(), shards: first.n_dims() });
    }
    check_one_number_of_dims(shards)?;
    let mut covered = 0_u128;
    for shard in shards {
        if let Some(dim) = (0..size.len()).find(|dim| shard.range(*dim).end > size[*dim]) {
            let shard = Box::new(shard.clone());
            return Err(Error::OutOfBounds { shard, dim, size: size[dim] });
        }
        covered = covered.saturating_add(shard.volume());
    }
    let tensor = volume(size);
    match covered == tensor {
        true => Ok(()),
        false => Err(Error::NotCovered { shards: covered, tensor }),
    }
}

fn check_one_number_of_dims(shards: &[ShardMetadata]) -> Result<()> {
    let first = shards.first().map_or(0, ShardMetadata::n_dims);
    match shards.iter().map(ShardMetadata::n_dims).find(|other| *other != first) {
        None => Ok(()),
        Some(other) => Err(Error::MixedDims { first, other }),
    }
}
