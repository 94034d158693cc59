//! Reductions: bit for bit the serial result, on every rank, every time.

use crate::{ReduceOp, World, bf16, f16};

use super::{
    collectives::text,
    sample::{Sample, every_dtype, reduced, same, samples, uneven},
};

/// One element, a few (inline on threads), and vectors whose slices and blocks do not divide evenly.
const LENGTHS: [usize; 5] = [0, 1, 7, 1025, 9_999];

pub(super) fn all_reduce(world: &World) -> Result<(), String> {
    fn case<T: Sample>(world: &World) -> Result<(), String> {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(T::DTYPE)) {
            for n in LENGTHS {
                let mut buf = samples::<T>(world.rank(), n, 11);
                world.group().all_reduce(&mut buf, op).map_err(text)?;
                same(&format!("all_reduce {op}"), &buf, &reduced(op, world.size(), n, 11))?;
            }
        }
        Ok(())
    }
    every_dtype!(case(world));
    Ok(())
}

pub(super) fn reduce_scatter(world: &World) -> Result<(), String> {
    fn case<T: Sample>(world: &World) -> Result<(), String> {
        let (group, rank, size) = (world.group(), world.rank(), world.size());
        for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(T::DTYPE)) {
            for n in LENGTHS {
                let send = samples::<T>(rank, size * n, 12);
                let mut recv = vec![T::default(); n];
                group.reduce_scatter(&send, &mut recv, op).map_err(text)?;
                let want = reduced::<T>(op, size, size * n, 12);
                same(&format!("reduce_scatter {op}"), &recv, &want[rank * n..][..n])?;

                let counts = uneven(size, n);
                let whole = counts.iter().sum();
                let send = samples::<T>(rank, whole, 13);
                let mut recv = vec![T::default(); counts[rank]];
                group.reduce_scatter_v(&send, &mut recv, &counts, op).map_err(text)?;
                let want = reduced::<T>(op, size, whole, 13);
                let start = counts[..rank].iter().sum::<usize>();
                let want = &want[start..][..counts[rank]];
                same(&format!("reduce_scatter_v {op}"), &recv, want)?;
            }
        }
        Ok(())
    }
    every_dtype!(case(world));
    Ok(())
}

/// Numbers for which `(a + b) + c`, `a + (b + c)` and `(a + c) + b` differ.
pub(super) fn rank_order(world: &World) -> Result<(), String> {
    let value = |rank: usize| match rank % 4 {
        0 => 1e16_f64,
        1 => 1.0,
        2 => -1e16,
        _ => 3.0,
    };
    let want = (1..world.size()).fold(value(0), |sum, rank| sum + value(rank));
    // Long enough that every rank works on a slice of its own.
    let mut buf = vec![value(world.rank()); 1000];
    world.group().all_reduce(&mut buf, ReduceOp::Sum).map_err(text)?;
    same("all_reduce", &buf, &vec![want; 1000])?;
    // In a group in reverse order, its own order counts.
    let backwards: Vec<usize> = (0..world.size()).rev().collect();
    let group = world.subgroup(&backwards).map_err(text)?;
    let want = backwards[1..].iter().fold(value(backwards[0]), |sum, &rank| sum + value(rank));
    let mut buf = [value(world.rank())];
    group.all_reduce(&mut buf, ReduceOp::Sum).map_err(text)?;
    same("all_reduce backwards", &buf, &[want])
}

/// A sum of many small numbers to a large one, which is lost if each step is rounded.
pub(super) fn halves(world: &World) -> Result<(), String> {
    fn value(rank: usize) -> f32 {
        if rank == 0 { 256.0 } else { 0.75 }
    }
    let total: f32 = (0..world.size()).map(value).sum();
    let mut short = [bf16::from_f32(value(world.rank()))];
    world.group().all_reduce(&mut short, ReduceOp::Sum).map_err(text)?;
    same("bf16 sum", &short, &[bf16::from_f32(total)])?;
    let mut half = vec![f16::from_f32(value(world.rank()) * 8.0); 500];
    world.group().all_reduce(&mut half, ReduceOp::Avg).map_err(text)?;
    same("f16 avg", &half, &vec![f16::from_f32(total * 8.0 / world.size() as f32); 500])
}

pub(super) fn special_values(world: &World) -> Result<(), String> {
    let (group, rank, size) = (world.group(), world.rank(), world.size());
    for nan_on in 0..size {
        for op in [ReduceOp::Max, ReduceOp::Min] {
            // Both the inline path of small vectors and the sliced one of larger ones.
            for n in [1, 300] {
                let mut buf = vec![if rank == nan_on { f32::NAN } else { rank as f32 }; n];
                group.all_reduce(&mut buf, op).map_err(text)?;
                if !buf.iter().all(|x| x.is_nan()) {
                    return Err(format!("{op} with a NaN on rank {nan_on} gave {}", buf[0]));
                }
            }
        }
    }
    let mut ints = [i32::MAX, i32::MIN, 3];
    group.all_reduce(&mut ints, ReduceOp::Sum).map_err(text)?;
    let times = |x: i32| (1..size).fold(x, |sum, _| sum.wrapping_add(x));
    same("wrapping sum", &ints, &[times(i32::MAX), times(i32::MIN), times(3)])?;
    let mut flags = [rank == 0, true, false];
    group.all_reduce(&mut flags, ReduceOp::Sum).map_err(text)?;
    same("bool sum is or", &flags, &[true, true, false])?;
    let mut flags = [rank == 0, true, false];
    group.all_reduce(&mut flags, ReduceOp::Product).map_err(text)?;
    same("bool product is and", &flags, &[size == 1, true, false])
}

pub(super) fn same_bits(world: &World) -> Result<(), String> {
    let (group, size) = (world.group(), world.size());
    let n = 4_000;
    let mut first: Option<Vec<f32>> = None;
    for _ in 0..5 {
        let mut buf = samples::<f32>(world.rank(), n, 14);
        group.all_reduce(&mut buf, ReduceOp::Avg).map_err(text)?;
        let mut all = vec![0.0; size * n];
        group.all_gather(&buf, &mut all).map_err(text)?;
        for of_rank in all.chunks(n) {
            same("another rank's result", of_rank, &buf)?;
        }
        same("the next run", &buf, first.get_or_insert_with(|| buf.clone()))?;
    }
    Ok(())
}
