//! Whole tensors in safetensors files, as model hubs keep them.

use std::collections::BTreeMap;

use dtensor_layout::IndexBox;
use serde_json::{Map, Value as Json, json};

use super::{
    ConvertOptions, Converted, Source, Taken, TakenTensor,
    pieces::{Part, TargetFile},
    stream::{Target, write_all},
    target::{Goal, Staging},
};
use crate::{
    Error, NewFile, Result, SourceFile, Value,
    formats::{
        safetensors::{MAX_HEADER, VALUES},
        safetensors_write::{file_order, header_bytes},
    },
    manifest::value_to_json,
    save::new_id,
    team::Team,
};

const INDEX_FILE: &str = "model.safetensors.index.json";

/// Makes a checkpoint into whole tensors in safetensors files.
///
/// A target whose name ends in `.safetensors` is one file. Any other is a directory with `model.safetensors`, or, where
/// [`ConvertOptions::max_file_bytes`] makes it several, `model-00001-of-00003.safetensors` and so on with
/// `model.safetensors.index.json`, as model hubs have them. Values that are no tensors are kept as JSON in the
/// `__metadata__` of the (first) file, under `dtensor.values`: other readers pass over them, and this crate finds them again.
///
/// Everything is written beside the target, brought to disk, and renamed: there is never half a file at the target. With a URL of
/// an object store, each file appears when it is complete, and the index last: nothing can be renamed there.
pub fn to_safetensors(
    source: &Source,
    target: &str,
    options: &ConvertOptions<'_>,
) -> Result<Converted> {
    let team = Team::new(options.group.as_ref());
    let taken = team.agree(Taken::new(source, options))?;
    let is_file = target.ends_with(".safetensors");
    let packs = packs(&taken, options.max_file_bytes);
    if is_file && packs.len() > 1 {
        return Err(Error::BadText {
            text: target.to_owned(),
            what: "place for several files",
            why: "give a directory, or no largest size of a file".into(),
        });
    }
    let goal = team.agree(Goal::new(source, target))?;
    let own_name = goal.file_name();
    let name = |number: usize| match (&own_name, packs.len()) {
        (Some(name), _) => name.clone(),
        (None, 1) => "model.safetensors".to_owned(),
        (None, of) => format!("model-{:05}-of-{of:05}.safetensors", number + 1),
    };
    let planned = packs.iter().enumerate().map(|(number, pack)| {
        let values = if number == 0 { &taken.values } else { &BTreeMap::new() };
        file(name(number), pack, values)
    });
    let (files, headers): (Vec<TargetFile>, Vec<Vec<u8>>) = planned.collect::<Result<_>>()?;
    let id = team.told(new_id())?;
    let begun = team.once(|| goal.begin(options.overwrite, &id))?;
    let staging = team.agree(begun.map_or_else(|| goal.join(&id), Ok))?;
    let whole = WholeTensors { staging: &staging, headers: &headers };
    write_all(source, &files, &whole, &team, options.threads, options.progress)?;
    team.once(|| {
        let mut names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        if files.len() > 1 {
            let index = index(&files, &packs, taken.bytes());
            let mut index_file = staging.create(INDEX_FILE, index.len() as u64)?;
            index_file.write_at(0, index.as_bytes())?;
            index_file.finish()?;
            names.push(INDEX_FILE);
        }
        staging.commit(&names)
    })?;
    staging.keep();
    Ok(Converted {
        tensors: taken.tensors.len(),
        values: taken.values.len(),
        bytes: taken.bytes(),
        files: files
            .into_iter()
            .map(|file| SourceFile { name: file.name, size: file.size })
            .collect(),
    })
}

/// Where the files go.
struct WholeTensors<'a> {
    staging: &'a Staging,
    headers: &'a [Vec<u8>],
}

impl Target for WholeTensors<'_> {
    fn create(&self, file: &TargetFile) -> Result<Box<dyn NewFile>> {
        self.staging.create(&file.name, file.size)
    }

    fn shares_files(&self) -> bool {
        self.staging.shares_files()
    }

    fn join(&self, file: &TargetFile) -> Result<Box<dyn NewFile>> {
        self.staging.join(&file.name)
    }

    fn header(&self, file: usize, _: &[Vec<u128>]) -> Vec<u8> {
        self.headers[file].clone()
    }

    fn finished(&self, _: usize, _: &[u8]) {}

    fn hashes(&self) -> bool {
        false
    }
}

type Pack<'t> = Vec<(&'t str, &'t TakenTensor<'t>)>;

/// The tensors of each file: in the order of names until a file is full, and then in the order of its bytes.
fn packs<'t>(taken: &'t Taken<'_>, most: Option<u64>) -> Vec<Pack<'t>> {
    let mut packs: Vec<Pack<'t>> = vec![Vec::new()];
    let mut bytes = 0;
    for (name, tensor) in &taken.tensors {
        let is_full = most.is_some_and(|most| bytes + tensor.bytes() > most);
        match packs.last_mut() {
            Some(pack) if !is_full || pack.is_empty() => pack.push((name, tensor)),
            _ => {
                packs.push(vec![(name, tensor)]);
                bytes = 0;
            }
        }
        bytes += tensor.bytes();
    }
    for pack in &mut packs {
        pack.sort_by_key(|(name, tensor)| file_order(tensor.to, name));
    }
    packs
}

fn file(
    name: String,
    pack: &Pack<'_>,
    values: &BTreeMap<String, Value>,
) -> Result<(TargetFile, Vec<u8>)> {
    let json: Map<String, Json> =
        values.iter().map(|(name, value)| (name.clone(), value_to_json(value))).collect();
    let json = Json::Object(json).to_string();
    let texts = [("format", "pt"), (VALUES, &json)];
    let texts = if values.is_empty() { &texts[..1] } else { &texts };
    let tensors = pack.iter().map(|(name, tensor)| (*name, tensor.to, &*tensor.entry.shape));
    let header = header_bytes(texts, tensors);
    if header.len() as u64 > MAX_HEADER {
        return Err(Error::Unsupported {
            what: format!("a header of {} bytes", header.len()),
            place: name,
            way_out: "select fewer tensors or values, or write several files",
        });
    }
    let mut offset = header.len() as u64;
    let part = |(_, tensor): &(&str, &TakenTensor<'_>)| {
        let index = IndexBox::whole(&tensor.entry.shape);
        let (from, to) = (tensor.entry.stored, tensor.to);
        let part = Part { source: tensor.source.to_owned(), index, from, to, offset };
        offset += part.bytes();
        part
    };
    let parts = pack.iter().map(part).collect();
    Ok((TargetFile { name, size: offset, parts }, header))
}

/// Which file has which tensor, by name.
fn index(files: &[TargetFile], packs: &[Pack<'_>], total: u64) -> String {
    let mut names: Vec<(&str, &str)> = files
        .iter()
        .zip(packs)
        .flat_map(|(file, pack)| pack.iter().map(|(name, _)| (*name, file.name.as_str())))
        .collect();
    names.sort_unstable();
    let map: Map<String, Json> =
        names.into_iter().map(|(name, file)| (name.to_owned(), json!(file))).collect();
    format!("{:#}\n", json!({"metadata": {"total_size": total}, "weight_map": map}))
}
