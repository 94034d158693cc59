//! What the sweep does not see of this family: layouts of results, calls and bytes, errors.

use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh, Error,
    Placement::{Partial, Replicate, Shard},
    ReduceOp, World, ones,
    plan::StepKind,
    randn,
};
use dtensor_local::fft::{self, Elements, Norm};
use dtensor_testing::spmd;

use crate::support::mesh;

#[test]
fn a_transform_along_a_cut_dim_moves_the_cut() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let x = randn(&[8, 8], DType::F64, &mesh, &[Shard(1)])?;
        let (spectrum, comm) = CommDebug::record(|| x.rfft(None, -1, Norm::Backward));
        let spectrum = spectrum?;
        assert_eq!((comm.calls(), comm.calls_of(StepKind::Exchange)), (1, 1), "{comm}");
        assert_eq!((spectrum.shape(), spectrum.placements()), (&[8, 5, 2][..], &[Shard(0)][..]));
        let want = fft::rfft(&x.full_tensor()?, None, -1, Norm::Backward)?;
        assert!(spectrum.full_tensor()?.allclose(&want, 1e-12, 1e-12, false)?);
        // Linear: what is pending stays so, and other dims may be cut.
        let pending = ones(&[4, 6, 2], DType::F64, &mesh, &[Partial(ReduceOp::Sum)])?;
        let (spectrum, comm) = CommDebug::record(|| pending.fft(Some(3), 0, Norm::Ortho));
        assert_eq!((comm.calls(), spectrum?.placements()), (0, &[Partial(ReduceOp::Sum)][..]));
        Ok(())
    });
}

#[test]
fn a_transform_over_all_dims_gathers_nothing() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        for (dim, exchanges) in [(0, 1), (1, 2)] {
            let x = randn(&[8, 12], DType::F64, &mesh, &[Shard(dim)])?;
            let (spectrum, comm) = CommDebug::record(|| x.rfft2(None, [-2, -1], Norm::Backward));
            let spectrum = spectrum?;
            let calls = (comm.calls(), comm.calls_of(StepKind::Exchange));
            assert_eq!(calls, (exchanges, exchanges), "{comm}");
            let whole = x.full_tensor()?;
            let want = fft::rfft2(&whole, None, [-2, -1], Norm::Backward)?;
            assert!(spectrum.full_tensor()?.allclose(&want, 1e-12, 1e-12, false)?);
            let (back, comm) = CommDebug::record(|| spectrum.irfftn(None, None, Norm::Backward));
            assert!(back?.full_tensor()?.allclose(&whole, 1e-12, 1e-12, false)?);
            assert_eq!(comm.calls_of(StepKind::AllGather), 0, "{comm}");
        }
        Ok(())
    });
}

#[test]
fn a_shift_along_cut_dims_is_one_exchange() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let x = randn(&[5, 7], DType::F32, &mesh, &[Shard(0), Shard(1)])?;
        let (shifted, comm) = CommDebug::record(|| x.fftshift(Elements::Real, None));
        let shifted = shifted?;
        assert_eq!((comm.calls(), comm.calls_of(StepKind::Exchange)), (1, 1), "{comm}");
        assert_eq!(shifted.layout(), x.layout());
        let want = fft::fftshift(&x.full_tensor()?, Elements::Real, None)?;
        assert!(shifted.full_tensor()?.equal(&want)?);
        assert!(shifted.ifftshift(Elements::Real, None)?.equal(&x)?);
        Ok(())
    });
}

#[test]
fn frequencies_are_the_same_in_every_layout() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        for placement in [Replicate, Shard(0), Partial(ReduceOp::Sum)] {
            let of = |frequencies: DTensor| frequencies.to_vec::<f64>();
            let all = of(DTensor::fftfreq(6, 0.5, DType::F64, &mesh, &[placement])?)?;
            assert_eq!(all, fft::fftfreq(6, 0.5, DType::F64)?.to_vec::<f64>()?);
            let half = of(DTensor::rfftfreq(5, 0.1, DType::F64, &mesh, &[placement])?)?;
            assert_eq!(half, fft::rfftfreq(5, 0.1, DType::F64)?.to_vec::<f64>()?);
        }
        Ok(())
    });
}

#[test]
fn mistakes_are_found_on_every_rank_alike_and_fake_worlds_have_shapes() {
    let errors = spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = ones(&[4, 3], DType::F32, &mesh, &[Shard(0)])?;
        let errors = [
            x.fft(None, 0, Norm::Backward).unwrap_err(),
            x.rfft(Some(0), 0, Norm::Backward).unwrap_err(),
            x.rfftn(Some(&[2]), Some(&[0, 1]), Norm::Backward).unwrap_err(),
            x.fftshift(Elements::Real, Some(&[2])).unwrap_err(),
        ];
        assert!(errors.iter().all(|error| matches!(error, Error::Local(_))), "{errors:?}");
        Ok(errors)
    });
    assert_eq!(errors[0], errors[1]);
    let world = World::fake(64, 63).unwrap();
    let mesh = DeviceMesh::of_world(&world, "x").unwrap();
    let x = ones(&[128, 128], DType::F32, &mesh, &[Shard(0)]).unwrap();
    let y = x.rfft2(None, [0, 1], Norm::Backward).unwrap();
    let y = y.fftshift(Elements::Complex, Some(&[1])).unwrap();
    assert_eq!((y.shape(), y.to_local().is_meta()), (&[128, 65, 2][..], true));
}
