//! Gradients that are said to lie elsewhere than by default, through functions of local parts. Users of PyTorch get
//! gradients here that are too large by the number of ranks, or that lack the share of other ranks.

use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh, Error, LocalOperand, LocalOptions, LocalResult,
    Placement::{self, Partial, Replicate, Shard},
    ReduceOp, Result, local_map,
};
use dtensor_testing::{dense::Dense, spmd};

use crate::support::{mesh, place};

const SUM: Placement = Partial(ReduceOp::Sum);

fn numbers(shape: &[usize]) -> Dense {
    let n = shape.iter().product::<usize>();
    Dense::new(shape, (0..n).map(|at| (at as f64 * 0.37).sin() + 0.1).collect())
}

fn leaf(shape: &[usize], mesh: &DeviceMesh, placements: &[Placement]) -> Result<DTensor> {
    place(&numbers(shape), DType::F64, mesh, placements, 1).requires_grad()
}

#[track_caller]
fn assert_close(got: &[f64], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12), "{what}: {got:?} {want:?}");
}

/// A product whose operands are copies on one axis and cut on the other, with every way to say what its gradients are that
/// is right: by default, for the operands alone, for the result alone, for both.
#[test]
fn what_is_said_of_gradients_changes_what_is_sent_and_not_the_gradients() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let (x_placed, w_placed) = ([Shard(0), Replicate], [Replicate, Shard(1)]);
        let run = |said: [Option<&[Placement]>; 3]| -> Result<(Vec<Vec<f64>>, usize)> {
            let x = leaf(&[5, 4], &mesh, &x_placed)?;
            let w = leaf(&[4, 3], &mesh, &w_placed)?;
            let operand = |tensor, placements, said: Option<_>| {
                let operand = LocalOperand::new(tensor, placements);
                said.map_or(operand, |said| operand.with_grad(said))
            };
            let operands = [operand(&x, &x_placed, said[0]), operand(&w, &w_placed, said[1])];
            let result = LocalResult::placed(&[Shard(0), Shard(1)]).with_shape(&[5, 3]);
            let result = said[2].map_or(result.clone(), |said| result.with_grad(said));
            let mapped = local_map("product", &operands, &[result], |parts| {
                Ok(vec![parts[0].matmul(&parts[1])?])
            })?;
            let loss = mapped[0].square()?.sum(&[], false)?;
            let (found, comm) = CommDebug::record(|| loss.backward());
            let found = found?;
            let whole = |leaf: &DTensor| {
                let gradient = found.get(leaf).unwrap();
                assert_eq!(gradient.layout(), leaf.layout());
                gradient.to_vec::<f64>()
            };
            Ok((vec![whole(&x)?, whole(&w)?], comm.calls()))
        };
        let want = {
            let (x, w) = (leaf(&[5, 4], &mesh, &x_placed)?, leaf(&[4, 3], &mesh, &w_placed)?);
            let found = x.matmul(&w)?.square()?.sum(&[], false)?.backward()?;
            vec![found.get(&x).unwrap().to_vec()?, found.get(&w).unwrap().to_vec()?]
        };
        let (x_said, w_said): (&[_], &[_]) = (&[Shard(0), SUM], &[SUM, Shard(1)]);
        let y_said: &[_] = &[Shard(0), Shard(1)];
        for said in [
            [None, None, None],
            [Some(x_said), None, None],
            [None, Some(w_said), None],
            [None, None, Some(y_said)],
            [Some(x_said), Some(w_said), Some(y_said)],
        ] {
            let (got, calls) = run(said)?;
            for (got, want) in got.iter().zip(&want) {
                assert_close(got, want, &format!("{said:?}"));
            }
            assert_eq!(calls, 2, "a reduction for each operand: {said:?}");
        }
        // Cut otherwise than the parts are, it is refused on every rank before anything is sent.
        for said in [
            [Some(&[Shard(1), SUM][..]), None, None],
            [None, Some(&[SUM, Replicate]), None],
            [None, None, Some(&[Shard(1), Shard(0)])],
        ] {
            let refused = run(said);
            assert!(matches!(refused, Err(Error::Unsupported { .. })), "{said:?}: {refused:?}");
        }
        Ok(())
    });
}

