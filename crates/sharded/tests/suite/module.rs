//! Modules and plans.

use std::collections::BTreeMap;

use dtensor_sharded::{
    ChunkShardingSpec, DType, Error, ProcessGroup, Result, ShardedTensor, Spec, Tensor, World,
    embedding::{BagMode, BagOptions, embedding_bag},
    load_with_process_group,
    module::{
        ModuleTensor, OutputRule, ShardableModule, Sharder, Sharding, ShardingPlan,
        ShardingPlanner, StateDict, load_state_dict, named_tensors, shard_module, shard_parameter,
        state_dict,
    },
    optim::{Sgd, ShardedOptimizer},
    shard_tensor,
};
use dtensor_testing::spmd;

use crate::{
    parts::{Parts, model},
    support::{chunks, cut, numbered, same_error},
};

fn paths(module: &dyn ShardableModule, sharded: bool) -> Vec<String> {
    let named = named_tensors(module).into_iter();
    named
        .filter(|(_, tensor)| tensor.sharded().is_some() == sharded)
        .map(|(path, _)| path)
        .collect()
}

#[test]
fn a_parameter_is_cut_from_one_rank() {
    spmd(4, |world| {
        let group = ProcessGroup::of_world(world);
        let mut module = model();
        if world.rank() != 2 {
            module = Parts::default().module(
                "fc1",
                Parts::default().tensor("weight", numbered(&[6, 3]).mul_scalar(-1.0)?),
            );
        }
        shard_parameter(&mut module, "fc1.weight", chunks(0, &[3, 2, 1, 0]), 2, &group)?;
        let named = named_tensors(&module);
        let weight =
            named.iter().find(|(path, _)| path == "fc1.weight").unwrap().1.sharded().unwrap();
        assert_eq!(weight.full_tensor()?.to_vec::<f32>()?, numbered(&[6, 3]).to_vec::<f32>()?);
        Ok(())
    });
}

#[test]
fn a_parameter_that_is_not_there_is_the_same_error_on_all() {
    let tried = |body: fn(&World, &mut Parts) -> Result<()>| {
        same_error(2, |world| body(world, &mut model()))
    };
    let error = tried(|world, module| {
        shard_parameter(module, "fc1.other", chunks(0, &[0, 1]), 0, &ProcessGroup::of_world(world))
    });
    assert!(matches!(error.cause(), Error::NoSuchName { .. }));
    // On one rank only, and nobody waits for it.
    let error = tried(|world, module| {
        let name = if world.rank() == 1 { "fc9.weight" } else { "fc1.weight" };
        shard_parameter(module, name, chunks(0, &[0, 1]), 0, &ProcessGroup::of_world(world))
    });
    assert!(matches!(error, Error::Rank { rank: 1, .. }));
    let error = tried(|world, module| {
        let group = ProcessGroup::of_world(world);
        shard_parameter(module, "fc1.weight", chunks(0, &[0, 1]), 0, &group)?;
        shard_parameter(module, "fc1.weight", chunks(1, &[0, 1]), 0, &group)
    });
    assert!(matches!(error.cause(), Error::Unsupported { .. }));
    let error = tried(|world, module| {
        let turned = numbered(&[2, 3]).transpose(0, 1)?;
        *module = Parts::default().tensor("w", turned);
        shard_parameter(module, "w", chunks(0, &[0, 1]), 0, &ProcessGroup::of_world(world))
    });
    assert!(matches!(error.cause(), Error::NotContiguous { .. }));
}

/// Rows for every first dim.
struct RowPlanner(usize);

impl ShardingPlanner for RowPlanner {
    fn build_plan(&self, module: &dyn ShardableModule) -> Result<ShardingPlan> {
        let ranks: Vec<usize> = (0..self.0).collect();
        let weights =
            named_tensors(module).into_iter().filter(|(path, _)| path.ends_with("weight"));
        Ok(weights
            .fold(ShardingPlan::new(), |plan, (path, _)| plan.shard(&path, chunks(0, &ranks))))
    }
}

