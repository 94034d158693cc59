//! Messages between two ranks.

use crate::World;

use super::{collectives::text, sample::same};

/// From every rank to the next; even ranks send first, odd ones receive first.
pub(super) fn in_order(world: &World) -> Result<(), String> {
    let (group, rank, size) = (world.group(), world.rank(), world.size());
    if size == 1 {
        return Ok(());
    }
    for peer in (0..size).filter(|&peer| peer != rank) {
        for n in [0, 1, 3, 40_000] {
            let message = |from: usize, to: usize| vec![(from * 1000 + to + n) as i32; n];
            let mut buf = vec![0; n];
            if rank < peer {
                group.send(&message(rank, peer), peer).map_err(text)?;
                group.recv(&mut buf, peer).map_err(text)?;
            } else {
                group.recv(&mut buf, peer).map_err(text)?;
                group.send(&message(rank, peer), peer).map_err(text)?;
            }
            same(&format!("message from {peer}"), &buf, &message(peer, rank))?;
        }
    }
    Ok(())
}

/// Sent as a, b; received as b, a.
pub(super) fn by_tag(world: &World) -> Result<(), String> {
    let (group, rank, size) = (world.group(), world.rank(), world.size());
    let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
    let a = group.tag("a").start_send(vec![rank as i64; 3], next).map_err(text)?;
    let b = group.tag("b").start_send(vec![-(rank as i64); 3], next).map_err(text)?;
    let mut buf = [0; 3];
    group.tag("b").recv(&mut buf, last).map_err(text)?;
    same("tag b", &buf, &[-(last as i64); 3])?;
    group.tag("a").recv(&mut buf, last).map_err(text)?;
    same("tag a", &buf, &[last as i64; 3])?;
    for sent in [a, b] {
        sent.wait().map_err(text)?;
    }
    Ok(())
}

/// Several messages between every two ranks, this one included, all in flight at once.
pub(super) fn crossing(world: &World) -> Result<(), String> {
    let (group, rank, size) = (world.group(), world.rank(), world.size());
    let message =
        |from: usize, to: usize, i: usize| vec![(from * 100 + to * 10 + i) as f64; i * 300];
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for peer in 0..size {
        for i in 0..4 {
            sends.push(group.start_send(message(rank, peer, i), peer).map_err(text)?);
            let room = vec![0.0; i * 300];
            receives.push((peer, i, group.start_recv(room, peer).map_err(text)?));
        }
    }
    for (peer, i, pending) in receives.into_iter().rev() {
        same("message", &pending.wait().map_err(text)?, &message(peer, rank, i))?;
    }
    for pending in sends {
        pending.wait().map_err(text)?;
    }
    Ok(())
}
