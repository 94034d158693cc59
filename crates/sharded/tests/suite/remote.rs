//! References to the shards of other ranks.

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use dtensor_sharded::{
    DType, Device, Error, ProcessGroup, RemoteShards, Result, Scalar, Shard, ShardedTensor, Tensor,
    TensorOptions, World, full, load_with_process_group,
    rpc::{self, Agent, init_rpc, init_rpc_with_addresses},
    shard_tensor,
};
use dtensor_testing::{Failure, spmd};

use crate::support::{Grid, boxes, chunks, numbered};

/// A program of workers, which leave together and must have nothing left of what they owned.
#[track_caller]
pub fn with_workers(n_ranks: usize, body: impl Fn(&World, &Agent) -> Result<(), Failure> + Sync) {
    spmd(n_ranks, |world| {
        let agent = init_rpc(world, &format!("worker{}", world.rank()), rpc::Options::default())?;
        body(world, &agent)?;
        // Every owner has heard of every reference that was dropped.
        agent.flush(None)?;
        world.group().barrier()?;
        assert_eq!((agent.owned(), agent.forks(), agent.references()), (0, 0, 0), "leaked");
        Ok(agent.shutdown()?)
    });
}

/// A numbered tensor with references.
pub fn referenced(
    size: &[usize],
    spec: &dtensor_sharded::Spec,
    options: &TensorOptions,
) -> Result<ShardedTensor> {
    let mut x = full(spec, size, 0.0, DType::F32, options)?;
    let (from, group) = (numbered(size), x.process_group().clone());
    let values = shard_tensor(&from, spec, 0, &group)?;
    x.copy_from(&values)?;
    Ok(x)
}

/// What every reference gives, put together by rank.
fn fetched(shards: &RemoteShards) -> Result<Vec<(usize, Vec<Vec<f32>>)>> {
    let fetch =
        |shard: &dtensor_sharded::RemoteShard| Ok(shard.to_here(None)?.tensor().to_vec::<f32>()?);
    shards
        .iter()
        .map(|(rank, list)| Ok((*rank, list.iter().map(fetch).collect::<Result<_>>()?)))
        .collect()
}

/// What all other ranks have, by way of a gather.
fn expected(x: &ShardedTensor) -> Result<Vec<(usize, Vec<Vec<f32>>)>> {
    let whole = x.full_tensor()?;
    let own = x.process_group().world_rank();
    let mut by_rank = std::collections::BTreeMap::<usize, Vec<Vec<f32>>>::new();
    for shard in x.metadata().shards_metadata.iter().filter(|shard| shard.rank() != Some(own)) {
        let mut part = whole.clone();
        for dim in 0..shard.n_dims() {
            part = part.narrow(dim as isize, shard.range(dim).start, shard.range(dim).len())?;
        }
        by_rank.entry(shard.rank().unwrap()).or_default().push(part.contiguous().to_vec()?);
    }
    Ok(by_rank.into_iter().collect())
}

#[test]
fn every_rank_fetches_what_the_others_have_in_their_order() {
    let specs = [
        chunks(0, &[0, 1, 2, 3]),
        chunks(1, &[3, 1, 0, 2]),
        chunks(0, &[2, 0]),
        chunks(1, &[1, 1, 3, 1]),
        Grid::over_ranks(2, [2, 0, 3, 1]).into(),
        boxes(&[(&[0, 0], &[6, 1], 3), (&[0, 1], &[1, 3], 0), (&[1, 1], &[5, 3], 3)]),
    ];
    with_workers(4, |world, agent| {
        for spec in &specs {
            let x = referenced(&[6, 4], spec, &TensorOptions::on(world).init_rrefs(agent))?;
            world.group().barrier()?;
            let shards = x.remote_shards()?;
            assert_eq!(fetched(shards)?, expected(&x)?);
            for (rank, list) in shards {
                let metadata: Vec<_> = x.metadata().shards_of(*rank).collect();
                assert_eq!(list.len(), metadata.len());
                for (reference, metadata) in list.iter().zip(metadata) {
                    assert_eq!(reference.metadata(), metadata);
                    assert_eq!(reference.to_here(None)?.metadata(), metadata);
                    assert_eq!((reference.owner().id, reference.is_owner()), (*rank, false));
                    assert!(reference.confirmed_by_owner());
                }
            }
            // Nobody drops the tensor while others still fetch it: not because they could not, but to compare
            // counts.
            let n_own = x.local_shards().len();
            world.group().barrier()?;
            assert_eq!((agent.owned(), agent.forks()), (n_own, 3 * n_own));
            world.group().barrier()?;
        }
        Ok(())
    });
}

