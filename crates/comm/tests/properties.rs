//! Properties: all_to_all_v against a plain loop, for any counts.

use dtensor_comm::{CommError, Runner};
use proptest::prelude::*;

/// A matrix of counts (from, to) for 1 to 5 ranks, with many zeros.
fn counts() -> impl Strategy<Value = Vec<Vec<usize>>> {
    let count = prop_oneof![2 => Just(0_usize), 3 => 1..5_usize, 1 => 100..3000_usize];
    (1..6_usize).prop_flat_map(move |ranks| {
        proptest::collection::vec(proptest::collection::vec(count.clone(), ranks), ranks)
    })
}

/// Element `i` of what `from` sends to `to`.
fn element(from: usize, to: usize, i: usize) -> i64 {
    (from * 1_000_000_000 + to * 1_000_000 + i) as i64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn all_to_all_v_moves_every_element_to_its_place(counts in counts()) {
        let ranks = counts.len();
        let received = Runner::threads(ranks).run(|world| {
            let me = world.rank();
            let send: Vec<i64> = (0..ranks)
                .flat_map(|to| (0..counts[me][to]).map(move |i| element(me, to, i)))
                .collect();
            let recv_counts: Vec<usize> = (0..ranks).map(|from| counts[from][me]).collect();
            let mut recv = vec![-1; recv_counts.iter().sum()];
            let group = world.group();
            group.all_to_all_v(&send, &counts[me], &mut recv, &recv_counts)?;
            let again = group.start_all_to_all_v(
                send, &counts[me], vec![-1; recv.len()], &recv_counts,
            )?;
            assert_eq!(again.wait()?, recv);
            Ok::<_, CommError>(recv)
        }).unwrap();
        for (to, received) in received.iter().enumerate() {
            let counts = &counts;
            let want: Vec<i64> = (0..ranks)
                .flat_map(|from| (0..counts[from][to]).map(move |i| element(from, to, i)))
                .collect();
            prop_assert_eq!(received, &want);
        }
    }

    #[test]
    fn all_to_all_v_with_any_one_count_changed_is_a_mismatch(
        counts in counts(),
        at in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let ranks = counts.len();
        let (from, to) = (at.0.index(ranks), at.1.index(ranks));
        let errors = Runner::threads(ranks).run(|world| {
            let me = world.rank();
            let send = vec![1_u8; counts[me].iter().sum()];
            let mut recv_counts: Vec<usize> = (0..ranks).map(|from| counts[from][me]).collect();
            if me == to {
                recv_counts[from] += 1;
            }
            let mut recv = vec![0_u8; recv_counts.iter().sum()];
            let result = world.group().all_to_all_v(&send, &counts[me], &mut recv, &recv_counts);
            assert!(recv.iter().all(|&x| x == 0), "data moved");
            Ok::<_, CommError>(result.unwrap_err())
        }).unwrap();
        for error in errors {
            prop_assert!(matches!(error, CommError::Mismatch { .. }), "{}", error);
        }
    }
}
