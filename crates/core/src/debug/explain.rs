//! Why an operation does what it does.

use std::{cell::RefCell, fmt};

use dtensor_layout::{
    Layout,
    plan::Plan,
    rule::{Row, Rule},
};

use crate::{
    DTensor, Error, Result,
    dispatch::choose::{choose, consider},
    op::{Meta, Op},
};

/// What was considered for an operation on operands in given layouts, and what was chosen.
///
/// Prints as a text. See [`explain`] and [`explain_calls`].
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The operation.
    pub op: &'static str,
    /// How it may be cut.
    pub rule: Rule,
    /// Its operands: where they lie, and the plan that takes them to where they are needed.
    pub operands: Vec<(Layout, Plan)>,
    /// Per mesh axis the rows that it could take, the cheapest first.
    pub axes: Vec<AxisRows>,
    /// Where the results will lie.
    pub results: Vec<Layout>,
    /// Whether it is done in several steps instead, because a dim is cut that the kernel needs whole.
    pub in_steps: bool,
}

/// The rows that one mesh axis could take.
#[derive(Clone, Debug)]
pub struct AxisRows {
    /// Name of the axis.
    pub axis: String,
    /// The rows, the cheapest first.
    pub rows: Vec<RowCost>,
}

/// A row, and what it would cost on its axis.
#[derive(Clone, Debug)]
pub struct RowCost {
    /// The row.
    pub row: Row,
    /// Bytes that a rank would receive, on average.
    pub bytes: f64,
    /// Calls.
    pub calls: u32,
    /// Whether the axis takes it. Not always the cheapest: what the axes take must hold together.
    pub taken: bool,
}

/// What an operation does with operands in these layouts, and why. Nothing is computed or sent, and no
/// world is needed.
///
/// ```
/// use dtensor::{DType, Layout, Mesh, explain, ops};
///
/// let mesh = Mesh::new(&[("tp", 4)])?;
/// let x = Layout::parse(&[512, 1024], DType::F32, &mesh, "[S(1)]")?;
/// let w = Layout::parse(&[1024, 2048], DType::F32, &mesh, "[S(0)]")?;
/// let matmul = (ops::ops().find(|op| op.name == "matmul").unwrap().samples)().remove(0).op;
/// let why = explain(&*matmul, &[&x, &w])?;
/// assert_eq!(why.results[0].to_string(), "[P(sum)]");
/// assert!(why.to_string().contains("* S(1) S(0) -> P(sum)"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn explain(op: &dyn Op, operands: &[&Layout]) -> Result<Explanation> {
    let name = op.name();
    let Some(mesh) = operands.first().map(|layout| layout.mesh()) else {
        return Err(Error::Unsupported {
            op: name,
            what: "it has no operands".into(),
            way_out: "give the layout of each",
        });
    };
    let metas: Vec<Meta> = operands.iter().map(|layout| Meta::of_layout(layout)).collect();
    let results = op.infer(&metas)?;
    let rule = op.rule(&metas)?;
    let considered = consider(name, &rule, operands, &results)?;
    let choice = choose(name, &rule, operands, &results, op.needs_offsets())?;
    let axes = considered.axes.iter().zip(&considered.taken).zip(mesh.axes()).map(
        |((candidates, taken), axis)| AxisRows {
            axis: axis.name().to_string(),
            rows: candidates
                .iter()
                .map(|candidate| RowCost {
                    row: considered.choices.rows()[candidate.row].clone(),
                    bytes: candidate.cost.bytes,
                    calls: candidate.cost.calls,
                    taken: candidate.row == *taken,
                })
                .collect(),
        },
    );
    let axes = axes.collect();
    let plans = operands.iter().zip(&choice.operands).map(|(from, to)| {
        let plan = Plan::new(from, to).map_err(Error::layout(name))?;
        Ok(((*from).clone(), plan))
    });
    Ok(Explanation {
        op: name,
        rule,
        operands: plans.collect::<Result<Vec<_>>>()?,
        axes,
        results: choice.results,
        in_steps: op.decomposes(operands),
    })
}

/// Runs `body`, and explains every operation that it called on this rank, those inside of others after
/// them.
pub fn explain_calls<T>(body: impl FnOnce() -> T) -> (T, Vec<Explanation>) {
    struct Scope(Option<Vec<Explanation>>);
    impl Drop for Scope {
        fn drop(&mut self) {
            CALLS.set(self.0.take());
            super::watch();
        }
    }
    let scope = Scope(CALLS.replace(Some(Vec::new())));
    super::watch();
    let result = body();
    let calls = CALLS.take().unwrap_or_default();
    drop(scope);
    (result, calls)
}

thread_local! {
    /// There while somebody wants to know.
    static CALLS: RefCell<Option<Vec<Explanation>>> = const { RefCell::new(None) };
}

pub(super) fn is_listening() -> bool {
    CALLS.with_borrow(Option::is_some)
}

pub(super) fn called(op: &dyn Op, operands: &[&DTensor]) {
    if !is_listening() {
        return;
    }
    let layouts: Vec<&Layout> = operands.iter().map(|operand| operand.layout()).collect();
    // What cannot be explained fails in the call itself, with the same error.
    if let Ok(explanation) = explain(op, &layouts) {
        CALLS.with_borrow_mut(|calls| {
            calls.iter_mut().for_each(|calls| calls.push(explanation.clone()))
        });
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.op, self.rule)?;
        for (number, (layout, _)) in self.operands.iter().enumerate() {
            writeln!(f, "  operand {number}: {layout:?}")?;
        }
        if self.in_steps {
            writeln!(f, "  done in steps: a dim is cut that the kernel needs whole")?;
        }
        for AxisRows { axis, rows } in &self.axes {
            writeln!(f, "  axis {axis}:")?;
            for RowCost { row, bytes, calls, taken } in rows {
                let mark = if *taken { '*' } else { ' ' };
                writeln!(f, "  {mark} {row}: {bytes:.0} bytes per rank, {calls} calls")?;
            }
        }
        for (number, (_, plan)) in self.operands.iter().enumerate() {
            if !plan.steps().is_empty() && !self.in_steps {
                writeln!(f, "  operand {number}: {}", plan.to_string().replace('\n', "\n  "))?;
            }
        }
        for (number, layout) in self.results.iter().enumerate() {
            let newline = if number == 0 { "" } else { "\n" };
            write!(f, "{newline}  result {number}: {layout:?}")?;
        }
        Ok(())
    }
}
