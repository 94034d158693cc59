//! Calls that move data, with even, uneven and zero counts, for every dtype.

use crate::{DType, ReduceOp, Values, ValuesMut, World};

use super::sample::{Sample, every_dtype, same, samples, uneven};

/// Elements per rank: nothing, one, a few (inline on threads), and more than a block of any
/// kind.
const LENGTHS: [usize; 5] = [0, 1, 3, 100, 5_001];

pub(super) fn barrier(world: &World) -> Result<(), String> {
    for _ in 0..3 {
        world.group().barrier().map_err(text)?;
    }
    Ok(())
}

pub(super) fn broadcast(world: &World) -> Result<(), String> {
    fn case<T: Sample>(world: &World) -> Result<(), String> {
        for root in 0..world.size() {
            for n in LENGTHS {
                let mut buf = samples::<T>(world.rank(), n, 1);
                world.group().broadcast(&mut buf, root).map_err(text)?;
                same("broadcast", &buf, &samples(root, n, 1))?;
            }
        }
        Ok(())
    }
    every_dtype!(case(world));
    Ok(())
}

pub(super) fn scatter(world: &World) -> Result<(), String> {
    fn case<T: Sample>(world: &World) -> Result<(), String> {
        let (group, rank, size) = (world.group(), world.rank(), world.size());
        for n in LENGTHS {
            for root in 0..size {
                let whole = samples::<T>(root, size * n, 2);
                let mut recv = vec![T::default(); n];
                let send = (rank == root).then_some(&whole[..]);
                group.scatter(send, &mut recv, root).map_err(text)?;
                same("scatter", &recv, &whole[rank * n..][..n])?;

                let counts = uneven(size, n);
                let whole = samples::<T>(root, counts.iter().sum(), 3);
                let mut recv = vec![T::default(); counts[rank]];
                // Ranks other than the root may pass what they have: it is not looked at.
                group.scatter_v(Some(&whole), &counts, &mut recv, root).map_err(text)?;
                same("scatter_v", &recv, piece(&whole, &counts, rank))?;
            }
        }
        Ok(())
    }
    every_dtype!(case(world));
    Ok(())
}

pub(super) fn gather(world: &World) -> Result<(), String> {
    fn case<T: Sample>(world: &World) -> Result<(), String> {
        let (group, rank, size) = (world.group(), world.rank(), world.size());
        for n in LENGTHS {
            for root in 0..size {
                let send = samples::<T>(rank, n, 4);
                let mut recv = vec![T::default(); size * n];
                let room = (rank == root).then_some(&mut recv[..]);
                group.gather(&send, room, root).map_err(text)?;
                let want: Vec<T> = (0..size).flat_map(|rank| samples(rank, n, 4)).collect();
                let nothing = vec![T::default(); size * n];
                same("gather", &recv, if rank == root { &want } else { &nothing })?;

                let counts = uneven(size, n);
                let send = samples::<T>(rank, counts[rank], 5);
                let mut recv = vec![T::default(); counts.iter().sum()];
                let room = (rank == root).then_some(&mut recv[..]);
                group.gather_v(&send, room, &counts, root).map_err(text)?;
                if rank == root {
                    same("gather_v", &recv, &gathered(&counts, 5))?;
                }
            }
        }
        Ok(())
    }
    every_dtype!(case(world));
    Ok(())
}

pub(super) fn all_gather(world: &World) -> Result<(), String> {
    fn case<T: Sample>(world: &World) -> Result<(), String> {
        let (group, rank, size) = (world.group(), world.rank(), world.size());
        for n in LENGTHS {
            let mut recv = vec![T::default(); size * n];
            group.all_gather(&samples::<T>(rank, n, 6), &mut recv).map_err(text)?;
            same("all_gather", &recv, &gathered(&vec![n; size], 6))?;

            let counts = uneven(size, n);
            let mut recv = vec![T::default(); counts.iter().sum()];
            let send = samples::<T>(rank, counts[rank], 7);
            group.all_gather_v(&send, &mut recv, &counts).map_err(text)?;
            same("all_gather_v", &recv, &gathered(&counts, 7))?;
        }
        Ok(())
    }
    every_dtype!(case(world));
    Ok(())
}

