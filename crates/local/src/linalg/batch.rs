//! The matrices of a tensor, one after the other or on several threads.

use std::sync::{Mutex, PoisonError};

use faer::MatRef;

use crate::{
    DType, LocalError, Result, Tensor,
    dims::{Dims, numel},
    threads::for_pieces_of,
};

/// Multiplications that a thread is woken up for.
const PIECE: usize = 1 << 16;

/// The matrices of a tensor, in the precision in which everything here is computed.
pub(super) struct Matrices {
    op: &'static str,
    /// The tensor's, and that of results.
    dtype: DType,
    batch: Dims,
    rows: usize,
    columns: usize,
    /// Consecutive `f64`.
    values: Tensor,
}

/// What can be wrong with one matrix.
#[derive(Clone, Copy)]
pub(super) enum Failure {
    NotFinite,
    Singular,
    NotPositiveDefinite,
    NoConvergence,
}

impl Matrices {
    /// The matrices in the last two dims.
    pub(super) fn of(op: &'static str, tensor: &Tensor) -> Result<Matrices> {
        check_dtype(op, tensor)?;
        let [batch @ .., rows, columns] = tensor.shape() else {
            return Err(shape_error(op, tensor, "a matrix needs two dims, with the batch before"));
        };
        let values = tensor.to_dtype(DType::F64)?.contiguous();
        let dtype = tensor.dtype();
        Ok(Matrices { op, dtype, batch: batch.into(), rows: *rows, columns: *columns, values })
    }

