//! Vectors as the coordinates of a grid.

use dtensor_layout::rule::{Law::Moves, Rule};
use dtensor_local::{LocalError, MeshIndexing, Tensor};

use super::{letter, rule};
use crate::{
    DTensor, Result,
    dispatch::call,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Meshgrid(MeshIndexing);

impl Op for Meshgrid {
    fn name(&self) -> &'static str {
        "meshgrid"
    }

    /// Who cuts a vector cuts a dim of every grid.
    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        // A single value is a dim of size 1, which nobody cuts.
        let dim_of_vector = |number: usize| match operands[number].n_dims() {
            0 => "1".to_string(),
            _ => letter(number),
        };
        let vector = |number: usize| match operands[number].n_dims() {
            0 => String::new(),
            _ => letter(number),
        };
        let mut dims: Vec<String> = (0..operands.len()).map(dim_of_vector).collect();
        if self.0 == MeshIndexing::Xy && dims.len() > 1 {
            dims.swap(0, 1);
        }
        let vectors: Vec<String> = (0..operands.len()).map(vector).collect();
        let grids = vec![dims.join(" "); operands.len()].join(", ");
        rule("meshgrid", &format!("{} -> {grids}", vectors.join(", ")), &[Moves])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        Tensor::meshgrid(x, self.0).map(Outputs::from)
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let n = backward.n_operands();
        backward.each_or_none(|vector| {
            if !backward.has_grad(vector) {
                return Ok(None);
            }
            let own = match (self.0, vector) {
                (MeshIndexing::Xy, 0 | 1) if n > 1 => 1 - vector,
                _ => vector,
            };
            let others: Vec<isize> =
                (0..n).filter(|dim| *dim != own).map(usize::cast_signed).collect();
            let grad = backward.grad_of(vector)?;
            if others.is_empty() { Ok(Some(grad)) } else { grad.sum(&others, false).map(Some) }
        })
    }
}

impl DTensor {
    /// Tensors of at most one dim and of one dtype, each along a dim of its own and repeated along those of
    /// the others: one grid per tensor. Where a vector is cut, that dim of every grid is.
    pub fn meshgrid(tensors: &[&DTensor], indexing: MeshIndexing) -> Result<Vec<DTensor>> {
        Ok(call(&Meshgrid(indexing), tensors)?.into_vec())
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "meshgrid",
    samples: || {
        vec![
            Sample::new(Meshgrid(MeshIndexing::Ij), &[&[5], &[3]]),
            Sample::new(Meshgrid(MeshIndexing::Xy), &[&[5], &[2], &[3]]),
            Sample::new(Meshgrid(MeshIndexing::Ij), &[&[4], &[]]),
        ]
    },
}];
