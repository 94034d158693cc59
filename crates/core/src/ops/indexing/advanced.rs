//! Several lists of indices at once, as in `x[:, rows, columns]`. The dims that the lists are for may be cut:
//! every rank picks or writes what falls into its part.

use dtensor_layout::{
    Placement, ReduceOp,
    rule::{Law::MovesIn, Rule},
};
use dtensor_local::{DType, LocalError, Tensor};
use smallvec::SmallVec;

use super::{
    held::{Hits, LIST, TENSOR, is_left_out, letter, letters, numbers},
    last,
    zeros::{zero_beside, zeros_for},
};
use crate::{
    DTensor, Error, Result,
    dispatch::call_one,
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::Index, one,
    },
};

/// Which dims have a list; the lists are the operands after the tensor, in order.
type Listed = SmallVec<[bool; 4]>;

/// `index`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pick {
    listed: Listed,
}

/// `index_put`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Put {
    listed: Listed,
    accumulate: bool,
}

impl Op for Pick {
    fn name(&self) -> &'static str {
        "index"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let names = Names::of(&self.listed, operands);
        let text = format!("{} -> {}", names.operands.join(", "), names.request.join(" "));
        Ok(Rule::of(&text, &[MovesIn(0)]))
    }

    fn eval(&self, operands: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let (x, lists) = (operands[0], &operands[1..]);
        let entries = entries(&self.listed, lists);
        let whole = context.operand(0).map(|layout| layout.global_shape());
        let Some(whole) = whole.filter(|whole| is_cut(&self.listed, whole, x.shape())) else {
            return one(x.index(&entries));
        };
        if x.is_meta() || lists.iter().any(|list| list.is_meta()) {
            return one(x.index(&entries));
        }
        let shape = requested(x, &self.listed, lists)?;
        let mut missing: Option<Tensor> = None;
        let mut local = Vec::with_capacity(lists.len());
        for (dim, list) in dims_of(&self.listed).zip(lists) {
            let held = context.operand_range(0, dim, whole[dim]);
            let numbers = numbers(self.name(), list, dim, whole[dim], true)?;
            let absent = numbers.iter().map(|number| !held.contains(number)).collect();
            let absent = Tensor::from_vec::<bool>(absent, list.shape())?;
            missing = Some(match missing {
                Some(missing) => missing.logical_or(&absent)?,
                None => absent,
            });
            let here = numbers.iter().map(|number| match held.contains(number) {
                true => (number - held.start) as i64,
                false => 0,
            });
            local.push(Tensor::from_vec(here.collect(), list.shape())?);
        }
        let has_nothing = dims_of(&self.listed).any(|dim| x.shape()[dim] == 0);
        let Some(missing) = missing.filter(|_| !has_nothing) else {
            return one(Tensor::zeros(&shape, x.dtype()));
        };
        let picked = x.index(&self::entries(&self.listed, &local.iter().collect::<Vec<_>>()))?;
        // Its dims are where those of the lists are.
        let after = shape.len() - n_before(&self.listed) - missing.n_dims();
        let mut missing_shape = missing.shape().to_vec();
        missing_shape.extend(std::iter::repeat_n(1, after));
        one(picked.masked_fill(&missing.reshape(&missing_shape)?, false))
    }

    fn keeps(&self) -> Option<Keep> {
        // The lists: the tensor is not needed for itself.
        Some(Keep::OTHERS)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        let lists = lists_of(backward, dims_of(&self.listed).count())?;
        backward.first(|| {
            if lists.is_empty() {
                return Ok(grad);
            }
            // A rank that has some of the elements adds them to its own, and the sum is pending.
            let names = requested_dims(&self.listed, backward.shape(0).len(), grad.n_dims());
            let place = |dim: usize| match names[dim] {
                Some(own) => Placement::Shard(own),
                None => Placement::Partial(ReduceOp::Sum),
            };
            let zeros = zeros_for(backward, 0, &grad, |dim| Some(place(dim)))?;
            put(&self.listed, true, &zeros, &lists, &grad)
        })
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn may_refuse(&self, operand: usize, _: &[Meta]) -> bool {
        operand > 0
    }
}

