//! Fields and names, layers, and first values.

use std::sync::Arc;

use dtensor::{
    DTensor, DType, DeviceMesh,
    Placement::{Replicate, Shard},
    ops::nn::{Conv, CrossEntropy},
    random,
};
use dtensor_nn::{
    Activation, AttentionConfig, ColwiseParallel, Conv1d, Conv2d, Dropout, Error, Forward,
    FullyShardOptions, Gpt, GptConfig, LayerNorm, Linear, Llama, LlamaConfig, Mlp, Module,
    ModuleState, MultiHeadAttention, Parameter, Plan, Result, RmsNorm, Rotary, RowwiseParallel,
    Sequential, Spot, cross_entropy, cross_entropy_with, distribute_module, for_each_matching,
    for_each_module, fully_shard, init, module_names, named_parameters, parallelize_module,
    parameters, replace_matching, set_training,
};
use dtensor_testing::spmd;

use crate::support::{assert_close, copies, mesh, tensor};

/// A bit of everything.
#[derive(Clone, Debug, Module)]
struct Zoo<M: Module> {
    own: Parameter,
    maybe: Option<Parameter>,
    never: Option<Linear>,
    several: Vec<Linear>,
    nested: Vec<Option<Vec<Parameter>>>,
    inner: M,
    #[module(skip)]
    _name: &'static str,
    state: ModuleState,
}

impl Zoo<Mlp> {
    fn new(mesh: &DeviceMesh) -> Result<Zoo<Mlp>> {
        let parameter = || Parameter::new(&tensor(&[2], 1.0, DType::F64, mesh, &copies(mesh)));
        let linear = |bias: bool| Linear::new(2, 2, bias, DType::F64, mesh);
        Ok(Zoo {
            own: parameter()?,
            maybe: Some(parameter()?),
            never: None,
            several: vec![linear(true)?, linear(false)?],
            nested: vec![Some(vec![parameter()?]), None, Some(vec![parameter()?, parameter()?])],
            inner: Mlp::new(2, 3, Activation::Relu, false, DType::F64, mesh)?,
            _name: "zoo",
            state: ModuleState::default(),
        })
    }
}

fn names(module: &dyn Module) -> Vec<String> {
    named_parameters(module).into_iter().map(|(name, _)| name).collect()
}

#[test]
fn fields_are_listed_in_order() {
    spmd(1, |world| {
        let mesh = mesh(world, &[("x", 1)]);
        let mut zoo = Zoo::new(&mesh)?;
        assert_eq!(
            names(&zoo),
            [
                "own",
                "maybe",
                "several.0.weight",
                "several.0.bias",
                "several.1.weight",
                "nested.0.0",
                "nested.2.0",
                "nested.2.1",
                "inner.w1.weight",
                "inner.w2.weight",
            ]
        );
        assert_eq!(module_names(&zoo), ["several.0", "several.1", "inner", "inner.w1", "inner.w2"]);
        let mut visited = Vec::new();
        for_each_module(&mut zoo, |name, _| {
            visited.push(name.to_owned());
            Ok::<_, Error>(())
        })?;
        assert_eq!(visited, ["several.0", "several.1", "inner.w1", "inner.w2", "inner", ""]);
        // The first error ends the visit.
        let mut n = 0;
        let outcome = for_each_module(&mut zoo, |name, _| {
            n += 1;
            if name == "inner.w1" { Err(name.to_owned()) } else { Ok(()) }
        });
        assert_eq!((outcome, n), (Err("inner.w1".to_owned()), 3));
        Ok(())
    });
}

