//! Whether what comes from other ranks can come straight into a tensor.

use super::{
    plan::{Round, Step},
    source::Source,
};

/// Where what comes in a round goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Landing {
    /// Into a buffer, from which it is put where it belongs.
    Buffer,
    /// Into a tensor: as it comes, rank after rank, it is consecutive there.
    At {
        /// In the list of targets.
        target: usize,
        /// The first byte of what this rank holds of it.
        start: usize,
        /// Whether what this rank reads for itself must come as well, because it lies between what others send.
        with_own: bool,
    },
}

impl Landing {
    /// How a round lands on this rank. Often enough straight: ranks read a file in order, and what a rank needs of the rows
    /// of a matrix lies in its memory in that order, whether it holds some columns or all of them.
    pub(super) fn find(source: &Source<'_, '_>, round: &Round, rank: usize) -> Landing {
        if round.gets.is_empty() {
            return Landing::Buffer;
        }
        let mut from_others = round.gets.clone();
        from_others.sort_by_key(|(reader, _)| *reader);
        let steps = |from: &[(usize, Step)]| from.iter().map(|(_, step)| *step).collect::<Vec<_>>();
        if let Some((target, start)) = consecutive(source, &steps(&from_others)) {
            return Landing::At { target, start, with_own: false };
        }
        let own = round.reads.iter().flat_map(|span| &span.steps).map(|step| (rank, *step));
        let mut all = from_others;
        all.extend(own);
        all.sort_by_key(|(reader, _)| *reader);
        match consecutive(source, &steps(&all)) {
            Some((target, start)) => Landing::At { target, start, with_own: true },
            None => Landing::Buffer,
        }
    }

    /// Whether what this rank reads for itself goes the way of what others send.
    pub(super) fn takes_own(self) -> bool {
        matches!(self, Landing::At { with_own: true, .. })
    }
}

/// The target, and the byte in it, at which the parts of these steps that this rank needs begin, if they lie there one after
/// the other; `None` if there are none.
fn consecutive(source: &Source<'_, '_>, steps: &[Step]) -> Option<(usize, usize)> {
    let mut found: Option<(usize, usize)> = None;
    let mut end = 0;
    for step in steps {
        let (item, target) = source.item(*step);
        let range = item.blocks.elements(step.block);
        for overlap in &item.mine {
            let elements = overlap.within(&range);
            if elements.is_empty() {
                continue;
            }
            let start = overlap.run_in_to(&elements)?;
            match found {
                // Only 0 and 1 are bools, and what comes is not looked at.
                None if target.dtype == dtensor::DType::Bool => return None,
                None => found = Some((item.target, start)),
                Some((target, _)) if (target, end) == (item.target, start) => {}
                Some(_) => return None,
            }
            end = start + elements.len();
        }
    }
    let (target, start) = found?;
    Some((target, start * source.targets[target].dtype.size()))
}
