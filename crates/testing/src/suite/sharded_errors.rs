//! What is wrong with sharded tensors, by category: the same error on every rank of a real world, and the world goes on.

use dtensor_sharded::{
    ChunkShardingSpec, DType, Device, EnumerableShardingSpec, Error, ProcessGroup, Result, Shard,
    ShardMetadata, ShardPlacement, ShardedTensor, Spec, Tensor, World, module::shard_parameter,
    shard_tensor, zeros,
};

use super::{sharded_modules::layer, tensors::text};

/// One way to be wrong: what every rank does, and whether the error is the one that was meant.
struct Wrong {
    what: &'static str,
    run: fn(&World) -> Result<()>,
    is_meant: fn(&Error) -> bool,
}

/// Of each category of PyTorch's errors at least one. The last rank differs from the others where they can differ.
const WRONG: &[Wrong] = &[
    Wrong {
        what: "a placement on a rank that there is not",
        run: |world| zeros(rows(&[0, world.size()])?, &[4], DType::F32, world).map(drop),
        is_meant: |error| matches!(error, Error::RankNotInGroup { .. }),
    },
    Wrong {
        what: "a placement by the name of a worker, without workers",
        run: |world| {
            let spec = ChunkShardingSpec::new(0, &["worker0/cpu"])?;
            zeros(spec, &[4], DType::F32, world).map(drop)
        },
        is_meant: |error| matches!(error, Error::NoWorkers { .. }),
    },
    Wrong {
        what: "a dim that the tensor does not have",
        run: |world| {
            let spec = ChunkShardingSpec::over_ranks(2, 0..world.size())?;
            zeros(spec, &[4, 3], DType::F32, world).map(drop)
        },
        is_meant: |error| matches!(error, Error::DimOutOfRange { .. }),
    },
    Wrong {
        what: "boxes that do not cover the tensor",
        run: |world| {
            let placement = ShardPlacement::on_rank(0, Device::CPU);
            let shard = ShardMetadata::new(&[0], &[3], Some(placement))?;
            let spec = EnumerableShardingSpec::new(vec![shard])?;
            zeros(spec, &[4], DType::F32, world).map(drop)
        },
        is_meant: |error| matches!(error, Error::NotCovered { .. }),
    },
    Wrong {
        what: "shards of all ranks that overlap",
        run: |world| {
            let own = Tensor::full(&[2], 1.0_f32)?;
            let (rank, size) = (world.rank(), [2 * world.size() + 1]);
            let first = Shard::from_tensor_and_offsets(own.clone(), &[2 * rank], rank)?;
            let second = Shard::from_tensor_and_offsets(own, &[2 * rank + 1], rank)?;
            ShardedTensor::from_local_shards(vec![first, second], &size, world).map(drop)
        },
        is_meant: |error| matches!(error, Error::Overlap { .. }),
    },
    Wrong {
        what: "dtypes that are different among shards",
        run: |world| {
            let dtype = if is_last(world) { DType::F64 } else { DType::F32 };
            let rank = world.rank();
            let first =
                Shard::from_tensor_and_offsets(Tensor::zeros(&[1], dtype)?, &[2 * rank], rank)?;
            let second = Tensor::zeros(&[1], DType::F32)?;
            let second = Shard::from_tensor_and_offsets(second, &[2 * rank + 1], rank)?;
            let size = [2 * world.size()];
            ShardedTensor::from_local_shards(vec![first, second], &size, world).map(drop)
        },
        is_meant: |error| matches!(error, Error::LocalShardsDiffer { .. }),
    },
    Wrong {
        what: "a destination that is not there",
        run: |world| cut(world)?.gather(world.size()).map(drop),
        is_meant: |error| matches!(error, Error::NoSuchGroupRank { .. }),
    },
    Wrong {
        what: "an output on no rank",
        run: |world| cut(world)?.gather_into(world.size() - 1, None, None),
        is_meant: |error| matches!(error, Error::OutMissing { .. }),
    },
    Wrong {
        what: "an output of another shape",
        run: |world| {
            let mut out = Tensor::zeros(&[5], DType::F32)?;
            let out = is_last(world).then_some(&mut out);
            cut(world)?.gather_into(world.size() - 1, out, None)
        },
        is_meant: |error| matches!(error, Error::OutShape { .. }),
    },
    Wrong {
        what: "a reshard to a rank that there is not",
        run: |world| cut(world)?.reshard(rows(&[world.size()])?),
        is_meant: |error| matches!(error, Error::RankNotInGroup { .. }),
    },
    Wrong {
        what: "a source that is not contiguous",
        run: |world| {
            let mut whole = Tensor::zeros(&[4, 3], DType::F32)?;
            if is_last(world) {
                whole = Tensor::zeros(&[3, 4], DType::F32)?.transpose(0, 1)?;
            }
            shard_tensor(&whole, rows(&[0])?, 0, world).map(drop)
        },
        is_meant: |error| matches!(error, Error::NotContiguous { .. }),
    },
    Wrong {
        what: "a source rank that is not there",
        run: |world| {
            shard_tensor(&Tensor::zeros(&[4], DType::F32)?, rows(&[0])?, world.size(), world)
                .map(drop)
        },
        is_meant: |error| matches!(error, Error::NoSuchGroupRank { .. }),
    },
    Wrong {
        what: "an operand that is cut otherwise",
        run: |world| {
            let shorter = Tensor::zeros(&[3], DType::F32)?;
            cut(world)?.add(&shard_tensor(&shorter, rows(&[0])?, 0, world)?).map(drop)
        },
        is_meant: |error| matches!(error, Error::DifferentShards { .. }),
    },
    Wrong {
        what: "shards of others, without references to them",
        run: |world| cut(world)?.remote_shards().map(drop),
        is_meant: |error| matches!(error, Error::NoRemoteShards { .. }),
    },
    Wrong {
        what: "bytes that are no tensor",
        run: |world| {
            let group = ProcessGroup::of_world(world);
            ShardedTensor::from_bytes_on(b"no tensor", &group).map(drop)
        },
        is_meant: |error| matches!(error, Error::BadState { .. }),
    },
];

