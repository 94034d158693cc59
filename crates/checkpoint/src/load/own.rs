//! What a rank reads for itself alone, between the rounds.

use super::{memory::Memory, plan::Span, source::Source};
use crate::Result;

/// The spans that are left, shared out over the rounds: ranks that read much for themselves do it while others do, too.
pub(super) struct Own<'p> {
    spans: std::slice::Iter<'p, Span>,
    total: u64,
    done: u64,
    /// Rounds so far, and of how many.
    round: u64,
    rounds: u64,
}

impl<'p> Own<'p> {
    pub(super) fn new(spans: &'p [Span], rounds: usize) -> Own<'p> {
        let total = spans.iter().map(|span| span.bytes).sum();
        Own { spans: spans.iter(), total, done: 0, round: 0, rounds: rounds as u64 }
    }

    /// Reads what belongs before the next round.
    pub(super) fn go_on(
        &mut self,
        source: &mut Source<'_, '_>,
        memory: &mut Memory<'_, '_>,
    ) -> Result<()> {
        self.round += 1;
        let until = self.total / self.rounds.max(1) * self.round;
        while self.done < until && self.next(source, memory)? {}
        Ok(())
    }

    /// Reads the rest.
    pub(super) fn finish(
        &mut self,
        source: &mut Source<'_, '_>,
        memory: &mut Memory<'_, '_>,
    ) -> Result<()> {
        while self.next(source, memory)? {}
        Ok(())
    }

    /// Reads a span, if there is one.
    fn next(&mut self, source: &mut Source<'_, '_>, memory: &mut Memory<'_, '_>) -> Result<bool> {
        let Some(span) = self.spans.next() else { return Ok(false) };
        self.done += span.bytes;
        if let [step] = span.steps[..] {
            let (item, target) = source.item(step);
            if let Some(start) = item.straight(target, step) {
                let read = |into: &mut [u8]| source.read_into(step, into);
                return memory.fill(target, start, span.bytes as usize, read).map(|()| true);
            }
        }
        source.read(span)?;
        for step in &span.steps {
            source.prepare(span, *step)?;
            let (item, target) = source.item(*step);
            memory.put_block(item, target, *step, source.block())?;
        }
        Ok(true)
    }
}
