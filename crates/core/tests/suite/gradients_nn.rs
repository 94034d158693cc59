//! Gradients of neural networks: what is sent, what is kept, and second derivatives.

use dtensor::{
    BackwardOptions, CommDebug, DTensor, DType, DeviceMesh,
    Placement::{self, Replicate, Shard},
    Result, grad,
    ops::nn::{Attention, Conv, CrossEntropy, Reduction},
    plan::StepKind,
    randint, randn, random,
};
use dtensor_testing::spmd;

use crate::support::mesh;

/// What the gradients of a loss send: numbers of all-reduces, and of all calls.
fn sent(loss: &DTensor) -> Result<([usize; 2], dtensor::Gradients)> {
    let (gradients, comm) = CommDebug::record(|| loss.backward());
    Ok(([comm.calls_of(StepKind::AllReduce), comm.calls()], gradients?))
}

fn leaf(shape: &[usize], mesh: &DeviceMesh, placement: Placement) -> Result<DTensor> {
    randn(shape, DType::F64, mesh, &[placement])?.requires_grad()
}

fn squares(x: &DTensor) -> Result<DTensor> {
    x.mul(x)?.sum(&[], false)
}

/// Activations `[batch, sequence, width]`: data parallel, sequence parallel, and whole as between tensor-parallel layers.
const ACTIVATIONS: [Placement; 3] = [Shard(0), Shard(1), Replicate];

#[test]
fn norms_send_the_gradients_of_their_parameters_alone() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let weight = leaf(&[5], &mesh, Replicate)?;
        let bias = leaf(&[5], &mesh, Replicate)?;
        for placement in ACTIVATIONS {
            let n = usize::from(placement != Replicate);
            let x = leaf(&[2, 4, 5], &mesh, placement)?;
            let y = x.layer_norm(&[5], Some(&weight), Some(&bias), 1e-5)?;
            let (calls, gradients) = sent(&squares(&y)?)?;
            assert_eq!(calls, [2 * n, 2 * n]);
            assert_eq!(gradients.get(&x).unwrap().layout(), x.layout());
            let (calls, _) = sent(&squares(&x.rms_norm(&[5], Some(&weight), 1e-5)?)?)?;
            assert_eq!(calls, [n, n]);
        }
        Ok(())
    });
}

#[test]
fn a_norm_before_a_layer_that_is_cut_reduces_once_for_input_and_parameters() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let [norm, norm_bias] = [leaf(&[6], &mesh, Replicate)?, leaf(&[6], &mesh, Replicate)?];
        let [up, down] = [leaf(&[8, 6], &mesh, Shard(0))?, leaf(&[6, 8], &mesh, Shard(1))?];
        let x = leaf(&[2, 3, 6], &mesh, Replicate)?;
        let (out, forward) = CommDebug::record(|| {
            let normal = x.layer_norm(&[6], Some(&norm), Some(&norm_bias), 1e-5)?;
            let hidden = normal.linear(&up, None)?;
            x.add(&hidden.mul(&hidden)?.linear(&down, None)?)
        });
        assert_eq!(forward.calls(), 1, "{forward}");
        let (calls, gradients) = sent(&squares(&out?)?)?;
        assert_eq!(calls, [1, 1]);
        for leaf in [&norm, &norm_bias, &up, &down, &x] {
            assert_eq!(gradients.get(leaf).unwrap().layout(), leaf.layout());
        }
        Ok(())
    });
}

#[test]
fn a_softmax_sends_one_small_sum_and_only_along_a_dim_that_is_cut() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        for (placement, want) in [(Shard(0), 0), (Shard(1), 0), (Replicate, 0), (Shard(2), 1)] {
            let x = leaf(&[2, 4, 6], &mesh, placement)?;
            for y in [x.softmax(-1)?, x.log_softmax(-1)?] {
                let (calls, gradients) = sent(&squares(&y)?)?;
                assert_eq!(calls, [want; 2], "{placement}");
                assert_eq!(gradients.get(&x).unwrap().layout(), x.layout());
            }
        }
        Ok(())
    });
}

#[test]
fn a_table_sends_nothing_but_the_sum_over_a_batch_that_is_cut() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let cases = [
            (Shard(0), Replicate, 0),
            (Shard(1), Replicate, 0),
            (Replicate, Replicate, 0),
            (Replicate, Shard(0), 1),
            (Replicate, Shard(1), 1),
        ];
        for (of_table, of_ids, want) in cases {
            let table = leaf(&[7, 4], &mesh, of_table)?;
            let ids = randint(0, 7, &[2, 6], DType::I64, &mesh, &[of_ids])?;
            let rows = table.embedding(&ids)?;
            // A pending sum is reduced before it is squared.
            let loss = squares(&rows.settled()?)?;
            let (calls, gradients) = sent(&loss)?;
            assert_eq!(calls, [want; 2], "{of_table} {of_ids}");
            assert_eq!(gradients.get(&table).unwrap().layout(), table.layout());
        }
        Ok(())
    });
}

