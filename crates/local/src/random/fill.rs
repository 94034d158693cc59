//! Filling a tensor, or the boxes of a shard, by global index.

use std::ops::Range;

use super::{
    Distribution, Stream,
    normal::{
        log_of_unit, log_of_unit_f64, normal_pair, normal_pair_f64, tan_of_half_turn,
        tan_of_half_turn_f64,
    },
};
use crate::{
    DType, Element, LocalError, Result, Tensor, bf16,
    dims::{contiguous_strides, numel},
    f16,
    simd::vectorized,
    threads,
};

/// Elements per hand-over to a thread. A multiple of the elements of a block.
const GRAIN: usize = 16 * 1024;
/// Blocks that are computed side by side.
const BLOCKS: usize = 64;

impl Tensor {
    /// Random values.
    pub fn random(
        shape: &[usize],
        dtype: DType,
        distribution: Distribution,
        stream: Stream,
    ) -> Result<Tensor> {
        let whole: Vec<Range<usize>> = shape.iter().map(|size| 0..*size).collect();
        Tensor::random_shard(shape, dtype, distribution, stream, shape, &[whole])
    }

    /// The part of `Tensor::random(global_shape, ..)` that a shard of `local_shape` holds. `boxes` say which,
    /// with one range of global indices per dim. Several boxes are a grid: their different ranges of a dim
    /// follow each other in the shard as they do in the list, and every combination is a box.
    pub fn random_shard(
        local_shape: &[usize],
        dtype: DType,
        distribution: Distribution,
        stream: Stream,
        global_shape: &[usize],
        boxes: &[Vec<Range<usize>>],
    ) -> Result<Tensor> {
        let op = distribution.op();
        distribution.check(dtype)?;
        numel(op, global_shape, DType::U8)?;
        let ranges = ranges_by_dim(op, local_shape, global_shape, boxes)?;
        macro_rules! run {
            ($T:ty) => {
                fill_grid::<$T>(local_shape, global_shape, &ranges, |first, out| {
                    <$T as Random>::fill(distribution, stream, first, out);
                })
            };
        }
        match dtype {
            DType::F32 => run!(f32),
            DType::F64 => run!(f64),
            DType::Bf16 => run!(bf16),
            DType::F16 => run!(f16),
            DType::I64 => run!(i64),
            DType::I32 => run!(i32),
            DType::U8 => run!(u8),
            DType::Bool => run!(bool),
        }
    }
}

impl Tensor {
    /// The numbers from 0 to `n - 1` in a random order, as `i64`: the order that sorts the
    /// [`Keys`](Distribution::Keys) of their indices.
    pub fn random_permutation(n: usize, stream: Stream) -> Result<Tensor> {
        Tensor::random(&[n], DType::I64, Distribution::Keys, stream)?.argsort(0, false)
    }
}

/// The different ranges of every dim, in their order. Refuses boxes that are not within the global tensor, or
/// not a grid that makes up the shard.
fn ranges_by_dim(
    op: &'static str,
    local_shape: &[usize],
    global_shape: &[usize],
    boxes: &[Vec<Range<usize>>],
) -> Result<Vec<Vec<Range<usize>>>> {
    let mut ranges = vec![Vec::new(); global_shape.len()];
    for index_box in boxes {
        if index_box.len() != global_shape.len() {
            let (from, to) = (index_box.iter().map(Range::len).collect(), global_shape.to_vec());
            return Err(LocalError::ShapeMismatch {
                op,
                from,
                to,
                why: "a box has one range per dim",
            });
        }
        for (dim, (range, size)) in index_box.iter().zip(global_shape).enumerate() {
            if range.start > range.end || range.end > *size {
                let (start, end, size) = (range.start, range.end, *size);
                return Err(LocalError::BadRange { op, start, end, step: 1, dim, size });
            }
            if !ranges[dim].contains(range) {
                ranges[dim].push(range.clone());
            }
        }
    }
    let sizes: Vec<usize> =
        ranges.iter().map(|ranges| ranges.iter().map(Range::len).sum()).collect();
    let is_grid = ranges.iter().map(Vec::len).product::<usize>() == boxes.len();
    let nothing = boxes.is_empty() && local_shape.contains(&0) && local_shape.len() == sizes.len();
    if nothing || (is_grid && sizes == local_shape) {
        return Ok(ranges);
    }
    let why = "the boxes are a grid that makes up the shard";
    Err(LocalError::ShapeMismatch { op, from: sizes, to: local_shape.to_vec(), why })
}

