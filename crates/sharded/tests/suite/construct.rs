//! From what ranks have.

use dtensor_sharded::{
    DType, Error, LocalShardsOptions, MemoryFormat, ProcessGroup, Result, Shard, ShardMetadata,
    ShardedTensor, ShardedTensorBase, ShardedTensorMetadata, Spec, Tensor, TensorLayout,
    TensorProperties,
};
use dtensor_testing::spmd;

use crate::support::{Grid, boxed, chunks, cut, numbered, same_error};

fn shard(offsets: &[usize], sizes: &[usize], rank: usize) -> Shard {
    Shard::new(Tensor::full(sizes, rank as f32).unwrap(), boxed(offsets, sizes, rank)).unwrap()
}

#[test]
fn local_shards_become_a_tensor_whose_spec_is_found() {
    spmd(4, |world| {
        let rank = world.rank();
        let x = ShardedTensor::from_local_shards(
            vec![shard(&[5 * rank, 0], &[5, 3], rank)],
            &[20, 3],
            world,
        )?;
        assert_eq!(x.sharding_spec().as_chunk(), chunks(0, &[0, 1, 2, 3]).as_chunk());
        let want: Vec<f32> = (0..60).map(|index| (index / 15) as f32).collect();
        assert_eq!(x.full_tensor()?.to_vec::<f32>()?, want);
        // A grid, several per rank, and none on some.
        let squares = |rank: usize| shard(&[rank / 2 * 5, rank % 2 * 5], &[5, 5], rank);
        let x = ShardedTensor::from_local_shards(vec![squares(rank)], &[10, 10], world)?;
        assert!(x.sharding_spec().as_chunk().is_none());
        assert_eq!(x.metadata().shards_metadata[3].offsets(), [5, 5]);
        let own = match rank {
            0 => vec![shard(&[0, 0], &[5, 5], 0), shard(&[5, 0], &[5, 5], 0)],
            1 => vec![shard(&[5, 5], &[5, 5], 1), shard(&[0, 5], &[5, 5], 1)],
            _ => Vec::new(),
        };
        let x = ShardedTensor::from_local_shards(own, &[10, 10], world)?;
        assert_eq!(x.local_shards().len(), [2, 2, 0, 0][rank]);
        assert_eq!(
            x.full_tensor()?.to_vec::<f32>()?[..10],
            [0., 0., 0., 0., 0., 1., 1., 1., 1., 1.]
        );
        Ok(())
    });
}

#[test]
fn shards_are_reordered_to_the_order_of_the_chunks() {
    spmd(2, |world| {
        // The later chunk first.
        let own = match world.rank() {
            0 => vec![shard(&[4], &[2], 0), shard(&[0], &[2], 0)],
            _ => vec![shard(&[2], &[2], 1)],
        };
        let x = ShardedTensor::from_local_shards(own, &[6], world)?;
        assert_eq!(x.sharding_spec().as_chunk(), chunks(0, &[0, 1, 0]).as_chunk());
        assert_eq!(x.full_tensor()?.to_vec::<f32>()?, [0., 0., 1., 1., 0., 0.]);
        Ok(())
    });
}

#[test]
fn a_group_of_ranks_that_cannot_be_is_the_same_error_for_members_and_others() {
    for ranks in [&[][..], &[0, 0], &[1, 7], &[2, 1, 2]] {
        let errors = spmd(3, |world| Ok(ProcessGroup::new(world, ranks).unwrap_err()));
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    }
}

#[test]
fn the_position_of_a_rank_in_a_group_is_that_in_its_list() {
    spmd(4, |world| {
        for ranks in [&[0, 1, 2, 3][..], &[0, 1], &[3, 2, 1, 0], &[0, 2, 1], &[3, 1], &[2]] {
            let group = ProcessGroup::new(world, ranks)?;
            for rank in 0..6 {
                let want = ranks.iter().position(|own| *own == rank);
                assert_eq!(group.group_rank_of(rank), want, "{rank} in {ranks:?}");
            }
        }
        Ok(())
    });
}

