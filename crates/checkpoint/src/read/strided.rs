//! Elements that do not lie in row-major order in their file: transposed and other views in `torch.save` files.

use super::{blocks::READ, runs::copy_bytes};
use crate::{Error, ReadAt, Result};

/// A dim of the box that is read.
#[derive(Clone, Copy)]
pub(super) struct Dim {
    pub size: usize,
    /// Elements from one index to the next, in the file.
    pub from: usize,
    /// The same in the memory that is written.
    pub to: usize,
}

/// Where elements come from and go to.
pub(super) struct Strided<'a> {
    pub file: &'a dyn ReadAt,
    /// Of an element.
    pub size: usize,
    pub into: &'a mut [u8],
    pub scratch: &'a mut [u8],
}

impl Strided<'_> {
    /// Reads a box whose first element lies at `offset`. The file is read in the order of its bytes, a part at a time that
    /// fits into `scratch`, whichever way the dims are turned.
    pub(super) fn read(&mut self, offset: u64, mut dims: Vec<Dim>) -> Result<()> {
        if dims.iter().any(|dim| dim.size == 0) {
            return Ok(());
        }
        let reach = dims
            .iter()
            .try_fold(1_usize, |span, dim| span.checked_add((dim.size - 1).checked_mul(dim.from)?));
        let end = reach
            .and_then(|span| span.checked_mul(self.size))
            .and_then(|bytes| offset.checked_add(bytes as u64));
        if end.is_none_or(|end| end > self.file.size()) {
            return Err(Error::broken(self.file.name(), "a view lies beyond the end of the file"));
        }
        dims.retain(|dim| dim.size > 1);
        dims.sort_by_key(|dim| std::cmp::Reverse(dim.from));
        self.part(offset, &dims, 0)
    }

    fn part(&mut self, offset: u64, dims: &[Dim], to: usize) -> Result<()> {
        let fits = self.scratch.len().min(READ) / self.size;
        if span(dims) <= fits {
            let bytes = &mut self.scratch[..span(dims) * self.size];
            self.file.read_at(offset, bytes)?;
            scatter(bytes, 0, dims, self.into, to, self.size);
            return Ok(());
        }
        // One element fits, so there is a dim.
        let Some((first, inner)) = dims.split_first() else { return Ok(()) };
        let inner_span = span(inner);
        let step = match inner_span <= fits {
            true => ((fits - inner_span) / first.from.max(1) + 1).min(first.size),
            false => 1,
        };
        for start in (0..first.size).step_by(step) {
            let size = step.min(first.size - start);
            let offset = offset + (start * first.from * self.size) as u64;
            let to = to + start * first.to;
            match size {
                1 => self.part(offset, inner, to)?,
                _ => {
                    let some = [&[Dim { size, ..*first }], inner].concat();
                    self.part(offset, &some, to)?;
                }
            }
        }
        Ok(())
    }
}

/// Elements from the first to the last.
fn span(dims: &[Dim]) -> usize {
    1 + dims.iter().map(|dim| (dim.size - 1) * dim.from).sum::<usize>()
}

fn scatter(bytes: &[u8], from: usize, dims: &[Dim], into: &mut [u8], to: usize, size: usize) {
    match dims {
        [] => copy_bytes(&bytes[from * size..][..size], &mut into[to * size..][..size]),
        [Dim { size: n, from: 1, to: 1 }] => {
            let n = n * size;
            copy_bytes(&bytes[from * size..][..n], &mut into[to * size..][..n]);
        }
        [first, inner @ ..] => {
            for index in 0..first.size {
                let (from, to) = (from + index * first.from, to + index * first.to);
                scatter(bytes, from, inner, into, to, size);
            }
        }
    }
}
