use dtensor::{DTensor, DType, Error, Placement, Result, empty};

use crate::{Forward, Module, ModuleState, Sequence};

/// Drops values while the model learns. Which ones does not depend on the layout, nor on the order in which positions lie.
#[derive(Clone, Debug, Module)]
pub struct Dropout {
    #[module(skip)]
    probability: f64,
    #[module(skip)]
    sequence: Sequence,
    state: ModuleState,
}

impl Dropout {
    /// Every value with this probability.
    pub fn new(probability: f64) -> Dropout {
        Dropout { probability, sequence: Sequence::Plain, state: ModuleState::default() }
    }

    /// In which order the positions of `[batch, positions, ...]` lie.
    pub(crate) fn set_sequence(&mut self, sequence: Sequence) {
        self.sequence = sequence;
    }

    /// Which values stay. Random numbers are those of an index: in another order than that of positions, they would be
    /// another position's, and a run would depend on its mesh. So the mask is drawn for whole sequences and every rank
    /// takes its positions. Nothing is sent.
    fn mask(&self, x: &DTensor) -> Result<DTensor> {
        const POSITIONS: usize = 1;
        const OP: &str = "Dropout";
        let layout = |source| Error::Layout { op: OP, source: Box::new(source) };
        let whole = |placement: &Placement| match placement {
            Placement::Shard(dim) if *dim != POSITIONS => *placement,
            _ => Placement::Replicate,
        };
        let placements: Vec<Placement> = x.placements().iter().map(whole).collect();
        let in_order = empty(x.shape(), DType::Bool, x.mesh(), &placements)?;
        let mask = self.sequence.ordered(&in_order.dropout_mask(self.probability)?, POSITIONS)?;
        let settled = |placement: &Placement| match placement {
            Placement::Partial(_) => Placement::Replicate,
            _ => *placement,
        };
        let settled: Vec<Placement> = x.placements().iter().map(settled).collect();
        let to = x.layout().with_placements_in_order(&settled);
        let to = to.and_then(|to| to.with_dtype(DType::Bool)).map_err(layout)?;
        mask.redistribute_layout(&to)
    }
}

impl Forward for Dropout {
    fn forward(&self, x: &DTensor) -> Result<DTensor> {
        let training = self.state.is_training();
        match self.sequence {
            _ if self.probability == 0.0 => Ok(x.clone()),
            Sequence::BalancedRing(_) if training && x.n_dims() > 1 => {
                x.dropout_by(&self.mask(x)?, self.probability)
            }
            _ => x.dropout(self.probability, training),
        }
    }
}
