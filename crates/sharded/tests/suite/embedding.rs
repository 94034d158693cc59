//! Rows of tables.

use dtensor_sharded::{
    DType, Error, ProcessGroup, Result, ShardedTensor, Spec, Tensor,
    embedding::{
        BagMode, BagOptions, MaxNorm, embedding, embedding_backward, embedding_bag,
        embedding_bag_renormed, embedding_renormed, renorm_rows,
    },
    ops, shard_tensor,
};
use dtensor_testing::spmd;

use crate::support::{Grid, boxes, chunks, numbered, same_error};

const ROWS: usize = 17;
const WIDTH: usize = 12;

fn table() -> Tensor {
    numbered(&[ROWS, WIDTH]).mul_scalar(0.1).unwrap().sub_scalar(7.0).unwrap()
}

fn specs() -> Vec<Spec> {
    let mut specs = Vec::new();
    for dim in [0, 1, -1] {
        for order in [[0, 1, 2, 3], [3, 1, 0, 2], [1, 2, 3, 0]] {
            specs.push(chunks(dim, &order));
        }
        // Two of the ranks, and several shards on some.
        specs.push(chunks(dim, &[2, 1]));
        specs.push(chunks(dim, &[0, 3, 0, 1, 1, 1]));
    }
    specs.push(boxes(&[(&[0, 0], &[17, 1], 3), (&[0, 1], &[2, 11], 0), (&[2, 1], &[15, 11], 3)]));
    specs
}

/// Other ids on every rank, another number of them, and none on the last.
fn ids_of(rank: usize) -> Vec<i64> {
    let n = [5, 7, 2, 0][rank];
    (0..n).map(|index| ((index * 5 + rank * 3) % ROWS) as i64).collect()
}

fn ids_tensor(ids: &[i64]) -> Tensor {
    Tensor::from_slice(ids, &[ids.len()]).unwrap()
}

#[test]
fn every_rank_gets_the_rows_it_asks_for_from_any_cut() {
    spmd(4, |world| {
        let ids = ids_tensor(&ids_of(world.rank()));
        let want = table().embedding(&ids)?.to_vec::<f32>()?;
        for spec in specs() {
            let sharded = shard_tensor(&table(), &spec, 0, world)?;
            assert_eq!(embedding(&ids, &sharded)?.to_vec::<f32>()?, want, "{spec:?}");
        }
        let sharded = shard_tensor(&table(), chunks(0, &[0, 1, 2, 3]), 0, world)?;
        // Any shape of ids, and of any integers.
        let square = Tensor::from_vec(vec![1_i32, 16, 0, 5], &[2, 2])?;
        assert_eq!(embedding(&square, &sharded)?.shape(), [2, 2, WIDTH]);
        assert_eq!(
            embedding(&Tensor::scalar(3_i64), &sharded)?.to_vec::<f32>()?,
            table().select(0, 3)?.to_vec::<f32>()?
        );
        for dtype in [DType::F64, DType::Bf16, DType::I64] {
            let sharded =
                shard_tensor(&table().to_dtype(dtype)?, chunks(1, &[1, 0, 2, 3]), 0, world)?;
            assert!(embedding(&ids, &sharded)?.equal(&table().to_dtype(dtype)?.embedding(&ids)?)?);
        }
        Ok(())
    });
}

#[test]
fn sub_groups_look_up_among_themselves() {
    spmd(4, |world| {
        let group = ProcessGroup::new(world, &[3, 1])?;
        let sharded = shard_tensor(&table(), chunks(0, &[1, 3]), 0, &group)?;
        let ids = ids_tensor(&[16, 0, world.rank() as i64]);
        match group.rank() {
            Some(_) => {
                let want = table().embedding(&ids)?.to_vec::<f32>()?;
                assert_eq!(embedding(&ids, &sharded)?.to_vec::<f32>()?, want);
            }
            None => assert!(matches!(embedding(&ids, &sharded), Err(Error::NotAMember { .. }))),
        }
        Ok(())
    });
}

