//! What the sweep does not see of this family: layouts of results, calls and bytes, errors.
#![allow(clippy::single_range_in_vec_init)] // One range is a box of one dim.

use std::collections::BTreeSet;

use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh, Error, Layout, MeshIndexing, PadMode,
    Placement::{self, Partial, Replicate, Shard},
    ReduceOp, Result, Tensor, World, arange, distribute_tensor_from, ones,
    plan::StepKind,
    zeros,
};
use dtensor_testing::spmd;
use proptest::prelude::*;

use crate::support::{layouts_of, mesh};

/// What every rank knows of a tensor: 0, 1, 2, ...
fn numbers(shape: &[usize], dtype: DType) -> Tensor {
    let n = i64::try_from(shape.iter().product::<usize>()).unwrap();
    let numbers = Tensor::from_vec((0..n).collect::<Vec<_>>(), &[shape.iter().product()]).unwrap();
    numbers.to_dtype(dtype).unwrap().reshape(shape).unwrap()
}

fn placed(whole: &Tensor, mesh: &DeviceMesh, placements: &[Placement]) -> Result<DTensor> {
    distribute_tensor_from(whole, mesh, placements, None)
}

/// All values of a tensor as numbers, with its shape.
fn values(tensor: &Tensor) -> (Vec<usize>, Vec<f64>) {
    let numbers = tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap();
    (tensor.shape().to_vec(), numbers)
}

/// One operation on a tensor of this shape, cut as said on ranks of these axes: the layout of the result, and
/// what was called.
#[track_caller]
fn check(
    shape: &[usize],
    axes: &[usize],
    from: &[Placement],
    to: &[Placement],
    calls: &[(StepKind, usize)],
    op: impl Fn(&DTensor) -> Result<DTensor> + Sync,
    dense: impl Fn(&Tensor) -> Result<Tensor, dtensor::LocalError>,
) {
    let whole = numbers(shape, DType::F64);
    let want = values(&dense(&whole).unwrap());
    spmd(axes.iter().product(), |world| {
        let x = placed(&whole, &mesh(world, axes), from)?;
        let (y, comm) = CommDebug::record(|| op(&x));
        let y = y?;
        assert_eq!(y.placements(), to, "layout");
        let n_calls: usize = calls.iter().map(|(_, n)| n).sum();
        assert_eq!(comm.calls(), n_calls, "{comm}");
        for (kind, n) in calls {
            assert_eq!(comm.calls_of(*kind), *n, "{comm}");
        }
        assert_eq!(values(&y.full_tensor()?), want);
        Ok(())
    });
}

const ONE: &[(StepKind, usize)] = &[(StepKind::Exchange, 1)];
const NONE: &[(StepKind, usize)] = &[];

#[test]
fn along_a_cut_dim_there_is_one_exchange() {
    let s = &[Shard(0)];
    check(&[7, 2], &[4], s, s, ONE, |x| x.narrow(0, 1, 5), |x| x.narrow(0, 1, 5));
    check(&[7, 2], &[3], s, s, ONE, |x| x.slice(0, 1, 7, 2), |x| x.slice(0, 1, 7, 2));
    check(&[7, 2], &[3], s, &[Replicate], ONE, |x| x.select(0, -2), |x| x.select(0, -2));
    check(&[7, 2], &[3], s, s, ONE, |x| x.unfold(0, 3, 1), |x| x.unfold(0, 3, 1));
    check(&[7, 2], &[3], s, s, ONE, |x| x.flip(0), |x| x.flip(0));
    check(&[7, 2], &[3], s, s, ONE, |x| x.roll(2, 0), |x| x.roll(2, 0));
    check(&[7, 2], &[3], s, s, ONE, |x| x.repeat(&[2, 1]), |x| x.repeat(&[2, 1]));
    check(&[7, 2], &[3], s, &[Shard(1)], ONE, |x| x.repeat(&[2, 2, 1]), |x| x.repeat(&[2, 2, 1]));
    check(
        &[7, 2],
        &[3],
        s,
        s,
        ONE,
        |x| x.repeat_interleave(2, Some(0)),
        |x| x.repeat_interleave(2, Some(0)),
    );
    for mode in
        [PadMode::Constant(3.into()), PadMode::Reflect, PadMode::Replicate, PadMode::Circular]
    {
        let pads = [0, 0, 2, 1];
        check(&[7, 2], &[3], s, s, ONE, |x| x.pad(&pads, mode), |x| x.pad(&pads, mode));
    }
    check(&[7, 5], &[3], s, s, ONE, |x| x.diagonal(-1, 0, 1), |x| x.diagonal(-1, 0, 1));
    check(&[7], &[3], s, s, ONE, |x| x.diag(-2), |x| x.diag(-2));
}

