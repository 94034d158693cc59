//! Failing together.

use dtensor_comm::Group;

use crate::{Entry, Error, Result, State, hash, save::broadcast_bytes};

/// What every rank gets when each of them has an outcome: its own, if all have succeeded; else the error of the first rank
/// that has one, told to the others as [`Error::OnRank`].
pub(super) fn agree<T>(group: &Group, outcome: Result<T>) -> Result<T> {
    if group.size() == 1 {
        return outcome;
    }
    let text = outcome.as_ref().err().map(Error::to_string);
    // The length of a text, and one more, so that an empty one counts.
    let length = text.as_ref().map_or(0, |text| text.len() as i64 + 1);
    let mut lengths = vec![0_i64; group.size()];
    group.all_gather(&[length], &mut lengths)?;
    let Some(first) = lengths.iter().position(|length| *length > 0) else { return outcome };
    let mut message = vec![0_u8; (lengths[first] - 1) as usize];
    if let (true, Some(text)) = (group.rank() == first, &text) {
        message.copy_from_slice(text.as_bytes());
    }
    group.broadcast(&mut message, first)?;
    let message = String::from_utf8_lossy(&message).into_owned();
    match outcome {
        // What went wrong here in the same way needs no other rank to explain it.
        Err(error) if text.as_ref() == Some(&message) => Err(error),
        _ => Err(Error::OnRank { rank: first, message }),
    }
}

/// Whether all ranks load into states of the same names and layouts: what they do follows from those. Costs one call with 16
/// bytes of each rank.
pub(super) fn check_same(group: &Group, state: &State) -> Result<()> {
    if group.size() == 1 {
        return Ok(());
    }
    let entries: Vec<String> = state.iter().map(describe).collect();
    let mine = entries.join("\0");
    let mut checksums = vec![0; 16 * group.size()];
    group.all_gather(&hash::xxh3(mine.as_bytes()).to_le_bytes(), &mut checksums)?;
    let (first, others) = checksums.split_at(16);
    if others.chunks(16).all(|other| other == first) {
        return Ok(());
    }
    let of_first = (group.rank() == 0).then(|| mine.into_bytes());
    let of_first = broadcast_bytes(group, of_first, 0)?;
    let of_first = String::from_utf8_lossy(&of_first);
    agree(group, compare(group.rank(), of_first.split('\0'), &entries))
}

fn describe((name, entry): (&str, &Entry)) -> String {
    match entry {
        Entry::Tensor(tensor) => format!("`{name}`, {:?}", tensor.layout()),
        Entry::Value(_) => format!("`{name}`, a value"),
    }
}

/// The first thing in which the entries of this rank differ from those of rank 0.
fn compare<'a>(
    rank: usize,
    mut of_first: impl Iterator<Item = &'a str>,
    entries: &[String],
) -> Result<()> {
    let nothing = "nothing";
    for index in 0.. {
        let (one, other) = (of_first.next(), entries.get(index).map(String::as_str));
        if one.or(other).is_none() {
            break;
        }
        if one != other {
            let text = |entry: Option<&str>| entry.unwrap_or(nothing).to_owned();
            let (one, other) = (text(one), text(other));
            return Err(Error::Disagreement { what: format!("entry {index}"), one, rank, other });
        }
    }
    Ok(())
}
