//! `convert`, `consolidate` and `reshard`.

use std::fs;

use clap::{Args, ValueEnum};
use dtensor_checkpoint::{
    Result as CheckpointResult,
    convert::{Cast, ConvertOptions, Converted, PlacementPlan, to_native, to_safetensors},
};
use dtensor_comm::Group;
use dtensor_layout::Mesh;
use dtensor_picture::units::{bytes, count};
use serde_json::json;

use crate::{
    error::{Error, Result},
    layout::mesh_arg,
    output::Out,
    parse,
};

use super::{
    ReadArgs, agree, is_first,
    names::{NamesArgs, RenameArgs},
    progress::Bar,
};

const CONVERT_EXAMPLES: &str = "\
Examples:
  PyTorch's distributed checkpoint to one file that every framework reads:
    dtensor ckpt convert checkpoint model.safetensors
  As model hubs have it, in half precision, in files of 2 GB with an index:
    dtensor ckpt convert checkpoint hub --max-shard-size 2GB --dtype bf16
  The weights alone, in half precision but for norms:
    dtensor ckpt convert checkpoint some --only \"*.weight\" --dtype \"*norm*=f32\" --dtype f16
  Other names:
    dtensor ckpt convert checkpoint renamed --rename \"layers.*=model.layers.*\"
  To what dtensor saves itself, with checksums of everything:
    dtensor ckpt convert model.safetensors native --format native

A target whose name ends in .safetensors is one file, any other a directory. Values that are no tensors are kept as JSON \
in the file's __metadata__, under dtensor.values. --dtype changes floating-point tensors only; the first that matches counts.";

const CONSOLIDATE_EXAMPLES: &str = "\
Examples:
  Shards of many ranks to whole tensors in one file:
    dtensor ckpt consolidate checkpoint whole.safetensors";

const RESHARD_EXAMPLES: &str = "\
Examples:
  For 8 ranks, each tensor cut along its first dim by dp and whole along tp:
    dtensor ckpt reshard checkpoint eight --mesh dp=4,tp=2
  As a plan says:
    echo 'layers.*.attn.* = \"[R, S(1)]\"' > plan.toml
    dtensor ckpt reshard checkpoint planned --mesh dp=2,tp=2 --plan plan.toml

A plan has lines `pattern = \"[S(0), R]\"`, with a placement per mesh axis; the first that matches counts, and `#` begins a \
comment. What no line matches is cut along its first dim by the first axis. A line that matches nothing is an error. Any \
checkpoint loads on any mesh: resharding is for those who want to load without communication, or with PyTorch.";

/// Make a checkpoint into one of another format: whole tensors, other dtypes, other names, a part of it.
#[derive(Args)]
#[command(after_help = CONVERT_EXAMPLES)]
pub struct ConvertArgs {
    #[command(flatten)]
    job: JobArgs,
    /// What to write
    #[arg(long, value_enum, default_value_t)]
    format: TargetFormat,
    /// The most bytes of tensors in a file, such as 5GB; there is an index where it makes several
    #[arg(long, value_name = "BYTES", value_parser = parse::bytes)]
    max_shard_size: Option<usize>,
}

/// Put the shards of a checkpoint together: whole tensors in one safetensors file.
#[derive(Args)]
#[command(after_help = CONSOLIDATE_EXAMPLES)]
pub struct ConsolidateArgs {
    #[command(flatten)]
    job: JobArgs,
}

/// Write a checkpoint as the ranks of another mesh would have saved it.
#[derive(Args)]
#[command(after_help = RESHARD_EXAMPLES)]
pub struct ReshardArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Mesh of the ranks: dp=4,tp=2
    #[arg(long)]
    mesh: String,
    /// File with the placements of tensors by name
    #[arg(long, value_name = "FILE")]
    plan: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum TargetFormat {
    #[default]
    Safetensors,
    Native,
}

