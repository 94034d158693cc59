//! Zip archives as `torch.save` writes them: records are stored as they are, never compressed.
//!
//! From the end of an archive to its start:
//!
//! ```text
//! end record          22 bytes and a comment   PK 5 6, counts, size and offset of the directory in 16 and 32 bits
//! locator             20 bytes                 PK 6 7, where the 64-bit end record is
//! 64-bit end record   56 bytes                 PK 6 6, the same numbers in 64 bits; PyTorch always writes it
//! directory           46 bytes, name, extra,   PK 1 2, per record: flags, method, CRC-32, sizes, offset of its local header;
//!                     comment per record       numbers that need 64 bits are 0xffffffff there, and in extra field 1
//! records             30 bytes, name, extra,   PK 3 4, the local header, in which PyTorch leaves sizes zero; its extra field
//!                     data, 16 or 24 bytes     `FB` is padding that brings the data to a multiple of 64; then PK 7 8, CRC, sizes
//! ```
//!
//! Only the directory is believed. Whatever it says is checked against the file before it is used, nothing is ever unpacked,
//! and memory is taken for the directory and for single records, both of which lie in the file and have a limit.

use std::collections::BTreeMap;

use super::window::read;
use crate::{Error, ReadAt, Result};

/// What every archive begins with, unless it is empty.
pub(crate) const MAGIC: [u8; 4] = *b"PK\x03\x04";

/// As long as a directory may be: more than half a million records.
const MAX_DIRECTORY: u64 = 64 << 20;
/// What is read from the end at first: the whole directory of a small archive.
const TAIL: u64 = 2048;
/// The longest comment that the format allows.
const MAX_COMMENT: u64 = 65535;

/// The directory of an archive.
pub(crate) struct Archive {
    /// By name, without the directory that all of PyTorch's records are in.
    records: BTreeMap<String, Record>,
    /// That directory, with its slash.
    root: String,
}

struct Record {
    local_header: u64,
    bytes: u64,
    crc: Option<u32>,
    packing: Packing,
}

/// How the data of a record are there. TorchScript compresses its code, beside records that are read.
#[derive(Clone, Copy, PartialEq)]
enum Packing {
    AsTheyAre,
    Compressed(u16),
    Encrypted,
}

/// Where the data of a record are.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    /// The first byte in the archive.
    pub start: u64,
    pub bytes: u64,
    /// Absent if the writer was told not to compute it: the field is zero then.
    pub crc: Option<u32>,
}

impl Archive {
    /// Reads the directory.
    pub fn open(file: &dyn ReadAt) -> Result<Archive> {
        let directory = Directory::find(file)?;
        let broken =
            |what: String| Error::broken(file.name(), format!("its zip directory: {what}"));
        let mut archive = Archive { records: BTreeMap::new(), root: String::new() };
        let mut rest = directory.bytes.as_slice();
        for position in 0..directory.records {
            let (entry, after) = Entry::parse(rest)
                .ok_or_else(|| broken(format!("record {position} is cut off or not valid")))?;
            rest = after;
            let name = std::str::from_utf8(entry.name)
                .map_err(|_| broken(format!("the name of record {position} is no UTF-8")))?;
            let end = [30, entry.name.len() as u64, entry.packed_bytes]
                .iter()
                .try_fold(entry.local_header, |end, &part| end.checked_add(part));
            if end.is_none_or(|end| end > directory.start) {
                return Err(broken(format!(
                    "`{name}` has {} bytes from byte {} on, and the directory begins at {}",
                    entry.packed_bytes, entry.local_header, directory.start
                )));
            }
            if entry.packing == Packing::AsTheyAre && entry.packed_bytes != entry.bytes {
                let Entry { bytes, packed_bytes, .. } = entry;
                return Err(broken(format!(
                    "`{name}` has {bytes} bytes, stored in {packed_bytes}"
                )));
            }
            if position == 0 {
                archive.root = name.split_inclusive('/').next().unwrap_or_default().to_owned();
            }
            // PyTorch looks at nothing else either.
            let Some(name) = name.strip_prefix(archive.root.as_str()) else { continue };
            let Entry { local_header, bytes, packing, .. } = entry;
            let crc = (entry.crc != 0).then_some(entry.crc);
            let record = Record { local_header, bytes, crc, packing };
            if archive.records.insert(name.to_owned(), record).is_some() {
                return Err(broken(format!("there are two records `{name}`")));
            }
        }
        match rest.is_empty() {
            true => Ok(archive),
            false => Err(broken(format!("{} bytes after the last record", rest.len()))),
        }
    }

