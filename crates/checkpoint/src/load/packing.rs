//! Reading what several ranks need: this rank's part into its tensors, the parts of others into what is sent to them.

use super::{
    grid::Part,
    memory::Memory,
    place::Place,
    plan::{Span, Step},
    round::starts,
    source::Source,
};
use crate::Result;

/// Pieces at least so long on average are read straight to where they go. Shorter ones cost more than the copy that is saved.
const LONG: usize = 2048;

/// What this rank sends in a round, while it is being read.
pub(super) struct Packing<'x> {
    own: usize,
    sent: &'x mut [u8],
    /// Where the next byte for each rank goes.
    at: Vec<usize>,
    /// Whether this rank's own part is packed too, and not put.
    packs_own: bool,
}

/// Consecutive elements of a block that go to a rank; positions are bytes.
struct Piece {
    from: usize,
    length: usize,
    rank: usize,
    /// In what that rank holds.
    to: usize,
}

impl<'x> Packing<'x> {
    pub(super) fn new(own: usize, sent: &'x mut [u8], counts: &[usize], packs_own: bool) -> Self {
        Packing { own, sent, at: starts(counts).collect(), packs_own }
    }

    /// Reads a span, and brings its parts on their way.
    pub(super) fn read(
        &mut self,
        source: &mut Source<'_, '_>,
        memory: &mut Memory<'_, '_>,
        span: &Span,
    ) -> Result<()> {
        if let [step] = span.steps[..] {
            let (item, target) = source.item(step);
            if let Some(start) = item.straight(target, step).filter(|_| !self.packs_own) {
                return memory.fill(target, start, span.bytes as usize, |into| {
                    source.read_into(step, into)?;
                    self.pack(source, step, into);
                    Ok(())
                });
            }
            if let Some(pieces) = self.pieces(source, step) {
                return self.read_pieces(source, memory, step, &pieces);
            }
        }
        source.read(span)?;
        for step in &span.steps {
            source.prepare(span, *step)?;
            let (item, target) = source.item(*step);
            if !self.packs_own {
                memory.put_block(item, target, *step, source.block())?;
            }
            self.pack(source, *step, source.block());
        }
        Ok(())
    }

    /// Packs the parts of others of a step, which `block` holds.
    fn pack(&mut self, source: &Source<'_, '_>, step: Step, block: &[u8]) {
        for part in source.parts(step.item) {
            for &to in part.ranks.iter().filter(|to| **to != self.own || self.packs_own) {
                let packed = &mut self.sent[self.at[to]..];
                self.at[to] += source.pack(step, block, &part.overlaps, packed);
            }
        }
    }

    /// The pieces of a step in order, if they can be read straight to where they go: bytes as they are stored, each for one
    /// rank, and long enough.
    fn pieces(&self, source: &Source<'_, '_>, step: Step) -> Option<Vec<Piece>> {
        let (item, target) = source.item(step);
        if target.converts() || !item.has_blocks_alone() {
            return None;
        }
        let (elements, size) = (item.blocks.elements(step.block), target.dtype.size());
        let mut pieces = Vec::new();
        for Part { ranks, overlaps } in source.parts(step.item) {
            for overlap in overlaps {
                let within = overlap.within(&elements);
                let [rank] = ranks[..] else { return None };
                overlap.for_runs(within, |from, to, length| {
                    let (from, to) = ((from - elements.start) * size, to * size);
                    pieces.push(Piece { from, length: length * size, rank, to });
                });
            }
        }
        if pieces.len() * LONG > elements.len() * size {
            return None;
        }
        pieces.sort_unstable_by_key(|piece| piece.from);
        Some(pieces)
    }

    fn read_pieces(
        &mut self,
        source: &Source<'_, '_>,
        memory: &mut Memory<'_, '_>,
        step: Step,
        pieces: &[Piece],
    ) -> Result<()> {
        let (_, target) = source.item(step);
        let (own, packs_own) = (self.own, self.packs_own);
        let mut put = 0;
        memory.place(target, |place| {
            // What of this rank's memory, and of what is sent to each rank, has not been given to a piece.
            let Place::Bytes(mut held) = place else { return Ok(()) };
            let mut held_from = 0;
            let mut rests = self.rests();
            let mut slices: Vec<&mut [u8]> = Vec::with_capacity(pieces.len());
            for piece in pieces {
                let slice = match piece.rank == own && !packs_own {
                    true => {
                        let _between = held.split_off_mut(..piece.to - held_from);
                        held_from = piece.to + piece.length;
                        put += piece.length;
                        held.split_off_mut(..piece.length)
                    }
                    false => rests[piece.rank].split_off_mut(..piece.length),
                };
                slices.extend(slice);
            }
            source.read_pieces(step, &mut slices)
        })?;
        for piece in pieces.iter().filter(|piece| piece.rank != own || packs_own) {
            self.at[piece.rank] += piece.length;
        }
        memory.tell(put);
        Ok(())
    }

    /// What is still free of the memory for each rank, and beyond it up to where the next rank's begins.
    fn rests(&mut self) -> Vec<&mut [u8]> {
        let mut rest = &mut *self.sent;
        let mut before = 0;
        let mut rests: Vec<&mut [u8]> = Vec::with_capacity(self.at.len());
        for (rank, &at) in self.at.iter().enumerate() {
            let _packed = rest.split_off_mut(..at - before);
            let end = self.at.get(rank + 1).copied();
            let length = end.map_or(rest.len(), |end| end - at);
            before = at + length;
            rests.extend(rest.split_off_mut(..length));
        }
        rests
    }
}
