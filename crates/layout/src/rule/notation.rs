//! Rules as text: parsing and printing.
//!
//! ```text
//! rule    := clause (";" clause)* ["|" law ("," law)*]
//! clause  := letters | row                             (at most one clause of letters)
//! letters := side "->" side ["{" name "=" size ("," name "=" size)* "}"]
//! side    := tensor ("," tensor)*
//! tensor  := dim* ["@" reduction]                      ("@" in results only)
//! dim     := "..." | "1" | name ["!"] | "(" (name ["!"])+ ")"
//! name    := "a" .. "z", and a number without leading zeros where 26 are not enough
//! row     := placement+ "->" placement+
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    iter::Peekable,
    str::{Chars, FromStr},
};

use super::{
    Law, Row, Rule, RuleError,
    letters::{Dim, Letter, Letters, Tensor},
};
use crate::{ReduceOp, text::split_top_level};

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Rule, RuleError> {
        let bad = |why: String| RuleError::Parse { text: text.to_string(), why };
        let (clauses, laws) = match text.split_once('|') {
            Some((clauses, laws)) => (clauses, Some(laws)),
            None => (text, None),
        };
        let mut letters = None;
        let mut rows = Vec::new();
        for clause in clauses.split(';') {
            // Letters are small; the names of placements are not.
            if clause.contains(|c: char| c.is_ascii_uppercase()) {
                rows.push(clause.parse::<Row>()?);
            } else if letters.is_some() {
                return Err(bad(
                    "there may be one clause of letters, and any number of rows".into()
                ));
            } else {
                letters = Some(parse_letters(clause).map_err(bad)?);
            }
        }
        let laws = laws.map_or(Ok(Vec::new()), |laws| {
            laws.split(',').map(str::parse).collect::<Result<Vec<Law>, _>>()
        });
        Rule::new(letters, rows, laws.map_err(|error| bad(error.to_string()))?)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.signature().fmt(f)?;
        let mut separator = " | ";
        for law in &self.laws {
            write!(f, "{separator}{law}")?;
            separator = ", ";
        }
        Ok(())
    }
}

/// A rule without its laws, as tables print it: see [`Rule::signature`].
pub struct Signature<'a>(pub(super) &'a Rule);

impl fmt::Display for Signature<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if let Some(letters) = &self.0.letters {
            write!(f, "{letters}")?;
            separator = "; ";
        }
        for row in &self.0.rows {
            write!(f, "{separator}{row}")?;
            separator = "; ";
        }
        Ok(())
    }
}

impl fmt::Display for Letters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |letter: &Letter| match self.whole.contains(letter) {
            true => format!("{letter}!"),
            false => letter.to_string(),
        };
        let dim = |dim: &Dim| match dim {
            Dim::Ellipsis => "...".to_string(),
            Dim::Letters(letters) => match letters.as_slice() {
                [] => "1".to_string(),
                [letter] => name(letter),
                group => format!("({})", group.iter().map(name).collect::<Vec<_>>().join(" ")),
            },
        };
        let tensor = |tensor: &Tensor| {
            let mut words: Vec<String> = tensor.dims.iter().map(dim).collect();
            if tensor.reduce != ReduceOp::Sum {
                words.push(format!("@{}", tensor.reduce));
            }
            words.join(" ")
        };
        let side = |tensors: &[Tensor]| tensors.iter().map(tensor).collect::<Vec<_>>().join(", ");
        let text = format!("{} -> {}", side(&self.operands), side(&self.results));
        // A tensor of no dims is an empty text.
        f.write_str(text.trim())?;
        if self.sizes.is_empty() {
            return Ok(());
        }
        let sizes: Vec<String> =
            self.sizes.iter().map(|(letter, size)| format!("{letter}={size}")).collect();
        write!(f, " {{{}}}", sizes.join(", "))
    }
}

fn parse_letters(clause: &str) -> Result<Letters, String> {
    let (operands, rest) = clause.split_once("->").ok_or("there is no `->`")?;
    let (results, sizes) = match rest.split_once('{') {
        Some((results, sizes)) => {
            (results, sizes.trim().strip_suffix('}').ok_or("`{` without `}`")?)
        }
        None => (rest, ""),
    };
    let mut whole = BTreeSet::new();
    let mut side = |side: &str| {
        side.split(',')
            .map(|tensor| parse_tensor(tensor, &mut whole))
            .collect::<Result<Vec<_>, _>>()
    };
    let (operands, results) = (side(operands)?, side(results)?);
    if operands.iter().any(|(_, reduce)| reduce.is_some()) {
        return Err("`@` belongs to a result".to_string());
    }
    let tensors = |side: Vec<(Vec<Dim>, Option<ReduceOp>)>| {
        side.into_iter()
            .map(|(dims, reduce)| Tensor { dims, reduce: reduce.unwrap_or(ReduceOp::Sum) })
            .collect()
    };
    Ok(Letters {
        operands: tensors(operands),
        results: tensors(results),
        whole,
        sizes: parse_sizes(sizes)?,
    })
}

