//! From one spec to another.

use dtensor_sharded::{ChunkShardingSpec, DType, Error, ProcessGroup, Spec, shard_tensor};
use dtensor_testing::spmd;
use proptest::prelude::*;

use crate::support::{Grid, boxes, chunks, cut, numbered, partition, same_error};

#[test]
fn every_spec_becomes_every_other() {
    let specs: Vec<Spec> = vec![
        chunks(0, &[0, 1, 2, 3]),
        chunks(0, &[1, 2, 3, 0]),
        chunks(1, &[0, 1, 2, 3]),
        chunks(-1, &[3, 1, 0, 2]),
        chunks(1, &[2, 2, 0, 1, 0]),
        chunks(0, &[3]),
        Grid::over_ranks(2, [2, 0, 3, 1]).into(),
        boxes(&[(&[0, 0], &[6, 1], 3), (&[0, 1], &[1, 3], 0), (&[1, 1], &[5, 3], 3)]),
    ];
    spmd(4, |world| {
        let want = numbered(&[6, 4]).to_vec::<f32>()?;
        for from in &specs {
            for to in &specs {
                let mut x = cut(&[6, 4], from, world)?;
                let id = x.id();
                x.reshard(to)?;
                let made = to.build_metadata(&[6, 4], &DType::F32.into())?;
                assert_eq!(x.metadata().shards_metadata, made.shards_metadata);
                assert!(x.local_shards().all(|shard| shard.tensor().is_contiguous()));
                assert_eq!(x.full_tensor()?.to_vec::<f32>()?, want, "{from:?} -> {to:?}");
                assert_eq!(x.id(), id);
            }
        }
        Ok(())
    });
}

#[test]
fn sizes_and_dims_of_all_kinds_are_resharded() {
    spmd(4, |world| {
        for size in [&[13_usize, 21][..], &[17, 23], &[4, 15], &[16, 20], &[2, 3], &[5, 1], &[0, 4]]
        {
            for (from, to) in [(0, 0), (0, 1), (1, 0), (1, 1), (-2, -1)] {
                let mut x = cut(size, &chunks(from, &[3, 0, 2, 1]), world)?;
                x.reshard(chunks(to, &[1, 2, 3, 0]))?;
                assert_eq!(x.full_tensor()?.to_vec::<f32>()?, numbered(size).to_vec::<f32>()?);
            }
        }
        let mut x = cut(&[3, 4, 5, 2], &chunks(2, &[0, 1, 2, 3]), world)?;
        x.reshard(chunks(0, &[0, 1, 2, 3]))?;
        x.reshard(chunks(3, &[0, 1, 2, 3]))?;
        assert_eq!(x.full_tensor()?.to_vec::<f32>()?, numbered(&[3, 4, 5, 2]).to_vec::<f32>()?);
        Ok(())
    });
}

#[test]
fn what_stays_is_not_sent_and_what_moves_is_sent_once() {
    spmd(2, |world| {
        let mut x = cut(&[8, 6], &chunks(0, &[0, 1]), world)?;
        let sent = |before: usize| -> u64 {
            world.recorder().records()[before..].iter().map(|record| record.bytes as u64).sum()
        };
        // The same boxes: one call that carries nothing, and the same memory.
        let before = world.recorder().records().len();
        let memory = x.local_tensor()?.as_bytes()?.as_ptr();
        x.reshard(chunks(-2, &[0, 1]))?;
        assert_eq!(sent(before), 0);
        assert_eq!(x.local_tensor()?.as_bytes()?.as_ptr(), memory);
        // Rows to columns: a quarter of the elements goes each way, of 48 of 4 bytes.
        let before = world.recorder().records().len();
        x.reshard(chunks(1, &[0, 1]))?;
        let calls = world.recorder().records().len() - before;
        assert_eq!((calls, sent(before)), (1, 12 * 4));
        Ok(())
    });
}

#[test]
fn shards_of_one_rank_do_not_share_memory_after_a_reshard() {
    spmd(2, |world| {
        let mut x = cut(&[8, 2], &chunks(0, &[0, 1]), world)?;
        x.reshard(chunks(0, &[1, 1, 0, 0, 0]))?;
        let mut places = Vec::new();
        for shard in x.local_shards().filter(|shard| shard.tensor().numel() > 0) {
            let bytes = shard.tensor().as_bytes()?;
            places.push((bytes.as_ptr() as usize, bytes.len()));
        }
        // A buffer of its own each: they are not one after the other in one.
        let follows =
            |(start, length): &(usize, usize)| places.iter().any(|other| other.0 == start + length);
        assert!(places.len() == 2 && !places.iter().any(follows), "{places:?}");
        assert_eq!(x.full_tensor()?.to_vec::<f32>()?, numbered(&[8, 2]).to_vec::<f32>()?);
        Ok(())
    });
}

#[test]
fn all_dtypes_are_resharded() {
    spmd(3, |world| {
        for dtype in DType::ALL {
            let values = numbered(&[5, 7]).to_dtype(dtype)?;
            let mut x = shard_tensor(&values, chunks(0, &[2, 0, 1]), 0, world)?;
            x.reshard(chunks(1, &[0, 1, 2]))?;
            assert!(x.full_tensor()?.equal(&values)?, "{dtype}");
        }
        Ok(())
    });
}