#[test]
fn parts_are_replaced_shared_and_frozen() {
    spmd(1, |world| {
        let mesh = mesh(world, &[("x", 1)]);
        let mut zoo = Zoo::new(&mesh)?;
        let n = parameters(&zoo).len();
        zoo.never = Some(Linear::new(2, 2, true, DType::F64, &mesh)?);
        assert_eq!(parameters(&zoo).len(), n + 2);
        zoo.inner = Mlp::new(2, 5, Activation::SwiGlu, false, DType::F64, &mesh)?;
        assert!(names(&zoo).contains(&"inner.w3.weight".to_owned()));
        // A shared one is there once, by its first name.
        zoo.several[1].weight = zoo.several[0].weight.clone();
        assert!(!names(&zoo).contains(&"several.1.weight".to_owned()));
        // A frozen one is there, and not learnt.
        zoo.own.set_learnt(false)?;
        zoo.maybe = Some(Parameter::frozen(&zoo.own.value()));
        assert!(names(&zoo).contains(&"maybe".to_owned()));
        assert!(parameters(&zoo).iter().all(|other| !other.is_same(&zoo.own)));
        zoo.own.set(&zoo.own.value().mul(2.0)?)?;
        assert!(!zoo.own.is_learnt(), "a new value does not change that");
        zoo.own.set_learnt(true)?;
        assert!(zoo.own.is_learnt() && zoo.own.value().is_leaf());
        // A clone of a module is the same parameters.
        let clone = zoo.clone();
        clone.own.set(&zoo.own.value().mul(0.0)?)?;
        assert_eq!(zoo.own.value().to_vec::<f64>()?, [0.0, 0.0]);
        Ok(())
    });
}

#[test]
fn modules_are_visited_and_replaced_by_their_names() {
    spmd(1, |world| {
        let mesh = mesh(world, &[("x", 1)]);
        let mut zoo = Zoo::new(&mesh)?;
        let visited = |zoo: &mut Zoo<Mlp>, pattern: &str| -> Result<Vec<String>> {
            let mut visited = Vec::new();
            for_each_matching(zoo, pattern, |name, _| {
                visited.push(name.to_owned());
                Ok(())
            })?;
            Ok(visited)
        };
        assert_eq!(visited(&mut zoo, "inner.w*")?, ["inner.w1", "inner.w2"]);
        assert_eq!(visited(&mut zoo, "*")?, ["inner"]);
        assert_eq!(visited(&mut zoo, "")?, [""]);
        let unmatched = |outcome: Result<()>| {
            let error = outcome.unwrap_err();
            assert!(
                matches!(&error, Error::UnmatchedPattern { pattern, .. } if pattern == "outer.*")
            );
        };
        unmatched(visited(&mut zoo, "outer.*").map(drop));
        let wider = |_: &str, old: &Linear| {
            let rows = old.weight.value().shape()[0];
            Ok(Linear::new(7, rows, false, DType::F64, &mesh)?)
        };
        unmatched(replace_matching(&mut zoo, "outer.*", wider));
        // Refused, nothing is replaced: one of them is no `Linear`, one cannot be made, one is gathered.
        let before = names(&zoo);
        let error = replace_matching(&mut zoo, "*", wider).unwrap_err();
        assert!(matches!(&error, Error::OtherType { module, .. } if module == "inner"), "{error}");
        let error = replace_matching(&mut zoo, "several.*", |name, old| match name {
            "several.0" => wider(name, old),
            _ => Err(Error::Unexpected { name: name.to_owned() }),
        });
        assert!(matches!(error, Err(Error::Unexpected { .. })), "{error:?}");
        let mut gathered = Zoo::new(&mesh)?;
        fully_shard(&mut gathered.inner.w2, "x", &FullyShardOptions::default())?;
        let error = replace_matching(&mut gathered, "inner.w?", wider).unwrap_err();
        assert!(
            matches!(&error, Error::GatheredAlready { name, .. } if name == "inner.w2.weight"),
            "{error}"
        );
        assert_eq!((names(&zoo), names(&gathered)), (before.clone(), before));
        assert_eq!(gathered.inner.w1.weight.value().shape(), [3, 2]);
        // Otherwise all are, with what was put around them.
        set_training(&mut zoo, false);
        zoo.several[0].state_mut().put_after(Arc::new(|y| y.mul(0.0)));
        replace_matching(&mut zoo, "several.*", wider)?;
        let x = tensor(&[3, 7], 1.0, DType::F64, &mesh, &copies(&mesh));
        for (number, linear) in zoo.several.iter().enumerate() {
            assert_eq!((linear.weight.value().shape(), linear.bias.is_none()), (&[2, 7][..], true));
            assert!(!linear.state().is_training());
            let is_zero = linear.call(&x)?.to_vec::<f64>()?.iter().all(|value| *value == 0.0);
            assert_eq!(is_zero, number == 0);
        }
        assert_eq!(zoo.inner.w1.weight.value().shape(), [3, 2], "others are not");
        Ok(())
    });
}

