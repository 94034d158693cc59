//! The three products that convolutions and their gradients are made of.
//!
//! With `X` the matrix of what the windows see (see [`Tile`]), `W` the weights, a row per filter, and `Y` the outputs,
//! a row per filter:
//!
//! | product | is | for |
//! |---|---|---|
//! | `Y = W X` | [`Convolution::gather`] | the convolution; the gradient of a transposed one's input |
//! | `X = W^T Y` | [`Convolution::spread`] | the transposed convolution; the gradient of a plain one's input |
//! | `W = Y X^T` | [`Convolution::correlate`] | the gradient of the weights of both |
//!
//! How the work is divided depends on sizes alone, and no sum on the number of threads.

use std::ops::Range;

use bytemuck::Pod;

use super::{
    columns::Tile,
    product::{Matrix, Scratch, multiply},
};
use crate::{
    disjoint::Disjoint,
    nn::{real::Real, windows::Windows},
    threads,
};

/// Elements of a tile of the matrix: it stays in the second-level cache.
const TILE: usize = 1 << 17;

/// Columns of a tile: below the first number the product spends its time on packing the weights, above the last it
/// gains nothing.
const FEWEST_COLUMNS: usize = 128;
const MOST_COLUMNS: usize = 1024;

/// Pieces of work to be made where the sizes allow it, so that threads have something to share.
const PIECES: usize = 16;

/// The fewest rows or columns of weights that a piece of work gets.
const FEWEST_ROWS: usize = 32;

/// The same two for gradients of weights, where every piece copies its rows and columns of the whole batch: larger
/// pieces copy less.
const WEIGHT_PIECES: usize = 8;
const FEWEST_WEIGHT_ROWS: usize = 64;

/// The sizes of a convolution. Channels are those of its input, filters those of its output; a transposed one runs
/// from its filters to its channels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Convolution {
    pub(super) batch: usize,
    pub(super) groups: usize,
    /// Per group.
    pub(super) channels: usize,
    /// Per group.
    pub(super) filters: usize,
    pub(super) windows: Windows,
}

impl Convolution {
    /// Writes `y` (`[batch, groups * filters, output]`).
    pub(super) fn gather<R: Real + Pod>(
        &self,
        x: &[R],
        weight: &[R],
        bias: Option<&[R]>,
        y: &mut [R],
    ) {
        let Convolution { groups, channels, filters, windows, .. } = *self;
        let (n_outputs, depth) = (windows.n_outputs(), channels * windows.n_taps());
        if y.is_empty() {
            return;
        }
        let n_columns = self.batch * n_outputs;
        let width = columns_for(depth);
        let n_tiles = n_columns.div_ceil(width);
        let rows = share_of(filters, PIECES.div_ceil(n_tiles * groups), FEWEST_ROWS);
        let n_blocks = filters.div_ceil(rows);
        let y = Disjoint::new(y);
        threads::for_pieces(groups * n_tiles * n_blocks, 1, &|pieces| {
            let (mut elements, mut product) =
                (Scratch::new(depth * width), Scratch::new(rows * width));
            for piece in pieces {
                let (group, tile) = (piece / n_blocks / n_tiles, piece / n_blocks % n_tiles);
                let block = part(piece % n_blocks, rows, filters);
                let tile = Tile::new(&windows, groups * channels, part(tile, width, n_columns));
                let elements = &mut elements.values()[..depth * tile.len()];
                tile.gather(x, group * channels..(group + 1) * channels, elements);
                let first = group * filters + block.start;
                let product = &mut product.values()[..block.len() * tile.len()];
                let left = by_rows(&weight[first * depth..][..block.len() * depth], depth);
                let right = by_rows(elements, tile.len());
                multiply(left, right, product, [block.len(), depth, tile.len()], false);
                let mut at = 0;
                for (image, columns) in tile.images() {
                    let n = columns.len();
                    for row in 0..block.len() {
                        let plane = (image * groups * filters + first + row) * n_outputs;
                        let start = plane + columns.start % n_outputs;
                        // SAFETY: No two pieces have the same columns of the same filter.
                        let y = unsafe { y.part(start..start + n) };
                        let product = &product[row * tile.len() + at..][..n];
                        match bias {
                            Some(bias) => add_to_each(bias[first + row], product, y),
                            None => y.copy_from_slice(product),
                        }
                    }
                    at += n;
                }
            }
        });
    }

