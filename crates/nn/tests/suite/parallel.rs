//! Whole models: cut any way, they give the loss and the gradients of the dense one, and send what they should.

use std::{collections::BTreeMap, sync::OnceLock};

use dtensor::{
    BackwardOptions, CommDebug, CommEvent, DTensor, DType, DeviceMesh, Gradients, Phase,
    Placement::{self, Replicate, Shard},
    Tensor, distribute_tensor_from,
    plan::StepKind::{self, AllGather, AllReduce, ReduceScatter},
};
use dtensor_nn::{
    Forward, FullyShardOptions, Gpt, GptConfig, Llama, LlamaConfig, Module, Plan, Result,
    cross_entropy, fully_shard, gpt_plan, gpt_sequence_plan, llama_plan, llama_sequence_plan,
    named_parameters, parallelize_module,
};
use dtensor_testing::spmd;

use crate::support::{assert_close, fill, mesh};

const VOCABULARY: usize = 11;
const BATCH: usize = 3;
const POSITIONS: usize = 5;

/// Which model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// With so many heads.
    Gpt(usize),
    /// With heads of queries and of keys.
    Llama(usize, usize),
}

/// What an axis does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Tensor,
    Sequence,
    Sharded,
    Data,
}

enum Model {
    Gpt(Gpt),
    Llama(Llama),
}

impl Model {
    fn new(kind: Kind, recompute: bool, mesh: &DeviceMesh) -> Result<Model> {
        let (vocabulary, sequence, layers, dim) = (VOCABULARY, POSITIONS + 1, 2, 12);
        let model = match kind {
            Kind::Gpt(heads) => {
                let config = GptConfig {
                    vocabulary,
                    sequence,
                    layers,
                    dim,
                    heads,
                    recompute,
                    ..GptConfig::default()
                };
                Model::Gpt(Gpt::new(&config, DType::F64, mesh)?)
            }
            Kind::Llama(heads, key_heads) => {
                let config = LlamaConfig {
                    vocabulary,
                    sequence,
                    layers,
                    dim,
                    hidden: 14,
                    heads,
                    key_heads,
                    recompute,
                    ..LlamaConfig::default()
                };
                Model::Llama(Llama::new(&config, DType::F64, mesh)?)
            }
        };
        fill(model.module())?;
        Ok(model)
    }

    fn module(&self) -> &dyn Module {
        match self {
            Model::Gpt(model) => model,
            Model::Llama(model) => model,
        }
    }

    fn module_mut(&mut self) -> &mut dyn Module {
        match self {
            Model::Gpt(model) => model,
            Model::Llama(model) => model,
        }
    }

    fn plan(&self, role: Role) -> Plan {
        match (self, role) {
            (Model::Gpt(_), Role::Tensor) => gpt_plan(),
            (Model::Llama(_), Role::Tensor) => llama_plan(),
            (Model::Gpt(_), _) => gpt_sequence_plan(),
            (Model::Llama(_), _) => llama_sequence_plan(),
        }
    }

    fn cut(
        &mut self,
        roles: &[(&str, Role)],
        mesh: &DeviceMesh,
        options: &FullyShardOptions,
    ) -> Result<()> {
        for (axis, role) in roles {
            if let Role::Tensor | Role::Sequence = role {
                let plan = self.plan(*role);
                parallelize_module(self.module_mut(), mesh, axis, &plan)?;
            }
        }
        for (axis, role) in roles {
            if *role == Role::Sharded {
                match self {
                    Model::Gpt(model) => {
                        for block in &mut model.layers {
                            fully_shard(block, axis, options)?;
                        }
                    }
                    Model::Llama(model) => {
                        for block in &mut model.layers {
                            fully_shard(block, axis, options)?;
                        }
                    }
                }
                fully_shard(self.module_mut(), axis, options)?;
            }
        }
        Ok(())
    }

