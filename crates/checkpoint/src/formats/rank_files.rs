//! States that ranks have saved, each in a file of its own.
//!
//! Of a ShardedTensor a file has the shards of its rank. Everything else is whole in every file: where all ranks have saved the same,
//! it is there once; what differs from rank to rank, such as the state of random numbers, is there once for each of them.

use std::collections::{BTreeMap, btree_map};

use crate::{Checksum, Chunk, Error, Result, TensorEntry, Value, catalog::Contents};

/// What the files have, by name; of what is whole, with the stem of each file.
#[derive(Default)]
pub(super) struct RankFiles {
    sharded: BTreeMap<String, TensorEntry>,
    tensors: BTreeMap<String, Vec<(String, TensorEntry)>>,
    values: BTreeMap<String, Vec<(String, Value)>>,
    unreadable: BTreeMap<String, Vec<(String, String)>>,
}

impl RankFiles {
    /// Adds what a file has.
    pub(super) fn add(
        &mut self,
        file: &str,
        stem: &str,
        contents: Contents,
        shards: Vec<(String, TensorEntry)>,
    ) -> Result<()> {
        for (name, entry) in shards {
            match self.sharded.entry(name) {
                btree_map::Entry::Vacant(place) => {
                    place.insert(entry);
                }
                btree_map::Entry::Occupied(mut place) => {
                    let there = place.get_mut();
                    if (there.stored, &there.shape) != (entry.stored, &entry.shape) {
                        let name = place.key();
                        let what = format!("`{name}` has another size or dtype in another file");
                        return Err(Error::broken(file, what));
                    }
                    there.chunks.extend(entry.chunks);
                }
            }
        }
        for (name, entry) in contents.tensors {
            self.tensors.entry(name).or_default().push((stem.to_owned(), entry));
        }
        for (name, value) in contents.values {
            self.values.entry(name).or_default().push((stem.to_owned(), value));
        }
        for (name, reason) in contents.unreadable {
            self.unreadable.entry(name).or_default().push((stem.to_owned(), reason));
        }
        Ok(())
    }

    /// What all of them have; `place` is for errors. What ranks have saved differently has the stem of its file before its name:
    /// `rank1.rng`. So nobody takes that of one rank for that of all.
    pub(super) fn together(self, place: &str) -> Result<Contents> {
        for (name, entry) in &self.sharded {
            entry.check_cover(name, place)?;
        }
        let whole = self.tensors.into_iter().flat_map(|(name, own)| told_apart(name, own, is_copy));
        let tensors = self.sharded.into_iter().chain(whole).collect();
        let values = self.values.into_iter();
        let values = values.flat_map(|(name, own)| told_apart(name, own, Value::eq)).collect();
        // Whether two things are the same that cannot be read, nobody knows.
        let unreadable = self.unreadable.into_iter();
        let unreadable = unreadable.flat_map(|(name, own)| told_apart(name, own, |_, _| false));
        Ok(Contents { tensors, values, unreadable: unreadable.collect() })
    }
}

/// One thing by its name, or each by a name of its own.
fn told_apart<V>(
    name: String,
    mut of_files: Vec<(String, V)>,
    is_same: impl Fn(&V, &V) -> bool,
) -> Vec<(String, V)> {
    let is_one = of_files.windows(2).all(|pair| is_same(&pair[0].1, &pair[1].1));
    match is_one {
        true => of_files.drain(..).take(1).map(|(_, thing)| (name.clone(), thing)).collect(),
        false => {
            of_files.into_iter().map(|(stem, thing)| (format!("{stem}.{name}"), thing)).collect()
        }
    }
}

/// Whether two tensors have the same elements, as far as the checksums of their archives tell.
fn is_copy(one: &TensorEntry, other: &TensorEntry) -> bool {
    let is_same = |(one, other): (&Chunk, &Chunk)| match (&one.checksum, &other.checksum) {
        (
            Checksum::Crc32 { start, bytes, crc },
            Checksum::Crc32 { start: other_start, bytes: other_bytes, crc: other_crc },
        ) => {
            let within = (one.offset.checked_sub(*start), &one.strides, &one.index);
            let other_within =
                (other.offset.checked_sub(*other_start), &other.strides, &other.index);
            (bytes, crc) == (other_bytes, other_crc) && within == other_within
        }
        _ => false,
    };
    (one.stored, &one.shape) == (other.stored, &other.shape)
        && one.chunks.len() == other.chunks.len()
        && one.chunks.iter().zip(&other.chunks).all(is_same)
}
