//! The rule oracle: proves by brute force that what an op's rule claims is true.
//!
//! For every sample of the op and every row that its rule yields, the operands are scattered as the
//! row says, the local kernel runs once per rank, the results are gathered as the row says, and the
//! whole must equal the dense result. Two tricks keep false rows from passing by luck: contributions
//! to a pending reduction are uneven and of mixed signs, and every row meets several draws of
//! values. (The idea is that of PyTorch's `_ops/strategy_validation.py`.)
//!
//! The other direction is [`undeclared`]: rows that are true although the rule does not have them.
//! They are not wrong, but each is either a law forgotten or has a reason; [`assert_known`] holds
//! them against a list with reasons.
//!
//! Nothing here communicates: ranks are a loop.

mod report;
mod search;

use dtensor_layout::{
    DType, Layout, LayoutError, Mesh, Placement,
    rule::{MeshRow, Rule},
};

pub use dtensor::op::SampleValues as Values;
pub use report::{FalseRow, assert_known};
pub use search::undeclared;

use crate::{
    dense::Dense,
    noise::Noise,
    placed::{gather, scatter},
};

/// The meshes on which every rule is proven: 2 ranks, 3 (which leaves uneven and empty shards), and
/// two axes, where rows of different axes meet.
pub const MESHES: [&[usize]; 3] = [&[2], &[3], &[2, 2]];

/// Draws of values that each row has to survive.
const N_DRAWS: u64 = 4;

/// An op as the oracle sees it. An op with attributes is one value per choice of attributes.
pub trait OracleOp: Sync {
    /// Its name in messages.
    fn name(&self) -> String;

    /// Its rule for operands of these global shapes.
    fn rule(&self, shapes: &[&[usize]]) -> Rule;

    /// The local kernel: the results from one rank's part of the operands. An error means that the
    /// kernel refuses such operands.
    fn eval(&self, operands: &[Dense], context: &LocalContext) -> Result<Vec<Dense>, String>;

    /// What every generic test runs on. At least one, of sizes that differ.
    fn samples(&self) -> Vec<Sample>;
}

/// Operands to run an op on.
#[derive(Clone, Debug)]
pub struct Sample {
    /// One entry per operand: its global shape and what its values are.
    pub operands: Vec<(Vec<usize>, Values)>,
}

/// What a local kernel may know beside its local operands: where they lie in the whole.
pub struct LocalContext {
    operands: Vec<Layout>,
    results: Vec<Vec<Placement>>,
    mesh: Mesh,
    coord: Vec<usize>,
}

impl Sample {
    /// Operands of these shapes, with values of either sign.
    pub fn of(shapes: &[&[usize]]) -> Sample {
        Sample { operands: shapes.iter().map(|shape| (shape.to_vec(), Values::Signed)).collect() }
    }

    /// The same sample with other values for one operand.
    pub fn with(mut self, operand: usize, values: Values) -> Sample {
        self.operands[operand].1 = values;
        self
    }

    /// The global shapes.
    pub fn shapes(&self) -> Vec<&[usize]> {
        self.operands.iter().map(|(shape, _)| shape.as_slice()).collect()
    }

    fn draw(&self, noise: &mut Noise) -> Vec<Dense> {
        self.operands.iter().map(|(shape, values)| draw(*values, shape, noise)).collect()
    }
}

impl LocalContext {
    /// The context of operands that are whole.
    fn whole(shapes: &[&[usize]]) -> Result<LocalContext, LayoutError> {
        let mesh = Mesh::from_sizes(&[1])?;
        let operands = shapes.iter().map(|shape| Layout::replicated(shape, DType::F64, &mesh));
        let operands = operands.collect::<Result<_, _>>()?;
        Ok(LocalContext { operands, results: Vec::new(), mesh, coord: vec![0] })
    }

    /// How the operands lie on the mesh.
    pub fn operands(&self) -> &[Layout] {
        &self.operands
    }

    /// How the results are to lie on it; empty if everything is whole.
    pub fn results(&self) -> &[Vec<Placement>] {
        &self.results
    }

    /// The rank.
    pub fn coord(&self) -> &[usize] {
        &self.coord
    }

