//! What the sweep does not see of this family: layouts of results, calls and bytes, errors.

use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh, Error, Layout, LocalError,
    Placement::{self, Partial, Replicate, Shard},
    ReduceOp, Result, Tensor, World, distribute_tensor, ones,
    ops::nn::{
        Attention, AttentionMask, AvgPool, Conv, ConvTranspose, CrossEntropy, Interpolate,
        InterpolateMode, InterpolateSize, MaxPool, NllLoss, Reduction, WantedGrads,
    },
    plan::StepKind,
    randint, randn, random, zeros,
};
use dtensor_local::nn;
use dtensor_testing::spmd;

use crate::support::mesh;

const SUM: Placement = Partial(ReduceOp::Sum);

/// What was sent, as numbers of all-reduces, exchanges, and anything else.
fn calls(comm: &CommDebug) -> [usize; 3] {
    let [reduced, exchanged] =
        [StepKind::AllReduce, StepKind::Exchange].map(|kind| comm.calls_of(kind));
    [reduced, exchanged, comm.calls() - reduced - exchanged]
}

fn record<T>(body: impl FnOnce() -> Result<T>) -> Result<(T, [usize; 3], u128)> {
    let (result, comm) = CommDebug::record(body);
    Ok((result?, calls(&comm), comm.bytes()))
}

#[track_caller]
fn assert_close(got: &DTensor, want: &Tensor, tolerance: f64) {
    let got = got.full_tensor().unwrap();
    assert_eq!(got.dtype(), want.dtype());
    assert_eq!(got.shape(), want.shape());
    let values = |tensor: &Tensor| tensor.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    for (got, want) in values(&got).into_iter().zip(values(want)) {
        let is_close =
            (got - want).abs() <= tolerance * (1.0 + want.abs()) || got.is_nan() && want.is_nan();
        assert!(is_close || got == want, "{got} is not {want}");
    }
}

#[test]
fn a_softmax_along_a_cut_dim_is_two_small_reductions() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let x = randn(&[3, 6], DType::F64, &mesh, &[Shard(1)])?;
        for log in [false, true] {
            let (y, sent, bytes) = record(|| if log { x.log_softmax(-1) } else { x.softmax(-1) })?;
            assert_eq!((sent, y.layout()), ([2, 0, 0], x.layout()));
            // Three rows of one number each, twice, in a ring of four.
            assert_eq!(bytes, 2 * 2 * 3 * (3 * 8));
            let grad = randn(&[3, 6], DType::F64, &mesh, &[Shard(1)])?;
            let (dx, sent, _) = record(|| match log {
                true => y.log_softmax_backward(&grad, 1),
                false => y.softmax_backward(&grad, 1),
            })?;
            assert_eq!((sent, dx.layout()), ([1, 0, 0], x.layout()));
        }
        let rows = x.redistribute(&[Shard(0)])?;
        let (y, sent, _) = record(|| rows.softmax(1))?;
        assert_eq!((sent, y.layout()), ([0, 0, 0], rows.layout()));
        Ok(())
    });
}

#[test]
fn a_softmax_is_right_for_infinities_and_for_what_would_overflow() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let inf = f32::NEG_INFINITY;
        let x = [[1000.0, inf, 999.0, -1000.0], [inf, inf, inf, 2.0], [inf; 4]].concat();
        let x = Tensor::from_vec(x, &[3, 4])?;
        let cut = distribute_tensor(&x, &mesh, &[Shard(1)])?;
        assert_close(&cut.softmax(1)?, &x.softmax(1)?, 1e-6);
        let want = x.to_dtype(DType::F64)?.log_softmax(1)?.to_dtype(DType::F32)?;
        assert_close(&cut.log_softmax(1)?, &want, 1e-6);
        Ok(())
    });
}