#[test]
fn a_planner_makes_the_plan_and_the_plan_cuts_the_module() {
    spmd(4, |world| {
        let mut module = model();
        let plan = RowPlanner(4).build_plan(&module)?;
        assert!(plan.entries().all(|(_, sharding)| matches!(sharding, Sharding::Spec(_))));
        shard_module(&mut module, &plan, 0, &ProcessGroup::of_world(world))?;
        assert_eq!(paths(&module, true), ["fc.weight", "fc1.weight", "fc2.weight"]);
        assert_eq!(paths(&module, false), ["fc.bias", "fc1.bias", "fc2.bias"]);
        Ok(())
    });
}

#[test]
fn a_plan_works_on_a_sub_group_and_not_outside() {
    spmd(4, |world| {
        let group = ProcessGroup::new(world, &[2, 3])?;
        let mut module = model();
        let plan = ShardingPlan::new()
            .shard("fc1.weight", chunks(0, &[2, 3]))
            .shard("fc2.weight", chunks(1, &[3, 2]));
        shard_module(&mut module, &plan, 0, &group)?;
        for (_, tensor) in
            named_tensors(&module).iter().filter(|(path, _)| path.starts_with("fc1.w"))
        {
            let sharded = tensor.sharded().unwrap();
            assert_eq!(sharded.local_shards().len(), world.rank() / 2);
            if group.rank().is_some() {
                assert_eq!(
                    sharded.full_tensor()?.to_vec::<f32>()?,
                    numbered(&[6, 3]).to_vec::<f32>()?
                );
            }
        }
        Ok(())
    });
}

/// Cuts every tensor of a module by columns, in place.
struct InPlace;

impl Sharder for InPlace {
    fn shard(
        &self,
        module: &mut dyn ShardableModule,
        group: &ProcessGroup,
    ) -> Result<Option<Box<dyn ShardableModule>>> {
        for (_, tensor) in module.tensors_mut() {
            if let Some(plain) = tensor.plain().cloned() {
                *tensor = shard_tensor(&plain, chunks(-1, group.world_ranks()), 0, group)?.into();
            }
        }
        Ok(None)
    }
}

/// Puts another module in its place.
struct Replacing;

impl Sharder for Replacing {
    fn shard(
        &self,
        _: &mut dyn ShardableModule,
        group: &ProcessGroup,
    ) -> Result<Option<Box<dyn ShardableModule>>> {
        let table = cut(&[8, 2], &chunks(0, group.world_ranks()), group)?;
        Ok(Some(Box::new(Parts::default().tensor("table", table))))
    }
}

/// D11.
#[test]
fn what_a_sharder_makes_takes_the_place_of_its_module() {
    spmd(2, |world| {
        let group = ProcessGroup::of_world(world);
        let mut module = Parts::default().module("tower", model());
        let plan =
            ShardingPlan::new().shard_by("tower.fc1", Replacing).shard_by("tower.fc2", InPlace);
        shard_module(&mut module, &plan, 0, &group)?;
        assert_eq!(paths(&module, true), ["tower.fc1.table", "tower.fc2.bias", "tower.fc2.weight"]);
        // `fc` has a sharder; `fc1` is another name and not within it.
        let mut module = model();
        let plan =
            ShardingPlan::new().shard_by("fc", InPlace).shard("fc1.weight", chunks(0, &[0, 1]));
        shard_module(&mut module, &plan, 0, &group)?;
        assert_eq!(paths(&module, true), ["fc.bias", "fc.weight", "fc1.weight"]);
        Ok(())
    });
}

