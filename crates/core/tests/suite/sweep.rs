//! Every operation on every placement of its first operand, on several worlds: the result is the dense
//! one, or every rank refuses with the same error.

use dtensor::{
    DTensor, Placement, call,
    op::{LocalContext, Sample},
    ops::ops,
};
use dtensor_testing::{dense::Dense, spmd};

use crate::support::{dense, draw, layouts_of, mesh, place, tensor};

/// What became of one case on one rank: nothing to say, or why not.
type Outcome = Result<(), String>;

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

/// Which of the other operands are cut, too.
#[derive(Clone, Copy, Debug)]
enum Others {
    Whole,
    /// Along their first dim.
    Cut,
}

#[track_caller]
fn sweep(n_ranks: usize, sizes: &[usize]) {
    let cases: Vec<(Sample, Vec<Placement>, Others)> = ops()
        .flat_map(|record| (record.samples)())
        .flat_map(|sample| {
            let meta = &sample.metas()[0];
            let others: &[Others] = match sample.operands.len() {
                1 => &[Others::Whole],
                _ => &[Others::Whole, Others::Cut],
            };
            let layouts = layouts_of(&meta.shape, meta.dtype, sizes);
            let cases = layouts.into_iter().flat_map(|placements| {
                others.iter().map(move |others| (placements.clone(), *others))
            });
            cases
                .map(|(placements, others)| {
                    let operands = sample.operands.clone();
                    (Sample { op: sample.op.boxed(), operands }, placements, others)
                })
                .collect::<Vec<_>>()
        })
        .collect();
    let wants: Vec<Vec<Dense>> = cases.iter().map(|(sample, ..)| whole(sample)).collect();
    let outcomes = spmd(n_ranks, |world| {
        let mesh = mesh(world, sizes);
        let check = |((sample, placements, others), want): (&(_, Vec<_>, _), &Vec<Dense>)| {
            check(sample, placements, *others, want, &mesh)
        };
        Ok(cases.iter().zip(&wants).map(check).collect::<Vec<Outcome>>())
    });
    let mut wrong = Vec::new();
    for (number, (sample, placements, others)) in cases.iter().enumerate() {
        let here: Vec<&Outcome> = outcomes.iter().map(|rank| &rank[number]).collect();
        if here.iter().any(|outcome| outcome.is_err()) {
            let shapes: Vec<_> = sample.operands.iter().map(|operand| &operand.shape).collect();
            let what = match here.iter().all(|outcome| *outcome == here[0]) {
                true => format!("{:?}", here[0]),
                false => format!("ranks differ: {here:?}"),
            };
            let what: String = what.chars().take(400).collect();
            wrong.push(format!("{:?} {shapes:?} {placements:?} {others:?}: {what}", sample.op));
        }
    }
    assert!(cases.len() > 100);
    let some = wrong.iter().take(25).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} of {} are wrong:\n{some}", wrong.len(), cases.len());
}

/// The dense results.
fn whole(sample: &Sample) -> Vec<Dense> {
    let metas = sample.metas();
    let operands = draw(sample, 1);
    let tensors: Vec<_> =
        operands.iter().zip(&metas).map(|(x, meta)| tensor(x, meta.dtype).unwrap()).collect();
    let results = sample.op.eval(&tensors.iter().collect::<Vec<_>>(), &LocalContext::whole());
    let results = results.unwrap_or_else(|error| panic!("{:?}: {error}", sample.op));
    results.iter().map(|result| dense(result).unwrap()).collect()
}

fn check(
    sample: &Sample,
    placements: &[Placement],
    others: Others,
    want: &[Dense],
    mesh: &dtensor::DeviceMesh,
) -> Outcome {
    let metas = sample.metas();
    let operands = draw(sample, 1);
    let placed: Vec<DTensor> = operands
        .iter()
        .enumerate()
        .map(|(number, whole)| {
            let meta = &metas[number];
            let other = match (others, meta.n_dims()) {
                (Others::Cut, 1..) => Placement::Shard(0),
                _ => Placement::Replicate,
            };
            let others = vec![other; placements.len()];
            let placements = if number == 0 { placements } else { &others };
            place(whole, meta.dtype, mesh, placements, 3)
        })
        .collect();
    let results = call(&*sample.op, &placed.iter().collect::<Vec<_>>());
    let results = results.map_err(|error| error.to_string())?;
    if results.len() != want.len() {
        return Err(format!("{} results", results.len()));
    }
    for (number, (result, want)) in results.iter().zip(want).enumerate() {
        let full = result.full_tensor().map_err(|error| error.to_string())?;
        let got = dense(&full).map_err(|error| error.to_string())?;
        if got.shape() != want.shape() || !got.is_close(want) {
            let layout = result.layout();
            return Err(format!("result {number} as {layout} is {got:?}, should be {want:?}"));
        }
    }
    Ok(())
}