#[test]
fn halves_are_reduced_in_single_precision() {
    for dtype in [DType::Bf16, DType::F16, DType::F32] {
        spmd(4, |world| {
            let mesh = mesh(world, &[4]);
            let tolerance = if dtype == DType::F32 { 1e-6 } else { 1e-2 };
            // The sum of so many would be 256 in bf16, which cannot count further.
            let x = ones(&[2, 1000], dtype, &mesh, &[Shard(1)])?;
            let want = x.full_tensor()?;
            assert_close(&x.softmax(1)?, &want.softmax(1)?, tolerance / 1000.0);
            let x = randn(&[3, 40], dtype, &mesh, &[Shard(1)])?;
            let whole = x.full_tensor()?;
            let weight = randn(&[40], dtype, &mesh, &[Replicate])?;
            let local = weight.full_tensor()?;
            assert_close(
                &x.layer_norm(&[40], Some(&weight), Some(&weight), 1e-5)?,
                &whole.layer_norm(&[40], Some(&local), Some(&local), 1e-5)?,
                tolerance,
            );
            let targets = randint(0, 40, &[3], DType::I32, &mesh, &[Replicate])?;
            let settings = CrossEntropy { label_smoothing: 0.1, ..CrossEntropy::default() };
            let (loss, log_sums) = x.cross_entropy(&targets, &settings)?;
            let local = nn::CrossEntropy { label_smoothing: 0.1, ..nn::CrossEntropy::default() };
            let (want, want_sums) = whole.cross_entropy(&targets.full_tensor()?, &local)?;
            assert_close(&loss, &want, tolerance);
            assert_close(&log_sums, &want_sums, 1e-5);
            let grad = ones(&[], dtype, &mesh, &[Replicate])?;
            assert_close(
                &x.redistribute(&[Shard(0)])?
                    .cross_entropy_backward(&targets, &log_sums, &grad, &settings)?,
                &whole.cross_entropy_backward(
                    &targets.full_tensor()?,
                    &want_sums,
                    &grad.full_tensor()?,
                    &local,
                )?,
                tolerance,
            );
            let planes = randn(&[4, 2, 3], dtype, &mesh, &[Shard(0)])?;
            let (y, mean, _) = planes.batch_norm(None, None, 1e-5)?;
            let (want, stats) = planes.full_tensor()?.batch_norm(None, None, 1e-5)?;
            assert_close(&y, &want, tolerance);
            assert_close(&mean, &stats.mean, 1e-5);
            Ok(())
        });
    }
}

#[test]
fn a_normalisation_over_a_cut_dim_reduces_sums() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let at = [Shard(0), Shard(1)];
        let x = randn(&[5, 6], DType::F64, &mesh, &at)?;
        let weight = randn(&[6], DType::F64, &mesh, &[Replicate, Shard(0)])?;
        let (y, sent, _) = record(|| x.layer_norm(&[6], Some(&weight), Some(&weight), 1e-5))?;
        assert_eq!((sent, y.layout()), ([2, 0, 0], x.layout()));
        let (y, sent, _) = record(|| x.rms_norm(&[6], Some(&weight), 1e-5))?;
        assert_eq!((sent, y.layout()), ([1, 0, 0], x.layout()));
        let ((dx, dw, db), sent, _) =
            record(|| x.layer_norm_backward(&y, &[6], Some(&weight), 1e-5))?;
        assert_eq!((sent, dx.layout()), ([3, 0, 0], x.layout()));
        assert_eq!(dw.placements(), [SUM, Shard(0)]);
        assert_eq!(db.placements(), [SUM, Shard(0)]);
        let rows = x.redistribute(&[Shard(0), Replicate])?;
        let whole = weight.redistribute(&[Replicate, Replicate])?;
        let ((dx, dw), sent, _) =
            record(|| rows.rms_norm_backward(&rows, &[6], Some(&whole), 1e-5))?;
        assert_eq!((sent, dx.layout()), ([0, 0, 0], rows.layout()));
        assert_eq!(dw.placements(), [SUM, Replicate]);
        Ok(())
    });
}

#[test]
fn far_from_zero_the_variance_does_not_cancel() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let x =
            Tensor::linspace(0.0, 1.0, 24, DType::F32)?.reshape(&[2, 12])?.add_scalar(10_000.0)?;
        let cut = distribute_tensor(&x, &mesh, &[Shard(1)])?;
        let want = x.to_dtype(DType::F64)?.layer_norm(&[12], None, None, 1e-9)?;
        assert_close(&cut.layer_norm(&[12], None, None, 1e-9)?, &want.to_dtype(DType::F32)?, 1e-2);
        Ok(())
    });
}

