//! Parameters in parts: what is held, what is sent, and what goes on after a mistake.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh, Error as TensorError, Gradients, Phase,
    Placement::{self, Replicate, Shard},
    Tensor, no_grad,
    plan::StepKind::{AllGather, AllReduce, ReduceScatter},
};
use dtensor_nn::{
    Activation, ColwiseParallel, Embedding, Error, Forward, FullyShardOptions, Linear, Mlp, Module,
    ModuleState, Optimizer, Parameter, Plan, Result, Sgd, distribute_module, fully_shard,
    named_buffers, named_parameters, parallelize_module, parameters, replicate,
};
use dtensor_testing::spmd;

use crate::support::{Shards, assert_close, copies, fill, mesh, tensor};

/// A layer that shows what it computes with, and that can be made to fail.
#[derive(Clone, Module)]
struct Peek {
    weight: Parameter,
    #[module(skip)]
    seen: Arc<Mutex<Option<Tensor>>>,
    #[module(skip)]
    fails: Arc<AtomicBool>,
    state: ModuleState,
}

impl Peek {
    fn new(seed: f64, mesh: &DeviceMesh) -> Result<Peek> {
        let weight = Parameter::new(&tensor(&[7, 7], seed, DType::F64, mesh, &copies(mesh)))?;
        Ok(Peek {
            weight,
            seen: Arc::default(),
            fails: Arc::default(),
            state: ModuleState::default(),
        })
    }

    /// Whether anybody but this test has what was gathered last. If somebody has, it is copied to be changed.
    fn is_held(&self) -> bool {
        let mut gathered = self.seen.lock().unwrap().take().unwrap();
        assert_eq!(gathered.shape(), [7, 7], "the whole was computed with");
        let before = gathered.as_slice::<f64>().unwrap().as_ptr();
        before != gathered.as_mut_slice::<f64>().unwrap().as_ptr()
    }
}

impl Forward for Peek {
    fn forward(&self, x: &DTensor) -> dtensor::Result<DTensor> {
        let weight = self.weight.get()?;
        *self.seen.lock().unwrap() = Some(weight.to_local());
        if self.fails.load(Ordering::Relaxed) {
            let (what, way_out) = ("on purpose".into(), "do not");
            return Err(TensorError::Unsupported { op: "peek", what, way_out });
        }
        x.matmul(&weight)?.tanh()
    }
}

/// Two of them.
#[derive(Clone, Module)]
struct Pair {
    first: Peek,
    second: Peek,
    state: ModuleState,
}

impl Pair {
    /// Each a unit, and the pair as well.
    fn new(options: &FullyShardOptions, mesh: &DeviceMesh) -> Result<Pair> {
        let (first, second) = (Peek::new(1.0, mesh)?, Peek::new(2.0, mesh)?);
        let mut pair = Pair { first, second, state: ModuleState::default() };
        fully_shard(&mut pair.first, "x", options)?;
        fully_shard(&mut pair.second, "x", options)?;
        fully_shard(&mut pair, "x", options)?;
        Ok(pair)
    }

    fn loss(&self, mesh: &DeviceMesh) -> dtensor::Result<DTensor> {
        let x = tensor(&[5, 7], 3.0, DType::F64, mesh, &[Shard(0)]);
        self.call(&x)?.square()?.sum(&[], false)
    }
}

impl Forward for Pair {
    fn forward(&self, x: &DTensor) -> dtensor::Result<DTensor> {
        self.second.call(&self.first.call(x)?)
    }
}

fn all_options() -> Vec<FullyShardOptions> {
    let mut all = Vec::new();
    for (prefetch, reshards) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut options = FullyShardOptions::default();
        (options.prefetch, options.reshard_after_forward) = (prefetch, reshards);
        all.push(options);
    }
    all
}

#[test]
fn only_parts_are_held_after_the_module_has_run() {
    for options in all_options() {
        spmd(3, |world| {
            let mesh = mesh(world, &[("x", 3)]);
            let pair = Pair::new(&options, &mesh)?;
            let rows = [3, 3, 1][world.rank()];
            assert_eq!(pair.first.weight.value().local_bytes(), rows * 7 * 8);
            // Without gradients nothing is kept, whatever the options.
            no_grad(|| pair.loss(&mesh))?;
            assert!(!pair.first.is_held() && !pair.second.is_held(), "{options:?}");
            let loss = pair.loss(&mesh)?;
            let is_kept = !options.reshard_after_forward;
            // The graph is there, and has the parts alone.
            // The first one's is needed by nobody: what it is multiplied with has no gradient.
            assert_eq!((pair.first.is_held(), pair.second.is_held()), (false, is_kept));
            let gradients = loss.backward()?;
            assert_eq!(gradients.len(), 2);
            pair.loss(&mesh)?.backward()?;
            assert!(!pair.first.is_held() && !pair.second.is_held(), "{options:?}");
            Ok(())
        });
    }
}

