//! Which tensors of a module are cut, and how.

use std::{collections::BTreeMap, fmt, sync::Arc};

use super::ShardableModule;
use crate::{ProcessGroup, Result, Spec};

/// What [`shard_module`](super::shard_module) does: which tensors are cut by which spec, which modules are left
/// to a [`Sharder`], and what becomes of what modules compute. Paths are names with dots between.
#[derive(Clone, Debug, Default)]
pub struct ShardingPlan {
    pub(super) plan: BTreeMap<String, Sharding>,
    pub(super) output_plan: BTreeMap<String, Spec>,
    pub(super) return_local_tensor: Vec<String>,
}

/// How one entry of a plan is cut.
#[derive(Clone)]
pub enum Sharding {
    /// A tensor, by a spec.
    Spec(Spec),
    /// A module, by somebody who knows it.
    Sharder(Arc<dyn Sharder>),
}

/// Cuts the tensors of a module in its own way.
pub trait Sharder: Send + Sync {
    /// Changes the module in place; or gives another, which takes its place. All ranks of the group call it.
    fn shard(
        &self,
        module: &mut dyn ShardableModule,
        group: &ProcessGroup,
    ) -> Result<Option<Box<dyn ShardableModule>>>;
}

/// Makes a plan for a module.
pub trait ShardingPlanner {
    /// The plan, which must be the same on every rank.
    fn build_plan(&self, module: &dyn ShardableModule) -> Result<ShardingPlan>;
}

impl ShardingPlan {
    /// A plan that does nothing yet.
    pub fn new() -> ShardingPlan {
        ShardingPlan::default()
    }

    /// Cuts the tensor at a path.
    #[must_use]
    pub fn shard(mut self, path: &str, spec: impl Into<Spec>) -> ShardingPlan {
        self.plan.insert(path.into(), Sharding::Spec(spec.into()));
        self
    }

    /// Leaves the module at a path to a sharder.
    #[must_use]
    pub fn shard_by(mut self, path: &str, sharder: impl Sharder + 'static) -> ShardingPlan {
        self.plan.insert(path.into(), Sharding::Sharder(Arc::new(sharder)));
        self
    }

    /// Brings what the module at a path computes to a spec; the empty path is the whole model.
    #[must_use]
    pub fn output(mut self, path: &str, spec: impl Into<Spec>) -> ShardingPlan {
        self.output_plan.insert(path.into(), spec.into());
        self
    }

    /// Gives, of what the module at a path computes, the part of each rank as a plain tensor.
    #[must_use]
    pub fn local_output(mut self, path: &str) -> ShardingPlan {
        self.return_local_tensor.push(path.into());
        self
    }

    /// What is cut, by path.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Sharding)> {
        self.plan.iter().map(|(path, sharding)| (&**path, sharding))
    }
}

impl fmt::Debug for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sharding::Spec(spec) => spec.fmt(f),
            Sharding::Sharder(_) => f.write_str("Sharder"),
        }
    }
}
