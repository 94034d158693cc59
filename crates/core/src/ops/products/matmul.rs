//! Products of matrices.

use dtensor_layout::rule::{Law::Multilinear, Rule};
use dtensor_local::{LocalError, Tensor};

use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
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
