//! What PyTorch's ShardedTensor gets wrong, done right; one test each.

use dtensor_sharded::{
    DType, Device, Error, ProcessGroup, Shard, ShardedTensor, Tensor, full, shard_tensor,
};
use dtensor_testing::spmd;

use crate::support::{boxed, boxes, chunks, cut, numbered, same_error};

/// D1.
#[test]
fn tensors_with_empty_chunks_can_be_used_like_any_other() {
    spmd(4, |world| {
        for size in [5, 2, 1, 9] {
            let mut x = cut(&[size, 2], &chunks(0, &[0, 1, 2, 3]), world)?;
            assert!(x.metadata().shards_metadata.iter().all(|shard| shard.range(0).end <= size));
            assert!(x.clone().detach().equal(&x)?);
            assert_eq!(x.to_dtype(DType::F64)?.size(), [size, 2]);
            assert_eq!(x.gather(0)?.is_some(), world.rank() == 0);
            x.reshard(chunks(1, &[0, 1, 2, 3]))?;
            assert_eq!(x.full_tensor()?.to_vec::<f32>()?, numbered(&[size, 2]).to_vec::<f32>()?);
        }
        // Metadata of the peer, whose empty chunks begin beyond the end, are taken as well.
        let mut metadata = chunks(0, &[0, 1, 2, 3]).build_metadata(&[5, 2], &DType::F32.into())?;
        metadata.shards_metadata[3] = boxed(&[6, 0], &[0, 2], 3);
        let own = metadata.shards_metadata[world.rank()].clone();
        let shard = Shard::new(Tensor::full(own.sizes(), 1.0_f32)?, own)?;
        let x = ShardedTensor::from_local_shards_and_metadata(vec![shard], metadata, None, world)?;
        assert_eq!(x.metadata().shards_metadata[3].offsets(), [5, 0]);
        assert_eq!(x.full_tensor()?.to_vec::<f32>()?, [1.0; 10]);
        Ok(())
    });
}

/// D2.
#[test]
fn cycles_of_placements_are_resharded() {
    spmd(4, |world| {
        let orders =
            [[0, 1, 2, 3], [1, 2, 3, 0], [2, 0, 3, 1], [3, 0, 1, 2], [1, 2, 0, 3], [1, 0, 3, 2]];
        for from in &orders {
            for to in &orders {
                let mut x = cut(&[10, 3], &chunks(0, from), world)?;
                x.reshard(chunks(0, to))?;
                let position = to.iter().position(|rank| *rank == world.rank()).unwrap();
                assert_eq!(x.local_tensor()?.shape(), [[3, 3, 3, 1][position], 3]);
                assert_eq!(x.full_tensor()?.to_vec::<f32>()?, numbered(&[10, 3]).to_vec::<f32>()?);
            }
        }
        Ok(())
    });
}

/// D3.
#[test]
fn sub_groups_gather_reshard_and_count_rows_by_their_own_ranks() {
    spmd(4, |world| {
        let group = ProcessGroup::new(world, &[2, 3])?;
        let mut x = cut(&[5, 4], &chunks(0, &[2, 3]), &group)?;
        let want = numbered(&[5, 4]).to_vec::<f32>()?;
        for dst in [0, 1] {
            let whole = x.gather(dst)?;
            assert_eq!(whole.is_some(), world.rank() == dst + 2);
            assert!(whole.is_none_or(|whole| whole.to_vec::<f32>().unwrap() == want));
        }
        x.reshard(chunks(1, &[3, 2]))?;
        // Outside of the group nothing is wrong either.
        assert_eq!(x.device().to_string(), "cpu");
        if let Some(rank) = group.rank() {
            assert_eq!(x.full_tensor()?.to_vec::<f32>()?, want);
            let rows = Tensor::full(&[rank + 1, 2], 1.0_f32)?;
            let rows = Shard::from_tensor_and_offsets(rows, &[0, 0], world.rank())?;
            let y = ShardedTensor::from_local_rows(vec![rows], &group)?;
            assert_eq!(
                (y.size(), y.metadata().shards_metadata[1].offsets()),
                (&[3, 2][..], &[1, 0][..])
            );
        }
        Ok(())
    });
}

