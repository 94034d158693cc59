//! Reductions over dims.

use dtensor_layout::{ReduceOp, rule::Rule};
use dtensor_local::{LocalError, Tensor};
use smallvec::SmallVec;

use crate::{
    DTensor, Error, Result,
    dispatch::call_one,
    op::{LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
};

/// Which dims a reduction is over: all if the list is empty, as in the local kernels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Over {
    pub(super) dims: SmallVec<[isize; 4]>,
    pub(super) keep_dims: bool,
}

impl Over {
    pub(super) fn new(dims: &[isize], keep_dims: bool) -> Over {
        Over { dims: dims.into(), keep_dims }
    }

    /// The dims, counted from the first.
    pub(super) fn dims_of(&self, op: &'static str, operand: &Meta) -> Result<Vec<usize>> {
        match self.dims.is_empty() {
            true => Ok((0..operand.n_dims()).collect()),
            false => self.dims.iter().map(|dim| operand.dim(op, *dim)).collect(),
        }
    }

    pub(super) fn rule(&self, op: &'static str, operand: &Meta, by: ReduceOp) -> Result<Rule> {
        let dims = self.dims_of(op, operand)?;
        Rule::reduce(operand.n_dims(), &dims, self.keep_dims, by).map_err(Error::rule(op))
    }
}

/// Sum over dims.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sum(Over);

impl Op for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        self.0.rule("sum", &operands[0], ReduceOp::Sum)
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].sum(&self.0.dims, self.0.keep_dims))
    }
}

impl DTensor {
    /// The sum over these dims, or over all if the list is empty.
    pub fn sum(&self, dims: &[isize], keep_dims: bool) -> Result<DTensor> {
        call_one(&Sum(Over::new(dims, keep_dims)), &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "sum",
    samples: || {
        vec![
            Sample::new(Sum(Over::new(&[1], false)), &[&[4, 3]]),
            Sample::new(Sum(Over::new(&[0, -1], true)), &[&[3, 2, 5]]),
            Sample::new(Sum(Over::new(&[], false)), &[&[4, 3]]),
        ]
    },
}];