#[test]
fn parameters_of_any_shape_are_cut_along_any_dim() {
    for ranks in [2, 3, 4] {
        for dim in [0, 1, 5] {
            spmd(ranks, |world| {
                let mesh = mesh(world, &[("x", ranks)]);
                let make = || {
                    let mlp = Mlp::new(5, 3, Activation::Gelu, true, DType::F64, &mesh)?;
                    fill(&mlp)?;
                    Ok::<_, Error>(mlp)
                };
                let x = tensor(&[7, 5], 1.0, DType::F64, &mesh, &[Shard(0)]);
                let grads = |mlp: &Mlp| {
                    let gradients = mlp.call(&x)?.square()?.sum(&[], false)?.backward()?;
                    let one = |(_, own): &(String, Parameter)| {
                        let gradient = gradients.get(&own.value()).unwrap();
                        assert_eq!(gradient.layout(), &own.layout());
                        gradient.to_vec::<f64>()
                    };
                    named_parameters(mlp).iter().map(one).collect::<dtensor::Result<Vec<_>>>()
                };
                let want = grads(&make()?)?;
                let mut mlp = make()?;
                let mut options = FullyShardOptions::default();
                options.dim = dim;
                fully_shard(&mut mlp, "x", &options)?;
                assert_eq!(mlp.w1.weight.layout().placements(), [Shard(dim.min(1))]);
                assert_eq!(mlp.w1.bias.as_ref().unwrap().layout().placements(), [Shard(0)]);
                for (got, want) in grads(&mlp)?.iter().zip(&want) {
                    assert_close(got, want, 1e-13, &format!("dim {dim} on {ranks}"));
                }
                Ok(())
            });
        }
    }
}

/// A scalar and a parameter without elements are no reason to fail.
#[test]
fn what_cannot_be_cut_is_a_copy() {
    #[derive(Module)]
    struct Scaled {
        scale: Parameter,
        none: Parameter,
        state: ModuleState,
    }
    impl Forward for Scaled {
        fn forward(&self, x: &DTensor) -> dtensor::Result<DTensor> {
            self.none.get()?;
            x.mul(&self.scale.get()?)
        }
    }
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let mut scaled = Scaled {
            scale: Parameter::new(&dtensor::full(&[], 2.0_f64, &mesh, &[Replicate])?)?,
            none: Parameter::new(&dtensor::zeros(&[0, 3], DType::F64, &mesh, &[Replicate])?)?,
            state: ModuleState::default(),
        };
        fully_shard(&mut scaled, "x", &FullyShardOptions::default())?;
        assert_eq!(scaled.scale.layout().placements(), [Replicate]);
        let x = tensor(&[3], 1.0, DType::F64, &mesh, &[Shard(0)]);
        let gradients = scaled.call(&x)?.sum(&[], false)?.backward()?;
        let of_scale = gradients.get(&scaled.scale.value()).unwrap().item::<f64>()?;
        assert!((of_scale - x.sum(&[], false)?.item::<f64>()?).abs() < 1e-14);
        Ok(())
    });
}

#[test]
fn a_mistake_within_leaves_everything_usable() {
    for options in all_options() {
        spmd(2, |world| {
            let mesh = mesh(world, &[("x", 2)]);
            let pair = Pair::new(&options, &mesh)?;
            let want = pair.loss(&mesh)?.item::<f64>()?;
            for part in [&pair.first, &pair.second] {
                part.fails.store(true, Ordering::Relaxed);
                assert!(pair.loss(&mesh).is_err());
                part.fails.store(false, Ordering::Relaxed);
                assert!(!part.is_held(), "{options:?}");
                let loss = pair.loss(&mesh)?;
                assert_eq!(loss.item::<f64>()?, want);
                assert_eq!(loss.backward()?.len(), 2);
            }
            // What was on its way when the first failed is not what the second is computed with later.
            pair.first.fails.store(true, Ordering::Relaxed);
            assert!(pair.loss(&mesh).is_err());
            pair.first.fails.store(false, Ordering::Relaxed);
            let leaf = pair.second.weight.value();
            let mut gradients = Gradients::default();
            gradients.insert(&leaf, leaf.detach());
            drop(leaf);
            Sgd::new(vec![pair.second.weight.clone()], 1.0).step(&gradients)?;
            let loss = pair.loss(&mesh)?;
            assert_eq!(loss.item::<f64>()?, 0.0, "the weight is zero now");
            assert!(loss.backward()?.get(&pair.second.weight.value()).is_some());
            // Nor what is no longer learnt.
            pair.first.fails.store(true, Ordering::Relaxed);
            assert!(pair.loss(&mesh).is_err());
            pair.first.fails.store(false, Ordering::Relaxed);
            pair.second.weight.set_learnt(false)?;
            assert_eq!(pair.loss(&mesh)?.backward()?.len(), 1);
            Ok(())
        });
    }
}

