//! One tensor to several.

use dtensor_layout::{
    Layout,
    rule::{Law::Moves, Rule},
};
use dtensor_local::{LocalError, Tensor};
use smallvec::SmallVec;

use super::{cuts, grown, letter, letters, rule};
use crate::{
    DTensor, Error, Result,
    dispatch::call,
    exchange::{Run, Source, Traffic, Want, blank, held_by, in_ranges, part_of},
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample},
};

/// Consecutive stretches of a dim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Split {
    lengths: SmallVec<[usize; 4]>,
    dim: isize,
}

impl Op for Split {
    fn name(&self) -> &'static str {
        "split"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (n_dims, dim) = (operands[0].n_dims(), operands[0].dim("split", self.dim)?);
        if self.lengths.len() == 1 {
            return rule("split", "... -> ...", &[Moves]);
        }
        let from = letters(0..n_dims, |other| other == dim).join(" ");
        let part = |number: usize| {
            let mut dims = letters(0..n_dims, |_| false);
            dims[dim] = format!("{}!", letter(n_dims + number));
            dims.join(" ")
        };
        let to: Vec<String> = (0..self.lengths.len()).map(part).collect();
        rule("split", &format!("{from} -> {}", to.join(", ")), &[Moves])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        // The only stretch is all that there is of the dim, here as anywhere.
        match (&*self.lengths, context.operand(0)) {
            ([_], Some(_)) => Ok([x[0].clone()].into()),
            _ => x[0].split(&self.lengths, self.dim).map(Outputs::from),
        }
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        let dim = Meta::of_layout(operands[0]).dim("split", self.dim);
        self.lengths.len() > 1 && dim.is_ok_and(|dim| cuts(operands[0], dim))
    }

    /// All stretches in one call, each of them cut again.
    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let x = in_ranges("split", operands[0])?;
        let meta = Meta::of_layout(x.layout());
        let dim = meta.dim("split", self.dim)?;
        let layouts = self.infer(std::slice::from_ref(&meta))?;
        let layouts = layouts.iter().map(|part| x.layout().with_shape(&part.shape));
        let layouts: Vec<Layout> =
            layouts.collect::<Result<_, _>>().map_err(Error::layout("split"))?;
        let mut start = 0;
        let runs = layouts.iter().map(|layout| {
            let shape = layout.global_shape();
            let mut runs: Vec<Vec<Run>> =
                shape.iter().map(|size| vec![Run::whole(*size)]).collect();
            runs[dim] = vec![Run::of(start..start + shape[dim])];
            start += shape[dim];
            runs
        });
        let runs: Vec<Vec<Vec<Run>>> = runs.collect();
        let axes: Vec<usize> = x.layout().order().cuts(dim).iter().map(|cut| cut.axis).collect();
        let held = |coord: &[usize]| held_by(x.layout(), coord);
        let wanted = |coord: &[usize]| {
            let parts = layouts.iter().zip(&runs).enumerate();
            parts
                .map(|(into, (layout, runs))| Want { into, runs: part_of(layout, coord, runs) })
                .collect()
        };
        let source = Source { local: x.local(), axes: &axes, held: &held, wanted: &wanted };
        let traffic = Traffic { op: "split", mesh: x.mesh(), sources: vec![source] };
        let into = layouts.iter().map(|layout| match x.mesh().coord() {
            Some(coord) => blank(x.mesh(), &layout.local_shape(coord), x.dtype()),
            None => Ok(Tensor::empty(&[0], x.dtype())?),
        });
        let parts = traffic.run(into.collect::<Result<_>>()?)?;
        let placed = parts.into_iter().zip(layouts);
        Ok(placed
            .map(|(local, layout)| DTensor::from_parts(local, layout, x.mesh().clone()))
            .collect())
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let dim = backward.meta(0).dim("split", self.dim)?;
        let with_gradient: Vec<usize> =
            (0..self.lengths.len()).filter(|part| backward.has_grad(*part)).collect();
        backward.first(|| match with_gradient[..] {
            [part] => {
                let before: usize = self.lengths[..part].iter().sum();
                let after: usize = self.lengths[part + 1..].iter().sum();
                grown(&backward.grad_of(part)?, dim, before as isize, after as isize)
            }
            _ => {
                let parts = (0..self.lengths.len()).map(|part| backward.grad_of(part));
                let parts = parts.collect::<Result<Vec<DTensor>>>()?;
                DTensor::cat(&parts.iter().collect::<Vec<_>>(), dim as isize)
            }
        })
    }
}