    /// Writes `x` (`[batch, groups * channels, input]`).
    pub(super) fn spread<R: Real + Pod>(
        &self,
        y: &[R],
        weight: &[R],
        bias: Option<&[R]>,
        x: &mut [R],
    ) {
        let Convolution { batch, groups, channels, filters, windows } = *self;
        let (n_outputs, n_taps) = (windows.n_outputs(), windows.n_taps());
        for (plane, x) in x.chunks_exact_mut(windows.n_inputs().max(1)).enumerate() {
            x.fill(bias.map_or(R::ZERO, |bias| bias[plane % (groups * channels)]));
        }
        if x.is_empty() || y.is_empty() {
            return;
        }
        // A piece has all outputs of its images and channels, so that no other adds to the same elements. Small
        // images go together.
        let images = FEWEST_COLUMNS.div_ceil(n_outputs).min(batch);
        let n_image_parts = batch.div_ceil(images);
        let n_parts = PIECES.div_ceil(n_image_parts * groups);
        let block = share_of(channels, n_parts, FEWEST_ROWS.div_ceil(n_taps));
        let n_blocks = channels.div_ceil(block);
        let width = columns_for(filters.max(block * n_taps));
        let x = Disjoint::new(x);
        threads::for_pieces(n_image_parts * groups * n_blocks, 1, &|pieces| {
            let (mut outputs, mut product) =
                (Scratch::new(filters * width), Scratch::new(block * n_taps * width));
            for piece in pieces {
                let images = part(piece / n_blocks / groups, images, batch);
                let group = piece / n_blocks % groups;
                let of_block = part(piece % n_blocks, block, channels);
                let rows = of_block.len() * n_taps;
                let left = Matrix {
                    values: &weight[(group * filters * channels + of_block.start) * n_taps..],
                    strides: (1, channels * n_taps),
                };
                let of_block = group * channels + of_block.start..group * channels + of_block.end;
                let n_columns = images.len() * n_outputs;
                for first in (0..n_columns).step_by(width) {
                    let columns = images.start * n_outputs + first
                        ..images.start * n_outputs + n_columns.min(first + width);
                    let tile = Tile::new(&windows, groups * channels, columns);
                    let outputs = &mut outputs.values()[..filters * tile.len()];
                    let of_group = group * filters..(group + 1) * filters;
                    tile.rows_of(y, groups * filters, of_group, outputs);
                    let product = &mut product.values()[..rows * tile.len()];
                    let right = by_rows(outputs, tile.len());
                    multiply(left, right, product, [rows, filters, tile.len()], false);
                    // SAFETY: These channels of these images belong to this piece.
                    unsafe { tile.scatter(product, of_block.clone(), &x) };
                }
            }
        });
    }

    /// Writes the gradient of the weights (`[groups * filters, channels, kernel]`).
    pub(super) fn correlate<R: Real + Pod>(&self, x: &[R], y: &[R], weight: &mut [R]) {
        let Convolution { batch, groups, channels, filters, windows } = *self;
        let (n_taps, n_columns) = (windows.n_taps(), batch * windows.n_outputs());
        if weight.is_empty() || n_columns == 0 {
            return weight.fill(R::ZERO);
        }
        let n_parts = WEIGHT_PIECES.div_ceil(groups);
        let block = share_of(channels, n_parts, FEWEST_WEIGHT_ROWS.div_ceil(n_taps));
        let n_blocks = channels.div_ceil(block);
        let n_parts = WEIGHT_PIECES.div_ceil(groups * n_blocks);
        let rows = share_of(filters, n_parts, FEWEST_WEIGHT_ROWS);
        let n_row_blocks = filters.div_ceil(rows);
        let width = columns_for(rows.max(block * n_taps));
        let weight = Disjoint::new(weight);
        threads::for_pieces(groups * n_blocks * n_row_blocks, 1, &|pieces| {
            let (mut elements, mut outputs) =
                (Scratch::new(block * n_taps * width), Scratch::new(rows * width));
            let mut sum = Scratch::new(rows * block * n_taps);
            for piece in pieces {
                let group = piece / n_row_blocks / n_blocks;
                let of_block = part(piece / n_row_blocks % n_blocks, block, channels);
                let of_rows = part(piece % n_row_blocks, rows, filters);
                let (n_rows, depth) = (of_rows.len(), of_block.len() * n_taps);
                let sum = &mut sum.values()[..n_rows * depth];
                for first in (0..n_columns).step_by(width) {
                    let columns = first..n_columns.min(first + width);
                    let tile = Tile::new(&windows, groups * channels, columns);
                    let elements = &mut elements.values()[..depth * tile.len()];
                    let from = group * channels;
                    tile.gather(x, from + of_block.start..from + of_block.end, elements);
                    let outputs = &mut outputs.values()[..n_rows * tile.len()];
                    let from = group * filters;
                    let of_rows = from + of_rows.start..from + of_rows.end;
                    tile.rows_of(y, groups * filters, of_rows, outputs);
                    let right = Matrix { values: elements, strides: (1, tile.len()) };
                    let left = by_rows(outputs, tile.len());
                    multiply(left, right, sum, [n_rows, tile.len(), depth], first > 0);
                }
                for (row, sum) in of_rows.zip(sum.chunks_exact(depth)) {
                    let filter = (group * filters + row) * channels;
                    let start = (filter + of_block.start) * n_taps;
                    // SAFETY: No two pieces have the same channels of the same filter.
                    unsafe { weight.part(start..start + depth) }.copy_from_slice(sum);
                }
            }
        });
    }
}

/// Part `index` of `0..n` in parts of `size`.
fn part(index: usize, size: usize, n: usize) -> Range<usize> {
    index * size..n.min((index + 1) * size)
}

/// Columns of a tile that has so many rows.
fn columns_for(rows: usize) -> usize {
    (TILE / rows.max(1)).clamp(FEWEST_COLUMNS, MOST_COLUMNS)
}

/// How many of `n` rows a piece gets, if they are to be shared by so many pieces and none is to get too few.
fn share_of(n: usize, pieces: usize, fewest: usize) -> usize {
    n.div_ceil(pieces).max(fewest).min(n).max(1)
}

fn by_rows<R>(values: &[R], columns: usize) -> Matrix<'_, R> {
    Matrix { values, strides: (columns, 1) }
}

fn add_to_each<R: Real>(term: R, from: &[R], out: &mut [R]) {
    for (out, from) in out.iter_mut().zip(from) {
        *out = *from + term;
    }
}