/// D4.
#[test]
fn gathering_keeps_large_integers_and_doubles() {
    spmd(2, |world| {
        let large = (1_i64 << 53) + 1;
        let x = full(chunks(0, &[0, 1]), &[3], large, DType::I64, world)?;
        assert!(x.gather(0)?.is_none_or(|whole| whole.to_vec::<i64>().unwrap() == [large; 3]));
        let mut out = Tensor::zeros(&[3], DType::I64)?;
        x.gather_into(1, (world.rank() == 1).then_some(&mut out), None)?;
        assert_eq!(out.to_vec::<i64>()?, [if world.rank() == 1 { large } else { 0 }; 3]);
        let fine = 1.0 + f64::EPSILON;
        let x = full(chunks(0, &[1, 0]), &[3], fine, DType::F64, world)?;
        assert!(x.gather(0)?.is_none_or(|whole| whole.to_vec::<f64>().unwrap() == [fine; 3]));
        Ok(())
    });
}

/// D5.
#[test]
fn uneven_tensors_are_resharded_across_dims() {
    spmd(4, |world| {
        for size in [[13, 21], [5, 7], [3, 2], [17, 1]] {
            let mut x = cut(&size, &chunks(0, &[0, 1, 2, 3]), world)?;
            x.reshard(chunks(1, &[0, 1, 2, 3]))?;
            assert_eq!(x.full_tensor()?.to_vec::<f32>()?, numbered(&size).to_vec::<f32>()?);
        }
        Ok(())
    });
}

/// D6.
#[test]
fn tensors_like_another_have_its_dtype_group_and_gradients() {
    spmd(4, |world| {
        let group = ProcessGroup::new(world, &[1, 2])?;
        let mut x = full(chunks(0, &[1, 2]), &[5, 2], 3.0, DType::F64, &group)?;
        x.set_requires_grad(true)?;
        let like = [
            x.zeros_like()?,
            x.ones_like()?,
            x.full_like(7)?,
            x.empty_like()?,
            x.rand_like()?,
            x.randn_like()?,
        ];
        for y in &like {
            assert_eq!((y.dtype(), y.requires_grad(), y.size()), (DType::F64, true, x.size()));
            assert!(y.process_group().is_same(&group));
            assert_eq!(y.metadata().shards_metadata, x.metadata().shards_metadata);
        }
        if group.rank().is_some() {
            assert_eq!(like[2].full_tensor()?.to_vec::<f64>()?, [7.0; 10]);
        }
        // A cast is a cast.
        assert_eq!(x.to(None, Some(DType::F32))?.dtype(), DType::F32);
        Ok(())
    });
}

/// D6: `module.to(dtype)` does nothing there; here it is what parameters in any cut can do.
#[test]
fn parameters_in_any_cut_can_be_cast() {
    let list = boxes(&[(&[0, 0], &[4, 1], 1), (&[0, 1], &[1, 2], 0), (&[1, 1], &[3, 2], 1)]);
    for spec in [chunks(0, &[1, 0]), chunks(0, &[0, 1, 0]), list] {
        spmd(2, |world| {
            let mut x = cut(&[4, 3], &spec, world)?;
            x.set_requires_grad(true)?;
            let y = x.to_dtype(DType::F64)?;
            assert!(y.requires_grad() && y.is_leaf());
            assert_eq!(y.metadata().shards_metadata, x.metadata().shards_metadata);
            let want = numbered(&[4, 3]).to_dtype(DType::F64)?;
            assert!(y.full_tensor()?.equal(&want)?);
            assert!(x.to_dtype(DType::I32).is_err(), "integers have no gradients");
            // Without values there is nothing to pass back either.
            let meta = x.to_device(Device::META)?.to_dtype(DType::F64)?;
            assert!(meta.requires_grad() && meta.dtype() == DType::F64);
            Ok(())
        });
    }
    // In the order of the ranks it is a layout, and gradients pass back.
    spmd(2, |world| {
        let mut x = cut(&[4, 3], &chunks(0, &[0, 1]), world)?;
        x.set_requires_grad(true)?;
        assert!(!x.to_dtype(DType::F64)?.is_leaf());
        assert!(x.to_device(Device::META)?.to_dtype(DType::F64)?.requires_grad());
        Ok(())
    });
}

