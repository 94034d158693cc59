use super::Law;

/// What can be wrong with a rule, or with the shapes it is asked about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// A text that is no rule.
    #[error("`{text}` is not a sharding rule: {why}")]
    Parse {
        /// The text.
        text: String,
        /// The reason and the way out.
        why: String,
    },
    /// A law about an operand that the rule does not have.
    #[error(
        "rule `{rule}`: {law} speaks of an operand that does not exist; there are {n_operands}"
    )]
    BadLaw {
        /// The rule.
        rule: String,
        /// The law.
        law: Law,
        /// Operands of the rule.
        n_operands: usize,
    },
    /// More or fewer shapes than operands.
    #[error("rule `{rule}`: {got} operand shapes for {want} operands; give one per operand")]
    WrongNumberOfOperands {
        /// The rule.
        rule: String,
        /// Shapes given.
        got: usize,
        /// Operands of the rule.
        want: usize,
    },
    /// An operand that does not fit its letters.
    #[error("rule `{rule}`: operand {operand} of shape {shape:?} does not fit: {why}")]
    DoesNotFit {
        /// The rule.
        rule: String,
        /// Position of the operand.
        operand: usize,
        /// Its shape.
        shape: Vec<usize>,
        /// The reason.
        why: String,
    },
    /// A letter of a group whose size follows from nothing.
    #[error("rule `{rule}`: the size of `{letter}` is unknown; write it as `{{{letter}=...}}`")]
    UnknownSize {
        /// The rule.
        rule: String,
        /// The letter.
        letter: String,
    },
    /// Shapes of different numbers of elements.
    #[error("reshape: {from:?} and {to:?} have different numbers of elements, or too many")]
    CannotReshape {
        /// Shape of the operand.
        from: Vec<usize>,
        /// Shape of the result.
        to: Vec<usize>,
    },
    /// Dims to reduce that the operand does not have, or has only once.
    #[error(
        "reduce: dims {dims:?} of a tensor of {n_dims} dims; give each at most once, below {n_dims}"
    )]
    CannotReduce {
        /// The dims asked for.
        dims: Vec<usize>,
        /// Dims of the operand.
        n_dims: usize,
    },
}
