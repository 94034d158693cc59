//! From a loss to the leaves.

use std::{collections::BTreeMap, sync::Arc};

use dtensor_layout::DType;
use smallvec::{SmallVec, smallvec};

use super::{
    backward::{Backward, Grads, plus},
    enable_grad,
    gradients::Gradients,
    layouts::{aligned, dual},
    leads::Leads,
    no_grad,
    node::{Edge, Node, What},
};
use crate::{DTensor, Error, Placement, Result, debug, ones};

/// How [`DTensor::backward_with`] goes.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct BackwardOptions {
    /// Keep the graph, to walk it once more. Otherwise what it held is freed on the way.
    pub retain_graph: bool,
    /// Remember how the gradients were computed, for gradients of gradients. Keeps the graph as well.
    pub create_graph: bool,
    /// Leave the gradients of leaves in the layouts in which they arrive, pending sums included: for several parts of a
    /// batch that are added before anything is sent.
    pub unreduced: bool,
    /// The gradient of the tensor from which the walk begins; one, if it has one element.
    pub gradient: Option<DTensor>,
}

impl BackwardOptions {
    /// With [`retain_graph`](BackwardOptions::retain_graph).
    #[must_use]
    pub fn retain_graph(mut self) -> BackwardOptions {
        self.retain_graph = true;
        self
    }

    /// With [`create_graph`](BackwardOptions::create_graph).
    #[must_use]
    pub fn create_graph(mut self) -> BackwardOptions {
        self.create_graph = true;
        self
    }

    /// With [`unreduced`](BackwardOptions::unreduced).
    #[must_use]
    pub fn unreduced(mut self) -> BackwardOptions {
        self.unreduced = true;
        self
    }

    /// With the gradient to begin from.
    #[must_use]
    pub fn gradient(mut self, gradient: &DTensor) -> BackwardOptions {
        self.gradient = Some(gradient.clone());
        self
    }
}

impl DTensor {
    /// The gradients of this tensor, which has one element, with respect to all leaves that it was computed from.
    ///
    /// What the graph kept is freed on the way. All ranks of the mesh call it.
    pub fn backward(&self) -> Result<Gradients> {
        self.backward_with(&BackwardOptions::default())
    }

    /// As [`backward`](DTensor::backward), with options.
    pub fn backward_with(&self, options: &BackwardOptions) -> Result<Gradients> {
        let mut walk = Walk::new(options);
        walk.begin(self)?;
        walk.run()?;
        Ok(walk.found)
    }
}

/// The gradients of `of` with respect to some tensors, which need not be leaves; `None` where it does not depend on one.
/// As `torch.autograd.grad`: what does not lead to them is not looked at, be there a gradient or not.
///
/// ```
/// use dtensor::{BackwardOptions, DeviceMesh, Placement::Shard, Runner, full, grad};
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "x")?;
///     let x = full(&[3], 2.0_f64, &mesh, &[Shard(0)])?.requires_grad()?;
///     let cubes = x.mul(&x)?.mul(&x)?.sum(&[], false)?;
///     let first = grad(&cubes, &[&x], &BackwardOptions::default().create_graph())?;
///     let slope = first[0].as_ref().unwrap();
///     assert_eq!(slope.to_vec::<f64>()?, [12.0; 3]);                       // 3 x^2
///     let second = grad(&slope.sum(&[], false)?, &[&x], &BackwardOptions::default())?;
///     assert_eq!(second[0].as_ref().unwrap().to_vec::<f64>()?, [12.0; 3]); // 6 x
///     Ok::<_, dtensor::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn grad(
    of: &DTensor,
    with_respect_to: &[&DTensor],
    options: &BackwardOptions,
) -> Result<Vec<Option<DTensor>>> {
    let mut walk = Walk::new(options);
    for tensor in with_respect_to {
        let edge = tensor.edge().ok_or_else(|| no_graph("grad"))?;
        walk.wanted.insert((edge.id(), edge.result), None);
    }
    walk.leads = Some(Leads::to(walk.wanted.keys().map(|(id, _)| *id)));
    walk.begin(of)?;
    walk.run()?;
    let found = |tensor: &&DTensor| {
        let edge = tensor.edge()?;
        walk.wanted.get(&(edge.id(), edge.result)).cloned().flatten()
    };
    Ok(with_respect_to.iter().map(found).collect())
}