#[test]
fn groups_and_batches_on_several_ranks_reduce_their_statistics() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let x = randn(&[6, 8, 5], DType::F64, &mesh, &[Shard(0)])?;
        let dense = x.full_tensor()?;
        let ((y, mean, var), sent, bytes) = record(|| x.batch_norm(None, None, 1e-5))?;
        assert_eq!((sent, y.layout()), ([2, 0, 0], x.layout()));
        assert_eq!((bytes, mean.placements()), (2 * 2 * 3 * (8 * 8), &[Replicate][..]));
        let (want, stats) = dense.batch_norm(None, None, 1e-5)?;
        assert_close(&y, &want, 1e-12);
        let (mut old_mean, mut old_var) =
            (Tensor::zeros(&[8], DType::F32)?, Tensor::ones(&[8], DType::F32)?);
        let zero = zeros(&[8], DType::F32, &mesh, &[Replicate])?;
        let one = ones(&[8], DType::F32, &mesh, &[Replicate])?;
        let (running_mean, running_var) =
            x.batch_norm_running((&mean, &var), (&zero, &one), 0.1)?;
        stats.update_running(&mut old_mean, &mut old_var, 0.1)?;
        assert_close(&running_mean, &old_mean, 1e-6);
        assert_close(&running_var, &old_var, 1e-6);
        let (_, sent, _) = record(|| x.batch_norm_backward(&y, &mean, &var, None, 1e-5))?;
        assert_eq!(sent, [1, 0, 0]);
        let (_, sent, _) = record(|| x.batch_norm_eval(&mean, &var, None, None, 1e-5))?;
        assert_eq!(sent, [0, 0, 0]);
        // Whole groups are on every rank, or halves of groups, or parts of all.
        for (groups, at, want_sent) in [
            (4, Shard(1), [0, 0, 0]),
            (2, Shard(1), [0, 0, 2]),
            (2, Shard(2), [2, 0, 0]),
            (2, Shard(0), [0, 0, 0]),
        ] {
            let x = x.redistribute(&[at])?;
            let (y, sent, _) = record(|| x.group_norm(groups, None, None, 1e-5))?;
            assert_eq!((sent, y.layout()), (want_sent, x.layout()), "{groups} {at}");
            assert_close(&y, &dense.group_norm(groups, None, None, 1e-5)?, 1e-12);
        }
        Ok(())
    });
}

#[test]
fn a_table_of_cut_rows_is_looked_up_without_communication() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let ids = randint(0, 6, &[3, 5], DType::I64, &mesh, &[Replicate])?;
        let table = randn(&[6, 4], DType::F32, &mesh, &[Shard(0)])?;
        let (rows, sent, _) = record(|| table.embedding(&ids))?;
        assert_eq!((sent, rows.placements()), ([0, 0, 0], &[SUM][..]));
        let columns = table.redistribute(&[Shard(1)])?;
        let (wide, sent, _) = record(|| columns.embedding(&ids))?;
        assert_eq!((sent, wide.placements()), ([0, 0, 0], &[Shard(2)][..]));
        assert_close(&rows, &wide.full_tensor()?, 0.0);

        let grad = randn(&[3, 5, 4], DType::F32, &mesh, &[Replicate])?;
        let want = grad.full_tensor()?.embedding_backward(&ids.full_tensor()?, 6)?;
        let (of_table, sent, _) = record(|| grad.embedding_backward_like(&ids, &table))?;
        assert_eq!((sent, of_table.layout()), ([0, 0, 0], table.layout()));
        assert_close(&of_table, &want, 1e-6);
        let (few_ids, few) = (ids.redistribute(&[Shard(0)])?, grad.redistribute(&[Shard(0)])?);
        let (of_table, sent, _) = record(|| few.embedding_backward_like(&few_ids, &table))?;
        // One number: whether all ids are in range.
        assert_eq!((sent, of_table.placements()), ([1, 0, 0], &[SUM][..]));
        assert_close(&of_table, &want, 1e-6);
        Ok(())
    });
}