#[test]
fn plans_that_do_not_fit_change_nothing() {
    let refused = |plan: fn() -> ShardingPlan| {
        same_error(2, |world| {
            let mut module = model();
            let result = shard_module(&mut module, &plan(), 0, &ProcessGroup::of_world(world));
            assert!(paths(&module, true).is_empty());
            result
        })
    };
    let error = refused(|| {
        ShardingPlan::new()
            .shard("fc1.weight", chunks(0, &[0, 1]))
            .shard("fc3.weight", chunks(0, &[0, 1]))
    });
    assert!(matches!(error.cause(), Error::NoSuchName { .. }));
    let error = refused(|| {
        ShardingPlan::new().shard("fc1.weight", chunks(0, &[0, 1])).shard_by("fc1", InPlace)
    });
    assert!(matches!(error.cause(), Error::PlanConflict { .. }));
    assert_eq!(
        *refused(|| ShardingPlan::new().shard_by("", InPlace)).cause(),
        Error::EmptyModulePath
    );
    let error = refused(|| ShardingPlan::new().shard_by("fc7", InPlace));
    assert!(matches!(error.cause(), Error::NoSuchName { .. }));
    let error = refused(|| ShardingPlan::new().output("fc7", chunks(0, &[0, 1])));
    assert!(matches!(error.cause(), Error::NoSuchName { .. }));
}

/// The first tensor of each plan could be cut.
#[test]
fn a_spec_that_cannot_be_is_found_before_any_tensor_is_cut() {
    let refused = |second: fn(&World) -> Spec| {
        same_error(2, |world| {
            let mut module = model();
            let plan = ShardingPlan::new()
                .shard("fc1.weight", chunks(0, &[0, 1]))
                .shard("fc2.weight", second(world));
            let result = shard_module(&mut module, &plan, 0, &ProcessGroup::of_world(world));
            assert!(paths(&module, true).is_empty());
            result
        })
    };
    let error = refused(|_| chunks(2, &[0, 1]));
    assert!(matches!(error.cause(), Error::DimOutOfRange { .. }), "{error}");
    let error = refused(|_| chunks(0, &[0, 2]));
    assert!(matches!(error.cause(), Error::RankNotInGroup { .. }), "{error}");
    let error = refused(|_| ChunkShardingSpec::new(0, &["rank:0/cuda:0"]).unwrap().into());
    assert!(matches!(error.cause(), Error::MissingDevice { .. }), "{error}");
    let error = refused(|_| ChunkShardingSpec::new(0, &["rank:0/meta"]).unwrap().into());
    assert!(matches!(error.cause(), Error::ShardDevice { .. }), "{error}");
    // Each rank for itself could.
    let error = refused(|world| chunks(0, if world.rank() == 0 { &[0, 1] } else { &[1, 0] }));
    assert!(
        matches!(error.cause(), Error::RanksDiffer { property, .. } if property.contains("fc2.weight")),
        "{error}"
    );
}

#[test]
fn a_plan_for_a_tensor_that_is_cut_already_changes_no_other() {
    let error = same_error(2, |world| {
        let group = ProcessGroup::of_world(world);
        let mut module = model();
        shard_parameter(&mut module, "fc2.weight", chunks(0, &[0, 1]), 0, &group)?;
        let plan = ShardingPlan::new()
            .shard("fc1.weight", chunks(0, &[0, 1]))
            .shard("fc2.weight", chunks(0, &[0, 1]));
        let result = shard_module(&mut module, &plan, 0, &group);
        assert_eq!(paths(&module, true), ["fc2.weight"]);
        result
    });
    assert!(matches!(error.cause(), Error::Unsupported { .. }), "{error}");
}

/// A module with one place and nothing else.
struct Bare(ModuleTensor);

impl ShardableModule for Bare {
    fn tensors(&self) -> Vec<(String, &ModuleTensor)> {
        vec![("x".into(), &self.0)]
    }

    fn tensors_mut(&mut self) -> Vec<(String, &mut ModuleTensor)> {
        vec![("x".into(), &mut self.0)]
    }
}

