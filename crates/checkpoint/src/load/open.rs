//! Finding out together what a checkpoint holds.

use std::{io::ErrorKind, sync::Arc};

use dtensor_comm::Group;

use crate::{
    Catalog, Error, MANIFEST_FILE, Manifest, Result, Storage,
    agree::agree,
    formats::{
        self, native,
        recorded::{Recording, Replay},
    },
    storage,
};

/// The checkpoint that a path or a URL names, and the place that its files are in.
pub(super) fn open_path(group: &Group, path: &str) -> Result<(Arc<dyn Storage>, Catalog)> {
    let storage: Arc<dyn Storage> = agree(group, storage::open(path))?.into();
    if let Some(catalog) = open_native(group, &*storage)? {
        return Ok((storage, catalog));
    }
    // Other formats have checkpoints that are a single file.
    let found = agree(group, formats::find(path))?;
    let catalog = open_foreign(group, &*found.storage, |storage| found.open_in(storage))?;
    Ok((found.storage, catalog))
}

/// What the checkpoint in a place holds, the same on every rank.
pub(super) fn open(group: &Group, storage: &dyn Storage) -> Result<Catalog> {
    match open_native(group, storage)? {
        Some(catalog) => Ok(catalog),
        None => open_foreign(group, storage, |storage| Catalog::open(storage)),
    }
}

/// A checkpoint of somebody else. The first rank reads what tells what it holds; the others are told those bytes, and find the
/// same in them.
fn open_foreign(
    group: &Group,
    storage: &dyn Storage,
    open: impl Fn(&dyn Storage) -> Result<Catalog>,
) -> Result<Catalog> {
    if group.size() == 1 {
        return open(storage);
    }
    let recording = Recording::new(storage);
    let first = (group.rank() == 0).then(|| open(&recording));
    // Also if it has found something wrong: the others find that, too.
    let bytes = group.broadcast_list(first.as_ref().map(|_| recording.to_bytes()), 0)?;
    let told = || open(&Replay::from_bytes(&bytes)?);
    agree(group, first.unwrap_or_else(told))
}

/// A checkpoint of ours, if there is one. The manifest is read by the first rank, and every header by one rank. They are passed
/// on as bytes: what they say, and what is wrong with it, all ranks find alike.
fn open_native(group: &Group, storage: &dyn Storage) -> Result<Option<Catalog>> {
    let Some(manifest) = share_manifest(group, storage)? else { return Ok(None) };
    let manifest = Manifest::parse(MANIFEST_FILE, &manifest)?;
    let mine = manifest.files.iter().skip(group.rank()).step_by(group.size());
    let mine = mine.map(|record| native::read_header(storage, record));
    let mine = agree(group, mine.collect::<Result<Vec<_>>>())?;
    let headers = share_headers(group, manifest.files.len(), mine)?;
    native::catalog(manifest, &headers).map(Some)
}

/// The manifest, which the first rank reads; `None` if there is none.
fn share_manifest(group: &Group, storage: &dyn Storage) -> Result<Option<Vec<u8>>> {
    let read = || match native::read_manifest(storage) {
        Ok(bytes) => Ok(Some(bytes)),
        // A path may name a file, in which there is nothing.
        Err(Error::Io { kind: ErrorKind::NotFound | ErrorKind::NotADirectory, .. }) => Ok(None),
        Err(error) => Err(error),
    };
    let read = if group.rank() == 0 { read() } else { Ok(None) };
    let read = agree(group, read)?;
    let mut length = [read.as_ref().map_or(-1, |bytes| bytes.len() as i64)];
    group.broadcast(&mut length, 0)?;
    let Ok(length) = usize::try_from(length[0]) else { return Ok(None) };
    let mut bytes = read.unwrap_or_else(|| vec![0; length]);
    group.broadcast(&mut bytes, 0)?;
    Ok(Some(bytes))
}

/// The headers of all files, of which a rank has every so many-th.
fn share_headers(group: &Group, n_files: usize, mine: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
    let size = group.size();
    if size == 1 {
        return Ok(mine);
    }
    let most = n_files.div_ceil(size);
    let mut lengths = vec![0_i64; most];
    lengths.iter_mut().zip(&mine).for_each(|(length, header)| *length = header.len() as i64);
    let mut all_lengths = vec![0_i64; most * size];
    group.all_gather(&lengths, &mut all_lengths)?;
    let of_rank = |rank: usize| &all_lengths[rank * most..][..most];
    let counts = (0..size).map(|rank| of_rank(rank).iter().sum::<i64>() as usize);
    let counts: Vec<usize> = counts.collect();
    let mut bytes = vec![0; counts.iter().sum()];
    group.all_gather_v(&mine.concat(), &mut bytes, &counts)?;
    let mut rest = bytes.as_slice();
    let mut headers = vec![Vec::new(); n_files];
    for rank in 0..size {
        let files = (rank..n_files).step_by(size);
        for (file, length) in files.zip(of_rank(rank)) {
            let (header, after) = rest.split_at(*length as usize);
            headers[file] = header.to_vec();
            rest = after;
        }
    }
    Ok(headers)
}
