//! Modules whose tensors can be sharded: any type that implements [`ShardableModule`].
//!
//! ```
//! use dtensor_sharded::{ChunkShardingSpec, DType, ProcessGroup, Runner, Tensor};
//! use dtensor_sharded::module::{ModuleTensor, ShardableModule, ShardingPlan, named_tensors, shard_module};
//!
//! struct Linear {
//!     weight: ModuleTensor,
//! }
//!
//! impl ShardableModule for Linear {
//!     fn tensors(&self) -> Vec<(String, &ModuleTensor)> {
//!         vec![("weight".into(), &self.weight)]
//!     }
//!     fn tensors_mut(&mut self) -> Vec<(String, &mut ModuleTensor)> {
//!         vec![("weight".into(), &mut self.weight)]
//!     }
//! }
//!
//! Runner::threads(2).run(|world| {
//!     let mut layer = Linear { weight: Tensor::zeros(&[5, 4], DType::F32)?.into() };
//!     let plan = ShardingPlan::new().shard("weight", ChunkShardingSpec::over_ranks(0, 0..2)?);
//!     shard_module(&mut layer, &plan, 0, &ProcessGroup::of_world(world))?;
//!     let (name, weight) = &named_tensors(&layer)[0];
//!     assert_eq!((&**name, weight.sharded().is_some()), ("weight", true));
//!     Ok::<_, dtensor_sharded::Error>(())
//! })?;
//! # Ok::<(), dtensor_sharded::RunError>(())
//! ```

mod plan;
mod shard;
mod state_dict;
mod walk;

use dtensor_local::Tensor;

use crate::{Error, Result, ShardedTensor, Spec};

pub use plan::{Sharder, Sharding, ShardingPlan, ShardingPlanner};
pub use shard::{shard_module, shard_parameter};
pub use state_dict::{StateDict, load_state_dict, state_dict};
pub use walk::named_tensors;

pub(crate) use walk::for_each_tensor_mut;

/// A part of a model: it has tensors and other modules, and names for them, without dots.
pub trait ShardableModule {
    /// Its own tensors, in their order; not those of the modules in it.
    fn tensors(&self) -> Vec<(String, &ModuleTensor)>;

    /// The same, to be changed.
    fn tensors_mut(&mut self) -> Vec<(String, &mut ModuleTensor)>;

    /// The modules in it, in their order.
    fn children(&self) -> Vec<(String, &dyn ShardableModule)> {
        Vec::new()
    }

    /// The same, to be changed.
    fn children_mut(&mut self) -> Vec<(String, &mut dyn ShardableModule)> {
        Vec::new()
    }

    /// Puts another module in the place of one in it, which a [`Sharder`] has made. Only modules whose parts
    /// can be of any type can do so.
    fn set_child(&mut self, name: &str, _: Box<dyn ShardableModule>) -> Result<()> {
        Err(Error::refused(
            "shard_module",
            format!("the module `{name}` cannot be replaced by another"),
            "let the sharder change it in place, or implement set_child",
        ))
    }

    /// Says what is to be done with what it computes: it keeps the rule and [applies](OutputRule::apply) it.
    fn set_output(&mut self, _: OutputRule) -> Result<()> {
        Err(Error::refused(
            "shard_module",
            "a module of the plan has no place for a rule about its output",
            "implement set_output",
        ))
    }
}

/// A tensor of a module.
#[derive(Clone, Debug)]
pub enum ModuleTensor {
    /// Whole on every rank.
    Plain(Tensor),
    /// Cut over ranks.
    Sharded(ShardedTensor),
}

impl ModuleTensor {
    /// The tensor, if it is whole.
    pub fn plain(&self) -> Option<&Tensor> {
        match self {
            ModuleTensor::Plain(tensor) => Some(tensor),
            ModuleTensor::Sharded(_) => None,
        }
    }

    /// The tensor, if it is cut.
    pub fn sharded(&self) -> Option<&ShardedTensor> {
        match self {
            ModuleTensor::Sharded(tensor) => Some(tensor),
            ModuleTensor::Plain(_) => None,
        }
    }
}

impl From<Tensor> for ModuleTensor {
    fn from(tensor: Tensor) -> ModuleTensor {
        ModuleTensor::Plain(tensor)
    }
}

impl From<ShardedTensor> for ModuleTensor {
    fn from(tensor: ShardedTensor) -> ModuleTensor {
        ModuleTensor::Sharded(tensor)
    }
}

/// What is done with what a module computes.
#[derive(Clone, Debug, Default)]
pub struct OutputRule {
    /// The spec that it is brought to.
    pub reshard: Option<Spec>,
    /// Whether, after that, it is the part of this rank, as a plain tensor. A dim that is cut and has one index
    /// here is dropped.
    pub local: bool,
}

impl OutputRule {
    /// What becomes of a result.
    pub fn apply(&self, output: ShardedTensor) -> Result<ModuleTensor> {
        let output = match &self.reshard {
            Some(spec) => output.resharded(spec)?,
            None => output,
        };
        if !self.local {
            return Ok(output.into());
        }
        let local = output.local_tensor()?;
        let dim = match output.sharding_spec().as_chunk() {
            Some(chunk) => Some(chunk.normal_dim(output.n_dims())?),
            None => None,
        };
        match dim.filter(|dim| local.shape()[*dim] == 1) {
            Some(dim) => Ok(local.squeeze(dim as isize)?.into()),
            None => Ok(local.clone().into()),
        }
    }
}
