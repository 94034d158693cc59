//! Programs in which a rank errs, leaves or dies, and the others must learn of it.

use std::process::{self, Command, Stdio};

use dtensor_comm::{
    CommError, Did, ReduceOp, World, WorldKind,
    conformance::{Case, DEATHS, FAULTS},
};

use super::{checkpoints, remote_shards};

/// A program in which one rank does something else than the others. It needs a world of its
/// own; every rank that survives returns `Ok` if it got the error that it should get.
pub struct Fault {
    /// Its name.
    pub name: &'static str,
    /// The program of one rank.
    pub body: Case,
    /// Who does not survive.
    pub loses: Loses,
}

/// The rank that a fault loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loses {
    /// None.
    Nobody,
    /// Rank 0, which does some things alone.
    First,
    /// The last one.
    Last,
}

impl Loses {
    /// Whether it is this rank.
    pub fn this_rank(self, world: &World) -> bool {
        match self {
            Loses::Nobody => false,
            Loses::First => world.rank() == 0,
            Loses::Last => world.rank() == world.size() - 1,
        }
    }
}

/// Every fault: ranks that disagree, a rank that returns early, panics or fails, a rank that is
/// killed.
pub fn faults() -> Vec<Fault> {
    let disagreements =
        FAULTS.iter().map(|&(name, body)| Fault { name, body, loses: Loses::Nobody });
    let deaths = DEATHS.iter().map(|&(name, body)| Fault { name, body, loses: Loses::Last });
    let killed: [(&'static str, Case, Loses); 7] = [
        ("a_rank_that_is_killed_is_missed", killed, Loses::Last),
        ("an_owner_of_shards_that_is_killed_is_named", remote_shards::killed_owner, Loses::Last),
        ("an_owner_of_shards_that_is_stopped_is_named", remote_shards::stopped_owner, Loses::Last),
        (
            "a_rank_that_is_killed_in_a_save_leaves_the_old_checkpoint",
            checkpoints::last_killed_in_a_save,
            Loses::Last,
        ),
        (
            "rank_0_killed_in_a_save_leaves_the_old_checkpoint",
            checkpoints::first_killed_in_a_save,
            Loses::First,
        ),
        (
            "a_rank_that_is_killed_in_an_async_save_leaves_the_old_checkpoint",
            checkpoints::last_killed_in_an_async_save,
            Loses::Last,
        ),
        (
            "rank_0_killed_in_an_async_save_leaves_the_old_checkpoint",
            checkpoints::first_killed_in_an_async_save,
            Loses::First,
        ),
    ];
    let killed = killed.map(|(name, body, loses)| Fault { name, body, loses });
    disagreements.chain(deaths).chain(killed).collect()
}

/// What a rank says that should be dead; the others must not take it for a death.
pub(super) const SURVIVED: &str = "still alive after `kill -KILL`";

/// The last rank ends without a word, as when the machine runs out of memory. Only a world of
/// processes can lose a rank so.
fn killed(world: &World) -> Result<(), String> {
    let last = world.size() - 1;
    if world.kind() != WorldKind::Mpi || last == 0 {
        return Err("killing a rank needs several processes: use mpirun".to_string());
    }
    // Everybody has talked to everybody: what follows is not a rank that never came.
    world.group().barrier().map_err(|error| error.to_string())?;
    if world.rank() == last {
        return Err(kill_self());
    }
    let mut buf = [world.rank() as f32; 70];
    let result = world.group().tag("survivors").all_reduce(&mut buf, ReduceOp::Sum);
    let error = result.err().ok_or("the call succeeded without the killed rank")?;
    let named = match error.first_cause() {
        CommError::RankFailed { rank, .. } | CommError::RankLeft { rank, .. } => *rank == last,
        CommError::Deadline { table, .. } => table.row(last) == Some(&Did::NotHere),
        _ => false,
    };
    let text = error.to_string();
    let calls = text.contains("all_reduce(f32 x 70, sum, tag \"survivors\")");
    match named && calls && !text.contains(SURVIVED) {
        true => Ok(()),
        false => Err(format!("not the error that was expected: {text}")),
    }
}

/// Stops this process, and ends it when another has [ended](kill) it or after a while, so that it is not left behind
/// whatever becomes of the others; or says that it is still there.
pub(super) fn stop_self() -> String {
    let script = "kill -STOP $0; n=0; \
        while [ $n -lt 20 ] && kill -0 $0 2>/dev/null; do sleep 1; n=$((n + 1)); done; kill -KILL $0";
    let status = Command::new("sh")
        .args(["-c", script, &process::id().to_string()])
        // What is read by others does not wait for the shell.
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    format!("{SURVIVED}: {status:?}")
}

/// Ends another process of this machine without a word.
pub(super) fn kill(id: i64) -> Result<(), String> {
    let status = Command::new("sh").args(["-c", &format!("kill -KILL {id}")]).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        other => Err(format!("kill -KILL {id}: {other:?}")),
    }
}

/// Ends this process without a word, or says that it is still there.
pub(super) fn kill_self() -> String {
    // The shell's own `kill`: the program of that name is not on every machine.
    let kill = format!("kill -KILL {}", process::id());
    let status = Command::new("sh").args(["-c", &kill]).status();
    format!("{SURVIVED}: {status:?}")
}
