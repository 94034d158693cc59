//! New tensors.

use dtensor::{DeviceMesh, Placement, random};
use dtensor_local::random::{Distribution, Stream};
use dtensor_sharded::{
    ChunkShardingSpec, DType, Device, EnumerableShardingSpec, Error, Fan, MemoryFormat,
    Nonlinearity, ProcessGroup, Result, Shard, ShardMetadata, ShardedTensor, Tensor, TensorLayout,
    TensorProperties, World, empty, full, ones, rand, randn, zeros,
};
use dtensor_testing::spmd;

use crate::support::{Grid, boxed, boxes, chunks};

#[test]
fn every_rank_makes_its_chunk() {
    spmd(4, |world| {
        for (dim, shape) in
            [(0, [[3, 20], [3, 20], [3, 20], [1, 20]]), (1, [[10, 5]; 4]), (-1, [[10, 5]; 4])]
        {
            let x = ones(chunks(dim, &[0, 1, 2, 3]), &[10, 20], DType::F64, world)?;
            assert_eq!(x.size(), [10, 20]);
            assert_eq!(x.local_tensor()?.shape(), shape[world.rank()]);
            assert_eq!(
                x.local_tensor()?.to_vec::<f64>()?,
                vec![1.0; shape[world.rank()].iter().product()]
            );
            assert_eq!((x.dtype(), x.device(), x.is_pinned()), (DType::F64, Device::CPU, false));
        }
        Ok(())
    });
}

#[test]
fn empty_tensors_have_the_size_and_the_properties_that_are_asked_for() {
    spmd(3, |world| {
        for dtype in DType::ALL {
            for requires_grad in [false, dtype.is_float()] {
                let properties = TensorProperties::new(dtype).requires_grad(requires_grad);
                let x = empty(chunks(0, &[0, 1, 2]), &[5, 10], properties.clone(), world)?;
                assert_eq!(x.metadata().tensor_properties, properties);
                assert_eq!((x.size(), x.requires_grad()), (&[5, 10][..], requires_grad));
                let local = x.local_tensor()?;
                assert_eq!(local.shape(), [[2, 10], [2, 10], [1, 10]][world.rank()]);
                assert_eq!((local.dtype(), x.layout()), (dtype, TensorLayout::Strided));
                assert!(local.is_contiguous() && !local.is_meta());
                // Whatever is in it can be read and written.
                local.as_bytes()?;
            }
        }
        Ok(())
    });
}

#[test]
fn tensors_of_any_number_of_dims_have_the_size_that_is_asked_for() {
    spmd(4, |world| {
        for size in [&[10][..], &[10, 20], &[10, 20, 30], &[10, 20, 30, 4], &[10, 1, 2, 1, 3]] {
            let x = empty(chunks(0, &[0, 1, 2, 3]), size, DType::F32, world)?;
            assert_eq!((x.size(), x.shape(), x.n_dims()), (size, size, size.len()));
            assert_eq!(x.numel(), size.iter().product::<usize>());
            let rows = [3, 3, 3, 1][world.rank()];
            assert_eq!(x.local_tensor()?.shape(), [&[rows], &size[1..]].concat());
        }
        // One element has no dim to cut, but a list may have it.
        let error = empty(chunks(0, &[0, 1, 2, 3]), &[], DType::F32, world);
        assert!(matches!(error, Err(Error::DimOutOfRange { n_dims: 0, .. })));
        let x = empty(boxes(&[(&[], &[], 2)]), &[], DType::F32, world)?;
        assert_eq!((x.size(), x.numel()), (&[][..], 1));
        assert_eq!(x.local_shards().len(), usize::from(world.rank() == 2));
        Ok(())
    });
}

