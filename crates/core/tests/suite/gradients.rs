//! The gradient of every operation that has one, and the list of those that have none.

use std::collections::{BTreeMap, BTreeSet};

use dtensor::{op::Sample, ops::ops};
use dtensor_testing::{
    dense::Dense,
    spmd,
    tensors::{
        gradients::{check_by_differences, check_in_layout, on_one_rank},
        sweep::cases,
    },
};

use crate::support::mesh;

#[test]
fn are_those_of_finite_differences() {
    let wrong = spmd(1, |world| {
        let mesh = mesh(world, &[1]);
        let mut wrong = Vec::new();
        for sample in samples() {
            if let Err(why) = check_by_differences(&sample, &mesh) {
                wrong.push(format!("{}: {why}", name(&sample)));
            }
        }
        Ok(wrong)
    });
    report(&wrong[0], samples().len());
}

#[test]
fn are_the_same_on_two_ranks() {
    sweep(2, &[2], 1);
}

#[test]
fn are_the_same_on_three_ranks() {
    sweep(3, &[3], 4);
}

#[test]
fn are_the_same_on_four_ranks_of_which_some_have_nothing() {
    sweep(4, &[4], 5);
}

#[test]
fn are_the_same_on_two_axes() {
    sweep(4, &[2, 2], 7);
}

/// Every operation on floats has a gradient, or stands in the list with the reason why it has none.
#[test]
fn are_missing_only_where_the_list_says() {
    let listed: BTreeMap<&str, &str> = include_str!("without_gradient.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split_once(": ").unwrap_or((line, "")))
        .collect();
    let gives_floats = |sample: &Sample| {
        let floats = sample.metas().iter().any(|meta| meta.dtype.is_float());
        let results = sample.op.infer(&sample.metas());
        floats && results.is_ok_and(|results| results.iter().any(|meta| meta.dtype.is_float()))
    };
    let missing: BTreeSet<&str> = ops()
        .filter(|record| {
            (record.samples)().iter().any(|s| gives_floats(s) && s.op.keeps().is_none())
        })
        .map(|record| record.name)
        .collect();
    let unlisted: Vec<_> = missing.iter().filter(|name| !listed.contains_key(*name)).collect();
    assert!(
        unlisted.is_empty(),
        "without a gradient, and not in without_gradient.txt: {unlisted:?}"
    );
    let stale: Vec<_> = listed.keys().filter(|name| !missing.contains(*name)).collect();
    assert!(stale.is_empty(), "in without_gradient.txt, but they have one: {stale:?}");
    let bare: Vec<_> = listed.iter().filter(|(_, why)| why.is_empty()).collect();
    assert!(bare.is_empty(), "without a reason: {bare:?}");
}

fn samples() -> Vec<Sample> {
    let samples = ops().flat_map(|record| (record.samples)());
    samples.filter(has_gradient).collect()
}

/// Whether some result of it has a gradient with respect to some operand.
pub(crate) fn has_gradient(sample: &Sample) -> bool {
    let floats = sample.metas().iter().any(|meta| meta.dtype.is_float());
    // Of results whose shapes depend on values nothing is known.
    let results = sample.op.infer(&sample.metas());
    sample.op.keeps().is_some()
        && floats
        && results.is_ok_and(|results| {
            results.is_empty() || results.iter().any(|meta| meta.dtype.is_float())
        })
}

/// What it is, for messages.
pub(crate) fn name(sample: &Sample) -> String {
    let shapes: Vec<_> = sample.operands.iter().map(|operand| &operand.shape).collect();
    format!("{:?} {shapes:?}", sample.op)
}

/// Every so many cases of each operation: all of them on two ranks, where a wrong formula shows; on others, where it is the
/// layouts that matter, some of every operation.
#[track_caller]
fn sweep(n_ranks: usize, sizes: &[usize], step: usize) {
    let cases = cases(sizes).into_iter().filter(|case| has_gradient(case.sample()));
    let mut by_op: BTreeMap<&'static str, Vec<_>> = BTreeMap::new();
    for case in cases {
        by_op.entry(case.sample().op.name()).or_default().push(case);
    }
    let some = |(number, of_op): (usize, Vec<_>)| {
        // Not the first of each, which are much alike.
        let first = number % step.min(of_op.len());
        of_op.into_iter().skip(first).step_by(step)
    };
    let cases: Vec<_> = by_op.into_values().enumerate().flat_map(some).collect();
    let mut alone: BTreeMap<String, Vec<Option<Dense>>> = BTreeMap::new();
    for case in &cases {
        alone.entry(name(case.sample())).or_insert_with(|| {
            let found = spmd(1, |world| Ok(on_one_rank(case.sample(), &mesh(world, &[1]))));
            let found = found.into_iter().next().unwrap();
            found.unwrap_or_else(|why| panic!("{} on one rank: {why}", case.name()))
        });
    }
    let outcomes = spmd(n_ranks, |world| {
        let mesh = mesh(world, sizes);
        let check = |case| check_in_layout(case, &mesh, &alone[&name(case.sample())]);
        Ok(cases.iter().map(check).collect::<Vec<_>>())
    });
    let mut wrong = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        if let Some(Err(why)) = outcomes.iter().map(|rank| &rank[number]).find(|o| o.is_err()) {
            wrong.push(format!("{}: {}", case.name(), why.chars().take(400).collect::<String>()));
        }
    }
    report(&wrong, cases.len());
}

#[track_caller]
fn report(wrong: &[String], n: usize) {
    let some = wrong.iter().take(25).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} of {n} are wrong:\n{some}", wrong.len());
}
