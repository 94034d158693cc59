//! Products of batches of matrices.

use super::{
    matrix::Matrix,
    number::{Number, Scale},
};
use crate::{
    DType, LocalError, Result, Tensor, bf16,
    dims::Dims,
    f16,
    threads::{for_pieces_of, threads},
};

/// Multiplications that a thread is woken up for.
const PIECE: usize = 1 << 18;

/// The products of the matrices of `a` (`[batch.., m, k]`) and of `b` (`[batch.., k, n]`), whose batch
/// dims are the same. `shape` has the elements of `[batch.., m, n]`.
pub(super) fn product(op: &'static str, a: &Tensor, b: &Tensor, shape: &[usize]) -> Result<Tensor> {
    check_dtypes(op, a, b)?;
    if a.is_meta() || b.is_meta() {
        return Tensor::meta(shape, a.dtype());
    }
    fn typed<T: Number>(
        op: &'static str,
        a: &Tensor,
        b: &Tensor,
        shape: &[usize],
    ) -> Result<Tensor> {
        let batch = Batch::<T>::new(op, a, b)?;
        Tensor::write(op, shape, |out| batch.multiply(out, Scale::PLAIN))
    }
    match a.dtype() {
        DType::F32 => typed::<f32>(op, a, b, shape),
        DType::F64 => typed::<f64>(op, a, b, shape),
        DType::Bf16 => typed::<bf16>(op, a, b, shape),
        DType::F16 => typed::<f16>(op, a, b, shape),
        DType::I64 => typed::<i64>(op, a, b, shape),
        DType::I32 => typed::<i32>(op, a, b, shape),
        DType::U8 => typed::<u8>(op, a, b, shape),
        dtype => Err(no_product(op, dtype)),
    }
}

/// As [`product`], added to `scale.kept` times `out`, whose elements are those of the result.
pub(super) fn add_product(
    op: &'static str,
    a: &Tensor,
    b: &Tensor,
    out: &Tensor,
    scale: Scale,
) -> Result<Tensor> {
    check_dtypes(op, a, b)?;
    check_dtypes(op, a, out)?;
    if a.is_meta() || b.is_meta() || out.is_meta() {
        return Tensor::meta(out.shape(), a.dtype());
    }
    fn typed<T: Number>(
        op: &'static str,
        a: &Tensor,
        b: &Tensor,
        out: &Tensor,
        scale: Scale,
    ) -> Result<Tensor> {
        let batch = Batch::<T>::new(op, a, b)?;
        // This copies, since the caller has `out` too.
        let mut sum = out.contiguous();
        batch.multiply(sum.as_mut_slice()?, scale);
        Ok(sum)
    }
    match a.dtype() {
        DType::F32 => typed::<f32>(op, a, b, out, scale),
        DType::F64 => typed::<f64>(op, a, b, out, scale),
        DType::Bf16 => typed::<bf16>(op, a, b, out, scale),
        DType::F16 => typed::<f16>(op, a, b, out, scale),
        DType::I64 => typed::<i64>(op, a, b, out, scale),
        DType::I32 => typed::<i32>(op, a, b, out, scale),
        DType::U8 => typed::<u8>(op, a, b, out, scale),
        dtype => Err(no_product(op, dtype)),
    }
}

/// Refuses operands of different dtypes, as PyTorch does, and dtypes without products.
pub(super) fn check_dtypes(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    match (a.dtype(), b.dtype()) {
        (want, got) if want != got => Err(LocalError::WrongDType { op, got, want }),
        (DType::Bool, _) => Err(no_product(op, DType::Bool)),
        _ => Ok(()),
    }
}

fn no_product(op: &'static str, dtype: DType) -> LocalError {
    LocalError::UnsupportedDType { op, dtype }
}

/// The matrices of two tensors.
struct Batch<'a, T> {
    /// The first matrix of each.
    a: Matrix<'a, T>,
    b: Matrix<'a, T>,
    /// Size and strides of each batch dim.
    dims: Dims<(usize, isize, isize)>,
}

impl<'a, T: Number> Batch<'a, T> {
    fn new(op: &'static str, a: &'a Tensor, b: &'a Tensor) -> Result<Self> {
        let n_batch = a.n_dims() - 2;
        let mut dims: Dims<(usize, isize, isize)> = (0..n_batch)
            .map(|dim| (a.shape()[dim], a.strides()[dim], b.strides()[dim]))
            .filter(|(size, ..)| *size != 1)
            .collect();
        let (mut rows, mut row_stride) = (a.shape()[n_batch], a.strides()[n_batch]);
        // `[batch, m, k] x [k, n]`, a linear layer, is one product of `batch * m` rows, if these are
        // evenly apart: that is much faster than many small ones.
        while let Some((size, a_stride, 0)) = dims.last().copied() {
            match rows {
                1 => row_stride = a_stride,
                _ if a_stride == row_stride * rows as isize => {}
                _ => break,
            }
            rows *= size;
            dims.pop();
        }
        // SAFETY: The elements of a tensor, by its own invariant, for as long as it is borrowed. Rows
        // that were joined with batch dims are the same elements.
        let (a, b) = unsafe {
            let (a_start, b_start) = (a.typed_start(op)?, b.typed_start(op)?);
            (
                Matrix::new(
                    a_start,
                    (rows, a.shape()[n_batch + 1]),
                    (row_stride, a.strides()[n_batch + 1]),
                ),
                Matrix::new(
                    b_start,
                    (b.shape()[n_batch], b.shape()[n_batch + 1]),
                    (b.strides()[n_batch], b.strides()[n_batch + 1]),
                ),
            )
        };
        Ok(Batch { a, b, dims })
    }

    fn multiply(&self, out: &mut [T], scale: Scale) {
        if out.is_empty() {
            return;
        }
        let n_products: usize = self.dims.iter().map(|(size, ..)| size).product();
        let length = out.len() / n_products;
        let work = length.saturating_mul(self.a.n_columns().max(1));
        // Either the threads share every product, or each takes some of them.
        let share_each = n_products < threads() && work > PIECE;
        let run = |product: usize, out: &mut [T]| {
            let (a, b) = self.matrices(product);
            T::multiply(a, b, out, scale, share_each);
        };
        if share_each || n_products == 1 {
            out.chunks_exact_mut(length).enumerate().for_each(|(product, out)| run(product, out));
        } else {
            for_pieces_of(out, length, PIECE.div_ceil(work), |products, out| {
                products
                    .zip(out.chunks_exact_mut(length))
                    .for_each(|(product, out)| run(product, out));
            });
        }
    }

    /// The operands of one of the products.
    fn matrices(&self, product: usize) -> (Matrix<'a, T>, Matrix<'a, T>) {
        let (mut rest, mut a_at, mut b_at) = (product, 0, 0);
        for (size, a_stride, b_stride) in self.dims.iter().rev() {
            let index = (rest % size) as isize;
            rest /= size;
            a_at += index * a_stride;
            b_at += index * b_stride;
        }
        // SAFETY: The index is within the batch dims, so these are elements of the tensors.
        unsafe { (self.a.moved(a_at), self.b.moved(b_at)) }
    }
}
