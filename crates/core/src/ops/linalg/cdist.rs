use dtensor_layout::{DType, Layout, ReduceOp, rule::Rule};
use dtensor_local::{LocalError, Scalar, Tensor};
use smallvec::smallvec;

use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{LocalContext, Meta, Number, Op, OpRecord, Outputs, Sample, one},
    ops::{
        letters::{cuts, rule},
        reduce::{reduction_of_norms, root},
    },
};

/// The distances between all pairs of rows. Rows may be cut; along them, it is a norm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cdist(Number);

/// The sums of the powers of differences, as `f64`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Powers(Number);

impl Op for Cdist {
    fn name(&self) -> &'static str {
        "cdist"
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        match reduction_of_norms(self.0.0) {
            Some(by) => letters(by),
            None => Ok(Rule::of("... m d!, ... n d! -> ... m n", &[])),
        }
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].cdist(x[1], self.0.0))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        let mut widths = operands.iter().map(|layout| (layout, layout.n_dims().saturating_sub(1)));
        reduction_of_norms(self.0.0).is_none()
            && widths.any(|(layout, width)| cuts(layout, |dim| dim == width))
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let powers = call_one(&Powers(self.0), operands)?;
        Ok(smallvec![root(&powers, self.0.0, operands[0].dtype())?])
    }
}

impl Op for Powers {
    fn name(&self) -> &'static str {
        "cdist"
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        letters(ReduceOp::Sum)
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let distances = x[0].cdist(x[1], self.0.0)?;
        one(distances.to_dtype(DType::F64)?.pow_scalar(Scalar::Float(self.0.0)))
    }
}

fn letters(by: ReduceOp) -> Result<Rule> {
    rule("cdist", &format!("... m d, ... n d -> ... m n @{by}"), &[])
}

impl DTensor {
    /// The distances between every row of `self` and every row of `other`, as the norm `p` of their
    /// difference: `[.., m, d]` and `[.., n, d]` give `[.., m, n]`. The batch dims are broadcast.
    pub fn cdist(&self, other: &DTensor, p: f64) -> Result<DTensor> {
        call_one(&Cdist(Number(p)), &[self, other])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "cdist",
    samples: || {
        let sample = |p, shapes: &[&[usize]]| Sample::new(Cdist(Number(p)), shapes);
        vec![
            sample(2.0, &[&[4, 3], &[5, 3]]),
            sample(1.0, &[&[2, 3, 3], &[5, 3]]),
            sample(f64::INFINITY, &[&[4, 5], &[3, 5]]),
            sample(0.0, &[&[4, 3], &[2, 3]]),
            sample(2.5, &[&[4, 5], &[3, 5]]),
        ]
    },
}];
