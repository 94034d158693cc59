//! Failures that only one rank sees.
//!
//! Whether a matrix has an inverse is known to the rank that holds it. A rank that failed alone would leave
//! the others waiting in the next collective. So where operands are not copies, ranks agree: each gives, as
//! one more result, the number of its first matrix without an answer, and the smallest of these is known to
//! all before anything is returned.

use dtensor_layout::{DType, Layout, Placement, rule::Rule};
use dtensor_local::{LocalError, Tensor};

use super::matrices::Question;
use crate::{
    DTensor, Result,
    dispatch::call,
    op::{LocalContext, Meta, Op, Outputs},
};

/// All matrices have an answer.
const NONE: i64 = i64::MAX;

/// A question to every matrix of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OnMatrices {
    question: Question,
    /// Whether a failure is a result, not an error.
    agrees: bool,
}

/// Why a matrix has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    NotFinite,
    Singular,
    NotPositiveDefinite,
    NoConvergence,
}

impl OnMatrices {
    pub(super) fn new(question: Question) -> OnMatrices {
        OnMatrices { question, agrees: false }
    }
}

impl Op for OnMatrices {
    fn name(&self) -> &'static str {
        self.question.name()
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (letters, rows) = if self.agrees { (", @min", " P(min)") } else { ("", "") };
        self.question.rule(operands, letters, rows)
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        if !self.agrees {
            return Ok(self.question.answer(x, context)?.into());
        }
        let (mut results, failed) = match self.question.answer(x, context) {
            Ok(results) => (results, NONE),
            Err(error) => {
                let Some((failure, matrix)) = Failure::of(&error) else { return Err(error) };
                // Nobody will see them.
                let metas = x.iter().map(|x| Tensor::meta(x.shape(), x.dtype()));
                let metas = metas.collect::<Result<Vec<_>, _>>()?;
                let shapes = self.question.answer(&metas.iter().collect::<Vec<_>>(), context)?;
                let zeros = shapes.iter().map(|meta| Tensor::zeros(meta.shape(), meta.dtype()));
                (zeros.collect::<Result<Vec<_>, _>>()?, failure.code(matrix, context))
            }
        };
        results.push(match x[0].is_meta() {
            true => Tensor::meta(&[], DType::I64)?,
            false => Tensor::scalar(failed),
        });
        Ok(results.into())
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        let copied = |layout: &Layout| {
            layout.placements().iter().enumerate().all(|(axis, placement)| {
                *placement == Placement::Replicate || layout.mesh().axis_size(axis) == 1
            })
        };
        !self.agrees && self.question.may_fail() && !operands.iter().all(|layout| copied(layout))
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let agrees = OnMatrices { question: self.question.clone(), agrees: true };
        let mut results = call(&agrees, operands)?;
        let Some(failed) = results.pop() else { return Ok(results) };
        let failed = failed.settled()?;
        if failed.mesh().coord().is_none() || failed.mesh().is_fake() {
            return Ok(results);
        }
        match failed.local().item::<i64>()? {
            NONE => Ok(results),
            code => {
                let metas: Vec<Meta> =
                    operands.iter().map(|operand| Meta::of_layout(operand.layout())).collect();
                let shape = results.first().map_or(&[][..], |first| first.shape());
                let n_batch = shape.len().saturating_sub(self.question.n_own_dims(&metas));
                Err(Failure::error(code, self.name(), &shape[..n_batch]).into())
            }
        }
    }
}

impl Failure {
    const ALL: [Failure; 4] = [
        Failure::NotFinite,
        Failure::Singular,
        Failure::NotPositiveDefinite,
        Failure::NoConvergence,
    ];

    /// What failed, and for which matrix of the part.
    fn of(error: &LocalError) -> Option<(Failure, &[usize])> {
        match error {
            LocalError::NotFinite { matrix, .. } => Some((Failure::NotFinite, matrix)),
            LocalError::Singular { matrix, .. } => Some((Failure::Singular, matrix)),
            LocalError::NotPositiveDefinite { matrix, .. } => {
                Some((Failure::NotPositiveDefinite, matrix))
            }
            LocalError::NoConvergence { matrix, .. } => Some((Failure::NoConvergence, matrix)),
            _ => None,
        }
    }

    /// A number that is smaller for matrices further in front in the whole batch.
    fn code(self, matrix: &[usize], context: &LocalContext) -> i64 {
        let Some(layout) = context.result(0) else { return 0 };
        let number = matrix.iter().enumerate().fold(0, |number, (dim, index)| {
            let held = layout.intervals(dim, context.coord());
            let index = held.iter().flatten().nth(*index).unwrap_or(*index);
            number * layout.global_shape()[dim] + index
        });
        let kind = Failure::ALL.iter().position(|failure| *failure == self).unwrap_or(0);
        (number * Failure::ALL.len() + kind) as i64
    }

    /// The error that such a number says, for a batch of this shape.
    fn error(code: i64, op: &'static str, batch: &[usize]) -> LocalError {
        let code = usize::try_from(code).unwrap_or(0);
        let (mut number, kind) = (code / Failure::ALL.len(), code % Failure::ALL.len());
        let mut matrix = vec![0; batch.len()];
        for (index, size) in matrix.iter_mut().zip(batch).rev() {
            *index = number % size.max(&1);
            number /= size.max(&1);
        }
        match Failure::ALL[kind] {
            Failure::NotFinite => LocalError::NotFinite { op, matrix },
            Failure::Singular => LocalError::Singular { op, matrix },
            Failure::NotPositiveDefinite => LocalError::NotPositiveDefinite { op, matrix },
            Failure::NoConvergence => LocalError::NoConvergence { op, matrix },
        }
    }
}
