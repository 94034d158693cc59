//! Cutting what files will hold into pieces of a bounded size.
//!
//! A part of a file is a box of a tensor, row after row. Any run of its elements is a few boxes of the source that lie
//! one after the other, so that a piece of a file is read, cast and written without the rest, whichever way the source is cut.

use std::ops::Range;

use dtensor_layout::IndexBox;

use crate::{Catalog, StoredType, TensorEntry};

/// What a file will hold.
#[derive(Debug)]
pub(crate) struct TargetFile {
    /// Relative to the checkpoint.
    pub name: String,
    /// Its bytes.
    pub size: u64,
    /// In the order of their bytes.
    pub parts: Vec<Part>,
}

/// A box of a tensor in a file.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Of the tensor, in the source.
    pub source: String,
    pub index: IndexBox,
    pub from: StoredType,
    pub to: StoredType,
    /// Its first byte in the file.
    pub offset: u64,
}

impl Part {
    pub(crate) fn bytes(&self) -> u64 {
        (self.index.numel() * self.to.size()) as u64
    }
}

/// Consecutive bytes of a file: read, cast and written in one go.
#[derive(Debug, PartialEq)]
pub(crate) struct Piece {
    /// Position in the list of files.
    pub file: usize,
    /// The first byte in the file.
    pub offset: u64,
    /// Which elements of which parts, by position in the file.
    pub runs: Vec<Run>,
}

impl Piece {
    /// Its bytes, as they are written.
    pub(crate) fn bytes(&self, files: &[TargetFile]) -> u64 {
        let parts = &files[self.file].parts;
        let bytes = |run: &Run| (run.elements.len() * parts[run.part].to.size()) as u64;
        self.runs.iter().map(bytes).sum()
    }
}

/// Consecutive elements of a part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Run {
    pub part: usize,
    pub elements: Range<usize>,
}

/// Where the parts of a file may be cut.
pub(crate) struct CutRule<'a> {
    /// The most bytes of a piece, in the source's type and in the file's.
    pub most: usize,
    /// Runs begin at multiples of so many bytes of their part, or of the chunk of the source that they are in.
    pub align: usize,
    /// The source, if runs should also begin where its chunks do: then no chunk is read in half blocks.
    pub at_chunks_of: Option<&'a Catalog>,
}

/// The pieces of a file, in order; together they are all its parts. Parts without elements are in none.
pub(crate) fn pieces(file: usize, parts: &[Part], rule: &CutRule<'_>) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    // Bytes of the piece that has begun, in the larger of both types.
    let mut begun = 0;
    for (position, part) in parts.iter().enumerate().filter(|(_, part)| !part.index.is_empty()) {
        let size = part.from.size().max(part.to.size());
        let unit = (rule.align / part.to.size()).max(1);
        let step = (rule.most / size / unit).max(1) * unit;
        let entry = rule.at_chunks_of.and_then(|catalog| catalog.tensors.get(&part.source));
        let mut ends = entry.map(|entry| chunk_starts(entry, &part.index)).unwrap_or_default();
        ends.push(part.index.numel());
        let mut start = 0;
        for end in ends {
            while start < end {
                let elements = start..end.min(start + step);
                start = elements.end;
                let bytes = elements.len() * size;
                let offset = part.offset + (elements.start * part.to.size()) as u64;
                let run = Run { part: position, elements };
                match pieces.last_mut() {
                    Some(piece) if begun + bytes <= rule.most => piece.runs.push(run),
                    _ => {
                        pieces.push(Piece { file, offset, runs: vec![run] });
                        begun = 0;
                    }
                }
                begun += bytes;
            }
        }
    }
    pieces
}

/// Where in a box the chunks begin, counted in elements; nothing if some chunk is no whole rows of it.
fn chunk_starts(entry: &TensorEntry, index: &IndexBox) -> Vec<usize> {
    let Some((rows, inner)) = index.0.split_first() else { return Vec::new() };
    let row: usize = inner.iter().map(Range::len).product();
    let mut starts = Vec::with_capacity(entry.chunks.len());
    for chunk in &entry.chunks {
        let Some((chunk_rows, chunk_inner)) = chunk.index.0.split_first() else {
            return Vec::new();
        };
        let holds = |(chunk, part): (&Range<usize>, &Range<usize>)| {
            chunk.start <= part.start && part.end <= chunk.end
        };
        if !chunk_inner.iter().zip(inner).all(holds) {
            return Vec::new();
        }
        if rows.start < chunk_rows.start && chunk_rows.start < rows.end {
            starts.push((chunk_rows.start - rows.start) * row);
        }
    }
    starts.sort_unstable();
    starts
}

/// Consecutive elements of a box, counted row after row, as boxes that lie one after the other.
pub(crate) fn boxes(index: &IndexBox, elements: Range<usize>) -> Vec<IndexBox> {
    let mut boxes = Vec::new();
    cut(index.clone(), 0, elements, &mut boxes);
    boxes
}

