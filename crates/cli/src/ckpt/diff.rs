use clap::Args;
use dtensor_checkpoint::{
    Diff, DiffOptions, TensorDiff, TensorInfo, Tolerance, Value, Verdict, diff,
};
use dtensor_comm::Group;
use dtensor_picture::{
    Align, Table,
    units::{count, grouped},
};
use serde_json::{Map, Value as Json, json};

use crate::{
    error::{Error, Result},
    output::Out,
};

use super::{
    ReadArgs, agree, is_first,
    names::{NamesArgs, RenameArgs, dtype, parts, printable, value_json, value_text},
    progress::Bar,
};

const EXAMPLES: &str = "\
Examples:
  Whether a conversion has lost anything:
    dtensor ckpt diff checkpoint model.safetensors
  Whether a model in half precision is near the original:
    dtensor ckpt diff checkpoint half.safetensors --ignore-dtype --rtol 0.01
  The weights alone, as numbers for a program:
    dtensor ckpt diff checkpoint model.safetensors --only \"*.weight\" --all --json

Names of the first checkpoint are changed by --rename before they are compared. Numbers are equal if they differ by \
at most --atol, or by at most --rtol times the larger of both. NaN is equal to NaN. Under mpirun \
the processes share the work.

Exit codes: 0 no difference, 1 there is one, or something went wrong.";

/// Compare two checkpoints, whatever wrote them: names, dtypes, shapes, elements, values.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DiffArgs {
    /// A checkpoint: a directory or a file
    a: String,
    /// Another one
    b: String,
    #[command(flatten)]
    names: NamesArgs,
    #[command(flatten)]
    rename: RenameArgs,
    /// The largest difference of two numbers that counts as none
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = tolerance)]
    atol: f64,
    /// The same as a part of the larger number
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = tolerance)]
    rtol: f64,
    /// Compare numbers only, whatever their types
    #[arg(long)]
    ignore_dtype: bool,
    /// List equal tensors too
    #[arg(long)]
    all: bool,
    /// Answer with one JSON line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    read: ReadArgs,
}

pub fn run(args: &DiffArgs, group: Option<Group>) -> Result<()> {
    let is_first = is_first(group.as_ref());
    let open = |path: &str| agree(group.as_ref(), args.read.open(path));
    let (a, b) = (open(&args.a)?, open(&args.b)?);
    let bar = if is_first { Bar::new("comparing") } else { Bar::hidden() };
    let progress = |progress| bar.at(progress);
    let options = DiffOptions {
        select: args.names.selection(Some(&args.rename))?,
        tolerance: Tolerance { absolute: args.atol, relative: args.rtol },
        ignore_types: args.ignore_dtype,
        threads: args.read.threads,
        group,
        progress: Some(&progress),
    };
    let found = diff(&a, &b, &options)?;
    drop(bar);
    if !is_first {
        return Ok(());
    }
    let mut out = Out::new();
    match args.json {
        true => out.json(&json(&found, args))?,
        false => out.lines(lines(&found, args))?,
    }
    match found.is_equal(args.ignore_dtype) {
        true => Ok(()),
        false => Err(Error::AlreadyReported),
    }
}

/// The tensors to be shown, in the order of their names.
fn shown<'d>(found: &'d Diff, args: &DiffArgs) -> Vec<(&'d str, &'d TensorDiff, Verdict)> {
    let with_verdict = |(name, tensor): (&'d String, &'d TensorDiff)| {
        (name.as_str(), tensor, tensor.verdict(args.ignore_dtype))
    };
    let mut shown: Vec<_> = found.tensors.iter().map(with_verdict).collect();
    shown.retain(|(_, _, verdict)| args.all || *verdict != Verdict::Equal);
    shown.sort_by_cached_key(|(name, _, _)| parts(name));
    shown
}

