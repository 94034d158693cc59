//! What a checkpoint holds and where, whatever wrote it.

use std::{
    collections::{BTreeMap, HashMap, btree_map},
    fmt,
    ops::Range,
    path::Path,
    sync::Arc,
};

use dtensor_layout::IndexBox;

use crate::{Error, Result, Storage, StoredType, Value, formats};

/// As many dims as the chunks of one tensor may divide.
pub(crate) const MAX_CUT_DIMS: usize = 6;
/// Pairs of chunks that are compared to name two that overlap, once it is known that some do.
const MAX_COMPARED: usize = 1 << 20;

/// What a checkpoint holds, read from its headers alone: no bytes of a tensor are touched.
///
/// ```
/// use dtensor_checkpoint::{Catalog, Format};
///
/// // PyTorch's `torch.distributed.checkpoint.save`, from four ranks.
/// let (storage, catalog) = Catalog::open_path("tests/golden/four_ranks/dcp")?;
/// assert_eq!(catalog.format, Format::Distcp);
/// let weight = &catalog.tensors["embed.weight"];
/// assert_eq!(weight.shape, [13, 8]);
/// assert_eq!(weight.chunks[3].index.to_string(), "[7..13, 4..8]");
///
/// // The bytes of a chunk are where it says.
/// let chunk = &weight.chunks[3];
/// let mut first = [0; 4];
/// storage.open(&catalog.files[chunk.file].name)?.read_at(chunk.offset, &mut first)?;
/// assert!(f32::from_le_bytes(first).is_finite());
/// # Ok::<(), dtensor_checkpoint::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Catalog {
    /// What wrote it.
    pub format: Format,
    /// The files that hold the tensors; chunks name them by position.
    pub files: Vec<SourceFile>,
    /// By name.
    pub tensors: BTreeMap<String, TensorEntry>,
    /// What is no tensor, by name.
    pub values: BTreeMap<String, Value>,
    /// What is there and cannot be read, by name, with the reason: objects of Python in PyTorch's files, elements smaller than a
    /// byte. Everything else can be read all the same.
    pub unreadable: BTreeMap<String, String>,
}

/// What a part of a checkpoint holds.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub tensors: Vec<(String, TensorEntry)>,
    pub values: Vec<(String, Value)>,
    pub unreadable: Vec<(String, String)>,
}

impl Catalog {
    /// Reads what is at a place, whichever of the formats it has.
    ///
    /// A manifest of ours is looked for first, then `.metadata`, then safetensors files, then a file of `torch.save`.
    pub fn open(storage: &dyn Storage) -> Result<Catalog> {
        formats::open(storage)
    }

    /// Reads a checkpoint that is one file of a place: safetensors, or `torch.save`.
    pub fn open_file(storage: &dyn Storage, name: &str) -> Result<Catalog> {
        formats::open_file(storage, name)
    }

    /// Reads what is at a path of this machine, a directory or one file. Also gives the place that the files of the catalog are in.
    pub fn open_path(path: impl AsRef<Path>) -> Result<(Arc<dyn Storage>, Catalog)> {
        formats::open_path(path.as_ref())
    }

    /// Nothing yet.
    pub(crate) fn new(format: Format, files: Vec<SourceFile>) -> Catalog {
        let (tensors, values, unreadable) = Default::default();
        Catalog { format, files, tensors, values, unreadable }
    }

    /// Adds a part; a name that is there already is an error.
    pub(crate) fn extend(&mut self, contents: Contents) -> Result<()> {
        for (name, entry) in contents.tensors {
            self.check_new(&name)?;
            self.tensors.insert(name, entry);
        }
        for (name, value) in contents.values {
            self.check_new(&name)?;
            self.values.insert(name, value);
        }
        for (name, reason) in contents.unreadable {
            self.check_new(&name)?;
            self.unreadable.insert(name, reason);
        }
        Ok(())
    }

    /// All names: of tensors, of values, and of what cannot be read.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        let readable = self.tensors.keys().chain(self.values.keys());
        readable.chain(self.unreadable.keys()).map(String::as_str)
    }

    /// Why there is nothing of this name, if it is or may be a part of something that cannot be read.
    pub(crate) fn why_unreadable(&self, name: &str) -> Option<Error> {
        let ends = name.match_indices('.').map(|(end, _)| end).chain([name.len()]);
        let mut reasons = ends.filter_map(|end| self.unreadable.get_key_value(&name[..end]));
        let (name, reason) = reasons.next_back()?;
        Some(Error::Unreadable { name: name.clone(), reason: reason.clone() })
    }

    fn check_new(&self, name: &str) -> Result<()> {
        let known = self.tensors.contains_key(name) || self.values.contains_key(name);
        match known || self.unreadable.contains_key(name) {
            true => Err(Error::Twice { name: name.to_owned() }),
            false => Ok(()),
        }
    }
}

