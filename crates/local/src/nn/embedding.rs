//! Rows of a table by their indices.

use super::real::{Real, by_real, check_float, check_shape, rounded, widened};
use crate::{DType, Element, LocalError, Result, Tensor, bf16, dims::Dims, f16, threads};

impl Tensor {
    /// The rows of this table `[V, E]` at `ids` (`i64` or `i32`, any shape): `[..., E]`. An id that is not
    /// within `0..V` is an error. As `torch.nn.functional.embedding`.
    pub fn embedding(&self, ids: &Tensor) -> Result<Tensor> {
        let op = "embedding";
        let [n_rows, width] = *self.shape() else {
            let (from, why) = (self.shape().to_vec(), "a table has two dims: rows and their width");
            return Err(LocalError::ShapeMismatch { op, from, to: vec![0, 0], why });
        };
        check_ids(op, ids)?;
        let shape: Dims = ids.shape().iter().copied().chain([width]).collect();
        if self.is_meta() || ids.is_meta() {
            return Tensor::meta(&shape, self.dtype());
        }
        let rows = rows_of(op, ids, n_rows)?;
        let table = self.contiguous();
        match self.dtype() {
            DType::F32 => taken::<f32>(op, &table, &rows, &shape, width),
            DType::F64 => taken::<f64>(op, &table, &rows, &shape, width),
            DType::Bf16 => taken::<bf16>(op, &table, &rows, &shape, width),
            DType::F16 => taken::<f16>(op, &table, &rows, &shape, width),
            DType::I64 => taken::<i64>(op, &table, &rows, &shape, width),
            DType::I32 => taken::<i32>(op, &table, &rows, &shape, width),
            DType::U8 => taken::<u8>(op, &table, &rows, &shape, width),
            DType::Bool => taken::<bool>(op, &table, &rows, &shape, width),
        }
    }

    /// The gradient of [`Tensor::embedding`] with respect to its table of `n_rows` rows, where `self` is the
    /// gradient of its result: every row the sum of the gradients where it was taken, in their order.
    pub fn embedding_backward(&self, ids: &Tensor, n_rows: usize) -> Result<Tensor> {
        let op = "embedding_backward";
        check_float(op, self)?;
        check_ids(op, ids)?;
        let width = self.shape().last().copied().unwrap_or(1);
        let want: Dims = ids.shape().iter().copied().chain([width]).collect();
        check_shape(op, self, &want, "a gradient has the shape of the result")?;
        if self.is_meta() || ids.is_meta() {
            return Tensor::meta(&[n_rows, width], self.dtype());
        }
        let rows = rows_of(op, ids, n_rows)?;
        let grad = widened(op, self)?;
        let out = by_real!(grad, R => summed::<R>(&grad, &rows, n_rows, width)?);
        rounded(op, out, self.dtype())
    }
}

/// The values of a tensor of indices.
pub(super) fn indices(op: &'static str, ids: &Tensor) -> Result<Vec<i64>> {
    match ids.dtype() {
        DType::I64 => ids.to_vec::<i64>(),
        DType::I32 => Ok(ids.to_vec::<i32>()?.into_iter().map(i64::from).collect()),
        got => Err(LocalError::WrongDType { op, got, want: DType::I64 }),
    }
}

fn check_ids(op: &'static str, ids: &Tensor) -> Result<()> {
    match ids.dtype() {
        DType::I64 | DType::I32 => Ok(()),
        got => Err(LocalError::WrongDType { op, got, want: DType::I64 }),
    }
}

/// The ids as rows of a table that has so many.
fn rows_of(op: &'static str, ids: &Tensor, n_rows: usize) -> Result<Vec<usize>> {
    let row = |id: i64| {
        let row = usize::try_from(id).ok().filter(|row| *row < n_rows);
        let error = LocalError::IndexOutOfRange { op, index: id as isize, dim: 0, size: n_rows };
        row.ok_or(error)
    };
    indices(op, ids)?.into_iter().map(row).collect()
}

fn taken<T: Element>(
    op: &'static str,
    table: &Tensor,
    rows: &[usize],
    shape: &[usize],
    width: usize,
) -> Result<Tensor> {
    let table = table.as_slice::<T>()?;
    Tensor::write(op, shape, |out: &mut [T]| {
        let grain = 32 * 1024 / width.max(1);
        threads::for_pieces_of(out, width, grain, |piece, out| {
            for (row, out) in rows[piece].iter().zip(out.chunks_exact_mut(width.max(1))) {
                out.copy_from_slice(&table[row * width..][..width]);
            }
        });
    })
}

fn summed<R: Real>(grad: &Tensor, rows: &[usize], n_rows: usize, width: usize) -> Result<Tensor> {
    let grads = grad.as_slice::<R>()?;
    let mut out = Tensor::zeros(&[n_rows, width], R::DTYPE)?;
    // Every thread reads all ids and adds to its own rows of the table. A row's sum is in the order of the
    // ids whichever thread has the row, so the number of pieces may be that of the threads.
    let small = grads.len() <= 32 * 1024;
    let grain = if small { n_rows } else { n_rows.div_ceil(threads::threads()) };
    threads::for_pieces_of(out.as_mut_slice::<R>()?, width, grain, |piece, out| {
        for (row, grad) in rows.iter().zip(grads.chunks_exact(width.max(1))) {
            if piece.contains(row) {
                let out = &mut out[(row - piece.start) * width..][..width];
                for (out, grad) in out.iter_mut().zip(grad) {
                    *out += *grad;
                }
            }
        }
    });
    Ok(out)
}
