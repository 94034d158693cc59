//! How runs begin and end.

use std::{
    error::Error,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use dtensor_comm::{
    CallEnd, CallKind, CommError, RECORDER_CALLS, ReduceOp, Runner, World, WorldKind,
};

#[test]
fn results_come_in_rank_order_and_bodies_borrow_from_the_caller() {
    let names = ["a".to_string(), "b".to_string(), "c".to_string()];
    let calls = AtomicUsize::new(0);
    let results = Runner::threads(3)
        .run(|world| {
            calls.fetch_add(1, Ordering::Relaxed);
            assert_eq!((world.size(), world.kind()), (3, WorldKind::Threads));
            Ok::<_, CommError>(&names[world.rank()])
        })
        .unwrap();
    assert_eq!(results, ["a", "b", "c"]);
    assert_eq!(calls.into_inner(), 3);
}

#[test]
fn an_error_of_one_rank_ends_the_run_with_that_error_and_the_recorder_in_the_text() {
    let error = Runner::threads(4)
        .run(|world| {
            world.group().tag("warm-up").all_reduce(&mut [1.0_f32; 3], ReduceOp::Sum)?;
            if world.rank() == 2 {
                return Err(Box::<dyn Error + Send + Sync>::from(Outer(Inner)));
            }
            world.group().barrier()?;
            Ok(())
        })
        .unwrap_err();
    assert_eq!(error.rank(), Some(2));
    let text = error.to_string();
    assert!(text.starts_with("rank 2 of 4 returned an error: the outer one"), "{text}");
    assert!(text.contains("caused by: the inner one"), "{text}");
    assert!(text.contains("last calls of rank 2:"), "{text}");
    assert!(text.contains("all_reduce") && text.contains(r#"world sum "warm-up""#), "{text}");
    assert_eq!(text, format!("{error:?}"), "what main prints");
    assert!(error.source().unwrap().downcast_ref::<Outer>().is_some());
}

#[test]
fn the_first_cause_is_reported_not_its_consequences() {
    // Rank 1 panics; ranks 0 and 2 return errors because of it, and may do so before rank 1's thread
    // has ended.
    for _ in 0..20 {
        let error = Runner::threads(3)
            .run(|world| {
                assert!(world.rank() != 1, "the root of all evil");
                world.group().barrier()
            })
            .unwrap_err();
        assert_eq!(error.rank(), Some(1), "{error}");
        assert!(error.to_string().starts_with("rank 1 of 3 panicked: the root of all evil"));
    }
}

#[test]
fn a_mismatch_ends_the_run_with_its_table() {
    let error = Runner::threads(2)
        .run(|world| match world.rank() {
            0 => world.group().barrier(),
            _ => world.group().broadcast(&mut [1_i64; 2], 1),
        })
        .unwrap_err();
    let text = error.to_string();
    assert!(matches!(error.cause(), CommError::Mismatch { .. }), "{text}");
    assert!(text.contains("collective 0 of group [0, 1]:\n  rank 0: barrier()\n  rank 1: broadcast(i64 x 2, root 1)"), "{text}");
}

#[test]
fn a_run_needs_a_rank() {
    let error = Runner::threads(0).run(|_| Ok::<_, CommError>(())).unwrap_err();
    assert_eq!(error.rank(), None);
    assert!(error.to_string().contains("at least one"), "{error}");
}

/// The environment belongs to the whole process, so this test runs itself again in others.
#[test]
fn the_environment_chooses_the_ranks() {
    const CHILD: &str = "DTENSOR_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        match Runner::new().ranks(5).run(|world| Ok::<_, CommError>(world.size())) {
            Ok(sizes) => println!("sizes {sizes:?}"),
            Err(error) => println!("refused: {error}"),
        }
        return;
    }
    let with = |variables: &[(&str, &str)]| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "the_environment_chooses_the_ranks", "--nocapture"]);
        for name in ["DTENSOR_RANKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"] {
            child.env_remove(name);
        }
        let output = child.env(CHILD, "1").envs(variables.iter().copied()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let check = |variables: &[(&str, &str)], want: &str| {
        let got = with(variables);
        assert!(got.contains(want), "{variables:?}: {got}");
    };
    check(&[], "sizes [5, 5, 5, 5, 5]");
    check(&[("DTENSOR_RANKS", "2")], "sizes [2, 2]");
    check(
        &[("DTENSOR_RANKS", "two")],
        r#"refused: run: DTENSOR_RANKS="two" is not a number of ranks"#,
    );
    check(&[("DTENSOR_DEADLINE", "-1")], "refused: run: DTENSOR_DEADLINE=-1");
    if !cfg!(feature = "mpi") {
        check(&[("OMPI_COMM_WORLD_SIZE", "1")], "sizes [1]");
        check(&[("OMPI_COMM_WORLD_SIZE", "4")], "a launcher started 4 processes");
        check(&[("PMIX_RANK", "0")], "build it with `--features mpi`");
    }
}