/// A part of a user's own.
#[derive(Clone, Debug, Module)]
struct Halved {
    state: ModuleState,
}

impl Forward for Halved {
    fn forward(&self, x: &DTensor) -> dtensor::Result<DTensor> {
        x.mul(0.5)
    }
}

#[test]
fn a_box_may_have_a_module_of_another_type() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let x = tensor(&[4, 6], 1.0, DType::F64, &mesh, &[Replicate]);
        let mut model = Sequential::new()
            .with(Linear::new(6, 5, true, DType::F64, &mesh)?)
            .with(LayerNorm::new(5, true, 1e-5, DType::F64, &mesh)?)
            .with(Sequential::new().with(Linear::new(5, 3, false, DType::F64, &mesh)?));
        assert_eq!(names(&model), ["0.weight", "0.bias", "1.weight", "1.bias", "2.0.weight"],);
        assert_eq!(module_names(&model), ["0", "1", "2", "2.0"]);
        let one_by_one = |model: &Sequential| {
            model.parts().iter().try_fold(x.clone(), |x, part| part.call(&x))?.to_vec::<f64>()
        };
        assert_eq!(model.call(&x)?.to_vec::<f64>()?, one_by_one(&model)?);
        // Styles and replacements see what is in the box.
        let plan = Plan::new()
            .with("0", ColwiseParallel { output: Spot::Replicate, ..ColwiseParallel::default() })
            .with("2.0", RowwiseParallel::default());
        let want = model.call(&x)?.to_vec::<f64>()?;
        parallelize_module(&mut model, &mesh, "x", &plan)?;
        let first = named_parameters(&model).remove(0).1;
        assert_eq!(first.layout().placements(), [Shard(0)]);
        assert_close(&model.call(&x)?.to_vec::<f64>()?, &want, 1e-13, "cut");
        replace_matching(&mut model, "2.0", |_, old: &Linear| {
            let new = Linear::new(5, 3, true, DType::F64, &mesh)?;
            new.weight.set(&old.weight.value())?;
            Ok(new)
        })?;
        assert_eq!(names(&model).last().unwrap(), "2.0.bias");
        let wrong = replace_matching(&mut model, "1", |_, old: &Linear| Ok(old.clone()));
        assert!(matches!(wrong, Err(Error::OtherType { .. })), "{wrong:?}");
        // Of another type, with what was put around the one before it, and in its mode.
        set_training(&mut model, false);
        let norm: Box<dyn Forward> = Box::new(RmsNorm::new(5, 1e-5, DType::F64, &mesh)?);
        let mut norm = Some(norm);
        replace_matching::<Box<dyn Forward>>(&mut model, "1", |_, _| Ok(norm.take().unwrap()))?;
        assert!(!names(&model).contains(&"1.bias".to_owned()));
        assert!(!model.parts()[1].state().is_training());
        let halved: Box<dyn Forward> = Box::new(Halved { state: ModuleState::default() });
        let mut halved = Some(halved);
        replace_matching::<Box<dyn Forward>>(&mut model, "0", |_, _| Ok(halved.take().unwrap()))?;
        assert_eq!(names(&model), ["1.weight", "2.0.weight", "2.0.bias"]);
        assert_eq!(model.parts()[0].call(&x)?.placements(), [Replicate]);
        Ok(())
    });
}

