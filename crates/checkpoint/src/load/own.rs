//! What a rank reads for itself alone, between the rounds.

use std::ops::Range;

use super::{
    memory::Memory,
    plan::{Span, Step},
    source::Source,
};
use crate::Result;

/// Bytes that several threads read before progress is told.
const TOGETHER: u64 = 64 << 20;

/// The spans that are left, shared out over the rounds: ranks that read much for themselves do it while others do, too.
pub(super) struct Own<'p> {
    spans: &'p [Span],
    /// Threads that read them.
    threads: usize,
    total: u64,
    done: u64,
    /// Rounds so far, and of how many.
    round: u64,
    rounds: u64,
}

impl<'p> Own<'p> {
    pub(super) fn new(spans: &'p [Span], rounds: usize, threads: usize) -> Own<'p> {
        let total = spans.iter().map(|span| span.bytes).sum();
        Own { spans, threads, total, done: 0, round: 0, rounds: rounds as u64 }
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

    /// Reads a span, if there is one, or several by several threads.
    fn next(&mut self, source: &mut Source<'_, '_>, memory: &mut Memory<'_, '_>) -> Result<bool> {
        let together = if self.threads > 1 { self.together(source) } else { Vec::new() };
        if let [(first, _), _, ..] = together[..] {
            self.spans = &self.spans[together.len()..];
            let (_, target) = source.item(first);
            let places: Vec<Range<usize>> = together.iter().map(|(_, at)| at.clone()).collect();
            self.done += places.iter().map(|place| place.len() as u64).sum::<u64>();
            let read = |number: usize, into: &mut [u8]| source.read_block(together[number].0, into);
            return memory.fill_all(target, &places, self.threads, read).map(|()| true);
        }
        let Some((span, rest)) = self.spans.split_first() else { return Ok(false) };
        (self.spans, self.done) = (rest, self.done + span.bytes);
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

    /// The next spans that can be read at the same time: each straight to its place in the same tensor, one place after the
    /// other.
    fn together(&self, source: &Source<'_, '_>) -> Vec<(Step, Range<usize>)> {
        let mut found: Vec<(Step, Range<usize>)> = Vec::new();
        let mut bytes = 0;
        for span in self.spans {
            let [step] = span.steps[..] else { break };
            let (item, target) = source.item(step);
            let Some(start) = item.straight(target, step) else { break };
            let goes_on = found.last().is_none_or(|(last, place)| {
                source.item(*last).0.target == item.target && place.end <= start
            });
            bytes += span.bytes;
            if !goes_on || !item.has_blocks_alone() || bytes > TOGETHER {
                break;
            }
            found.push((step, start..start + span.bytes as usize));
        }
        found
    }
}
