//! Tensors in and out, meshes, scopes, random numbers, fake worlds.

use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh, Error, LocalOperand, LocalOptions, LocalResult,
    OnImplicit,
    Placement::{Partial, Replicate, Shard},
    RedistributeOptions, ReduceOp, Tensor, World, arange, distribute_tensor_from, explicit, eye,
    full, implicit_replication, linspace, local_map, ones,
    plan::StepKind,
    zeros,
};
use dtensor_testing::spmd;

use crate::support::mesh;

#[test]
fn distributing_takes_the_source_ranks_data() {
    for source in 0..4 {
        spmd(4, |world| {
            let mesh = mesh(world, &[2, 2]);
            let own: Vec<f32> = (0..15).map(|i| (i + 100 * world.rank()) as f32).collect();
            let own = Tensor::from_vec(own, &[5, 3])?;
            let want: Vec<f32> = (0..15).map(|i| (i + 100 * source) as f32).collect();
            for placements in [
                [Shard(0), Shard(1)],
                [Shard(0), Replicate],
                [Replicate, Shard(0)],
                [Replicate, Replicate],
                [Shard(0), Shard(0)],
                [Partial(ReduceOp::Sum), Shard(1)],
                [Partial(ReduceOp::Max), Partial(ReduceOp::Max)],
            ] {
                let x = distribute_tensor_from(&own, &mesh, &placements, Some(source))?;
                assert_eq!(x.to_vec::<f32>()?, want, "{placements:?} from {source}");
            }
            assert!(distribute_tensor_from(&own, &mesh, &[Replicate; 2], Some(4)).is_err());
            Ok(())
        });
    }
}

#[test]
fn distributing_integers_as_a_pending_sum_keeps_them_integers() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let own = Tensor::from_vec(vec![1_i64, 2, 3], &[3])?;
        let x = dtensor::distribute_tensor(&own, &mesh, &[Partial(ReduceOp::Sum)])?;
        assert_eq!(x.to_vec::<i64>()?, [1, 2, 3]);
        Ok(())
    });
}

#[test]
fn parts_that_are_uneven_are_put_together_or_refused_on_every_rank() {
    let errors = spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let rank = world.rank();
        let local = Tensor::full(&[[2, 2, 1, 0][rank], 2], rank as f32)?;
        let x = DTensor::from_local(&local, &mesh, &[Shard(0)])?;
        assert_eq!(x.shape(), [5, 2]);
        let local = Tensor::full(&[[1, 3, 3, 0][rank], 2], rank as f32)?;
        let error = DTensor::from_local(&local, &mesh, &[Shard(0)]).unwrap_err();
        assert!(matches!(error, Error::WrongLocal { rank: 0, .. }), "{error}");
        Ok(error.to_string())
    });
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
}

#[test]
fn parts_that_should_be_copies_are_compared_on_request() {
    let errors = spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let check = LocalOptions { run_check: true, ..LocalOptions::default() };
        let same = Tensor::full(&[2], 1.0_f32)?;
        DTensor::from_local_with(&same, &mesh, &[Replicate], &check)?;
        let different = Tensor::full(&[2], world.rank() as f32)?;
        let error = DTensor::from_local_with(&different, &mesh, &[Replicate], &check).unwrap_err();
        Ok(error)
    });
    assert_eq!(errors[0], Error::CopiesDiffer { axis: "axis0".into() });
    assert_eq!(errors[0], errors[1]);
}

#[test]
fn a_pending_value_is_reduced_before_it_is_read() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let x = arange(0, 16, 1, DType::F32, &mesh, &[Shard(0)])?;
        let sum = x.sum(&[], false)?;
        assert_eq!(sum.placements(), [Partial(ReduceOp::Sum)]);
        assert_eq!(sum.item::<f32>()?, 120.0);
        assert_eq!(sum.to_vec::<f32>()?, [120.0]);
        assert!(sum.to_string().contains("not reduced"), "{sum}");
        Ok(())
    });
}

