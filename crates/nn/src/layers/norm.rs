use dtensor::{DTensor, DType, DeviceMesh, Result, ones, zeros};

use crate::{Forward, Module, ModuleState, Parameter, init};

/// Normalisation of the last dim around its mean.
#[derive(Clone, Debug, Module)]
pub struct LayerNorm {
    /// `[size]`.
    pub weight: Parameter,
    /// `[size]`.
    pub bias: Option<Parameter>,
    #[module(skip)]
    eps: f64,
    state: ModuleState,
}

impl LayerNorm {
    /// Of a last dim of this size.
    pub fn new(
        size: usize,
        bias: bool,
        eps: f64,
        dtype: DType,
        mesh: &DeviceMesh,
    ) -> Result<LayerNorm> {
        let copies = init::copies(mesh);
        let weight = Parameter::new(&ones(&[size], dtype, mesh, &copies)?)?;
        let bias = match bias {
            true => Some(Parameter::new(&zeros(&[size], dtype, mesh, &copies)?)?),
            false => None,
        };
        Ok(LayerNorm { weight, bias, eps, state: ModuleState::default() })
    }
}

impl Forward for LayerNorm {
    fn forward(&self, x: &DTensor) -> Result<DTensor> {
        let weight = self.weight.get()?;
        let bias = self.bias.as_ref().map(Parameter::get).transpose()?;
        x.layer_norm(weight.shape(), Some(&weight), bias.as_ref(), self.eps)
    }
}

/// Normalisation of the last dim by its root mean square.
#[derive(Clone, Debug, Module)]
pub struct RmsNorm {
    /// `[size]`.
    pub weight: Parameter,
    #[module(skip)]
    eps: f64,
    state: ModuleState,
}

impl RmsNorm {
    /// Of a last dim of this size.
    pub fn new(size: usize, eps: f64, dtype: DType, mesh: &DeviceMesh) -> Result<RmsNorm> {
        let weight = Parameter::new(&ones(&[size], dtype, mesh, &init::copies(mesh))?)?;
        Ok(RmsNorm { weight, eps, state: ModuleState::default() })
    }
}

impl Forward for RmsNorm {
    fn forward(&self, x: &DTensor) -> Result<DTensor> {
        let weight = self.weight.get()?;
        x.rms_norm(weight.shape(), Some(&weight), self.eps)
    }
}
