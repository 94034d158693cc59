//! `dtensor plan`: how a tensor gets from one layout to another, and what that costs.

mod json;
mod topology;

use clap::Args;
use dtensor_layout::{
    DType, Layout, LayoutError, Mesh,
    plan::{Cost, Plan, PlanOptions, Step, Topology},
};
use dtensor_picture::{
    Align, Table,
    units::{bytes, count, microseconds},
};

use crate::{
    error::{Error, Result},
    layout::mesh_arg,
    output::Out,
    parse::Sizes,
};

use self::topology::TopologyArgs;

const EXAMPLES: &str = "\
Examples:
  Reduce a pending sum into shards of its rows:
    dtensor plan --shape 13,8 --mesh dp=2,tp=2 --from \"S(0),P(sum)\" --to \"S(0),S(0)\"
  On 32 hosts, where the dp axis crosses hosts:
    dtensor plan --shape 8192,8192 --mesh dp=32,tp=8 --from \"S(0),S(1)\" --to \"S(1),R\" --hosts 32
  A quarter of a million ranks:
    dtensor plan --shape 65536,65536 --mesh 64x64x64 --from \"R,S(0),S(1)\" --to \"R,S(1),S(0)\" --json
  What PyTorch would do, step by step:
    dtensor plan --shape 16,16 --mesh 2,2,2 --from \"S(0),S(0),S(1)\" --to \"S(1),R,S(0)\" --greedy
  To another mesh over the same ranks:
    dtensor plan --shape 12,8 --mesh dp=2,tp=4 --from \"S(0),S(1)\" --to-mesh x=8 --to \"S(0)\"

Times are estimates: launch + hops x latency + bytes / bandwidth for each call. The defaults are those \
of GPUs (NVLink inside a host, InfiniBand between hosts); --latency and --bandwidth replace them.";

/// Plan how to redistribute a tensor, with bytes, memory and estimated time.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct PlanArgs {
    /// Shape of the whole tensor: 13,8 or 13x8 or "[13, 8]"; "[]" is a scalar
    #[arg(long)]
    shape: Sizes,
    /// Mesh of ranks: dp=2,tp=2, or sizes alone: 2,2 or 2x2
    #[arg(long)]
    mesh: String,
    /// Placements to start from, one per mesh axis: "S(0),P(sum)"
    #[arg(long, value_name = "PLACEMENTS")]
    from: String,
    /// Placements to arrive at
    #[arg(long, value_name = "PLACEMENTS")]
    to: String,
    /// Mesh to arrive at, if it is another one over the same ranks
    #[arg(long, value_name = "MESH")]
    to_mesh: Option<String>,
    /// Element type
    #[arg(long, default_value = "f32")]
    dtype: DType,
    #[command(flatten)]
    topology: TopologyArgs,
    /// Let steps on the way need more memory than both ends, where that is faster
    #[arg(long)]
    unbounded_memory: bool,
    /// Show PyTorch's plan: one mesh axis at a time
    #[arg(long, conflicts_with = "unbounded_memory")]
    greedy: bool,
    /// Answer with one JSON line
    #[arg(long)]
    json: bool,
}

/// A plan, and the one to compare it with.
struct Answer {
    plan: Plan,
    cost: Cost,
    /// PyTorch's, or why there is none.
    greedy: Result<(Plan, Cost), String>,
    topology: Topology,
}

pub fn run(args: PlanArgs) -> Result<()> {
    let mesh = mesh_arg("--mesh", &args.mesh)?;
    let to_mesh = match &args.to_mesh {
        Some(text) => mesh_arg("--to-mesh", text)?,
        None => mesh.clone(),
    };
    let layout = |flag, mesh: &Mesh, placements: &str| {
        Layout::parse(&args.shape.0, args.dtype, mesh, placements)
            .map_err(|error| Error::from(error).within(flag))
    };
    let from = layout("--from", &mesh, &args.from)?;
    let to = layout("--to", &to_mesh, &args.to)?;
    let topology = args.topology.topology(&[&mesh, &to_mesh])?;
    let options =
        PlanOptions { topology: topology.clone(), unbounded_memory: args.unbounded_memory };
    let plan = match args.greedy {
        true => Plan::greedy(&from, &to)?,
        false => Plan::with_options(&from, &to, &options)?,
    };
    let greedy = Plan::greedy(&from, &to).map_err(|error| match error {
        // Both layouts are already in sight.
        LayoutError::CannotRedistribute { why, .. } => why,
        other => other.to_string(),
    });
    let answer = Answer {
        cost: plan.cost(&topology),
        greedy: greedy.map(|plan| {
            let cost = plan.cost(&topology);
            (plan, cost)
        }),
        plan,
        topology,
    };
    let mut out = Out::new();
    match args.json {
        true => out.json(&json::answer(&answer)),
        false => out.lines(lines(&answer, args.greedy)),
    }
}

