//! What one rank writes: its files, and where in its memory the parts are that go into them.

use std::ops::Range;

use dtensor::{DTensor, Tensor};
use dtensor_layout::Layout;

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
    let mut files: Vec<(Vec<Part>, Vec<Source>)> = Vec::new();
    for ((name, tensor), _) in tensors.iter().zip(mine).filter(|(_, mine)| *mine) {
        for (index, (part, source)) in boxes(name, tensor).into_iter().enumerate() {
            if index == files.len() {
                files.push(Default::default());
            }
            files[index].0.push(part);
            files[index].1.push(source);
        }
    }
    let planned = |(index, (parts, sources))| {
        let name = file_name(rank, n_ranks, index);
        Ok(PlannedFile { plan: FilePlan::new(&name, parts)?, name, sources })
    };
    files.into_iter().enumerate().map(planned).collect()
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
            part = part.narrow(dim as isize, range.start, range.len()).map_err(local)?;
        }
        read_in_order(&part, give)
    }
}

fn read_in_order(part: &Tensor, give: &mut Give<'_>) -> Result<()> {
    let bytes = part.numel() * part.dtype().size();
    if part.is_contiguous() || bytes <= STRIDED_BYTES {
        return give(part.contiguous().as_bytes().map_err(local)?);
    }
    // Not contiguous, so it has a dim; and its rows are smaller, so that this ends.
    let rows = part.shape()[0];
    match STRIDED_BYTES / (bytes / rows) {
        0 => (0..rows)
            .try_for_each(|row| read_in_order(&part.select(0, row as isize).map_err(local)?, give)),
        step => (0..rows).step_by(step).try_for_each(|row| {
            read_in_order(&part.narrow(0, row, step.min(rows - row)).map_err(local)?, give)
        }),
    }
}

/// What this rank holds of a tensor, as boxes of it. An empty shard is one empty box.
fn boxes(name: &str, tensor: &DTensor) -> Vec<(Part, Source)> {
    let Some(coord) = tensor.mesh().coord() else { return Vec::new() };
    let (layout, local) = (tensor.layout(), tensor.to_local());
    let part = |offsets, shape| Part {
        name: name.to_owned(),
        stored: layout.dtype().into(),
        global_shape: layout.global_shape().to_vec(),
        offsets,
        shape,
        layout: format!("{layout} on {}", layout.mesh()),
    };
    let boxes = layout.boxes(coord);
    if boxes.is_empty() {
        let shape = layout.local_shape(coord);
        let ranges = shape.iter().map(|&size| 0..size).collect();
        return vec![(part(layout.local_offset(coord), shape), Source { local, ranges })];
    }
    let held: Vec<_> = (0..layout.n_dims()).map(|dim| layout.intervals(dim, coord)).collect();
    let with_source = |index: dtensor_layout::IndexBox| {
        let place = |(range, held): (&Range<usize>, &dtensor_layout::Intervals)| {
            let start = held.position(range.start).unwrap_or_default();
            start..start + range.len()
        };
        let ranges = index.0.iter().zip(&held).map(place).collect();
        let offsets = index.0.iter().map(|range| range.start).collect();
        (part(offsets, index.shape()), Source { local: local.clone(), ranges })
    };
    boxes.into_iter().map(with_source).collect()
}

fn local(error: dtensor::LocalError) -> crate::Error {
    crate::Error::Tensor(error.into())
}
