//! The cases of this crate on threads. (`mpi-suite` runs them under mpirun.)

use std::collections::BTreeSet;

use dtensor_testing::{
    spmd,
    suite::{CASES, cases, faults},
};

#[test]
fn every_case_holds_on_threads() {
    for (name, case) in CASES {
        for n_ranks in [1, 2, 3, 4, 6] {
            spmd(n_ranks, |world| case(world).map_err(|why| format!("{name}: {why}").into()));
        }
    }
}

#[test]
fn every_name_is_one_word_and_stands_for_one_case() {
    let names: Vec<&str> =
        cases().map(|case| case.0).chain(faults().iter().map(|fault| fault.name)).collect();
    let different: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(different.len(), names.len());
    assert!(names.iter().all(|name| !name.contains(char::is_whitespace)), "{names:?}");
}