#[test]
fn modules_that_cannot_be_replaced_or_have_no_output_say_so() {
    spmd(1, |world| {
        let group = ProcessGroup::of_world(world);
        let mut bare = Bare(numbered(&[2]).into());
        let plan = ShardingPlan::new().output("", chunks(0, &[0]));
        assert!(matches!(
            shard_module(&mut bare, &plan, 0, &group),
            Err(Error::Unsupported { .. })
        ));
        assert!(matches!(
            bare.set_child("y", Box::new(Bare(numbered(&[2]).into()))),
            Err(Error::Unsupported { .. })
        ));
        Ok(())
    });
}

#[test]
fn outputs_are_resharded_and_given_as_local_parts() {
    spmd(2, |world| {
        let mut module = model();
        let plan = ShardingPlan::new()
            .output("fc1", chunks(1, &[0, 1]))
            .local_output("fc1")
            .local_output("fc2");
        shard_module(&mut module, &plan, 0, &ProcessGroup::of_world(world))?;
        let rule = OutputRule { reshard: Some(chunks(1, &[0, 1])), local: true };
        let x = cut(&[4, 6], &chunks(0, &[0, 1]), world)?;
        let ModuleTensor::Plain(part) = rule.apply(x.clone())? else { panic!("a sharded part") };
        assert_eq!(part.shape(), [4, 3]);
        // A dim of one index is dropped.
        let ModuleTensor::Plain(part) = rule.apply(cut(&[4, 2], &chunks(0, &[0, 1]), world)?)?
        else {
            panic!("a sharded part")
        };
        assert_eq!(part.shape(), [4]);
        let ModuleTensor::Sharded(same) = OutputRule::default().apply(x.clone())? else {
            panic!("a local part")
        };
        assert!(same.equal(&x)?);
        Ok(())
    });
}

#[test]
fn a_module_without_sharded_tensors_has_a_state_dict_like_any_other() {
    spmd(2, |_| {
        let mut module = model();
        let state = state_dict(&module);
        let names = ["fc.bias", "fc.weight", "fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"];
        assert!(state.keys().eq(names));
        assert!(state.values().all(|tensor| tensor.sharded().is_none()));
        module.tensors.insert("extra".into(), numbered(&[2]).into());
        for (_, child) in module.children_mut() {
            for (_, tensor) in child.tensors_mut() {
                *tensor = Tensor::zeros(tensor.plain().unwrap().shape(), DType::F32)?.into();
            }
        }
        // One is missing in the dict, which is an error only where all are wanted.
        assert!(load_state_dict(&mut module, &state, true).is_err());
        load_state_dict(&mut module, &state, false)?;
        for (path, tensor) in named_tensors(&module) {
            let tensor = tensor.plain().unwrap();
            assert!(tensor.equal(&numbered(tensor.shape()))?, "{path}");
        }
        Ok(())
    });
}

#[test]
fn sharded_parameters_have_the_names_and_the_order_of_whole_ones() {
    spmd(2, |world| {
        let names = |module: &Parts| -> Vec<String> {
            named_tensors(module).into_iter().map(|(path, _)| path).collect()
        };
        let (whole, mut cut) = (model(), model());
        let plan = ShardingPlan::new()
            .shard("fc1.weight", chunks(0, &[0, 1]))
            .shard("fc2.bias", chunks(0, &[1, 0]));
        shard_module(&mut cut, &plan, 0, &ProcessGroup::of_world(world))?;
        assert_eq!(names(&cut), names(&whole));
        assert_eq!(paths(&cut, true), ["fc1.weight", "fc2.bias"]);
        // An optimizer of all knows them by these names, and steps those that have a gradient.
        let mut optimizer = ShardedOptimizer::new(&cut, Sgd { lr: 1.0, ..Sgd::default() });
        let groups: Vec<Vec<String>> =
            optimizer.param_groups_mut().map(|(_, own)| own.to_vec()).collect();
        assert_eq!(groups, [names(&whole)]);
        let tensors = named_tensors(&cut).into_iter();
        let ones = tensors
            .filter_map(|(path, tensor)| Some((path, tensor.sharded()?.ones_like())))
            .map(|(path, ones)| Ok((path, ones?.into())));
        let gradients = ones.collect::<Result<StateDict>>()?;
        optimizer.step(&mut cut, &gradients)?;
        let steps: Vec<String> = optimizer.state_dict()?.into_keys().collect();
        assert_eq!(steps, ["fc1.weight.step", "fc2.bias.step"]);
        for ((path, tensor), (_, before)) in named_tensors(&cut).iter().zip(named_tensors(&whole)) {
            let before = before.plain().unwrap();
            let (got, want) = match tensor {
                ModuleTensor::Plain(tensor) => (tensor.clone(), before.clone()),
                ModuleTensor::Sharded(tensor) => (tensor.full_tensor()?, before.sub_scalar(1.0)?),
            };
            assert!(got.equal(&want)?, "{path}");
        }
        Ok(())
    });
}

