//! Gradients of tables and of weights, against differences of what is computed forwards.

use dtensor_sharded::{
    DType, Error, Result, Spec, Tensor, World,
    embedding::{
        BagMode, BagOptions, embedding, embedding_backward, embedding_bag, embedding_bag_backward,
    },
    shard_tensor,
};
use dtensor_testing::spmd;

use crate::support::{boxes, chunks, numbered, same_error};

const ROWS: usize = 7;
const WIDTH: usize = 3;
const STEP: f64 = 1e-4;

/// No two values of a column are as close as a step, so that the largest stays the largest.
fn table() -> Tensor {
    let values = numbered(&[ROWS, WIDTH]).to_dtype(DType::F64).unwrap();
    values.mul_scalar(2.3).unwrap().sin().unwrap()
}

fn specs() -> Vec<Spec> {
    vec![
        chunks(0, &[0, 1, 2]),
        chunks(1, &[2, 0, 1]),
        chunks(0, &[2, 2, 0]),
        boxes(&[(&[0, 0], &[7, 1], 2), (&[0, 1], &[2, 2], 0), (&[2, 1], &[5, 2], 2)]),
    ]
}

/// Other bags on every rank: an empty one, repeated ids, a bag of padding alone, and none on the last rank.
fn bags_of(rank: usize) -> (Tensor, Tensor) {
    let (ids, offsets): (&[i64], &[i64]) = [
        ([3, 1, 3, 5, 0, 5].as_slice(), [0, 3, 3, 5].as_slice()),
        (&[6, 5, 5, 2], &[0, 1]),
        (&[], &[]),
    ][rank];
    (
        Tensor::from_slice(ids, &[ids.len()]).unwrap(),
        Tensor::from_slice(offsets, &[offsets.len()]).unwrap(),
    )
}

fn weights_of(rank: usize) -> Tensor {
    let n = bags_of(rank).0.numel();
    numbered(&[n]).to_dtype(DType::F64).unwrap().sub_scalar(1.5).unwrap()
}

fn options(mode: BagMode, weighted: bool, padding_idx: Option<usize>, rank: usize) -> BagOptions {
    let per_sample_weights = weighted.then(|| weights_of(rank));
    BagOptions { mode, per_sample_weights, padding_idx, include_last_offset: false }
}

/// Numbers that results are multiplied with, so that every element has another gradient.
fn grad_of(shape: &[usize]) -> Tensor {
    numbered(shape).to_dtype(DType::F64).unwrap().mul_scalar(0.7).unwrap().cos().unwrap()
}

/// The sum over all ranks of what a table, whole, gives.
fn loss(table: &Tensor, run: impl Fn(&Tensor, usize) -> Tensor) -> f64 {
    let of_rank = |rank: usize| {
        let result = run(table, rank);
        let weighted = result.mul(&grad_of(result.shape())).unwrap();
        weighted.to_vec::<f64>().unwrap().iter().sum::<f64>()
    };
    (0..3).map(of_rank).sum()
}

/// The gradient of a loss by differences.
fn differences(at: &Tensor, loss: impl Fn(&Tensor) -> f64) -> Vec<f64> {
    let values = at.to_vec::<f64>().unwrap();
    let shifted = |index: usize, by: f64| {
        let mut values = values.clone();
        values[index] += by;
        loss(&Tensor::from_vec(values, at.shape()).unwrap())
    };
    let slope = |index| (shifted(index, STEP) - shifted(index, -STEP)) / (2.0 * STEP);
    (0..values.len()).map(slope).collect()
}

#[track_caller]
fn assert_close(got: &[f64], want: &[f64], what: &str) {
    let is_close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6;
    assert!(
        got.len() == want.len() && got.iter().zip(want).all(is_close),
        "{what}: {got:?} {want:?}"
    );
}

/// What one rank with the whole table computes.
fn bag_alone(table: &Tensor, rank: usize, options: &BagOptions) -> Tensor {
    let (ids, offsets) = bags_of(rank);
    spmd(1, |world| {
        let table = shard_tensor(table, chunks(0, &[0]), 0, world)?;
        Ok(embedding_bag(&ids, Some(&offsets), &table, options)?)
    })
    .remove(0)
}

#[test]
fn bags_of_every_kind_have_the_gradients_of_differences() {
    for (mode, weighted) in
        [(BagMode::Sum, false), (BagMode::Sum, true), (BagMode::Mean, false), (BagMode::Max, false)]
    {
        for padding in [None, Some(5)] {
            let of_table = differences(&table(), |table| {
                loss(table, |table, rank| {
                    bag_alone(table, rank, &options(mode, weighted, padding, rank))
                })
            });
            let of_weights: Vec<Vec<f64>> = (0..3)
                .map(|rank| {
                    differences(&weights_of(rank), |weights| {
                        let per_sample_weights = weighted.then(|| weights.clone());
                        let changed = BagOptions {
                            per_sample_weights,
                            ..options(mode, false, padding, rank)
                        };
                        let result = bag_alone(&table(), rank, &changed);
                        let weighted = result.mul(&grad_of(result.shape())).unwrap();
                        weighted.to_vec::<f64>().unwrap().iter().sum()
                    })
                })
                .collect();
            spmd(3, |world| {
                let (ids, offsets) = bags_of(world.rank());
                let own = options(mode, weighted, padding, world.rank());
                for spec in specs() {
                    let what = format!("{mode:?}, weights: {weighted}, {padding:?}, {spec:?}");
                    let table = shard_tensor(&table(), &spec, 0, world)?;
                    let grad = grad_of(&[offsets.numel(), WIDTH]);
                    let got = embedding_bag_backward(&grad, &ids, Some(&offsets), &table, &own)?;
                    assert_eq!(
                        got.table.metadata().shards_metadata,
                        table.metadata().shards_metadata
                    );
                    assert_close(&got.table.full_tensor()?.to_vec()?, &of_table, &what);
                    assert_eq!(got.per_sample_weights.is_some(), weighted);
                    if let Some(weights) = got.per_sample_weights {
                        assert_close(&weights.to_vec()?, &of_weights[world.rank()], &what);
                    }
                }
                Ok(())
            });
        }
    }
}

