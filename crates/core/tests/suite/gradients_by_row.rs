//! Gradients where all operands are cut, as the rows of rules say. The sweep over the layouts of first operands cuts the
//! others along their first dim at most: rows in which a further operand lies elsewhere, or is a pending sum, are here.

use std::collections::BTreeMap;

use dtensor::{DTensor, Layout, Mesh, Placement, call, op::Sample, ops::ops};
use dtensor_testing::{
    dense::Dense,
    spmd,
    tensors::{draw, gradients::on_one_rank},
};

use crate::{
    gradients::{has_gradient, name},
    support::{dense, mesh, place, weighted_sum},
};

#[test]
fn are_the_same_in_rows_that_cut_further_operands() {
    check_all_rows(2);
}

/// Where shards are uneven.
#[test]
fn are_the_same_in_rows_that_cut_further_operands_on_three_ranks() {
    check_all_rows(3);
}

#[track_caller]
fn check_all_rows(n_ranks: usize) {
    let cases = cases(n_ranks);
    assert!(cases.len() > 300, "only {} cases", cases.len());
    let mut alone: BTreeMap<String, Vec<Option<Dense>>> = BTreeMap::new();
    for case in &cases {
        alone.entry(name(&case.sample)).or_insert_with(|| {
            let found = spmd(1, |world| Ok(on_one_rank(&case.sample, &mesh(world, &[1]))));
            found.into_iter().next().unwrap().unwrap()
        });
    }
    let outcomes = spmd(n_ranks, |world| {
        let mesh = mesh(world, &[n_ranks]);
        let check = |case: &Case| case.check(&mesh, &alone[&name(&case.sample)]);
        Ok(cases.iter().map(check).collect::<Vec<_>>())
    });
    let mut wrong = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        if let Some(Err(why)) = outcomes.iter().map(|rank| &rank[number]).find(|o| o.is_err()) {
            let (name, row) = (name(&case.sample), &case.operands);
            wrong.push(format!("{name} {row:?}: {}", why.chars().take(300).collect::<String>()));
        }
    }
    let some = wrong.iter().take(25).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} of {} are wrong:\n{some}", wrong.len(), cases.len());
}

/// A sample with the placements of all operands.
struct Case {
    sample: Sample,
    operands: Vec<Placement>,
}

fn cases(n_ranks: usize) -> Vec<Case> {
    let mut all = Vec::new();
    for record in ops() {
        let of_sample = |sample: Sample| {
            let rows = rows(&sample, n_ranks);
            rows.into_iter().map(move |operands| {
                let sample = Sample { op: sample.op.boxed(), operands: sample.operands.clone() };
                Case { sample, operands }
            })
        };
        let samples = (record.samples)().into_iter().filter(has_gradient);
        all.extend(samples.flat_map(of_sample));
    }
    all
}

/// The rows in which a further operand is no copy, as placements of operands that their dtypes allow.
fn rows(sample: &Sample, n_ranks: usize) -> Vec<Vec<Placement>> {
    let metas = sample.metas();
    let shapes: Vec<&[usize]> = metas.iter().map(|meta| &*meta.shape).collect();
    let choices = sample.op.rule(&metas).unwrap().choices(&shapes).unwrap();
    let mesh = Mesh::from_sizes(&[n_ranks]).unwrap();
    let mut rows: Vec<Vec<Placement>> = Vec::new();
    for row in choices.on_mesh(&[n_ranks]) {
        let operands: Vec<Placement> = (0..metas.len()).map(|n| row.operand(n)[0]).collect();
        let can_be = |(meta, placement): (&dtensor::op::Meta, &Placement)| {
            Layout::new(&meta.shape, meta.dtype, &mesh, &[*placement]).is_ok()
        };
        let is_new = operands.iter().skip(1).any(|own| *own != Placement::Replicate);
        if is_new && metas.iter().zip(&operands).all(can_be) && !rows.contains(&operands) {
            rows.push(operands);
        }
    }
    rows
}

impl Case {
    fn check(&self, mesh: &dtensor::DeviceMesh, want: &[Option<Dense>]) -> Result<(), String> {
        let text = |error: dtensor::Error| error.to_string();
        let metas = self.sample.metas();
        let mut leaves = Vec::new();
        for ((whole, meta), placement) in
            draw(&self.sample, 1).iter().zip(&metas).zip(&self.operands)
        {
            let operand = place(whole, meta.dtype, mesh, &[*placement], 3);
            leaves.push(match meta.dtype.is_float() {
                true => operand.requires_grad().map_err(text)?,
                false => operand,
            });
        }
        let results =
            call(&*self.sample.op, &leaves.iter().collect::<Vec<&DTensor>>()).map_err(text)?;
        let found = weighted_sum(&results).and_then(|loss| loss.backward()).map_err(text)?;
        for (number, (leaf, want)) in leaves.iter().zip(want).enumerate() {
            let Some(want) = want else { continue };
            let got = match found.get(leaf) {
                Some(gradient) => {
                    dense(&gradient.full_tensor().map_err(text)?).map_err(|e| e.to_string())?
                }
                None => Dense::new(leaf.shape(), vec![0.0; leaf.numel()]),
            };
            if got.shape() != want.shape() || !got.is_close(want) {
                return Err(format!("of operand {number} it is {got:?}, should be {want:?}"));
            }
        }
        Ok(())
    }
}
