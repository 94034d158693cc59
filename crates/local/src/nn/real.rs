//! The two types that these kernels compute in, and folds over a row of them.

use std::ops::{AddAssign, Div, MulAssign, Neg, Sub};

use crate::{
    DType, Element, LocalError, Result, Tensor, bf16,
    elementwise::math32::exp_to_normal,
    f16,
    matmul::Number,
    simd::{self, settled},
    threads,
};

/// Accumulators side by side, so that a fold is as wide as the widest vectors and their latency is hidden.
const LANES: usize = 32;

/// `f32` or `f64`: what a kernel computes in. `bf16` and `f16` are widened before and rounded once after.
pub(crate) trait Real:
    Element
    + Number
    + simd::Fused
    + Sub<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
{
    const ZERO: Self;
    const ONE: Self;
    const NEG_INFINITY: Self;

    fn of(value: f64) -> Self;
    fn wide(self) -> f64;
    fn sqrt(self) -> Self;
    fn ln(self) -> Self;

    /// `self * b + c`, fused where that is one instruction.
    #[inline(always)]
    fn mul_add<const FMA: bool>(self, b: Self, c: Self) -> Self {
        simd::mul_add::<FMA, _>(self, b, c)
    }

    /// The exponential, to about 2 ulp; results below the normal numbers are zero, NaN stays NaN.
    fn exp<const FMA: bool>(self) -> Self;
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    const NEG_INFINITY: f32 = f32::NEG_INFINITY;

    #[inline(always)]
    fn of(value: f64) -> f32 {
        value as f32
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }

    #[inline(always)]
    fn ln(self) -> f32 {
        f32::ln(self)
    }

    #[inline(always)]
    fn exp<const FMA: bool>(self) -> f32 {
        exp_to_normal::<FMA>(self)
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const NEG_INFINITY: f64 = f64::NEG_INFINITY;

    #[inline(always)]
    fn of(value: f64) -> f64 {
        value
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }

    #[inline(always)]
    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }

    #[inline(always)]
    fn ln(self) -> f64 {
        f64::ln(self)
    }

    #[inline(always)]
    fn exp<const FMA: bool>(self) -> f64 {
        f64::exp(self)
    }
}

/// The largest of a row; NaN is passed over (the sums that follow find it). Nothing has the largest `-inf`.
#[inline(always)]
pub(crate) fn row_max<R: Real>(row: &[R]) -> R {
    let (blocks, rest) = row.as_chunks::<LANES>();
    let mut lanes = [R::NEG_INFINITY; LANES];
    for block in blocks {
        for (lane, value) in lanes.iter_mut().zip(block) {
            *lane = if *value > *lane { *value } else { *lane };
        }
    }
    let mut largest = R::NEG_INFINITY;
    for value in settled(lanes).iter().chain(rest) {
        largest = if *value > largest { *value } else { largest };
    }
    largest
}

/// The sum of `term` over a row, always in the same order.
#[inline(always)]
pub(crate) fn row_sum<R: Real>(row: &[R], term: impl Fn(R) -> R) -> R {
    let (blocks, rest) = row.as_chunks::<LANES>();
    let mut lanes = [R::ZERO; LANES];
    for block in blocks {
        for (lane, value) in lanes.iter_mut().zip(block) {
            *lane += term(*value);
        }
    }
    joined(lanes) + rest.iter().fold(R::ZERO, |sum, value| sum + term(*value))
}

/// As [`row_sum`], over two rows of the same length.
#[inline(always)]
pub(crate) fn row_sum_2<R: Real>(a: &[R], b: &[R], term: impl Fn(R, R) -> R) -> R {
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    let mut lanes = [R::ZERO; LANES];
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += term(*a, *b);
        }
    }
    let rest = a_rest.iter().zip(b_rest).fold(R::ZERO, |sum, (a, b)| sum + term(*a, *b));
    joined(lanes) + rest
}