impl Op for Put {
    fn name(&self) -> &'static str {
        "index_put"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let n_lists = operands.len() - 2;
        let names = Names::of(&self.listed, &operands[..=n_lists]);
        let (x, values) = (&operands[0], &operands[n_lists + 1]);
        let skipped = names.sizes.len() - values.n_dims();
        let of_values =
            values.shape.iter().zip(names.request.iter().zip(&names.sizes).skip(skipped));
        let of_values: Vec<&str> = of_values
            .map(|(size, (name, whole))| if size == whole { name.as_str() } else { "1" })
            .collect();
        let tensor = letters(TENSOR, x.n_dims()).join(" ");
        let mut text =
            format!("{}, {} -> {tensor}", names.operands.join(", "), of_values.join(" "));
        if !self.accumulate {
            // Which of several values stays, only who sees all of them can say.
            for common in &names.common {
                text = mark_whole(&text, common);
            }
        }
        let lists = " R".repeat(n_lists);
        let mut row = |x: &str, values: &str, op: &str| {
            text += &format!("; {x}{lists} {values} -> {op}");
        };
        let exact: &[&str] = if self.accumulate { &[] } else { &["P(product)", "P(sum)"] };
        // Sums are linear, and linear up to a constant in each alone. Elements that only move are what they
        // are, and if they are whole, their mean and extremes, too.
        let alone: &[&str] = match self.accumulate {
            true => &["P(sum)", "P(avg)"],
            false => &["P(avg)", "P(max)", "P(min)"],
        };
        for op in exact.iter().chain(alone) {
            row(op, op, op);
        }
        for op in alone {
            row(op, "R", op);
            row("R", op, op);
        }
        if !self.accumulate {
            row("R", "P(sum)", "P(sum)");
        }
        if self.accumulate && x.dtype.is_float() {
            // Not where integers wrap around.
            row("P(max)", "R", "P(max)");
            row("P(min)", "R", "P(min)");
        }
        if self.accumulate {
            for common in &names.common {
                let cut = |names: &[&str]| {
                    let at = names.iter().position(|name| name == common);
                    at.map_or_else(|| "R".to_string(), |dim| format!("S({dim})"))
                };
                let lists = names.operands[1..].iter();
                let lists = lists.map(|list| cut(&list.split(' ').collect::<Vec<_>>()));
                let lists = lists.collect::<Vec<_>>().join(" ");
                let values = cut(&of_values);
                text += &format!("; P(sum) {lists} {values} -> P(sum)");
            }
        }
        text.parse().map_err(Error::rule(self.name()))
    }

    fn eval(&self, operands: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let n_lists = operands.len() - 2;
        let (x, lists, values) = (operands[0], &operands[1..=n_lists], operands[n_lists + 1]);
        let put = |x: &Tensor, lists: &[&Tensor], values: &Tensor| {
            x.index_put(&entries(&self.listed, lists), values, self.accumulate)
        };
        let Some(layout) = context.operand(0) else { return one(put(x, lists, values)) };
        if operands.iter().any(|operand| operand.is_meta()) {
            return one(Tensor::meta(x.shape(), x.dtype()));
        }
        let whole = layout.global_shape();
        let dims: Vec<usize> = dims_of(&self.listed).collect();
        let numbers = dims.iter().zip(lists);
        let numbers = numbers.map(|(dim, list)| numbers_of(self.name(), list, *dim, whole[*dim]));
        let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
        let start = match is_left_out(context, &[0]) {
            true => x.zeros_like()?,
            false => x.clone(),
        };
        let entries: Vec<usize> = (1..operands.len()).collect();
        if self.accumulate && is_left_out(context, &entries) {
            return one(Ok(start));
        }
        if !is_cut(&self.listed, whole, x.shape()) {
            return one(put(&start, lists, values));
        }
        // The entries of this rank, in their order, as lists of one dim.
        let shape = requested(x, &self.listed, lists)?;
        let (before, n_others) = (n_before(&self.listed), x.n_dims() - lists.len());
        let common = before..shape.len() - (n_others - before);
        let count = shape[common.clone()].iter().product();
        let lists = numbers.iter().map(|list| list.expand(&shape[common.clone()])?.to_vec::<i64>());
        let lists = lists.collect::<Result<Vec<_>, _>>()?;
        let held: Vec<_> =
            dims.iter().map(|dim| context.operand_range(0, *dim, whole[*dim])).collect();
        let is_here = |entry: &usize| {
            lists.iter().zip(&held).all(|(list, held)| held.contains(&(list[*entry] as usize)))
        };
        let here: Vec<usize> = (0..count).filter(is_here).collect();
        let local = lists.iter().zip(&held).map(|(list, held)| {
            let numbers = here.iter().map(|entry| list[*entry] - held.start as i64);
            Tensor::from_vec(numbers.collect(), &[here.len()])
        });
        let local = local.collect::<Result<Vec<_>, _>>()?;
        let mut flat = shape[..before].to_vec();
        flat.push(count);
        flat.extend(&shape[common.end..]);
        let hits = Hits::from_pairs(here.iter().map(|entry| (*entry, 0)))?;
        let values = values.expand(&shape)?.reshape(&flat)?;
        let values = values.index_select(before as isize, &hits.positions)?;
        one(put(&start, &local.iter().collect::<Vec<_>>(), &values))
    }

    fn keeps(&self) -> Option<Keep> {
        let lists: Vec<usize> = (1..=dims_of(&self.listed).count()).collect();
        Some(Keep::operands(&lists))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        let lists = lists_of(backward, backward.n_operands() - 2)?;
        backward.each(|operand| match (operand, self.accumulate) {
            (0, true) => Ok(grad.clone()),
            (0, false) => put(&self.listed, false, &grad, &lists, &zero_beside(&grad)?),
            (_, true) => pick(&self.listed, &grad, &lists),
            (_, false) => self.of_the_last(&grad, &lists),
        })
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn may_refuse(&self, operand: usize, operands: &[Meta]) -> bool {
        operand > 0 && operand + 1 < operands.len()
    }
}

