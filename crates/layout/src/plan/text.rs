//! The printed form of a plan, and back.
//!
//! ```text
//! f32[13, 8] on dp=2,tp=2: [S(0), P(sum)] -> [R, S(0)]
//!   1. reduce_scatter over tp -> [S(0), S(0)]
//!   2. exchange over dp, tp -> [R, S(0)]
//! ```
//!
//! Where the mesh changes, the target names it: `-> on x=4: [S(0)]`.

use std::{fmt, str::FromStr};

use super::{Plan, Step, StepKind, check, state::Space, volume};
use crate::{Layout, LayoutError, Result, text::bad};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} -> {}", self.from, target(&self.from, &self.to))?;
        for (number, step) in self.steps.iter().enumerate() {
            write!(f, "\n  {}. {step}", number + 1)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        let names: Vec<&str> =
            self.axes.iter().map(|axis| self.from.mesh().axes()[*axis].name()).collect();
        if !names.is_empty() {
            write!(f, " over {}", names.join(", "))?;
        }
        write!(f, " -> {}", target(&self.from, &self.to))
    }
}

impl FromStr for Plan {
    type Err = LayoutError;

    /// Parses what [`Display`](fmt::Display) prints. Every step must be one: the text is checked,
    /// not trusted.
    fn from_str(text: &str) -> Result<Plan> {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let header = lines.next().ok_or_else(|| bad(text, "plan", "it is empty"))?;
        let (from, to) = header
            .split_once(" -> ")
            .ok_or_else(|| bad(header, "plan", "no ` -> ` between two layouts"))?;
        let from: Layout = from.trim().parse()?;
        let to = parse_target(&from, to)?;
        check(&from, &to)?;
        let mut steps: Vec<Step> = Vec::new();
        for line in lines {
            let before = steps.last().map_or(&from, |step| &step.to);
            steps.push(parse_step(before, line)?);
        }
        if *steps.last().map_or(&from, |step| &step.to) != to {
            return Err(bad(text, "plan", "its last step does not lead to its target"));
        }
        Ok(Plan { from, to, steps })
    }
}

fn target(from: &Layout, to: &Layout) -> String {
    match from.mesh() == to.mesh() {
        true => to.to_string(),
        false => format!("on {}: {to}", to.mesh()),
    }
}

fn parse_target(from: &Layout, text: &str) -> Result<Layout> {
    let text = text.trim();
    match text.strip_prefix("on ").and_then(|rest| rest.split_once(": ")) {
        Some((mesh, placements)) => {
            Layout::parse(from.global_shape(), from.dtype(), &mesh.parse()?, placements)
        }
        None => Layout::parse(from.global_shape(), from.dtype(), from.mesh(), text),
    }
}

fn parse_step(before: &Layout, line: &str) -> Result<Step> {
    let bad = |why| bad(line, "step of a plan", why);
    let (_, step) = line.split_once(". ").ok_or_else(|| bad("no number"))?;
    let (what, to) = step.split_once(" -> ").ok_or_else(|| bad("no ` -> ` before its target"))?;
    let (kind, axes) = match what.trim().split_once(" over ") {
        Some((kind, axes)) => (kind.trim(), axes.split(',').map(str::trim).collect()),
        None => (what.trim(), Vec::new()),
    };
    let to = parse_target(before, to)?;
    let mut axes = axes
        .into_iter()
        .map(|axis| before.mesh().axis_index(axis))
        .collect::<Result<Vec<usize>>>()?;
    axes.sort_unstable();
    let found = match before.mesh() == to.mesh() {
        true => {
            let space = Space::new(before, &to);
            let found = volume::classify(&space, &space.state(before), &space.state(&to));
            let (kind, bits) = found.ok_or_else(|| bad("no single step leads there"))?;
            let axes = (0..space.n_axes()).filter(|axis| bits & (1 << axis) != 0).collect();
            Step { kind, axes, from: before.clone(), to }
        }
        false if before.is_partial() || to.is_partial() => {
            return Err(bad("nothing pending can move between meshes"));
        }
        false => Step { kind: StepKind::Exchange, axes: Vec::new(), from: before.clone(), to },
    };
    match found.kind.name() == kind && found.axes == axes {
        true => Ok(found),
        false => Err(bad("the step that leads there is another one")),
    }
}