#[test]
fn a_fetch_sees_what_was_written_since_and_is_a_copy() {
    with_workers(2, |world, agent| {
        let mut x =
            referenced(&[4, 3], &chunks(0, &[0, 1]), &TensorOptions::on(world).init_rrefs(agent))?;
        let other = 1 - world.rank();
        world.group().barrier()?;
        let before = x.remote_shards()?[&other][0].to_here(None)?;
        let pointer = |x: &ShardedTensor| x.local_tensor().unwrap().as_bytes().unwrap().as_ptr();
        world.group().barrier()?;
        x.fill_constant(Scalar::from(7.0))?;
        world.group().barrier()?;
        assert_eq!(
            x.remote_shards()?[&other][0].to_here(None)?.tensor().to_vec::<f32>()?,
            [7.0; 6]
        );
        assert_ne!(before.tensor().to_vec::<f32>()?, [7.0; 6]);
        world.group().barrier()?;
        // That others can see it does not keep it from being changed in place.
        let at = pointer(&x);
        x.copy_from(&x.zeros_like()?)?;
        assert_eq!(pointer(&x), at);
        world.group().barrier()?;
        let fetched = x.remote_shards()?[&other][0].to_here(None)?;
        assert_eq!(
            (fetched.tensor().to_vec::<f32>()?, fetched.requires_grad()),
            (vec![0.0; 6], false)
        );
        world.group().barrier()?;
        x.set_requires_grad(true)?;
        world.group().barrier()?;
        assert!(x.remote_shards()?[&other][0].to_here(None)?.requires_grad());
        world.group().barrier()?;
        Ok(())
    });
}

#[test]
fn every_dtype_arrives_as_it_is() {
    with_workers(2, |world, agent| {
        for dtype in [DType::F64, DType::Bf16, DType::F16, DType::I64, DType::U8, DType::Bool] {
            let options = TensorOptions::on(world).init_rrefs(agent);
            let x = full(chunks(0, &[0, 1]), &[5], 1.0, dtype, options)?;
            let other = 1 - world.rank();
            let got = x.remote_shards()?[&other][0].to_here(None)?;
            let want = full(chunks(0, &[0, 1]), &[5], 1.0, dtype, world)?.full_tensor()?;
            assert!(got.tensor().equal(&want.narrow(0, 0, got.tensor().numel())?)?);
            world.group().barrier()?;
        }
        // Without values there is nothing to send but what it is.
        let spec = dtensor_sharded::ChunkShardingSpec::new(0, &["rank:0/meta", "rank:1/meta"])?;
        let x = full(spec, &[5], 1.0, DType::F32, TensorOptions::on(world).init_rrefs(agent))?;
        assert!(x.remote_shards()?[&(1 - world.rank())][0].to_here(None)?.tensor().is_meta());
        world.group().barrier()?;
        Ok(())
    });
}

