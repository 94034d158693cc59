//! What gradients are reduced in: bytes that are sent, and how they are rounded.

use dtensor::{
    BackwardOptions, CommDebug, DType, DeviceMesh, Gradients,
    Placement::{self, Replicate, Shard},
};
use dtensor_nn::{Forward, FullyShardOptions, Linear, Result, fully_shard, replicate};
use dtensor_testing::spmd;

use crate::support::{Shards, assert_close, fill, mesh, tensor};

/// How a gradient is come by.
#[derive(Clone, Copy, Debug)]
enum Walk {
    AtOnce,
    /// Of two halves of a batch that are added before anything is sent.
    Accumulated,
}

/// The gradient of a weight, and the bytes that were sent on the way back.
fn gradient(
    shards: (Shards, &str),
    reduce: Option<DType>,
    (walk, batch): (Walk, &[Placement]),
    mesh: &DeviceMesh,
) -> Result<(Vec<f64>, u128)> {
    let mut layer = Linear::new(256, 64, false, DType::F32, mesh)?;
    fill(&layer)?;
    let mut options = FullyShardOptions::default();
    options.reduce_dtype = reduce;
    (shards.0)(&mut layer, shards.1, &options)?;
    let loss = |seed: f64| {
        let x = tensor(&[8, 256], seed, DType::F32, mesh, batch);
        layer.call(&x)?.square()?.sum(&[], false)
    };
    let losses = [loss(1.0)?, loss(2.0)?];
    let (gradients, comm) = CommDebug::record(|| match walk {
        Walk::AtOnce => losses[0].backward(),
        Walk::Accumulated => {
            let options = BackwardOptions::default().unreduced();
            let mut sum = Gradients::default();
            for loss in &losses {
                let (one, comm) = CommDebug::record(|| loss.backward_with(&options));
                assert_eq!(comm.calls(), 0, "nothing is sent on the way");
                sum.accumulate(one?)?;
            }
            sum.reduce()?;
            Ok(sum)
        }
    });
    let gradients = gradients?;
    let gradient = gradients.get(&layer.weight.value()).unwrap();
    assert_eq!((gradient.dtype(), gradient.layout()), (DType::F32, &layer.weight.layout()));
    Ok((gradient.to_dtype(DType::F64)?.to_vec::<f64>()?, comm.bytes()))
}

/// Whether numbers are what they would be after a cast.
fn is_rounded(values: &[f64]) -> bool {
    values.iter().all(|value| ((*value as f32).to_bits() & 0xFFFF) == 0)
}

/// Whichever axes a parameter is cut on, and whenever its gradient is sent.
#[test]
fn gradients_are_reduced_in_the_dtype_that_was_asked_for() {
    const SHARDED: (Shards, &str) = (fully_shard, "x");
    const COPIES: (Shards, &str) = (replicate, "x");
    let cases = [
        (&[("x", 2)][..], SHARDED),
        (&[("x", 2)], COPIES),
        // Reduced on one axis to a part, and on the other to copies of it.
        (&[("y", 2), ("x", 2)], SHARDED),
        (&[("x", 2), ("y", 2)], SHARDED),
    ];
    for (axes, shards) in cases {
        for walk in [Walk::AtOnce, Walk::Accumulated] {
            spmd(axes.iter().map(|(_, size)| size).product(), |world| {
                let mesh = mesh(world, axes);
                let batch = vec![Shard(0); axes.len()];
                let run = |reduce| gradient(shards, reduce, (walk, &batch), &mesh);
                let what = format!("{axes:?} {walk:?}");
                let (want, full) = run(None)?;
                let (got, half) = run(Some(DType::Bf16))?;
                assert!(full > 0, "{what}");
                assert_eq!(half, full / 2, "{what}");
                assert!(is_rounded(&got) && !is_rounded(&want), "{what}");
                assert_close(&got, &want, 0.02, &what);
                Ok(())
            });
        }
    }
}

/// Every rank sees the whole batch, and so has the whole gradient.
#[test]
fn what_is_not_sent_is_not_rounded() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        for walk in [Walk::AtOnce, Walk::Accumulated] {
            let run = |reduce| gradient((replicate, "x"), reduce, (walk, &[Replicate]), &mesh);
            let ((want, none), (got, sent)) = (run(None)?, run(Some(DType::Bf16))?);
            assert_eq!((none, sent), (0, 0), "{walk:?}");
            assert_eq!(got, want, "{walk:?}");
        }
        Ok(())
    });
}
