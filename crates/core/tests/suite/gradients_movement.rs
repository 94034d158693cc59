//! What the sweep does not see of the gradients of what moves, picks, sorts and transforms: what is sent, ties and edges,
//! gradients of gradients.
#![allow(clippy::single_range_in_vec_init)] // One range is a box of one dim.

use dtensor::{
    BackwardOptions, CommDebug, DTensor, DType, DeviceMesh, Interpolation, Norm, PadMode,
    Placement::{self, Partial, Replicate, Shard},
    ReduceOp, Result, ScatterReduce, Tensor, arange, distribute_tensor_from, grad, ones,
    plan::StepKind::{self, AllReduce, Exchange, ReduceScatter},
};
use dtensor_testing::spmd;

use crate::support::mesh;

/// 1, 2, 3, ... in this shape.
fn numbers(shape: &[usize]) -> Tensor {
    let n = shape.iter().product::<usize>();
    Tensor::from_vec((1..=n).map(|number| number as f64).collect::<Vec<_>>(), shape).unwrap()
}

fn placed(whole: &Tensor, mesh: &DeviceMesh, placements: &[Placement]) -> Result<DTensor> {
    distribute_tensor_from(whole, mesh, placements, None)
}

fn copies(whole: &Tensor, mesh: &DeviceMesh) -> Result<DTensor> {
    placed(whole, mesh, &vec![Replicate; mesh.n_axes()])
}

fn indices(numbers: &[i64], mesh: &DeviceMesh) -> Result<DTensor> {
    copies(&Tensor::from_vec(numbers.to_vec(), &[numbers.len()])?, mesh)
}

/// The gradient of an operation on a tensor of this shape, given that of its result, and what was sent for it.
fn gradient(
    mesh: &DeviceMesh,
    shape: &[usize],
    from: &[Placement],
    op: &(impl Fn(&DTensor) -> Result<DTensor> + Sync),
) -> Result<(DTensor, CommDebug)> {
    let leaf = placed(&numbers(shape), mesh, from)?.requires_grad()?;
    let result = op(&leaf)?;
    let of_result = copies(&numbers(result.shape()), mesh)?;
    let options = BackwardOptions::default().gradient(&of_result);
    let (found, comm) = CommDebug::record(|| result.backward_with(&options));
    let gradient = found?.remove(&leaf).unwrap();
    assert_eq!(gradient.layout(), leaf.layout());
    Ok((gradient, comm))
}

/// The gradient is that on one rank, in the layout of the operand, by these calls and no others.
#[track_caller]
fn check(
    shape: &[usize],
    axes: &[usize],
    from: &[Placement],
    calls: &[(StepKind, usize)],
    op: impl Fn(&DTensor) -> Result<DTensor> + Sync,
) {
    let alone = spmd(1, |world| {
        Ok(gradient(&mesh(world, &[1]), shape, &[Replicate], &op)?.0.to_vec::<f64>()?)
    });
    spmd(axes.iter().product(), |world| {
        let (gradient, comm) = gradient(&mesh(world, axes), shape, from, &op)?;
        let n_calls: usize = calls.iter().map(|(_, n)| n).sum();
        assert_eq!(comm.calls(), n_calls, "{comm}");
        for (kind, n) in calls {
            assert_eq!(comm.calls_of(*kind), *n, "{comm}");
        }
        assert_eq!(gradient.to_vec::<f64>()?, alone[0]);
        Ok(())
    });
}

/// The gradient with respect to one operand of the sum of something on one rank.
#[track_caller]
fn of_sum(values: &[f64], want: &[f64], op: impl Fn(&DTensor) -> Result<DTensor> + Sync) {
    spmd(1, |world| {
        let mesh = mesh(world, &[1]);
        let leaf = copies(&Tensor::from_vec(values.to_vec(), &[values.len()])?, &mesh)?;
        let leaf = leaf.requires_grad()?;
        let found = op(&leaf)?.sum(&[], false)?.backward()?;
        assert_eq!(found.get(&leaf).unwrap().to_vec::<f64>()?, want);
        Ok(())
    });
}

