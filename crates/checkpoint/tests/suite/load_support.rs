//! States to load into, what they must hold afterwards, and files that count how they are read.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use dtensor::{DTensor, DType, DeviceMesh, Layout, Mesh, Placement, Tensor, World, zeros};
use dtensor_checkpoint::{Error, ReadAt, Result, SourceFile, State, Storage};
use dtensor_testing::Failure;

use crate::load_written::Whole;

/// A tensor of zeros in a layout.
pub fn zeros_in(world: &World, layout: &Layout) -> std::result::Result<DTensor, Failure> {
    let mesh = DeviceMesh::from_mesh(world, layout.mesh().clone())?;
    let copies = vec![Placement::Replicate; mesh.n_axes()];
    let zeros = zeros(layout.global_shape(), layout.dtype(), &mesh, &copies)?;
    Ok(zeros.redistribute_layout(layout)?)
}

/// The layout of each tensor, as f32, on one axis of so many ranks.
pub fn layouts_of(tensors: &[Whole], n_ranks: usize, layout: &str) -> Vec<Layout> {
    let mesh = Mesh::from_sizes(&[n_ranks]).unwrap();
    let of = |whole: &Whole| Layout::parse(&whole.shape, DType::F32, &mesh, layout).unwrap();
    tensors.iter().map(of).collect()
}

/// A state of zeros in these layouts.
pub fn state_of<'a>(
    world: &World,
    layouts: impl IntoIterator<Item = (&'a Whole, &'a Layout)>,
) -> std::result::Result<State, Failure> {
    let mut state = State::new();
    for (whole, layout) in layouts {
        state.insert(whole.name.as_str(), zeros_in(world, layout)?)?;
    }
    Ok(state)
}

/// A tensor with the values of `whole` in a layout of its type.
pub fn filled(
    world: &World,
    whole: &Whole,
    layout: &Layout,
) -> std::result::Result<DTensor, Failure> {
    let mut tensor = zeros_in(world, layout)?;
    let bytes = expected(whole, layout, world.rank());
    tensor.modify_local(|local| {
        match local.dtype() {
            DType::Bool => {
                let bools = local.as_mut_slice::<bool>()?.iter_mut();
                bools.zip(&bytes).for_each(|(bool, byte)| *bool = *byte != 0);
            }
            _ => local.as_bytes_mut()?.copy_from_slice(&bytes),
        }
        Ok(())
    })?;
    Ok(tensor)
}

/// The bytes that a rank must hold of a tensor: found by asking for every element where it is.
pub fn expected(whole: &Whole, layout: &Layout, rank: usize) -> Vec<u8> {
    let Some(coord) = layout.mesh().coord_of(rank) else { return Vec::new() };
    let mut places = vec![0];
    for (dim, &size) in whole.shape.iter().enumerate() {
        let held: Vec<usize> = layout.intervals(dim, &coord).iter().flatten().collect();
        places = places
            .iter()
            .flat_map(|place| held.iter().map(move |index| place * size + index))
            .collect();
    }
    let whole = match whole.stored.dtype() {
        Some(dtype) if dtype != layout.dtype() => converted(whole, dtype, layout.dtype()),
        _ => whole.bytes.clone(),
    };
    let size = layout.dtype().size();
    places.iter().flat_map(|&place| whole[place * size..][..size].to_vec()).collect()
}

fn converted(whole: &Whole, from: DType, to: DType) -> Vec<u8> {
    let n = whole.bytes.len() / from.size();
    let tensor = Tensor::from_bytes_with(&[n], from, |bytes| {
        bytes.copy_from_slice(&whole.bytes);
        Ok::<_, dtensor::Error>(())
    });
    tensor.unwrap().to_dtype(to).unwrap().as_bytes().unwrap().to_vec()
}

/// That a rank holds what it must.
pub fn check<'a>(
    world: &World,
    state: &State,
    layouts: impl IntoIterator<Item = (&'a Whole, &'a Layout)>,
) {
    for (whole, layout) in layouts {
        let local = state.tensor(&whole.name).unwrap().to_local();
        let found = local.contiguous().as_bytes().unwrap().to_vec();
        let want = expected(whole, layout, world.rank());
        assert!(
            found == want,
            "`{}` {layout:?} on rank {}: {found:?}, and {want:?} was written",
            whole.name,
            world.rank()
        );
    }
}

/// Files in memory that count how they are read. Handles are shared.
#[derive(Clone, Default)]
pub struct Files {
    pub files: BTreeMap<String, Arc<Vec<u8>>>,
    pub counts: Arc<Counts>,
    /// Reads of a file whose name contains this fail.
    pub failing: Option<&'static str>,
}

#[derive(Default)]
pub struct Counts {
    pub reads: AtomicUsize,
    pub bytes: AtomicU64,
    pub opened: AtomicUsize,
}

impl Files {
    /// All files of a directory.
    pub fn of(dir: &std::path::Path) -> Files {
        let file = |entry: std::io::Result<std::fs::DirEntry>| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, Arc::new(std::fs::read(entry.path()).unwrap()))
        };
        let files = std::fs::read_dir(dir).unwrap().map(file).collect();
        Files { files, ..Files::default() }
    }

    pub fn total(&self) -> u64 {
        self.files.values().map(|bytes| bytes.len() as u64).sum()
    }

    pub fn with(&self, name: &str, bytes: Vec<u8>) -> Files {
        let mut changed = self.clone();
        changed.files.insert(name.to_owned(), Arc::new(bytes));
        changed
    }

    pub fn without(&self, name: &str) -> Files {
        let mut changed = self.clone();
        assert!(changed.files.remove(name).is_some());
        changed
    }
}

impl Storage for Files {
    fn place(&self) -> String {
        "memory".into()
    }

    fn list(&self) -> Result<Vec<SourceFile>> {
        let file = |(name, bytes): (&String, &Arc<Vec<u8>>)| SourceFile {
            name: name.clone(),
            size: bytes.len() as u64,
        };
        Ok(self.files.iter().map(file).collect())
    }

    fn open(&self, name: &str) -> Result<Box<dyn ReadAt>> {
        let Some(bytes) = self.files.get(name) else {
            return Err(io("open", name, std::io::ErrorKind::NotFound));
        };
        self.counts.opened.fetch_add(1, Ordering::Relaxed);
        let fails = self.failing.is_some_and(|part| name.contains(part));
        Ok(Box::new(File {
            name: name.into(),
            bytes: bytes.clone(),
            counts: self.counts.clone(),
            fails,
        }))
    }
}

struct File {
    name: String,
    bytes: Arc<Vec<u8>>,
    counts: Arc<Counts>,
    fails: bool,
}

impl ReadAt for File {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        self.counts.bytes.fetch_add(into.len() as u64, Ordering::Relaxed);
        // Headers can be read; what comes after them cannot.
        if self.fails && offset > 0 {
            return Err(io("read", &self.name, std::io::ErrorKind::PermissionDenied));
        }
        let part = self.bytes.get(offset as usize..offset as usize + into.len());
        let part = part.ok_or_else(|| io("read", &self.name, std::io::ErrorKind::UnexpectedEof))?;
        into.copy_from_slice(part);
        Ok(())
    }
}

fn io(doing: &'static str, name: &str, kind: std::io::ErrorKind) -> Error {
    Error::Io { doing, path: name.into(), kind, why: "as the test wants it".into() }
}