    /// Global shape of an operand.
    pub fn global_shape(&self, operand: usize) -> &[usize] {
        self.operands[operand].global_shape()
    }

    /// The global index of the first element that the rank holds of an operand.
    pub fn local_offset(&self, operand: usize) -> Vec<usize> {
        self.operands[operand].local_offset(&self.coord)
    }

    /// What the rank is to hold of a result of this global shape, for kernels that are told the
    /// shape of their result (a reshape).
    pub fn result_shape(
        &self,
        result: usize,
        global_shape: &[usize],
    ) -> Result<Vec<usize>, String> {
        let Some(placements) = self.results.get(result) else { return Ok(global_shape.to_vec()) };
        let layout = Layout::new(global_shape, DType::F64, &self.mesh, placements);
        Ok(layout.map_err(|error| error.to_string())?.local_shape(&self.coord))
    }
}

/// Proves the rule of an op on all [`MESHES`], and says how many rows that were.
///
/// # Panics
/// With a list of the false rows, or if the op has no samples.
#[track_caller]
pub fn prove(op: &dyn OracleOp) -> usize {
    let mut n_rows = 0;
    let mut false_rows = Vec::new();
    for axis_sizes in MESHES {
        match check(op, axis_sizes) {
            Ok(n) => n_rows += n,
            Err(rows) => false_rows.extend(rows),
        }
    }
    let list: Vec<String> = false_rows.iter().map(FalseRow::to_string).collect();
    assert!(list.is_empty(), "rows that are not true:\n{}", list.join("\n"));
    n_rows
}

/// Checks every row that the rule of an op yields for its samples on a mesh of these axis sizes:
/// the number of rows, or those that are false.
///
/// # Panics
/// If the op has no samples, or its rule or kernel refuses one.
#[track_caller]
pub fn check(op: &dyn OracleOp, axis_sizes: &[usize]) -> Result<usize, Vec<FalseRow>> {
    let (mut n_rows, mut false_rows) = (0, Vec::new());
    for sample in samples(op) {
        let shapes = sample.shapes();
        let choices = op.rule(&shapes).choices(&shapes);
        let choices = choices.unwrap_or_else(|error| panic!("{}: {error}", op.name()));
        for row in choices.on_mesh(axis_sizes) {
            n_rows += 1;
            if let Err(why) = holds(op, &sample, &row, axis_sizes) {
                false_rows.push(FalseRow {
                    op: op.name(),
                    shapes: shapes.iter().map(|shape| shape.to_vec()).collect(),
                    mesh: axis_sizes.to_vec(),
                    row,
                    why,
                });
            }
        }
    }
    if false_rows.is_empty() { Ok(n_rows) } else { Err(false_rows) }
}

/// Whether one row is true of an op on one sample, and if not, what showed it.
pub fn holds(
    op: &dyn OracleOp,
    sample: &Sample,
    row: &MeshRow,
    axis_sizes: &[usize],
) -> Result<(), String> {
    for seed in 0..N_DRAWS {
        let trial = Trial::new(op, sample, seed);
        let operands: Vec<Vec<Placement>> =
            (0..trial.operands.len()).map(|operand| row.operand(operand)).collect();
        let results: Vec<Vec<Placement>> =
            (0..trial.want.len()).map(|result| row.result(result)).collect();
        let parts = trial.run(&operands, &results, axis_sizes)?;
        for (result, placements) in results.iter().enumerate() {
            trial
                .compare(result, &parts[result], placements, axis_sizes)
                .map_err(|why| format!("result {result}: {why}"))?;
        }
    }
    Ok(())
}

/// One draw of operands, with the dense results that they give.
struct Trial<'a> {
    op: &'a dyn OracleOp,
    seed: u64,
    operands: Vec<Dense>,
    want: Vec<Dense>,
}

