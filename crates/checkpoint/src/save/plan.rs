//! What one rank writes: its files, and where in its memory the parts are that go into them.

use std::ops::Range;

use dtensor::{DTensor, Tensor};
use dtensor_layout::{Intervals, Layout};

use super::{assign, write::Give};
use crate::{
    Entry, Result, State,
    formats::native_write::{FilePlan, Part},
};

/// A file that this rank writes.
pub(crate) struct PlannedFile {
    pub name: String,
    pub plan: FilePlan,
    /// What each part of the plan is made of, by its position in the list that the file was planned for.
    pub sources: Vec<Source>,
}

/// A box of what this rank holds of a tensor.
pub(crate) struct Source {
    local: Tensor,
    /// One range per dim.
    ranges: Vec<Range<usize>>,
}

/// The most bytes that are made consecutive at a time, of a tensor whose elements are not.
const STRIDED_BYTES: usize = 4 << 20;

/// The files of this rank: one, or none if it has nothing to write.
///
/// A rank that holds several boxes of a tensor, because a strided shard cut it, has as many files: in a file of this format a
/// name stands for one box, and PyTorch's reader looks into every file.
pub(crate) fn files_of(rank: usize, n_ranks: usize, state: &State) -> Result<Vec<PlannedFile>> {
    let tensors: Vec<(&str, &DTensor)> = state
        .iter()
        .filter_map(|(name, entry)| match entry {
            Entry::Tensor(tensor) => Some((name, tensor)),
            Entry::Value(_) => None,
        })
        .collect();
    let layouts: Vec<Layout> = tensors.iter().map(|(_, tensor)| tensor.layout().clone()).collect();
    let mine = assign::written_by(rank, n_ranks, &layouts);
    let mine = tensors.iter().zip(mine).filter(|(_, mine)| *mine);
    let files = by_file(mine.map(|((name, tensor), _)| parts(name, tensor)));
    let planned = |(index, parts): (usize, Vec<(Part, Source)>)| {
        let (parts, sources) = parts.into_iter().unzip();
        let name = file_name(rank, n_ranks, index);
        Ok(PlannedFile { plan: FilePlan::new(&name, parts)?, name, sources })
    };
    files.into_iter().enumerate().map(planned).collect()
}

/// Parts of tensors, each list of one tensor, as lists for files, of which none has two of a tensor.
pub(crate) fn by_file<T>(tensors: impl Iterator<Item = Vec<T>>) -> Vec<Vec<T>> {
    let mut files: Vec<Vec<T>> = Vec::new();
    for parts in tensors {
        for (index, part) in parts.into_iter().enumerate() {
            match files.get_mut(index) {
                Some(file) => file.push(part),
                None => files.push(vec![part]),
            }
        }
    }
    files
}

/// The name of the `index`-th file of a rank.
pub(crate) fn file_name(rank: usize, n_ranks: usize, index: usize) -> String {
    format!("shard-{:05}-model-00001-of-00001.safetensors", rank + 1 + index * n_ranks)
}

impl Source {
    /// Gives the bytes in order, in pieces. What is consecutive in memory is given as it is; of anything else a few MiB are copied
    /// at a time.
    pub(crate) fn read(&self, give: &mut Give<'_>) -> Result<()> {
        let mut part = self.local.clone();
        for (dim, range) in self.ranges.iter().enumerate() {
            part = part.narrow(dim as isize, range.start, range.len())?;
        }
        read_in_order(&part, give)
    }
}

fn read_in_order(part: &Tensor, give: &mut Give<'_>) -> Result<()> {
    let bytes = part.numel() * part.dtype().size();
    if part.is_contiguous() || bytes <= STRIDED_BYTES {
        return give(part.contiguous().as_bytes()?);
    }
    // Not contiguous, so it has a dim; and its rows are smaller, so that this ends.
    let rows = part.shape()[0];
    match STRIDED_BYTES / (bytes / rows) {
        0 => (0..rows).try_for_each(|row| read_in_order(&part.select(0, row as isize)?, give)),
        step => (0..rows)
            .step_by(step)
            .try_for_each(|row| read_in_order(&part.narrow(0, row, step.min(rows - row))?, give)),
    }
}

/// What this rank holds of a tensor, as parts of it, and where in its memory they are.
fn parts(name: &str, tensor: &DTensor) -> Vec<(Part, Source)> {
    let Some(coord) = tensor.mesh().coord() else { return Vec::new() };
    let (layout, local) = (tensor.layout(), tensor.to_local());
    let held: Vec<_> = (0..layout.n_dims()).map(|dim| layout.intervals(dim, coord)).collect();
    let with_source = |part: Part| {
        let place = |((&start, &size), held): ((&usize, &usize), &Intervals)| {
            // What is empty begins nowhere.
            let start = held.position(start).unwrap_or_default();
            start..start + size
        };
        let ranges = part.offsets.iter().zip(&part.shape).zip(&held).map(place).collect();
        (part, Source { local: local.clone(), ranges })
    };
    let parts = Part::held(name, layout.dtype().into(), layout, coord);
    parts.into_iter().map(with_source).collect()
}
