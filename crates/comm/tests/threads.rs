//! The conformance cases, the seven faults and the deaths, on ranks that are threads.

use std::{sync::Mutex, time::Duration};

use dtensor_comm::{
    CommError, ReduceOp, Runner, World,
    conformance::{CASES, Case, DEATHS, FAULTS},
};

/// Long enough for a busy machine, short enough that a hang is noticed.
const DEADLINE: Duration = Duration::from_secs(60);

fn runner(ranks: usize) -> Runner {
    Runner::threads(ranks).deadline(DEADLINE)
}

/// Runs each case in a world of its own and lists all that fail.
#[track_caller]
fn check(cases: &[(&str, Case)], sizes: &[usize]) {
    let mut failures = String::new();
    for &size in sizes {
        for (name, case) in cases {
            if let Err(error) = runner(size).run(case) {
                failures += &format!("\n{name} on {size} ranks: {error}");
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn every_case_holds_on_1_rank() {
    check(CASES, &[1]);
}

#[test]
fn every_case_holds_on_2_ranks() {
    check(CASES, &[2]);
}

#[test]
fn every_case_holds_on_3_and_4_ranks() {
    check(CASES, &[3, 4]);
}

#[test]
fn every_case_holds_on_7_ranks() {
    check(CASES, &[7]);
}

#[test]
fn all_cases_run_in_one_world_one_after_the_other() {
    let all = |world: &World| {
        CASES.iter().try_for_each(|(name, case)| case(world).map_err(|e| format!("{name}: {e}")))
    };
    runner(4).run(all).unwrap();
}

#[test]
fn every_fault_is_an_error_on_every_rank_and_the_world_is_dead_afterwards() {
    check(FAULTS, &[2, 3, 4, 7]);
}

#[test]
fn a_rank_that_dies_ends_the_run_with_its_cause_and_stops_the_others() {
    for &(name, case) in DEATHS {
        for size in [1, 2, 3, 4, 7] {
            let survivors = Mutex::new(Vec::new());
            let error = runner(size)
                .run(|world| {
                    case(world)?;
                    survivors.lock().unwrap().push(world.rank());
                    Ok::<_, String>(())
                })
                .unwrap_err();
            let mut survivors = survivors.into_inner().unwrap();
            survivors.sort_unstable();
            assert_eq!(survivors, (0..size - 1).collect::<Vec<_>>(), "{name} on {size}: {error}");
            assert_eq!(error.rank(), Some(size - 1), "{name}: {error}");
            assert!(error.to_string().contains("on purpose"), "{name}: {error}");
        }
    }
}

#[test]
fn a_rank_that_never_comes_is_an_error_at_the_deadline() {
    let (leave, wait) = std::sync::mpsc::channel::<()>();
    let (leave, wait) = (Mutex::new(leave), Mutex::new(wait));
    let errors = Runner::threads(3)
        .deadline(Duration::from_millis(50))
        .run(|world| {
            if world.rank() == 2 {
                // Alive, and not coming, until one of the others has given up.
                wait.lock().unwrap().recv().unwrap();
                return Ok(None);
            }
            let result = world.group().tag("step").all_reduce(&mut [0.0_f32], ReduceOp::Sum);
            leave.lock().unwrap().send(()).unwrap();
            Ok::<_, CommError>(Some(result.unwrap_err()))
        })
        .unwrap();
    for error in errors[..2].iter().flatten() {
        let text = error.to_string();
        assert!(matches!(error, CommError::Deadline { .. }), "{text}");
        assert!(text.contains(r#"rank 0: all_reduce(f32 x 1, sum, tag "step")"#), "{text}");
        assert!(text.contains("rank 2: (not here)"), "{text}");
    }
}

#[test]
fn a_receiver_without_a_sender_is_an_error_at_the_deadline() {
    let runner = Runner::threads(2).deadline(Duration::from_millis(50));
    let errors = runner
        .run(|world| {
            // Both receive, nobody sends.
            let peer = 1 - world.rank();
            Ok::<_, CommError>(world.group().recv(&mut [0_u8; 4], peer).unwrap_err())
        })
        .unwrap();
    let deadlines = errors.iter().filter(|e| matches!(e, CommError::Deadline { .. })).count();
    assert!(deadlines >= 1, "{errors:?}");
    assert!(errors[0].to_string().contains("recv(u8 x 4, from 1)"), "{}", errors[0]);
}

#[test]
fn a_pending_call_of_a_panicking_rank_does_not_delay_the_others() {
    let error = runner(3)
        .run(|world| {
            let pending = world.group().start_all_reduce(vec![1.0_f32; 100], ReduceOp::Sum)?;
            assert!(world.rank() != 1, "stumbled");
            let first = pending.wait();
            let second = world.group().barrier();
            // The first call was complete or is not; the second never is.
            assert!(second.is_err());
            first.map(|sums| assert_eq!(sums, vec![3.0; 100]))
        })
        .unwrap_err();
    assert_eq!(error.rank(), Some(1));
    assert!(error.to_string().contains("panicked: stumbled"), "{error}");
}

#[test]
fn a_failure_in_one_group_wakes_those_who_wait_in_another() {
    let errors = runner(4)
        .run(|world| {
            let pair = if world.rank() < 2 { [0, 1] } else { [2, 3] };
            let group = world.subgroup(&pair)?;
            let result = match world.rank() {
                0 => group.all_reduce(&mut [1.0_f32], ReduceOp::Sum),
                1 => group.all_reduce(&mut [1.0_f64], ReduceOp::Sum),
                // Ranks 2 and 3 wait for different things that never come.
                2 => group.recv(&mut [0_u8], 1),
                _ => world.group().barrier(),
            };
            Ok::<_, CommError>(result.unwrap_err())
        })
        .unwrap();
    assert!(matches!(errors[0], CommError::Mismatch { .. }), "{}", errors[0]);
    assert_eq!(errors[0], errors[1]);
    for error in &errors[2..] {
        assert_eq!(error.first_cause(), &errors[0], "{error}");
    }
}

#[test]
fn a_call_with_a_handle_that_outlived_the_run_is_refused() {
    let worlds = runner(2).run(|world| Ok::<_, CommError>(world.clone())).unwrap();
    let error = worlds[0].group().barrier().unwrap_err();
    assert!(matches!(error, CommError::GroupDead { .. }), "{error}");
}
