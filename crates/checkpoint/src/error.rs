//! Why a checkpoint could not be written or read.

use std::io;

/// What a function of this crate gives.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a checkpoint could not be written or read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system or the object store refused.
    #[error("cannot {doing} `{path}`: {why}")]
    Io {
        /// As a verb: `read`, `write`, `rename`.
        doing: &'static str,
        /// Where.
        path: String,
        /// What kind of refusal it was, if that is known.
        kind: io::ErrorKind,
        /// What the system says.
        why: String,
    },
    /// A file is not what its format demands.
    #[error("`{file}` is broken: {what}")]
    Broken {
        /// Relative to the checkpoint.
        file: String,
        /// What is wrong, with the place and the numbers.
        what: String,
    },
    /// Bytes are not those that were written.
    #[error("`{file}` is damaged: {what} has checksum {computed}, and {stored} was written")]
    Damaged {
        /// Relative to the checkpoint.
        file: String,
        /// Which part of it: the header, or bytes of a tensor.
        what: String,
        /// What was written.
        stored: String,
        /// What was read.
        computed: String,
    },
    /// Nothing at this place is a checkpoint.
    #[error("no checkpoint at `{path}`: {found}")]
    NoCheckpoint {
        /// Where.
        path: String,
        /// What is there instead.
        found: String,
    },
    /// Another checkpoint took the place of the one that was being read, or it was removed. What was read of it is not used.
    #[error("the checkpoint at `{path}` was replaced or removed while it was read; read it again")]
    Replaced {
        /// Where.
        path: String,
    },
    /// Something that the format allows and this crate does not read or write.
    #[error("{what} in `{place}` is not supported; {way_out}")]
    Unsupported {
        /// What it is.
        what: String,
        /// File or tensor.
        place: String,
        /// What to do instead.
        way_out: &'static str,
    },
    /// A tensor that should be loaded and is not in the checkpoint.
    #[error("`{name}` is not in the checkpoint; the nearest name is {nearest}")]
    Missing {
        /// Of the tensor.
        name: String,
        /// A name that is there.
        nearest: String,
    },
    /// Something of the checkpoint that cannot be read, though the rest can.
    #[error("`{name}` cannot be read: {reason}")]
    Unreadable {
        /// In the checkpoint.
        name: String,
        /// Why, with the way out.
        reason: String,
    },
    /// A tensor of the checkpoint has another shape.
    #[error("`{name}` has shape {stored:?} in the checkpoint, and {wanted:?} is wanted")]
    Misshapen {
        /// Of the tensor.
        name: String,
        /// In the checkpoint.
        stored: Vec<usize>,
        /// Where it should go.
        wanted: Vec<usize>,
    },
    /// A box that a tensor does not have, or memory of another size.
    #[error("`{name}` of shape {shape:?}: the box {index} has {bytes} bytes, and goes into {got}")]
    WrongBox {
        /// Of the tensor.
        name: String,
        /// The box that was asked for.
        index: String,
        /// Of the tensor.
        shape: Vec<usize>,
        /// Of the box.
        bytes: usize,
        /// Of the memory.
        got: usize,
    },
    /// A pickle asks for something that is no plain data. Nothing was called.
    #[error(
        "byte {at} of `{file}` asks for `{global}`, which is not among the plain data that are read without Python; \
         save only tensors, numbers, texts, and lists and dicts of them"
    )]
    ForbiddenGlobal {
        /// Relative to the checkpoint.
        file: String,
        /// Byte of the file.
        at: u64,
        /// Module and name.
        global: String,
    },
    /// Something else is where a checkpoint should be written.
    #[error(
        "`{path}` holds {found}, which is no checkpoint of ours and would be lost; save to another place, or move it away"
    )]
    Occupied {
        /// Where.
        path: String,
        /// What is there.
        found: String,
    },
    /// A tensor with a pending reduction, of which no rank holds the value.
    #[error("`{name}` is {layout}: a pending value cannot be saved; settle it first")]
    Partial {
        /// Of the tensor.
        name: String,
        /// Its placements.
        layout: String,
    },
    /// Ranks that should save or load one state have different ones.
    #[error(
        "the ranks have different states: {what} is {one} on rank 0 and {other} on rank {rank}"
    )]
    Disagreement {
        /// Which part of it.
        what: String,
        /// On rank 0.
        one: String,
        /// The first rank that has something else.
        rank: usize,
        /// What it has.
        other: String,
    },
    /// A save was asked for while one is under way, by the same saver, which was not to wait, or to the same place.
    #[error(
        "a save to `{path}` is still under way; wait for it, or save both with one `AsyncSaver` and `WhenBusy::Wait`"
    )]
    Busy {
        /// Where that one goes.
        path: String,
    },
    /// Somebody else has put a checkpoint in the place while this one was being written. That one is there.
    #[error(
        "another checkpoint has appeared at `{path}` since this save began; that one stays, and this one is given up"
    )]
    Overtaken {
        /// Where.
        path: String,
    },
    /// The checkpoint is saved, whole, and in its place; something that comes after that could not be done.
    #[error("the checkpoint `{path}` is saved and whole, but afterwards: {message}")]
    AfterCommit {
        /// Where it is.
        path: String,
        /// What could not be done.
        message: String,
    },
    /// Another rank gave no sign of life while it was waited for.
    #[error("rank {rank} was not heard of for {seconds} s while `{path}` was saved")]
    Silent {
        /// Who.
        rank: usize,
        /// For how long.
        seconds: u64,
        /// Where the checkpoint was to be.
        path: String,
    },
    /// Two entries of a state with one name.
    #[error("the name `{name}` stands for two entries; names of nested parts are joined by dots")]
    Twice {
        /// The name.
        name: String,
    },
    /// An object gives no state, or does not go on from one.
    #[error("an object refuses: {message}")]
    Refused {
        /// What it says.
        message: String,
    },
    /// Two names that a change of names makes one.
    #[error("`{one}` and `{other}` would both be called `{name}`")]
    RenamedAlike {
        /// The new name.
        name: String,
        /// An old one.
        one: String,
        /// The other old one.
        other: String,
    },
    /// A pattern that stands for nothing in the checkpoint.
    #[error("no name matches `{pattern}`; there are {names}")]
    NoMatch {
        /// The pattern.
        pattern: String,
        /// Some of the names.
        names: String,
    },
    /// A text that should say something and does not.
    #[error("`{text}` is no {what}: {why}")]
    BadText {
        /// The text.
        text: String,
        /// What it should be.
        what: &'static str,
        /// What is wrong, with the way out.
        why: String,
    },
    /// There is something where a new checkpoint should go.
    #[error("`{path}` exists; choose another place, or allow it to be replaced")]
    Exists {
        /// Where.
        path: String,
    },
    /// A conversion into the place that it reads from.
    #[error(
        "`{target}` is, or lies in, or holds the checkpoint `{source_path}` that is read; choose another place"
    )]
    SamePlace {
        /// What is read.
        source_path: String,
        /// Where the result should go.
        target: String,
    },
    /// Another rank could not do its part. Every other rank gets this.
    #[error("rank {rank}: {message}")]
    OnRank {
        /// The rank that failed first, by number.
        rank: usize,
        /// What its error says.
        message: String,
    },
    /// An operation on tensors.
    #[error(transparent)]
    Tensor(#[from] dtensor::Error),
    /// A call between ranks.
    #[error(transparent)]
    Comm(#[from] dtensor_comm::CommError),
}

impl From<dtensor_local::LocalError> for Error {
    fn from(error: dtensor_local::LocalError) -> Error {
        Error::Tensor(error.into())
    }
}

impl Error {
    /// For `map_err`: what the system refused.
    pub(crate) fn io(
        doing: &'static str,
        path: impl Into<String>,
    ) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |error| Error::Io { doing, path, kind: error.kind(), why: error.to_string() }
    }

    pub(crate) fn broken(file: impl Into<String>, what: impl Into<String>) -> Error {
        Error::Broken { file: file.into(), what: what.into() }
    }
}
