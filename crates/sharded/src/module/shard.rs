//! Cutting the tensors of a module.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    ModuleTensor, OutputRule, ShardableModule, Sharding, ShardingPlan, named_tensors,
    walk::{has_module, module_mut, tensor_mut},
};
use crate::{
    Error, ProcessGroup, Result, Spec,
    construct::{ScatterRecord, check_same, scatter_plan},
    exchange::{agree, all_records},
    shard_tensor,
};

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
        Some(ModuleTensor::Sharded(_)) => Err(cut_already(OP, path)),
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
/// ranks of the group call it with the same plan.
///
/// A plan that does not fit the module, or not on every rank alike, changes nothing: all tensors are looked at
/// before the first is cut. What only a sharder or a module can know (that it cannot cut, be replaced, or has no
/// place for a rule) comes when tensors are cut already.
pub fn shard_module(
    module: &mut dyn ShardableModule,
    plan: &ShardingPlan,
    src_rank: usize,
    group: &ProcessGroup,
) -> Result<()> {
    const OP: &str = "shard_module";
    let fits = check_plan(OP, module, plan, src_rank, group);
    match group.rank() {
        Some(_) => check_alike(OP, &all_records(OP, group, fits)?, group)?,
        None => drop(fits?),
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

/// Whether everything that the plan names is there and can be cut, and nothing is cut by two: what it makes of
/// the tensors with a spec, in the order of their paths.
fn check_plan(
    op: &'static str,
    module: &dyn ShardableModule,
    plan: &ShardingPlan,
    src_rank: usize,
    group: &ProcessGroup,
) -> Result<Vec<(String, ScatterRecord)>> {
    let tensors: BTreeMap<String, &ModuleTensor> = named_tensors(module).into_iter().collect();
    let no_such = |path: &str| Error::NoSuchName { op: op.into(), path: path.into() };
    let is_sharder = |path: &str| matches!(plan.plan.get(path), Some(Sharding::Sharder(_)));
    let mut records = Vec::new();
    for (path, sharding) in &plan.plan {
        match sharding {
            Sharding::Sharder(_) if path.is_empty() => return Err(Error::EmptyModulePath),
            Sharding::Sharder(_) if !has_module(module, path) => return Err(no_such(path)),
            Sharding::Sharder(_) => {}
            Sharding::Spec(spec) => {
                let tensor = tensors.get(path).ok_or_else(|| no_such(path))?;
                let whole = tensor.plain().ok_or_else(|| cut_already(op, path))?;
                let metadata = scatter_plan(op, whole, spec, src_rank, group)?;
                records.push((path.clone(), ScatterRecord::of(&metadata, spec, src_rank)));
            }
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
        None => Ok(records),
    }
}

/// Whether the plan makes the same of the tensors of every rank.
fn check_alike(
    op: &'static str,
    records: &[Vec<(String, ScatterRecord)>],
    group: &ProcessGroup,
) -> Result<()> {
    let Some(first) = records.first() else { return Ok(()) };
    let paths = |records: &[(String, ScatterRecord)]| -> Vec<String> {
        records.iter().map(|(path, _)| path.clone()).collect()
    };
    let ranks = group.world_ranks();
    for (own, rank) in records.iter().zip(ranks) {
        let (want, got) = (paths(first), paths(own));
        if want != got {
            return Err(Error::RanksDiffer {
                op: op.into(),
                property: "the tensors of the plan".into(),
                first_rank: ranks[0],
                first: format!("{want:?}").into(),
                rank: *rank,
                other: format!("{got:?}").into(),
            });
        }
    }
    for (index, (path, _)) in first.iter().enumerate() {
        let of_all: Vec<&ScatterRecord> = records.iter().map(|records| &records[index].1).collect();
        check_same(op, Some(path), &of_all, group)?;
    }
    Ok(())
}

fn cut_already(op: &'static str, path: &str) -> Error {
    let what = format!("the tensor `{path}` is cut already");
    Error::refused(op, what, "reshard it to cut it in another way")
}
