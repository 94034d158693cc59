use dtensor::{DTensor, DType, DeviceMesh, Result};

use crate::{Forward, Module, ModuleState, Parameter, init};

/// Rows of a table by their numbers.
#[derive(Clone, Debug, Module)]
pub struct Embedding {
    /// `[rows, width]`.
    pub weight: Parameter,
    state: ModuleState,
}

impl Embedding {
    /// With values normal around 0, a copy on every rank.
    pub fn new(
        rows: usize,
        width: usize,
        deviation: f64,
        dtype: DType,
        mesh: &DeviceMesh,
    ) -> Result<Embedding> {
        let table = init::normal(&[rows, width], deviation, dtype, mesh, &init::copies(mesh))?;
        Embedding::of(&table)
    }

    /// With these values.
    pub fn of(table: &DTensor) -> Result<Embedding> {
        Ok(Embedding { weight: Parameter::new(table)?, state: ModuleState::default() })
    }
}

impl Forward for Embedding {
    fn forward(&self, ids: &DTensor) -> Result<DTensor> {
        self.weight.get()?.embedding(ids)
    }
}
