//! A sharded tensor as bytes: what this rank has of it.
//!
//! The length of the header as 8 bytes (little-endian), the header as JSON, and the elements of the shards, one
//! shard after the other. Bytes are read with suspicion: whatever they are, the result is a tensor or an error.

use std::{cell::RefCell, sync::Arc};

use dtensor_local::Tensor;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::Error as _};

use crate::{
    ChunkShardingSpec, EnumerableShardingSpec, Error, ProcessGroup, Result, Shard, ShardMetadata,
    ShardedTensor, ShardedTensorMetadata, Spec, bytes_form,
    construct::{matched, settle},
    remote::Remote,
};

/// Runs `body` so that sharded tensors which are read in it, by [`ShardedTensor::from_bytes`] or through
/// `serde`, lie on this group. On this rank; scopes do not nest.
///
/// ```
/// use dtensor_sharded::{ChunkShardingSpec, DType, ProcessGroup, Runner, ShardedTensor, load_with_process_group, ones};
///
/// Runner::threads(2).run(|world| {
///     let x = ones(ChunkShardingSpec::over_ranks(0, 0..2)?, &[3, 2], DType::F32, world)?;
///     let bytes = x.to_bytes()?;
///     let group = ProcessGroup::of_world(world);
///     let y = load_with_process_group(&group, || ShardedTensor::from_bytes(&bytes))??;
///     assert!(y.equal(&x)?);
///     Ok::<_, dtensor_sharded::Error>(())
/// })?;
/// # Ok::<(), dtensor_sharded::RunError>(())
/// ```
pub fn load_with_process_group<T>(group: &ProcessGroup, body: impl FnOnce() -> T) -> Result<T> {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            GROUP.take();
        }
    }
    if GROUP.with_borrow(Option::is_some) {
        return Err(Error::GroupAlreadySet);
    }
    GROUP.set(Some(group.clone()));
    let _reset = Reset;
    Ok(body())
}

thread_local! {
    static GROUP: RefCell<Option<ProcessGroup>> = const { RefCell::new(None) };
}

impl ShardedTensor {
    /// What this rank has of the tensor, with its metadata and who this rank is, to be stored. Every rank
    /// stores its own.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        const OP: &str = "to_bytes";
        self.check_values(OP)?;
        let tensors: Vec<Tensor> =
            self.local_shards().map(|shard| shard.tensor().contiguous()).collect();
        let header = Header {
            format: FORMAT.into(),
            metadata: self.metadata().clone(),
            spec: StoredSpec::of(self),
            group: GroupState::of(self.process_group()),
            init_rrefs: self.has_remote_shards(),
            shards: self.local_shards().map(|shard| shard.metadata().clone()).collect(),
        };
        let header = serde_json::to_vec(&header).map_err(|error| bad(OP, error))?;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        for tensor in &tensors {
            bytes.extend_from_slice(tensor.as_bytes()?);
        }
        Ok(bytes)
    }

    /// The tensor of which this rank has stored its part, within [`load_with_process_group`]. The rank must
    /// be the same as then, in the group and in the world, and so must the sizes of both. Nothing is sent. If
    /// the tensor had [remote shards](ShardedTensor::remote_shards), it has its own again, for which the
    /// group needs an [agent](ProcessGroup::with_rpc).
    pub fn from_bytes(bytes: &[u8]) -> Result<ShardedTensor> {
        const OP: &str = "from_bytes";
        let group = GROUP.with_borrow(Clone::clone);
        let group = group.ok_or_else(|| Error::NoGroupToLoad { op: OP.into() })?;
        ShardedTensor::from_bytes_on(bytes, &group)
    }

    /// As [`from_bytes`](ShardedTensor::from_bytes), on a group that is given.
    pub fn from_bytes_on(bytes: &[u8], group: &ProcessGroup) -> Result<ShardedTensor> {
        const OP: &str = "from_bytes";
        let too_short = || bad(OP, "the bytes end too early");
        let (length, rest) = bytes.split_at_checked(8).ok_or_else(too_short)?;
        let length = length.try_into().map(u64::from_le_bytes).map_err(|_| too_short())?;
        let length = usize::try_from(length).map_err(|_| too_short())?;
        let (header, mut rest) = rest.split_at_checked(length).ok_or_else(too_short)?;
        let header: Header = serde_json::from_slice(header).map_err(|error| bad(OP, error))?;
        if header.format != FORMAT {
            return Err(bad(OP, format!("the format is {}, not {FORMAT}", header.format)));
        }
        header.group.check(OP, group)?;
        let dtype = header.metadata.tensor_properties.dtype;
        let mut shards = Vec::with_capacity(header.shards.len().min(rest.len()));
        for metadata in header.shards {
            let n_bytes = metadata.volume().saturating_mul(dtype.size() as u128);
            let n_bytes = usize::try_from(n_bytes).map_err(|_| too_short())?;
            let (own, others) = rest.split_at_checked(n_bytes).ok_or_else(too_short)?;
            rest = others;
            let tensor = Tensor::from_bytes_with(metadata.sizes(), dtype, |into| {
                into.copy_from_slice(own);
                Ok::<_, Error>(())
            })?;
            shards.push(Arc::new(Shard::new(tensor, metadata)?));
        }
        if !rest.is_empty() {
            return Err(bad(OP, format!("{} bytes are left over", rest.len())));
        }
        let (spec, mut metadata) = settle(OP, header.metadata, Some(header.spec.into()))?;
        metadata.shards_metadata = group.placed(OP, metadata.shards_metadata)?;
        let shards = matched(OP, shards, &metadata, group.world_rank())?;
        let read = ShardedTensor::assemble(spec, Arc::new(metadata), shards, group.clone());
        match (header.init_rrefs, group.rpc()) {
            (false, _) => Ok(read),
            (true, Some(agent)) => Ok(read.with_remote(Some(Remote::wanted(agent)))),
            (true, None) => Err(Error::NoRpc { op: OP.into() }),
        }
    }
}

