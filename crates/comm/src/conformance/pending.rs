//! Pending calls: every form, any order, dropped and leaked ones.

use std::sync::Arc;

use crate::{CommError, ReduceOp, World};

use super::{
    collectives::text,
    sample::{same, samples, uneven},
};

pub(super) fn every_form(world: &World) -> Result<(), String> {
    forms(world).map_err(text)?
}

/// Argument errors and comm errors leave through `?`, wrong values in the inner result.
fn forms(world: &World) -> Result<Result<(), String>, CommError> {
    let (group, rank, size) = (world.group().tag("forms"), world.rank(), world.size());
    let root = size - 1;
    let n = 500;
    let counts = uneven(size, n);
    let whole: usize = counts.iter().sum();
    let ranks = |n: usize| (0..size).flat_map(move |rank| vec![rank as i32; n]).collect::<Vec<_>>();
    let by_counts: Vec<i32> =
        counts.iter().enumerate().flat_map(|(rank, &n)| vec![rank as i32; n]).collect();
    let sum = (size * (size - 1) / 2) as i32;
    let me = |n: usize| vec![rank as i32; n];

    let barrier = group.start_barrier()?;
    let broadcast = group.start_broadcast(me(n), root)?;
    let scatter = group.start_scatter(Some(ranks(n)), vec![0; n], root)?;
    let scatter_v =
        group.start_scatter_v(Some(by_counts.clone()), &counts, vec![0; counts[rank]], root)?;
    let gather = group.start_gather(me(n), (rank == root).then(|| vec![0; size * n]), root)?;
    let room = (rank == root).then(|| vec![0; whole]);
    let gather_v = group.start_gather_v(me(counts[rank]), room, &counts, root)?;
    let shared: Arc<[i32]> = me(n).into();
    let all_gather = group.start_all_gather(Arc::clone(&shared), vec![0; size * n])?;
    let all_gather_v = group.start_all_gather_v(me(counts[rank]), vec![0; whole], &counts)?;
    let reduce_scatter = group.start_reduce_scatter(me(size * n), vec![0; n], ReduceOp::Sum)?;
    let reduce_scatter_v =
        group.start_reduce_scatter_v(me(whole), vec![0; counts[rank]], &counts, ReduceOp::Max)?;
    let all_reduce = group.start_all_reduce(me(n), ReduceOp::Sum)?;
    let all_to_all = group.start_all_to_all(ranks(n), vec![0; size * n])?;
    let (sends, receives) = (counts.clone(), vec![counts[rank]; size]);
    let room = vec![0; size * counts[rank]];
    let all_to_all_v = group.start_all_to_all_v(by_counts.clone(), &sends, room, &receives)?;
    let recv = group.start_recv(vec![0; n], (rank + size - 1) % size)?;
    let send = group.start_send(Arc::clone(&shared), (rank + 1) % size)?;

    let sent = send.wait()?;
    let received = recv.wait()?;
    let results = [
        ("broadcast", broadcast.wait()?, vec![root as i32; n]),
        ("scatter", scatter.wait()?, me(n)),
        ("scatter_v", scatter_v.wait()?, me(counts[rank])),
        ("gather", gather.wait()?.unwrap_or_else(|| ranks(n)), ranks(n)),
        ("gather_v", gather_v.wait()?.unwrap_or_else(|| by_counts.clone()), by_counts.clone()),
        ("all_gather", all_gather.wait()?, ranks(n)),
        ("all_gather_v", all_gather_v.wait()?, by_counts.clone()),
        ("reduce_scatter", reduce_scatter.wait()?, vec![sum; n]),
        ("reduce_scatter_v", reduce_scatter_v.wait()?, vec![size as i32 - 1; counts[rank]]),
        ("all_reduce", all_reduce.wait()?, vec![sum; n]),
        ("all_to_all", all_to_all.wait()?, me(size * n)),
        ("all_to_all_v", all_to_all_v.wait()?, me(size * counts[rank])),
        ("send", sent.to_vec(), me(n)),
        ("recv", received, vec![((rank + size - 1) % size) as i32; n]),
    ];
    barrier.wait()?;
    Ok(results.iter().try_for_each(|(what, got, want)| same(what, got, want)))
}

/// Even ranks wait from the first call to the last, odd ones from the last to the first.
pub(super) fn different_orders(world: &World) -> Result<(), String> {
    let (group, size) = (world.group(), world.size());
    for n in [1, 2_000] {
        let start = |i: usize| {
            let pending = group.start_all_reduce(vec![i as f64; n], ReduceOp::Sum);
            Ok((pending.map_err(text)?, vec![(i * size) as f64; n]))
        };
        let mut pending: Vec<_> = (0..20).map(start).collect::<Result<_, String>>()?;
        if world.rank() % 2 == 1 {
            pending.reverse();
        }
        for (pending, want) in pending {
            same("all_reduce", &pending.wait().map_err(text)?, &want)?;
        }
    }
    Ok(())
}

pub(super) fn tested(world: &World) -> Result<(), String> {
    for n in [1, 5_000] {
        let mine = samples::<f32>(world.rank(), n, 21);
        let mut pending =
            world.group().start_all_gather(mine, vec![0.0; n * world.size()]).map_err(text)?;
        while !pending.test().map_err(text)? {
            std::thread::yield_now();
        }
        if !pending.test().map_err(text)? {
            return Err("a call that was ready is not ready any more".to_string());
        }
        let want: Vec<f32> = (0..world.size()).flat_map(|rank| samples(rank, n, 21)).collect();
        same("all_gather", &pending.wait().map_err(text)?, &want)?;
    }
    Ok(())
}

pub(super) fn many(world: &World) -> Result<(), String> {
    let group = world.group();
    let start = |i: usize| group.start_broadcast(vec![(i + world.rank()) as i64; 1 + i % 40], 0);
    let pending: Vec<_> = (0..200).map(start).collect::<Result<_, _>>().map_err(text)?;
    for (i, pending) in pending.into_iter().enumerate().rev() {
        same("broadcast", &pending.wait().map_err(text)?, &vec![i as i64; 1 + i % 40])?;
    }
    Ok(())
}

pub(super) fn dropped(world: &World) -> Result<(), String> {
    let group = world.group();
    for n in [1, 1_000] {
        let pending = group.start_all_reduce(vec![1.0_f32; n], ReduceOp::Sum).map_err(text)?;
        if world.rank() == 0 {
            drop(pending);
        } else {
            same("sum", &pending.wait().map_err(text)?, &vec![world.size() as f32; n])?;
        }
    }
    barrier_after(world)
}

pub(super) fn leaked(world: &World) -> Result<(), String> {
    let group = world.group();
    for n in [1, 1_000] {
        let pending = group.start_all_reduce(vec![1.0_f32; n], ReduceOp::Sum).map_err(text)?;
        if world.rank() == 0 {
            std::mem::forget(pending);
        } else {
            same("sum", &pending.wait().map_err(text)?, &vec![world.size() as f32; n])?;
        }
    }
    barrier_after(world)
}

/// The calls of the group still meet.
fn barrier_after(world: &World) -> Result<(), String> {
    world.group().tag("afterwards").barrier().map_err(text)
}