/// What all three have.
#[derive(Args)]
struct JobArgs {
    /// The checkpoint to read: a directory or a file
    source: String,
    /// Where to write
    target: String,
    #[command(flatten)]
    names: NamesArgs,
    #[command(flatten)]
    rename: RenameArgs,
    /// Another floating-point type, for all tensors or by pattern: bf16, "*.norm.*=f32"
    #[arg(long, value_name = "[PATTERN=]DTYPE")]
    dtype: Vec<String>,
    /// Replace a checkpoint that is at the target
    #[arg(long)]
    force: bool,
    /// Answer with one JSON line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    read: ReadArgs,
}

pub fn run(args: &ConvertArgs, group: Option<Group>) -> Result<()> {
    if args.format == TargetFormat::Native && args.max_shard_size.is_some() {
        return Err(Error::usage("--max-shard-size: native checkpoints have a file per rank")
            .with_hint("dtensor ckpt reshard --mesh N writes N of them"));
    }
    let one_rank = Mesh::from_sizes(&[1])?;
    args.job.run(group, |source, target, options| match args.format {
        TargetFormat::Safetensors => {
            let max_file_bytes = args.max_shard_size.map(|bytes| bytes as u64);
            to_safetensors(source, target, &ConvertOptions { max_file_bytes, ..options })
        }
        TargetFormat::Native => {
            to_native(source, target, &one_rank, &PlacementPlan::new(), &options)
        }
    })
}

pub fn consolidate(args: &ConsolidateArgs, group: Option<Group>) -> Result<()> {
    args.job.run(group, |source, target, options| to_safetensors(source, target, &options))
}

pub fn reshard(args: &ReshardArgs, group: Option<Group>) -> Result<()> {
    let mesh = mesh_arg("--mesh", &args.mesh)?;
    let plan = agree(group.as_ref(), args.plan.as_deref().map_or(Ok(PlacementPlan::new()), plan))?;
    args.job.run(group, |source, target, options| to_native(source, target, &mesh, &plan, &options))
}

/// What a file says about placements.
fn plan(file: &str) -> Result<PlacementPlan> {
    let text = fs::read_to_string(file)
        .map_err(|error| Error::failure(format!("--plan {file}: {error}")))?;
    text.parse().map_err(|error| Error::from(error).within(&format!("--plan {file}")))
}

impl JobArgs {
    fn run(
        &self,
        group: Option<Group>,
        convert: impl FnOnce(
            &dtensor_checkpoint::Source,
            &str,
            ConvertOptions<'_>,
        ) -> CheckpointResult<Converted>,
    ) -> Result<()> {
        let source = agree(group.as_ref(), self.read.open(&self.source))?;
        let is_first = is_first(group.as_ref());
        let bar = if is_first { Bar::new("converting") } else { Bar::hidden() };
        let progress = |progress| bar.at(progress);
        let casts = self.dtype.iter().map(|text| text.parse::<Cast>());
        let options = ConvertOptions {
            select: self.names.selection(Some(&self.rename))?,
            casts: casts.collect::<Result<_, _>>()?,
            max_file_bytes: None,
            overwrite: self.force,
            threads: self.read.threads,
            group,
            progress: Some(&progress),
        };
        let converted = convert(&source, &self.target, options)?;
        drop(bar);
        if !is_first {
            return Ok(());
        }
        let mut out = Out::new();
        if self.json {
            let files =
                converted.files.iter().map(|file| json!({"name": file.name, "bytes": file.size}));
            return out.json(&json!({
                "target": self.target,
                "tensors": converted.tensors,
                "values": converted.values,
                "bytes": converted.bytes,
                "files": files.collect::<Vec<_>>(),
            }));
        }
        out.line(&format!(
            "{}: {}, {}, {} in {}",
            self.target,
            count(converted.tensors, "tensor"),
            count(converted.values, "value"),
            bytes(converted.bytes as f64),
            count(converted.files.len(), "file")
        ))
    }
}