/// All ranks of the second axis compute the same from their copies, which saves the reductions there.
#[test]
fn copies_of_which_all_ranks_compute_the_same_need_no_reduction() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let placed = [Shard(0), Replicate];
        let run = |said: Option<&[Placement]>| -> Result<(Vec<f64>, usize)> {
            let x = leaf(&[5, 3], &mesh, &placed)?;
            let operand = LocalOperand::new(&x, &placed);
            let operand = said.map_or(operand, |said| operand.with_grad(said));
            let result = LocalResult::placed(&placed).with_shape(&[5, 3]);
            let result = said.map_or(result.clone(), |said| result.with_grad(said));
            let y = local_map("cube", &[operand], &[result], |parts| {
                Ok(vec![parts[0].mul(&parts[0])?.mul(&parts[0])?])
            })?;
            let loss = y[0].sum(&[], false)?;
            let (found, comm) = CommDebug::record(|| loss.backward());
            Ok((found?.get(&x).unwrap().to_vec()?, comm.calls()))
        };
        let want: Vec<f64> = numbers(&[5, 3]).data().iter().map(|x| 3.0 * x * x).collect();
        let (by_default, calls) = run(None)?;
        assert_close(&by_default, &want, "by default");
        assert_eq!(calls, 1, "contributions of the copies are added");
        let (said, calls) = run(Some(&placed))?;
        assert_close(&said, &want, "said to be copies");
        assert_eq!(calls, 0);
        Ok(())
    });
}

/// One key for all heads (the turned part of DeepSeek's), a copy that is broadcast over heads which are cut. Every rank
/// uses its copy for other heads: the gradient is the sum over all of them, and no multiple of it.
#[test]
fn a_copy_that_is_broadcast_over_cut_heads_has_the_gradient_of_all_heads() {
    for n in [1, 2, 3, 4] {
        spmd(n, |world| {
            let mesh = mesh(world, &[n]);
            let (heads, positions, width) = (4, 3, 2);
            // [positions, 1, width] and [positions, heads, width].
            let key = leaf(&[positions, 1, width], &mesh, &[Replicate])?;
            let queries = numbers(&[positions, heads, width]);
            let queries = place(&queries, DType::F64, &mesh, &[Shard(1)], 1);
            let want: Vec<f64> = {
                let one = numbers(&[positions, heads, width]);
                let of = |at: usize| {
                    let (position, feature) = (at / width, at % width);
                    let of_head =
                        |head: usize| one.data()[(position * heads + head) * width + feature];
                    (0..heads).map(of_head).sum()
                };
                (0..positions * width).map(of).collect()
            };
            let gradient = |y: &DTensor| -> Result<Vec<f64>> {
                y.sum(&[], false)?.backward()?.get(&key).unwrap().to_vec()
            };
            assert_close(&gradient(&queries.mul(&key)?)?, &want, "by operations");
            // Spread first, and cut by heads then.
            let spread = key.expand(&[positions, heads, width])?.redistribute(&[Shard(1)])?;
            assert_close(&gradient(&queries.mul(&spread)?)?, &want, "spread");
            // By way of local parts, as such models are written.
            let operands =
                [LocalOperand::new(&queries, &[Shard(1)]), LocalOperand::new(&key, &[Replicate])];
            let shape = [positions, heads, width];
            let result = || LocalResult::placed(&[Shard(1)]).with_shape(&shape);
            let scores = |parts: &[DTensor]| Ok(vec![parts[0].mul(&parts[1])?]);
            let y = local_map("scores", &operands, &[result()], scores)?;
            assert_close(&gradient(&y[0])?, &want, "local_map");
            let said = [operands[0], operands[1].with_grad(&[SUM])];
            let y = local_map("scores", &said, &[result().with_grad(&[Shard(1)])], scores)?;
            assert_close(&gradient(&y[0])?, &want, "local_map, said");
            let part = queries.local_part(None)?.mul(&key.local_part(None)?)?;
            let options = LocalOptions { shape: Some(shape.to_vec()), ..LocalOptions::default() };
            let y = DTensor::from_local_part(&part, &mesh, &[Shard(1)], &options)?;
            assert_close(&gradient(&y)?, &want, "local_part");
            Ok(())
        });
    }
}
