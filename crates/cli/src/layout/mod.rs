//! `dtensor layout`: a picture, or one JSON line, of which rank holds which part of a tensor.

mod answer;
mod detail;
mod question;
mod spec;
mod stream;

use std::path::PathBuf;

use clap::Args;
use dtensor_layout::{DType, Mesh};
use dtensor_picture::{Style, draw_svg, draw_text};

use crate::{
    error::{Error, Result},
    output::{Color, Out, terminal_width},
    parse::Sizes,
};

pub use self::question::mesh_json;
use self::{answer::Form, question::Question};

const EXAMPLES: &str = "\
Examples:
  Who holds which rows and columns of a 13 x 8 matrix on a 2 x 2 mesh:
    dtensor layout --shape 13,8 --mesh dp=2,tp=2 --placements \"S(0),S(1)\"
  The same written as JAX writes it, with XLA's and Shardy's texts:
    dtensor layout --shape 12,8 --mesh dp=2,tp=2 --spec 'P(\"dp\", \"tp\")' --json --interchange
  A pending sum over tp, held twice:
    dtensor layout --shape 6 --mesh dp=2,tp=3 --placements \"R,P(sum)\"
  One rank of a quarter of a million:
    dtensor layout --shape 8192,512 --mesh dp=2048,tp=128 --placements \"S(0),S(1)\" --coord 3,5
  As a drawing:
    dtensor layout --shape 4,6,8 --mesh 2x2x2 --placements \"S(0),S(1),S(2)\" --svg layout.svg
  Many questions, one answer a line:
    echo '{\"shape\":[13,8],\"mesh\":[2,2],\"placements\":[\"S(0)\",\"R\"]}' | dtensor layout --stdin

Placements: S(dim) shard, R replicate, P(sum|avg|max|min|product) a pending reduction; one per mesh axis. S(0)[1] is the second cut of dim 0, _S(0, 2) is PyTorch's _StridedShard.";

/// Show which rank holds which part of a tensor.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct LayoutArgs {
    /// Shape of the whole tensor: 13,8 or 13x8 or "[13, 8]"; "[]" is a scalar
    #[arg(long, required_unless_present = "stdin")]
    shape: Option<Sizes>,
    /// Mesh of ranks: dp=2,tp=2, or sizes alone: 2,2 or 2x2
    #[arg(long, required_unless_present = "stdin")]
    mesh: Option<String>,
    /// One placement per mesh axis: "S(0),R"
    #[arg(long, required_unless_present_any = ["stdin", "spec"])]
    placements: Option<String>,
    /// Axes per tensor dim instead of placements: 'P("dp", None)', XLA's {devices=...} or Shardy's
    /// #sdy.sharding<...>
    #[arg(long, conflicts_with = "placements")]
    spec: Option<String>,
    /// Element type
    #[arg(long, default_value = "f32")]
    dtype: DType,
    /// Only the rank at this mesh coordinate; may be given several times
    #[arg(long, value_name = "COORD")]
    coord: Vec<Sizes>,
    /// Also write the picture to this file as SVG (`-`: to stdout, instead of the text)
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// When to colour the picture (auto: on a terminal, unless NO_COLOR is set)
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    color: Color,
    /// Draw with ASCII characters only
    #[arg(long)]
    ascii: bool,
    /// Columns of the picture [default: the terminal's, or 80]
    #[arg(long, value_name = "COLUMNS")]
    width: Option<usize>,
    /// Answer with one JSON line
    #[arg(long)]
    json: bool,
    /// Add PartitionSpec, XLA and Shardy texts and every rank's box to the JSON
    #[arg(long)]
    interchange: bool,
    /// Most ranks to list in one JSON line
    #[arg(long, value_name = "RANKS", default_value_t = 65_536)]
    limit: usize,
    /// Read questions as JSON lines (shape, mesh, placements or spec), answer each with one line
    #[arg(
        long,
        conflicts_with_all = ["shape", "mesh", "placements", "spec", "coord", "svg"]
    )]
    stdin: bool,
}

pub fn run(args: LayoutArgs) -> Result<()> {
    let form = Form { interchange: args.interchange, limit: args.limit };
    let mut out = Out::new();
    if args.stdin {
        return stream::answer_lines(std::io::stdin().lock(), &mut out, args.dtype, &form);
    }
    if args.interchange && !args.json {
        return Err(Error::usage("--interchange adds to the JSON answer").with_hint("add --json"));
    }
    let question = Question::from_args(&args)?;
    let layout = question.layout()?;
    let to_stdout = args.svg.as_ref().is_some_and(|file| file.as_os_str() == "-");
    if to_stdout && args.json {
        return Err(Error::usage("--svg - and --json both want stdout")
            .with_hint("give --svg a file name, or leave one of them out"));
    }
    if let Some(file) = &args.svg {
        let drawing = draw_svg(&layout)?;
        match to_stdout {
            true => return out.lines(drawing.lines()),
            false => std::fs::write(file, drawing).map_err(|error| {
                Error::failure(format!("cannot write {}: {error}", file.display()))
            })?,
        }
    }
    if args.json {
        return out.json(&answer::json(&question, &layout, &form)?);
    }
    if !question.coords.is_empty() {
        return out.lines(detail::lines(&layout, &question.coords)?);
    }
    let style = Style {
        width: args.width.unwrap_or_else(terminal_width),
        color: args.color.enabled(),
        ascii: args.ascii,
    };
    out.lines(draw_text(&layout, &style)?)
}

/// `dp=2,tp=2`, with the flag's name in front of what is wrong with it.
pub fn mesh_arg(flag: &str, text: &str) -> Result<Mesh> {
    text.parse::<Mesh>().map_err(|error| Error::from(error).within(flag))
}
