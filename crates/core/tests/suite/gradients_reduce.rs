//! What the sweep of gradients does not see of reductions and scans: ties, zeros and other edges, second derivatives,
//! what is sent.

use dtensor::{
    BackwardOptions, CommDebug, DTensor, DType, DeviceMesh, Error,
    Placement::{Replicate, Shard},
    Tensor, distribute_tensor_from, grad,
    plan::StepKind::{AllGather, AllReduce, ReduceScatter},
    randn,
};
use dtensor_testing::spmd;

use crate::support::{mesh, slopes_of};

type Function = fn(&DTensor) -> Result<DTensor, Error>;

const INFINITY: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

fn vector(values: &[f64], mesh: &DeviceMesh) -> DTensor {
    let whole = Tensor::from_slice(values, &[values.len()]).unwrap();
    distribute_tensor_from(&whole, mesh, &[Shard(0)], None).unwrap()
}

/// The results times 1, 2, 3, ..., added.
fn loss(function: Function, x: &DTensor) -> Result<DTensor, Error> {
    let result = function(x)?;
    let weights: Vec<f64> = (1..=result.numel()).map(|n| n as f64).collect();
    let weights = Tensor::from_slice(&weights, result.shape())?;
    let weights = distribute_tensor_from(&weights, x.mesh(), &[Replicate], None)?;
    result.mul(&weights)?.sum(&[], false)
}

fn slopes(function: Function, x: &DTensor) -> Result<Vec<f64>, Error> {
    slopes_of(|x| loss(function, x), x)
}

