//! The whole tensor.

use dtensor_sharded::{DType, Error, ProcessGroup, Tensor, shard_tensor};
use dtensor_testing::spmd;

use crate::support::{Grid, boxes, chunks, cut, numbered, same_error};

#[test]
fn every_spec_gathers_on_every_destination() {
    let specs = [
        chunks(0, &[0, 1, 2, 3]),
        chunks(1, &[2, 0, 3, 1]),
        chunks(0, &[0, 0, 1, 1, 2]),
        Grid::over_ranks(2, [3, 1, 2, 0]).into(),
        // Two, two, one and no shards per rank.
        boxes(&[
            (&[0, 0], &[2, 6], 0),
            (&[2, 0], &[3, 2], 1),
            (&[2, 2], &[3, 4], 0),
            (&[5, 0], &[1, 3], 1),
            (&[5, 3], &[1, 3], 2),
        ]),
    ];
    spmd(4, |world| {
        let want = numbered(&[6, 6]).to_vec::<f32>()?;
        for spec in &specs {
            let x = cut(&[6, 6], spec, world)?;
            for dst in 0..4 {
                match x.gather(dst)? {
                    Some(whole) => {
                        assert_eq!((world.rank(), whole.to_vec::<f32>()?), (dst, want.clone()))
                    }
                    None => assert_ne!(world.rank(), dst),
                }
            }
            assert_eq!(x.full_tensor()?.to_vec::<f32>()?, want);
        }
        Ok(())
    });
}

#[test]
fn a_tensor_is_gathered_into_one_that_is_there() {
    spmd(3, |world| {
        let x = cut(&[5, 2], &chunks(0, &[1, 2, 0]), world)?;
        let mut out = Tensor::zeros(&[5, 2], DType::F64)?;
        let into = (world.rank() == 1).then_some(&mut out);
        x.gather_into(1, into, None)?;
        if world.rank() == 1 {
            assert_eq!(out.to_vec::<f64>()?, (0..10).map(f64::from).collect::<Vec<_>>());
        }
        // Sent as halves.
        let halves = x.gather_as(0, DType::F16)?;
        assert_eq!(halves.map(|whole| whole.dtype()), (world.rank() == 0).then_some(DType::F16));
        Ok(())
    });
}

#[test]
fn a_missing_or_wrong_destination_is_the_same_error_on_all() {
    let gathered = |given: fn(usize) -> Option<Tensor>| {
        same_error(3, |world| {
            let x = cut(&[4], &chunks(0, &[0, 1]), world)?;
            let mut out = given(world.rank());
            x.gather_into(1, out.as_mut(), None)
        })
    };
    assert_eq!(*gathered(|_| None).cause(), Error::OutMissing { dst: 1 });
    let error = gathered(|rank| (rank > 0).then(|| Tensor::zeros(&[4], DType::F32).unwrap()));
    assert_eq!(*error.cause(), Error::OutUnexpected { rank: 2, dst: 1 });
    let error = gathered(|rank| (rank == 1).then(|| Tensor::zeros(&[5], DType::F32).unwrap()));
    assert_eq!(*error.cause(), Error::OutShape { got: [5].into(), want: [4].into() });
    // What is written there would be lost, and nobody would know.
    let error = gathered(|rank| (rank == 1).then(|| Tensor::meta(&[4], DType::F32).unwrap()));
    assert!(matches!(error.cause(), Error::Unsupported { .. }), "{error}");
    let error = same_error(2, |world| cut(&[4], &chunks(0, &[0, 1]), world)?.gather(2));
    assert_eq!(error, Error::NoSuchGroupRank { op: "gather".into(), rank: 2, size: 2 });
}

#[test]
fn who_is_not_in_the_group_gets_nothing_and_waits_for_nobody() {
    spmd(3, |world| {
        let group = ProcessGroup::new(world, &[0, 2])?;
        let x = cut(&[4], &chunks(0, &[0, 2]), &group)?;
        let whole = x.gather(1)?;
        assert_eq!(whole.is_some(), world.rank() == 2);
        x.gather_into(
            0,
            (world.rank() == 0).then_some(&mut Tensor::zeros(&[4], DType::F32)?),
            None,
        )?;
        match world.rank() {
            1 => assert!(matches!(x.full_tensor(), Err(Error::NotAMember { rank: 1, .. }))),
            _ => assert_eq!(x.full_tensor()?.to_vec::<f32>()?, [0., 1., 2., 3.]),
        }
        Ok(())
    });
}

#[test]
fn tensors_of_other_dtypes_and_without_elements_are_gathered() {
    spmd(2, |world| {
        for dtype in DType::ALL {
            let values = numbered(&[3, 3]).to_dtype(dtype)?;
            let x = shard_tensor(&values, chunks(1, &[1, 0]), 0, world)?;
            assert!(x.full_tensor()?.equal(&values)?, "{dtype}");
        }
        for size in [&[0_usize, 3][..], &[3, 0]] {
            let x = cut(size, &chunks(0, &[0, 1]), world)?;
            assert_eq!(x.full_tensor()?.shape(), size);
        }
        let x = cut(&[], &boxes(&[(&[], &[], 1)]), world)?;
        assert_eq!(x.full_tensor()?.to_vec::<f32>()?, [0.0]);
        Ok(())
    });
}

#[test]
fn elements_are_sent_in_the_dtype_that_is_asked_for() {
    spmd(2, |world| {
        // What only doubles can tell from 1 is lost if floats are asked for, and only then.
        let fine = vec![0.5_f64, 1.0 + f64::EPSILON, -3.25];
        let x = shard_tensor(&Tensor::from_slice(&fine, &[3])?, chunks(0, &[1, 0]), 0, world)?;
        let coarse = vec![0.5, 1.0, -3.25];
        for dst in 0..2 {
            let is_here = world.rank() == dst;
            let floats = x.gather_as(dst, DType::F32)?;
            assert_eq!(floats.is_some(), is_here);
            if let Some(floats) = floats {
                assert_eq!(floats.to_vec::<f32>()?, [0.5, 1.0, -3.25]);
            }
            for (dtype, want) in [(None, &fine), (Some(DType::F32), &coarse)] {
                let mut out = Tensor::zeros(&[3], DType::F64)?;
                x.gather_into(dst, is_here.then_some(&mut out), dtype)?;
                let want = if is_here { want.clone() } else { vec![0.0; 3] };
                assert_eq!(out.to_vec::<f64>()?, want, "{dtype:?}");
            }
        }
        Ok(())
    });
}