#[test]
fn a_sub_group_puts_its_own_tensor_together() {
    spmd(4, |world| {
        let group = ProcessGroup::new(world, &[3, 1])?;
        let own: Vec<Shard> = match world.rank() {
            3 => vec![shard(&[0], &[3], 3)],
            1 => vec![shard(&[3], &[2], 1)],
            _ => Vec::new(),
        };
        let made = ShardedTensor::from_local_shards(own.clone(), &[5], &group);
        match group.rank() {
            Some(_) => assert_eq!(made?.full_tensor()?.to_vec::<f32>()?, [3., 3., 3., 1., 1.]),
            None => assert!(matches!(made, Err(Error::NotAMember { .. }))),
        }
        // The rows of a rank begin where those of the member before end.
        if group.rank().is_some() {
            let x = ShardedTensor::from_local_rows(own, &group)?;
            assert_eq!(x.full_tensor()?.to_vec::<f32>()?, [3., 3., 3., 1., 1.]);
            assert_eq!(x.metadata().shards_metadata[1].offsets(), [3]);
        }
        Ok(())
    });
}

#[test]
fn rows_are_counted_anew() {
    spmd(4, |world| {
        let rank = world.rank();
        let x = ShardedTensor::from_local_rows(vec![shard(&[9, 0], &[5, 5], rank)], world)?;
        assert_eq!(x.size(), [20, 5]);
        assert_eq!(x.sharding_spec().as_chunk(), chunks(0, &[0, 1, 2, 3]).as_chunk());
        // Uneven, and none on rank 2.
        let rows = [3, 1, 0, 2];
        let x =
            ShardedTensor::from_local_rows(vec![shard(&[0, 0], &[rows[rank], 2], rank)], world)?;
        assert_eq!(x.size(), [6, 2]);
        assert_eq!(x.local_tensor()?.shape(), [rows[rank], 2]);
        assert_eq!(
            x.full_tensor()?.to_vec::<f32>()?,
            [0., 0., 0., 0., 0., 0., 1., 1., 3., 3., 3., 3.]
        );
        Ok(())
    });
}