/// Calls `fill` for runs of consecutive elements, each with its first global index.
fn fill_grid<T: Element>(
    local_shape: &[usize],
    global_shape: &[usize],
    ranges: &[Vec<Range<usize>>],
    fill: impl Fn(u64, &mut [T]) + Sync,
) -> Result<Tensor> {
    let mut tensor = Tensor::zeros(local_shape, T::DTYPE)?;
    let Some((last, outer)) = ranges.split_last() else {
        fill(0, tensor.as_mut_slice::<T>()?);
        return Ok(tensor);
    };
    if tensor.numel() == 0 {
        return Ok(tensor);
    }
    let strides = contiguous_strides(global_shape);
    if let ([first], true) = (&*ranges[0], local_shape[1..] == global_shape[1..]) {
        // Whole rows of the global tensor: one run.
        let first = first.start as u64 * strides[0] as u64;
        threads::for_pieces_of(tensor.as_mut_slice::<T>()?, 1, GRAIN, |piece, out| {
            fill(first + piece.start as u64, out);
        });
        return Ok(tensor);
    }
    // What every local index of a dim adds to the global index.
    let steps = |(ranges, stride): (&Vec<Range<usize>>, &isize)| -> Vec<u64> {
        ranges.iter().cloned().flatten().map(|index| index as u64 * *stride as u64).collect()
    };
    let outer: Vec<Vec<u64>> = outer.iter().zip(&strides).map(steps).collect();
    let len = local_shape[outer.len()];
    threads::for_pieces_of(tensor.as_mut_slice::<T>()?, len, GRAIN.div_ceil(len), |piece, out| {
        for (row, mut out) in piece.zip(out.chunks_exact_mut(len)) {
            let (mut row, mut first) = (row, 0);
            for steps in outer.iter().rev() {
                first += steps[row % steps.len()];
                row /= steps.len();
            }
            for range in last {
                let (run, rest) = out.split_at_mut(range.len());
                fill(first + range.start as u64, run);
                out = rest;
            }
        }
    });
    Ok(tensor)
}

/// A type that random values can be made of: how 32 or 64 bits become one.
trait Random: Element {
    /// Evenly in `0..1`, as fine as the type can.
    fn unit(bits: u32) -> f32;
    fn of_f32(value: f32) -> Self;
    fn of_i64(value: i64) -> Self;
    fn of_bool(value: bool) -> Self;
    /// Of a whole number of at least one; what is too large becomes the largest.
    fn of_count(value: f64) -> Self;