    fn loss(&self, roles: &[(&str, Role)], mesh: &DeviceMesh) -> Result<DTensor> {
        let place = |(_, role): &(&str, Role)| match role {
            Role::Sharded | Role::Data => Shard(0),
            Role::Tensor | Role::Sequence => Replicate,
        };
        let placements: Vec<Placement> = roles.iter().map(place).collect();
        let ids = |shift: usize| {
            let values: Vec<i64> = (0..BATCH * POSITIONS)
                .map(|at| ((at * 7 + shift * 3) % VOCABULARY) as i64)
                .collect();
            let whole = Tensor::from_slice(&values, &[BATCH, POSITIONS]).unwrap();
            distribute_tensor_from(&whole, mesh, &placements, None)
        };
        let logits = match self {
            Model::Gpt(model) => model.call(&ids(0)?)?,
            Model::Llama(model) => model.call(&ids(0)?)?,
        };
        Ok(cross_entropy(&logits, &ids(1)?)?)
    }
}

/// A loss, and the gradient of every parameter.
type Outcome = (f64, BTreeMap<String, Vec<f64>>);

fn outcome(model: &Model, roles: &[(&str, Role)], mesh: &DeviceMesh) -> Result<Outcome> {
    let loss = model.loss(roles, mesh)?;
    let gradients = loss.backward()?;
    let mut found = BTreeMap::new();
    for (name, parameter) in named_parameters(model.module()) {
        let leaf = parameter.value();
        let gradient = gradients.get(&leaf).unwrap_or_else(|| panic!("{name} has no gradient"));
        assert_eq!(gradient.layout(), leaf.layout(), "{name}");
        found.insert(name, gradient.to_vec::<f64>()?);
    }
    Ok((loss.item::<f64>()?, found))
}

/// On one rank, of the models that are asked for.
fn dense(kind: Kind) -> Outcome {
    static KNOWN: OnceLock<Vec<(Kind, Outcome)>> = OnceLock::new();
    let kinds = [Kind::Gpt(3), Kind::Gpt(4), Kind::Llama(3, 3), Kind::Llama(3, 1)];
    let known = KNOWN.get_or_init(|| {
        let one = |kind: Kind| {
            let mut outcomes = spmd(1, |world| {
                let mesh = mesh(world, &[("dp", 1)]);
                let model = Model::new(kind, false, &mesh)?;
                Ok(outcome(&model, &[("dp", Role::Data)], &mesh)?)
            });
            (kind, outcomes.remove(0))
        };
        kinds.into_iter().map(one).collect()
    });
    known.iter().find(|(other, _)| *other == kind).unwrap().1.clone()
}

#[track_caller]
fn check(kind: Kind, axes: &[(&str, Role, usize)], recompute: bool, options: &FullyShardOptions) {
    let (loss, want) = dense(kind);
    let sizes: Vec<(&str, usize)> = axes.iter().map(|(name, _, size)| (*name, *size)).collect();
    let roles: Vec<(&str, Role)> = axes.iter().map(|(name, role, _)| (*name, *role)).collect();
    spmd(sizes.iter().map(|(_, size)| size).product(), |world| {
        let mesh = mesh(world, &sizes);
        let mut model = Model::new(kind, recompute, &mesh)?;
        model.cut(&roles, &mesh, options)?;
        // The second time everything is as it was the first time.
        for _ in 0..if recompute { 2 } else { 1 } {
            let (got, gradients) = outcome(&model, &roles, &mesh)?;
            assert!((got - loss).abs() < 1e-12 * loss.abs(), "{kind:?} {axes:?}: {got} {loss}");
            assert_eq!(gradients.len(), want.len());
            for (name, gradient) in &gradients {
                let what = format!("{kind:?} {axes:?} {name}");
                assert_close(gradient, &want[name], 1e-11, &what);
            }
        }
        Ok(())
    });
}

/// On every model, and with and without computing blocks again.
#[track_caller]
fn check_all(axes: &[(&str, Role, usize)]) {
    for kind in [Kind::Gpt(3), Kind::Gpt(4), Kind::Llama(3, 3), Kind::Llama(3, 1)] {
        check(kind, axes, false, &FullyShardOptions::default());
    }
    for kind in [Kind::Gpt(4), Kind::Llama(3, 1)] {
        check(kind, axes, true, &FullyShardOptions::default());
    }
}

