//! The tape: what is remembered, what is sent on the way back, and where gradients end up.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use dtensor::{
    BackwardOptions, CommDebug, DTensor, DType, DeviceMesh, Error, Keeper, LocalOperand,
    LocalOptions, LocalResult, Mesh, Phase,
    Placement::{self, Partial, Replicate, Shard},
    RedistributeOptions, ReduceOp, Result, World, arange, checkpoint, enable_grad, full, grad,
    is_grad_enabled, local_map, module_scope, no_grad, ones,
    plan::StepKind,
};
use dtensor_testing::{dense::Dense, spmd};

use crate::support::{layouts_of, mesh, place};

const SUM: Placement = Partial(ReduceOp::Sum);

fn numbers(shape: &[usize]) -> Dense {
    let n = shape.iter().product::<usize>();
    Dense::new(shape, (0..n).map(|at| (at as f64 * 0.37).sin() + 0.1).collect())
}

#[test]
fn a_gradient_arrives_in_the_layout_of_its_leaf() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let whole = numbers(&[5, 4]);
        for placement in [Replicate, Shard(0), Shard(1), SUM] {
            let x = place(&whole, DType::F64, &mesh, &[placement], 1).requires_grad()?;
            let gradients = x.mul(&x)?.sum(&[], false)?.backward()?;
            let gradient = gradients.get(&x).unwrap();
            let home = if placement == SUM { Replicate } else { placement };
            assert_eq!(gradient.placements(), [home]);
            let want: Vec<f64> = whole.data().iter().map(|value| 2.0 * value).collect();
            let got = gradient.to_vec::<f64>()?;
            assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-12), "{placement}");
        }
        Ok(())
    });
}

/// Fully sharded: the gradient of a cut weight is one reduce-scatter; of a copied one, one all-reduce.
#[test]
fn contributions_are_reduced_once_at_the_leaf() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = place(&numbers(&[6, 4]), DType::F64, &mesh, &[Shard(0)], 1);
        for (home, kind) in [(Shard(0), StepKind::ReduceScatter), (Replicate, StepKind::AllReduce)]
        {
            let w = place(&numbers(&[4, 3]), DType::F64, &mesh, &[home], 1).requires_grad()?;
            let whole = w.redistribute(&[Replicate])?;
            // Used twice: two pending sums, added before anything is sent.
            let y = x.matmul(&whole)?.add(&x.neg()?.matmul(&whole)?.mul(0.5)?)?;
            let loss = y.sum(&[], false)?;
            let (gradients, comm) = CommDebug::record(|| loss.backward());
            gradients?;
            assert_eq!((comm.calls(), comm.calls_of(kind)), (1, 1), "{comm}");
            assert!(comm.events.iter().all(|event| event.phase == Phase::Backward));
        }
        Ok(())
    });
}

#[test]
fn parts_of_a_batch_are_added_before_anything_is_sent() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let w = place(&numbers(&[4, 3]), DType::F64, &mesh, &[Shard(0)], 1).requires_grad()?;
        let options = BackwardOptions::default().unreduced();
        let single = RedistributeOptions::default().backward_dtype(DType::F32);
        let loss = |seed: f64| {
            let whole = w.redistribute_with(&[Replicate], &single)?;
            let x = place(&numbers(&[6, 4]), DType::F64, &mesh, &[Shard(0)], 1).mul(seed)?;
            x.matmul(&whole)?.sum(&[], false)
        };
        let (sum, comm) = CommDebug::record(|| {
            let mut sum = loss(1.0)?.backward_with(&options)?;
            sum.accumulate(loss(2.0)?.backward_with(&options)?)?;
            Ok::<_, Error>(sum)
        });
        let mut sum = sum?;
        assert_eq!(comm.calls_of(StepKind::AllGather), 2, "{comm}");
        assert_eq!(comm.calls(), 2, "{comm}");
        assert_eq!(sum.get(&w).unwrap().placements(), [SUM]);
        let (done, comm) = CommDebug::record(|| sum.reduce());
        done?;
        assert_eq!((comm.calls(), comm.calls_of(StepKind::ReduceScatter)), (1, 1), "{comm}");
        assert_eq!(sum.get(&w).unwrap().layout(), w.layout());
        let want = loss(3.0)?.backward()?;
        let (got, want) =
            (sum.get(&w).unwrap().to_vec::<f64>()?, want.get(&w).unwrap().to_vec::<f64>()?);
        // What is sent is f64 in the one and f32 in the other.
        assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5));
        Ok(())
    });
}

