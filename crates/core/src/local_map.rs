//! Functions of local parts.

use dtensor_layout::Placement;
use dtensor_local::Tensor;

use crate::{DTensor, Error, LocalOptions, Result};

/// What a result of [`local_map`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalResult {
    /// Its placements on the mesh of the operands.
    pub placements: Vec<Placement>,
    /// Its global shape. Without it the ranks tell each other the shapes of their parts.
    pub shape: Option<Vec<usize>>,
}

impl LocalResult {
    /// A result of which the ranks find out the global shape.
    pub fn placed(placements: &[Placement]) -> LocalResult {
        LocalResult { placements: placements.to_vec(), shape: None }
    }

    /// A result of this global shape.
    #[must_use]
    pub fn with_shape(self, shape: &[usize]) -> LocalResult {
        LocalResult { shape: Some(shape.to_vec()), ..self }
    }
}

/// Runs `body` on what this rank holds of the operands, and takes what it gives for what the rank holds of the
/// results: a door for code that knows better.
///
/// Operands are first brought to the placements given with them. That the results are what is said of them is
/// believed, but their sizes are checked on all ranks; parts may be uneven as a [`Layout`](crate::Layout) means it.
/// On a rank outside of the mesh `body` does not run, and results need a shape.
///
/// ```
/// use dtensor::{DType, DeviceMesh, LocalResult, Placement::{Replicate, Shard}, Runner, arange, local_map};
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "x")?;
///     let x = arange(0, 5, 1, DType::F32, &mesh, &[Replicate])?;
///     let doubled = local_map("double", &[(&x, &[Shard(0)])], &[LocalResult::placed(&[Shard(0)])], |parts| {
///         Ok(vec![parts[0].mul_scalar(2.0)?])
///     })?;
///     assert_eq!(doubled[0].to_vec::<f32>()?, [0.0, 2.0, 4.0, 6.0, 8.0]);
///     Ok::<_, dtensor::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn local_map(
    op: &'static str,
    operands: &[(&DTensor, &[Placement])],
    results: &[LocalResult],
    body: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Vec<DTensor>> {
    let Some((first, _)) = operands.first() else {
        return Err(Error::Unsupported {
            op,
            what: "local_map without operands".into(),
            way_out: "use from_local",
        });
    };
    let mesh = first.mesh();
    for (number, (operand, _)) in operands.iter().enumerate() {
        if operand.mesh() != mesh {
            return Err(Error::MixedMeshes {
                op,
                first: mesh.to_string().into(),
                operand: number,
                other: operand.mesh().to_string().into(),
            });
        }
    }
    let mut parts = Vec::with_capacity(operands.len());
    for (operand, placements) in operands {
        let to = operand.layout().with_placements(placements).map_err(Error::layout(op))?;
        parts.push(operand.redistribute_as(op, &to)?.to_local());
    }
    let given = match mesh.coord() {
        Some(_) => body(&parts)?,
        None => vec![Tensor::empty(&[0], first.dtype())?; results.len()],
    };
    if given.len() != results.len() {
        let what = format!("{} results where {} were declared", given.len(), results.len());
        let way_out = "declare one for each";
        return Err(Error::Unsupported { op, what: what.into(), way_out });
    }
    let wrap = |(local, LocalResult { placements, shape }): (&Tensor, &LocalResult)| {
        let options = LocalOptions { shape: shape.clone(), run_check: false };
        DTensor::from_local_with(local, mesh, placements, &options)
    };
    given.iter().zip(results).map(wrap).collect()
}
