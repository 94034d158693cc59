//! Models whose positions are cut are the models that they were.
#![allow(clippy::unwrap_used, clippy::panic)] // An unwrap that fails is a test that fails.

use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh,
    Placement::{Replicate, Shard},
    Tensor,
    plan::StepKind,
    randint,
    random::manual_seed,
};
use dtensor_nn::{
    Embedding, Error, Forward, Gpt, GptConfig, Llama, LlamaConfig, Module, Plan, Result,
    context_parallel_shard, context_parallel_unshard, context_plan, cross_entropy, gpt_plan,
    gpt_sequence_plan, head_tail_inverse, head_tail_order, llama_plan, llama_sequence_plan,
    named_parameters, parallelize_module,
};
use dtensor_testing::spmd;

const VOCABULARY: usize = 11;

/// A model on a mesh, always of the same values.
fn model(kind: Kind, sequence: usize, mesh: &DeviceMesh) -> Result<Box<dyn Forward>> {
    manual_seed(7);
    Ok(match kind {
        Kind::Gpt => {
            let sizes = (VOCABULARY, sequence + 3, 2, 8, 4);
            let (vocabulary, sequence, layers, dim, heads) = sizes;
            let config =
                GptConfig { vocabulary, sequence, layers, dim, heads, ..GptConfig::default() };
            Box::new(Gpt::new(&config, DType::F64, mesh)?)
        }
        Kind::Llama => {
            let config = LlamaConfig {
                vocabulary: VOCABULARY,
                sequence: sequence + 3,
                layers: 2,
                dim: 8,
                hidden: 12,
                heads: 4,
                key_heads: 2,
                ..LlamaConfig::default()
            };
            Box::new(Llama::new(&config, DType::F64, mesh)?)
        }
    })
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Gpt,
    Llama,
}

fn tensor_plan(kind: Kind) -> Plan {
    match kind {
        Kind::Gpt => gpt_plan(),
        Kind::Llama => llama_plan(),
    }
}

/// Tokens and targets.
fn data(length: usize, mesh: &DeviceMesh) -> Result<[DTensor; 2]> {
    manual_seed(3);
    let copies = vec![Replicate; mesh.n_axes()];
    let top = i64::try_from(VOCABULARY).unwrap();
    let draw = || randint(0, top, &[2, length], DType::I64, mesh, &copies);
    Ok([draw()?, draw()?])
}

fn placed(x: &DTensor, balanced: bool, mesh: &DeviceMesh) -> Result<DTensor> {
    // On an axis for batches, these are cut too.
    let mut placements = x.placements().to_vec();
    if let Ok(axis) = mesh.axis_index("dp") {
        placements[axis] = Shard(0);
    }
    let x = x.redistribute(&placements)?;
    if balanced {
        return Ok(context_parallel_shard(&x, 1, "cp")?);
    }
    placements[mesh.axis_index("cp")?] = Shard(1);
    Ok(x.redistribute(&placements)?)
}

#[track_caller]
fn assert_close(got: &Tensor, want: &Tensor, what: &str) {
    assert_eq!(got.shape(), want.shape(), "{what}");
    let values = |x: &Tensor| x.to_vec::<f64>().unwrap();
    for (got, want) in values(got).into_iter().zip(values(want)) {
        assert!((got - want).abs() <= 1e-11 * (1.0 + want.abs()), "{what}: {got} is not {want}");
    }
}

