//! Every style on every module that it is for, and what becomes of mistakes.

use std::sync::Arc;

use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh,
    Placement::{self, Partial, Replicate, Shard},
    ReduceOp, Tensor, distribute_tensor_from,
    plan::StepKind::{AllGather, AllReduce},
};
use dtensor_nn::{
    Activation, ColwiseParallel, Embedding, Error, Forward, Hook, LayerNorm, Linear, Mlp, Module,
    ParallelStyle, Plan, PrepareInput, PrepareInputOutput, PrepareOutput, Result, RowwiseParallel,
    SequenceParallel, Spot, distribute_module, named_parameters, parallelize_module,
};
use dtensor_testing::spmd;

use crate::support::{assert_close, copies, fill, mesh, tensor};

/// Seven inputs and five outputs: neither can be cut evenly.
fn linear(mesh: &DeviceMesh) -> Result<Linear> {
    let layer = Linear::new(7, 5, true, DType::F64, mesh)?;
    fill(&layer)?;
    Ok(layer)
}

fn embedding(mesh: &DeviceMesh) -> Result<Embedding> {
    let layer = Embedding::new(7, 5, 1.0, DType::F64, mesh)?;
    fill(&layer)?;
    Ok(layer)
}

fn ids(mesh: &DeviceMesh) -> Result<DTensor> {
    let whole = Tensor::from_slice(&[0_i64, 6, 3, 3, 5, 1], &[2, 3]).unwrap();
    Ok(distribute_tensor_from(&whole, mesh, &copies(mesh), None)?)
}

fn operand(mesh: &DeviceMesh) -> DTensor {
    tensor(&[2, 3, 7], 5.0, DType::F64, mesh, &copies(mesh))
}

fn apply(
    module: &mut dyn Module,
    mesh: &DeviceMesh,
    axis: &str,
    style: impl ParallelStyle + 'static,
) -> Result<()> {
    parallelize_module(module, mesh, axis, &Plan::new().with("", style))
}

/// Result, gradients of the operand and of all parameters.
fn outcome<M: Forward>(module: &M, x: &DTensor) -> Result<Vec<Vec<f64>>> {
    let is_float = x.dtype().is_float();
    let x = if is_float { x.requires_grad()? } else { x.clone() };
    let y = module.call(&x)?;
    // Weights of their own for every element.
    let weights = tensor(y.shape(), 8.0, DType::F64, y.mesh(), &copies(y.mesh()));
    let gradients = y.mul(&weights)?.sum(&[], false)?.backward()?;
    let mut found = vec![y.to_vec::<f64>()?];
    if is_float {
        found.push(gradients.get(&x).unwrap().to_vec::<f64>()?);
    }
    for (_, parameter) in named_parameters(module) {
        let gradient = gradients.get(&parameter.value()).unwrap();
        assert_eq!(gradient.layout(), &parameter.layout());
        found.push(gradient.to_vec::<f64>()?);
    }
    Ok(found)
}

#[track_caller]
fn assert_same(got: &[Vec<f64>], want: &[Vec<f64>], what: &str) {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).for_each(|(got, want)| assert_close(got, want, 1e-13, what));
}

#[test]
fn a_linear_layer_in_every_style() {
    // Style, placements of weight and bias and result, reductions.
    type Case = (Arc<dyn ParallelStyle>, [Placement; 3], usize);
    let columns = |input: Spot, output: Spot| ColwiseParallel { input, output };
    let rows = |output: Spot| RowwiseParallel { input: None, output };
    let cases: Vec<Case> = vec![
        (Arc::new(ColwiseParallel::default()), [Shard(0), Shard(0), Shard(2)], 0),
        (Arc::new(columns(Spot::AsItIs, Spot::Replicate)), [Shard(0), Shard(0), Replicate], 0),
        (Arc::new(columns(Spot::Replicate, Spot::Shard(0))), [Shard(0), Shard(0), Shard(0)], 0),
        (Arc::new(RowwiseParallel::default()), [Shard(1), Replicate, Replicate], 1),
        (Arc::new(rows(Spot::Partial)), [Shard(1), Replicate, Partial(ReduceOp::Sum)], 0),
        (Arc::new(rows(Spot::Shard(1))), [Shard(1), Replicate, Shard(1)], 0),
        (Arc::new(SequenceParallel { dim: 1 }), [Replicate, Replicate, Shard(1)], 0),
        (Arc::new(SequenceParallel { dim: -3 }), [Replicate, Replicate, Shard(0)], 0),
        (Arc::new(PrepareInput(Spot::Shard(0))), [Replicate, Replicate, Shard(0)], 0),
        (Arc::new(PrepareOutput(Spot::Shard(-1))), [Replicate, Replicate, Shard(2)], 0),
        (
            Arc::new(PrepareInputOutput { input: Spot::Shard(1), output: Spot::Replicate }),
            [Replicate, Replicate, Replicate],
            0,
        ),
    ];
    for ranks in [2, 3, 4] {
        spmd(ranks, |world| {
            let mesh = mesh(world, &[("tp", ranks)]);
            let x = operand(&mesh);
            let want = outcome(&linear(&mesh)?, &x)?;
            for (style, [weight, bias, result], reductions) in &cases {
                let mut layer = linear(&mesh)?;
                style.apply("layer", &mut layer, 0)?;
                assert_eq!(layer.weight.layout().placements(), [*weight], "{style:?}");
                assert_eq!(layer.bias.as_ref().unwrap().layout().placements(), [*bias]);
                let (y, comm) = CommDebug::record(|| layer.call(&x));
                assert_eq!(y?.placements(), [*result], "{style:?}");
                assert_eq!(comm.calls_of(AllReduce), *reductions, "{style:?}");
                assert_same(&outcome(&layer, &x)?, &want, &format!("{style:?} on {ranks}"));
            }
            Ok(())
        });
    }
}

