use std::sync::Arc;

use dtensor_comm::CommError;
use dtensor_layout::{DType, LayoutError, rule::RuleError};
use dtensor_local::LocalError;

use crate::Phase;

/// What an operation on distributed tensors gives.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation gave no result.
///
/// The first group of variants are mistakes of the caller. They follow from what every rank shares, so
/// every rank gets the same error, before anything was sent. [`Comm`](Error::Comm) is the world: after it
/// nothing can be sent any more.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Shapes, dims or placements that make no layout, or no way from one layout to another.
    #[error("{op}: {source}")]
    Layout {
        /// The operation.
        op: &'static str,
        /// What is wrong.
        source: Box<LayoutError>,
    },
    /// Operands or attributes that the operation does not take, with their global shapes.
    #[error(transparent)]
    Local(Box<LocalError>),
    /// A rule that does not fit its operands.
    #[error("{op}: {source}")]
    Rule {
        /// The operation.
        op: &'static str,
        /// What is wrong.
        source: Box<RuleError>,
    },
    /// Operands on different meshes.
    #[error(
        "{op}: operand 0 is on mesh {first}, operand {operand} on {other}; bring it there with \
         redistribute_to"
    )]
    MixedMeshes {
        /// The operation.
        op: &'static str,
        /// Mesh of the first operand.
        first: Box<str>,
        /// The operand that is elsewhere.
        operand: usize,
        /// Its mesh.
        other: Box<str>,
    },
    /// A plain tensor beside a distributed one, outside of
    /// [`implicit_replication`](crate::implicit_replication).
    #[error(
        "{op}: operand {operand} is a plain tensor; distribute it, or say with implicit_replication \
         that plain tensors are the same on every rank"
    )]
    PlainOperand {
        /// The operation.
        op: &'static str,
        /// The operand.
        operand: usize,
    },
    /// Communication that nobody asked for, within [`explicit`](crate::explicit).
    #[error(
        "{op}: operand {operand} would be redistributed from {from} to {to} ({bytes} bytes between \
         ranks), which this scope does not allow; redistribute it before"
    )]
    Implicit {
        /// The operation.
        op: &'static str,
        /// The operand.
        operand: usize,
        /// Its layout.
        from: Box<str>,
        /// The layout that the operation needs.
        to: Box<str>,
        /// Bytes that would cross from one rank to another, over all ranks.
        bytes: u128,
    },
    /// A value that this rank has no part of.
    #[error("{op}: rank {rank} is not on mesh {mesh}; call it on the ranks of the mesh")]
    NotOnMesh {
        /// The operation.
        op: &'static str,
        /// This rank.
        rank: usize,
        /// The mesh.
        mesh: Box<str>,
    },
    /// A mesh that reaches beyond the world.
    #[error(
        "mesh {mesh} needs rank {rank}, but the world has {size} ranks; start more or shrink it"
    )]
    MeshTooLarge {
        /// The mesh.
        mesh: Box<str>,
        /// Its last rank.
        rank: usize,
        /// Ranks of the world.
        size: usize,
    },
    /// A group whose ranks are not equally spaced, so that no mesh describes them.
    #[error("from_group: the ranks {ranks:?} are no axis of a mesh; list them in equal steps")]
    NotAnAxis {
        /// The first ranks of the group.
        ranks: Box<[usize]>,
    },
    /// Ranks that hold parts of different shapes where one was expected.
    #[error(
        "from_local: the ranks hold parts of different sizes along {axis} ({got}); give the global \
         shape with from_local_with_shape"
    )]
    UnevenLocals {
        /// The mesh axis.
        axis: Box<str>,
        /// What they hold.
        got: Box<str>,
    },
    /// A part that is not what the layout says.
    #[error(
        "from_local: rank {rank} holds {got:?}, by the layout {layout} of {global:?} it should hold \
         {want:?}; the rule is that of torch.chunk"
    )]
    WrongLocal {
        /// The rank.
        rank: usize,
        /// Shape of its part.
        got: Box<[usize]>,
        /// What the layout says.
        want: Box<[usize]>,
        /// The global shape.
        global: Box<[usize]>,
        /// The layout.
        layout: Box<str>,
    },
    /// Copies on different ranks that are not the same.
    #[error(
        "from_local: the copies on the ranks of axis {axis} differ; broadcast one of them first"
    )]
    CopiesDiffer {
        /// The mesh axis.
        axis: Box<str>,
    },
    /// Parts of different dtypes.
    #[error("from_local: rank {rank} has {got}, rank {first_rank} has {first}; cast one of them")]
    MixedDTypes {
        /// The first rank.
        first_rank: usize,
        /// Its dtype.
        first: DType,
        /// The rank that differs.
        rank: usize,
        /// Its dtype.
        got: DType,
    },
    /// An operation that cannot be had for these layouts.
    #[error("{op}: {what}; {way_out}")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// What is not possible.
        what: Box<str>,
        /// What to do instead.
        way_out: &'static str,
    },
    /// A walk through an operation that gradients do not pass.
    #[error(
        "{op}: it has no gradient; detach its operand, or give an operation of your own one with \
         Op::keeps and Op::gradient"
    )]
    NoGradient {
        /// The operation.
        op: &'static str,
    },
    /// A result that is not finite, within [`detect_anomaly`](crate::detect_anomaly).
    #[error("{op}: a result is NaN or infinite{}, in the {phase} pass", in_module(module.as_deref()))]
    NotFinite {
        /// The operation.
        op: &'static str,
        /// The module that was running.
        module: Option<Arc<str>>,
        /// Whether a value or a gradient was computed.
        phase: Phase,
    },
    /// A second walk through a graph that the first has freed.
    #[error(
        "{op}: a walk has been here and freed what it kept; walk with retain_graph to come again"
    )]
    GraphFreed {
        /// The operation.
        op: &'static str,
    },
    /// The world: ranks that disagree or are gone.
    #[error("{op}: {source}")]
    Comm {
        /// The operation that communicated.
        op: &'static str,
        /// What happened.
        source: Arc<CommError>,
    },
}

impl Error {
    pub(crate) fn layout(op: &'static str) -> impl Fn(LayoutError) -> Error {
        move |source| Error::Layout { op, source: Box::new(source) }
    }

    pub(crate) fn rule(op: &'static str) -> impl Fn(RuleError) -> Error {
        move |source| Error::Rule { op, source: Box::new(source) }
    }

    pub(crate) fn comm(op: &'static str) -> impl Fn(CommError) -> Error {
        move |source| Error::Comm { op, source: Arc::new(source) }
    }
}

fn in_module(module: Option<&str>) -> String {
    module.map(|module| format!(", in module {module}")).unwrap_or_default()
}

impl From<LocalError> for Error {
    fn from(error: LocalError) -> Error {
        Error::Local(Box::new(error))
    }
}