#[test]
fn every_way_to_a_tensor_gives_references_if_they_are_wanted() {
    with_workers(2, |world, agent| {
        let (rank, other) = (world.rank(), 1 - world.rank());
        let options = TensorOptions::on(world).init_rrefs(agent);
        let mine = Tensor::full(&[2, 3], rank as f32)?;
        let shard = || Shard::from_tensor_and_offsets(mine.clone(), &[2 * rank, 0], rank);
        let spec = chunks(0, &[0, 1]);
        let metadata = spec.build_metadata(&[4, 3], &DType::F32.into())?;
        let base = dtensor_sharded::ShardedTensorBase::new(vec![shard()?], metadata.clone(), None)?;
        let made = [
            ShardedTensor::from_local_shards(vec![shard()?], &[4, 3], &options)?,
            ShardedTensor::from_local_rows(vec![shard()?], &options)?,
            ShardedTensor::from_local_shards_and_metadata(
                vec![shard()?],
                metadata,
                None,
                &options,
            )?,
            ShardedTensor::from_base(base, &options)?,
            ShardedTensor::from_local_tensor(&mine, &spec, &[4, 3], &options)?,
        ];
        for x in &made {
            let got = x.remote_shards()?[&other][0].to_here(None)?;
            assert_eq!(got.tensor().to_vec::<f32>()?, [other as f32; 6]);
        }
        world.group().barrier()?;
        Ok(())
    });
}

#[test]
fn what_is_made_from_a_tensor_has_its_own_references_or_none() {
    with_workers(2, |world, agent| {
        let (rank, other) = (world.rank(), 1 - world.rank());
        let options = TensorOptions::on(world).init_rrefs(agent);
        let x = full(chunks(0, &[0, 1]), &[4], rank as f32, DType::F32, &options)?;
        let bytes = x.to_bytes()?;
        let group = ProcessGroup::of_world(world).with_rpc(agent);
        let read = load_with_process_group(&group, || ShardedTensor::from_bytes(&bytes))??;
        let mut changed = x.clone();
        changed.fill_constant(5.0)?;
        let made = [
            (x.detach(), other as f64),
            (changed, 5.0),
            (x.to_dtype(DType::F64)?, other as f64),
            (x.type_as(&x)?, other as f64),
            (x.cpu()?, other as f64),
            (x.to(None, Some(DType::I64))?, other as f64),
            (read, other as f64),
            (x.resharded(chunks(0, &[1, 0]))?, rank as f64),
        ];
        let theirs = &x.remote_shards()?[&other][0];
        for (y, want) in &made {
            assert!(y.has_remote_shards());
            let reference = &y.remote_shards()?[&other][0];
            assert_ne!(reference.id(), theirs.id());
            let got = reference.to_here(None)?.tensor().to_dtype(DType::F64)?;
            assert_eq!(got.to_vec::<f64>()?, [*want; 2]);
        }
        assert!(
            x.to_device(Device::META)?.remote_shards()?[&other][0]
                .to_here(None)?
                .tensor()
                .is_meta()
        );
        for y in [
            x.zeros_like()?,
            x.rand_like()?,
            shard_tensor(&numbered(&[4]), chunks(0, &[0, 1]), 0, &group)?,
        ] {
            assert!(!y.has_remote_shards());
            assert_eq!(
                y.remote_shards().err(),
                Some(Error::NoRemoteShards { op: "remote_shards".into() })
            );
        }
        // Stored with references, and read where there is nobody to ask for them.
        let alone = ProcessGroup::of_world(world);
        let error = ShardedTensor::from_bytes_on(&bytes, &alone).unwrap_err();
        assert_eq!(error, Error::NoRpc { op: "from_bytes".into() });
        world.group().barrier()?;
        Ok(())
    });
}