#[test]
fn factories_give_the_same_values_in_every_layout() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        for placements in [
            [Replicate, Replicate],
            [Shard(0), Shard(0)],
            [Shard(0), Replicate],
            [Partial(ReduceOp::Sum), Shard(0)],
            [Partial(ReduceOp::Product), Partial(ReduceOp::Product)],
            [Partial(ReduceOp::Min), Replicate],
        ] {
            let p = &placements;
            assert_eq!(ones(&[3], DType::F32, &mesh, p)?.to_vec::<f32>()?, [1.0; 3]);
            assert_eq!(full(&[3], 7_i32, &mesh, p)?.to_vec::<i32>()?, [7; 3]);
            let numbers = arange(3, 12, 2, DType::I64, &mesh, p)?;
            assert_eq!(numbers.to_vec::<i64>()?, [3, 5, 7, 9, 11]);
            let numbers = linspace(0.0, 1.0, 7, DType::F64, &mesh, p)?;
            let dense = Tensor::linspace(0.0, 1.0, 7, DType::F64)?;
            assert_eq!(numbers.to_vec::<f64>()?, dense.to_vec::<f64>()?);
            let identity = eye(3, 5, DType::U8, &mesh, p)?;
            assert_eq!(identity.to_vec::<u8>()?, Tensor::eye(3, 5, DType::U8)?.to_vec::<u8>()?);
            assert_eq!(identity.full_like(3)?.to_vec::<u8>()?, [3; 15]);
        }
        Ok(())
    });
}

#[test]
fn a_scope_refuses_what_nobody_asked_for() {
    let errors = spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let rows = ones(&[4, 4], DType::F32, &mesh, &[Shard(0)])?;
        let columns = ones(&[4, 4], DType::F32, &mesh, &[Shard(1)])?;
        let whole = ones(&[4, 4], DType::F32, &mesh, &[Replicate])?;
        let error = explicit(OnImplicit::Refuse, || {
            // Local: a copy is cut.
            rows.add(&whole)?;
            rows.redistribute(&[Shard(1)])?.add(&columns)?;
            explicit(OnImplicit::Log, || rows.add(&columns))?;
            rows.add(&columns)
        });
        // A panic ends the scope.
        let panicked = std::panic::catch_unwind(|| explicit(OnImplicit::Refuse, || panic!()));
        assert!(panicked.is_err());
        rows.add(&columns)?;
        Ok(error.unwrap_err())
    });
    assert!(matches!(errors[0], Error::Implicit { op: "add", operand: _, bytes: 32, .. }));
    assert_eq!(errors[0], errors[1]);
}

#[test]
fn plain_tensors_stand_beside_distributed_ones_only_where_that_is_said() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let rows = ones(&[4, 2], DType::F32, &mesh, &[Shard(0)])?;
        let plain = Tensor::full(&[2], 2.0_f32)?;
        assert_eq!(rows.add(&plain).unwrap_err(), Error::PlainOperand { op: "add", operand: 1 });
        let sum = implicit_replication(|| rows.add(&plain))?;
        assert_eq!(sum.layout(), rows.layout());
        assert_eq!(sum.to_vec::<f32>()?, [3.0; 8]);
        Ok(())
    });
}

#[test]
fn ranks_that_are_not_on_the_mesh_take_part_harmlessly() {
    spmd(3, |world| {
        let two = DeviceMesh::from_mesh(world, "x=2".parse()?)?;
        let a = ones(&[4, 4], DType::F32, &two, &[Shard(0)])?;
        let b = a.matmul(&a)?.add(1.0)?;
        assert_eq!(b.shape(), [4, 4]);
        match world.rank() {
            2 => assert!(matches!(b.full_tensor(), Err(Error::NotOnMesh { rank: 2, .. }))),
            _ => assert_eq!(b.to_vec::<f32>()?, [5.0; 16]),
        }
        Ok(())
    });
}

#[test]
fn operands_on_two_meshes_are_refused() {
    spmd(4, |world| {
        let a = mesh(world, &[4]);
        let b = mesh(world, &[2, 2]);
        let x = ones(&[4], DType::F32, &a, &[Shard(0)])?;
        let y = ones(&[4], DType::F32, &b, &[Shard(0), Replicate])?;
        assert!(matches!(x.add(&y), Err(Error::MixedMeshes { operand: 1, .. })));
        // Equal meshes are one mesh.
        let again = ones(&[4], DType::F32, &mesh(world, &[4]), &[Shard(0)])?;
        assert_eq!(x.add(&again)?.to_vec::<f32>()?, [2.0; 4]);
        Ok(())
    });
}