/// Every index of a dim, which disappears.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Unbind {
    dim: isize,
}

impl Op for Unbind {
    fn name(&self) -> &'static str {
        "unbind"
    }

    /// If the dim is cut, cutting another one moves less than having all slices everywhere.
    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let gone = operands[0].dim("unbind", self.dim)?;
        let mut dims = letters(0..operands[0].n_dims(), |dim| dim == gone);
        let from = dims.join(" ");
        dims.remove(gone);
        let to = vec![dims.join(" "); operands[0].shape[gone]].join(", ");
        rule("unbind", &format!("{from} -> {to}"), &[Moves])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let dim = Meta::of(x[0]).dim("unbind", self.dim).unwrap_or(0);
        let local = x[0].shape().get(dim).copied().unwrap_or(1);
        let size = context.global_size(0, dim, local);
        (0..size as isize).map(|index| x[0].select(self.dim, index)).collect()
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let meta = backward.meta(0);
        let dim = meta.dim("unbind", self.dim)?;
        backward.first(|| {
            let parts = (0..meta.shape[dim]).map(|part| backward.grad_of(part));
            let parts = parts.collect::<Result<Vec<DTensor>>>()?;
            DTensor::stack(&parts.iter().collect::<Vec<_>>(), dim as isize)
        })
    }
}

impl DTensor {
    /// Consecutive stretches of a dim, of these lengths, which together are its size. Along a dim that is cut,
    /// each of them is cut again, by one exchange for all.
    pub fn split(&self, lengths: &[usize], dim: isize) -> Result<Vec<DTensor>> {
        if lengths.is_empty() {
            // Right for a dim without indices; the kernel says so.
            Tensor::meta(self.shape(), self.dtype())?.split(lengths, dim)?;
            return Ok(Vec::new());
        }
        Ok(call(&Split { lengths: lengths.into(), dim }, &[self])?.into_vec())
    }

    /// A dim cut into `parts`, as `torch.chunk` cuts: ceil-sized, the last ones short. Parts that would be
    /// empty are there as well, unlike in PyTorch, so that there are as many as asked for.
    pub fn chunk(&self, parts: usize, dim: isize) -> Result<Vec<DTensor>> {
        let normal = Meta::of_layout(self.layout()).dim("chunk", dim)?;
        let chunks = Tensor::meta(self.shape(), self.dtype())?.chunk(parts, dim)?;
        let lengths: Vec<usize> = chunks.iter().map(|chunk| chunk.shape()[normal]).collect();
        self.split(&lengths, dim)
    }

    /// Every index of a dim, as a tensor without that dim.
    pub fn unbind(&self, dim: isize) -> Result<Vec<DTensor>> {
        let normal = Meta::of_layout(self.layout()).dim("unbind", dim)?;
        match self.shape()[normal] {
            0 => Ok(Vec::new()),
            _ => Ok(call(&Unbind { dim }, &[self])?.into_vec()),
        }
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "split",
        samples: || {
            let split = |lengths: &[usize], dim| Split { lengths: lengths.into(), dim };
            vec![
                Sample::new(split(&[3, 4], 0), &[&[7, 2]]),
                Sample::new(split(&[1, 0, 4], -1), &[&[3, 5]]),
                Sample::new(split(&[5], 0), &[&[5]]),
            ]
        },
    },
    OpRecord {
        name: "unbind",
        samples: || {
            vec![
                Sample::new(Unbind { dim: 1 }, &[&[5, 3]]),
                Sample::new(Unbind { dim: 0 }, &[&[3, 2, 2]]),
                Sample::new(Unbind { dim: -1 }, &[&[2]]),
            ]
        },
    },
];