#[test]
fn views_of_cut_tensors_send_nothing() {
    check(&[4, 6], &[2], &[Shard(0)], &[], |x| x.reshape(&[24]));
    check(&[4, 6], &[2], &[Shard(0)], &[], |x| x.transpose(0, 1)?.unsqueeze(0)?.squeeze(0));
    check(&[4, 6], &[2], &[Shard(0)], &[], |x| x.narrow(1, 2, 3)?.flip(1)?.roll(2, 1));
    check(&[4, 6], &[2], &[Shard(0)], &[], |x| x.slice(1, 1, 6, 2)?.tril(0));
    check(&[4, 6], &[2], &[Shard(0)], &[], |x| x.pad(&[2, 1], PadMode::Reflect));
    check(&[4, 6], &[2], &[Shard(0)], &[], |x| x.repeat(&[2, 1, 3]));
    check(&[4, 6], &[2], &[Shard(0)], &[], |x| x.repeat_interleave(3, Some(0)));
    check(&[9], &[3], &[Shard(0)], &[], |x| x.unfold(0, 2, 3)?.unfold_backward(9, 0, 2, 3));
    check(&[4, 6], &[2], &[Shard(1)], &[], |x| DTensor::stack(&[x, x], 0));
    check(&[4], &[2], &[Shard(0)], &[], |x| x.unsqueeze(1)?.expand(&[3, 4, 2]));
}

#[test]
fn one_slice_of_a_cut_dim_sends_nothing_back() {
    check(&[5, 3], &[2], &[Shard(0)], &[], |x| x.select(0, 3));
    check(&[5, 4], &[2, 2], &[Shard(0), Shard(1)], &[], |x| x.select(-2, -1));
    check(&[5, 3], &[3], &[Shard(0)], &[], DTensor::trace);
}

#[test]
fn what_moves_along_a_cut_dim_moves_back_by_one_exchange() {
    let one = [(Exchange, 1)];
    check(&[8, 2], &[2], &[Shard(0)], &one, |x| x.narrow(0, 2, 5));
    check(&[8, 2], &[2], &[Shard(0)], &one, |x| x.pad(&[0, 0, 3, 1], PadMode::Constant(0.into())));
    check(&[8, 2], &[4], &[Shard(0)], &one, |x| x.flip(0));
    check(&[8, 2], &[4], &[Shard(0)], &one, |x| x.roll(3, 0));
    check(&[8, 2], &[2], &[Shard(0)], &one, |x| x.unfold(0, 3, 1));
    check(&[6, 4], &[4], &[Shard(0)], &one, |x| x.reshape(&[24]));
    // The ends are small: each is taken, flipped and put where it belongs.
    let ends = [(Exchange, 6)];
    check(&[8, 2], &[2], &[Shard(0)], &ends, |x| x.pad(&[0, 0, 2, 2], PadMode::Reflect));
    check(&[5, 2], &[2], &[Shard(0)], &one, |x| x.repeat_interleave(3, Some(0)));
}

#[test]
fn joined_and_split_tensors_come_back_by_one_exchange_for_all() {
    check(&[6, 2], &[3], &[Shard(0)], &[(Exchange, 1)], |x| {
        let parts = x.split(&[1, 3, 2], 0)?;
        // Each of them has a gradient that is cut, and they become one by one exchange.
        let zeros = parts.iter().map(|part| part.sum(&[0], false)).collect::<Result<Vec<_>>>()?;
        DTensor::stack(&zeros.iter().collect::<Vec<_>>(), 0)
    });
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let [a, b] = [3, 5].map(|n| ones(&[n, 2], DType::F64, &mesh, &[Shard(0)]).unwrap());
        let (a, b) = (a.requires_grad()?, b.requires_grad()?);
        let joined = DTensor::cat(&[&a, &b, &a], 0)?;
        let of_result = copies(&numbers(&[11, 2]), &mesh)?;
        let options = BackwardOptions::default().gradient(&of_result);
        let (found, comm) = CommDebug::record(|| joined.backward_with(&options));
        assert_eq!((comm.calls(), comm.calls_of(Exchange)), (1, 1), "{comm}");
        let found = found?;
        let of_a = found.get(&a).unwrap().to_vec::<f64>()?;
        assert_eq!(of_a, [18.0, 20.0, 22.0, 24.0, 26.0, 28.0]);
        assert_eq!(found.get(&b).unwrap().to_vec::<f64>()?[..2], [7.0, 8.0]);
        Ok(())
    });
}

