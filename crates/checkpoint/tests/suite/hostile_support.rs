//! Pickles, zip archives and checkpoints of ours made by hand, so that they can be wrong.

use dtensor_checkpoint::{
    Error, FileRecord, MANIFEST_FILE, MANIFEST_VERSION, Manifest, ReadAt, Result, SourceFile,
    Storage, hash,
};
use serde_json::json;

use crate::formats_support::Memory;

/// A pickle of protocol 4.
pub fn pickle(body: Vec<u8>) -> Vec<u8> {
    [&b"\x80\x04"[..], &body, b"."].concat()
}

pub fn text(text: &str) -> Vec<u8> {
    [&b"X"[..], &u32::try_from(text.len()).unwrap().to_le_bytes(), text.as_bytes()].concat()
}

pub fn int(number: i64) -> Vec<u8> {
    [&b"\x8a\x08"[..], &number.to_le_bytes()].concat()
}

pub fn nothing() -> Vec<u8> {
    b"N".to_vec()
}

pub fn global(module: &str, name: &str) -> Vec<u8> {
    format!("c{module}\n{name}\n").into_bytes()
}

pub fn tuple(elements: &[Vec<u8>]) -> Vec<u8> {
    [b"(", elements.concat().as_slice(), b"t"].concat()
}

pub fn list(elements: &[Vec<u8>]) -> Vec<u8> {
    [b"](", elements.concat().as_slice(), b"e"].concat()
}

pub fn dict(items: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let items: Vec<Vec<u8>> =
        items.iter().map(|(key, value)| [text(key), value.clone()].concat()).collect();
    [b"}(", items.concat().as_slice(), b"u"].concat()
}

pub fn call(callee: Vec<u8>, arguments: &[Vec<u8>]) -> Vec<u8> {
    [callee, tuple(arguments), b"R".to_vec()].concat()
}

/// An instance of a class with attributes, or another state.
pub fn instance(class: Vec<u8>, state: Vec<u8>) -> Vec<u8> {
    [class, b")\x81".to_vec(), state, b"b".to_vec()].concat()
}

pub fn ints(numbers: &[i64]) -> Vec<u8> {
    tuple(&numbers.iter().map(|&number| int(number)).collect::<Vec<_>>())
}

/// A `torch.Size`.
pub fn size(numbers: &[i64]) -> Vec<u8> {
    call(global("torch", "Size"), &[ints(numbers)])
}

/// A tensor of floats on the record `data/{key}` of so many elements.
pub fn tensor(key: &str, count: i64, offset: i64, size: &[i64], stride: &[i64]) -> Vec<u8> {
    let class = global("torch", "FloatStorage");
    let id = tuple(&[text("storage"), class, text(key), text("cpu"), int(count)]);
    let storage = [id, b"Q".to_vec()].concat();
    let arguments =
        [storage, int(offset), ints(size), ints(stride), b"\x89".to_vec(), b"}".to_vec()];
    call(global("torch._utils", "_rebuild_tensor_v2"), &arguments)
}

/// A record of an archive, with what its headers say about it.
#[derive(Clone)]
pub struct Record {
    pub name: String,
    pub data: Vec<u8>,
    pub method: u16,
    pub flags: u16,
    /// Bytes, packed and not, and the offset of the local header, where they should not be the true ones.
    pub said: [Option<u64>; 3],
    /// Whether they are written with 64 bits.
    pub wide: bool,
    pub local_name: Option<String>,
}

pub fn record(name: &str, data: impl Into<Vec<u8>>) -> Record {
    Record {
        name: name.to_owned(),
        data: data.into(),
        method: 0,
        flags: 0x808,
        said: [None; 3],
        wide: false,
        local_name: None,
    }
}

/// An archive of records, with what its end says: the number of records, the bytes of the directory, where it begins.
pub fn zip_saying(records: &[Record], said: [Option<u64>; 3], wide: bool) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for record in records {
        let crc = crc32fast::hash(&record.data);
        let length = record.data.len() as u64;
        let truth = [length, length, bytes.len() as u64];
        let numbers: [u64; 3] = std::array::from_fn(|i| record.said[i].unwrap_or(truth[i]));
        let local_name = record.local_name.as_ref().unwrap_or(&record.name);
        // As PyTorch does, sizes and CRC come after the data.
        bytes.extend(b"PK\x03\x04\x00\x00");
        bytes.extend([record.flags, record.method].map(u16::to_le_bytes).concat());
        bytes.extend([0; 16]);
        bytes.extend([local_name.len() as u16, 6].map(u16::to_le_bytes).concat());
        bytes.extend(local_name.as_bytes());
        bytes.extend(b"FB\x02\x00ZZ");
        bytes.extend(&record.data);
        bytes.extend(b"PK\x07\x08");
        bytes.extend([crc, length as u32, length as u32].map(u32::to_le_bytes).concat());

        let narrow = |number: u64| if record.wide { u32::MAX } else { number as u32 };
        let extra = match record.wide {
            true => [&b"\x01\x00\x18\x00"[..], &numbers.map(u64::to_le_bytes).concat()].concat(),
            false => Vec::new(),
        };
        directory.extend(b"PK\x01\x02\x00\x00\x00\x00");
        directory.extend([record.flags, record.method, 0, 0].map(u16::to_le_bytes).concat());
        directory
            .extend([crc, narrow(numbers[1]), narrow(numbers[0])].map(u32::to_le_bytes).concat());
        let lengths = [record.name.len() as u16, extra.len() as u16, 0, 0, 0];
        directory.extend(lengths.map(u16::to_le_bytes).concat());
        directory.extend([0, narrow(numbers[2])].map(u32::to_le_bytes).concat());
        directory.extend(record.name.as_bytes());
        directory.extend(extra);
    }
    let truth = [records.len() as u64, directory.len() as u64, bytes.len() as u64];
    let [count, length, start] = std::array::from_fn(|i| said[i].unwrap_or(truth[i]));
    bytes.extend(directory);
    if wide {
        let end = bytes.len() as u64;
        bytes.extend(b"PK\x06\x06");
        bytes.extend(44_u64.to_le_bytes());
        bytes.extend([0; 12]);
        bytes.extend([count, count, length, start].map(u64::to_le_bytes).concat());
        bytes.extend(b"PK\x06\x07\x00\x00\x00\x00");
        bytes.extend(end.to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
    }
    let narrow = |number: u64| if wide { u32::MAX } else { number as u32 };
    bytes.extend(b"PK\x05\x06\x00\x00\x00\x00");
    bytes.extend([count as u16; 2].map(u16::to_le_bytes).concat());
    bytes.extend([narrow(length), narrow(start)].map(u32::to_le_bytes).concat());
    bytes.extend([0; 2]);
    bytes
}

