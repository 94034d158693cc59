//! The graph of what was computed.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use dtensor_layout::{DType, Layout};
use smallvec::SmallVec;

use super::{
    backward::{Backward, Grads},
    is_grad_enabled,
    keep::{Keep, Kept, Saved},
    no_grad,
};
use crate::{
    DTensor, DeviceMesh, Error, Result, debug,
    op::{Op, Outputs},
};

/// Something that gradients pass through: an operation, or a change of layout.
pub(crate) trait Step: Send + Sync {
    /// For messages.
    fn name(&self) -> &'static str;
    /// Gradients of the operands from those of the results.
    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads>;
    /// The results computed once more, to go on through what they are computed from, instead of
    /// [`gradient`](Step::gradient).
    fn again(&self, backward: &Backward<'_>) -> Option<Result<Outputs<DTensor>>> {
        let _ = backward;
        None
    }
    /// Whether [`again`](Step::again) gives something.
    fn runs_again(&self) -> bool {
        false
    }
    /// The dtype in which gradients that were left [unreduced](super::BackwardOptions::unreduced) are sent.
    fn sent_in(&self) -> Option<DType> {
        None
    }
}

/// Where a tensor came from: a result of a node. Its gradient goes there.
#[derive(Clone)]
pub(crate) struct Edge {
    pub(super) node: Arc<Node>,
    pub(super) result: usize,
}

/// Something that was computed, or a leaf.
pub(super) struct Node {
    /// Ascends: what was computed later has a larger one, and gradients are there before they are needed if nodes are
    /// visited from the largest on.
    pub(super) id: u64,
    pub(super) what: What,
    /// One per operand: where its gradient goes, if it needs one.
    pub(super) inputs: SmallVec<[Option<Edge>; 2]>,
    pub(super) operands: SmallVec<[Placed; 2]>,
    pub(super) results: SmallVec<[Placed; 1]>,
    /// `None` once a walk has been here.
    pub(super) kept: Mutex<Option<Kept>>,
    /// The module that was running.
    pub(super) module: Option<Arc<str>>,
}

/// Shape, dtype and place of an operand or a result.
pub(super) struct Placed {
    pub(super) layout: Layout,
    pub(super) mesh: DeviceMesh,
}

pub(super) enum What {
    Leaf,
    Step(Box<dyn Step>),
    /// No gradient passes through this operation.
    Wall(&'static str),
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// Whether an operation on these operands is remembered.
#[inline]
pub(crate) fn is_recorded(operands: &[&DTensor]) -> bool {
    operands.iter().any(|operand| operand.needs_grad()) && is_grad_enabled()
}

/// Runs an operation, and remembers it. What it does inside is not remembered: its gradient has a formula of its own.
#[cold]
pub(crate) fn recorded(
    op: &dyn Op,
    operands: &[&DTensor],
    run: impl FnOnce() -> Result<Outputs<DTensor>>,
) -> Result<Outputs<DTensor>> {
    let results = no_grad(run)?;
    if results.iter().all(|result| !result.dtype().is_float()) {
        return Ok(results);
    }
    Ok(match op.keeps() {
        Some(keep) => attach(Box::new(OpStep(op.boxed())), keep, operands, results),
        None => attached(What::Wall(op.name()), Keep::NOTHING, operands, results),
    })
}

/// The results of a step, from which the way leads back to its operands.
pub(crate) fn attach(
    step: Box<dyn Step>,
    keep: Keep,
    operands: &[&DTensor],
    results: Outputs<DTensor>,
) -> Outputs<DTensor> {
    attached(What::Step(step), keep, operands, results)
}

fn attached(
    what: What,
    keep: Keep,
    operands: &[&DTensor],
    results: Outputs<DTensor>,
) -> Outputs<DTensor> {
    let of_operand = |(number, operand): (usize, &&DTensor)| {
        keep.keeps_operand_of(number, operands).then(|| Saved::of(operand))
    };
    let of_result =
        |(number, result): (usize, &DTensor)| keep.keeps_result(number).then(|| result.detach());
    let kept = Kept {
        operands: operands.iter().enumerate().map(of_operand).collect(),
        results: results.iter().enumerate().map(of_result).collect(),
    };
    let node = Arc::new(Node {
        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        what,
        inputs: operands.iter().map(|operand| operand.edge().cloned()).collect(),
        operands: operands.iter().map(|operand| Placed::of(operand)).collect(),
        results: results.iter().map(Placed::of).collect(),
        kept: Mutex::new(Some(kept)),
        module: debug::module(),
    });
    let edge = |(result, tensor): (usize, DTensor)| match tensor.dtype().is_float() {
        true => tensor.with_edge(Edge { node: node.clone(), result }),
        false => tensor,
    };
    results.into_iter().enumerate().map(edge).collect()
}

struct OpStep(Box<dyn Op>);

impl Step for OpStep {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        self.0.gradient(backward)
    }
}

impl Edge {
    pub(super) fn leaf(tensor: &DTensor) -> Edge {
        let node = Node {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            what: What::Leaf,
            inputs: SmallVec::new(),
            operands: SmallVec::new(),
            results: [Placed::of(tensor)].into_iter().collect(),
            kept: Mutex::new(None),
            module: None,
        };
        Edge { node: Arc::new(node), result: 0 }
    }