/// Logits, loss and gradients of a model with cut positions, against the same model on one rank.
fn check(kind: Kind, balanced: bool, length: usize, axes: &[(&str, usize)], with_gradients: bool) {
    let n_ranks = axes.iter().map(|(_, size)| size).product();
    spmd(n_ranks, |world| {
        let mesh = DeviceMesh::new(world, axes)?;
        let alone = mesh.alone()?;
        let dense = model(kind, length, &alone)?;
        let [tokens, targets] = data(length, &alone)?;
        let want = dense.call(&tokens)?;
        let want_loss = cross_entropy(&want, &targets)?;

        let mut cut = model(kind, length, &mesh)?;
        if mesh.axis_index("tp").is_ok() {
            parallelize_module(&mut *cut, &mesh, "tp", &tensor_plan(kind))?;
        }
        parallelize_module(&mut *cut, &mesh, "cp", &context_plan(balanced))?;
        let [tokens, targets] = data(length, &mesh)?;
        let (tokens, targets) =
            (placed(&tokens, balanced, &mesh)?, placed(&targets, balanced, &mesh)?);
        let (logits, comm) = CommDebug::record(|| cut.call(&tokens));
        let logits = logits?;
        assert_eq!(logits.placements()[mesh.axis_index("cp")?], Shard(1));
        if axes.len() == 1 {
            // Two blocks of a ring each, and nothing is gathered. (Of tokens, ranks agree that they are in the table.)
            let sent = comm.events.iter().filter(|event| event.op != "embedding check");
            let sent: Vec<_> = sent.map(|event| (event.op, event.kind)).collect();
            // In order, nothing goes on to ranks without positions, which are the last.
            let holding =
                if balanced { n_ranks } else { length.div_ceil(length.div_ceil(n_ranks)) };
            let ring = vec![("ring_attention", StepKind::Exchange); 2 * (holding - 1)];
            assert_eq!(sent, ring, "{comm}");
        }
        let whole = match balanced {
            true => context_parallel_unshard(&logits, 1, "cp")?,
            false => logits.clone(),
        };
        assert_close(&whole.full_tensor()?, &want.full_tensor()?, "logits");
        let loss = cross_entropy(&logits, &targets)?;
        assert_close(&loss.full_tensor()?, &want_loss.full_tensor()?, "loss");
        if !with_gradients {
            return Ok(());
        }
        let (gradients, wanted) = (loss.backward()?, want_loss.backward()?);
        let parameters = named_parameters(&*cut).into_iter().zip(named_parameters(&*dense));
        for ((name, own), (_, other)) in parameters {
            let (got, want) = (gradients.get(&own.value()), wanted.get(&other.value()));
            let (got, want) = (got.unwrap().full_tensor()?, want.unwrap().full_tensor()?);
            assert_close(&got, &want, &name);
        }
        Ok(())
    });
}

#[test]
fn cut_positions_give_the_same_logits_and_loss() {
    for (kind, balanced) in [(Kind::Gpt, false), (Kind::Llama, true)] {
        check(kind, balanced, 12, &[("cp", 3)], false);
    }
}

#[test]
fn cut_positions_give_the_same_gradients() {
    for kind in [Kind::Gpt, Kind::Llama] {
        for balanced in [false, true] {
            // Uneven, and one rank has no position.
            check(kind, balanced, 5, &[("cp", 4)], true);
        }
    }
}

#[test]
fn batches_positions_and_heads_may_all_be_cut() {
    let axes = [("dp", 2), ("cp", 2), ("tp", 2)];
    check(Kind::Gpt, true, 8, &axes, true);
    check(Kind::Llama, false, 8, &axes, true);
}

#[test]
fn the_order_has_an_inverse() {
    for (length, n) in [(0, 2), (1, 3), (8, 2), (12, 3), (13, 4), (5, 4)] {
        let (order, inverse) = (head_tail_order(length, n), head_tail_inverse(length, n));
        let index = |number: i64| usize::try_from(number).unwrap();
        assert!(order.iter().enumerate().all(|(at, to)| index(inverse[index(*to)]) == at));
    }
    assert_eq!(head_tail_order(8, 2), [0, 1, 6, 7, 2, 3, 4, 5]);
}

