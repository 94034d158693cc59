//! Dropout by the random numbers of the global index, the same in every layout.

use std::sync::Arc;

use dtensor_layout::{
    DType, Layout,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor, random::Distribution};

use crate::{
    DTensor, DeviceMesh, Error, Result,
    autograd::{Keeper, is_grad_enabled},
    dispatch::call_one,
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Number, Op, OpRecord, Outputs, Sample,
        SampleValues, one,
    },
    random::{self, RandomOp, RandomState},
    tensor::settled_layout,
};

/// Values, and which of them stay.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Dropout {
    p: Number,
}

impl Op for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        Ok(Rule::of("..., ... -> ...", &[Law::LinearIn(0)]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].dropout(x[1], self.p.0))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::operands(&[1]))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        backward.first(|| call_one(self, &[&backward.grad()?, &backward.operand(1)?]))
    }
}

/// A mask that is drawn again for a gradient, instead of kept: the state of the random numbers says which it is.
struct DrawnMask {
    state: RandomState,
    layout: Layout,
    mesh: DeviceMesh,
    p: f64,
}

impl DrawnMask {
    fn draw(&self) -> Result<DTensor> {
        let distribution = Distribution::Bernoulli { probability: 1.0 - self.p };
        random::of_layout(RandomOp::DropoutMask, &self.layout, &self.mesh, distribution)
    }
}

impl Keeper for DrawnMask {
    fn again(&self) -> Result<DTensor> {
        random::with_state(self.state, || self.draw())
    }
}

impl DTensor {
    /// In training every value is dropped with probability `p`, and what stays is divided by `1 - p`. Which values
    /// are dropped depends on the seed and not on the layout; see [`random`]. Nothing is sent, and a
    /// pending sum stays one. As `torch.nn.functional.dropout`.
    ///
    /// ```
    /// use dtensor::{DType, DeviceMesh, Placement::{Replicate, Shard}, Runner, ones, random};
    ///
    /// Runner::threads(3).run(|world| {
    ///     let mesh = DeviceMesh::of_world(world, "x")?;
    ///     random::manual_seed(1);
    ///     let cut = ones(&[8], DType::F32, &mesh, &[Shard(0)])?.dropout(0.5, true)?;
    ///     random::manual_seed(1);
    ///     let whole = ones(&[8], DType::F32, &mesh, &[Replicate])?.dropout(0.5, true)?;
    ///     assert_eq!(cut.to_vec::<f32>()?, whole.to_vec::<f32>()?);
    ///     Ok::<_, dtensor::Error>(())
    /// })?;
    /// # Ok::<(), dtensor::RunError>(())
    /// ```
    pub fn dropout(&self, p: f64, training: bool) -> Result<DTensor> {
        // A mistake is one in evaluation, too.
        Dropout { p: Number(p) }
            .infer(&[Meta::of_layout(self.layout()), Meta::new(self.shape(), DType::Bool)])?;
        match training {
            true => self.dropout_by(&self.dropout_mask(p)?, p),
            false => Ok(self.clone()),
        }
    }

    /// Which values [`dropout`](DTensor::dropout) would keep: `bool`, cut as the tensor is, each true with probability
    /// `1 - p`. Operations keep for their gradients how to draw it again, and not the mask.
    pub fn dropout_mask(&self, p: f64) -> Result<DTensor> {
        let op = RandomOp::DropoutMask;
        let layout = settled_layout(op.name(), self.layout())?;
        let layout = layout.with_dtype(DType::Bool).map_err(Error::layout(op.name()))?;
        let drawn = DrawnMask { state: random::state(), layout, mesh: self.mesh().clone(), p };
        let mask = drawn.draw()?;
        match is_grad_enabled() {
            true => Ok(mask.kept_by(Arc::new(drawn))),
            false => Ok(mask),
        }
    }

    /// Dropout by a mask that [`dropout_mask`](DTensor::dropout_mask) made for this `p`. Its gradient is the same
    /// function of the gradient of the result.
    pub fn dropout_by(&self, mask: &DTensor, p: f64) -> Result<DTensor> {
        call_one(&Dropout { p: Number(p) }, &[self, mask])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "dropout",
    samples: || {
        let sample = |p: f64, shape: &[usize]| {
            Sample::new(Dropout { p: Number(p) }, &[shape, shape]).with(1, SampleValues::Truth)
        };
        vec![sample(0.25, &[5, 2]), sample(1.0, &[3])]
    },
}];
