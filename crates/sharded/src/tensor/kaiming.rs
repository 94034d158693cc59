//! First values for the weights of layers, by how many connections they have.

use super::ShardedTensor;
use crate::{Error, Result};

/// Which connections of a weight `[out, in, ...]` are counted; each counts once for every index of the further
/// dims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fan {
    /// Its inputs: what passes forwards keeps its variance.
    #[default]
    In,
    /// Its outputs: gradients, which pass backwards, keep theirs.
    Out,
}

/// What comes after a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Nonlinearity {
    /// Nothing.
    Linear,
    /// A sigmoid.
    Sigmoid,
    /// A hyperbolic tangent.
    Tanh,
    /// A ReLU.
    Relu,
    /// A ReLU with a slope for negative numbers.
    LeakyRelu {
        /// The slope.
        negative_slope: f64,
    },
    /// A SELU.
    Selu,
}

impl Nonlinearity {
    /// How much larger the deviation has to be for it: that of `torch.nn.init.calculate_gain`.
    pub fn gain(self) -> f64 {
        match self {
            Nonlinearity::Linear | Nonlinearity::Sigmoid => 1.0,
            Nonlinearity::Tanh => 5.0 / 3.0,
            Nonlinearity::Relu => std::f64::consts::SQRT_2,
            Nonlinearity::LeakyRelu { negative_slope } => {
                (2.0 / (1.0 + negative_slope * negative_slope)).sqrt()
            }
            Nonlinearity::Selu => 0.75,
        }
    }
}

impl ShardedTensor {
    /// Values for the weights of a layer with leaky ReLUs of this slope after it, evenly within
    /// `gain * sqrt(3 / fan_in)`. The number of inputs is that of the whole tensor, not of a shard. As
    /// `torch.nn.init.kaiming_uniform_`.
    pub fn fill_kaiming_uniform(&mut self, negative_slope: f64) -> Result<()> {
        self.fill_kaiming_uniform_with(Fan::In, Nonlinearity::LeakyRelu { negative_slope })
    }

    /// As [`fill_kaiming_uniform`](ShardedTensor::fill_kaiming_uniform), by the other connections, or for what
    /// else comes after the layer.
    ///
    /// ```
    /// use dtensor_sharded::{ChunkShardingSpec, DType, Fan, Nonlinearity, Runner, zeros};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let mut x = zeros(ChunkShardingSpec::over_ranks(0, 0..2)?, &[48, 3], DType::F64, world)?;
    ///     x.fill_kaiming_uniform_with(Fan::Out, Nonlinearity::Linear)?;
    ///     // sqrt(3 / 48)
    ///     assert!(x.full_tensor()?.to_vec::<f64>()?.iter().all(|value| value.abs() <= 0.25));
    ///     Ok::<_, dtensor_sharded::Error>(())
    /// })?;
    /// # Ok::<(), dtensor_sharded::RunError>(())
    /// ```
    pub fn fill_kaiming_uniform_with(
        &mut self,
        fan: Fan,
        nonlinearity: Nonlinearity,
    ) -> Result<()> {
        const OP: &str = "fill_kaiming_uniform";
        let [outputs, inputs, further @ ..] = self.size() else {
            let what = format!("a tensor of {} dims", self.n_dims());
            return Err(Error::refused(OP, what, "weights have two dims or more"));
        };
        let ends = match fan {
            Fan::In => inputs,
            Fan::Out => outputs,
        };
        // In floats: tensors without values have any size.
        let n: f64 = further.iter().chain([ends]).map(|size| *size as f64).product();
        let bound = nonlinearity.gain() * (3.0 / n.max(1.0)).sqrt();
        self.fill_uniform(-bound, bound)
    }
}