/// On one rank, and on three that hold a part each.
#[test]
fn edges_are_those_of_pytorch() {
    let third = 1.0 / 3.0;
    let cases: &[(&str, Function, &[f64], &[f64])] = &[
        // Evenly among equals; with an index, to the first.
        ("amax", |x| x.amax(&[0], false), &[3.0, 1.0, 3.0, 3.0], &[third, 0.0, third, third]),
        ("amin", |x| x.amin(&[0], true), &[1.0, 1.0, 3.0, 3.0], &[0.5, 0.5, 0.0, 0.0]),
        ("amax of NaN", |x| x.amax(&[0], false), &[1.0, NAN, 3.0, 0.0], &[NAN; 4]),
        ("max", |x| Ok(x.max(0, false)?.0), &[1.0, 3.0, 3.0, 2.0], &[0.0, 1.0, 0.0, 0.0]),
        ("max of NaN", |x| Ok(x.max(0, true)?.0), &[1.0, 3.0, NAN, NAN], &[0.0, 0.0, 1.0, 0.0]),
        ("min", |x| Ok(x.min(0, false)?.0), &[1.0, 3.0, 1.0, 1.0], &[1.0, 0.0, 0.0, 0.0]),
        // To the last of equals.
        ("cummax", |x| Ok(x.cummax(0)?.0), &[2.0, 1.0, 2.0, 3.0], &[3.0, 0.0, 3.0, 4.0]),
        ("prod", |x| x.prod(&[0], false), &[2.0, 3.0, 4.0, 5.0], &[60.0, 40.0, 30.0, 24.0]),
        ("prod, a zero", |x| x.prod(&[0], false), &[2.0, 0.0, 4.0, 5.0], &[0.0, 40.0, 0.0, 0.0]),
        ("prod, two zeros", |x| x.prod(&[0], true), &[2.0, 0.0, 4.0, 0.0], &[0.0; 4]),
        // 1 a + 2 a b + 3 a b c + 4 a b c d
        ("cumprod", |x| x.cumprod(0), &[2.0, 3.0, 1.0, 1.0], &[28.0, 18.0, 42.0, 24.0]),
        ("cumprod, a zero", |x| x.cumprod(0), &[2.0, 0.0, 4.0, 5.0], &[1.0, 188.0, 0.0, 0.0]),
        ("cumprod, two", |x| x.cumprod(0), &[2.0, 0.0, 4.0, 0.0], &[1.0, 28.0, 0.0, 0.0]),
        ("cumprod, at first", |x| x.cumprod(0), &[0.0, 2.0, 0.0, 7.0], &[5.0, 0.0, 0.0, 0.0]),
        ("cumsum", |x| x.cumsum(0), &[2.0, 0.0, 4.0, 5.0], &[10.0, 9.0, 7.0, 4.0]),
        ("norm of zeros", |x| x.norm(2.0, &[0], false), &[0.0; 4], &[0.0; 4]),
        ("norm", |x| x.norm(2.0, &[0], false), &[3.0, 0.0, -4.0, 0.0], &[0.6, 0.0, -0.8, 0.0]),
        ("1-norm", |x| x.norm(1.0, &[0], false), &[3.0, 0.0, -4.0, 0.0], &[1.0, 0.0, -1.0, 0.0]),
        ("3-norm of zeros", |x| x.norm(3.0, &[0], true), &[0.0; 4], &[0.0; 4]),
        ("1.5-norm of zeros", |x| x.norm(1.5, &[0], true), &[0.0; 4], &[0.0; 4]),
        ("1/2-norm", |x| x.norm(0.5, &[0], true), &[4.0, 0.0, -4.0, 0.0], &[2.0, 0.0, -2.0, 0.0]),
        ("0-norm", |x| x.norm(0.0, &[0], false), &[3.0, 0.0, -4.0, 1.0], &[0.0; 4]),
        (
            "largest magnitude",
            |x| x.norm(INFINITY, &[0], false),
            &[4.0, 0.0, -4.0, 1.0],
            &[0.5, 0.0, -0.5, 0.0],
        ),
        ("std of equals", |x| x.std(&[0], 1, false), &[2.0; 4], &[0.0; 4]),
        (
            "var",
            |x| x.var(&[0], 1, false),
            &[1.0, 2.0, 3.0, 6.0],
            &[-4.0 / 3.0, -2.0 / 3.0, 0.0, 2.0],
        ),
        ("mean", |x| x.mean(&[0], false), &[1.0, 2.0, 3.0, NAN], &[0.25; 4]),
        (
            "logsumexp",
            |x| x.logsumexp(&[0], false),
            &[-INFINITY, 1000.0, 1000.0, -1000.0],
            &[0.0, 0.5, 0.5, 0.0],
        ),
        ("logsumexp of nothing", |x| x.logsumexp(&[0], true), &[-INFINITY; 4], &[0.0; 4]),
        (
            "logcumsumexp",
            |x| x.logcumsumexp(0),
            &[-INFINITY, 1000.0, 1000.0, -1000.0],
            &[0.0, 2.0 + 3.0 / 2.0 + 2.0, 3.5, 0.0],
        ),
    ];
    for n_ranks in [1, 3] {
        spmd(n_ranks, |world| {
            let mesh = mesh(world, &[n_ranks]);
            for (name, function, x, want) in cases {
                let got = slopes(*function, &vector(x, &mesh))?;
                let same =
                    |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12 || (a.is_nan() && b.is_nan());
                assert!(got.iter().zip(*want).all(same), "{name}: {got:?} should be {want:?}");
            }
            Ok(())
        });
    }
}

#[test]
fn second_derivatives_are_those_of_differences() {
    let functions: &[(&str, Function)] = &[
        ("prod", |x| x.prod(&[0], true)),
        ("var", |x| x.var(&[0], 1, true)),
        ("std", |x| x.std(&[0], 0, true)),
        ("norm", |x| x.norm(2.0, &[0], true)),
        ("3-norm", |x| x.norm(3.0, &[0], true)),
        ("logsumexp", |x| x.logsumexp(&[0], true)),
        ("cumsum", |x| x.square()?.cumsum(0)),
        ("cumprod", |x| x.cumprod(0)),
        ("logcumsumexp", |x| x.logcumsumexp(0)),
        ("amax", |x| x.square()?.amax(&[0], true)?.exp()),
    ];
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        for (name, function) in functions {
            check_second(name, *function, [0.7, -1.1, 1.3, 0.4], &mesh)?;
        }
        // Zeros are factors too.
        let prod: Function = |x| x.prod(&[0], true);
        check_second("prod, a zero", prod, [0.7, 0.0, 1.3, 0.4], &mesh)?;
        check_second("prod, two zeros", prod, [0.7, 0.0, 0.0, 0.4], &mesh)?;
        check_second("prod, three zeros", prod, [0.0, 0.0, 0.0, 0.4], &mesh)?;
        Ok(())
    });
}

