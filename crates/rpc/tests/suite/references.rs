//! References and their counts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use dtensor_comm::World;
use dtensor_rpc::{Agent, Error, Failure, Options, RefId, Reply, Share, UserRef};
use tonic::{Code, Status};

use crate::{
    peer::{EMPTY, Peer, ask_once, signed},
    support::{self, spmd, worker},
    wire::Wire,
};

/// Workers that give the text of an object.
fn telling(world: &World) -> Result<Agent, support::Failure> {
    let agent = worker(world, Options::default())?;
    agent.register("text", |context, request| {
        let id: RefId = serde_json::from_slice(&request)?;
        let text: Arc<String> = context.object(id)?;
        Ok::<_, Failure>(Reply::new(text.as_bytes().to_vec()))
    })?;
    world.group().barrier()?;
    Ok(agent)
}

fn text(reference: &UserRef) -> dtensor_rpc::Result<String> {
    let id = serde_json::to_vec(&reference.id()).unwrap();
    let bytes = reference.agent().call(reference.owner().id, "text", id, None)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What rank 0 says, on every rank.
fn from_first(world: &World, share: Option<Share>) -> Result<Share, support::Failure> {
    let mut bytes = [0_u8; 256];
    if let Some(share) = share {
        let text = serde_json::to_vec(&share)?;
        bytes[..text.len()].copy_from_slice(&text);
    }
    world.group().broadcast(&mut bytes, 0)?;
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    Ok(serde_json::from_slice(&bytes[..end])?)
}

#[test]
fn an_object_lives_while_somebody_has_a_reference_and_no_longer() {
    spmd(3, |world| {
        let agent = telling(world)?;
        let value = Arc::new("treasure".to_string());
        let owned = match world.rank() {
            0 => Some(agent.own(Arc::clone(&value))?),
            _ => None,
        };
        let share = owned.as_ref().map(|owned| owned.share(&[1, 2])).transpose()?;
        if world.rank() == 0 {
            // Counted before anybody knows of them.
            assert_eq!((agent.owned(), agent.forks()), (1, 2));
        }
        let share = from_first(world, share)?;
        let reference = match world.rank() {
            0 => None,
            _ => Some(agent.adopt(share)?),
        };
        // The owner drops it; the others still have it.
        drop(owned);
        world.group().barrier()?;
        if let Some(reference) = &reference {
            assert_eq!(text(reference)?, "treasure");
            assert_eq!((&*reference.owner().name, agent.references()), ("worker0", 1));
        }
        world.group().barrier()?;
        // One of the two drops it.
        let reference = reference.filter(|_| world.rank() == 2);
        agent.flush(None)?;
        world.group().barrier()?;
        match &reference {
            Some(reference) => assert_eq!(text(reference)?, "treasure"),
            None => assert_eq!(agent.references(), 0),
        }
        if world.rank() == 0 {
            assert_eq!((agent.owned(), agent.forks(), Arc::strong_count(&value)), (1, 1, 2));
        }
        world.group().barrier()?;
        drop(reference);
        agent.flush(None)?;
        world.group().barrier()?;
        assert_eq!((agent.owned(), agent.forks(), agent.references()), (0, 0, 0));
        assert_eq!(Arc::strong_count(&value), 1);
        // A reference to what is gone, as after a count that went wrong.
        if world.rank() == 2 {
            let late = agent.adopt(share)?;
            let (worker, id) = ("worker0".into(), share.id);
            assert_eq!(text(&late), Err(Error::NoSuchObject { worker, id }));
        }
        Ok(agent.shutdown()?)
    });
}

#[test]
fn a_share_that_is_taken_back_leaves_nothing() {
    spmd(2, |world| {
        let agent = telling(world)?;
        let owned = agent.own(Arc::new("x".to_string()))?;
        let share = owned.share(&[1 - world.rank()])?;
        assert_eq!(*owned.value()?, "x");
        owned.revoke();
        assert_eq!((agent.owned(), agent.forks()), (1, 0));
        drop(owned);
        assert_eq!(agent.owned(), 0);
        assert!(matches!(agent.adopt(share), Err(Error::BadShare { .. })));
        Ok(agent.shutdown()?)
    });
}

#[test]
fn an_object_of_another_kind_is_not_given() {
    spmd(2, |world| {
        let agent = telling(world)?;
        let owned = agent.own(Arc::new(7_u32))?;
        let own = serde_json::to_vec(&owned.id())?;
        let error = agent.call(world.rank(), "text", own, None).unwrap_err();
        assert!(matches!(error, Error::NoSuchObject { .. }), "{error}");
        drop(owned);
        Ok(agent.shutdown()?)
    });
}

/// It was told five times within a second, and then never again.
#[test]
fn an_owner_that_cannot_be_reached_for_a_while_is_told_when_it_can() {
    let wire = Wire::new();
    spmd(2, |world| {
        let through =
            Options { bind: wire.behind(), advertise: Some(wire.address()), ..Options::default() };
        let agent = worker(world, if world.rank() == 0 { through } else { Options::default() })?;
        let owned = match world.rank() {
            0 => Some(agent.own(Arc::new("treasure".to_string()))?),
            _ => None,
        };
        let share = owned.as_ref().map(|owned| owned.share(&[1])).transpose()?;
        let share = from_first(world, share)?;
        if world.rank() == 1 {
            let reference = agent.adopt(share)?;
            wire.cut();
            drop(reference);
            // Nobody waits for an owner that does not answer.
            agent.flush(None)?;
        }
        world.group().barrier()?;
        if world.rank() == 0 {
            assert_eq!((agent.owned(), agent.forks()), (1, 1));
            drop(owned);
        }
        world.group().barrier()?;
        if world.rank() == 1 {
            wire.mend();
        }
        let patience = Instant::now() + Duration::from_secs(50);
        while agent.owned() > 0 {
            assert!(Instant::now() < patience, "the owner was not told");
            thread::sleep(Duration::from_millis(10));
        }
        world.group().barrier()?;
        Ok(agent.shutdown()?)
    });
}

#[test]
fn what_a_lost_worker_had_can_be_taken_back() {
    spmd(3, |world| {
        let agent = telling(world)?;
        let held = agent.own(Arc::new("held".to_string()))?;
        let value = Arc::new("shared".to_string());
        let shared = agent.own(Arc::clone(&value))?;
        if world.rank() == 0 {
            for owned in [&held, &shared] {
                owned.share(&[1, 2])?;
            }
            shared.share(&[2])?;
        }
        drop(shared);
        world.group().barrier()?;
        match world.rank() {
            0 => {
                assert_eq!(agent.reclaim(3), Err(Error::NoSuchId { id: 3, size: 3 }));
                assert_eq!((agent.owned(), agent.forks()), (2, 5));
                assert_eq!(agent.reclaim(2)?, 3);
                assert_eq!((agent.owned(), agent.forks()), (2, 2));
                assert_eq!(agent.reclaim(1)?, 2);
                // The owner has the one, and nobody the other.
                assert_eq!((agent.owned(), agent.forks(), Arc::strong_count(&value)), (1, 0, 1));
                assert_eq!(agent.reclaim(1)?, 0);
            }
            _ => assert_eq!(agent.forks(), 0),
        }
        drop(held);
        Ok(agent.shutdown()?)
    });
}

#[test]
fn many_references_that_are_dropped_at_once_are_all_counted() {
    const N: usize = 2000;
    spmd(2, |world| {
        let agent = telling(world)?;
        let owned = agent.own(Arc::new("x".to_string()))?;
        let shares: Vec<Share> =
            (0..N).map(|_| owned.share(&[1 - world.rank()])).collect::<Result<_, _>>()?;
        assert_eq!(agent.forks(), N);
        world.group().barrier()?;
        // Both sides number alike, so what one shares is what the other has.
        let theirs = |share: &Share| {
            let text = serde_json::to_string(share).unwrap();
            let (from, to) = (world.rank(), 1 - world.rank());
            let text =
                text.replace(&format!("\"created_on\":{from}"), &format!("\"created_on\":{to}"));
            serde_json::from_str::<Share>(&text)
        };
        let adopted: Vec<UserRef> = shares
            .iter()
            .map(|share| Ok(agent.adopt(theirs(share)?)?))
            .collect::<Result<_, support::Failure>>()?;
        assert_eq!(agent.references(), N);
        drop(adopted);
        agent.flush(None)?;
        world.group().barrier()?;
        assert_eq!((agent.owned(), agent.forks(), agent.references()), (1, 0, 0));
        drop(owned);
        Ok(agent.shutdown()?)
    });
}

/// It used to be that what was refused was taken for heard, and the object stayed for ever.
#[test]
fn an_owner_that_has_no_time_to_hear_is_told_again() {
    let n_asked = AtomicUsize::new(0);
    let (agent, peer, _) = Peer::beside(Options::default(), move |_| {
        Some(match n_asked.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Err(Status::resource_exhausted("later")),
            _ => Ok(EMPTY.into()),
        })
    });
    let share = r#"{"id":{"created_on":1,"local_id":5},"serial":6}"#;
    drop(agent.adopt(serde_json::from_str(share).unwrap()).unwrap());
    agent.flush(None).unwrap();
    assert_eq!(peer.n_heard("rpc.delete"), 3);
}

#[test]
fn a_number_that_no_worker_has_is_refused() {
    let (agent, _peer, secret) = Peer::beside(Options::default(), |_| Some(Ok(EMPTY.into())));
    for caller in ["2", "18446744073709551615", "-1", "one", ""] {
        for method in ["rpc.met", "rpc.leave", "rpc.delete"] {
            let path = format!("/dtensor.Rpc/{method}");
            let headers = signed(&secret, 0, caller, &path);
            let said = ask_once(agent.address(), &path, headers);
            assert_eq!(said, Err(Code::InvalidArgument), "{method} of {caller}");
        }
    }
}
