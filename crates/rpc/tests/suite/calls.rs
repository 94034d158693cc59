//! Calls and their answers.

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use dtensor_rpc::{Bytes, Error, Failure, Options, Reply};

use crate::support::{echoing, spmd, worker};

#[test]
fn every_worker_calls_every_other_and_itself_by_name() {
    spmd(3, |world| {
        let agent = worker(world, Options::default())?;
        agent.register("who", |context, request| {
            let answer = format!("{} told {} {request:?}", context.me().name, context.caller());
            Ok(Reply::new(answer))
        })?;
        world.group().barrier()?;
        for name in ["worker0", "worker1", "worker2"] {
            let info = agent.worker(name)?.clone();
            assert_eq!(&*info.name, name);
            let answer = agent.call(info.id, "who", "x", None)?;
            assert_eq!(answer, format!("{name} told {} b\"x\"", world.rank()));
        }
        assert_eq!(agent.workers().len(), 3);
        assert_eq!(agent.worker("worker3"), Err(Error::NoSuchWorker { name: "worker3".into() }));
        let nobody = Error::NoSuchId { id: 3, size: 3 };
        assert_eq!(agent.call(3, "who", "", None), Err(nobody));
        Ok(agent.shutdown()?)
    });
}

#[test]
fn a_body_arrives_whole_whatever_its_length_and_its_segments() {
    spmd(2, |world| {
        let agent = worker(world, Options { chunk: 7, ..Options::default() })?;
        agent.register("body", |_, request| {
            let lengths: Vec<usize> = serde_json::from_slice(&request)?;
            let segments = lengths.iter().enumerate();
            let segments = segments.map(|(n, length)| Bytes::from(vec![n as u8 + 1; *length]));
            Ok(Reply::new("head").with_body(segments))
        })?;
        world.group().barrier()?;
        for lengths in [&[][..], &[0], &[1], &[6], &[7], &[8], &[14, 0, 3], &[1, 1, 1], &[100_001]]
        {
            let request = serde_json::to_vec(lengths)?;
            let incoming = agent.open(1 - world.rank(), "body", request.clone(), None)?;
            assert_eq!(incoming.head(), "head");
            let total: usize = lengths.iter().sum();
            assert_eq!(incoming.body_length(), total as u64);
            let mut got = vec![0; total];
            incoming.read_into(&mut got)?;
            let want = lengths.iter().enumerate();
            let want: Vec<u8> = want.flat_map(|(n, length)| vec![n as u8 + 1; *length]).collect();
            assert_eq!(got, want);
            // No room, and too much of it, are errors before anything is written.
            let incoming = agent.open(1 - world.rank(), "body", request, None)?;
            let error = incoming.read_into(&mut vec![0; total + 1]).unwrap_err();
            assert!(matches!(error, Error::BadAnswer { .. }), "{error}");
        }
        Ok(agent.shutdown()?)
    });
}

#[test]
fn what_a_handler_fails_with_comes_back_with_the_name_of_its_worker() {
    spmd(2, |world| {
        let agent = worker(world, Options::default())?;
        agent.register("fail", |_, _| Err(Failure::new("out of luck")))?;
        agent.register("panic", |_, _| panic!("out of nerves"))?;
        world.group().barrier()?;
        let name: Box<str> = format!("worker{}", 1 - world.rank()).into();
        for (method, words) in
            [("fail", "out of luck"), ("panic", "the handler panicked: out of nerves")]
        {
            let error = agent.call(1 - world.rank(), method, "", None).unwrap_err();
            let (worker, method, message) = (name.clone(), method.into(), words.into());
            assert_eq!(error, Error::Remote { worker, method, message });
        }
        let error = agent.call(1 - world.rank(), "nothing", "", None).unwrap_err();
        assert_eq!(error, Error::NoSuchMethod { worker: name, method: "nothing".into() });
        for method in ["", "a b", "a/b", "a?b"] {
            let error = agent.call(1 - world.rank(), method, "", None).unwrap_err();
            assert_eq!(error, Error::BadMethod { method: method.into() });
            assert_eq!(agent.register(method, |_, _| Ok(Reply::default())), Err(error));
        }
        // A method keeps its first handler.
        assert_eq!(agent.register("fail", |_, _| Ok(Reply::default())), Ok(false));
        Ok(agent.shutdown()?)
    });
}

