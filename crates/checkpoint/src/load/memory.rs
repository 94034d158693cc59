//! The tensors that are filled.

use std::{
    ops::Range,
    sync::{Mutex, PoisonError},
};

use dtensor::DTensor;

use super::{
    place::{Place, with_place},
    plan::{Item, Step},
    target::Target,
};
use crate::{Entry, OnProgress, Progress, Result, State, read::runs::Overlap, workers};

/// What this rank holds of the tensors of a state.
pub(super) struct Memory<'s, 'p> {
    tensors: Vec<Option<&'s mut DTensor>>,
    progress: Option<&'p OnProgress<'p>>,
    /// Bytes that were put, and of how many.
    pub done: u64,
    total: u64,
}

impl<'s, 'p> Memory<'s, 'p> {
    /// Of all tensors of a state; targets name them by their position.
    pub(super) fn new(
        state: &'s mut State,
        targets: &[Target<'_>],
        progress: Option<&'p OnProgress<'p>>,
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

    /// Calls `fill` with each of some places in the bytes of a tensor, which come one after the other, and with its number; on so
    /// many threads.
    pub(super) fn fill_all(
        &mut self,
        target: &Target<'_>,
        places: &[Range<usize>],
        threads: usize,
        fill: impl Fn(usize, &mut [u8]) -> Result<()> + Sync,
    ) -> Result<()> {
        self.place(target, |place| {
            // Bools are always converted.
            let Place::Bytes(mut rest) = place else { return Ok(()) };
            let mut begin = 0;
            let mut slices = Vec::with_capacity(places.len());
            for place in places {
                let _between = rest.split_off_mut(..place.start - begin);
                slices.extend(rest.split_off_mut(..place.len()).map(Mutex::new));
                begin = place.end;
            }
            let work = |(): &mut (), number: usize| {
                fill(number, &mut slices[number].lock().unwrap_or_else(PoisonError::into_inner))
            };
            workers::share(slices.len(), threads, || (), work)
        })?;
        self.tell(places.iter().map(ExactSizeIterator::len).sum());
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
        let (size, start) = (target.dtype.size(), range.start);
        for overlap in overlaps {
            self.put_runs(overlap, target, &range, |from, bytes| {
                &array[(from - start) * size..][..bytes]
            })?;
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
        let mut at = 0;
        for overlap in &item.mine {
            self.put_runs(overlap, target, &item.blocks.elements(step.block), |_, bytes| {
                at += bytes;
                &packed[at - bytes..at]
            })?;
        }
        Ok(at)
    }

    /// Puts what an overlap has of a range of an array. `bytes_of` gives the bytes of a run that begins at an element of the
    /// array, and is as long.
    fn put_runs<'b>(
        &mut self,
        overlap: &Overlap,
        target: &Target<'_>,
        range: &Range<usize>,
        mut bytes_of: impl FnMut(usize, usize) -> &'b [u8],
    ) -> Result<()> {
        let size = target.dtype.size();
        let elements = overlap.within(range);
        if elements.is_empty() {
            return Ok(());
        }
        let bytes = elements.len() * size;
        self.place(target, |mut place| {
            overlap.for_runs(elements, |from, to, length| {
                place.put(to * size, bytes_of(from, length * size));
            });
            Ok(())
        })?;
        self.tell(bytes);
        Ok(())
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
            progress(Progress { done: self.done, total: self.total });
        }
    }
}
