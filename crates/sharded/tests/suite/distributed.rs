//! To distributed tensors and back.

use dtensor::{
    DeviceMesh, Layout,
    Placement::{Replicate, Shard},
    arange,
};
use dtensor_sharded::{
    DType, Error, ProcessGroup, ShardedTensor, layout_of_metadata, sharding_spec_of_layout,
};
use dtensor_testing::spmd;

use crate::support::{Grid, boxes, chunks, cut, numbered};

#[test]
fn chunks_in_rank_order_are_a_layout_that_shares_the_elements() {
    spmd(4, |world| {
        for (size, dim, shown) in
            [(&[10, 3][..], 0, "[S(0)]"), (&[2, 5], 1, "[S(1)]"), (&[2, 2], -2, "[S(0)]")]
        {
            let x = cut(size, &chunks(dim, &[0, 1, 2, 3]), world)?;
            let y = x.to_dtensor()?;
            assert_eq!(y.layout().to_string(), shown);
            assert_eq!(y.to_local().as_bytes()?.as_ptr(), x.local_tensor()?.as_bytes()?.as_ptr());
            assert_eq!(y.to_vec::<f32>()?, numbered(size).to_vec::<f32>()?);
            let back = ShardedTensor::from_dtensor(&y)?;
            assert_eq!(
                back.local_tensor()?.as_bytes()?.as_ptr(),
                x.local_tensor()?.as_bytes()?.as_ptr()
            );
            assert!(back.equal(&x)?);
        }
        Ok(())
    });
}

#[test]
fn grids_are_layouts_on_meshes_with_as_many_axes() {
    spmd(4, |world| {
        let x = cut(&[6, 8], &Grid::over_ranks(2, 0..4).into(), world)?;
        assert_eq!(x.to_dtensor()?.layout().to_string(), "[S(0), S(1)]");
        assert_eq!(x.to_dtensor()?.to_vec::<f32>()?, numbered(&[6, 8]).to_vec::<f32>()?);
        // The columns vary slowest.
        let x = cut(&[6, 8], &Grid::over_ranks(2, [0, 2, 1, 3]).into(), world)?;
        assert_eq!(x.to_dtensor()?.layout().to_string(), "[S(1), S(0)]");
        assert_eq!(x.to_dtensor()?.to_vec::<f32>()?, numbered(&[6, 8]).to_vec::<f32>()?);
        let mesh = DeviceMesh::new(world, &[("a", 2), ("b", 2)])?;
        let y = arange(0, 10, 1, DType::F32, &mesh, &[Shard(0), Shard(0)])?;
        let z = ShardedTensor::from_dtensor(&y)?;
        assert_eq!(
            z.full_tensor()?.to_vec::<f32>()?,
            (0..10).map(|n| n as f32).collect::<Vec<_>>()
        );
        Ok(())
    });
}

#[test]
fn specs_and_layouts_say_the_same() {
    spmd(4, |world| {
        let group = ProcessGroup::of_world(world);
        let mesh = DeviceMesh::new(world, &[("a", 2), ("b", 2)])?;
        for placements in [[Shard(0), Shard(1)], [Shard(1), Shard(0)], [Shard(0), Shard(0)]] {
            let layout = Layout::new(&[7, 5], DType::F32, mesh.mesh(), &placements)?;
            let built =
                sharding_spec_of_layout(&layout)?.build_metadata(&[7, 5], &DType::F32.into())?;
            for coord in mesh.mesh().coords() {
                let rank = mesh.mesh().rank_at(&coord)?;
                let own: Vec<_> = built.shards_of(rank).collect();
                assert_eq!((own.len(), own[0].sizes()), (1, &*layout.local_shape(&coord)));
                assert_eq!(own[0].offsets(), layout.local_offset(&coord));
            }
            if placements[0] != placements[1] {
                let found = layout_of_metadata(&built, &group).expect("a layout");
                assert_eq!(found.placements(), placements);
            }
        }
        let rows = chunks(0, &[1, 0, 2, 3]).build_metadata(&[7, 5], &DType::F32.into())?;
        assert!(layout_of_metadata(&rows, &group).is_none());
        Ok(())
    });
}

