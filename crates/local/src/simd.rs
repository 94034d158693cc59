//! Loops compiled for several processors, of which the best is chosen at run time.

use std::ops::{Add, Mul};

/// Which instructions a loop may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Simd {
    /// What every processor of the architecture has.
    Baseline,
    /// AVX2 and FMA, on x86-64.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 with the usual extensions, on x86-64.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// The best of this processor. Detected once by the standard library, then a load.
#[inline]
pub(crate) fn simd() -> Simd {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("fma")
        {
            return Simd::Avx512;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Simd::Avx2;
        }
    }
    Simd::Baseline
}

/// `a * b + c`: fused where that is one instruction. `FMA` is the constant of [`vectorized`].
#[inline(always)]
pub(crate) fn mul_add<const FMA: bool, T: Fused>(a: T, b: T, c: T) -> T {
    // Without the instruction it is a slow function of the C library.
    if FMA || cfg!(target_arch = "aarch64") { a.fused(b, c) } else { a * b + c }
}

/// A type that has a fused multiplication and addition.
pub(crate) trait Fused: Copy + Mul<Output = Self> + Add<Output = Self> {
    fn fused(self, b: Self, c: Self) -> Self;
}

impl Fused for f32 {
    #[inline(always)]
    fn fused(self, b: f32, c: f32) -> f32 {
        self.mul_add(b, c)
    }
}

impl Fused for f64 {
    #[inline(always)]
    fn fused(self, b: f64, c: f64) -> f64 {
        self.mul_add(b, c)
    }
}

/// The same values, by way of memory. To be called between a loop that keeps values in the lanes of
/// registers and code that joins the lanes: if the compiler sees both at once it may choose the narrow
/// vectors that suit the joining for the loop too, which made sums four times slower.
#[inline(always)]
pub(crate) fn settled<T, const N: usize>(lanes: [T; N]) -> [T; N] {
    std::hint::black_box(lanes)
}

/// Defines a function whose body is compiled for every [`Simd`] and vectorised by the compiler.
/// Within the body, `FMA` says whether `a * b + c` is one instruction.
///
/// ```text
/// vectorized! {
///     /// Adds.
///     pub(crate) fn add(a: &[f32], b: &[f32], out: &mut [f32]) {
///         for ((out, a), b) in out.iter_mut().zip(a).zip(b) { *out = a + b; }
///     }
/// }
/// ```
macro_rules! vectorized {
    ($(#[$attribute:meta])* $visibility:vis fn $name:ident $(<$($generic:ident : $bound:path),+>)? ($($argument:ident : $type:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        $(#[$attribute])*
        $visibility fn $name $(<$($generic: $bound),+>)? ($($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            #[allow(unused, clippy::extra_unused_type_parameters)]
            fn body<const FMA: bool $(, $($generic: $bound),+)?>($($argument: $type),*) $(-> $result)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2 $(<$($generic: $bound),+>)? ($($argument: $type),*) $(-> $result)? {
                body::<true $(, $($generic),+)?>($($argument),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
            fn avx512 $(<$($generic: $bound),+>)? ($($argument: $type),*) $(-> $result)? {
                body::<true $(, $($generic),+)?>($($argument),*)
            }
            match $crate::simd::simd() {
                $crate::simd::Simd::Baseline => body::<false $(, $($generic),+)?>($($argument),*),
                // SAFETY: `simd` has found that the processor has the instructions.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Simd::Avx2 => unsafe { avx2 $(::<$($generic),+>)? ($($argument),*) },
                // SAFETY: As above.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Simd::Avx512 => unsafe { avx512 $(::<$($generic),+>)? ($($argument),*) },
            }
        }
    };
}
pub(crate) use vectorized;

#[cfg(test)]
mod tests {
    use super::*;

    vectorized! {
        fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
            for (y, x) in y.iter_mut().zip(x) {
                *y = mul_add::<FMA, _>(a, *x, *y);
            }
        }
    }

    vectorized! {
        fn largest<T: Ord>(x: &[T]) -> Option<&T> { x.iter().max() }
    }

    #[test]
    fn vectorized_functions_do_what_their_body_says() {
        let x: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let mut y = vec![1.0; 1000];
        axpy(2.0, &x, &mut y);
        assert!(y.iter().enumerate().all(|(i, y)| *y == 2.0 * i as f32 + 1.0));
        assert_eq!(largest(&[3, 9, 2]), Some(&9));
    }
}