#[test]
fn gradients_of_rows_are_summed_over_ranks() {
    spmd(4, |world| {
        // Of all ranks together: one table with the ids of all.
        let all: Vec<i64> = (0..4).flat_map(ids_of).collect();
        let grads = |n: usize, from: usize| numbered(&[n, WIDTH]).add_scalar(from as f64).unwrap();
        let own = ids_of(world.rank());
        let sent: Vec<Tensor> = (0..4).map(|rank| grads(ids_of(rank).len(), rank * 100)).collect();
        let together = Tensor::cat(&sent.iter().collect::<Vec<_>>(), 0)?;
        let want = together.embedding_backward(&ids_tensor(&all), ROWS)?;
        let grad = grads(own.len(), world.rank() * 100);
        for spec in specs() {
            let sharded = shard_tensor(&table(), &spec, 0, world)?;
            let got = embedding_backward(&grad, &ids_tensor(&own), &sharded, None)?;
            assert_eq!(got.metadata().shards_metadata, sharded.metadata().shards_metadata);
            assert!(got.full_tensor()?.allclose(&want, 1e-6, 1e-6, false)?, "{spec:?}");
            // The padding row has no gradient.
            let got =
                embedding_backward(&grad, &ids_tensor(&own), &sharded, Some(5))?.full_tensor()?;
            let mut padded = want.clone();
            padded.slice_assign_in_place(&[5..6], &Tensor::zeros(&[1, WIDTH], DType::F32)?)?;
            assert!(got.allclose(&padded, 1e-6, 1e-6, false)?);
        }
        Ok(())
    });
}

#[test]
fn an_id_that_is_no_row_is_the_same_error_on_all_ranks() {
    for bad in [17_i64, -1] {
        let error = same_error(4, |world| {
            let sharded = shard_tensor(&table(), chunks(0, &[0, 1, 2, 3]), 0, world)?;
            let ids = if world.rank() == 2 { vec![0, bad] } else { vec![1] };
            embedding(&ids_tensor(&ids), &sharded)
        });
        assert!(matches!(error, Error::Rank { rank: 2, .. }));
        assert!(error.to_string().contains(&bad.to_string()), "{error}");
    }
    let error = same_error(2, |world| {
        let sharded = shard_tensor(&table(), chunks(0, &[0, 1]), 0, world)?;
        embedding(&numbered(&[2]), &sharded)
    });
    assert!(matches!(error, Error::Rank { rank: 0, .. }));
    let error = same_error(2, |world| {
        let sharded = shard_tensor(&numbered(&[4]), chunks(0, &[0, 1]), 0, world)?;
        embedding(&ids_tensor(&[0]), &sharded)
    });
    assert!(matches!(error, Error::Unsupported { .. }));
}

/// Bags by plain loops.
fn bags_of(ids: &[i64], bounds: &[usize], options: &BagOptions, rows: &Tensor) -> Vec<f32> {
    let rows = rows.to_vec::<f32>().unwrap();
    let weights =
        options.per_sample_weights.as_ref().map(|weights| weights.to_vec::<f32>().unwrap());
    let mut out = Vec::new();
    for pair in bounds.windows(2) {
        let counts = |index: &usize| options.padding_idx != Some(ids[*index] as usize);
        let kept: Vec<usize> = (pair[0]..pair[1]).filter(counts).collect();
        for column in 0..WIDTH {
            let value = |index: &usize| {
                let weight = weights.as_ref().map_or(1.0, |weights| weights[*index]);
                rows[ids[*index] as usize * WIDTH + column] * weight
            };
            let values: Vec<f32> = kept.iter().map(value).collect();
            let sum = values.iter().fold(0.0, |sum, value| sum + value);
            out.push(match options.mode {
                _ if values.is_empty() => 0.0,
                BagMode::Sum => sum,
                BagMode::Mean => sum / values.len() as f32,
                BagMode::Max => values.iter().copied().fold(f32::MIN, f32::max),
            });
        }
    }
    out
}