/// A pending sum goes through views and picks, and is reduced once, at the leaf.
#[test]
fn pending_gradients_stay_pending() {
    type View = fn(&DTensor, &DTensor) -> Result<DTensor>;
    let views: [View; 9] = [
        |weight, _| weight.narrow(0, 1, 3),
        |weight, _| weight.select(0, 2)?.expand(&[3, 2]),
        |weight, _| weight.roll(1, 0)?.narrow(0, 0, 3),
        |weight, list| weight.index_select(0, list),
        |weight, list| weight.index(&[Some(list)]),
        |weight, list| weight.gather(0, &list.unsqueeze(1)?.expand(&[3, 2])?),
        |weight, _| weight.slice_assign(&[0..2], &weight.narrow(0, 2, 2)?)?.narrow(0, 0, 3),
        |weight, list| {
            weight.index_put(&[Some(list)], &weight.narrow(0, 0, 1)?, false)?.narrow(0, 0, 3)
        },
        |weight, _| weight.unfold(0, 3, 1)?.select(0, 0)?.transpose(0, 1),
    ];
    for (number, view) in views.iter().enumerate() {
        spmd(2, |world| {
            let mesh = mesh(world, &[2]);
            let weight = copies(&numbers(&[4, 2]), &mesh)?.requires_grad()?;
            let list = indices(&[3, 0, 3], &mesh)?;
            let batch = placed(&numbers(&[6, 3]), &mesh, &[Shard(0)])?;
            let loss = batch.matmul(&view(&weight, &list)?)?.sum(&[], false)?;
            let (found, comm) = CommDebug::record(|| loss.backward());
            assert_eq!((comm.calls(), comm.calls_of(AllReduce)), (1, 1), "{number}: {comm}");
            let alone = {
                let (weight, batch) =
                    (weight.detach().requires_grad()?, batch.redistribute(&[Replicate])?);
                let loss = batch.matmul(&view(&weight, &list)?)?.sum(&[], false)?;
                loss.backward()?.remove(&weight).unwrap()
            };
            let found = found?.remove(&weight).unwrap();
            assert_eq!(found.to_vec::<f64>()?, alone.to_vec::<f64>()?, "{number}");
            Ok(())
        });
    }
}

#[test]
fn tables_that_are_cut_get_their_gradients_where_they_are() {
    check(&[8, 3], &[2], &[Shard(0)], &[], |table| {
        table.index_select(0, &indices(&[7, 0, 7, 2], table.mesh())?)
    });
    check(&[8, 3], &[2], &[Shard(0)], &[], |table| {
        table.index(&[Some(&indices(&[-1, 0, 7, 2], table.mesh())?)])
    });
    check(&[8, 3], &[2], &[Shard(1)], &[], |table| {
        table.take(&indices(&[-1, 0, 23, 5], table.mesh())?)
    });
    check(&[8], &[4], &[Shard(0)], &[], |line| line.gather(0, &indices(&[5, 5, 1], line.mesh())?));
    check(&[9], &[3], &[Shard(0)], &[], |line| Ok(line.topk(2, 0, true)?.0));
}

/// Every rank adds what it has to its copy, and that is reduced once.
#[test]
fn lists_that_are_cut_make_one_reduction() {
    check(&[8, 3], &[2], &[Replicate], &[(AllReduce, 1)], |table| {
        let list = indices(&[7, 0, 7, 2], table.mesh())?;
        table.index_select(0, &list.redistribute(&vec![Shard(0); list.mesh().n_axes()])?)
    });
    // Along a cut dim of which lines are merged, everyone may have what belongs to anyone.
    check(&[23], &[3], &[Shard(0)], &[(ReduceScatter, 1)], |line| Ok(line.sort(0, true)?.0));
    check(&[7, 4], &[2], &[Shard(1)], &[], |x| Ok(x.sort(0, true)?.0));
}

#[test]
fn transforms_over_whole_dims_send_nothing() {
    check(&[4, 6], &[2], &[Shard(0)], &[], |x| x.rfft(None, 1, Norm::Ortho));
    check(&[4, 6, 2], &[2], &[Shard(0)], &[], |x| x.fft(Some(8), 1, Norm::Backward));
    check(&[4, 6, 2], &[2], &[Shard(0)], &[], |x| x.irfft(Some(7), 1, Norm::Forward));
}

#[test]
fn only_the_value_that_stays_has_a_gradient() {
    of_sum(&[1.0, 2.0, 3.0], &[0.0, 1.0, 1.0], |source| {
        let zeros = source.new_zeros(&[4], &[Replicate])?;
        zeros.index_copy(0, &indices(&[2, 0, 2], source.mesh())?, source)
    });
    of_sum(&[1.0, 2.0, 3.0], &[0.0, 1.0, 1.0], |source| {
        let zeros = source.new_zeros(&[4], &[Replicate])?;
        zeros.scatter(0, &indices(&[2, 0, 2], source.mesh())?, source)
    });
    of_sum(&[1.0, 2.0, 3.0], &[0.0, 1.0, 1.0], |source| {
        let zeros = source.new_zeros(&[4], &[Replicate])?;
        zeros.index_put(&[Some(&indices(&[2, 0, -2], source.mesh())?)], source, false)
    });
    // What is written over has none either.
    of_sum(&[1.0, 2.0, 3.0, 4.0], &[0.0, 1.0, 0.0, 1.0], |x| {
        x.index_put(&[Some(&indices(&[2, 0], x.mesh())?)], &x.new_zeros(&[], &[Replicate])?, false)
    });
    of_sum(&[1.0, 2.0, 3.0, 4.0], &[0.0, 1.0, 0.0, 1.0], |x| {
        x.index_fill(0, &indices(&[2, 0], x.mesh())?, 7)
    });
}