/// One parameter as a table and as the last product.
#[derive(Module)]
struct Tied {
    table: Embedding,
    head: Linear,
    state: ModuleState,
}

impl Tied {
    fn new(mesh: &DeviceMesh) -> Result<Tied> {
        let table = Embedding::of(&tensor(&[7, 4], 1.0, DType::F64, mesh, &copies(mesh)))?;
        let mut head = Linear::new(4, 7, false, DType::F64, mesh)?;
        head.weight = table.weight.clone();
        Ok(Tied { table, head, state: ModuleState::default() })
    }

    fn gradient(&self, mesh: &DeviceMesh) -> Result<(DTensor, CommDebug)> {
        let ids = Tensor::from_slice(&[0_i64, 6, 2, 2, 5], &[5]).unwrap();
        let ids = dtensor::distribute_tensor_from(&ids, mesh, &[Shard(0)], None)?;
        let (gradients, comm) = CommDebug::record(|| {
            let loss = dtensor_nn::cross_entropy(&self.call(&ids)?, &ids)?;
            loss.backward()
        });
        let gradients = gradients?;
        assert_eq!(gradients.len(), 1);
        Ok((gradients.get(&self.table.weight.value()).unwrap().clone(), comm))
    }
}

impl Forward for Tied {
    fn forward(&self, ids: &DTensor) -> dtensor::Result<DTensor> {
        self.head.call(&self.table.call(ids)?)
    }
}

#[test]
fn tied_weights_are_one_parameter() {
    spmd(3, |world| {
        let mesh = mesh(world, &[("x", 3)]);
        let (want, _) = Tied::new(&mesh)?.gradient(&mesh)?;
        let want = want.to_vec::<f64>()?;
        // Together in a unit, and each in one of its own.
        for apart in [false, true] {
            let mut tied = Tied::new(&mesh)?;
            if apart {
                fully_shard(&mut tied.table, "x", &FullyShardOptions::default())?;
                fully_shard(&mut tied.head, "x", &FullyShardOptions::default())?;
            }
            fully_shard(&mut tied, "x", &FullyShardOptions::default())?;
            assert!(tied.head.weight.is_same(&tied.table.weight));
            assert_eq!(parameters(&tied).len(), 1);
            let (gradient, comm) = tied.gradient(&mesh)?;
            assert_eq!(gradient.layout(), &tied.table.weight.layout());
            assert_close(&gradient.to_vec::<f64>()?, &want, 1e-13, "tied");
            let gathers = |phase: Phase| {
                let of_phase = comm.events.iter().filter(|event| event.phase == phase);
                of_phase.filter(|event| event.kind == AllGather).count()
            };
            assert_eq!(gathers(Phase::Forward), if apart { 2 } else { 1 });
            // What a unit does not see of its parameter comes by itself: its gradient does not wait for the other's.
            let reductions = if apart { 2 } else { 1 };
            assert_eq!((gathers(Phase::Backward), comm.calls_of(ReduceScatter)), (1, reductions));
        }
        Ok(())
    });
}