#[test]
fn a_mode_reaches_every_module() {
    spmd(1, |world| {
        let mesh = mesh(world, &[("x", 1)]);
        let mut zoo = Zoo::new(&mesh)?;
        for training in [false, true] {
            set_training(&mut zoo, training);
            assert_eq!(zoo.state().is_training(), training);
            for_each_module(&mut zoo, |name, module| {
                assert_eq!(module.state().is_training(), training, "{name}");
                Ok::<_, Error>(())
            })?;
        }
        Ok(())
    });
}

#[test]
fn what_is_dropped_does_not_depend_on_the_layout() {
    let drop = |ranks: usize, axes: &[(&str, usize)], placements: &[dtensor::Placement]| {
        spmd(ranks, |world| {
            let mesh = mesh(world, axes);
            random::manual_seed(7);
            let mut dropout = Dropout::new(0.4);
            let x = tensor(&[5, 7], 1.0, DType::F64, &mesh, placements).requires_grad()?;
            let y = dropout.call(&x)?;
            assert_eq!(y.placements(), placements);
            let gradients = y.sum(&[], false)?.backward()?;
            let both = [y.to_vec::<f64>()?, gradients.get(&x).unwrap().to_vec::<f64>()?];
            set_training(&mut dropout, false);
            assert_eq!(dropout.call(&x)?.to_vec::<f64>()?, x.to_vec::<f64>()?);
            Ok(both)
        })
        .remove(0)
    };
    let want = drop(1, &[("x", 1)], &[Replicate]);
    let dropped = want[0].iter().filter(|value| **value == 0.0).count();
    assert!((5..25).contains(&dropped), "{dropped} of 35");
    for ranks in [2, 3, 4] {
        for placement in [Replicate, Shard(0), Shard(1)] {
            assert_eq!(drop(ranks, &[("x", ranks)], &[placement]), want);
        }
    }
    assert_eq!(drop(4, &[("x", 2), ("y", 2)], &[Shard(1), Shard(0)]), want);
}

#[test]
fn first_values_do_not_depend_on_the_mesh() {
    let first = |ranks: usize, axes: &[(&str, usize)]| {
        spmd(ranks, |world| {
            let mesh = mesh(world, axes);
            random::manual_seed(3);
            let config = GptConfig { layers: 1, dim: 8, heads: 2, ..GptConfig::default() };
            let gpt = Gpt::new(&config, DType::F32, &mesh)?;
            let llama = LlamaConfig { layers: 1, dim: 8, heads: 2, ..LlamaConfig::default() };
            let llama = Llama::new(&llama, DType::F32, &mesh)?;
            let mut values = Vec::new();
            for (_, parameter) in [named_parameters(&gpt), named_parameters(&llama)].concat() {
                values.extend(parameter.value().to_vec::<f32>()?);
            }
            Ok(values)
        })
        .remove(0)
    };
    let want = first(1, &[("x", 1)]);
    assert_eq!(first(3, &[("x", 3)]), want);
    assert_eq!(first(4, &[("x", 2), ("y", 2)]), want);
}

