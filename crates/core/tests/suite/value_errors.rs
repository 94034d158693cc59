//! Values that an operation refuses, on one rank alone: every rank has the same error, and goes on.

use std::collections::BTreeSet;

use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh, Error, LocalError,
    Placement::{self, Replicate, Shard},
    Tensor, World, arange, call, distribute_tensor_from, full, ones,
    op::{LocalContext, Meta, Op, Outputs, Sample, SampleValues},
    ops::ops,
    plan::StepKind,
    randn,
    rule::Rule,
    zeros,
};
use dtensor_testing::{spmd, tensors::draw};

use crate::support::{mesh, tensor};

/// What has ever refused a value of a sample. An operation that begins to do so has to be added.
const REFUSING: &[&str] = &[
    "bincount",
    "cholesky",
    "cond",
    "cross_entropy",
    "cross_entropy_backward",
    "det",
    "eigh",
    "eigvalsh",
    "embedding",
    "embedding_backward",
    "floor_div",
    "fmod",
    "gather",
    "histc",
    "histogram",
    "index",
    "index_add",
    "index_copy",
    "index_fill",
    "index_put",
    "index_select",
    "inv",
    "lstsq",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "max_pool_backward",
    "nll_loss",
    "nll_loss_backward",
    "one_hot",
    "pinv",
    "qr",
    "qr_complete",
    "rem",
    "repeat_interleave_tensor",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "scatter_scalar",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "take",
];

/// A sample with one value that it refuses.
struct Refused {
    op: Box<dyn Op>,
    operands: Vec<Tensor>,
    /// Of these, the one that has the value.
    wrong: usize,
    want: Error,
}

/// Every sample of every operation, with its own dtypes and with integers, and some of the values that one
/// might refuse at some of the places of each operand: those that the kernel does refuse.
fn all_refused() -> Vec<Refused> {
    let mut all = Vec::new();
    for sample in ops().flat_map(|record| (record.samples)()) {
        for sample in [&sample, &of_integers(&sample)] {
            let metas = sample.metas();
            if sample.op.infer(&metas).is_err() {
                continue;
            }
            let operands: Vec<Tensor> = draw(sample, 1)
                .iter()
                .zip(&metas)
                .map(|(x, meta)| tensor(x, meta.dtype).unwrap())
                .collect();
            if !is_fine(&*sample.op, &operands) {
                continue;
            }
            for (wrong, meta) in metas.iter().enumerate() {
                let values: &[f64] = match meta.dtype {
                    DType::F64 => &[f64::NAN],
                    DType::I64 => &[0.0, -9.0, 99.0],
                    _ => &[],
                };
                for (value, at) in
                    values.iter().flat_map(|value| places(meta).map(|at| (*value, at)))
                {
                    let mut operands = operands.clone();
                    operands[wrong] = with(&operands[wrong], at, value);
                    let whole = operands.iter().collect::<Vec<_>>();
                    if let Err(error) = sample.op.eval(&whole, &LocalContext::whole()) {
                        let (op, want) = (sample.op.boxed(), error.into());
                        all.push(Refused { op, operands, wrong, want });
                    }
                }
            }
        }
    }
    all
}

fn is_fine(op: &dyn Op, operands: &[Tensor]) -> bool {
    op.eval(&operands.iter().collect::<Vec<_>>(), &LocalContext::whole()).is_ok()
}

fn of_integers(sample: &Sample) -> Sample {
    let mut operands = sample.operands.clone();
    for operand in &mut operands {
        if operand.values.dtype() == DType::F64 {
            operand.values = SampleValues::Integer;
        }
    }
    Sample { op: sample.op.boxed(), operands }
}

/// The first, the last, and two between.
fn places(meta: &Meta) -> impl Iterator<Item = usize> {
    let n: usize = meta.shape.iter().product();
    let places = [0, n / 3, 2 * n / 3, n.saturating_sub(1)];
    places.into_iter().filter(move |at| *at < n).collect::<BTreeSet<_>>().into_iter()
}