    pub(super) fn is_leaf(&self) -> bool {
        matches!(self.node.what, What::Leaf)
    }

    pub(super) fn id(&self) -> u64 {
        self.node.id
    }
}

impl Placed {
    fn of(tensor: &DTensor) -> Placed {
        Placed { layout: tensor.layout().clone(), mesh: tensor.mesh().clone() }
    }
}

impl Node {
    pub(super) fn name(&self) -> &'static str {
        match &self.what {
            What::Leaf => "leaf",
            What::Step(step) => step.name(),
            What::Wall(op) => op,
        }
    }

    pub(super) fn runs_again(&self) -> bool {
        matches!(&self.what, What::Step(step) if step.runs_again())
    }

    pub(super) fn sent_in(&self) -> Option<DType> {
        match &self.what {
            What::Step(step) => step.sent_in(),
            What::Leaf | What::Wall(_) => None,
        }
    }

    /// What it kept: taken, unless the graph is to be walked again.
    pub(super) fn kept(&self, retain: bool) -> Result<KeptRef<'_>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // Where nothing is kept there is nothing to free, and a second walk finds what the first did.
        match retain || kept.as_ref().is_some_and(Kept::is_empty) {
            true if kept.is_some() => Ok(KeptRef::Shared(kept)),
            _ => kept.take().map(KeptRef::Own).ok_or(Error::GraphFreed { op: self.name() }),
        }
    }
}

/// What a node kept, for a walk.
pub(super) enum KeptRef<'a> {
    Own(Kept),
    Shared(std::sync::MutexGuard<'a, Option<Kept>>),
}

impl KeptRef<'_> {
    pub(super) fn get(&self) -> Option<&Kept> {
        match self {
            KeptRef::Own(kept) => Some(kept),
            KeptRef::Shared(kept) => kept.as_ref(),
        }
    }

    /// The gradient is computed. What stays is told so.
    pub(super) fn passed(&self) {
        if let KeptRef::Shared(kept) = self
            && let Some(kept) = &**kept
        {
            kept.passed();
        }
    }
}

impl fmt::Debug for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "result {} of {} #{}", self.result, self.node.name(), self.node.id)
    }
}

/// A long chain is taken apart link by link: one after the other within each other's `drop`, they would use up the
/// stack.
impl Drop for Node {
    fn drop(&mut self) {
        let mut edges: Vec<Edge> = Vec::new();
        self.dismantle(&mut edges);
        while let Some(edge) = edges.pop() {
            if let Some(mut node) = Arc::into_inner(edge.node) {
                node.dismantle(&mut edges);
            }
        }
    }
}

impl Node {
    fn dismantle(&mut self, edges: &mut Vec<Edge>) {
        edges.extend(self.inputs.drain(..).flatten());
        let kept = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let operands = kept.into_iter().flat_map(|kept| kept.operands).flatten();
        edges.extend(operands.filter_map(|saved| match saved {
            Saved::Tensor(tensor) => tensor.into_edge(),
            Saved::Again(_) => None,
        }));
    }
}