#[test]
fn first_values_are_spread_as_they_should_be() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let shape = [200, 100];
        let spread = |values: &DTensor| -> dtensor::Result<(f64, f64)> {
            let values = values.to_vec::<f64>()?;
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
            assert!(mean.abs() < 0.01, "{mean}");
            let largest = values.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
            Ok(((square / values.len() as f64).sqrt(), largest))
        };
        random::manual_seed(1);
        let placements = [Shard(0)];
        let (deviation, _) = spread(&init::normal(&shape, 0.5, DType::F64, &mesh, &placements)?)?;
        assert!((deviation - 0.5).abs() < 0.01, "{deviation}");
        let (_, largest) = spread(&init::kaiming_uniform(&shape, DType::F64, &mesh, &placements)?)?;
        assert!((0.099..=0.1).contains(&largest), "{largest}");
        let (deviation, _) =
            spread(&init::xavier_uniform(&shape, DType::F64, &mesh, &placements)?)?;
        assert!((deviation - (2.0_f64 / 300.0).sqrt()).abs() < 0.002, "{deviation}");
        let (deviation, _) = spread(&init::xavier_normal(&shape, DType::F64, &mesh, &placements)?)?;
        assert!((deviation - (2.0_f64 / 300.0).sqrt()).abs() < 0.002, "{deviation}");
        let (deviation, _) =
            spread(&init::kaiming_normal(&shape, DType::F64, &mesh, &placements)?)?;
        assert!((deviation - (2.0_f64 / 100.0).sqrt()).abs() < 0.004, "{deviation}");
        let truncated = |placement: dtensor::Placement| {
            random::manual_seed(1);
            init::truncated_normal(&shape, 0.5, DType::F64, &mesh, &[placement])
        };
        let (deviation, largest) = spread(&truncated(Shard(0))?)?;
        // Of a normal one within two deviations it is 0.8796.
        assert!((deviation - 0.5 * 0.8796).abs() < 0.01, "{deviation}");
        assert!((0.99..1.0).contains(&largest), "{largest}");
        assert_eq!(truncated(Shard(1))?.to_vec::<f64>()?, truncated(Replicate)?.to_vec::<f64>()?);
        let config = GptConfig { layers: 1, ..GptConfig::default() };
        let gpt = Gpt::new(&config, DType::F64, &mesh)?;
        let (deviation, _) = spread(&gpt.layers[0].mlp.w1.weight.value())?;
        assert!((deviation - 0.02).abs() < 0.001, "{deviation}");
        let bias = gpt.layers[0].mlp.w1.bias.as_ref().unwrap().value();
        assert!(bias.to_vec::<f64>()?.iter().all(|value| *value == 0.0));
        assert!(gpt.lnf.weight.value().to_vec::<f64>()?.iter().all(|value| *value == 1.0));
        Ok(())
    });
}

#[test]
fn convolutions_are_the_operations_of_their_settings() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let x = tensor(&[3, 2, 9], 1.0, DType::F64, &mesh, &[Shard(0)]);
        let layer =
            Conv1d::new(2, 4, [3], true, DType::F64, &mesh)?.stride([2]).padding([1]).dilation([2]);
        let settings = Conv { stride: &[2], padding: &[1], dilation: &[2], groups: 1 };
        let (weight, bias) = (layer.weight.value(), layer.bias.as_ref().unwrap().value());
        let want = x.conv1d(&weight, Some(&bias), &settings)?;
        assert_eq!(layer.call(&x)?.to_vec::<f64>()?, want.to_vec::<f64>()?);
        assert_eq!(want.shape(), [3, 4, 4]);
        let x = tensor(&[3, 2, 6, 5], 1.0, DType::F64, &mesh, &[Shard(0)]);
        let layer = Conv2d::new(2, 4, [3, 2], false, DType::F64, &mesh)?.padding([0, 1]);
        let settings = Conv { stride: &[1, 1], padding: &[0, 1], dilation: &[1, 1], groups: 1 };
        let want = x.conv2d(&layer.weight.value(), None, &settings)?;
        assert_eq!(layer.call(&x)?.to_vec::<f64>()?, want.to_vec::<f64>()?);
        assert_eq!((want.shape(), names(&layer)), (&[3, 4, 4, 6][..], vec!["weight".to_owned()]));
        let gradients = layer.call(&x)?.sum(&[], false)?.backward()?;
        assert_eq!(gradients.len(), 1);
        Ok(())
    });
}