/// Adds an entry; a name that is there already is an error.
pub(crate) fn insert<V>(map: &mut BTreeMap<String, V>, name: String, value: V) -> Result<()> {
    match map.entry(name) {
        btree_map::Entry::Occupied(entry) => Err(Error::Twice { name: entry.key().clone() }),
        btree_map::Entry::Vacant(entry) => {
            entry.insert(value);
            Ok(())
        }
    }
}

/// The kinds of checkpoint that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Sharded safetensors with our manifest: everything has a checksum.
    Native,
    /// Sharded safetensors as PyTorch's `HuggingFaceStorageWriter` writes them.
    ShardedSafetensors,
    /// Safetensors files of whole tensors, one or many.
    Safetensors,
    /// PyTorch's classic `.metadata` and `.distcp`.
    Distcp,
    /// A file of `torch.save`.
    TorchSave,
}

impl Format {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Format::Native => "dtensor (sharded safetensors with manifest)",
            Format::ShardedSafetensors => "sharded safetensors (PyTorch)",
            Format::Safetensors => "safetensors",
            Format::Distcp => "distcp (PyTorch)",
            Format::TorchSave => "torch.save",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Relative to the checkpoint.
    pub name: String,
    /// Bytes.
    pub size: u64,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorEntry {
    /// The type of its elements.
    pub stored: StoredType,
    /// Its global shape.
    pub shape: Vec<usize>,
    /// Who holds which part. They do not overlap, and together are the whole.
    pub chunks: Vec<Chunk>,
    /// The placements on the mesh that saved it, such as `[S(0), R] on (dp=2, tp=2)`, if they were written down.
    pub layout: Option<String>,
}

/// A box of a tensor in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// Where it lies in the tensor.
    pub index: IndexBox,
    /// Position in [`Catalog::files`].
    pub file: usize,
    /// The first byte of its first element.
    pub offset: u64,
    /// Elements to skip per step of each dim, where the elements do not lie in row-major order: views in `torch.save` files.
    pub strides: Option<Vec<usize>>,
    /// What its bytes must give.
    pub checksum: Checksum,
}

/// What tells that bytes are those that were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Nothing was written down.
    None,
    /// CRC-32 of a range of the file in which the chunk lies (a record of a zip archive).
    Crc32 {
        /// The first byte of the range.
        start: u64,
        /// Its length.
        bytes: u64,
        /// Of that range.
        crc: u32,
    },
    /// XXH3-128 of every block of the chunk; the last block may be short. A part can be verified without the rest.
    Blocks {
        /// Bytes of a block.
        block: usize,
        /// Of each.
        hashes: Arc<[u128]>,
    },
}

impl Chunk {
    /// Bytes of its elements.
    pub fn bytes(&self, stored: StoredType) -> u64 {
        (self.index.numel() as u64).saturating_mul(stored.size() as u64)
    }
}

impl TensorEntry {
    /// Bytes of all its elements.
    pub fn bytes(&self) -> u64 {
        numel(self.shape.iter().copied())
            .unwrap_or(u64::MAX)
            .saturating_mul(self.stored.size() as u64)
    }

    /// Whether the chunks are the whole tensor, each element once and inside; `name` and `file` are for the error.
    ///
    /// Also whether the bytes of the tensor can be counted at all, so that whoever comes later need not fear an overflow.
    pub(crate) fn check_cover(&self, name: &str, file: &str) -> Result<()> {
        let broken =
            |what: String| Err(Error::broken(file, format!("`{name}` {:?}: {what}", self.shape)));
        let bytes = numel(self.shape.iter().copied())
            .and_then(|all| all.checked_mul(self.stored.size() as u64))
            .filter(|&bytes| i64::try_from(bytes).is_ok());
        let Some(bytes) = bytes else { return broken("it is larger than any file".to_owned()) };
        let inside =
            |(range, &size): (&Range<usize>, &usize)| range.start <= range.end && range.end <= size;
        for Chunk { index, .. } in &self.chunks {
            if index.0.len() != self.shape.len() || !index.0.iter().zip(&self.shape).all(inside) {
                return broken(format!("the chunk {index} is outside"));
            }
        }
        if covers(&self.shape, &self.chunks).ok_or_else(|| too_many_cuts(name, file))? {
            return Ok(());
        }
        if let Some((one, other)) = overlap(&self.chunks) {
            return broken(format!("the chunks {one} and {other} overlap"));
        }
        // Chunks that are inside have no more elements than the whole each, but there may be many of them.
        let elements = |chunk: &Chunk| chunk.index.numel() as u128;
        let held: u128 = self.chunks.iter().map(elements).sum();
        let all = bytes / self.stored.size() as u64;
        match held < u128::from(all) {
            true => broken(format!("its chunks have {held} of {all} elements; a file is missing")),
            false => broken("its chunks overlap".to_owned()),
        }
    }
}

