//! Cutting the tensors of a module.

use std::collections::BTreeSet;

use super::{
    ModuleTensor, OutputRule, ShardableModule, Sharding, ShardingPlan, named_tensors,
    walk::{has_module, module_mut, tensor_mut},
};
use crate::{Error, ProcessGroup, Result, Spec, exchange::agree, shard_tensor};

/// Cuts the tensor at a path, which rank `src_rank` of the group has; see [`shard_tensor`]. All ranks of the
/// group call it.
pub fn shard_parameter(
    module: &mut dyn ShardableModule,
    path: &str,
    spec: impl Into<Spec>,
    src_rank: usize,
    group: &ProcessGroup,
) -> Result<()> {
    const OP: &str = "shard_parameter";
    let place = tensor_mut(module, path);
    let whole = match place.as_deref() {
        None => Err(Error::NoSuchName { op: OP.into(), path: path.into() }),
        Some(ModuleTensor::Plain(tensor)) => Ok(tensor.clone()),
        Some(ModuleTensor::Sharded(_)) => Err(Error::refused(
            OP,
            format!("the tensor `{path}` is cut already"),
            "reshard it to cut it in another way",
        )),
    };
    let whole = match group.rank() {
        Some(_) => agree(OP, group, whole)?,
        None => whole?,
    };
    let sharded = shard_tensor(&whole, spec, src_rank, group)?;
    if let Some(place) = place {
        *place = sharded.into();
    }
    Ok(())
}

/// Cuts the tensors of a module as a plan says: first those with a spec, then those of modules with a sharder;
/// then it tells modules what becomes of their results. Tensors are those of rank `src_rank` of the group. All
/// ranks of the group call it with the same plan. A plan that does not fit the module changes nothing.
pub fn shard_module(
    module: &mut dyn ShardableModule,
    plan: &ShardingPlan,
    src_rank: usize,
    group: &ProcessGroup,
) -> Result<()> {
    const OP: &str = "shard_module";
    let fits = check_plan(OP, module, plan);
    match group.rank() {
        Some(_) => agree(OP, group, fits)?,
        None => fits?,
    }
    for (path, sharding) in &plan.plan {
        if let Sharding::Spec(spec) = sharding {
            shard_parameter(module, path, spec, src_rank, group)?;
        }
    }
    let no_such = |path: &str| Error::NoSuchName { op: OP.into(), path: path.into() };
    for (path, sharding) in &plan.plan {
        if let Sharding::Sharder(sharder) = sharding {
            let own = module_mut(module, path).ok_or_else(|| no_such(path))?;
            let made = sharder.shard(own, group);
            let made = match group.rank() {
                Some(_) => agree(OP, group, made)?,
                None => made?,
            };
            if let Some(other) = made {
                let (above, name) = path.rsplit_once('.').unwrap_or(("", path));
                module_mut(module, above).ok_or_else(|| no_such(above))?.set_child(name, other)?;
            }
        }
    }
    let local = plan.return_local_tensor.iter().map(String::as_str);
    let outputs: BTreeSet<&str> =
        plan.output_plan.keys().map(String::as_str).chain(local).collect();
    for path in outputs {
        let rule = OutputRule {
            reshard: plan.output_plan.get(path).cloned(),
            local: plan.return_local_tensor.iter().any(|other| other == path),
        };
        module_mut(module, path).ok_or_else(|| no_such(path))?.set_output(rule)?;
    }
    Ok(())
}

/// Whether everything that the plan names is there, and nothing is cut by two.
fn check_plan(op: &'static str, module: &dyn ShardableModule, plan: &ShardingPlan) -> Result<()> {
    let tensors: BTreeSet<String> =
        named_tensors(module).into_iter().map(|(path, _)| path).collect();
    let no_such = |path: &str| Error::NoSuchName { op: op.into(), path: path.into() };
    let is_sharder = |path: &str| matches!(plan.plan.get(path), Some(Sharding::Sharder(_)));
    for (path, sharding) in &plan.plan {
        match sharding {
            Sharding::Sharder(_) if path.is_empty() => return Err(Error::EmptyModulePath),
            Sharding::Sharder(_) if !has_module(module, path) => return Err(no_such(path)),
            Sharding::Spec(_) if !tensors.contains(path) => return Err(no_such(path)),
            _ => {}
        }
        // The modules around it: whole names, so that `ab` is not within `a`.
        let around = path.match_indices('.').map(|(dot, _)| &path[..dot]);
        if let Some(module) = around.into_iter().find(|module| is_sharder(module)) {
            let (parameter, module) = (path.as_str().into(), module.into());
            return Err(Error::PlanConflict { parameter, module });
        }
    }
    let named = plan.output_plan.keys().chain(&plan.return_local_tensor);
    match named.into_iter().find(|path| !has_module(module, path)) {
        Some(path) => Err(no_such(path)),
        None => Ok(()),
    }
}