/// Writes `value` of every element of a row, and gives the sum of what it wrote.
#[inline(always)]
pub(crate) fn row_map_sum<R: Real>(row: &[R], out: &mut [R], value: impl Fn(R) -> R) -> R {
    let (blocks, rest) = row.as_chunks::<LANES>();
    let (out_blocks, out_rest) = out.as_chunks_mut::<LANES>();
    let mut lanes = [R::ZERO; LANES];
    for (out, block) in out_blocks.iter_mut().zip(blocks) {
        for lane in 0..LANES {
            out[lane] = value(block[lane]);
            lanes[lane] += out[lane];
        }
    }
    let mut sum = joined(lanes);
    for (out, x) in out_rest.iter_mut().zip(rest) {
        *out = value(*x);
        sum += *out;
    }
    sum
}

#[inline(always)]
fn joined<R: Real>(lanes: [R; LANES]) -> R {
    let mut lanes = settled(lanes);
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            let other = lanes[lane + width];
            lanes[lane] += other;
        }
        width /= 2;
    }
    lanes[0]
}

/// Rows of `len` elements that are worth a hand-over to another thread.
pub(crate) fn rows_per_piece(len: usize) -> usize {
    (32 * 1024 / len.max(1)).max(1)
}

/// The floating-point tensor in the type it is computed in, its elements consecutive: `f32` and `f64` as
/// they are, `bf16` and `f16` as `f32`. Whoever calls it has handled meta tensors.
pub(crate) fn widened(op: &'static str, tensor: &Tensor) -> Result<Tensor> {
    check_float(op, tensor)?;
    let whole = tensor.contiguous();
    match tensor.dtype() {
        DType::Bf16 => {
            let from = whole.as_slice::<bf16>()?;
            map(op, from, tensor.shape(), |x| x.to_f32())
        }
        DType::F16 => {
            let from = whole.as_slice::<f16>()?;
            map(op, from, tensor.shape(), |x| x.to_f32())
        }
        _ => Ok(whole),
    }
}

/// The way back from [`widened`]: rounds to nearest, ties to even.
pub(crate) fn rounded(op: &'static str, tensor: Tensor, dtype: DType) -> Result<Tensor> {
    match dtype {
        DType::Bf16 => map(op, tensor.as_slice::<f32>()?, tensor.shape(), bf16::from_f32),
        DType::F16 => map(op, tensor.as_slice::<f32>()?, tensor.shape(), f16::from_f32),
        _ => Ok(tensor),
    }
}

/// Refuses what is not floating point.
pub(crate) fn check_float(op: &'static str, tensor: &Tensor) -> Result<()> {
    match tensor.dtype() {
        dtype if dtype.is_float() => Ok(()),
        got => Err(LocalError::NotFloat { op, got }),
    }
}

/// Refuses an operand of another dtype than the first one's.
pub(crate) fn check_dtype(op: &'static str, tensor: &Tensor, want: DType) -> Result<()> {
    match tensor.dtype() {
        got if got == want => Ok(()),
        got => Err(LocalError::WrongDType { op, got, want }),
    }
}

/// Refuses an operand of another shape.
pub(crate) fn check_shape(
    op: &'static str,
    tensor: &Tensor,
    want: &[usize],
    why: &'static str,
) -> Result<()> {
    if tensor.shape() == want {
        return Ok(());
    }
    let (from, to) = (tensor.shape().to_vec(), want.to_vec());
    Err(LocalError::ShapeMismatch { op, from, to, why })
}

/// Runs the body with `$R` being the type that a tensor from [`widened`] has.
macro_rules! by_real {
    ($tensor:expr, $R:ident => $body:expr) => {
        if $tensor.dtype() == $crate::DType::F64 {
            type $R = f64;
            $body
        } else {
            type $R = f32;
            $body
        }
    };
}
pub(crate) use by_real;

fn map<A: Element, B: Element>(
    op: &'static str,
    from: &[A],
    shape: &[usize],
    value: impl Fn(A) -> B + Sync,
) -> Result<Tensor> {
    Tensor::write(op, shape, |out| {
        threads::for_pieces_of(out, 1, 32 * 1024, |piece, out| {
            for (out, x) in out.iter_mut().zip(&from[piece]) {
                *out = value(*x);
            }
        });
    })
}
