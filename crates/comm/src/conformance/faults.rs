//! The seven faults. In each, the last rank does something else than the others, and every rank that
//! survives must get an error that names ranks and calls, and no data; afterwards the world is dead.

use crate::{CommError, Did, ReduceOp, World};

use super::Case;

/// Programs in which the last rank errs and every rank returns `Ok` if it got the right error. Each
/// needs a world of its own, of two ranks or more (nobody disagrees with himself), and on MPI with
/// [`checks`](crate::Runner::checks) on.
pub const FAULTS: &[(&str, Case)] = &[
    ("different_calls_are_a_mismatch", different_calls),
    ("different_shapes_are_a_mismatch", different_shapes),
    ("different_dtypes_of_equal_bytes_are_a_mismatch", different_dtypes),
    ("different_reductions_are_a_mismatch", different_reductions),
    ("swapped_calls_of_one_shape_are_a_mismatch", swapped_calls),
    ("calls_about_different_things_are_a_mismatch", different_subjects),
    ("different_counts_are_a_mismatch", different_counts),
    ("different_roots_are_a_mismatch", different_roots),
    ("messages_of_different_length_are_a_mismatch", different_messages),
    ("a_rank_that_returns_early_is_an_error_not_a_hang", early_return),
    ("a_rank_that_returns_early_is_missed_in_messages", early_return_without_message),
];

/// Programs in which the last rank dies: the others return `Ok` if they got the right error, and the
/// run as a whole must fail and name the last rank.
pub const DEATHS: &[(&str, Case)] = &[
    ("a_rank_that_panics_stops_the_others", panics),
    ("a_rank_that_returns_an_error_stops_the_others", returns_an_error),
];

fn different_calls(world: &World) -> Result<(), String> {
    let mut buf = vec![rank_value(world); world.size()];
    let result = if is_last(world) {
        world.group().all_gather(&[9.0], &mut buf)
    } else {
        world.group().all_reduce(&mut buf, ReduceOp::Sum)
    };
    untouched(&buf, rank_value(world))?;
    mismatch(world, result, "all_reduce(f32 x", "all_gather(f32 x 1)")
}

fn different_shapes(world: &World) -> Result<(), String> {
    let mut buf = vec![rank_value(world); if is_last(world) { 5000 } else { 5001 }];
    let result = world.group().all_reduce(&mut buf, ReduceOp::Sum);
    untouched(&buf, rank_value(world))?;
    mismatch(world, result, "all_reduce(f32 x 5001, sum)", "all_reduce(f32 x 5000, sum)")
}

fn different_dtypes(world: &World) -> Result<(), String> {
    let result = if is_last(world) {
        world.group().all_reduce(&mut [1_i32, 2, 3], ReduceOp::Sum)
    } else {
        world.group().all_reduce(&mut [1.0_f32, 2.0, 3.0], ReduceOp::Sum)
    };
    mismatch(world, result, "all_reduce(f32 x 3, sum)", "all_reduce(i32 x 3, sum)")
}

fn different_reductions(world: &World) -> Result<(), String> {
    let op = if is_last(world) { ReduceOp::Max } else { ReduceOp::Sum };
    let mut buf = vec![rank_value(world); 300];
    let result = world.group().all_reduce(&mut buf, op);
    untouched(&buf, rank_value(world))?;
    mismatch(world, result, "all_reduce(f32 x 300, sum)", "all_reduce(f32 x 300, max)")
}