#[test]
fn a_call_that_takes_too_long_is_given_up_and_others_go_on() {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    spmd(2, |world| {
        let agent = echoing(world, Options::default())?;
        if world.rank() == 1 {
            let gate = Arc::clone(&gate);
            agent.register("wait", move |_, _| {
                let (open, opened) = &*gate;
                drop(opened.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
                Ok(Reply::default())
            })?;
        }
        world.group().barrier()?;
        if world.rank() == 0 {
            let waited = Duration::from_millis(50);
            let error = agent.call(1, "wait", "", Some(waited)).unwrap_err();
            let (worker, method) = ("worker1".into(), "wait".into());
            assert_eq!(error, Error::TimedOut { worker, method, waited });
            assert_eq!(agent.call(1, "echo", "still there", None)?, "still there");
            let (open, opened) = &*gate;
            *open.lock().unwrap() = true;
            opened.notify_all();
        }
        Ok(agent.shutdown()?)
    });
}

#[test]
fn a_message_that_is_too_long_is_refused_by_whoever_finds_it_first() {
    const SHORT: usize = 16 << 10;
    spmd(2, |world| {
        let max_message = [4 << 20, SHORT][world.rank()];
        let agent = echoing(world, Options { max_message, ..Options::default() })?;
        let long = Bytes::from(vec![0; SHORT + 1]);
        match world.rank() {
            // The caller may, the one that is called does not take it.
            0 => {
                let error = agent.call(1, "echo", long.clone(), None).unwrap_err();
                assert!(matches!(error, Error::RefusedMessage { .. }), "{error}");
                assert!(error.to_string().contains("worker1"), "{error}");
                assert_eq!(agent.call(1, "echo", long.slice(1..), None)?.len(), SHORT);
            }
            // The caller may not.
            _ => {
                let error = agent.call(0, "echo", long, None).unwrap_err();
                let (bytes, limit) = (SHORT as u64 + 1, SHORT as u64);
                let (worker, method) = ("worker0".into(), "echo".into());
                assert_eq!(error, Error::TooLarge { worker, method, bytes, limit });
            }
        }
        agent.register("long head", |_, _| Ok(Reply::default())).unwrap_err();
        agent.register("long-head", |_, _| Ok(Reply::new(vec![0; (4 << 20) + 1])))?;
        world.group().barrier()?;
        let error = agent.call(1 - world.rank(), "long-head", "", None).unwrap_err();
        assert!(matches!(error, Error::Remote { .. }), "{error}");
        Ok(agent.shutdown()?)
    });
}

#[test]
fn heads_of_replies_are_as_long_as_both_sides_allow() {
    const SHORT: usize = 16 << 10;
    const LONG: usize = 6 << 20;
    // Longer than any piece of a body, and allowed by both.
    spmd(2, |world| {
        let agent = echoing(world, Options { max_message: LONG, ..Options::default() })?;
        let long = Bytes::from(vec![7; LONG]);
        assert_eq!(agent.call(1 - world.rank(), "echo", long.clone(), None)?, long);
        Ok(agent.shutdown()?)
    });
    // Allowed by one.
    spmd(2, |world| {
        let max_message = [4 << 20, SHORT][world.rank()];
        let agent = worker(world, Options { max_message, ..Options::default() })?;
        agent.register("head", |_, _| Ok(Reply::new(vec![0; SHORT + 1])))?;
        agent.register("fail", |_, _| Err(Failure::new("ä".repeat(SHORT))))?;
        world.group().barrier()?;
        let (worker, method) = (format!("worker{}", 1 - world.rank()).into(), "head".into());
        let error = agent.call(1 - world.rank(), "head", "", None).unwrap_err();
        match world.rank() {
            0 => assert!(matches!(error, Error::Remote { .. }), "{error}"),
            _ => {
                let (bytes, limit) = (SHORT as u64 + 1, SHORT as u64);
                assert_eq!(error, Error::TooLarge { worker, method, bytes, limit });
            }
        }
        // A text is cut where it does not fit.
        let error = agent.call(1 - world.rank(), "fail", "", None).unwrap_err();
        let Error::Remote { message, .. } = &error else { panic!("{error}") };
        assert_eq!(message.len(), [SHORT, 2 * SHORT][world.rank()]);
        Ok(agent.shutdown()?)
    });
}

#[test]
fn a_thousand_calls_at_a_time_are_all_answered() {
    const CALLS: usize = 1000;
    spmd(2, |world| {
        let agent = worker(world, Options::default())?;
        let n_called = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&n_called);
        agent.register("fetch", move |_, request| {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(Reply::new(request.clone()).with_body([Bytes::from(vec![request[0]; 5000])]))
        })?;
        world.group().barrier()?;
        if world.rank() == 0 {
            thread::scope(|scope| {
                for number in 0..CALLS {
                    let agent = &agent;
                    scope.spawn(move || {
                        let request = (number as u32).to_le_bytes().to_vec();
                        let incoming = agent.open(1, "fetch", request.clone(), None).unwrap();
                        assert_eq!(incoming.head(), &request);
                        let mut body = [0; 5000];
                        incoming.read_into(&mut body).unwrap();
                        assert_eq!(body, [number as u8; 5000]);
                    });
                }
            });
        }
        world.group().barrier()?;
        assert_eq!(n_called.load(Ordering::Relaxed), [0, CALLS][world.rank()]);
        Ok(agent.shutdown()?)
    });
}

#[test]
fn a_handler_may_call_other_workers() {
    spmd(3, |world| {
        let agent = echoing(world, Options::default())?;
        let through = agent.clone();
        agent.register("relay", move |context, request| {
            let next = (context.me().id + 1) % 3;
            let method = if request.len() < 6 { "relay" } else { "echo" };
            let request = [&request[..], context.me().id.to_string().as_bytes()].concat();
            Ok(Reply::new(through.call(next, method, request, Some(context.time_left()))?))
        })?;
        world.group().barrier()?;
        let answer = agent.call((world.rank() + 1) % 3, "relay", "", None)?;
        let start = world.rank() + 1;
        let want: String = (0..7).map(|n| ((start + n) % 3).to_string()).collect();
        assert_eq!(answer, want);
        Ok(agent.shutdown()?)
    });
}
