//! Which operation is blamed for the first number that is none.

use dtensor::{
    DTensor, DType, DeviceMesh, Error, Phase,
    Placement::{self, Partial, Replicate, Shard},
    RedistributeOptions, ReduceOp, Result, Tensor, detect_anomaly, distribute_tensor_from, full,
    module_scope,
};
use dtensor_testing::spmd;

use crate::support::mesh;

const LARGE: f32 = 3e38;

/// Runs a computation on two ranks that goes wrong in a module called `block`: both are told so, and of the same operation.
#[track_caller]
fn blamed(what: &str, phase: Phase, body: fn(&DeviceMesh) -> Result<DTensor>) -> &'static str {
    let blamed = spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let outcome = detect_anomaly(|| body(&mesh));
        let Err(Error::NotFinite { op, module, phase: found }) = outcome else {
            return Err(format!("{what}: {outcome:?}").into());
        };
        assert_eq!((module.as_deref(), found), (Some("block"), phase), "{what}");
        Ok(op)
    });
    assert_eq!(blamed[0], blamed[1], "{what}");
    blamed[0]
}

/// Two elements on each rank.
fn cut(values: [f32; 4], mesh: &DeviceMesh) -> Result<DTensor> {
    distribute_tensor_from(&Tensor::from_slice(&values, &[4])?, mesh, &[Shard(0)], None)
}

fn in_block(body: impl FnOnce() -> Result<DTensor>) -> Result<DTensor> {
    module_scope("block", body)
}

fn total(x: &DTensor) -> Result<DTensor> {
    x.sum(&[], false)
}

#[test]
fn one_bad_shard_is_blamed_on_every_rank() {
    let op = blamed("the root of a negative number", Phase::Forward, |mesh| {
        let x = cut([1.0, 2.0, 3.0, -4.0], mesh)?;
        in_block(|| x.sqrt())?.exp()
    });
    assert_eq!(op, "sqrt");
    blamed("the slope of a root at zero", Phase::Backward, |mesh| {
        let x = cut([1.0, 2.0, 0.0, 4.0], mesh)?.requires_grad()?;
        let y = in_block(|| x.sqrt())?;
        total(&y)?.backward()?;
        Ok(y)
    });
}

#[test]
fn a_nan_is_not_excused_by_an_infinite_operand() {
    spmd(2, |world| {
        // On purpose, as in a mask.
        let x = cut([1.0, 2.0, f32::INFINITY, 4.0], &mesh(world, &[2]))?;
        assert!(detect_anomaly(|| x.mul(2.0)?.neg()?.exp()).is_ok());
        Ok(())
    });
    let op = blamed("infinity less infinity", Phase::Forward, |mesh| {
        let x = cut([1.0, 2.0, f32::INFINITY, 4.0], mesh)?;
        in_block(|| x.sub(&x))
    });
    assert_eq!(op, "sub");
    blamed("a gradient that is zero times infinity", Phase::Backward, |mesh| {
        let x = cut([1.0, 2.0, 0.0, 4.0], mesh)?.requires_grad()?;
        let large = cut([1.0, 2.0, f32::INFINITY, 4.0], mesh)?;
        let y = in_block(|| x.add(1.0)?.mul(&large)?.neg()?.exp())?;
        total(&y)?.backward()?;
        Ok(y)
    });
}

/// Every contribution is a number, and their sum is none.
#[test]
fn a_reduction_that_overflows_is_blamed() {
    const SUM: Placement = Partial(ReduceOp::Sum);
    let op = blamed("a pending sum", Phase::Forward, |mesh| {
        let halves = DTensor::from_local(&Tensor::full(&[3], LARGE)?, mesh, &[SUM])?;
        in_block(|| halves.redistribute(&[Replicate]))
    });
    assert_eq!(op, "redistribute");
    let op = blamed("a pending sum on its way", Phase::Forward, |mesh| {
        let halves = DTensor::from_local(&Tensor::full(&[4], LARGE)?, mesh, &[SUM])?;
        in_block(|| halves.start_redistribute(&[Shard(0)])?.wait())
    });
    assert_eq!(op, "redistribute");
    let op = blamed("contributions to the gradient of a copy", Phase::Backward, |mesh| {
        let weight = full(&[1], 0.0_f32, mesh, &[Replicate])?.requires_grad()?;
        let x = full(&[2], LARGE, mesh, &[Shard(0)])?;
        let y = in_block(|| x.mul(&weight))?;
        total(&y)?.backward()?;
        Ok(y)
    });
    assert_eq!(op, "backward");
}

#[test]
fn a_dtype_that_is_too_small_is_blamed() {
    let op = blamed("values that are sent in f16", Phase::Forward, |mesh| {
        let x = cut([1.0, 2.0, 1e6, 4.0], mesh)?;
        let small = RedistributeOptions::default().forward_dtype(DType::F16);
        in_block(|| x.redistribute_with(&[Replicate], &small))
    });
    assert_eq!(op, "redistribute");
    blamed("gradients that are sent in f16", Phase::Backward, |mesh| {
        let x = cut([1.0, 2.0, 3.0, 4.0], mesh)?.requires_grad()?;
        let small = RedistributeOptions::default().backward_dtype(DType::F16);
        let y = in_block(|| x.redistribute_with(&[Replicate], &small))?.mul(1e6)?;
        total(&y)?.backward()?;
        Ok(y)
    });
}
