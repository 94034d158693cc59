use clap::Args;
use dtensor_checkpoint::{VerifyOptions, verify_at};
use dtensor_comm::Group;
use dtensor_picture::units::{bytes, count};
use serde_json::json;

use crate::{
    error::{Error, Result},
    output::Out,
};

use super::{is_first, names::printable, progress::Bar};

const EXAMPLES: &str = "\
Examples:
  Whether every byte is as it was written:
    dtensor ckpt verify checkpoint

What dtensor saves has checksums of everything. Files of PyTorch have checksums of their tensors (torch.save and \
.distcp), or none (safetensors): of those it is told how much could be read, and not compared. If the headers cannot be \
believed, that is told, and nothing else is looked at. Under mpirun the processes share the work.

Exit codes: 0 nothing is wrong, 1 something is.";

/// Read a whole checkpoint and compare it with its checksums.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct VerifyArgs {
    /// The checkpoint: a directory or a file
    path: String,
    /// Threads that read and compare [default: as many as there are processors]
    #[arg(
        long,
        visible_alias = "ranks",
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true
    )]
    threads: usize,
    /// Answer with one JSON line
    #[arg(long)]
    json: bool,
}

pub fn run(args: &VerifyArgs, group: Option<Group>) -> Result<()> {
    let is_first = is_first(group.as_ref());
    let bar = if is_first { Bar::new("verifying") } else { Bar::hidden() };
    let progress = |progress| bar.at(progress);
    let options = VerifyOptions { threads: args.threads, group, progress: Some(&progress) };
    let report = verify_at(&args.path, &options)?;
    drop(bar);
    if !is_first {
        return Ok(());
    }
    let damage: Vec<String> = report.damage.iter().map(ToString::to_string).collect();
    let mut out = Out::new();
    if args.json {
        out.json(&json!({
            "whole": report.is_whole(),
            "files": report.files,
            "tensors": report.tensors,
            "verified_bytes": report.verified_bytes,
            "unverified_bytes": report.unverified_bytes,
            "unreadable": report.unreadable,
            "damage": damage,
        }))?;
    } else {
        out.lines(damage.iter().map(|text| printable(text)))?;
        for (name, reason) in &report.unreadable {
            out.line(&format!("{} cannot be read: {}", printable(name), printable(reason)))?;
        }
        let verdict = match damage.len() {
            0 => "whole".to_owned(),
            number => format!("DAMAGED in {}", count(number, "place")),
        };
        let unverified = match report.unverified_bytes {
            0 => String::new(),
            number => format!(", {} without a checksum", bytes(number as f64)),
        };
        out.line(&format!(
            "{verdict}: {}, {}, {} verified{unverified}",
            count(report.files, "file"),
            count(report.tensors, "tensor"),
            bytes(report.verified_bytes as f64)
        ))?;
    }
    match report.is_whole() {
        true => Ok(()),
        false => Err(Error::AlreadyReported),
    }
}