#[test]
fn bags_of_every_kind_are_those_of_plain_loops() {
    spmd(4, |world| {
        let ids: Vec<i64> = ids_of(world.rank());
        let n = ids.len();
        let starts = [0, n.min(1), n.min(1), n.min(4)];
        let offsets = |include_last: bool| {
            let last = include_last.then_some(n);
            let list: Vec<i64> = starts.iter().copied().chain(last).map(|at| at as i64).collect();
            ids_tensor(&list)
        };
        let bounds = [&starts[..], &[n]].concat();
        for spec in specs() {
            let sharded = shard_tensor(&table(), &spec, 0, world)?;
            for mode in [BagMode::Sum, BagMode::Mean, BagMode::Max] {
                for padding_idx in [None, Some(5), Some(0)] {
                    for include_last_offset in [false, true] {
                        let options = BagOptions {
                            mode,
                            padding_idx,
                            include_last_offset,
                            per_sample_weights: None,
                        };
                        let got = embedding_bag(
                            &ids_tensor(&ids),
                            Some(&offsets(include_last_offset)),
                            &sharded,
                            &options,
                        )?;
                        assert_eq!(got.shape(), [4, WIDTH]);
                        assert_eq!(
                            got.to_vec::<f32>()?,
                            bags_of(&ids, &bounds, &options, &table()),
                            "{spec:?} {options:?}"
                        );
                    }
                }
            }
            let weights = numbered(&[n]).add_scalar(0.5)?;
            let options = BagOptions {
                mode: BagMode::Sum,
                per_sample_weights: Some(weights),
                ..BagOptions::default()
            };
            let got = embedding_bag(&ids_tensor(&ids), Some(&offsets(false)), &sharded, &options)?;
            assert_eq!(got.to_vec::<f32>()?, bags_of(&ids, &bounds, &options, &table()));
        }
        Ok(())
    });
}

#[test]
fn rows_of_ids_are_bags() {
    spmd(3, |world| {
        let ids: Vec<i64> =
            (0..12).map(|index| (index * 7 + world.rank() as i64) % ROWS as i64).collect();
        let square = Tensor::from_slice(&ids, &[4, 3])?;
        for spec in [chunks(0, &[2, 0, 1]), chunks(1, &[0, 1, 2])] {
            let sharded = shard_tensor(&table(), &spec, 0, world)?;
            for mode in [BagMode::Sum, BagMode::Mean, BagMode::Max] {
                let options = BagOptions { mode, padding_idx: Some(7), ..BagOptions::default() };
                let got = embedding_bag(&square, None, &sharded, &options)?;
                assert_eq!(
                    got.to_vec::<f32>()?,
                    bags_of(&ids, &[0, 3, 6, 9, 12], &options, &table())
                );
            }
        }
        Ok(())
    });
}

#[test]
fn bags_that_make_no_sense_are_the_same_error_on_all_ranks() {
    type Body = fn(&ShardedTensor, bool) -> Result<Tensor>;
    let refused = |body: Body| {
        same_error(2, |world| {
            let sharded = shard_tensor(&table(), chunks(0, &[0, 1]), 0, world)?;
            body(&sharded, world.rank() == 1)
        })
    };
    let bodies: [Body; 8] = [
        |table, bad| {
            embedding_bag(
                &ids_tensor(&[1, 2]),
                (!bad).then_some(&ids_tensor(&[0])),
                table,
                &BagOptions::default(),
            )
        },
        |table, bad| {
            embedding_bag(
                &ids_tensor(&[1, 2]),
                Some(&ids_tensor(if bad { &[1] } else { &[0] })),
                table,
                &BagOptions::default(),
            )
        },
        |table, bad| {
            embedding_bag(
                &ids_tensor(&[1, 2]),
                Some(&ids_tensor(if bad { &[0, 2, 1] } else { &[0] })),
                table,
                &BagOptions::default(),
            )
        },
        |table, bad| {
            embedding_bag(
                &ids_tensor(&[1, 2]),
                Some(&ids_tensor(if bad { &[0, 3] } else { &[0] })),
                table,
                &BagOptions::default(),
            )
        },
        |table, bad| {
            let options = BagOptions { include_last_offset: bad, ..BagOptions::default() };
            embedding_bag(&ids_tensor(&[1, 2]), Some(&ids_tensor(&[0, 1])), table, &options)
        },
        |table, bad| {
            let weights = bad.then(|| numbered(&[3]));
            let options = BagOptions {
                mode: BagMode::Sum,
                per_sample_weights: weights,
                ..BagOptions::default()
            };
            embedding_bag(&ids_tensor(&[1, 2]), Some(&ids_tensor(&[0])), table, &options)
        },
        |table, bad| {
            let options = BagOptions {
                per_sample_weights: bad.then(|| numbered(&[2])),
                ..BagOptions::default()
            };
            embedding_bag(&ids_tensor(&[1, 2]), Some(&ids_tensor(&[0])), table, &options)
        },
        |table, bad| {
            let ids = if bad {
                Tensor::zeros(&[1, 1, 1], DType::I64)?
            } else {
                Tensor::zeros(&[1, 1], DType::I64)?
            };
            embedding_bag(&ids, None, table, &BagOptions::default())
        },
    ];
    for (number, body) in bodies.into_iter().enumerate() {
        let error = refused(body);
        assert!(matches!(error, Error::Rank { rank: 1, .. }), "{number}: {error}");
        assert!(matches!(error.cause(), Error::Unsupported { .. }), "{number}: {error}");
    }
}

