//! Which way a walk has to go.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::node::{Edge, Node};

/// The nodes from which a way leads to tensors that were asked for. A walk that goes nowhere else computes less, and is not
/// stopped by an operation without a gradient that lies elsewhere.
pub(super) struct Leads {
    wanted: BTreeSet<u64>,
    known: BTreeMap<u64, bool>,
}

impl Leads {
    /// To the nodes with these numbers. Nothing leads there before it is [explored](Leads::explore).
    pub(super) fn to(wanted: impl Iterator<Item = u64>) -> Leads {
        Leads { wanted: wanted.collect(), known: BTreeMap::new() }
    }

    /// Looks at everything that a tensor was computed from.
    pub(super) fn explore(&mut self, from: &Edge) {
        let mut new: BTreeMap<u64, Arc<Node>> = BTreeMap::new();
        let mut todo = vec![from.node.clone()];
        while let Some(node) = todo.pop() {
            if !self.known.contains_key(&node.id) && !new.contains_key(&node.id) {
                todo.extend(node.inputs.iter().flatten().map(|input| input.node.clone()));
                new.insert(node.id, node);
            }
        }
        // From the smallest number on: what a node was computed from comes before it.
        for (id, node) in new {
            let leads = self.wanted.contains(&id) || self.leads_on(&node);
            self.known.insert(id, leads);
        }
    }

    /// Whether a way leads there from a tensor.
    pub(super) fn from(&self, edge: &Edge) -> bool {
        self.known.get(&edge.id()).copied().unwrap_or(false)
    }

    /// Whether a way leads there beyond a node. What is computed again may use anything: that is seen when it is.
    pub(super) fn leads_on(&self, node: &Node) -> bool {
        node.runs_again() || node.inputs.iter().flatten().any(|input| self.from(input))
    }
}