#[test]
fn shards_in_any_order_find_their_places_also_where_several_are_the_same() {
    spmd(2, |world| {
        // Two rows on five places of each rank: most boxes are empty, and the same.
        let spec = chunks(0, &[0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
        let metadata = spec.build_metadata(&[3, 2], &DType::F32.into())?;
        let made = |shard: &ShardMetadata| {
            Shard::new(Tensor::full(shard.sizes(), shard.offsets()[0] as f32)?, shard.clone())
        };
        let own: Vec<Shard> = metadata.shards_of(world.rank()).map(made).collect::<Result<_>>()?;
        for turn in 0..own.len() {
            let mut turned = own.clone();
            turned.rotate_left(turn);
            let x = ShardedTensor::from_local_shards_and_metadata(
                turned,
                metadata.clone(),
                None,
                world,
            )?;
            let of = |shard: &Shard| shard.metadata().clone();
            assert!(x.local_shards().map(of).eq(metadata.shards_of(world.rank()).cloned()));
            assert_eq!(x.full_tensor()?.to_vec::<f32>()?, [0., 0., 1., 1., 2., 2.]);
        }
        let mut doubled = own.clone();
        doubled[1] = own[0].clone();
        let error =
            ShardedTensor::from_local_shards_and_metadata(doubled, metadata.clone(), None, world);
        assert!(matches!(error, Err(Error::UnknownShard { .. })));
        Ok(())
    });
}

/// Tries to put together what `own` gives, and demands one error on all ranks.
fn refused(size: &[usize], own: impl Fn(usize) -> Vec<Shard> + Sync) -> Error {
    same_error(4, |world| ShardedTensor::from_local_shards(own(world.rank()), size, world))
}

#[test]
fn what_is_wrong_on_one_rank_is_the_same_error_on_all() {
    let row = |rank: usize| shard(&[rank, 0], &[1, 4], rank);
    let at = |wrong: usize, other: fn() -> Vec<Shard>| {
        move |rank: usize| if rank == wrong { other() } else { vec![row(rank)] }
    };
    let error = refused(&[4, 4], at(2, || vec![shard(&[2, 0], &[1, 4], 1)]));
    assert_eq!(
        error,
        Error::Rank {
            rank: 2,
            error: Box::new(Error::WrongRank {
                op: "from_local_shards".into(),
                rank: 2,
                placed: 1
            }),
        }
    );
    let error = refused(
        &[4, 4],
        at(1, || {
            let turned = Tensor::zeros(&[4, 2], DType::F32).unwrap().transpose(0, 1).unwrap();
            vec![Shard::new(turned, boxed(&[1, 0], &[2, 4], 1)).unwrap()]
        }),
    );
    assert!(matches!(error.cause(), Error::NotContiguous { .. }));
    let error = refused(
        &[4, 4],
        at(3, || {
            let tensor = Tensor::zeros(&[1, 4], DType::F32).unwrap();
            vec![Shard::new(tensor, ShardMetadata::new(&[3, 0], &[1, 4], None).unwrap()).unwrap()]
        }),
    );
    assert!(matches!(error.cause(), Error::NoRank { placement: None, .. }));
    let error = refused(
        &[4, 4],
        at(0, || {
            let half = Tensor::zeros(&[1, 2], DType::F64).unwrap();
            vec![shard(&[0, 0], &[1, 2], 0), Shard::new(half, boxed(&[0, 2], &[1, 2], 0)).unwrap()]
        }),
    );
    assert!(matches!(error.cause(), Error::LocalShardsDiffer { rank: 0, .. }));
}

#[test]
fn what_the_ranks_say_differently_is_the_same_error_on_all() {
    let row = |rank: usize| vec![shard(&[rank, 0], &[1, 4], rank)];
    let differ = |error: Error, of: &str, ranks: (usize, usize)| match error {
        Error::RanksDiffer { property, first_rank, rank, .. } => {
            assert_eq!((&*property, first_rank, rank), (of, ranks.0, ranks.1));
        }
        other => panic!("{other}"),
    };
    let error = same_error(4, |world| {
        let size = if world.rank() == 2 { [4, 5] } else { [4, 4] };
        ShardedTensor::from_local_shards(row(world.rank()), &size, world)
    });
    differ(error, "size", (0, 2));
    let error = refused(&[4, 4], |rank| match rank {
        1 => vec![
            Shard::new(Tensor::zeros(&[1, 4], DType::I64).unwrap(), boxed(&[1, 0], &[1, 4], 1))
                .unwrap(),
        ],
        _ => row(rank),
    });
    differ(error, "dtype", (0, 1));
    let error = same_error(4, |world| {
        let options = LocalShardsOptions { requires_grad: world.rank() == 3, pin_memory: false };
        ShardedTensor::from_local_shards_with(row(world.rank()), &[4, 4], options, world)
    });
    differ(error, "requires_grad", (0, 3));
    let error = same_error(4, |world| {
        let options = LocalShardsOptions { requires_grad: false, pin_memory: world.rank() == 3 };
        ShardedTensor::from_local_shards_with(row(world.rank()), &[4, 4], options, world)
    });
    assert!(matches!(error, Error::Rank { rank: 3, .. }));
    assert_eq!(
        refused(&[4, 4], |_| Vec::new()),
        Error::NoLocalShards { op: "from_local_shards".into() }
    );
}

#[test]
fn shards_that_overlap_or_leave_gaps_are_refused() {
    let of = |first: [usize; 2]| {
        move |rank: usize| match rank {
            0 => vec![shard(&[0, 0], &first, 0)],
            _ => vec![shard(&[rank / 2 * 5, rank % 2 * 5], &[5, 5], rank)],
        }
    };
    assert!(matches!(refused(&[10, 10], of([6, 6])), Error::Overlap { .. }));
    assert_eq!(refused(&[10, 10], of([4, 4])), Error::NotCovered { shards: 91, tensor: 100 });
    assert!(matches!(refused(&[9, 10], of([5, 5])), Error::OutOfBounds { dim: 0, .. }));
    assert!(matches!(refused(&[10], of([5, 5])), Error::WrongDims { .. }));
}

#[test]
fn rows_that_do_not_fit_are_refused() {
    let rows = |own: &(dyn Fn(usize) -> Vec<Shard> + Sync)| {
        same_error(3, |world| ShardedTensor::from_local_rows(own(world.rank()), world))
    };
    let error =
        rows(&|rank| if rank == 1 { Vec::new() } else { vec![shard(&[0, 0], &[1, 2], rank)] });
    assert!(matches!(error.cause(), Error::OneShardNeeded { rank: 1, got: 0, .. }));
    let error = rows(&|rank| vec![shard(&[0, 0], &[1, 2 + rank / 2], rank)]);
    assert!(matches!(error, Error::RanksDiffer { rank: 2, .. }));
    // Rows that take no memory can be more than there are numbers for.
    let error = rows(&|rank| {
        let many = Tensor::meta(&[isize::MAX as usize], DType::U8).unwrap();
        vec![Shard::from_tensor_and_offsets(many, &[0], rank).unwrap()]
    });
    assert!(matches!(error, Error::BoxTooLarge { .. }), "{error}");
}

#[test]
fn metadata_and_local_shards_make_a_tensor_without_a_word() {
    spmd(4, |world| {
        let before = world.recorder().records().len();
        for spec in [
            chunks(1, &[2, 0, 3, 1]),
            Grid::over_ranks(2, [3, 2, 1, 0]).into(),
            chunks(0, &[1, 1, 0, 2, 3]),
        ] {
            let metadata = spec.build_metadata(&[10, 6], &DType::F32.into())?;
            let own = metadata.shards_of(world.rank());
            let own =
                own.map(|shard| Shard::new(Tensor::full(shard.sizes(), 1.0_f32)?, shard.clone()));
            let own = own.collect::<Result<Vec<_>>>()?;
            for given in [Some(spec.clone()), None] {
                let x = ShardedTensor::from_local_shards_and_metadata(
                    own.clone(),
                    metadata.clone(),
                    given,
                    world,
                )?;
                assert_eq!(x.metadata(), &metadata);
            }
        }
        assert_eq!(world.recorder().records().len(), before);
        Ok(())
    });
}

fn described(spec: &Spec) -> dtensor_sharded::ShardedTensorMetadata {
    spec.build_metadata(&[4, 4], &DType::F32.into()).unwrap()
}

#[test]
fn local_shards_must_be_those_of_the_metadata() {
    spmd(2, |world| {
        let rank = world.rank();
        let metadata = described(&chunks(0, &[0, 1]));
        let made = |own: Vec<Shard>| {
            ShardedTensor::from_local_shards_and_metadata(own, metadata.clone(), None, world)
                .unwrap_err()
        };
        assert!(matches!(
            made(Vec::new()),
            Error::WrongNumberOfShards { local: 0, metadata: 1, .. }
        ));
        let f64s = Tensor::zeros(&[2, 4], DType::F64)?;
        let wrong = Shard::new(f64s, metadata.shards_metadata[rank].clone())?;
        assert!(matches!(made(vec![wrong]), Error::Incompatible { .. }));
        let turned = Tensor::zeros(&[4, 2], DType::F32)?.transpose(0, 1)?;
        let wrong = Shard::new(turned, metadata.shards_metadata[rank].clone())?;
        assert!(matches!(made(vec![wrong]), Error::NotContiguous { .. }));
        let nowhere = ShardMetadata::new(&[2 * rank, 0], &[2, 4], None)?;
        let wrong = Shard::new(Tensor::zeros(&[2, 4], DType::F32)?, nowhere)?;
        assert!(matches!(made(vec![wrong]), Error::NoRank { .. }));
        // Whole metadata that make no tensor.
        let mut none = metadata.clone();
        none.shards_metadata.clear();
        let made = |metadata: dtensor_sharded::ShardedTensorMetadata, spec: Option<Spec>| {
            let own = vec![shard(&[2 * rank, 0], &[2, 4], rank)];
            ShardedTensor::from_local_shards_and_metadata(own, metadata, spec, world).unwrap_err()
        };
        assert!(matches!(made(none, None), Error::NoShards { .. }));
        let mut sparse = metadata.clone();
        sparse.tensor_properties =
            TensorProperties::default().layout(dtensor_sharded::TensorLayout::SparseCsr);
        assert!(matches!(made(sparse, None), Error::WrongLayout { .. }));
        assert!(matches!(
            made(metadata.clone(), Some(chunks(1, &[0, 1]))),
            Error::Unsupported { .. }
        ));
        Ok(())
    });
}

#[test]
fn shards_need_no_group_until_one_is_added() {
    let metadata = described(&chunks(0, &[0, 1]));
    let both = vec![shard(&[0, 0], &[2, 4], 0), shard(&[2, 0], &[2, 4], 1)];
    let base = ShardedTensorBase::new(both, metadata.clone(), None).unwrap();
    assert_eq!((base.local_shards().len(), base.metadata()), (2, &metadata));
    assert!(base.sharding_spec().as_chunk().is_some());
    spmd(2, |world| {
        // Those of another rank are not this rank's.
        assert!(matches!(
            ShardedTensor::from_base(base.clone(), world),
            Err(Error::WrongNumberOfShards { .. })
        ));
        let rank = world.rank();
        let own = vec![shard(&[2 * rank, 0], &[2, 4], rank)];
        let base = ShardedTensorBase::new(own, metadata.clone(), Some(chunks(0, &[0, 1])))?;
        let x = ShardedTensor::from_base(base, world)?;
        assert_eq!(x.full_tensor()?.to_vec::<f32>()?, [&[0.0; 8][..], &[1.0; 8]].concat());
        Ok(())
    });
    let mut gap = metadata.clone();
    gap.shards_metadata.pop();
    assert!(matches!(ShardedTensorBase::new(Vec::new(), gap, None), Err(Error::NotCovered { .. })));
}

#[test]
fn shards_without_a_group_are_held_to_the_metadata_when_one_is_added() {
    let metadata = described(&chunks(0, &[0, 1]));
    spmd(2, |world| {
        let rank = world.rank();
        let refused = |elements: Tensor| -> Result<Error> {
            let own = Shard::from_tensor_and_offsets(elements, &[2 * rank, 0], rank)?;
            let base = ShardedTensorBase::new(vec![own], metadata.clone(), None)?;
            Ok(ShardedTensor::from_base(base, world).unwrap_err())
        };
        let turned = Tensor::zeros(&[4, 2], DType::F32)?.transpose(0, 1)?;
        assert_eq!(refused(turned)?, Error::NotContiguous { op: "from_base".into() });
        let error = refused(Tensor::zeros(&[2, 4], DType::F64)?)?;
        assert!(
            matches!(&error, Error::Incompatible { property, .. } if *property == "dtype"),
            "{error}"
        );
        // What can be known without shards is not put off.
        let mut sparse = metadata.clone();
        sparse.tensor_properties = sparse.tensor_properties.layout(TensorLayout::SparseCoo);
        let error = ShardedTensorBase::new(Vec::new(), sparse, None).unwrap_err();
        assert!(matches!(error, Error::WrongLayout { .. }), "{error}");
        Ok(())
    });
}

#[test]
fn one_local_tensor_is_every_shard_of_its_rank() {
    spmd(4, |world| {
        let mine = Tensor::full(&[5, 2], world.rank() as f32)?;
        let x = ShardedTensor::from_local_tensor(&mine, chunks(0, &[2, 1, 3, 0]), &[20, 2], world)?;
        assert_eq!(x.full_tensor()?.to_vec::<f32>()?[9..11], [2.0, 1.0]);
        let x = ShardedTensor::from_local_tensor(&mine, chunks(0, &[0, 1, 0]), &[15, 2], world)?;
        assert_eq!(x.local_shards().len(), [2, 1, 0, 0][world.rank()]);
        let wrong =
            ShardedTensor::from_local_tensor(&mine, chunks(0, &[0, 1, 2, 3]), &[16, 2], world);
        assert!(matches!(wrong, Err(Error::Incompatible { .. })));
        let turned = Tensor::zeros(&[2, 5], DType::F32)?.transpose(0, 1)?;
        let wrong =
            ShardedTensor::from_local_tensor(&turned, chunks(0, &[0, 1, 2, 3]), &[20, 2], world);
        assert!(matches!(wrong, Err(Error::NotContiguous { .. })));
        Ok(())
    });
}

#[test]
fn a_clone_goes_its_own_way() {
    spmd(2, |world| {
        let x = cut(&[4, 2], &chunks(0, &[0, 1]), world)?;
        let shared = x.shared_shards();
        let mut y = x.clone();
        assert_ne!(x.id(), y.id());
        y.fill_constant(9.0)?;
        assert_eq!(x.full_tensor()?.to_vec::<f32>()?, numbered(&[4, 2]).to_vec::<f32>()?);
        assert_eq!(shared[0].tensor().to_vec::<f32>()?, x.local_tensor()?.to_vec::<f32>()?);
        assert_eq!(y.full_tensor()?.to_vec::<f32>()?, [9.0; 8]);
        Ok(())
    });
}

#[test]
fn what_all_ranks_want_of_their_shards_the_tensor_has() {
    let wants = LocalShardsOptions { requires_grad: true, pin_memory: false };
    spmd(2, |world| {
        let rank = world.rank();
        let own = vec![shard(&[rank, 0], &[1, 4], rank)];
        let x = ShardedTensor::from_local_shards_with(own, &[2, 4], wants, world)?;
        assert!(x.requires_grad() && !x.is_pinned());
        Ok(())
    });
    let error = same_error(2, |world| {
        let rank = world.rank();
        let ints = Shard::new(Tensor::zeros(&[1], DType::I64)?, boxed(&[rank], &[1], rank))?;
        ShardedTensor::from_local_shards_with(vec![ints], &[2], wants, world)
    });
    assert!(matches!(error, Error::NoGradients { dtype: DType::I64, .. }), "{error}");
    let error = same_error(2, |world| {
        let rank = world.rank();
        let options = LocalShardsOptions { requires_grad: false, pin_memory: rank == 1 };
        let own = vec![shard(&[rank, 0], &[1, 4], rank)];
        ShardedTensor::from_local_shards_with(own, &[2, 4], options, world)
    });
    assert_eq!(*error.cause(), Error::MissingPinnedMemory { op: "from_local_shards".into() });
}

#[test]
fn metadata_of_nothing_and_metadata_that_know_of_one_rank_only_are_taken() {
    spmd(3, |world| {
        let rank = world.rank();
        // Other ranks have nothing, at `at` of every dim.
        let of = |at: usize, size: [usize; 2]| ShardedTensorMetadata {
            shards_metadata: (0..3)
                .map(|other| match other == rank {
                    true => boxed(&[0, 0], &size, other),
                    false => boxed(&[at, at], &[0, 0], other),
                })
                .collect(),
            size: size.to_vec(),
            tensor_properties: TensorProperties::default(),
        };
        let made = |metadata: ShardedTensorMetadata| -> Result<ShardedTensor> {
            let own = metadata.shards_metadata[rank].clone();
            let own = Shard::new(Tensor::full(own.sizes(), 1.0_f32)?, own)?;
            ShardedTensor::from_local_shards_and_metadata(vec![own], metadata, None, world)
        };
        assert_eq!(made(of(0, [0, 0]))?.full_tensor()?.shape(), [0, 0]);
        let view = made(of(0, [5, 5]))?;
        assert_eq!((view.size(), view.local_tensor()?.shape()), (&[5, 5][..], &[5, 5][..]));
        assert!(matches!(made(of(1, [5, 5])), Err(Error::Overlap { .. })));
        Ok(())
    });
}

#[test]
fn metadata_that_no_tensor_can_have_are_refused_with_and_without_a_group() {
    let good = described(&chunks(0, &[0, 1]));
    let with = |tensor_properties: TensorProperties| ShardedTensorMetadata {
        tensor_properties,
        ..good.clone()
    };
    let second = |other: ShardMetadata| {
        let mut changed = good.clone();
        changed.shards_metadata[1] = other;
        changed
    };
    let none = ShardedTensorMetadata { shards_metadata: Vec::new(), ..good.clone() };
    let flat = ShardedTensorMetadata { size: vec![16], ..good.clone() };
    let props = TensorProperties::default;
    type Is = fn(&Error) -> bool;
    let cases: [(ShardedTensorMetadata, Is); 9] = [
        (none, |error| matches!(error, Error::NoShards { .. })),
        (flat, |error| matches!(error, Error::WrongDims { tensor: 1, shards: 2 })),
        (second(boxed(&[1, 0], &[2, 4], 1)), |error| matches!(error, Error::Overlap { .. })),
        (second(boxed(&[3, 0], &[2, 4], 1)), |error| matches!(error, Error::OutOfBounds { .. })),
        (second(boxed(&[2, 0], &[1, 4], 1)), |error| matches!(error, Error::NotCovered { .. })),
        (with(props().layout(TensorLayout::SparseCoo)), |error| {
            matches!(error, Error::WrongLayout { .. })
        }),
        (with(props().memory_format(MemoryFormat::ChannelsLast)), |error| {
            matches!(error, Error::WrongMemoryFormat { .. })
        }),
        (with(props().pin_memory(true)), |error| {
            matches!(error, Error::MissingPinnedMemory { .. })
        }),
        (with(TensorProperties::new(DType::I64).requires_grad(true)), |error| {
            matches!(error, Error::NoGradients { .. })
        }),
    ];
    for (metadata, is) in &cases {
        let error = ShardedTensorBase::new(Vec::new(), metadata.clone(), None).unwrap_err();
        assert!(is(&error), "{error}");
        spmd(2, |world| {
            let own = vec![shard(&[2 * world.rank(), 0], &[2, 4], world.rank())];
            let metadata = metadata.clone();
            let made = ShardedTensor::from_local_shards_and_metadata(own, metadata, None, world);
            let error = made.unwrap_err();
            assert!(is(&error), "{error}");
            Ok(())
        });
    }
}

#[test]
fn rows_are_one_shard_of_some_dims_wherever_it_says_that_it_is() {
    let refused = |own: fn(usize) -> Vec<Shard>| {
        same_error(2, |world| ShardedTensor::from_local_rows(own(world.rank()), world))
    };
    let error = refused(|rank| match rank {
        1 => vec![shard(&[0, 0], &[1, 2], 1), shard(&[1, 0], &[1, 2], 1)],
        _ => vec![shard(&[0, 0], &[1, 2], 0)],
    });
    assert!(matches!(error.cause(), Error::OneShardNeeded { rank: 1, got: 2, .. }), "{error}");
    let error = refused(|rank| vec![shard(&[], &[], rank)]);
    assert_eq!(*error.cause(), Error::WrongDims { tensor: 1, shards: 0 });
    // Columns, by what they say of themselves: they are put below each other.
    spmd(2, |world| {
        let own = shard(&[0, 3 * world.rank()], &[2, 3], world.rank());
        let x = ShardedTensor::from_local_rows(vec![own], world)?;
        assert_eq!(x.size(), [4, 3]);
        assert_eq!(x.metadata().shards_metadata[1].offsets(), [2, 0]);
        Ok(())
    });
}

/// A box of another number of dims was compared dim by dim, beyond the end of its list.
#[test]
fn shards_of_different_numbers_of_dims_are_the_same_error_by_every_way() {
    for odd in 0..2 {
        let own = |rank: usize| match rank == odd {
            true => shard(&[2 * rank], &[2], rank),
            false => shard(&[2 * rank, 0], &[2, 3], rank),
        };
        let want = match odd {
            0 => Error::MixedDims { first: 1, other: 2 },
            _ => Error::MixedDims { first: 2, other: 1 },
        };
        let listed = || vec![own(0).metadata().clone(), own(1).metadata().clone()];
        let metadata = || ShardedTensorMetadata {
            shards_metadata: listed(),
            size: vec![4, 3],
            tensor_properties: DType::F32.into(),
        };
        assert_eq!(dtensor_sharded::check_no_overlap(&listed()), Err(want.clone()));
        assert_eq!(ShardedTensorBase::new(Vec::new(), metadata(), None).err(), Some(want.clone()));
        let error = same_error(2, |world| {
            ShardedTensor::from_local_shards(vec![own(world.rank())], &[4, 3], world)
        });
        assert_eq!(error, want);
        let error = same_error(2, |world| {
            let shards = vec![own(world.rank())];
            ShardedTensor::from_local_shards_and_metadata(shards, metadata(), None, world)
        });
        assert_eq!(error, want);
        spmd(2, |world| {
            let group = ProcessGroup::of_world(world);
            assert_eq!(dtensor_sharded::layout_of_metadata(&metadata(), &group), None);
            Ok(())
        });
    }
}
