//! Optimizers on shards.

use std::collections::BTreeMap;

use dtensor::{DTensor, DeviceMesh, Placement::Replicate};
use dtensor_sharded::{
    DType, Error, ProcessGroup, Result, Tensor,
    module::{ModuleTensor, ShardableModule, ShardingPlan, StateDict, named_tensors, shard_module},
    ops::linear,
    optim::{AdamW, LocalOptimizer, Sgd, ShardedOptimizer},
    shard_tensor,
};
use dtensor_testing::spmd;

use crate::{
    parts::{Parts, model},
    support::{chunks, cut, numbered, same_error},
};

fn as_plain(tensor: &ModuleTensor) -> Result<Vec<f32>> {
    Ok(match tensor {
        ModuleTensor::Plain(tensor) => tensor.to_vec::<f32>()?,
        ModuleTensor::Sharded(tensor) => tensor.full_tensor()?.to_vec::<f32>()?,
    })
}

/// Trains a sharded and a whole module with the same gradients; state goes through a dict, and a reshard, on
/// the way.
fn trained<O: LocalOptimizer + Clone + Send + Sync>(optimizer: O) {
    spmd(3, |world| {
        let group = ProcessGroup::of_world(world);
        let (mut whole, mut sharded) = (model(), model());
        let plan = ShardingPlan::new()
            .shard("fc1.weight", chunks(0, &[2, 0, 1]))
            .shard("fc2.weight", chunks(1, &[0, 0, 2]));
        shard_module(&mut sharded, &plan, 0, &group)?;
        let mut of_whole = ShardedOptimizer::new(&whole, optimizer.clone());
        let mut of_sharded = ShardedOptimizer::of_paths(&["fc1.weight"], optimizer.clone());
        of_sharded.add_param_group(&["fc2.weight", "fc1.bias"], optimizer.clone())?;
        assert!(of_sharded.add_param_group(&["fc1.bias"], optimizer.clone()).is_err());
        for step in 0..4 {
            if step == 2 {
                // Stored, read, and the parameter cut otherwise.
                let state = of_sharded.state_dict()?;
                of_sharded = ShardedOptimizer::of_paths(
                    &["fc1.weight", "fc2.weight", "fc1.bias"],
                    optimizer.clone(),
                );
                of_sharded.load_state_dict(&state)?;
                for (_, child) in sharded.children_mut() {
                    for (_, tensor) in child.tensors_mut() {
                        if let ModuleTensor::Sharded(tensor) = tensor {
                            tensor.reshard(chunks(0, &[1, 2]))?;
                        }
                    }
                }
            }
            let gradient = |path: &str, tensor: &ModuleTensor| -> Result<ModuleTensor> {
                let n = path.len() as f64 + step as f64;
                Ok(match tensor {
                    ModuleTensor::Plain(tensor) => tensor.mul_scalar(0.1)?.sub_scalar(n)?.into(),
                    ModuleTensor::Sharded(tensor) => tensor.mul(0.1)?.sub(n)?.into(),
                })
            };
            let of = |module: &Parts| -> Result<StateDict> {
                let wanted = ["fc1.weight", "fc2.weight", "fc1.bias"];
                let named =
                    named_tensors(module).into_iter().filter(|(path, _)| wanted.contains(&&**path));
                named.map(|(path, tensor)| Ok((path.clone(), gradient(&path, tensor)?))).collect()
            };
            let (a, b) = (of(&whole)?, of(&sharded)?);
            of_whole.step(&mut whole, &a)?;
            of_sharded.step(&mut sharded, &b)?;
        }
        for ((path, a), (_, b)) in named_tensors(&whole).into_iter().zip(named_tensors(&sharded)) {
            let (a, b) = (as_plain(a)?, as_plain(b)?);
            let close = a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-5 * (1.0 + a.abs()));
            assert!(close, "{path}: {a:?} {b:?}");
        }
        Ok(())
    });
}

#[test]
fn sharded_optimizers_are_those_of_whole_parameters() {
    trained(Sgd { lr: 0.1, ..Sgd::default() });
    trained(Sgd { lr: 0.1, momentum: 0.9, weight_decay: 0.01, ..Sgd::default() });
    trained(AdamW { lr: 0.1, ..AdamW::default() });
}