#[test]
fn a_grid_that_is_listed_has_one_square_of_ones_on_every_rank() {
    spmd(4, |world| {
        let squares: Vec<ShardMetadata> =
            (0..4).map(|rank| boxed(&[rank / 2 * 5, rank % 2 * 4], &[5, 4], rank)).collect();
        let list = EnumerableShardingSpec::new(squares.clone())?;
        let x = ones(list, &[10, 8], DType::F32, world)?;
        assert_eq!(x.metadata().shards_metadata, squares);
        assert_eq!(x.local_tensor()?.shape(), [5, 4]);
        assert_eq!(x.local_tensor()?.to_vec::<f32>()?, [1.0; 20]);
        assert!(x.local_shards().map(Shard::metadata).eq([&squares[world.rank()]]));
        Ok(())
    });
}

#[test]
fn placements_say_which_rank_has_which_chunk_and_how_many() {
    spmd(4, |world| {
        let reversed = zeros(chunks(0, &[3, 2, 1, 0]), &[10, 2], DType::F32, world)?;
        assert_eq!(
            reversed.local_tensor()?.shape(),
            [[1, 2], [3, 2], [3, 2], [3, 2]][world.rank()]
        );
        let twice = zeros(chunks(0, &[0, 1, 0, 2, 1, 0]), &[12, 2], DType::F32, world)?;
        assert_eq!(twice.local_shards().len(), [3, 2, 1, 0][world.rank()]);
        let offsets: Vec<usize> =
            twice.local_shards().map(|shard| shard.metadata().offsets()[0]).collect();
        assert_eq!(offsets, [&[0, 4, 10][..], &[2, 8], &[6], &[]][world.rank()]);
        assert!(
            matches!(twice.local_tensor(), Err(Error::OneShardNeeded { .. }))
                == (world.rank() != 2)
        );
        Ok(())
    });
}

#[test]
fn uneven_boxes_may_be_listed() {
    spmd(4, |world| {
        let list = boxes(&[
            (&[0, 0], &[2, 4], 0),
            (&[0, 4], &[4, 2], 1),
            (&[2, 0], &[4, 4], 2),
            (&[4, 4], &[2, 2], 3),
        ]);
        let x = full(list, &[6, 6], 7, DType::I64, world)?;
        assert_eq!(x.local_tensor()?.shape(), [[2, 4], [4, 2], [4, 4], [2, 2]][world.rank()]);
        assert_eq!(x.full_tensor()?.to_vec::<i64>()?, [7; 36]);
        Ok(())
    });
}

#[test]
fn random_values_do_not_depend_on_the_sharding() {
    let specs = |n: usize| {
        let all: Vec<usize> = (0..n).collect();
        let back: Vec<usize> = (0..n).rev().collect();
        let twice = [&all[..], &back[..]].concat();
        vec![chunks(0, &all), chunks(1, &back), chunks(1, &twice), chunks(0, &[0])]
    };
    let mut seen = Vec::new();
    for n in [1, 2, 3] {
        let per_rank = spmd(n, |world| {
            let mut values = Vec::new();
            for spec in specs(n) {
                random::manual_seed(5);
                let uniform =
                    rand(&spec, &[5, 7], DType::F32, world)?.full_tensor()?.to_vec::<f32>()?;
                let normal =
                    randn(&spec, &[5, 7], DType::F64, world)?.full_tensor()?.to_vec::<f64>()?;
                values.push((uniform, normal));
            }
            // And they are those of a distributed tensor.
            random::manual_seed(5);
            let mesh = DeviceMesh::of_world(world, "x")?;
            let uniform = dtensor::rand(&[5, 7], DType::F32, &mesh, &[Placement::Replicate])?
                .to_vec::<f32>()?;
            assert_eq!(uniform, values[0].0);
            Ok(values)
        });
        seen.extend(per_rank.into_iter().flatten());
    }
    assert!(seen.iter().all(|values| *values == seen[0]));
    assert!(seen[0].0.iter().all(|value| (0.0..1.0).contains(value)));
}

