//! What an operation is.
//!
//! An operation is a small value: its type says what is computed, its fields are the attributes. Everything
//! that is known of it stands in its `impl Op`: name, rule, kernel, and the samples on which every generic
//! test runs. The built-in ones are listed in [`TABLE`](crate::ops::TABLE); an operation of your own implements
//! the same trait, and [`call`](crate::call) runs it.

mod attributes;
mod context;
mod key;
mod record;

use std::{fmt, panic::RefUnwindSafe};

use dtensor_layout::{DType, Layout, rule::Rule};
use dtensor_local::{LocalError, Tensor, normal_dim};
use smallvec::{SmallVec, smallvec};

pub use attributes::{Number, Value};
pub use context::LocalContext;
pub use key::{KeyHasher, OpKey};
pub use record::{OpRecord, Sample, SampleOperand, SampleValues};

pub use crate::autograd::{Backward, Grads, Keep};
use crate::{DTensor, Error, Result};

/// The results of an operation; most have one.
pub type Outputs<T = Tensor> = SmallVec<[T; 1]>;

/// What is known of a tensor before it is computed: its global shape and its dtype.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Size of every dim.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
}

/// An operation with its attributes.
///
/// ```
/// use dtensor::{DTensor, DeviceMesh, LocalError, Placement::Shard, Runner, call, rule::{Law, Rule}};
/// use dtensor::op::{LocalContext, Meta, Op, Outputs};
/// use dtensor::{Result, Tensor};
///
/// /// `x^3`.
/// #[derive(Clone, Debug, PartialEq, Eq, Hash)]
/// struct Cube;
///
/// impl Op for Cube {
///     fn name(&self) -> &'static str {
///         "cube"
///     }
///     fn rule(&self, _: &[Meta]) -> Result<Rule> {
///         Ok(Rule::of("... -> ...", &[Law::Increasing]))
///     }
///     fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
///         Ok([x[0].mul(&x[0].square()?)?].into())
///     }
/// }
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "x")?;
///     let x = dtensor::full(&[5], 2.0_f32, &mesh, &[Shard(0)])?;
///     let cubes = call(&Cube, &[&x])?;
///     assert_eq!(cubes[0].layout(), x.layout());           // nothing was sent
///     assert_eq!(cubes[0].to_vec::<f32>()?, [8.0; 5]);
///     Ok::<_, dtensor::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub trait Op: OpKey + fmt::Debug + Send + Sync + RefUnwindSafe + 'static {
    /// Its name, which messages, tables and communication carry.
    fn name(&self) -> &'static str;

    /// How it may be cut, for operands of these global shapes and dtypes.
    fn rule(&self, operands: &[Meta]) -> Result<Rule>;

    /// The kernel: the results from one rank's parts of the operands. It does not communicate.
    ///
    /// It is also called with whole operands that have no values ([`Tensor::meta`]), for the shapes and
    /// dtypes of the results. So every mistake in the operands is found there, on every rank alike.
    fn eval(&self, operands: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError>;

    /// Shapes and dtypes of the results. By default the kernel is asked.
    fn infer(&self, operands: &[Meta]) -> Result<Outputs<Meta>> {
        let metas = operands.iter().map(|meta| Tensor::meta(&meta.shape, meta.dtype));
        let metas = metas.collect::<Result<Vec<Tensor>, LocalError>>()?;
        let results = self.eval(&metas.iter().collect::<Vec<_>>(), &LocalContext::whole())?;
        Ok(results.iter().map(Meta::of).collect())
    }

    /// Whether operands in these layouts are better computed in several steps, by
    /// [`decompose`](Op::decompose): a softmax along a dim that is cut, for example.
    fn decomposes(&self, operands: &[&Layout]) -> bool {
        let _ = operands;
        false
    }

    /// The results by other operations, which communicate as they need.
    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let _ = operands;
        Err(Error::Unsupported {
            op: self.name(),
            what: "it does not decompose".into(),
            way_out: "please report this",
        })
    }

    /// What its [`gradient`](Op::gradient) needs of operands and results; `None` if no gradient passes through it.
    fn keeps(&self) -> Option<Keep> {
        None
    }

    /// The gradients of the operands, from those of the results and what was kept. Written with operations on
    /// [`DTensor`], so their layouts follow.
    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let _ = backward;
        Err(Error::NoGradient { op: self.name() })
    }

    /// Whether the kernel may fail because of the *values* of this operand: an index that is out of range, a
    /// divisor of integers that is zero. Where ranks hold different parts of it, they agree by one all-reduce
    /// of 8 bytes, and all have a result or all have the same error.
    ///
    /// On ranks that have the same values of these operands, the kernel comes to the same end, whatever part of
    /// others they have: of a list of indices it looks at all, not only at those that name something here.
    fn may_refuse(&self, operand: usize, operands: &[Meta]) -> bool {
        let _ = (operand, operands);
        false
    }

    /// Whether the kernel asks its context for offsets. Then dims are cut in plain order, so that every
    /// part is one range of indices.
    fn needs_offsets(&self) -> bool {
        false
    }
}

impl Meta {
    /// Of a tensor of this shape and dtype.
    pub fn new(shape: &[usize], dtype: DType) -> Meta {
        Meta { shape: shape.to_vec(), dtype }
    }

    /// Of a tensor as it is.
    pub fn of(tensor: &Tensor) -> Meta {
        Meta::new(tensor.shape(), tensor.dtype())
    }

    /// Of the tensor that a layout describes.
    pub fn of_layout(layout: &Layout) -> Meta {
        Meta::new(layout.global_shape(), layout.dtype())
    }

    /// Number of dims.
    pub fn n_dims(&self) -> usize {
        self.shape.len()
    }

    /// The dim that may count from the end.
    pub fn dim(&self, op: &'static str, dim: isize) -> Result<usize> {
        Ok(normal_dim(op, dim, &self.shape)?)
    }
}

/// One result.
#[inline]
pub(crate) fn one(result: Result<Tensor, LocalError>) -> Result<Outputs, LocalError> {
    result.map(|tensor| smallvec![tensor])
}

/// Two results.
pub(crate) fn two(results: Result<(Tensor, Tensor), LocalError>) -> Result<Outputs, LocalError> {
    results.map(|(a, b)| smallvec![a, b])
}