#[test]
fn a_fake_world_of_many_ranks_has_shapes_layouts_and_bytes() -> Result<(), Error> {
    let world = World::fake(4096, 4095)
        .map_err(|source| Error::Comm { op: "fake", source: source.into() })?;
    let mesh = DeviceMesh::new(&world, &[("pp", 4), ("dp", 64), ("tp", 16)])?;
    let x = zeros(&[32768, 4096], DType::Bf16, &mesh, &[Shard(0), Shard(0), Replicate])?;
    let w = zeros(&[4096, 16384], DType::Bf16, &mesh, &[Replicate, Replicate, Shard(1)])?;
    let v = zeros(&[16384, 4096], DType::Bf16, &mesh, &[Replicate, Replicate, Shard(0)])?;
    let (y, comm) = CommDebug::record(|| x.matmul(&w)?.relu()?.matmul(&v));
    let y = y?;
    assert_eq!(y.layout().to_string(), "[S(0), S(0), P(sum)]");
    assert_eq!(comm.calls(), 0);
    assert_eq!((y.to_local().shape(), y.local_bytes()), (&[128, 4096][..], 128 * 4096 * 2));
    let (y, comm) = CommDebug::record(|| y.redistribute(&[Shard(0), Shard(0), Replicate]));
    assert_eq!(comm.calls_of(StepKind::AllReduce), 1, "{comm}");
    assert_eq!(comm.bytes(), 4096 * 2 * 15 * (128 * 4096 * 2) / 16);
    assert!(y?.to_vec::<f32>().is_err());
    Ok(())
}

#[test]
fn a_redistribution_goes_on_while_others_run() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let sum = Partial(ReduceOp::Sum);
        let layouts = [
            [Replicate, Replicate],
            [Shard(0), Shard(1)],
            [Shard(0), Shard(0)],
            [Replicate, Shard(1)],
            [sum, Shard(0)],
            [sum, sum],
        ];
        for from in &layouts {
            let x = arange(0, 15, 1, DType::F64, &mesh, &[Replicate; 2])?;
            let x = distribute_tensor_from(&x.to_local().reshape(&[5, 3])?, &mesh, from, None)?;
            for to in &layouts {
                let mut first = x.start_redistribute(to)?;
                let second = x.start_redistribute(&[Shard(1), Replicate])?;
                x.exp()?;
                first.test()?;
                let want: Vec<f64> = (0..15).map(f64::from).collect();
                assert_eq!(second.wait()?.to_vec::<f64>()?, want);
                let first = first.wait()?;
                assert_eq!(first.placements(), to);
                assert_eq!(first.to_vec::<f64>()?, want, "{from:?} -> {to:?}");
            }
        }
        Ok(())
    });
}

#[test]
fn functions_of_parts_are_checked_on_all_ranks() {
    let errors = spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let x = arange(0, 6, 1, DType::F32, &mesh, &[Replicate])?;
        let pad = |parts: &[DTensor]| Ok(vec![parts[0].add(1.0)?]);
        let placed = LocalResult::placed(&[Shard(0)]);
        let cut = [LocalOperand::new(&x, &[Shard(0)])];
        let y = local_map("plus", &cut, std::slice::from_ref(&placed), pad)?;
        assert_eq!(y[0].to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let y = local_map("plus", &cut, &[placed.clone().with_shape(&[6])], pad)?;
        assert_eq!(y[0].shape(), [6]);
        // 1, 1, 1 and 3: not how torch.chunk cuts 6.
        let ranks = |parts: &[DTensor]| {
            let part = Tensor::full(&[3 - parts[0].numel()], 0.0_f32)?;
            Ok(vec![DTensor::from_local(&part, parts[0].mesh(), &[Replicate])?])
        };
        Ok(local_map("more", &cut, &[placed], ranks).unwrap_err())
    });
    assert!(matches!(errors[0], Error::WrongLocal { .. }), "{}", errors[0]);
    assert!(errors.iter().all(|error| *error == errors[0]));
}

#[test]
fn what_is_sent_may_have_another_dtype() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = full(&[4, 3], 1.5_f32, &mesh, &[Partial(ReduceOp::Sum)])?;
        let half = RedistributeOptions::default().forward_dtype(DType::Bf16);
        let (y, comm) = CommDebug::record(|| x.redistribute_with(&[Replicate], &half));
        let y = y?;
        assert_eq!((y.dtype(), comm.bytes()), (DType::Bf16, 2 * 12 * 2));
        assert_eq!(y.to_dtype(DType::F32)?.to_vec::<f32>()?, [1.5; 12]);
        let same = x.redistribute_with(&[Shard(0)], &RedistributeOptions::default())?;
        assert_eq!(same.dtype(), DType::F32);
        Ok(())
    });
}
