//! The canonical reduction: one kernel for every world, so that a sum has the same bits on every
//! rank, in every run, on threads and on MPI.
//!
//! Element by element, sources in group order: `((x0 op x1) op x2) ...`. `bf16` and `f16` are
//! accumulated in `f32` and rounded once; `avg` is the sum and one division; integers wrap; a NaN
//! wins `max` and `min` (the first one, if there are several); `bool` knows *or* (`sum`, `max`)
//! and *and* (`product`, `min`). How the vector is cut into blocks or slices does not matter,
//! because no element meets another of the same rank.

use dtensor_dtype::{DType, ReduceOp, bf16, f16};
use half::slice::HalfFloatSliceExt;

/// Reduces `elements` elements of each source, in the order of the list, into `out`.
///
/// # Safety
/// Every source holds, and `out` has room for, `elements` initialised values of `dtype`, aligned for
/// it.
/// Nobody writes to the sources and nobody accesses `out` meanwhile. `out` overlaps no source.
/// There is at least one source, and `op` supports `dtype`.
#[cfg_attr(not(feature = "mpi"), allow(dead_code))]
pub(crate) unsafe fn reduce_into(
    dtype: DType,
    op: ReduceOp,
    sources: &[*const u8],
    out: *mut u8,
    elements: usize,
) {
    // SAFETY: The caller's promise, with offset 0.
    unsafe { reduce_range(dtype, op, sources, 0, out, elements) }
}

/// [`reduce_into`] of the elements from `offset` on of each source. `out` is not offset.
///
/// # Safety
/// As [`reduce_into`], for the elements `offset .. offset + elements` of each source.
pub(crate) unsafe fn reduce_range(
    dtype: DType,
    op: ReduceOp,
    sources: &[*const u8],
    offset: usize,
    out: *mut u8,
    elements: usize,
) {
    /// Names the operator of each reduction once per family, so that every arm is monomorphised.
    macro_rules! by_op {
        ($type:ty, $sum:expr, $max:expr, $min:expr, $product:expr) => {
            match op {
                ReduceOp::Sum => run::<$type>(sources, offset, out, elements, $sum, false),
                ReduceOp::Avg => run::<$type>(sources, offset, out, elements, $sum, true),
                ReduceOp::Max => run::<$type>(sources, offset, out, elements, $max, false),
                ReduceOp::Min => run::<$type>(sources, offset, out, elements, $min, false),
                ReduceOp::Product => run::<$type>(sources, offset, out, elements, $product, false),
            }
        };
    }
    macro_rules! float {
        ($type:ty) => {
            by_op!(
                $type,
                |a, b| a + b,
                // A NaN on the left stays because of the second test, one on the right because
                // neither holds.
                |a, b| if a > b || a.is_nan() { a } else { b },
                |a, b| if a < b || a.is_nan() { a } else { b },
                |a, b| a * b
            )
        };
    }
    macro_rules! integer {
        ($type:ty) => {
            by_op!($type, |a, b| a.wrapping_add(b), |a, b| a.max(b), |a, b| a.min(b), |a, b| a
                .wrapping_mul(b))
        };
    }
    // SAFETY: The caller's promise; each arm uses the Rust type of the dtype. Bools are 0 or 1,
    // and so are the results of `|` and `&` on them.
    unsafe {
        match dtype {
            DType::F32 => float!(f32),
            DType::F64 => float!(f64),
            DType::Bf16 => float!(bf16),
            DType::F16 => float!(f16),
            DType::I64 => integer!(i64),
            DType::I32 => integer!(i32),
            DType::U8 => integer!(u8),
            DType::Bool => by_op!(u8, |a, b| a | b, |a, b| a | b, |a, b| a & b, |a, b| a & b),
        }
    }
}

/// Elements that are reduced at once: the accumulators (at most 8 KiB) stay in the first-level cache
/// while the sources stream past.
const BLOCK: usize = 1024;

/// Elements of a half-precision type that are widened at once.
const WIDE_BLOCK: usize = 256;

