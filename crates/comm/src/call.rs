//! What a rank asks for, without types: the one description that argument checks, fingerprints,
//! tables, the flight recorder and every world share.

use std::fmt::{self, Write as _};

use dtensor_dtype::{DType, ReduceOp};

/// Which of the calls of a [`Group`](crate::Group).
///
/// The uneven forms (`all_gather_v`, ...) have the kind of their even form; what tells them apart
/// is that they carry a count per rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallKind {
    /// Nobody continues before everybody has arrived.
    Barrier,
    /// The root's values go to everybody.
    Broadcast,
    /// The root's pieces go to one rank each.
    Scatter,
    /// One piece from each rank goes to the root.
    Gather,
    /// One piece from each rank goes to everybody.
    AllGather,
    /// The values of all ranks are reduced, and each rank keeps its piece.
    ReduceScatter,
    /// The values of all ranks are reduced, and everybody keeps the result.
    AllReduce,
    /// One piece from each rank to each rank.
    AllToAll,
    /// One message to one rank.
    Send,
    /// One message from one rank.
    Recv,
}

impl CallKind {
    /// The name of the even form, as the method of [`Group`](crate::Group) is called.
    pub const fn name(self) -> &'static str {
        match self {
            CallKind::Barrier => "barrier",
            CallKind::Broadcast => "broadcast",
            CallKind::Scatter => "scatter",
            CallKind::Gather => "gather",
            CallKind::AllGather => "all_gather",
            CallKind::ReduceScatter => "reduce_scatter",
            CallKind::AllReduce => "all_reduce",
            CallKind::AllToAll => "all_to_all",
            CallKind::Send => "send",
            CallKind::Recv => "recv",
        }
    }

    /// The name of the uneven form; kinds that have none keep their name.
    pub const fn uneven_name(self) -> &'static str {
        match self {
            CallKind::Scatter => "scatter_v",
            CallKind::Gather => "gather_v",
            CallKind::AllGather => "all_gather_v",
            CallKind::ReduceScatter => "reduce_scatter_v",
            CallKind::AllToAll => "all_to_all_v",
            _ => self.name(),
        }
    }

    /// Whether it is a message between two ranks rather than a call of the whole group.
    pub const fn is_message(self) -> bool {
        matches!(self, CallKind::Send | CallKind::Recv)
    }
}

impl fmt::Display for CallKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How many elements go where. Always in elements of the call's dtype, never in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts<'a> {
    /// The same number for every rank: the piece of one rank (`all_gather`, `scatter`, ...), or
    /// the whole vector where there are no pieces (`broadcast`, `all_reduce`, `send`, `recv`).
    Even(usize),
    /// One number per group rank, the same list on every rank (`all_gather_v`, ...).
    Each(&'a [usize]),
    /// `all_to_all_v`: what this rank sends to each group rank, and what it expects from each. The
    /// only counts that differ between the ranks: `send[j]` of rank i equals `recv[i]` of rank j.
    Pairs { send: &'a [usize], recv: &'a [usize] },
}

/// The caller's name for a call; part of the fingerprint, so that two calls of the same shape
/// that ranks make in a different order are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) text: &'static str,
    /// What the call is about, in short, if its author says so.
    about: Option<u64>,
    /// Computed once per tag rather than once per call.
    hash: u64,
}

impl Tag {
    pub(crate) const NONE: Tag = Tag::new("");

    pub(crate) const fn new(text: &'static str) -> Tag {
        let bytes = text.as_bytes();
        let mut hash = mix(SEED, bytes.len() as u64);
        let mut i = 0;
        while i < bytes.len() {
            hash = mix(hash, bytes[i] as u64);
            i += 1;
        }
        Tag { text, about: None, hash }
    }

    /// The same name for a call about something that has this digest.
    pub(crate) const fn about(self, digest: u64) -> Tag {
        Tag { about: Some(digest), hash: mix(self.hash, digest), ..self }
    }
}

/// One call of one rank, checked and erased. All arguments in it are valid for the group it is
/// made on: counts have one entry per member, the root exists, the reduction supports the dtype,
/// and the buffers that come with it have exactly the lengths that follow (see [`Buffers`]).
///
/// [`Buffers`]: crate::transport::Buffers
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call<'a> {
    pub(crate) kind: CallKind,
    /// `U8` for a barrier.
    pub(crate) dtype: DType,
    pub(crate) counts: Counts<'a>,
    /// A *group* rank: the root of broadcast, scatter and gather; the other side of send and recv.
    pub(crate) root: Option<usize>,
    pub(crate) op: Option<ReduceOp>,
    pub(crate) tag: Tag,
    /// Position among the collective calls of this rank on this group, from 0. Messages are
    /// counted apart, and their number is for the recorder only.
    pub(crate) sequence: u64,
}