#[test]
fn scopes_nest_and_survive_a_panic() {
    spmd(1, |world| {
        let mesh = mesh(world, &[1]);
        let x = ones(&[2], DType::F64, &mesh, &[Replicate])?.requires_grad()?;
        no_grad(|| {
            assert!(!is_grad_enabled());
            enable_grad(|| assert!(is_grad_enabled()));
            let caught = catch_unwind(AssertUnwindSafe(|| enable_grad(|| panic!("on purpose"))));
            assert!(caught.is_err() && !is_grad_enabled());
        });
        assert!(is_grad_enabled());
        assert!(x.is_leaf() && x.exp()?.needs_grad() && !x.exp()?.is_leaf());
        assert!(!x.detach().needs_grad() && !no_grad(|| x.exp())?.needs_grad());
        // What has no history beside what has one: constants.
        let y = x.mul(&x.detach())?.sum(&[], false)?.backward()?;
        assert_eq!(y.get(&x).unwrap().to_vec::<f64>()?, [1.0, 1.0]);
        Ok(())
    });
}

#[test]
fn what_cannot_be_walked_is_refused_on_every_rank() {
    let errors = spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = ones(&[4], DType::F64, &mesh, &[Shard(0)])?.requires_grad()?;
        let loss = x.exp()?.sum(&[], false)?;
        loss.backward()?;
        let again = loss.backward().unwrap_err();
        assert!(matches!(again, Error::GraphFreed { .. }), "{again}");
        let kept = x.exp()?.sum(&[], false)?;
        let options = BackwardOptions::default().retain_graph();
        assert_eq!(kept.backward_with(&options)?.len(), 1);
        assert_eq!(kept.backward()?.len(), 1);
        let (values, _, _) = x.unique()?;
        let errors = vec![
            again,
            values.sum(&[], false)?.backward().unwrap_err(),
            x.backward().unwrap_err(),
            x.detach().sum(&[], false)?.backward().unwrap_err(),
            x.exp()?.backward().unwrap_err(),
            arange(0, 4, 1, DType::I64, &mesh, &[Shard(0)])?.requires_grad().unwrap_err(),
            loss.backward_with(&BackwardOptions::default().gradient(&x)).unwrap_err(),
        ];
        assert!(matches!(errors[1], Error::NoGradient { op: "unique" }), "{}", errors[1]);
        Ok(errors)
    });
    assert_eq!(errors[0], errors[1]);
}

/// Every pair of layouts: the gradient of a tensor that was brought elsewhere is that of the tensor.
#[test]
fn gradients_come_back_from_every_layout() {
    for sizes in [&[3][..], &[2, 2]] {
        let n = sizes.iter().product();
        spmd(n, |world| {
            let mesh = mesh(world, sizes);
            let (whole, weights) = (numbers(&[5, 3]), numbers(&[3, 2]));
            let sums = |placements: &Vec<Placement>| {
                placements
                    .iter()
                    .all(|placement| placement.reduce_op().is_none_or(|op| op == ReduceOp::Sum))
            };
            let layouts: Vec<_> =
                layouts_of(&[5, 3], DType::F64, sizes).into_iter().filter(sums).collect();
            let copies = vec![Replicate; sizes.len()];
            let w = place(&weights, DType::F64, &mesh, &copies, 1);
            let want = {
                let x = place(&whole, DType::F64, &mesh, &copies, 1).requires_grad()?;
                let y = x.matmul(&w)?;
                y.mul(&y)?.sum(&[], false)?.backward()?.get(&x).unwrap().to_vec::<f64>()?
            };
            for from in &layouts {
                let x = place(&whole, DType::F64, &mesh, from, 1).requires_grad()?;
                for to in &layouts {
                    for pending in [false, true] {
                        let there = match pending {
                            false => x.redistribute(to)?,
                            true => x.start_redistribute(to)?.wait()?,
                        };
                        let y = there.matmul(&w)?;
                        let gradients = y.mul(&y)?.sum(&[], false)?.backward()?;
                        let got = gradients.get(&x).unwrap().to_vec::<f64>()?;
                        let close = got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-9);
                        assert!(close, "{from:?} -> {to:?}: {got:?}, not {want:?}");
                    }
                }
            }
            Ok(())
        });
    }
}