fn lines(found: &Diff, args: &DiffArgs) -> Vec<String> {
    let mut table = Table::new(&[
        ("name", Align::Left),
        ("", Align::Left),
        ("max abs", Align::Right),
        ("max rel", Align::Right),
        ("beyond", Align::Right),
        ("NaN in one", Align::Right),
    ]);
    let tensors = shown(found, args);
    for (name, tensor, verdict) in &tensors {
        let both = |of: fn(&TensorInfo) -> String| {
            let side = |info: &Option<TensorInfo>| info.as_ref().map(of).unwrap_or_default();
            format!("{} / {}", side(&tensor.a), side(&tensor.b))
        };
        let what = match verdict {
            Verdict::Equal => "equal".to_owned(),
            Verdict::OnlyInA => "only in the first".to_owned(),
            Verdict::OnlyInB => "only in the second".to_owned(),
            Verdict::Shape => both(|info| format!("{:?}", info.shape)),
            Verdict::Type => both(|info| dtype(info.stored)),
            Verdict::Values => "elements differ".to_owned(),
        };
        let numbers = match &tensor.difference {
            None => std::array::from_fn(|_| String::new()),
            Some(difference) => [
                format!("{:.3e}", difference.max_absolute),
                format!("{:.3e}", difference.max_relative),
                grouped(difference.beyond as usize),
                grouped(difference.nan_in_one as usize),
            ],
        };
        table.row([printable(name), what].into_iter().chain(numbers));
    }
    let mut lines = if tensors.is_empty() { Vec::new() } else { table.lines() };
    for (name, (a, b)) in &found.values {
        let side =
            |value: &Option<Value>| value.as_ref().map_or("(not there)".to_owned(), value_text);
        lines.push(format!("{}: {} / {}", printable(name), side(a), side(b)));
    }
    let differ = found.tensors.values();
    let differ =
        differ.filter(|tensor| tensor.verdict(args.ignore_dtype) != Verdict::Equal).count();
    let of = count(found.tensors.len(), "tensor");
    lines.push(match (differ, found.values.len()) {
        (0, 0) => format!("equal: {of}"),
        (tensors, values) => {
            format!("{} of {of} and {} differ", grouped(tensors), count(values, "value"))
        }
    });
    lines
}

fn json(found: &Diff, args: &DiffArgs) -> Json {
    let info = |info: &Option<TensorInfo>| {
        info.as_ref().map(|info| json!({"dtype": dtype(info.stored), "shape": info.shape}))
    };
    // JSON has no infinities.
    let number =
        |number: f64| if number.is_finite() { json!(number) } else { json!(number.to_string()) };
    let tensor = |(name, tensor, verdict): &(&str, &TensorDiff, Verdict)| {
        let word = match verdict {
            Verdict::Equal => "equal",
            Verdict::OnlyInA => "only_in_a",
            Verdict::OnlyInB => "only_in_b",
            Verdict::Shape => "shape",
            Verdict::Type => "dtype",
            Verdict::Values => "values",
        };
        let mut fields = Map::new();
        fields.insert("name".into(), json!(name));
        fields.insert("verdict".into(), json!(word));
        fields.insert("a".into(), json!(info(&tensor.a)));
        fields.insert("b".into(), json!(info(&tensor.b)));
        if let Some(difference) = &tensor.difference {
            fields.insert("max_abs".into(), number(difference.max_absolute));
            fields.insert("max_rel".into(), number(difference.max_relative));
            fields.insert("beyond".into(), json!(difference.beyond));
            fields.insert("nan_in_one".into(), json!(difference.nan_in_one));
        }
        Json::Object(fields)
    };
    let value = |(name, (a, b)): (&String, &(Option<Value>, Option<Value>))| {
        let side = |value: &Option<Value>| value.as_ref().map(value_json);
        json!({"name": name, "in_a": a.is_some(), "in_b": b.is_some(), "a": side(a), "b": side(b)})
    };
    json!({
        "equal": found.is_equal(args.ignore_dtype),
        "tensors": shown(found, args).iter().map(tensor).collect::<Vec<_>>(),
        "values": found.values.iter().map(value).collect::<Vec<_>>(),
        "compared": found.tensors.len(),
    })
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(number) if number >= 0.0 => Ok(number),
        _ => Err(format!("`{text}` is not a number from zero on")),
    }
}
