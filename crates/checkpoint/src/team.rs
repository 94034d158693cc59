//! Processes that work on a checkpoint together: each does some of it.

use std::ops::Range;

use dtensor_comm::Group;

use crate::{Result, agree};

/// The processes of a group, or this one alone.
pub(crate) struct Team<'g>(Option<&'g Group>);

impl<'g> Team<'g> {
    pub(crate) fn new(group: Option<&'g Group>) -> Team<'g> {
        Team(group)
    }

    /// Whether this process does what is done once.
    pub(crate) fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// What is an error for one process is one for all of them.
    pub(crate) fn agree<T>(&self, outcome: Result<T>) -> Result<T> {
        match self.0 {
            Some(group) => agree::agree(group, outcome),
            None => outcome,
        }
    }

    /// Has the first process do something, and tells all how that went.
    pub(crate) fn once<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        self.agree(self.is_first().then(act).transpose())
    }

    /// The text of the first process.
    pub(crate) fn told(&self, text: String) -> Result<String> {
        let Some(group) = self.0 else { return Ok(text) };
        let bytes = group.broadcast_list(Some(text.into_bytes()), 0)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The bytes of each process.
    pub(crate) fn all(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        match self.0 {
            Some(group) => Ok(group.all_gather_lists(&own)?),
            None => Ok(vec![own]),
        }
    }

    /// The least of the numbers of all processes. What they cut alike may not depend on how many processors each has.
    pub(crate) fn least(&self, own: usize) -> Result<usize> {
        let all = self.all((own as u64).to_le_bytes().to_vec())?.concat();
        let numbers = all.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes) as usize);
        Ok(numbers.min().unwrap_or(own))
    }

    /// Which of some things this process does, of which each is so many bytes of work: consecutive ones, about as many bytes as
    /// those of any other process.
    pub(crate) fn share(&self, bytes: impl Iterator<Item = u64> + Clone) -> Range<usize> {
        let bytes = bytes.map(|bytes| u128::from(bytes.max(1)));
        let total: u128 = bytes.clone().sum();
        let (rank, size) = (self.rank() as u128, self.0.map_or(1, Group::size) as u128);
        let (mut before, mut own) = (0, 0..0);
        for (position, bytes) in bytes.enumerate() {
            // Whoever has its middle.
            let owner = (before + bytes / 2) * size / total;
            before += bytes;
            if owner < rank {
                own = position + 1..position + 1;
            } else if owner == rank {
                own.end = position + 1;
            }
        }
        own
    }

    fn rank(&self) -> usize {
        self.0.map_or(0, Group::rank)
    }
}

#[cfg(test)]
mod tests {
    use dtensor_testing::spmd;

    use super::*;

    #[test]
    fn every_piece_of_work_is_done_by_one_process() {
        let cases: [&[u64]; 5] = [&[], &[7], &[5, 5, 5, 5, 5, 5], &[0, 0, 100, 0], &[1, 2, 300, 4]];
        for n_ranks in 1..5 {
            for bytes in cases {
                let shares = spmd(n_ranks, |world| {
                    let group = world.group();
                    Ok(Team::new(Some(&group)).share(bytes.iter().copied()))
                });
                let all: Vec<usize> = shares.iter().cloned().flatten().collect();
                assert_eq!(all, Vec::from_iter(0..bytes.len()), "{bytes:?}: {shares:?}");
            }
        }
        let thirds = spmd(3, |world| Ok(Team::new(Some(&world.group())).share([5; 6].into_iter())));
        assert_eq!(thirds, [0..2, 2..4, 4..6]);
    }

    #[test]
    fn the_least_number_is_the_same_for_all() {
        let least = spmd(3, |world| Ok(Team::new(Some(&world.group())).least(10 - world.rank())?));
        assert_eq!(least, [8, 8, 8]);
    }
}