#[test]
fn a_state_dict_has_sharded_tensors_and_gives_them_back() {
    spmd(2, |world| {
        let group = ProcessGroup::of_world(world);
        let plan = ShardingPlan::new()
            .shard("fc1.weight", chunks(0, &[0, 1]))
            .shard("fc2.weight", chunks(1, &[1, 0]));
        let mut saved = model();
        shard_module(&mut saved, &plan, 0, &group)?;
        let state = state_dict(&saved);
        assert_eq!(state.len(), 6);
        // Into a module that is not cut, cut alike, and cut otherwise.
        let other = ShardingPlan::new()
            .shard("fc1.weight", chunks(1, &[0, 1]))
            .shard("fc2.weight", chunks(1, &[1, 0]));
        for plan in [ShardingPlan::new(), plan, other] {
            let zeroed = |n: usize| {
                Parts::default()
                    .tensor("weight", Tensor::zeros(&[n, 3], DType::F32).unwrap())
                    .tensor("bias", Tensor::zeros(&[n], DType::F32).unwrap())
            };
            let mut module = Parts::default()
                .module("fc1", zeroed(6))
                .module("fc2", zeroed(5))
                .module("fc", zeroed(2));
            shard_module(&mut module, &plan, 0, &group)?;
            let spec = named_tensors(&module)[3]
                .1
                .sharded()
                .map(|tensor| tensor.metadata().shards_metadata.clone());
            load_state_dict(&mut module, &state, true)?;
            for (path, tensor) in named_tensors(&module) {
                let whole = match tensor {
                    ModuleTensor::Plain(tensor) => tensor.clone(),
                    ModuleTensor::Sharded(tensor) => tensor.full_tensor()?,
                };
                assert!(whole.equal(&numbered(whole.shape()))?, "{path}");
            }
            // It stays cut as it was.
            if let Some(spec) = spec {
                assert_eq!(
                    named_tensors(&module)[3].1.sharded().unwrap().metadata().shards_metadata,
                    spec
                );
            }
        }
        Ok(())
    });
}

#[test]
fn a_state_dict_that_does_not_fit_changes_nothing() {
    spmd(1, |_| {
        let mut module = model();
        let mut state = state_dict(&module);
        state.remove("fc.bias");
        assert!(load_state_dict(&mut module, &state, true).is_err());
        assert!(load_state_dict(&mut module, &state, false).is_ok());
        state.insert("fc1.weight".into(), numbered(&[1]).into());
        state.insert("fc1.bias".into(), Tensor::zeros(&[6], DType::F32)?.into());
        assert!(matches!(
            load_state_dict(&mut module, &state, false),
            Err(Error::Unsupported { .. })
        ));
        assert!(named_tensors(&module)[2].1.plain().unwrap().equal(&numbered(&[6]))?);
        Ok(())
    });
}