impl Trial<'_> {
    #[track_caller]
    fn new<'a>(op: &'a dyn OracleOp, sample: &Sample, seed: u64) -> Trial<'a> {
        let operands = sample.draw(&mut Noise::new(seed));
        let context = LocalContext::whole(&sample.shapes());
        let context = context.unwrap_or_else(|error| panic!("{}: {error}", op.name()));
        let want = op.eval(&operands, &context);
        let want = want.unwrap_or_else(|error| panic!("{} of {sample:?}: {error}", op.name()));
        Trial { op, seed, operands, want }
    }

    /// What each rank gets, per result: the operands scattered, the kernel run rank by rank.
    fn run(
        &self,
        operands: &[Vec<Placement>],
        results: &[Vec<Placement>],
        axis_sizes: &[usize],
    ) -> Result<Vec<Vec<Dense>>, String> {
        let text = |error: LayoutError| error.to_string();
        let mesh = Mesh::from_sizes(axis_sizes).map_err(text)?;
        let mut noise = Noise::new(self.seed ^ 0xD1CE);
        let (mut layouts, mut scattered) = (Vec::new(), Vec::new());
        for (operand, placements) in self.operands.iter().zip(operands) {
            let layout =
                Layout::new(operand.shape(), DType::F64, &mesh, placements).map_err(text)?;
            scattered.push(scatter(operand, &layout, &mut noise));
            layouts.push(layout);
        }
        let mut context = LocalContext {
            operands: layouts,
            results: results.to_vec(),
            coord: Vec::new(),
            mesh: mesh.clone(),
        };
        let mut parts = vec![Vec::new(); self.want.len()];
        for (rank, coord) in mesh.coords().enumerate() {
            let local: Vec<Dense> = scattered.iter().map(|parts| parts[rank].clone()).collect();
            context.coord = coord;
            let refuses = |why| format!("the kernel refuses on rank {rank}: {why}");
            let got = self.op.eval(&local, &context).map_err(refuses)?;
            assert_eq!(got.len(), parts.len(), "{}: number of results", self.op.name());
            for (part, got) in parts.iter_mut().zip(got) {
                part.push(got);
            }
        }
        Ok(parts)
    }

    /// Whether the parts of one result, read by these placements, are the dense result.
    fn compare(
        &self,
        result: usize,
        parts: &[Dense],
        placements: &[Placement],
        axis_sizes: &[usize],
    ) -> Result<(), String> {
        let want = &self.want[result];
        let layout = Mesh::from_sizes(axis_sizes)
            .and_then(|mesh| Layout::new(want.shape(), DType::F64, &mesh, placements));
        let got = gather(parts, &layout.map_err(|error| error.to_string())?)?;
        let differ = |(got, want): &(&f64, &f64)| !crate::dense::close(**got, **want);
        match got.data().iter().zip(want.data()).find(differ) {
            Some((got, want)) => Err(format!("is {got} where the dense result is {want}")),
            None => Ok(()),
        }
    }
}

/// The samples of an op; an op without any would pass everything.
#[track_caller]
fn samples(op: &dyn OracleOp) -> Vec<Sample> {
    let samples = op.samples();
    assert!(!samples.is_empty(), "{}: an op needs samples", op.name());
    samples
}

/// A tensor of such values.
pub fn draw(values: Values, shape: &[usize], noise: &mut Noise) -> Dense {
    let n = shape.iter().product();
    // Fisher and Yates.
    let mut order: Vec<usize> = (0..n).collect();
    if values == Values::Permutation {
        (1..n).rev().for_each(|last| order.swap(last, noise.below(last + 1)));
    }
    let (mut number, row) = (0, shape.last().copied().unwrap_or(1).max(1));
    let mut reached = 0.0;
    Dense::from_fn(shape, |_| {
        let position = number;
        number += 1;
        match values {
            Values::Signed => 3.0 * noise.signed(),
            Values::Positive => 0.1 + 3.0 * noise.signed().abs(),
            Values::AboveOne => 1.1 + 3.0 * noise.signed().abs(),
            Values::Unit => 0.05 + 0.9 * noise.signed().abs(),
            Values::Index(n) => noise.below(n) as f64,
            Values::Permutation => order[position] as f64,
            Values::Integer => {
                (1 + noise.below(9)) as f64 * if noise.below(2) == 0 { 1.0 } else { -1.0 }
            }
            Values::Truth => noise.below(2) as f64,
            Values::Ascending => {
                let first = position % row == 0;
                let step = 0.1 + noise.signed().abs();
                reached = if first { noise.signed() - 1.0 } else { reached + step };
                reached
            }
        }
    })
}
