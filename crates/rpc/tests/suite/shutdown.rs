//! Leaving, together and alone.

use std::{sync::Arc, thread};

use dtensor_rpc::{Error, Options, Reply};

use crate::{
    peer::{EMPTY, Peer, say},
    support::{echoing, hasty, spmd, worker},
};

#[test]
fn after_a_shutdown_everything_is_refused_by_name() {
    spmd(3, |world| {
        let agent = echoing(world, Options::default())?;
        let owned = agent.own(Arc::new(1))?;
        agent.shutdown()?;
        let refused = |op: &str| Error::ShutDown {
            op: op.into(),
            worker: format!("worker{}", world.rank()).into(),
        };
        assert_eq!(agent.call(0, "echo", "", None), Err(refused("echo")));
        assert_eq!(agent.own(Arc::new(1)).err(), Some(refused("own")));
        assert_eq!(agent.flush(None), Err(refused("flush")));
        assert!(owned.value().is_err() && owned.share(&[0]).is_err());
        assert_eq!((agent.owned(), agent.forks()), (0, 0));
        // Again is as once.
        agent.shutdown()?;
        agent.shutdown_now();
        Ok(())
    });
}

#[test]
fn a_worker_that_does_not_leave_with_the_others_is_named() {
    spmd(3, |world| {
        let agent = echoing(world, hasty())?;
        match world.rank() {
            // Still there, but does not leave.
            2 => {
                world.group().barrier()?;
                assert_eq!(agent.call(2, "echo", "x", None)?, "x");
            }
            _ => {
                let error = agent.shutdown().unwrap_err();
                let Error::Missing { missing, .. } = &error else { panic!("{error}") };
                assert_eq!(**missing, [2]);
                assert!(matches!(agent.call(0, "echo", "", None), Err(Error::ShutDown { .. })));
                world.group().barrier()?;
            }
        }
        Ok(())
    });
}

/// It used to be that workers were missed, and none of them.
#[test]
fn an_owner_that_does_not_hear_of_dropped_references_is_not_a_worker_that_does_not_leave() {
    let (agent, peer, secret) = Peer::beside(hasty(), |method| match method {
        "rpc.delete" => None,
        _ => Some(Ok(EMPTY.into())),
    });
    let share = r#"{"id":{"created_on":1,"local_id":5},"serial":6}"#;
    drop(agent.adopt(serde_json::from_str(share).unwrap()).unwrap());
    say(agent.address(), &secret, "rpc.leave");
    let error = agent.shutdown().unwrap_err();
    let Error::TimedOut { method, .. } = &error else { panic!("{error}") };
    assert_eq!(&**method, "flush of 1 dropped references");
    // It was told all the same.
    assert_eq!(peer.n_heard("rpc.leave"), 1);
}

#[test]
fn a_worker_that_is_gone_is_an_error_that_names_it() {
    spmd(3, |world| {
        let agent = echoing(world, Options::default())?;
        // Everybody is connected: it is not only that nobody listens.
        for other in 0..3 {
            assert_eq!(agent.call(other, "echo", "x", None)?, "x");
        }
        world.group().barrier()?;
        if world.rank() == 2 {
            agent.shutdown_now();
        }
        world.group().barrier()?;
        if world.rank() < 2 {
            // A connection may outlive its worker by a moment; calls do not.
            for _ in 0..3 {
                let error = agent.call(2, "echo", "x", None).unwrap_err();
                let Error::Lost { worker, .. } = &error else { panic!("{error}") };
                assert_eq!(&**worker, "worker2");
            }
            assert_eq!(agent.call(1 - world.rank(), "echo", "x", None)?, "x");
            let error = agent.shutdown().unwrap_err();
            let Error::Missing { missing, .. } = &error else { panic!("{error}") };
            assert_eq!(**missing, [2]);
        }
        Ok(())
    });
}

#[test]
fn a_call_under_way_ends_when_the_worker_does() {
    spmd(2, |world| {
        let agent = worker(world, Options::default())?;
        let (began, begins) = std::sync::mpsc::channel();
        let (ends, ended) = std::sync::mpsc::channel::<()>();
        let ended = std::sync::Mutex::new(ended);
        agent.register("wait", move |_, _| {
            began.send(()).ok();
            // Until the test is over.
            ended.lock().unwrap().recv().ok();
            Ok(Reply::default())
        })?;
        world.group().barrier()?;
        if world.rank() == 0 {
            let error = agent.call(1, "wait", "", None).unwrap_err();
            assert!(
                matches!(&error, Error::Lost { worker, .. } if &**worker == "worker1"),
                "{error}"
            );
        } else {
            begins.recv()?;
            // Nobody waits for the handler, which still runs.
            drop(agent);
        }
        world.group().barrier()?;
        drop(ends);
        Ok(())
    });
}

#[test]
fn an_agent_can_be_dropped_anywhere() {
    spmd(2, |world| {
        let agent = echoing(world, Options::default())?;
        let clone = agent.clone();
        thread::spawn(move || drop(clone)).join().unwrap();
        assert_eq!(agent.call(1 - world.rank(), "echo", "x", None)?, "x");
        world.group().barrier()?;
        // Where a runtime could not be dropped, and calls of one could not be made.
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        runtime.block_on(async {
            assert_eq!(agent.call(world.rank(), "echo", "x", None).unwrap(), "x");
            world.group().barrier().unwrap();
            drop(agent);
        });
        Ok(())
    });
}
