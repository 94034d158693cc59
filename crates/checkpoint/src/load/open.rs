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

/// The checkpoint that a path or a URL names, and the place that its files are in, which all ranks hold.
pub(super) fn open_path(group: &Group, path: &str) -> Result<(Arc<dyn Storage>, Catalog)> {
    let held = match storage::open(path).and_then(|storage| hold(storage.into())) {
        // A path may name a file, in which there is nothing, or nothing at all.
        Err(Error::Io { kind: ErrorKind::NotFound | ErrorKind::NotADirectory, .. }) => Ok(None),
        held => held.map(Some),
    };
    let held = agree(group, held)?;
    if let Some((storage, catalog)) = open_native(group, held, path)? {
        return Ok((storage, catalog));
    }
    // Other formats have checkpoints that are a single file.
    let found = agree(group, formats::find(path))?;
    let catalog = open_foreign(group, &*found.storage, |storage| found.open_in(storage))?;
    Ok((found.storage, catalog))
}

/// What the checkpoint in a place holds, the same on every rank, and that place, held.
pub(super) fn open(
    group: &Group,
    storage: &Arc<dyn Storage>,
) -> Result<(Arc<dyn Storage>, Catalog)> {
    let storage = agree(group, hold(Arc::clone(storage)))?;
    match open_native(group, Some(Arc::clone(&storage)), &storage.place())? {
        Some(found) => Ok(found),
        None => {
            let catalog = open_foreign(group, &*storage, |storage| Catalog::open(storage))?;
            Ok((storage, catalog))
        }
    }
}

fn hold(storage: Arc<dyn Storage>) -> Result<Arc<dyn Storage>> {
    Ok(storage.hold()?.unwrap_or(storage))
}

/// A checkpoint of somebody else. The first rank reads what tells what it holds; the others are told those bytes, and find the
/// same in them. All ranks hold the place already.
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
    let opened = first.unwrap_or_else(told);
    // All have held it before any of them comes here. So what is still there for each of them is the same for all.
    agree(group, storage.check_held().and(opened))
}

/// A checkpoint of ours, if there is one. The manifest is read by the first rank, and every header by one rank. They are passed
/// on as bytes: what they say, and what is wrong with it, all ranks find alike. All ranks hold the place already, if it is there.
fn open_native(
    group: &Group,
    held: Option<Arc<dyn Storage>>,
    path: &str,
) -> Result<Option<(Arc<dyn Storage>, Catalog)>> {
    let Some(manifest) = share_manifest(group, held.as_deref())? else { return Ok(None) };
    // It was not there when this rank looked for it.
    let held = agree(group, held.ok_or_else(|| Error::Replaced { path: path.to_owned() }))?;
    let manifest = Manifest::parse(MANIFEST_FILE, &manifest)?;
    let mine = manifest.files.iter().skip(group.rank()).step_by(group.size());
    let mine = mine.map(|record| native::read_header(&*held, record)).collect::<Result<Vec<_>>>();
    // All have held it before any of them comes here. So what is still there for each of them is the same for all.
    let checked = if group.size() > 1 { held.check_held() } else { Ok(()) };
    let mine = agree(group, checked.and(mine))?;
    let headers = share_headers(group, manifest.files.len(), mine)?;
    native::catalog(manifest, &headers).map(|catalog| Some((held, catalog)))
}

/// The manifest, which the first rank reads; `None` if there is none.
fn share_manifest(group: &Group, storage: Option<&dyn Storage>) -> Result<Option<Vec<u8>>> {
    let read = |storage| match native::read_manifest(storage) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Error::Io { kind: ErrorKind::NotFound | ErrorKind::NotADirectory, .. }) => Ok(None),
        Err(error) => Err(error),
    };
    let first = storage.filter(|_| group.rank() == 0);
    let read = agree(group, first.map_or(Ok(None), read))?;
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
