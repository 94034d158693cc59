//! The check stage: before any data moves, every member tells every other what it is about to do.
//!
//! Each pair exchanges one message of a fixed size with the fingerprint and the printed call. When
//! all have come, every member compares the same values and comes to the same verdict, so no second
//! round is needed and user buffers have not been touched. While some have not come, whoever waits
//! knows which ones, and what the others are doing.

use crate::call::Fingerprint;

/// Bytes of the message. Short enough to be sent without a handshake by every MPI.
pub(super) const CHECK_BYTES: usize = 256;

const HEADER_BYTES: usize = 25;
const TEXT_BYTES: usize = CHECK_BYTES - HEADER_BYTES;

/// The messages of one call. Both parts are on the heap because MPI holds on to them while the call
/// moves about.
pub(super) struct Check {
    outgoing: Box<[u8; CHECK_BYTES]>,
    /// One per peer, in the order in which they were asked for.
    incoming: Box<[u8]>,
}

impl Check {
    /// With room for the messages of `peers` other ranks.
    pub(super) fn new(fingerprint: Fingerprint, text: &str, peers: usize) -> Check {
        let mut outgoing = Box::new([0; CHECK_BYTES]);
        let Fingerprint { call, sends, receives } = fingerprint;
        for (i, number) in [call, sends, receives].into_iter().enumerate() {
            outgoing[8 * i..8 * (i + 1)].copy_from_slice(&number.to_le_bytes());
        }
        let text = &text[..text.floor_char_boundary(TEXT_BYTES)];
        outgoing[HEADER_BYTES - 1] = text.len() as u8;
        outgoing[HEADER_BYTES..HEADER_BYTES + text.len()].copy_from_slice(text.as_bytes());
        Check { outgoing, incoming: vec![0; peers * CHECK_BYTES].into() }
    }

    pub(super) fn outgoing(&self) -> *const u8 {
        self.outgoing.as_ptr()
    }

    /// Where the message of a peer is to be put.
    pub(super) fn incoming(&mut self, peer: usize) -> *mut u8 {
        self.incoming[peer * CHECK_BYTES..].as_mut_ptr()
    }

    /// Whether this rank and all peers agree. All messages have come.
    pub(super) fn agree(&self) -> bool {
        let own = fingerprint(&self.outgoing[..]);
        let peers = self.incoming.chunks_exact(CHECK_BYTES).map(fingerprint);
        Fingerprint::agree(std::iter::once(own).chain(peers))
    }

    /// What a peer is doing; `None` if its message has not come.
    pub(super) fn text(&self, peer: usize) -> Option<&str> {
        let message = &self.incoming[peer * CHECK_BYTES..][..CHECK_BYTES];
        let length = usize::from(message[HEADER_BYTES - 1]).min(TEXT_BYTES);
        let text = str::from_utf8(&message[HEADER_BYTES..][..length]).ok()?;
        (length > 0).then_some(text)
    }
}

fn fingerprint(message: &[u8]) -> Fingerprint {
    let number = |i: usize| {
        let bytes = message[8 * i..].first_chunk().copied().unwrap_or_default();
        u64::from_le_bytes(bytes)
    };
    Fingerprint { call: number(0), sends: number(1), receives: number(2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(to: &mut Check, peer: usize, from: &Check) {
        to.incoming[peer * CHECK_BYTES..][..CHECK_BYTES].copy_from_slice(&from.outgoing[..]);
    }

    fn calls(call: u64) -> Fingerprint {
        Fingerprint { call, sends: 0, receives: 0 }
    }

    #[test]
    fn equal_fingerprints_agree_and_texts_arrive() {
        let mut first = Check::new(calls(7), "barrier()", 2);
        assert_eq!(first.text(0), None);
        exchange(&mut first, 0, &Check::new(calls(7), "barrier()", 0));
        exchange(&mut first, 1, &Check::new(calls(7), "barrier()", 0));
        assert!(first.agree());
        assert_eq!(first.text(1), Some("barrier()"));
        exchange(&mut first, 1, &Check::new(calls(8), "all_reduce(...)", 0));
        assert!(!first.agree());
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let text = "ü".repeat(200);
        let mut first = Check::new(calls(7), "x", 1);
        exchange(&mut first, 0, &Check::new(calls(7), &text, 0));
        let arrived = first.text(0).unwrap();
        assert!(text.starts_with(arrived) && arrived.len() >= TEXT_BYTES - 1);
    }
}
