//! Whether all ranks are about to save the same thing.

use dtensor_comm::World;

use crate::{Error, Result, State, agree::Intention};

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
    let intention = Intention::new(Some(place), state, true);
    let mut mine = [0; MESSAGE];
    mine[..16].copy_from_slice(&intention.checksum());
    mine[16..24].copy_from_slice(&id.to_le_bytes());
    mine[24] = u8::from(busy.is_some());
    let mut messages = vec![0; MESSAGE * group.size()];
    group.all_gather(&mine, &mut messages)?;
    let mut messages = messages.chunks_exact(MESSAGE);
    let first = messages.clone().next().unwrap_or(&mine);
    if let Some(rank) = messages.clone().position(|message| message[24] != 0) {
        let path = busy.filter(|_| group.rank() == rank).map(|path| path.as_bytes().to_vec());
        let path = group.broadcast_list(path, rank)?;
        return Err(Error::Busy { path: String::from_utf8_lossy(&path).into_owned() });
    }
    match messages.position(|message| message[..16] != first[..16]) {
        Some(rank) => Err(intention.difference(&group, rank)?),
        None => Ok(first[16..24].iter().rev().fold(0, |id, &byte| id << 8 | u64::from(byte))),
    }
}

/// Bytes that a rank sends: a checksum, an id, a flag.
const MESSAGE: usize = 32;
