//! Workers that are gone, that are others than they should be, and ranks that fail before they have
//! references.

use std::{
    sync::{Mutex, mpsc},
    thread,
    time::Duration,
};

use dtensor_sharded::{
    ChunkShardingSpec, DType, Error, ProcessGroup, Result, Shard, ShardedTensor, Tensor,
    TensorOptions, full,
    rpc::{self, init_rpc, init_rpc_on},
    zeros,
};
use dtensor_testing::spmd;

use crate::{
    remote::{referenced, with_workers},
    support::{chunks, numbered},
};

/// What a call of another worker failed with.
#[track_caller]
fn of_rpc(error: &Error) -> &rpc::Error {
    match error {
        Error::Rpc { source, .. } => source,
        other => panic!("{other}"),
    }
}

#[test]
fn an_owner_that_is_gone_is_an_error_that_names_it() {
    spmd(3, |world| {
        let agent = init_rpc(world, &format!("worker{}", world.rank()), rpc::Options::default())?;
        let options = TensorOptions::on(world).init_rrefs(&agent);
        let x = zeros(chunks(0, &[0, 1, 2]), &[6], DType::F32, &options)?;
        for list in x.remote_shards()?.values() {
            list[0].to_here(None)?;
        }
        world.group().barrier()?;
        if world.rank() == 2 {
            agent.shutdown_now();
            let error = x.remote_shards()?[&0][0].to_here(None).unwrap_err();
            assert!(matches!(of_rpc(&error), rpc::Error::ShutDown { .. }), "{error}");
        }
        world.group().barrier()?;
        if world.rank() < 2 {
            let error = x.remote_shards()?[&2][0].to_here(None).unwrap_err();
            let lost =
                matches!(of_rpc(&error), rpc::Error::Lost { worker, .. } if &**worker == "worker2");
            assert!(lost, "{error}");
            // The others are still there.
            x.remote_shards()?[&(1 - world.rank())][0].to_here(None)?;
        }
        world.group().barrier()?;
        Ok(())
    });
}

#[test]
fn after_a_shutdown_nothing_can_be_fetched() {
    spmd(2, |world| {
        let agent = init_rpc(world, &format!("worker{}", world.rank()), rpc::Options::default())?;
        let options = TensorOptions::on(world).init_rrefs(&agent);
        let x = zeros(chunks(0, &[0, 1]), &[6], DType::F32, &options)?;
        agent.shutdown()?;
        let error = x.remote_shards()?[&(1 - world.rank())][0].to_here(None).unwrap_err();
        assert!(matches!(of_rpc(&error), rpc::Error::ShutDown { .. }), "{error}");
        // Nor can a tensor be made with references, on any rank.
        let error = zeros(chunks(0, &[0, 1]), &[6], DType::F32, &options).unwrap_err();
        assert!(matches!(&error, Error::Rank { rank: 0, .. }), "{error}");
        Ok(())
    });
}

#[test]
fn a_fetch_that_takes_too_long_is_given_up() {
    spmd(2, |world| {
        let options = rpc::Options { handler_threads: 1, ..rpc::Options::default() };
        let agent = init_rpc(world, &format!("worker{}", world.rank()), options)?;
        let (began, begins) = mpsc::channel();
        let (ends, ended) = mpsc::channel::<()>();
        let ended = Mutex::new(ended);
        agent.register("occupy", move |_, _| {
            began.send(())?;
            ended.lock().unwrap().recv().ok();
            Ok(rpc::Reply::default())
        })?;
        let on = TensorOptions::on(world).init_rrefs(&agent);
        let x = zeros(chunks(0, &[0, 1]), &[6], DType::F32, &on)?;
        let other = 1 - world.rank();
        let theirs = &x.remote_shards()?[&other][0];
        thread::scope(|scope| -> Result<(), dtensor_testing::Failure> {
            // The only thread that could answer the other rank is busy.
            scope.spawn(|| agent.call(other, "occupy", "", None).unwrap());
            begins.recv()?;
            world.group().barrier()?;
            let error = theirs.to_here(Some(Duration::from_millis(20))).unwrap_err();
            assert!(matches!(of_rpc(&error), rpc::Error::TimedOut { .. }), "{error}");
            world.group().barrier()?;
            drop(ends);
            theirs.to_here(None)?;
            Ok(())
        })?;
        Ok(agent.shutdown()?)
    });
}

