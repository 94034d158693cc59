//! Ranks that do the same, or fail together.

use dtensor_comm::Group;

use crate::{Entry, Error, Result, State, hash};

/// What every rank gets when each of them has an outcome: its own, if all have succeeded; else the error of the first rank
/// that has one, told to the others as [`Error::OnRank`].
///
/// If a rank finds that the checkpoint was replaced, all ranks get just that, so that all of them can begin again.
pub(crate) fn agree<T>(group: &Group, outcome: Result<T>) -> Result<T> {
    if group.size() == 1 {
        return outcome;
    }
    let (text, sign) = match &outcome {
        Ok(_) => (None, 1),
        Err(Error::Replaced { path }) => (Some(path.clone()), -1),
        Err(error) => (Some(error.to_string()), 1),
    };
    // The length of a text, and one more, so that an empty one counts.
    let length = text.as_ref().map_or(0, |text| sign * (text.len() as i64 + 1));
    let mut lengths = vec![0_i64; group.size()];
    group.all_gather(&[length], &mut lengths)?;
    let replaced = lengths.iter().position(|length| *length < 0);
    let failed = lengths.iter().position(|length| *length > 0);
    let Some(first) = replaced.or(failed) else { return outcome };
    let mut message = vec![0_u8; (lengths[first].unsigned_abs() - 1) as usize];
    if let (true, Some(text)) = (group.rank() == first, &text) {
        message.copy_from_slice(text.as_bytes());
    }
    group.broadcast(&mut message, first)?;
    let message = String::from_utf8_lossy(&message).into_owned();
    match outcome {
        _ if replaced.is_some() => Err(Error::Replaced { path: message }),
        // What went wrong here in the same way needs no other rank to explain it.
        Err(error) if text.as_ref() == Some(&message) => Err(error),
        _ => Err(Error::OnRank { rank: first, message }),
    }
}

/// What each rank is about to do, in pieces that are compared with those of the others: what a piece is called, and what it is.
pub(crate) struct Intention {
    pieces: Vec<(String, String)>,
    /// One of each piece, 16 bytes.
    hashes: Vec<u8>,
}

impl Intention {
    /// Something about a place, if that counts, and about a state: its names and layouts, and its values, if they count.
    pub(crate) fn new(place: Option<&str>, state: &State, with_values: bool) -> Intention {
        let entry = |(index, (name, entry)): (usize, (&str, &Entry))| {
            let is = match entry {
                Entry::Tensor(tensor) => format!("{:?}", tensor.layout()),
                Entry::Value(value) if with_values => format!("{value:?}"),
                Entry::Value(_) => "a value".to_owned(),
            };
            (format!("entry {index}"), format!("`{name}`, {is}"))
        };
        let place = place.map(|place| ("the place".to_owned(), format!("`{place}`")));
        // So that a list which is the beginning of another one differs from it in a piece.
        let end = (format!("entry {}", state.len()), "nothing".to_owned());
        let pieces: Vec<(String, String)> =
            place.into_iter().chain(state.iter().enumerate().map(entry)).chain([end]).collect();
        let hashed = |(what, is): &(String, String)| {
            hash::xxh3(format!("{what}\0{is}").as_bytes()).to_le_bytes()
        };
        let hashes = pieces.iter().flat_map(hashed).collect();
        Intention { pieces, hashes }
    }

    /// The same on ranks that intend the same.
    pub(crate) fn checksum(&self) -> [u8; 16] {
        hash::xxh3(&self.hashes).to_le_bytes()
    }

    /// The first thing in which rank 0 and another rank differ. All ranks call it, and all get the same error.
    pub(crate) fn difference(&self, group: &Group, rank: usize) -> Result<Error> {
        let from = |root: usize, bytes: &[u8]| group.broadcast_list(Some(bytes.to_vec()), root);
        let (one, other) = (from(0, &self.hashes)?, from(rank, &self.hashes)?);
        let pairs = one.chunks(16).zip(other.chunks(16));
        let index = pairs.take_while(|(one, other)| one == other).count();
        let (what, is) = self.pieces.get(index).cloned().unwrap_or_default();
        let shown: String = is.chars().take(SHOWN).collect();
        let what = from(0, what.as_bytes())?;
        let (one, other) = (from(0, shown.as_bytes())?, from(rank, shown.as_bytes())?);
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Error::Disagreement { what: text(what), one: text(one), rank, other: text(other) })
    }
}

/// The longest description in an error.
const SHOWN: usize = 200;
