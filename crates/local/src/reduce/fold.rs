//! Folding the middle of *outer x n x inner* in pieces of a fixed size.

use smallvec::SmallVec;

use super::arrange::{Arranged, Reduced};
use crate::{Element, Result, Tensor, threads::for_pieces_of};

/// Elements of a row that one call folds: they stay in the second-level cache, so a fold may look at
/// them twice.
const PIECE: usize = 1 << 15;

/// Rows of columns that one call folds.
const BLOCK_ROWS: usize = 128;

/// Columns that one call folds: their results stay in the first-level cache.
const COLUMNS: usize = 4096;

/// How many values become one.
pub(super) trait Fold: Copy + Sync {
    type In: Element;
    type Acc: Copy + Send + Sync;
    type Out: Element;

    /// The fold of nothing.
    fn start(self) -> Self::Acc;

    /// The fold of a row.
    fn row(self, x: &[Self::In]) -> Self::Acc;

    /// The folds of as many columns as `acc` has, which begin at the elements of `x` and lie in rows
    /// `stride` apart; the last row may end with the last column. `acc` holds [`Fold::start`].
    fn columns(self, x: &[Self::In], stride: usize, acc: &mut [Self::Acc]);

    /// The fold of both.
    fn join(self, a: Self::Acc, b: Self::Acc) -> Self::Acc;

    /// The result.
    fn finish(self, acc: Self::Acc) -> Self::Out;
}

/// Reduces a tensor.
pub(super) fn fold<F: Fold>(
    op: &'static str,
    x: &Tensor,
    reduced: &Reduced,
    fold: F,
) -> Result<Tensor> {
    if x.is_meta() {
        return Tensor::meta(&reduced.shape, F::Out::DTYPE);
    }
    fold_arranged(op, &reduced.arrange(x)?, reduced, fold)
}

/// Reduces a tensor whose arrangement is known.
pub(super) fn fold_arranged<F: Fold>(
    op: &'static str,
    arranged: &Arranged,
    reduced: &Reduced,
    fold: F,
) -> Result<Tensor> {
    let x = arranged.x.as_slice::<F::In>()?;
    let (n, inner) = (arranged.n, arranged.inner);
    reduced.write(op, arranged, |out: &mut [F::Out]| match (n, inner) {
        _ if out.is_empty() => {}
        (0, _) => out.fill(fold.finish(fold.start())),
        (_, 1) => fold_rows(fold, x, n, out),
        _ => fold_columns(fold, x, n, inner, out),
    })
}

fn fold_rows<F: Fold>(fold: F, x: &[F::In], n: usize, out: &mut [F::Out]) {
    if n <= PIECE {
        for_pieces_of(out, 1, PIECE / n, |rows, out| {
            for (row, out) in rows.zip(out) {
                *out = fold.finish(fold.row(&x[row * n..(row + 1) * n]));
            }
        });
        return;
    }
    let per_row = n.div_ceil(PIECE);
    let mut partial = vec![fold.start(); per_row * out.len()];
    for_pieces_of(&mut partial, 1, 1, |pieces, partial| {
        for (piece, partial) in pieces.zip(partial) {
            let (row, first) = (piece / per_row, piece % per_row * PIECE);
            *partial = fold.row(&x[row * n + first..row * n + n.min(first + PIECE)]);
        }
    });
    for (out, partial) in out.iter_mut().zip(partial.chunks(per_row)) {
        *out = fold.finish(tree(fold, partial));
    }
}

fn fold_columns<F: Fold>(fold: F, x: &[F::In], n: usize, inner: usize, out: &mut [F::Out]) {
    let n_blocks = n.div_ceil(BLOCK_ROWS);
    // Long stretches of a row are read fastest; but a small tensor has too few of them to share.
    let columns = if x.len() >> 4 > COLUMNS * BLOCK_ROWS { COLUMNS } else { COLUMNS / 4 };
    // The number of results is a multiple of `inner` per outer index and block; a piece of them may
    // begin and end within a row.
    let fold_piece = |first: usize, acc: &mut [F::Acc]| {
        let mut done = 0;
        while done < acc.len() {
            let (row, column) = ((first + done) / inner, (first + done) % inner);
            let width = (inner - column).min(acc.len() - done);
            let (outer, block) = (row / n_blocks, row % n_blocks);
            let rows = block * BLOCK_ROWS..n.min((block + 1) * BLOCK_ROWS);
            let last = (outer * n + rows.end - 1) * inner + column + width;
            let x = &x[(outer * n + rows.start) * inner + column..last];
            fold.columns(x, inner, &mut acc[done..done + width]);
            done += width;
        }
    };
    if n_blocks == 1 {
        for_pieces_of(out, 1, columns, |piece, out| {
            let mut acc: SmallVec<[F::Acc; 64]> = SmallVec::from_elem(fold.start(), out.len());
            fold_piece(piece.start, &mut acc);
            for (out, acc) in out.iter_mut().zip(acc) {
                *out = fold.finish(acc);
            }
        });
        return;
    }
    let mut partial = vec![fold.start(); n_blocks * out.len()];
    for_pieces_of(&mut partial, 1, columns, |piece, acc| fold_piece(piece.start, acc));
    for (out, partial) in out.chunks_mut(inner).zip(partial.chunks_mut(n_blocks * inner)) {
        tree_of_rows(fold, partial, inner);
        for (out, acc) in out.iter_mut().zip(partial) {
            *out = fold.finish(*acc);
        }
    }
}

/// The fold of all, joined in pairs, then in pairs of pairs.
pub(super) fn tree<F: Fold>(fold: F, partial: &[F::Acc]) -> F::Acc {
    match partial {
        [] => fold.start(),
        [one] => *one,
        _ => {
            let (a, b) = partial.split_at(partial.len().next_power_of_two() / 2);
            fold.join(tree(fold, a), tree(fold, b))
        }
    }
}

/// As [`tree`] for every column of rows of `width`; the result is the first row.
fn tree_of_rows<F: Fold>(fold: F, partial: &mut [F::Acc], width: usize) {
    let mut apart = width;
    while apart < partial.len() {
        for pair in partial.chunks_mut(2 * apart) {
            if let Some((a, b)) = pair.split_at_mut_checked(apart) {
                for (a, b) in a[..width].iter_mut().zip(b) {
                    *a = fold.join(*a, *b);
                }
            }
        }
        apart *= 2;
    }
}
