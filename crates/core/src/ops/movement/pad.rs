//! More elements around a tensor, or fewer.

use dtensor_layout::{
    Layout, Placement, ReduceOp,
    rule::{
        Law::{self, Affine, Increasing, Joint, Moves},
        Rule,
    },
};
use dtensor_local::{LocalError, PadMode, Tensor};
use smallvec::{SmallVec, smallvec};

use super::{grown, padded, runs::Runs};
use crate::{
    DTensor, Error, Result,
    dispatch::call_one,
    exchange::{Run, blank},
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, Value, one},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pad {
    pads: SmallVec<[isize; 4]>,
    mode: Mode,
}

/// A [`PadMode`] that can be a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Mode {
    Constant(Value),
    Reflect,
    Replicate,
    Circular,
}

impl Mode {
    fn of(mode: PadMode) -> Result<Mode> {
        match mode {
            PadMode::Constant(value) => Ok(Mode::Constant(Value(value))),
            PadMode::Reflect => Ok(Mode::Reflect),
            PadMode::Replicate => Ok(Mode::Replicate),
            PadMode::Circular => Ok(Mode::Circular),
            other => Err(Error::Unsupported {
                op: "pad",
                what: format!("{other:?} is not known for distributed tensors").into(),
                way_out: "use a constant, or reflect, replicate or circular",
            }),
        }
    }

    fn kernel(self) -> PadMode {
        match self {
            Mode::Constant(value) => PadMode::Constant(value.0),
            Mode::Reflect => PadMode::Reflect,
            Mode::Replicate => PadMode::Replicate,
            Mode::Circular => PadMode::Circular,
        }
    }

    /// The runs of a dim of this size. The numbers have been checked by the kernel.
    fn runs(self, size: usize, before: isize, after: isize) -> [Run; 3] {
        let (cut, cut_after) = (before.min(0).unsigned_abs(), after.min(0).unsigned_abs());
        let (added, added_after) = (before.max(0).unsigned_abs(), after.max(0).unsigned_abs());
        let left = size.saturating_sub(cut + cut_after);
        let own = Run { to: added..added + left, from: cut, step: 1 };
        let (first, last, step) = match self {
            Mode::Constant(_) => return [Run::whole(0), own, Run::whole(0)],
            Mode::Reflect => (added, size.saturating_sub(2), -1),
            Mode::Replicate => (0, size.saturating_sub(1), 0),
            // What was cut away does not come back from the other end.
            Mode::Circular => (left.saturating_sub(added), cut, 1),
        };
        let end = own.to.end;
        [
            Run { to: 0..added, from: first, step },
            own,
            Run { to: end..end + added_after, from: last, step },
        ]
    }
}

impl Pad {
    fn runs(&self, operand: &Meta) -> Runs {
        let dims = (0..operand.n_dims()).rev().zip(self.pads.chunks_exact(2));
        dims.fold(Runs::still(operand), |runs, (dim, pair)| match *pair {
            [before, after] if before != 0 || after != 0 => {
                let runs = runs.with(dim, self.mode.runs(operand.shape[dim], before, after));
                if before > 0 || after > 0 { runs.with_more(dim) } else { runs }
            }
            _ => runs,
        })
    }

    /// Other values than zeros among the elements: those do not add up to themselves.
    fn laws(&self) -> &'static [Law] {
        let adds = self.pads.iter().any(|pad| *pad > 0);
        match self.mode {
            Mode::Constant(Value(value)) if adds && value.to_f64() != 0.0 => {
                match value.to_f64() == 1.0 {
                    true => &[Affine, Increasing, Joint(ReduceOp::Product)],
                    false => &[Affine, Increasing],
                }
            }
            _ => &[Moves],
        }
    }

    /// A dim of the gradient without what was added: that goes to where it was taken from.
    fn folded(
        &self,
        grad: &DTensor,
        dim: usize,
        size: usize,
        before: isize,
        after: isize,
    ) -> Result<DTensor> {
        let [first, _, last] = self.mode.runs(size, before, after);
        let mut sum = grown(grad, dim, before.saturating_neg(), after.saturating_neg())?;
        for run in [first, last].iter().filter(|run| !run.to.is_empty()) {
            let end = grad.narrow(dim as isize, run.to.start, run.to.len())?;
            let (end, place) = match run.step {
                0 => (end.sum(&[dim as isize], true)?, run.from),
                1 => (end, run.from),
                _ => (end.flip(dim as isize)?, run.from + 1 - run.to.len()),
            };
            let rest = size as isize - (place + end.shape()[dim]) as isize;
            sum = sum.add(&grown(&end, dim, place as isize, rest)?)?;
        }
        Ok(sum)
    }

    /// Whether contributions to such a reduction may be padded.
    fn passes(&self, op: ReduceOp) -> bool {
        match op {
            ReduceOp::Sum => self.laws().contains(&Moves),
            ReduceOp::Product => self.laws() != [Affine, Increasing],
            ReduceOp::Avg | ReduceOp::Max | ReduceOp::Min => true,
        }
    }
}