#[test]
fn on_two_axes_only_those_that_cut_the_dim_take_part() {
    let both = &[Shard(0), Shard(1)];
    check(&[5, 4], &[2, 2], both, both, ONE, |x| x.flip(0), |x| x.flip(0));
    let twice = &[Shard(0), Shard(0)];
    check(&[7, 2], &[2, 2], twice, twice, ONE, |x| x.roll(3, 0), |x| x.roll(3, 0));
    // Pending contributions move as they are.
    let pending = &[Shard(0), Partial(ReduceOp::Sum)];
    check(&[7, 2], &[2, 2], pending, pending, ONE, |x| x.narrow(0, 1, 4), |x| x.narrow(0, 1, 4));
    check(&[5, 5], &[2, 2], both, twice, ONE, |x| x.diagonal(1, 0, 1), |x| x.diagonal(1, 0, 1));
}

#[test]
fn what_stays_in_place_sends_nothing() {
    let s = &[Shard(0)];
    check(&[5, 3], &[3], s, s, NONE, |x| x.tril(-1), |x| x.tril(-1));
    check(&[5, 3], &[3], s, s, NONE, |x| x.triu(1), |x| x.triu(1));
    check(&[5, 3], &[3], &[Shard(1)], &[Shard(1)], NONE, |x| x.triu(0), |x| x.triu(0));
    check(&[5, 3], &[3], s, &[Shard(1)], NONE, |x| x.transpose(0, 1), |x| x.transpose(0, 1));
    check(&[5, 3], &[3], s, &[Shard(1)], NONE, DTensor::t, |x| x.transpose(0, 1));
    check(
        &[5, 3, 2],
        &[3],
        s,
        &[Shard(2)],
        NONE,
        |x| x.permute(&[1, 2, 0]),
        |x| x.permute(&[1, 2, 0]),
    );
    check(
        &[5, 3, 2],
        &[3],
        s,
        &[Shard(2)],
        NONE,
        |x| x.movedim(&[0], &[-1]),
        |x| x.movedim(&[0], &[-1]),
    );
    check(&[5, 3], &[3], s, s, NONE, |x| x.narrow(0, 0, 5), |x| Ok(x.clone()));
    check(&[5, 3], &[3], s, s, NONE, |x| x.narrow(1, 1, 2), |x| x.narrow(1, 1, 2));
    check(&[5, 3], &[3], s, s, NONE, |x| x.roll(10, 0), |x| Ok(x.clone()));
    check(&[5, 3], &[3], s, &[Shard(1)], NONE, |x| x.unsqueeze(0), |x| x.unsqueeze(0));
    check(&[5, 1], &[3], s, &[Shard(1)], NONE, |x| x.expand(&[2, 5, 4]), |x| x.expand(&[2, 5, 4]));
    check(&[5, 3], &[3], s, &[Partial(ReduceOp::Sum)], NONE, DTensor::trace, Tensor::trace);
    // The blocks of the diagonal lie where the result has them.
    check(&[5, 5], &[3], s, s, NONE, |x| x.diagonal(0, 0, 1), |x| x.diagonal(0, 0, 1));
    check(&[5], &[3], s, s, NONE, |x| x.diag(0), |x| x.diag(0));
    check(&[6, 4], &[3], s, s, NONE, |x| x.reshape(&[24]), |x| x.reshape(&[24]));
    check(&[6, 4], &[3], s, s, NONE, |x| x.unflatten(0, &[3, -1]), |x| x.reshape(&[3, 2, 4]));
    let sum = &[Partial(ReduceOp::Sum)];
    check(
        &[6, 4],
        &[4],
        sum,
        sum,
        NONE,
        |x| x.flip(0)?.flatten(0, 1),
        |x| x.flip(0)?.reshape(&[24]),
    );
}

