//! Who reads what, and when it is passed on.
//!
//! Every rank goes through all blocks of all tensors, in the order of the files, and comes to the same decisions; it keeps
//! those in which it takes part. Ranks that need a block are counted, not listed, so that the cost is that of the blocks.
//!
//! * Neighbouring blocks that the same ranks need are a *span*: what is read in one call. Blocks of large tensors are spans
//!   of their own; many small tensors together are one.
//! * A span that one rank needs is read by that rank.
//! * A span that several ranks need is read by one of them, in one of the *rounds* in which ranks pass on what they have
//!   read. A round is as large as buffers should be.

use std::ops::Range;

use dtensor_layout::IndexBox;

use super::{
    grid::Needers,
    schedule::{Schedule, Turn},
    target::Target,
};
use crate::{
    Catalog, Checksum, Chunk, Result,
    read::{
        blocks::{Blocks, READ},
        runs::Overlap,
    },
};

/// What this rank does.
#[derive(Default)]
pub(super) struct Plan<'c> {
    /// The chunks, in the order of the files.
    pub items: Vec<Item<'c>>,
    /// What this rank reads for itself alone.
    pub own: Vec<Span>,
    /// The same number on every rank.
    pub rounds: Vec<Round>,
    /// Chunks that cannot be read in blocks, with their targets: every rank reads what it needs of them.
    pub disordered: Vec<(usize, &'c Chunk)>,
}

/// A chunk that is read block after block.
pub(super) struct Item<'c> {
    /// In the list of targets.
    pub target: usize,
    pub chunk: &'c Chunk,
    pub blocks: Blocks<'c>,
    /// What this rank needs of it.
    pub mine: Vec<Overlap>,
}

/// A block of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub item: usize,
    pub block: usize,
}

/// Blocks that lie next to each other in a file.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub file: usize,
    pub offset: u64,
    /// In the file, and in the types of the tensors that are loaded.
    pub bytes: u64,
    pub passed: u64,
    pub steps: Vec<Step>,
}

/// What this rank does in a round.
#[derive(Default)]
pub(super) struct Round {
    /// Whether somebody passes on something to those who need it.
    pub passes: bool,
    /// What this rank reads and passes on to those who need it.
    pub reads: Vec<Span>,
    /// The readers from which it gets something, and what, in the order in which that is sent.
    pub gets: Vec<(usize, Step)>,
    /// The readers that send something to all, and what: the same on every rank.
    pub to_all: Vec<(usize, Span)>,
}

impl Item<'_> {
    /// The byte in what this rank holds at which a block can be read straight into the tensor: if the rank needs all of it, as it
    /// is stored, and has it in one piece.
    pub(super) fn straight(&self, target: &Target<'_>, step: Step) -> Option<usize> {
        let [overlap] = self.mine.as_slice() else { return None };
        let range = self.blocks.elements(step.block);
        let elements = overlap.within(&range);
        let fits = elements.len() == range.len() && overlap.is_one_run(&elements);
        let start = || overlap.position(elements.start).1 * target.dtype.size();
        (fits && !target.converts()).then(start)
    }

    /// Whether its blocks can be verified each for itself, or not at all. Else there is a checksum of the whole chunk.
    pub(super) fn has_blocks_alone(&self) -> bool {
        !matches!(self.chunk.checksum, Checksum::Crc32 { .. })
    }
}

impl<'c> Plan<'c> {
    /// The plan of `rank` among `size` ranks.
    pub(super) fn new(
        catalog: &'c Catalog,
        targets: &[Target<'c>],
        rank: usize,
        size: usize,
    ) -> Result<Plan<'c>> {
        let mut plan = Plan::default();
        for (number, target) in targets.iter().enumerate() {
            for chunk in target.entry.chunks.iter().filter(|chunk| !chunk.index.is_empty()) {
                if is_disordered(target, chunk) {
                    plan.disordered.push((number, chunk));
                    continue;
                }
                let blocks = Blocks::of(catalog, target.name, target.entry.stored, chunk)?;
                let mine = target.grid.mine(&chunk.index);
                plan.items.push(Item { target: number, chunk, blocks, mine });
            }
        }
        plan.items.sort_by_key(|item| (item.chunk.file, item.chunk.offset));
        plan.assign(targets, rank, size);
        Ok(plan)
    }