pub(super) fn lists(world: &World) -> Result<(), String> {
    fn case<T: Sample>(world: &World) -> Result<(), String> {
        let (group, rank, size) = (world.group(), world.rank(), world.size());
        for n in LENGTHS {
            let counts = uneven(size, n);
            let list = |rank: usize| samples::<T>(rank, counts[rank], 4);
            let all = group.all_gather_lists(&list(rank)).map_err(text)?;
            if all.len() != size {
                return Err(format!("all_gather_lists: {} lists of {size} ranks", all.len()));
            }
            for (other, got) in all.iter().enumerate() {
                same("all_gather_lists", got, &list(other))?;
            }
            for root in 0..size {
                let gathered = group.gather_lists(&list(rank), root).map_err(text)?;
                match gathered {
                    None if rank != root => {}
                    Some(gathered) if rank == root && gathered.len() == size => {
                        for (other, got) in gathered.iter().enumerate() {
                            same("gather_lists", got, &list(other))?;
                        }
                    }
                    _ => return Err(format!("gather_lists: not what rank {rank} should have")),
                }
                // What others have is not looked at.
                let got = group.broadcast_list(Some(list(rank)), root).map_err(text)?;
                same("broadcast_list", &got, &list(root))?;
                let own = (rank == root).then(|| list(root));
                let got = group.broadcast_list(own, root).map_err(text)?;
                same("broadcast_list", &got, &list(root))?;
            }
        }
        Ok(())
    }
    every_dtype!(case(world));
    Ok(())
}

pub(super) fn all_to_all(world: &World) -> Result<(), String> {
    fn case<T: Sample>(world: &World) -> Result<(), String> {
        let (group, rank, size) = (world.group(), world.rank(), world.size());
        for n in LENGTHS {
            let send = samples::<T>(rank, size * n, 8);
            let mut recv = vec![T::default(); size * n];
            group.all_to_all(&send, &mut recv).map_err(text)?;
            let from = |peer| samples::<T>(peer, size * n, 8)[rank * n..][..n].to_vec();
            let want: Vec<T> = (0..size).flat_map(from).collect();
            same("all_to_all", &recv, &want)?;

            // A different number for every pair, many of them zero.
            let count =
                |from: usize, to: usize| if (from + to) % 2 == 1 { 0 } else { n + from + 2 * to };
            let counts = |from: usize| (0..size).map(|to| count(from, to)).collect::<Vec<_>>();
            let send_counts = counts(rank);
            let recv_counts: Vec<usize> = (0..size).map(|from| count(from, rank)).collect();
            let send = samples::<T>(rank, send_counts.iter().sum(), 9);
            let mut recv = vec![T::default(); recv_counts.iter().sum()];
            group.all_to_all_v(&send, &send_counts, &mut recv, &recv_counts).map_err(text)?;
            let from = |peer: usize| {
                let counts = counts(peer);
                let whole = samples::<T>(peer, counts.iter().sum(), 9);
                piece(&whole, &counts, rank).to_vec()
            };
            let want: Vec<T> = (0..size).flat_map(from).collect();
            same("all_to_all_v", &recv, &want)?;
        }
        Ok(())
    }
    every_dtype!(case(world));
    Ok(())
}

pub(super) fn erased(world: &World) -> Result<(), String> {
    let (group, rank, size) = (world.group(), world.rank(), world.size());
    let send: Vec<u8> = vec![rank as u8; 2];
    let mut recv = vec![0_u8; 2 * size];
    let values = ValuesMut::from_bytes(DType::U8, &mut recv).map_err(text)?;
    group
        .erased()
        .all_gather(Values::from_bytes(DType::U8, &send).map_err(text)?, values)
        .map_err(text)?;
    let want: Vec<u8> = (0..size).flat_map(|rank| [rank as u8; 2]).collect();
    same("erased all_gather", &recv, &want)?;

    let mut sums = [1_i64, rank as i64];
    group.erased().all_reduce((&mut sums[..]).into(), ReduceOp::Sum).map_err(text)?;
    same("erased all_reduce", &sums, &[size as i64, (size * (size - 1) / 2) as i64])
}

/// Everybody's pieces, one after the other.
fn gathered<T: Sample>(counts: &[usize], salt: usize) -> Vec<T> {
    counts.iter().enumerate().flat_map(|(rank, &n)| samples(rank, n, salt)).collect()
}

fn piece<'a, T>(whole: &'a [T], counts: &[usize], rank: usize) -> &'a [T] {
    &whole[counts[..rank].iter().sum()..][..counts[rank]]
}

pub(super) fn text(error: crate::CommError) -> String {
    error.to_string()
}
