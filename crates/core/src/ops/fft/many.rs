//! Transforms over several dims.
//!
//! Where one of them is cut, they are done one after the other: those that are whole first, then the cut is
//! moved to a dim that is done.

use dtensor_layout::{Layout, rule::Rule};
use dtensor_local::{
    LocalError, Tensor,
    fft::{self, Norm},
};
use smallvec::{SmallVec, smallvec};

use super::{
    kind::{Kind, adjoint, transform_rule},
    one::One,
};
use crate::{
    DTensor, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
    ops::letters::cuts,
};

/// A transform over several dims; of two, if its name says so.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Many {
    kind: Kind,
    two: bool,
    sizes: Option<SmallVec<[usize; 4]>>,
    dims: Option<SmallVec<[isize; 4]>>,
    norm: Norm,
}

impl Op for Many {
    fn name(&self) -> &'static str {
        match (self.kind, self.two) {
            (Kind::Forward, false) => "fftn",
            (Kind::Inverse, false) => "ifftn",
            (Kind::Real, false) => "rfftn",
            (Kind::InverseReal, false) => "irfftn",
            (Kind::Forward, true) => "fft2",
            (Kind::Inverse, true) => "ifft2",
            (Kind::Real, true) => "rfft2",
            (Kind::InverseReal, true) => "irfft2",
        }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let dims: Vec<usize> = self.steps(&operands[0])?.iter().map(|(dim, _)| *dim).collect();
        transform_rule(self.name(), self.kind, &operands[0], &dims)
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let (x, dims, norm) = (x[0], self.dims.as_deref(), self.norm);
        if let (true, Some([a, b])) = (self.two, dims) {
            let dims = [*a, *b];
            let sizes = self.sizes.as_deref().and_then(|sizes| <[usize; 2]>::try_from(sizes).ok());
            return one(match self.kind {
                Kind::Forward => fft::fft2(x, sizes, dims, norm),
                Kind::Inverse => fft::ifft2(x, sizes, dims, norm),
                Kind::Real => fft::rfft2(x, sizes, dims, norm),
                Kind::InverseReal => fft::irfft2(x, sizes, dims, norm),
            });
        }
        let sizes = self.sizes.as_deref();
        one(match self.kind {
            Kind::Forward => fft::fftn(x, sizes, dims, norm),
            Kind::Inverse => fft::ifftn(x, sizes, dims, norm),
            Kind::Real => fft::rfftn(x, sizes, dims, norm),
            Kind::InverseReal => fft::irfftn(x, sizes, dims, norm),
        })
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        let steps = self.steps(&Meta::of_layout(operands[0]));
        let dims = |steps: &Vec<(usize, _)>| steps.iter().map(|(dim, _)| *dim).collect::<Vec<_>>();
        steps.is_ok_and(|steps| {
            let dims = dims(&steps);
            steps.len() > 1 && cuts(operands[0], |dim| dims.contains(&dim))
        })
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let layout = operands[0].layout();
        let mut steps = self.steps(&Meta::of_layout(layout))?;
        // The one between real and complex numbers is the last that was named.
        let real = match self.kind {
            Kind::Real | Kind::InverseReal => steps.pop(),
            Kind::Forward | Kind::Inverse => None,
        };
        // Stable: in the order of the kernel, the last first.
        steps.reverse();
        steps.sort_by_key(|(dim, _)| cuts(layout, |one| one == *dim));
        let direction = match self.kind {
            Kind::Forward | Kind::Real => Kind::Forward,
            Kind::Inverse | Kind::InverseReal => Kind::Inverse,
        };
        let mut all: Vec<_> = steps.into_iter().map(|step| (direction, step)).collect();
        if let Some(real) = real {
            let at = if self.kind == Kind::Real { 0 } else { all.len() };
            all.insert(at, (self.kind, real));
        }
        let mut x = operands[0].clone();
        for (kind, (dim, n)) in all {
            x = call_one(&One { kind, n, dim: dim as isize, norm: self.norm }, &[&x])?;
        }
        Ok(smallvec![x])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let steps = self.steps(&backward.meta(0))?;
        let dims: Vec<usize> = steps.iter().map(|(dim, _)| *dim).collect();
        let size = steps.last().and_then(|(_, size)| *size);
        adjoint(backward, self.kind, &dims, size, self.norm)
    }
}