/// D7.
#[test]
fn tensors_on_cpus_are_compared() {
    spmd(3, |world| {
        let x = cut(&[5, 2], &chunks(0, &[0, 1, 2]), world)?;
        assert!(x.equal(&x.clone())? && x.allclose(&x.clone(), 1e-5, 1e-8, false)?);
        // Different on one rank only, and the answer is the same on all.
        let mut y = numbered(&[5, 2]);
        y.as_mut_slice::<f32>()?[9] += 1e-4;
        let y = shard_tensor(&y, chunks(0, &[0, 1, 2]), 0, world)?;
        assert!(!x.equal(&y)?);
        assert!(x.allclose(&y, 1e-4, 1e-8, false)? && !x.allclose(&y, 1e-7, 1e-8, false)?);
        // Another cut, size, dtype, placement, or wish for gradients.
        let mut wants = x.clone();
        wants.set_requires_grad(true)?;
        let others = [
            cut(&[5, 2], &chunks(1, &[0, 1, 2]), world)?,
            cut(&[5, 3], &chunks(0, &[0, 1, 2]), world)?,
            x.to_dtype(DType::F64)?,
            cut(&[5, 2], &chunks(0, &[1, 0, 2]), world)?,
            cut(&[5, 2], &chunks(0, &[0, 1]), world)?,
            wants,
        ];
        for other in &others {
            assert!(!x.equal(other)? && !x.allclose(other, 1.0, 1.0, true)?);
        }
        let pair = ProcessGroup::new(world, &[0, 1, 2])?;
        assert!(x.equal(&cut(&[5, 2], &chunks(0, &[0, 1, 2]), &pair)?)?);
        let turned = ProcessGroup::new(world, &[2, 1, 0])?;
        let elsewhere = full(chunks(0, &[0, 1, 2]), &[5, 2], 0, DType::F32, &turned)?;
        assert!(matches!(x.equal(&elsewhere), Err(Error::MixedGroups { .. })));
        let nan = full(chunks(0, &[0, 1, 2]), &[3], f64::NAN, DType::F32, world)?;
        assert!(!nan.equal(&nan.clone())? && nan.allclose(&nan.clone(), 0.0, 0.0, true)?);
        Ok(())
    });
}

/// D13.
#[test]
fn shards_that_the_metadata_do_not_have_are_refused() {
    spmd(2, |world| {
        let metadata = chunks(0, &[0, 1]).build_metadata(&[4, 2], &DType::F32.into())?;
        let elsewhere = boxed(&[1, 0], &[2, 2], world.rank());
        let shard = Shard::new(Tensor::zeros(&[2, 2], DType::F32)?, elsewhere.clone())?;
        let error =
            ShardedTensor::from_local_shards_and_metadata(vec![shard], metadata, None, world)
                .unwrap_err();
        let want = Error::UnknownShard {
            op: "from_local_shards_and_metadata".into(),
            rank: world.rank(),
            shard: Box::new(elsewhere),
        };
        assert_eq!(error, want);
        Ok(())
    });
    // A copy between tensors with different numbers of shards, also where this rank has as many in both.
    let error = same_error(2, |world| {
        let mut x = cut(&[6, 2], &chunks(0, &[0, 1]), world)?;
        x.copy_from(&cut(&[6, 2], &chunks(0, &[0, 1, 1]), world)?)
    });
    assert_eq!(error, Error::DifferentShards { op: "copy_from".into() });
    spmd(2, |world| {
        let mut x = cut(&[6, 2], &chunks(0, &[0, 1]), world)?.to_dtype(DType::F64)?;
        x.fill_constant(0)?;
        x.copy_from(&cut(&[6, 2], &chunks(0, &[0, 1]), world)?)?;
        assert_eq!((x.dtype(), x.full_tensor()?.to_vec::<f64>()?[11]), (DType::F64, 11.0));
        Ok(())
    });
}

/// D14.
#[test]
fn specs_that_do_not_name_every_rank_leave_nobody_waiting() {
    spmd(4, |world| {
        for src in 0..4 {
            let mine = Tensor::full(&[4, 2], world.rank() as f32)?;
            let x = shard_tensor(&mine, chunks(0, &[1, 3]), src, world)?;
            assert_eq!(x.local_shards().len(), world.rank() % 2);
            assert_eq!(x.full_tensor()?.to_vec::<f32>()?, [src as f32; 8]);
        }
        Ok(())
    });
    // And when one rank is wrong, all are told instead of waiting for it.
    let error = same_error(4, |world| {
        let dim = if world.rank() == 2 { 7 } else { 0 };
        shard_tensor(&numbered(&[4]), chunks(dim, &[1, 3]), 0, world)
    });
    assert!(matches!(error, Error::Rank { rank: 2, .. }));
    assert!(matches!(error.cause(), Error::DimOutOfRange { dim: 7, .. }));
}