/// As [`to_bytes`](ShardedTensor::to_bytes).
impl Serialize for ShardedTensor {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        bytes_form::serialize(&self.to_bytes().map_err(S::Error::custom)?, to)
    }
}

/// As [`from_bytes`](ShardedTensor::from_bytes), within [`load_with_process_group`].
impl<'de> Deserialize<'de> for ShardedTensor {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ShardedTensor, D::Error> {
        ShardedTensor::from_bytes(&bytes_form::deserialize(from)?).map_err(D::Error::custom)
    }
}

const FORMAT: &str = "dtensor-sharded-1";

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    metadata: ShardedTensorMetadata,
    spec: StoredSpec,
    group: GroupState,
    /// Whether the ranks have references to each other's shards.
    #[serde(default)]
    init_rrefs: bool,
    /// Those of this rank, in the order of their bytes.
    shards: Vec<ShardMetadata>,
}

/// A spec of a user is stored as the shards that it gave.
#[derive(Serialize, Deserialize)]
enum StoredSpec {
    Chunk(ChunkShardingSpec),
    Enumerable(EnumerableShardingSpec),
}

impl StoredSpec {
    fn of(tensor: &ShardedTensor) -> StoredSpec {
        match tensor.sharding_spec().as_chunk() {
            Some(chunk) => StoredSpec::Chunk(chunk.clone()),
            None => StoredSpec::Enumerable(EnumerableShardingSpec::of_checked(
                tensor.metadata().shards_metadata.clone(),
            )),
        }
    }
}

impl From<StoredSpec> for Spec {
    fn from(stored: StoredSpec) -> Spec {
        match stored {
            StoredSpec::Chunk(spec) => spec.into(),
            StoredSpec::Enumerable(spec) => spec.into(),
        }
    }
}

/// Who stored it. -1 for a rank that is not in the group.
#[derive(Serialize, Deserialize)]
struct GroupState {
    local_rank: i64,
    global_rank: i64,
    local_world_size: i64,
    global_world_size: i64,
}

impl GroupState {
    fn of(group: &ProcessGroup) -> GroupState {
        GroupState {
            local_rank: group.rank().map_or(-1, |rank| rank as i64),
            global_rank: group.world_rank() as i64,
            local_world_size: group.size() as i64,
            global_world_size: group.world().size() as i64,
        }
    }

    fn check(&self, op: &'static str, group: &ProcessGroup) -> Result<()> {
        let now = GroupState::of(group);
        let pairs = [
            ("rank in the group", self.local_rank, now.local_rank),
            ("rank in the world", self.global_rank, now.global_rank),
            ("size of the group", self.local_world_size, now.local_world_size),
            ("size of the world", self.global_world_size, now.global_world_size),
        ];
        match pairs.into_iter().find(|(_, saved, now)| saved != now) {
            None => Ok(()),
            Some((what, saved, now)) => {
                Err(Error::LoadedElsewhere { op: op.into(), what: what.into(), saved, now })
            }
        }
    }
}

fn bad(op: &'static str, what: impl ToString) -> Error {
    Error::BadState { op: op.into(), what: what.to_string().into() }
}
