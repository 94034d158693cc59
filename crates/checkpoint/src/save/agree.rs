//! Whether all ranks are about to save the same thing.

use dtensor_comm::{Group, World};

use super::meeting::broadcast_bytes;
use crate::{Entry, Error, Result, State, hash};

/// What the ranks agree on before a save: the same place, names, shapes, dtypes, layouts and values. Costs one call with 32 bytes
/// of each rank. Gives the id of the save, which rank 0 chose.
///
/// `busy` is where a save of this rank is still going to, if there is one; then all ranks refuse.
pub(crate) fn agree(
    world: &World,
    place: &str,
    state: &State,
    id: u64,
    busy: Option<&str>,
) -> Result<u64> {
    let group = world.group().tag("checkpoint agreement");
    let about = || descriptions(place, state);
    let mut all_hashes = Vec::new();
    about().for_each(|(what, is)| {
        all_hashes.extend(hash::xxh3(format!("{what}\0{is}").as_bytes()).to_le_bytes());
    });
    let mut mine = [0; MESSAGE];
    mine[..16].copy_from_slice(&hash::xxh3(&all_hashes).to_le_bytes());
    mine[16..24].copy_from_slice(&id.to_le_bytes());
    mine[24] = u8::from(busy.is_some());
    let mut messages = vec![0; MESSAGE * group.size()];
    group.all_gather(&mine, &mut messages)?;
    let mut messages = messages.chunks_exact(MESSAGE);
    let first = messages.clone().next().unwrap_or(&mine);
    if messages.clone().any(|message| message[24] != 0) {
        return Err(Error::Busy { path: busy.unwrap_or(place).to_owned() });
    }
    match messages.position(|message| message[..16] != first[..16]) {
        Some(rank) => Err(difference(&group, rank, &all_hashes, about())?),
        None => Ok(first[16..24].iter().rev().fold(0, |id, &byte| id << 8 | u64::from(byte))),
    }
}

/// Bytes that a rank sends: a checksum, an id, a flag.
const MESSAGE: usize = 32;

/// The longest description in an error.
const SHOWN: usize = 200;

/// What is to be saved, piece by piece: what it is called and what it is.
fn descriptions<'a>(
    place: &'a str,
    state: &'a State,
) -> impl Iterator<Item = (String, String)> + 'a {
    let entry = |(index, (name, entry)): (usize, (&str, &Entry))| {
        let is = match entry {
            Entry::Tensor(tensor) => format!("{:?}", tensor.layout()),
            Entry::Value(value) => format!("{value:?}"),
        };
        (format!("entry {index}"), format!("`{name}`, {is}"))
    };
    // So that a list which is the beginning of another one differs from it in a piece.
    let end = (format!("entry {}", state.len()), "nothing".to_owned());
    [("the place".to_owned(), format!("`{place}`"))]
        .into_iter()
        .chain(state.iter().enumerate().map(entry))
        .chain([end])
}

/// The first thing in which rank 0 and another rank differ. All ranks call it, and all get the same error.
fn difference(
    group: &Group,
    rank: usize,
    hashes: &[u8],
    mut about: impl Iterator<Item = (String, String)>,
) -> Result<Error> {
    let from = |root: usize, bytes: Vec<u8>| {
        broadcast_bytes(group, (group.rank() == root).then_some(bytes), root)
    };
    let one = from(0, hashes.to_vec())?;
    let other = from(rank, hashes.to_vec())?;
    let pairs = one.chunks(16).zip(other.chunks(16));
    let index = pairs.take_while(|(one, other)| one == other).count();
    let (what, is) = about.nth(index).unwrap_or_default();
    let shown: String = is.chars().take(SHOWN).collect();
    let what = from(0, what.into_bytes())?;
    let (one, other) = (from(0, shown.clone().into_bytes())?, from(rank, shown.into_bytes())?);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Error::Disagreement { what: text(what), one: text(one), rank, other: text(other) })
}