/// Forwards, backwards and a step, some times over: with a weight in chunks, and with the whole weight on one
/// rank.
fn learned<O: LocalOptimizer + Clone + Send + Sync>(optimizer: O) {
    let small = |size: &[usize]| numbered(size).mul_scalar(0.05)?.sub_scalar(0.4);
    spmd(2, |world| {
        let (input, weight, bias) = (small(&[4, 5])?, small(&[6, 5])?, small(&[6])?);
        for dim in [0, 1] {
            let mut cut = shard_tensor(&weight, chunks(dim, &[0, 1]), 0, world)?;
            cut.set_requires_grad(true)?;
            let mut module = Parts::default().tensor("w", cut);
            let mut of_cut = ShardedOptimizer::new(&module, optimizer.clone());
            let mut whole = Parts::default().tensor("w", weight.clone());
            let mut of_whole = ShardedOptimizer::new(&whole, optimizer.clone());
            let alone = DeviceMesh::of_world(world, "ranks")?.alone()?;
            let copy = |tensor: &Tensor| DTensor::from_local(tensor, &alone, &[Replicate]);
            for _ in 0..3 {
                let w = module.tensors["w"].sharded().unwrap();
                let loss = linear(&input, w, Some(&bias))?.tanh()?.square()?.sum(&[], false)?;
                let gradient = w.gradient(&loss.backward()?)?.expect("a gradient");
                of_cut.step(&mut module, &BTreeMap::from([("w".into(), gradient.into())]))?;

                let w = copy(whole.tensors["w"].plain().unwrap())?.requires_grad()?;
                let y = copy(&input)?.matmul(&w.transpose(0, 1)?)?.add(&copy(&bias)?)?;
                let gradients = y.tanh()?.square()?.sum(&[], false)?.backward()?;
                let gradient = gradients.get(&w).expect("a gradient").to_local();
                of_whole.step(&mut whole, &BTreeMap::from([("w".into(), gradient.into())]))?;
            }
            let (a, b) = (as_plain(&module.tensors["w"])?, as_plain(&whole.tensors["w"])?);
            let close = a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-5 * (1.0 + a.abs()));
            assert!(close, "{dim}: {a:?} {b:?}");
            let before = weight.to_vec::<f32>()?;
            assert!(
                a.iter().zip(&before).any(|(a, b)| (a - b).abs() > 1e-3),
                "nothing was learned"
            );
            assert!(module.tensors["w"].sharded().unwrap().requires_grad());
        }
        Ok(())
    });
}

#[test]
fn a_sharded_weight_learns_what_a_whole_one_does() {
    learned(Sgd { lr: 0.1, ..Sgd::default() });
    learned(Sgd { lr: 0.1, momentum: 0.9, nesterov: true, ..Sgd::default() });
    learned(AdamW { lr: 0.05, ..AdamW::default() });
}

#[test]
fn gradients_that_do_not_fit_change_nothing() {
    let error = same_error(2, |world| {
        let mut module = Parts::default()
            .tensor("a", cut(&[4], &chunks(0, &[0, 1]), world)?)
            .tensor("b", numbered(&[2]));
        let gradients: StateDict = BTreeMap::from([
            ("a".into(), ModuleTensor::from(cut(&[4], &chunks(0, &[1, 0]), world)?)),
            ("b".into(), numbered(&[2]).into()),
        ]);
        let mut optimizer = ShardedOptimizer::new(&module, Sgd { lr: 0.1, ..Sgd::default() });
        let result = optimizer.step(&mut module, &gradients);
        assert_eq!(as_plain(&module.tensors["b"])?, [0.0, 1.0]);
        assert!(optimizer.state_dict()?.is_empty());
        result
    });
    assert!(matches!(error, Error::Unsupported { .. }));
}

/// An optimizer of a user: momentum that is the sum of all gradients, and at one step something goes wrong.
#[derive(Clone, Copy)]
struct Faulty {
    at: u64,
    fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Fails,
    ReshapesParameter,
    ReshapesState,
    CastsState,
}

impl LocalOptimizer for Faulty {
    fn state_names(&self) -> &'static [&'static str] {
        &["sum", "other"]
    }

    fn step(
        &self,
        parameter: &mut Tensor,
        gradient: &Tensor,
        state: &mut [Tensor],
        step: u64,
    ) -> Result<(), dtensor_local::LocalError> {
        if step == self.at {
            match self.fault {
                Fault::Fails => return parameter.copy_from(&Tensor::zeros(&[7, 7], DType::F32)?),
                Fault::ReshapesParameter => *parameter = Tensor::zeros(&[7, 7], DType::F32)?,
                Fault::ReshapesState => state[1] = Tensor::zeros(&[7, 7], DType::F32)?,
                Fault::CastsState => state[1] = state[1].to_dtype(DType::F64)?,
            }
            return Ok(());
        }
        state[0] = state[0].add(gradient)?;
        *parameter = parameter.sub(&state[0])?;
        Ok(())
    }
}

