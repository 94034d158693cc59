//! Sharded tensors on a real world.

use dtensor_checkpoint::{LoadOptions, SaveOptions, State, save};
use dtensor_sharded::{
    ChunkShardingSpec, DType, Device, EnumerableShardingSpec, Error, ProcessGroup, Shard,
    ShardMetadata, ShardPlacement, ShardedTensor, Spec, Tensor, World, checkpoint,
    embedding::{BagMode, BagOptions, embedding_bag, embedding_bag_backward},
    shard_tensor, zeros,
};

use super::{checkpoints::Scratch, tensors::text};

/// 7 does not divide by 2, 3, 4 or 6, and of 3 columns the later ranks may get none.
pub(super) const SIZE: [usize; 2] = [7, 3];

/// From what every rank brings, also a rank with two shards and one with none; gathered on every rank.
pub(super) fn constructed(world: &World) -> Result<(), String> {
    let (rank, n) = (world.rank(), world.size());
    let rows = 3 - rank % 3;
    let own = Tensor::full(&[rows, 2], rank as f32).map_err(text)?;
    let shard = Shard::from_tensor_and_offsets(own, &[0, 0], rank).map_err(text)?;
    let x = ShardedTensor::from_local_rows(vec![shard], world).map_err(text)?;
    let want: Vec<f32> = (0..n).flat_map(|rank| vec![rank as f32; 2 * (3 - rank % 3)]).collect();
    same(&x.full_tensor().map_err(text)?, &want, "rows of all ranks")?;
    // Two boxes on the last rank and one on the first.
    let spec = boxes(n)?;
    let properties = DType::F32.into();
    let metadata = spec.build_metadata(&SIZE, &properties).map_err(text)?;
    let mut shards = Vec::new();
    for shard in metadata.shards_of(rank) {
        let mut part = numbered(&SIZE)?;
        for (dim, (start, length)) in shard.offsets().iter().zip(shard.sizes()).enumerate() {
            part = part.narrow(dim as isize, *start, *length).map_err(text)?;
        }
        let part = part.contiguous();
        shards.push(Shard::new(part, shard.clone()).map_err(text)?);
    }
    let x = ShardedTensor::from_local_shards(shards, &SIZE, world).map_err(text)?;
    let want = numbered(&SIZE)?.to_vec::<f32>().map_err(text)?;
    for dst in 0..n {
        match x.gather(dst).map_err(text)? {
            Some(whole) if rank == dst => same(&whole, &want, "gathered")?,
            None if rank != dst => {}
            _ => return Err(format!("rank {rank} has the wrong end of a gather on {dst}")),
        }
    }
    Ok(())
}

/// Every spec becomes every other, on all ranks and on some.
pub(super) fn resharded(world: &World) -> Result<(), String> {
    let want = numbered(&SIZE)?.to_vec::<f32>().map_err(text)?;
    for from in specs(world.size())? {
        for to in specs(world.size())? {
            let mut x = shard_tensor(&numbered(&SIZE)?, &from, 0, world).map_err(text)?;
            x.reshard(&to).map_err(text)?;
            let whole = x.full_tensor().map_err(text)?;
            same(&whole, &want, &format!("{from:?} to {to:?}"))?;
        }
    }
    // The last ranks, in the opposite order.
    let some: Vec<usize> = (world.size() / 2..world.size()).rev().collect();
    let group = ProcessGroup::new(world, &some).map_err(text)?;
    let rows = ChunkShardingSpec::over_ranks(0, some.iter().copied()).map_err(text)?;
    let columns = ChunkShardingSpec::over_ranks(1, some.iter().rev().copied()).map_err(text)?;
    let mut x = shard_tensor(&numbered(&SIZE)?, rows, 0, &group).map_err(text)?;
    x.reshard(columns).map_err(text)?;
    match group.rank() {
        Some(_) => same(&x.full_tensor().map_err(text)?, &want, "on some ranks"),
        None => Ok(()),
    }
}

/// Bags of other ids on every rank, and their way back.
pub(super) fn looked_up(world: &World) -> Result<(), String> {
    let (rank, n) = (world.rank(), world.size());
    let ids = [rank % SIZE[0], 6, 6];
    let ids_tensor = Tensor::from_vec(ids.map(|id| id as i64).to_vec(), &[1, 3]).map_err(text)?;
    let options = BagOptions { mode: BagMode::Sum, ..BagOptions::default() };
    let row = |id: usize, column: usize| (id * SIZE[1] + column) as f32;
    for spec in specs(n)? {
        let table = shard_tensor(&numbered(&SIZE)?, &spec, 0, world).map_err(text)?;
        let bag = embedding_bag(&ids_tensor, None, &table, &options).map_err(text)?;
        let want: Vec<f32> =
            (0..SIZE[1]).map(|column| ids.iter().map(|id| row(*id, column)).sum()).collect();
        same(&bag, &want, &format!("a bag of {spec:?}"))?;
        let ones = Tensor::full(&[1, SIZE[1]], 1.0_f32).map_err(text)?;
        let gradient = embedding_bag_backward(&ones, &ids_tensor, None, &table, &options);
        let gradient = gradient.map_err(text)?.table.full_tensor().map_err(text)?;
        // How often all ranks together have taken a row.
        let times = |id: usize| {
            let first = (0..n).filter(|rank| rank % SIZE[0] == id).count();
            (first + if id == 6 { 2 * n } else { 0 }) as f32
        };
        let want: Vec<f32> = (0..SIZE[0]).flat_map(|id| vec![times(id); SIZE[1]]).collect();
        same(&gradient, &want, &format!("the gradient of {spec:?}"))?;
    }
    Ok(())
}

