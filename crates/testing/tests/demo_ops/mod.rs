//! A handful of ops in plain loops, for the oracle to be tried on.
#![allow(clippy::unwrap_used)] // Part of a test: an unwrap that fails is a test that fails.

use dtensor_layout::{
    ReduceOp,
    rule::{Law, Law::*, Rule},
};
use dtensor_testing::{
    dense::{Dense, broadcast_shape},
    oracle::{LocalContext, OracleOp, Sample, Values},
};

pub const OPS: &[&dyn OracleOp] = &[
    &NEG,
    &EXP,
    &RELU,
    &ABS,
    &ADD,
    &SUB,
    &MUL,
    &MAXIMUM,
    &MatMul,
    &Reduce { dims: &[1], op: ReduceOp::Sum },
    &Reduce { dims: &[0], op: ReduceOp::Avg },
    &Reduce { dims: &[1], op: ReduceOp::Max },
    &Reduce { dims: &[0, 1], op: ReduceOp::Min },
    &Reduce { dims: &[1], op: ReduceOp::Product },
    &Softmax,
    &Embedding,
    &NormGrad,
    &Reshape { from: &[8, 3], to: &[2, 4, 3] },
    &Reshape { from: &[4, 6, 5], to: &[6, 4, 5] },
    &Reshape { from: &[1, 14], to: &[7, 2] },
];

/// `f(x)`, element by element.
pub struct Unary {
    pub name: &'static str,
    pub laws: &'static [Law],
    pub f: fn(f64) -> f64,
}

pub const NEG: Unary = Unary { name: "neg", laws: &[Linear, Decreasing], f: |x| -x };
pub const EXP: Unary = Unary { name: "exp", laws: &[Increasing], f: f64::exp };
pub const RELU: Unary = Unary { name: "relu", laws: &[Increasing], f: |x| x.max(0.0) };
pub const ABS: Unary = Unary { name: "abs", laws: &[Joint(ReduceOp::Product)], f: f64::abs };

impl OracleOp for Unary {
    fn name(&self) -> String {
        self.name.to_string()
    }
    fn rule(&self, _: &[&[usize]]) -> Rule {
        Rule::of("... -> ...", self.laws)
    }
    fn eval(&self, x: &[Dense], _: &LocalContext) -> Result<Vec<Dense>, String> {
        Ok(vec![x[0].map(self.f)])
    }
    fn samples(&self) -> Vec<Sample> {
        vec![Sample::of(&[&[5, 2]]), Sample::of(&[&[1, 3]]), Sample::of(&[&[]])]
    }
}

/// `f(x, y)`, element by element, broadcast.
pub struct Binary {
    pub name: &'static str,
    pub laws: &'static [Law],
    pub f: fn(f64, f64) -> f64,
}

pub const ADD: Binary =
    Binary { name: "add", laws: &[Linear, Affine, Increasing], f: |x, y| x + y };
pub const SUB: Binary = Binary {
    name: "sub",
    laws: &[Linear, Affine, IncreasingIn(0), DecreasingIn(1)],
    f: |x, y| x - y,
};
pub const MUL: Binary =
    Binary { name: "mul", laws: &[Multilinear, Joint(ReduceOp::Product)], f: |x, y| x * y };
pub const MAXIMUM: Binary =
    Binary { name: "maximum", laws: &[Increasing, Joint(ReduceOp::Max)], f: f64::max };

impl OracleOp for Binary {
    fn name(&self) -> String {
        self.name.to_string()
    }
    fn rule(&self, _: &[&[usize]]) -> Rule {
        Rule::of("..., ... -> ...", self.laws)
    }
    fn eval(&self, x: &[Dense], _: &LocalContext) -> Result<Vec<Dense>, String> {
        Ok(vec![x[0].zip(&x[1], self.f)?])
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            Sample::of(&[&[5, 2], &[5, 2]]),
            Sample::of(&[&[4, 3], &[3]]),
            Sample::of(&[&[4, 1], &[4, 3]]),
        ]
    }
}

pub struct MatMul;

impl OracleOp for MatMul {
    fn name(&self) -> String {
        "matmul".to_string()
    }
    fn rule(&self, _: &[&[usize]]) -> Rule {
        Rule::of("... m k, ... k n -> ... m n", &[Multilinear])
    }
    fn eval(&self, x: &[Dense], _: &LocalContext) -> Result<Vec<Dense>, String> {
        let (a, b) = (x[0].shape(), x[1].shape());
        let (a_lead, b_lead) = (&a[..a.len() - 2], &b[..b.len() - 2]);
        let (m, k, n) = (a[a.len() - 2], a[a.len() - 1], b[b.len() - 1]);
        if b[b.len() - 2] != k {
            return Err(format!("{a:?} times {b:?}"));
        }
        let mut shape = broadcast_shape(a_lead, b_lead)?;
        shape.extend([m, n]);
        let product = Dense::from_fn(&shape, |index| {
            let lead = &index[..index.len() - 2];
            let (i, j) = (index[index.len() - 2], index[index.len() - 1]);
            // The last two dims are never broadcast, so indexing them as leading dims are is exact.
            let a = |l| x[0].at_broadcast(&[lead, &[i, l]].concat());
            let b = |l| x[1].at_broadcast(&[lead, &[l, j]].concat());
            (0..k).map(|l| a(l) * b(l)).sum()
        });
        Ok(vec![product])
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            Sample::of(&[&[5, 4], &[4, 3]]),
            Sample::of(&[&[2, 3, 4], &[2, 4, 5]]),
            Sample::of(&[&[2, 3, 4], &[4, 5]]),
        ]
    }
}