/// D12: after a reshard PyTorch's references still give what was there before.
#[test]
fn after_a_reshard_there_are_new_references_and_the_old_are_stale() {
    with_workers(3, |world, agent| {
        let options = TensorOptions::on(world).init_rrefs(agent);
        let mut x = referenced(&[6, 3], &chunks(0, &[0, 1, 2]), &options)?;
        let next = (world.rank() + 1) % 3;
        let (old, own) = (x.remote_shards()?[&next][0].clone(), x.own_references()?[0].clone());
        assert_eq!(old.to_here(None)?.tensor().shape(), [2, 3]);
        world.group().barrier()?;
        x.reshard(chunks(1, &[2, 0, 1]))?;
        let new = &x.remote_shards()?[&next][0];
        assert_eq!(new.to_here(None)?.tensor().shape(), [6, 1]);
        assert_eq!(fetched(x.remote_shards()?)?, expected(&x)?);
        for stale in [&old, &own] {
            let error = stale.to_here(None).unwrap_err();
            assert!(
                matches!(&error, Error::StaleShard { owner, .. } if *owner == stale.owner().name),
                "{error}"
            );
        }
        // What is refused changes nothing.
        let error = x.reshard(chunks(0, &[0, 7])).unwrap_err();
        assert!(matches!(error, Error::RankNotInGroup { .. }), "{error}");
        assert_eq!(fetched(x.remote_shards()?)?, expected(&x)?);
        world.group().barrier()?;
        Ok(())
    });
}