#[test]
fn a_dim_of_size_one_that_is_cut_can_be_squeezed() {
    let s = &[Shard(0)];
    // What one rank has is divided, which moves less than giving it to everybody.
    check(&[1, 5], &[3], s, s, ONE, |x| x.squeeze(0), |x| x.squeeze(0));
    check(
        &[1],
        &[3],
        s,
        &[Replicate],
        &[(StepKind::AllGather, 1)],
        |x| x.squeeze(0),
        |x| x.squeeze(0),
    );
    check(&[3, 5], &[3], s, s, NONE, |x| x.squeeze(0), |x| x.squeeze(0));
}

/// Issues of PyTorch users: views of tensors whose parts are uneven.
#[test]
fn uneven_parts_are_reshaped_by_one_exchange() {
    let s = &[Shard(0)];
    let reshape = |shape: &[usize], axes: &[usize], from: &[_], to: &[_], new: &[isize]| {
        let sizes: Vec<usize> = new.iter().map(|size| size.unsigned_abs()).collect();
        check(shape, axes, from, to, ONE, |x| x.reshape(new), |x| x.reshape(&sizes));
    };
    reshape(&[6, 4], &[4], s, s, &[24]);
    reshape(&[24], &[4], s, s, &[6, 4]);
    reshape(&[2, 3, 4], &[4], s, s, &[6, 4]);
    reshape(&[2, 3, 4], &[2], &[Shard(1)], s, &[6, 4]);
    reshape(&[4, 6], &[2], &[Shard(1)], s, &[24]);
    reshape(&[4, 6], &[4], s, s, &[6, 4]);
    // Too few rows for the ranks, so that another dim is cut.
    reshape(&[24], &[4], s, &[Shard(1)], &[2, 12]);
    reshape(&[24], &[3], s, &[Shard(1)], &[2, 3, 4]);
    // An odd number of heads.
    reshape(&[2, 12], &[2], &[Shard(1)], &[Shard(1)], &[2, 3, 4]);
    reshape(&[5, 4], &[2, 2], &[Shard(0), Shard(1)], &[Shard(0), Shard(0)], &[20]);
    reshape(
        &[5, 3, 2],
        &[2, 2],
        &[Shard(0), Partial(ReduceOp::Max)],
        &[Shard(0), Partial(ReduceOp::Max)],
        &[15, 2],
    );
}

#[test]
fn a_reshape_sends_only_what_changes_its_rank() {
    spmd(4, |world| {
        let x = ones(&[6, 4], DType::F32, &mesh(world, &[4]), &[Shard(0)])?;
        // Parts of 8, 8, 8, 0 become 6, 6, 6, 6: 2, 4 and 6 elements go on.
        let (_, comm) = CommDebug::record(|| x.reshape(&[24]));
        assert_eq!(comm.bytes(), 4 * (2 + 4 + 6));
        // A window of 2 needs one row of the next rank: of rank 2, which needs one of nobody.
        let x = ones(&[6, 4], DType::F32, &mesh(world, &[4]), &[Shard(0)])?;
        let (y, comm) = CommDebug::record(|| x.unfold(0, 2, 1));
        assert_eq!((y?.shape(), comm.bytes()), (&[5, 4, 2][..], 4 * (4 + 4)));
        Ok(())
    });
}

#[test]
fn a_linear_layer_takes_a_batch_that_the_ranks_do_not_divide() {
    let input = numbers(&[6, 2, 3], DType::F64);
    let weight = numbers(&[3, 4], DType::F64);
    let want = input.matmul(&weight).unwrap();
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let x = placed(&input, &mesh, &[Shard(0)])?;
        let w = placed(&weight, &mesh, &[Replicate])?;
        let (y, comm) = CommDebug::record(|| x.flatten(0, 1)?.matmul(&w)?.unflatten(0, &[6, -1]));
        let y = y?;
        assert_eq!((y.placements(), comm.calls()), (&[Shard(0)][..], 2), "{comm}");
        assert_eq!(comm.calls_of(StepKind::Exchange), 2, "{comm}");
        assert_eq!(values(&y.full_tensor()?), values(&want));
        Ok(())
    });
}