/// D12: in PyTorch the other ranks wait for ever.
#[test]
fn a_rank_that_fails_before_the_exchange_fails_with_all_others() {
    with_workers(3, |world, agent| {
        let rank = world.rank();
        let options = TensorOptions::on(world).init_rrefs(agent);
        let spec = chunks(0, &[0, 1, 2]);
        let local = Tensor::full(&[if rank == 1 { 3 } else { 2 }], 1.0_f32)?;
        let made = ShardedTensor::from_local_tensor(&local, &spec, &[6], &options);
        let error = made.unwrap_err();
        let Error::Rank { rank: 1, .. } = &error else { panic!("{error}") };
        assert!(matches!(error.cause(), Error::Incompatible { .. }), "{error}");

        let metadata = spec.build_metadata(&[6], &DType::F32.into())?;
        let own = Shard::new(Tensor::full(&[2], 1.0_f32)?, metadata.shards_metadata[rank].clone())?;
        let shards = if rank == 2 { Vec::new() } else { vec![own] };
        let made = ShardedTensor::from_local_shards_and_metadata(shards, metadata, None, &options);
        let error = made.unwrap_err();
        assert!(matches!(error, Error::Rank { rank: 2, .. }), "{error}");

        // Agreed on before, and said once.
        let mine = Shard::from_tensor_and_offsets(Tensor::full(&[2], 1.0_f32)?, &[2 * rank], 0)?;
        let error = ShardedTensor::from_local_shards(vec![mine], &[6], &options).unwrap_err();
        let Error::Rank { rank: 1, error } = &error else { panic!("{error}") };
        assert!(matches!(**error, Error::WrongRank { .. }), "{error}");
        assert_eq!((agent.owned(), agent.forks()), (0, 0));
        // And the world goes on.
        zeros(&spec, &[6], DType::F32, &options)?;
        world.group().barrier()?;
        Ok(())
    });
}

/// Ranks 0 and 2 see that rank 1 has more shards than they think, and rank 1 sees nothing wrong.
#[test]
fn references_that_one_rank_cannot_take_are_taken_by_none_and_leave_nothing() {
    with_workers(3, |world, agent| {
        let options = TensorOptions::on(world).init_rrefs(agent);
        let ranks: &[usize] = if world.rank() == 1 { &[0, 1, 2, 1] } else { &[0, 1, 2] };
        let error = full(chunks(0, ranks), &[12], 1.0, DType::F32, &options).unwrap_err();
        let Error::Rank { rank: 0, error } = &error else { panic!("{error}") };
        assert!(matches!(**error, Error::BadState { .. }), "{error}");
        // Not only when all messages have come: what was offered is taken back.
        assert_eq!((agent.forks(), agent.references()), (0, 0));
        // And the world goes on.
        zeros(chunks(0, &[0, 1, 2]), &[6], DType::F32, &options)?;
        world.group().barrier()?;
        Ok(())
    });
}

#[test]
fn a_worker_that_is_another_rank_is_an_error_on_all() {
    spmd(2, |world| {
        let backwards = world.subgroup(&[1, 0])?;
        let agent =
            init_rpc_on(&backwards, &format!("w{}", world.rank()), rpc::Options::default())?;
        let options = TensorOptions::on(world).init_rrefs(&agent);
        let error = zeros(chunks(0, &[0, 1]), &[6], DType::F32, options).unwrap_err();
        let Error::Rank { rank: 0, error } = &error else { panic!("{error}") };
        let want = (0, 2, 1, 2);
        assert!(
            matches!(**error, Error::NotTheSameRank { rank, ranks, worker, workers, .. }
                if (rank, ranks, worker, workers) == want),
            "{error}"
        );
        Ok(agent.shutdown()?)
    });
}