    /// Puts blocks together to spans, and decides who reads them.
    fn assign(&mut self, targets: &[Target<'c>], rank: usize, size: usize) {
        let mut schedule = Schedule::new(size);
        let mut begun: Option<Begun<'_>> = None;
        for number in 0..self.items.len() {
            let item = &self.items[number];
            let (blocks, target) = (item.blocks, &targets[item.target]);
            let index = &item.chunk.index;
            let of_chunk = target.grid.needers(&index.0);
            // The checksum of a whole chunk is computed on the way by the one rank that reads it.
            let only = (!item.has_blocks_alone()).then_some(number);
            for block in 0..blocks.len() {
                let elements = blocks.elements(block);
                let span = Span {
                    file: item.chunk.file,
                    offset: blocks.offset(elements.start),
                    bytes: (elements.len() * target.entry.stored.size()) as u64,
                    passed: (elements.len() * target.dtype.size()) as u64,
                    steps: vec![Step { item: number, block }],
                };
                let needers = match only.is_some() || of_chunk.count() == 1 {
                    true => of_chunk.clone(),
                    false => target.grid.needers(&bounds(index, &elements)),
                };
                let next = Begun { span, needers, only };
                match &mut begun {
                    Some(begun) if begun.goes_on_with(&next) => begun.add(next),
                    _ => {
                        if let Some(done) = begun.replace(next) {
                            let turn = done.turn(&mut schedule);
                            keep(
                                &self.items,
                                &mut self.own,
                                &mut self.rounds,
                                rank,
                                turn,
                                done.span,
                            );
                        }
                    }
                }
            }
        }
        if let Some(done) = begun {
            let turn = done.turn(&mut schedule);
            keep(&self.items, &mut self.own, &mut self.rounds, rank, turn, done.span);
        }
        self.rounds.resize_with(schedule.rounds(), Round::default);
    }
}

/// A span to which more blocks may be added.
struct Begun<'g> {
    span: Span,
    needers: Needers<'g>,
    /// Given to one of those who need it by this number.
    only: Option<usize>,
}

impl Begun<'_> {
    fn goes_on_with(&self, next: &Begun<'_>) -> bool {
        let (span, more) = (&self.span, &next.span);
        span.file == more.file
            && span.offset + span.bytes == more.offset
            && span.bytes.max(span.passed) + more.bytes.max(more.passed) <= READ as u64
            && self.only.or(next.only).is_none()
            && self.needers.is_like(&next.needers)
    }

    fn add(&mut self, next: Begun<'_>) {
        self.span.bytes += next.span.bytes;
        self.span.passed += next.span.passed;
        self.span.steps.extend(next.span.steps);
    }

    fn turn(&self, schedule: &mut Schedule) -> Turn {
        schedule.next(self.span.bytes, self.span.passed, &self.needers, self.only)
    }
}

