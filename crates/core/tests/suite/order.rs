//! What the sweep does not see of this family: layouts of results, calls and bytes, errors.

use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh, Error, Interpolation, Layout, LocalError,
    Placement::{self, Partial, Replicate, Shard},
    ReduceOp, Tensor, World, arange, distribute_tensor_from, ones,
    plan::StepKind,
    zeros,
};
use dtensor_testing::{noise::Noise, spmd};

use crate::support::mesh;

fn placed(whole: &Tensor, mesh: &DeviceMesh, placements: &[Placement]) -> DTensor {
    distribute_tensor_from(whole, mesh, placements, None).unwrap()
}

/// Few different values, NaN, infinities and zeros of both signs among them.
fn with_ties(shape: &[usize], dtype: DType, seed: u64) -> Tensor {
    let mut noise = Noise::new(seed);
    let few = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, 1.0, -1.0, 2.0];
    let n: usize = shape.iter().product();
    let values = (0..n).map(|_| few[noise.below(few.len())]).collect::<Vec<f64>>();
    let values = match dtype.is_float() {
        true => values,
        false => values.iter().map(|x| if x.is_finite() { x.abs() } else { 0.0 }).collect(),
    };
    Tensor::from_vec(values, shape).unwrap().to_dtype(dtype).unwrap()
}

/// The bits, so that NaN and the two zeros count.
fn bits(x: &Tensor) -> Vec<u8> {
    x.contiguous().as_bytes().unwrap().to_vec()
}

/// As [`assert_same`], but the two zeros are one: what is picked along a cut dim is a sum with zeros.
#[track_caller]
fn assert_equal(got: &DTensor, want: &Tensor, what: &str) {
    let plus = |x: &Tensor| x.add_scalar(0).unwrap();
    let got = got.full_tensor().unwrap();
    assert_eq!(got.shape(), want.shape(), "{what}");
    assert_eq!(bits(&plus(&got)), bits(&plus(want)), "{what}: {got:?} should be {want:?}");
}

#[track_caller]
fn assert_same(got: &DTensor, want: &Tensor, what: &str) {
    let got = got.full_tensor().unwrap();
    assert_eq!(got.shape(), want.shape(), "{what}");
    assert_eq!(bits(&got), bits(want), "{what}: {got:?} should be {want:?}");
}

#[test]
fn sorting_is_exact_and_stable_for_every_dtype_and_number_of_ranks() {
    for (n_ranks, n) in [(2, 5), (2, 64), (3, 31), (4, 18), (4, 61)] {
        spmd(n_ranks, |world| {
            let mesh = mesh(world, &[n_ranks]);
            for dtype in DType::ALL {
                for (seed, descending) in [(1, false), (2, true)] {
                    let whole = with_ties(&[n], dtype, seed);
                    let x = placed(&whole, &mesh, &[Shard(0)]);
                    let (values, indices) = x.sort(0, descending)?;
                    assert_eq!(values.placements(), [Shard(0)]);
                    let want = whole.sort(0, descending)?;
                    let what = format!("{dtype}[{n}] on {n_ranks}, descending: {descending}");
                    assert_same(&values, &want.0, &what);
                    assert_same(&indices, &want.1, &what);
                    assert_same(&x.argsort(0, descending)?, &want.1, &what);
                }
            }
            Ok(())
        });
    }
}

#[test]
fn sorted_values_of_which_all_are_equal_are_still_shared() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let x = ones(&[90], DType::F32, &mesh, &[Shard(0)])?;
        let ((_, indices), comm) = {
            let (sorted, comm) = CommDebug::record(|| x.sort(0, false));
            (sorted?, comm)
        };
        assert_eq!(indices.to_vec::<i64>()?, (0..90).collect::<Vec<_>>());
        // No gather of more than samples and sizes: 9 samples of values and places, and 3 sizes.
        let gathered: u128 = comm
            .events
            .iter()
            .filter(|event| event.kind == StepKind::AllGather)
            .map(|event| event.bytes)
            .sum();
        assert_eq!(gathered, 2 * (9 * 4 + 9 * 8 + 3 * 8), "{comm}");
        assert_eq!(comm.calls_of(StepKind::AllGather), 3, "{comm}");
        assert_eq!(comm.calls_of(StepKind::Exchange), 5, "{comm}");
        Ok(())
    });
}