#[test]
fn gradients_are_sent_in_another_dtype_and_from_another_mesh() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let x = full(&[8], 1.5_f32, &mesh, &[Shard(0)])?.requires_grad()?;
        let half = RedistributeOptions::default().backward_dtype(DType::Bf16);
        let y = x.redistribute_with(&[Replicate], &half)?;
        // Of contributions by each rank.
        let scale = ones(&[4, 8], DType::F32, &mesh, &[Shard(0)])?;
        let loss = y.mul(&scale)?.sum(&[], false)?;
        let (gradients, comm) = CommDebug::record(|| loss.backward());
        let gradients = gradients?;
        assert_eq!(gradients.get(&x).unwrap().dtype(), DType::F32);
        assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>()?, [4.0; 8]);
        assert_eq!(comm.bytes(), 3 * 8 * 2, "{comm}");
        let pair = DeviceMesh::from_mesh(world, "pair=2".parse::<Mesh>().unwrap())?;
        let there = x.redistribute_to(&pair, &[Replicate])?;
        let gradients = there.mul(&there)?.sum(&[], false)?.backward()?;
        let gradient = gradients.get(&x).unwrap();
        assert_eq!((gradient.mesh(), gradient.layout()), (x.mesh(), x.layout()));
        assert_eq!(gradient.to_vec::<f32>()?, [3.0; 8]);
        Ok(())
    });
}

/// Users of PyTorch get gradients that are too large by the number of ranks, or lack the other ranks' share.
#[test]
fn gradients_through_local_parts_are_those_of_the_whole_program() {
    for n in [1, 2, 3, 4] {
        spmd(n, |world| {
            let mesh = mesh(world, &[n]);
            let x = || full(&[3], 2.0_f64, &mesh, &[Replicate])?.requires_grad();
            let back = |part: &DTensor, placement: Placement, shape: Option<Vec<usize>>| {
                let options = LocalOptions { shape, ..LocalOptions::default() };
                DTensor::from_local_part(part, &mesh, &[placement], &options)
            };
            let gradient_of = |x: &DTensor, y: &DTensor| -> Result<Vec<f64>> {
                y.sum(&[], false)?.backward()?.get(x).unwrap().to_vec()
            };
            // All ranks compute the same from their copies.
            let leaf = x()?;
            let part = leaf.local_part(None)?;
            let y = back(&part.mul(&part)?, Replicate, None)?;
            assert_eq!(gradient_of(&leaf, &y)?, [4.0; 3], "the same on {n} ranks");
            // Every rank computes something else, and the results are shards.
            let leaf = x()?;
            let rank = world.rank() as f64 + 1.0;
            let y = back(&leaf.local_part(None)?.mul(rank)?, Shard(0), Some(vec![3 * n]))?;
            let all = (n * (n + 1) / 2) as f64;
            assert_eq!(gradient_of(&leaf, &y)?, [all; 3], "shards of {n} ranks");
            // Or contributions to a sum.
            let leaf = x()?;
            let y = back(&leaf.local_part(None)?.mul(rank)?, SUM, None)?;
            assert_eq!(gradient_of(&leaf, &y)?, [all; 3], "contributions of {n} ranks");
            // A copy that is used inside and outside.
            let leaf = x()?;
            let y = back(&leaf.local_part(None)?.mul(rank)?, SUM, None)?.add(&leaf)?;
            assert_eq!(gradient_of(&leaf, &y)?, [all + 1.0; 3]);
            // From shards, and from contributions.
            let leaf = full(&[5], 2.0_f64, &mesh, &[Shard(0)])?.requires_grad()?;
            let part = leaf.local_part(None)?;
            let y = back(&part.mul(&part)?, Shard(0), Some(vec![5]))?;
            assert_eq!(gradient_of(&leaf, &y)?, [4.0; 5]);
            let leaf = full(&[2], 2.0_f64, &mesh, &[SUM])?.requires_grad()?;
            let y = back(&leaf.local_part(None)?.mul(3.0)?, SUM, None)?;
            assert_eq!(gradient_of(&leaf, &y)?, [3.0; 2]);
            // Said otherwise, and rightly, on both ways: no reduction.
            let leaf = x()?;
            let options =
                LocalOptions { grad_placements: Some(vec![Replicate]), ..LocalOptions::default() };
            let part = leaf.local_part(Some(&[Replicate]))?;
            let y = DTensor::from_local_part(&part.mul(&part)?, &mesh, &[Replicate], &options)?;
            let loss = y.sum(&[], false)?;
            let (gradients, comm) = CommDebug::record(|| loss.backward());
            assert_eq!(gradients?.get(&leaf).unwrap().to_vec::<f64>()?, [4.0; 3]);
            assert_eq!(comm.calls(), 0);
            Ok(())
        });
    }
}

