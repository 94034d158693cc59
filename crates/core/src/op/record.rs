//! The lines of the table of operations.

use std::fmt;

use dtensor_layout::{DType, rule::Rule};

use super::{Meta, Op};
use crate::Result;

/// One line of the table: an operation and what every generic test runs it on.
#[derive(Clone, Copy)]
pub struct OpRecord {
    /// Its name.
    pub name: &'static str,
    /// At least one.
    pub samples: fn() -> Vec<Sample>,
}

/// An operation with operands.
#[derive(Debug)]
pub struct Sample {
    /// With its attributes.
    pub op: Box<dyn Op>,
    /// What it takes.
    pub operands: Vec<SampleOperand>,
}

/// An operand of a [`Sample`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleOperand {
    /// Its global shape.
    pub shape: Vec<usize>,
    /// What its values are.
    pub values: SampleValues,
}

/// What the values of a [`SampleOperand`] are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleValues {
    /// `f64` numbers of either sign.
    Signed,
    /// `f64` numbers above 0.
    Positive,
    /// `f64` numbers between 0 and 1.
    Unit,
    /// `f64` numbers above 1.
    AboveOne,
    /// `i64` numbers from 0 up to this one, exclusive.
    Index(usize),
    /// The `i64` numbers from 0 on, each once, in any order.
    Permutation,
    /// `i64` numbers of either sign, none of them 0.
    Integer,
    /// `bool`s.
    Truth,
    /// `f64` numbers that ascend along the last dim.
    Ascending,
}

impl OpRecord {
    /// Whether gradients pass through it.
    pub fn has_gradient(&self) -> bool {
        (self.samples)().iter().any(|sample| sample.op.keeps().is_some())
    }

    /// The rule of the first sample, as an example of the operation's rules.
    pub fn rule(&self) -> Result<Option<Rule>> {
        match (self.samples)().first() {
            Some(sample) => sample.op.rule(&sample.metas()).map(Some),
            None => Ok(None),
        }
    }
}

impl fmt::Display for OpRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for OpRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpRecord({})", self.name)
    }
}

impl Sample {
    /// An operation on operands with values of either sign, of these shapes.
    pub fn new(op: impl Op, shapes: &[&[usize]]) -> Sample {
        let operand = |shape: &&[usize]| SampleOperand {
            shape: shape.to_vec(),
            values: SampleValues::Signed,
        };
        Sample { op: Box::new(op), operands: shapes.iter().map(operand).collect() }
    }

    /// The same sample with other values for one operand.
    #[must_use]
    pub fn with(mut self, operand: usize, values: SampleValues) -> Sample {
        if let Some(operand) = self.operands.get_mut(operand) {
            operand.values = values;
        }
        self
    }

    /// Shapes and dtypes of the operands.
    pub fn metas(&self) -> Vec<Meta> {
        let meta = |operand: &SampleOperand| Meta::new(&operand.shape, operand.values.dtype());
        self.operands.iter().map(meta).collect()
    }
}

impl SampleValues {
    /// The dtype of such values.
    pub fn dtype(self) -> DType {
        match self {
            SampleValues::Index(_) | SampleValues::Permutation | SampleValues::Integer => {
                DType::I64
            }
            SampleValues::Truth => DType::Bool,
            _ => DType::F64,
        }
    }
}