#[test]
fn sorting_along_a_cut_dim_moves_the_cut_where_there_is_another() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let whole = with_ties(&[4, 6], DType::F32, 3);
        let x = placed(&whole, &mesh, &[Shard(1)]);
        let (sorted, comm) = CommDebug::record(|| x.sort(-1, false));
        let (values, indices) = sorted?;
        assert_eq!(comm.calls_of(StepKind::Exchange), 1, "{comm}");
        assert_eq!(comm.calls(), 1, "{comm}");
        // Half of everything changes its rank.
        assert_eq!(comm.bytes(), 4 * 6 * 4 / 2);
        assert_eq!((values.placements(), indices.placements()), (&[Shard(0)][..], &[Shard(0)][..]));
        assert_same(&values, &whole.sort(-1, false)?.0, "values");
        // So does everything else that needs whole lines.
        for comm in [
            CommDebug::record(|| x.median(1, false)).1,
            CommDebug::record(|| x.kthvalue(4, 1, false)).1,
            CommDebug::record(|| x.quantile(&[0.5], Some(1), false, Interpolation::Linear)).1,
            CommDebug::record(|| x.topk(4, 1, true)).1,
        ] {
            assert_eq!((comm.calls_of(StepKind::Exchange), comm.calls()), (1, 1), "{comm}");
        }
        // Not to a dim of size 1, although it is the first.
        let x = zeros(&[1, 4, 6], DType::F32, &mesh, &[Shard(2)])?;
        assert_eq!(x.sort(2, false)?.0.placements(), [Shard(1)]);
        Ok(())
    });
}

#[test]
fn the_best_along_a_cut_dim_are_the_best_of_the_best() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let whole = with_ties(&[21, 2], DType::F32, 4);
        let x = placed(&whole, &mesh, &[Shard(0)]);
        for largest in [true, false] {
            let (found, comm) = CommDebug::record(|| x.topk(3, 0, largest));
            let (values, indices) = found?;
            assert_eq!((comm.calls_of(StepKind::AllGather), comm.calls()), (2, 2), "{comm}");
            // Each rank receives 3 values and places of each of the 2 columns from 3 others.
            assert_eq!(comm.bytes(), 4 * 3 * (3 * 2) * (4 + 8));
            assert_eq!(values.placements(), [Replicate]);
            let want = whole.topk(3, 0, largest)?;
            assert_same(&values, &want.0, "values");
            assert_same(&indices, &want.1, "indices");
        }
        // 5 on 4 ranks are 2, 2, 1 and nothing.
        let whole = with_ties(&[5], DType::I32, 5);
        let (values, indices) = placed(&whole, &mesh, &[Shard(0)]).topk(1, 0, true)?;
        assert_same(&values, &whole.topk(1, 0, true)?.0, "values");
        assert_same(&indices, &whole.topk(1, 0, true)?.1, "indices");
        let error = x.topk(22, 0, true).unwrap_err();
        assert!(
            matches!(error, Error::Local(error) if matches!(*error, LocalError::BadNumber { .. }))
        );
        Ok(())
    });
}

#[test]
fn medians_and_quantiles_of_lines_with_nan_are_those_of_the_kernels() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        for (seed, shape) in [(6, [2, 40]), (7, [1, 29])] {
            for dtype in [DType::F32, DType::F64, DType::Bf16] {
                let whole = with_ties(&shape, dtype, seed);
                // A line without NaN.
                let finite = whole.masked_fill(&whole.isnan()?, 3)?;
                for whole in [whole, finite] {
                    let x = placed(&whole, &mesh, &[Shard(1)]);
                    let (values, indices) = x.median(1, true)?;
                    let want = whole.median(1, true)?;
                    assert_equal(&values, &want.0, "median");
                    assert_equal(&indices, &want.1, "median");
                    let (values, indices) = x.kthvalue(25, 1, false)?;
                    let want = whole.kthvalue(25, 1, false)?;
                    assert_equal(&values, &want.0, "kthvalue");
                    assert_equal(&indices, &want.1, "kthvalue");
                    for how in [
                        Interpolation::Linear,
                        Interpolation::Lower,
                        Interpolation::Higher,
                        Interpolation::Nearest,
                        Interpolation::Midpoint,
                    ] {
                        let q = [0.0, 0.3, 0.55, 1.0];
                        for dim in [Some(1), None] {
                            let what = format!("{dtype} {how:?} {dim:?}");
                            let want = whole.quantile(&q, dim, false, how)?;
                            assert_equal(&x.quantile(&q, dim, false, how)?, &want, &what);
                            let want = whole.nanquantile(&q, dim, true, how)?;
                            assert_equal(&x.nanquantile(&q, dim, true, how)?, &want, &what);
                        }
                    }
                }
            }
        }
        let nothing = Tensor::full(&[1, 30], f32::NAN)?;
        let x = placed(&nothing, &mesh, &[Shard(1)]);
        let q = x.nanquantile(&[0.5], Some(1), false, Interpolation::Linear)?;
        assert!(q.item::<f32>()?.is_nan());
        Ok(())
    });
}

