//! The tensors that are filled.

use std::ops::Range;

use dtensor::DTensor;

use super::{
    Tell,
    place::{Place, with_place},
    plan::{Item, Step},
    target::Target,
};
use crate::{Entry, Result, State, read::runs::Overlap};

/// What this rank holds of the tensors of a state.
pub(super) struct Memory<'s, 'p> {
    tensors: Vec<Option<&'s mut DTensor>>,
    progress: Option<Tell<'p>>,
    /// Bytes that were put, and of how many.
    pub done: u64,
    total: u64,
}

impl<'s, 'p> Memory<'s, 'p> {
    /// Of all tensors of a state; targets name them by their position.
    pub(super) fn new(
        state: &'s mut State,
        targets: &[Target<'_>],
        progress: Option<Tell<'p>>,
    ) -> Self {
        let tensor = |(_, entry): (&str, &'s mut Entry)| match entry {
            Entry::Tensor(tensor) => Some(tensor),
            Entry::Value(_) => None,
        };
        let tensors: Vec<Option<&mut DTensor>> = state.iter_mut().map(tensor).collect();
        let bytes = |target: &Target<'_>| {
            tensors[target.position].as_ref().map_or(0, |tensor| tensor.local_bytes())
        };
        let total = targets.iter().map(|target| bytes(target) as u64).sum();
        Memory { tensors, progress, done: 0, total }
    }

    /// Calls `fill` with the bytes of a tensor from `start` on.
    pub(super) fn fill(
        &mut self,
        target: &Target<'_>,
        start: usize,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        self.place(target, |place| match place {
            Place::Bytes(place) => fill(&mut place[start..][..bytes]),
            // Bools are always converted.
            Place::Bools(_) => Ok(()),
        })?;
        self.tell(bytes);
        Ok(())
    }

    /// Puts what this rank needs of a block, which is given whole.
    pub(super) fn put_block(
        &mut self,
        item: &Item<'_>,
        target: &Target<'_>,
        step: Step,
        block: &[u8],
    ) -> Result<()> {
        self.put_overlaps(&item.mine, target, item.blocks.elements(step.block), block)
    }

    /// Puts what overlaps have of a range of an array, which is given whole.
    pub(super) fn put_overlaps(
        &mut self,
        overlaps: &[Overlap],
        target: &Target<'_>,
        range: Range<usize>,
        array: &[u8],
    ) -> Result<()> {
        let size = target.dtype.size();
        for overlap in overlaps {
            let elements = overlap.within(&range);
            if elements.is_empty() {
                continue;
            }
            let bytes = elements.len() * size;
            self.place(target, |mut place| {
                overlap.for_runs(elements, |from, to, length| {
                    place.put(to * size, &array[(from - range.start) * size..][..length * size]);
                });
                Ok(())
            })?;
            self.tell(bytes);
        }
        Ok(())
    }

    /// Puts what this rank needs of a block, which is given one piece after the other and nothing between. Gives back how
    /// many bytes that was.
    pub(super) fn put_packed(
        &mut self,
        item: &Item<'_>,
        target: &Target<'_>,
        step: Step,
        packed: &[u8],
    ) -> Result<usize> {
        let size = target.dtype.size();
        let mut at = 0;
        for overlap in &item.mine {
            let elements = overlap.within(&item.blocks.elements(step.block));
            if elements.is_empty() {
                continue;
            }
            let begin = at;
            self.place(target, |mut place| {
                overlap.for_runs(elements, |_, to, length| {
                    place.put(to * size, &packed[at..][..length * size]);
                    at += length * size;
                });
                Ok(())
            })?;
            self.tell(at - begin);
        }
        Ok(at)
    }

    pub(super) fn place(
        &mut self,
        target: &Target<'_>,
        fill: impl FnOnce(Place<'_>) -> Result<()>,
    ) -> Result<()> {
        match &mut self.tensors[target.position] {
            Some(tensor) => with_place(tensor, fill),
            None => Ok(()),
        }
    }

    pub(super) fn tell(&mut self, bytes: usize) {
        self.done += bytes as u64;
        if let Some(progress) = self.progress {
            progress(self.done, self.total);
        }
    }
}
