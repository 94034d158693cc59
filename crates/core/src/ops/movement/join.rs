//! Several tensors to one.

use dtensor_layout::{
    Layout, Placement, ReduceOp,
    rule::{
        Law::{self, Affine, Increasing, Moves},
        Rule,
    },
};
use dtensor_local::{LocalError, Tensor};
use smallvec::smallvec;

use super::{cuts, letter, letters, rule};
use crate::{
    DTensor, Error, Result,
    dispatch::call_one,
    exchange::{Run, Source, Traffic, Want, blank, crossing, held_by, in_ranges, part_of, placed},
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
};

/// An element of the result is one of some operand. So all may be pending alike; and as the others are the
/// same on every rank, one alone may be a pending mean or extreme.
const LAWS: &[Law] = &[Moves, Affine, Increasing];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cat {
    dim: isize,
}

impl Op for Cat {
    fn name(&self) -> &'static str {
        "cat"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (n_dims, dim) = (operands[0].n_dims(), operands[0].dim("cat", self.dim)?);
        // The joined dim is another one in every tensor.
        let tensor = |number: usize| {
            let mut dims = letters(0..n_dims, |_| false);
            dims[dim] = format!("{}!", letter(n_dims + number));
            dims.join(" ")
        };
        let from: Vec<String> = (0..operands.len()).map(tensor).collect();
        let to = tensor(operands.len());
        rule("cat", &format!("{} -> {to}", from.join(", ")), LAWS)
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(Tensor::cat(x, self.dim))
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        let dim = Meta::of_layout(operands[0]).dim("cat", self.dim);
        dim.is_ok_and(|dim| operands.iter().any(|layout| cuts(layout, dim)))
    }

    /// Every rank gets its part of the result from those that have it, of all operands in one call.
    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let operands = operands.iter().map(|operand| in_ranges("cat", operand));
        let operands = operands.collect::<Result<Vec<DTensor>>>()?;
        let metas: Vec<Meta> = operands.iter().map(|x| Meta::of_layout(x.layout())).collect();
        let dim = metas[0].dim("cat", self.dim)?;
        let result = joined(&operands, &self.infer(&metas)?[0])?;
        let sources = operands.iter().map(|operand| source(operand, &result));
        let sources = sources.collect::<Result<Vec<DTensor>>>()?;
        let mut start = 0;
        let runs = metas.iter().map(|meta| {
            let n = meta.shape[dim];
            let mut runs: Vec<Vec<Run>> =
                meta.shape.iter().map(|size| vec![Run::whole(*size)]).collect();
            runs[dim] = vec![Run { to: start..start + n, from: 0, step: 1 }];
            start += n;
            runs
        });
        let runs: Vec<Vec<Vec<Run>>> = runs.collect();
        type Wanted<'a> = Box<dyn Fn(&[usize]) -> Vec<Want> + 'a>;
        type Held<'a> = Box<dyn Fn(&[usize]) -> Vec<std::ops::Range<usize>> + 'a>;
        let result_of = &result;
        let functions: Vec<(Vec<usize>, Held, Wanted)> = (sources.iter().zip(&runs))
            .map(|(x, runs)| {
                let held: Held = Box::new(|coord| held_by(x.layout(), coord));
                let wanted: Wanted = Box::new(move |coord| {
                    vec![Want { into: 0, runs: part_of(result_of, coord, runs) }]
                });
                (crossing(x.layout(), result_of, runs), held, wanted)
            })
            .collect();
        let (mesh, dtype) = (operands[0].mesh(), operands[0].dtype());
        let sources = (sources.iter().zip(&functions))
            .map(|(x, (axes, held, wanted))| Source { local: x.local(), axes, held, wanted })
            .collect();
        let traffic = Traffic { op: "cat", mesh, sources };
        let joined = placed(mesh, &result, |coord| {
            let into = blank(mesh, &result.local_shape(coord), dtype)?;
            Ok(traffic.run(vec![into])?.swap_remove(0))
        })?;
        Ok(smallvec![joined])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let (grad, dim) = (backward.grad()?, backward.meta(0).dim("cat", self.dim)?);
        let n = backward.n_operands();
        let lengths: Vec<usize> = (0..n).map(|operand| backward.shape(operand)[dim]).collect();
        if (0..n).filter(|operand| backward.needs(*operand)).count() == 1 {
            return backward.each(|operand| {
                let start = lengths[..operand].iter().sum();
                grad.narrow(dim as isize, start, lengths[operand])
            });
        }
        // All at once: along a cut dim that is one exchange.
        let parts = grad.split(&lengths, dim as isize)?;
        backward.each(|operand| Ok(parts[operand].clone()))
    }
}