#[test]
fn gradients_pass_through_functions_of_parts() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let (x, w) = (numbers(&[5, 4]), numbers(&[4, 3]));
        let x = place(&x, DType::F64, &mesh, &[Shard(0), Replicate], 1).requires_grad()?;
        let w = place(&w, DType::F64, &mesh, &[Replicate, Shard(0)], 1).requires_grad()?;
        let direct = x.matmul(&w)?;
        let direct = direct.mul(&direct)?.sum(&[], false)?.backward()?;
        let operands = [
            LocalOperand::new(&x, &[Shard(0), Shard(1)]),
            LocalOperand::new(&w, &[Replicate, Shard(0)]),
        ];
        let result = LocalResult::placed(&[Shard(0), SUM]).with_shape(&[5, 3]);
        let mapped = local_map("product", &operands, &[result], |parts| {
            Ok(vec![parts[0].matmul(&parts[1])?])
        })?;
        let mapped = mapped[0].mul(&mapped[0])?.sum(&[], false)?.backward()?;
        for leaf in [&x, &w] {
            let (got, want) = (mapped.get(leaf).unwrap(), direct.get(leaf).unwrap());
            assert_eq!(got.layout(), leaf.layout());
            let (got, want) = (got.to_vec::<f64>()?, want.to_vec::<f64>()?);
            assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-12), "{got:?} {want:?}");
        }
        Ok(())
    });
}

#[test]
fn what_is_computed_again_gives_the_same_gradients() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = place(&numbers(&[6, 4]), DType::F64, &mesh, &[Shard(0)], 1).requires_grad()?;
        let w = place(&numbers(&[4, 4]), DType::F64, &mesh, &[Replicate], 1).requires_grad()?;
        let runs = Arc::new(AtomicUsize::new(0));
        let block = |counts: bool| {
            let (w, runs) = (w.clone(), runs.clone());
            move |x: &DTensor| {
                runs.fetch_add(usize::from(counts), Ordering::Relaxed);
                // Uses a random tensor, and what was computed outside.
                let noise = x.rand_like()?;
                x.matmul(&w)?.mul(&noise)?.exp()?.mul(0.1)
            }
        };
        let loss = |checkpointed: bool| -> Result<DTensor> {
            dtensor::random::manual_seed(3);
            let y = x.mul(2.0)?;
            let y = match checkpointed {
                true => checkpoint(&checkpoint(&y, block(true))?, block(true))?,
                false => block(false)(&block(false)(&y)?)?,
            };
            // After it, other random numbers: the walk back must not take these.
            y.mul(&y.rand_like()?)?.add(&y)?.sum(&[], false)
        };
        let (kept, again) = (loss(false)?.backward()?, loss(true)?);
        assert_eq!(runs.load(Ordering::Relaxed), 2);
        let state = dtensor::random::state();
        let again = again.backward()?;
        assert_eq!((runs.load(Ordering::Relaxed), dtensor::random::state()), (4, state));
        for leaf in [&x, &w] {
            let of = |gradients: &dtensor::Gradients| gradients.get(leaf).unwrap().to_vec::<f64>();
            assert_eq!(of(&kept)?, of(&again)?);
        }
        Ok(())
    });
}