#[test]
fn the_style_is_for_what_knows_positions() {
    spmd(2, |world| {
        let mesh = DeviceMesh::of_world(world, "cp")?;
        let mut table = Embedding::new(4, 4, 0.1, DType::F32, &mesh)?;
        let plan = Plan::new().with("", dtensor_nn::ContextParallel::default());
        let refused = parallelize_module(&mut table as &mut dyn Module, &mesh, "cp", &plan);
        assert!(matches!(refused, Err(Error::WrongModule { .. })), "{refused:?}");
        // What is cut on the axis is refused by the names of both.
        let mut cut =
            Gpt::new(&GptConfig { layers: 1, ..GptConfig::default() }, DType::F32, &mesh)?;
        parallelize_module(&mut cut, &mesh, "cp", &gpt_plan())?;
        let refused = parallelize_module(&mut cut, &mesh, "cp", &context_plan(true));
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("`layers.0.attn.wq.weight` is S(0) on axis `cp`"), "{text}");
        Ok(())
    });
}

/// A position that is dropped on one mesh is dropped on every other, wherever it lies.
#[test]
fn what_is_dropped_belongs_to_its_position() {
    for (axes, sequence_too) in [
        (&[("cp", 2)][..], false),
        (&[("cp", 3)], false),
        (&[("dp", 2), ("cp", 2)], false),
        (&[("cp", 2), ("tp", 2)], false),
        (&[("cp", 2), ("tp", 2)], true),
    ] {
        for (kind, balanced) in
            [Kind::Gpt, Kind::Llama].map(|kind| [(kind, true), (kind, false)]).concat()
        {
            spmd(axes.iter().map(|(_, size)| size).product(), |world| {
                let mesh = DeviceMesh::new(world, axes)?;
                let made = |dropout: f64, mesh: &DeviceMesh| -> Result<Box<dyn Forward>> {
                    manual_seed(5);
                    let (vocabulary, sequence, layers, dim, heads) = (VOCABULARY, 12, 2, 8, 2);
                    Ok(match kind {
                        Kind::Gpt => {
                            let recompute = false;
                            let config = GptConfig {
                                vocabulary,
                                sequence,
                                layers,
                                dim,
                                heads,
                                dropout,
                                recompute,
                            };
                            Box::new(Gpt::new(&config, DType::F64, mesh)?)
                        }
                        Kind::Llama => {
                            let config = LlamaConfig {
                                vocabulary,
                                sequence,
                                layers,
                                dim,
                                heads,
                                dropout,
                                hidden: 12,
                                ..LlamaConfig::default()
                            };
                            Box::new(Llama::new(&config, DType::F64, mesh)?)
                        }
                    })
                };
                let loss = |model: &dyn Forward, tokens: &DTensor, targets: &DTensor| {
                    manual_seed(7);
                    let loss = cross_entropy(&model.call(tokens)?, targets)?;
                    let gradients = loss.backward()?;
                    let (_, table) = &named_parameters(model)[0];
                    let slope = gradients.get(&table.value()).unwrap().square()?;
                    Ok::<_, Error>(loss.item::<f64>()? + slope.sum(&[], false)?.item::<f64>()?)
                };
                let alone = mesh.alone()?;
                let [tokens, targets] = data(12, &alone)?;
                let want = loss(&*made(0.4, &alone)?, &tokens, &targets)?;
                let nothing_dropped = loss(&*made(0.0, &alone)?, &tokens, &targets)?;
                assert!((want - nothing_dropped).abs() > 1e-6, "{kind:?} drops");
                let mut model = made(0.4, &mesh)?;
                if mesh.axis_index("tp").is_ok() {
                    let plan = match (kind, sequence_too) {
                        (Kind::Gpt, true) => gpt_sequence_plan(),
                        (Kind::Llama, true) => llama_sequence_plan(),
                        _ => tensor_plan(kind),
                    };
                    parallelize_module(&mut *model, &mesh, "tp", &plan)?;
                }
                parallelize_module(&mut *model, &mesh, "cp", &context_plan(balanced))?;
                let [tokens, targets] = data(12, &mesh)?;
                let place = |x: &DTensor| placed(x, balanced, &mesh);
                let got = loss(&*model, &place(&tokens)?, &place(&targets)?)?;
                assert!((got - want).abs() < 1e-11, "{kind:?} {axes:?} {balanced}: {got} {want}");
                Ok(())
            });
        }
    }
}
