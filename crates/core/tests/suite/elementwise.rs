//! What the sweep does not see of this family: layouts of results, calls and bytes, errors.

use dtensor::{
    CommDebug, DType, DeviceMesh, Error,
    Placement::{Partial, Replicate, Shard},
    ReduceOp, Tensor, World, distribute_tensor_from, full, ones,
    plan::StepKind,
    randn, zeros,
};
use dtensor_testing::spmd;

use crate::support::mesh;

#[test]
fn a_cast_keeps_a_pending_sum_only_if_every_value_fits() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let sum = Partial(ReduceOp::Sum);
        let pending = |dtype, reduce| ones(&[3], dtype, &mesh, &[reduce]);
        for (from, to, stays) in [
            (DType::Bf16, DType::F32, true),
            (DType::F16, DType::F64, true),
            (DType::F32, DType::Bf16, false),
            (DType::F16, DType::Bf16, false),
            (DType::F32, DType::I64, false),
            (DType::I32, DType::I64, false),
            (DType::I64, DType::F64, false),
        ] {
            let (cast, comm) = CommDebug::record(|| pending(from, sum)?.to_dtype(to));
            let cast = cast?;
            let want = if stays { (true, 0) } else { (false, 1) };
            assert_eq!((cast.layout().is_partial(), comm.calls()), want, "{from} to {to}");
            assert_eq!(cast.to_dtype(DType::F64)?.to_vec::<f64>()?, [1.0; 3]);
        }
        // The largest stays the largest when it is rounded, and may stay pending.
        let max = Partial(ReduceOp::Max);
        assert_eq!(pending(DType::F32, max)?.to_dtype(DType::Bf16)?.placements(), [max]);
        Ok(())
    });
}

#[test]
fn a_cast_of_pending_integers_wraps_as_on_one_device() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        // The sum wraps around in u8; wider, it would not.
        let local = Tensor::full(&[2], 200_u8)?;
        let x = dtensor::DTensor::from_local(&local, &mesh, &[Partial(ReduceOp::Sum)])?;
        assert_eq!(x.to_dtype(DType::I64)?.to_vec::<i64>()?, [144; 2]);
        Ok(())
    });
}

#[test]
fn what_is_chosen_by_a_condition_may_stay_pending() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let sum = Partial(ReduceOp::Sum);
        let [a, b] = [1.0_f32, 2.0].map(|value| full(&[3], value, &mesh, &[sum]));
        let (a, b) = (a?, b?);
        let condition = Tensor::from_vec(vec![true, false, true], &[3])?;
        let condition = distribute_tensor_from(&condition, &mesh, &[Replicate], None)?;
        let (chosen, comm) = CommDebug::record(|| condition.where_self(&a, &b));
        let chosen = chosen?;
        assert_eq!((chosen.placements(), comm.calls()), (&[sum][..], 0));
        assert_eq!(chosen.to_vec::<f32>()?, [1.0, 2.0, 1.0]);
        // A number that is not 0 would be counted once per rank.
        let filled = |value: f64| a.masked_fill(&condition, value);
        assert_eq!(filled(0.0)?.placements(), [sum]);
        assert_eq!(filled(0.0)?.to_vec::<f32>()?, [0.0, 1.0, 0.0]);
        assert!(!filled(5.0)?.layout().is_partial());
        assert_eq!(filled(5.0)?.to_vec::<f32>()?, [5.0, 1.0, 5.0]);
        Ok(())
    });
}

#[test]
fn an_update_of_pending_sums_stays_pending() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let sum = Partial(ReduceOp::Sum);
        let x = full(&[3], 2.0_f64, &mesh, &[sum])?;
        let whole = full(&[3], 4.0_f64, &mesh, &[Replicate])?;
        let (results, comm) = CommDebug::record(|| {
            Ok::<_, Error>([
                x.addcmul(&x, &whole, 0.5)?,
                x.addcdiv(&x, &whole, 2.0)?,
                x.lerp(&x.mul(3.0)?, 0.25)?,
            ])
        });
        assert_eq!(comm.calls(), 0, "{comm}");
        let want = [6.0, 3.0, 3.0];
        for (result, want) in results?.iter().zip(want) {
            assert_eq!(result.placements(), [sum]);
            assert_eq!(result.to_vec::<f64>()?, [want; 3]);
        }
        // A factor that is infinite makes contributions that do not add up.
        assert!(!x.addcmul(&x, &whole, f64::INFINITY)?.layout().is_partial());
        Ok(())
    });
}

#[test]
fn equality_is_agreed_on_by_the_ranks_of_the_mesh_alone() {
    spmd(3, |world| {
        let two = DeviceMesh::from_mesh(world, "x=2".parse()?)?;
        let x = randn(&[5, 2], DType::F32, &two, &[Shard(0)])?;
        if world.rank() == 2 {
            // Not on the mesh: it need not call, and if it does, nobody waits for it.
            assert!(matches!(x.equal(&x), Err(Error::NotOnMesh { op: "equal", rank: 2, .. })));
            return Ok(());
        }
        let (equal, comm) = CommDebug::record(|| x.equal(&x));
        assert!(equal?);
        assert_eq!((comm.calls(), comm.calls_of(StepKind::AllReduce)), (1, 1), "{comm}");
        // Different on the second rank only.
        let local = x.to_local().add_scalar(1e-7 + world.rank() as f64)?;
        let other = dtensor::DTensor::from_local_with_shape(&local, &two, &[Shard(0)], &[5, 2])?;
        assert!(!x.equal(&other)? && !x.allclose(&other, 1e-5, 1e-6, false)?);
        assert!(x.allclose(&x.add(1e-7)?, 1e-5, 1e-6, false)?);
        let nan = x.full_like(f64::NAN)?;
        assert!(!nan.equal(&nan)? && !nan.allclose(&nan, 0.1, 0.1, false)?);
        assert!(nan.allclose(&nan, 0.1, 0.1, true)?);
        // Other shapes are not equal, and nothing is sent for that.
        let (equal, comm) = CommDebug::record(|| x.equal(&x.sum(&[0], false)?));
        assert!(!equal? && comm.calls() == 0);
        assert!(x.allclose(&x, -1.0, 0.0, false).is_err());
        Ok(())
    });
    let world = World::fake(4, 0).unwrap();
    let mesh = DeviceMesh::of_world(&world, "x").unwrap();
    let x = zeros(&[4], DType::F32, &mesh, &[Shard(0)]).unwrap();
    assert!(matches!(x.equal(&x), Err(Error::Local(_))));
}

#[test]
fn mistakes_are_found_on_every_rank_alike() {
    let errors = spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = ones(&[4], DType::F32, &mesh, &[Shard(0)])?;
        let long = ones(&[3], DType::F32, &mesh, &[Shard(0)])?;
        let errors = [
            x.where_self(&x, &x).unwrap_err(),
            x.masked_fill(&x, 1.0).unwrap_err(),
            x.bitwise_and(&x).unwrap_err(),
            x.lerp(&long, 0.5).unwrap_err(),
            x.clamp_tensor(&x, &long).unwrap_err(),
        ];
        assert!(errors.iter().all(|error| matches!(error, Error::Local(_))), "{errors:?}");
        Ok(errors)
    });
    assert_eq!(errors[0], errors[1]);
}