/// D8.
#[test]
fn a_mean_does_not_count_padding_and_an_empty_bag_is_zeros() {
    spmd(2, |world| {
        let ones = Tensor::full(&[4, 2], 1.0_f32)?;
        for dim in [0, 1] {
            let sharded = shard_tensor(&ones, chunks(dim, &[0, 1]), 0, world)?;
            let options = BagOptions { padding_idx: Some(3), ..BagOptions::default() };
            let (ids, offsets) = (ids_tensor(&[0, 3, 3, 3]), ids_tensor(&[0, 3, 3]));
            let got = embedding_bag(&ids, Some(&offsets), &sharded, &options)?;
            // One of three counts; none of none; none of one.
            assert_eq!(got.to_vec::<f32>()?, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        }
        Ok(())
    });
}

/// D9.
#[test]
fn every_row_that_is_looked_up_is_renormed_and_no_other() {
    spmd(4, |world| {
        for spec in specs().into_iter().chain([Grid::over_ranks(1, [2]).into()]) {
            for p in [2.0, 1.0, f64::INFINITY] {
                let mut sharded = shard_tensor(&table(), &spec, 0, world)?;
                // The first and the last row of chunks, and the same row on several ranks.
                let ids = [vec![0, 4, 16], vec![16], vec![9, 8], vec![]][world.rank()].clone();
                renorm_rows(&mut sharded, &ids_tensor(&ids), 3.0, p)?;
                let got = sharded.full_tensor()?.to_vec::<f32>()?;
                let plain = table().to_vec::<f32>()?;
                for row in 0..ROWS {
                    let (got, plain) =
                        (&got[row * WIDTH..][..WIDTH], &plain[row * WIDTH..][..WIDTH]);
                    let norm = |values: &[f32]| match p {
                        1.0 => values.iter().map(|value| value.abs()).sum::<f32>(),
                        2.0 => values.iter().map(|value| value * value).sum::<f32>().sqrt(),
                        _ => values.iter().fold(0.0_f32, |a, b| a.max(b.abs())),
                    };
                    if [0, 4, 8, 9, 16].contains(&row) && norm(plain) > 3.0 {
                        assert!(
                            (norm(got) - 3.0).abs() < 1e-3,
                            "{spec:?} row {row} p {p}: {}",
                            norm(got)
                        );
                    } else {
                        assert_eq!(got, plain, "{spec:?} row {row}");
                    }
                }
            }
        }
        let mut halves =
            shard_tensor(&table().to_dtype(DType::Bf16)?, chunks(0, &[0, 1, 2, 3]), 0, world)?;
        renorm_rows(&mut halves, &ids_tensor(&[0]), 1.0, 2.0)?;
        assert_eq!(halves.dtype(), DType::Bf16);
        assert!(matches!(
            renorm_rows(&mut halves, &ids_tensor(&[0]), 0.0, 2.0),
            Err(Error::Local(_))
        ));
        Ok(())
    });
}

/// D10.
#[test]
fn ids_beyond_what_a_float_counts_are_looked_up_with_weights() {
    spmd(2, |world| {
        let n_rows = (1 << 24) + 3;
        let table = Tensor::zeros(&[n_rows, 1], DType::U8)?.to_dtype(DType::F16)?;
        let last = Tensor::full(&[1, 1], 1.0_f32)?;
        let table = table.slice_assign(&[n_rows - 2..n_rows - 1], &last)?;
        let sharded = shard_tensor(&table, chunks(0, &[0, 1]), 0, world)?;
        let ids: Vec<i64> = vec![n_rows as i64 - 1, n_rows as i64 - 2, n_rows as i64 - 3];
        let options = BagOptions {
            mode: BagMode::Sum,
            per_sample_weights: Some(Tensor::from_vec(vec![2.0_f32, 4.0, 8.0], &[3])?),
            ..BagOptions::default()
        };
        let got = embedding_bag(&ids_tensor(&ids), Some(&ids_tensor(&[0])), &sharded, &options)?;
        assert_eq!(got.to_dtype(DType::F32)?.to_vec::<f32>()?, [4.0]);
        Ok(())
    });
}

#[test]
fn what_is_looked_up_after_a_renorm_are_shortened_rows() {
    spmd(4, |world| {
        let mut whole = table().to_vec::<f32>()?;
        let taken: Vec<i64> = (0..4).flat_map(ids_of).collect();
        for row in (0..ROWS).filter(|row| taken.contains(&(*row as i64))) {
            let values = &mut whole[row * WIDTH..][..WIDTH];
            let squares = values.iter().map(|value| f64::from(*value).powi(2));
            let norm = squares.sum::<f64>().sqrt();
            if norm > 3.0 {
                values.iter_mut().for_each(|value| *value *= (3.0 / norm) as f32);
            }
        }
        let whole = Tensor::from_vec(whole, &[ROWS, WIDTH])?;
        let own = ids_of(world.rank());
        let (ids, offsets) = (ids_tensor(&own), ids_tensor(&[0]));
        for spec in specs() {
            let mut sharded = shard_tensor(&table(), &spec, 0, world)?;
            renorm_rows(&mut sharded, &ids, 3.0, 2.0)?;
            assert!(sharded.full_tensor()?.allclose(&whole, 1e-5, 1e-5, false)?, "{spec:?}");
            let rows = embedding(&ids, &sharded)?;
            assert!(rows.allclose(&whole.embedding(&ids)?, 1e-5, 1e-5, false)?, "{spec:?}");
            for mode in [BagMode::Sum, BagMode::Mean, BagMode::Max] {
                let options = BagOptions { mode, padding_idx: Some(5), ..BagOptions::default() };
                let got = embedding_bag(&ids, Some(&offsets), &sharded, &options)?;
                let want = bags_of(&own, &[0, own.len()], &options, &whole);
                let want = Tensor::from_vec(want, &[1, WIDTH])?;
                assert!(got.allclose(&want, 1e-5, 1e-4, false)?, "{spec:?} {mode:?}");
            }
        }
        Ok(())
    });
}

#[test]
fn looking_up_with_a_longest_norm_is_a_renorm_and_a_lookup_and_tells_ids_once() {
    spmd(4, |world| {
        let own = ids_of(world.rank());
        let (ids, offsets) = (ids_tensor(&own), ids_tensor(&[0]));
        let n_calls = || world.recorder().records().last().map_or(0, |last| last.number + 1);
        for spec in specs() {
            for norm_type in [2.0, 1.0, f64::INFINITY] {
                let norm = MaxNorm { max_norm: 3.0, norm_type };
                let mut apart = shard_tensor(&table(), &spec, 0, world)?;
                let (mut rows, mut bags) = (apart.clone(), apart.clone());
                let before = n_calls();
                renorm_rows(&mut apart, &ids, 3.0, norm_type)?;
                let want = embedding(&ids, &apart)?;
                let n_apart = n_calls() - before;
                let got = embedding_renormed(&ids, &mut rows, norm)?;
                // The lengths and the ids themselves.
                assert_eq!(n_calls() - before - n_apart, n_apart - 2, "{spec:?}");
                assert!(got.equal(&want)? && rows.equal(&apart)?, "{spec:?}");
                let options = BagOptions { padding_idx: Some(5), ..BagOptions::default() };
                let want = embedding_bag(&ids, Some(&offsets), &apart, &options)?;
                let got = embedding_bag_renormed(&ids, Some(&offsets), &mut bags, &options, norm)?;
                // Also of rows that do not count.
                assert!(got.equal(&want)? && bags.equal(&apart)?, "{spec:?}");
            }
        }
        Ok(())
    });
    // What is wrong, on one rank or on all, changes nothing and is the same error on all.
    let refused = |body: fn(&mut ShardedTensor, bool) -> Result<Tensor>| {
        same_error(2, |world| {
            let mut table = shard_tensor(&table(), chunks(0, &[0, 1]), 0, world)?;
            let before = table.full_tensor()?;
            let result = body(&mut table, world.rank() == 1);
            assert!(table.full_tensor()?.equal(&before)?);
            result
        })
    };
    let error = refused(|table, bad| {
        let ids = ids_tensor(&[if bad { ROWS as i64 } else { 0 }]);
        embedding_renormed(&ids, table, MaxNorm::new(0.1))
    });
    assert!(matches!(error, Error::Rank { rank: 1, .. }), "{error}");
    let error = refused(|table, bad| {
        let offsets = ids_tensor(&[i64::from(bad)]);
        let options = BagOptions::default();
        embedding_bag_renormed(
            &ids_tensor(&[0]),
            Some(&offsets),
            table,
            &options,
            MaxNorm::new(0.1),
        )
    });
    assert!(matches!(error, Error::Rank { rank: 1, .. }), "{error}");
    let error = refused(|table, _| embedding_renormed(&ids_tensor(&[0]), table, MaxNorm::new(0.0)));
    assert!(matches!(error, Error::Local(_)), "{error}");
}

#[test]
fn other_bags_that_make_no_sense_are_the_same_error_on_all_ranks() {
    type Body = fn(&ShardedTensor, bool) -> Result<Tensor>;
    let bodies: [Body; 6] = [
        // Rows are bags already.
        |table, bad| {
            let (ids, offsets) = (Tensor::zeros(&[1, 1], DType::I64)?, ids_tensor(&[0]));
            embedding_bag(&ids, bad.then_some(&offsets), table, &BagOptions::default())
        },
        |table, bad| {
            let options = BagOptions { include_last_offset: bad, ..BagOptions::default() };
            embedding_bag(&Tensor::zeros(&[1, 1], DType::I64)?, None, table, &options)
        },
        |table, bad| {
            let offsets = Tensor::zeros(if bad { &[1, 1] } else { &[1] }, DType::I64)?;
            embedding_bag(&ids_tensor(&[1]), Some(&offsets), table, &BagOptions::default())
        },
        |table, bad| {
            let offsets = Tensor::zeros(&[1], if bad { DType::F32 } else { DType::I64 })?;
            embedding_bag(&ids_tensor(&[1]), Some(&offsets), table, &BagOptions::default())
        },
        |table, bad| {
            let padding_idx = Some(if bad { ROWS } else { 0 });
            let options = BagOptions { padding_idx, ..BagOptions::default() };
            embedding_bag(&ids_tensor(&[1]), Some(&ids_tensor(&[0])), table, &options)
        },
        |table, bad| {
            let ids = ids_tensor(&[if bad { ROWS as i64 } else { 1 }]);
            embedding_bag(&ids, Some(&ids_tensor(&[0])), table, &BagOptions::default())
        },
    ];
    for (number, body) in bodies.into_iter().enumerate() {
        let error = same_error(2, |world| {
            let sharded = shard_tensor(&table(), chunks(0, &[0, 1]), 0, world)?;
            body(&sharded, world.rank() == 1)
        });
        assert!(matches!(error, Error::Rank { rank: 1, .. }), "{number}: {error}");
    }
    let error = same_error(2, |world| {
        let sharded = shard_tensor(&table(), chunks(0, &[0, 1]), 0, world)?;
        let (ids, offsets) = (ids_tensor(&[1]), ids_tensor(&[0]));
        // There are three modes.
        ops::call("embedding_bag", &[ids.into(), sharded.into(), offsets.into(), 3_i64.into()])
    });
    assert!(matches!(error.cause(), Error::Unsupported { .. }), "{error}");
}

#[test]
fn tables_and_norms_that_cannot_be_are_refused_on_every_rank() {
    spmd(2, |world| {
        let rows = chunks(0, &[0, 1]);
        let (ids, offsets) = (ids_tensor(&[1]), ids_tensor(&[0]));
        let mut ints = shard_tensor(&table().to_dtype(DType::I64)?, &rows, 0, world)?;
        let mut flat = shard_tensor(&numbered(&[4]), &rows, 0, world)?;
        let mut good = shard_tensor(&table(), &rows, 0, world)?;
        let options = BagOptions::default();
        let bag = |table: &ShardedTensor| {
            embedding_bag(&ids, Some(&offsets), table, &options).unwrap_err()
        };
        assert!(matches!(bag(&ints), Error::Local(_)));
        assert!(matches!(bag(&flat), Error::Unsupported { .. }));
        assert!(matches!(renorm_rows(&mut ints, &ids, 1.0, 2.0), Err(Error::Local(_))));
        assert!(matches!(renorm_rows(&mut flat, &ids, 1.0, 2.0), Err(Error::Unsupported { .. })));
        for (max_norm, norm_type) in [(0.0, 2.0), (-1.0, 2.0), (f64::NAN, 2.0), (1.0, 0.0)] {
            let refused = renorm_rows(&mut good, &ids, max_norm, norm_type);
            assert!(matches!(refused, Err(Error::Local(_))), "{max_norm} {norm_type}");
        }
        assert!(good.full_tensor()?.equal(&table())?);
        Ok(())
    });
}