pub fn zip(records: &[Record]) -> Vec<u8> {
    zip_saying(records, [None; 3], false)
}

/// What `torch.save` would write for this pickle and these storages.
pub fn saved(pickle: Vec<u8>, storages: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut records = vec![record("archive/data.pkl", pickle)];
    let of_storage =
        |(key, data): &(&str, Vec<u8>)| record(&format!("archive/data/{key}"), data.clone());
    records.extend(storages.iter().map(of_storage));
    zip(&records)
}

/// What a manifest begins with; then comes its checksum.
const MANIFEST_BEGIN: &str = "{\n  \"checksum\": \"";

/// Bytes as a manifest whose checksum is right, whatever else it says.
pub fn sealed(manifest: &[u8]) -> Vec<u8> {
    let digits = MANIFEST_BEGIN.len()..MANIFEST_BEGIN.len() + 32;
    let mut bytes = manifest.to_vec();
    if bytes.len() >= digits.end {
        bytes[..digits.start].copy_from_slice(MANIFEST_BEGIN.as_bytes());
        bytes[digits.clone()].fill(b'0');
        let checksum = hash::to_hex(hash::xxh3(&bytes));
        bytes[digits].copy_from_slice(checksum.as_bytes());
    }
    bytes
}

/// The file of the checkpoint that [`native`] gives.
pub const NATIVE_FILE: &str = "shard-00001-model-00001-of-00001.safetensors";

/// A checkpoint of ours of one file, with this header and these bytes of tensors, about which the manifest tells the truth.
pub fn native(header: &[u8], data: &[u8]) -> Memory {
    let length = (header.len() as u64).to_le_bytes();
    let header = [&length[..], header].concat();
    let record = FileRecord {
        name: NATIVE_FILE.into(),
        size: (header.len() + data.len()) as u64,
        header_hash: hash::xxh3(&header),
    };
    let manifest = Manifest {
        version: MANIFEST_VERSION,
        id: "0123456789abcdef".into(),
        time: 1_700_000_000,
        files: vec![record],
        values: [("step".to_owned(), 7.into())].into(),
        tensors: 2,
        bytes: data.len() as u64,
    };
    let file = [&header[..], data].concat();
    Memory::of([(MANIFEST_FILE, manifest.to_bytes()), (NATIVE_FILE, file)])
}

/// Bytes of the tensors of [`native_header`].
pub const NATIVE_DATA: [u8; 34] = [7; 34];

/// A good header of two tensors, with checksums of blocks of 16 bytes.
pub fn native_header() -> Vec<u8> {
    let hashes = |data: &[u8]| -> Vec<String> {
        data.chunks(16).map(|block| hash::to_hex(hash::xxh3(block))).collect()
    };
    let about = |shape: &[usize], data: &[u8]| json!({"shape": shape, "layout": "[R] on x=1", "block": 16, "xxh3": hashes(data)});
    let tensors =
        json!({"a": about(&[2, 3], &NATIVE_DATA[..24]), "b": about(&[5], &NATIVE_DATA[24..])});
    let offsets = json!({"a": {"saved_offsets": [0, 0]}, "b": {"saved_offsets": [0]}});
    let header = json!({
        "__metadata__": {
            "format": "pt",
            "DCP_VERSION": "1.0",
            "DCP_SHARDING_INFO": offsets.to_string(),
            "dtensor.version": "1",
            "dtensor.tensors": tensors.to_string(),
        },
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [5], "data_offsets": [24, 34]},
    });
    header.to_string().into_bytes()
}

/// Files in memory of which others may be asked for, and are not there: a manifest names files that need not be listed.
pub struct Asked<'m>(pub &'m Memory);

impl Storage for Asked<'_> {
    fn place(&self) -> String {
        self.0.place()
    }

    fn list(&self) -> Result<Vec<SourceFile>> {
        self.0.list()
    }

    fn open(&self, name: &str) -> Result<Box<dyn ReadAt>> {
        match self.0.0.contains_key(name) {
            true => self.0.open(name),
            false => Err(Error::Io {
                doing: "open",
                path: name.to_owned(),
                kind: std::io::ErrorKind::NotFound,
                why: "it is not there".to_owned(),
            }),
        }
    }
}