#[test]
fn extremes_share_their_gradient_and_products_have_that_of_the_others() {
    let reduce = |x: &DTensor, reduce, include_self| {
        let list = indices(&[0, 0, 0, 1], x.mesh())?;
        // The first two elements are the tensor, the others the source.
        x.narrow(0, 0, 2)?.scatter_reduce(0, &list, &x.narrow(0, 2, 4)?, reduce, include_self)
    };
    let third = 1.0 / 3.0;
    of_sum(&[5.0, 0.0, 5.0, 1.0, 5.0, 2.0], &[third, 0.0, third, 0.0, third, 1.0], |x| {
        reduce(x, ScatterReduce::Amax, true)
    });
    of_sum(&[5.0, 0.0, 5.0, 1.0, 5.0, 2.0], &[0.0, 0.0, 0.5, 0.0, 0.5, 1.0], |x| {
        reduce(x, ScatterReduce::Amax, false)
    });
    of_sum(&[2.0, 3.0, 0.0, 4.0, 5.0, 7.0], &[0.0, 7.0, 40.0, 0.0, 0.0, 3.0], |x| {
        reduce(x, ScatterReduce::Prod, true)
    });
    of_sum(&[2.0, 0.0, 0.0, 4.0, 0.0, 7.0], &[0.0, 7.0, 0.0, 0.0, 0.0, 0.0], |x| {
        reduce(x, ScatterReduce::Prod, true)
    });
    of_sum(&[0.0, 3.0, 0.0, 4.0, 5.0, 7.0], &[0.0, 0.0, 20.0, 0.0, 0.0, 1.0], |x| {
        reduce(x, ScatterReduce::Prod, false)
    });
}

#[test]
fn what_is_picked_by_order_has_the_gradient_also_among_equals_and_nan() {
    let nan = f64::NAN;
    of_sum(&[2.0, 2.0, 1.0], &[1.0, 0.0, 0.0], |x| Ok(x.topk(1, 0, true)?.0));
    of_sum(&[2.0, 1.0, 2.0], &[0.0, 0.0, 1.0], |x| Ok(x.kthvalue(3, 0, false)?.0));
    of_sum(&[4.0, 1.0, 3.0, 2.0], &[0.0, 0.0, 0.0, 1.0], |x| Ok(x.median(0, false)?.0));
    of_sum(&[4.0, nan, 3.0, 2.0], &[0.0, 1.0, 0.0, 0.0], |x| Ok(x.median(0, false)?.0));
    let quantile = |q: f64, how| move |x: &DTensor| x.quantile(&[q], Some(0), false, how);
    of_sum(&[4.0, 1.0, 3.0], &[0.0, 0.5, 0.5], quantile(0.25, Interpolation::Linear));
    of_sum(&[4.0, 1.0, 3.0], &[0.5, 0.0, 0.5], quantile(0.9, Interpolation::Midpoint));
    of_sum(&[4.0, 1.0, 3.0], &[0.0, 0.0, 1.0], quantile(0.5, Interpolation::Midpoint));
    of_sum(&[4.0, nan, 3.0], &[0.0, 1.0, 0.0], quantile(0.0, Interpolation::Linear));
    of_sum(&[4.0, nan, 3.0], &[0.5, 0.0, 0.5], |x| {
        x.nanquantile(&[0.5], None, false, Interpolation::Linear)
    });
}