#[test]
fn runs_may_be_nested_and_repeated() {
    let results = Runner::threads(2)
        .run(|outer| {
            let inner = Runner::threads(3).run(|world| {
                let mut sum = [world.rank() as i32];
                world.group().all_reduce(&mut sum, ReduceOp::Sum)?;
                Ok::<_, CommError>(sum[0])
            })?;
            let mut sum = [inner.iter().sum::<i32>()];
            outer.group().all_reduce(&mut sum, ReduceOp::Sum)?;
            Ok::<_, Box<dyn Error + Send + Sync>>(sum[0])
        })
        .unwrap();
    assert_eq!(results, [18, 18]);
}

#[test]
fn the_recorder_keeps_the_last_calls() {
    Runner::threads(2)
        .run(|world| {
            for i in 0..RECORDER_CALLS + 10 {
                world.group().all_reduce(&mut vec![0_u8; i], ReduceOp::Max)?;
            }
            let records = world.recorder().records();
            assert_eq!(records.len(), RECORDER_CALLS);
            let (first, last) = (&records[0], &records[RECORDER_CALLS - 1]);
            assert_eq!((first.number, first.sequence, first.bytes), (10, 10, 10));
            assert_eq!(last.kind, CallKind::AllReduce);
            assert!(records.iter().all(|r| matches!(r.end, CallEnd::Done(end) if end >= r.start)));
            assert!(world.recorder().to_string().contains("(10 earlier calls are not shown)"));
            Ok::<_, CommError>(())
        })
        .unwrap();
}

#[test]
fn the_recorder_shows_who_is_still_waiting() {
    Runner::threads(2)
        .run(|world| {
            let pending = world.subgroup(&[1, 0])?.tag("later").start_recv(vec![0.0_f32; 3], 0)?;
            let text = world.recorder().to_string();
            let line = text.lines().last().unwrap();
            assert!(line.contains("still waiting") && line.contains("[1, 0] from 0"), "{text}");
            // Rank 1 is group rank 0 and sends to itself, and to rank 0.
            if world.rank() == 1 {
                let group = world.subgroup(&[1, 0])?.tag("later");
                group.send(&[1.0_f32; 3], 0)?;
                group.send(&[1.0_f32; 3], 1)?;
            }
            pending.wait()?;
            assert!(!world.recorder().to_string().contains("still waiting"));
            Ok::<_, CommError>(())
        })
        .unwrap();
}

#[test]
fn a_fake_world_checks_and_records_and_moves_nothing() {
    let world = World::fake(262_144, 70_000).unwrap();
    assert_eq!((world.kind(), world.size()), (WorldKind::Fake, 262_144));
    let mut buf = [1.0_f32, 2.0];
    world.group().all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    assert_eq!(buf, [1.0, 2.0]);
    let group = world.subgroup(&[69_999, 70_000, 70_001]).unwrap();
    assert_eq!((group.rank(), group.size()), (1, 3));
    assert!(group.all_gather(&buf, &mut [0.0_f32; 5]).is_err());
    let pending = group.start_all_gather(vec![1_u8; 4], vec![7_u8; 12]).unwrap();
    assert_eq!(pending.wait().unwrap(), [7; 12]);
    let bytes: Vec<usize> = world.recorder().records().iter().map(|r| r.bytes).collect();
    assert_eq!(bytes, [8, 12]);
    assert!(World::fake(4, 4).is_err() && World::fake(0, 0).is_err());
}

#[test]
fn a_dropped_pending_call_is_loud_and_one_that_was_waited_for_is_not() {
    Runner::threads(2)
        .run(|world| {
            let errors = Arc::new(AtomicUsize::new(0));
            tracing::subscriber::with_default(CountErrors(Arc::clone(&errors)), || {
                let group = world.group();
                group.start_all_reduce(vec![1.0_f32; 100], ReduceOp::Sum)?.wait()?;
                assert_eq!(errors.load(Ordering::Relaxed), 0);
                drop(group.start_all_reduce(vec![1.0_f32; 100], ReduceOp::Sum)?);
                assert_eq!(errors.load(Ordering::Relaxed), 1);
                group.barrier()
            })
        })
        .unwrap();
}

#[test]
fn a_deadline_of_years_is_allowed() {
    let forever = Duration::from_secs(u64::MAX);
    Runner::threads(3).deadline(forever).run(|world| world.group().barrier()).unwrap();
}

#[test]
fn an_error_is_small() {
    assert!(size_of::<CommError>() <= 72, "{}", size_of::<CommError>());
}

/// Counts error events of one thread.
struct CountErrors(Arc<AtomicUsize>);

impl tracing::Subscriber for CountErrors {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[derive(Debug)]
struct Outer(Inner);
#[derive(Debug)]
struct Inner;

impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the outer one")
    }
}
impl fmt::Display for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the inner one")
    }
}
impl Error for Outer {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}
impl Error for Inner {}
