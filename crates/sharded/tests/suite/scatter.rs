//! From a tensor that one rank has.

use dtensor_sharded::{
    ChunkShardingSpec, DType, Error, ProcessGroup, Result, ShardedTensor, Spec, Tensor, World,
    shard_tensor,
};
use dtensor_testing::spmd;

use crate::support::{Grid, boxes, chunks, numbered, same_error};

#[test]
fn a_tensor_is_cut_from_any_rank_by_any_spec() {
    let specs: Vec<Spec> = vec![
        chunks(0, &[0, 1, 2, 3]),
        chunks(1, &[3, 1, 0, 2]),
        chunks(-1, &[0, 1, 2, 3]),
        chunks(0, &[2]),
        chunks(1, &[0, 3, 0, 1, 1]),
        Grid::over_ranks(2, [1, 1, 0, 3]).into(),
        boxes(&[(&[0, 0], &[6, 1], 3), (&[0, 1], &[1, 3], 0), (&[1, 1], &[5, 3], 3)]),
    ];
    spmd(4, |world| {
        for spec in &specs {
            for src in 0..4 {
                let mine =
                    numbered(&[6, 4]).mul_scalar(if world.rank() == src { 1.0 } else { -1.0 })?;
                let x = shard_tensor(&mine, spec, src, world)?;
                assert_eq!(x.full_tensor()?.to_vec::<f32>()?, numbered(&[6, 4]).to_vec::<f32>()?);
                assert!(x.local_shards().all(|shard| shard.tensor().is_contiguous()));
            }
        }
        Ok(())
    });
}

#[test]
fn ranks_that_cut_differently_are_told_so() {
    let tried = |body: fn(&World) -> Result<ShardedTensor>| same_error(4, body);
    let differ = |error: Error, of: &str| match error {
        Error::RanksDiffer { property, .. } => assert_eq!(property, of),
        other => panic!("{other}"),
    };
    differ(
        tried(|world| {
            shard_tensor(&numbered(&[4]), chunks(0, &[0, 1, 2, 3]), world.rank() / 3, world)
        }),
        "src_rank",
    );
    differ(
        tried(|world| {
            shard_tensor(
                &numbered(&[4, 4]),
                chunks(world.rank() as isize / 3, &[0, 1, 2, 3]),
                0,
                world,
            )
        }),
        "sharding spec",
    );
    differ(
        tried(|world| {
            shard_tensor(&numbered(&[4 + world.rank() / 2]), chunks(0, &[0, 1]), 0, world)
        }),
        "size",
    );
    differ(
        tried(|world| {
            let tensor =
                numbered(&[4]).to_dtype(if world.rank() == 1 { DType::F64 } else { DType::F32 })?;
            shard_tensor(&tensor, chunks(0, &[0, 1]), 0, world)
        }),
        "dtype",
    );
    let error = tried(|world| {
        let tensor = match world.rank() {
            2 => numbered(&[4, 3]).transpose(0, 1)?,
            _ => numbered(&[3, 4]),
        };
        shard_tensor(&tensor, chunks(0, &[0, 1]), 0, world)
    });
    assert!(matches!(error, Error::Rank { rank: 2, .. }));
    let error = tried(|world| shard_tensor(&numbered(&[4]), chunks(0, &[0, 1]), 4, world));
    assert!(matches!(error.cause(), Error::NoSuchGroupRank { rank: 4, size: 4, .. }));
    let error = tried(|world| shard_tensor(&numbered(&[4]), chunks(0, &[0, 5]), 0, world));
    assert!(matches!(error.cause(), Error::RankNotInGroup { rank: 5, .. }));
}

#[test]
fn sources_count_within_the_group() {
    spmd(4, |world| {
        let group = ProcessGroup::new(world, &[3, 2])?;
        let mine = Tensor::full(&[4], world.rank() as f32)?;
        let x = shard_tensor(&mine, chunks(0, &[2, 3]), 1, &group)?;
        if group.rank().is_some() {
            assert_eq!(x.full_tensor()?.to_vec::<f32>()?, [2.0; 4]);
        }
        assert_eq!(x.local_shards().len(), world.rank() / 2);
        Ok(())
    });
}

#[test]
fn devices_that_nothing_can_be_sent_to_are_the_same_error_on_all() {
    let refused = |places: &'static [&'static str]| {
        same_error(2, |world| {
            shard_tensor(&numbered(&[4]), ChunkShardingSpec::new(0, places)?, 0, world)
        })
    };
    let error = refused(&["rank:0/meta", "rank:1/meta"]);
    assert!(matches!(error.cause(), Error::ShardDevice { .. }), "{error}");
    let error = refused(&["rank:0/cpu", "rank:1/cuda:0"]);
    assert!(matches!(error.cause(), Error::MissingDevice { .. }), "{error}");
    // Nor is there anything to send of a tensor without values.
    let error = same_error(2, |world| {
        let tensor = match world.rank() {
            1 => Tensor::meta(&[4], DType::F32)?,
            _ => numbered(&[4]),
        };
        shard_tensor(&tensor, chunks(0, &[0, 1]), 1, world)
    });
    assert!(matches!(error, Error::Rank { rank: 1, .. }), "{error}");
}