/// A reduction of some dims, which vanish.
pub struct Reduce {
    pub dims: &'static [usize],
    pub op: ReduceOp,
}

impl OracleOp for Reduce {
    fn name(&self) -> String {
        format!("{}{:?}", self.op, self.dims)
    }
    fn rule(&self, shapes: &[&[usize]]) -> Rule {
        Rule::reduce(shapes[0].len(), self.dims, false, self.op).unwrap()
    }
    fn eval(&self, x: &[Dense], _: &LocalContext) -> Result<Vec<Dense>, String> {
        let (init, f): (f64, fn(f64, f64) -> f64) = match self.op {
            ReduceOp::Sum | ReduceOp::Avg => (0.0, |a, b| a + b),
            ReduceOp::Max => (f64::NEG_INFINITY, f64::max),
            ReduceOp::Min => (f64::INFINITY, f64::min),
            ReduceOp::Product => (1.0, |a, b| a * b),
        };
        let reduced = self.dims.iter().rev().fold(x[0].clone(), |x, dim| x.fold(*dim, init, f));
        let n: usize = self.dims.iter().map(|dim| x[0].shape()[*dim]).product();
        Ok(vec![match self.op {
            ReduceOp::Avg => reduced.map(|sum| sum / n as f64),
            _ => reduced,
        }])
    }
    fn samples(&self) -> Vec<Sample> {
        vec![Sample::of(&[&[6, 4]]), Sample::of(&[&[4, 5, 2]]), Sample::of(&[&[12, 3]])]
    }
}

/// Softmax of the last dim, which must stay whole.
pub struct Softmax;

impl OracleOp for Softmax {
    fn name(&self) -> String {
        "softmax".to_string()
    }
    fn rule(&self, _: &[&[usize]]) -> Rule {
        Rule::of("... d! -> ... d!", &[])
    }
    fn eval(&self, x: &[Dense], _: &LocalContext) -> Result<Vec<Dense>, String> {
        let last = x[0].shape().len() - 1;
        let exp = x[0].map(f64::exp);
        let sum = exp.fold(last, 0.0, |a, b| a + b);
        let kept = [sum.shape(), &[1]].concat();
        Ok(vec![exp.zip(&sum.reshape(&kept)?, |x, sum| x / sum)?])
    }
    fn samples(&self) -> Vec<Sample> {
        vec![Sample::of(&[&[5, 4]]), Sample::of(&[&[2, 3, 4]])]
    }
}

/// Rows of a table. Cut along its rows, a rank contributes those that it has: the kernel needs to
/// know where its rows begin.
pub struct Embedding;

impl OracleOp for Embedding {
    fn name(&self) -> String {
        "embedding".to_string()
    }
    fn rule(&self, _: &[&[usize]]) -> Rule {
        Rule::of("v e, ... -> ... e", &[MovesIn(0)])
    }
    fn eval(&self, x: &[Dense], context: &LocalContext) -> Result<Vec<Dense>, String> {
        let (rows, columns) = (x[0].shape()[0], x[0].shape()[1]);
        let n_rows = context.global_shape(0)[0];
        let first = context.local_offset(0)[0];
        let is_row = |row: f64| row.fract() == 0.0 && (0.0..n_rows as f64).contains(&row);
        if !x[1].data().iter().all(|row| is_row(*row)) {
            return Err("an index is no row of the table".to_string());
        }
        let shape = [x[1].shape(), &[columns]].concat();
        Ok(vec![Dense::from_fn(&shape, |index| {
            let (column, at) = index.split_last().unwrap();
            let row = x[1].at(at) as usize;
            match row.checked_sub(first) {
                Some(local) if local < rows => x[0].at(&[local, *column]),
                _ => 0.0,
            }
        })])
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            Sample::of(&[&[7, 4], &[5]]).with(1, Values::Index(7)),
            Sample::of(&[&[3, 2], &[2, 4]]).with(1, Values::Index(3)),
        ]
    }
}

/// The backward of a scaling, `(g, x, w) -> (dx, dw)`: one letter cuts one result and reduces the
/// other.
pub struct NormGrad;

impl OracleOp for NormGrad {
    fn name(&self) -> String {
        "norm_grad".to_string()
    }
    fn rule(&self, _: &[&[usize]]) -> Rule {
        Rule::of("b n, b n, n -> b n, n", &[LinearIn(0)])
    }
    fn eval(&self, x: &[Dense], _: &LocalContext) -> Result<Vec<Dense>, String> {
        if x[0].shape() != x[1].shape() || x[0].shape()[1..] != *x[2].shape() {
            return Err("shapes differ".to_string());
        }
        let dx = x[0].zip(&x[2], |g, w| g * w)?;
        let dw = x[0].zip(&x[1], |g, x| g * x)?.fold(0, 0.0, |a, b| a + b);
        Ok(vec![dx, dw])
    }
    fn samples(&self) -> Vec<Sample> {
        vec![Sample::of(&[&[5, 3], &[5, 3], &[3]])]
    }
}

/// A reshape. Its local kernel is a reshape to the local shape.
pub struct Reshape {
    pub from: &'static [usize],
    pub to: &'static [usize],
}

impl OracleOp for Reshape {
    fn name(&self) -> String {
        format!("reshape{:?}", self.to)
    }
    fn rule(&self, shapes: &[&[usize]]) -> Rule {
        Rule::reshape(shapes[0], self.to).unwrap()
    }
    fn eval(&self, x: &[Dense], context: &LocalContext) -> Result<Vec<Dense>, String> {
        Ok(vec![x[0].reshape(&context.result_shape(0, self.to)?)?])
    }
    fn samples(&self) -> Vec<Sample> {
        vec![Sample::of(&[self.from])]
    }
}
