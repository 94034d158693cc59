//! Equality of tensors, exact and within a tolerance.

use dtensor_layout::rule::Rule;
use dtensor_local::{LocalError, Tensor};

use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{LocalContext, Meta, Number, Op, OpRecord, Outputs, Sample, SampleValues::Integer, one},
};

/// Whether values are equal, or nearly so.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct IsClose {
    relative: Number,
    absolute: Number,
    equal_nan: bool,
}

impl Op for IsClose {
    fn name(&self) -> &'static str {
        "isclose"
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        Ok(Rule::of("..., ... -> ...", &[]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].isclose(x[1], self.relative.0, self.absolute.0, self.equal_nan))
    }
}

impl DTensor {
    /// Whether values are equal, or finite and `abs(a - b) <= absolute + relative * abs(b)`, as `bool`; with
    /// `equal_nan`, also whether both are NaN. PyTorch's tolerances are 1e-5 and 1e-8 unless given.
    pub fn isclose(
        &self,
        other: &DTensor,
        relative: f64,
        absolute: f64,
        equal_nan: bool,
    ) -> Result<DTensor> {
        let (relative, absolute) = (Number(relative), Number(absolute));
        call_one(&IsClose { relative, absolute, equal_nan }, &[self, other])
    }

    /// Whether [`isclose`](DTensor::isclose) holds for all values: the same answer on every rank of the mesh,
    /// which agree on it by one small reduction.
    pub fn allclose(
        &self,
        other: &DTensor,
        relative: f64,
        absolute: f64,
        equal_nan: bool,
    ) -> Result<bool> {
        self.check_answers("allclose")?;
        self.isclose(other, relative, absolute, equal_nan)?.all(&[], false)?.item()
    }

    /// Whether shapes and all values are equal; NaN equals nothing. The same answer on every rank of the
    /// mesh, which agree on it by one small reduction.
    pub fn equal(&self, other: &DTensor) -> Result<bool> {
        self.check_answers("equal")?;
        if self.shape() != other.shape() {
            return Ok(false);
        }
        self.eq(other)?.all(&[], false)?.item()
    }

    /// Questions about values are for ranks that have some.
    fn check_answers(&self, op: &'static str) -> Result<()> {
        self.mesh().own_coord(op)?;
        match self.mesh().is_fake() {
            true => Err(LocalError::Meta { op, shape: self.shape().to_vec() }.into()),
            false => Ok(()),
        }
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "isclose",
    samples: || {
        let op = |equal_nan| IsClose { relative: Number(0.5), absolute: Number(1.0), equal_nan };
        vec![
            Sample::new(op(false), &[&[4, 3], &[4, 3]]),
            Sample::new(op(true), &[&[4, 1], &[4, 3]]).with(0, Integer).with(1, Integer),
        ]
    },
}];
