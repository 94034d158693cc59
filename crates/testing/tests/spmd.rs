//! The harness itself: order, borrowing, first cause.

use dtensor_comm::ReduceOp;
use dtensor_testing::{panic_text, spmd};

#[test]
fn results_come_in_rank_order_and_bodies_borrow_test_data() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"].map(String::from);
    for n_ranks in [1, 2, 3, 8] {
        let results = spmd(n_ranks, |world| {
            let mut sum = [world.rank() as i64];
            world.group().all_reduce(&mut sum, ReduceOp::Sum)?;
            Ok((&names[world.rank()], sum[0]))
        });
        let total = (n_ranks * (n_ranks - 1) / 2) as i64;
        let want: Vec<_> = names[..n_ranks].iter().map(|name| (name, total)).collect();
        assert_eq!(results, want);
    }
}

#[test]
fn the_first_cause_is_reported_with_its_rank_and_nobody_hangs() {
    let failed_assertion = panic_text(|| {
        spmd(4, |world| {
            assert!(world.rank() != 2, "boom");
            Ok(world.group().barrier()?)
        })
    });
    assert!(failed_assertion.starts_with("rank 2 of 4 panicked: boom"), "{failed_assertion}");
    let returned_error = panic_text(|| {
        spmd(3, |world| match world.rank() {
            1 => Err("no luck".into()),
            _ => Ok(world.group().barrier()?),
        })
    });
    assert!(returned_error.contains("rank 1 of 3 returned an error: no luck"), "{returned_error}");
}

#[test]
fn ranks_that_call_different_things_are_shown_side_by_side() {
    let text = panic_text(|| {
        spmd(2, |world| match world.rank() {
            0 => Ok(world.group().all_reduce(&mut [1.0_f32], ReduceOp::Sum)?),
            _ => Ok(world.group().barrier()?),
        })
    });
    assert!(text.contains("rank 0: all_reduce(f32 x 1, sum)"), "{text}");
    assert!(text.contains("rank 1: barrier()"), "{text}");
}
