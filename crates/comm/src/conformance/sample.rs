//! Test values for every dtype, and the plain serial reduction that results are compared with.

use dtensor_dtype::{Element, ReduceOp, bf16, bytemuck, f16};

/// An element type that can make up values and reduce a column of them.
pub trait Sample: Element {
    /// A value that depends on the seed, of any size and sign that the type has. Floats are finite,
    /// and of such different magnitude that the order of a sum shows in its bits.
    fn sample(seed: u64) -> Self;

    /// The values of one element on all ranks, reduced as [`ReduceOp`] says.
    fn reduced(op: ReduceOp, column: &[Self]) -> Self;
}

/// The seven sources of a sample: one number for (rank, position) and an arbitrary third.
pub(super) fn seed(rank: usize, position: usize, salt: usize) -> u64 {
    let mut x = (rank as u64) << 40 ^ (salt as u64) << 20 ^ position as u64;
    for _ in 0..2 {
        x = (x ^ (x >> 31)).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    x ^ (x >> 29)
}

/// `n` values of `rank`.
pub(super) fn samples<T: Sample>(rank: usize, n: usize, salt: usize) -> Vec<T> {
    (0..n).map(|position| T::sample(seed(rank, position, salt))).collect()
}

/// The vectors of `ranks` ranks, reduced.
pub(super) fn reduced<T: Sample>(op: ReduceOp, ranks: usize, n: usize, salt: usize) -> Vec<T> {
    (0..n)
        .map(|position| {
            let column: Vec<T> =
                (0..ranks).map(|rank| T::sample(seed(rank, position, salt))).collect();
            T::reduced(op, &column)
        })
        .collect()
}

/// Uneven counts, some of them zero, the same on every rank.
pub(super) fn uneven(ranks: usize, n: usize) -> Vec<usize> {
    (0..ranks).map(|rank| if rank % 3 == 1 { 0 } else { n + rank * (rank + 2) }).collect()
}

/// Bit for bit equal, or a text that says where not.
pub(super) fn same<T: Element>(what: &str, got: &[T], want: &[T]) -> Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("{what}: {} elements instead of {}", got.len(), want.len()));
    }
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        if bytemuck::bytes_of(got) != bytemuck::bytes_of(want) {
            return Err(format!("{what} {}: element {i} is {got:?}, not {want:?}", T::DTYPE));
        }
    }
    Ok(())
}

/// Calls `$case::<T>($args)?` for every element type.
macro_rules! every_dtype {
    ($case:ident($($args:expr),*)) => {
        $case::<f32>($($args),*)?;
        $case::<f64>($($args),*)?;
        $case::<$crate::bf16>($($args),*)?;
        $case::<$crate::f16>($($args),*)?;
        $case::<i64>($($args),*)?;
        $case::<i32>($($args),*)?;
        $case::<u8>($($args),*)?;
        $case::<bool>($($args),*)?;
    };
}
pub(super) use every_dtype;

/// A value in about -8 to 8 with a random number of leading zeros.
fn magnitude(seed: u64) -> f64 {
    let fraction = (seed >> 12) as f64 / (1_u64 << 52) as f64 - 0.5;
    fraction * f64::from(1_u32 << (seed % 5)) * if seed.is_multiple_of(7) { 1e-3 } else { 1.0 }
}

/// A serial reduction in the type `$wide`.
macro_rules! reduced_in {
    ($wide:ty, $op:ident, $column:ident) => {{
        let mut result: $wide = <$wide>::from($column[0]);
        for &value in &$column[1..] {
            let value = <$wide>::from(value);
            result = match $op {
                ReduceOp::Sum | ReduceOp::Avg => result + value,
                ReduceOp::Product => result * value,
                _ if result.is_nan() || value.is_nan() => <$wide>::NAN,
                ReduceOp::Max => {
                    if value >= result {
                        value
                    } else {
                        result
                    }
                }
                ReduceOp::Min => {
                    if value <= result {
                        value
                    } else {
                        result
                    }
                }
            };
        }
        if $op == ReduceOp::Avg { result / $column.len() as $wide } else { result }
    }};
}

macro_rules! floats {
    ($($type:ty),*) => {$(
        impl Sample for $type {
            fn sample(seed: u64) -> $type {
                magnitude(seed) as $type
            }
            fn reduced(op: ReduceOp, column: &[$type]) -> $type {
                reduced_in!($type, op, column)
            }
        }
    )*};
}
floats!(f32, f64);

macro_rules! halves {
    ($($type:ty),*) => {$(
        impl Sample for $type {
            fn sample(seed: u64) -> $type {
                <$type>::from_f64(magnitude(seed))
            }
            fn reduced(op: ReduceOp, column: &[$type]) -> $type {
                <$type>::from_f32(reduced_in!(f32, op, column))
            }
        }
    )*};
}
halves!(bf16, f16);

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Sample for $type {
            fn sample(seed: u64) -> $type {
                // All bits, so that sums and products wrap.
                seed as $type
            }
            fn reduced(op: ReduceOp, column: &[$type]) -> $type {
                let mut result = column[0];
                for &value in &column[1..] {
                    result = match op {
                        ReduceOp::Sum | ReduceOp::Avg => result.wrapping_add(value),
                        ReduceOp::Product => result.wrapping_mul(value),
                        ReduceOp::Max => result.max(value),
                        ReduceOp::Min => result.min(value),
                    };
                }
                result
            }
        }
    )*};
}
integers!(i64, i32, u8);

impl Sample for bool {
    fn sample(seed: u64) -> bool {
        seed.is_multiple_of(3)
    }

    fn reduced(op: ReduceOp, column: &[bool]) -> bool {
        match op {
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Max => column.contains(&true),
            ReduceOp::Min | ReduceOp::Product => !column.contains(&false),
        }
    }
}