/// `index` has one index in every dim before `dim`.
fn cut(mut index: IndexBox, dim: usize, elements: Range<usize>, boxes: &mut Vec<IndexBox>) {
    if elements.is_empty() {
        return;
    }
    let Some(rows) = index.0.get(dim).cloned() else {
        return boxes.push(index);
    };
    let row: usize = index.0[dim + 1..].iter().map(Range::len).product();
    let mut some_rows = |range: Range<usize>| {
        index.0[dim] = rows.start + range.start..rows.start + range.end;
        index.clone()
    };
    let (first_whole, end_whole) = (elements.start.div_ceil(row), elements.end / row);
    if first_whole > end_whole {
        // All in one row, at neither of its ends.
        let start = end_whole * row;
        let inside = elements.start - start..elements.end - start;
        return cut(some_rows(end_whole..first_whole), dim + 1, inside, boxes);
    }
    if elements.start < first_whole * row {
        let before = first_whole - 1;
        cut(some_rows(before..first_whole), dim + 1, elements.start - before * row..row, boxes);
    }
    if first_whole < end_whole {
        boxes.push(some_rows(first_whole..end_whole));
    }
    let rest = elements.end - end_whole * row;
    cut(some_rows(end_whole..end_whole + 1), dim + 1, 0..rest, boxes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checksum, Chunk};

    fn index_of(text: &str) -> IndexBox {
        let range = |text: &str| {
            let (start, end) = text.split_once("..").unwrap();
            start.parse().unwrap()..end.parse().unwrap()
        };
        IndexBox(text.split_whitespace().map(range).collect())
    }

    fn all_indices(index: &IndexBox) -> Vec<Vec<usize>> {
        let mut all = vec![Vec::new()];
        for range in &index.0 {
            all = all
                .iter()
                .flat_map(|done: &Vec<usize>| {
                    range.clone().map(|next| [done.as_slice(), &[next]].concat())
                })
                .collect();
        }
        all
    }

    #[test]
    fn every_run_of_elements_is_boxes_one_after_the_other() {
        for text in ["", "2..7", "1..4 5..7", "0..2 3..6 1..5", "1..3 0..1 2..4"] {
            let index = index_of(text);
            let all = all_indices(&index);
            for start in 0..=all.len() {
                for end in start..=all.len() {
                    let boxes = boxes(&index, start..end);
                    let listed: Vec<_> = boxes.iter().flat_map(all_indices).collect();
                    assert_eq!(listed, all[start..end], "{index} {start}..{end}: {boxes:?}");
                    assert!(boxes.len() <= 2 * index.0.len().max(1), "{boxes:?}");
                }
            }
        }
    }

    #[test]
    fn small_parts_share_a_piece_and_large_ones_are_cut() {
        let part = |offset: u64, n: usize| Part {
            source: "x".into(),
            index: index_of(&format!("0..{n}")),
            from: StoredType::F32,
            to: StoredType::Bf16,
            offset,
        };
        let parts = [part(100, 2), part(104, 0), part(104, 3), part(110, 20)];
        let rule = CutRule { most: 32, align: 8, at_chunks_of: None };
        let found = pieces(7, &parts, &rule);
        let run = |part, elements| Run { part, elements };
        assert_eq!(
            found,
            [
                Piece { file: 7, offset: 100, runs: vec![run(0, 0..2), run(2, 0..3)] },
                Piece { file: 7, offset: 110, runs: vec![run(3, 0..8)] },
                Piece { file: 7, offset: 126, runs: vec![run(3, 8..16)] },
                Piece { file: 7, offset: 142, runs: vec![run(3, 16..20)] },
            ]
        );
    }

    #[test]
    fn pieces_begin_where_chunks_of_whole_rows_do() {
        let chunk = |text: &str| Chunk {
            index: index_of(text),
            file: 0,
            offset: 0,
            strides: None,
            checksum: Checksum::None,
        };
        let starts = |chunks: &[&str], part: &str| {
            let chunks = chunks.iter().map(|text| chunk(text)).collect();
            let shape = vec![10, 6];
            let entry = TensorEntry { stored: StoredType::F32, shape, chunks, layout: None };
            chunk_starts(&entry, &index_of(part))
        };
        assert_eq!(starts(&["4..10 0..6", "0..4 0..6"], "0..10 0..6"), [24]);
        assert_eq!(starts(&["0..4 0..6", "4..7 0..6", "7..10 0..6"], "5..9 1..3"), [4]);
        assert_eq!(starts(&["0..10 0..3", "0..10 3..6"], "0..10 0..6"), [0; 0]);
        assert_eq!(starts(&["0..10 0..3", "0..10 3..6"], "2..10 0..3"), [0; 0]);
    }
}