    /// The values from the global index `first` on.
    fn fill(distribution: Distribution, stream: Stream, first: u64, out: &mut [Self]) {
        match distribution {
            Distribution::Uniform { low, high } => {
                let (low, high) = (low as f32, high as f32);
                // Rounding may reach the end, which does not belong to the range.
                let largest = if low < high { high.next_down() } else { low };
                by_lanes(stream, first, out, |bits| {
                    bits.map(|bits| {
                        Self::of_f32((low + Self::unit(bits) * (high - low)).min(largest))
                    })
                });
            }
            Distribution::Normal { mean, std } => {
                let (mean, std) = (mean as f32, std as f32);
                by_lanes(stream, first, out, |[a, b, c, d]| {
                    let ([a, b], [c, d]) = (normal_pair(a, b), normal_pair(c, d));
                    [a, b, c, d].map(|x| Self::of_f32(x * std + mean))
                });
            }
            Distribution::Bernoulli { probability } => {
                // The first 2^32 p of all 32-bit numbers; a number of 64 bits, as p may be one.
                let limit = (probability * 4_294_967_296.0) as u64;
                by_lanes(stream, first, out, |bits| {
                    bits.map(|bits| Self::of_bool(u64::from(bits) < limit))
                });
            }
            Distribution::Exponential { rate } => {
                let scale = (-1.0 / rate) as f32;
                by_lanes(stream, first, out, |bits| {
                    bits.map(|bits| Self::of_f32(log_of_unit(bits) * scale))
                });
            }
            Distribution::LogNormal { mean, std } => {
                let (mean, std) = (mean as f32, std as f32);
                by_lanes(stream, first, out, |[a, b, c, d]| {
                    let ([a, b], [c, d]) = (normal_pair(a, b), normal_pair(c, d));
                    // By way of `f64`: rounded once.
                    [a, b, c, d].map(|x| Self::of_f32(f64::from(x * std + mean).exp() as f32))
                });
            }
            Distribution::Cauchy { median, sigma } => {
                let (median, sigma) = (median as f32, sigma as f32);
                by_lanes(stream, first, out, |bits| {
                    bits.map(|bits| Self::of_f32(tan_of_half_turn(bits) * sigma + median))
                });
            }
            Distribution::Geometric { probability } => {
                let scale = 1.0 / (-probability).ln_1p();
                by_halves(stream, first, out, |bits| {
                    bits.map(|bits| Self::of_count((log_of_unit_f64(bits) * scale).ceil().max(1.0)))
                });
            }
            Distribution::Keys => {
                by_halves(stream, first, out, |bits| bits.map(|bits| Self::of_i64(bits as i64)));
            }
            Distribution::Randint { low, high } => {
                by_halves(stream, first, out, |bits| {
                    bits.map(|bits| Self::of_i64(integer_in(low, high, bits)))
                });
            }
        }
    }
}

/// An integer in `low..high` out of 64 random bits.
#[inline(always)]
fn integer_in(low: i64, high: i64, bits: u64) -> i64 {
    let range = high.wrapping_sub(low) as u64;
    // The upper half of the product: even but for one part in 2^64 / range.
    let drawn = (u128::from(bits) * u128::from(range)) >> 64;
    low.wrapping_add(drawn as i64)
}

/// Values of which a block gives four.
#[inline(always)]
fn by_lanes<T: Element>(
    stream: Stream,
    first: u64,
    out: &mut [T],
    values: impl Fn([u32; 4]) -> [T; 4],
) {
    by_blocks(stream, first, out, values);
}

/// Values of which a block gives two.
fn by_halves<T: Element>(
    stream: Stream,
    first: u64,
    out: &mut [T],
    values: impl Fn([u64; 2]) -> [T; 2],
) {
    let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    by_blocks(stream, first, out, |[a, b, c, d]| values([join(a, b), join(c, d)]));
}

fn by_blocks<const N: usize, T: Element>(
    stream: Stream,
    first: u64,
    out: &mut [T],
    values: impl Fn([u32; 4]) -> [T; N],
) {
    let n = N as u64;
    // A run may begin within a block.
    let skipped = (first % n) as usize;
    let (head, rest) =
        out.split_at_mut(if skipped == 0 { 0 } else { (N - skipped).min(out.len()) });
    for (out, value) in head.iter_mut().zip(&values(stream.block(first / n))[skipped..]) {
        *out = *value;
    }
    let mut block = first.div_ceil(n);
    let mut bits = [[0u32; 4]; BLOCKS];
    for out in rest.chunks_mut(BLOCKS * N) {
        blocks(stream, block, &mut bits);
        for (out, bits) in out.chunks_mut(N).zip(bits) {
            for (out, value) in out.iter_mut().zip(values(bits)) {
                *out = value;
            }
        }
        block += BLOCKS as u64;
    }
}

vectorized! {
    fn blocks(stream: Stream, first: u64, out: &mut [[u32; 4]; BLOCKS]) {
        for (index, out) in out.iter_mut().enumerate() {
            *out = stream.block(first.wrapping_add(index as u64));
        }
    }
}

