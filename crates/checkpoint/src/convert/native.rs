//! A checkpoint as the ranks of a mesh would have saved it, without those ranks.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use dtensor_layout::{IndexBox, Layout, Mesh};

use super::{
    ConvertOptions, Converted, PlacementPlan, Source, Taken, TakenTensor,
    pieces::{self, TargetFile},
    stream::{Target, write_all},
    target, workers,
};
use crate::{
    Error, FileRecord, MANIFEST_VERSION, Manifest, NewCheckpoint, NewFile, Result, SourceFile,
    formats::native_write::{FilePlan, Part},
    hash,
    save::{file_name, new_id, written_by},
    storage,
};

/// As many ranks as there may be. What each of them writes depends on what all others do.
const MAX_RANKS: usize = 4096;

/// Makes a checkpoint into one of this crate, with the files that the ranks of `mesh` would have written, their tensors placed as
/// `plan` says. The patterns of the plan are about the new names.
///
/// `target` is a path or a URL, as for [`save`](crate::save). What is written has checksums of everything, and appears in one step.
pub fn to_native(
    source: &Source,
    target: &str,
    mesh: &Mesh,
    plan: &PlacementPlan,
    options: &ConvertOptions<'_>,
) -> Result<Converted> {
    let taken = Taken::new(source, options)?;
    plan.check(taken.tensors.keys().map(String::as_str))?;
    let planned = plan_files(&taken, mesh, plan, workers::threads(options.threads))?;
    check_place(source, target, options.overwrite)?;
    let id = new_id();
    let new = storage::destination(target)?.new_checkpoint(&id, true);
    new.begin().inspect_err(|_| new.abandon())?;
    let files: Vec<TargetFile> =
        planned.iter().map(|(name, plan)| target_file(name, plan, &taken)).collect();
    let shards =
        Shards { new: &*new, planned: &planned, records: Mutex::new(vec![None; planned.len()]) };
    let written = write_all(source, &files, &shards, options.threads, options.progress);
    let records = shards.records.into_inner().unwrap_or_else(PoisonError::into_inner);
    let files: Vec<FileRecord> = records.into_iter().flatten().collect();
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let converted = Converted {
        tensors: taken.tensors.len(),
        values: taken.values.len(),
        bytes: taken.bytes(),
        files: files
            .iter()
            .map(|file| SourceFile { name: file.name.clone(), size: file.size })
            .collect(),
    };
    let manifest = Manifest {
        version: MANIFEST_VERSION,
        id,
        time,
        files,
        tensors: taken.tensors.len() as u64,
        bytes: taken.bytes(),
        values: taken.values,
    };
    written.and_then(|()| new.commit(&manifest.to_bytes())).inspect_err(|_| new.abandon())?;
    Ok(converted)
}

/// Where the files of the ranks go.
struct Shards<'a> {
    new: &'a dyn NewCheckpoint,
    planned: &'a [(String, FilePlan)],
    /// Of the files that are finished.
    records: Mutex<Vec<Option<FileRecord>>>,
}

impl Target for Shards<'_> {
    fn create(&self, file: &TargetFile) -> Result<Box<dyn NewFile>> {
        self.new.create(&file.name, file.size)
    }

    fn header(&self, file: usize, hashes: &[Vec<u128>]) -> Vec<u8> {
        self.planned[file].1.header(hashes)
    }

    fn finished(&self, file: usize, header: &[u8]) {
        let (name, plan) = &self.planned[file];
        let (name, header_hash) = (self.new.final_name(name), hash::xxh3(header));
        let record = FileRecord { name, size: plan.size, header_hash };
        self.records.lock().unwrap_or_else(PoisonError::into_inner)[file] = Some(record);
    }

    fn hashes(&self) -> bool {
        true
    }
}

/// Refuses the place of the source, and one where something is unless it may be replaced. Whether it can be, the destination
/// knows.
fn check_place(source: &Source, target: &str, overwrite: bool) -> Result<()> {
    let holds_something = match storage::local_path(target).map(Path::new) {
        None => !storage::open(target)?.list()?.is_empty(),
        Some(path) => {
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            target::check_apart(source, &absolute.canonicalize().unwrap_or(absolute))?;
            match path.read_dir() {
                Ok(mut entries) => entries.next().is_some(),
                Err(_) => path.exists(),
            }
        }
    };
    match holds_something && !overwrite {
        true => Err(Error::Exists { path: target.to_owned() }),
        false => Ok(()),
    }
}