/// Two shapes of the same factors.
fn shapes() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
    let factors = prop::collection::vec(1_usize..=3, 0..5);
    let with_other_order =
        factors.prop_flat_map(|factors| (Just(factors.clone()), Just(factors).prop_shuffle()));
    let group = |factors: &[usize], ends: &[bool]| {
        let mut shape: Vec<usize> = Vec::new();
        for (number, factor) in factors.iter().enumerate() {
            match shape.last_mut().filter(|_| !ends[number]) {
                Some(last) => *last *= factor,
                None => shape.push(*factor),
            }
        }
        shape
    };
    let ends = || prop::collection::vec(any::<bool>(), 5);
    (with_other_order, ends(), ends())
        .prop_map(move |((a, b), from, to)| (group(&a, &from), group(&b, &to)))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn any_reshape_of_any_layout_is_the_dense_one(
        (from, to) in shapes(),
        pick in any::<prop::sample::Index>(),
        axes in prop::sample::select(vec![vec![2], vec![3], vec![4], vec![2, 2]]),
    ) {
        let layouts = layouts_of(&from, DType::F64, &axes);
        let placements = pick.get(&layouts);
        let sizes: Vec<isize> = to.iter().map(|size| *size as isize).collect();
        let whole = numbers(&from, DType::F64);
        let want = values(&whole.reshape(&to).unwrap());
        spmd(axes.iter().product(), |world| {
            let x = placed(&whole, &mesh(world, &axes), placements)?;
            let (y, comm) = CommDebug::record(|| x.reshape(&sizes));
            assert_eq!(values(&y?.full_tensor()?), want, "{from:?} {placements:?} to {to:?}");
            assert!(comm.calls() == comm.calls_of(StepKind::Exchange) && comm.calls() < 2, "{comm}");
            Ok(())
        });
    }

    #[test]
    fn any_join_of_any_layouts_is_the_dense_one(
        rows in prop::collection::vec(0_usize..5, 1..4),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 3),
        axes in prop::sample::select(vec![vec![2], vec![3], vec![2, 2]]),
    ) {
        let wholes: Vec<Tensor> = rows.iter().map(|n| numbers(&[*n, 2], DType::F64)).collect();
        let want = values(&Tensor::cat(&wholes.iter().collect::<Vec<_>>(), 0).unwrap());
        spmd(axes.iter().product(), |world| {
            let mesh = mesh(world, &axes);
            let operands = wholes.iter().zip(&picks).map(|(whole, pick)| {
                let layouts = layouts_of(whole.shape(), DType::F64, &axes);
                let placements: &Vec<Placement> = pick.get(&layouts);
                placed(whole, &mesh, placements)
            });
            let operands = operands.collect::<Result<Vec<_>>>()?;
            let joined = DTensor::cat(&operands.iter().collect::<Vec<_>>(), 0)?;
            assert_eq!(values(&joined.full_tensor()?), want, "{operands:?}");
            Ok(())
        });
    }
}