/// A rank that is not in the group comes to the reshard when it has fetched what it wants; the others are in
/// it already.
#[test]
fn a_rank_outside_of_the_group_fetches_while_the_others_begin_to_reshard() {
    let n_begun = AtomicUsize::new(0);
    with_workers(3, |world, agent| {
        let group = ProcessGroup::new(world, &[0, 1])?;
        let options = TensorOptions::on(&group).init_rrefs(agent);
        let mut x = full(chunks(0, &[0, 1]), &[4, 3], 7.0, DType::F32, options)?;
        if group.rank().is_some() {
            n_begun.fetch_add(1, Ordering::SeqCst);
        } else {
            while n_begun.load(Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
            // Some of these come when the others are as far as they get alone.
            for _ in 0..20 {
                thread::sleep(Duration::from_millis(5));
                for shard in x.remote_shards()?.values().flatten() {
                    let got = shard.to_here(Some(Duration::from_secs(5)))?;
                    assert_eq!(got.tensor().to_vec::<f32>()?, [7.0; 6]);
                }
            }
        }
        let old: Vec<_> = x.remote_shards()?.values().flatten().cloned().collect();
        x.reshard(chunks(1, &[1, 0]))?;
        for stale in old {
            assert!(matches!(stale.to_here(None), Err(Error::StaleShard { .. })));
        }
        world.group().barrier()?;
        Ok(())
    });
}

#[test]
fn a_shard_outlives_its_tensor_while_somebody_has_a_reference() {
    with_workers(3, |world, agent| {
        let options = TensorOptions::on(world).init_rrefs(agent);
        let x = full(chunks(0, &[0]), &[3], 4.0, DType::F32, &options)?;
        let kept = x.remote_shards()?.get(&0).map(|list| list[0].clone());
        let elements = x.shared_shards().first().map(Arc::downgrade);
        world.group().barrier()?;
        drop(x);
        world.group().barrier()?;
        if let Some(kept) = &kept {
            assert_eq!(kept.to_here(None)?.tensor().to_vec::<f32>()?, [4.0; 3]);
        }
        world.group().barrier()?;
        assert_eq!((agent.owned(), agent.forks()), if world.rank() == 0 { (1, 2) } else { (0, 0) });
        world.group().barrier()?;
        drop(kept);
        agent.flush(None)?;
        world.group().barrier()?;
        assert!(elements.is_none_or(|elements| elements.upgrade().is_none()));
        Ok(())
    });
}

#[test]
fn the_owner_reads_its_own_references_and_nobody_elses() {
    with_workers(2, |world, agent| {
        let options = TensorOptions::on(world).init_rrefs(agent);
        let x = full(chunks(0, &[0, 1]), &[4], world.rank() as f32, DType::F32, &options)?;
        let own = &x.own_references()?[0];
        assert!(own.is_owner());
        assert_eq!(own.local_value()?.tensor().to_vec::<f32>()?, [world.rank() as f32; 2]);
        assert_eq!(own.to_here(None)?.tensor().to_vec::<f32>()?, [world.rank() as f32; 2]);
        let other = &x.remote_shards()?[&(1 - world.rank())][0];
        let (owner, me) = (other.owner().name.clone(), own.owner().name.clone());
        let error = other.local_value().unwrap_err();
        assert_eq!(error, Error::NotTheOwner { op: "local_value".into(), owner, me });
        let shown = other.to_string();
        assert!(
            shown.contains(&format!("of worker worker{}, object", 1 - world.rank())),
            "{shown}"
        );
        world.group().barrier()?;
        Ok(())
    });
}

#[test]
fn ranks_outside_of_the_group_have_references_too() {
    with_workers(4, |world, agent| {
        let group = ProcessGroup::new(world, &[3, 1])?;
        let options = TensorOptions::on(&group).init_rrefs(agent);
        let mut x = full(chunks(0, &[1, 3]), &[5, 2], world.rank() as f32, DType::F32, &options)?;
        let check = |x: &ShardedTensor| -> Result<()> {
            let shards = x.remote_shards()?;
            let want: Vec<usize> =
                [1, 3].into_iter().filter(|rank| *rank != world.rank()).collect();
            assert_eq!(shards.keys().copied().collect::<Vec<_>>(), want);
            for list in shards.values() {
                assert_eq!(list[0].to_here(None)?.metadata(), list[0].metadata());
            }
            Ok(())
        };
        check(&x)?;
        world.group().barrier()?;
        x.reshard(chunks(1, &[3, 1]))?;
        check(&x)?;
        world.group().barrier()?;
        Ok(())
    });
}

#[test]
fn a_thousand_fetches_at_a_time_are_all_answered() {
    with_workers(2, |world, agent| {
        let options = TensorOptions::on(world).init_rrefs(agent);
        let x = full(chunks(0, &[0, 1]), &[2000], world.rank() as f32, DType::F32, &options)?;
        let other = 1 - world.rank();
        let shard = &x.remote_shards()?[&other][0];
        if world.rank() == 0 {
            thread::scope(|scope| {
                for _ in 0..1000 {
                    scope.spawn(|| {
                        let got = shard.to_here(None).unwrap();
                        assert_eq!(got.tensor().to_vec::<f32>().unwrap(), [other as f32; 1000]);
                    });
                }
            });
        }
        world.group().barrier()?;
        Ok(())
    });
}

#[test]
fn a_shard_that_is_longer_than_any_message_arrives_whole() {
    spmd(2, |world| {
        let options = rpc::Options { chunk: 1000, max_message: 16 << 10, ..Default::default() };
        let agent = init_rpc(world, &format!("worker{}", world.rank()), options)?;
        let on = TensorOptions::on(world).init_rrefs(&agent);
        // 400,012 bytes each: no multiple of a piece.
        let x = referenced(&[2 * 100_003], &chunks(0, &[0, 1]), &on)?;
        world.group().barrier()?;
        assert_eq!(fetched(x.remote_shards()?)?, expected(&x)?);
        world.group().barrier()?;
        drop(x);
        Ok(agent.shutdown()?)
    });
}

#[test]
fn workers_that_met_by_their_addresses_fetch_shards() {
    // All at a time, or the same port could come twice.
    let listeners: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<_> = listeners.iter().map(|at| at.local_addr().unwrap()).collect();
    drop(listeners);
    let secret = rpc::Secret::random().unwrap();
    spmd(3, |world| {
        let (id, secret) = (world.rank(), secret.clone());
        let name = format!("worker{id}");
        let agent = init_rpc_with_addresses(&name, id, &addresses, secret, Default::default())?;
        let on = TensorOptions::on(world).init_rrefs(&agent);
        let x = referenced(&[7, 2], &chunks(0, &[2, 0, 1, 0]), &on)?;
        world.group().barrier()?;
        assert_eq!(fetched(x.remote_shards()?)?, expected(&x)?);
        world.group().barrier()?;
        drop(x);
        Ok(agent.shutdown()?)
    });
}
