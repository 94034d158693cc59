//! Gradients of gradients: every operation whose gradient is written with operations that have one, against differences of
//! its gradient, dense and in `f64`.

use std::collections::{BTreeMap, BTreeSet};

use dtensor::{
    BackwardOptions, DTensor, DType, DeviceMesh, Error,
    Placement::{self, Replicate, Shard},
    Result, call, grad,
    op::Sample,
    ops::ops,
};
use dtensor_testing::{dense::Dense, spmd, tensors::draw};

use crate::{
    gradients::{has_gradient, name},
    support::{mesh, place, weighted_sum},
};

/// Half of the distance of differences.
const STEP: f64 = 1e-5;

/// How far a second gradient may be from a difference of first ones.
const TOLERANCE: f64 = 1e-5;

/// An operation without one stands in the list, with the reason.
#[test]
fn are_those_of_differences_of_gradients() {
    let listed: BTreeMap<&str, &str> = include_str!("without_second_gradient.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split_once(": ").unwrap_or((line, "")))
        .collect();
    let bare: Vec<_> = listed.iter().filter(|(_, why)| why.is_empty()).collect();
    assert!(bare.is_empty(), "without a reason: {bare:?}");
    let outcomes = spmd(1, |world| {
        let mesh = mesh(world, &[1]);
        let mut outcomes = Vec::new();
        for record in ops() {
            for sample in (record.samples)().into_iter().filter(has_gradient) {
                outcomes.push((record.name, name(&sample), check(&sample, &mesh)));
            }
        }
        Ok(outcomes)
    });
    let (mut missing, mut wrong) = (BTreeSet::new(), Vec::new());
    for (op, name, outcome) in &outcomes[0] {
        match outcome {
            Ok(Found::Right) => {}
            Ok(Found::None) => drop(missing.insert(*op)),
            Err(why) => wrong.push(format!("{name}: {why}")),
        }
    }
    let some = wrong.iter().take(25).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} of {} are wrong:\n{some}", wrong.len(), outcomes[0].len());
    let unlisted: Vec<_> = missing.iter().filter(|op| !listed.contains_key(*op)).collect();
    assert!(unlisted.is_empty(), "not in without_second_gradient.txt: {unlisted:?}");
    let stale: Vec<_> = listed.keys().filter(|op| !missing.contains(*op)).collect();
    assert!(stale.is_empty(), "in without_second_gradient.txt, but they have one: {stale:?}");
}

/// The first sample of every operation, with operands that are cut.
#[test]
fn are_the_same_on_two_ranks() {
    let samples = || -> Vec<Sample> {
        ops().filter_map(|record| (record.samples)().into_iter().find(has_gradient)).collect()
    };
    let on = |n_ranks: usize, cut: Placement| {
        spmd(n_ranks, |world| {
            let mesh = mesh(world, &[n_ranks]);
            Ok(samples().iter().map(|sample| second(sample, cut, &mesh)).collect::<Vec<_>>())
        })
        .remove(0)
    };
    let alone = on(1, Replicate);
    let mut n = 0;
    let mut wrong = Vec::new();
    for dim in [0, 1] {
        for ((sample, want), got) in samples().iter().zip(&alone).zip(on(2, Shard(dim))) {
            // Those that have none are judged elsewhere.
            let Ok(want) = want else { continue };
            n += 1;
            let is_right = got.as_ref().is_ok_and(|got| {
                got.len() == want.len()
                    && got.iter().zip(want).all(|(got, want)| got.is_close(want))
            });
            if !is_right {
                wrong.push(format!("{} S({dim}): {got:?}, should be {want:?}", name(sample)));
            }
        }
    }
    let some = wrong.iter().take(25).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} of {n} are wrong:\n{some}", wrong.len());
    assert!(n > 200, "only {n}");
}

/// The second gradients with respect to all operands, whole, of operands that are cut like this where they have such a dim.
fn second(sample: &Sample, cut: Placement, mesh: &DeviceMesh) -> Result<Vec<Dense>, String> {
    let text = |error: Error| error.to_string();
    let leaves = leaves_cut(sample, mesh, 0.0, cut).map_err(text)?;
    let floats: Vec<&DTensor> = leaves.iter().filter(|leaf| leaf.needs_grad()).collect();
    let zeros = |leaf: &DTensor| Dense::new(leaf.shape(), vec![0.0; leaf.numel()]);
    let Some(number) = slopes(sample, &leaves).map_err(text)?.filter(DTensor::needs_grad) else {
        return Ok(floats.into_iter().map(zeros).collect());
    };
    let found = number.backward().map_err(text)?;
    let whole = |leaf: &&DTensor| match found.get(leaf) {
        Some(gradient) => {
            let values =
                gradient.to_dtype(DType::F64).and_then(|gradient| gradient.to_vec::<f64>());
            Ok(Dense::new(leaf.shape(), values.map_err(text)?))
        }
        None => Ok(zeros(leaf)),
    };
    floats.iter().map(whole).collect()
}