/// The tensor with another value at one place.
fn with(tensor: &Tensor, at: usize, value: f64) -> Tensor {
    let line = tensor.reshape(&[tensor.numel()]).unwrap();
    let mut values = line.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    values[at] = value;
    let values = Tensor::from_vec(values, tensor.shape()).unwrap();
    values.to_dtype(tensor.dtype()).unwrap()
}

/// Whole or cut on every axis.
fn cuts(n_dims: usize, n_axes: usize) -> Vec<Vec<Placement>> {
    let one = || std::iter::once(Replicate).chain((0..n_dims).map(Shard));
    (0..n_axes).fold(vec![Vec::new()], |all, _| {
        all.iter().flat_map(|done| one().map(move |next| [&done[..], &[next]].concat())).collect()
    })
}

impl Refused {
    /// What is wrong on this rank, over all layouts of the operand that has the value; of the others some.
    fn check(&self, mesh: &DeviceMesh) -> Vec<String> {
        let mut found = Vec::new();
        for own in cuts(self.operands[self.wrong].n_dims(), mesh.n_axes()) {
            for others in [None, Some(0), Some(isize::MAX)] {
                if others.is_some() && self.operands.len() == 1 {
                    continue;
                }
                let placed = |(number, whole): (usize, &Tensor)| {
                    let cut = others.filter(|_| whole.n_dims() > 0);
                    let other = cut.map_or(Replicate, |dim| {
                        Shard(whole.n_dims().saturating_sub(1).min(dim.unsigned_abs()))
                    });
                    let others = vec![other; mesh.n_axes()];
                    let placements = if number == self.wrong { &own } else { &others };
                    distribute_tensor_from(whole, mesh, placements, None).unwrap()
                };
                let placed: Vec<DTensor> = self.operands.iter().enumerate().map(placed).collect();
                let what = match call(&*self.op, &placed.iter().collect::<Vec<_>>()) {
                    Err(error) if error == self.want => None,
                    Err(error) => Some(error.to_string()),
                    Ok(_) => Some("no error".to_string()),
                };
                let shapes = self.operands.iter().map(Tensor::shape).collect::<Vec<_>>();
                let of = format!("{:?} {shapes:?}, operand {}", self.op, self.wrong);
                let at = format!("{own:?} {others:?}");
                found.extend(what.map(|what| format!("{of} {at}: {what}, not {}", self.want)));
            }
        }
        // And the ranks are still together.
        let sum = arange(0, 5, 1, DType::I64, mesh, &vec![Shard(0); mesh.n_axes()]).unwrap();
        assert_eq!(sum.sum(&[], false).unwrap().item::<i64>().unwrap(), 10);
        found
    }
}

#[test]
fn every_operation_that_refuses_values_is_known() {
    let names: BTreeSet<&str> = all_refused().iter().map(|refused| refused.op.name()).collect();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), REFUSING);
}

#[test]
fn on_two_ranks() {
    refused_alike(2, &[2]);
}

#[test]
fn on_three_ranks() {
    refused_alike(3, &[3]);
}

#[test]
fn on_four_ranks_of_which_some_have_nothing() {
    refused_alike(4, &[4]);
}

#[test]
fn on_two_axes() {
    refused_alike(4, &[2, 2]);
}

#[track_caller]
fn refused_alike(n_ranks: usize, sizes: &[usize]) {
    let cases = all_refused();
    // Of two axes there are many layouts.
    let step = if sizes.len() > 1 { 7 } else { 1 };
    let wrong = spmd(n_ranks, |world| {
        let mesh = mesh(world, sizes);
        Ok(cases.iter().step_by(step).flat_map(|case| case.check(&mesh)).collect::<Vec<_>>())
    });
    let wrong: Vec<String> = wrong.concat();
    let some = wrong.iter().take(25).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} are wrong:\n{some}", wrong.len());
}

