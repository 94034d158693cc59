//! Functions of local parts.

use dtensor_layout::Placement;
use dtensor_local::Tensor;

use crate::{DTensor, Error, LocalOptions, Result};

/// An operand of [`local_map`].
#[derive(Clone, Copy, Debug)]
pub struct LocalOperand<'a> {
    /// The tensor.
    pub tensor: &'a DTensor,
    /// The placements to which it is brought first.
    pub placements: &'a [Placement],
    /// What the gradients of its parts are to each other; see [`DTensor::local_part`].
    pub grad_placements: Option<&'a [Placement]>,
}

impl<'a> LocalOperand<'a> {
    /// A tensor in these placements.
    pub fn new(tensor: &'a DTensor, placements: &'a [Placement]) -> LocalOperand<'a> {
        LocalOperand { tensor, placements, grad_placements: None }
    }

    /// With gradients of parts in other placements than by default.
    #[must_use]
    pub fn with_grad(self, placements: &'a [Placement]) -> LocalOperand<'a> {
        LocalOperand { grad_placements: Some(placements), ..self }
    }
}

/// What a result of [`local_map`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalResult {
    /// Its placements on the mesh of the operands.
    pub placements: Vec<Placement>,
    /// Its global shape. Without it the ranks tell each other the shapes of their parts.
    pub shape: Option<Vec<usize>>,
    /// What the gradients of its parts are to each other; see [`DTensor::local_part`].
    pub grad_placements: Option<Vec<Placement>>,
}

impl LocalResult {
    /// A result of which the ranks find out the global shape.
    pub fn placed(placements: &[Placement]) -> LocalResult {
        LocalResult { placements: placements.to_vec(), shape: None, grad_placements: None }
    }

    /// A result of this global shape.
    #[must_use]
    pub fn with_shape(self, shape: &[usize]) -> LocalResult {
        LocalResult { shape: Some(shape.to_vec()), ..self }
    }

    /// With gradients of parts in other placements than by default.
    #[must_use]
    pub fn with_grad(self, placements: &[Placement]) -> LocalResult {
        LocalResult { grad_placements: Some(placements.to_vec()), ..self }
    }
}

/// Runs `body` on what this rank holds of the operands, and takes what it gives for what the rank holds of the
/// results: a door for code that knows better.
///
/// Operands are first brought to the placements given with them. `body` sees tensors on
/// [a mesh of this rank alone](crate::DeviceMesh::alone), and gradients pass through it. That the results are what is said of
/// them is believed, but their sizes are checked on all ranks; parts may be uneven as a
/// [`Layout`](crate::Layout) means it. On a rank outside of the mesh `body` does not run, and results need a shape.
///
/// ```
/// use dtensor::{DType, DeviceMesh, LocalOperand, LocalResult, Placement::{Replicate, Shard}, Runner};
/// use dtensor::{arange, local_map};
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "x")?;
///     let x = arange(0, 5, 1, DType::F32, &mesh, &[Replicate])?;
///     let rows = LocalOperand::new(&x, &[Shard(0)]);
///     let doubled = local_map("double", &[rows], &[LocalResult::placed(&[Shard(0)])], |parts| {
///         Ok(vec![parts[0].mul(2.0)?])
///     })?;
///     assert_eq!(doubled[0].to_vec::<f32>()?, [0.0, 2.0, 4.0, 6.0, 8.0]);
///     Ok::<_, dtensor::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn local_map(
    op: &'static str,
    operands: &[LocalOperand<'_>],
    results: &[LocalResult],
    body: impl FnOnce(&[DTensor]) -> Result<Vec<DTensor>>,
) -> Result<Vec<DTensor>> {
    let Some(first) = operands.first() else {
        return Err(Error::Unsupported {
            op,
            what: "local_map without operands".into(),
            way_out: "use from_local",
        });
    };
    let mesh = first.tensor.mesh();
    for (number, operand) in operands.iter().enumerate() {
        if operand.tensor.mesh() != mesh {
            return Err(Error::MixedMeshes {
                op,
                first: mesh.to_string().into(),
                operand: number,
                other: operand.tensor.mesh().to_string().into(),
            });
        }
    }
    let mut brought = Vec::with_capacity(operands.len());
    for LocalOperand { tensor, placements, .. } in operands {
        let to = tensor.layout().with_placements(placements).map_err(Error::layout(op))?;
        brought.push(tensor.redistribute_as(op, &to)?);
    }
    if mesh.coord().is_none() {
        let nothing = |LocalResult { placements, shape, .. }: &LocalResult| {
            let options = LocalOptions { shape: shape.clone(), ..LocalOptions::default() };
            let local = Tensor::empty(&[0], first.tensor.dtype())?;
            DTensor::from_local_with(&local, mesh, placements, &options)
        };
        return results.iter().map(nothing).collect();
    }
    let parts = brought.iter().zip(operands);
    let parts = parts.map(|(tensor, operand)| tensor.local_part(operand.grad_placements));
    let given = body(&parts.collect::<Result<Vec<DTensor>>>()?)?;
    if given.len() != results.len() {
        let what = format!("{} results where {} were declared", given.len(), results.len());
        let way_out = "declare one for each";
        return Err(Error::Unsupported { op, what: what.into(), way_out });
    }
    let wrap = |(part, result): (&DTensor, &LocalResult)| {
        let options = LocalOptions {
            shape: result.shape.clone(),
            run_check: false,
            grad_placements: result.grad_placements.clone(),
        };
        DTensor::from_local_part(part, mesh, &result.placements, &options)
    };
    given.iter().zip(results).map(wrap).collect()
}
