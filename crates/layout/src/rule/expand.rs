//! Letters meet shapes: `...` becomes dims, every dim becomes a list of numbered factors.

use std::{collections::BTreeMap, fmt};

use super::{
    Rule, RuleError,
    letters::{Dim, Letter, Letters, Tensor},
};

/// Letters after `...` and broadcasting are resolved: nothing but factors is left.
#[derive(Debug)]
pub(super) struct Expanded {
    /// In the order of their first appearance.
    pub(super) factors: Vec<Factor>,
    pub(super) operands: Vec<FactorDims>,
    pub(super) results: Vec<FactorDims>,
}

/// A letter, or one dim of `...`.
#[derive(Debug)]
pub(super) struct Factor {
    /// Unknown only for a plain result dim that is never cut.
    pub(super) size: Option<usize>,
    pub(super) whole: bool,
}

/// Per dim of a tensor its factors by number, major first; none for a dim that is broadcast.
pub(super) type FactorDims = Vec<Vec<usize>>;

/// What a factor stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Letter(Letter),
    /// Dim of the shape that all `...` broadcast to.
    Ellipsis(usize),
}

/// One operand: per dim its names, major first, and its size.
struct Operand {
    dims: Vec<(Vec<Name>, usize)>,
}

type Sizes = BTreeMap<Name, usize>;

pub(super) fn expand(
    rule: &Rule,
    letters: &Letters,
    shapes: &[&[usize]],
) -> Result<Expanded, RuleError> {
    let does_not_fit = |operand: usize, why: String| RuleError::DoesNotFit {
        rule: rule.signature().to_string(),
        operand,
        shape: shapes[operand].to_vec(),
        why,
    };
    let unknown_size = |name: Name| RuleError::UnknownSize {
        rule: rule.signature().to_string(),
        letter: name.to_string(),
    };

    let mut ellipses = Vec::with_capacity(shapes.len());
    for (position, (tensor, shape)) in letters.operands.iter().zip(shapes).enumerate() {
        let n_dims = ellipsis_dims(tensor, shape).map_err(|why| does_not_fit(position, why))?;
        ellipses.push(n_dims);
    }
    let n_broadcast = ellipses.iter().copied().max().unwrap_or(0);
    let operands: Vec<Operand> = (letters.operands.iter().zip(shapes).zip(&ellipses))
        .map(|((tensor, shape), n_ellipsis)| {
            let names = names(tensor, *n_ellipsis, n_broadcast);
            Operand { dims: names.into_iter().zip(shape.iter().copied()).collect() }
        })
        .collect();
    let results: Vec<Vec<Vec<Name>>> =
        letters.results.iter().map(|tensor| names(tensor, n_broadcast, n_broadcast)).collect();

    let mut sizes: Sizes =
        letters.sizes.iter().map(|(letter, size)| (Name::Letter(*letter), *size)).collect();
    for (position, operand) in operands.iter().enumerate() {
        add_broadcast_sizes(operand, &mut sizes).map_err(|why| does_not_fit(position, why))?;
    }
    infer_letter_sizes(&operands, &mut sizes);
    for (position, operand) in operands.iter().enumerate() {
        for (names, size) in operand.dims.iter().filter(|(names, _)| !is_ellipsis(names)) {
            let known = product(names, &sizes).map_err(unknown_size)?;
            if known != Some(*size) {
                let names: Vec<String> = names.iter().map(Name::to_string).collect();
                let known = known.map_or_else(|| "too much".to_string(), |size| size.to_string());
                let why = format!("`{}` is {size} here and {known} elsewhere", names.join(" "));
                return Err(does_not_fit(position, why));
            }
        }
    }
    // A result's groups are judged by the sizes of their letters, so those must be known.
    for group in results.iter().flatten().filter(|names| names.len() > 1) {
        product(group, &sizes).map_err(unknown_size)?;
    }

    let mut numbers = Numbers::default();
    let operands = operands
        .iter()
        .map(|operand| {
            let dims = operand.dims.iter().map(|(names, size)| {
                // The operand is repeated along this dim, so whoever cuts the dim leaves it whole.
                let repeated =
                    is_ellipsis(names) && *size == 1 && product(names, &sizes) != Ok(Some(1));
                if repeated { Vec::new() } else { numbers.of(names) }
            });
            dims.collect()
        })
        .collect();
    let results =
        results.iter().map(|dims| dims.iter().map(|names| numbers.of(names)).collect()).collect();
    let factors = numbers.0.iter().map(|name| Factor {
        size: sizes.get(name).copied(),
        whole: matches!(name, Name::Letter(letter) if letters.whole.contains(letter)),
    });
    Ok(Expanded { factors: factors.collect(), operands, results })
}