fn swapped_calls(world: &World) -> Result<(), String> {
    let group = world.group();
    let tags = if is_last(world) { ["grad", "loss"] } else { ["loss", "grad"] };
    let mut buf = [rank_value(world); 4];
    let result = group.tag(tags[0]).all_reduce(&mut buf, ReduceOp::Sum);
    untouched(&buf, rank_value(world))?;
    let (theirs, last) = (r#"sum, tag "loss")"#, r#"sum, tag "grad")"#);
    mismatch(world, result, theirs, last)?;
    dead(group.tag(tags[1]).all_reduce(&mut buf, ReduceOp::Sum))
}

fn different_subjects(world: &World) -> Result<(), String> {
    let subject = if is_last(world) { 2 } else { 1 };
    let mut buf = [rank_value(world); 4];
    let result = world.group().tag("rows").about(subject).all_reduce(&mut buf, ReduceOp::Sum);
    untouched(&buf, rank_value(world))?;
    let (theirs, last) = ("about 0000000000000001)", "about 0000000000000002)");
    mismatch(world, result, theirs, last)
}

fn different_counts(world: &World) -> Result<(), String> {
    let size = world.size();
    // The last rank expects one element more from everybody than it is sent.
    let sends = vec![2; size];
    let receives = vec![if is_last(world) { 3 } else { 2 }; size];
    let mut recv = vec![0_i32; receives.iter().sum()];
    let send = vec![7_i32; 2 * size];
    let result = world.group().all_to_all_v(&send, &sends, &mut recv, &receives);
    if recv.iter().any(|&x| x != 0) {
        return Err("data moved in spite of the mismatch".to_string());
    }
    mismatch(world, result, "recv [2", "recv [3")
}

fn different_roots(world: &World) -> Result<(), String> {
    let root = usize::from(is_last(world));
    let mut buf = vec![rank_value(world); 100];
    let result = world.group().broadcast(&mut buf, root);
    untouched(&buf, rank_value(world))?;
    mismatch(world, result, "broadcast(f32 x 100, root 0)", "broadcast(f32 x 100, root 1)")
}

/// Rank 0 sends three elements, the last rank expects four; the others come to know at their next
/// call.
fn different_messages(world: &World) -> Result<(), String> {
    let (group, last) = (world.group(), world.size() - 1);
    let mut buf = [0_i32; 4];
    let result = match world.rank() {
        0 => group.send(&[1_i32, 2, 3], last),
        rank if rank == last => group.recv(&mut buf, 0),
        _ => group.barrier(),
    };
    if buf != [0; 4] {
        return Err(format!("data moved in spite of the mismatch: {buf:?}"));
    }
    let error = result.err().ok_or("the call succeeded")?;
    let text = error.to_string();
    let named = ["send(i32 x 3", "recv(i32 x 4, from 0)"].iter().all(|call| text.contains(call));
    if !matches!(error.first_cause(), CommError::Mismatch { .. }) || !named {
        return Err(format!("not the mismatch that was expected: {text}"));
    }
    dead(group.barrier())
}

fn early_return(world: &World) -> Result<(), String> {
    let last = world.size() - 1;
    if is_last(world) {
        return Ok(());
    }
    let mut buf = vec![rank_value(world); 10];
    let result = world.group().all_reduce(&mut buf, ReduceOp::Sum);
    untouched(&buf, rank_value(world))?;
    let error = result.err().ok_or("the call succeeded without the last rank")?;
    let CommError::RankLeft { rank, table } = error.first_cause() else {
        return Err(format!("not the error that was expected: {error}"));
    };
    let called = |did: Option<&Did>| matches!(did, Some(Did::Call(call)) if call.starts_with("all_reduce(f32 x 10"));
    let own_row = called(table.row(world.rank())) || table.row(world.rank()) == Some(&Did::NotHere);
    if *rank != last || table.row(last) != Some(&Did::Left) || !own_row {
        return Err(format!("the wrong names: {error}"));
    }
    dead(world.group().barrier())
}

fn early_return_without_message(world: &World) -> Result<(), String> {
    let last = world.size() - 1;
    if is_last(world) {
        return Ok(());
    }
    let mut buf = [1_u8];
    let error = world.group().recv(&mut buf, last).err().ok_or("received from nobody")?;
    let text = error.to_string();
    let right = matches!(error.first_cause(), CommError::RankLeft { rank, .. } if *rank == last)
        && text.contains(&format!("recv(u8 x 1, from {last})"));
    if !right {
        return Err(format!("not the error that was expected: {text}"));
    }
    dead(world.group().barrier())
}

#[allow(clippy::panic)] // The panic is the case.
fn panics(world: &World) -> Result<(), String> {
    if is_last(world) {
        panic!("boom on purpose");
    }
    outlives(world, "boom on purpose")
}

fn returns_an_error(world: &World) -> Result<(), String> {
    if is_last(world) {
        return Err("out of luck on purpose".to_string());
    }
    outlives(world, "out of luck on purpose")
}

/// What the others see when the last rank dies with this text.
fn outlives(world: &World, cause: &str) -> Result<(), String> {
    let last = world.size() - 1;
    let mut buf = vec![rank_value(world); 70];
    let result = world.group().tag("survivors").all_reduce(&mut buf, ReduceOp::Sum);
    untouched(&buf, rank_value(world))?;
    let error = result.err().ok_or("the call succeeded without the last rank")?;
    let text = error.to_string();
    let right = matches!(error.first_cause(), CommError::RankFailed { rank, .. } if *rank == last)
        && text.contains(cause)
        && text.contains(r#"all_reduce(f32 x 70, sum, tag "survivors")"#);
    if !right {
        return Err(format!("not the error that was expected: {text}"));
    }
    dead(world.group().barrier())
}

/// The error of a mismatch: everybody's call is in the table, the last rank's is `last`, the others'
/// `theirs`; and the world is dead afterwards, with the same first cause.
fn mismatch(
    world: &World,
    result: Result<(), CommError>,
    theirs: &str,
    last: &str,
) -> Result<(), String> {
    let error = result.err().ok_or("the call succeeded in spite of the mismatch")?;
    let CommError::Mismatch { table } = &error else {
        return Err(format!("not a mismatch: {error}"));
    };
    for rank in 0..world.size() {
        let want = if rank == world.size() - 1 { last } else { theirs };
        match table.row(rank) {
            Some(Did::Call(call)) if call.contains(want) => {}
            other => return Err(format!("row of rank {rank} is {other:?}, not {want}")),
        }
    }
    match world.group().barrier() {
        Err(CommError::GroupDead { cause, .. }) if *cause == error => Ok(()),
        other => Err(format!("a call on a dead world gave {other:?}")),
    }
}

fn dead(result: Result<(), CommError>) -> Result<(), String> {
    match result {
        Err(CommError::GroupDead { .. }) => Ok(()),
        other => Err(format!("a call on a dead world gave {other:?}")),
    }
}

fn is_last(world: &World) -> bool {
    world.rank() == world.size() - 1
}

fn rank_value(world: &World) -> f32 {
    world.rank() as f32 + 0.5
}

fn untouched(buf: &[f32], value: f32) -> Result<(), String> {
    if buf.iter().all(|&x| x == value) { Ok(()) } else { Err("data moved".to_string()) }
}
