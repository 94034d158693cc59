use dtensor::{DTensor, DType, DeviceMesh, Result};

use crate::{Forward, Module, ModuleState, Parameter, init};

/// `x W^T + b`. The weight is `[outputs, inputs]`.
#[derive(Clone, Debug, Module)]
pub struct Linear {
    /// `[outputs, inputs]`.
    pub weight: Parameter,
    /// `[outputs]`.
    pub bias: Option<Parameter>,
    state: ModuleState,
}

impl Linear {
    /// With first values as PyTorch's, a copy on every rank.
    pub fn new(
        inputs: usize,
        outputs: usize,
        bias: bool,
        dtype: DType,
        mesh: &DeviceMesh,
    ) -> Result<Linear> {
        let copies = init::copies(mesh);
        let weight = init::kaiming_uniform(&[outputs, inputs], dtype, mesh, &copies)?;
        let bound = 1.0 / (inputs.max(1) as f64).sqrt();
        let bias = bias.then(|| init::uniform(&[outputs], (-bound, bound), dtype, mesh, &copies));
        Linear::of(&weight, bias.transpose()?.as_ref())
    }

    /// With these values.
    pub fn of(weight: &DTensor, bias: Option<&DTensor>) -> Result<Linear> {
        let bias = bias.map(Parameter::new).transpose()?;
        Ok(Linear { weight: Parameter::new(weight)?, bias, state: ModuleState::default() })
    }
}

impl Forward for Linear {
    fn forward(&self, x: &DTensor) -> Result<DTensor> {
        let bias = self.bias.as_ref().map(Parameter::get).transpose()?;
        x.linear(&self.weight.get()?, bias.as_ref())
    }
}