/// Layouts in which axes cut a dim in another order, or in pieces.
#[test]
fn other_orders_of_cuts_are_ordinary() {
    let whole = numbers(&[7, 6], DType::F64);
    type Case =
        (fn(&DTensor) -> Result<DTensor>, fn(&Tensor) -> Result<Tensor, dtensor::LocalError>);
    let cases: [Case; 12] = [
        (|x| x.flip(0), |x| x.flip(0)),
        (|x| x.narrow(0, 2, 4), |x| x.narrow(0, 2, 4)),
        (|x| x.select(0, 3), |x| x.select(0, 3)),
        (|x| x.unfold(0, 2, 3), |x| x.unfold(0, 2, 3)),
        (|x| x.reshape(&[-1]), |x| x.reshape(&[42])),
        (|x| x.reshape(&[7, 3, 2]), |x| x.reshape(&[7, 3, 2])),
        (|x| DTensor::cat(&[x, x], 0), |x| Tensor::cat(&[x, x], 0)),
        (|x| x.pad(&[1, 1, 1, 1], PadMode::Reflect), |x| x.pad(&[1, 1, 1, 1], PadMode::Reflect)),
        (|x| x.tril(0), |x| x.tril(0)),
        (|x| x.diagonal(-1, 0, 1), |x| x.diagonal(-1, 0, 1)),
        (|x| x.t(), |x| x.transpose(0, 1)),
        (
            |x| x.slice_assign(&[1..6, 0..3], &x.narrow(0, 2, 5)?.narrow(1, 0, 3)?),
            |x| x.slice_assign(&[1..6, 0..3], &x.narrow(0, 2, 5)?.narrow(1, 0, 3)?),
        ),
    ];
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        for text in ["[S(0)[1], S(0)[0]]", "[_S(0, 2), S(0)]", "[S(1), _S(0, 3)]"] {
            let layout = Layout::parse(whole.shape(), DType::F64, mesh.mesh(), text)?;
            let x = placed(&whole, &mesh, &[Replicate; 2])?.redistribute_layout(&layout)?;
            assert_eq!(values(&x.full_tensor()?), values(&whole), "{text}");
            for (number, (op, dense)) in cases.iter().enumerate() {
                let (got, want) = (op(&x)?, dense(&whole)?);
                assert_eq!(values(&got.full_tensor()?), values(&want), "{number} of {text}");
            }
        }
        Ok(())
    });
}

#[test]
fn joined_tensors_are_cut_as_the_first_that_is() {
    let (a, b) = (numbers(&[3, 4], DType::I64), numbers(&[6, 4], DType::I64));
    let want = values(&Tensor::cat(&[&a, &b], 0).unwrap());
    type Case = ([Placement; 2], [Placement; 2], [Placement; 2], usize);
    let cases: [Case; 6] = [
        ([Shard(0), Replicate], [Shard(0), Replicate], [Shard(0), Replicate], 1),
        ([Replicate, Shard(1)], [Shard(0), Replicate], [Shard(0), Shard(1)], 1),
        ([Replicate, Replicate], [Shard(0), Shard(1)], [Shard(0), Shard(1)], 1),
        ([Shard(1), Shard(0)], [Shard(0), Shard(1)], [Shard(1), Shard(0)], 1),
        // Reduced to where the result is cut, and joined.
        ([Shard(0), Replicate], [Partial(ReduceOp::Sum), Replicate], [Shard(0), Replicate], 2),
        // Along another dim nothing is exchanged.
        ([Shard(1), Replicate], [Shard(1), Shard(1)], [Shard(1), Shard(1)], 0),
    ];
    for (of_a, of_b, to, calls) in cases {
        spmd(4, |world| {
            let mesh = mesh(world, &[2, 2]);
            let (a, b) = (placed(&a, &mesh, &of_a)?, placed(&b, &mesh, &of_b)?);
            let (joined, comm) = CommDebug::record(|| DTensor::cat(&[&a, &b], 0));
            let joined = joined?;
            assert_eq!(joined.placements(), to, "{of_a:?} {of_b:?}");
            assert_eq!(comm.calls(), calls, "{of_a:?} {of_b:?}: {comm}");
            assert_eq!(comm.calls_of(StepKind::AllGather), 0, "{comm}");
            assert_eq!(values(&joined.full_tensor()?), want);
            Ok(())
        });
    }
}