/// The files of all ranks, by name. A rank that holds several boxes of a tensor has as many files, as in a save.
fn plan_files(
    taken: &Taken<'_>,
    mesh: &Mesh,
    plan: &PlacementPlan,
    threads: usize,
) -> Result<Vec<(String, FilePlan)>> {
    let n_ranks = mesh.size();
    if n_ranks > MAX_RANKS || mesh.base() != 0 {
        return Err(Error::BadText {
            text: mesh.to_string(),
            what: "mesh to write for",
            why: format!(
                "it has {n_ranks} ranks from {} on; there may be {MAX_RANKS} from 0 on",
                mesh.base()
            ),
        });
    }
    let layouts = taken.tensors.iter().map(|(name, tensor)| plan.layout(name, tensor, mesh));
    let layouts = layouts.collect::<Result<Vec<Layout>>>()?;
    let by_rank: Mutex<Vec<Vec<(String, FilePlan)>>> = Mutex::new(vec![Vec::new(); n_ranks]);
    workers::share(
        n_ranks,
        threads,
        || (),
        |(), rank| {
            let files = files_of(rank, n_ranks, taken, &layouts)?;
            by_rank.lock().unwrap_or_else(PoisonError::into_inner)[rank] = files;
            Ok(())
        },
    )?;
    Ok(by_rank.into_inner().unwrap_or_else(PoisonError::into_inner).concat())
}

fn files_of(
    rank: usize,
    n_ranks: usize,
    taken: &Taken<'_>,
    layouts: &[Layout],
) -> Result<Vec<(String, FilePlan)>> {
    let mut files: Vec<Vec<Part>> = Vec::new();
    let mine = written_by(rank, n_ranks, layouts);
    for (((name, tensor), layout), _) in
        taken.tensors.iter().zip(layouts).zip(mine).filter(|(_, mine)| *mine)
    {
        for (index, part) in parts_of(rank, name, tensor, layout).into_iter().enumerate() {
            match files.get_mut(index) {
                Some(file) => file.push(part),
                None => files.push(vec![part]),
            }
        }
    }
    let planned = |(index, parts)| {
        let name = file_name(rank, n_ranks, index);
        let plan = FilePlan::new(&name, parts)?;
        Ok((name, plan))
    };
    files.into_iter().enumerate().map(planned).collect()
}

/// What a rank holds of a tensor. An empty shard is one empty part.
fn parts_of(rank: usize, name: &str, tensor: &TakenTensor<'_>, layout: &Layout) -> Vec<Part> {
    let Some(coord) = layout.mesh().coord_of(rank) else { return Vec::new() };
    let part = |offsets, shape| Part {
        name: name.to_owned(),
        stored: tensor.to,
        global_shape: tensor.entry.shape.clone(),
        offsets,
        shape,
        layout: format!("{layout} on {}", layout.mesh()),
    };
    let held = layout.boxes(&coord);
    match held.is_empty() {
        true => vec![part(layout.local_offset(&coord), layout.local_shape(&coord))],
        false => held
            .iter()
            .map(|index| part(index.0.iter().map(|range| range.start).collect(), index.shape()))
            .collect(),
    }
}

/// What a planned file will hold, and where it comes from.
fn target_file(name: &str, plan: &FilePlan, taken: &Taken<'_>) -> TargetFile {
    let mut offset = plan.data_start;
    let mut parts = Vec::with_capacity(plan.parts().len());
    for (_, part) in plan.parts() {
        let index = part.offsets.iter().zip(&part.shape).map(|(&start, &size)| start..start + size);
        let Some(tensor) = taken.tensors.get(&part.name) else { continue };
        parts.push(pieces::Part {
            source: tensor.source.to_owned(),
            index: IndexBox(index.collect()),
            from: tensor.entry.stored,
            to: tensor.to,
            offset,
        });
        offset += part.bytes();
    }
    TargetFile { name: name.to_owned(), size: plan.size, parts }
}
