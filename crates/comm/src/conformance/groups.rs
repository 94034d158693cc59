//! Sub-groups: in any order, overlapping, many calls at once.

use crate::{ReduceOp, World};

use super::{collectives::text, sample::same};

/// Even and odd ranks, neighbours, and everybody backwards, in turn.
pub(super) fn side_by_side(world: &World) -> Result<(), String> {
    let (rank, size) = (world.rank(), world.size());
    let interleaved: Vec<usize> = (rank % 2..size).step_by(2).collect();
    let neighbours: Vec<usize> = (rank / 2 * 2..size.min(rank / 2 * 2 + 2)).collect();
    let backwards: Vec<usize> = (0..size).rev().collect();
    let alone = vec![rank];
    for round in 0..3 {
        for ranks in [&interleaved, &neighbours, &backwards, &alone] {
            let group = world.subgroup(ranks).map_err(text)?;
            if group.world_ranks() != &ranks[..] || group.world_ranks()[group.rank()] != rank {
                return Err(format!("group {ranks:?} thinks it is {:?}", group.world_ranks()));
            }
            let mut sum = [rank as i64 + round];
            group.all_reduce(&mut sum, ReduceOp::Sum).map_err(text)?;
            let want = ranks.iter().map(|&rank| rank as i64 + round).sum();
            same(&format!("sum of {ranks:?}"), &sum, &[want])?;
            let mut all = vec![0_i32; ranks.len()];
            group.all_gather(&[rank as i32], &mut all).map_err(text)?;
            let want: Vec<i32> = ranks.iter().map(|&rank| rank as i32).collect();
            same(&format!("ranks of {ranks:?}"), &all, &want)?;
        }
    }
    Ok(())
}

/// One list of ranks is one sequence of calls, however often it is asked for.
pub(super) fn cached(world: &World) -> Result<(), String> {
    let everybody: Vec<usize> = (0..world.size()).collect();
    let backwards: Vec<usize> = everybody.iter().rev().copied().collect();
    for _ in 0..3 {
        // Rank 0 asks every time, the others keep a handle; the calls must still meet.
        let group = world.subgroup(&backwards).map_err(text)?;
        let kept = group.clone().tag("kept");
        let mut sum = [1_i32];
        if world.rank() == 0 {
            world
                .subgroup(&backwards)
                .map_err(text)?
                .tag("kept")
                .all_reduce(&mut sum, ReduceOp::Sum)
        } else {
            kept.all_reduce(&mut sum, ReduceOp::Sum)
        }
        .map_err(text)?;
        same("sum", &sum, &[world.size() as i32])?;
    }
    let group = world.subgroup(&everybody).map_err(text)?;
    let mut sum = [1_i32];
    if world.rank() == 0 { group } else { world.group() }
        .all_reduce(&mut sum, ReduceOp::Sum)
        .map_err(text)?;
    same("all ranks by list and by default", &sum, &[world.size() as i32])
}

/// Every pair of ranks is a group; all of them have calls in flight at the same time.
pub(super) fn many_in_flight(world: &World) -> Result<(), String> {
    let (rank, size) = (world.rank(), world.size());
    let mut pending = Vec::new();
    for round in 0..4 {
        for peer in (0..size).filter(|&peer| peer != rank) {
            let pair = world.subgroup(&[rank.min(peer), rank.max(peer)]).map_err(text)?;
            let value = vec![(rank * 100 + round) as i64; 50 * round + 1];
            let want = vec![((rank + peer) * 100 + 2 * round) as i64; 50 * round + 1];
            pending.push((pair.start_all_reduce(value, ReduceOp::Sum).map_err(text)?, want));
        }
        let sum = world.group().start_all_reduce(vec![round as i64], ReduceOp::Sum);
        pending.push((sum.map_err(text)?, vec![(round * size) as i64]));
    }
    // From the last to the first on odd ranks.
    if rank % 2 == 1 {
        pending.reverse();
    }
    for (pending, want) in pending {
        same("sum in flight", &pending.wait().map_err(text)?, &want)?;
    }
    Ok(())
}