impl Op for Pad {
    fn name(&self) -> &'static str {
        "pad"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        self.runs(&operands[0]).rule("pad", self.laws())
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].pad(&self.pads, self.mode.kernel()))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.runs(&Meta::of_layout(operands[0])).cross(operands[0])
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let settle = |placement: &Placement| match placement.reduce_op() {
            Some(op) if !self.passes(op) => Placement::Replicate,
            _ => *placement,
        };
        let own = operands[0].placements();
        let placements: Vec<Placement> = own.iter().map(settle).collect();
        let x = match placements == own {
            true => operands[0].clone(),
            false => {
                let settled = operands[0].layout().with_placements(&placements);
                operands[0].redistribute_as("pad", &settled.map_err(Error::layout("pad"))?)?
            }
        };
        let meta = Meta::of_layout(x.layout());
        let shape = &self.infer(std::slice::from_ref(&meta))?[0].shape;
        let padded = self.runs(&meta).run("pad", &x, shape, |part| {
            let part = blank(x.mesh(), part, x.dtype())?;
            match self.mode {
                Mode::Constant(value) => Ok(part.full_like(value.0)?),
                _ => Ok(part),
            }
        })?;
        Ok(smallvec![padded])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (mut grad, meta) = (backward.grad()?, backward.meta(0));
        backward.first(|| {
            if let Mode::Constant(_) = self.mode {
                let pads: Vec<isize> = self.pads.iter().map(|pad| pad.saturating_neg()).collect();
                return padded(&grad, &pads);
            }
            for (dim, pair) in (0..meta.n_dims()).rev().zip(self.pads.chunks_exact(2)) {
                if let [before, after] = *pair {
                    grad = self.folded(&grad, dim, meta.shape[dim], before, after)?;
                }
            }
            Ok(grad)
        })
    }
}

impl DTensor {
    /// With elements added before and after dims, or taken away where a number is negative.
    ///
    /// As in PyTorch the numbers come in pairs (before, after), the first pair for the last dim, the next for
    /// the dim before it; dims without a pair stay. Unlike there, every mode can pad every dim.
    pub fn pad(&self, pads: &[isize], mode: PadMode) -> Result<DTensor> {
        call_one(&Pad { pads: pads.into(), mode: Mode::of(mode)? }, &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "pad",
    samples: || {
        let pad = |pads: &[isize], mode| Pad { pads: pads.into(), mode };
        let constant = |value: f64| Mode::Constant(Value(value.into()));
        vec![
            Sample::new(pad(&[1, 2], constant(0.0)), &[&[3, 5]]),
            Sample::new(pad(&[0, 0, 0, 2], constant(0.0)), &[&[5, 2]]),
            Sample::new(pad(&[0, 0, 2, -1], constant(1.5)), &[&[5, 2]]),
            Sample::new(pad(&[-1, 1, 1, 0], constant(1.0)), &[&[3, 4]]),
            Sample::new(pad(&[2, 3], Mode::Reflect), &[&[2, 5]]),
            Sample::new(pad(&[0, 0, 1, 2], Mode::Replicate), &[&[3, 2]]),
            Sample::new(pad(&[3, -1], Mode::Circular), &[&[5]]),
            Sample::new(pad(&[-2, 2], Mode::Circular), &[&[5]]),
            Sample::new(pad(&[-1, 3], Mode::Reflect), &[&[5]]),
        ]
    },
}];
