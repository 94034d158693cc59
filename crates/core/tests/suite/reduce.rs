//! What the sweep does not see of this family: layouts of results, calls and bytes, values that are not
//! numbers, other dtypes and orders, errors.

use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh, Error, Layout, LocalError,
    Placement::{self, Partial, Replicate, Shard},
    ReduceOp, Tensor, World, distribute_tensor_from, ones,
    plan::StepKind::{AllGather, AllReduce},
    randn, zeros,
};
use dtensor_testing::spmd;

use crate::support::mesh;

type Local = fn(&Tensor) -> Result<Vec<Tensor>, LocalError>;
type Distributed = fn(&DTensor) -> Result<Vec<DTensor>, Error>;

/// Rows `name |x| call;`: the same call on plain and on distributed tensors.
macro_rules! both {
    ($($name:literal |$x:ident| $call:expr;)*) => {
        &[$((
            $name,
            |$x: &Tensor| $call,
            |$x: &DTensor| $call,
        )),*]
    };
}

type Both = &'static [(&'static str, Local, Distributed)];

/// Reductions and scans of any dtype along dim 0 and over all.
const ANY_DTYPE: Both = both! {
    "sum" |x| Ok(vec![x.sum(&[0], false)?]);
    "prod" |x| Ok(vec![x.prod(&[], true)?]);
    "amax" |x| Ok(vec![x.amax(&[0], false)?]);
    "amin" |x| Ok(vec![x.amin(&[], false)?]);
    "max" |x| { let (values, places) = x.max(0, false)?; Ok(vec![values, places]) };
    "min" |x| { let (values, places) = x.min(0, true)?; Ok(vec![values, places]) };
    "argmax" |x| Ok(vec![x.argmax(Some(0), false)?, x.argmax(None, true)?]);
    "argmin" |x| Ok(vec![x.argmin(Some(0), true)?, x.argmin(None, false)?]);
    "any" |x| Ok(vec![x.any(&[0], false)?, x.any(&[], false)?]);
    "all" |x| Ok(vec![x.all(&[0], false)?, x.all(&[], false)?]);
    "count_nonzero" |x| Ok(vec![x.count_nonzero(&[0], false)?]);
    "cumsum" |x| Ok(vec![x.cumsum(0)?]);
    "cumprod" |x| Ok(vec![x.cumprod(0)?]);
    "cummax" |x| { let (values, places) = x.cummax(0)?; Ok(vec![values, places]) };
    "cummin" |x| { let (values, places) = x.cummin(0)?; Ok(vec![values, places]) };
};

/// Those of floats.
const FLOATS: Both = both! {
    "mean" |x| Ok(vec![x.mean(&[0], false)?, x.mean(&[], false)?]);
    "var" |x| Ok(vec![x.var(&[0], 1, false)?, x.var(&[], 0, true)?]);
    "std" |x| Ok(vec![x.std(&[0], 0, false)?]);
    "norm" |x| Ok(vec![x.norm(2.0, &[0], false)?, x.norm(3.0, &[], false)?]);
    "norms" |x| Ok(vec![x.norm(f64::INFINITY, &[0], false)?, x.norm(f64::NEG_INFINITY, &[0], true)?]);
    "logsumexp" |x| Ok(vec![x.logsumexp(&[0], false)?, x.logsumexp(&[], true)?]);
    "logcumsumexp" |x| Ok(vec![x.logcumsumexp(0)?]);
};

