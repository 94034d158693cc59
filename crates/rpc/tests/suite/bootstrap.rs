//! How workers meet.

use std::time::Duration;

use dtensor_rpc::{Error, Options, Reply, Secret, init_rpc, init_rpc_on, init_rpc_with_addresses};

use crate::support::{free_addresses, hasty, spmd};

/// The error that all ranks get.
#[track_caller]
fn same_error(
    n_ranks: usize,
    name: impl Fn(usize) -> String + Sync,
    options: impl Fn(usize) -> Options + Sync,
) -> Error {
    let errors = spmd(n_ranks, |world| {
        let error = init_rpc(world, &name(world.rank()), options(world.rank())).err();
        // Whoever failed early would have left the others waiting.
        world.group().barrier()?;
        Ok(error)
    });
    let first = errors[0].clone().expect("rank 0 has no error");
    assert!(errors.iter().all(|error| error.as_ref() == Some(&first)), "{errors:#?}");
    first
}

#[test]
fn names_are_different_and_of_few_characters_on_every_rank() {
    let plain = |_| Options::default();
    let error = same_error(3, |rank| ["a", "b", "a"][rank].into(), plain);
    assert_eq!(error, Error::DuplicateName { name: "a".into(), first: 0, second: 2 });
    for bad in ["", "a b", "a/b", "ü", &"x".repeat(128)] {
        let error = same_error(2, |rank| ["a", bad][rank].into(), plain);
        let Error::OnWorker { id: 1, .. } = &error else { panic!("{error}") };
        assert!(matches!(error.cause(), Error::BadName { .. }), "{error}");
    }
    spmd(1, |world| Ok(init_rpc(world, &"x".repeat(127), Options::default())?.shutdown()?));
}

#[test]
fn what_one_rank_cannot_have_is_an_error_on_all() {
    let name = |rank: usize| format!("w{rank}");
    let with = |at: usize, options: Options| {
        move |rank| if rank == at { options.clone() } else { Options::default() }
    };
    let open = Options { bind: "0.0.0.0:0".parse().unwrap(), ..Options::default() };
    let error = same_error(2, name, with(1, open.clone()));
    assert!(matches!(error.cause(), Error::Plaintext { .. }), "{error}");
    // Allowed, but nobody can connect to it.
    let error = same_error(2, name, with(1, Options { allow_plaintext: true, ..open }));
    assert!(matches!(error.cause(), Error::BadOptions { .. }), "{error}");
    // Somebody else's port.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let bind = taken.local_addr().unwrap();
    let error = same_error(2, name, with(0, Options { bind, ..Options::default() }));
    assert!(
        matches!(error.cause(), Error::CannotBind { address, .. } if *address == bind),
        "{error}"
    );
    for options in [
        Options { max_message: 0, ..Options::default() },
        Options { chunk: (4 << 20) + 1, ..Options::default() },
        Options { worker_threads: 0, ..Options::default() },
        Options { timeout: Duration::ZERO, ..Options::default() },
    ] {
        let error = same_error(2, name, with(1, options));
        assert!(matches!(error.cause(), Error::BadOptions { .. }), "{error}");
    }
}

#[test]
fn every_interface_may_be_listened_on_where_that_is_allowed() {
    spmd(2, |world| {
        let options = Options {
            bind: "0.0.0.0:0".parse()?,
            advertise: Some("127.0.0.1:0".parse()?),
            allow_plaintext: true,
            ..Options::default()
        };
        let agent = init_rpc(world, &format!("w{}", world.rank()), options)?;
        agent.register("echo", |_, request| Ok(Reply::new(request)))?;
        world.group().barrier()?;
        assert_eq!(agent.call(1 - world.rank(), "echo", "x", None)?, "x");
        Ok(agent.shutdown()?)
    });
}

#[test]
fn what_may_not_be_sent_in_the_clear_is_not_sent_to_those_who_would_listen() {
    // Rank 1 allows it for itself, rank 0 does not.
    let options = |rank| match rank {
        0 => Options::default(),
        _ => Options {
            bind: "0.0.0.0:0".parse().unwrap(),
            advertise: Some("192.0.2.1:0".parse().unwrap()),
            allow_plaintext: true,
            ..Options::default()
        },
    };
    let error = same_error(2, |rank| format!("w{rank}"), options);
    assert!(matches!(error, Error::OnWorker { id: 0, .. }), "{error}");
    assert!(matches!(error.cause(), Error::Plaintext { .. }), "{error}");
}

#[test]
fn a_world_that_does_not_exist_has_no_workers() {
    let world = dtensor_comm::World::fake(8, 3).unwrap();
    let error = init_rpc(&world, "alone", Options::default()).unwrap_err();
    assert!(matches!(error, Error::BadOptions { .. }), "{error}");
}

#[test]
fn the_ranks_of_a_group_are_counted_in_it() {
    spmd(4, |world| {
        if world.rank() % 2 == 1 {
            let group = world.subgroup(&[3, 1])?;
            let agent = init_rpc_on(&group, &format!("w{}", world.rank()), Options::default())?;
            assert_eq!(agent.id(), group.rank());
            assert_eq!(agent.worker("w3")?.id, 0);
            agent.shutdown()?;
        }
        Ok(())
    });
}

#[test]
fn workers_meet_by_their_addresses() {
    let (addresses, secret) = (free_addresses(3), Secret::random().unwrap());
    spmd(3, |world| {
        let id = world.rank();
        let agent = init_rpc_with_addresses(
            &format!("w{id}"),
            id,
            &addresses,
            secret.clone(),
            Options::default(),
        )?;
        agent.register("echo", |_, request| Ok(Reply::new(request)))?;
        world.group().barrier()?;
        for other in ["w0", "w1", "w2"] {
            assert_eq!(agent.call(agent.worker(other)?.id, "echo", other, None)?, other);
        }
        Ok(agent.shutdown()?)
    });
}

#[test]
fn two_workers_of_one_name_at_different_addresses_are_an_error_on_both() {
    let (addresses, secret) = (free_addresses(2), Secret::random().unwrap());
    spmd(2, |world| {
        let met = init_rpc_with_addresses(
            "same",
            world.rank(),
            &addresses,
            secret.clone(),
            Options::default(),
        );
        world.group().barrier()?;
        match met {
            Err(Error::DuplicateName { first: 0, second: 1, .. }) => Ok(()),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_worker_that_does_not_come_is_missed_by_number() {
    let addresses = free_addresses(2);
    let secret = Secret::random().unwrap();
    let error = init_rpc_with_addresses("w0", 0, &addresses, secret.clone(), hasty()).unwrap_err();
    let Error::Missing { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(**missing, [1]);
    let error = init_rpc_with_addresses("w2", 2, &addresses, secret.clone(), hasty()).unwrap_err();
    assert_eq!(error, Error::NoSuchId { id: 2, size: 2 });
    // What goes to another machine is not sent in the clear.
    let far = [addresses[0], "192.0.2.1:9".parse().unwrap()];
    let error = init_rpc_with_addresses("w0", 0, &far, secret, hasty()).unwrap_err();
    assert_eq!(error, Error::Plaintext { address: far[1] });
}