#[test]
fn an_id_or_a_target_that_is_nowhere_is_an_error_on_every_rank() {
    let errors = spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let table = ones(&[5, 2], DType::F32, &mesh, &[Shard(0)])?;
        let of = |values: Vec<i64>| {
            let n = values.len();
            distribute_tensor(&Tensor::from_vec(values, &[n])?, &mesh, &[Replicate])
        };
        let beyond = table.embedding(&of(vec![0, 5])?).unwrap_err();
        let before = table.embedding(&of(vec![-1])?).unwrap_err();
        let logits = ones(&[2, 5], DType::F32, &mesh, &[Shard(1)])?;
        let class = logits.cross_entropy(&of(vec![0, 7])?, &CrossEntropy::default()).unwrap_err();
        let shape = logits.cross_entropy(&of(vec![0])?, &CrossEntropy::default()).unwrap_err();
        let dim = logits.softmax(2).unwrap_err();
        Ok([beyond, before, class, shape, dim])
    });
    assert_eq!(errors[0], errors[1]);
    assert_eq!(errors[0], errors[2]);
    let [beyond, before, class, shape, dim] = &errors[0];
    let out_of_range =
        |op, index, dim, size| Error::from(LocalError::IndexOutOfRange { op, index, dim, size });
    assert_eq!(*beyond, out_of_range("embedding", 5, 0, 5));
    assert_eq!(*before, out_of_range("embedding", -1, 0, 5));
    assert_eq!(*class, out_of_range("cross_entropy", 7, 1, 5));
    assert!(
        matches!(shape, Error::Local(error) if matches!(**error, LocalError::ShapeMismatch { .. }))
    );
    assert!(
        matches!(dim, Error::Local(error) if matches!(**error, LocalError::DimOutOfRange { .. }))
    );
}

#[test]
fn logits_of_cut_classes_are_never_gathered() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let (n, c) = (7, 1000);
        let logits = randn(&[n, c], DType::F64, &mesh, &[Shard(0), Shard(1)])?;
        let targets = randint(0, c as i64, &[n], DType::I64, &mesh, &[Replicate, Replicate])?;
        let dense = (logits.full_tensor()?, targets.full_tensor()?);
        for (at, reduction, forward) in [
            ([Shard(0), Shard(1)], Reduction::Mean, 3),
            ([Shard(0), Shard(1)], Reduction::Sum, 2),
            ([Replicate, Shard(1)], Reduction::Mean, 2),
            ([Shard(1), Shard(1)], Reduction::None, 2),
            ([Shard(0), Shard(0)], Reduction::Mean, 1),
            ([Shard(0), Shard(0)], Reduction::Sum, 0),
        ] {
            let logits = logits.redistribute(&at)?;
            let settings =
                CrossEntropy { reduction, label_smoothing: 0.1, ignore_index: 3, weight: None };
            let ((loss, log_sums), sent, bytes) =
                record(|| logits.cross_entropy(&targets, &settings))?;
            // Where samples are cut, one number more: whether all targets are classes.
            let check = usize::from(at[0] == Shard(0));
            assert_eq!(sent, [forward + check, 0, 0], "{at:?} {reduction:?}");
            assert!(bytes <= 4 * 4 * 8 * 4 * n as u128, "{bytes}");
            let local =
                nn::CrossEntropy { reduction, label_smoothing: 0.1, ignore_index: 3, weight: None };
            let (want, sums) = dense.0.cross_entropy(&dense.1, &local)?;
            assert_close(&loss, &want, 1e-12);
            assert_close(&log_sums, &sums, 1e-12);
            let grad = distribute_tensor(&want.ones_like()?, &mesh, &[Replicate; 2])?;
            let dense_dx =
                dense.0.cross_entropy_backward(&dense.1, &sums, &want.ones_like()?, &local)?;
            let of_targets = at.map(|one| if one == Shard(0) { one } else { Replicate });
            // What a mean divides by is known where the targets are, and else one number is reduced.
            for (targets, sums_of_weights) in
                [(&targets, 0), (&targets.redistribute(&of_targets)?, 1)]
            {
                let is_reduced = reduction == Reduction::Mean && at[0] == Shard(0);
                let backward = if is_reduced { 2 * sums_of_weights } else { check };
                let (dx, sent, bytes) =
                    record(|| logits.cross_entropy_backward(targets, &log_sums, &grad, &settings))?;
                assert_eq!((sent, dx.layout()), ([backward, 0, 0], logits.layout()));
                assert!(bytes <= 2 * (4 * 2 * 8));
                assert_close(&dx, &dense_dx, 1e-12);
            }

            let settings = NllLoss { reduction, ignore_index: 3, weight: None };
            let (loss, sent, _) = record(|| logits.nll_loss(&targets, &settings))?;
            let is_mean = usize::from(reduction == Reduction::Mean);
            assert_eq!(sent, [is_mean + check, 0, 0]);
            let local = nn::NllLoss { reduction, ignore_index: 3, weight: None };
            assert_close(&loss, &dense.0.nll_loss(&dense.1, &local)?, 1e-12);
        }
        Ok(())
    });
}

