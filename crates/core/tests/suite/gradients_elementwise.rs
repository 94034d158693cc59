//! What the sweep of gradients does not see of elementwise operations: edges, second derivatives, what is sent.

use dtensor::{
    BackwardOptions, CommDebug, DTensor, DType, DeviceMesh, Error,
    Placement::{Partial, Replicate, Shard},
    ReduceOp, Tensor, distribute_tensor_from, grad, ones,
    plan::StepKind::{AllReduce, ReduceScatter},
    randn,
};
use dtensor_testing::spmd;

use crate::support::{mesh, slopes_of};

type Function = fn(&DTensor) -> Result<DTensor, Error>;

const INFINITY: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

fn vector(values: &[f64], mesh: &DeviceMesh) -> DTensor {
    let whole = Tensor::from_slice(values, &[values.len()]).unwrap();
    distribute_tensor_from(&whole, mesh, &[Replicate], None).unwrap()
}

/// The gradient of the sum of the results.
fn slopes(function: Function, x: &DTensor) -> Result<Vec<f64>, Error> {
    slopes_of(|x| function(x)?.sum(&[], false), x)
}

#[test]
fn edges_are_those_of_pytorch() {
    let cases: &[(&str, Function, &[f64], &[f64])] = &[
        ("relu", |x| x.relu(), &[-1.0, 0.0, 1.0, NAN], &[0.0, 0.0, 1.0, 1.0]),
        ("abs", |x| x.abs(), &[-2.0, 0.0, 3.0], &[-1.0, 0.0, 1.0]),
        ("sign", |x| x.sign(), &[-2.0, 0.0, 3.0], &[0.0; 3]),
        ("round", |x| x.round(), &[0.5, 0.7], &[0.0; 2]),
        ("leaky_relu", |x| x.leaky_relu(0.1), &[-1.0, 0.0, 1.0], &[0.1, 0.1, 1.0]),
        ("elu", |x| x.elu(2.0), &[0.0, 1.0, 1000.0], &[2.0, 1.0, 1.0]),
        ("hardswish", |x| x.hardswish(), &[-3.0, 0.0, 3.0, 4.0], &[0.0, 0.5, 1.0, 1.0]),
        ("hardtanh", |x| x.hardtanh(-1.0, 1.0), &[-1.0, 0.0, 1.0], &[0.0, 1.0, 0.0]),
        (
            "clamp",
            |x| x.clamp(Some((-1.0).into()), Some(1.0.into())),
            &[-1.5, -1.0, 0.0, 1.0, 2.0, NAN],
            &[0.0, 1.0, 1.0, 1.0, 0.0, 0.0],
        ),
        (
            "clamp, crossed",
            |x| x.clamp(Some(1.0.into()), Some((-1.0).into())),
            &[-2.0, -1.0, 0.0, 1.0, 2.0],
            &[0.0; 5],
        ),
        ("clamp, open", |x| x.clamp(None, Some(1.0.into())), &[-9.0, 1.0, 2.0], &[1.0, 1.0, 0.0]),
        ("maximum", |x| x.maximum(1.0), &[0.0, 1.0, 2.0, NAN], &[0.0, 0.5, 1.0, 1.0]),
        ("minimum", |x| x.minimum(1.0), &[0.0, 1.0, 2.0], &[1.0, 0.5, 0.0]),
        ("pow 0", |x| x.pow(0.0), &[0.0, 2.0, NAN], &[0.0; 3]),
        ("pow 2", |x| x.pow(2.0), &[0.0, 3.0], &[0.0, 6.0]),
        ("pow 1/2", |x| x.pow(0.5), &[0.0, 4.0], &[INFINITY, 0.25]),
        ("sqrt", |x| x.sqrt(), &[0.0, 4.0], &[INFINITY, 0.25]),
        (
            "nan_to_num",
            |x| x.nan_to_num(0.0, None, None),
            &[NAN, INFINITY, -INFINITY, 1.0],
            &[0.0, 0.0, 0.0, 1.0],
        ),
        ("copysign", |x| x.copysign(-1.0), &[-2.0, 0.0, 2.0], &[1.0, 0.0, -1.0]),
        ("silu", |x| x.silu(), &[-INFINITY, 0.0, INFINITY], &[0.0, 0.5, 1.0]),
        ("gelu", |x| x.gelu(), &[-INFINITY, 0.0, INFINITY], &[0.0, 0.5, 1.0]),
        ("frac", |x| x.frac(), &[-1.5, 1.0], &[1.0, 1.0]),
    ];
    spmd(1, |world| {
        let mesh = mesh(world, &[1]);
        for (name, function, x, want) in cases {
            let got = slopes(*function, &vector(x, &mesh))?;
            let same = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-15 || a == b;
            assert!(got.iter().zip(*want).all(same), "{name}: {got:?} should be {want:?}");
        }
        Ok(())
    });
}

