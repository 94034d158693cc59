//! Rows of a table by their numbers.

use dtensor_layout::{
    Layout, Placement,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor};

use super::classes::Picks;
use crate::{
    DTensor, DeviceMesh, Error, Result, autograd,
    dispatch::{Agreement, call_one},
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, SampleValues, one,
    },
};

/// The rows of a table. Where its rows are cut, a rank looks up those that it holds, and has zeros for the
/// others: a pending sum.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Embedding;

/// The gradient of the table of so many rows, from that of the result, and the ids.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct EmbeddingBackward {
    n_rows: usize,
}

impl Op for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        Ok(Rule::of("v e, ... -> ... e", &[Law::MovesIn(0)]))
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let (table, ids) = (x[0], x[1]);
        let Some(layout) = context.operand(0).filter(|_| !table.is_meta() && !ids.is_meta()) else {
            return one(table.embedding(ids));
        };
        let n_rows = layout.global_shape()[0];
        let held = context.operand_range(0, 0, n_rows);
        if held == (0..n_rows) {
            return one(table.embedding(ids));
        }
        let ids = Picks::new(self.name(), ids, None, (0, held.clone(), n_rows))?;
        if held.is_empty() {
            let shape = [ids.here.shape(), &table.shape()[1..]].concat();
            return one(Tensor::zeros(&shape, table.dtype()));
        }
        let is_elsewhere = ids.is_held.logical_not()?.unsqueeze(-1)?;
        one(table.embedding(&ids.here)?.masked_fill(&is_elsewhere, 0))
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn may_refuse(&self, operand: usize, _: &[Meta]) -> bool {
        operand == 1
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::operands(&[1]))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (grad, ids) = (backward.grad()?, backward.operand(1)?);
        backward.first(|| rows_gradient(&grad, &ids, backward.layout(0), backward.mesh(0)))
    }
}

impl Op for EmbeddingBackward {
    fn name(&self) -> &'static str {
        "embedding_backward"
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        // The last: every rank takes the rows of the table that it is to hold.
        Ok(Rule::of("... e, ... -> v! e; R R -> S(0)", &[Law::LinearIn(0)]))
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let (grad, ids, n_rows) = (x[0], x[1], self.n_rows);
        let held = context.result_range(0, 0, n_rows);
        if held == (0..n_rows) || grad.is_meta() || ids.is_meta() {
            return one(grad.embedding_backward(ids, held.len()));
        }
        let ids = Picks::new(self.name(), ids, None, (0, held.clone(), n_rows))?;
        if held.is_empty() {
            let width = grad.shape().last().copied().unwrap_or(1);
            return one(Tensor::zeros(&[0, width], grad.dtype()));
        }
        // What is taken from rows that are elsewhere adds nothing to the first row here.
        let grad = grad.masked_fill(&ids.is_held.logical_not()?.unsqueeze(-1)?, 0)?;
        one(grad.embedding_backward(&ids.here, held.len()))
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn may_refuse(&self, operand: usize, _: &[Meta]) -> bool {
        operand == 1
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::operands(&[1]))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        backward.first(|| backward.grad()?.embedding(&backward.operand(1)?))
    }
}

impl DTensor {
    /// The rows of this table `[V, E]` at `ids` (`i64` or `i32`, any shape): `[..., E]`. An id that is not within
    /// `0..V` is an error, on every rank. No row is sent; if the rows are cut, the result is a pending sum. As
    /// `torch.nn.functional.embedding`.
    pub fn embedding(&self, ids: &DTensor) -> Result<DTensor> {
        call_one(&Embedding, &[self, ids])
    }

    /// The gradient of [`embedding`](DTensor::embedding) with respect to its table of `n_rows` rows, where `self`
    /// is the gradient of its result. Where ids are cut, a pending sum.
    pub fn embedding_backward(&self, ids: &DTensor, n_rows: usize) -> Result<DTensor> {
        call_one(&EmbeddingBackward { n_rows }, &[self, ids])
    }

    /// As [`embedding_backward`](DTensor::embedding_backward), for this table: on axes that cut its rows and on which
    /// gradient and ids are whole, every rank computes the rows that it holds, and no others. No row is sent.
    pub fn embedding_backward_like(&self, ids: &DTensor, table: &DTensor) -> Result<DTensor> {
        rows_gradient(self, ids, table.layout(), table.mesh())
    }
}

