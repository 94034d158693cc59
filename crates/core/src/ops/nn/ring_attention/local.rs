//! What one rank computes: its queries with one block of keys after the other.
//!
//! Sums are kept in what kernels compute in, and rounded at the end, once.

use std::ops::Range;

use dtensor_local::{LocalError, Tensor};

use super::{
    super::steps::{filled, widened},
    Attention,
    positions::{Piece, Run, pieces},
};

/// How queries look at keys.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) causal: bool,
    pub(super) scale: Option<f64>,
    /// Of the queries.
    pub(super) runs: Vec<Run>,
    /// Which heads of keys those of the queries see, if not all or groups of their own.
    pub(super) heads: Option<Tensor>,
}

/// Some keys and their values.
pub(super) struct Block<'a> {
    pub(super) keys: &'a Tensor,
    pub(super) values: &'a Tensor,
    pub(super) runs: &'a [Run],
}

/// Queries, and what they have seen so far: the result for the keys that went by, and the logarithm of the sum of their
/// weights, by which it is joined with that for other keys.
pub(super) struct Seen<'a> {
    look: &'a Look,
    queries: Tensor,
    out: Tensor,
    log_sums: Tensor,
    /// Whether no key has gone by.
    is_new: bool,
}

/// Queries with their results, and the gradient so far.
pub(super) struct Owed<'a> {
    look: &'a Look,
    queries: Tensor,
    out: Tensor,
    log_sums: Tensor,
    grad: Tensor,
    d_queries: Tensor,
}

impl Look {
    fn settings(&self, piece: &Piece) -> Attention {
        Attention { causal: piece.causal, scale: self.scale }
    }

    /// Keys or values for the heads of the queries.
    fn of_heads(&self, x: &Tensor) -> Result<Tensor, LocalError> {
        let x = widened(x)?;
        match &self.heads {
            Some(heads) => x.index_select(x.n_dims().cast_signed() - 3, heads),
            None => Ok(x),
        }
    }

    /// Back to the heads that were taken, some of them several times.
    fn back_to_heads(&self, of: &Tensor, grads: Tensor) -> Result<Tensor, LocalError> {
        match &self.heads {
            Some(heads) => widened(of)?.zeros_like()?.index_add(
                of.n_dims().cast_signed() - 3,
                heads,
                &grads,
                1,
            ),
            None => Ok(grads),
        }
    }
}

impl<'a> Seen<'a> {
    /// Queries that have seen nothing, of values of this width.
    pub(super) fn nothing(
        look: &'a Look,
        queries: &Tensor,
        width: usize,
    ) -> Result<Seen<'a>, LocalError> {
        let queries = widened(queries)?;
        let sums = &queries.shape()[..queries.n_dims() - 1];
        let shape = [sums, &[width]].concat();
        let out = filled(&queries, &shape, queries.dtype(), 0.0)?;
        let log_sums = filled(&queries, sums, queries.dtype(), f64::NEG_INFINITY)?;
        Ok(Seen { look, queries, out, log_sums, is_new: true })
    }

    pub(super) fn see(&mut self, block: &Block<'_>) -> Result<(), LocalError> {
        let pieces = pieces(self.look.causal, &self.look.runs, block.runs);
        if pieces.is_empty() {
            return Ok(());
        }
        let (keys, values) = (self.look.of_heads(block.keys)?, self.look.of_heads(block.values)?);
        for piece in pieces {
            let queries = rows(&self.queries, &piece.queries)?;
            let (keys, values) = (rows(&keys, &piece.keys)?, rows(&values, &piece.keys)?);
            let settings = self.look.settings(&piece);
            let (out, log_sums) = queries.attention(&keys, &values, &settings)?;
            self.join(&piece.queries, out, log_sums)?;
        }
        Ok(())
    }

    /// The result and the logarithms, in the dtype that the caller has.
    pub(super) fn results(self, like: &Tensor) -> Result<(Tensor, Tensor), LocalError> {
        Ok((self.out.to_dtype(like.dtype())?, self.log_sums))
    }

    /// Joins what queries have seen before with what they see now: a mean by the sums of the weights.
    fn join(
        &mut self,
        queries: &Range<usize>,
        out: Tensor,
        log_sums: Tensor,
    ) -> Result<(), LocalError> {
        if self.is_new && out.shape() == self.out.shape() {
            (self.out, self.log_sums, self.is_new) = (out, log_sums, false);
            return Ok(());
        }
        self.is_new = false;
        let last = self.log_sums.n_dims() - 1;
        let before = slice(&self.log_sums, last, queries)?;
        // Of those who have seen nothing, the logarithm is that of zero, and all is new.
        let share = log_sums.sub(&before)?.sigmoid()?.unsqueeze(-1)?;
        let out = rows(&self.out, queries)?.lerp_tensor(&out, &share)?;
        let log_sums = before.logaddexp(&log_sums)?;
        put(&mut self.out, last, queries, out)?;
        put(&mut self.log_sums, last, queries, log_sums)
    }
}

