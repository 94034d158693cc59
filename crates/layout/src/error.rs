use crate::{DType, Placement, ReduceOp};

/// What can be wrong with a mesh, a placement, a layout, a rule or a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A dim that the tensor does not have.
    #[error("dim {dim} is out of range for a tensor of {n_dims} dims; give -{n_dims}..{n_dims}")]
    DimOutOfRange {
        /// As the caller gave it.
        dim: isize,
        /// Dims of the tensor.
        n_dims: usize,
    },
    /// A list of placements that does not fit the mesh.
    #[error("{got} placements for a mesh of {want} axes ({mesh}); give one per axis")]
    WrongNumberOfPlacements {
        /// Placements given.
        got: usize,
        /// Axes of the mesh.
        want: usize,
        /// The mesh.
        mesh: String,
    },
    /// Two pending reductions that do not commute.
    #[error(
        "P({first}) and P({second}) in one layout do not commute; reduce one of them first (only sum and avg mix)"
    )]
    MixedPartials {
        /// Reduction on the outer axis.
        first: ReduceOp,
        /// Reduction on the inner axis.
        second: ReduceOp,
    },
    /// A pending mean of integers.
    #[error("P({op}) is not defined for {dtype}; cast to a float dtype, or use P(sum)")]
    PartialNotDefined {
        /// The reduction.
        op: ReduceOp,
        /// The dtype.
        dtype: DType,
    },
    /// A mesh without axes.
    #[error("a mesh needs at least one axis; give for example dp=2,tp=4")]
    EmptyMesh,
    /// An axis of no ranks.
    #[error("mesh axis `{axis}` has size 0; every axis needs at least one rank")]
    EmptyAxis {
        /// Its name.
        axis: String,
    },
    /// More axes than a mesh can have.
    #[error("a mesh of {got} axes; at most {limit} are supported: flatten some of them")]
    TooManyAxes {
        /// Axes given.
        got: usize,
        /// The limit.
        limit: usize,
    },
    /// Two axes of one name.
    #[error("mesh axis name `{axis}` is given twice; names must differ")]
    DuplicateAxis {
        /// The name.
        axis: String,
    },
    /// A name that the mesh does not have.
    #[error("no mesh axis `{axis}`; the mesh has {known}")]
    UnknownAxis {
        /// The name.
        axis: String,
        /// Names of the mesh.
        known: String,
    },
    /// A name that could not be read back from text.
    #[error(
        "mesh axis name `{axis}` must start with a letter or `_` and go on with letters, digits, `_`, `-` or `.`"
    )]
    BadAxisName {
        /// The name.
        axis: String,
    },
    /// Sizes whose product is not a `usize`.
    #[error("the product of {what} {sizes:?} overflows; make it smaller")]
    Overflow {
        /// What the sizes are of.
        what: &'static str,
        /// The sizes.
        sizes: Vec<usize>,
    },
    /// A coordinate that is not on the mesh.
    #[error("coordinate {coord:?} is not on mesh {mesh}; give one index below each axis size")]
    BadCoordinate {
        /// The coordinate.
        coord: Vec<usize>,
        /// The mesh.
        mesh: String,
    },
    /// An index that is not in the tensor.
    #[error("index {index:?} is outside of shape {shape:?}")]
    BadIndex {
        /// The index.
        index: Vec<usize>,
        /// The global shape.
        shape: Vec<usize>,
    },
    /// A rank that is not on the mesh.
    #[error("rank {rank} is not on mesh {mesh}")]
    RankOutsideMesh {
        /// The rank.
        rank: usize,
        /// The mesh.
        mesh: String,
    },
    /// Sizes that do not multiply to the axis they shall replace.
    #[error("unflatten: sizes {sizes:?} do not multiply to {size}, the size of axis `{axis}`")]
    UnflattenSizes {
        /// The axis.
        axis: String,
        /// Its size.
        size: usize,
        /// The sizes given.
        sizes: Vec<usize>,
    },
    /// Meshes that cannot become one.
    #[error("cannot combine meshes {left} and {right}: {why}")]
    MeshesDoNotCombine {
        /// One mesh.
        left: String,
        /// The other.
        right: String,
        /// The reason.
        why: &'static str,
    },
    /// A shard order that contradicts the placements.
    #[error("shard order {order} does not fit placements {placements}: {why}")]
    BadShardOrder {
        /// The order.
        order: String,
        /// The placements.
        placements: String,
        /// The reason.
        why: &'static str,
    },
    /// A layout that has no form in the other notation.
    #[error("{layout} cannot be written as {form}: {why}")]
    NotExpressible {
        /// The layout.
        layout: String,
        /// The notation.
        form: &'static str,
        /// The reason.
        why: String,
    },
    /// Two layouts between which no plan exists.
    #[error("cannot redistribute {from} to {to}: {why}")]
    CannotRedistribute {
        /// Source layout.
        from: String,
        /// Target layout.
        to: String,
        /// The reason and the way out.
        why: String,
    },
    /// A reduction that another one would have to replace.
    #[error(
        "cannot turn {from} into {to} on mesh axis `{axis}`: redistribute to R first, if that is what you mean"
    )]
    PartialToPartial {
        /// What the axis has.
        from: Placement,
        /// What it should have.
        to: Placement,
        /// The axis.
        axis: String,
    },
    /// A text that is not what it should be.
    #[error("`{text}` is not a {what}: {why}")]
    Parse {
        /// What it should be.
        what: &'static str,
        /// The text.
        text: String,
        /// The reason.
        why: &'static str,
    },
}

/// Result of this crate.
pub type Result<T, E = LayoutError> = std::result::Result<T, E>;