/// What a state dict has was computed, and wants gradients: in PyTorch, too, loading is no operation that is
/// differentiated.
#[test]
fn what_is_loaded_is_a_leaf_that_wants_gradients_as_the_module_does() {
    spmd(2, |world| {
        let rows = chunks(0, &[0, 1]);
        let mut stored = cut(&[4, 6], &rows, world)?;
        stored.set_requires_grad(true)?;
        let computed = stored.mul(2.0)?;
        let state = StateDict::from([("w".to_string(), computed.clone().into())]);
        // The last is no layout: gradients could not pass to it.
        for (spec, wants_grad) in [
            (rows.clone(), true),
            (rows, false),
            (chunks(1, &[0, 1]), true),
            (chunks(1, &[1, 0, 0]), true),
        ] {
            let mut own = cut(&[4, 6], &spec, world)?.to_dtype(DType::F64)?;
            own.set_requires_grad(wants_grad)?;
            let mut module = Parts::default().tensor("w", own);
            load_state_dict(&mut module, &state, true)?;
            let loaded = module.tensors["w"].sharded().unwrap();
            assert!(loaded.is_leaf(), "{spec:?}");
            assert_eq!((loaded.requires_grad(), loaded.dtype()), (wants_grad, DType::F64));
            let want = numbered(&[4, 6]).mul_scalar(2.0)?.to_dtype(DType::F64)?;
            assert!(loaded.full_tensor()?.equal(&want)?, "{spec:?}");
        }
        // In the place of a whole tensor, which does not know what gradients are.
        let mut module = Parts::default().tensor("w", numbered(&[4, 6]));
        load_state_dict(&mut module, &state, true)?;
        let loaded = module.tensors["w"].sharded().unwrap();
        assert!(loaded.is_leaf() && loaded.requires_grad());
        assert!(!computed.is_leaf());
        Ok(())
    });
}

/// As [`load_with_process_group`] does it for a whole module: stored by ranks of a group, and read on a group
/// that was made anew.
#[test]
fn a_state_dict_that_a_sub_group_has_stored_is_loaded_on_a_new_group() {
    spmd(4, |world| {
        let plan = |dim: isize| {
            ShardingPlan::new()
                .shard("fc1.weight", chunks(dim, &[3, 1]))
                .shard("fc2.weight", chunks(0, &[1, 3, 1]))
        };
        let group = ProcessGroup::new(world, &[1, 3])?;
        let mut saved = model();
        shard_module(&mut saved, &plan(0), 0, &group)?;
        let mut state = state_dict(&saved);
        let mut stored: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for (path, tensor) in &state {
            if let ModuleTensor::Sharded(tensor) = tensor {
                stored.insert(path.clone(), tensor.to_bytes()?);
            }
        }
        state.retain(|_, tensor| tensor.plain().is_some());
        drop((saved, group));

        let new = ProcessGroup::new(world, &[1, 3])?;
        for (path, bytes) in stored {
            let read = load_with_process_group(&new, || ShardedTensor::from_bytes(&bytes))??;
            state.insert(path, read.into());
        }
        let mut module = model();
        for (_, child) in module.children_mut() {
            for (_, tensor) in child.tensors_mut() {
                *tensor = tensor.plain().unwrap().zeros_like()?.into();
            }
        }
        shard_module(&mut module, &plan(1), 0, &new)?;
        load_state_dict(&mut module, &state, true)?;
        for (path, tensor) in named_tensors(&module) {
            let whole = match tensor {
                ModuleTensor::Plain(tensor) => tensor.clone(),
                ModuleTensor::Sharded(tensor) if new.rank().is_some() => tensor.full_tensor()?,
                ModuleTensor::Sharded(tensor) => {
                    assert_eq!(tensor.local_shards().len(), 0, "{path}");
                    continue;
                }
            };
            assert!(whole.equal(&numbered(whole.shape()))?, "{path}");
        }
        Ok(())
    });
}

/// Cuts the first tables of a collection by rows and the others by columns, in a module of its own.
struct OfTables {
    n_by_rows: usize,
}

