//! What may stand beside a distributed tensor.

use std::borrow::Cow;

use dtensor_layout::Layout;
use dtensor_local::{Scalar, Tensor};

use crate::{DTensor, Error, Result, scope};

/// The second operand of an operation: a distributed tensor, a number, or, within
/// [`implicit_replication`](crate::implicit_replication), a plain tensor.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// A distributed tensor.
    Tensor(&'a DTensor),
    /// A tensor that is the same on every rank.
    Plain(&'a Tensor),
    /// A number.
    Number(Scalar),
}

impl<'a> Operand<'a> {
    /// A tensor on the mesh of `first`, or a number.
    #[inline]
    pub(crate) fn beside(
        self,
        op: &'static str,
        first: &DTensor,
    ) -> Result<Result<Cow<'a, DTensor>, Scalar>> {
        match self {
            Operand::Tensor(tensor) => Ok(Ok(Cow::Borrowed(tensor))),
            Operand::Number(number) => Ok(Err(number)),
            Operand::Plain(tensor) => {
                replicated(op, tensor, first, 1).map(|own| Ok(Cow::Owned(own)))
            }
        }
    }
}

/// A plain tensor as a copy on every rank, if the scope says that it is one.
pub(crate) fn replicated(
    op: &'static str,
    plain: &Tensor,
    beside: &DTensor,
    operand: usize,
) -> Result<DTensor> {
    if !scope::replicates_plain() {
        return Err(Error::PlainOperand { op, operand });
    }
    let mesh = beside.mesh();
    let layout = Layout::replicated(plain.shape(), plain.dtype(), mesh.mesh());
    let local = match (mesh.coord(), mesh.is_fake()) {
        (None, _) => Tensor::empty(&[0], plain.dtype())?,
        (Some(_), true) => Tensor::meta(plain.shape(), plain.dtype())?,
        (Some(_), false) => plain.clone(),
    };
    Ok(DTensor::from_parts(local, layout.map_err(Error::layout(op))?, mesh.clone()))
}

impl<'a> From<&'a DTensor> for Operand<'a> {
    #[inline]
    fn from(tensor: &'a DTensor) -> Operand<'a> {
        Operand::Tensor(tensor)
    }
}

impl<'a> From<&'a Tensor> for Operand<'a> {
    fn from(tensor: &'a Tensor) -> Operand<'a> {
        Operand::Plain(tensor)
    }
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl From<$type> for Operand<'_> {
            fn from(number: $type) -> Self {
                Operand::Number(number.into())
            }
        }
    )*};
}

numbers! { f64 f32 i64 i32 bool Scalar }