#[test]
fn a_tensor_without_references_has_no_remote_shards() {
    spmd(2, |world| {
        let x = zeros(chunks(0, &[0, 1]), &[6], DType::F32, world)?;
        let error = x.remote_shards().unwrap_err();
        assert_eq!(error, Error::NoRemoteShards { op: "remote_shards".into() });
        Ok(())
    });
}

#[test]
fn workers_by_name_own_shards_wherever_ranks_can() {
    with_workers(3, |world, agent| {
        let group = ProcessGroup::of_world(world).with_rpc(agent);
        let spec = ChunkShardingSpec::new(0, &["worker2/cpu", "worker0/cpu", "worker1"])?;
        let mut x =
            referenced(&[7, 4], &spec.clone().into(), &TensorOptions::on(world).init_rrefs(agent))?;
        let want = numbered(&[7, 4]).to_vec::<f32>()?;
        // The name stays, and the rank is known.
        let first = x.metadata().shards_metadata[0].placement().unwrap();
        assert_eq!((first.to_string(), first.rank()), ("worker2/cpu".to_string(), Some(2)));
        assert_eq!(x.local_tensor()?.shape(), [[3, 4], [1, 4], [3, 4]][world.rank()]);
        assert_eq!(x.full_tensor()?.to_vec::<f32>()?, want);
        if let Some(whole) = x.gather(1)? {
            assert_eq!(whole.to_vec::<f32>()?, want);
        }
        for (rank, list) in x.remote_shards()? {
            assert_eq!(list[0].owner().id, *rank);
            list[0].to_here(None)?;
        }
        let read = ShardedTensor::from_bytes_on(&x.to_bytes()?, &group)?;
        assert!(read.equal(&x)?);
        world.group().barrier()?;
        x.reshard(ChunkShardingSpec::new(1, &["worker1/cpu", "rank:2/cpu", "worker0"])?)?;
        assert_eq!(x.full_tensor()?.to_vec::<f32>()?, want);
        x.reshard(chunks(0, &[0, 1, 2]))?;
        x.reshard(spec)?;
        assert_eq!(x.full_tensor()?.to_vec::<f32>()?, want);

        // Shards that are brought along, by names.
        let rank = world.rank();
        let place = format!("worker{rank}/cpu").parse()?;
        let metadata = dtensor_sharded::ShardMetadata::new(&[2 * rank], &[2], Some(place))?;
        let own = Shard::new(Tensor::full(&[2], rank as f32)?, metadata)?;
        let y = ShardedTensor::from_local_shards(vec![own], &[6], &group)?;
        assert_eq!(y.full_tensor()?.to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]);
        let z = ShardedTensor::from_local_shards_and_metadata(
            y.local_shards().cloned().collect(),
            y.metadata().clone(),
            None,
            &group,
        )?;
        assert!(z.equal(&y)?);
        world.group().barrier()?;
        Ok(())
    });
}

#[test]
fn a_name_that_no_worker_has_is_an_error_on_all() {
    with_workers(2, |world, agent| {
        let group = ProcessGroup::of_world(world).with_rpc(agent);
        let make = |name: &str, group: &ProcessGroup| -> Result<ShardedTensor> {
            full(ChunkShardingSpec::new(0, &["worker0/cpu", name])?, &[4], 1.0, DType::F32, group)
        };
        let error = make("workerfoo/cpu", &group).unwrap_err();
        assert_eq!(error, Error::NoSuchWorker { op: "full".into(), worker: "workerfoo".into() });
        let error = make("worker1/cpu", &ProcessGroup::of_world(world)).unwrap_err();
        assert_eq!(error, Error::NoWorkers { op: "full".into(), worker: "worker0".into() });
        let part = ProcessGroup::new(world, &[0])?.with_rpc(agent);
        let error = make("worker1/cpu", &part).unwrap_err();
        assert!(matches!(error, Error::RankNotInGroup { rank: 1, .. }), "{error}");
        Ok(())
    });
}
