//! Everything that can be wrong with sharded tensors.

use std::{borrow::Cow, sync::Arc};

use dtensor_comm::CommError;
use dtensor_dtype::DType;
use dtensor_local::LocalError;
use serde::{Deserialize, Serialize};

use crate::{
    Device, ShardMetadata, ShardPlacement,
    metadata::{MemoryFormat, TensorLayout, dtype_name},
};

/// What an operation on sharded tensors gives.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A word or two of an error that is known when the program is written. It can be sent to other ranks.
pub type Text = Cow<'static, str>;

/// Why an operation gave no result.
///
/// What follows from what every rank shares (specs, sizes, arguments) is found on every rank alike, before
/// anything is sent. What only one rank can see is told to the others where an operation communicates, so that
/// all get the same [`Error::Rank`]; [`cause`](Error::cause) looks through it. After [`Error::Comm`] nothing
/// can be sent any more.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Error {
    /// A text that is no placement.
    #[error(
        "could not parse the placement `{text}`: {why}; write `rank:<rank>/<device>`, `<worker>/<device>` or `<device>`"
    )]
    BadPlacement {
        /// The text.
        text: Box<str>,
        /// What is wrong with it.
        why: Text,
    },
    /// A text that is no device.
    #[error("could not parse the device `{text}`: {why}; write `cpu`, `cuda:1` or the like")]
    BadDevice {
        /// The text.
        text: Box<str>,
        /// What is wrong with it.
        why: Text,
    },
    /// A device that has a name, but is not there.
    #[error("{op}: this build has no device {device}; place the shards on cpu")]
    MissingDevice {
        /// The operation.
        op: Text,
        /// The device.
        device: Device,
    },
    /// Memory that this build does not have.
    #[error("{op}: this build has no pinned memory; leave pin_memory off")]
    MissingPinnedMemory {
        /// The operation.
        op: Text,
    },
    /// A shard that lies nowhere.
    #[error(
        "{op}: a shard has {}, which names no rank; write `rank:<rank>/<device>`",
        placement_text(placement.as_ref())
    )]
    NoRank {
        /// The operation.
        op: Text,
        /// Its placement.
        placement: Option<ShardPlacement>,
    },
    /// A shard on a rank that the group does not have.
    #[error(
        "{op}: a shard lies on rank {rank}, which is not among the ranks {group:?} of the group; \
         ranks are those of the world"
    )]
    RankNotInGroup {
        /// The operation.
        op: Text,
        /// The rank of the world.
        rank: usize,
        /// The first ranks of the group.
        group: Box<[usize]>,
    },
    /// The name of a worker, where nobody knows workers.
    #[error(
        "{op}: a shard lies on worker {worker}, but workers have no names here; place it on a rank, or give the group an agent \
         with `with_rpc`"
    )]
    NoWorkers {
        /// The operation.
        op: Text,
        /// The name.
        worker: Box<str>,
    },
    /// The name of a worker that there is not.
    #[error("{op}: a shard lies on worker {worker}, but there is no worker of that name")]
    NoSuchWorker {
        /// The operation.
        op: Text,
        /// The name.
        worker: Box<str>,
    },
    /// A worker whose number is not its rank, or workers that are not the ranks of the world.
    #[error(
        "{op}: rank {rank} of {ranks} is worker {worker} of {workers}; references need workers that are the ranks of the world, in \
         their order"
    )]
    NotTheSameRank {
        /// The operation.
        op: Text,
        /// The rank in the world.
        rank: usize,
        /// The size of the world.
        ranks: usize,
        /// The number of the worker.
        worker: usize,
        /// How many workers there are.
        workers: usize,
    },
    /// A tensor whose ranks have no references to each other's shards.
    #[error(
        "{op}: the tensor has no references to the shards of other ranks; make it with `TensorOptions::init_rrefs`"
    )]
    NoRemoteShards {
        /// The operation.
        op: Text,
    },
    /// A tensor that was stored with references, on a group without an agent.
    #[error(
        "{op}: the tensor has references to the shards of other ranks, but the group has no agent; add one with `with_rpc`"
    )]
    NoRpc {
        /// The operation.
        op: Text,
    },
    /// A reference to a shard that its tensor no longer has.
    #[error(
        "the reference to {shard} of worker {owner} is stale: the tensor was resharded; ask it for its remote shards again"
    )]
    StaleShard {
        /// The shard, as it was.
        shard: Box<ShardMetadata>,
        /// The name of its owner.
        owner: Box<str>,
    },
    /// The value of a shard, asked of another worker than its owner without fetching it.
    #[error("{op}: the shard is on worker {owner}, this is {me}; fetch it with `to_here`")]
    NotTheOwner {
        /// The operation.
        op: Text,
        /// The name of its owner.
        owner: Box<str>,
        /// The name of this worker.
        me: Box<str>,
    },
    /// A call of a group by a rank that is not in it.
    #[error("{op}: rank {rank} is not in the group {group:?}; call it on the ranks of the group")]
    NotAMember {
        /// The operation.
        op: Text,
        /// This rank.
        rank: usize,
        /// The first ranks of the group.
        group: Box<[usize]>,
    },
    /// A root that the group does not have.
    #[error(
        "{op}: there is no rank {rank} in a group of {size}; it is counted within the group, from 0"
    )]
    NoSuchGroupRank {
        /// The operation.
        op: Text,
        /// The rank asked for.
        rank: usize,
        /// The size of the group.
        size: usize,
    },

    /// Offsets and sizes of different numbers of dims.
    #[error(
        "a shard has the offsets {offsets:?} and the sizes {sizes:?}; give one of each per dim"
    )]
    OffsetsAndSizes {
        /// The offsets.
        offsets: Box<[usize]>,
        /// The sizes.
        sizes: Box<[usize]>,
    },
    /// A box that ends beyond every tensor.
    #[error("a shard at {offsets:?} of sizes {sizes:?} ends beyond every index")]
    BoxTooLarge {
        /// The offsets.
        offsets: Box<[usize]>,
        /// The sizes.
        sizes: Box<[usize]>,
    },
    /// A tensor that is not of the size its metadata say.
    #[error("a shard's tensor has shape {tensor:?}, its metadata say {metadata:?}")]
    ShardShape {
        /// Shape of the tensor.
        tensor: Box<[usize]>,
        /// Sizes in the metadata.
        metadata: Box<[usize]>,
    },
    /// A tensor that is not on the device its metadata say.
    #[error("a shard's tensor is on {tensor}, its placement says {placement}")]
    ShardDevice {
        /// Where the tensor is.
        tensor: Device,
        /// Where it should be.
        placement: Device,
    },
    /// Bytes or a state that no tensor has.
    #[error("{op}: {what}")]
    BadState {
        /// The operation.
        op: Text,
        /// What is wrong.
        what: Box<str>,
    },

    /// A spec without places.
    #[error("a chunk sharding needs at least one placement")]
    NoPlacements,
    /// A dim that the tensor does not have.
    #[error(
        "{op}: dim {dim} is out of range for a tensor of {n_dims} dims; give -{n_dims}..{n_dims}"
    )]
    DimOutOfRange {
        /// The operation.
        op: Text,
        /// As it was given.
        dim: isize,
        /// Dims of the tensor.
        n_dims: usize,
    },
    /// A list without shards.
    #[error("{op}: there are no shards")]
    NoShards {
        /// The operation.
        op: Text,
    },
    /// Shards of different numbers of dims.
    #[error("shards have {first} and {other} dims; all have those of the tensor")]
    MixedDims {
        /// Dims of the first.
        first: usize,
        /// Dims of another.
        other: usize,
    },
    /// Two shards with common elements.
    #[error("the shards {first} and {second} overlap")]
    Overlap {
        /// One of them.
        first: Box<ShardMetadata>,
        /// The other.
        second: Box<ShardMetadata>,
    },
    /// Shards of another number of dims than the tensor.
    #[error("the tensor has {tensor} dims, its shards {shards}")]
    WrongDims {
        /// Dims of the tensor.
        tensor: usize,
        /// Dims of the shards.
        shards: usize,
    },
    /// A shard that reaches beyond the tensor.
    #[error("the shard {shard} ends beyond dim {dim} of size {size}")]
    OutOfBounds {
        /// The shard.
        shard: Box<ShardMetadata>,
        /// The dim.
        dim: usize,
        /// Its size.
        size: usize,
    },
    /// Shards that leave elements out.
    #[error(
        "the shards have {shards} elements in all, the tensor has {tensor}: they do not cover it"
    )]
    NotCovered {
        /// Elements of all shards.
        shards: u128,
        /// Elements of the tensor.
        tensor: u128,
    },

    /// A tensor that does not store all of its elements.
    #[error("{op}: only strided tensors can be sharded, not {layout:?} ones")]
    WrongLayout {
        /// The operation.
        op: Text,
        /// Its layout.
        layout: TensorLayout,
    },
    /// An order of elements that is not supported.
    #[error("{op}: only contiguous tensors can be sharded, not {format:?} ones")]
    WrongMemoryFormat {
        /// The operation.
        op: Text,
        /// The order.
        format: MemoryFormat,
    },
    /// A tensor whose elements are not consecutive.
    #[error("{op}: the tensor is not contiguous; call contiguous() on it first")]
    NotContiguous {
        /// The operation.
        op: Text,
    },
    /// Gradients of what has none.
    #[error("{op}: {dtype} has no gradients; only floats have")]
    NoGradients {
        /// The operation.
        op: Text,
        /// The dtype.
        #[serde(with = "dtype_name")]
        dtype: DType,
    },
    /// A local shard that lies on another rank.
    #[error(
        "{op}: rank {rank} has a shard whose placement is on rank {placed}; a rank brings its own shards"
    )]
    WrongRank {
        /// The operation.
        op: Text,
        /// Who has it.
        rank: usize,
        /// Who should have it.
        placed: usize,
    },
    /// Local shards of one rank that differ where they must not.
    #[error(
        "{op}: the shards of rank {rank} differ in {property}: one has {first}, another {other}"
    )]
    LocalShardsDiffer {
        /// The operation.
        op: Text,
        /// The rank.
        rank: usize,
        /// In what they differ.
        property: Text,
        /// What one has.
        first: Box<str>,
        /// What another has.
        other: Box<str>,
    },
    /// Ranks that say different things where all must say the same.
    #[error(
        "{op}: the ranks differ in {property}: rank {first_rank} has {first}, rank {rank} has {other}"
    )]
    RanksDiffer {
        /// The operation.
        op: Text,
        /// In what they differ.
        property: Text,
        /// The first rank, of the world.
        first_rank: usize,
        /// What it has.
        first: Box<str>,
        /// Another rank.
        rank: usize,
        /// What that has.
        other: Box<str>,
    },
    /// Not one shard on any rank.
    #[error("{op}: no rank has a shard")]
    NoLocalShards {
        /// The operation.
        op: Text,
    },
    /// More or fewer shards than the metadata say.
    #[error("{op}: rank {rank} has {local} shards, the metadata say {metadata}")]
    WrongNumberOfShards {
        /// The operation.
        op: Text,
        /// The rank.
        rank: usize,
        /// Shards that it has.
        local: usize,
        /// Shards that it should have.
        metadata: usize,
    },
    /// A local shard that the metadata do not have.
    #[error(
        "{op}: rank {rank} has the shard {shard}, which is not among those that the metadata give it"
    )]
    UnknownShard {
        /// The operation.
        op: Text,
        /// The rank.
        rank: usize,
        /// The shard.
        shard: Box<ShardMetadata>,
    },
    /// A local shard that is not what the metadata say.
    #[error("{op}: a shard of rank {rank} has {property} {got}, the metadata say {want}")]
    Incompatible {
        /// The operation.
        op: Text,
        /// The rank.
        rank: usize,
        /// In what they differ.
        property: Text,
        /// What the metadata say.
        want: Box<str>,
        /// What the shard has.
        got: Box<str>,
    },
    /// Another number of local shards where exactly one is needed.
    #[error("{op}: rank {rank} has {got} shards; it works with exactly one")]
    OneShardNeeded {
        /// The operation.
        op: Text,
        /// The rank.
        rank: usize,
        /// Shards that it has.
        got: usize,
    },

    /// The destination gave no tensor to gather into.
    #[error("gather: rank {dst} is the destination and must give a tensor to gather into")]
    OutMissing {
        /// The destination, in the group.
        dst: usize,
    },
    /// Another rank than the destination gave a tensor to gather into.
    #[error(
        "gather: rank {rank} is not the destination {dst} and must not give a tensor to gather into"
    )]
    OutUnexpected {
        /// The rank, in the group.
        rank: usize,
        /// The destination, in the group.
        dst: usize,
    },
    /// A tensor of the wrong shape to gather into.
    #[error("gather: the tensor to gather into has shape {got:?}, it should have {want:?}")]
    OutShape {
        /// Its shape.
        got: Box<[usize]>,
        /// The size of the sharded tensor.
        want: Box<[usize]>,
    },

    /// Operands on different groups of ranks.
    #[error(
        "{op}: operand 0 is on the ranks {first:?}, operand {operand} on {other:?}; all must be on one group"
    )]
    MixedGroups {
        /// The operation.
        op: Text,
        /// First ranks of the group of the first operand.
        first: Box<[usize]>,
        /// The operand that is elsewhere.
        operand: usize,
        /// First ranks of its group.
        other: Box<[usize]>,
    },
    /// Operands that are cut differently.
    #[error("{op}: the operands are cut differently; reshard one of them to the spec of the other")]
    DifferentShards {
        /// The operation.
        op: Text,
    },
    /// An operation without operands.
    #[error("{op}: it has no operands")]
    NoOperands {
        /// The operation.
        op: Text,
    },
    /// An operation without a sharded operand.
    #[error("{op}: none of its operands is a sharded tensor")]
    NoShardedOperand {
        /// The operation.
        op: Text,
    },
    /// An operand that the operation does not take.
    #[error("{op}: operand {operand} is {got}; it should be {want}")]
    WrongOperand {
        /// The operation.
        op: Text,
        /// Which one.
        operand: usize,
        /// What it is.
        got: Text,
        /// What it should be.
        want: Text,
    },
    /// An operation that cannot be had.
    #[error("{op}: {what}; {way_out}")]
    Unsupported {
        /// The operation.
        op: Text,
        /// What is not possible.
        what: Box<str>,
        /// What to do instead.
        way_out: Text,
    },

    /// A name that the module, or a state dict, does not have.
    #[error("{op}: there is no tensor or module `{path}`")]
    NoSuchName {
        /// The operation.
        op: Text,
        /// Its path.
        path: Box<str>,
    },
    /// A parameter that a plan cuts, in a module that a sharder of the plan cuts.
    #[error(
        "the plan shards the parameter `{parameter}`, but it has a sharder for the module `{module}` around it"
    )]
    PlanConflict {
        /// The parameter.
        parameter: Box<str>,
        /// The module.
        module: Box<str>,
    },
    /// A sharder for no module.
    #[error("the plan has a sharder for the empty path; name a module")]
    EmptyModulePath,
    /// A scope of loading within another.
    #[error("load_with_process_group: an outer one has already said the group; they do not nest")]
    GroupAlreadySet,
    /// Loading without a group.
    #[error("{op}: nobody has said the group; load within load_with_process_group")]
    NoGroupToLoad {
        /// The operation.
        op: Text,
    },
    /// Loading on another rank, or in another world, than saved.
    #[error("{op}: the {what} was {saved} when it was saved and is {now} now")]
    LoadedElsewhere {
        /// The operation.
        op: Text,
        /// What differs.
        what: Text,
        /// As it was.
        saved: i64,
        /// As it is.
        now: i64,
    },

    /// What went wrong on one rank; the same error on all ranks.
    #[error("on rank {rank}: {error}")]
    Rank {
        /// The rank, in the world.
        rank: usize,
        /// What went wrong.
        error: Box<Error>,
    },
    /// An error of another crate, that a rank has told the others.
    #[error("{text}")]
    Told {
        /// Its text.
        text: Box<str>,
    },
    /// An operation on local tensors.
    #[error(transparent)]
    #[serde(skip)]
    Local(Box<LocalError>),
    /// An operation on distributed tensors.
    #[error(transparent)]
    #[serde(skip)]
    Core(Box<dtensor::Error>),
    /// A call of another worker.
    #[error("{op}: {source}")]
    #[serde(skip)]
    Rpc {
        /// The operation that called.
        op: Text,
        /// What happened.
        source: Box<dtensor_rpc::Error>,
    },
    /// A checkpoint that could not be written or read.
    #[error(transparent)]
    #[serde(skip)]
    Checkpoint(Box<dtensor_checkpoint::Error>),
    /// The world: ranks that disagree or are gone.
    #[error("{op}: {source}")]
    #[serde(skip)]
    Comm {
        /// The operation that communicated.
        op: Text,
        /// What happened.
        source: Arc<CommError>,
    },
}

