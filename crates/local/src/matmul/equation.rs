//! The notation of `einsum`.

use crate::{LocalError, Result, dims::Dims};

/// A letter, or a dim of the ellipsis counted from the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Label {
    Ellipsis(std::cmp::Reverse<usize>),
    Letter(char),
}

/// One label per dim.
pub(super) type Labels = Dims<Label>;

/// An equation for operands of known numbers of dims.
#[derive(Debug, PartialEq)]
pub(super) struct Equation {
    pub(super) operands: Vec<Labels>,
    pub(super) result: Labels,
}

impl Equation {
    /// Reads `"bij,bjk->bik"`. Without an arrow the result has the dims of the ellipsis, then the
    /// letters that occur once, in alphabetical order. Spaces do not matter.
    pub(super) fn parse(text: &str, n_dims: &[usize]) -> Result<Equation> {
        let bad = |why| LocalError::BadEquation { equation: text.to_owned(), why };
        let (left, right) = match text.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (text, None),
        };
        let terms: Vec<&str> = left.split(',').collect();
        if terms.len() != n_dims.len() {
            return Err(bad("it needs one term per operand, between commas"));
        }
        let operands = terms
            .iter()
            .zip(n_dims)
            .map(|(term, n_dims)| {
                let letters = term.chars().filter(|c| c.is_ascii_alphabetic()).count();
                let hidden = n_dims.checked_sub(letters).ok_or_else(|| bad(TOO_FEW_DIMS))?;
                let labels = labels(term, hidden).map_err(bad)?;
                if labels.len() == *n_dims {
                    Ok(labels)
                } else {
                    Err(bad("a term has fewer letters than its operand has dims; add ..."))
                }
            })
            .collect::<Result<Vec<Labels>>>()?;
        let all = operands.iter().flatten().copied();
        let hidden = all.clone().filter(|label| matches!(label, Label::Ellipsis(_)));
        let mut result_hidden: Labels = hidden.collect();
        result_hidden.sort_unstable();
        result_hidden.dedup();
        let result = match right {
            Some(term) => labels(term, result_hidden.len()).map_err(bad)?,
            None => {
                let once = |label: &Label| all.clone().filter(|other| other == label).count() == 1;
                let mut letters: Labels = all
                    .clone()
                    .filter(|label| matches!(label, Label::Letter(_)) && once(label))
                    .collect();
                letters.sort_unstable();
                result_hidden.into_iter().chain(letters).collect()
            }
        };
        for (at, label) in result.iter().enumerate() {
            if result[..at].contains(label) {
                return Err(bad("the result has a letter twice"));
            }
            if !all.clone().any(|other| other == *label) {
                return Err(bad("the result has a letter that no operand has"));
            }
        }
        Ok(Equation { operands, result })
    }
}

const TOO_FEW_DIMS: &str = "a term has more letters than its operand has dims";

/// The labels of one term, whose ellipsis stands for `hidden` dims.
fn labels(term: &str, hidden: usize) -> Result<Labels, &'static str> {
    let mut labels = Labels::new();
    let mut rest = term.trim();
    let mut seen = false;
    while let Some(next) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...") {
            if std::mem::replace(&mut seen, true) {
                return Err("a term has two ellipses");
            }
            labels.extend(
                (0..hidden).rev().map(|from_right| Label::Ellipsis(std::cmp::Reverse(from_right))),
            );
            rest = after;
            continue;
        }
        match next {
            ' ' => {}
            letter if letter.is_ascii_alphabetic() => labels.push(Label::Letter(letter)),
            _ => return Err("only letters, commas, one -> and ... have a meaning"),
        }
        rest = &rest[next.len_utf8()..];
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letters(text: &str) -> Labels {
        text.chars().map(Label::Letter).collect()
    }

    #[test]
    fn without_an_arrow_the_result_has_the_letters_that_occur_once_in_order() {
        assert_eq!(Equation::parse("ji, jk", &[2, 2]).unwrap().result, letters("ik"));
        assert_eq!(Equation::parse("ii", &[2]).unwrap().result, letters(""));
        let hidden = |i| Label::Ellipsis(std::cmp::Reverse(i));
        let with_ellipsis = Equation::parse("z...a,a...", &[4, 2]).unwrap();
        assert_eq!(with_ellipsis.result.to_vec(), [hidden(1), hidden(0), Label::Letter('z')]);
    }

    #[test]
    fn what_is_no_equation_is_refused() {
        let cases: [(&str, &[usize]); 9] = [
            ("ij", &[2, 2]),
            ("ij,jk->ik", &[2]),
            ("ijk", &[2]),
            ("ij", &[3]),
            ("ij->ii", &[2]),
            ("ij->k", &[2]),
            ("i1", &[2]),
            ("......", &[2]),
            ("ij->i->j", &[2]),
        ];
        for (text, n_dims) in cases {
            let error = Equation::parse(text, n_dims).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