#[test]
fn tensor_parallel_is_the_dense_model() {
    for ranks in [2, 3, 4] {
        check_all(&[("tp", Role::Tensor, ranks)]);
    }
}

#[test]
fn sequence_parallel_is_the_dense_model() {
    for ranks in [2, 3, 4] {
        check_all(&[("tp", Role::Sequence, ranks)]);
    }
}

#[test]
fn fully_sharded_is_the_dense_model() {
    for ranks in [2, 3, 4] {
        check_all(&[("fsdp", Role::Sharded, ranks)]);
    }
}

#[test]
fn data_parallel_is_the_dense_model() {
    for ranks in [2, 3] {
        check_all(&[("dp", Role::Data, ranks)]);
    }
}

#[test]
fn sharded_within_copies_is_the_dense_model() {
    check_all(&[("dp", Role::Data, 2), ("fsdp", Role::Sharded, 2)]);
}

#[test]
fn fully_sharded_and_tensor_parallel_is_the_dense_model_whichever_axis_is_first() {
    check_all(&[("fsdp", Role::Sharded, 2), ("tp", Role::Tensor, 2)]);
    check_all(&[("tp", Role::Tensor, 2), ("fsdp", Role::Sharded, 2)]);
    check_all(&[("fsdp", Role::Sharded, 2), ("tp", Role::Sequence, 2)]);
}

#[test]
fn data_and_tensor_parallel_is_the_dense_model() {
    check_all(&[("dp", Role::Data, 2), ("tp", Role::Tensor, 2)]);
    check_all(&[("dp", Role::Data, 3), ("tp", Role::Tensor, 2)]);
}

#[test]
fn ways_to_gather_give_the_same() {
    let axes = [("fsdp", Role::Sharded, 3)];
    let mut options = FullyShardOptions::default();
    options.prefetch = false;
    let mut columns = FullyShardOptions::default();
    columns.dim = 1;
    for kind in [Kind::Gpt(4), Kind::Llama(3, 1)] {
        for recompute in [false, true] {
            check(kind, &axes, recompute, &options);
            check(kind, &axes, recompute, &columns);
            check(kind, &axes, recompute, &FullyShardOptions::default().keep_after_forward());
        }
    }
}

/// What was sent in a step of a model with four heads: phase, module, kind. That ranks agree about bad indices is left out.
type Sent = Vec<(Phase, String, StepKind)>;

fn sent(comm: &CommDebug) -> Sent {
    let events = comm.events.iter().filter(|event| !event.op.ends_with(" check"));
    let one = |event: &CommEvent| {
        (event.phase, event.module.as_deref().unwrap_or("").to_owned(), event.kind)
    };
    events.map(one).collect()
}

/// The same on every rank, and so of the first.
fn sent_in_a_step(
    axes: &[(&str, Role, usize)],
    recompute: bool,
    options: &FullyShardOptions,
) -> Sent {
    let sizes: Vec<(&str, usize)> = axes.iter().map(|(name, _, size)| (*name, *size)).collect();
    let roles: Vec<(&str, Role)> = axes.iter().map(|(name, role, _)| (*name, *role)).collect();
    let mut all = spmd(sizes.iter().map(|(_, size)| size).product(), |world| {
        let mesh = mesh(world, &sizes);
        let mut model = Model::new(Kind::Gpt(4), recompute, &mesh)?;
        model.cut(&roles, &mesh, options)?;
        let step = || Ok::<_, dtensor_nn::Error>(model.loss(&roles, &mesh)?.backward()?);
        let (gradients, first) = CommDebug::record(step);
        gradients?;
        // Nothing is left over that would change the next step.
        let (gradients, second) = CommDebug::record(step);
        gradients?;
        assert_eq!(sent(&first), sent(&second), "the second step");
        Ok(sent(&first))
    });
    assert!(all.iter().all(|other| *other == all[0]));
    all.remove(0)
}

