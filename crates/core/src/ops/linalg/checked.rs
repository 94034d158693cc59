//! Questions to matrices, some of which have no answer.

use dtensor_layout::rule::Rule;
use dtensor_local::{LocalError, Tensor};

use super::matrices::Question;
use crate::{
    Result,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, Outputs},
};

/// A question to every matrix of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OnMatrices {
    question: Question,
}

impl OnMatrices {
    pub(super) fn new(question: Question) -> OnMatrices {
        OnMatrices { question }
    }
}

impl Op for OnMatrices {
    fn name(&self) -> &'static str {
        self.question.name()
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        self.question.rule(operands)
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        match self.question.answer(x, context) {
            Ok(results) => Ok(results.into()),
            Err(error) => Err(of_the_whole(error, context)),
        }
    }

    fn may_refuse(&self, _: usize, _: &[Meta]) -> bool {
        self.question.may_fail()
    }

    fn keeps(&self) -> Option<Keep> {
        self.question.keeps()
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        self.question.gradient(backward)
    }
}

/// The error, with the index of its matrix in the whole batch instead of that in the part.
fn of_the_whole(mut error: LocalError, context: &LocalContext) -> LocalError {
    if let LocalError::NotFinite { matrix, .. }
    | LocalError::Singular { matrix, .. }
    | LocalError::NotPositiveDefinite { matrix, .. }
    | LocalError::NoConvergence { matrix, .. } = &mut error
        // Its first dims are those of the batch.
        && let Some(layout) = context.result(0)
    {
        for (dim, index) in matrix.iter_mut().enumerate() {
            let held = layout.intervals(dim, context.coord());
            *index = held.iter().flatten().nth(*index).unwrap_or(*index);
        }
    }
    error
}