fn values(x: &Tensor) -> Vec<f64> {
    x.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// Equal, both NaN, or within a relative tolerance.
#[track_caller]
fn assert_same(got: &Tensor, want: &Tensor, tolerance: f64, what: &str) {
    assert_eq!((got.shape(), got.dtype()), (want.shape(), want.dtype()), "{what}");
    let (got, want) = (values(got), values(want));
    let same = |(a, b): (&f64, &f64)| {
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * (1.0 + b.abs())
    };
    assert!(got.iter().zip(&want).all(same), "{what}: {got:?} should be {want:?}");
}

/// All calls on `x`, cut along dim 0 by all ranks, against the plain ones.
fn check(calls: Both, x: &Tensor, world: &World, sizes: &[usize], tolerance: f64) {
    let mesh = mesh(world, sizes);
    let cut = distribute_tensor_from(x, &mesh, &vec![Shard(0); sizes.len()], None).unwrap();
    for (name, local, distributed) in calls {
        let want = local(x).unwrap();
        let got = distributed(&cut).unwrap();
        for (got, want) in got.iter().zip(&want) {
            let what = format!("{name} of {} {:?}", x.dtype(), values(x));
            assert_same(&got.full_tensor().unwrap(), want, tolerance, &what);
        }
    }
}

#[test]
fn infinities_equal_values_and_what_is_no_number_are_as_on_one_device() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let columns = [
        vec![1.0, 3.0, 3.0, 2.0, 3.0, 0.0],
        vec![nan, 1.0, 2.0, nan, 0.0, 3.0],
        vec![1.0, 2.0, 0.0, -2.0, nan, 5.0],
        vec![-inf; 6],
        vec![inf; 6],
        vec![-inf, -inf, 1.0, -inf, 2.0, inf],
        vec![0.0, -0.0, 0.0, -0.0, -0.0, 0.0],
        vec![-1.0, -inf, -3.0, inf, -inf, -2.0],
    ];
    for (n_ranks, sizes) in [(2, vec![2]), (4, vec![4]), (4, vec![2, 2]), (8, vec![2, 4])] {
        spmd(n_ranks, |world| {
            for column in &columns {
                // Two equal columns, since kernels treat columns and rows in their own ways.
                let both: Vec<f64> = column.iter().flat_map(|value| [*value, *value]).collect();
                for x in [Tensor::from_slice(column, &[6])?, Tensor::from_vec(both, &[6, 2])?] {
                    check(ANY_DTYPE, &x, world, &sizes, 0.0);
                    check(FLOATS, &x, world, &sizes, 1e-12);
                }
            }
            Ok(())
        });
    }
}

#[test]
fn every_dtype_is_reduced_as_on_one_device() {
    spmd(4, |world| {
        let numbers: Vec<f64> = [3.0, 0.0, 1.0, 2.0, 7.0, 2.0].into();
        let x = Tensor::from_vec(numbers, &[6])?;
        for dtype in [DType::I64, DType::I32, DType::U8, DType::Bool] {
            check(ANY_DTYPE, &x.to_dtype(dtype)?, world, &[4], 0.0);
        }
        for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F16, 2e-3), (DType::Bf16, 2e-2)] {
            check(ANY_DTYPE, &x.to_dtype(dtype)?, world, &[4], tolerance);
            check(FLOATS, &x.to_dtype(dtype)?, world, &[4], tolerance);
        }
        // The sum of the squares, and that of the values, is beyond the dtype.
        let large = Tensor::full(&[600], 200.0_f32)?.to_dtype(DType::F16)?;
        let large = distribute_tensor_from(&large, &mesh(world, &[4]), &[Shard(0)], None)?;
        let mean = large.mean(&[], false)?.to_dtype(DType::F32)?.item::<f32>()?;
        let norm = large.norm(2.0, &[], false)?.to_dtype(DType::F32)?.item::<f32>()?;
        assert_eq!((mean, norm), (200.0, 4900.0));
        Ok(())
    });
}

#[test]
fn shards_in_any_order_are_reduced_as_on_one_device() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let numbers: Vec<f64> = (0..22).map(|i| f64::from((i * 7) % 5) - 1.5).collect();
        for (x, axes) in [
            (Tensor::from_slice(&numbers[..11], &[11])?, ["S(0)[1]", "S(0)[0]"]),
            (Tensor::from_slice(&numbers, &[11, 2])?, ["_S(0, 2)", "S(0)"]),
            (Tensor::from_slice(&numbers[..12], &[6, 2])?, ["_S(0, 2)", "S(1)"]),
        ] {
            let text = format!("[{}, {}]", axes[0], axes[1]);
            let layout = Layout::parse(x.shape(), x.dtype(), mesh.mesh(), &text)?;
            let whole = distribute_tensor_from(&x, &mesh, &[Replicate; 2], None)?;
            let cut = whole.redistribute_layout(&layout)?;
            assert!(!cut.layout().order().is_left_to_right(), "{layout}");
            for (name, local, distributed) in ANY_DTYPE.iter().chain(FLOATS) {
                for (got, want) in distributed(&cut)?.iter().zip(&local(&x)?) {
                    assert_same(&got.full_tensor()?, want, 1e-12, &format!("{name} of {layout}"));
                }
            }
        }
        Ok(())
    });
}