/// Cut on every axis as the first operand that is cut there; pending where all are, or may be.
fn joined(operands: &[DTensor], result: &Meta) -> Result<Layout> {
    let (first, dtype) = (operands[0].layout(), result.dtype);
    let on_axis = |axis: usize| {
        let here = || operands.iter().map(move |operand| operand.placements()[axis]);
        let pending = here().find(|placement| placement.reduce_op().is_some());
        let stays = |op: ReduceOp| {
            let repeatable = matches!(op, ReduceOp::Avg | ReduceOp::Max | ReduceOp::Min);
            here().all(|one| {
                one == Placement::Partial(op) || repeatable && one == Placement::Replicate
            })
        };
        here().find(|placement| placement.shard_dim().is_some()).unwrap_or_else(|| {
            let pending = pending.filter(|one| one.reduce_op().is_some_and(stays));
            pending.unwrap_or(Placement::Replicate)
        })
    };
    let placements: Vec<Placement> = (0..first.mesh().n_axes()).map(on_axis).collect();
    // With the order of the cuts of an operand, if one has these placements.
    let like = operands.iter().find(|operand| operand.placements() == placements);
    let layout = match like {
        Some(like) => like.layout().with_shape(&result.shape),
        None => Layout::new(&result.shape, dtype, first.mesh(), &placements),
    };
    layout.map_err(Error::layout("cat"))
}

/// The operand, with nothing pending on axes where the result is not: what is reduced goes where the result
/// is cut.
fn source(operand: &DTensor, result: &Layout) -> Result<DTensor> {
    let settle = |(own, result): (&Placement, &Placement)| match own {
        Placement::Partial(_) => *result,
        _ => *own,
    };
    let own = operand.placements();
    let placements: Vec<Placement> = own.iter().zip(result.placements()).map(settle).collect();
    if placements == own {
        return Ok(operand.clone());
    }
    let layout = operand.layout().with_placements(&placements).map_err(Error::layout("cat"))?;
    operand.redistribute_as("cat", &layout)
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Stack {
    dim: isize,
}

impl Op for Stack {
    fn name(&self) -> &'static str {
        "stack"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let mut wider = operands[0].clone();
        wider.shape.push(1);
        let (n_dims, new) = (operands[0].n_dims(), wider.dim("stack", self.dim)?);
        let mut dims = letters(0..n_dims, |_| false);
        let from = vec![dims.join(" "); operands.len()].join(", ");
        dims.insert(new, format!("{}!", letter(n_dims)));
        rule("stack", &format!("{from} -> {}", dims.join(" ")), LAWS)
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(Tensor::stack(x, self.dim))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let parts = backward.grad()?.unbind(self.dim)?;
        backward.each(|operand| Ok(parts[operand].clone()))
    }
}

impl DTensor {
    /// Tensors one after the other along a dim. All other sizes and the dtypes are equal.
    ///
    /// Where that dim is cut, the result is cut as the first operand that is, and every rank receives what it
    /// lacks of its part, of all operands in one exchange.
    ///
    /// ```
    /// use dtensor::{CommDebug, DTensor, DType, DeviceMesh, Placement::{Replicate, Shard}, Runner, arange};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let mesh = DeviceMesh::of_world(world, "x")?;
    ///     let a = arange(0, 3, 1, DType::I64, &mesh, &[Shard(0)])?;
    ///     let b = arange(3, 8, 1, DType::I64, &mesh, &[Replicate])?;
    ///     let (joined, comm) = CommDebug::record(|| DTensor::cat(&[&a, &b], 0));
    ///     let joined = joined?;
    ///     assert_eq!((joined.layout().to_string().as_str(), comm.calls()), ("[S(0)]", 1));
    ///     assert_eq!(joined.to_vec::<i64>()?, [0, 1, 2, 3, 4, 5, 6, 7]);
    ///     Ok::<_, dtensor::Error>(())
    /// })?;
    /// # Ok::<(), dtensor::RunError>(())
    /// ```
    pub fn cat(tensors: &[&DTensor], dim: isize) -> Result<DTensor> {
        call_one(&Cat { dim }, tensors)
    }

    /// Tensors of one shape along a new dim.
    pub fn stack(tensors: &[&DTensor], dim: isize) -> Result<DTensor> {
        call_one(&Stack { dim }, tensors)
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "cat",
        samples: || {
            vec![
                Sample::new(Cat { dim: 0 }, &[&[3, 2], &[4, 2]]),
                Sample::new(Cat { dim: -1 }, &[&[3, 2], &[3, 5], &[3, 1]]),
                Sample::new(Cat { dim: 0 }, &[&[5], &[0]]),
            ]
        },
    },
    OpRecord {
        name: "stack",
        samples: || {
            vec![
                Sample::new(Stack { dim: 0 }, &[&[3, 2], &[3, 2]]),
                Sample::new(Stack { dim: -1 }, &[&[5], &[5], &[5]]),
                Sample::new(Stack { dim: 0 }, &[&[], &[]]),
            ]
        },
    },
];
