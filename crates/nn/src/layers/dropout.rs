use dtensor::{DTensor, Result};

use crate::{Forward, Module, ModuleState};

/// Drops values while the model learns. Which ones does not depend on the layout.
#[derive(Clone, Debug, Module)]
pub struct Dropout {
    #[module(skip)]
    probability: f64,
    state: ModuleState,
}

impl Dropout {
    /// Every value with this probability.
    pub fn new(probability: f64) -> Dropout {
        Dropout { probability, state: ModuleState::default() }
    }
}

impl Forward for Dropout {
    fn forward(&self, x: &DTensor) -> Result<DTensor> {
        match self.probability == 0.0 {
            true => Ok(x.clone()),
            false => x.dropout(self.probability, self.state.is_training()),
        }
    }
}