impl Put {
    /// The gradient of the values that stayed.
    fn of_the_last(&self, grad: &DTensor, lists: &[DTensor]) -> Result<DTensor> {
        let picked = pick(&self.listed, grad, lists)?;
        let dims: Vec<usize> = dims_of(&self.listed).collect();
        let others = grad.n_dims() - dims.len();
        if dims.is_empty() {
            return Ok(picked);
        }
        let before = n_before(&self.listed);
        let common = &picked.shape()[before..picked.n_dims() - (others - before)];
        let mut shape: Vec<isize> = common.iter().map(|size| size.cast_signed()).collect();
        let numbers = last::counted(grad, common.iter().product())?.reshape(&shape)?;
        let listed = Listed::from_elem(true, dims.len());
        let written = put(&listed, false, &last::places(grad, &dims)?, lists, &numbers)?;
        // Beside the dims that come after those of the lists.
        shape.extend(std::iter::repeat_n(1, others - before));
        last::of_the_last(&picked, &numbers, &pick(&listed, &written, lists)?, &shape)
    }
}

/// Picks by lists that have been found.
fn pick(listed: &Listed, x: &DTensor, lists: &[DTensor]) -> Result<DTensor> {
    let operands: Vec<&DTensor> = [x].into_iter().chain(lists).collect();
    call_one(&Pick { listed: listed.clone() }, &operands)
}

/// Writes by lists that have been found.
fn put(
    listed: &Listed,
    accumulate: bool,
    x: &DTensor,
    lists: &[DTensor],
    values: &DTensor,
) -> Result<DTensor> {
    let operands: Vec<&DTensor> = [x].into_iter().chain(lists).chain([values]).collect();
    call_one(&Put { listed: listed.clone(), accumulate }, &operands)
}

/// The lists, which are the operands after the first.
fn lists_of(backward: &Backward<'_>, n: usize) -> Result<Vec<DTensor>> {
    (1..=n).map(|operand| backward.operand(operand)).collect()
}

/// For every dim of what lists name of a tensor, the dim of the tensor; `None` for those of the lists.
fn requested_dims(listed: &Listed, n_dims: usize, n_requested: usize) -> Vec<Option<usize>> {
    let mut dims: Vec<Option<usize>> =
        (0..n_dims).filter(|dim| !is_listed(listed, *dim)).map(Some).collect();
    let (before, n_common) = (n_before(listed), n_requested - dims.len());
    dims.splice(before..before, std::iter::repeat_n(None, n_common));
    dims
}

