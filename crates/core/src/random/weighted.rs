//! Random choices of which a tensor says how probable they are.

use dtensor_layout::{DType, Layout};
use dtensor_local::{LocalError, random::Distribution};

use super::draw::{RandomOp, of_layout};
use crate::{DTensor, Error, Result};

impl DTensor {
    /// One with the probability that the element is, else zero, in the same dtype. As `torch.bernoulli`; what is
    /// less than 0 counts as that, what is more than 1 as that, and nothing is sent but to settle a pending
    /// reduction.
    ///
    /// ```
    /// use dtensor::{DType, DeviceMesh, Placement::Shard, Runner, arange};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let mesh = DeviceMesh::of_world(world, "x")?;
    ///     let certain = arange(0, 2, 1, DType::F32, &mesh, &[Shard(0)])?;
    ///     assert_eq!(certain.bernoulli_each()?.to_vec::<f32>()?, [0.0, 1.0]);
    ///     Ok::<_, dtensor::Error>(())
    /// })?;
    /// # Ok::<(), dtensor::RunError>(())
    /// ```
    pub fn bernoulli_each(&self) -> Result<DTensor> {
        let op = RandomOp::BernoulliEach;
        let probabilities = weights(op, self)?;
        let unit = Distribution::Uniform { low: 0.0, high: 1.0 };
        let drawn = of_layout(op, probabilities.layout(), self.mesh(), unit)?;
        drawn.lt(&probabilities)?.to_dtype(self.dtype())
    }

    /// `n` indices per row of the last dim, which holds weights that need not sum up to one: each with a
    /// probability in proportion to its weight. Without replacement no index is given twice, and those of weight
    /// 0 only after all others. As `torch.multinomial`, for any number of dims but 0.
    ///
    /// The weights are divided by exponentially distributed numbers, and the largest win: so the choice
    /// depends on the layout as little as these do. With replacement there are `n` numbers for every weight.
    pub fn multinomial(&self, n: usize, replacement: bool) -> Result<DTensor> {
        let op = RandomOp::Multinomial;
        let weights = weights(op, self)?;
        let Some(classes) = weights.shape().last().copied() else {
            let what = "weights without a dim".into();
            return Err(Error::Unsupported { op: op.name(), what, way_out: "unsqueeze them" });
        };
        let bad = |name, got: usize, want| LocalError::BadNumber {
            op: op.name(),
            name,
            got: got.to_string(),
            want,
        };
        if classes == 0 {
            return Err(bad("the size of the last dim", 0, "at least one weight").into());
        }
        let exponential = Distribution::Exponential { rate: 1.0 };
        if !replacement {
            if n > classes {
                return Err(bad("n", n, "at most the size of the last dim").into());
            }
            let drawn = of_layout(op, weights.layout(), self.mesh(), exponential)?;
            return Ok(weights.div(&drawn)?.topk(n, -1, true)?.1);
        }
        let weights = weights.unsqueeze(-2)?;
        let mut shape = weights.shape().to_vec();
        let rows = shape.len() - 2;
        shape[rows] = n;
        // As the weights are cut, where one row of them has become `n`.
        let drawn = of_layout(op, &drawn_layout(op, &weights, &shape)?, self.mesh(), exponential)?;
        weights.div(&drawn)?.argmax(Some(-1), false)
    }
}

/// The weights as numbers fine enough to be compared with random ones, with no reduction pending.
fn weights(op: RandomOp, given: &DTensor) -> Result<DTensor> {
    let dtype = match given.dtype() {
        DType::F64 => DType::F64,
        dtype if dtype.is_float() => DType::F32,
        got => return Err(LocalError::NotFloat { op: op.name(), got }.into()),
    };
    given.settled_as(op.name())?.to_dtype(dtype)
}

fn drawn_layout(op: RandomOp, weights: &DTensor, shape: &[usize]) -> Result<Layout> {
    weights.layout().with_shape(shape).map_err(Error::layout(op.name()))
}