impl Error {
    /// What went wrong, whichever rank it was on.
    pub fn cause(&self) -> &Error {
        match self {
            Error::Rank { error, .. } => error.cause(),
            other => other,
        }
    }

    /// What cannot be had, and what to do instead.
    pub(crate) fn refused(
        op: &'static str,
        what: impl Into<String>,
        way_out: &'static str,
    ) -> Error {
        Error::Unsupported { op: op.into(), what: what.into().into(), way_out: way_out.into() }
    }

    pub(crate) fn comm(op: &'static str) -> impl Fn(CommError) -> Error {
        move |source| Error::Comm { op: op.into(), source: Arc::new(source) }
    }

    pub(crate) fn rpc(op: &'static str) -> impl Fn(dtensor_rpc::Error) -> Error {
        move |source| Error::Rpc { op: op.into(), source: Box::new(source) }
    }

    /// The same in a form that can be sent.
    pub(crate) fn told(&self) -> Error {
        match self {
            Error::Local(_)
            | Error::Core(_)
            | Error::Checkpoint(_)
            | Error::Rpc { .. }
            | Error::Comm { .. } => Error::Told { text: self.to_string().into() },
            Error::Rank { rank, error } => {
                Error::Rank { rank: *rank, error: Box::new(error.told()) }
            }
            other => other.clone(),
        }
    }
}

impl From<LocalError> for Error {
    fn from(error: LocalError) -> Error {
        Error::Local(Box::new(error))
    }
}

impl From<dtensor::Error> for Error {
    fn from(error: dtensor::Error) -> Error {
        Error::Core(Box::new(error))
    }
}

impl From<dtensor_checkpoint::Error> for Error {
    fn from(error: dtensor_checkpoint::Error) -> Error {
        Error::Checkpoint(Box::new(error))
    }
}

fn placement_text(placement: Option<&ShardPlacement>) -> String {
    match placement {
        Some(placement) => format!("the placement {placement}"),
        None => "no placement".into(),
    }
}
