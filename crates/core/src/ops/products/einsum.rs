use std::collections::{BTreeMap, BTreeSet};

use dtensor_layout::rule::Rule;
use dtensor_local::{LocalError, Tensor};

use crate::{
    DTensor, Error, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
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

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::OTHERS)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let shapes: Vec<&[usize]> =
            (0..backward.n_operands()).map(|operand| backward.shape(operand)).collect();
        let n_dims: Vec<usize> = shapes.iter().map(|shape| shape.len()).collect();
        let terms = Terms::new(&self.0, &n_dims);
        let grad = backward.grad()?;
        backward.each(|operand| {
            let others = (0..shapes.len()).filter(|other| *other != operand);
            let kept: Vec<(usize, DTensor)> =
                others.map(|other| Ok((other, backward.operand(other)?))).collect::<Result<_>>()?;
            terms.gradient(operand, &grad, &kept, &shapes)
        })
    }
}

/// The terms of an equation, and its result.
struct Terms {
    operands: Vec<Vec<Label>>,
    result: Vec<Label>,
}

impl Terms {
    /// Of an equation that the kernel has found to fit operands of so many dims.
    fn new(equation: &str, n_dims: &[usize]) -> Terms {
        let (left, right) = match equation.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (equation, None),
        };
        let terms = left.split(',').zip(n_dims);
        let terms: Vec<Vec<Label>> = terms.map(|(term, n_dims)| labels(term, *n_dims)).collect();
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
                let letters: BTreeSet<Label> = all()
                    .filter(|label| matches!(label, Label::Letter(_)) && once(label))
                    .collect();
                hidden.iter().rev().map(|dim| Label::Hidden(*dim)).chain(letters).collect()
            }
        };
        Terms { operands: terms, result }
    }
}

impl Terms {
    /// The gradient with respect to an operand, given that of the result, and the others by their numbers: a product of
    /// these. It may have the size to which a dim was broadcast.
    fn gradient(
        &self,
        operand: usize,
        grad: &DTensor,
        others: &[(usize, DTensor)],
        shapes: &[&[usize]],
    ) -> Result<DTensor> {
        let mut names: BTreeMap<Label, char> = BTreeMap::new();
        let mut letters = ('a'..='z').chain('A'..='Z');
        for label in self.operands.iter().flatten() {
            if !names.contains_key(label) {
                names.insert(*label, letters.next().ok_or_else(too_many)?);
            }
        }
        let term = |labels: &[Label]| -> String {
            labels.iter().filter_map(|label| names.get(label)).collect()
        };
        let own = &self.operands[operand];
        let once: Vec<Label> = unique(own);
        let is_there = |label: &&Label| {
            self.result.contains(label)
                || others.iter().any(|(other, _)| self.operands[*other].contains(label))
        };
        let there: Vec<Label> = once.iter().filter(is_there).copied().collect();
        let mut equation = term(&self.result);
        for (other, _) in others {
            equation += &format!(",{}", term(&self.operands[*other]));
        }
        equation += &format!("->{}", term(&there));
        let operands: Vec<&DTensor> =
            [grad].into_iter().chain(others.iter().map(|(_, other)| other)).collect();
        let mut found = DTensor::einsum(&equation, &operands)?;
        // What the operand was summed over alone is the same everywhere.
        let sizes =
            || self.operands.iter().zip(shapes).flat_map(|(term, sizes)| term.iter().zip(*sizes));
        for (dim, _) in once.iter().enumerate().filter(|(_, label)| !there.contains(label)) {
            found = found.unsqueeze(dim.cast_signed())?;
        }
        let size = |label: &Label| {
            let sizes = sizes().filter(|(other, _)| *other == label).map(|(_, size)| *size);
            sizes.max_by_key(|size| (*size != 1, *size)).unwrap_or(1)
        };
        let full: Vec<usize> = once.iter().map(size).collect();
        if found.shape() != full {
            found = found.expand(&full)?;
        }
        // A label that the operand has several times is on its diagonals.
        for (dim, label) in own.iter().enumerate() {
            let before = own[..dim].iter().position(|other| other == label);
            if let Some(before) = before {
                // Its dims up to here are in their places.
                found = found.movedim(&[before.cast_signed()], &[-1])?;
                found = found.diag_embed(0, before.cast_signed(), dim.cast_signed())?;
            }
        }
        Ok(found)
    }
}

fn too_many() -> Error {
    Error::Unsupported {
        op: "einsum",
        what: "the gradient of an equation with more than 52 dims".into(),
        way_out: "join dims before",
    }
}

/// Each once, in the order of their first places.
fn unique(labels: &[Label]) -> Vec<Label> {
    let mut unique = Vec::new();
    for label in labels {
        if !unique.contains(label) {
            unique.push(*label);
        }
    }
    unique
}

/// The rule of an equation that the kernel has found to fit its operands.
fn rule_text(equation: &str, operands: &[Meta]) -> String {
    let n_dims: Vec<usize> = operands.iter().map(Meta::n_dims).collect();
    let Terms { operands: terms, result } = Terms::new(equation, &n_dims);
    let all = || terms.iter().flatten().copied();
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
