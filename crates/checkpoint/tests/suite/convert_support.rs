//! Checkpoints to convert.

use std::{fs, path::Path};

use dtensor_checkpoint::{Error, LocalFiles, ReadAt, Source, Storage, StoredType, TensorEntry};
use dtensor_layout::IndexBox;
use serde_json::{Map, Value as Json, json};
use tempfile::TempDir;

/// A tensor, or a part of one that begins at `offsets`, for a file.
pub struct Part {
    pub name: String,
    pub dtype: StoredType,
    pub shape: Vec<usize>,
    pub offsets: Option<Vec<usize>>,
    pub bytes: Vec<u8>,
}

pub fn part(name: &str, dtype: StoredType, shape: &[usize], bytes: Vec<u8>) -> Part {
    assert_eq!(bytes.len(), shape.iter().product::<usize>() * dtype.size());
    Part { name: name.into(), dtype, shape: shape.to_vec(), offsets: None, bytes }
}

/// A tensor of `f32`.
pub fn floats(name: &str, shape: &[usize], numbers: &[f32]) -> Part {
    part(
        name,
        StoredType::F32,
        shape,
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
    )
}

/// Writes a safetensors file, as plainly as can be.
pub fn write_file(path: &Path, parts: &[Part]) {
    let (mut header, mut data, mut offsets) = (Map::new(), Vec::new(), Map::new());
    for part in parts {
        let start = data.len();
        data.extend(&part.bytes);
        let about = json!({"dtype": part.dtype.name(), "shape": part.shape, "data_offsets": [start, data.len()]});
        assert!(header.insert(part.name.clone(), about).is_none());
        if let Some(offset) = &part.offsets {
            offsets.insert(part.name.clone(), json!({"saved_offsets": offset}));
        }
    }
    if !offsets.is_empty() {
        let text = Json::Object(offsets).to_string();
        header.insert(
            "__metadata__".into(),
            json!({"DCP_SHARDING_INFO": text, "DCP_VERSION": "1.0"}),
        );
    }
    let header = Json::Object(header).to_string();
    let length = header.len() as u64;
    fs::write(path, [&length.to_le_bytes()[..], header.as_bytes(), &data].concat()).unwrap();
}

/// A directory for a test, and paths in it.
pub struct Place(TempDir);

impl Place {
    pub fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// A safetensors file with these tensors.
    pub fn file(&self, name: &str, parts: &[Part]) -> String {
        write_file(Path::new(&self.path(name)), parts);
        self.path(name)
    }

    /// The names of everything in it, hidden or not.
    pub fn names(&self) -> Vec<String> {
        names_in(self.0.path().to_str().unwrap())
    }
}

pub fn names_in(path: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A file that PyTorch wrote.
pub fn golden(name: &str) -> String {
    format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"))
}

pub fn open(path: &str) -> Source {
    Source::open(path).unwrap()
}

pub fn entry<'s>(source: &'s Source, name: &str) -> &'s TensorEntry {
    &source.catalog().tensors[name]
}

/// All elements of a tensor.
pub fn bytes_of(source: &Source, name: &str) -> Vec<u8> {
    let entry = entry(source, name);
    let reader =
        dtensor_checkpoint::Reader::new(source.storage().clone(), source.catalog().clone());
    let mut bytes = vec![0; entry.bytes() as usize];
    let whole = IndexBox(entry.shape.iter().map(|&size| 0..size).collect());
    reader.read_box(name, &whole, &mut bytes).unwrap();
    bytes
}

/// The JSON of the header of a file, and where the data begin.
pub fn header(path: &str) -> (Json, usize) {
    let bytes = fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + length]).unwrap(), 8 + length)
}

/// Nothing that differs.
#[track_caller]
pub fn assert_same(a: &str, b: &str) {
    let found = dtensor_checkpoint::diff(&open(a), &open(b), &Default::default()).unwrap();
    assert!(found.is_equal(false), "{found:#?}");
    assert!(!found.tensors.is_empty());
}

/// The error of something that is refused and leaves nothing behind.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(place: &Place, run: impl FnOnce() -> Result<T, Error>) -> Error {
    let before = place.names();
    let error = run().unwrap_err();
    assert_eq!(place.names(), before, "{error}");
    error
}

/// A directory whose reads are counted.
pub struct Counting {
    pub files: LocalFiles,
    pub reads: std::sync::Arc<std::sync::Mutex<Vec<usize>>>,
}

impl Storage for Counting {
    fn place(&self) -> String {
        Storage::place(&self.files)
    }

    fn list(&self) -> dtensor_checkpoint::Result<Vec<dtensor_checkpoint::SourceFile>> {
        self.files.list()
    }

    fn open(&self, name: &str) -> dtensor_checkpoint::Result<Box<dyn ReadAt>> {
        Ok(Box::new(CountingFile { file: self.files.open(name)?, reads: self.reads.clone() }))
    }
}

struct CountingFile {
    file: Box<dyn ReadAt>,
    reads: std::sync::Arc<std::sync::Mutex<Vec<usize>>>,
}

impl ReadAt for CountingFile {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> dtensor_checkpoint::Result<()> {
        self.reads.lock().unwrap().push(into.len());
        self.file.read_at(offset, into)
    }
}