#[test]
fn a_cut_dim_is_split_by_one_exchange() {
    let whole = numbers(&[9, 2], DType::I64);
    spmd(3, |world| {
        let x = placed(&whole, &mesh(world, &[3]), &[Shard(0)])?;
        let (parts, comm) = CommDebug::record(|| x.split(&[2, 0, 7], 0));
        assert_eq!(comm.calls_of(StepKind::Exchange), comm.calls(), "{comm}");
        assert_eq!(comm.calls(), 1, "{comm}");
        for (part, want) in parts?.iter().zip(whole.split(&[2, 0, 7], 0)?) {
            assert_eq!((part.placements(), part.shape()), (&[Shard(0)][..], want.shape()));
            assert_eq!(values(&part.full_tensor()?), values(&want));
        }
        // More than there are indices: parts that are empty.
        let parts = x.chunk(5, 0)?;
        let lengths: Vec<usize> = parts.iter().map(|part| part.shape()[0]).collect();
        assert_eq!(lengths, [2, 2, 2, 2, 1]);
        let (rows, comm) = CommDebug::record(|| x.unbind(0));
        assert_eq!(comm.calls_of(StepKind::AllGather), 0, "{comm}");
        for (index, row) in rows?.iter().enumerate() {
            assert_eq!(values(&row.full_tensor()?), values(&whole.select(0, index as isize)?));
        }
        assert_eq!(zeros(&[0, 2], DType::F32, x.mesh(), &[Shard(1)])?.unbind(0)?.len(), 0);
        assert!(x.split(&[], 0).is_err() && x.split(&[4, 4], 0).is_err());
        Ok(())
    });
}

#[test]
fn an_assignment_keeps_the_layout_of_what_it_assigns_to() {
    for (axes, shape) in [(vec![3], [5, 4]), (vec![2, 2], [5, 4])] {
        let whole = numbers(&shape, DType::F64);
        let new = numbers(&[3, 4], DType::F64).mul_scalar(-1.0).unwrap();
        let want = values(&whole.slice_assign(&[1..4], &new).unwrap());
        let of_whole = layouts_of(&shape, DType::F64, &axes);
        let of_new = layouts_of(&[3, 4], DType::F64, &axes);
        spmd(axes.iter().product(), |world| {
            let mesh = mesh(world, &axes);
            for from in of_whole.iter().filter(|one| one.iter().all(|p| p.reduce_op().is_none())) {
                let x = placed(&whole, &mesh, from)?;
                for values_at in &of_new {
                    let new = placed(&new, &mesh, values_at)?;
                    let (y, comm) = CommDebug::record(|| x.slice_assign(&[1..4], &new));
                    let y = y?;
                    assert_eq!(y.layout(), x.layout(), "{from:?} {values_at:?}");
                    assert_eq!(comm.calls_of(StepKind::AllGather), 0, "{from:?} {values_at:?}");
                    assert_eq!(values(&y.full_tensor()?), want, "{from:?} {values_at:?}");
                }
            }
            Ok(())
        });
    }
    // Values of another dtype are cast, those of a mean are reduced before.
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = zeros(&[4], DType::I64, &mesh, &[Shard(0)])?;
        let half = Tensor::from_vec(vec![1.5_f32, 2.5], &[2])?;
        for placements in [Replicate, Shard(0), Partial(ReduceOp::Avg)] {
            let half = placed(&half, &mesh, &[placements])?;
            assert_eq!(x.slice_assign(&[1..3], &half)?.to_vec::<i64>()?, [0, 1, 2, 0]);
        }
        Ok(())
    });
}

#[test]
fn every_dtype_is_moved() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        for dtype in DType::ALL {
            let whole = match dtype {
                DType::Bool => numbers(&[5, 2], DType::I64).rem_scalar(2)?.to_dtype(dtype)?,
                _ => numbers(&[5, 2], dtype),
            };
            let x = placed(&whole, &mesh, &[Shard(0)])?;
            let got = DTensor::cat(&[&x.flip(0)?, &x.roll(1, 0)?], 0)?.reshape(&[4, 5])?;
            let want = Tensor::cat(&[&whole.flip(0)?, &whole.roll(1, 0)?], 0)?.reshape(&[4, 5])?;
            assert_eq!(got.dtype(), dtype);
            assert_eq!(values(&got.full_tensor()?), values(&want), "{dtype}");
            let pads = [0, 0, 1, 1];
            let (got, want) = (
                x.pad(&pads, PadMode::Constant(1.into())),
                whole.pad(&pads, PadMode::Constant(1.into())),
            );
            assert_eq!(values(&got?.full_tensor()?), values(&want?), "{dtype}");
        }
        Ok(())
    });
}

