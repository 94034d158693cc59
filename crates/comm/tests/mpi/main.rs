//! What depends on the settings of the MPI world: the same cases without checks, in pieces, with MPI's
//! own reductions, and beyond the limits of its tags.
//!
//! Built with the feature `mpi` and started by mpirun, this program's ranks are processes. They make
//! the same calls in the same order only if the tests run one after the other:
//!
//! ```text
//! mpirun -n 3 target/debug/deps/mpi-... --test-threads=1
//! ```
//!
//! Otherwise, as under `cargo test`, the ranks are three threads, to which most settings do not apply
//! and all results do.

use std::{thread, time::Duration};

use dtensor_comm::{CommError, ReduceOp, Runner, World, bf16, conformance::CASES};

fn runner() -> Runner {
    Runner::new().ranks(3).deadline(Duration::from_secs(60))
}

fn every_case(world: &World) -> Result<(), String> {
    CASES.iter().try_for_each(|(name, case)| case(world).map_err(|why| format!("{name}: {why}")))
}

#[test]
fn every_case_passes_without_checks() {
    runner().checks(false).run(every_case).unwrap();
}

#[test]
fn every_case_passes_in_pieces_of_a_few_bytes() {
    for checks in [false, true] {
        runner().checks(checks).max_message_bytes(64).run(every_case).unwrap();
    }
}

#[test]
fn native_reductions_give_the_values_that_any_order_gives() {
    let body = |world: &World| -> Result<(), CommError> {
        let (group, rank, size) = (world.group(), world.rank(), world.size());
        for n in [0, 1, 10, 40_000] {
            // Small integers: every order of the sum is exact.
            let sum = (size * (size + 1) / 2) as f64;
            let mut buf = vec![rank as f64 + 1.0; n];
            group.all_reduce(&mut buf, ReduceOp::Avg)?;
            assert_eq!(buf, vec![sum / size as f64; n]);
            let mut buf = vec![rank as i32; n];
            group.all_reduce(&mut buf, ReduceOp::Max)?;
            assert_eq!(buf, vec![size as i32 - 1; n]);

            let counts: Vec<usize> = (0..size).map(|rank| rank * n / 2).collect();
            let mut recv = vec![0; counts[rank]];
            let send = vec![2_i64; counts.iter().sum()];
            group.reduce_scatter_v(&send, &mut recv, &counts, ReduceOp::Product)?;
            assert_eq!(recv, vec![1 << size; counts[rank]]);
            let pending =
                group.start_reduce_scatter(vec![1_u8; n * size], vec![0; n], ReduceOp::Sum)?;
            assert_eq!(pending.wait()?, vec![size as u8; n]);

            // MPI knows no bf16, and a NaN is nothing to it: these are reduced as ever.
            let mut buf = vec![bf16::from_f32(rank as f32 + 1.0); n];
            group.all_reduce(&mut buf, ReduceOp::Sum)?;
            assert_eq!(buf, vec![bf16::from_f64(sum); n]);
            let mut buf = vec![if rank == 0 { f32::NAN } else { 1.0 }; n];
            group.all_reduce(&mut buf, ReduceOp::Max)?;
            assert!(buf.iter().all(|x| x.is_nan()));
        }
        Ok(())
    };
    runner().native_reductions(true).run(body).unwrap();
}

/// With Open MPI 4,096 calls of a group have a tag of their own.
#[test]
fn more_calls_may_be_in_flight_than_there_are_tags() {
    const CALLS: i64 = 5_000;
    let body = |world: &World| -> Result<(), CommError> {
        let (group, rank, size) = (world.group(), world.rank(), world.size());
        let sums = (0..CALLS).map(|call| group.start_all_reduce(vec![call], ReduceOp::Sum));
        for (call, sum) in (0..CALLS).zip(sums.collect::<Result<Vec<_>, _>>()?) {
            assert_eq!(sum.wait()?, [call * size as i64]);
        }
        if rank == 0 {
            let sends = (0..CALLS).map(|call| group.start_send(vec![call], 1));
            let sends = sends.collect::<Result<Vec<_>, _>>()?;
            sends.into_iter().try_for_each(|send| send.wait().map(drop))?;
        } else if rank == 1 {
            for call in 0..CALLS {
                let mut received = [0];
                group.recv(&mut received, 0)?;
                assert_eq!(received, [call]);
            }
        }
        Ok(())
    };
    let body = |world: &World| body_or_alone(world, body);
    runner().checks(false).run(body).unwrap();
}

/// A length that differs is found even where calls are not compared, and does no damage: Open MPI
/// would write a long message past the end of a short buffer.
#[test]
fn lengths_that_differ_are_a_mismatch_even_without_checks() {
    let body = |world: &World| -> Result<(), CommError> {
        let n = if world.rank() == 0 { 100_000 } else { 10 };
        let mut buf = vec![1.0_f32; n];
        let result = world.group().broadcast(&mut buf, 0);
        assert_eq!(buf, vec![1.0; n]);
        // The root of a broadcast need not wait for anybody; it learns of the mismatch afterwards.
        result.and_then(|()| world.group().barrier())
    };
    let result = runner().checks(false).run(|world| body_or_alone(world, body));
    match result {
        Ok(ranks) => assert_eq!(ranks.len(), 1, "the broadcast succeeded"),
        Err(error) => {
            assert!(matches!(error.cause(), CommError::Mismatch { .. }), "{error}");
        }
    }
}

#[test]
fn threads_of_one_rank_may_call_at_the_same_time() {
    let body = |world: &World| -> Result<(), CommError> {
        let backwards: Vec<usize> = (0..world.size()).rev().collect();
        let groups = [world.group(), world.subgroup(&backwards)?];
        thread::scope(|scope| {
            let spawn = |group| {
                scope.spawn(move || {
                    for call in 0..500_usize {
                        let mut sum = [call as i64];
                        let group: &dtensor_comm::Group = group;
                        group.all_reduce(&mut sum, ReduceOp::Sum)?;
                        assert_eq!(sum, [(call * group.size()) as i64]);
                    }
                    Ok::<_, CommError>(())
                })
            };
            let threads: Vec<_> = groups.iter().map(spawn).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap())
        })
    };
    runner().run(body).unwrap();
}

#[test]
fn a_rank_may_send_to_itself() {
    let body = |world: &World| -> Result<(), CommError> {
        let sent = world.group().start_send(vec![1.0_f32, 2.0], world.rank())?;
        let mut received = [0.0_f32; 2];
        world.group().recv(&mut received, world.rank())?;
        assert_eq!(sent.wait()?, received);
        Ok(())
    };
    for checks in [false, true] {
        runner().checks(checks).run(body).unwrap();
    }
}

/// Does nothing in a world of one rank, which disagrees with nobody and sends to nobody.
fn body_or_alone(
    world: &World,
    body: impl Fn(&World) -> Result<(), CommError>,
) -> Result<(), CommError> {
    if world.size() == 1 { Ok(()) } else { body(world) }
}