#[test]
fn a_mean_over_uneven_shards_divides_by_all_weights() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let logits = randn(&[4, 3], DType::F64, &mesh, &[Shard(0)])?;
        // The last rank has no sample, and the second only ignored ones.
        let targets = Tensor::from_vec(vec![0_i64, 2, 1, 1], &[4])?;
        let weight = Tensor::from_vec(vec![1.0, 7.0, 3.0], &[3])?;
        let (spread, whole) = (
            distribute_tensor(&targets, &mesh, &[Shard(0)])?,
            distribute_tensor(&weight, &mesh, &[Replicate])?,
        );
        let settings =
            CrossEntropy { weight: Some(&whole), ignore_index: 1, ..CrossEntropy::default() };
        let local = nn::CrossEntropy {
            weight: Some(&weight),
            ignore_index: 1,
            ..nn::CrossEntropy::default()
        };
        let (loss, _) = logits.cross_entropy(&spread, &settings)?;
        let (want, _) = logits.full_tensor()?.cross_entropy(&targets, &local)?;
        assert_close(&loss, &want, 1e-12);
        Ok(())
    });
}

#[test]
fn attention_with_cut_heads_batches_or_queries_sends_nothing() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let settings = Attention { causal: true, scale: None };
        let q = randn(&[4, 8, 6, 3], DType::F64, &mesh, &[Replicate])?;
        // Four, two and one heads of keys for eight of queries.
        for key_heads in [4, 2, 1] {
            let k = randn(&[4, key_heads, 6, 3], DType::F64, &mesh, &[Replicate])?;
            let v = randn(&[4, key_heads, 6, 2], DType::F64, &mesh, &[Replicate])?;
            let [dense_q, dense_k, dense_v] = [&q, &k, &v].map(|x| x.full_tensor().unwrap());
            let (want, sums) = dense_q.attention(&dense_k, &dense_v, &settings)?;
            let grads =
                dense_q.attention_backward(&dense_k, &dense_v, (&want, &sums), &want, &settings)?;
            for (at, of_keys) in [
                (Shard(0), Shard(0)),
                (Shard(1), if key_heads == 4 { Shard(1) } else { Replicate }),
                (Shard(2), Replicate),
            ] {
                let q = q.redistribute(&[at])?;
                let (k, v) = (k.redistribute(&[of_keys])?, v.redistribute(&[of_keys])?);
                let ((out, log_sums), sent, _) = record(|| q.attention(&k, &v, &settings))?;
                assert_eq!((sent, out.placements()), ([0; 3], &[at][..]), "{key_heads} {at}");
                assert_close(&out, &want, 1e-12);
                assert_close(&log_sums, &sums, 1e-12);
                let ((dq, dk, dv), sent, _) =
                    record(|| q.attention_backward(&k, &v, (&out, &log_sums), &out, &settings))?;
                assert_eq!((sent, dq.placements()), ([0; 3], &[at][..]), "{key_heads} {at}");
                let of_keys = if of_keys == Replicate { SUM } else { of_keys };
                assert_eq!(dk.placements(), [of_keys]);
                assert_close(&dq, &grads.queries, 1e-12);
                assert_close(&dk, &grads.keys, 1e-12);
                assert_close(&dv, &grads.values, 1e-12);
            }
        }
        Ok(())
    });
}

#[test]
fn masks_are_cut_beside_queries_and_heads() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let [q, k, v] = [[2, 4, 3, 2], [2, 4, 5, 2], [2, 4, 5, 2]]
            .map(|shape| randn(&shape, DType::F64, &mesh, &[Shard(1)]).unwrap());
        let mask = randn(&[4, 3, 5], DType::F64, &mesh, &[Replicate])?;
        let kept = ones(&[3, 5], DType::Bool, &mesh, &[Replicate])?;
        let masks = AttentionMask { mask: Some(&mask), dropout: Some((&kept, 0.5)) };
        let settings = Attention { causal: true, scale: Some(0.7) };
        let ((out, _), sent, _) = record(|| q.attention_masked(&k, &v, &settings, &masks))?;
        assert_eq!((sent, out.layout()), ([0; 3], q.layout()));
        let (mask, kept) = (mask.full_tensor()?, kept.full_tensor()?);
        let masks = nn::AttentionMask { mask: Some(&mask), dropout: Some((&kept, 0.5)) };
        let [q, k, v] = [q, k, v].map(|x| x.full_tensor().unwrap());
        assert_close(&out, &q.attention_masked(&k, &v, &settings, &masks)?.0, 1e-12);
        Ok(())
    });
}

