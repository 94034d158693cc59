//! Everything that can go wrong between ranks.

use std::{sync::Arc, time::Duration};

use dtensor_dtype::{DType, ReduceOp};

use crate::table::CallTable;

/// Why a call gave no result.
///
/// The first group of variants are mistakes in the arguments, found before anything is sent: the
/// group stays usable. The second group means that the ranks no longer agree or are no longer
/// there: the first such failure ends the world, and every later call fails at once with
/// [`CommError::GroupDead`] around it.
///
/// Cloning is cheap: the first cause goes to every rank.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// A buffer is not as long as the call needs it.
    #[error("{call}: the {buffer} buffer has {got} elements, needed are {needed} ({why})")]
    WrongLength {
        /// Name of the call.
        call: &'static str,
        /// `send` or `recv`.
        buffer: &'static str,
        /// Elements in it.
        got: usize,
        /// Elements that the counts and the group size ask for.
        needed: usize,
        /// How the needed number follows from the arguments.
        why: &'static str,
    },
    /// A list of counts has not one entry per member of the group, or its sum overflows.
    #[error("{call}: {got} {counts} for a group of {size} ranks: give one count per rank")]
    WrongCounts {
        /// Name of the call.
        call: &'static str,
        /// Which list.
        counts: &'static str,
        /// Its length.
        got: usize,
        /// The size of the group.
        size: usize,
    },
    /// The counts add up to more elements than memory can hold.
    #[error("{call}: the counts add up to more bytes than an address can name")]
    CountsOverflow {
        /// Name of the call.
        call: &'static str,
    },
    /// The root, or the other side of a message, is not in the group.
    #[error("{call}: there is no rank {rank} among {size} ranks: they count from 0")]
    NoSuchRank {
        /// Name of the call.
        call: &'static str,
        /// The rank asked for.
        rank: usize,
        /// The size of the group.
        size: usize,
    },
    /// The root of a scatter gave nothing to send, or the root of a gather no room to receive.
    #[error("{call}: rank {root} is the root and must give its {buffer} buffer")]
    RootWithoutBuffer {
        /// Name of the call.
        call: &'static str,
        /// `send` or `recv`.
        buffer: &'static str,
        /// The root (this rank).
        root: usize,
    },
    /// The reduction is not defined on the dtype.
    #[error(
        "{call}: {op} is not defined on {dtype}: reduce with sum and divide, or cast to a float"
    )]
    UnsupportedReduction {
        /// Name of the call.
        call: &'static str,
        /// The reduction.
        op: ReduceOp,
        /// The dtype.
        dtype: DType,
    },
    /// Send and receive buffer of one call have different dtypes.
    #[error("{call}: the send buffer is {send}, the recv buffer {recv}: a call moves one dtype")]
    WrongDType {
        /// Name of the call.
        call: &'static str,
        /// Dtype of the send buffer.
        send: DType,
        /// Dtype of the receive buffer.
        recv: DType,
    },
    /// Bytes that are no values of the dtype they are said to be.
    #[error("{bytes} bytes at alignment {alignment} are no {dtype} values: {why}")]
    WrongBytes {
        /// The dtype.
        dtype: DType,
        /// How many bytes there are.
        bytes: usize,
        /// The largest power of two, up to 64, that divides their address.
        alignment: usize,
        /// What is wrong with them.
        why: &'static str,
    },
    /// A list of ranks that makes no group.
    #[error("subgroup{ranks:?} of a world of {size}, asked by rank {rank}: {why}")]
    BadGroup {
        /// The world ranks asked for; long lists are cut.
        ranks: Arc<[usize]>,
        /// The size of the world.
        size: usize,
        /// The rank that asked.
        rank: usize,
        /// What is wrong with them.
        why: &'static str,
    },
    /// The run could not begin.
    #[error("run: {0}")]
    CannotRun(Arc<str>),

    /// The ranks of a group did not make the same call. No data was moved.
    #[error("the ranks called different things: no data was moved\n{table}")]
    Mismatch {
        /// Who called what.
        table: Arc<CallTable>,
    },
    /// A rank returned from the program while others wait for it.
    #[error("rank {rank} has left the run and will never make this call\n{table}")]
    RankLeft {
        /// The world rank that left (the first, if several have).
        rank: usize,
        /// Who called what.
        table: Arc<CallTable>,
    },
    /// A rank panicked, returned an error or died.
    #[error("rank {rank} failed: {cause}{}", below(table))]
    RankFailed {
        /// The world rank.
        rank: usize,
        /// Its panic message or error.
        cause: Arc<str>,
        /// Who was waiting in which call, if somebody was.
        table: Option<Arc<CallTable>>,
    },
    /// Not all ranks came within the deadline.
    #[error(
        "waited {waited:.1?} for the other ranks, which is the deadline \
         (DTENSOR_DEADLINE, Runner::deadline)\n{table}"
    )]
    Deadline {
        /// How long this rank has waited.
        waited: Duration,
        /// Who called what.
        table: Arc<CallTable>,
    },
    /// An earlier failure has ended the world; this call was not begun, or was given up.
    #[error("{call}: not carried out, an earlier failure has ended this world: {cause}")]
    GroupDead {
        /// The call that was refused.
        call: Arc<str>,
        /// The first cause.
        cause: Arc<CommError>,
    },
    /// An MPI function returned an error code.
    #[error("{call}: MPI error {code}: {text}")]
    Mpi {
        /// The function.
        call: &'static str,
        /// Its return code.
        code: i32,
        /// What `MPI_Error_string` says about it.
        text: Arc<str>,
    },
}

impl CommError {
    /// The failure that began it all: looks through [`CommError::GroupDead`].
    pub fn first_cause(&self) -> &CommError {
        match self {
            CommError::GroupDead { cause, .. } => cause.first_cause(),
            other => other,
        }
    }

    /// Whether the world can still be used: the arguments were wrong, and nothing was sent.
    pub fn is_argument_error(&self) -> bool {
        !matches!(
            self,
            CommError::Mismatch { .. }
                | CommError::RankLeft { .. }
                | CommError::RankFailed { .. }
                | CommError::Deadline { .. }
                | CommError::GroupDead { .. }
                | CommError::Mpi { .. }
                | CommError::CannotRun(_)
        )
    }

    /// The error that a call gets which is refused, or given up, because of an earlier failure.
    pub(crate) fn dead(call: impl std::fmt::Display, cause: &CommError) -> CommError {
        CommError::GroupDead {
            call: call.to_string().into(),
            cause: Arc::new(cause.first_cause().clone()),
        }
    }
}

fn below(table: &Option<Arc<CallTable>>) -> String {
    table.as_ref().map_or_else(String::new, |table| format!("\n{table}"))
}