pub(super) fn same_on_all(world: &World) -> Result<(), String> {
    for Wrong { what, run, is_meant } in WRONG {
        let error = run(world).err().ok_or_else(|| format!("{what} is no error"))?;
        agreed(world, what, &error)?;
        if !is_meant(error.cause()) {
            return Err(format!("{what}: {error}"));
        }
    }
    // A name that a module does not have, on one rank.
    let mut module = layer()?;
    let name = if is_last(world) { "other" } else { "weight" };
    let group = ProcessGroup::of_world(world);
    let spec = rows(&[0]).map_err(text)?;
    match shard_parameter(&mut module, name, spec, 0, &group) {
        Err(error) if matches!(error.cause(), Error::NoSuchName { .. }) => {
            agreed(world, "a name that a module does not have", &error)
        }
        other => Err(format!("a name that a module does not have: {other:?}")),
    }
}

/// All ranks got it. That they can still say so to each other is part of it.
fn agreed(world: &World, what: &str, error: &Error) -> Result<(), String> {
    let own = error.to_string();
    let all = world.group().all_gather_lists(own.as_bytes()).map_err(text)?;
    match all.iter().find(|other| **other != own.as_bytes()) {
        None => Ok(()),
        Some(other) => {
            Err(format!("{what}: {own}, and elsewhere {}", String::from_utf8_lossy(other)))
        }
    }
}

fn is_last(world: &World) -> bool {
    world.rank() == world.size() - 1
}

fn rows(ranks: &[usize]) -> Result<Spec> {
    ChunkShardingSpec::over_ranks(0, ranks.iter().copied()).map(Spec::from)
}

/// Four elements on all ranks.
fn cut(world: &World) -> Result<ShardedTensor> {
    let ranks: Vec<usize> = (0..world.size()).collect();
    shard_tensor(&Tensor::full(&[4], 1.0_f32)?, rows(&ranks)?, 0, world)
}