impl<'a> Owed<'a> {
    /// Of queries, the two results, and the gradient of the first.
    pub(super) fn new(
        look: &'a Look,
        queries: &Tensor,
        (out, log_sums): (&Tensor, &Tensor),
        grad: &Tensor,
    ) -> Result<Owed<'a>, LocalError> {
        let queries = widened(queries)?;
        let d_queries = filled(&queries, queries.shape(), queries.dtype(), 0.0)?;
        let (out, grad, log_sums) = (widened(out)?, widened(grad)?, log_sums.clone());
        Ok(Owed { look, queries, out, log_sums, grad, d_queries })
    }

    /// The gradients of a block of keys and values, in what is computed in. With the logarithms of all keys, the
    /// weights of a block are what they are among all.
    pub(super) fn see(&mut self, block: &Block<'_>) -> Result<[Tensor; 2], LocalError> {
        let (keys, values) = (self.look.of_heads(block.keys)?, self.look.of_heads(block.values)?);
        let (mut d_keys, mut d_values) = (keys.zeros_like()?, values.zeros_like()?);
        let dim = keys.n_dims() - 2;
        for piece in pieces(self.look.causal, &self.look.runs, block.runs) {
            let of_queries = |x: &Tensor| slice(x, dim, &piece.queries);
            let grads = of_queries(&self.queries)?.attention_backward(
                &rows(&keys, &piece.keys)?,
                &rows(&values, &piece.keys)?,
                (&of_queries(&self.out)?, &of_queries(&self.log_sums)?),
                &of_queries(&self.grad)?,
                &self.look.settings(&piece),
            )?;
            add(&mut self.d_queries, dim, &piece.queries, &grads.queries)?;
            add(&mut d_keys, dim, &piece.keys, &grads.keys)?;
            add(&mut d_values, dim, &piece.keys, &grads.values)?;
        }
        let d_keys = self.look.back_to_heads(block.keys, d_keys)?;
        Ok([d_keys, self.look.back_to_heads(block.values, d_values)?])
    }

    /// The gradient of the queries, in the dtype that the caller has.
    pub(super) fn result(self, like: &Tensor) -> Result<Tensor, LocalError> {
        self.d_queries.to_dtype(like.dtype())
    }
}

/// Positions of queries, keys or values.
fn rows(x: &Tensor, range: &Range<usize>) -> Result<Tensor, LocalError> {
    slice(x, x.n_dims() - 2, range)
}

fn slice(x: &Tensor, dim: usize, range: &Range<usize>) -> Result<Tensor, LocalError> {
    match *range == (0..x.shape()[dim]) {
        true => Ok(x.clone()),
        false => x.narrow(dim.cast_signed(), range.start, range.len()),
    }
}

fn add(
    into: &mut Tensor,
    dim: usize,
    range: &Range<usize>,
    values: &Tensor,
) -> Result<(), LocalError> {
    let sum = slice(into, dim, range)?.add(values)?;
    put(into, dim, range, sum)
}

fn put(
    into: &mut Tensor,
    dim: usize,
    range: &Range<usize>,
    values: Tensor,
) -> Result<(), LocalError> {
    if *range == (0..into.shape()[dim]) {
        *into = values;
        return Ok(());
    }
    let mut ranges: Vec<Range<usize>> = into.shape().iter().map(|size| 0..*size).collect();
    ranges[dim] = range.clone();
    into.slice_assign_in_place(&ranges, &values)
}