#[test]
fn a_table_in_every_style() {
    for ranks in [2, 3, 4] {
        spmd(ranks, |world| {
            let mesh = mesh(world, &[("tp", ranks)]);
            let want = outcome(&embedding(&mesh)?, &ids(&mesh)?)?;
            let columns: Arc<dyn ParallelStyle> = Arc::new(ColwiseParallel::default());
            let rows: Arc<dyn ParallelStyle> = Arc::new(RowwiseParallel::default());
            for (style, weight, result, calls) in
                [(columns, Shard(1), Shard(2), 0), (rows, Shard(0), Replicate, 1)]
            {
                let mut layer = embedding(&mesh)?;
                style.apply("table", &mut layer, 0)?;
                assert_eq!(layer.weight.layout().placements(), [weight]);
                let ids = ids(&mesh)?;
                let (y, comm) = CommDebug::record(|| layer.call(&ids));
                assert_eq!((y?.placements(), comm.calls_of(AllReduce)), (&[result][..], calls));
                assert_eq!(comm.calls_of(AllGather), 0);
                assert_same(&outcome(&layer, &ids)?, &want, &format!("{style:?} on {ranks}"));
            }
            Ok(())
        });
    }
}

#[test]
fn a_norm_runs_on_cut_positions() {
    spmd(3, |world| {
        let mesh = mesh(world, &[("tp", 3)]);
        let mut norm = LayerNorm::new(7, true, 1e-5, DType::F64, &mesh)?;
        fill(&norm)?;
        let x = operand(&mesh);
        let want = outcome(&norm, &x)?;
        apply(&mut norm, &mesh, "tp", SequenceParallel::default())?;
        let (y, comm) = CommDebug::record(|| norm.call(&x));
        assert_eq!((y?.placements(), comm.calls()), (&[Shard(1)][..], 0));
        assert_same(&outcome(&norm, &x)?, &want, "norm");
        Ok(())
    });
}

#[test]
fn an_axis_among_others_is_cut_alone() {
    spmd(4, |world| {
        let mesh = mesh(world, &[("dp", 2), ("tp", 2)]);
        let x = operand(&mesh);
        let want = outcome(&linear(&mesh)?, &x)?;
        let mut layer = linear(&mesh)?;
        apply(&mut layer, &mesh, "tp", ColwiseParallel::default())?;
        assert_eq!(layer.weight.layout().placements(), [Replicate, Shard(0)]);
        assert_same(&outcome(&layer, &x)?, &want, "on one axis");
        let rows = x.redistribute(&[Shard(0), Replicate])?;
        assert_eq!(layer.call(&rows)?.placements(), [Shard(0), Shard(2)]);
        assert_same(&outcome(&layer, &rows)?, &want, "on one axis, with a cut batch");
        // Rows on the other axis.
        apply(&mut layer, &mesh, "dp", RowwiseParallel::default())?;
        assert_eq!(layer.weight.layout().placements(), [Shard(1), Shard(0)]);
        assert_same(&outcome(&layer, &x)?, &want, "on both axes");
        Ok(())
    });
}