#[test]
fn dropout_keeps_the_layout_and_in_evaluation_the_values() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        for at in [Replicate, Shard(0), SUM] {
            let x = dtensor::arange(1, 16, 1, DType::F32, &mesh, &[at])?;
            random::manual_seed(5);
            let (y, sent, _) = record(|| x.dropout(0.5, true))?;
            assert_eq!((sent, y.layout()), ([0; 3], x.layout()));
            let (x, y) = (x.to_vec::<f32>()?, y.to_vec::<f32>()?);
            assert!(x.iter().zip(&y).all(|(x, y)| *y == 0.0 || *y == 2.0 * x));
            assert!(y.contains(&0.0) && y.iter().any(|value| *value > 0.0));
            let x = dtensor::arange(1, 16, 1, DType::F32, &mesh, &[at])?;
            assert_eq!(x.dropout(0.4, false)?.to_vec::<f32>()?, x.to_vec::<f32>()?);
            assert!(x.dropout(1.5, true).is_err() && x.dropout(1.5, false).is_err());
        }
        Ok(())
    });
}

#[test]
fn a_convolution_over_cut_spatial_dims_fetches_from_neighbours() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let x = randn(&[2, 4, 16, 5], DType::F64, &mesh, &[Shard(2)])?;
        let weight = randn(&[6, 4, 3, 3], DType::F64, &mesh, &[Replicate])?;
        let bias = randn(&[6], DType::F64, &mesh, &[Replicate])?;
        let settings = Conv { padding: &[1], ..Conv::default() };
        let (y, sent, bytes) = record(|| x.conv2d(&weight, Some(&bias), &settings))?;
        assert_eq!((sent, y.placements()), ([0, 1, 0], &[Shard(2)][..]));
        // A row from either side, but for the two at the ends.
        assert_eq!(bytes, 6 * (2 * 4 * 5) * 8);
        let whole = x.full_tensor()?;
        let local = |weight: &DTensor, bias: &DTensor| {
            whole.conv2d(
                &weight.full_tensor().unwrap(),
                Some(&bias.full_tensor().unwrap()),
                &settings,
            )
        };
        let want = local(&weight, &bias)?;
        assert_close(&y, &want, 1e-12);
        let (grads, sent, _) =
            record(|| x.conv_backward(&weight, &y, &settings, WantedGrads::ALL))?;
        assert_eq!(sent, [0, 2, 0]);
        assert_eq!(grads.input.map(|grad| grad.layout().clone()).as_ref(), Some(x.layout()));
        assert_eq!(grads.weight.map(|grad| grad.placements().to_vec()), Some(vec![SUM]));

        for (of_x, of_weight, of_bias, of_y) in [
            (Shard(0), Replicate, Replicate, Shard(0)),
            (Replicate, Shard(0), Shard(0), Shard(1)),
            (Shard(1), Shard(1), Replicate, SUM),
        ] {
            let x = x.redistribute(&[of_x])?;
            let weight = weight.redistribute(&[of_weight])?;
            let bias = bias.redistribute(&[of_bias])?;
            let (y, sent, _) = record(|| x.conv2d(&weight, Some(&bias), &settings))?;
            assert_eq!((sent, y.placements()), ([0; 3], &[of_y][..]));
            assert_close(&y, &want, 1e-12);
        }
        let settings =
            ConvTranspose { conv: Conv { stride: &[2], ..settings }, output_padding: &[1] };
        let (y, sent, _) = record(|| {
            x.conv_transpose2d(
                &randn(&[4, 2, 3, 3], DType::F64, &mesh, &[Replicate])?,
                None,
                &settings,
            )
        })?;
        assert_eq!(
            (sent, y.placements(), y.shape()),
            ([0, 1, 0], &[Shard(2)][..], &[2, 2, 32, 10][..])
        );
        Ok(())
    });
}