#[test]
fn a_loss_of_classes_sends_nothing_back() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        // Classes, samples, or nothing is cut: as in a vocabulary-parallel head, and in data parallel training.
        for placement in [Shard(1), Shard(0), Replicate] {
            let logits = leaf(&[6, 5], &mesh, placement)?;
            let of_targets = if placement == Shard(0) { Shard(0) } else { Replicate };
            let targets = randint(0, 5, &[6], DType::I64, &mesh, &[of_targets])?;
            for (label_smoothing, reduction) in
                [(0.0, Reduction::Mean), (0.1, Reduction::Mean), (0.0, Reduction::Sum)]
            {
                let settings = CrossEntropy { label_smoothing, reduction, ..Default::default() };
                let (loss, _) = logits.cross_entropy(&targets, &settings)?;
                let (calls, gradients) = sent(&loss)?;
                assert_eq!(calls, [0, 0], "{placement}");
                assert_eq!(gradients.get(&logits).unwrap().layout(), logits.layout());
            }
        }
        Ok(())
    });
}

#[test]
fn attention_of_cut_batches_or_heads_sends_nothing_back() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        for placement in [Shard(0), Shard(1), Replicate] {
            let queries = leaf(&[2, 4, 3, 2], &mesh, placement)?;
            let [keys, values] = [(); 2].map(|()| leaf(&[2, 2, 3, 2], &mesh, placement));
            let (keys, values) = (keys?, values?);
            let settings = Attention { causal: true, ..Attention::default() };
            let (out, _) = queries.attention(&keys, &values, &settings)?;
            let (calls, gradients) = sent(&squares(&out)?)?;
            assert_eq!(calls, [0, 0], "{placement}");
            for leaf in [&queries, &keys, &values] {
                assert_eq!(gradients.get(leaf).unwrap().layout(), leaf.layout());
            }
        }
        Ok(())
    });
}

#[test]
fn a_convolution_of_a_batch_that_is_cut_reduces_its_parameters_gradients() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let weight = leaf(&[4, 3, 3], &mesh, Replicate)?;
        let bias = leaf(&[4], &mesh, Replicate)?;
        let x = leaf(&[4, 3, 6], &mesh, Shard(0))?;
        let y = x.conv1d(&weight, Some(&bias), &Conv::default())?;
        let (calls, _) = sent(&squares(&y)?)?;
        assert_eq!(calls, [2, 2]);
        // Channels are cut: one rank adds the bias, and no rank needs another for its gradient.
        let (x, weight) =
            (x.detach().redistribute(&[Shard(1)])?, weight.redistribute(&[Shard(1)])?);
        let weight = weight.detach().requires_grad()?;
        let y = x.conv1d(&weight, Some(&bias), &Conv::default())?.settled()?;
        let (calls, gradients) = sent(&squares(&y)?)?;
        assert_eq!(calls, [0, 0]);
        assert_eq!(gradients.get(&weight).unwrap().layout(), weight.layout());
        Ok(())
    });
}

#[test]
fn dropout_draws_its_mask_again_and_leaves_the_random_numbers_as_they_are() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        random::manual_seed(5);
        let x = dtensor::ones(&[7, 4], DType::F64, &mesh, &[Shard(0)])?.requires_grad()?;
        let y = x.dropout(0.3, true)?;
        // Other numbers are drawn in between.
        let _ = randn(&[3], DType::F64, &mesh, &[Replicate])?;
        let before = random::state();
        let (calls, gradients) = sent(&y.sum(&[], false)?)?;
        assert_eq!((calls, random::state()), ([0, 0], before));
        assert_eq!(gradients.get(&x).unwrap().to_vec::<f64>()?, y.to_vec::<f64>()?);
        Ok(())
    });
}

#[test]
fn gradients_of_gradients_are_those_of_finite_differences() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let weights = randn(&[4, 5], DType::F64, &mesh, &[Replicate])?;
        let kernel = randn(&[4, 4, 2], DType::F64, &mesh, &[Replicate])?;
        type Function<'a> = &'a dyn Fn(&DTensor) -> Result<DTensor>;
        let functions: [(&str, Function<'_>); 4] = [
            ("softmax", &|x| x.softmax(-1)),
            ("layer_norm", &|x| x.layer_norm(&[5], None, None, 0.1)),
            ("rms_norm", &|x| x.rms_norm(&[5], None, 0.1)),
            ("conv1d", &|x| {
                let y = x.conv1d(&kernel, None, &Conv { padding: &[1], ..Conv::default() })?;
                y.mul(&y)?.matmul(&dtensor::ones(&[6, 5], DType::F64, &mesh, &[Replicate])?)
            }),
        ];
        let start = randn(&[4, 5], DType::F64, &mesh, &[Shard(1)])?;
        let along = randn(&[4, 5], DType::F64, &mesh, &[Shard(1)])?;
        for (name, function) in functions {
            let slope = |x: &DTensor, options: BackwardOptions| -> Result<DTensor> {
                let loss = function(x)?.mul(&weights)?.sum(&[], false)?;
                Ok(grad(&loss, &[x], &options)?[0].clone().unwrap())
            };
            let x = start.requires_grad()?;
            let first = slope(&x, BackwardOptions::default().create_graph())?;
            let loss = first.mul(&along)?.sum(&[], false)?;
            let second = grad(&loss, &[&x], &BackwardOptions::default())?[0].clone().unwrap();
            let at = |step: f64| -> Result<DTensor> {
                let x = start.add(&along.mul(step)?)?.requires_grad()?;
                slope(&x, BackwardOptions::default())
            };
            let want = at(1e-5)?.sub(&at(-1e-5)?)?.div(2e-5)?;
            let (got, want) = (second.to_vec::<f64>()?, want.to_vec::<f64>()?);
            for (got, want) in got.iter().zip(&want) {
                assert!((got - want).abs() < 1e-6 * want.abs().max(1.0), "{name}: {got} {want}");
            }
        }
        Ok(())
    });
}