#[test]
fn rows_have_the_gradients_of_differences() {
    let run = |table: &Tensor, rank: usize| table.embedding(&bags_of(rank).0).unwrap();
    let want = differences(&table(), |table| loss(table, run));
    spmd(3, |world| {
        let ids = bags_of(world.rank()).0;
        for spec in specs() {
            let table = shard_tensor(&table(), &spec, 0, world)?;
            let grad = grad_of(embedding(&ids, &table)?.shape());
            let got = embedding_backward(&grad, &ids, &table, None)?.full_tensor()?;
            assert_close(&got.to_vec()?, &want, &format!("{spec:?}"));
        }
        Ok(())
    });
}

#[test]
fn of_equal_values_the_first_has_the_gradient_of_a_maximum() {
    spmd(2, |world| {
        let table = shard_tensor(&Tensor::full(&[4, 2], 1.0_f32)?, chunks(1, &[1, 0]), 0, world)?;
        let ids = Tensor::from_vec(vec![2_i64, 0, 3], &[1, 3])?;
        let options = BagOptions { mode: BagMode::Max, ..BagOptions::default() };
        let grad = Tensor::full(&[1, 2], 1.0_f32)?;
        let got = embedding_bag_backward(&grad, &ids, None, &table, &options)?.table;
        assert_eq!(got.full_tensor()?.to_vec::<f32>()?, [0., 0., 0., 0., 2., 2., 0., 0.]);
        Ok(())
    });
}

#[test]
fn halves_and_other_dtypes_of_gradients_come_out_in_the_dtype_of_the_table() {
    spmd(2, |world| {
        for dtype in [DType::Bf16, DType::F16, DType::F32] {
            let values = table().to_dtype(dtype)?;
            let table = shard_tensor(&values, chunks(0, &[1, 0]), 0, world)?;
            let ids = Tensor::from_vec(vec![2_i32, 0], &[1, 2])?;
            let weights = Tensor::from_vec(vec![2.0_f32, -1.0], &[1, 2])?;
            let options = BagOptions {
                mode: BagMode::Sum,
                per_sample_weights: Some(weights),
                ..BagOptions::default()
            };
            let grad = Tensor::full(&[1, WIDTH], 1.0_f64)?;
            let got = embedding_bag_backward(&grad, &ids, None, &table, &options)?;
            assert_eq!(got.table.dtype(), dtype);
            let rows = got.table.full_tensor()?.to_dtype(DType::F32)?.to_vec::<f32>()?;
            assert_eq!((rows[0], rows[2 * WIDTH], rows[WIDTH]), (-2.0, 4.0, 0.0));
            assert_eq!(got.per_sample_weights.map(|weights| weights.dtype()), Some(DType::F32));
        }
        Ok(())
    });
}

#[test]
fn gradients_that_do_not_fit_are_the_same_error_on_all_ranks() {
    let refused =
        |dtype: DType, backward: fn(&World, &dtensor_sharded::ShardedTensor) -> Result<()>| {
            same_error(3, |world| {
                let values = numbered(&[ROWS, WIDTH]).to_dtype(dtype)?;
                backward(world, &shard_tensor(&values, chunks(0, &[0, 1, 2]), 0, world)?)
            })
        };
    let of_bags = |world: &World, table: &dtensor_sharded::ShardedTensor| {
        // One bag too many on rank 1.
        let (ids, offsets) = bags_of(world.rank());
        let n = offsets.numel() + usize::from(world.rank() == 1);
        let grad = Tensor::zeros(&[n, WIDTH], DType::F32)?;
        let options = BagOptions::default();
        embedding_bag_backward(&grad, &ids, Some(&offsets), table, &options).map(drop)
    };
    assert!(matches!(refused(DType::F32, of_bags), Error::Rank { rank: 1, .. }));
    assert!(refused(DType::I64, of_bags).to_string().contains("i64"));
    let of_rows = |world: &World, table: &dtensor_sharded::ShardedTensor| {
        let ids = bags_of(world.rank()).0;
        let n = ids.numel() + usize::from(world.rank() == 2);
        embedding_backward(&Tensor::zeros(&[n, WIDTH], DType::F32)?, &ids, table, None).map(drop)
    };
    assert!(matches!(refused(DType::F32, of_rows), Error::Rank { rank: 2, .. }));
    assert!(refused(DType::I64, of_rows).to_string().contains("i64"));
}

#[test]
fn a_rank_without_bags_may_leave_weights_out() {
    spmd(3, |world| {
        let table = shard_tensor(&table(), chunks(0, &[1, 0, 2]), 0, world)?;
        let (ids, offsets) = bags_of(world.rank());
        let options = options(BagMode::Sum, world.rank() != 2, None, world.rank());
        let grad = grad_of(&[offsets.numel(), WIDTH]);
        let got = embedding_bag_backward(&grad, &ids, Some(&offsets), &table, &options)?;
        assert_eq!(got.per_sample_weights.is_some(), world.rank() != 2);
        Ok(())
    });
}