#[test]
fn both_operands_have_the_edges_of_pytorch() {
    type Two = fn(&DTensor, &DTensor) -> Result<DTensor, Error>;
    type Values<'a> = [&'a [f64]; 2];
    let cases: &[(&str, Two, Values<'_>, Values<'_>)] = &[
        (
            "maximum",
            |a, b| a.maximum(b),
            [&[1.0, 2.0, NAN], &[1.0, 1.0, 1.0]],
            [&[0.5, 1.0, 1.0], &[0.5, 0.0, 1.0]],
        ),
        (
            "pow",
            |a, b| a.pow(b),
            [&[0.0, 0.0, 2.0], &[0.0, 2.0, 0.0]],
            [&[0.0, 0.0, 0.0], &[0.0, 0.0, std::f64::consts::LN_2]],
        ),
        ("rem", |a, b| a.rem(b), [&[5.0, -5.0], &[3.0, 3.0]], [&[1.0, 1.0], &[-1.0, 2.0]]),
        ("fmod", |a, b| a.fmod(b), [&[5.0, -5.0], &[3.0, 3.0]], [&[1.0, 1.0], &[-1.0, 1.0]]),
        // The first is at the lower bound, then the bounds are crossed.
        (
            "clamp_tensor, value",
            |a, b| a.clamp_tensor(b, &b.mul(2.0)?),
            [&[1.0, 0.0, -1.0], &[1.0, 1.0, -1.0]],
            [&[1.0, 0.0, 0.0], &[0.0, 1.0, 2.0]],
        ),
    ];
    spmd(1, |world| {
        let mesh = mesh(world, &[1]);
        for (name, function, [a, b], want) in cases {
            let leaves = [vector(a, &mesh).requires_grad()?, vector(b, &mesh).requires_grad()?];
            let gradients = function(&leaves[0], &leaves[1])?.sum(&[], false)?.backward()?;
            for (leaf, want) in leaves.iter().zip(want) {
                let got = gradients.get(leaf).unwrap().to_vec::<f64>()?;
                let same = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-15;
                assert!(got.iter().zip(*want).all(same), "{name}: {got:?} should be {want:?}");
            }
        }
        Ok(())
    });
}

#[test]
fn what_a_mask_leaves_out_has_no_say_even_if_it_is_infinite() {
    spmd(1, |world| {
        let mesh = mesh(world, &[1]);
        let x = vector(&[0.0, 4.0], &mesh).requires_grad()?;
        let is_zero = x.eq(0.0)?;
        let root = is_zero.where_self(&x.ones_like()?, &x.masked_fill(&is_zero, 1.0)?.sqrt()?)?;
        let gradients = root.sum(&[], false)?.backward()?;
        assert_eq!(gradients.get(&x).unwrap().to_vec::<f64>()?, [0.0, 0.25]);
        Ok(())
    });
}

#[test]
fn second_derivatives_are_those_of_differences() {
    let functions: &[(&str, Function)] = &[
        ("square", |x| x.square()),
        ("exp", |x| x.exp()),
        ("expm1", |x| x.expm1()),
        ("log", |x| x.log()),
        ("log1p", |x| x.log1p()),
        ("sqrt", |x| x.sqrt()),
        ("rsqrt", |x| x.rsqrt()),
        ("reciprocal", |x| x.reciprocal()),
        ("sin", |x| x.sin()),
        ("tan", |x| x.tan()),
        ("asin", |x| x.asin()),
        ("atan", |x| x.atan()),
        ("tanh", |x| x.tanh()),
        ("asinh", |x| x.asinh()),
        ("atanh", |x| x.atanh()),
        ("erf", |x| x.erf()),
        ("sigmoid", |x| x.sigmoid()),
        ("silu", |x| x.silu()),
        ("gelu", |x| x.gelu()),
        ("gelu_tanh", |x| x.gelu_tanh()),
        ("softplus", |x| x.softplus()),
        ("mish", |x| x.mish()),
        ("elu", |x| x.neg()?.elu(1.5)),
        ("hardswish", |x| x.hardswish()),
        ("pow", |x| x.pow(x)),
        ("div", |x| x.add(1.0)?.div(&x.exp()?)),
        ("atan2", |x| x.atan2(&x.square()?)),
        ("hypot", |x| x.hypot(&x.exp()?)),
        ("logaddexp", |x| x.logaddexp(&x.square()?)),
        ("addcmul", |x| x.addcmul(x, &x.exp()?, 0.5)),
        ("addcdiv", |x| x.addcdiv(&x.exp()?, x, 0.5)),
        ("lerp_tensor", |x| x.lerp_tensor(&x.exp()?, &x.square()?)),
    ];
    const STEP: f64 = 1e-5;
    let at = [0.2, 0.45, 0.8];
    spmd(1, |world| {
        let mesh = mesh(world, &[1]);
        for (name, function) in functions {
            let x = vector(&at, &mesh).requires_grad()?;
            let create_graph = BackwardOptions::default().create_graph();
            let first = grad(&function(&x)?.sum(&[], false)?, &[&x], &create_graph)?;
            let first = first[0].clone().unwrap();
            let sum = first.sum(&[], false)?;
            let second = grad(&sum, &[&x], &BackwardOptions::default())?[0].clone().unwrap();
            let moved = |by: f64| slopes(*function, &vector(&at.map(|x| x + by), &mesh));
            let (above, below) = (moved(STEP)?, moved(-STEP)?);
            for ((got, above), below) in second.to_vec::<f64>()?.iter().zip(above).zip(below) {
                let want = (above - below) / (2.0 * STEP);
                let error = (got - want).abs();
                assert!(error < 1e-6 * want.abs().max(1.0), "{name}: {got} should be {want}");
            }
        }
        Ok(())
    });
}