/// Element by element, as the formulas say.
#[test]
fn layers_compute_what_their_formulas_say() {
    spmd(1, |world| {
        let mesh = mesh(world, &[("x", 1)]);
        let x = tensor(&[2, 3], 1.0, DType::F64, &mesh, &[Replicate]);
        let rows = x.to_vec::<f64>()?;
        let layer = Linear::new(3, 2, true, DType::F64, &mesh)?;
        let weight = layer.weight.value().to_vec::<f64>()?;
        let bias = layer.bias.as_ref().unwrap().value().to_vec::<f64>()?;
        let cell = |row: usize, out: usize| {
            (0..3).map(|at| rows[row * 3 + at] * weight[out * 3 + at]).sum::<f64>() + bias[out]
        };
        let want = [cell(0, 0), cell(0, 1), cell(1, 0), cell(1, 1)];
        assert_close(&layer.call(&x)?.to_vec::<f64>()?, &want, 1e-14, "linear");
        let norm = LayerNorm::new(3, true, 1e-5, DType::F64, &mesh)?;
        let want: Vec<f64> = rows
            .chunks(3)
            .flat_map(|row| {
                let mean = row.iter().sum::<f64>() / 3.0;
                let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 3.0;
                row.iter().map(move |v| (v - mean) / (variance + 1e-5).sqrt()).collect::<Vec<_>>()
            })
            .collect();
        assert_close(&norm.call(&x)?.to_vec::<f64>()?, &want, 1e-13, "layer norm");
        let loss = dtensor_nn::mse_loss(&x, &x.mul(0.0)?)?.item::<f64>()?;
        let want = rows.iter().map(|value| value * value).sum::<f64>() / 6.0;
        assert_close(&[loss], &[want], 1e-14, "squares");
        Ok(())
    });
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let attention =
            AttentionConfig { dim: 12, heads: 4, key_heads: 2, causal: true, bias: true };
        for (config, text) in [
            (AttentionConfig { heads: 5, ..attention }, "the number of heads is 5 for 12 features"),
            (AttentionConfig { heads: 0, ..attention }, "the number of heads is 0"),
            (AttentionConfig { key_heads: 3, ..attention }, "the number of key heads is 3 for 4"),
            (AttentionConfig { key_heads: 0, ..attention }, "the number of key heads is 0"),
        ] {
            let error = MultiHeadAttention::new(&config, None, DType::F32, &mesh).unwrap_err();
            assert!(error.to_string().starts_with(text), "{error}");
        }
        // Of an odd number of features one would be in no pair, and left out.
        let odd = AttentionConfig { heads: 4, dim: 12, ..attention };
        let error = Rotary::new(5, 3, 10_000.0).unwrap_err().to_string();
        assert!(error.starts_with("the width of a head with rotary positions is 3;"), "{error}");
        let other = Rotary::new(5, 4, 10_000.0)?;
        let error = MultiHeadAttention::new(&odd, Some(other.clone()), DType::F32, &mesh);
        let error = error.unwrap_err().to_string();
        assert!(
            error.starts_with("the width of the rotary positions is 4 for heads of 3"),
            "{error}"
        );
        for shape in [&[1, 2, 5, 3][..], &[5, 4], &[1, 2, 5, 6]] {
            assert!(other.turn(&tensor(shape, 1.0, DType::F64, &mesh, &[Replicate])).is_err());
        }
        for (dim, heads, text) in [
            (12, 4, "the width of a head with rotary positions is 3;"),
            (12, 5, "the number of heads is 5 for 12 features"),
            (12, 0, "the number of heads is 0 for 12 features"),
        ] {
            let config = LlamaConfig { dim, heads, ..LlamaConfig::default() };
            let error = Llama::new(&config, DType::F32, &mesh).unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
        // Operands of other shapes are errors as well, and no panics.
        let layer = MultiHeadAttention::new(&attention, None, DType::F64, &mesh)?;
        for shape in [&[12][..], &[2, 12], &[2, 3, 11]] {
            assert!(layer.call(&tensor(shape, 1.0, DType::F64, &mesh, &[Replicate])).is_err());
        }
        let config = GptConfig { sequence: 4, layers: 1, dim: 8, heads: 2, ..GptConfig::default() };
        let gpt = Gpt::new(&config, DType::F64, &mesh)?;
        let llama =
            LlamaConfig { sequence: 4, layers: 1, dim: 8, heads: 2, ..LlamaConfig::default() };
        let llama = Llama::new(&llama, DType::F64, &mesh)?;
        for shape in [&[4][..], &[2, 5], &[1, 2, 3]] {
            let ids = dtensor::zeros(shape, DType::I64, &mesh, &[Replicate])?;
            assert!(gpt.call(&ids).is_err() && llama.call(&ids).is_err(), "{shape:?}");
        }
        let ids = dtensor::zeros(&[2, 4], DType::I64, &mesh, &[Shard(0)])?;
        assert_eq!(gpt.call(&ids)?.shape(), llama.call(&ids)?.shape());
        Ok(())
    });
}

