//! What moves when a tensor is cut in another way.
//!
//! Every rank knows all boxes, old and new. It sends to each other rank what its old boxes have in common with
//! the new boxes of that rank, and so every element that moves is sent once, in one call. What stays on a rank
//! is copied there, and a box that stays as it is not even that.
//!
//! Elements come without a word on where they belong: that follows from the boxes. Ranks that have others in
//! mind may well send what is expected in number, so the call is [about](Group::about) the boxes: it is an
//! error on every rank then, before anything is sent.

use std::{ops::Range, sync::Arc};

use dtensor_comm::{Group, Values};
use dtensor_local::Tensor;

use super::ShardedTensor;
use crate::{
    Error, Result, Shard, ShardMetadata, ShardedTensorMetadata,
    exchange::{BoxIndex, received, view},
};

/// A tensor, and the boxes that it is to have.
pub(super) struct Moves<'a> {
    from: &'a ShardedTensor,
    to: &'a ShardedTensorMetadata,
}

/// What leaves the old boxes of this rank.
struct Outgoing {
    /// For every member what it gets, by the numbers of the old box and of the new.
    by_member: Vec<Vec<Tensor>>,
    /// What stays here, in the same order, each with the number of elements of the box that it is taken from.
    stays: Vec<(Tensor, usize)>,
}

/// What comes into a new box of this rank.
struct Incoming {
    /// The member that it comes from, the number of its old box and that of the new one among those here: in
    /// this order it is sent.
    key: (usize, usize, usize),
    /// Where in the new box it goes.
    ranges: Vec<Range<usize>>,
}