/// A parameter that was gathered is kept in parts.
#[test]
fn a_keeper_is_asked_instead_of_keeping() {
    struct Gather {
        shard: DTensor,
        asked: AtomicUsize,
    }
    impl Keeper for Gather {
        fn again(&self) -> Result<DTensor> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.shard.redistribute(&[Replicate])
        }
    }
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = place(&numbers(&[6, 4]), DType::F64, &mesh, &[Shard(0)], 1).requires_grad()?;
        let shard = place(&numbers(&[4, 3]), DType::F64, &mesh, &[Shard(0)], 1).requires_grad()?;
        let gather = Arc::new(Gather { shard: shard.clone(), asked: AtomicUsize::new(0) });
        let whole = shard.redistribute(&[Replicate])?.kept_by(gather.clone());
        let y = x.matmul(&whole)?;
        drop(whole);
        assert_eq!(gather.asked.load(Ordering::Relaxed), 0);
        let gradients = y.sum(&[], false)?.backward()?;
        assert_eq!((gather.asked.load(Ordering::Relaxed), gradients.len()), (1, 2));
        Ok(())
    });
}

/// Where a walk keeps the graph, a keeper hears of every gradient that was computed with what it gave.
#[test]
fn a_keeper_that_stays_is_told_when_it_is_passed() {
    struct Whole {
        whole: DTensor,
        passed: AtomicUsize,
    }
    impl Keeper for Whole {
        fn again(&self) -> Result<DTensor> {
            Ok(self.whole.clone())
        }
        fn passed(&self, holders: usize) {
            // This test has one, too.
            assert_eq!(holders, 2 + 1);
            self.passed.fetch_add(1, Ordering::Relaxed);
        }
    }
    spmd(1, |world| {
        let mesh = mesh(world, &[1]);
        let x = place(&numbers(&[6, 4]), DType::F64, &mesh, &[Replicate], 1).requires_grad()?;
        let whole = place(&numbers(&[4, 4]), DType::F64, &mesh, &[Replicate], 1);
        let keeper = Arc::new(Whole { whole: whole.clone(), passed: AtomicUsize::new(0) });
        let kept = whole.kept_by(keeper.clone());
        let loss = x.matmul(&kept)?.matmul(&kept)?.sum(&[], false)?;
        drop(kept);
        for walk in 1..=2 {
            loss.backward_with(&BackwardOptions::default().retain_graph())?;
            assert_eq!(keeper.passed.load(Ordering::Relaxed), 2 * walk);
        }
        // It goes with the graph.
        loss.backward()?;
        assert_eq!((keeper.passed.load(Ordering::Relaxed), Arc::strong_count(&keeper)), (4, 1));
        Ok(())
    });
}

/// A gradient that goes home at once is not held whole until the end of the walk, nor brought there twice.
#[test]
fn a_gradient_may_be_brought_home_at_once() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let first = place(&numbers(&[6, 4]), DType::F64, &mesh, &[Shard(0)], 1).requires_grad()?;
        let last = place(&numbers(&[4, 4]), DType::F64, &mesh, &[Shard(0)], 1).requires_grad()?;
        let run = |options: RedistributeOptions, walk: BackwardOptions| {
            let x = first.mul(1.0)?;
            let whole = last.redistribute_with(&[Replicate], &options)?;
            let loss = x.matmul(&whole)?.matmul(&whole)?.sum(&[], false)?;
            let (gradients, comm) = CommDebug::record(|| loss.backward_with(&walk));
            let gradient = gradients?.remove(&last).unwrap();
            Ok::<_, Error>((gradient, comm))
        };
        let plain = RedistributeOptions::default();
        let (want, _) = run(plain, BackwardOptions::default())?;
        let at_once = plain.gradient_at_once();
        let (got, comm) = run(at_once, BackwardOptions::default())?;
        assert_eq!((got.layout(), comm.calls()), (last.layout(), 1), "{comm}");
        assert_eq!(
            (comm.events[0].op, got.to_vec::<f64>()?),
            ("redistribute", want.to_vec::<f64>()?)
        );
        // In another dtype, too.
        let (got, comm) = run(at_once.backward_dtype(DType::F32), BackwardOptions::default())?;
        assert_eq!((got.dtype(), comm.calls(), comm.events[0].bytes), (DType::F64, 1, 4 * 4 * 4));
        // Unless it is left to be added to others.
        let (got, comm) = run(at_once, BackwardOptions::default().unreduced())?;
        assert_eq!((got.placements(), comm.calls()), (&[Partial(ReduceOp::Sum)][..], 0));
        Ok(())
    });
}