/// Keeps of a span what concerns this rank.
fn keep(
    items: &[Item<'_>],
    own: &mut Vec<Span>,
    rounds: &mut Vec<Round>,
    rank: usize,
    turn: Turn,
    span: Span,
) {
    match turn {
        Turn::Own(owner) if owner == rank => own.push(span),
        Turn::Own(_) => {}
        Turn::Shared { round, reader } if reader == rank => {
            let round = round_at(rounds, round);
            round.passes = true;
            round.reads.push(span);
        }
        Turn::Shared { round, reader } => {
            let needed = |step: &Step| {
                let item = &items[step.item];
                let elements = item.blocks.elements(step.block);
                item.mine.iter().any(|overlap| !overlap.within(&elements).is_empty())
            };
            let needed = span.steps.into_iter().filter(needed).map(|step| (reader, step));
            let round = round_at(rounds, round);
            round.passes = true;
            round.gets.extend(needed);
        }
        Turn::ToAll { round, reader } => round_at(rounds, round).to_all.push((reader, span)),
    }
}

fn round_at(rounds: &mut Vec<Round>, number: usize) -> &mut Round {
    rounds.resize_with(rounds.len().max(number + 1), Round::default);
    &mut rounds[number]
}

/// Whether a chunk cannot be read block after block: its elements lie in another order, or its checksum is that of more.
fn is_disordered(target: &Target<'_>, chunk: &Chunk) -> bool {
    let bytes = chunk.bytes(target.entry.stored);
    let is_record = match chunk.checksum {
        Checksum::Crc32 { start, bytes: of_record, .. } => {
            (start, of_record) == (chunk.offset, bytes)
        }
        Checksum::None | Checksum::Blocks { .. } => true,
    };
    chunk.strides.is_some() || !is_record
}

/// The smallest box with these consecutive elements of a chunk, of which there are some.
fn bounds(chunk: &IndexBox, elements: &Range<usize>) -> Vec<Range<usize>> {
    let mut bounds = chunk.0.clone();
    let (mut first, mut last) = (elements.start, elements.end - 1);
    let mut inner = chunk.numel();
    for range in &mut bounds {
        inner /= range.len();
        let (start, end) = (range.start + first / inner, range.start + last / inner);
        *range = start..end + 1;
        if start != end {
            break;
        }
        (first, last) = (first % inner, last % inner);
    }
    bounds
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use dtensor::DType;
    use dtensor_layout::{Layout, Mesh};

    use super::*;
    use crate::{Format, SourceFile, StoredType, TensorEntry, load::grid::Grid};

    /// Tensors `[rows, columns]` in row chunks, a file each, without checksums.
    fn catalog(n_tensors: usize, rows: usize, columns: usize, n_files: usize) -> Catalog {
        let mut sizes = vec![0_u64; n_files];
        let mut tensors = BTreeMap::new();
        for number in 0..n_tensors {
            let chunk = |file: usize| {
                let index = IndexBox(vec![dtensor_layout::chunk(rows, n_files, file), 0..columns]);
                let offset = sizes[file];
                let chunk = Chunk { index, file, offset, strides: None, checksum: Checksum::None };
                sizes[file] += chunk.bytes(StoredType::F32);
                chunk
            };
            let chunks = (0..n_files).map(chunk).collect();
            let shape = vec![rows, columns];
            let entry = TensorEntry { stored: StoredType::F32, shape, chunks, layout: None };
            tensors.insert(format!("t{number}"), entry);
        }
        let file = |(number, size)| SourceFile { name: format!("f{number}"), size };
        let files = sizes.into_iter().enumerate().map(file).collect();
        Catalog { tensors, ..Catalog::new(Format::ShardedSafetensors, files) }
    }

    fn plan<'c>(catalog: &'c Catalog, layout: &Layout, rank: usize) -> Plan<'c> {
        let grid = Arc::new(Grid::new(layout, layout.mesh().coord_of(rank).as_deref()));
        let target = |(position, (name, entry)): (usize, (&'c String, &'c TensorEntry))| Target {
            position,
            name,
            entry,
            dtype: DType::F32,
            grid: Arc::clone(&grid),
        };
        let targets: Vec<Target<'_>> = catalog.tensors.iter().enumerate().map(target).collect();
        Plan::new(catalog, &targets, rank, layout.mesh().size()).unwrap()
    }

    #[test]
    fn the_plans_of_all_ranks_fit_together() {
        for (n_tensors, rows, columns, n_files) in
            [(300, 24, 7, 3), (3, 500, 3000, 2), (1, 1, 5_000_000, 1)]
        {
            let catalog = catalog(n_tensors, rows, columns, n_files);
            for (mesh, text) in [
                ("x=1", "[R]"),
                ("x=2", "[S(1)]"),
                ("x=3,y=2", "[S(0), S(1)]"),
                ("x=5", "[R]"),
                ("x=20", "[R]"),
                ("x=20", "[S(1)]"),
                ("x=3,y=6", "[R, S(0)]"),
            ] {
                let mesh: Mesh = mesh.parse().unwrap();
                let layout = Layout::parse(&[rows, columns], DType::F32, &mesh, text).unwrap();
                let plans: Vec<Plan<'_>> =
                    (0..mesh.size()).map(|rank| plan(&catalog, &layout, rank)).collect();
                let mut steps = Vec::new();
                let mut bytes = 0;
                let mut read = |span: &Span| {
                    bytes += span.bytes;
                    steps.extend(span.steps.iter().map(|step| (step.item, step.block)));
                };
                for (rank, plan) in plans.iter().enumerate() {
                    assert_eq!(plan.rounds.len(), plans[0].rounds.len(), "{layout:?}");
                    plan.own.iter().for_each(&mut read);
                    for (round, of_first) in plan.rounds.iter().zip(&plans[0].rounds) {
                        assert_eq!(round.passes, of_first.passes, "{layout:?}");
                        round.reads.iter().for_each(&mut read);
                        let own = round.to_all.iter().filter(|(reader, _)| *reader == rank);
                        own.for_each(|(_, span)| read(span));
                        assert_eq!(round.to_all.len(), of_first.to_all.len());
                        // Whatever comes, its reader sends in the same round.
                        for (reader, step) in &round.gets {
                            let sent = plans[*reader].rounds.iter().zip(&plan.rounds);
                            let mut sent = sent.filter(|(_, mine)| std::ptr::eq(*mine, round));
                            let is_sent = sent.any(|(theirs, _)| {
                                theirs.reads.iter().any(|span| span.steps.contains(step))
                            });
                            assert!(is_sent, "{layout:?}");
                        }
                    }
                }
                // Every block is read once.
                steps.sort_unstable();
                let n_steps = steps.len();
                steps.dedup();
                assert_eq!(steps.len(), n_steps, "{layout:?}");
                assert_eq!(
                    bytes,
                    catalog.files.iter().map(|file| file.size).sum::<u64>(),
                    "{layout:?}"
                );
            }
        }
    }

    #[test]
    fn what_ranks_read_is_shared_out_evenly() {
        let catalog = catalog(4, 512, 4096, 2);
        let layout =
            Layout::parse(&[512, 4096], DType::F32, &"x=4".parse().unwrap(), "[S(1)]").unwrap();
        for rank in 0..4 {
            let plan = plan(&catalog, &layout, rank);
            let read = plan.rounds.iter().flat_map(|round| &round.reads).map(|span| span.bytes);
            assert_eq!(read.sum::<u64>(), 8 << 20);
            assert_eq!(plan.rounds.len(), 2);
        }
    }

    #[test]
    fn a_plan_for_a_thousand_ranks_is_made_without_listing_them_for_every_block() {
        let catalog = catalog(50, 1024, 4096, 64);
        let layout =
            Layout::parse(&[1024, 4096], DType::F32, &"x=1024".parse().unwrap(), "[S(1)]").unwrap();
        let plan = plan(&catalog, &layout, 700);
        let bytes = |spans: &[Span]| spans.iter().map(|span| span.bytes).sum::<u64>();
        let read: u64 = plan.rounds.iter().map(|round| bytes(&round.reads)).sum();
        let blocks =
            plan.rounds.iter().map(|round| round.gets.len() + round.reads.len()).sum::<usize>();
        assert_eq!((read, blocks), (0, 50 * 64));
    }
}