/// The derivative of the gradient in one direction.
fn check_second(
    name: &str,
    function: Function,
    at: [f64; 4],
    mesh: &DeviceMesh,
) -> Result<(), Error> {
    const STEP: f64 = 1e-5;
    const ALONG: [f64; 4] = [1.0, -0.5, 2.0, 0.25];
    let x = vector(&at, mesh).requires_grad()?;
    let create_graph = BackwardOptions::default().create_graph();
    let first = grad(&loss(function, &x)?, &[&x], &create_graph)?[0].clone().unwrap();
    let sum = first.mul(&vector(&ALONG, mesh))?.sum(&[], false)?;
    let second = grad(&sum, &[&x], &BackwardOptions::default())?[0].clone().unwrap();
    let moved = |by: f64| {
        let moved: Vec<f64> = at.iter().zip(ALONG).map(|(x, dx)| x + by * dx).collect();
        slopes(function, &vector(&moved, mesh))
    };
    let (above, below) = (moved(STEP)?, moved(-STEP)?);
    for ((got, above), below) in second.to_vec::<f64>()?.iter().zip(above).zip(below) {
        let want = (above - below) / (2.0 * STEP);
        let error = (got - want).abs();
        assert!(error < 1e-6 * want.abs().max(1.0), "{name}: {got} should be {want}");
    }
    Ok(())
}

/// Over a dim that is cut: what goes back is a number per row, never the rows.
#[test]
fn small_reductions_are_all_that_is_sent() {
    let cases: [(&str, Function, usize); 12] = [
        ("sum", |x| x.sum(&[1], false), 0),
        ("mean", |x| x.mean(&[1], false), 0),
        ("norm", |x| x.norm(2.0, &[1], false), 0),
        ("1-norm", |x| x.norm(1.0, &[1], false), 0),
        ("logsumexp", |x| x.logsumexp(&[1], false), 0),
        // The mean again.
        ("var", |x| x.var(&[1], 1, false), 1),
        ("std", |x| x.std(&[1], 1, false), 1),
        // The extreme, which was left pending, and how many equal it.
        ("amax", |x| x.amax(&[1], false), 2),
        ("largest magnitude", |x| x.norm(INFINITY, &[1], false), 2),
        // The product, and how many zeros there are.
        ("prod", |x| x.prod(&[1], false), 2),
        // The index, which was left pending.
        ("max", |x| Ok(x.max(1, false)?.0), 1),
        ("min", |x| Ok(x.min(1, true)?.0), 1),
    ];
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = randn(&[3, 64], DType::F64, &mesh, &[Shard(1)])?.requires_grad()?;
        for (name, function, calls) in cases {
            let loss = function(&x)?.sum(&[], false)?;
            let (gradients, comm) = CommDebug::record(|| loss.backward());
            assert_eq!((comm.calls_of(AllReduce), comm.calls()), (calls, calls), "{name}: {comm}");
            assert_eq!(gradients?.get(&x).unwrap().layout(), x.layout());
        }
        Ok(())
    });
}

/// Running sums are undone from the other end: of every part one total is sent.
#[test]
fn scans_go_back_with_totals_alone() {
    let cases: [(&str, Function, usize); 3] = [
        ("cumsum", |x| x.cumsum(1), 1),
        // Zeros, products, and two sums.
        ("cumprod", |x| x.cumprod(1), 4),
        // Of what is above 0 and of what is below.
        ("logcumsumexp", |x| x.logcumsumexp(1), 2),
    ];
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = randn(&[3, 64], DType::F64, &mesh, &[Shard(1)])?.requires_grad()?;
        for (name, function, calls) in cases {
            let loss = function(&x)?.square()?.sum(&[], false)?;
            let (gradients, comm) = CommDebug::record(|| loss.backward());
            assert_eq!((comm.calls_of(AllGather), comm.calls()), (calls, calls), "{name}: {comm}");
            assert!(comm.bytes() <= (calls * 3 * 2 * 8) as u128, "{name}: {comm}");
            assert_eq!(gradients?.get(&x).unwrap().layout(), x.layout());
        }
        // Places may be anywhere: everyone adds to zeros of its own, and the sums are scattered.
        let loss = x.cummax(1)?.0.square()?.sum(&[], false)?;
        let (_, comm) = CommDebug::record(|| loss.backward());
        assert_eq!((comm.calls_of(ReduceScatter), comm.calls()), (1, 1), "{comm}");
        Ok(())
    });
}
