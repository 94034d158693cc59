//! Every operation on every placement of its first operand, on several worlds: the result is the dense
//! one, or every rank refuses with the same error.

use dtensor_testing::{spmd, tensors::sweep::cases};

use crate::support::mesh;

#[test]
fn two_ranks() {
    sweep(2, &[2]);
}

#[test]
fn three_ranks() {
    sweep(3, &[3]);
}

#[test]
fn four_ranks_of_which_some_have_nothing() {
    sweep(4, &[4]);
}

#[test]
fn two_axes() {
    sweep(4, &[2, 2]);
}

#[track_caller]
fn sweep(n_ranks: usize, sizes: &[usize]) {
    let cases = cases(sizes);
    let outcomes = spmd(n_ranks, |world| {
        let mesh = mesh(world, sizes);
        Ok(cases.iter().map(|case| case.check(&mesh)).collect::<Vec<_>>())
    });
    let mut wrong = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let here: Vec<_> = outcomes.iter().map(|rank| &rank[number]).collect();
        if here.iter().any(|outcome| outcome.is_err()) {
            let what = match here.iter().all(|outcome| *outcome == here[0]) {
                true => format!("{:?}", here[0]),
                false => format!("ranks differ: {here:?}"),
            };
            wrong.push(format!("{}: {}", case.name(), what.chars().take(400).collect::<String>()));
        }
    }
    assert!(cases.len() > 1000, "only {} cases", cases.len());
    let some = wrong.iter().take(25).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} of {} are wrong:\n{some}", wrong.len(), cases.len());
}