impl Call<'_> {
    /// The name of the method that the user called.
    pub(crate) fn name(&self) -> &'static str {
        match self.counts {
            Counts::Even(_) => self.kind.name(),
            Counts::Each(_) | Counts::Pairs { .. } => self.kind.uneven_name(),
        }
    }

    /// What the members of the group must agree on.
    ///
    /// Not part of it is the group itself: each world keeps the calls of different groups apart
    /// already. The values are the same in every process of one build.
    pub(crate) fn fingerprint(&self, group_rank: usize) -> Fingerprint {
        let form = match self.counts {
            Counts::Even(_) => 0_u64,
            Counts::Each(_) => 1,
            Counts::Pairs { .. } => 2,
        };
        let op = self.op.map_or(0xff, |op| op as u64);
        let kinds = self.kind as u64 | (self.dtype as u64) << 8 | op << 16 | form << 24;
        let mut call = mix(mix(self.tag.hash, kinds), self.sequence);
        call = mix(call, self.root.map_or(u64::MAX, |root| root as u64));
        let (mut sends, mut receives) = (0_u64, 0_u64);
        match self.counts {
            Counts::Even(n) => call = mix(call, n as u64),
            Counts::Each(counts) => {
                call = counts.iter().fold(call, |hash, &n| mix(hash, n as u64));
            }
            Counts::Pairs { send, recv } => {
                for (peer, &n) in send.iter().enumerate() {
                    sends = sends.wrapping_add(pair(group_rank, peer, n));
                }
                for (peer, &n) in recv.iter().enumerate() {
                    receives = receives.wrapping_add(pair(peer, group_rank, n));
                }
            }
        }
        Fingerprint { call, sends, receives }
    }
}

/// A digest of a [`Call`]: equal calls have equal fingerprints, and different ones do not but for
/// one chance in 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    /// Everything that must be the same on all ranks.
    pub(crate) call: u64,
    /// `all_to_all_v`: sum over the peers of a hash of (from, to, count) of what is sent ...
    pub(crate) sends: u64,
    /// ... and of what is expected. Over the whole group the two sums are equal exactly when every
    /// rank expects what its peers send, so that g ranks check g x g counts with g numbers each.
    pub(crate) receives: u64,
}

impl Fingerprint {
    /// Whether all members of a group made the same call.
    pub(crate) fn agree(members: impl IntoIterator<Item = Fingerprint>) -> bool {
        let mut members = members.into_iter();
        let Some(first) = members.next() else { return true };
        let mut balance = first.sends.wrapping_sub(first.receives);
        for member in members {
            if member.call != first.call {
                return false;
            }
            balance = balance.wrapping_add(member.sends).wrapping_sub(member.receives);
        }
        balance == 0
    }
}

/// `all_reduce(f32 x 12, sum, tag "loss")`: the form in which tables and errors show a call.
impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        if self.kind != CallKind::Barrier {
            write!(text, "{} x ", self.dtype)?;
            match self.counts {
                Counts::Even(n) => write!(text, "{n}")?,
                Counts::Each(counts) => write_counts(&mut text, counts)?,
                Counts::Pairs { send, recv } => {
                    text.push_str("send ");
                    write_counts(&mut text, send)?;
                    text.push_str(" recv ");
                    write_counts(&mut text, recv)?;
                }
            }
        }
        match (self.root, self.kind) {
            (None, _) => {}
            (Some(peer), CallKind::Send) => write!(text, ", to {peer}")?,
            (Some(peer), CallKind::Recv) => write!(text, ", from {peer}")?,
            (Some(root), _) => write!(text, ", root {root}")?,
        }
        if let Some(op) = self.op {
            write!(text, ", {op}")?;
        }
        if !self.tag.text.is_empty() {
            write!(text, ", tag {:?}", self.tag.text)?;
        }
        if let Some(digest) = self.tag.about {
            write!(text, ", about {digest:016x}")?;
        }
        write!(f, "{}({})", self.name(), text.trim_start_matches(", "))
    }
}

/// More counts than this print as their first ones and the sum: a table has one line per rank.
const COUNTS_SHOWN: usize = 8;

