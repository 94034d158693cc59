//! One round: ranks read, and pass on what others need.

use dtensor_comm::Group;

use super::{
    buffer::Buffer, landing::Landing, memory::Memory, packing::Packing, plan::Round, source::Source,
};
use crate::Result;

/// The rounds, one after the other, with their buffers.
pub(super) struct Exchange {
    group: Group,
    /// What goes to each rank, one after the other.
    sent: Buffer,
    sent_counts: Vec<usize>,
    /// What comes from each, where it cannot come straight into a tensor.
    received: Buffer,
    received_counts: Vec<usize>,
    /// What goes to all ranks, and what comes from all of them.
    to_all: Vec<u8>,
    from_all: Buffer,
}

impl Exchange {
    pub(super) fn new(group: &Group) -> Exchange {
        let (sent, received, from_all) = (Buffer::default(), Buffer::default(), Buffer::default());
        let to_all = Vec::new();
        let (sent_counts, received_counts) = (Vec::new(), Vec::new());
        let group = group.tag("load");
        Exchange { group, sent, sent_counts, received, received_counts, to_all, from_all }
    }

    /// Takes part in a round, and gives back whether all ranks are well. If one is not, nothing is passed on.
    pub(super) fn run(
        &mut self,
        source: &mut Source<'_, '_>,
        memory: &mut Memory<'_, '_>,
        round: &Round,
        outcome: &mut Result<()>,
    ) -> Result<bool> {
        let landing = Landing::find(source, round, self.group.rank());
        if outcome.is_ok() {
            source.find_parts(round);
            *outcome = self.count(source, round, &landing);
        }
        if outcome.is_ok() {
            *outcome = self.read(source, memory, round, &landing);
        }
        if !self.all_well(outcome.is_ok())? {
            return Ok(false);
        }
        if round.passes {
            *outcome = self.pass_on(source, memory, round, &landing)?;
        }
        if !round.to_all.is_empty() {
            let put = self.pass_to_all(source, memory, round)?;
            *outcome = std::mem::replace(outcome, Ok(())).and(put);
        }
        Ok(true)
    }

    fn all_well(&self, is_well: bool) -> Result<bool> {
        let mut all = vec![false; self.group.size()];
        self.group.all_gather(&[is_well], &mut all)?;
        Ok(all.into_iter().all(|is_well| is_well))
    }

    /// How many bytes go to whom, and come from whom.
    fn count(&mut self, source: &Source<'_, '_>, round: &Round, landing: &Landing) -> Result<()> {
        let (rank, size) = (self.group.rank(), self.group.size());
        for counts in [&mut self.sent_counts, &mut self.received_counts] {
            counts.clear();
            counts.resize(size, 0);
        }
        for step in round.reads.iter().flat_map(|span| &span.steps) {
            for part in source.parts(step.item) {
                let bytes = source.bytes_of(*step, &part.overlaps);
                for to in part.ranks.iter().filter(|to| **to != rank) {
                    self.sent_counts[*to] += bytes;
                }
            }
            if landing.takes_own() {
                let bytes = source.bytes_of(*step, &source.item(*step).0.mine);
                self.sent_counts[rank] += bytes;
                self.received_counts[rank] += bytes;
            }
        }
        for (reader, step) in &round.gets {
            self.received_counts[*reader] += source.bytes_of(*step, &source.item(*step).0.mine);
        }
        self.sent.resize(self.sent_counts.iter().sum())
    }

    /// Reads the spans of this rank. What it needs itself goes into its tensors; what others need is packed for them.
    fn read(
        &mut self,
        source: &mut Source<'_, '_>,
        memory: &mut Memory<'_, '_>,
        round: &Round,
        landing: &Landing,
    ) -> Result<()> {
        let own = self.group.rank();
        let mut packing = Packing::new(own, &mut self.sent, &self.sent_counts, landing.takes_own());
        for span in &round.reads {
            packing.read(source, memory, span)?;
        }
        self.to_all.clear();
        for (_, span) in round.to_all.iter().filter(|(reader, _)| *reader == own) {
            source.read(span)?;
            for step in &span.steps {
                source.prepare(span, *step)?;
                self.to_all.extend_from_slice(source.block());
            }
        }
        Ok(())
    }

    /// Sends what others need, and puts what comes from them. The outer error is that of the call.
    fn pass_on(
        &mut self,
        source: &Source<'_, '_>,
        memory: &mut Memory<'_, '_>,
        round: &Round,
        landing: &Landing,
    ) -> Result<Result<()>> {
        let bytes = self.received_counts.iter().sum();
        let (sent, sent_counts) = (&self.sent, &self.sent_counts);
        let (group, counts) = (&self.group, &self.received_counts);
        if let Landing::At { target, start, .. } = *landing {
            memory.fill(&source.targets[target], start, bytes, |into| {
                Ok(group.all_to_all_v(sent, sent_counts, into, counts)?)
            })?;
            return Ok(Ok(()));
        }
        self.received.resize(bytes)?;
        group.all_to_all_v(sent, sent_counts, &mut self.received, counts)?;
        let mut at: Vec<usize> = starts(counts).collect();
        for (reader, step) in &round.gets {
            let (item, target) = source.item(*step);
            match memory.put_packed(item, target, *step, &self.received[at[*reader]..]) {
                Ok(bytes) => at[*reader] += bytes,
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(()))
    }

    /// Sends to all ranks what goes to all. The outer error is that of the call.
    fn pass_to_all(
        &mut self,
        source: &Source<'_, '_>,
        memory: &mut Memory<'_, '_>,
        round: &Round,
    ) -> Result<Result<()>> {
        let mut counts = vec![0; self.group.size()];
        for (reader, span) in &round.to_all {
            counts[*reader] += span.passed as usize;
        }
        self.from_all.resize(counts.iter().sum())?;
        self.group.all_gather_v(&self.to_all, &mut self.from_all, &counts)?;
        let mut at: Vec<usize> = starts(&counts).collect();
        for (reader, span) in &round.to_all {
            for step in &span.steps {
                let (item, target) = source.item(*step);
                let bytes = item.blocks.elements(step.block).len() * target.dtype.size();
                let block = &self.from_all[at[*reader]..][..bytes];
                if let Err(error) = memory.put_block(item, target, *step, block) {
                    return Ok(Err(error));
                }
                at[*reader] += bytes;
            }
        }
        Ok(Ok(()))
    }
}

/// Where parts of these lengths begin that lie one after the other.
pub(super) fn starts(counts: &[usize]) -> impl Iterator<Item = usize> {
    counts.iter().scan(0, |next, count| {
        let start = *next;
        *next += count;
        Some(start)
    })
}
