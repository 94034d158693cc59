//! The four kinds of transforms, and their rule.

use dtensor_layout::rule::Rule;

use crate::{
    Result,
    op::Meta,
    ops::{
        letters::{letter, rule},
        reduce::normal_dims,
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Complex to complex.
    Forward,
    /// Complex to complex.
    Inverse,
    /// Real to half of the spectrum.
    Real,
    /// Half of the spectrum to real.
    InverseReal,
}

impl Kind {
    /// The shape of an operand without the dim of real and imaginary part.
    pub(super) fn shape(self, operand: &Meta) -> &[usize] {
        match (self, operand.shape.split_last()) {
            (Kind::Real, _) | (_, None) => &operand.shape,
            (_, Some((_, shape))) => shape,
        }
    }

    /// The dims, counted from the first.
    pub(super) fn dims(
        self,
        op: &'static str,
        operand: &Meta,
        dims: &[isize],
    ) -> Result<Vec<usize>> {
        Ok(normal_dims(op, dims, self.shape(operand))?)
    }
}

/// The rule of a transform over these dims: they are whole, and it is linear.
pub(super) fn transform_rule(
    op: &'static str,
    kind: Kind,
    operand: &Meta,
    dims: &[usize],
) -> Result<Rule> {
    let n_dims = kind.shape(operand).len();
    let parts = letter(2 * n_dims) + "!";
    let (mut from, mut to) = (Vec::new(), Vec::new());
    for dim in 0..n_dims {
        let is_whole = dims.contains(&dim);
        from.push(letter(dim) + if is_whole { "!" } else { "" });
        // A dim that is transformed may get another size, so it gets another letter.
        to.push(if is_whole { letter(n_dims + dim) + "!" } else { letter(dim) });
    }
    if kind != Kind::Real {
        from.push(parts.clone());
    }
    if kind != Kind::InverseReal {
        to.push(parts);
    }
    rule(op, &format!("{} -> {} | Linear", from.join(" "), to.join(" ")), &[])
}