/// A model may go to another mesh, also to one with ranks that had nothing of it; what it computes with besides its
/// parameters follows.
#[test]
fn a_model_is_brought_to_another_mesh_as_a_whole() {
    spmd(4, |world| {
        let (pair, all) = (mesh(world, &[("x", 2)]), mesh(world, &[("y", 2), ("z", 2)]));
        random::manual_seed(3);
        let config = LlamaConfig { layers: 1, dim: 8, heads: 2, ..LlamaConfig::default() };
        let mut llama = Llama::new(&config, DType::F64, &pair)?;
        let logits = |llama: &Llama, mesh: &DeviceMesh| -> Result<DTensor> {
            let ids = dtensor::Tensor::from_slice(&[5_i64, 3, 200, 7, 0, 9], &[2, 3]).unwrap();
            let ids = dtensor::distribute_tensor_from(&ids, mesh, &copies(mesh), None)?;
            Ok(llama.call(&ids)?)
        };
        let before = logits(&llama, &pair)?.redistribute_to(&all, &copies(&all))?;
        distribute_module(&mut llama, &all, |_, _| None, None, None)?;
        let after = logits(&llama, &all)?;
        assert_close(&after.to_vec::<f64>()?, &before.to_vec::<f64>()?, 1e-13, "moved");
        Ok(())
    });
}

#[test]
fn convolutions_have_groups() {
    spmd(1, |world| {
        let mesh = mesh(world, &[("x", 1)]);
        let layer = Conv2d::grouped(4, 6, [3, 2], 2, true, DType::F64, &mesh)?;
        assert_eq!(layer.weight.value().shape(), [6, 2, 3, 2]);
        let x = tensor(&[2, 4, 5, 6], 1.0, DType::F64, &mesh, &copies(&mesh));
        let settings = Conv { stride: &[1, 1], padding: &[0, 0], dilation: &[1, 1], groups: 1 };
        let (weight, bias) = (layer.weight.value(), layer.bias.as_ref().unwrap().value());
        // Every half of the filters on its half of the channels.
        let half = |at: usize| {
            let (weight, bias) = (weight.narrow(0, 3 * at, 3)?, bias.narrow(0, 3 * at, 3)?);
            x.narrow(1, 2 * at, 2)?.conv2d(&weight, Some(&bias), &settings)
        };
        let want = DTensor::cat(&[&half(0)?, &half(1)?], 1)?.to_vec::<f64>()?;
        assert_close(&layer.call(&x)?.to_vec::<f64>()?, &want, 1e-14, "groups");
        let layer = Conv1d::grouped(3, 6, [2], 3, false, DType::F64, &mesh)?;
        assert_eq!(layer.weight.value().shape(), [6, 1, 2]);
        for (channels, filters, groups) in [(4, 6, 4), (3, 6, 2), (4, 4, 0)] {
            let refused = Conv1d::grouped(channels, filters, [2], groups, true, DType::F64, &mesh);
            let error = refused.map(drop).unwrap_err().to_string();
            assert!(error.starts_with(&format!("the number of groups is {groups} for")), "{error}");
        }
        Ok(())
    });
}

