//! Who called what: the table in every error that involves several ranks.

use std::{fmt, sync::Arc};

/// What each member of a group was doing in one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallTable {
    /// Position of the call among the collective calls of the group; `None` for a message.
    pub sequence: Option<u64>,
    /// The world ranks of the group, in group-rank order.
    pub members: Arc<[usize]>,
    /// One row per member, or only the two ends of a message.
    pub rows: Vec<CallRow>,
}

/// One line of a [`CallTable`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRow {
    /// The world rank.
    pub rank: usize,
    /// What it did.
    pub did: Did,
}

/// What a rank did, as far as the rank that made the table knows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Did {
    /// It made this call, as `all_reduce(f32 x 12, sum, tag "loss")`.
    Call(Arc<str>),
    /// It has not come yet.
    NotHere,
    /// It returned from the program.
    Left,
    /// It panicked, returned an error or died.
    Failed,
}

impl CallTable {
    /// The row of a world rank.
    pub fn row(&self, rank: usize) -> Option<&Did> {
        self.rows.iter().find(|row| row.rank == rank).map(|row| &row.did)
    }
}

/// Up to this many ranks have a line each; in larger groups neighbours that did the same share one.
const RANKS_SHOWN: usize = 16;

impl fmt::Display for CallTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sequence {
            Some(sequence) => write!(f, "collective {sequence} of group ")?,
            None => write!(f, "message in group ")?,
        }
        write_ranks(f, &self.members)?;
        f.write_str(":")?;
        let mut rows = &self.rows[..];
        while let Some(first) = rows.first() {
            let same = if self.rows.len() <= RANKS_SHOWN {
                1
            } else {
                let run = |(i, row): (usize, &CallRow)| {
                    row.did == first.did && row.rank == first.rank + i
                };
                rows.iter().enumerate().take_while(|&pair| run(pair)).count()
            };
            match same {
                1 => write!(f, "\n  rank {}: {}", first.rank, first.did)?,
                _ => write!(f, "\n  ranks {}-{}: {}", first.rank, rows[same - 1].rank, first.did)?,
            }
            rows = &rows[same..];
        }
        Ok(())
    }
}

impl fmt::Display for Did {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Did::Call(call) => call,
            Did::NotHere => "(not here)",
            Did::Left => "(left the run)",
            Did::Failed => "(failed)",
        })
    }
}

/// `[0, 2, 4]`, or `[0, 1, 2, ... 1024 ranks]`.
pub(crate) fn write_ranks(f: &mut fmt::Formatter<'_>, ranks: &[usize]) -> fmt::Result {
    if ranks.len() <= RANKS_SHOWN {
        return write!(f, "{ranks:?}");
    }
    f.write_str("[")?;
    for rank in &ranks[..3] {
        write!(f, "{rank}, ")?;
    }
    write!(f, "... {} ranks]", ranks.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: Vec<Did>) -> CallTable {
        let members = (0..rows.len()).collect();
        let rows = rows.into_iter().enumerate().map(|(rank, did)| CallRow { rank, did }).collect();
        CallTable { sequence: Some(5), members, rows }
    }

    #[test]
    fn a_small_group_has_a_line_per_rank() {
        let table =
            table(vec![Did::Call("barrier()".into()), Did::NotHere, Did::Left, Did::Failed]);
        assert_eq!(
            table.to_string(),
            "collective 5 of group [0, 1, 2, 3]:\n  rank 0: barrier()\n  rank 1: (not here)\n  \
             rank 2: (left the run)\n  rank 3: (failed)"
        );
        assert_eq!(table.row(2), Some(&Did::Left));
        assert_eq!(table.row(4), None);
    }

    #[test]
    fn neighbours_in_a_large_group_share_a_line() {
        let mut rows = vec![Did::Call("barrier()".into()); 1024];
        rows[700] = Did::NotHere;
        assert_eq!(
            table(rows).to_string(),
            "collective 5 of group [0, 1, 2, ... 1024 ranks]:\n  ranks 0-699: barrier()\n  \
             rank 700: (not here)\n  ranks 701-1023: barrier()"
        );
    }
}