#[test]
fn pooling_over_cut_spatial_dims_is_one_exchange() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let x = randn(&[1, 2, 7, 6], DType::F64, &mesh, &[Shard(3)])?;
        let whole = x.full_tensor()?;
        let max = MaxPool { kernel: &[3], stride: &[2], padding: &[1], ..MaxPool::default() };
        let ((y, indices), sent, _) = record(|| x.max_pool2d(&max))?;
        assert_eq!((sent, indices.placements()), ([0, 1, 0], &[Shard(3)][..]));
        let (want, want_indices) = whole.max_pool2d(&max)?;
        assert_close(&y, &want, 0.0);
        assert_eq!(indices.to_vec::<i64>()?, want_indices.to_vec::<i64>()?);
        let avg = AvgPool {
            kernel: &[3, 2],
            padding: &[1],
            count_include_pad: false,
            ..AvgPool::default()
        };
        let (y, sent, _) = record(|| x.avg_pool2d(&avg))?;
        assert_eq!((sent, y.placements()), ([0, 1, 0], &[Shard(3)][..]));
        assert_close(&y, &whole.avg_pool2d(&avg)?, 1e-12);
        Ok(())
    });
}

#[test]
fn a_window_of_nothing_but_the_smallest_has_the_index_of_its_first_element() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = Tensor::full(&[1, 5], f32::NEG_INFINITY)?;
        let settings =
            MaxPool { kernel: &[3], stride: &[1], padding: &[1], dilation: &[1], ceil_mode: false };
        let (_, want) = x.max_pool1d(&settings)?;
        let cut = distribute_tensor(&x, &mesh, &[Shard(1)])?;
        let (_, indices) = cut.max_pool1d(&settings)?;
        assert_eq!(indices.to_vec::<i64>()?, want.to_vec::<i64>()?);
        Ok(())
    });
}

/// Dims that two axes cut, the inner axis first.
#[test]
fn other_orders_of_cuts_are_ordinary() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        for dim in [0, 1] {
            let shape = [6, 9];
            let order: &[(usize, &[usize])] = &[(dim, &[1, 0])];
            let layout =
                Layout::with_order(&shape, DType::F64, mesh.mesh(), &[Shard(dim); 2], order);
            let layout =
                layout.map_err(|error| Error::Layout { op: "test", source: error.into() })?;
            let x = randn(&shape, DType::F64, &mesh, &[Replicate; 2])?;
            let cut = x.redistribute_layout(&layout)?;
            let whole = x.full_tensor()?;
            assert_close(&cut.softmax(1)?, &whole.softmax(1)?, 1e-12);
            assert_close(
                &cut.layer_norm(&[9], None, None, 0.1)?,
                &whole.layer_norm(&[9], None, None, 0.1)?,
                1e-12,
            );
            assert_close(
                &cut.batch_norm(None, None, 0.1)?.0,
                &whole.batch_norm(None, None, 0.1)?.0,
                1e-12,
            );
            let ids = randint(0, 6, &[4], DType::I64, &mesh, &[Replicate; 2])?;
            assert_close(&cut.embedding(&ids)?, &whole.embedding(&ids.full_tensor()?)?, 0.0);
            let targets = randint(0, 9, &[6], DType::I64, &mesh, &[Replicate; 2])?;
            let (loss, _) = cut.cross_entropy(&targets, &CrossEntropy::default())?;
            let (want, _) =
                whole.cross_entropy(&targets.full_tensor()?, &nn::CrossEntropy::default())?;
            assert_close(&loss, &want, 1e-12);
            let weight = randn(&[2, 6, 3], DType::F64, &mesh, &[Replicate; 2])?;
            let settings = Conv { padding: &[1], ..Conv::default() };
            let want = whole.conv1d(&weight.full_tensor()?, None, &settings)?;
            assert_close(&cut.conv1d(&weight, None, &settings)?, &want, 1e-12);
        }
        Ok(())
    });
}