/// An element type that can be reduced, and the type it is accumulated in.
trait Reduce: Copy + 'static {
    type Accumulator: Copy;

    /// `out[i] = ((first[i] combine rest[0][i]) combine rest[1][i]) ...`, divided by `divisor` if there
    /// is one. All slices are equally long, at most `BLOCK`.
    fn reduce_block<'a>(
        first: &[Self],
        rest: impl Iterator<Item = &'a [Self]>,
        out: &mut [Self],
        combine: impl Fn(Self::Accumulator, Self::Accumulator) -> Self::Accumulator,
        divisor: Option<usize>,
    );
}

/// Types that are accumulated in themselves, where they are to be in the end.
macro_rules! in_its_own_type {
    ($($type:ty: $divide:expr;)*) => {$(
        impl Reduce for $type {
            type Accumulator = $type;

            #[inline(always)]
            fn reduce_block<'a>(
                first: &[$type],
                mut rest: impl Iterator<Item = &'a [$type]>,
                out: &mut [$type],
                combine: impl Fn($type, $type) -> $type,
                divisor: Option<usize>,
            ) {
                match rest.next() {
                    None => out.copy_from_slice(first),
                    Some(second) => {
                        for ((out, &a), &b) in out.iter_mut().zip(first).zip(second) {
                            *out = combine(a, b);
                        }
                    }
                }
                for values in rest {
                    for (out, &value) in out.iter_mut().zip(values) {
                        *out = combine(*out, value);
                    }
                }
                if let Some(divisor) = divisor {
                    $divide(out, divisor);
                }
            }
        }
    )*};
}

in_its_own_type! {
    f32: divide_f32;
    f64: |values: &mut [f64], divisor: usize| {
        for value in values {
            *value /= divisor as f64;
        }
    };
    i64: |_: &mut [i64], _: usize| {};
    i32: |_: &mut [i32], _: usize| {};
    u8: |_: &mut [u8], _: usize| {};
}

/// Types that are accumulated in `f32`. They are converted a block at a time, because the conversion of
/// `half` asks the processor what it can do once per slice.
macro_rules! in_f32 {
    ($($type:ty),*) => {$(
        impl Reduce for $type {
            type Accumulator = f32;

            #[inline(always)]
            fn reduce_block<'a>(
                first: &[$type],
                rest: impl Iterator<Item = &'a [$type]>,
                out: &mut [$type],
                combine: impl Fn(f32, f32) -> f32,
                divisor: Option<usize>,
            ) {
                let mut accumulators = [0.0; BLOCK];
                let accumulators = &mut accumulators[..first.len()];
                first.convert_to_f32_slice(accumulators);
                let mut wide = [0.0; WIDE_BLOCK];
                for values in rest {
                    let blocks = accumulators.chunks_mut(WIDE_BLOCK).zip(values.chunks(WIDE_BLOCK));
                    for (accumulators, values) in blocks {
                        let wide = &mut wide[..values.len()];
                        values.convert_to_f32_slice(wide);
                        for (accumulator, &value) in accumulators.iter_mut().zip(&*wide) {
                            *accumulator = combine(*accumulator, value);
                        }
                    }
                }
                if let Some(divisor) = divisor {
                    divide_f32(accumulators, divisor);
                }
                out.convert_from_f32_slice(accumulators);
            }
        }
    )*};
}

in_f32!(bf16, f16);

fn divide_f32(values: &mut [f32], divisor: usize) {
    if divisor.is_power_of_two() {
        // The reciprocal is exact, so both ways round the same number, and this one is faster.
        let reciprocal = 1.0 / divisor as f32;
        for value in values {
            *value *= reciprocal;
        }
    } else {
        for value in values {
            *value /= divisor as f32;
        }
    }
}