/// A step had been counted, and states taken out for it were lost, when it failed.
#[test]
fn a_step_that_fails_leaves_a_state_that_can_be_stored_and_stepped() {
    let faults = [Fault::Fails, Fault::ReshapesParameter, Fault::ReshapesState, Fault::CastsState];
    for (fault, at) in faults.into_iter().flat_map(|fault| [(fault, 1), (fault, 3)]) {
        spmd(2, |world| {
            let spec = chunks(0, &[0, 1, 1, 0]);
            for is_sharded in [true, false] {
                let tensor = |value: f32| -> Result<ModuleTensor> {
                    let whole = Tensor::full(&[6, 2], value)?;
                    Ok(match is_sharded {
                        true => shard_tensor(&whole, &spec, 0, world)?.into(),
                        false => whole.into(),
                    })
                };
                let mut module = Parts::default().tensor("a", tensor(100.0)?);
                let gradients: StateDict = BTreeMap::from([("a".into(), tensor(1.0)?)]);
                let mut optimizer = ShardedOptimizer::new(&module, Faulty { at, fault });
                for _ in 1..at {
                    optimizer.step(&mut module, &gradients)?;
                }
                let error = optimizer.step(&mut module, &gradients).unwrap_err();
                let state = optimizer.state_dict()?;
                let lost_parameter = fault == Fault::ReshapesParameter;
                if at == 1 {
                    assert!(state.is_empty(), "{fault:?}: {error}");
                } else {
                    assert_eq!(state["a.step"].plain().unwrap().item::<i64>()?, 2, "{fault:?}");
                    assert_eq!(as_plain(&state["a.sum"])?, [2.0; 12], "{fault:?}");
                    assert_eq!(as_plain(&state["a.other"])?, [0.0; 12], "{fault:?}");
                }
                let value = if at == 1 { 100.0 } else { 97.0 };
                let parameter = as_plain(&module.tensors["a"])?;
                if !lost_parameter {
                    assert_eq!(parameter, [value; 12], "{fault:?}: {error}");
                }
                // The next one counts on, if it can.
                optimizer.param_groups_mut().for_each(|(faulty, _)| faulty.at = 0);
                optimizer.step(&mut module, &gradients)?;
                let state = optimizer.state_dict()?;
                assert_eq!(state["a.step"].plain().unwrap().item::<i64>()?, at as i64);
                assert_eq!(as_plain(&state["a.sum"])?, [at as f32; 12]);
                let stepped = parameter.iter().map(|value| value - at as f32);
                assert_eq!(as_plain(&module.tensors["a"])?, stepped.collect::<Vec<_>>());
            }
            Ok(())
        });
    }
}

#[test]
fn settings_of_groups_can_be_changed_on_the_way() {
    spmd(1, |_| {
        let mut module = Parts::default().tensor("a", Tensor::zeros(&[1], DType::F32)?);
        let gradient: StateDict =
            BTreeMap::from([("a".into(), Tensor::full(&[1], 1.0_f32)?.into())]);
        let mut optimizer = ShardedOptimizer::new(&module, Sgd { lr: 1.0, ..Sgd::default() });
        optimizer.step(&mut module, &gradient)?;
        optimizer.param_groups_mut().for_each(|(sgd, _)| sgd.lr = 0.5);
        optimizer.step(&mut module, &gradient)?;
        assert_eq!(as_plain(&module.tensors["a"])?, [-1.5]);
        Ok(())
    });
}

#[test]
fn a_state_that_lacks_a_tensor_is_refused_and_changes_nothing() {
    spmd(1, |_| {
        let mut module = Parts::default().tensor("a", Tensor::zeros(&[2], DType::F32)?);
        let gradient: StateDict =
            BTreeMap::from([("a".into(), Tensor::full(&[2], 1.0_f32)?.into())]);
        let sgd = Sgd { lr: 1.0, momentum: 0.9, ..Sgd::default() };
        let mut optimizer = ShardedOptimizer::new(&module, sgd);
        optimizer.step(&mut module, &gradient)?;
        let mut state = optimizer.state_dict()?;
        assert_eq!(state.keys().collect::<Vec<_>>(), ["a.momentum_buffer", "a.step"]);
        state.remove("a.momentum_buffer");
        let error = optimizer.load_state_dict(&state).unwrap_err();
        assert!(matches!(error, Error::NoSuchName { .. }), "{error}");
        assert_eq!(optimizer.state_dict()?.len(), 2);
        Ok(())
    });
}