    /// The same, refused if they are not square.
    pub(super) fn square(op: &'static str, tensor: &Tensor) -> Result<Matrices> {
        let matrices = Matrices::of(op, tensor)?;
        if matrices.rows != matrices.columns {
            return Err(shape_error(op, tensor, "the matrices must be square"));
        }
        Ok(matrices)
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Distance from 1 to the next number of the tensor's dtype.
    pub(super) fn epsilon(&self) -> f64 {
        if self.dtype == DType::F32 { f64::from(f32::EPSILON) } else { f64::EPSILON }
    }

    /// As [`each_of`], for a single operand.
    pub(super) fn each<const OUT: usize>(
        &self,
        shapes: [&[usize]; OUT],
        work: impl Fn(MatRef<'_, f64>, [&mut [f64]; OUT]) -> Result<(), Failure> + Sync,
    ) -> Result<[Tensor; OUT]> {
        each_of([self], shapes, |[a], out| work(a, out))
    }
}

/// Calls `work` for every matrix of the batch, which the operands share, with where its results go: one
/// slice for each of `shapes`, to be written completely, rows one after the other. Gives tensors of the
/// batch's dims and these shapes, of the first operand's dtype.
///
/// Of values that are not finite the algorithms promise nothing: `work` checks first ([`finite`]).
pub(super) fn each_of<const IN: usize, const OUT: usize>(
    operands: [&Matrices; IN],
    shapes: [&[usize]; OUT],
    work: impl Fn([MatRef<'_, f64>; IN], [&mut [f64]; OUT]) -> Result<(), Failure> + Sync,
) -> Result<[Tensor; OUT]> {
    let first = operands[0];
    let (op, batch) = (first.op, &first.batch);
    let mut widths = [0; OUT];
    for (width, shape) in widths.iter_mut().zip(shapes) {
        *width = numel(op, shape, DType::F64)?;
    }
    let width = numel(op, &[widths.iter().sum()], DType::F64)?;
    let n = numel(op, batch, DType::F64)?;

    let packed = if operands.iter().any(|operand| operand.values.is_meta()) {
        Tensor::meta(&[n, width], DType::F64)?
    } else {
        let mut values: [&[f64]; IN] = [&[]; IN];
        for (values, operand) in values.iter_mut().zip(operands) {
            *values = operand.values.as_slice()?;
        }
        let matrices = |index: usize| {
            let mut matrices = [MatRef::from_row_major_slice(&[], 0, 0); IN];
            for ((matrix, operand), values) in matrices.iter_mut().zip(operands).zip(values) {
                let size = operand.rows * operand.columns;
                let values = &values[index * size..(index + 1) * size];
                *matrix = MatRef::from_row_major_slice(values, operand.rows, operand.columns);
            }
            matrices
        };
        let failed: Mutex<Option<(usize, Failure)>> = Mutex::new(None);
        let cost = first.rows * first.columns * first.rows.min(first.columns) + width;
        let packed = Tensor::write(op, &[n, width], |out: &mut [f64]| {
            for_pieces_of(out, width, PIECE / cost.max(1), |piece, part| {
                for (index, part) in piece.zip(part.chunks_exact_mut(width)) {
                    if let Err(failure) = work(matrices(index), split(part, widths)) {
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        // The first of the batch, whichever thread comes first.
                        if failed.is_none_or(|(other, _)| index < other) {
                            *failed = Some((index, failure));
                        }
                    }
                }
            });
        })?;
        if let Some((index, failure)) = failed.into_inner().unwrap_or_else(PoisonError::into_inner)
        {
            return Err(failure.of_matrix(op, index, batch));
        }
        packed
    };

    let mut results = std::array::from_fn(|_| packed.clone());
    let mut start = 0;
    for ((result, shape), width) in results.iter_mut().zip(shapes).zip(widths) {
        let shape: Dims = batch.iter().chain(shape).copied().collect();
        let part = packed.narrow(1, start, width)?.contiguous();
        *result = part.to_dtype(first.dtype)?.reshape(&shape)?;
        start += width;
    }
    Ok(results)
}

/// Refuses infinities and NaN.
pub(super) fn finite(a: MatRef<'_, f64>) -> Result<(), Failure> {
    let all = (0..a.nrows()).all(|row| (0..a.ncols()).all(|column| a[(row, column)].is_finite()));
    if all { Ok(()) } else { Err(Failure::NotFinite) }
}

/// The same, of the lower triangle alone, where the rest is not looked at.
pub(super) fn finite_lower(a: MatRef<'_, f64>) -> Result<(), Failure> {
    let all = (0..a.nrows()).all(|row| (0..=row).all(|column| a[(row, column)].is_finite()));
    if all { Ok(()) } else { Err(Failure::NotFinite) }
}

/// Writes a matrix, rows one after the other.
pub(super) fn store(a: MatRef<'_, f64>, out: &mut [f64]) {
    for (row, out) in out.chunks_exact_mut(a.ncols().max(1)).enumerate() {
        for (column, out) in out.iter_mut().enumerate() {
            *out = a[(row, column)];
        }
    }
}

/// Whether each of the first `n` columns is turned round, such that the largest of its elements is positive. A vector that
/// is determined up to its sign would else turn with the last digit of a matrix.
pub(super) fn turned_columns(a: MatRef<'_, f64>, n: usize) -> Vec<bool> {
    let is_turned = |column: usize| {
        let largest = a.col(column).iter().copied().fold(0.0_f64, |largest, value| {
            if value.abs() > largest.abs() { value } else { largest }
        });
        largest < 0.0
    };
    (0..n).map(is_turned).collect()
}

/// Turns columns of a matrix with rows of this length.
pub(super) fn turn_columns(matrix: &mut [f64], length: usize, turned: &[bool]) {
    for row in matrix.chunks_exact_mut(length.max(1)) {
        for (value, _) in row.iter_mut().zip(turned).filter(|(_, turned)| **turned) {
            *value = -*value;
        }
    }
}

/// Writes ones on the diagonal of a square matrix and zeros elsewhere.
pub(super) fn store_identity(size: usize, out: &mut [f64]) {
    out.fill(0.0);
    out.iter_mut().step_by(size + 1).for_each(|value| *value = 1.0);
}

/// Refuses everything but `f32` and `f64`.
pub(crate) fn check_dtype(op: &'static str, tensor: &Tensor) -> Result<()> {
    match tensor.dtype() {
        DType::F32 | DType::F64 => Ok(()),
        got => Err(LocalError::NotFullPrecision { op, got }),
    }
}

pub(super) fn shape_error(op: &'static str, tensor: &Tensor, why: &'static str) -> LocalError {
    LocalError::BadShape { op, shape: tensor.shape().to_vec(), why }
}

impl Failure {
    fn of_matrix(self, op: &'static str, index: usize, batch: &[usize]) -> LocalError {
        let mut matrix = vec![0; batch.len()];
        let mut rest = index;
        for (place, size) in matrix.iter_mut().zip(batch).rev() {
            *place = rest % size;
            rest /= size;
        }
        match self {
            Failure::NotFinite => LocalError::NotFinite { op, matrix },
            Failure::Singular => LocalError::Singular { op, matrix },
            Failure::NotPositiveDefinite => LocalError::NotPositiveDefinite { op, matrix },
            Failure::NoConvergence => LocalError::NoConvergence { op, matrix },
        }
    }
}

/// Consecutive parts of these lengths.
fn split<const N: usize>(mut all: &mut [f64], lengths: [usize; N]) -> [&mut [f64]; N] {
    lengths.map(|length| {
        let (part, rest) = std::mem::take(&mut all).split_at_mut(length);
        all = rest;
        part
    })
}