/// # Safety
/// As [`reduce_range`], `R` being the type of the dtype.
#[inline(always)]
unsafe fn run<R: Reduce>(
    sources: &[*const u8],
    offset: usize,
    out: *mut u8,
    elements: usize,
    combine: impl Fn(R::Accumulator, R::Accumulator) -> R::Accumulator,
    average: bool,
) {
    let [first, rest @ ..] = sources else { return };
    let divisor = average.then_some(sources.len());
    let mut at = 0;
    while at < elements {
        let n = BLOCK.min(elements - at);
        // SAFETY: Elements `offset + at .. offset + at + n` are within the source by the caller's
        // promise (at + n <= elements), valid, aligned and not written meanwhile.
        let block = |source: *const u8| unsafe {
            std::slice::from_raw_parts(source.cast::<R>().add(offset + at), n)
        };
        // SAFETY: `out` has room for `elements` values, is accessed by nobody else, and overlaps
        // no source, so that this exclusive reference is the only way to its memory, which holds
        // valid values (every pattern of bits is one for every `R`).
        let out = unsafe { std::slice::from_raw_parts_mut(out.cast::<R>().add(at), n) };
        R::reduce_block(block(*first), rest.iter().map(|&p| block(p)), out, &combine, divisor);
        at += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reduces one element per source.
    fn reduce<T: Copy + Default>(dtype: DType, op: ReduceOp, values: &[T]) -> T {
        let sources: Vec<*const u8> =
            values.iter().map(|value| std::ptr::from_ref(value).cast()).collect();
        let mut out = T::default();
        // SAFETY: One element each, of the dtype that the callers name; `out` is apart.
        unsafe { reduce_into(dtype, op, &sources, std::ptr::from_mut(&mut out).cast(), 1) };
        out
    }

    #[test]
    fn floats_are_combined_from_left_to_right() {
        let left_to_right = reduce(DType::F64, ReduceOp::Sum, &[1e16, 1.0, -1e16, 1.0]);
        assert_eq!(left_to_right, 1.0);
        assert_eq!(reduce(DType::F32, ReduceOp::Avg, &[1.0_f32, 2.0, 6.0]), 3.0);
        assert_eq!(reduce(DType::F32, ReduceOp::Product, &[1.5_f32, -2.0]), -3.0);
    }

    #[test]
    fn the_first_nan_wins_wherever_it_is() {
        let marked = f32::from_bits(0x7fc0_0123);
        for op in [ReduceOp::Max, ReduceOp::Min] {
            for values in [[marked, 1.0, 2.0], [1.0, marked, 2.0], [1.0, 2.0, marked]] {
                assert_eq!(reduce(DType::F32, op, &values).to_bits(), marked.to_bits());
            }
            assert_eq!(reduce(DType::F32, op, &[marked, f32::NAN]).to_bits(), marked.to_bits());
        }
        assert_eq!(reduce(DType::F32, ReduceOp::Max, &[1.0_f32, f32::INFINITY]), f32::INFINITY);
    }

    #[test]
    fn halves_are_accumulated_in_f32() {
        // Each 1 alone is lost beside 2048 in f16, and beside 256 in bf16.
        let one = f16::from_f32(1.0);
        let sum = reduce(DType::F16, ReduceOp::Sum, &[f16::from_f32(2048.0), one, one]);
        assert_eq!(sum.to_f32(), 2050.0);
        let one = bf16::from_f32(1.0);
        let sum = reduce(DType::Bf16, ReduceOp::Sum, &[bf16::from_f32(256.0), one, one]);
        assert_eq!(sum.to_f32(), 258.0);
    }

    #[test]
    fn integers_wrap_and_bools_are_or_and_and() {
        assert_eq!(reduce(DType::U8, ReduceOp::Sum, &[200_u8, 100]), 44);
        assert_eq!(reduce(DType::I64, ReduceOp::Product, &[i64::MAX, 2]), -2);
        assert_eq!(reduce(DType::I32, ReduceOp::Min, &[3, -4, 5]), -4);
        assert!(reduce(DType::Bool, ReduceOp::Sum, &[true, true]));
        assert!(!reduce(DType::Bool, ReduceOp::Product, &[true, false]));
    }
}