impl<'a> Moves<'a> {
    pub(super) fn new(from: &'a ShardedTensor, to: &'a ShardedTensorMetadata) -> Moves<'a> {
        Moves { from, to }
    }

    /// Moves: the new shards of this rank, which is a member.
    pub(super) fn run(&self, op: &'static str) -> Result<Vec<Arc<Shard>>> {
        let members = self.from.process_group().group(op)?.about(self.digest());
        let new: Vec<&ShardMetadata> =
            self.to.shards_of(self.from.process_group().world_rank()).collect();
        let (outgoing, incoming) = (self.outgoing(members.rank())?, self.incoming(&new));
        let arrived = self.exchanged(op, &members, &outgoing, &incoming)?;
        let mut parts = vec![None; new.len()];
        let (mut at, mut stays) = (0, outgoing.stays.into_iter());
        for Incoming { key: (member, _, number), ranges } in &incoming {
            let (values, n_source) = if *member == members.rank() {
                stays.next().ok_or_else(|| lost(op))?
            } else {
                let shape: Vec<usize> = ranges.iter().map(Range::len).collect();
                let n = shape.iter().product();
                at += n;
                (arrived.narrow(0, at - n, n)?.reshape(&shape)?, arrived.numel())
            };
            // A part of something larger would keep all of it in memory.
            let is_all = values.numel() == n_source;
            put(&mut parts[*number], values, is_all, ranges, new[*number])?;
        }
        let made = |(part, shard): (Option<Tensor>, &ShardMetadata)| -> Result<Arc<Shard>> {
            let tensor = match part {
                Some(part) => part,
                None => Tensor::empty(shard.sizes(), self.from.dtype())?,
            };
            Ok(Arc::new(Shard::new(tensor, shard.clone())?))
        };
        parts.into_iter().zip(new).map(made).collect()
    }

    /// The old boxes and the new in short.
    pub(super) fn digest(&self) -> u64 {
        // Different factors, so that the way back is another.
        let (from, to) = (self.from.metadata().digest(), self.to.digest());
        from.wrapping_mul(3) ^ to.rotate_left(32)
    }

    /// What the old boxes of this rank have in common with all new ones.
    fn outgoing(&self, own: usize) -> Result<Outgoing> {
        let (mut by_member, mut stays) =
            (vec![Vec::new(); self.from.process_group().size()], Vec::new());
        let targets = BoxIndex::new(self.to.shards_metadata.iter().collect());
        for shard in self.from.local_shards() {
            for (target, ranges) in targets.meeting(shard.metadata()) {
                let part = view(shard.tensor(), &within(&ranges, shard.metadata()))?;
                match self.member_of(&self.to.shards_metadata[target]) {
                    Some(member) if member == own => stays.push((part, shard.tensor().numel())),
                    Some(member) => by_member[member].push(part),
                    None => {}
                }
            }
        }
        Ok(Outgoing { by_member, stays })
    }

    /// What the new boxes of this rank have in common with all old ones.
    fn incoming(&self, new: &[&ShardMetadata]) -> Vec<Incoming> {
        let old = &self.from.metadata().shards_metadata;
        let sources = BoxIndex::new(old.iter().collect());
        let mut incoming = Vec::new();
        for (number, shard) in new.iter().enumerate() {
            for (source, ranges) in sources.meeting(shard) {
                if let Some(member) = self.member_of(&old[source]) {
                    let key = (member, source, number);
                    incoming.push(Incoming { key, ranges: within(&ranges, shard) });
                }
            }
        }
        incoming.sort_by_key(|piece| piece.key);
        incoming
    }

    /// The elements that come from the other members, one piece after the other.
    fn exchanged(
        &self,
        op: &'static str,
        members: &Group,
        outgoing: &Outgoing,
        incoming: &[Incoming],
    ) -> Result<Tensor> {
        let dtype = self.from.dtype();
        let numel = |views: &Vec<Tensor>| views.iter().map(Tensor::numel).sum();
        let send_counts: Vec<usize> = outgoing.by_member.iter().map(numel).collect();
        let mut recv_counts = vec![0; members.size()];
        for Incoming { key: (member, ..), ranges } in incoming {
            if *member != members.rank() {
                recv_counts[*member] += ranges.iter().map(Range::len).product::<usize>();
            }
        }
        let views: Vec<Tensor> = outgoing.by_member.iter().flatten().cloned().collect();
        let packed = match &*views {
            // In order already: it is sent from where it is.
            [only] if only.is_contiguous() => only.reshape(&[only.numel()])?,
            views => Tensor::pack(dtype, views)?,
        };
        let values = Values::from_bytes(dtype, packed.as_bytes()?).map_err(Error::comm(op))?;
        received(op, recv_counts.iter().sum(), dtype, |into| {
            members.erased().all_to_all_v(values, &send_counts, into, &recv_counts)
        })
    }

    fn member_of(&self, shard: &ShardMetadata) -> Option<usize> {
        self.from.process_group().group_rank_of(shard.rank()?)
    }
}

/// Writes values into a box of a part, which is made first. Values that are all of the part and of what they
/// come from are the part, without a copy.
fn put(
    part: &mut Option<Tensor>,
    values: Tensor,
    is_all: bool,
    ranges: &[Range<usize>],
    shard: &ShardMetadata,
) -> Result<()> {
    if part.is_none() && values.shape() == shard.sizes() {
        *part = Some(if is_all { values.contiguous() } else { values.copied() });
        return Ok(());
    }
    let whole = match part {
        Some(whole) => whole,
        None => part.insert(Tensor::empty(shard.sizes(), values.dtype())?),
    };
    Ok(whole.slice_assign_in_place(ranges, &values)?)
}

/// Global indices as indices of a shard.
fn within(ranges: &[Range<usize>], shard: &ShardMetadata) -> Vec<Range<usize>> {
    let local = |(range, offset): (&Range<usize>, &usize)| range.start - offset..range.end - offset;
    ranges.iter().zip(shard.offsets()).map(local).collect()
}

fn lost(op: &'static str) -> Error {
    Error::BadState { op: op.into(), what: "a box that stays was not found".into() }
}
