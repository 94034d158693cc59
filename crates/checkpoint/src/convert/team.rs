//! Processes that convert a checkpoint together: each writes some of the files.

use dtensor_comm::Group;

use super::pieces::{Part, TargetFile};
use crate::{Result, agree};

/// The processes of a group, or this one alone.
pub(super) struct Team<'g>(Option<&'g Group>);

impl<'g> Team<'g> {
    pub(super) fn new(group: Option<&'g Group>) -> Team<'g> {
        Team(group)
    }

    /// Whether this process does what is done once.
    pub(super) fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// What is an error for one process is one for all of them.
    pub(super) fn agree<T>(&self, outcome: Result<T>) -> Result<T> {
        match self.0 {
            Some(group) => agree::agree(group, outcome),
            None => outcome,
        }
    }

    /// Has the first process do something, and tells all how that went.
    pub(super) fn once<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        self.agree(self.is_first().then(act).transpose())
    }

    /// The text of the first process.
    pub(super) fn told(&self, text: String) -> Result<String> {
        let Some(group) = self.0 else { return Ok(text) };
        let bytes = group.broadcast_list(Some(text.into_bytes()), 0)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The bytes of all processes, one after the other.
    pub(super) fn all(&self, own: Vec<u8>) -> Result<Vec<u8>> {
        let Some(group) = self.0 else { return Ok(own) };
        Ok(group.all_gather_lists(&own)?.concat())
    }

    /// Which of these files this process writes: consecutive ones, with about as many bytes as those of any other process.
    pub(super) fn own_files(&self, files: &[TargetFile]) -> Vec<bool> {
        let bytes = |file: &TargetFile| file.parts.iter().map(Part::bytes).sum::<u64>().max(1);
        let total: u128 = files.iter().map(|file| u128::from(bytes(file))).sum();
        let size = self.0.map_or(1, Group::size) as u128;
        let mut before = 0;
        let owner = |file: &TargetFile| {
            // Whoever has its middle.
            let middle = before + u128::from(bytes(file)) / 2;
            before += u128::from(bytes(file));
            middle * size / total
        };
        let owners: Vec<u128> = files.iter().map(owner).collect();
        owners.into_iter().map(|owner| owner == self.rank() as u128).collect()
    }

    fn rank(&self) -> usize {
        self.0.map_or(0, Group::rank)
    }
}