#[test]
fn filling_in_place_is_by_global_index_and_whole_fan() {
    spmd(3, |world| {
        let mut rows = zeros(chunks(0, &[0, 1, 2]), &[5, 12], DType::F32, world)?;
        let mut columns = zeros(chunks(1, &[2, 1, 0]), &[5, 12], DType::F32, world)?;
        for fill in 0..3 {
            for x in [&mut rows, &mut columns] {
                random::manual_seed(11 + fill);
                match fill {
                    0 => x.fill_uniform(-2.0, 3.0)?,
                    1 => x.fill_normal(10.0, 0.5)?,
                    _ => x.fill_kaiming_uniform(0.0)?,
                }
            }
            assert_eq!(
                rows.full_tensor()?.to_vec::<f32>()?,
                columns.full_tensor()?.to_vec::<f32>()?
            );
        }
        // sqrt(2) * sqrt(3 / 12), with the fan of the tensor and not of a third of it.
        let bound = std::f32::consts::FRAC_1_SQRT_2;
        let largest = columns
            .full_tensor()?
            .to_vec::<f32>()?
            .into_iter()
            .fold(0.0_f32, |a, b| a.max(b.abs()));
        assert!(largest <= bound && largest > 0.6, "{largest}");
        rows.fill_constant(4)?;
        assert_eq!(rows.full_tensor()?.to_vec::<f32>()?, [4.0; 60]);
        Ok(())
    });
}

/// The bounds of `torch.nn.init.kaiming_uniform_`, whose fans count the further dims too.
#[test]
fn weights_are_filled_by_either_fan_and_for_what_comes_after_in_every_cut() {
    use Nonlinearity::{LeakyRelu, Linear, Relu, Selu, Sigmoid, Tanh};
    let leaky = LeakyRelu { negative_slope: 0.5 };
    let (relu, half) = (2.0_f64.sqrt(), (2.0_f64 / 1.25).sqrt());
    let gains = [
        (Linear, 1.0),
        (Sigmoid, 1.0),
        (Tanh, 5.0 / 3.0),
        (Relu, relu),
        (leaky, half),
        (Selu, 0.75),
    ];
    spmd(3, |world| {
        let size = [4, 6, 5];
        for (fan, n) in [(Fan::In, 30.0_f64), (Fan::Out, 20.0)] {
            for (seed, (nonlinearity, gain)) in gains.into_iter().enumerate() {
                let bound = gain * (3.0 / n).sqrt();
                random::manual_seed(seed as u64);
                let mut whole = zeros(boxes(&[(&[0; 3], &size, 1)]), &size, DType::F64, world)?;
                whole.fill_uniform(-bound, bound)?;
                let want = whole.full_tensor()?.to_vec::<f64>()?;
                for spec in [chunks(0, &[0, 1, 2]), chunks(1, &[2, 2, 0, 1])] {
                    let mut x = zeros(spec, &size, DType::F64, world)?;
                    random::manual_seed(seed as u64);
                    x.fill_kaiming_uniform_with(fan, nonlinearity)?;
                    let got = x.full_tensor()?.to_vec::<f64>()?;
                    assert_eq!(got, want, "{fan:?} {nonlinearity:?}");
                }
            }
        }
        let mut row = zeros(chunks(0, &[0, 1, 2]), &[5], DType::F64, world)?;
        assert!(matches!(row.fill_kaiming_uniform(0.0), Err(Error::Unsupported { .. })));
        Ok(())
    });
}