#[test]
fn any_placement_for_any_parameter() {
    spmd(4, |world| {
        let mesh = mesh(world, &[("x", 2), ("y", 2)]);
        let mut mlp = Mlp::new(7, 5, Activation::Gelu, true, DType::F64, &mesh)?;
        fill(&mlp)?;
        let x = operand(&mesh);
        let want = outcome(&mlp, &x)?;
        let place = |name: &str, value: &DTensor| match name {
            "w1.weight" => Some(vec![Shard(0), Shard(1)]),
            _ if value.n_dims() == 1 => Some(vec![Replicate, Shard(0)]),
            _ => None,
        };
        let before: Hook = Arc::new(|x| x.redistribute(&[Shard(0), Replicate]));
        let after: Hook = Arc::new(|y| y.redistribute(&[Replicate, Shard(1)]));
        distribute_module(&mut mlp, &mesh, place, Some(before), Some(after))?;
        assert_eq!(mlp.w1.weight.layout().placements(), [Shard(0), Shard(1)]);
        assert_eq!(mlp.w2.weight.layout().placements(), [Replicate, Replicate]);
        assert_eq!(mlp.call(&x)?.placements(), [Replicate, Shard(1)]);
        assert_same(&outcome(&mlp, &x)?, &want, "distributed");
        // One placement that cannot be: nothing has moved.
        let layouts = |mlp: &Mlp| -> Vec<String> {
            named_parameters(mlp).iter().map(|(_, own)| own.layout().to_string()).collect()
        };
        let before = layouts(&mlp);
        let bad = |name: &str, _: &DTensor| {
            Some(vec![if name == "w2.bias" { Shard(1) } else { Shard(0) }, Replicate])
        };
        distribute_module(&mut mlp, &mesh, bad, None, None).unwrap_err();
        assert_eq!(layouts(&mlp), before);
        Ok(())
    });
}

#[test]
fn mistakes_are_named_and_change_nothing() {
    let errors = spmd(2, |world| {
        let mesh = mesh(world, &[("tp", 2)]);
        let mut mlp = Mlp::new(4, 6, Activation::SwiGlu, true, DType::F64, &mesh)?;
        let x = tensor(&[3, 4], 1.0, DType::F64, &mesh, &[Replicate]);
        let columns = ColwiseParallel::default();
        let mut tried = Vec::new();
        let mut refused = |mlp: &mut Mlp, axis: &str, plan: &Plan| -> Result<Error> {
            let before: Vec<_> = named_parameters(mlp).iter().map(|(_, p)| p.layout()).collect();
            let (_, comm) = CommDebug::record(|| mlp.call(&x));
            let error = parallelize_module(mlp, &mesh, axis, plan).unwrap_err();
            let after: Vec<_> = named_parameters(mlp).iter().map(|(_, p)| p.layout()).collect();
            assert_eq!(before, after, "{error}");
            let (y, again) = CommDebug::record(|| mlp.call(&x));
            y?;
            assert_eq!(comm.calls(), again.calls(), "{error}");
            tried.push(error.to_string());
            Ok(error)
        };
        let plan = Plan::new().with("w1", columns).with("wx", columns);
        assert!(matches!(
            refused(&mut mlp, "tp", &plan)?,
            Error::UnmatchedPattern { pattern, modules }
                if pattern == "wx" && modules == "w1, w2, w3"
        ));
        // The module itself is the last that is visited: the two before it are put back.
        let plan = Plan::new().with("w[13]", columns).with("", RowwiseParallel::default());
        assert!(matches!(
            refused(&mut mlp, "tp", &plan)?,
            Error::WrongModule { style: "RowwiseParallel", .. }
        ));
        refused(&mut mlp, "dp", &Plan::new().with("w1", columns))?;
        parallelize_module(&mut mlp, &mesh, "tp", &Plan::new().with("w1", columns))?;
        for plan in [
            Plan::new().with("w1", columns),
            Plan::new().with("w1", RowwiseParallel::default()),
            Plan::new().with("w2", columns).with("w1", SequenceParallel::default()),
            Plan::new().with("w2", columns).with("w2", columns),
        ] {
            let error = refused(&mut mlp, "tp", &plan)?;
            assert!(
                matches!(&error, Error::AlreadyCut { axis, have: Shard(0), .. } if axis == "tp"),
                "{error}"
            );
        }
        let other = DeviceMesh::new(world, &[("dp", 1), ("tp", 2)])?;
        let error = parallelize_module(&mut mlp, &other, "tp", &Plan::new().with("w2", columns));
        assert!(matches!(error, Err(Error::OtherMesh { .. })), "{error:?}");
        Ok(tried)
    });
    assert_eq!(errors[0], errors[1]);
    assert_eq!(errors[0].len(), 7);
}