/// These numbers in this layout.
fn numbers(values: &[i64], mesh: &DeviceMesh, placements: &[Placement]) -> Result<DTensor, Error> {
    let whole = Tensor::from_slice(values, &[values.len()])?;
    distribute_tensor_from(&whole, mesh, placements, None)
}

#[test]
fn ranks_agree_only_where_one_may_see_what_others_do_not() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let calls = |body: &dyn Fn() -> Result<DTensor, Error>| {
            let (result, comm) = CommDebug::record(body);
            let is_check = |op: &str| op.ends_with(" check");
            assert!(comm.events.iter().all(|event| is_check(event.op)), "{comm}");
            assert_eq!(comm.calls(), comm.calls_of(StepKind::AllReduce));
            result.map(|_| (comm.calls(), comm.bytes()))
        };
        let [whole, rows, both] = [[Replicate; 2], [Shard(0), Replicate], [Shard(0); 2]];
        let whole_numbers = numbers(&[5, 6, 7, 8], &mesh, &whole)?;
        for (placements, want) in [(whole, (0, 0)), (rows, (1, 2 * 16)), (both, (1, 3 * 16))] {
            let x = numbers(&[5, 6, 7, 8], &mesh, &placements)?;
            assert_eq!(calls(&|| whole_numbers.floor_div(&x))?, want);
            assert_eq!(calls(&|| x.rem(&x))?, want);
            // Nothing to refuse: of another operation, a number, or floats.
            assert_eq!(calls(&|| x.mul(&x))?, (0, 0));
            assert_eq!(calls(&|| x.fmod(3))?, (0, 0));
            let floats = x.to_dtype(DType::F32)?;
            assert_eq!(calls(&|| x.fmod(&floats))?, (0, 0));
            // Of a table whose rows are cut every rank sees all ids, but on the axes that cut these.
            let ids = x.sub(5)?;
            let table = ones(&[6, 4], DType::F32, &mesh, &[Replicate, Shard(0)])?;
            let table = if placements == both { table.redistribute(&whole)? } else { table };
            assert_eq!(calls(&|| table.embedding(&ids))?, want);
            assert_eq!(calls(&|| table.index_select(0, &ids))?, want);
        }
        Ok(())
    });
    // As much as on a real one.
    let world = World::fake(4, 1).unwrap();
    let fake = DeviceMesh::from_mesh(&world, dtensor::Mesh::from_sizes(&[2, 2]).unwrap()).unwrap();
    let x = zeros(&[4], DType::I64, &fake, &[Shard(0), Replicate]).unwrap();
    let (remainder, comm) = CommDebug::record(|| x.rem(&x));
    assert_eq!((remainder.unwrap().shape(), comm.calls(), comm.bytes()), (&[4][..], 1, 32));
}

#[test]
fn of_several_wrong_values_that_of_the_first_rank_is_named() {
    let errors = spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let x = ones(&[4, 3], DType::F32, &mesh, &[Replicate])?;
        let ids = numbers(&[0, 3, 2, 70, 80, 9], &mesh, &[Shard(0)])?;
        let (error, comm) = CommDebug::record(|| x.index_select(0, &ids).unwrap_err());
        assert_eq!((comm.calls(), comm.calls_of(StepKind::AllGather)), (2, 1), "{comm}");
        assert_eq!(ids.sum(&[], false)?.item::<i64>()?, 164);
        Ok(error)
    });
    let want = LocalError::IndexOutOfRange { op: "index_select", index: 70, dim: 0, size: 4 };
    assert!(errors.iter().all(|error| *error == Error::from(want.clone())), "{errors:?}");
}

