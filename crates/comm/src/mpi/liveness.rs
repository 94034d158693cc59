//! Whether the processes of this host are still there.
//!
//! MPI says nothing when a process dies. Usually the launcher notices and ends the job; where it is
//! told not to (`mpirun --enable-recovery`), the others would wait until their deadline. Processes of
//! the same host can be looked up in `/proc` instead, so those that wait for a dead one know it within
//! [`INTERVAL`]. Elsewhere nothing is known, and the deadline has to do.

use std::{fs, path::Path, process, time::Duration};

/// How often a rank that waits looks.
pub(super) const INTERVAL: Duration = Duration::from_millis(100);

/// Bytes in which a process describes itself to the others.
pub(super) const IDENTITY_BYTES: usize = 24;

/// The other processes of this host.
pub(super) struct Neighbours(Vec<Neighbour>);

struct Neighbour {
    rank: usize,
    pid: u64,
    /// A number may be given to another process later; the time when it started tells them apart.
    started: u64,
}

/// How this process describes itself.
pub(super) fn identity() -> [u8; IDENTITY_BYTES] {
    let pid = u64::from(process::id());
    let started = start_time(pid);
    // Without a way to look somebody up nobody is a neighbour: 0 equals no host.
    let host = started.and_then(|_| host()).unwrap_or(0);
    let mut identity = [0; IDENTITY_BYTES];
    for (i, number) in [host, pid, started.unwrap_or(0)].into_iter().enumerate() {
        identity[8 * i..8 * (i + 1)].copy_from_slice(&number.to_le_bytes());
    }
    identity
}

impl Neighbours {
    /// From the identities of all ranks, in rank order.
    pub(super) fn new(identities: &[u8], own_rank: usize) -> Neighbours {
        let read = |identity: &[u8]| {
            [0, 1, 2].map(|i| {
                u64::from_le_bytes(identity[8 * i..].first_chunk().copied().unwrap_or_default())
            })
        };
        let all: Vec<_> = identities.chunks_exact(IDENTITY_BYTES).map(read).collect();
        let own_host = all.get(own_rank).map_or(0, |identity| identity[0]);
        let neighbours = all.into_iter().enumerate().filter_map(|(rank, [host, pid, started])| {
            let same_host = own_host != 0 && host == own_host && rank != own_rank;
            same_host.then_some(Neighbour { rank, pid, started })
        });
        Neighbours(neighbours.collect())
    }

    /// The ranks whose processes are gone.
    pub(super) fn gone(&self) -> impl Iterator<Item = usize> {
        let gone = |neighbour: &&Neighbour| start_time(neighbour.pid) != Some(neighbour.started);
        self.0.iter().filter(gone).map(|neighbour| neighbour.rank)
    }
}

/// When a process started, in the clock ticks of the kernel; `None` if it is gone, or is a zombie.
fn start_time(pid: u64) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses, which may contain anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    // The 22nd of all; the state was the 3rd.
    fields.nth(18)?.parse().ok()
}

/// A number that is the same for processes that see each other in `/proc`: those of one boot of one
/// machine, in one namespace of process numbers.
fn host() -> Option<u64> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link(Path::new("/proc/self/ns/pid")).ok()?;
    let text = boot + &namespace.to_string_lossy();
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Some(hash.max(1))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ends_is_gone() {
        let mut child = process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut identities = [identity(), identity()];
        let pid = u64::from(child.id());
        identities[1][8..16].copy_from_slice(&pid.to_le_bytes());
        identities[1][16..].copy_from_slice(&start_time(pid).unwrap().to_le_bytes());
        let neighbours = Neighbours::new(identities.as_flattened(), 0);
        assert_eq!(neighbours.gone().count(), 0);
        child.kill().unwrap();
        // Not waited for: a zombie is gone as well, though it may take the kernel a moment.
        while neighbours.gone().next() != Some(1) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(neighbours.gone().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_process_of_another_host_is_not_looked_up() {
        let mut identities = [identity(), identity()];
        identities[1] = [1; IDENTITY_BYTES];
        let neighbours = Neighbours::new(identities.as_flattened(), 0);
        assert_eq!(neighbours.gone().count(), 0);
        assert!(neighbours.0.is_empty());
    }
}