/// Saved in every cut, loaded in every other.
pub(super) fn saved(world: &World) -> Result<(), String> {
    let scratch = Scratch::new(world)?;
    let want = numbered(&SIZE)?.to_vec::<f32>().map_err(text)?;
    for (number, from) in specs(world.size())?.into_iter().enumerate() {
        let path = scratch.path(&number.to_string());
        let x = shard_tensor(&numbered(&SIZE)?, &from, 0, world).map_err(text)?;
        let mut state = State::new();
        checkpoint::insert(&mut state, "x", &x).map_err(text)?;
        save(world, &state, &path, &SaveOptions::default()).map_err(text)?;
        for to in specs(world.size())? {
            let mut y = zeros(&to, &SIZE, DType::F32, world).map_err(text)?;
            let (rest, options) = (&mut State::new(), LoadOptions::default());
            let tensors = &mut [("x", &mut y)];
            checkpoint::load(world, rest, tensors, &path, &options).map_err(text)?;
            let whole = y.full_tensor().map_err(text)?;
            same(&whole, &want, &format!("{from:?} loaded as {to:?}"))?;
        }
    }
    Ok(())
}

/// What is wrong with the shard of one rank is the same error on all, and the world goes on.
pub(super) fn refused(world: &World) -> Result<(), String> {
    let (rank, n) = (world.rank(), world.size());
    for bad in 0..n {
        // It says that its shard lies on a rank that there is not.
        let place = if rank == bad { n } else { rank };
        let own = Tensor::full(&[1], 1.0_f32).map_err(text)?;
        let shard = Shard::from_tensor_and_offsets(own, &[rank], place).map_err(text)?;
        match ShardedTensor::from_local_shards(vec![shard], &[n], world) {
            Err(Error::Rank { rank, error }) if rank == bad => {
                if !matches!(*error, Error::WrongRank { .. }) {
                    return Err(format!("of a shard of rank {bad}: {error}"));
                }
            }
            other => return Err(format!("of a shard of rank {bad}: {other:?}")),
        }
        let rows = ChunkShardingSpec::over_ranks(0, 0..n).map_err(text)?;
        let after = shard_tensor(&numbered(&SIZE)?, rows, bad, world).map_err(text)?;
        after.full_tensor().map_err(text)?;
    }
    Ok(())
}

pub(super) fn specs(n: usize) -> Result<Vec<Spec>, String> {
    let chunks = |dim: isize, ranks: Vec<usize>| {
        ChunkShardingSpec::over_ranks(dim, ranks).map(Spec::from).map_err(text)
    };
    Ok(vec![
        chunks(0, (0..n).collect())?,
        chunks(1, (0..n).collect())?,
        chunks(0, (0..n).rev().collect())?,
        // Several shards per rank, and ranks without any.
        chunks(1, vec![n - 1, 0, n - 1])?,
        boxes(n)?,
    ])
}

/// Two boxes on the last rank and one on the first.
fn boxes(n: usize) -> Result<Spec, String> {
    let boxed = |offsets: [usize; 2], sizes: [usize; 2], rank: usize| {
        let placement = ShardPlacement::on_rank(rank, Device::CPU);
        ShardMetadata::new(&offsets, &sizes, Some(placement)).map_err(text)
    };
    let last = n - 1;
    let shards =
        vec![boxed([0, 0], [7, 1], last)?, boxed([0, 1], [2, 2], 0)?, boxed([2, 1], [5, 2], last)?];
    EnumerableShardingSpec::new(shards).map(Spec::from).map_err(text)
}

/// A tensor in which every element has its own value.
pub(super) fn numbered(size: &[usize]) -> Result<Tensor, String> {
    let n: usize = size.iter().product();
    Tensor::from_vec((0..n).map(|index| index as f32).collect(), size).map_err(text)
}

pub(super) fn same(got: &Tensor, want: &[f32], what: &str) -> Result<(), String> {
    let got = got.to_vec::<f32>().map_err(text)?;
    match got == want {
        true => Ok(()),
        false => Err(format!("{what}: got {got:?}, want {want:?}")),
    }
}