fn count(sent: &Sent, phase: Phase, kind: StepKind) -> usize {
    sent.iter().filter(|(own, _, what)| *own == phase && *what == kind).count()
}

/// Parameters of the model: of the tables 2, of a block 16, of the end 3.
const PARAMETERS: usize = 2 + 2 * 16 + 3;
/// Those that a gradient needs: no bias, and no table.
const NEEDED_BACK: usize = 2 * 8 + 2;

#[test]
fn tensor_parallel_reduces_twice_per_block_and_pass() {
    let sent = sent_in_a_step(&[("tp", Role::Tensor, 2)], false, &FullyShardOptions::default());
    let modules = |phase: Phase| {
        let of_phase = sent.iter().filter(|(own, ..)| *own == phase);
        of_phase.map(|(_, module, _)| module.as_str()).collect::<Vec<_>>()
    };
    assert!(sent.iter().all(|(_, _, kind)| *kind == AllReduce), "{sent:?}");
    let blocks = |parts: [&'static str; 2]| {
        (0..2).flat_map(move |block| parts.map(|part| format!("layers.{block}.{part}")))
    };
    // The largest and the sum of the logits of a token, which are cut, are two more.
    let mut want: Vec<String> = blocks(["attn.wo", "mlp.w2"]).collect();
    want = [vec!["tok".to_owned()], want, vec![String::new(), String::new()]].concat();
    assert_eq!(modules(Phase::Forward), want);
    let mut want: Vec<String> = blocks(["ln1", "ln2"]).collect();
    want.push("lnf".to_owned());
    want.reverse();
    assert_eq!(modules(Phase::Backward), want);
}

#[test]
fn sequence_parallel_gathers_and_scatters_instead() {
    let sent = sent_in_a_step(&[("tp", Role::Sequence, 2)], false, &FullyShardOptions::default());
    let of = |module: &str, phase: Phase| {
        let of_module = sent.iter().filter(|(own, name, _)| *own == phase && name == module);
        of_module.map(|(_, _, kind)| *kind).collect::<Vec<_>>()
    };
    for block in 0..2 {
        for (part, end) in [("attn", "attn.wo"), ("mlp", "mlp.w2")] {
            assert_eq!(of(&format!("layers.{block}.{part}"), Phase::Forward), [AllGather]);
            assert_eq!(of(&format!("layers.{block}.{end}"), Phase::Forward), [ReduceScatter]);
            // The operand and the weight both need the whole gradient; it is sent once.
            let back = of(&format!("layers.{block}.{end}"), Phase::Backward);
            assert_eq!(back.iter().filter(|kind| **kind == AllGather).count(), 1, "{back:?}");
        }
        // And the gradients of weight and bias, which are copies.
        let of_norm = [ReduceScatter, AllReduce, AllReduce];
        for norm in ["ln1", "ln2"] {
            assert_eq!(of(&format!("layers.{block}.{norm}"), Phase::Backward), of_norm);
        }
    }
    assert_eq!(
        (of("tok", Phase::Forward), of("head", Phase::Forward)),
        (vec![ReduceScatter], vec![AllGather])
    );
    // The logits' largest and sum; nothing of the size of the activations.
    assert_eq!(count(&sent, Phase::Forward, AllReduce), 2);
}