/// The names of dims in the rules of both.
struct Names {
    /// Of the tensor and the lists.
    operands: Vec<String>,
    /// Of what the lists name together.
    request: Vec<String>,
    /// Its sizes.
    sizes: Vec<usize>,
    /// Of the dims of the lists.
    common: Vec<String>,
}

impl Names {
    fn of(listed: &Listed, operands: &[Meta]) -> Names {
        let (x, lists) = (&operands[0], &operands[1..]);
        let n_common = lists.iter().map(Meta::n_dims).max().unwrap_or(0);
        let mut sizes = vec![1; n_common];
        for list in lists {
            for (whole, size) in sizes.iter_mut().rev().zip(list.shape.iter().rev()) {
                *whole = if *whole == 1 { *size } else { *whole };
            }
        }
        let common = letters(LIST, n_common);
        let tensor = letters(TENSOR, x.n_dims());
        let mut names = vec![tensor.join(" ")];
        for list in lists {
            let first = n_common - list.n_dims();
            let own = list.shape.iter().enumerate().map(|(dim, size)| match *size {
                size if size == sizes[first + dim] => letter(LIST, first + dim),
                _ => "1".to_string(),
            });
            names.push(own.collect::<Vec<_>>().join(" "));
        }
        let before = n_before(listed);
        let others = (0..x.n_dims()).filter(|dim| !is_listed(listed, *dim));
        let mut request: Vec<(String, usize)> =
            others.map(|dim| (tensor[dim].clone(), x.shape[dim])).collect();
        let of_lists = common.iter().cloned().zip(sizes);
        request.splice(before..before, of_lists);
        let (request, sizes) = request.into_iter().unzip();
        Names { operands: names, request, sizes, common }
    }
}

/// The same rule, but this letter is never cut.
fn mark_whole(text: &str, letter: &str) -> String {
    let mark = |word: &str| match word.strip_suffix(',') {
        Some(name) if name == letter => format!("{name}!,"),
        None if word == letter => format!("{word}!"),
        _ => word.to_string(),
    };
    text.split(' ').map(mark).collect::<Vec<_>>().join(" ")
}

/// Checked numbers of the whole dim, in the shape of the list.
fn numbers_of(
    op: &'static str,
    list: &Tensor,
    dim: usize,
    size: usize,
) -> Result<Tensor, LocalError> {
    let numbers = numbers(op, list, dim, size, true)?;
    Tensor::from_vec(numbers.iter().map(|number| *number as i64).collect(), list.shape())
}

fn is_listed(listed: &Listed, dim: usize) -> bool {
    listed.get(dim).copied().unwrap_or(false)
}

fn dims_of(listed: &Listed) -> impl Iterator<Item = usize> + '_ {
    listed.iter().enumerate().filter(|(_, listed)| **listed).map(|(dim, _)| dim)
}

/// Whether a part lacks something of a dim that has a list.
fn is_cut(listed: &Listed, whole: &[usize], local: &[usize]) -> bool {
    dims_of(listed).any(|dim| whole[dim] != local[dim])
}

/// How many dims of the tensor come before those of the lists: those before the first list, if the lists are
/// for neighbours, else none.
fn n_before(listed: &Listed) -> usize {
    match (dims_of(listed).next(), dims_of(listed).last()) {
        (Some(first), Some(last)) if last - first + 1 == dims_of(listed).count() => first,
        _ => 0,
    }
}

/// The lists at their dims, as the kernels take them.
fn entries<'a>(listed: &Listed, lists: &[&'a Tensor]) -> Vec<Option<&'a Tensor>> {
    let mut lists = lists.iter().copied();
    listed.iter().map(|listed| if *listed { lists.next() } else { None }).collect()
}

/// The shape of what the lists name of this part.
fn requested(x: &Tensor, listed: &Listed, lists: &[&Tensor]) -> Result<Vec<usize>, LocalError> {
    let lists = lists.iter().map(|list| Tensor::meta(list.shape(), DType::I64));
    let lists = lists.collect::<Result<Vec<_>, _>>()?;
    let x = Tensor::meta(x.shape(), x.dtype())?;
    Ok(x.index(&entries(listed, &lists.iter().collect::<Vec<_>>()))?.shape().to_vec())
}