#[test]
fn sub_groups_are_layouts_on_their_ranks() {
    spmd(4, |world| {
        let group = ProcessGroup::new(world, &[1, 3])?;
        let x = cut(&[5], &chunks(0, &[1, 3]), &group)?;
        let y = x.to_dtensor()?;
        if group.rank().is_some() {
            assert_eq!(y.to_vec::<f32>()?, [0., 1., 2., 3., 4.]);
            assert!(ShardedTensor::from_dtensor(&y)?.equal(&x)?);
        } else {
            assert_eq!(ShardedTensor::from_dtensor(&y)?.local_shards().len(), 0);
        }
        Ok(())
    });
}

#[test]
fn what_is_no_layout_says_so_on_every_rank() {
    spmd(4, |world| {
        let specs = [
            chunks(0, &[3, 2, 1, 0]),
            chunks(0, &[0, 1]),
            chunks(0, &[0, 1, 2, 3, 0]),
            boxes(&[
                (&[0, 0], &[1, 4], 0),
                (&[1, 0], &[3, 2], 1),
                (&[1, 2], &[2, 2], 2),
                (&[3, 2], &[1, 2], 3),
            ]),
        ];
        for spec in specs {
            let error = cut(&[4, 4], &spec, world)?.to_dtensor().unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        }
        let mesh = DeviceMesh::of_world(world, "x")?;
        let copies = dtensor::zeros(&[4], DType::F32, &mesh, &[Replicate])?;
        let error = ShardedTensor::from_dtensor(&copies).unwrap_err();
        assert!(error.to_string().contains("redistribute"), "{error}");
        Ok(())
    });
}

#[test]
fn gradients_come_back_in_the_cut_of_the_tensor() {
    spmd(3, |world| {
        let mut x = cut(&[4, 3], &chunks(1, &[0, 1, 2]), world)?;
        x.set_requires_grad(true)?;
        let y = x.to_dtensor()?;
        let loss = y.mul(&y)?.sum(&[], false)?;
        let gradients = loss.backward()?;
        let found = x.gradient(&gradients)?.expect("a gradient");
        assert_eq!(found.metadata().shards_metadata, x.metadata().shards_metadata);
        let want: Vec<f32> = (0..12).map(|n| 2.0 * n as f32).collect();
        assert_eq!(found.full_tensor()?.to_vec::<f32>()?, want);
        assert!(x.detach().gradient(&gradients)?.is_none());
        Ok(())
    });
}

#[test]
fn moving_and_casting_keep_boxes_and_values() {
    spmd(2, |world| {
        let x = cut(&[5, 2], &chunks(0, &[1, 0]), world)?;
        let y = x.to_dtype(DType::F64)?;
        assert_eq!((y.dtype(), y.local_tensor()?.dtype()), (DType::F64, DType::F64));
        assert_eq!(y.full_tensor()?.to_vec::<f64>()?[9], 9.0);
        assert_eq!(y.type_as(&x)?.dtype(), DType::F32);
        assert!(x.cpu()?.equal(&x)?);
        let there = x.to(Some("meta".parse()?), Some(DType::Bf16))?;
        assert!(there.is_meta());
        assert_eq!(
            there.metadata().shards_metadata[0].placement().unwrap().to_string(),
            "rank:1/meta"
        );
        assert!(matches!(there.cpu(), Err(Error::Unsupported { .. })));
        assert!(matches!(x.to(Some("cuda:0".parse()?), None), Err(Error::MissingDevice { .. })));
        assert!(matches!(x.to(Some("cpu:0".parse()?), None), Err(Error::MissingDevice { .. })));
        let mut z = x.clone();
        z.set_requires_grad(true)?;
        assert!(z.requires_grad() && !z.detach().requires_grad());
        assert!(matches!(z.to_dtype(DType::I64), Err(Error::NoGradients { .. })));
        assert!(matches!(
            x.to_dtype(DType::I64)?.set_requires_grad(true),
            Err(Error::NoGradients { .. })
        ));
        Ok(())
    });
}