#[test]
fn fully_sharded_gathers_once_per_pass_and_scatters_once() {
    let mut alone = FullyShardOptions::default();
    alone.prefetch = false;
    let axes = [("fsdp", Role::Sharded, 2)];
    for options in [FullyShardOptions::default(), alone.clone()] {
        let sent = sent_in_a_step(&axes, false, &options);
        assert_eq!(count(&sent, Phase::Forward, AllGather), PARAMETERS);
        assert_eq!(count(&sent, Phase::Forward, ReduceScatter), 0);
        assert_eq!(count(&sent, Phase::Backward, AllGather), NEEDED_BACK);
        assert_eq!(count(&sent, Phase::Backward, ReduceScatter), PARAMETERS);
        // Computed again: all parameters of the blocks are needed on the way back.
        let sent = sent_in_a_step(&axes, true, &options);
        assert_eq!(count(&sent, Phase::Forward, AllGather), PARAMETERS);
        assert_eq!(count(&sent, Phase::Backward, AllGather), 2 * 16 + 2);
        assert_eq!(count(&sent, Phase::Backward, ReduceScatter), PARAMETERS);
        // Kept: nothing is gathered on the way back.
        let sent = sent_in_a_step(&axes, false, &options.keep_after_forward());
        assert_eq!(count(&sent, Phase::Forward, AllGather), PARAMETERS);
        assert_eq!(count(&sent, Phase::Backward, AllGather), 0);
    }
    // Without fetching in advance, what a block needs is gathered in its name.
    let sent = sent_in_a_step(&axes, false, &alone);
    for block in ["layers.0", "layers.1"] {
        let gathers = sent.iter().filter(|(_, module, kind)| {
            *kind == AllGather && (module == block || module.starts_with(&format!("{block}.")))
        });
        assert_eq!(gathers.count(), 16 + 8, "{block}");
    }
}

#[test]
fn copies_of_shards_reduce_over_both_axes() {
    let axes = [("dp", Role::Data, 2), ("fsdp", Role::Sharded, 2)];
    let sent = sent_in_a_step(&axes, false, &FullyShardOptions::default());
    assert_eq!(count(&sent, Phase::Backward, ReduceScatter), PARAMETERS);
    // One more over the copies, of a shard each: reduced, or gathered where both axes have reduced at once. The loss has what
    // it divides by.
    let gathers = count(&sent, Phase::Backward, AllGather) - NEEDED_BACK;
    assert_eq!(count(&sent, Phase::Backward, AllReduce) + gathers, PARAMETERS);
    let sent = sent_in_a_step(&[("dp", Role::Data, 2)], false, &FullyShardOptions::default());
    assert_eq!(count(&sent, Phase::Backward, AllReduce), PARAMETERS);
    assert_eq!(count(&sent, Phase::Backward, AllGather), 0);
}

/// Parts of a batch: contributions are kept on the ranks until they are asked for.
#[test]
fn accumulated_gradients_are_sent_once() {
    for (axes, kind) in
        [([("fsdp", Role::Sharded, 2)], ReduceScatter), ([("dp", Role::Data, 2)], AllReduce)]
    {
        let sizes = axes.map(|(name, _, size)| (name, size));
        let roles = axes.map(|(name, role, _)| (name, role));
        let (_, want) = dense(Kind::Gpt(4));
        spmd(2, |world| {
            let mesh = mesh(world, &sizes);
            let mut model = Model::new(Kind::Gpt(4), false, &mesh)?;
            model.cut(&roles, &mesh, &FullyShardOptions::default().keep_after_forward())?;
            let unreduced = BackwardOptions::default().unreduced();
            let mut sum = Gradients::default();
            for _ in 0..3 {
                let loss = model.loss(&roles, &mesh)?.div(3.0)?;
                let (gradients, comm) = CommDebug::record(|| loss.backward_with(&unreduced));
                let (done, adding) = CommDebug::record(|| sum.accumulate(gradients?));
                done?;
                let sent: Vec<_> =
                    sent(&comm).into_iter().filter(|(_, _, what)| *what == kind).collect();
                // What cross entropy says of its targets is a number, and no gradient.
                assert!(sent.len() <= 1 && adding.calls() == 0, "{sent:?} {adding}");
            }
            let (done, comm) = CommDebug::record(|| sum.reduce());
            done?;
            assert_eq!((comm.calls(), comm.calls_of(kind)), (PARAMETERS, PARAMETERS), "{comm}");
            for (name, parameter) in named_parameters(model.module()) {
                let gradient = sum.get(&parameter.value()).unwrap();
                assert_eq!(gradient.layout(), &parameter.layout());
                assert_close(&gradient.to_vec::<f64>()?, &want[&name], 1e-11, &name);
            }
            Ok(())
        });
    }
}
