//! The processes below a process, and signals to them.
//!
//! A child stays in the process group of this program, so that Ctrl-C reaches it. When its time is
//! up, though, signalling a process group would not do: mpirun gives every rank a group of its own.
//! So the tree is read from `/proc`.

use std::{
    fs,
    process::{Command, Stdio},
};

/// A process that was running when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    id: u32,
    parent: u32,
    state: char,
    /// In ticks since the machine started.
    started: u64,
}

/// Everything below process `id`; nothing where there is no `/proc`.
pub fn below(id: u32) -> Vec<Process> {
    descendants(id, &all())
}

/// Kills those of `processes` that are still running.
pub fn kill(processes: &[Process]) {
    // A number alone could meanwhile be somebody else's; number and start time together cannot.
    let now = all();
    let same = |a: &Process, b: &Process| a.id == b.id && a.started == b.started;
    let left = processes.iter().filter(|process| now.iter().any(|other| same(process, other)));
    send("KILL", &left.map(|process| process.id).collect::<Vec<_>>());
}

/// Signals by the shell's own `kill`: there is none in `std`, and a minimal Debian has no program
/// of that name. A process that is already gone is no error.
pub fn send(signal: &str, ids: &[u32]) {
    if ids.is_empty() {
        return;
    }
    let mut command = Command::new("sh");
    command.args(["-c", r#"kill -s "$@" 2>/dev/null"#, "sh", signal]);
    command.args(ids.iter().map(u32::to_string)).stdin(Stdio::null());
    // Nothing can be done about a machine without a shell, and the error to report is another.
    let _ = command.status();
}

fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("stat")).ok())
        .filter_map(|stat| parse_stat(&stat))
        .filter(|process| process.state != 'Z')
        .collect()
}

/// A line of `/proc/ID/stat`. The second field is the name in parentheses and may itself hold
/// anything, so the fields after it are counted from the last parenthesis.
fn parse_stat(stat: &str) -> Option<Process> {
    let (id, _) = stat.split_once(' ')?;
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(Process {
        id: id.parse().ok()?,
        parent: fields.get(1)?.parse().ok()?,
        state: fields.first()?.chars().next()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

fn descendants(root: u32, processes: &[Process]) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for process in processes.iter().filter(|process| process.parent == parent) {
            found.push(*process);
            parents.push(process.id);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(id: u32, parent: u32) -> Process {
        Process { id, parent, state: 'S', started: 1 }
    }

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let stat = "42 (a) b (c) R 7 42 42 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 9876 1 2";
        let want = Process { id: 42, parent: 7, state: 'R', started: 9876 };
        assert_eq!(parse_stat(stat), Some(want));
        assert_eq!(parse_stat("42 (short) R 7"), None);
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_strangers_are_not() {
        let all = [process(2, 1), process(5, 3), process(3, 1), process(9, 5), process(8, 4)];
        let mut ids: Vec<u32> = descendants(3, &all).iter().map(|process| process.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [5, 9]);
        assert_eq!(descendants(9, &all), []);
    }
}
