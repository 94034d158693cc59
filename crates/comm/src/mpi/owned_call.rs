//! A call that outlives the arguments it was made with.

use dtensor_dtype::{DType, ReduceOp};

use crate::call::{Call, CallKind, Counts, Tag};

/// An owned [`Call`], for pending calls and for their errors.
pub(super) struct OwnedCall {
    kind: CallKind,
    dtype: DType,
    counts: OwnedCounts,
    root: Option<usize>,
    op: Option<ReduceOp>,
    tag: Tag,
    sequence: u64,
}

enum OwnedCounts {
    Even(usize),
    Each(Box<[usize]>),
    Pairs { send: Box<[usize]>, recv: Box<[usize]> },
}

impl OwnedCall {
    pub(super) fn new(call: &Call<'_>) -> OwnedCall {
        let counts = match call.counts {
            Counts::Even(n) => OwnedCounts::Even(n),
            Counts::Each(counts) => OwnedCounts::Each(counts.into()),
            Counts::Pairs { send, recv } => {
                OwnedCounts::Pairs { send: send.into(), recv: recv.into() }
            }
        };
        let &Call { kind, dtype, root, op, tag, sequence, .. } = call;
        OwnedCall { kind, dtype, counts, root, op, tag, sequence }
    }

    pub(super) fn borrow(&self) -> Call<'_> {
        let counts = match &self.counts {
            OwnedCounts::Even(n) => Counts::Even(*n),
            OwnedCounts::Each(counts) => Counts::Each(counts),
            OwnedCounts::Pairs { send, recv } => Counts::Pairs { send, recv },
        };
        let &OwnedCall { kind, dtype, root, op, tag, sequence, .. } = self;
        Call { kind, dtype, counts, root, op, tag, sequence }
    }
}