#[test]
fn a_long_chain_is_freed_without_a_deep_stack() {
    spmd(1, |world| {
        let mesh = mesh(world, &[1]);
        let x = ones(&[1], DType::F64, &mesh, &[Replicate])?.requires_grad()?;
        let mut y = x.clone();
        for _ in 0..50_000 {
            y = y.mul(&x)?;
        }
        drop(y);
        Ok(())
    });
}

#[test]
fn gradients_of_gradients() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = full(&[3], 0.5_f64, &mesh, &[Shard(0)])?.requires_grad()?;
        let create = BackwardOptions::default().create_graph();
        // exp keeps its result, of which a second derivative must know where it came from.
        let mut y = x.mul(2.0)?.exp()?;
        for order in 1..=3 {
            let slope = grad(&y.sum(&[], false)?, &[&x], &create)?.remove(0).unwrap();
            let want = 2.0_f64.powi(order) * 1.0_f64.exp();
            assert!(slope.to_vec::<f64>()?.iter().all(|got| (got - want).abs() < 1e-12), "{order}");
            y = slope;
        }
        // Through parts, and through another layout and dtype.
        let copies = full(&[2], 0.5_f64, &mesh, &[Replicate])?.requires_grad()?;
        let part = copies.local_part(None)?;
        let cubes = part.mul(&part)?.mul(&part)?;
        let whole =
            DTensor::from_local_part(&cubes, &mesh, &[Replicate], &LocalOptions::default())?;
        let single = RedistributeOptions::default().backward_dtype(DType::F32);
        let whole = whole.redistribute_with(&[Shard(0)], &single)?;
        let slope = grad(&whole.sum(&[], false)?, &[&copies], &create)?.remove(0).unwrap();
        assert_eq!(slope.to_vec::<f64>()?, [0.75; 2]);
        let curve = grad(&slope.sum(&[], false)?, &[&copies], &create)?.remove(0).unwrap();
        assert_eq!(curve.to_vec::<f64>()?, [3.0; 2]);
        // Of a tensor in between.
        let middle = x.mul(3.0)?;
        let loss = middle.mul(&middle)?.sum(&[], false)?;
        let found = grad(&loss, &[&middle, &x], &BackwardOptions::default())?;
        assert_eq!(found[0].as_ref().unwrap().to_vec::<f64>()?, [3.0; 3]);
        assert_eq!(found[1].as_ref().unwrap().to_vec::<f64>()?, [9.0; 3]);
        Ok(())
    });
}

/// Below what is asked for lies an operation without a gradient, and beside the way another one.
#[test]
fn only_what_leads_to_the_tensors_asked_for_is_walked() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = place(&numbers(&[6, 3]), DType::F64, &mesh, &[Shard(0)], 1).requires_grad()?;
        let weight =
            place(&numbers(&[3, 3]), DType::F64, &mesh, &[Replicate], 1).requires_grad()?;
        let keep = BackwardOptions::default().retain_graph();
        // A wall, and what comes after it.
        let below = x.histc(4, 0.0, 2.0)?;
        assert!(below.needs_grad());
        let middle = below.mul(2.0)?;
        let loss = middle.mul(&middle)?.sum(&[], false)?;
        assert!(matches!(loss.backward_with(&keep), Err(Error::NoGradient { op: "histc" })));
        assert!(grad(&loss, &[&x], &keep).is_err());
        let slope = grad(&loss, &[&middle], &keep)?.remove(0).unwrap().to_vec::<f64>()?;
        let want: Vec<f64> = middle.to_vec::<f64>()?.iter().map(|value| 2.0 * value).collect();
        assert_eq!(slope, want);
        // Beside it, also within what is computed again.
        let block = {
            let (weight, below) = (weight.clone(), below.sum(&[], false)?);
            move |x: &DTensor| x.matmul(&weight)?.mul(&below)
        };
        let of_weight = |y: DTensor| -> Result<Vec<f64>> {
            let loss = y.square()?.sum(&[], false)?;
            grad(&loss, &[&weight], &keep)?.remove(0).unwrap().to_vec()
        };
        let want = of_weight(block(&x)?)?;
        assert_eq!(of_weight(checkpoint(&x, block)?)?, want);
        // What nobody asked for is not computed.
        let other = x.detach().requires_grad()?;
        let product = other.matmul(&weight)?.sum(&[], false)?;
        let n_ops = |leaves: &[&DTensor]| -> Result<u64> {
            let (found, comm) = CommDebug::record(|| grad(&product, leaves, &keep));
            found.map(|_| comm.ops.values().sum())
        };
        assert!(n_ops(&[&weight])? < n_ops(&[&weight, &other])?);
        // Nothing leads there.
        assert!(grad(&loss, &[&weight], &keep)?[0].is_none());
        Ok(())
    });
}

