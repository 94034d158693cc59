//! Chunks that are not read block after block: views in `torch.save` files.
//!
//! Ranks do not share them. Each reads the parts of the chunk in which there is something that it needs, a part at a time
//! that fits into a cache, in the order of the file.

use std::ops::Range;

use dtensor_layout::IndexBox;

use super::{memory::Memory, plan::Plan, target::Target};
use crate::{Chunk, Reader, Result, convert_type, read::blocks::READ};

/// Reads what this rank needs of the disordered chunks of a plan.
pub(super) fn read(
    reader: &Reader,
    targets: &[Target<'_>],
    plan: &Plan<'_>,
    memory: &mut Memory<'_, '_>,
) -> Result<()> {
    let (mut stored, mut converted) = (Vec::new(), Vec::new());
    for &(number, chunk) in &plan.disordered {
        let target = &targets[number];
        let mut read_slab = |slab: &IndexBox| {
            let mine = target.grid.mine(slab);
            if mine.is_empty() {
                return Ok(());
            }
            stored.resize(slab.numel() * target.entry.stored.size(), 0);
            reader.read_box(target.name, slab, &mut stored)?;
            converted.resize(slab.numel() * target.dtype.size(), 0);
            convert_type::convert(target.entry.stored, &stored, target.dtype, &mut converted)?;
            memory.put_overlaps(&mine, target, 0..slab.numel(), &converted)
        };
        let most = READ / target.entry.stored.size();
        slabs(chunk.index.clone(), &dims_by_stride(chunk), most, &mut read_slab)?;
    }
    Ok(())
}

/// The dims of a chunk, those first along which elements lie farthest apart.
fn dims_by_stride(chunk: &Chunk) -> Vec<usize> {
    let mut dims: Vec<usize> = (0..chunk.index.0.len()).collect();
    if let Some(strides) = &chunk.strides {
        dims.sort_by_key(|dim| std::cmp::Reverse(strides.get(*dim).copied()));
    }
    dims
}

/// Cuts a box into such of at most so many elements, along the first of `dims` as far as that will do.
fn slabs(
    index: IndexBox,
    dims: &[usize],
    most: usize,
    each: &mut dyn FnMut(&IndexBox) -> Result<()>,
) -> Result<()> {
    let Some((&dim, inner)) = dims.split_first().filter(|_| index.numel() > most) else {
        return each(&index);
    };
    let Range { start, end } = index.0[dim];
    let step = (most / (index.numel() / (end - start)).max(1)).max(1);
    for first in (start..end).step_by(step) {
        let mut slab = index.clone();
        slab.0[dim] = first..end.min(first + step);
        slabs(slab, inner, most, each)?;
    }
    Ok(())
}