/// Methods that are made of other operations.
#[test]
fn composed_methods_are_those_of_the_kernels() {
    let whole = numbers(&[3, 4], DType::F64);
    for placements in [Replicate, Shard(0), Shard(1), Partial(ReduceOp::Sum)] {
        spmd(3, |world| {
            let x = placed(&whole, &mesh(world, &[3]), &[placements])?;
            let same = |got: Result<DTensor>, want: Result<Tensor, dtensor::LocalError>| {
                assert_eq!(values(&got?.full_tensor()?), values(&want?), "{placements}");
                Ok::<_, Error>(())
            };
            for k in -1..4 {
                same(x.rot90(k, [0, 1]), whole.rot90(k, [0, 1]))?;
                same(x.rot90(k, [-1, 0]), whole.rot90(k, [-1, 0]))?;
            }
            same(x.tile(&[2]), whole.tile(&[2]))?;
            same(x.tile(&[2, 1, 3]), whole.tile(&[2, 1, 3]))?;
            same(x.repeat_interleave(2, None), whole.repeat_interleave(2, None))?;
            same(x.diag(1), whole.diag(1))?;
            same(x.select(0, 1)?.diag(-1), whole.select(0, 1)?.diag(-1))?;
            same(
                x.unsqueeze(1)?.movedim(&[0, 1], &[2, 0]),
                whole.unsqueeze(1)?.movedim(&[0, 1], &[2, 0]),
            )?;
            same(x.view(&[2, -1]), whole.reshape(&[2, 6]))?;
            same(x.unsqueeze(0)?.flatten(0, -1), whole.reshape(&[12]))?;
            same(
                x.select(0, 0)?.select(0, 0)?.flatten(0, 0),
                whole.narrow(0, 0, 1)?.narrow(1, 0, 1)?.reshape(&[1]),
            )?;
            same(x.unsqueeze(0)?.broadcast_to(&[2, 3, 4]), whole.expand(&[2, 3, 4]))?;
            same(x.select(1, 2)?.t(), whole.select(1, 2))?;
            let vectors = [x.select(0, 0)?, x.select(1, 0)?];
            let wants = [whole.select(0, 0)?, whole.select(1, 0)?];
            let grids = DTensor::meshgrid(&[&vectors[0], &vectors[1]], MeshIndexing::Xy)?;
            let wants = Tensor::meshgrid(&[&wants[0], &wants[1]], MeshIndexing::Xy)?;
            for (grid, want) in grids.into_iter().zip(wants) {
                same(Ok(grid), Ok(want))?;
            }
            Ok(())
        });
    }
}

#[test]
fn a_grid_is_cut_where_its_vectors_are() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let a = arange(0, 5, 1, DType::F32, &mesh, &[Shard(0), Replicate])?;
        let b = arange(0, 3, 1, DType::F32, &mesh, &[Replicate, Shard(0)])?;
        let (grids, comm) = CommDebug::record(|| DTensor::meshgrid(&[&a, &b], MeshIndexing::Ij));
        assert_eq!(comm.calls(), 0, "{comm}");
        assert!(grids?.iter().all(|grid| grid.placements() == [Shard(0), Shard(1)]));
        Ok(())
    });
}

#[test]
fn sums_of_integers_on_a_diagonal_are_integers() {
    spmd(3, |world| {
        let x = placed(&numbers(&[5, 4], DType::I32), &mesh(world, &[3]), &[Shard(1)])?;
        let trace = x.trace()?;
        assert_eq!(trace.dtype(), DType::I64);
        assert_eq!(trace.item::<i64>()?, 5 + 10 + 15);
        assert!(ones(&[2, 2], DType::Bool, x.mesh(), &[Shard(0)])?.trace().is_err());
        Ok(())
    });
}