impl Many {
    /// The dims and sizes that are meant: by default all dims, or the last ones if there are sizes.
    fn steps(&self, operand: &Meta) -> Result<Vec<(usize, Option<usize>)>> {
        let n_dims = self.kind.shape(operand).len();
        let dims = match (&self.dims, &self.sizes) {
            (Some(dims), _) => self.kind.dims(self.name(), operand, dims)?,
            (None, Some(sizes)) => (n_dims.saturating_sub(sizes.len())..n_dims).collect(),
            (None, None) => (0..n_dims).collect(),
        };
        let size = |number: usize| self.sizes.as_ref().and_then(|sizes| sizes.get(number).copied());
        Ok(dims.into_iter().enumerate().map(|(number, dim)| (dim, size(number))).collect())
    }
}

/// Rows `method method_of_two kind;`.
macro_rules! transforms {
    ($($(#[$doc:meta])* $name:ident $(#[$doc_of_two:meta])* $name_of_two:ident $kind:ident;)*) => {
        impl DTensor {
            $(
                $(#[$doc])*
                pub fn $name(
                    &self,
                    sizes: Option<&[usize]>,
                    dims: Option<&[isize]>,
                    norm: Norm,
                ) -> Result<DTensor> {
                    let (sizes, dims) = (sizes.map(SmallVec::from), dims.map(SmallVec::from));
                    call_one(&Many { kind: Kind::$kind, two: false, sizes, dims, norm }, &[self])
                }

                $(#[$doc_of_two])*
                pub fn $name_of_two(
                    &self,
                    sizes: Option<[usize; 2]>,
                    dims: [isize; 2],
                    norm: Norm,
                ) -> Result<DTensor> {
                    let sizes = sizes.map(|sizes| SmallVec::from(&sizes[..]));
                    let dims = Some(SmallVec::from(&dims[..]));
                    call_one(&Many { kind: Kind::$kind, two: true, sizes, dims, norm }, &[self])
                }
            )*
        }

        pub(super) const RECORDS: &[OpRecord] = &[$(
            OpRecord { name: stringify!($name), samples: || samples(Kind::$kind) },
            OpRecord { name: stringify!($name_of_two), samples: || samples_of_two(Kind::$kind) },
        )*];
    };
}

transforms! {
    /// [`fft`](DTensor::fft) over several dims of a complex tensor: by default all, or if `sizes` are given,
    /// the last ones.
    fftn
    /// [`fftn`](DTensor::fftn) over two dims, mostly `[-2, -1]`.
    fft2 Forward;
    /// The inverse of [`fftn`](DTensor::fftn).
    ifftn
    /// [`ifftn`](DTensor::ifftn) over two dims, mostly `[-2, -1]`.
    ifft2 Inverse;
    /// As [`fftn`](DTensor::fftn), of a real tensor: half of the spectrum in the last of the dims.
    rfftn
    /// [`rfftn`](DTensor::rfftn) over two dims, mostly `[-2, -1]`.
    rfft2 Real;
    /// The inverse of [`rfftn`](DTensor::rfftn). The size of the last of the dims is that of the real values.
    irfftn
    /// [`irfftn`](DTensor::irfftn) over two dims, mostly `[-2, -1]`.
    irfft2 InverseReal;
}

fn samples(kind: Kind) -> Vec<Sample> {
    let op = |sizes: Option<&[usize]>, dims: Option<&[isize]>| Many {
        kind,
        two: false,
        sizes: sizes.map(SmallVec::from),
        dims: dims.map(SmallVec::from),
        norm: Norm::Ortho,
    };
    let (three, two): (&[usize], &[usize]) = match kind {
        Kind::Real => (&[3, 2, 4], &[4, 3]),
        _ => (&[3, 2, 4, 2], &[4, 3, 2]),
    };
    vec![
        Sample::new(op(None, Some(&[2, 0])), &[three]),
        Sample::new(op(None, None), &[two]),
        Sample::new(op(Some(&[3]), None), &[two]),
    ]
}

fn samples_of_two(kind: Kind) -> Vec<Sample> {
    let op = |sizes: Option<[usize; 2]>, dims: [isize; 2]| Many {
        kind,
        two: true,
        sizes: sizes.map(|sizes| SmallVec::from(&sizes[..])),
        dims: Some(SmallVec::from(&dims[..])),
        norm: Norm::Backward,
    };
    let shape: &[usize] = if kind == Kind::Real { &[5, 3] } else { &[5, 3, 2] };
    vec![Sample::new(op(None, [-2, -1]), &[shape]), Sample::new(op(Some([4, 2]), [0, 1]), &[shape])]
}