    /// Whether there is a record of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.records.contains_key(name)
    }

    /// Where the data of a record are, by its local header.
    pub fn locate(&self, file: &dyn ReadAt, name: &str) -> Result<Data> {
        let broken =
            |what: String| Error::broken(file.name(), format!("zip record `{name}`: {what}"));
        let record = self.records.get(name).ok_or_else(|| broken("it is missing".into()))?;
        record.packing.check(file.name(), name)?;
        let full_name = format!("{}{name}", self.root);
        let header = read(file, record.local_header, 30 + full_name.len() as u64)?;
        let fields = Fields(&header);
        let plain = header.starts_with(&MAGIC)
            && fields.u16(8) == Some(0)
            && fields.u16(26) == u16::try_from(full_name.len()).ok()
            && header.get(30..) == Some(full_name.as_bytes());
        let extra = fields.u16(28).filter(|_| plain).ok_or_else(|| {
            broken(format!("byte {} is not its local header", record.local_header))
        })?;
        let start = record.local_header + header.len() as u64 + u64::from(extra);
        match start.checked_add(record.bytes).is_some_and(|end| end <= file.size()) {
            true => Ok(Data { start, bytes: record.bytes, crc: record.crc }),
            false => Err(broken(format!("{} bytes from byte {start} on", record.bytes))),
        }
    }

    /// The data of a record of at most `max` bytes, compared with their CRC-32; and where they are.
    pub fn read(&self, file: &dyn ReadAt, name: &str, max: u64) -> Result<(Data, Vec<u8>)> {
        let data = self.locate(file, name)?;
        if data.bytes > max {
            let what = format!("zip record `{name}` has {} bytes, of at most {max}", data.bytes);
            return Err(Error::broken(file.name(), what));
        }
        let bytes = read(file, data.start, data.bytes)?;
        let computed = crc32fast::hash(&bytes);
        match data.crc {
            Some(crc) if crc != computed => Err(Error::Damaged {
                file: file.name().to_owned(),
                what: format!("zip record `{name}`"),
                stored: format!("{crc:08x}"),
                computed: format!("{computed:08x}"),
            }),
            _ => Ok((data, bytes)),
        }
    }
}

/// The bytes of a directory, and where they begin.
struct Directory {
    bytes: Vec<u8>,
    start: u64,
    records: u64,
}

impl Directory {
    fn find(file: &dyn ReadAt) -> Result<Directory> {
        let broken = |what: &str| {
            Error::broken(file.name(), format!("{what}; it is cut off, or no zip archive"))
        };
        let mut tail_start = file.size().saturating_sub(TAIL);
        let mut tail = read(file, tail_start, file.size() - tail_start)?;
        let mut end = end_record(&tail);
        if end.is_none() {
            tail_start = file.size().saturating_sub(MAX_COMMENT + 22);
            tail = read(file, tail_start, file.size() - tail_start)?;
            end = end_record(&tail);
        }
        let end = end.ok_or_else(|| broken("it has no zip directory"))?;
        let part = |start: u64, length: u64| match start.checked_sub(tail_start) {
            Some(from) if start.saturating_add(length) <= file.size() => {
                let from = from as usize; // Within the tail, which is in memory.
                Ok(tail[from..from + length as usize].to_vec())
            }
            _ => read(file, start, length),
        };
        let locator = end.checked_sub(20).and_then(|locator| tail.get(locator..end));
        let numbers = match locator.filter(|bytes| bytes.starts_with(b"PK\x06\x07")) {
            Some(locator) => {
                let at = Fields(locator).u64(8).ok_or_else(|| broken("its zip locator"))?;
                let record = part(at, 56)?;
                let fields = Fields(&record);
                let signed = record.starts_with(b"PK\x06\x06");
                signed.then(|| Some((fields.u64(32)?, fields.u64(40)?, fields.u64(48)?))).flatten()
            }
            None => {
                let fields = Fields(&tail[end..]);
                let numbers = || {
                    let (records, bytes) = (fields.u16(10)?, fields.u32(12)?);
                    Some((u64::from(records), u64::from(bytes), u64::from(fields.u32(16)?)))
                };
                numbers()
            }
        };
        let (records, bytes, start) = numbers.ok_or_else(|| broken("its zip end record"))?;
        let fits = start.checked_add(bytes).is_some_and(|end| end <= file.size());
        if !fits || bytes > MAX_DIRECTORY || records > bytes / 46 {
            return Err(broken(&format!(
                "a zip directory of {records} records in {bytes} bytes at byte {start} of {}",
                file.size()
            )));
        }
        Ok(Directory { bytes: part(start, bytes)?, start, records })
    }
}

