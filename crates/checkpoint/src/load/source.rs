//! What this rank reads, verified and in the type of the tensor that it goes to.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use super::{
    buffer::Buffer,
    grid::Part,
    plan::{Item, Plan, Round, Span, Step},
    target::Target,
};
use crate::{
    Reader, Result, convert_type,
    read::runs::{Overlap, copy_bytes},
};

/// Spans, one after the other.
pub(super) struct Source<'r, 'c> {
    reader: &'r Reader,
    pub targets: &'r [Target<'c>],
    pub plan: &'r Plan<'c>,
    /// The span that was read last.
    scratch: Buffer,
    /// Where the step that was prepared last lies: here, or in `converted`.
    prepared: Range<usize>,
    is_converted: bool,
    converted: Buffer,
    /// Checksums of chunks that have been read in part.
    begun: HashMap<usize, crc32fast::Hasher>,
    /// The parts of the items that are being read.
    parts: BTreeMap<usize, Vec<Part>>,
}

impl<'r, 'c> Source<'r, 'c> {
    pub(super) fn new(reader: &'r Reader, targets: &'r [Target<'c>], plan: &'r Plan<'c>) -> Self {
        Source {
            reader,
            targets,
            plan,
            scratch: Buffer::default(),
            prepared: 0..0,
            is_converted: false,
            converted: Buffer::default(),
            begun: HashMap::new(),
            parts: BTreeMap::new(),
        }
    }

    /// The chunk of a step, and the tensor that it is of.
    pub(super) fn item(&self, step: Step) -> (&'r Item<'c>, &'r Target<'c>) {
        let item = &self.plan.items[step.item];
        (item, &self.targets[item.target])
    }

    /// Reads a span. Its steps are prepared afterwards, in order.
    pub(super) fn read(&mut self, span: &Span) -> Result<()> {
        self.scratch.resize(span.bytes as usize)?;
        self.reader.file(span.file)?.read_at(span.offset, &mut self.scratch)
    }

    /// Verifies and converts a step of the span that was read: [`block`](Source::block) has it then.
    pub(super) fn prepare(&mut self, span: &Span, step: Step) -> Result<()> {
        let (item, target) = self.item(step);
        let elements = item.blocks.elements(step.block);
        let start = (item.blocks.offset(elements.start) - span.offset) as usize;
        let range = start..start + elements.len() * target.entry.stored.size();
        let read = &self.scratch[range.clone()];
        verify(self.reader, &mut self.begun, item, target, step, read)?;
        self.is_converted = target.converts();
        if !self.is_converted {
            self.prepared = range;
            return Ok(());
        }
        self.prepared = 0..elements.len() * target.dtype.size();
        self.converted.resize(self.prepared.end)?;
        convert_type::convert(target.entry.stored, read, target.dtype, &mut self.converted)
    }

    /// The bytes of the step that was prepared, as they go into the tensor.
    pub(super) fn block(&self) -> &[u8] {
        let bytes = if self.is_converted { &self.converted } else { &self.scratch };
        &bytes[self.prepared.clone()]
    }

    /// Bytes of what overlaps have of a step.
    pub(super) fn bytes_of(&self, step: Step, overlaps: &[Overlap]) -> usize {
        let (item, target) = self.item(step);
        let elements = item.blocks.elements(step.block);
        let n_elements = overlaps.iter().map(|overlap| overlap.within(&elements).len());
        n_elements.sum::<usize>() * target.dtype.size()
    }

    /// Puts what overlaps have of a step, which `block` holds, into `packed`, one after the other, and gives back how many bytes
    /// that was.
    pub(super) fn pack(
        &self,
        step: Step,
        block: &[u8],
        overlaps: &[Overlap],
        packed: &mut [u8],
    ) -> usize {
        let (item, target) = self.item(step);
        let (elements, size) = (item.blocks.elements(step.block), target.dtype.size());
        let mut at = 0;
        for overlap in overlaps {
            overlap.for_runs(overlap.within(&elements), |from, _, length| {
                let from = &block[(from - elements.start) * size..][..length * size];
                copy_bytes(from, &mut packed[at..][..from.len()]);
                at += from.len();
            });
        }
        at
    }

    /// Reads a step, which needs no conversion and has a checksum of its own or none, straight to where it belongs.
    pub(super) fn read_block(&self, step: Step, into: &mut [u8]) -> Result<()> {
        let (item, target) = self.item(step);
        let file = self.reader.file(item.chunk.file)?;
        self.reader.read_block(target.name, &*file, &item.blocks, step.block, into)
    }

    /// Reads a step, which needs no conversion, straight to where it belongs.
    pub(super) fn read_into(&mut self, step: Step, into: &mut [u8]) -> Result<()> {
        let (item, target) = self.item(step);
        let offset = item.blocks.offset(item.blocks.elements(step.block).start);
        self.reader.file(item.chunk.file)?.read_at(offset, into)?;
        verify(self.reader, &mut self.begun, item, target, step, into)
    }

    /// Reads a step, which needs no conversion and has a checksum of its own or none, into pieces one after the other.
    pub(super) fn read_pieces(&self, step: Step, pieces: &mut [&mut [u8]]) -> Result<()> {
        let (item, target) = self.item(step);
        let offset = item.blocks.offset(item.blocks.elements(step.block).start);
        self.reader.file(item.chunk.file)?.read_pieces_at(offset, pieces)?;
        self.reader.check_pieces(target.name, &item.blocks, step.block, pieces)
    }

    /// Finds the parts of the items of a round that this rank reads, and forgets those of the rounds before.
    pub(super) fn find_parts(&mut self, round: &Round) {
        let items = round.reads.iter().flat_map(|span| &span.steps).map(|step| step.item);
        if let Some(first) = items.clone().next() {
            self.parts = self.parts.split_off(&first);
        }
        for item in items {
            let find = || {
                let item = &self.plan.items[item];
                self.targets[item.target].grid.parts(&item.chunk.index)
            };
            self.parts.entry(item).or_insert_with(find);
        }
    }

    /// The parts of an item that ranks need, after they were found.
    pub(super) fn parts(&self, item: usize) -> &[Part] {
        self.parts.get(&item).map_or(&[], Vec::as_slice)
    }
}

fn verify(
    reader: &Reader,
    begun: &mut HashMap<usize, crc32fast::Hasher>,
    item: &Item<'_>,
    target: &Target<'_>,
    step: Step,
    bytes: &[u8],
) -> Result<()> {
    if item.has_blocks_alone() {
        return reader.check_block(target.name, &item.blocks, step.block, bytes);
    }
    // All blocks of the chunk come here, one after the other.
    let hasher = begun.entry(step.item).or_default();
    hasher.update(bytes);
    if step.block + 1 < item.blocks.len() {
        return Ok(());
    }
    let computed = begun.remove(&step.item).unwrap_or_default().finalize();
    reader.check_crc(target.name, item.chunk, computed)
}
