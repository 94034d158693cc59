//! Our own checkpoints: a manifest, and the files that it lists, which are sharded safetensors with checksums.
//!
//! Every byte is covered: the manifest has a checksum of itself and those of the files' headers, and a header has those of
//! the tensors. Here manifest and headers are verified; whoever reads a tensor verifies its blocks.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value as Json;

use super::safetensors::{self, Header, OWN_INFO, SHARDING_INFO, Stored, index_at, sizes};
use crate::{
    Catalog, Checksum, Chunk, Error, FileRecord, Format, MANIFEST_FILE, Manifest, Result,
    SourceFile, Storage, TensorEntry, hash, manifest::MAX_MANIFEST,
};

/// What the checkpoint in this place holds.
pub(crate) fn open(storage: &dyn Storage) -> Result<Catalog> {
    let manifest = Manifest::parse(MANIFEST_FILE, &read_manifest(storage)?)?;
    let headers = manifest.files.iter().map(|record| read_header(storage, record));
    catalog(manifest.clone(), &headers.collect::<Result<Vec<_>>>()?)
}

/// The bytes of the manifest, not yet verified.
pub(crate) fn read_manifest(storage: &dyn Storage) -> Result<Vec<u8>> {
    let file = storage.open(MANIFEST_FILE)?;
    if file.size() > MAX_MANIFEST {
        return Err(Error::broken(MANIFEST_FILE, format!("{} bytes are no manifest", file.size())));
    }
    let mut bytes = vec![0; file.size() as usize];
    file.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// The header of a file that the manifest lists, verified.
pub(crate) fn read_header(storage: &dyn Storage, record: &FileRecord) -> Result<Vec<u8>> {
    let inside = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['\\', ':']);
    if !record.name.split('/').all(inside) {
        let what = format!("`{}` is no name of a file in the checkpoint", record.name);
        return Err(Error::broken(MANIFEST_FILE, what));
    }
    let file = storage.open(&record.name)?;
    if file.size() != record.size {
        let what = format!("it has {} bytes, and {} were written", file.size(), record.size);
        return Err(Error::broken(&record.name, what));
    }
    let bytes = safetensors::read_header_bytes(&*file)?;
    let computed = hash::xxh3(&bytes);
    match computed == record.header_hash {
        true => Ok(bytes),
        false => Err(Error::Damaged {
            file: record.name.clone(),
            what: "the header".into(),
            stored: hash::to_hex(record.header_hash),
            computed: hash::to_hex(computed),
        }),
    }
}

/// What manifest and headers, one of each file that it lists and verified, say together.
pub(crate) fn catalog<B: AsRef<[u8]>>(manifest: Manifest, headers: &[B]) -> Result<Catalog> {
    let mut tensors: BTreeMap<String, TensorEntry> = BTreeMap::new();
    // The file that first named a tensor, for errors.
    let mut first_seen: BTreeMap<String, usize> = BTreeMap::new();
    for (file, (record, bytes)) in manifest.files.iter().zip(headers).enumerate() {
        let header = safetensors::parse_header(&record.name, bytes.as_ref(), record.size)?;
        if let Some(packed) = header.packed.first() {
            // We write no such.
            let what = format!("`{}`: {}", packed.name, packed.reason);
            return Err(Error::broken(&record.name, what));
        }
        let about = About::parse(&record.name, &header)?;
        for stored in &header.tensors {
            let part = about.part(file, stored)?;
            match tensors.get_mut(&stored.name) {
                None => {
                    first_seen.insert(stored.name.clone(), file);
                    tensors.insert(stored.name.clone(), part);
                }
                Some(entry) if (entry.stored, &entry.shape) == (part.stored, &part.shape) => {
                    entry.chunks.extend(part.chunks);
                }
                Some(entry) => {
                    let what = format!(
                        "`{}` is {} {:?}, and {} {:?} in another file",
                        stored.name, part.stored, part.shape, entry.stored, entry.shape
                    );
                    return Err(Error::broken(&record.name, what));
                }
            }
        }
    }
    for (name, entry) in &tensors {
        let file = first_seen.get(name).and_then(|&file| manifest.files.get(file));
        entry.check_cover(name, file.map_or(MANIFEST_FILE, |record| &record.name))?;
    }
    if tensors.len() as u64 != manifest.tensors {
        let what =
            format!("its files hold {} tensors, and it says {}", tensors.len(), manifest.tensors);
        return Err(Error::broken(MANIFEST_FILE, what));
    }
    let source = |record: FileRecord| SourceFile { name: record.name, size: record.size };
    let files = manifest.files.into_iter().map(source).collect();
    Ok(Catalog { tensors, values: manifest.values, ..Catalog::new(Format::Native, files) })
}

/// What the texts of a header say about its tensors.
struct About<'h> {
    file: &'h str,
    offsets: Json,
    tensors: Json,
}

impl<'h> About<'h> {
    fn parse(file: &'h str, header: &Header) -> Result<About<'h>> {
        let json = |key: &str| {
            let text = header.metadata.get(key);
            let text = text.ok_or_else(|| Error::broken(file, format!("it has no `{key}`")))?;
            serde_json::from_str::<Json>(text)
                .map_err(|error| Error::broken(file, format!("`{key}`: {error}")))
        };
        Ok(About { file, offsets: json(SHARDING_INFO)?, tensors: json(OWN_INFO)? })
    }

    /// A tensor of which there is this part.
    fn part(&self, file: usize, stored: &Stored) -> Result<TensorEntry> {
        let broken = |what: &str| Error::broken(self.file, format!("`{}`: {what}", stored.name));
        let offsets = sizes(&self.offsets[&stored.name]["saved_offsets"]);
        let offsets = offsets.filter(|offsets| offsets.len() == stored.shape.len());
        let offsets = offsets.ok_or_else(|| broken("it has no offsets"))?;
        let about = &self.tensors[&stored.name];
        let shape = sizes(&about["shape"]).ok_or_else(|| broken("it has no global shape"))?;
        if shape
            .iter()
            .try_fold(stored.stored.size(), |bytes, &size| bytes.checked_mul(size))
            .is_none()
        {
            return Err(broken("its shape is beyond this machine"));
        }
        let index = index_at(&offsets, &stored.shape);
        let index = index.ok_or_else(|| broken("its offsets are beyond this machine"))?;
        let chunk = Chunk {
            index,
            file,
            offset: stored.offset,
            strides: None,
            checksum: checksum(about).ok_or_else(|| broken("its checksums cannot be read"))?,
        };
        let layout = about["layout"].as_str().map(str::to_owned);
        Ok(TensorEntry { stored: stored.stored, shape, chunks: vec![chunk], layout })
    }
}

fn checksum(about: &Json) -> Option<Checksum> {
    let block = usize::try_from(about["block"].as_u64()?).ok()?;
    let hashes = about["xxh3"].as_array()?.iter();
    let hashes =
        hashes.map(|text| hash::from_hex(text.as_str()?)).collect::<Option<Arc<[u128]>>>()?;
    Some(Checksum::Blocks { block, hashes })
}