/// What the directory says about a record.
struct Entry<'a> {
    name: &'a [u8],
    packing: Packing,
    crc: u32,
    packed_bytes: u64,
    bytes: u64,
    local_header: u64,
}

impl<'a> Entry<'a> {
    /// The first entry of these bytes, and what comes after it.
    fn parse(bytes: &'a [u8]) -> Option<(Entry<'a>, &'a [u8])> {
        let fields = Fields(bytes);
        let name_end = 46 + usize::from(fields.u16(28)?);
        let extra_end = name_end + usize::from(fields.u16(30)?);
        let comment_end = extra_end + usize::from(fields.u16(32)?);
        let after = bytes.get(comment_end..)?;
        let mut wide = wide_numbers(bytes.get(name_end..extra_end)?);
        let mut number = |at: usize| match fields.u32(at)? {
            u32::MAX => wide.next(),
            narrow => Some(u64::from(narrow)),
        };
        // In the order in which the extra field has them.
        let (bytes_unpacked, packed_bytes, local_header) = (number(24)?, number(20)?, number(42)?);
        let entry = Entry {
            name: bytes.get(46..name_end)?,
            packing: match (fields.u16(8)? & 1, fields.u16(10)?) {
                (0, 0) => Packing::AsTheyAre,
                (0, method) => Packing::Compressed(method),
                _ => Packing::Encrypted,
            },
            crc: fields.u32(16)?,
            packed_bytes,
            bytes: bytes_unpacked,
            local_header,
        };
        bytes.starts_with(b"PK\x01\x02").then_some((entry, after))
    }
}

impl Packing {
    fn check(self, file: &str, name: &str) -> Result<()> {
        let what = match self {
            Packing::AsTheyAre => return Ok(()),
            Packing::Compressed(method) => {
                format!("zip record `{name}`, compressed by method {method},")
            }
            Packing::Encrypted => format!("encrypted zip record `{name}`"),
        };
        Err(Error::Unsupported {
            what,
            place: file.to_owned(),
            way_out: "torch.save stores its records as they are: save the file again with it",
        })
    }
}

/// The 64-bit numbers of an entry's extra fields.
fn wide_numbers(mut extra: &[u8]) -> impl Iterator<Item = u64> {
    let mut numbers: &[u8] = &[];
    while let (Some(kind), Some(size)) = (Fields(extra).u16(0), Fields(extra).u16(2)) {
        let end = 4 + usize::from(size);
        let Some(field) = extra.get(4..end) else { break };
        if kind == 1 {
            numbers = field;
        }
        extra = &extra[end..];
    }
    numbers.chunks_exact(8).filter_map(|bytes| Fields(bytes).u64(0))
}

/// Where the end record is in the last bytes of a file: its comment must reach to the end.
fn end_record(tail: &[u8]) -> Option<usize> {
    let last = tail.len().checked_sub(22)?;
    (0..=last).rev().find(|&at| {
        let comment = Fields(&tail[at..]).u16(20).map(usize::from);
        tail[at..].starts_with(b"PK\x05\x06") && comment == Some(last - at)
    })
}

/// Little-endian numbers in bytes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u16(&self, at: usize) -> Option<u16> {
        Some(u16::from_le_bytes(self.array(at)?))
    }

    fn u32(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.array(at)?))
    }

    fn u64(&self, at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(self.array(at)?))
    }

    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..)?.first_chunk().copied()
    }
}
