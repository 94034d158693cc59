//! Which tag a message has.
//!
//! All groups share one communicator per purpose, and their messages are told apart by tags. That
//! makes a sub-group free: MPI's own way, `MPI_Comm_create_group`, is a blocking call of all
//! members, which cannot be given up when one of them never comes, which would make beginning a
//! pending call wait for its peers, and which deadlocks when members meet their groups in
//! different orders.
//!
//! A *stream* is a sequence of calls that two or more ranks count alike: the collectives of one
//! group, or the messages of one (group, sender, receiver, tag text). It has a [`Key`] that every
//! member computes for itself. A key is too long for a tag, so each sender gives each of its
//! (stream, receiver) pairs a small number and announces it once to the receiver on the control
//! channel. A tag is that number together with the position of the call in the stream:
//!
//! ```text
//! tag = number * window + position % window
//! ```
//!
//! Two calls of one stream that are both in flight therefore have different tags as long as fewer
//! than `window` of them are in flight, which the engine takes care of. The rounds within one call
//! share a tag: MPI keeps messages of one sender, receiver and tag in order.

use std::{collections::HashMap, os::raw::c_int};

use crate::call::Tag;

/// The name of a stream, the same on all its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(pub(super) u128);

/// Which way a message of a [`Key::message`] stream goes.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// From the sender of the user's data to its receiver.
    There,
    /// The receiver's side of the check, back to the sender.
    Back,
}

impl Key {
    /// The collectives of the group of all ranks.
    pub(super) const WORLD: Key = Key(0);

    /// The collectives of the sub-group of these world ranks in this order.
    pub(super) fn group(members: &[usize]) -> Key {
        let mut hash = Fnv::new(b"group");
        for &rank in members {
            hash.number(rank);
        }
        hash.finish()
    }

    /// The messages with one tag text between two world ranks within a group.
    pub(super) fn message(group: Key, tag: Tag, from: usize, to: usize, way: Way) -> Key {
        let mut hash = Fnv::new(match way {
            Way::There => b"there",
            Way::Back => b"back ",
        });
        hash.bytes(&group.0.to_le_bytes());
        hash.number(from);
        hash.number(to);
        hash.bytes(tag.text.as_bytes());
        hash.finish()
    }
}

/// FNV-1a with 128 bits. Our own, because different processes must agree on the values.
struct Fnv(u128);

impl Fnv {
    fn new(kind: &[u8; 5]) -> Fnv {
        let mut hash = Fnv(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        hash.bytes(kind);
        hash
    }

    fn number(&mut self, number: usize) {
        self.bytes(&(number as u64).to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
        }
    }

    fn finish(self) -> Key {
        Key(self.0.max(1))
    }
}

/// The numbers of all streams of one rank.
pub(super) struct Streams {
    window: u64,
    /// One more than the largest number that fits into a tag.
    numbers: u32,
    /// Numbers that this rank gave out, by receiver.
    given: HashMap<(Key, usize), u32>,
    /// How many it gave out to each receiver, without [`Key::WORLD`].
    given_to: HashMap<usize, u32>,
    /// Numbers that other ranks announced to this one, by sender.
    heard: HashMap<(Key, usize), u32>,
    /// Calls begun on each message stream, as its sender or as its receiver: a rank may be both.
    begun: HashMap<(Key, bool), u64>,
}

/// The number of a stream as its sender knows it.
pub(super) enum Given {
    /// The receiver knows it as well.
    Known(u32),
    /// It is new, and must be announced.
    New(u32),
    /// There are more streams between these two ranks than tags.
    TooMany,
}

impl Streams {
    /// For an MPI whose largest tag is `tag_bound`.
    pub(super) fn new(tag_bound: c_int) -> Streams {
        // Two fifths of the bits go to the window: 4096 calls and half a million streams with
        // Open MPI, 64 calls and 512 streams with the least that MPI promises.
        let tags = tag_bound.max(32767) as u64 + 1;
        let window = 1_u64 << (tags.ilog2() * 2 / 5);
        Streams {
            window,
            numbers: (tags / window) as u32,
            given: HashMap::new(),
            given_to: HashMap::new(),
            heard: HashMap::new(),
            begun: HashMap::new(),
        }
    }

    /// How many calls of one stream may be in flight at once.
    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// The number of `key` for messages of this rank to world rank `to`.
    pub(super) fn give(&mut self, key: Key, to: usize) -> Given {
        if key == Key::WORLD {
            return Given::Known(0);
        }
        if let Some(&number) = self.given.get(&(key, to)) {
            return Given::Known(number);
        }
        let last = self.given_to.entry(to).or_insert(0);
        if *last + 1 >= self.numbers {
            return Given::TooMany;
        }
        *last += 1;
        self.given.insert((key, to), *last);
        Given::New(*last)
    }

    /// The number of `key` for messages from world rank `from` to this rank, if `from` has
    /// announced it.
    pub(super) fn heard(&self, key: Key, from: usize) -> Option<u32> {
        if key == Key::WORLD { Some(0) } else { self.heard.get(&(key, from)).copied() }
    }

    /// Notes an announcement.
    pub(super) fn hear(&mut self, key: Key, from: usize, number: u32) {
        self.heard.insert((key, from), number);
    }

    /// The position of the next message of a stream; counts it.
    pub(super) fn next_position(&mut self, key: Key, is_sender: bool) -> u64 {
        let begun = self.begun.entry((key, is_sender)).or_insert(0);
        *begun += 1;
        *begun - 1
    }

    /// All message streams that this rank has used, and how many messages it began on each.
    pub(super) fn begun(&self) -> impl Iterator<Item = (Key, u64)> {
        self.begun.iter().map(|(&(key, _), &count)| (key, count))
    }

    /// The tag of the call at `position` of the stream with this number.
    pub(super) fn tag(&self, number: u32, position: u64) -> c_int {
        (u64::from(number) * self.window + position % self.window) as c_int
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_stay_within_the_bound_and_differ_within_the_window() {
        for bound in [32767, 1 << 20, (1 << 28) - 1, c_int::MAX] {
            let streams = Streams::new(bound);
            let last = streams.tag(streams.numbers - 1, streams.window - 1);
            assert!((0..=bound).contains(&last), "{last} of {bound}");
            assert!(streams.window >= 64 && streams.numbers >= 512, "{bound}");
            assert_ne!(streams.tag(1, 0), streams.tag(0, streams.window - 1));
            assert_eq!(streams.tag(3, 5), streams.tag(3, 5 + streams.window));
        }
    }

    #[test]
    fn groups_with_the_same_members_in_another_order_are_other_streams() {
        assert_ne!(Key::group(&[0, 1]), Key::group(&[1, 0]));
        assert_ne!(Key::group(&[0, 1]), Key::group(&[0, 1, 2]));
        assert_eq!(Key::group(&[4, 7]), Key::group(&[4, 7]));
    }

    #[test]
    fn a_stream_is_announced_once_per_receiver() {
        let mut streams = Streams::new(32767);
        let key = Key::group(&[0, 1, 2]);
        assert!(matches!(streams.give(key, 1), Given::New(1)));
        assert!(matches!(streams.give(key, 1), Given::Known(1)));
        assert!(matches!(streams.give(key, 2), Given::New(1)));
        assert!(matches!(streams.give(Key::WORLD, 2), Given::Known(0)));
    }

    #[test]
    fn more_streams_than_tags_are_refused() {
        let mut streams = Streams::new(32767);
        let refused = (0..600).any(|i| matches!(streams.give(Key(i + 1), 1), Given::TooMany));
        assert!(refused);
    }
}