impl Sharder for OfTables {
    fn shard(
        &self,
        module: &mut dyn ShardableModule,
        group: &ProcessGroup,
    ) -> Result<Option<Box<dyn ShardableModule>>> {
        let mut cut = Parts::default();
        for (index, (name, table)) in module.tensors().into_iter().enumerate() {
            let Some(table) = table.plain().filter(|_| name.starts_with("table")) else {
                let what = format!("`{name}` is no table");
                return Err(Error::Unsupported {
                    op: "shard".into(),
                    what: what.into(),
                    way_out: "leave other modules to others".into(),
                });
            };
            let dim = isize::from(index >= self.n_by_rows);
            let table = shard_tensor(table, chunks(dim, group.world_ranks()), 0, group)?;
            cut = cut.tensor(&name, table);
        }
        Ok(Some(Box::new(cut)))
    }
}

/// The sums of the bags of every table, side by side.
fn pooled(module: &dyn ShardableModule, ids: &Tensor) -> Result<Tensor> {
    let sums = BagOptions { mode: BagMode::Sum, ..BagOptions::default() };
    let mut parts = Vec::new();
    for (_, table) in named_tensors(module) {
        parts.push(match table {
            ModuleTensor::Sharded(table) => embedding_bag(ids, None, table, &sums)?,
            ModuleTensor::Plain(table) => table.embedding(ids)?.sum(&[1], false)?,
        });
    }
    Ok(Tensor::cat(&parts.iter().collect::<Vec<_>>(), 1)?)
}

#[test]
fn a_collection_of_tables_cut_by_its_own_sharder_computes_what_it_did() {
    spmd(4, |world| {
        let table = |n: usize| numbered(&[10, 8]).mul_scalar(0.25 - n as f64).unwrap();
        let tables = || {
            (0..6).fold(Parts::default(), |parts, n| parts.tensor(&format!("table{n}"), table(n)))
        };
        let whole = Parts::default().module("tables", tables());
        let mut sharded = Parts::default().module("tables", tables());
        let plan = ShardingPlan::new().shard_by("tables", OfTables { n_by_rows: 2 });
        shard_module(&mut sharded, &plan, 0, &ProcessGroup::of_world(world))?;
        for (path, tensor) in named_tensors(&sharded) {
            let dim = isize::from(!["tables.table0", "tables.table1"].contains(&&*path));
            let spec = tensor.sharded().unwrap().sharding_spec();
            assert_eq!(spec.as_chunk(), chunks(dim, &[0, 1, 2, 3]).as_chunk(), "{path}");
        }
        // Other bags on every rank.
        let ids = (0..8).map(|n| (3 * n + world.rank() as i64) % 10).collect();
        let ids = Tensor::from_vec(ids, &[2, 4])?;
        assert!(pooled(&sharded, &ids)?.equal(&pooled(&whole, &ids)?)?);
        Ok(())
    });
    // It does not know other modules.
    let error = same_error(2, |world| {
        let mut module =
            Parts::default().module("tower", Parts::default().tensor("w", numbered(&[2])));
        let plan = ShardingPlan::new().shard_by("tower", OfTables { n_by_rows: 1 });
        shard_module(&mut module, &plan, 0, &ProcessGroup::of_world(world))
    });
    assert!(matches!(error.cause(), Error::Unsupported { .. }), "{error}");
}

/// A module that keeps the rule it is told.
#[derive(Default)]
struct Told(Option<OutputRule>);

impl ShardableModule for Told {
    fn tensors(&self) -> Vec<(String, &ModuleTensor)> {
        Vec::new()
    }

    fn tensors_mut(&mut self) -> Vec<(String, &mut ModuleTensor)> {
        Vec::new()
    }

    fn set_output(&mut self, output: OutputRule) -> Result<()> {
        self.0 = Some(output);
        Ok(())
    }
}