#[test]
fn what_is_computed_by_hand_is_refused_alike() {
    let errors = spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let table = ones(&[5, 2], DType::F32, &mesh, &[Shard(0)])?;
        let grad = ones(&[3, 2], DType::F32, &mesh, &[Shard(0)])?;
        let mask = ones(&[6], DType::Bool, &mesh, &[Shard(0)])?;
        let x = numbers(&[1, 2, 3, 4, 5, 6], &mesh, &[Shard(0)])?;
        let few = numbers(&[1, 2, 3, 4], &mesh, &[Shard(0)])?;
        let huge = full(&[6], 1e300, &mesh, &[Shard(0)])?;
        let many = numbers(&[1, 1, 1, 1, 1, i64::MAX], &mesh, &[Shard(0)])?;
        let nothing = zeros(&[6, 0], DType::U8, &mesh, &[Shard(0)])?;
        let errors = [
            grad.embedding_backward_like(&numbers(&[0, 1, 7], &mesh, &[Shard(0)])?, &table),
            grad.embedding_backward_like(&numbers(&[0, -1, 2], &mesh, &[Replicate])?, &table),
            x.masked_scatter(&mask, &few),
            huge.histc(3, 0.0, 0.0),
            huge.histogram(3, None).map(|(counts, _)| counts),
            x.repeat_interleave_tensor(&many, Some(0)),
            nothing.repeat_interleave_tensor(&many, Some(0)),
        ];
        assert_eq!(x.sum(&[], false)?.item::<i64>()?, 21);
        Ok(errors.map(|result| result.unwrap_err().to_string()))
    });
    assert!(errors.iter().all(|of_rank| *of_rank == errors[0]), "{errors:#?}");
    assert!(errors[0][0].starts_with("embedding_backward: index 7 "), "{errors:#?}");
    assert!(errors[0][3].contains("histc: range is "), "{errors:#?}");
    assert!(errors[0][6].contains("too large"), "{errors:#?}");
}

/// Refuses negative values by one error, and those above 9 by another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Digits;

impl Op for Digits {
    fn name(&self) -> &'static str {
        "digits"
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule, Error> {
        Ok(Rule::of("... -> ...", &[]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        if !x[0].is_meta() {
            let values = x[0].to_vec::<i64>()?;
            if let Some(value) = values.iter().find(|value| **value < 0) {
                let (op, name, got) = ("digits", "a digit", value.to_string());
                return Err(LocalError::BadNumber { op, name, got, want: "0 or more" });
            }
            if values.iter().any(|value| *value > 9) {
                return Err(LocalError::NothingToReduce { op: "digits", shape: vec![1] });
            }
        }
        Ok([x[0].clone()].into())
    }

    fn may_refuse(&self, _: usize, _: &[Meta]) -> bool {
        true
    }
}

#[test]
fn operations_of_users_agree_too_and_ranks_outside_are_not_asked() {
    let errors = spmd(3, |world| {
        let mesh = DeviceMesh::from_mesh(world, dtensor::Mesh::from_sizes(&[2]).unwrap())?;
        let outcome = |values: &[i64]| {
            let x = numbers(values, &mesh, &[Shard(0)])?;
            Ok::<_, Error>(call(&Digits, &[&x]).map(|results| results[0].shape().to_vec()))
        };
        let outcomes =
            [outcome(&[1, 2, 3, -4])?, outcome(&[10, 2, 3, 4])?, outcome(&[1, 2, 3, 4])?];
        if world.rank() == 2 {
            assert!(outcomes.iter().all(Result::is_ok));
        }
        // A world that works: all of its ranks.
        let all = DeviceMesh::of_world(world, "x")?;
        let x = randn(&[6], DType::F64, &all, &[Shard(0)])?;
        assert!(x.sub(&x)?.sum(&[], false)?.item::<f64>()? == 0.0);
        Ok(outcomes)
    });
    assert_eq!(errors[0], errors[1]);
    let [negative, large, fine] = &errors[0];
    let (op, name, got) = ("digits", "a digit", "-4".to_string());
    let want = LocalError::BadNumber { op, name, got, want: "0 or more" };
    assert_eq!(*negative, Err(want.into()));
    // Only the message is sent, where the error is not one of those that follow from values.
    let want = LocalError::NothingToReduce { op: "digits", shape: vec![1] }.to_string();
    assert_eq!(large.as_ref().map_err(Error::to_string), Err(want));
    assert_eq!(*fine, Ok(vec![4]));
}