#[test]
fn a_state_that_is_not_like_its_parameter_is_refused_before_anything_steps() {
    spmd(2, |world| {
        let rows = chunks(0, &[0, 1]);
        let part = |value: f32| Tensor::full(&[4], value);
        let mut module = Parts::default()
            .tensor("a", part(1.0)?)
            .tensor("b", shard_tensor(&part(1.0)?, &rows, 0, world)?);
        let gradients: StateDict = BTreeMap::from([
            ("a".into(), part(1.0)?.into()),
            ("b".into(), shard_tensor(&part(1.0)?, &rows, 0, world)?.into()),
        ]);
        let sgd = Sgd { lr: 1.0, momentum: 0.9, ..Sgd::default() };
        let mut optimizer = ShardedOptimizer::new(&module, sgd);
        optimizer.step(&mut module, &gradients)?;
        let mut state = optimizer.state_dict()?;
        state.insert("b.momentum_buffer".into(), part(1.0)?.into());
        optimizer.load_state_dict(&state)?;
        let error = optimizer.step(&mut module, &gradients).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        let tensors = dtensor_sharded::module::state_dict(&module);
        assert_eq!(tensors["a"].plain().unwrap().to_vec::<f32>()?, [0.0; 4]);
        assert_eq!(optimizer.state_dict()?.len(), 4);
        Ok(())
    });
}

/// What PyTorch's optimizer would do, and no error when half of the parameters have had their step.
#[test]
fn momentum_that_begins_later_begins_as_in_a_first_step() {
    spmd(2, |world| {
        let mut module = Parts::default().tensor("a", Tensor::full(&[4], 1.0_f32)?).tensor(
            "b",
            shard_tensor(&Tensor::full(&[4], 1.0_f32)?, chunks(0, &[0, 1]), 0, world)?,
        );
        let ones = module.tensors["b"].sharded().unwrap().ones_like()?;
        let gradients: StateDict = BTreeMap::from([
            ("a".into(), Tensor::full(&[4], 1.0_f32)?.into()),
            ("b".into(), ones.into()),
        ]);
        let sgd = Sgd { lr: 1.0, dampening: 0.25, ..Sgd::default() };
        let mut optimizer = ShardedOptimizer::new(&module, sgd);
        let mut stepped = |momentum: f64| -> Result<Vec<f32>> {
            optimizer.param_groups_mut().for_each(|(sgd, _)| sgd.momentum = momentum);
            optimizer.step(&mut module, &gradients)?;
            let (a, b) = (as_plain(&module.tensors["a"])?, as_plain(&module.tensors["b"])?);
            assert_eq!(a, b);
            // What is remembered goes through a dict, also while it is not needed.
            let state = optimizer.state_dict()?;
            optimizer.load_state_dict(&state)?;
            assert_eq!(state.len(), optimizer.state_dict()?.len());
            Ok(a)
        };
        assert_eq!(stepped(0.0)?, [0.0; 4]);
        // The direction is the gradient, without dampening; then half of it, and three quarters of the gradient.
        assert_eq!(stepped(0.5)?, [-1.0; 4]);
        assert_eq!(stepped(0.5)?, [-2.25; 4]);
        // Without momentum, and then with the direction of before.
        assert_eq!(stepped(0.0)?, [-3.25; 4]);
        assert_eq!(stepped(0.5)?, [-4.625; 4]);
        Ok(())
    });
}

#[test]
fn a_state_of_which_a_part_would_be_lost_is_refused_and_changes_nothing() {
    spmd(2, |world| {
        let mut module = Parts::default().tensor("a", Tensor::zeros(&[2], DType::F32)?);
        let gradient: StateDict =
            BTreeMap::from([("a".into(), Tensor::full(&[2], 1.0_f32)?.into())]);
        let sgd = Sgd { lr: 1.0, momentum: 0.9, ..Sgd::default() };
        let mut optimizer = ShardedOptimizer::new(&module, sgd);
        optimizer.step(&mut module, &gradient)?;
        let state = optimizer.state_dict()?;
        let sharded = cut(&[2], &chunks(0, &[0, 1]), world)?;
        let changes: [(&str, Option<ModuleTensor>); 6] = [
            ("a.step", None),
            ("a.exp_avg", Some(numbered(&[2]).into())),
            ("b.step", Some(Tensor::full(&[], 1_i64)?.into())),
            ("a.step", Some(sharded.into())),
            ("a.step", Some(Tensor::full(&[], -1_i64)?.into())),
            ("a.step", Some(numbered(&[1]).into())),
        ];
        for (key, change) in changes {
            let mut other = state.clone();
            match change {
                Some(tensor) => other.insert(key.into(), tensor),
                None => other.remove(key),
            };
            let error = optimizer.load_state_dict(&other).unwrap_err();
            assert!(error.to_string().contains(key), "{error}");
            let kept = optimizer.state_dict()?;
            assert_eq!(kept["a.step"].plain().unwrap().item::<i64>()?, 1);
            assert_eq!(as_plain(&kept["a.momentum_buffer"])?, [1.0; 2]);
        }
        Ok(())
    });
}