#[test]
fn a_variance_is_exact_where_the_mean_is_large() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let numbers: Vec<f32> = (0..1000).map(|i| 1e6 + (i * 37 % 100) as f32 * 0.0625).collect();
        let whole = Tensor::from_vec(numbers, &[1000])?;
        let want = whole.to_dtype(DType::F64)?.var(&[], 1, false)?.item::<f64>()?;
        let x = distribute_tensor_from(&whole, &mesh, &[Shard(0)], None)?;
        let got = f64::from(x.var(&[], 1, false)?.item::<f32>()?);
        assert!((got - want).abs() < 1e-6 * want, "{got} should be {want}");
        Ok(())
    });
}

/// What is sent for a call along the cut dim of 4 ranks, of which one has nothing, and where results lie.
#[track_caller]
fn sends(
    call: impl Fn(&DTensor) -> Result<Vec<DTensor>, Error> + Sync,
    all_reduces: usize,
    all_gathers: usize,
    layouts: &[&str],
) {
    spmd(4, |world| {
        let x = randn(&[6, 3], DType::F32, &mesh(world, &[4]), &[Shard(0)])?;
        let (results, comm) = CommDebug::record(|| call(&x));
        let calls = (comm.calls(), comm.calls_of(AllReduce), comm.calls_of(AllGather));
        assert_eq!(calls, (all_reduces + all_gathers, all_reduces, all_gathers), "{comm}");
        let got: Vec<String> = results?.iter().map(|one| one.layout().to_string()).collect();
        assert_eq!(got, layouts);
        Ok(())
    });
}

#[test]
fn reductions_along_a_cut_dim_send_results_not_operands() {
    sends(|x| Ok(vec![x.mean(&[0], false)?, x.sum(&[], false)?]), 0, 0, &["[P(sum)]", "[P(sum)]"]);
    sends(|x| Ok(vec![x.amax(&[0], false)?, x.amin(&[0], true)?]), 0, 0, &["[P(max)]", "[P(min)]"]);
    sends(|x| Ok(vec![x.any(&[0], false)?, x.all(&[], false)?]), 0, 0, &["[P(max)]", "[P(min)]"]);
    sends(|x| x.max(0, false).map(|(values, at)| vec![values, at]), 1, 0, &["[R]", "[P(min)]"]);
    sends(|x| Ok(vec![x.argmin(None, false)?]), 1, 0, &["[P(min)]"]);
    sends(|x| Ok(vec![x.var(&[0], 1, false)?]), 2, 0, &["[R]"]);
    sends(|x| Ok(vec![x.std(&[], 0, true)?]), 2, 0, &["[R]"]);
    sends(|x| Ok(vec![x.norm(2.0, &[0], false)?]), 1, 0, &["[R]"]);
    sends(|x| Ok(vec![x.norm(f64::INFINITY, &[], false)?]), 0, 0, &["[P(max)]"]);
    sends(|x| Ok(vec![x.logsumexp(&[0], false)?]), 2, 0, &["[R]"]);
    // Along other dims nothing is sent.
    sends(|x| Ok(vec![x.var(&[1], 1, false)?, x.logsumexp(&[1], true)?]), 0, 0, &["[S(0)]"; 2]);
}

#[test]
fn scans_along_a_cut_dim_gather_totals_alone() {
    sends(|x| Ok(vec![x.cumsum(0)?]), 0, 1, &["[S(0)]"]);
    sends(|x| Ok(vec![x.cumprod(0)?]), 0, 1, &["[S(0)]"]);
    sends(|x| Ok(vec![x.logcumsumexp(0)?]), 0, 1, &["[S(0)]"]);
    sends(|x| x.cummax(0).map(|(values, at)| vec![values, at]), 0, 2, &["[S(0)]", "[S(0)]"]);
    spmd(4, |world| {
        let x = ones(&[4000, 3], DType::F32, &mesh(world, &[4]), &[Shard(0)])?;
        let (_, comm) = CommDebug::record(|| x.cumsum(0));
        // Every rank gets three totals of three numbers.
        assert_eq!(comm.bytes(), 4 * 3 * 3 * 4, "{comm}");
        // What is pending on another axis may stay so.
        let mesh = mesh(world, &[2, 2]);
        let x = ones(&[5], DType::F32, &mesh, &[Partial(ReduceOp::Sum), Shard(0)])?;
        let sums = x.cumsum(0)?;
        assert_eq!(sums.placements(), x.placements());
        assert_eq!(sums.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0, 5.0]);
        Ok(())
    });
}