#[test]
fn a_spec_that_does_not_fit_changes_nothing() {
    let refused = |spec: fn() -> Spec| {
        same_error(2, |world| {
            let mut x = cut(&[4, 4], &chunks(0, &[0, 1]), world)?;
            let error = x.reshard(spec());
            assert_eq!(x.full_tensor()?.to_vec::<f32>()?, numbered(&[4, 4]).to_vec::<f32>()?);
            error
        })
    };
    assert!(matches!(refused(|| chunks(2, &[0, 1])), Error::DimOutOfRange { dim: 2, .. }));
    assert!(matches!(refused(|| chunks(0, &[0, 2])), Error::RankNotInGroup { rank: 2, .. }));
    assert!(matches!(refused(|| boxes(&[(&[0, 0], &[4, 3], 0)])), Error::NotCovered { .. }));
    let cuda = || ChunkShardingSpec::new(0, &["rank:0/cuda:0", "rank:1/cuda:1"]).unwrap().into();
    assert!(matches!(refused(cuda), Error::MissingDevice { .. }));
    let meta = || ChunkShardingSpec::new(0, &["rank:0/meta", "rank:1/meta"]).unwrap().into();
    assert!(matches!(refused(meta), Error::ShardDevice { .. }));
}

#[test]
fn gradients_pass_back_through_a_reshard() {
    spmd(2, |world| {
        let mut x = cut(&[4, 3], &chunks(0, &[0, 1]), world)?;
        x.set_requires_grad(true)?;
        let y = x.mul(2.0)?.resharded(chunks(1, &[0, 1]))?;
        assert!(y.requires_grad() && !y.is_leaf());
        let mut z = y.clone();
        z.reshard(chunks(0, &[0, 1]))?;
        let loss = z.mul(&z)?.to_dtensor()?.sum(&[], false)?;
        let gradient = x.gradient(&loss.backward()?)?.expect("a gradient");
        let want: Vec<f32> = (0..12).map(|n| 8.0 * n as f32).collect();
        assert_eq!(gradient.full_tensor()?.to_vec::<f32>()?, want);
        // Where they could not, it is said; a parameter is resharded in place all the same.
        assert!(matches!(y.resharded(chunks(1, &[1, 0])), Err(Error::Unsupported { .. })));
        assert!(y.detach().resharded(chunks(1, &[1, 0])).is_ok());
        x.reshard(chunks(1, &[1, 0]))?;
        assert!(x.requires_grad() && x.is_leaf());
        Ok(())
    });
}

/// The numbers of elements that go from rank to rank are those of one dim as of the other.
#[test]
fn ranks_that_mean_different_specs_are_told_so_and_nothing_moves() {
    for requires_grad in [false, true] {
        let errors = spmd(2, |world| {
            let mut x = cut(&[4, 4, 4], &chunks(0, &[0, 1]), world)?;
            x.set_requires_grad(requires_grad)?;
            let before = x.local_tensor()?.to_vec::<f32>()?;
            let dim = 1 + world.rank() as isize;
            let error = x.resharded(chunks(dim, &[0, 1])).err();
            assert_eq!(x.local_tensor()?.to_vec::<f32>()?, before);
            Ok(error)
        });
        for error in errors {
            let error = error.expect("specs that differ were taken");
            assert!(matches!(error, Error::Comm { .. }), "{error}");
            assert!(error.to_string().contains("called different things"), "{error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn there_and_back_is_the_identity_for_random_boxes_on_random_ranks(
        n_ranks in 1..5_usize,
        size in proptest::collection::vec(1..9_usize, 1..4),
        a in proptest::collection::vec((0..99_usize, 0..4_usize, 0..9_usize, 0..5_usize), 0..12),
        b in proptest::collection::vec((0..99_usize, 0..4_usize, 0..9_usize, 0..5_usize), 0..12),
    ) {
        spmd(n_ranks, |world| {
            let (a, b) = (partition(&size, &a, n_ranks), partition(&size, &b, n_ranks));
            let first = cut(&size, &a, world)?;
            let mut x = first.clone();
            x.reshard(&b)?;
            assert_eq!(x.full_tensor()?.to_vec::<f32>()?, numbered(&size).to_vec::<f32>()?);
            x.reshard(&a)?;
            assert!(x.equal(&first)?);
            Ok(())
        });
    }
}

#[test]
fn a_part_of_the_world_reshards_alone() {
    spmd(5, |world| {
        let group = ProcessGroup::new(world, &[4, 1, 3])?;
        let mut x = cut(&[7, 5], &chunks(0, &[1, 3, 4]), &group)?;
        x.reshard(chunks(1, &[3, 4, 1]))?;
        assert_eq!(x.local_shards().len(), usize::from(group.rank().is_some()));
        if group.rank().is_some() {
            assert_eq!(x.full_tensor()?.to_vec::<f32>()?, numbered(&[7, 5]).to_vec::<f32>()?);
        }
        Ok(())
    });
}
