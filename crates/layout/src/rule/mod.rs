//! How an op may be cut: letters for cuts, laws for pending reductions.
//!
//! A rule names the dims of an op's operands and results by letters:
//!
//! ```
//! use dtensor_layout::rule::{Law, Rule};
//!
//! let matmul = Rule::of("m k, k n -> m n", &[Law::Multilinear]);
//! let rows = matmul.rows(&[&[2, 4], &[4, 6]], 2)?;
//! let text: Vec<String> = rows.iter().map(|row| row.to_string()).collect();
//! assert_eq!(text, [
//!     "R R -> R",             // always
//!     "S(0) R -> S(0)",       // cut m
//!     "S(1) S(0) -> P(sum)",  // cut k: the result does not have it, so it is a pending sum
//!     "R S(1) -> S(1)",       // cut n
//!     "P(sum) R -> P(sum)", "R P(sum) -> P(sum)", // linear in each operand alone
//!     "P(avg) R -> P(avg)", "R P(avg) -> P(avg)",
//! ]);
//! # Ok::<(), dtensor_layout::rule::RuleError>(())
//! ```
//!
//! # Reading a rule
//!
//! For a mesh axis that cuts a letter, a tensor that has the letter is `S(its position)`, an
//! operand without it is `R`, and a result without it is `P(sum)`, or what its `@max` says.
//!
//! * `d!` is never cut.
//! * `...` is any number of dims, broadcast against each other as NumPy does; once per tensor.
//! * `1` is a dim of size 1 that no letter stands for: a kept reduced dim, for example.
//! * `(a b)` is one dim made of two letters, major first: what a reshape does. Sizes that do not
//!   follow from the operands' shapes are written behind: `(a b) -> a b {a=2}`.
//! * `; S(1) R -> P(sum)` adds a row that letters cannot say, in the letters that a layout prints.
//! * `| Linear, Affine` are the [laws](Law): claims about the mathematics of the op.
//!
//! # Several mesh axes
//!
//! A mesh takes one row per axis; there are no further rules. Three things can only be judged when
//! the rows of all axes are known, and [`Choices::allows`] judges them:
//!
//! 1. A pending mean over a cut letter (`@avg`) needs shards of equal size: the letter's size must
//!    divide by the product of *all* axes that cut it.
//! 2. A letter of a group `(a b)` is a plain cut of that dim only if its chunks end where chunks of
//!    the dim end, and only if outer axes have cut the letters before it down to 1. Anything else
//!    would be a strided shard, which rules do not produce.
//! 3. Two pending reductions on one tensor must commute.
//!
//! # Trade-offs
//!
//! The rows are all that can be said without looking at data. An op that can do better by
//! communicating inside (a softmax over a cut dim) says so elsewhere. A rule is believed, so
//! every rule is to be proven by brute force: the oracle of the test crate does that.

mod builders;
mod choices;
mod error;
mod expand;
mod laws;
mod letters;
mod notation;
mod row;

pub use choices::Choices;
pub use error::RuleError;
pub use laws::{Law, UnknownLaw};
pub use notation::Signature;
pub use row::{MeshRow, Row};

use letters::Letters;

/// Every way an op may be cut: letters, explicit rows and laws.
///
/// Prints as its canonical text, laws included, and parses back to the same value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// At least one of `letters` and `rows` is there: they say how many operands there are.
    letters: Option<Letters>,
    rows: Vec<Row>,
    laws: Vec<Law>,
}

impl Rule {
    /// A rule that is written in the source. For text that comes from elsewhere, use
    /// [`parse`](str::parse).
    ///
    /// # Panics
    /// If `text` is no rule or a law does not fit it: a mistake in the source.
    #[track_caller]
    pub fn of(text: &str, laws: &[Law]) -> Rule {
        let rule = text.parse().and_then(|rule: Rule| rule.with_laws(laws));
        // Not on input: the text is a literal, and the first test that touches the op shows it.
        #[allow(clippy::panic)]
        rule.unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same rule with further laws.
    pub fn with_laws(mut self, laws: &[Law]) -> Result<Rule, RuleError> {
        self.laws.extend_from_slice(laws);
        Rule::new(self.letters, self.rows, self.laws)
    }

    /// Number of operands.
    pub fn n_operands(&self) -> usize {
        self.arity().0
    }

    /// Number of results.
    pub fn n_results(&self) -> usize {
        self.arity().1
    }

    /// The laws.
    pub fn laws(&self) -> &[Law] {
        &self.laws
    }

    /// The text without the laws.
    pub fn signature(&self) -> Signature<'_> {
        Signature(self)
    }

    /// Every way to run the op on operands of these global shapes, before any mesh is known.
    pub fn choices(&self, shapes: &[&[usize]]) -> Result<Choices, RuleError> {
        Choices::of(self, shapes)
    }

    /// Every way to run the op on one mesh axis of `n_ranks` ranks, the replicated one first.
    ///
    /// `shapes` are the global shapes of the operands: they fix how many dims `...` stands for,
    /// which operands are broadcast, and which cuts are even where that matters.
    pub fn rows(&self, shapes: &[&[usize]], n_ranks: usize) -> Result<Vec<Row>, RuleError> {
        let choices = self.choices(shapes)?;
        Ok(choices.on_mesh(&[n_ranks]).flat_map(|MeshRow(rows)| rows).collect())
    }

    fn new(
        letters: Option<Letters>,
        rows: Vec<Row>,
        mut laws: Vec<Law>,
    ) -> Result<Rule, RuleError> {
        let mut seen = Vec::new();
        laws.retain(|law| {
            !seen.contains(law) && {
                seen.push(*law);
                true
            }
        });
        let rule = Rule { letters, rows, laws };
        let bad = |why: String| RuleError::Parse { text: rule.to_string(), why };
        if let Some(letters) = &rule.letters {
            letters.check().map_err(bad)?;
        }
        let arity = rule.arity();
        if rule.rows.iter().any(|row| (row.operands.len(), row.results.len()) != arity) {
            return Err(bad("its clauses have different numbers of operands or results".into()));
        }
        let strange = rule.laws.iter().find(|law| law.operand().is_some_and(|i| i >= arity.0));
        match strange.copied() {
            Some(law) => {
                let rule = rule.signature().to_string();
                Err(RuleError::BadLaw { rule, law, n_operands: arity.0 })
            }
            None => Ok(rule),
        }
    }

    fn arity(&self) -> (usize, usize) {
        match (&self.letters, self.rows.first()) {
            (Some(letters), _) => (letters.operands.len(), letters.results.len()),
            (None, Some(row)) => (row.operands.len(), row.results.len()),
            (None, None) => (0, 0),
        }
    }
}