impl DTensor {
    /// The elements that lists of indices name together, as `x[i0, i1, ...]` in PyTorch and NumPy.
    ///
    /// `indices[d]` belongs to dim `d`; `None`, or an entry that is missing at the end, takes all of a dim.
    /// The lists are broadcast to one shape, which stands in the result where the indexed dims were if these
    /// are neighbours, else in front. A mask (`bool`) stands for as many dims as it has, and for the lists of
    /// where it is true: these are found first, as by [`nonzero`](DTensor::nonzero).
    ///
    /// A tensor that is cut along an indexed dim stays where it is, and the result is a pending sum.
    pub fn index(&self, indices: &[Option<&DTensor>]) -> Result<DTensor> {
        let (listed, lists) = self.lists_of("index", indices)?;
        let operands: Vec<&DTensor> = [self].into_iter().chain(&lists).collect();
        call_one(&Pick { listed }, &operands)
    }

    /// A copy with these values, broadcast, at the elements that [`index`](DTensor::index) would give. The
    /// result is cut as the tensor is: every rank writes what falls into its part.
    ///
    /// With `accumulate` they are added to what is there; without it the last of several values for one
    /// element stays.
    pub fn index_put(
        &self,
        indices: &[Option<&DTensor>],
        values: &DTensor,
        accumulate: bool,
    ) -> Result<DTensor> {
        let (listed, lists) = self.lists_of("index_put", indices)?;
        let operands: Vec<&DTensor> = [self].into_iter().chain(&lists).chain([values]).collect();
        call_one(&Put { listed, accumulate }, &operands)
    }

    /// Lists of numbers only: a mask becomes those of where it is true.
    fn lists_of(
        &self,
        op: &'static str,
        indices: &[Option<&DTensor>],
    ) -> Result<(Listed, Vec<DTensor>)> {
        let (mut listed, mut lists) = (Listed::new(), Vec::new());
        for entry in indices {
            match entry {
                Some(mask) if mask.dtype() == DType::Bool => {
                    let marked = self.shape().get(listed.len()..listed.len() + mask.n_dims());
                    if mask.n_dims() == 0 || marked != Some(mask.shape()) {
                        return Err(LocalError::ShapeMismatch {
                            op,
                            from: mask.shape().to_vec(),
                            to: self.shape().get(listed.len()..).unwrap_or_default().to_vec(),
                            why: "a mask has the sizes of the dims that it stands for",
                        }
                        .into());
                    }
                    listed.extend(std::iter::repeat_n(true, mask.n_dims()));
                    lists.extend(mask.nonzero_lists()?);
                }
                Some(list) => {
                    listed.push(true);
                    lists.push((*list).clone());
                }
                None => listed.push(false),
            }
        }
        Ok((listed, lists))
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "index",
        samples: || {
            let sample = |listed: &[bool], shape: &[usize], lists: &[&[usize]], size| {
                let shapes = [&[shape], lists].concat();
                let op = Pick { listed: listed.into() };
                (1..shapes.len()).fold(Sample::new(op, &shapes), |sample, operand| {
                    sample.with(operand, Index(size))
                })
            };
            vec![
                sample(&[true, true], &[5, 3], &[&[4], &[4]], 3),
                sample(&[false, true], &[3, 5], &[&[2, 2]], 5),
                sample(&[true, false, true], &[3, 4, 3], &[&[2, 1], &[3]], 3),
                sample(&[false, true, true, false], &[2, 3, 3, 2], &[&[4], &[1]], 3),
                sample(&[false], &[3], &[], 1),
            ]
        },
    },
    OpRecord {
        name: "index_put",
        samples: || {
            let sample = |listed: &[bool], accumulate, shapes: &[&[usize]], size| {
                let op = Put { listed: listed.into(), accumulate };
                (1..shapes.len() - 1).fold(Sample::new(op, shapes), |sample, operand| {
                    sample.with(operand, Index(size))
                })
            };
            vec![
                sample(&[true], false, &[&[4, 2], &[5], &[5, 2]], 4),
                sample(&[true], true, &[&[4, 2], &[5], &[5, 2]], 4),
                sample(&[true, true], true, &[&[3, 4], &[5], &[5], &[5]], 3),
                sample(&[false, true], false, &[&[2, 5], &[3], &[]], 5),
                sample(&[true, false, true], true, &[&[3, 2, 4], &[2, 1], &[2], &[2, 1, 2]], 3),
            ]
        },
    },
];