#[test]
fn gradients_of_parts_need_nothing_from_others() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let x = randn(&[7, 4], DType::F32, &mesh, &[Shard(0)])?.requires_grad()?;
        let row = randn(&[4], DType::F32, &mesh, &[Replicate])?;
        let y = x.gelu()?.mul(&row)?.sigmoid()?.maximum(0.3)?.silu()?.relu()?.tanh()?;
        let loss = y.sum(&[], false)?;
        let (gradients, comm) = CommDebug::record(|| loss.backward());
        assert_eq!(comm.calls(), 0, "{comm}");
        assert_eq!(gradients?.get(&x).unwrap().layout(), x.layout());
        Ok(())
    });
}

/// Column-wise cut weights leave the gradient of an activation as a sum; it stays one up to the leaf.
#[test]
fn a_pending_gradient_passes_activations_and_is_reduced_once() {
    type Activation = (&'static str, Function);
    let activations: [Activation; 9] = [
        ("gelu", |x| x.gelu()),
        ("gelu_tanh", |x| x.gelu_tanh()),
        ("silu", |x| x.silu()),
        ("relu", |x| x.relu()),
        ("tanh", |x| x.tanh()),
        ("sigmoid", |x| x.sigmoid()),
        ("mish", |x| x.mish()),
        ("leaky_relu", |x| x.leaky_relu(0.1)),
        ("clamp", |x| x.clamp(Some((-1.0).into()), Some(1.0.into()))),
    ];
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = randn(&[3, 4], DType::F32, &mesh, &[Replicate])?.requires_grad()?;
        let weight = randn(&[4, 6], DType::F32, &mesh, &[Shard(1)])?;
        for (name, activation) in activations {
            let loss = activation(&x.mul(0.5)?)?.matmul(&weight)?.sum(&[], false)?;
            let (gradients, comm) = CommDebug::record(|| loss.backward());
            assert_eq!((comm.calls_of(AllReduce), comm.calls()), (1, 1), "{name}: {comm}");
            assert_eq!(gradients?.get(&x).unwrap().layout(), x.layout());
        }
        // Where the leaf is cut, the sum is scattered.
        let cut = randn(&[4, 4], DType::F32, &mesh, &[Shard(0)])?.requires_grad()?;
        let whole = cut.redistribute(&[Replicate])?;
        let loss = whole.gelu()?.matmul(&weight)?.sum(&[], false)?;
        let (_, comm) = CommDebug::record(|| loss.backward());
        assert_eq!((comm.calls_of(ReduceScatter), comm.calls()), (1, 1), "{comm}");
        Ok(())
    });
}

/// A leaf that was broadcast: its gradient is the sum over the parts of the others.
#[test]
fn the_gradient_of_what_was_broadcast_is_one_reduction() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let scale = ones(&[3], DType::F64, &mesh, &[Replicate])?.requires_grad()?;
        let x = ones(&[4, 3], DType::F64, &mesh, &[Shard(0)])?;
        let loss = x.div(&scale)?.sum(&[], false)?;
        let unreduced = BackwardOptions::default().unreduced().retain_graph();
        let pending = loss.backward_with(&unreduced)?;
        assert_eq!(pending.get(&scale).unwrap().placements(), [Partial(ReduceOp::Sum)]);
        let (gradients, comm) = CommDebug::record(|| loss.backward());
        assert_eq!((comm.calls_of(AllReduce), comm.calls()), (1, 1), "{comm}");
        assert_eq!(gradients?.get(&scale).unwrap().to_vec::<f64>()?, [-4.0; 3]);
        Ok(())
    });
}

#[test]
fn gradients_have_the_dtype_of_their_tensor() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = ones(&[4], DType::F32, &mesh, &[Shard(0)])?.requires_grad()?;
        let half = x.to_dtype(DType::Bf16)?;
        let loss = half.gelu()?.mul(&half)?.to_dtype(DType::F64)?.sum(&[], false)?;
        let gradients = loss.backward()?;
        let gradient = gradients.get(&x).unwrap();
        assert_eq!((gradient.dtype(), gradient.layout()), (DType::F32, x.layout()));
        // gelu(1) + gelu'(1)
        let want = 0.841_345 + 1.083_316;
        assert!(gradient.to_vec::<f32>()?.iter().all(|got| (got - want).abs() < 2e-2));
        Ok(())
    });
}