/// Whether boxes inside of a tensor are all of it, each element once. `None` if they divide too many dims to tell.
///
/// Count for every element the boxes that hold it, and take differences along every dim. What is left are the corners of the boxes, with
/// alternating signs. Differences lose nothing, so the boxes tile the tensor exactly if their corners cancel down to those of the
/// whole. That takes time in proportion to the number of boxes, however they lie.
fn covers(shape: &[usize], chunks: &[Chunk]) -> Option<bool> {
    let boxes = || chunks.iter().map(|chunk| &chunk.index).filter(|index| !index.is_empty());
    let is_cut = |&dim: &usize| boxes().any(|index| index.0[dim] != (0..shape[dim]));
    let cut: Vec<usize> = (0..shape.len()).filter(is_cut).take(MAX_CUT_DIMS + 1).collect();
    if cut.len() > MAX_CUT_DIMS {
        return None;
    }
    let mut corners: HashMap<[usize; MAX_CUT_DIMS], i64> = HashMap::new();
    let mut add = |range: &dyn Fn(usize) -> Range<usize>, sign: i64| {
        for ends in 0..1_u32 << cut.len() {
            let mut corner = [0; MAX_CUT_DIMS];
            for (bit, (at, &dim)) in corner.iter_mut().zip(&cut).enumerate() {
                let range = range(dim);
                *at = if ends >> bit & 1 == 0 { range.start } else { range.end };
            }
            let sign = if ends.count_ones() % 2 == 0 { sign } else { -sign };
            *corners.entry(corner).or_default() += sign;
        }
    };
    boxes().for_each(|index| add(&|dim| index.0[dim].clone(), 1));
    if !shape.contains(&0) {
        add(&|dim| 0..shape[dim], -1);
    }
    Some(corners.values().all(|&count| count == 0))
}

/// Two chunks that share an element, if such are found soon.
fn overlap(chunks: &[Chunk]) -> Option<(&IndexBox, &IndexBox)> {
    let mut boxes: Vec<&IndexBox> =
        chunks.iter().map(|chunk| &chunk.index).filter(|index| !index.is_empty()).collect();
    let n_dims = boxes.first()?.0.len();
    let starts = |dim: usize| {
        let mut starts: Vec<usize> = boxes.iter().map(|index| index.0[dim].start).collect();
        starts.sort_unstable();
        starts.dedup();
        starts.len()
    };
    // A tensor without dims has one element, which two boxes share.
    let Some(dim) = (0..n_dims).max_by_key(|&dim| starts(dim)) else {
        return (boxes.len() > 1).then(|| (boxes[0], boxes[1]));
    };
    boxes.sort_by_key(|index| index.0[dim].start);
    let mut open: Vec<&IndexBox> = Vec::new();
    let mut compared = 0;
    for index in boxes {
        open.retain(|other| other.0[dim].end > index.0[dim].start);
        compared += open.len();
        let shared = |other: &&&IndexBox| {
            other.0.iter().zip(&index.0).all(|(a, b)| a.start < b.end && b.start < a.end)
        };
        if let Some(other) = open.iter().find(shared) {
            return Some((other, index));
        }
        if compared > MAX_COMPARED {
            return None;
        }
        open.push(index);
    }
    None
}

/// The product of sizes, if it can be counted. With a zero among them it is zero, however large the others are.
fn numel(sizes: impl Iterator<Item = usize> + Clone) -> Option<u64> {
    if sizes.clone().any(|size| size == 0) {
        return Some(0);
    }
    let mut sizes = sizes.map(|size| size as u64);
    sizes.try_fold(1_u64, |product, size| product.checked_mul(size))
}

pub(crate) fn too_many_cuts(name: &str, file: &str) -> Error {
    Error::Unsupported {
        what: format!("`{name}`, cut along more than {MAX_CUT_DIMS} dims,"),
        place: file.to_owned(),
        way_out: "save it from a mesh of fewer axes",
    }
}
