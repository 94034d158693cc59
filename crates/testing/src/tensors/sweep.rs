//! Every operation on every placement of its first operand: the result is the dense one, or every rank
//! refuses with the same error.

use dtensor::{
    DTensor, DeviceMesh, Placement, call,
    op::{LocalContext, Sample},
    ops::ops,
};

use super::{dense, draw, layouts_of, place, tensor};
use crate::dense::Dense;

/// An operation on operands in given layouts, and what it should give.
pub struct Case {
    sample: Sample,
    /// Of the first operand.
    placements: Vec<Placement>,
    others: Others,
    want: Vec<Dense>,
}

/// Which of the other operands are cut, too.
#[derive(Clone, Copy, Debug)]
enum Others {
    Whole,
    /// Along their first dim.
    Cut,
}

/// Every sample of every operation with every placement of its first operand on a mesh of these sizes. On several
/// axes, of which there are many combinations, the first sample of every operation.
///
/// # Panics
/// If an operation refuses its own sample.
#[track_caller]
pub fn cases(sizes: &[usize]) -> Vec<Case> {
    let mut cases = Vec::new();
    let n_samples = if sizes.len() > 1 { 1 } else { usize::MAX };
    for sample in ops().flat_map(|record| (record.samples)().into_iter().take(n_samples)) {
        let metas = sample.metas();
        let others: &[Others] = match (sample.operands.len(), sizes.len()) {
            (1, _) | (_, 2..) => &[Others::Whole],
            _ => &[Others::Whole, Others::Cut],
        };
        let want = whole(&sample);
        for placements in layouts_of(&metas[0].shape, metas[0].dtype, sizes) {
            for others in others {
                let sample = Sample { op: sample.op.boxed(), operands: sample.operands.clone() };
                let (placements, want) = (placements.clone(), want.clone());
                cases.push(Case { sample, placements, others: *others, want });
            }
        }
    }
    cases
}

/// The dense results.
#[track_caller]
fn whole(sample: &Sample) -> Vec<Dense> {
    let metas = sample.metas();
    let operands = draw(sample, 1);
    let tensors: Vec<_> = operands
        .iter()
        .zip(&metas)
        .map(|(x, meta)| tensor(x, meta.dtype).unwrap_or_else(|why| panic!("{why}")))
        .collect();
    let results = sample.op.eval(&tensors.iter().collect::<Vec<_>>(), &LocalContext::whole());
    let results = results.unwrap_or_else(|error| panic!("{:?}: {error}", sample.op));
    let dense = |result| dense(result).unwrap_or_else(|error| panic!("{:?}: {error}", sample.op));
    results.iter().map(dense).collect()
}

impl Case {
    /// What it is, for messages.
    pub fn name(&self) -> String {
        let shapes: Vec<_> = self.sample.operands.iter().map(|operand| &operand.shape).collect();
        format!("{:?} {shapes:?} {:?} {:?}", self.sample.op, self.placements, self.others)
    }

    /// Runs it on the ranks of a mesh: nothing to say, or why it is wrong.
    pub fn check(&self, mesh: &DeviceMesh) -> Result<(), String> {
        let placed = self.operands(mesh);
        let results = call(&*self.sample.op, &placed.iter().collect::<Vec<_>>());
        let results = results.map_err(|error| error.to_string())?;
        if results.len() != self.want.len() {
            return Err(format!("{} results", results.len()));
        }
        for (number, (result, want)) in results.iter().zip(&self.want).enumerate() {
            let full = result.full_tensor().map_err(|error| error.to_string())?;
            let got = dense(&full).map_err(|error| error.to_string())?;
            if got.shape() != want.shape() || !got.is_close(want) {
                let layout = result.layout();
                return Err(format!("result {number} as {layout} is {got:?}, should be {want:?}"));
            }
        }
        Ok(())
    }

    /// The operation with what it runs on.
    pub fn sample(&self) -> &Sample {
        &self.sample
    }

    /// The operands, placed.
    pub fn operands(&self, mesh: &DeviceMesh) -> Vec<DTensor> {
        let metas = self.sample.metas();
        draw(&self.sample, 1)
            .iter()
            .enumerate()
            .map(|(number, whole)| {
                let meta = &metas[number];
                let other = match (self.others, meta.n_dims()) {
                    (Others::Cut, 1..) => Placement::Shard(0),
                    _ => Placement::Replicate,
                };
                let others = vec![other; self.placements.len()];
                let placements = if number == 0 { &self.placements } else { &others };
                place(whole, meta.dtype, mesh, placements, 3)
            })
            .collect()
    }
}