fn write_counts(text: &mut String, counts: &[usize]) -> fmt::Result {
    if counts.len() <= COUNTS_SHOWN {
        return write!(text, "{counts:?}");
    }
    text.push('[');
    for n in &counts[..COUNTS_SHOWN] {
        write!(text, "{n}, ")?;
    }
    write!(text, "... {} counts, sum {}]", counts.len(), counts.iter().sum::<usize>())
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// One step of a multiply-and-fold hash. Our own, because the fingerprints of different processes
/// are compared, and the standard library promises nothing about its hashes across processes.
const fn mix(hash: u64, value: u64) -> u64 {
    let product = ((hash ^ value) as u128).wrapping_mul(0xd6e8_feb8_6659_fd93_9e37_79b9_7f4a_7c15);
    (product as u64) ^ ((product >> 64) as u64).rotate_left(23)
}

fn pair(from: usize, to: usize, n: usize) -> u64 {
    mix(mix(mix(SEED, from as u64), to as u64), n as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Call<'static> {
        Call {
            kind: CallKind::AllReduce,
            dtype: DType::F32,
            counts: Counts::Even(12),
            root: None,
            op: Some(ReduceOp::Sum),
            tag: Tag::new("loss"),
            sequence: 3,
        }
    }

    #[test]
    fn a_call_prints_as_its_author_would_write_it() {
        let check = |call: Call<'_>, want: &str| assert_eq!(call.to_string(), want);
        let plain = Call { op: None, tag: Tag::NONE, ..call() };
        check(call(), r#"all_reduce(f32 x 12, sum, tag "loss")"#);
        check(Call { kind: CallKind::Barrier, ..plain }, "barrier()");
        check(
            Call { kind: CallKind::Barrier, tag: Tag::new("end"), ..plain },
            r#"barrier(tag "end")"#,
        );
        check(
            Call { kind: CallKind::Broadcast, dtype: DType::I64, root: Some(2), ..plain },
            "broadcast(i64 x 12, root 2)",
        );
        check(Call { kind: CallKind::Send, root: Some(1), ..plain }, "send(f32 x 12, to 1)");
        check(Call { kind: CallKind::Recv, root: Some(0), ..plain }, "recv(f32 x 12, from 0)");
        check(
            Call { kind: CallKind::AllGather, counts: Counts::Each(&[3, 0, 5]), ..plain },
            "all_gather_v(f32 x [3, 0, 5])",
        );
        let counts = Counts::Pairs { send: &[1, 2], recv: &[3, 4] };
        check(
            Call { kind: CallKind::AllToAll, counts, ..plain },
            "all_to_all_v(f32 x send [1, 2] recv [3, 4])",
        );
        let many: Vec<usize> = (0..100).collect();
        check(
            Call { kind: CallKind::Gather, counts: Counts::Each(&many), ..plain },
            "gather_v(f32 x [0, 1, 2, 3, 4, 5, 6, 7, ... 100 counts, sum 4950])",
        );
    }

    #[test]
    fn every_part_of_a_call_shows_in_its_fingerprint() {
        let different = [
            Call { kind: CallKind::AllGather, ..call() },
            Call { dtype: DType::I32, ..call() },
            Call { counts: Counts::Even(13), ..call() },
            Call { counts: Counts::Each(&[12]), ..call() },
            Call { root: Some(0), ..call() },
            Call { op: Some(ReduceOp::Max), ..call() },
            Call { op: None, ..call() },
            Call { tag: Tag::new("lost"), ..call() },
            Call { tag: Tag::NONE, ..call() },
            Call { tag: call().tag.about(7), ..call() },
            Call { sequence: 4, ..call() },
        ];
        let ours = call().fingerprint(0);
        // The rank itself is no part of what must agree.
        assert!(Fingerprint::agree([ours, call().fingerprint(1)]));
        for other in different {
            assert!(!Fingerprint::agree([ours, other.fingerprint(1)]), "{other}");
        }
        let (each, swapped) = (Counts::Each(&[1, 2]), Counts::Each(&[2, 1]));
        let prints = [each, swapped].map(|counts| Call { counts, ..call() }.fingerprint(0));
        assert!(!Fingerprint::agree(prints));
        let prints = [7, 8].map(|n| Call { tag: call().tag.about(n), ..call() }.fingerprint(0));
        assert!(!Fingerprint::agree(prints));
    }

    #[test]
    fn counts_of_pairs_agree_if_everybody_expects_what_is_sent() {
        let print = |rank: usize, send: &[usize], recv: &[usize]| {
            Call { counts: Counts::Pairs { send, recv }, ..call() }.fingerprint(rank)
        };
        let rows = [print(0, &[0, 7], &[0, 5]), print(1, &[5, 2], &[7, 2])];
        assert!(Fingerprint::agree(rows));
        // The totals are right, but not the pairs.
        assert!(!Fingerprint::agree([print(0, &[0, 7], &[5, 0]), rows[1]]));
        assert!(!Fingerprint::agree([print(0, &[7, 0], &[0, 5]), rows[1]]));
        assert!(!Fingerprint::agree([print(1, &[0, 7], &[0, 5]), rows[1]]));
    }
}