#[test]
fn modules_are_known_on_the_way_back() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let w = ones(&[4, 3], DType::F64, &mesh, &[Shard(0)])?.requires_grad()?;
        let (done, comm) = CommDebug::record(|| {
            let x = ones(&[6, 4], DType::F64, &mesh, &[Shard(0)])?;
            let y = module_scope("layers", || {
                module_scope("0", || x.matmul(&w.redistribute(&[Replicate])?))
            })?;
            y.sum(&[], false)?.backward()?;
            Ok::<_, Error>(())
        });
        done?;
        let seen: Vec<_> =
            comm.events.iter().map(|event| (event.phase, event.module.as_deref())).collect();
        assert_eq!(seen[0], (Phase::Forward, Some("layers.0")));
        assert!(seen.iter().any(|(phase, _)| *phase == Phase::Backward), "{seen:?}");
        let of_layer = comm.by_module()[&("layers.0", Phase::Forward)];
        assert_eq!(of_layer, (1, 96), "{comm}");
        // Also what brings a gradient to its leaf, which is of no module.
        let of_layer = comm.by_module()[&("layers.0", Phase::Backward)];
        assert_eq!(of_layer, (1, 96), "{comm}");
        let table = comm.to_string();
        assert!(table.lines().nth(2).is_some_and(|line| line.contains("backward")), "{table}");
        assert!(table.contains("\nlayers.0") && table.contains("\ntotal"), "{table}");
        let json = comm.to_json();
        assert!(
            json.contains("\"module\":\"layers.0\"") && json.contains("\"phase\":\"backward\"")
        );
        Ok(())
    });
}

#[test]
fn a_fake_world_and_ranks_outside_of_a_mesh_walk_along() {
    let world = World::fake(4096, 5).unwrap();
    let big = DeviceMesh::new(&world, &[("dp", 64), ("tp", 64)]).unwrap();
    let x = ones(&[256, 512], DType::F32, &big, &[Shard(0), Replicate]).unwrap();
    let w = ones(&[512, 512], DType::F32, &big, &[Replicate, Shard(1)]).unwrap();
    let w = w.requires_grad().unwrap();
    let loss = x.matmul(&w).unwrap().sum(&[], false).unwrap();
    let (gradients, comm) = CommDebug::record(|| loss.backward());
    assert_eq!(gradients.unwrap().get(&w).unwrap().layout(), w.layout());
    assert_eq!((comm.calls(), comm.calls_of(StepKind::AllReduce)), (1, 1), "{comm}");
    spmd(3, |world| {
        let pair = DeviceMesh::from_mesh(world, "pair=2".parse::<Mesh>().unwrap())?;
        let x = ones(&[4], DType::F64, &pair, &[Shard(0)])?.requires_grad()?;
        let gradients = x.exp()?.mul(&x)?.sum(&[], false)?.backward()?;
        assert_eq!(gradients.get(&x).unwrap().layout(), x.layout());
        Ok(())
    });
}

/// A pending sum that an operation needs reduced and its gradient needs again is sent once.
#[test]
fn what_is_kept_is_reduced_once() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = place(&numbers(&[6, 4]), DType::F64, &mesh, &[Shard(1)], 1);
        let w = place(&numbers(&[4, 3]), DType::F64, &mesh, &[Shard(0)], 1).requires_grad()?;
        let (done, comm) = CommDebug::record(|| {
            let y = x.matmul(&w)?;
            assert_eq!(y.placements(), [SUM]);
            y.gelu()?.sum(&[], false)?.backward()
        });
        done?;
        assert_eq!((comm.calls(), comm.calls_of(StepKind::AllReduce)), (1, 1), "{comm}");
        // Not where it is refused.
        let y = x.matmul(&w)?;
        let refused = dtensor::explicit(dtensor::OnImplicit::Refuse, || y.gelu());
        assert!(matches!(refused, Err(Error::Implicit { op: "gelu", .. })));
        Ok(())
    });
}
