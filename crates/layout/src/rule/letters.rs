//! What a rule is made of: letters, the dims they make up, the tensors that have those dims.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::ReduceOp;

/// A factor of the op's iteration space, shared by all tensors that have it: `m`, or `m3` where 26
/// letters are not enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Letter {
    /// First, so that letters order as `a, b, .., z, a1, b1, ..`.
    pub(super) number: usize,
    pub(super) letter: char,
}

/// One dim as a rule writes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Dim {
    /// `...`: any number of dims, broadcast.
    Ellipsis,
    /// `a`, `(a b)` with the major letter first, or `1`, which has no letter.
    Letters(Vec<Letter>),
}

/// The dims of one operand or result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tensor {
    pub(super) dims: Vec<Dim>,
    /// For a result: the reduction over cut letters that it does not have.
    pub(super) reduce: ReduceOp,
}

/// The letters part of a rule: `(a b) c! -> a b c! {a=2, b=4}`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Letters {
    pub(super) operands: Vec<Tensor>,
    pub(super) results: Vec<Tensor>,
    /// Never cut. Kept here and not at each dim, so that `d! -> d` and `d! -> d!` are one rule.
    pub(super) whole: BTreeSet<Letter>,
    /// Sizes that do not follow from the shapes of the operands.
    pub(super) sizes: BTreeMap<Letter, usize>,
}

impl Letter {
    /// The letters in order, without end: `a`, .., `z`, `a1`, ..
    pub(super) fn nth(n: usize) -> Letter {
        let letter = ('a'..='z').nth(n % 26).unwrap_or('z');
        Letter { number: n / 26, letter }
    }
}

impl Tensor {
    pub(super) fn new(dims: Vec<Dim>) -> Tensor {
        Tensor { dims, reduce: ReduceOp::Sum }
    }

    pub(super) fn has_ellipsis(&self) -> bool {
        self.dims.contains(&Dim::Ellipsis)
    }

    /// Every letter, once per appearance.
    pub(super) fn letters(&self) -> impl Iterator<Item = Letter> + '_ {
        self.dims.iter().flat_map(Dim::letters).copied()
    }
}

impl Dim {
    pub(super) fn one(letter: Letter) -> Dim {
        Dim::Letters(vec![letter])
    }

    pub(super) fn letters(&self) -> &[Letter] {
        match self {
            Dim::Letters(letters) => letters,
            Dim::Ellipsis => &[],
        }
    }
}

impl Letters {
    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.operands.iter().chain(&self.results)
    }

    /// Whatever makes well-formed letters no rule.
    pub(super) fn check(&self) -> Result<(), String> {
        for tensor in self.tensors() {
            let mut seen = BTreeSet::new();
            if let Some(twice) = tensor.letters().find(|letter| !seen.insert(*letter)) {
                return Err(format!(
                    "`{twice}` is twice in one tensor; use two letters and mark both `!`"
                ));
            }
            if tensor.dims.iter().filter(|dim| **dim == Dim::Ellipsis).count() > 1 {
                return Err("`...` is twice in one tensor".to_string());
            }
        }
        let in_operands: BTreeSet<Letter> =
            self.operands.iter().flat_map(Tensor::letters).collect();
        let new = self
            .results
            .iter()
            .flat_map(Tensor::letters)
            .find(|letter| !in_operands.contains(letter) && !self.whole.contains(letter));
        if let Some(new) = new {
            return Err(format!("`{new}` is in no operand, so it cannot be cut; mark it `{new}!`"));
        }
        if self.results.iter().any(Tensor::has_ellipsis)
            && !self.operands.iter().any(Tensor::has_ellipsis)
        {
            return Err("a result has `...` but no operand has".to_string());
        }
        let unused = |letter: &&Letter| !self.tensors().any(|t| t.letters().any(|l| l == **letter));
        if let Some(unused) = self.sizes.keys().find(unused) {
            return Err(format!("`{unused}` has a size but is in no tensor"));
        }
        Ok(())
    }
}

impl fmt::Display for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            0 => write!(f, "{}", self.letter),
            number => write!(f, "{}{number}", self.letter),
        }
    }
}
