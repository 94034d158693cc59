//! A checkpoint as the ranks of a mesh would have saved it, without those ranks.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
};

use dtensor_layout::{IndexBox, Layout, Mesh};

use super::{
    ConvertOptions, Converted, PlacementPlan, Source, Taken,
    pieces::{self, TargetFile},
    stream::{Target, write_all},
    target,
};
use crate::{
    Error, FileRecord, Manifest, NewCheckpoint, NewFile, Result, SourceFile, StoredType,
    formats::native_write::{FilePlan, Part},
    hash,
    manifest::MAX_MANIFEST,
    save::{by_file, check_cuts, check_values, file_name, new_id, written_by_all},
    storage,
    team::Team,
    workers,
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
    let team = Team::new(options.group.as_ref());
    let taken = team.agree(Taken::new(source, options))?;
    plan.check(taken.tensors.keys().map(String::as_str))?;
    let values = taken.values.iter().map(|(name, value)| (name.as_str(), value));
    check_values(values, MAX_MANIFEST)?;
    let planned = plan_files(&taken, mesh, plan, workers::threads(options.threads))?;
    team.once(|| check_place(source, target, options.overwrite))?;
    let id = team.told(new_id())?;
    let new = team.agree(storage::destination(target))?.new_checkpoint(&id, true);
    team.once(|| new.begin().inspect_err(|_| new.abandon()))?;
    let files: Vec<TargetFile> =
        planned.iter().map(|(name, plan)| target_file(name, plan, &taken)).collect();
    let shards = Shards { new: &*new, planned: &planned, hashes: Mutex::default() };
    let written = write_all(source, &files, &shards, &team, options.threads, options.progress);
    let files = written.and_then(|()| shards.records(&team));
    let files = files.inspect_err(|_| {
        if team.is_first() {
            new.abandon();
        }
    })?;
    let converted = Converted {
        tensors: taken.tensors.len(),
        values: taken.values.len(),
        bytes: taken.bytes(),
        files: files
            .iter()
            .map(|file| SourceFile { name: file.name.clone(), size: file.size })
            .collect(),
    };
    let (tensors, bytes) = (taken.tensors.len() as u64, taken.bytes());
    let manifest = Manifest::new(id, files, taken.values, tensors, bytes);
    let commit = || manifest.to_file(MAX_MANIFEST).and_then(|manifest| new.commit(&manifest));
    team.once(|| commit().inspect_err(|_| new.abandon()))?;
    Ok(converted)
}

/// Where the files of the ranks go.
struct Shards<'a> {
    new: &'a dyn NewCheckpoint,
    planned: &'a [(String, FilePlan)],
    /// Of the headers of files that this process has finished, by their positions.
    hashes: Mutex<Vec<(usize, u128)>>,
}

impl Shards<'_> {
    /// What the manifest says of all files, which the processes tell each other.
    fn records(self, team: &Team<'_>) -> Result<Vec<FileRecord>> {
        let own = self.hashes.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter();
        let own = own.flat_map(|(file, hash)| [file as u128, hash]).flat_map(u128::to_le_bytes);
        let mut hashes = vec![0; self.planned.len()];
        for [file, hash] in team.all(own.collect())?.concat().as_chunks::<16>().0.as_chunks::<2>().0
        {
            hashes[u128::from_le_bytes(*file) as usize] = u128::from_le_bytes(*hash);
        }
        let record = |((name, plan), header_hash): (&(String, FilePlan), u128)| {
            let name = self.new.final_name(name);
            FileRecord { name, size: plan.size, header_hash }
        };
        Ok(self.planned.iter().zip(hashes).map(record).collect())
    }
}

impl Target for Shards<'_> {
    fn create(&self, file: &TargetFile) -> Result<Box<dyn NewFile>> {
        self.new.create(&file.name, file.size)
    }

    fn shares_files(&self) -> bool {
        self.new.shares_files()
    }

    fn join(&self, file: &TargetFile) -> Result<Box<dyn NewFile>> {
        self.new.join(&file.name)
    }

    fn header(&self, file: usize, hashes: &[Vec<u128>]) -> Vec<u8> {
        self.planned[file].1.header(hashes)
    }

    fn finished(&self, file: usize, header: &[u8]) {
        let hash = hash::xxh3(header);
        self.hashes.lock().unwrap_or_else(PoisonError::into_inner).push((file, hash));
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
    let layouts = taken.tensors.iter().map(|(name, tensor)| {
        let layout = plan.layout(name, tensor, mesh)?;
        check_cuts(name, &layout)?;
        Ok(layout)
    });
    let layouts = layouts.collect::<Result<Vec<Layout>>>()?;
    let by_rank = written_by_all(n_ranks, &layouts);
    let ranks: Vec<usize> = (0..n_ranks).collect();
    let tensors: Vec<(&str, StoredType)> =
        taken.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.to)).collect();
    let planned = workers::map(&ranks, threads, |&rank| {
        let parts = |&tensor: &usize| {
            let ((name, stored), layout) = (tensors[tensor], &layouts[tensor]);
            let coord = layout.mesh().coord_of(rank);
            coord.map_or_else(Vec::new, |coord| Part::held(name, stored, layout, &coord))
        };
        let files = by_file(by_rank[rank].iter().map(parts)).into_iter().enumerate();
        let planned = |(index, parts)| {
            let name = file_name(rank, n_ranks, index);
            let plan = FilePlan::new(&name, parts)?;
            Ok((name, plan))
        };
        files.map(planned).collect::<Result<Vec<_>>>()
    })?;
    Ok(planned.concat())
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