#[test]
fn different_values_are_found_however_the_tensor_is_cut() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        for dtype in [DType::F32, DType::I64, DType::Bool, DType::F16] {
            let whole = with_ties(&[7, 5], dtype, 8);
            for placements in [
                [Shard(0), Shard(1)],
                [Shard(1), Replicate],
                [Shard(1), Shard(0)],
                [Replicate, Replicate],
                [Shard(0), Shard(0)],
            ] {
                let x = placed(&whole, &mesh, &placements);
                let what = format!("{dtype} {placements:?}");
                let check = |got: (DTensor, DTensor, DTensor), want: dtensor_local::Unique| {
                    assert_same(&got.0, &want.values, &what);
                    assert_same(&got.1, &want.inverse, &what);
                    assert_same(&got.2, &want.counts, &what);
                    got.1
                };
                let inverse = check(x.unique()?, whole.unique()?);
                assert_eq!(inverse.placements(), placements);
                check(x.unique_consecutive()?, whole.unique_consecutive()?);
                check(x.unique_dim(0)?, whole.unique_dim(0)?);
                check(x.unique_dim(1)?, whole.unique_dim(1)?);
            }
        }
        // A strange order of cuts.
        let whole = with_ties(&[9], DType::F32, 9);
        let layout = Layout::with_order(
            &[9],
            DType::F32,
            mesh.mesh(),
            &[Shard(0), Shard(0)],
            &[(0, &[1, 0])],
        )?;
        let x = placed(&whole, &mesh, &[Replicate; 2]).redistribute_layout(&layout)?;
        assert_same(&x.unique()?.1, &whole.unique()?.inverse, "unique");
        assert_same(&x.sort(0, false)?.1, &whole.sort(0, false)?.1, "sort");
        assert_same(&x.topk(2, 0, true)?.1, &whole.topk(2, 0, true)?.1, "topk");
        assert!(x.unique_dim(1).is_err());
        Ok(())
    });
}

#[test]
fn counts_are_pending_sums_of_a_length_that_all_agree_on() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let x = arange(0, 10, 1, DType::I64, &mesh, &[Shard(0)])?;
        let (counts, comm) = CommDebug::record(|| x.bincount(None, 3));
        let counts = counts?;
        assert_eq!(
            (counts.shape(), counts.placements()),
            (&[10][..], &[Partial(ReduceOp::Sum)][..])
        );
        assert_eq!(counts.to_vec::<i64>()?, [1; 10]);
        // The extremes of each rank, and nothing else.
        assert_eq!((comm.calls(), comm.bytes()), (1, 3 * 2 * 16), "{comm}");
        let weights = arange(0, 10, 1, DType::F32, &mesh, &[Shard(0)])?;
        let sums = x.bincount(Some(&weights), 0)?;
        assert_eq!(sums.dtype(), DType::F32);
        assert_eq!(sums.to_vec::<f32>()?, (0..10).map(|i| i as f32).collect::<Vec<_>>());
        let floats = weights;
        let ((counts, edges), comm) = {
            let (made, comm) = CommDebug::record(|| floats.histogram(3, None));
            (made?, comm)
        };
        assert_eq!(counts.placements(), [Partial(ReduceOp::Sum)]);
        assert_eq!(edges.placements(), [Replicate]);
        assert_eq!(comm.calls(), 1, "{comm}");
        assert_eq!(counts.to_vec::<f32>()?, [3.0, 3.0, 4.0]);
        assert_eq!(edges.to_vec::<f32>()?, [0.0, 3.0, 6.0, 9.0]);
        let (counts, comm) = CommDebug::record(|| floats.histc(3, 0.0, 9.0));
        assert_eq!((counts?.to_vec::<f32>()?, comm.calls()), (vec![3.0, 3.0, 4.0], 0));
        Ok(())
    });
}

