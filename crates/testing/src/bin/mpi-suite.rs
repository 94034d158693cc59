//! The cases and faults of `dtensor_testing::suite` on the ranks of an mpirun.
//!
//! ```text
//! mpirun -n 3 mpi-suite               all cases; rank 0 prints `N passed, N failed` at the end
//! mpirun -n 3 mpi-suite --only NAME   one case
//! mpi-suite --list                    the names of the cases
//! mpi-suite --list-faults             the names of the faults, a tab, further flags for mpirun
//! mpirun -n 3 mpi-suite --fault NAME  one fault; each rank prints `fault NAME: rank R: ` and
//!                                     `ok`, `lost` or `failed: ...`
//! ```
//!
//! Without mpirun the ranks are three threads.
#![allow(clippy::print_stdout, clippy::print_stderr)] // A program, not a library.

use std::{
    env,
    io::{self, Write},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use dtensor_comm::{Runner, World};
use dtensor_testing::{
    Failure,
    suite::{Case, Fault, Loses, cases, faults},
};

/// A case that waits longer hangs.
const CASE_DEADLINE: Duration = Duration::from_secs(60);

/// After which time survivors of a rank that died without a word give up.
const FAULT_DEADLINE: Duration = Duration::from_secs(10);

const USAGE: &str = "usage: mpi-suite [--only NAME | --list | --list-faults | --fault NAME]";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => run_cases(&cases().collect::<Vec<_>>()),
        ["--only", name] => match cases().find(|case| case.0 == name) {
            Some(case) => run_cases(&[case]),
            None => fail(&format!("no case {name:?}; see --list")),
        },
        ["--list"] => {
            cases().for_each(|(name, _)| println!("{name}"));
            ExitCode::SUCCESS
        }
        ["--list-faults"] => {
            // No fault needs flags beyond those that keep survivors alive.
            faults().iter().for_each(|fault| println!("{}\t", fault.name));
            ExitCode::SUCCESS
        }
        ["--fault", name] => match faults().iter().find(|fault| fault.name == name) {
            Some(fault) => run_fault(fault),
            None => fail(&format!("no fault {name:?}; see --list-faults")),
        },
        _ => fail(USAGE),
    }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::FAILURE
}

/// Runs every case in a world of its own, so that one that breaks its world does not take the others
/// with it.
fn run_cases(cases: &[(&str, Case)]) -> ExitCode {
    let speaks = AtomicBool::new(false);
    let mut n_failed = 0;
    for (name, case) in cases {
        let passed = run_case(name, *case, &speaks);
        n_failed += usize::from(!passed);
        if speaks.load(Ordering::Relaxed) {
            println!("{} {name}", if passed { "ok    " } else { "FAILED" });
        }
    }
    if speaks.load(Ordering::Relaxed) {
        println!("{} passed, {n_failed} failed", cases.len() - n_failed);
    }
    if n_failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether a case passed on all ranks. `speaks` becomes true in the process that has rank 0.
fn run_case(name: &str, case: Case, speaks: &AtomicBool) -> bool {
    let body = |world: &World| -> Result<(), Failure> {
        speaks.fetch_or(world.rank() == 0, Ordering::Relaxed);
        case(world)?;
        // Nobody passes unless all do: a rank that fails stops those that wait here.
        Ok(world.group().tag("verdict").barrier()?)
    };
    let ended = runner().deadline(CASE_DEADLINE).run(body);
    if let Err(error) = &ended {
        // All ranks have the same first cause; a run that did not begin has no rank 0 to tell it.
        if speaks.load(Ordering::Relaxed) || error.rank().is_none() {
            eprintln!("{name}: {error}");
        }
    }
    ended.is_ok()
}

fn run_fault(fault: &Fault) -> ExitCode {
    let failed = AtomicBool::new(false);
    let body = |world: &World| {
        let is_lost = fault.loses.this_rank(world);
        if is_lost {
            say(fault, world, "lost");
        }
        let verdict = (fault.body)(world);
        if let Err(why) = &verdict {
            // The rank that is lost by returning an error has said so already.
            if !is_lost {
                failed.store(true, Ordering::Relaxed);
                say(fault, world, &format!("failed: {}", why.replace('\n', " / ")));
            }
        } else {
            say(fault, world, "ok");
        }
        verdict
    };
    let ended = runner().deadline(FAULT_DEADLINE).run(body);
    // What the error says, the ranks have judged already; but a run that lost a rank must have one.
    if fault.loses != Loses::Nobody && ended.is_ok() {
        return fail("the run ended well though a rank was lost");
    }
    if failed.into_inner() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// One line in one piece, and out of the door before anything else happens to the process.
fn say(fault: &Fault, world: &World, word: &str) {
    let line = format!("fault {}: rank {}: {word}\n", fault.name, world.rank());
    let mut out = io::stdout().lock();
    // Nobody is left to tell if that fails.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

fn runner() -> Runner {
    Runner::new().ranks(3).checks(true)
}
