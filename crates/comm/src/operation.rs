//! The arguments of a call, and the one place where they are checked, for every world alike and
//! before anything is sent.

use dtensor_dtype::{DType, ReduceOp};

use crate::{
    CommError,
    call::{Call, CallKind, Counts, Tag},
    transport::Buffers,
};

/// A call as the user asked for it: unchecked, without its buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation<'a> {
    kind: CallKind,
    counts: Counts<'a>,
    root: Option<usize>,
    op: Option<ReduceOp>,
}

/// One side of a call: where its elements are and what they are. `None` where a rank has none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    pub(crate) ptr: *mut u8,
    pub(crate) len: usize,
    pub(crate) dtype: DType,
}

impl<'a> Operation<'a> {
    fn new(kind: CallKind, counts: Counts<'a>) -> Operation<'a> {
        Operation { kind, counts, root: None, op: None }
    }

    pub(crate) fn barrier() -> Operation<'static> {
        Operation::new(CallKind::Barrier, Counts::Even(0))
    }

    pub(crate) fn broadcast(len: usize, root: usize) -> Operation<'static> {
        Operation { root: Some(root), ..Operation::new(CallKind::Broadcast, Counts::Even(len)) }
    }

    pub(crate) fn scatter(counts: Counts<'a>, root: usize) -> Operation<'a> {
        Operation { root: Some(root), ..Operation::new(CallKind::Scatter, counts) }
    }

    pub(crate) fn gather(counts: Counts<'a>, root: usize) -> Operation<'a> {
        Operation { root: Some(root), ..Operation::new(CallKind::Gather, counts) }
    }

    pub(crate) fn all_gather(counts: Counts<'a>) -> Operation<'a> {
        Operation::new(CallKind::AllGather, counts)
    }

    pub(crate) fn reduce_scatter(counts: Counts<'a>, op: ReduceOp) -> Operation<'a> {
        Operation { op: Some(op), ..Operation::new(CallKind::ReduceScatter, counts) }
    }

    pub(crate) fn all_reduce(len: usize, op: ReduceOp) -> Operation<'static> {
        Operation { op: Some(op), ..Operation::new(CallKind::AllReduce, Counts::Even(len)) }
    }

    /// With `Counts::Even` of the whole send buffer's length: divided by the group size here.
    pub(crate) fn all_to_all(counts: Counts<'a>) -> Operation<'a> {
        Operation::new(CallKind::AllToAll, counts)
    }

    pub(crate) fn send(len: usize, to: usize) -> Operation<'static> {
        Operation { root: Some(to), ..Operation::new(CallKind::Send, Counts::Even(len)) }
    }

    pub(crate) fn recv(len: usize, from: usize) -> Operation<'static> {
        Operation { root: Some(from), ..Operation::new(CallKind::Recv, Counts::Even(len)) }
    }

    /// The call and its memory, if all arguments fit each other and a group of `size` ranks of
    /// which this one is `rank`. The sequence number is left to the caller: a refused call has
    /// none.
    pub(crate) fn check(
        self,
        rank: usize,
        size: usize,
        tag: Tag,
        send: Option<Side>,
        recv: Option<Side>,
    ) -> Result<(Call<'a>, Buffers), CommError> {
        let name = match self.counts {
            Counts::Even(_) => self.kind.name(),
            _ => self.kind.uneven_name(),
        };
        if let Some(root) = self.root.filter(|&root| root >= size) {
            return Err(CommError::NoSuchRank { call: name, rank: root, size });
        }
        let counts = self.check_counts(name, size)?;
        let is_root = self.root == Some(rank);
        // What only the root uses is ignored elsewhere, so that a program may pass it everywhere.
        let send = send.filter(|_| self.kind != CallKind::Scatter || is_root);
        let recv = recv.filter(|_| self.kind != CallKind::Gather || is_root);
        let dtype = match (&send, &recv) {
            (Some(send), Some(recv)) if send.dtype != recv.dtype => {
                let (send, recv) = (send.dtype, recv.dtype);
                return Err(CommError::WrongDType { call: name, send, recv });
            }
            (Some(side), _) | (None, Some(side)) => side.dtype,
            (None, None) => DType::U8,
        };
        if let Some(op) = self.op.filter(|op| !op.supports(dtype)) {
            return Err(CommError::UnsupportedReduction { call: name, op, dtype });
        }

        let overflow = CommError::CountsOverflow { call: name };
        let needed = needed_elements(self.kind, counts, is_root, rank, size, dtype);
        let [send_needed, recv_needed] = needed.ok_or(overflow)?;
        let send = check_side(name, "send", send, send_needed, is_root, rank, counts)?;
        let recv = check_side(name, "recv", recv, recv_needed, is_root, rank, counts)?;
        let buffers = Buffers {
            send: send.ptr.cast_const(),
            send_bytes: send.len * dtype.size(),
            recv: recv.ptr,
            recv_bytes: recv.len * dtype.size(),
        };
        let Operation { kind, root, op, .. } = self;
        Ok((Call { kind, dtype, counts, root, op, tag, sequence: 0 }, buffers))
    }

    fn check_counts(&self, call: &'static str, size: usize) -> Result<Counts<'a>, CommError> {
        let check = |counts: &'static str, got: usize| {
            if got == size {
                Ok(())
            } else {
                Err(CommError::WrongCounts { call, counts, got, size })
            }
        };
        match self.counts {
            Counts::Even(len) if self.kind == CallKind::AllToAll => {
                if !len.is_multiple_of(size) {
                    return Err(CommError::WrongLength {
                        call,
                        buffer: "send",
                        got: len,
                        needed: len.next_multiple_of(size),
                        why: "a multiple of the group size",
                    });
                }
                return Ok(Counts::Even(len / size));
            }
            Counts::Even(_) => {}
            Counts::Each(counts) => check("counts", counts.len())?,
            Counts::Pairs { send, recv } => {
                check("send counts", send.len())?;
                check("recv counts", recv.len())?;
            }
        }
        Ok(self.counts)
    }
}

/// Elements of the send and of the receive buffer of `rank`: the table of [`Buffers`] as code.
/// `None` if there are more bytes than a `usize` counts.
fn needed_elements(
    kind: CallKind,
    counts: Counts<'_>,
    is_root: bool,
    rank: usize,
    size: usize,
    dtype: DType,
) -> Option<[usize; 2]> {
    let sum = |counts: &[usize]| counts.iter().try_fold(0_usize, |sum, &n| sum.checked_add(n));
    let (piece, whole) = match counts {
        Counts::Even(n) => (n, n.checked_mul(size)?),
        Counts::Each(counts) => (counts[rank], sum(counts)?),
        Counts::Pairs { send, recv } => {
            let needed = [sum(send)?, sum(recv)?];
            needed[0].checked_mul(dtype.size())?;
            needed[1].checked_mul(dtype.size())?;
            return Some(needed);
        }
    };
    whole.checked_mul(dtype.size())?;
    Some(match kind {
        CallKind::Barrier => [0, 0],
        CallKind::Broadcast | CallKind::AllReduce | CallKind::Recv => [0, piece],
        CallKind::Scatter => [if is_root { whole } else { 0 }, piece],
        CallKind::Gather => [piece, if is_root { whole } else { 0 }],
        CallKind::AllGather => [piece, whole],
        CallKind::ReduceScatter => [whole, piece],
        CallKind::AllToAll => [whole, whole],
        CallKind::Send => [piece, 0],
    })
}

fn check_side(
    call: &'static str,
    buffer: &'static str,
    side: Option<Side>,
    needed: usize,
    is_root: bool,
    rank: usize,
    counts: Counts<'_>,
) -> Result<Side, CommError> {
    match side {
        Some(side) if side.len == needed => Ok(side),
        Some(side) => Err(CommError::WrongLength {
            call,
            buffer,
            got: side.len,
            needed,
            why: match counts {
                Counts::Even(_) => "the piece of one rank times the ranks it goes to or comes from",
                Counts::Each(_) => "this rank's count, or the sum of the counts for the whole",
                Counts::Pairs { .. } => "the sum of its counts",
            },
        }),
        None if is_root && needed > 0 => {
            Err(CommError::RootWithoutBuffer { call, buffer, root: rank })
        }
        None => Ok(Side { ptr: std::ptr::dangling_mut::<u64>().cast(), len: 0, dtype: DType::U8 }),
    }
}