enum Found {
    Right,
    /// An operation of the first gradient has none.
    None,
}

/// The gradient of a number that depends on all first gradients, along one direction through all operands: a formula that is
/// wrong for any of them shows there, and two more gradients are all it takes.
fn check(sample: &Sample, mesh: &DeviceMesh) -> Result<Found, String> {
    let text = |error: Error| error.to_string();
    let results = sample.op.infer(&sample.metas()).map_err(text)?;
    // What is rounded to less than f64 does not change by so little.
    if results.iter().any(|meta| meta.dtype.is_float() && meta.dtype != DType::F64) {
        return Ok(Found::Right);
    }
    let leaves = leaves(sample, mesh, 0.0).map_err(text)?;
    let number = match slopes(sample, &leaves) {
        Err(Error::NoGradient { .. }) => return Ok(Found::None),
        number => number.map_err(text)?,
    };
    let along: f64 = match number.filter(DTensor::needs_grad) {
        // The gradient depends on nothing, as that of what is linear.
        None => 0.0,
        Some(number) => match number.backward() {
            Err(Error::NoGradient { .. }) => return Ok(Found::None),
            found => {
                let found = found.map_err(text)?;
                let mut sum = 0.0;
                for (operand, leaf) in leaves.iter().enumerate() {
                    if let Some(gradient) = found.get(leaf) {
                        let gradient = gradient.to_vec::<f64>().map_err(text)?;
                        let parts = gradient.iter().zip(direction(operand, leaf.numel()));
                        sum += parts.map(|(slope, part)| slope * part).sum::<f64>();
                    }
                }
                sum
            }
        },
    };
    let at = |offset: f64| -> Result<f64> {
        let number = slopes(sample, &self::leaves(sample, mesh, offset)?)?;
        number.map_or(Ok(0.0), |number| number.item::<f64>())
    };
    let difference = (at(STEP).map_err(text)? - at(-STEP).map_err(text)?) / (2.0 * STEP);
    match (along - difference).abs() <= TOLERANCE * difference.abs().max(1.0) {
        true => Ok(Found::Right),
        false => Err(format!("it is {along}, by differences {difference}")),
    }
}

/// The operands, moved by so much along the direction.
fn leaves(sample: &Sample, mesh: &DeviceMesh, offset: f64) -> Result<Vec<DTensor>> {
    leaves_cut(sample, mesh, offset, Replicate)
}

/// The same, cut where there is a dim to cut.
fn leaves_cut(
    sample: &Sample,
    mesh: &DeviceMesh,
    offset: f64,
    cut: Placement,
) -> Result<Vec<DTensor>> {
    let metas = sample.metas();
    let cut = |n_dims: usize| match cut {
        Shard(dim) if dim >= n_dims => Replicate,
        _ => cut,
    };
    let values = draw(sample, 1);
    let leaf = |(operand, (whole, meta)): (usize, (&Dense, &dtensor::op::Meta))| {
        if !meta.dtype.is_float() {
            return Ok(place(whole, meta.dtype, mesh, &[cut(meta.n_dims())], 1));
        }
        let parts = whole.data().iter().zip(direction(operand, whole.data().len()));
        let moved = parts.map(|(value, part)| value + offset * part).collect();
        let moved = Dense::new(whole.shape(), moved);
        place(&moved, meta.dtype, mesh, &[cut(meta.n_dims())], 1).requires_grad()
    };
    values.iter().zip(&metas).enumerate().map(leaf).collect()
}

/// Of every element another part, none of which is small.
fn direction(operand: usize, n: usize) -> impl Iterator<Item = f64> {
    (0..n).map(move |at| 0.4 + ((at * 5 + operand * 3) % 7) as f64 / 10.0)
}

/// A number that depends on every element of every first gradient; `None` if there is none.
fn slopes(sample: &Sample, leaves: &[DTensor]) -> Result<Option<DTensor>> {
    let results = call(&*sample.op, &leaves.iter().collect::<Vec<_>>())?;
    let loss = weighted_sum(&results)?;
    let floats: Vec<&DTensor> = leaves.iter().filter(|leaf| leaf.needs_grad()).collect();
    let found = grad(&loss, &floats, &BackwardOptions::default().create_graph())?;
    let found: Vec<DTensor> = found.into_iter().flatten().collect();
    if found.is_empty() { Ok(None) } else { weighted_sum(&found).map(Some) }
}
