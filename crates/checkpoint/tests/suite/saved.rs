//! Looks at what was saved, without the crate: its own reading of manifest, headers and checksums. And states to save.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use dtensor::{DTensor, DType, DeviceMesh, Placement, Tensor, World, distribute_tensor};
use dtensor_checkpoint::State;
use dtensor_testing::Failure;
use serde_json::Value as Json;
use xxhash_rust::xxh3::xxh3_128;

/// A checkpoint, checked: all files that are listed are there and no others, and all checksums are right.
pub struct Checkpoint {
    pub manifest: Json,
    /// The headers, by file.
    pub headers: BTreeMap<String, Json>,
    pub parts: BTreeMap<String, Vec<Part>>,
}

/// What a file has of a tensor.
pub struct Part {
    pub file: String,
    pub dtype: String,
    pub global_shape: Vec<usize>,
    pub offsets: Vec<usize>,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Checkpoint {
    /// Reads and checks it; the text says what is wrong.
    pub fn read(path: &Path) -> Result<Checkpoint, String> {
        let manifest = fs::read(path.join("dtensor.manifest.json")).map_err(|e| e.to_string())?;
        let json: Json = serde_json::from_slice(&manifest).map_err(|e| e.to_string())?;
        let text = json["checksum"].as_str().ok_or("no checksum")?;
        let at =
            manifest.windows(32).position(|window| window == text.as_bytes()).ok_or("nowhere")?;
        let mut zeroed = manifest.clone();
        zeroed[at..at + 32].fill(b'0');
        if text != format!("{:032x}", xxh3_128(&zeroed)) {
            return Err("the manifest is damaged".into());
        }
        let mut checkpoint =
            Checkpoint { manifest: json, headers: BTreeMap::new(), parts: BTreeMap::new() };
        let files = checkpoint.manifest["files"].as_array().ok_or("no files")?.clone();
        let listed = files.iter().map(|file| file["name"].as_str().unwrap().to_owned());
        let mut listed: Vec<String> = listed.chain(["dtensor.manifest.json".into()]).collect();
        listed.sort();
        let there = names_in(path);
        if listed != there {
            return Err(format!("listed are {listed:?}, and there are {there:?}"));
        }
        for file in &files {
            let name = file["name"].as_str().unwrap();
            let bytes = fs::read(path.join(name)).map_err(|e| e.to_string())?;
            if Some(bytes.len() as u64) != file["size"].as_u64() {
                return Err(format!("{name} has {} bytes", bytes.len()));
            }
            checkpoint.add_file(name, file["header_xxh3"].as_str().unwrap(), &bytes)?;
        }
        Ok(checkpoint)
    }

    fn add_file(&mut self, name: &str, header_hash: &str, bytes: &[u8]) -> Result<(), String> {
        let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        if start > bytes.len() || format!("{:032x}", xxh3_128(&bytes[..start])) != header_hash {
            return Err(format!("the header of {name} is damaged"));
        }
        let header: Json = serde_json::from_slice(&bytes[8..start]).map_err(|e| e.to_string())?;
        let inner = |key: &str| -> Json {
            serde_json::from_str(header["__metadata__"][key].as_str().unwrap()).unwrap()
        };
        let (sharding, ours) = (inner("DCP_SHARDING_INFO"), inner("dtensor.tensors"));
        for (tensor, about) in header.as_object().unwrap() {
            if tensor == "__metadata__" {
                continue;
            }
            let range = numbers(&about["data_offsets"]);
            let data = &bytes[start + range[0]..start + range[1]];
            let block = ours[tensor]["block"].as_u64().unwrap() as usize;
            let computed: Vec<String> =
                data.chunks(block).map(|block| format!("{:032x}", xxh3_128(block))).collect();
            if serde_json::json!(computed) != ours[tensor]["xxh3"] {
                return Err(format!("{tensor} in {name} is damaged"));
            }
            self.parts.entry(tensor.clone()).or_default().push(Part {
                file: name.to_owned(),
                dtype: about["dtype"].as_str().unwrap().to_owned(),
                global_shape: numbers(&ours[tensor]["shape"]),
                offsets: numbers(&sharding[tensor]["saved_offsets"]),
                shape: numbers(&about["shape"]),
                bytes: data.to_vec(),
            });
        }
        self.headers.insert(name.to_owned(), header);
        Ok(())
    }

    /// The bytes of a whole tensor, of which every element must be there once.
    pub fn tensor(&self, name: &str) -> Vec<u8> {
        let parts = self.parts.get(name).unwrap_or_else(|| panic!("no tensor {name}"));
        let shape = &parts[0].global_shape;
        let size = size_of_dtype(&parts[0].dtype);
        let numel: usize = shape.iter().product();
        let (mut whole, mut times) = (vec![0; numel * size], vec![0; numel]);
        for part in parts {
            assert_eq!(part.bytes.len(), part.shape.iter().product::<usize>() * size);
            for (element, bytes) in part.bytes.chunks(size).enumerate() {
                let mut rest = element;
                let (mut at, mut step) = (0, 1);
                for dim in (0..shape.len()).rev() {
                    at += (part.offsets[dim] + rest % part.shape[dim]) * step;
                    rest /= part.shape[dim];
                    step *= shape[dim];
                }
                times[at] += 1;
                whole[at * size..][..size].copy_from_slice(bytes);
            }
        }
        assert!(times.iter().all(|&times| times == 1), "{name}: written {times:?} times");
        whole
    }

    pub fn values(&self) -> &Json {
        &self.manifest["values"]
    }

    /// Bytes of tensors by file.
    pub fn bytes_by_file(&self) -> BTreeMap<&str, usize> {
        let mut bytes = BTreeMap::new();
        for part in self.parts.values().flatten() {
            *bytes.entry(part.file.as_str()).or_default() += part.bytes.len();
        }
        bytes
    }
}

/// The names of everything in a directory, sorted, hidden ones included.
pub fn names_in(path: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A directory for a test, and the path of a checkpoint in it.
pub fn place() -> (tempfile::TempDir, PathBuf, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model");
    let text = path.to_str().unwrap().to_owned();
    (directory, path, text)
}

/// `numel` elements that tell where they are, and which version of the state this is.
pub fn elements(numel: usize, version: i64) -> Vec<i64> {
    (0..numel as i64).map(|index| index * 1000 + version).collect()
}

pub fn as_bytes(elements: &[i64]) -> Vec<u8> {
    elements.iter().flat_map(|element| element.to_le_bytes()).collect()
}

/// A tensor of such elements, on all ranks of the world.
pub fn numbered(
    world: &World,
    shape: &[usize],
    version: i64,
    placement: Placement,
) -> Result<DTensor, Failure> {
    let mesh = DeviceMesh::of_world(world, "x")?;
    let whole = Tensor::from_vec(elements(shape.iter().product(), version), shape)?;
    Ok(distribute_tensor(&whole, &mesh, &[placement])?)
}

/// A small state of three tensors and a value, all of which have a version.
pub fn small_state(world: &World, version: i64) -> Result<State, Failure> {
    let mut state = State::new();
    state.insert("model.rows", numbered(world, &[5, 3], version, Placement::Shard(0))?)?;
    state.insert("model.copied", numbered(world, &[4], version, Placement::Replicate)?)?;
    state.insert("model.columns", numbered(world, &[2, 7], version, Placement::Shard(1))?)?;
    state.insert("version", version)?;
    Ok(state)
}

/// The version of the small state at this path, which must be whole and of one version.
pub fn small_version(path: &Path) -> Result<i64, String> {
    let checkpoint = Checkpoint::read(path)?;
    let version = checkpoint.values()["version"].as_i64().ok_or("no version")?;
    for (name, numel) in [("model.rows", 15), ("model.copied", 4), ("model.columns", 14)] {
        if checkpoint.tensor(name) != as_bytes(&elements(numel, version)) {
            return Err(format!("{name} is not of version {version}"));
        }
    }
    Ok(version)
}

fn numbers(json: &Json) -> Vec<usize> {
    json.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize).collect()
}

fn size_of_dtype(name: &str) -> usize {
    let dtypes = [
        ("BOOL", DType::Bool),
        ("U8", DType::U8),
        ("I32", DType::I32),
        ("I64", DType::I64),
        ("F16", DType::F16),
        ("BF16", DType::Bf16),
        ("F32", DType::F32),
        ("F64", DType::F64),
    ];
    dtypes.iter().find(|(other, _)| *other == name).unwrap().1.size()
}
