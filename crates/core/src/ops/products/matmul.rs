//! Products of matrices.

use dtensor_layout::rule::{Law::Multilinear, Rule};
use dtensor_local::{LocalError, Tensor};

use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
};

/// `matmul`: matrices in the last two dims, the dims before broadcast; vectors as in NumPy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MatMul;

impl Op for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let text = match (operands[0].n_dims(), operands[1].n_dims()) {
            (1, 1) => "k, k ->",
            (1, _) => "k, ... k n -> ... n",
            (_, 1) => "... m k, k -> ... m",
            _ => "... m k, ... k n -> ... m n",
        };
        Ok(Rule::of(text, &[Multilinear]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].matmul(x[1]))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::OTHERS)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        // Vectors become matrices: a row on the left, a column on the right.
        let is_row = backward.shape(0).len() == 1;
        let is_column = backward.shape(1).len() == 1;
        let mut grad = backward.grad()?;
        if is_column {
            grad = grad.unsqueeze(-1)?;
        }
        if is_row {
            grad = grad.unsqueeze(-2)?;
        }
        backward.each(|operand| match operand {
            0 => {
                let right = backward.operand(1)?;
                let right = if is_column { right.unsqueeze(-1)? } else { right };
                let left = grad.matmul(&right.transpose(-1, -2)?)?;
                // Dims that are left of a matrix are summed when it is brought to the operand's shape.
                if is_row { left.squeeze(-2) } else { Ok(left) }
            }
            // One matrix for all batches: the sum over all rows at once, instead of a product for each batch.
            _ if backward.shape(1).len() == 2 && !is_row => {
                backward.operand(0)?.linear_weight_gradient(&grad)
            }
            _ => {
                let left = backward.operand(0)?;
                let left = if is_row { left.unsqueeze(-2)? } else { left };
                let right = left.transpose(-1, -2)?.matmul(&grad)?;
                if is_column { right.squeeze(-1) } else { Ok(right) }
            }
        })
    }
}

impl DTensor {
    /// Product of matrices in the last two dims; the dims before are broadcast. A vector is a row on the left
    /// and a column on the right, and its dim is left out of the result.
    ///
    /// ```
    /// use dtensor::{DType, DeviceMesh, Placement::{Partial, Shard}, ReduceOp, Runner, ones};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let mesh = DeviceMesh::of_world(world, "tp")?;
    ///     let a = ones(&[3, 4], DType::F32, &mesh, &[Shard(1)])?;
    ///     let b = ones(&[4, 5], DType::F32, &mesh, &[Shard(0)])?;
    ///     let c = a.matmul(&b)?;                     // nothing was sent: the sum is pending
    ///     assert_eq!(c.placements(), [Partial(ReduceOp::Sum)]);
    ///     assert_eq!(c.to_vec::<f32>()?, [4.0; 15]);
    ///     Ok::<_, dtensor::Error>(())
    /// })?;
    /// # Ok::<(), dtensor::RunError>(())
    /// ```
    pub fn matmul(&self, other: &DTensor) -> Result<DTensor> {
        call_one(&MatMul, &[self, other])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "matmul",
    samples: || {
        vec![
            Sample::new(MatMul, &[&[3, 4], &[4, 6]]),
            Sample::new(MatMul, &[&[2, 5, 4], &[2, 4, 3]]),
            Sample::new(MatMul, &[&[2, 5, 4], &[4, 3]]),
            Sample::new(MatMul, &[&[5], &[5, 2]]),
            Sample::new(MatMul, &[&[3, 5], &[5]]),
            Sample::new(MatMul, &[&[5], &[5]]),
        ]
    },
}];