#[test]
fn a_mean_of_even_parts_is_a_pending_mean() {
    spmd(4, |world| {
        let x = ones(&[8, 3], DType::F32, &mesh(world, &[4]), &[Shard(0)])?;
        assert_eq!(x.mean(&[0], false)?.placements(), [Partial(ReduceOp::Avg)]);
        let two = mesh(world, &[2, 2]);
        let x = randn(&[6, 4], DType::F64, &two, &[Shard(0), Shard(0)])?;
        let mean = x.mean(&[], false)?;
        assert_eq!(mean.placements(), [Partial(ReduceOp::Sum); 2]);
        let want = x.full_tensor()?.mean(&[], false)?.item::<f64>()?;
        assert!((mean.item::<f64>()? - want).abs() < 1e-14);
        Ok(())
    });
}

#[test]
fn truths_that_are_pending_stay_pending() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let x = randn(&[4, 4], DType::F32, &mesh, &[Shard(0), Shard(1)])?.gt(1e6)?;
        let ((any, all), comm) = CommDebug::record(|| {
            let any = x.any(&[0], false).and_then(|x| x.any(&[0], false));
            (any, x.logical_not().and_then(|x| x.all(&[0], false)?.all(&[0], false)))
        });
        assert_eq!(comm.calls(), 0, "{comm}");
        assert_eq!((any?.item::<bool>()?, all?.item::<bool>()?), (false, true));
        Ok(())
    });
}

#[test]
fn mistakes_are_found_on_every_rank_before_anything_is_sent() {
    let errors = spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let empty = zeros(&[0, 3], DType::F32, &mesh, &[Shard(0)])?;
        let whole = zeros(&[6, 3], DType::I64, &mesh, &[Shard(0)])?;
        let (errors, comm) = CommDebug::record(|| {
            [
                empty.amax(&[0], false).unwrap_err(),
                empty.max(0, false).unwrap_err(),
                empty.argmin(None, false).unwrap_err(),
                empty.norm(f64::INFINITY, &[], false).unwrap_err(),
                whole.mean(&[0], false).unwrap_err(),
                whole.var(&[0], 1, false).unwrap_err(),
                whole.logsumexp(&[0], false).unwrap_err(),
                whole.sum(&[2], false).unwrap_err(),
                whole.sum(&[0, -2], false).unwrap_err(),
                whole.cumsum(2).unwrap_err(),
            ]
        });
        assert_eq!(comm.calls(), 0, "{comm}");
        assert!(errors.iter().all(|error| matches!(error, Error::Local(_))), "{errors:?}");
        Ok(errors)
    });
    assert!(errors.iter().all(|of_rank| *of_rank == errors[0]), "{errors:?}");
}

#[test]
fn ranks_outside_and_fake_worlds_get_layouts() -> Result<(), Error> {
    let run = |mesh: &DeviceMesh, shape: &[usize], placements: &[Placement]| {
        let x = zeros(shape, DType::F32, mesh, placements)?;
        let mut layouts = Vec::new();
        for (_, _, distributed) in ANY_DTYPE.iter().chain(FLOATS) {
            for result in distributed(&x)? {
                layouts.push(result.layout().to_string());
            }
        }
        Ok::<_, Error>(layouts)
    };
    let layouts = spmd(3, |world| {
        let two = DeviceMesh::from_mesh(world, "x=2".parse()?)?;
        Ok(run(&two, &[5, 2], &[Shard(0)])?)
    });
    assert_eq!(layouts[2], layouts[0]);
    let world = World::fake(1024, 1023)
        .map_err(|source| Error::Comm { op: "fake", source: source.into() })?;
    let mesh = DeviceMesh::new(&world, &[("x", 1024)])?;
    // The last rank holds nothing.
    assert_eq!(run(&mesh, &[1500, 2], &[Shard(0)])?, layouts[0]);
    Ok(())
}
