//! `dtensor ops`: the table of operations.

use clap::Args;
use dtensor::ops::TABLE;
use dtensor_picture::{Align, Table, units::count};
use serde_json::json;

use crate::{
    error::{Error, Result},
    output::Out,
};

const EXAMPLES: &str = "\
Examples:
  All operations, with the rule of each for its first sample:
    dtensor ops
  One JSON line per operation whose name has \"norm\" in it:
    dtensor ops --only norm --json

A rule names dims by letters: for a mesh axis that cuts a letter, a tensor that has it is cut there, an operand \
without it is whole, a result without it is a pending sum (or what its @ says). `d!` is never cut, `...` is any \
number of dims. Laws say which pending reductions pass through.";

/// The operations, and how each may be cut.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct OpsArgs {
    /// Only operations whose name has this in it; may be given several times
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// One JSON line per operation
    #[arg(long)]
    json: bool,
}

pub fn run(args: OpsArgs) -> Result<()> {
    let wanted =
        |name: &str| args.only.is_empty() || args.only.iter().any(|text| name.contains(text));
    let mut out = Out::new();
    let mut n_shown = 0;
    for family in TABLE {
        let mut table = Table::headless(&[Align::Left; 4]);
        let mut n_rows = 0;
        for record in family.records.iter().copied().flatten().filter(|one| wanted(one.name)) {
            let rule = record.rule().map_err(|error| Error::failure(error.to_string()))?;
            let signature =
                rule.as_ref().map(|rule| rule.signature().to_string()).unwrap_or_default();
            let laws = rule.iter().flat_map(|rule| rule.laws()).map(ToString::to_string);
            let laws: Vec<String> = laws.collect();
            n_rows += 1;
            if args.json {
                out.json(&json!({
                    "family": family.name,
                    "name": record.name,
                    "rule": signature,
                    "laws": laws,
                    "gradient": record.has_gradient(),
                }))?;
            } else {
                let gradient = if record.has_gradient() { "gradient" } else { "" };
                let name = format!("  {}", record.name);
                table.row([name, signature, laws.join(", "), gradient.to_owned()]);
            }
        }
        n_shown += n_rows;
        if n_rows > 0 && !args.json {
            out.line(&format!("{} ({n_rows})", family.name))?;
            out.lines(table.lines())?;
            out.line("")?;
        }
    }
    if n_shown == 0 {
        return Err(Error::usage(format!(
            "--only {}: no such operation",
            args.only.join(" --only ")
        ))
        .with_hint("dtensor ops lists them all"));
    }
    match args.json {
        true => Ok(()),
        false => out.line(&count(n_shown, "operation")),
    }
}
