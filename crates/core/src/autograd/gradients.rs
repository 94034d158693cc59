//! What a walk from a loss found.

use std::{collections::BTreeMap, fmt};

use dtensor_layout::Layout;

use super::node::Edge;
use crate::{DTensor, Result};

/// Gradients of a loss with respect to leaves. Each is in the layout of its leaf, or, where a leaf is a pending sum, a
/// copy on every rank.
#[derive(Clone, Default)]
pub struct Gradients {
    /// By the number of the leaf's node.
    by_leaf: BTreeMap<u64, Found>,
}

/// A gradient, and the layout in which it is at home.
#[derive(Clone)]
struct Found {
    gradient: DTensor,
    home: Layout,
}

impl Gradients {
    /// The gradient with respect to a leaf; `None` if the loss does not depend on it.
    pub fn get(&self, leaf: &DTensor) -> Option<&DTensor> {
        self.by_leaf.get(&leaf.edge()?.id()).map(|found| &found.gradient)
    }

    /// The same, taken out.
    pub fn remove(&mut self, leaf: &DTensor) -> Option<DTensor> {
        self.by_leaf.remove(&leaf.edge()?.id()).map(|found| found.gradient)
    }

    /// Puts another gradient in the place of one, a clipped one for example. Nothing happens if `leaf` is no leaf.
    pub fn insert(&mut self, leaf: &DTensor, gradient: DTensor) {
        if let Some(edge) = leaf.edge() {
            let home = gradient.layout().clone();
            self.by_leaf.insert(edge.id(), Found { gradient, home });
        }
    }

    /// Adds the gradients of another loss, of the next part of a batch for example.
    pub fn accumulate(&mut self, others: Gradients) -> Result<()> {
        // In the order in which the leaves were made, which is the same on every rank: an addition may communicate.
        for (id, other) in others.by_leaf {
            let found = match self.by_leaf.remove(&id) {
                Some(before) => {
                    Found { gradient: before.gradient.add(&other.gradient)?, home: before.home }
                }
                None => other,
            };
            self.by_leaf.insert(id, found);
        }
        Ok(())
    }

    /// Brings gradients that were left [unreduced](crate::BackwardOptions::unreduced) to the layouts of their leaves.
    pub fn reduce(&mut self) -> Result<()> {
        for found in self.by_leaf.values_mut() {
            found.gradient = found.gradient.redistribute_as("backward", &found.home)?;
        }
        Ok(())
    }

    /// Number of leaves that have a gradient.
    pub fn len(&self) -> usize {
        self.by_leaf.len()
    }

    /// Whether the loss depends on no leaf.
    pub fn is_empty(&self) -> bool {
        self.by_leaf.is_empty()
    }

    pub(super) fn put(&mut self, edge: &Edge, gradient: DTensor, home: Layout) {
        self.by_leaf.insert(edge.id(), Found { gradient, home });
    }
}

impl fmt::Debug for Gradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gradients of {} leaves", self.len())
    }
}
