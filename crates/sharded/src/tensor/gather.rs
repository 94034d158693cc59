//! The whole tensor, on one rank or on all.

use dtensor_comm::Values;
use dtensor_dtype::DType;
use dtensor_local::Tensor;

use super::ShardedTensor;
use crate::{
    Error, Result, ShardMetadata,
    construct::by_member,
    exchange::{agree, pack_shards, received, unpack_shards},
};

impl ShardedTensor {
    /// The whole tensor, on rank `dst` *of the group*; nothing on the others. All ranks of the group call it.
    ///
    /// ```
    /// use dtensor_sharded::{ChunkShardingSpec, DType, Runner, ones};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let x = ones(ChunkShardingSpec::over_ranks(0, 0..2)?, &[3, 2], DType::I64, world)?;
    ///     match x.gather(1)? {
    ///         Some(whole) => assert_eq!((world.rank(), whole.to_vec::<i64>()?), (1, vec![1; 6])),
    ///         None => assert_eq!(world.rank(), 0),
    ///     }
    ///     Ok::<_, dtensor_sharded::Error>(())
    /// })?;
    /// # Ok::<(), dtensor_sharded::RunError>(())
    /// ```
    pub fn gather(&self, dst: usize) -> Result<Option<Tensor>> {
        self.gather_as(dst, self.dtype())
    }

    /// As [`gather`](ShardedTensor::gather), sent and given in another dtype.
    pub fn gather_as(&self, dst: usize, dtype: DType) -> Result<Option<Tensor>> {
        const OP: &str = "gather";
        let group = self.process_group();
        group.check_group_rank(OP, dst)?;
        if group.rank().is_none() {
            return Ok(None);
        }
        let members = group.group(OP)?;
        self.check_values(OP)?;
        let (parts, counts) = self.parts();
        let own = self.packed(dtype)?;
        let send = Values::from_bytes(dtype, own.as_bytes()?).map_err(Error::comm(OP))?;
        if members.rank() != dst {
            members.erased().gather_v(send, None, &counts, dst).map_err(Error::comm(OP))?;
            return Ok(None);
        }
        let packed = received(OP, counts.iter().sum(), dtype, |into| {
            members.erased().gather_v(send, Some(into), &counts, dst)
        })?;
        Ok(Some(unpack_shards(&packed, &parts, self.size())?))
    }

    /// As [`gather_as`](ShardedTensor::gather_as), into a tensor that the destination, and nobody else, gives.
    /// It has the size of this one and any dtype; without a `dtype` the elements are sent as they are, and cast
    /// there. What is wrong on any rank is the same error on all.
    pub fn gather_into(
        &self,
        dst: usize,
        out: Option<&mut Tensor>,
        dtype: Option<DType>,
    ) -> Result<()> {
        const OP: &str = "gather";
        let group = self.process_group();
        group.check_group_rank(OP, dst)?;
        let Some(rank) = group.rank() else { return Ok(()) };
        let fits = match &out {
            None if rank == dst => Err(Error::OutMissing { dst }),
            Some(_) if rank != dst => Err(Error::OutUnexpected { rank, dst }),
            Some(out) if out.shape() != self.size() => {
                Err(Error::OutShape { got: out.shape().into(), want: self.size().into() })
            }
            // What is written to it would be lost.
            Some(out) if out.is_meta() => {
                let what = "a tensor to gather into that has no values";
                Err(Error::refused(OP, what, "make it on cpu, or call `gather`, which makes one"))
            }
            _ => Ok(()),
        };
        agree(OP, group, fits)?;
        let gathered = self.gather_as(dst, dtype.unwrap_or(self.dtype()))?;
        match (gathered, out) {
            (Some(whole), Some(out)) => Ok(out.copy_from(&whole)?),
            _ => Ok(()),
        }
    }

    /// The whole tensor, on every rank of the group.
    pub fn full_tensor(&self) -> Result<Tensor> {
        const OP: &str = "full_tensor";
        let members = self.process_group().group(OP)?;
        self.check_values(OP)?;
        let dtype = self.dtype();
        let (parts, counts) = self.parts();
        let own = self.packed(dtype)?;
        let send = Values::from_bytes(dtype, own.as_bytes()?).map_err(Error::comm(OP))?;
        let packed = received(OP, counts.iter().sum(), dtype, |into| {
            members.erased().all_gather_v(send, into, &counts)
        })?;
        unpack_shards(&packed, &parts, self.size())
    }

    /// All shards in the order in which they are sent, and the elements of every member.
    fn parts(&self) -> (Vec<&ShardMetadata>, Vec<usize>) {
        let by_rank = by_member(self.metadata(), self.process_group());
        let count = |shards: &Vec<&ShardMetadata>| shards.iter().map(|shard| shard.numel()).sum();
        let counts = by_rank.iter().map(count).collect();
        (by_rank.into_iter().flatten().collect(), counts)
    }

    /// The elements of this rank, one shard after the other.
    fn packed(&self, dtype: DType) -> Result<Tensor> {
        Ok(pack_shards(self.dtype(), self.base().shared_shards())?.to_dtype(dtype)?)
    }
}
