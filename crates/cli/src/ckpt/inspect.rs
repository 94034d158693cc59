use clap::Args;
use dtensor_checkpoint::{Catalog, Checksum, Chunk, Source, TensorEntry};
use dtensor_picture::{
    Align, Table,
    units::{bytes, count, grouped},
};
use serde_json::{Map, Value as Json, json};

use crate::{error::Result, output::Out};

use super::{
    names::{self, NamesArgs, dtype, printable},
    tree::Tree,
};

const EXAMPLES: &str = "\
Examples:
  Tensors and values of a checkpoint:
    dtensor ckpt inspect checkpoint
  How large the parts of a model are:
    dtensor ckpt inspect model.safetensors --tree --depth 2
  Where the pieces of some tensors lie, for a program:
    dtensor ckpt inspect checkpoint --only \"*.weight\" --json";

/// Show what a checkpoint holds; only headers are read.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct InspectArgs {
    /// The checkpoint: a directory or a file
    path: String,
    #[command(flatten)]
    names: NamesArgs,
    /// Show a tree of dotted names, with totals
    #[arg(long)]
    tree: bool,
    /// How many parts of names the tree shows
    #[arg(long, value_name = "N", requires = "tree")]
    depth: Option<usize>,
    /// Answer with one JSON line
    #[arg(long, conflicts_with = "tree")]
    json: bool,
}

pub fn run(args: &InspectArgs) -> Result<()> {
    let source = Source::open(&args.path)?;
    let catalog = source.catalog();
    let selection = args.names.selection(None)?;
    selection.check(catalog.names())?;
    let mut taken: Vec<&str> = selection.apply(catalog.names())?.into_values().collect();
    taken.sort_by_cached_key(|name| names::parts(name));
    let tensors: Vec<(&str, &TensorEntry)> =
        taken.iter().filter_map(|name| Some((*name, catalog.tensors.get(*name)?))).collect();
    let values = taken.iter().filter_map(|name| Some((*name, catalog.values.get(*name)?)));
    let unreadable: Vec<(&str, &String)> =
        taken.iter().filter_map(|name| Some((*name, catalog.unreadable.get(*name)?))).collect();
    let mut out = Out::new();
    if args.json {
        let values: Map<String, Json> =
            values.map(|(name, value)| (name.to_owned(), names::value_json(value))).collect();
        let unreadable =
            unreadable.into_iter().map(|(name, reason)| (name.to_owned(), json!(reason)));
        return out.json(&json(catalog, &tensors, values, unreadable.collect()));
    }
    let file_bytes: u64 = catalog.files.iter().map(|file| file.size).sum();
    let files = count(catalog.files.len(), "file");
    out.line(&format!("{}, {files}, {}", catalog.format, bytes(file_bytes as f64)))?;
    out.line("")?;
    if !tensors.is_empty() {
        match args.tree {
            true => out.lines(
                Tree::new(tensors.iter().copied()).lines(args.depth.unwrap_or(usize::MAX).max(1)),
            )?,
            false => out.lines(table(&tensors))?,
        }
        out.line("")?;
    }
    let mut listed = Table::headless(&[Align::Left; 2]);
    let mut n_values = 0;
    for (name, value) in values {
        listed.row([printable(name), names::value_text(value)]);
        n_values += 1;
    }
    if n_values > 0 {
        out.lines(listed.lines())?;
        out.line("")?;
    }
    for (name, reason) in &unreadable {
        out.line(&format!("{} cannot be read: {}", printable(name), printable(reason)))?;
    }
    if !unreadable.is_empty() {
        out.line("")?;
    }
    let (elements, total) = totals(&tensors);
    let not_read = match unreadable.len() {
        0 => String::new(),
        number => format!("; {number} that cannot be read"),
    };
    out.line(&format!(
        "{}, {} elements, {}; {}{not_read}",
        count(tensors.len(), "tensor"),
        grouped(elements as usize),
        bytes(total as f64),
        count(n_values, "value")
    ))
}

fn totals(tensors: &[(&str, &TensorEntry)]) -> (u64, u64) {
    let elements = |entry: &TensorEntry| entry.bytes() / entry.stored.size() as u64;
    let sum = |of: &dyn Fn(&TensorEntry) -> u64| tensors.iter().map(|(_, entry)| of(entry)).sum();
    (sum(&elements), sum(&TensorEntry::bytes))
}

fn table(tensors: &[(&str, &TensorEntry)]) -> Vec<String> {
    let mut table = Table::new(&[
        ("name", Align::Left),
        ("dtype", Align::Left),
        ("shape", Align::Left),
        ("size", Align::Right),
        ("shards", Align::Right),
        ("saved from", Align::Left),
    ]);
    for (name, entry) in tensors {
        table.row([
            printable(name),
            dtype(entry.stored),
            format!("{:?}", entry.shape),
            bytes(entry.bytes() as f64),
            grouped(entry.chunks.len()),
            entry.layout.as_deref().map(printable).unwrap_or_default(),
        ]);
    }
    table.lines()
}

fn json(
    catalog: &Catalog,
    tensors: &[(&str, &TensorEntry)],
    values: Map<String, Json>,
    unreadable: Map<String, Json>,
) -> Json {
    let chunk = |chunk: &Chunk| {
        let checksum = match chunk.checksum {
            Checksum::None => None,
            Checksum::Crc32 { .. } => Some("crc32"),
            Checksum::Blocks { .. } => Some("xxh3"),
        };
        let offset: Vec<usize> = chunk.index.0.iter().map(|range| range.start).collect();
        json!({
            "offset": offset,
            "shape": chunk.index.shape(),
            "file": catalog.files.get(chunk.file).map(|file| &file.name),
            "byte": chunk.offset,
            "checksum": checksum,
        })
    };
    let tensor = |(name, entry): &(&str, &TensorEntry)| {
        json!({
            "name": name,
            "dtype": dtype(entry.stored),
            "shape": entry.shape,
            "bytes": entry.bytes(),
            "layout": entry.layout,
            "shards": entry.chunks.iter().map(chunk).collect::<Vec<_>>(),
        })
    };
    let (elements, total) = totals(tensors);
    json!({
        "format": catalog.format.name(),
        "files": catalog.files.iter().map(|file| json!({"name": file.name, "bytes": file.size})).collect::<Vec<_>>(),
        "tensors": tensors.iter().map(tensor).collect::<Vec<_>>(),
        "values": values,
        "unreadable": unreadable,
        "total": {"tensors": tensors.len(), "elements": elements, "bytes": total},
    })
}