#[test]
fn mistakes_are_the_same_error_on_every_rank_and_nothing_is_sent() {
    let errors = spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let x = zeros(&[6, 4], DType::F32, &mesh, &[Shard(0)])?;
        let row = zeros(&[4], DType::F32, &mesh, &[Shard(0)])?;
        let (errors, comm) = CommDebug::record(|| {
            [
                x.narrow(0, 4, 3),
                x.slice(0, 0, 6, 0),
                x.select(0, 6),
                x.select(2, 0),
                x.unfold(0, 7, 1),
                x.flip(-3),
                x.roll(1, 2),
                x.reshape(&[5, -1]),
                x.reshape(&[-1, -1]),
                x.reshape(&[5, 5]),
                x.reshape(&[-2, -12]),
                x.flatten(1, 0),
                x.unflatten(0, &[4, -1]),
                x.permute(&[0, 0]),
                x.unsqueeze(4),
                x.expand(&[6, 5]),
                x.unsqueeze(0).and_then(|x| x.t()),
                x.pad(&[1], PadMode::Reflect),
                x.pad(&[0, 0, 6, 0], PadMode::Reflect),
                x.repeat(&[2]),
                x.rot90(1, [0, 0]),
                x.movedim(&[0], &[0, 1]),
                DTensor::cat(&[&x, &row], 0),
                DTensor::cat(&[], 0),
                DTensor::stack(&[&x, &row], 0),
                x.slice_assign(&[0..7], &row),
                x.slice_assign(&[0..2], &x),
                x.diagonal(0, 0, 0),
                x.diag_embed(0, 1, 1),
                x.unsqueeze(0).and_then(|x| x.diag(0)),
                row.tril(0),
                row.trace(),
            ]
            .map(|result| result.map(|x| x.shape().to_vec()).map_err(|error| error.to_string()))
        });
        assert_eq!(comm.calls(), 0, "{comm}");
        Ok(errors)
    });
    for (number, error) in errors[0].iter().enumerate() {
        assert!(error.is_err(), "number {number} gave {error:?}");
        assert!(errors.iter().all(|rank| rank[number] == *error), "number {number}");
    }
    let texts: BTreeSet<&String> = errors[0].iter().filter_map(|one| one.as_ref().err()).collect();
    assert_eq!(texts.len(), errors[0].len(), "{texts:?}");
}

#[test]
fn ranks_outside_of_the_mesh_have_layouts_and_nothing_in_them() {
    spmd(3, |world| {
        let two = DeviceMesh::from_mesh(world, "x=2".parse()?)?;
        let x = ones(&[5, 3], DType::F32, &two, &[Shard(0)])?;
        let y = DTensor::cat(&[&x.flip(0)?, &x.narrow(0, 1, 2)?], 0)?.reshape(&[3, 7])?;
        let y = y.unfold(0, 2, 1)?.select(0, 0)?.pad(&[1, 1], PadMode::Replicate)?;
        let y = y.slice_assign(&[0..2], &x.narrow(0, 0, 2)?.select(0, 0)?.narrow(0, 0, 1)?)?;
        let z = x.diagonal(0, 0, 1)?.diag(1)?.repeat_interleave(2, Some(0))?.repeat(&[2, 1])?;
        assert_eq!(y.shape(), [7, 4]);
        assert_eq!((z.shape(), z.chunk(2, 0)?.len()), (&[16, 4][..], 2));
        if world.rank() < 2 {
            assert_eq!(y.to_vec::<f32>()?, [1.0; 28]);
        }
        Ok(())
    });
}

#[test]
fn a_fake_world_counts_what_would_be_sent() -> Result<()> {
    let world =
        World::fake(64, 63).map_err(|source| Error::Comm { op: "fake", source: source.into() })?;
    let mesh = DeviceMesh::of_world(&world, "x")?;
    let x = zeros(&[96, 4], DType::F32, &mesh, &[Shard(0)])?;
    let (y, comm) = CommDebug::record(|| x.reshape(&[-1]));
    assert_eq!((comm.calls(), y?.to_local().shape()), (1, &[6][..]));
    // Parts of 8, of which 48 ranks have one, become parts of 6: those of rank r began with 2 r elements less.
    let sent: usize = (0..48).map(|rank| 8 - 6_usize.saturating_sub(2 * rank)).sum();
    assert_eq!(comm.bytes(), 4 * sent as u128);
    let (y, comm) = CommDebug::record(|| DTensor::cat(&[&x, &x], 0)?.flip(0)?.diagonal(0, 0, 1));
    assert_eq!((comm.calls(), y?.shape()), (3, &[4][..]));
    assert_eq!(x.unfold(0, 3, 2)?.diag_embed(0, 0, 1)?.shape(), [3, 3, 47, 4]);
    Ok(())
}