#[test]
fn values_that_cannot_be_counted_are_the_same_error_on_every_rank() {
    let errors = spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        // Only the last rank has the negative one, and only the first the NaN.
        let numbers =
            placed(&Tensor::from_vec(vec![1_i64, 2, 3, 4, -5], &[5])?, &mesh, &[Shard(0)]);
        let values = Tensor::from_vec(vec![f32::NAN, 1.0, 2.0, 3.0, 4.0], &[5])?;
        let values = placed(&values, &mesh, &[Shard(0)]);
        Ok([
            numbers.bincount(None, 0).unwrap_err().to_string(),
            values.histc(3, 0.0, 0.0).unwrap_err().to_string(),
            values.histogram(3, None).unwrap_err().to_string(),
            values.bincount(None, 0).unwrap_err().to_string(),
        ])
    });
    assert!(errors[0][0].contains("-5"), "{errors:?}");
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
}

#[test]
fn a_sequence_or_a_set_that_is_cut_stays_so() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let sorted = Tensor::from_vec(vec![1.0_f32, 3.0, 3.0, 5.0, f32::NAN], &[5])?;
        let values = Tensor::from_vec(vec![3.0_f32, f32::NAN, 0.0, 9.0], &[4])?;
        let sequence = placed(&sorted, &mesh, &[Shard(0)]);
        let wanted = placed(&values, &mesh, &[Replicate]);
        for right in [false, true] {
            let (results, comm) = CommDebug::record(|| {
                Ok::<_, Error>([
                    sequence.searchsorted(&wanted, right)?,
                    wanted.bucketize(&sequence, right)?,
                ])
            });
            assert_eq!(comm.calls(), 0, "{comm}");
            for result in results? {
                assert_eq!(result.placements(), [Partial(ReduceOp::Sum)]);
                assert_same(&result, &sorted.searchsorted(&values, right)?, "places");
            }
        }
        let (found, comm) = CommDebug::record(|| wanted.isin(&sequence));
        let found = found?;
        assert_eq!((comm.calls(), found.placements()), (0, &[Partial(ReduceOp::Max)][..]));
        assert_eq!(found.to_vec::<bool>()?, [true, false, false, false]);
        Ok(())
    });
}

#[test]
fn a_fake_mesh_has_layouts_and_ranks_outside_have_nothing() -> Result<(), Error> {
    let world =
        World::fake(8, 3).map_err(|source| Error::Comm { op: "fake", source: source.into() })?;
    let fake = DeviceMesh::of_world(&world, "x")?;
    let x = zeros(&[1000], DType::F32, &fake, &[Shard(0)])?;
    let check = |mesh_x: &DTensor| -> Result<Vec<String>, Error> {
        let text = |x: &DTensor| format!("{:?} {}", x.shape(), x.layout());
        let how = Interpolation::Linear;
        Ok([
            mesh_x.sort(0, false)?.1,
            mesh_x.topk(3, 0, true)?.1,
            mesh_x.kthvalue(900, 0, false)?.0,
            mesh_x.median(0, true)?.0,
            mesh_x.quantile(&[0.1, 0.2], None, true, how)?,
            mesh_x.quantile(&[0.1, 0.2], Some(0), false, how)?,
            mesh_x.histc(4, 0.0, 0.0)?,
            mesh_x.histogram(4, None)?.1,
        ]
        .iter()
        .map(text)
        .collect())
    };
    let want = check(&x)?;
    assert_eq!(want[..3], ["[1000] [S(0)]", "[3] [R]", "[] [P(sum)]"]);
    assert!(matches!(x.unique(), Err(Error::Unsupported { op: "unique", .. })));
    spmd(3, |world| {
        let two = DeviceMesh::from_mesh(world, "x=2".parse()?)?;
        let x = arange(0, 1000, 1, DType::F32, &two, &[Shard(0)])?;
        assert_eq!(check(&x)?, want);
        Ok(())
    });
    Ok(())
}