fn parse_tensor(
    text: &str,
    whole: &mut BTreeSet<Letter>,
) -> Result<(Vec<Dim>, Option<ReduceOp>), String> {
    let (dims, reduce) = match text.split_once('@') {
        Some((dims, reduce)) => {
            (dims, Some(reduce.trim().parse::<ReduceOp>().map_err(|error| error.to_string())?))
        }
        None => (text, None),
    };
    let mut chars = dims.chars().peekable();
    let mut parsed = Vec::new();
    loop {
        skip_spaces(&mut chars);
        let Some(&next) = chars.peek() else { return Ok((parsed, reduce)) };
        match next {
            '.' => {
                for _ in 0..3 {
                    if chars.next() != Some('.') {
                        return Err("`...` has three dots".to_string());
                    }
                }
                parsed.push(Dim::Ellipsis);
            }
            '1' => {
                chars.next();
                parsed.push(Dim::Letters(Vec::new()));
            }
            '(' => {
                chars.next();
                parsed.push(Dim::Letters(parse_group(&mut chars, whole)?));
            }
            _ => parsed.push(Dim::one(parse_marked(&mut chars, whole)?)),
        }
    }
}

/// The rest of `(a b)`, after its `(`.
fn parse_group(
    chars: &mut Peekable<Chars<'_>>,
    whole: &mut BTreeSet<Letter>,
) -> Result<Vec<Letter>, String> {
    let mut group = Vec::new();
    loop {
        skip_spaces(chars);
        match chars.peek() {
            None => return Err("`(` without `)`".to_string()),
            Some(')') if group.is_empty() => {
                return Err("`()` has no letter; a dim of size 1 is written `1`".to_string());
            }
            Some(')') => {
                chars.next();
                return Ok(group);
            }
            Some(_) => group.push(parse_marked(chars, whole)?),
        }
    }
}

/// `m` or `m!`.
fn parse_marked(
    chars: &mut Peekable<Chars<'_>>,
    whole: &mut BTreeSet<Letter>,
) -> Result<Letter, String> {
    let letter = parse_letter(chars)?;
    if chars.next_if_eq(&'!').is_some() {
        whole.insert(letter);
    }
    Ok(letter)
}

fn parse_letter(chars: &mut Peekable<Chars<'_>>) -> Result<Letter, String> {
    let letter = match chars.next() {
        Some(letter) if letter.is_ascii_lowercase() => letter,
        Some(other) => {
            return Err(format!(
                "`{other}` is no dim; a dim is a small letter, `1`, `...` or a group `(a b)`"
            ));
        }
        None => return Err("a letter is missing".to_string()),
    };
    let mut digits = String::new();
    while let Some(digit) = chars.next_if(char::is_ascii_digit) {
        digits.push(digit);
    }
    let number = match digits.as_str() {
        "" => 0,
        digits if digits.starts_with('0') => {
            return Err(format!("the number of `{letter}{digits}` begins with 0"));
        }
        digits => {
            digits.parse().map_err(|_| format!("the number of `{letter}{digits}` is too large"))?
        }
    };
    Ok(Letter { number, letter })
}

fn parse_sizes(text: &str) -> Result<BTreeMap<Letter, usize>, String> {
    let mut sizes = BTreeMap::new();
    for size in split_top_level(text) {
        let (name, number) =
            size.split_once('=').ok_or_else(|| format!("`{}` is no `a=2`", size.trim()))?;
        let mut chars = name.trim().chars().peekable();
        let letter = parse_letter(&mut chars)?;
        let number = number.trim().parse();
        match (chars.next(), number) {
            (None, Ok(number)) => {
                if sizes.insert(letter, number).is_some() {
                    return Err(format!("`{letter}` has two sizes"));
                }
            }
            _ => return Err(format!("`{}` is no `a=2`", size.trim())),
        }
    }
    Ok(sizes)
}

fn skip_spaces(chars: &mut Peekable<Chars<'_>>) {
    while chars.next_if(|c| c.is_whitespace()).is_some() {}
}