#[test]
fn half_the_bytes_are_gathered_and_gradients_reduced_in_full() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let make = || {
            let layer = Linear::new(6, 4, false, DType::F32, &mesh)?;
            fill(&layer)?;
            Ok::<_, Error>(layer)
        };
        let x = tensor(&[8, 6], 1.0, DType::F32, &mesh, &[Shard(0)]);
        let run = |layer: &Linear| {
            let (gradients, comm) = CommDebug::record(|| {
                let y = layer.call(&x)?;
                let dtype = y.dtype();
                Ok::<_, TensorError>((y.square()?.sum(&[], false)?.backward()?, dtype))
            });
            let (gradients, dtype) = gradients?;
            let gradient = gradients.get(&layer.weight.value()).unwrap().clone();
            assert_eq!((gradient.dtype(), gradient.layout()), (DType::F32, &layer.weight.layout()));
            let bytes = |kind| -> u128 {
                let of_kind = comm.events.iter().filter(|event| event.kind == kind);
                of_kind.map(|event| event.bytes).sum()
            };
            let sent = (bytes(AllGather), bytes(ReduceScatter));
            let values = gradient.to_dtype(DType::F64)?.to_vec::<f64>()?;
            Ok::<_, Error>((values, dtype, sent))
        };
        let options = FullyShardOptions::default();
        let mut full = make()?;
        fully_shard(&mut full, "x", &options)?;
        let (want, dtype, sent) = run(&full)?;
        // Every rank sends its half to the other: there, and with a need for the operand's gradient back.
        assert_eq!((dtype, sent), (DType::F32, (96, 96)));
        let mut mixed = make()?;
        fully_shard(&mut mixed, "x", &options.clone().mixed_precision(DType::Bf16, DType::F32))?;
        assert_eq!(mixed.weight.value().dtype(), DType::F32);
        let (got, dtype, sent) = run(&mixed)?;
        assert_eq!((dtype, sent), (DType::Bf16, (48, 96)));
        assert_close(&got, &want, 0.02, "bf16");
        assert!(got.iter().zip(&want).any(|(a, b)| a != b), "it was computed in bf16");
        let mut small = make()?;
        let mut options = options.mixed_precision(DType::Bf16, DType::Bf16);
        options.output_dtype = Some(DType::F32);
        fully_shard(&mut small, "x", &options)?;
        let (got, dtype, sent) = run(&small)?;
        assert_eq!((dtype, sent), (DType::F32, (48, 48)));
        assert_close(&got, &want, 0.04, "bf16, reduced so");
        Ok(())
    });
}

/// Units for their dtypes alone: on copies, and on what tensor parallel has cut.
#[test]
fn copies_have_dtypes_too() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let x = tensor(&[8, 6], 1.0, DType::F32, &mesh, &[Replicate]);
        for placement in [Replicate, Shard(0)] {
            let mut layer = Linear::new(6, 4, false, DType::F32, &mesh)?;
            fill(&layer)?;
            let want = layer.call(&x)?.to_dtype(DType::F64)?.to_vec::<f64>()?;
            if placement != Replicate {
                let plan = Plan::new().with("", ColwiseParallel::default());
                parallelize_module(&mut layer, &mesh, "x", &plan)?;
            }
            let options = FullyShardOptions::default().mixed_precision(DType::Bf16, DType::F32);
            replicate(&mut layer, "x", &options)?;
            assert_eq!(layer.weight.layout().placements(), [placement]);
            let x = if placement == Replicate { x.redistribute(&[Shard(0)])? } else { x.clone() };
            let y = layer.call(&x)?;
            assert_eq!(y.dtype(), DType::Bf16);
            assert_close(&y.to_dtype(DType::F64)?.to_vec::<f64>()?, &want, 0.02, "bf16");
            let (gradients, comm) = CommDebug::record(|| y.square()?.sum(&[], false)?.backward());
            let gradients = gradients?;
            let gradient = gradients.get(&layer.weight.value()).unwrap();
            assert_eq!((gradient.dtype(), gradient.placements()), (DType::F32, &[placement][..]));
            assert_eq!(comm.calls_of(AllReduce), usize::from(placement == Replicate), "{comm}");
        }
        Ok(())
    });
}

/// Numbers of rows as bf16 would be others, and half a mean is no mean.
#[test]
fn buffers_stay_as_they_are() {
    #[derive(Module)]
    struct Buffered {
        weight: Parameter,
        rows: Parameter,
        mean: Parameter,
        state: ModuleState,
    }
    impl Forward for Buffered {
        fn forward(&self, x: &DTensor) -> dtensor::Result<DTensor> {
            let (rows, mean) = (self.rows.get()?, self.mean.get()?);
            assert_eq!((rows.dtype(), mean.dtype()), (DType::I64, DType::F64));
            let weight = self.weight.get()?;
            assert_eq!((weight.dtype(), weight.placements()), (DType::Bf16, &[Replicate][..]));
            x.matmul(&weight.index_select(0, &rows)?)?.sub(&mean)
        }
    }
    for shard in [fully_shard as Shards, replicate] {
        spmd(2, |world| {
            let mesh = mesh(world, &[("x", 2)]);
            let rows = Tensor::from_slice(&[257_i64, 3, 259, 258], &[4]).unwrap();
            let rows = dtensor::distribute_tensor_from(&rows, &mesh, &[Replicate], None)?;
            let mut module = Buffered {
                weight: Parameter::new(&tensor(&[260, 3], 1.0, DType::F64, &mesh, &[Replicate]))?,
                rows: Parameter::frozen(&rows),
                mean: Parameter::frozen(&tensor(&[3], 2.0, DType::F64, &mesh, &[Replicate])),
                state: ModuleState::default(),
            };
            let names = |of: Vec<(String, Parameter)>| -> Vec<String> {
                of.into_iter().map(|(name, _)| name).collect()
            };
            assert_eq!(names(named_buffers(&module)), ["rows", "mean"]);
            assert_eq!(names(named_parameters(&module)), ["weight", "rows", "mean"]);
            let options = FullyShardOptions::default().mixed_precision(DType::Bf16, DType::F64);
            shard(&mut module, "x", &options)?;
            for buffer in [&module.rows, &module.mean] {
                assert_eq!(buffer.layout().placements(), [Replicate]);
            }
            assert_eq!(module.rows.value().to_vec::<i64>()?, [257, 3, 259, 258]);
            let x = tensor(&[6, 4], 3.0, DType::F64, &mesh, &[Shard(0)]);
            assert_eq!(module.call(&x)?.square()?.sum(&[], false)?.backward()?.len(), 1);
            // A weight that is not learnt for a while is cut like any other.
            module.weight.set_learnt(false)?;
            assert_eq!(names(named_buffers(&module)), ["rows", "mean"]);
            // A buffer that is learnt from now on is none.
            module.mean.set_learnt(true)?;
            assert_eq!(names(named_buffers(&module)), ["rows"]);
            Ok(())
        });
    }
}