/// Gradients of the results of a node, as far as they have come.
type Arrived = SmallVec<[Option<DTensor>; 1]>;

/// A node whose gradients have arrived in part.
struct Waiting {
    edge: Edge,
    grads: Arrived,
    /// Where the first of them came from. What is done to bring a gradient to a leaf, which was made outside of all
    /// modules, belongs to the module that computed it.
    from: Option<Arc<str>>,
}

struct Walk<'a> {
    options: &'a BackwardOptions,
    /// By number.
    waiting: BTreeMap<u64, Waiting>,
    found: Gradients,
    wanted: BTreeMap<(u64, usize), Option<DTensor>>,
    /// In which dtype the gradient of a leaf would have been sent, if it is left unreduced and all contributions agree.
    sent_in: BTreeMap<u64, Option<DType>>,
    /// Where it has to go, if not everywhere.
    leads: Option<Leads>,
}

impl<'a> Walk<'a> {
    fn new(options: &'a BackwardOptions) -> Walk<'a> {
        Walk {
            options,
            waiting: BTreeMap::new(),
            found: Gradients::default(),
            wanted: BTreeMap::new(),
            sent_in: BTreeMap::new(),
            leads: None,
        }
    }

    fn begin(&mut self, of: &DTensor) -> Result<()> {
        let edge = of.edge().ok_or_else(|| no_graph("backward"))?;
        let gradient = match &self.options.gradient {
            Some(gradient) if gradient.shape() != of.shape() => {
                let what = format!(
                    "a gradient of shape {:?} for a tensor of shape {:?}",
                    gradient.shape(),
                    of.shape()
                );
                let way_out = "give one of the same shape";
                return Err(Error::Unsupported { op: "backward", what: what.into(), way_out });
            }
            Some(gradient) => gradient.clone(),
            None if of.numel() != 1 => {
                let what = format!("a tensor of shape {:?} is no loss", of.shape());
                let way_out = "sum it, or give the gradient to begin from";
                return Err(Error::Unsupported { op: "backward", what: what.into(), way_out });
            }
            None => {
                let copies = vec![Placement::Replicate; of.mesh().n_axes()];
                ones(of.shape(), of.dtype(), of.mesh(), &copies)?
            }
        };
        self.set_out(edge, gradient)
    }

    /// A gradient comes to a part of the graph that is not known yet.
    fn set_out(&mut self, edge: &Edge, gradient: DTensor) -> Result<()> {
        if let Some(leads) = &mut self.leads {
            leads.explore(edge);
        }
        self.arrive(edge, gradient)
    }

    fn run(&mut self) -> Result<()> {
        let creates = self.options.create_graph;
        debug::in_backward(|| match creates {
            true => enable_grad(|| self.visit_all()),
            false => no_grad(|| self.visit_all()),
        })
    }

    fn visit_all(&mut self) -> Result<()> {
        while let Some((_, Waiting { edge, grads, from })) = self.waiting.pop_last() {
            let module = if edge.is_leaf() { from } else { edge.node.module.clone() };
            debug::in_module(module, || self.visit(&edge, grads))?;
        }
        Ok(())
    }

    fn visit(&mut self, edge: &Edge, mut grads: Arrived) -> Result<()> {
        let node = &*edge.node;
        for (number, (grad, placed)) in grads.iter_mut().zip(&node.results).enumerate() {
            if let Some(arrived) = grad.take() {
                let stays = self.options.unreduced && matches!(node.what, What::Leaf);
                *grad = Some(if stays { arrived } else { aligned(arrived, &placed.layout)? });
                if let Some(wanted) = self.wanted.get_mut(&(node.id, number)) {
                    wanted.clone_from(grad);
                }
            }
        }
        if !edge.is_leaf() && self.leads.as_ref().is_some_and(|leads| !leads.leads_on(node)) {
            return Ok(());
        }
        let step = match &node.what {
            What::Leaf => return self.leaf(edge, grads),
            What::Wall(op) => return Err(Error::NoGradient { op }),
            What::Step(step) => step,
        };
        let kept_ref = node.kept(self.options.retain_graph || self.options.create_graph)?;
        let Some(kept) = kept_ref.get() else { return Err(Error::GraphFreed { op: node.name() }) };
        let unreduced = self.options.unreduced;
        let leads = self.leads.as_ref();
        let backward = Backward { edge, kept, grads: &grads, unreduced, leads };
        if let Some(results) = step.again(&backward) {
            let results = results?;
            drop(kept_ref);
            // What was computed just now has larger numbers than all that waits, and comes first.
            for (result, grad) in results.iter().zip(grads) {
                if let (Some(edge), Some(grad)) = (result.edge(), grad) {
                    self.set_out(edge, grad)?;
                }
            }
            return Ok(());
        }
        let of_operands = step.gradient(&backward)?;
        kept_ref.passed();
        drop(kept_ref);
        drop(grads);
        self.pass_on(node, of_operands)
    }

    fn pass_on(&mut self, node: &Node, of_operands: Grads) -> Result<()> {
        if of_operands.len() != node.inputs.len() {
            let what =
                format!("{} gradients for {} operands", of_operands.len(), node.inputs.len());
            let way_out = "its gradient must give one for each, or None";
            return Err(Error::Unsupported { op: node.name(), what: what.into(), way_out });
        }
        for ((gradient, input), placed) in
            of_operands.into_iter().zip(&node.inputs).zip(&node.operands)
        {
            let (Some(gradient), Some(input)) = (gradient, input) else { continue };
            let gradient = gradient.sum_to(placed.layout.global_shape())?;
            let gradient = gradient.cast_as_it_lies(node.name(), placed.layout.dtype())?;
            if self.options.unreduced && input.is_leaf() {
                let sent_in = node.sent_in();
                let known = self.sent_in.entry(input.id()).or_insert(sent_in);
                *known = known.filter(|dtype| sent_in == Some(*dtype));
            }
            self.arrive(input, gradient)?;
        }
        Ok(())
    }

    fn leaf(&mut self, edge: &Edge, mut grads: Arrived) -> Result<()> {
        let Some(gradient) = grads.pop().flatten() else { return Ok(()) };
        let home = dual(&edge.node.results[0].layout)?;
        let gradient = match self.options.unreduced {
            true => gradient,
            false => gradient.redistribute_as("backward", &home)?,
        };
        if let Some(wanted) = self.wanted.get_mut(&(edge.node.id, 0)) {
            *wanted = Some(gradient.clone());
        }
        let sent_in = self.sent_in.remove(&edge.id()).flatten();
        self.found.put(edge, gradient, home, sent_in);
        Ok(())
    }

    /// A gradient comes to where a tensor was made, and is added to those that have come.
    fn arrive(&mut self, edge: &Edge, gradient: DTensor) -> Result<()> {
        if self.leads.as_ref().is_some_and(|leads| !leads.from(edge)) {
            return Ok(());
        }
        let waiting = self.waiting.entry(edge.id()).or_insert_with(|| Waiting {
            edge: edge.clone(),
            grads: smallvec![None; edge.node.results.len()],
            from: debug::module(),
        });
        let place = &mut waiting.grads[edge.result];
        *place = Some(plus(place.take(), gradient)?);
        Ok(())
    }
}

fn no_graph(op: &'static str) -> Error {
    Error::Unsupported {
        op,
        what: "the tensor was not computed from one that requires a gradient".into(),
        way_out: "call requires_grad on a leaf, and compute outside of no_grad",
    }
}
