//! An object that is uploaded in parts.

use std::collections::{HashMap, VecDeque};

use object_store::{MultipartId, ObjectStoreExt as _, multipart::PartId, path::Path};

use super::{
    place::Stores,
    run::{Begun, begin, failed, run},
};
use crate::{NewFile, Result};

/// Bytes of a part, at least: stores refuse less than 5 MiB, and more than 10,000 parts. They are all equally long but the last,
/// which some stores demand.
const PART: u64 = 8 << 20;
const MOST_PARTS: u64 = 10_000;

/// Parts that are on their way at a time.
const ON_THE_WAY: usize = 3;

/// An object whose bytes come in any order. A part goes out as soon as it is full; so of a file whose header comes last, the part with
/// the header waits, and a few others are in memory.
pub(super) struct Upload {
    stores: Stores,
    path: Path,
    /// For errors.
    place: String,
    size: u64,
    part: u64,
    /// Parts that are not full, each with the bytes that it has.
    open: HashMap<u64, (Vec<u8>, usize)>,
    /// Of an object in several parts.
    id: Option<MultipartId>,
    on_the_way: VecDeque<(u64, Begun<PartId>)>,
    there: Vec<Option<PartId>>,
    finished: bool,
}

impl Upload {
    pub(super) fn new(stores: &Stores, path: Path, place: String, size: u64) -> Upload {
        let part = PART.max(size.div_ceil(MOST_PARTS));
        Upload {
            stores: stores.clone(),
            path,
            place,
            size,
            part,
            open: HashMap::new(),
            id: None,
            on_the_way: VecDeque::new(),
            there: vec![None; size.div_ceil(part) as usize],
            finished: false,
        }
    }

    fn send(&mut self, index: u64, bytes: Vec<u8>) -> Result<()> {
        let id = match &self.id {
            Some(id) => id.clone(),
            None => {
                let (uploads, path) = (self.stores.uploads.clone(), self.path.clone());
                let id = run(async move { uploads.create_multipart(&path).await });
                self.id.insert(id.map_err(failed("write", self.place.clone()))?).clone()
            }
        };
        if self.on_the_way.len() == ON_THE_WAY {
            self.receive_one()?;
        }
        let (uploads, path) = (self.stores.uploads.clone(), self.path.clone());
        let request =
            async move { uploads.put_part(&path, &id, index as usize, bytes.into()).await };
        self.on_the_way.push_back((index, begin(request)));
        Ok(())
    }

    fn receive_one(&mut self) -> Result<()> {
        if let Some((index, request)) = self.on_the_way.pop_front() {
            let id = request.wait().map_err(failed("write", self.place.clone()))?;
            self.there[index as usize] = Some(id);
        }
        Ok(())
    }
}

impl NewFile for Upload {
    fn write_at(&mut self, mut offset: u64, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() && offset < self.size {
            let (index, start) = (offset / self.part, (offset % self.part) as usize);
            let length = self.part.min(self.size - index * self.part) as usize;
            let (part, filled) = self.open.entry(index).or_insert_with(|| (vec![0; length], 0));
            let (now, rest) = bytes.split_at(bytes.len().min(length - start));
            part[start..start + now.len()].copy_from_slice(now);
            *filled += now.len();
            if *filled == length
                && self.size > self.part
                && let Some((part, _)) = self.open.remove(&index)
            {
                self.send(index, part)?;
            }
            (offset, bytes) = (offset + now.len() as u64, rest);
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        let place = self.place.clone();
        while !self.on_the_way.is_empty() {
            self.receive_one()?;
        }
        let (stores, path) = (self.stores.clone(), self.path.clone());
        let parts: Option<Vec<PartId>> = std::mem::take(&mut self.there).into_iter().collect();
        let outcome = match (self.id.clone(), parts, self.open.remove(&0)) {
            (Some(id), Some(parts), _) => {
                run(async move { stores.uploads.complete_multipart(&path, &id, parts).await })
            }
            (None, _, Some((whole, _))) => {
                run(async move { stores.objects.put(&path, whole.into()).await })
            }
            _ => Err(object_store::Error::Generic {
                store: "upload",
                source: "a part of the object was not written".into(),
            }),
        };
        outcome.map_err(failed("write", place))?;
        self.finished = true;
        Ok(())
    }
}

/// Parts of an upload that was given up would be kept, and paid for.
impl Drop for Upload {
    fn drop(&mut self) {
        if let (false, Some(id)) = (self.finished, self.id.take()) {
            let (uploads, path) = (self.stores.uploads.clone(), self.path.clone());
            let _ = run(async move { uploads.abort_multipart(&path, &id).await });
        }
    }
}