/// The gradient of half of the sum of squares of `op(x)` is `op`'s own gradient of its result. That of a sum of squares
/// of this is the same map twice more: here by finite differences of the first gradient.
#[test]
fn gradients_have_gradients() {
    type Map = fn(&DTensor) -> Result<DTensor>;
    let maps: [(&[usize], Map); 12] = [
        (&[6], |x| x.narrow(0, 1, 4)?.flip(0)?.roll(1, 0)),
        (&[6], |x| x.unfold(0, 3, 2)),
        (&[6], |x| x.pad(&[2, 1], PadMode::Replicate)),
        (&[2, 3], |x| x.reshape(&[6])?.slice(0, 1, 6, 2)?.repeat(&[2])),
        (&[4], |x| x.diag_embed(1, -2, -1)?.diagonal(1, 0, 1)?.unsqueeze(1)?.select(1, 0)),
        (&[5], |x| DTensor::cat(&[x, &x.narrow(0, 0, 2)?], 0)),
        (&[5], |x| x.index_select(0, &indices(&[4, 0, 4], x.mesh())?)),
        (&[5], |x| x.take(&indices(&[4, -5, 4], x.mesh())?)),
        (&[5], |x| x.scatter_add(0, &indices(&[4, 0, 4], x.mesh())?, &x.narrow(0, 0, 3)?)),
        (&[6], |x| Ok(x.sort(0, true)?.0)),
        (&[5], |x| x.rfft(Some(6), 0, Norm::Backward)),
        (&[3, 2], |x| x.irfft(Some(5), 0, Norm::Ortho)),
    ];
    for (number, (shape, map)) in maps.iter().enumerate() {
        spmd(2, |world| {
            let mesh = mesh(world, &[2]);
            let of = |values: &Tensor, again: bool| -> Result<(Tensor, f64)> {
                let x = placed(values, &mesh, &[Shard(0)])?.requires_grad()?;
                let y = map(&x)?;
                let cubes = y.mul(&y)?.mul(&y)?.sum(&[], false)?;
                let first = grad(&cubes, &[&x], &BackwardOptions::default().create_graph())?;
                let first = first[0].as_ref().unwrap();
                let slope = first.mul(first)?.sum(&[], false)?;
                let value = slope.item::<f64>()?;
                match again {
                    true => {
                        let second = grad(&slope, &[&x], &BackwardOptions::default())?;
                        Ok((second[0].as_ref().unwrap().full_tensor()?, value))
                    }
                    false => Ok((values.clone(), value)),
                }
            };
            let values = numbers(shape).mul_scalar(0.25)?;
            let second = of(&values, true)?.0.to_vec::<f64>()?;
            for (element, second) in second.iter().enumerate() {
                let moved = |by: f64| {
                    let mut all = values.to_vec::<f64>()?;
                    all[element] += by;
                    of(&Tensor::from_vec(all, shape)?, false)
                };
                let difference = (moved(1e-4)?.1 - moved(-1e-4)?.1) / 2e-4;
                let far = (second - difference).abs() / difference.abs().max(1.0);
                assert!(far < 1e-5, "{number}, {element}: {second}, by differences {difference}");
            }
            Ok(())
        });
    }
}

/// Operations whose shapes depend on values.
#[test]
fn masks_and_repeats_have_gradients_where_their_operands_are() {
    let of = |x: &DTensor| -> Result<[DTensor; 3]> {
        let whole = |tensor: Tensor| copies(&tensor, x.mesh());
        let mask = whole(Tensor::from_vec(vec![true, false, false, true, true, false], &[3, 2])?)?;
        let repeats = arange(0, 3, 1, DType::I64, x.mesh(), &vec![Replicate; x.mesh().n_axes()])?;
        Ok([
            x.masked_select(&mask)?,
            x.repeat_interleave_tensor(&repeats, Some(0))?.reshape(&[-1])?,
            x.repeat_interleave_tensor(&repeats.index_select(0, &indices(&[2], x.mesh())?)?, None)?,
        ])
    };
    let want: [[f64; 6]; 3] = [
        [1.0, 0.0, 0.0, 2.0, 3.0, 0.0],
        [0.0, 0.0, 1.0, 2.0, 8.0, 10.0],
        [3.0, 7.0, 11.0, 15.0, 19.0, 23.0],
    ];
    for placements in [[Replicate], [Shard(0)], [Shard(1)], [Partial(ReduceOp::Sum)]] {
        spmd(2, |world| {
            let mesh = mesh(world, &[2]);
            for (number, want) in want.iter().enumerate() {
                let x = placed(&numbers(&[3, 2]), &mesh, &placements)?.requires_grad()?;
                let y = of(&x)?[number].clone();
                let of_result = copies(&numbers(y.shape()), &mesh)?;
                let found = y.backward_with(&BackwardOptions::default().gradient(&of_result))?;
                assert_eq!(found.get(&x).unwrap().to_vec::<f64>()?, want, "{number}");
            }
            Ok(())
        });
    }
}