/// The other tests make rules by hand: here they come from the plan.
#[test]
fn a_plan_tells_modules_what_becomes_of_their_results() {
    spmd(2, |world| {
        let told = |plan: ShardingPlan| -> Result<Option<OutputRule>> {
            let mut module = Told::default();
            shard_module(&mut module, &plan, 0, &ProcessGroup::of_world(world))?;
            Ok(module.0)
        };
        let x = cut(&[4, 6], &chunks(0, &[0, 1]), world)?;
        assert!(told(ShardingPlan::new())?.is_none());
        let plan = ShardingPlan::new().output("", chunks(1, &[1, 0]));
        let resharded = told(plan.clone())?.expect("a rule").apply(x.clone())?;
        let spec = resharded.sharded().expect("a sharded result").sharding_spec().clone();
        assert_eq!(spec.as_chunk(), chunks(1, &[1, 0]).as_chunk());
        let both = told(plan.local_output(""))?.expect("a rule").apply(x.clone())?;
        assert_eq!(both.plain().expect("a local part").shape(), [4, 3]);
        let local = told(ShardingPlan::new().local_output(""))?.expect("a rule").apply(x)?;
        assert_eq!(local.plain().expect("a local part").shape(), [2, 6]);
        Ok(())
    });
}

#[test]
fn a_sharder_within_what_another_cuts_is_a_conflict() {
    let error = same_error(2, |world| {
        let mut module = Parts::default().module("tower", model());
        let plan = ShardingPlan::new().shard_by("tower", InPlace).shard_by("tower.fc1", InPlace);
        shard_module(&mut module, &plan, 0, &ProcessGroup::of_world(world))
    });
    assert!(matches!(error.cause(), Error::PlanConflict { .. }), "{error}");
}

#[test]
fn a_state_dict_of_another_kind_or_group_is_refused() {
    let refused = |stored: fn(&World) -> Result<ModuleTensor>| {
        same_error(2, |world| {
            let mut module = Parts::default().tensor("w", cut(&[4], &chunks(0, &[0, 1]), world)?);
            let state = StateDict::from([("w".to_string(), stored(world)?)]);
            load_state_dict(&mut module, &state, true)
        })
    };
    let whole = |_: &World| -> Result<ModuleTensor> { Ok(numbered(&[4]).into()) };
    assert!(matches!(refused(whole).cause(), Error::Unsupported { .. }));
    let smaller = |world: &World| -> Result<ModuleTensor> {
        Ok(cut(&[3], &chunks(0, &[0, 1]), world)?.into())
    };
    assert!(matches!(refused(smaller).cause(), Error::Unsupported { .. }));
    let elsewhere = |world: &World| -> Result<ModuleTensor> {
        let turned = ProcessGroup::new(world, &[1, 0])?;
        Ok(cut(&[4], &chunks(0, &[0, 1]), &turned)?.into())
    };
    assert!(matches!(refused(elsewhere).cause(), Error::MixedGroups { .. }));
}

/// A sharder that cannot on one rank.
struct FailsOn(usize);

impl Sharder for FailsOn {
    fn shard(
        &self,
        _: &mut dyn ShardableModule,
        group: &ProcessGroup,
    ) -> Result<Option<Box<dyn ShardableModule>>> {
        match group.rank() == Some(self.0) {
            true => Err(Error::EmptyModulePath),
            false => Ok(None),
        }
    }
}

#[test]
fn what_one_rank_cannot_shard_or_load_is_the_same_error_on_all() {
    let error = same_error(3, |world| {
        let mut module = Parts::default().module("tower", model());
        let plan = ShardingPlan::new().shard_by("tower", FailsOn(1));
        shard_module(&mut module, &plan, 0, &ProcessGroup::of_world(world))
    });
    assert!(matches!(error, Error::Rank { rank: 1, .. }), "{error}");
    let error = same_error(3, |world| {
        let columns = cut(&[4, 6], &chunks(1, &[0, 1, 2]), world)?;
        let mut module = Parts::default().tensor("w", cut(&[4, 6], &chunks(0, &[0, 1, 2]), world)?);
        let name = if world.rank() == 2 { "v" } else { "w" };
        let state = StateDict::from([(name.to_string(), columns.into())]);
        load_state_dict(&mut module, &state, true)
    });
    assert!(matches!(error, Error::Rank { rank: 2, .. }), "{error}");
}
