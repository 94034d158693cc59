use std::collections::{BTreeMap, BTreeSet};

use dtensor_layout::rule::Rule;
use dtensor_local::{LocalError, Tensor};

use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
    ops::letters::{letter, rule},
};

/// The sum of products that an equation of letters describes. Its letters are those of its rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Einsum(Box<str>);

/// What names a dim: a letter of the equation, or a dim of `...`, counted from the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Letter(char),
    Hidden(usize),
}

impl Op for Einsum {
    fn name(&self) -> &'static str {
        "einsum"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        rule("einsum", &rule_text(&self.0, operands), &[])
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(Tensor::einsum(&self.0, x))
    }
}

/// The rule of an equation that the kernel has found to fit its operands.
fn rule_text(equation: &str, operands: &[Meta]) -> String {
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (equation, None),
    };
    let terms = left.split(',').zip(operands);
    let terms: Vec<Vec<Label>> = terms.map(|(term, meta)| labels(term, meta.n_dims())).collect();
    let all = || terms.iter().flatten().copied();
    let hidden: BTreeSet<usize> = all()
        .filter_map(|label| match label {
            Label::Hidden(dim) => Some(dim),
            Label::Letter(_) => None,
        })
        .collect();
    let result = match right {
        Some(term) => {
            let n_letters = term.chars().filter(char::is_ascii_alphabetic).count();
            let n_hidden = if term.contains("...") { hidden.len() } else { 0 };
            labels(term, n_letters + n_hidden)
        }
        None => {
            let once = |label: &Label| all().filter(|other| other == label).count() == 1;
            let letters: BTreeSet<Label> =
                all().filter(|label| matches!(label, Label::Letter(_)) && once(label)).collect();
            hidden.iter().rev().map(|dim| Label::Hidden(*dim)).chain(letters).collect()
        }
    };
    // What occurs twice in a term is a diagonal: it and its namesakes stay whole.
    let twice = |label: &Label| {
        terms.iter().any(|term| term.iter().filter(|other| *other == label).count() > 1)
    };
    let mut names = BTreeMap::new();
    for label in all() {
        let number = names.len();
        names.entry(label).or_insert_with(|| letter(number));
    }
    let mut n_names = names.len();
    let sizes = terms.iter().zip(operands).flat_map(|(term, meta)| term.iter().zip(&meta.shape));
    let sizes: Vec<(Label, usize)> = sizes.map(|(label, size)| (*label, *size)).collect();
    let mut operand = |(term, meta): (&Vec<Label>, &Meta)| {
        let mut dims = Vec::new();
        for (at, label) in term.iter().enumerate() {
            let repeated = meta.shape[at] == 1
                && sizes.iter().any(|(other, size)| other == label && *size != 1);
            dims.push(if repeated {
                "1".to_string()
            } else if term[..at].contains(label) {
                // A second name, since a rule has each but once in a tensor.
                n_names += 1;
                letter(n_names - 1) + "!"
            } else if twice(label) {
                format!("{}!", names[label])
            } else {
                names[label].clone()
            });
        }
        dims.join(" ")
    };
    let operands: Vec<String> = terms.iter().zip(operands).map(&mut operand).collect();
    let result: Vec<&str> =
        result.iter().filter_map(|label| names.get(label).map(String::as_str)).collect();
    format!("{} -> {} | Multilinear", operands.join(", "), result.join(" "))
}

/// The labels of a term that stands for this many dims.
fn labels(term: &str, n_dims: usize) -> Vec<Label> {
    let letters = |text: &str| -> Vec<Label> {
        text.chars().filter(char::is_ascii_alphabetic).map(Label::Letter).collect()
    };
    match term.split_once("...") {
        None => letters(term),
        Some((before, after)) => {
            let (before, after) = (letters(before), letters(after));
            let n_hidden = n_dims.saturating_sub(before.len() + after.len());
            let hidden = (0..n_hidden).rev().map(Label::Hidden);
            before.into_iter().chain(hidden).chain(after).collect()
        }
    }
}

impl DTensor {
    /// The sum of products that an equation of letters describes, as `torch.einsum`: a letter in two terms
    /// runs along both dims at once, a letter that the result does not have is summed over, a letter twice in
    /// a term takes the diagonal, `...` stands for dims that are broadcast.
    ///
    /// ```
    /// use dtensor::{DTensor, DType, DeviceMesh, Placement::{Replicate, Shard}, Runner, ones};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let mesh = DeviceMesh::of_world(world, "heads")?;
    ///     let q = ones(&[3, 4, 2], DType::F32, &mesh, &[Shard(1)])?;
    ///     let k = ones(&[5, 4, 2], DType::F32, &mesh, &[Shard(1)])?;
    ///     let scores = DTensor::einsum("qhd,khd->hqk", &[&q, &k])?;   // nothing was sent
    ///     assert_eq!((scores.shape(), scores.placements()), (&[4, 3, 5][..], &[Shard(0)][..]));
    ///     Ok::<_, dtensor::Error>(())
    /// })?;
    /// # Ok::<(), dtensor::RunError>(())
    /// ```
    pub fn einsum(equation: &str, operands: &[&DTensor]) -> Result<DTensor> {
        call_one(&Einsum(equation.into()), operands)
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "einsum",
    samples: || {
        let sample =
            |equation: &str, shapes: &[&[usize]]| Sample::new(Einsum(equation.into()), shapes);
        vec![
            sample("bij,bjk->bik", &[&[2, 3, 4], &[2, 4, 5]]),
            sample("ij,kj", &[&[3, 5], &[4, 5]]),
            sample("...i,i...->...", &[&[4, 3], &[3, 4]]),
            sample("ii->i", &[&[3, 3]]),
            sample("ba->ab", &[&[5, 2]]),
            sample("aab,b->a", &[&[3, 3, 2], &[2]]),
            sample("ij->", &[&[5, 2]]),
            sample("ij,ij->ij", &[&[5, 1], &[5, 3]]),
            sample("Xi, iY, Y -> X", &[&[2, 3], &[3, 4], &[4]]),
        ]
    },
}];
