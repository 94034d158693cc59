//! Native checkpoints written by plain loops: what a test loads is not what the crate under test has saved.

use std::{collections::BTreeMap, fs, ops::Range, path::Path};

use dtensor_checkpoint::{
    FileRecord, MANIFEST_FILE, MANIFEST_VERSION, Manifest, StoredType, Value, hash,
};
use serde_json::{Map, json};

/// A tensor that is written in parts.
#[derive(Clone, Debug)]
pub struct Whole {
    pub name: String,
    pub stored: StoredType,
    pub shape: Vec<usize>,
    /// Row-major.
    pub bytes: Vec<u8>,
    /// The parts, with the file in which each is. Together they are the whole, each element once.
    pub parts: Vec<(usize, Vec<Range<usize>>)>,
}

impl Whole {
    /// A tensor with bytes that are different everywhere; as numbers of any type they are neither NaN nor infinite.
    pub fn new(name: &str, stored: StoredType, shape: &[usize]) -> Whole {
        let numel: usize = shape.iter().product();
        let seed = name.bytes().fold(17_u32, |seed, byte| seed.wrapping_mul(31) ^ u32::from(byte));
        let value =
            |index: usize| (seed.wrapping_add(index as u32)).wrapping_mul(2_654_435_761) >> 16;
        let bytes = (0..numel).flat_map(|index| element(stored, value(index))).collect();
        let parts = vec![(0, shape.iter().map(|&size| 0..size).collect())];
        Whole { name: name.into(), stored, shape: shape.into(), bytes, parts }
    }

    /// Cut along a dim into parts of these sizes, each in a file of its own.
    pub fn cut(self, dim: usize, sizes: &[usize]) -> Whole {
        let mut start = 0;
        let mut parts = Vec::new();
        for (file, size) in sizes.iter().enumerate() {
            let mut part: Vec<Range<usize>> = self.shape.iter().map(|&size| 0..size).collect();
            part[dim] = start..start + size;
            start += size;
            parts.push((file, part));
        }
        assert_eq!(start, self.shape[dim]);
        Whole { parts, ..self }
    }

    /// The bytes of a box.
    pub fn part(&self, part: &[Range<usize>]) -> Vec<u8> {
        let size = self.stored.size();
        let mut rows = vec![0];
        for (range, length) in part.iter().zip(&self.shape) {
            rows = rows
                .iter()
                .flat_map(|row| range.clone().map(move |index| row * length + index))
                .collect();
        }
        rows.iter().flat_map(|&at| self.bytes[at * size..][..size].to_vec()).collect()
    }
}

/// A number of at most 16 bits as an element.
fn element(stored: StoredType, value: u32) -> Vec<u8> {
    let small = (value % 251) as f32 - 125.0;
    match stored {
        StoredType::Bool => vec![(value & 1) as u8],
        StoredType::U8 | StoredType::I8 => vec![value as u8],
        StoredType::F16 => dtensor::f16::from_f32(small).to_le_bytes().into(),
        StoredType::Bf16 => dtensor::bf16::from_f32(small).to_le_bytes().into(),
        StoredType::F32 => (value as f32 / 7.0).to_le_bytes().into(),
        StoredType::F64 => (f64::from(value) / 7.0).to_le_bytes().into(),
        StoredType::I32 => (value as i32 - 30_000).to_le_bytes().into(),
        StoredType::I64 => (i64::from(value) << 20).to_le_bytes().into(),
        _ => (0..stored.size()).map(|byte| (value >> (byte % 2 * 8)) as u8).collect(),
    }
}

/// Writes a checkpoint with checksums of blocks of so many bytes.
pub fn write(dir: &Path, tensors: &[Whole], values: &[(&str, Value)], block: usize) {
    fs::create_dir_all(dir).unwrap();
    let n_files = tensors.iter().flat_map(|tensor| &tensor.parts).map(|(file, _)| file + 1).max();
    let mut files = Vec::new();
    for file in 0..n_files.unwrap_or(0) {
        let name = format!("shard-{:05}-model-00001-of-00001.safetensors", file + 1);
        let (header, data) = file_content(tensors, file, block);
        let header_hash = hash::xxh3(&header);
        files.push(FileRecord {
            name: name.clone(),
            size: (header.len() + data.len()) as u64,
            header_hash,
        });
        fs::write(dir.join(name), [header, data].concat()).unwrap();
    }
    let manifest = Manifest {
        version: MANIFEST_VERSION,
        id: "0123456789abcdef".into(),
        time: 1_700_000_000,
        files,
        values: values
            .iter()
            .map(|(name, value)| (name.to_string(), value.clone()))
            .collect::<BTreeMap<_, _>>(),
        tensors: tensors.len() as u64,
        bytes: tensors.iter().map(|tensor| tensor.bytes.len() as u64).sum(),
    };
    fs::write(dir.join(MANIFEST_FILE), manifest.to_bytes()).unwrap();
}

fn file_content(tensors: &[Whole], file: usize, block: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut header, mut offsets, mut about) = (Map::new(), Map::new(), Map::new());
    let mut data = Vec::new();
    for tensor in tensors {
        for (_, part) in tensor.parts.iter().filter(|(of, _)| *of == file) {
            let bytes = tensor.part(part);
            let shape: Vec<usize> = part.iter().map(Range::len).collect();
            let start: Vec<usize> = part.iter().map(|range| range.start).collect();
            let ends = [data.len(), data.len() + bytes.len()];
            header.insert(
                tensor.name.clone(),
                json!({"dtype": tensor.stored.name(), "shape": shape, "data_offsets": ends}),
            );
            offsets.insert(tensor.name.clone(), json!({"saved_offsets": start}));
            let hashes: Vec<String> =
                bytes.chunks(block).map(|block| hash::to_hex(hash::xxh3(block))).collect();
            let about_tensor = json!({"shape": tensor.shape, "layout": "[R] on x=1", "block": block, "xxh3": hashes});
            about.insert(tensor.name.clone(), about_tensor);
            data.extend(bytes);
        }
    }
    let metadata = json!({
        "format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json!(offsets).to_string(),
        "dtensor.version": "1", "dtensor.tensors": json!(about).to_string(),
    });
    header.insert("__metadata__".into(), metadata);
    let mut json = json!(header).to_string().into_bytes();
    json.resize((json.len() + 8).next_multiple_of(64) - 8, b' ');
    ([(json.len() as u64).to_le_bytes().to_vec(), json].concat(), data)
}
