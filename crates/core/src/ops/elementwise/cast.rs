use dtensor_layout::{
    DType,
    rule::{
        Law::{self, Increasing, Moves},
        Rule,
    },
};
use dtensor_local::{LocalError, Tensor, promote};

use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::{Integer, Signed, Truth},
        one,
    },
};

/// Values in another dtype.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ToDType(DType);

impl Op for ToDType {
    fn name(&self) -> &'static str {
        "to_dtype"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (from, to) = (operands[0].dtype, self.0);
        let laws: &[Law] = if promote(from, to) == to && (from == to || from.is_float()) {
            // Every value stays what it is.
            &[Moves]
        } else if from.is_float() && to.is_float() {
            // Rounding keeps the order, but the sum of what was rounded is another.
            &[Increasing]
        } else {
            // A NaN, which is above all numbers, becomes 0; and integers wrap around.
            &[]
        };
        Ok(Rule::of("... -> ...", laws))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].to_dtype(self.0))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        // Cast back where it arrives.
        backward.first(|| backward.grad())
    }
}

impl DTensor {
    /// The values in another dtype. A pending sum stays pending if that dtype holds all values of this one.
    pub fn to_dtype(&self, dtype: DType) -> Result<DTensor> {
        match dtype == self.dtype() {
            true => Ok(self.clone()),
            false => call_one(&ToDType(dtype), &[self]),
        }
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "to_dtype",
    samples: || {
        let sample = |to, values| Sample::new(ToDType(to), &[&[5, 2]]).with(0, values);
        vec![
            sample(DType::F32, Signed),
            sample(DType::F64, Signed),
            sample(DType::I64, Signed),
            sample(DType::Bool, Integer),
            sample(DType::F64, Integer),
            sample(DType::I32, Truth),
        ]
    },
}];