/// Not only the same in every cut: what one rank with the whole tensor has after that seed.
#[test]
fn filling_in_place_gives_the_values_of_a_whole_tensor_with_that_seed() {
    type Fill = fn(&mut ShardedTensor) -> Result<()>;
    // sqrt(2 / (1 + 0.5^2)) * sqrt(3 / 12)
    let bound = (2.0_f64 / 1.25).sqrt() * 0.5;
    let fills: [(Fill, Distribution); 3] = [
        (|x| x.fill_uniform(-2.0, 3.0), Distribution::Uniform { low: -2.0, high: 3.0 }),
        (|x| x.fill_normal(10.0, 0.5), Distribution::Normal { mean: 10.0, std: 0.5 }),
        (|x| x.fill_kaiming_uniform(0.5), Distribution::Uniform { low: -bound, high: bound }),
    ];
    spmd(3, |world| {
        for dtype in [DType::F32, DType::F64, DType::Bf16] {
            for (seed, (fill, distribution)) in fills.iter().enumerate() {
                random::manual_seed(7 + seed as u64);
                let random::RandomState { seed, offset, .. } = random::state();
                let whole =
                    Tensor::random(&[5, 12], dtype, *distribution, Stream { seed, offset })?;
                for spec in [
                    chunks(0, &[0, 1, 2]),
                    chunks(1, &[2, 0, 0, 1]),
                    boxes(&[(&[0, 0], &[5, 7], 2), (&[0, 7], &[3, 5], 0), (&[3, 7], &[2, 5], 2)]),
                ] {
                    random::manual_seed(seed);
                    let mut x = zeros(&spec, &[5, 12], dtype, world)?;
                    fill(&mut x)?;
                    assert!(x.full_tensor()?.equal(&whole)?, "{dtype} {spec:?}");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn a_part_of_the_world_may_hold_a_tensor_without_values() {
    spmd(4, |world| {
        let group = ProcessGroup::new(world, &[1, 3])?;
        let spec = ChunkShardingSpec::new(0, &["rank:1/meta", "rank:3/meta"])?;
        let x = empty(spec.clone(), &[1 << 40, 8], DType::F32, &group)?;
        let n_own = world.rank() % 2;
        assert_eq!((x.local_shards().len(), x.is_meta()), (n_own, n_own == 1));
        assert_eq!(x.metadata().shards_metadata.len(), 2);
        // Brought along by the members.
        let places = ["", "rank:1/meta", "", "rank:3/meta"];
        let own = (n_own == 1).then(|| {
            let metadata = ShardMetadata::new(
                &[world.rank() / 2 * 3],
                &[3],
                Some(places[world.rank()].parse()?),
            )?;
            Shard::new(Tensor::meta(&[3], DType::I64)?, metadata)
        });
        let own: Vec<Shard> = own.transpose()?.into_iter().collect();
        match (ShardedTensor::from_local_shards(own, &[6], &group), n_own) {
            (Ok(y), 1) => {
                assert!(y.is_meta() && y.size() == [6] && y.dtype() == DType::I64);
            }
            (Err(Error::NotAMember { .. }), 0) => {}
            (other, _) => panic!("{other:?}"),
        }
        // The placement is that of a rank of the world, and of a member.
        let outside = ChunkShardingSpec::new(0, &["rank:0/meta", "rank:1/meta"])?;
        let error = empty(outside, &[4], DType::F32, &group).unwrap_err();
        assert!(matches!(error, Error::RankNotInGroup { rank: 0, .. }), "{error}");
        Ok(())
    });
}

#[test]
fn a_part_of_the_world_may_hold_the_tensor() {
    spmd(4, |world| {
        let group = ProcessGroup::new(world, &[3, 1])?;
        let x = ones(chunks(0, &[1, 3]), &[5, 2], DType::F32, &group)?;
        assert_eq!(x.local_shards().len(), usize::from(world.rank() % 2 == 1));
        assert_eq!(group.rank(), [None, Some(1), None, Some(0)][world.rank()]);
        // The same error inside and outside of the group.
        let error = ones(chunks(0, &[0, 1]), &[5, 2], DType::F32, &group).unwrap_err();
        assert_eq!(
            error,
            Error::RankNotInGroup { op: "ones".into(), rank: 0, group: [3, 1].into() }
        );
        Ok(())
    });
}

#[test]
fn meta_shards_have_a_shape_and_no_values() {
    spmd(2, |world| {
        let spec = ChunkShardingSpec::new(0, &["rank:0/meta", "rank:1/meta"])?;
        let x = zeros(spec, &[1 << 40, 8], DType::F32, world)?;
        assert!(x.is_meta());
        assert_eq!(x.local_tensor()?.shape(), [1 << 39, 8]);
        assert!(matches!(x.full_tensor(), Err(Error::Unsupported { .. })));
        Ok(())
    });
}

#[test]
fn what_cannot_be_made_is_refused_on_every_rank() {
    spmd(2, |world| {
        let props = TensorProperties::default;
        let made = |properties: TensorProperties| {
            zeros(chunks(0, &[0, 1]), &[4, 4], properties, world).unwrap_err()
        };
        assert!(matches!(made(props().layout(TensorLayout::SparseCoo)), Error::WrongLayout { .. }));
        assert!(matches!(
            made(props().memory_format(MemoryFormat::ChannelsLast)),
            Error::WrongMemoryFormat { .. }
        ));
        assert!(matches!(made(props().pin_memory(true)), Error::MissingPinnedMemory { .. }));
        assert!(matches!(
            made(TensorProperties::new(DType::I64).requires_grad(true)),
            Error::NoGradients { .. }
        ));
        let placed = |texts: &[&str]| {
            let spec = ChunkShardingSpec::new(0, texts).unwrap();
            empty(spec, &[4, 4], DType::F32, world).unwrap_err()
        };
        assert!(matches!(
            placed(&["rank:0/cpu", "rank:5/cpu"]),
            Error::RankNotInGroup { rank: 5, .. }
        ));
        assert!(matches!(placed(&["rank:0/cpu", "workerfoo/cpu"]), Error::NoWorkers { .. }));
        assert!(matches!(placed(&["cpu", "cpu"]), Error::NoRank { .. }));
        // On the rank whose device it is, and on the other.
        assert!(matches!(placed(&["rank:0/cpu", "rank:1/cuda:1"]), Error::MissingDevice { .. }));
        assert!(matches!(placed(&["rank:0/cpu", "rank:1/cpu:0"]), Error::MissingDevice { .. }));
        assert!(matches!(rand(chunks(0, &[0, 1]), &[4], DType::I64, world), Err(Error::Local(_))));
        Ok(())
    });
}

#[test]
fn ten_thousand_shards_are_a_tensor_like_any_other() {
    spmd(2, |world| {
        let ranks: Vec<usize> = (0..10_000).map(|index| index % 2).collect();
        let x = ones(chunks(0, &ranks), &[20_000], DType::U8, world)?;
        assert_eq!(x.metadata().shards_metadata.len(), 10_000);
        assert_eq!(x.local_shards().len(), 5_000);
        assert_eq!(x.full_tensor()?.to_vec::<u8>()?, vec![1; 20_000]);
        let y = zeros(Grid::over_ranks(100, ranks), &[200, 200], DType::U8, world)?;
        assert_eq!(y.local_shards().len(), 5_000);
        Ok(())
    });
}

#[test]
fn a_fake_world_has_its_own_shards_and_nobody_to_send_to() {
    let world = World::fake(1000, 7).unwrap();
    let ranks: Vec<usize> = (0..1000).collect();
    let mut x = ones(chunks(0, &ranks), &[2000, 3], DType::F32, &world).unwrap();
    assert_eq!(x.local_tensor().unwrap().shape(), [2, 3]);
    assert!(matches!(x.full_tensor(), Err(Error::Unsupported { .. })));
    assert!(matches!(x.reshard(chunks(1, &ranks)), Err(Error::Unsupported { .. })));
}

/// Smallest, largest, mean and standard deviation.
fn moments(x: &ShardedTensor) -> Result<[f64; 4]> {
    let values = x.full_tensor()?.to_vec::<f64>()?;
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n;
    let smallest = values.iter().copied().fold(f64::INFINITY, f64::min);
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Ok([smallest, largest, mean, variance.sqrt()])
}

#[track_caller]
fn assert_moments(x: &ShardedTensor, want: [f64; 4], within: f64) -> Result<()> {
    let got = moments(x)?;
    let is_near = got.iter().zip(want).all(|(got, want)| (got - want).abs() <= within);
    assert!(is_near, "{got:?} is not {want:?}");
    Ok(())
}

#[test]
fn random_values_have_the_bounds_and_moments_that_are_asked_for() {
    spmd(2, |world| {
        random::manual_seed(1);
        let mut x = zeros(chunks(0, &[1, 0]), &[200, 50], DType::F64, world)?;
        x.fill_uniform(-2.0, 3.0)?;
        assert_moments(&x, [-2.0, 3.0, 0.5, 5.0 / 12.0_f64.sqrt()], 0.05)?;
        assert_moments(&x.rand_like()?, [0.0, 1.0, 0.5, 1.0 / 12.0_f64.sqrt()], 0.02)?;
        x.fill_normal(10.0, 0.5)?;
        let [smallest, largest, mean, std] = moments(&x)?;
        assert!((mean - 10.0).abs() < 0.05 && (std - 0.5).abs() < 0.05, "{mean} {std}");
        assert!(smallest < 9.0 && largest > 11.0, "{smallest} {largest}");
        let [smallest, largest, mean, std] = moments(&x.randn_like()?)?;
        assert!(mean.abs() < 0.1 && (std - 1.0).abs() < 0.1, "{mean} {std}");
        assert!(smallest < -2.0 && largest > 2.0, "{smallest} {largest}");
        // sqrt(2 / (1 + 1)) * sqrt(3 / 50).
        let bound = (3.0_f64 / 50.0).sqrt();
        x.fill_kaiming_uniform(1.0)?;
        assert_moments(&x, [-bound, bound, 0.0, bound / 3.0_f64.sqrt()], 0.01)?;
        // All dims but the first are inputs.
        let mut kernel = zeros(chunks(1, &[0, 1]), &[20, 4, 5, 5], DType::F64, world)?;
        kernel.fill_kaiming_uniform(0.0)?;
        let bound = (6.0_f64 / 100.0).sqrt();
        assert_moments(&kernel, [-bound, bound, 0.0, bound / 3.0_f64.sqrt()], 0.02)?;
        let mut flat = zeros(chunks(0, &[0, 1]), &[4], DType::F64, world)?;
        assert!(matches!(flat.fill_kaiming_uniform(0.0), Err(Error::Unsupported { .. })));
        let mut ints = zeros(chunks(0, &[0, 0]), &[4], DType::I64, world)?;
        assert!(matches!(ints.fill_normal(0.0, 1.0), Err(Error::Local(_))));
        Ok(())
    });
}

#[test]
fn gaussian_values_are_those_of_a_distributed_tensor() {
    spmd(2, |world| {
        random::manual_seed(5);
        let x = randn(chunks(1, &[1, 0]), &[5, 7], DType::F64, world)?.full_tensor()?;
        random::manual_seed(5);
        let mesh = DeviceMesh::of_world(world, "x")?;
        let y = dtensor::randn(&[5, 7], DType::F64, &mesh, &[Placement::Replicate])?;
        assert_eq!(x.to_vec::<f64>()?, y.to_vec::<f64>()?);
        Ok(())
    });
}

#[test]
fn tensors_like_another_have_the_values_of_their_names() {
    spmd(2, |world| {
        let x = empty(chunks(1, &[1, 0]), &[3, 5], DType::F32, world)?;
        assert_eq!((x.size(), x.dtype()), (&[3, 5][..], DType::F32));
        assert_eq!(x.local_tensor()?.shape(), [[3, 2], [3, 3]][world.rank()]);
        for (y, want) in [(x.zeros_like()?, 0.0), (x.ones_like()?, 1.0), (x.full_like(-2)?, -2.0)] {
            assert_eq!(y.full_tensor()?.to_vec::<f32>()?, [want; 15]);
        }
        Ok(())
    });
}