/// How many dims the `...` of a tensor of this shape stands for.
fn ellipsis_dims(tensor: &Tensor, shape: &[usize]) -> Result<usize, String> {
    let n_named = tensor.dims.len() - usize::from(tensor.has_ellipsis());
    match shape.len().checked_sub(n_named) {
        Some(rest) if rest == 0 || tensor.has_ellipsis() => Ok(rest),
        _ => Err(format!("the rule names {n_named} dims")),
    }
}

/// The names of every dim. Those of `...` are counted from the right, as broadcasting does.
fn names(tensor: &Tensor, n_ellipsis: usize, n_broadcast: usize) -> Vec<Vec<Name>> {
    let mut dims = Vec::new();
    for dim in &tensor.dims {
        match dim {
            Dim::Letters(letters) => {
                dims.push(letters.iter().copied().map(Name::Letter).collect());
            }
            Dim::Ellipsis => {
                let broadcast = n_broadcast - n_ellipsis..n_broadcast;
                dims.extend(broadcast.map(|dim| vec![Name::Ellipsis(dim)]));
            }
        }
    }
    dims
}

fn is_ellipsis(names: &[Name]) -> bool {
    matches!(names, [Name::Ellipsis(_)])
}

/// A dim of `...` is as large as the operands that are not repeated along it.
fn add_broadcast_sizes(operand: &Operand, sizes: &mut Sizes) -> Result<(), String> {
    for (names, size) in operand.dims.iter().filter(|(names, _)| is_ellipsis(names)) {
        let known = sizes.entry(names[0]).or_insert(*size);
        if *known == 1 {
            *known = *size;
        } else if *size != 1 && size != known {
            return Err(format!("size {size} of its `...` meets size {known} of another operand"));
        }
    }
    Ok(())
}

/// Adds the sizes that follow from the operands' shapes: of letters that stand alone, and of the
/// last unknown letter of a group.
fn infer_letter_sizes(operands: &[Operand], sizes: &mut Sizes) {
    loop {
        let n_known = sizes.len();
        for (names, size) in operands.iter().flat_map(|operand| &operand.dims) {
            let mut unknown = names.iter().filter(|name| !sizes.contains_key(name));
            let (Some(last), None) = (unknown.next(), unknown.next()) else { continue };
            let known = names.iter().filter_map(|name| sizes.get(name));
            let known = known.copied().try_fold(1usize, usize::checked_mul);
            // A quotient that leaves a rest is noticed when all sizes are checked.
            let inferred = known.and_then(|known| size.checked_div(known)).unwrap_or(0);
            sizes.insert(*last, inferred);
        }
        if sizes.len() == n_known {
            return;
        }
    }
}

/// The product of the sizes (`None` if it overflows), or the first name whose size is unknown.
fn product(names: &[Name], sizes: &Sizes) -> Result<Option<usize>, Name> {
    let mut product = Some(1usize);
    for name in names {
        let size = *sizes.get(name).ok_or(*name)?;
        product = product.and_then(|product| product.checked_mul(size));
    }
    Ok(product)
}

/// Numbers names in the order of their first appearance.
#[derive(Default)]
struct Numbers(Vec<Name>);

impl Numbers {
    fn of(&mut self, names: &[Name]) -> Vec<usize> {
        let mut number = |name: &Name| {
            self.0.iter().position(|known| known == name).unwrap_or_else(|| {
                self.0.push(*name);
                self.0.len() - 1
            })
        };
        names.iter().map(&mut number).collect()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Letter(letter) => write!(f, "{letter}"),
            Name::Ellipsis(_) => f.write_str("..."),
        }
    }
}