fn lines(answer: &Answer, is_greedy: bool) -> Vec<String> {
    let Answer { plan, cost, topology, .. } = answer;
    // The first line of the plan's own text names both ends.
    let mut lines: Vec<String> = plan.to_string().lines().take(1).map(str::to_string).collect();
    lines.push(String::new());
    match plan.steps().is_empty() {
        true => lines.push("nothing to do: the layouts are equal".to_string()),
        false => lines.extend(table(plan, cost, topology)),
    }
    if plan.exceeds_memory_bound() {
        lines.push(String::new());
        lines.push("a step on the way needs more memory than both ends".to_string());
    }
    if !is_greedy {
        lines.extend([String::new(), comparison(answer)]);
    }
    lines
}

fn table(plan: &Plan, total: &Cost, topology: &Topology) -> Vec<String> {
    let mut table = Table::new(&[
        ("", Align::Right),
        ("step", Align::Left),
        ("over", Align::Left),
        ("gives", Align::Left),
        ("sent per rank", Align::Right),
        ("sent in all", Align::Right),
        ("peak memory", Align::Right),
        ("time", Align::Right),
    ]);
    let mut row = |number: String, what: [String; 3], cost: &Cost| {
        let costs = [
            bytes(cost.bytes_per_rank),
            bytes(cost.bytes_sent as f64),
            bytes(cost.peak_bytes as f64),
            microseconds(cost.time_us()),
        ];
        table.row([number].into_iter().chain(what).chain(costs));
    };
    for (index, step) in plan.steps().iter().enumerate() {
        let what = [step.kind.to_string(), over(step), gives(step)];
        row((index + 1).to_string(), what, &step.cost(topology));
    }
    let calls = count(total.calls, "call");
    row(String::new(), ["total".to_string(), calls, String::new()], total);
    table.lines()
}

/// Names of the axes over which a step communicates.
fn over(step: &Step) -> String {
    match step.axes.is_empty() {
        true => "all ranks".to_string(),
        false => axis_names(step).join(","),
    }
}

fn axis_names(step: &Step) -> Vec<&str> {
    step.axes.iter().map(|axis| step.from.mesh().axes()[*axis].name()).collect()
}

fn gives(step: &Step) -> String {
    match step.from.mesh() == step.to.mesh() {
        true => step.to.to_string(),
        false => format!("{} on {}", step.to, step.to.mesh()),
    }
}

/// One line about PyTorch's plan.
fn comparison(answer: &Answer) -> String {
    let Answer { plan, cost, greedy, .. } = answer;
    match greedy {
        Err(why) => format!("PyTorch's greedy plan: none, {why}"),
        Ok((greedy, _)) if greedy == plan => "PyTorch's greedy plan: the same".to_string(),
        Ok((greedy, greedy_cost)) => {
            let memory = match greedy.exceeds_memory_bound() {
                true => ", above both ends",
                false => "",
            };
            let ratio = match greedy_cost.time_us() > 0.0 && cost.time_us() > 0.0 {
                true => format!(
                    "; this one takes {:.2} x its time",
                    cost.time_us() / greedy_cost.time_us()
                ),
                false => String::new(),
            };
            format!(
                "PyTorch's greedy plan: {}, {}, {} sent per rank, peak {}{memory}, {}{ratio}",
                count(greedy.steps().len(), "step"),
                count(greedy_cost.calls, "call"),
                bytes(greedy_cost.bytes_per_rank),
                bytes(greedy_cost.peak_bytes as f64),
                microseconds(greedy_cost.time_us()),
            )
        }
    }
}