/// The gradient of a table in this layout: of the rows that a rank holds, where that can be had without sending.
fn rows_gradient(
    grad: &DTensor,
    ids: &DTensor,
    table: &Layout,
    mesh: &DeviceMesh,
) -> Result<DTensor> {
    let op = EmbeddingBackward { n_rows: table.global_shape().first().copied().unwrap_or(0) };
    let metas = [grad, ids].map(|operand| Meta::of_layout(operand.layout()));
    let [meta] = &op.infer(&metas)?[..] else { return grad.embedding_backward(ids, op.n_rows) };
    let is_same_mesh = ids.mesh() == grad.mesh() && mesh == grad.mesh();
    // What is remembered is an operation.
    let is_remembered = autograd::is_recorded(&[grad]);
    let result = row_layout(meta, grad, ids, table)?;
    let Some(result) = result.filter(|_| is_same_mesh && !is_remembered) else {
        return grad.embedding_backward(ids, op.n_rows);
    };
    let Some(coord) = mesh.coord() else {
        let local = Tensor::empty(&[0], result.dtype())?;
        return Ok(DTensor::from_parts(local, result, mesh.clone()));
    };
    let layouts = vec![grad.layout().clone(), ids.layout().clone()];
    let agreement = Agreement::of(&op, &layouts, grad.mesh())?;
    let context = LocalContext::new(layouts, vec![result.clone()], coord.to_vec());
    let computed = op.eval(&[grad.local(), ids.local()], &context);
    let mut computed = match agreement {
        Some(agreement) => agreement.on(computed)?,
        None => computed?,
    };
    match computed.pop() {
        Some(local) => Ok(DTensor::from_parts(local, result, mesh.clone())),
        None => grad.embedding_backward(ids, op.n_rows),
    }
}

/// How the gradient of a table lies if its rows are cut as the table's, wherever gradient and ids are whole. `None` if
/// they are not, or would have to be moved.
fn row_layout(
    meta: &Meta,
    grad: &DTensor,
    ids: &DTensor,
    table: &Layout,
) -> Result<Option<Layout>> {
    use Placement::{Partial, Replicate, Shard};
    let width = grad.n_dims().saturating_sub(1);
    let axes = grad.placements().iter().zip(ids.placements()).zip(table.placements());
    let place = |((grad, ids), table): ((&Placement, &Placement), &Placement)| match (grad, ids) {
        (Replicate, Replicate) if *table == Shard(0) => Some(Shard(0)),
        (Replicate, Replicate) => Some(Replicate),
        (Shard(dim), Replicate) if *dim == width => Some(Shard(1)),
        (Shard(dim), Shard(of_ids)) if dim == of_ids => Some(Partial(crate::ReduceOp::Sum)),
        _ => None,
    };
    let Some(placements) = axes.map(place).collect::<Option<Vec<_>>>() else { return Ok(None) };
    let in_order = [grad, ids].iter().all(|one| one.layout().order().is_left_to_right());
    if !in_order || !placements.contains(&Shard(0)) {
        return Ok(None);
    }
    let layout = Layout::new(&meta.shape, meta.dtype, grad.mesh().mesh(), &placements);
    layout.map(Some).map_err(Error::layout("embedding_backward"))
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "embedding",
        samples: || {
            let sample = |table: &[usize], ids: &[usize]| {
                Sample::new(Embedding, &[table, ids]).with(1, SampleValues::Index(table[0]))
            };
            vec![sample(&[5, 3], &[4]), sample(&[3, 2], &[3, 2]), sample(&[6, 4], &[])]
        },
    },
    OpRecord {
        name: "embedding_backward",
        samples: || {
            let sample = |n_rows: usize, grad: &[usize]| {
                let ids = &grad[..grad.len() - 1];
                Sample::new(EmbeddingBackward { n_rows }, &[grad, ids])
                    .with(1, SampleValues::Index(n_rows))
            };
            vec![sample(5, &[4, 3]), sample(3, &[3, 2, 2])]
        },
    },
];