macro_rules! random {
    ($($T:ty: $bits:literal bits, $of_f32:expr, $of_i64:expr, $of_bool:expr, $of_count:expr;)*) => {$(
        impl Random for $T {
            #[inline(always)]
            fn unit(bits: u32) -> f32 {
                (bits >> (32 - $bits)) as f32 / (1u32 << $bits) as f32
            }
            #[inline(always)]
            fn of_f32(value: f32) -> $T {
                $of_f32(value)
            }
            #[inline(always)]
            fn of_i64(value: i64) -> $T {
                $of_i64(value)
            }
            #[inline(always)]
            fn of_bool(value: bool) -> $T {
                $of_bool(value)
            }
            #[inline(always)]
            fn of_count(value: f64) -> $T {
                $of_count(value)
            }
        }
    )*};
}

// `Distribution::check` leaves only conversions that are exact or, to floating point, rounded once.
random! {
    f32: 24 bits, |x| x, |x| x as f32, |x| f32::from(u8::from(x)), |x: f64| (x as f32).min(f32::MAX);
    bf16: 8 bits, bf16::from_f32, |x| bf16::from_f32(x as f32), |x| if x { bf16::ONE } else { bf16::ZERO },
        |x: f64| bf16::from_f64(x).min(bf16::MAX);
    f16: 11 bits, f16::from_f32, |x| f16::from_f32(x as f32), |x| if x { f16::ONE } else { f16::ZERO },
        |x: f64| f16::from_f64(x).min(f16::MAX);
    i64: 24 bits, |x| x as i64, |x| x, i64::from, |x: f64| x as i64;
    i32: 24 bits, |x| x as i32, |x| x as i32, i32::from, |x: f64| x as i32;
    u8: 24 bits, |x| x as u8, |x| x as u8, u8::from, |x: f64| x as u8;
    bool: 24 bits, |x| x != 0.0, |x| x != 0, |x| x, |x: f64| x != 0.0;
}

impl Random for f64 {
    fn unit(bits: u32) -> f32 {
        f32::unit(bits)
    }

    fn of_f32(value: f32) -> f64 {
        f64::from(value)
    }

    fn of_i64(value: i64) -> f64 {
        value as f64
    }

    fn of_bool(value: bool) -> f64 {
        f64::from(u8::from(value))
    }

    fn of_count(value: f64) -> f64 {
        value.min(f64::MAX)
    }

    /// With 53 bits per value: half a block each.
    fn fill(distribution: Distribution, stream: Stream, first: u64, out: &mut [f64]) {
        match distribution {
            Distribution::Uniform { low, high } => {
                let largest = if low < high { high.next_down() } else { low };
                by_halves(stream, first, out, |bits| {
                    bits.map(|bits| {
                        let unit = (bits >> 11) as f64 / (1u64 << 53) as f64;
                        (low + unit * (high - low)).min(largest)
                    })
                });
            }
            Distribution::Normal { mean, std } => by_halves(stream, first, out, |[a, b]| {
                normal_pair_f64(a, b).map(|x| x * std + mean)
            }),
            Distribution::Bernoulli { probability } => {
                let limit = (probability * 4_294_967_296.0) as u64;
                by_lanes(stream, first, out, |bits| {
                    bits.map(|bits| Self::of_bool(u64::from(bits) < limit))
                });
            }
            Distribution::Exponential { rate } => {
                by_halves(stream, first, out, |bits| bits.map(|bits| log_of_unit_f64(bits) / -rate))
            }
            Distribution::LogNormal { mean, std } => by_halves(stream, first, out, |[a, b]| {
                normal_pair_f64(a, b).map(|x| (x * std + mean).exp())
            }),
            Distribution::Cauchy { median, sigma } => by_halves(stream, first, out, |bits| {
                bits.map(|bits| tan_of_half_turn_f64(bits) * sigma + median)
            }),
            Distribution::Geometric { probability } => {
                let scale = 1.0 / (-probability).ln_1p();
                by_halves(stream, first, out, |bits| {
                    bits.map(|bits| Self::of_count((log_of_unit_f64(bits) * scale).ceil().max(1.0)))
                });
            }
            Distribution::Randint { low, high } => by_halves(stream, first, out, |bits| {
                bits.map(|bits| Self::of_i64(integer_in(low, high, bits)))
            }),
            // `Distribution::check` refuses them.
            Distribution::Keys => {}
        }
    }
}