/// All that communicates in steps of its own.
fn everything(mesh: &DeviceMesh) -> Result<()> {
    let x = zeros(&[8, 12], DType::F32, mesh, &[Shard(1)])?;
    let planes = zeros(&[4, 2, 12], DType::F32, mesh, &[Shard(2)])?;
    let targets = zeros(&[8], DType::I64, mesh, &[Replicate])?;
    assert_eq!(x.softmax(1)?.layout(), x.layout());
    assert_eq!(x.softmax_backward(&x, 1)?.layout(), x.layout());
    assert_eq!(x.layer_norm(&[12], None, None, 0.1)?.layout(), x.layout());
    assert_eq!(x.layer_norm_backward(&x, &[12], None, 0.1)?.0.layout(), x.layout());
    let (loss, log_sums) = x.cross_entropy(&targets, &CrossEntropy::default())?;
    assert_eq!((loss.shape(), log_sums.shape()), (&[][..], &[8][..]));
    let grad = ones(&[], DType::F32, mesh, &[Replicate])?;
    let settings = CrossEntropy::default();
    let dx = x.cross_entropy_backward(&targets, &log_sums, &grad, &settings)?;
    assert_eq!(dx.layout(), x.layout());
    let settings = NllLoss::default();
    assert_eq!(x.nll_loss(&targets, &settings)?.shape(), [0; 0]);
    assert_eq!(x.nll_loss_backward(&targets, &grad, &settings)?.layout(), x.layout());
    let ids = zeros(&[3], DType::I64, mesh, &[Replicate])?;
    let table = x.redistribute(&[Shard(0)])?;
    assert_eq!(table.embedding(&ids)?.placements(), [SUM]);
    let grad = zeros(&[3, 12], DType::F32, mesh, &[Replicate])?;
    assert_eq!(grad.embedding_backward_like(&ids, &table)?.layout(), table.layout());
    let (y, mean, var) = planes.batch_norm(None, None, 0.1)?;
    assert_eq!((y.layout(), mean.shape()), (planes.layout(), &[2][..]));
    let grads = planes.batch_norm_backward(&y, &mean, &var, None, 0.1)?;
    assert_eq!((grads.0.layout(), grads.1.shape()), (planes.layout(), &[2][..]));
    assert_eq!(planes.group_norm(1, None, None, 0.1)?.layout(), planes.layout());
    let weight = zeros(&[3, 2, 3], DType::F32, mesh, &[Replicate])?;
    let settings = Conv { padding: &[1], ..Conv::default() };
    let y = planes.conv1d(&weight, None, &settings)?;
    assert_eq!((y.shape(), y.placements()), (&[4, 3, 12][..], &[Shard(2)][..]));
    let grads = planes.conv_backward(&weight, &y, &settings, WantedGrads::ALL)?;
    assert_eq!(grads.bias.map(|bias| bias.shape().to_vec()), Some(vec![3]));
    let weight = zeros(&[2, 3, 3], DType::F32, mesh, &[Replicate])?;
    let y = planes.conv_transpose1d(&weight, None, &ConvTranspose::default())?;
    assert_eq!((y.shape(), y.placements()), (&[4, 3, 14][..], &[Shard(2)][..]));
    let pool = MaxPool { kernel: &[2], ..MaxPool::default() };
    assert_eq!(planes.max_pool1d(&pool)?.1.shape(), [4, 2, 6]);
    let pool = AvgPool { kernel: &[2], ..AvgPool::default() };
    assert_eq!(planes.avg_pool1d(&pool)?.shape(), [4, 2, 6]);
    let (size, mode) = (InterpolateSize::To(&[5]), InterpolateMode::Nearest);
    let resized = planes.interpolate(&Interpolate { size, mode, align_corners: false })?;
    assert_eq!(resized.shape(), [4, 2, 5]);
    let q = zeros(&[4, 6, 3], DType::F32, mesh, &[Shard(0)])?;
    let k = zeros(&[2, 6, 3], DType::F32, mesh, &[Replicate])?;
    assert_eq!(q.attention(&k, &k, &Attention::default())?.0.layout(), q.layout());
    assert_eq!(x.dropout(0.5, true)?.layout(), x.layout());
    Ok(())
}

#[test]
fn a_fake_world_has_the_same_layouts() -> Result<()> {
    let world =
        World::fake(4, 3).map_err(|error| Error::Comm { op: "fake", source: error.into() })?;
    everything(&DeviceMesh::of_world(&world, "x")?)
}

#[test]
fn a_rank_outside_of_the_mesh_takes_part_harmlessly() {
    spmd(4, |world| {
        let mesh = DeviceMesh::from_mesh(world, "x=3".parse()?)?;
        Ok(everything(&mesh)?)
    });
}

#[test]
fn the_mean_of_planes_that_are_cut_is_a_pending_sum() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let x = randn(&[3, 2, 5, 7], DType::F32, &mesh, &[Shard(2), Shard(3)])?;
        let (y, sent, _) = record(|| x.adaptive_avg_pool2d(&[1]))?;
        assert_eq!((sent, y.placements(), y.shape()), ([0; 3], &[SUM; 2][..], &[3, 2, 1, 1][..]));
        assert_close(&y, &x.full_tensor()?.adaptive_avg_pool2d(&[1])?, 1e-6);
        Ok(())
    });
}
