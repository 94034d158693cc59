//! Files in memory, the golden files, and tensors read from the places that a catalog names.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    sync::Arc,
};

use dtensor_checkpoint::{
    Catalog, Chunk, Error, ReadAt, Result, SourceFile, Storage, StoredType, TensorEntry, Value,
};
use serde_json::{Value as Json, json};

/// The path of a golden file.
pub fn golden(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden", name].iter().collect()
}

/// What the generator has noted beside a golden file or directory.
pub fn expected(name: &str) -> Json {
    let text = fs::read_to_string(golden(&format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A place in memory.
#[derive(Clone, Debug, Default)]
pub struct Memory(pub BTreeMap<String, Arc<Vec<u8>>>);

impl Memory {
    pub fn of(files: impl IntoIterator<Item = (impl Into<String>, Vec<u8>)>) -> Memory {
        Memory(files.into_iter().map(|(name, bytes)| (name.into(), Arc::new(bytes))).collect())
    }

    /// The files of a golden directory, or one golden file.
    pub fn golden(name: &str) -> Memory {
        let path = golden(name);
        let mut files = BTreeMap::new();
        let mut add = |path: PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            files.insert(name, Arc::new(fs::read(path).unwrap()));
        };
        match path.is_dir() {
            true => fs::read_dir(path)
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.is_file())
                .for_each(add),
            false => add(path),
        }
        Memory(files)
    }

    pub fn with(mut self, name: &str, bytes: Vec<u8>) -> Memory {
        self.0.insert(name.to_owned(), Arc::new(bytes));
        self
    }

    pub fn without(mut self, name: &str) -> Memory {
        assert!(self.0.remove(name).is_some(), "no {name}");
        self
    }
}

impl Storage for Memory {
    fn place(&self) -> String {
        "memory".to_owned()
    }

    fn list(&self) -> Result<Vec<SourceFile>> {
        let about = |(name, bytes): (&String, &Arc<Vec<u8>>)| SourceFile {
            name: name.clone(),
            size: bytes.len() as u64,
        };
        Ok(self.0.iter().map(about).collect())
    }

    fn open(&self, name: &str) -> Result<Box<dyn ReadAt>> {
        let bytes = Arc::clone(self.0.get(name).unwrap_or_else(|| panic!("no {name} is listed")));
        Ok(Box::new(InMemory { name: name.to_owned(), bytes }))
    }
}

struct InMemory {
    name: String,
    bytes: Arc<Vec<u8>>,
}

impl ReadAt for InMemory {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let start = usize::try_from(offset).unwrap();
        let bytes = self.bytes.get(start..start + into.len());
        into.copy_from_slice(bytes.unwrap_or_else(|| panic!("a read outside of {}", self.name)));
        Ok(())
    }
}

/// The bytes of a tensor in row-major order, chunk by chunk and element by element.
pub fn bytes_of(storage: &dyn Storage, catalog: &Catalog, entry: &TensorEntry) -> Vec<u8> {
    let size = entry.stored.size();
    let mut whole = vec![0; entry.shape.iter().product::<usize>() * size];
    for chunk in &entry.chunks {
        let file = storage.open(&catalog.files[chunk.file].name).unwrap();
        let shape = chunk.index.shape();
        let strides = chunk.strides.clone().unwrap_or_else(|| row_major(&shape));
        for position in 0..chunk.index.numel() {
            let local = coordinates(position, &shape);
            let from: usize = local.iter().zip(&strides).map(|(at, stride)| at * stride).sum();
            let global = local.iter().zip(&chunk.index.0).map(|(at, range)| at + range.start);
            let to: usize = global.zip(row_major(&entry.shape)).map(|(at, step)| at * step).sum();
            let into = &mut whole[to * size..][..size];
            file.read_at(chunk.offset + (from * size) as u64, into).unwrap();
        }
    }
    whole
}

/// Everything that a catalog holds, in the form of the generator's notes.
pub fn contents(storage: &dyn Storage, catalog: &Catalog) -> Json {
    let mut tensors = serde_json::Map::new();
    for (name, entry) in &catalog.tensors {
        let hex = hex(&bytes_of(storage, catalog, entry));
        let json = json!({"dtype": entry.stored.name(), "shape": entry.shape, "hex": hex});
        tensors.insert(name.clone(), json);
    }
    let mut values = serde_json::Map::new();
    for (name, value) in &catalog.values {
        let json = match value {
            Value::Nothing => json!({"nothing": 0}),
            Value::Bool(value) => json!({"bool": value}),
            Value::Int(value) => json!({"int": value}),
            Value::Float(value) => json!({"float": hex(&value.to_be_bytes())}),
            Value::Text(value) => json!({"text": value}),
            Value::Bytes(value) => json!({"bytes": hex(value)}),
            Value::EmptyList => json!({"list": 0}),
            Value::EmptyDict => json!({"dict": 0}),
            other => panic!("{other:?}"),
        };
        values.insert(name.clone(), json);
    }
    json!({"tensors": tensors, "values": values})
}

/// Whether two contents are the same, entry by entry, so that a failure names the first that is not.
#[track_caller]
pub fn assert_same(found: &Json, expected: &Json) {
    for kind in ["tensors", "values"] {
        let (found, expected) =
            (found[kind].as_object().unwrap(), expected[kind].as_object().unwrap());
        // Whether a map keeps its order depends on what else is built.
        let names =
            |map: &serde_json::Map<String, Json>| map.keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(names(found), names(expected), "{kind}");
        for (name, entry) in expected {
            assert_eq!(&found[name], entry, "{kind} {name}");
        }
    }
}

/// The error of a checkpoint that cannot be opened.
#[track_caller]
pub fn refusal(storage: &dyn Storage) -> Error {
    match Catalog::open(storage) {
        Ok(catalog) => panic!("it was opened: {catalog:?}"),
        Err(error) => error,
    }
}

/// Whether opening fails with an error whose text has these parts.
#[track_caller]
pub fn check_refused(storage: &dyn Storage, parts: &[&str]) {
    let text = refusal(storage).to_string();
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

/// Why a checkpoint that can be opened has just one thing that cannot be read.
#[track_caller]
pub fn unreadable(storage: &dyn Storage) -> String {
    let catalog = Catalog::open(storage).unwrap();
    assert_eq!(catalog.unreadable.len(), 1, "{catalog:?}");
    catalog.unreadable.into_values().collect()
}

/// The chunk of a tensor that has only one, and the type of its elements.
pub fn only_chunk<'c>(catalog: &'c Catalog, name: &str) -> (&'c Chunk, StoredType) {
    let entry = &catalog.tensors[name];
    assert_eq!(entry.chunks.len(), 1);
    (&entry.chunks[0], entry.stored)
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim];
    }
    strides
}

fn coordinates(mut position: usize, shape: &[usize]) -> Vec<usize> {
    let mut coordinates = vec![0; shape.len()];
    for (at, &size) in coordinates.iter_mut().zip(shape).rev() {
        (*at, position) = (position % size, position / size);
    }
    coordinates
}