/// By their formulas, and with gradients that are those of differences.
#[test]
fn losses_are_what_their_formulas_say() {
    type Loss = fn(&DTensor, &DTensor) -> dtensor::Result<DTensor>;
    type Formula = fn(f64, f64) -> f64;
    fn smooth(d: f64) -> f64 {
        if d < 0.3 { d * d / 0.6 } else { d - 0.15 }
    }
    let losses: [(&str, Loss, Formula); 4] = [
        ("l1", dtensor_nn::l1_loss, |x, t| (x - t).abs()),
        ("smooth", |x, t| dtensor_nn::smooth_l1_loss(x, t, 0.3), |x, t| smooth((x - t).abs())),
        ("not smooth", |x, t| dtensor_nn::smooth_l1_loss(x, t, 0.0), |x, t| (x - t).abs()),
        ("bce", dtensor_nn::bce_with_logits, |x, t| {
            let p = 1.0 / (1.0 + (-x).exp());
            -(t * p.ln() + (1.0 - t) * (1.0 - p).ln())
        }),
    ];
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let values = tensor(&[5, 3], 1.0, DType::F64, &mesh, &[Shard(0)]).mul(3.0)?;
        let targets = tensor(&[5, 3], 2.0, DType::F64, &mesh, &[Replicate]).add(0.5)?;
        let (x, t) = (values.to_vec::<f64>()?, targets.to_vec::<f64>()?);
        for (what, loss, formula) in &losses {
            let mean = |x: &[f64]| {
                x.iter().zip(&t).map(|(x, t)| formula(*x, *t)).sum::<f64>() / x.len() as f64
            };
            let leaf = values.detach().requires_grad()?;
            let got = loss(&leaf, &targets)?;
            assert_close(&[got.item::<f64>()?], &[mean(&x)], 1e-13, what);
            let slope = |at: usize| {
                let moved = |by: f64| {
                    let mut x = x.clone();
                    x[at] += by;
                    mean(&x)
                };
                (moved(1e-6) - moved(-1e-6)) / 2e-6
            };
            let want: Vec<f64> = (0..x.len()).map(slope).collect();
            let gradients = got.backward()?;
            let got = gradients.get(&leaf).unwrap().to_vec::<f64>()?;
            assert_close(&got, &want, 1e-7, what);
        }
        for beta in [-1.0, f64::NAN] {
            assert!(dtensor_nn::smooth_l1_loss(&values, &targets, beta).is_err());
        }
        // Of log-probabilities, with classes last.
        let logits = tensor(&[2, 3, 5], 1.0, DType::F64, &mesh, &[Shard(2)]);
        let ids = dtensor::Tensor::from_slice(&[0_i64, 4, 3, 1, 2, 2], &[2, 3]).unwrap();
        let ids = dtensor::distribute_tensor_from(&ids, &mesh, &[Replicate], None)?;
        let got = dtensor_nn::nll_loss(&logits.log_softmax(-1)?, &ids)?.item::<f64>()?;
        assert_close(&[got], &[cross_entropy(&logits, &ids)?.item::<f64>()?], 1e-13, "nll");
        Ok(())
    });
}

/// Whatever is cut, classes of language models included.
#[test]
fn a_loss_may_ignore_targets_and_spread_them() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let (classes, padding) = (5, 4_i64);
        let ids = [0_i64, padding, 3, 1, 2, padding];
        let ids = dtensor::Tensor::from_slice(&ids, &[2, 3]).unwrap();
        let ids = dtensor::distribute_tensor_from(&ids, &mesh, &[Replicate], None)?;
        let whole = tensor(&[2, 3, classes], 1.0, DType::F64, &mesh, &[Replicate]);
        let mut settings = CrossEntropy { ignore_index: padding, ..CrossEntropy::default() };
        settings.label_smoothing = 0.1;
        let logs = whole.log_softmax(-1)?.to_vec::<f64>()?;
        let of = |row: usize, class: usize| -logs[row * classes + class];
        let one = |(row, class): (usize, usize)| {
            let all: f64 = (0..classes).map(|class| of(row, class)).sum();
            0.9 * of(row, class) + 0.1 * all / classes as f64
        };
        let want = [(0, 0), (2, 3), (3, 1), (4, 2)].map(one).iter().sum::<f64>() / 4.0;
        for placement in [Replicate, Shard(0), Shard(1), Shard(2)] {
            let logits = whole.redistribute(&[placement])?;
            let got = cross_entropy_with(&logits, &ids, &settings)?.item::<f64>()?;
            assert!((got - want).abs() < 1e-13, "{placement}: {got} {want}");
            let plain = cross_entropy(&logits, &ids)?.item::<f64>()?;
            assert!((plain - want).abs() > 1e-3);
        }
        Ok(())
    });
}
