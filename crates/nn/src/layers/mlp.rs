use dtensor::{DTensor, DType, DeviceMesh, Result};

use super::Linear;
use crate::{Forward, Module, ModuleState};

/// What stands between the two products of an [`Mlp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `gelu`.
    Gelu,
    /// `gelu` by way of a hyperbolic tangent.
    GeluTanh,
    /// `relu`.
    Relu,
    /// `silu(gate) * up`, with a third product.
    SwiGlu,
}

/// Two products with an activation between them.
#[derive(Clone, Debug, Module)]
pub struct Mlp {
    /// From the features to the hidden ones.
    pub w1: Linear,
    /// And back.
    pub w2: Linear,
    /// What multiplies the activation, for [`Activation::SwiGlu`].
    pub w3: Option<Linear>,
    #[module(skip)]
    activation: Activation,
    state: ModuleState,
}

impl Mlp {
    /// With first values as PyTorch's, a copy on every rank.
    pub fn new(
        dim: usize,
        hidden: usize,
        activation: Activation,
        bias: bool,
        dtype: DType,
        mesh: &DeviceMesh,
    ) -> Result<Mlp> {
        Ok(Mlp {
            w1: Linear::new(dim, hidden, bias, dtype, mesh)?,
            w2: Linear::new(hidden, dim, bias, dtype, mesh)?,
            w3: match activation {
                Activation::SwiGlu => Some(Linear::new(dim, hidden, bias, dtype, mesh)?),
                _ => None,
            },
            activation,
            state: ModuleState::default(),
        })
    }
}

impl Forward for Mlp {
    fn forward(&self, x: &DTensor) -> Result<DTensor> {
        let hidden = self.w1.call(x)?;
        let hidden = match (self.activation, &self.w3) {
            (Activation::SwiGlu, Some(w3)) => hidden.silu()?.mul(&w3.call(x)?)?,
            (Activation::Relu, _) => hidden.relu()?,
            (Activation::GeluTanh, _) => hidden.gelu_tanh()?,
            _ => hidden.gelu()?,
        };
        self.w2.call(&hidden)
    }
}