/// It would be cut, and then gathered as if it was not.
#[test]
fn what_is_gathered_is_not_placed_afterwards() {
    for shard in [fully_shard as Shards, replicate] {
        spmd(4, |world| {
            let mesh = mesh(world, &[("x", 2), ("y", 2)]);
            let mut mlp = Mlp::new(5, 3, Activation::Gelu, true, DType::F64, &mesh)?;
            let columns = |pattern: &str| Plan::new().with(pattern, ColwiseParallel::default());
            shard(&mut mlp.w1, "x", &FullyShardOptions::default())?;
            let before = mlp.w1.weight.layout();
            let refused = |outcome: Result<()>, op: &'static str| {
                let name = "w1.weight".to_owned();
                assert_eq!(outcome, Err(Error::GatheredAlready { op, name }));
            };
            refused(parallelize_module(&mut mlp, &mesh, "y", &columns("w*")), "parallelize_module");
            let copies = |_: &str, _: &DTensor| None;
            let outcome = distribute_module(&mut mlp, &mesh, copies, None, None);
            refused(outcome, "distribute_module");
            assert_eq!(mlp.w1.weight.layout(), before);
            assert_eq!(mlp.w2.weight.layout().placements(), [Replicate, Replicate]);
            // What is not gathered may still be placed.
            parallelize_module(&mut mlp, &mesh, "y", &columns("w2"))?;
            assert_eq!(mlp.w2.weight.layout().placements(), [Replicate, Shard(0)]);
            Ok(())
        });
    }
}

#[test]
fn what_is_cut_already_is_refused_and_left_alone() {
    spmd(4, |world| {
        let mesh = mesh(world, &[("x", 2), ("y", 2)]);
        let mut mlp = Mlp::new(5, 3, Activation::Gelu, true, DType::F64, &mesh)?;
        let plan = Plan::new().with("w2", ColwiseParallel::default());
        parallelize_module(&mut mlp, &mesh, "y", &plan)?;
        let layouts = |mlp: &Mlp| -> Vec<Vec<Placement>> {
            let of = |(_, own): &(String, Parameter)| own.layout().placements().to_vec();
            named_parameters(mlp).iter().map(of).collect()
        };
        let before = layouts(&mlp);
        let options = FullyShardOptions::default();
        let error = fully_shard(&mut mlp, "y", &options).unwrap_err();
        assert!(
            matches!(&error, Error::AlreadyCut { name, axis, have: Shard(0) }
                if name == "w2.weight" && axis == "y"),
            "{error}"
        );
        assert!(fully_shard(&mut mlp, "z", &options).is_err());
        assert_eq!(layouts(&mlp), before);
        fully_shard(&mut mlp, "x", &options)?;
        let before = layouts(&mlp);
        for axis in ["x", "y"] {
            let error = fully_shard(&mut mlp, axis, &options).unwrap_err();
            assert!(error.to_string().starts_with("the module is gathered already"), "{error}");
        }
        assert_eq!(layouts(&mlp), before);
        let x = tensor(&[4, 5], 1.0, DType::F64, &mesh, &[Shard(0), Replicate]);
        assert_eq!(mlp.call(&x)?.square()?.sum(&[], false)?.backward()?.len(), 4);
        Ok(())
    });
}
