//! Shards by a list.

use serde::{Deserialize, Serialize};

use super::{ShardingSpec, check_covers, check_no_overlap};
use crate::{Error, Result, ShardMetadata, ShardedTensorMetadata, TensorProperties};

/// Shards of one tensor, each given by itself: any boxes that do not overlap, any number per rank.
///
/// ```
/// use dtensor_sharded::{DType, EnumerableShardingSpec, ShardMetadata, ShardingSpec};
///
/// let shard = |offsets: &[usize], sizes: &[usize], place: &str| {
///     ShardMetadata::new(offsets, sizes, Some(place.parse()?))
/// };
/// let spec = EnumerableShardingSpec::new(vec![
///     shard(&[0, 0], &[4, 6], "rank:1/cpu")?,
///     shard(&[4, 0], &[2, 3], "rank:0/cpu")?,
///     shard(&[4, 3], &[2, 3], "rank:1/cpu")?,
/// ])?;
/// assert!(spec.build_metadata(&[6, 6], &DType::F32.into()).is_ok());
/// // They do not cover a larger tensor.
/// assert!(spec.build_metadata(&[6, 7], &DType::F32.into()).is_err());
/// # Ok::<(), dtensor_sharded::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<ShardMetadata>", into = "Vec<ShardMetadata>")]
pub struct EnumerableShardingSpec {
    shards: Vec<ShardMetadata>,
}

impl EnumerableShardingSpec {
    /// These shards, of which there must be some, all of the same number of dims and none over another.
    pub fn new(shards: Vec<ShardMetadata>) -> Result<EnumerableShardingSpec> {
        if shards.is_empty() {
            return Err(Error::NoShards { op: "enumerable sharding".into() });
        }
        check_no_overlap(&shards)?;
        Ok(EnumerableShardingSpec { shards })
    }

    /// Shards of which it is known that they make up a tensor.
    pub(crate) fn of_checked(shards: Vec<ShardMetadata>) -> EnumerableShardingSpec {
        EnumerableShardingSpec { shards }
    }

    /// The shards, in their order.
    pub fn shards(&self) -> &[ShardMetadata] {
        &self.shards
    }
}

impl ShardingSpec for EnumerableShardingSpec {
    fn build_metadata(
        &self,
        size: &[usize],
        properties: &TensorProperties,
    ) -> Result<ShardedTensorMetadata> {
        check_covers(&self.shards, size)?;
        Ok(ShardedTensorMetadata {
            shards_metadata: self.shards.clone(),
            size: size.to_vec(),
            tensor_properties: properties.clone(),
        })
    }

    fn is_exact(&self) -> bool {
        true
    }
}

impl TryFrom<Vec<ShardMetadata>> for EnumerableShardingSpec {
    type Error = Error;

    fn try_from(shards: Vec<ShardMetadata>) -> Result<EnumerableShardingSpec> {
        EnumerableShardingSpec::new(shards)
    }
}

impl From<EnumerableShardingSpec> for Vec<ShardMetadata> {
    fn from(spec: EnumerableShardingSpec) -> Vec<ShardMetadata> {
        spec.shards
    }
}
