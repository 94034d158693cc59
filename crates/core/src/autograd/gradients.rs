//! What a walk from a loss found.

use std::{collections::HashMap, fmt};

use super::node::Edge;
use crate::{DTensor, Result};

/// Gradients of a loss with respect to leaves. Each is in the layout of its leaf, or, where a leaf is a pending sum, a
/// copy on every rank.
#[derive(Clone, Default)]
pub struct Gradients {
    /// By the number of the leaf's node.
    by_leaf: HashMap<u64, DTensor>,
}

impl Gradients {
    /// The gradient with respect to a leaf; `None` if the loss does not depend on it.
    pub fn get(&self, leaf: &DTensor) -> Option<&DTensor> {
        self.by_leaf.get(&leaf.edge()?.id())
    }

    /// The same, taken out.
    pub fn remove(&mut self, leaf: &DTensor) -> Option<DTensor> {
        self.by_leaf.remove(&leaf.edge()?.id())
    }

    /// Puts another gradient in the place of one, a clipped one for example. Nothing happens if `leaf` is no leaf.
    pub fn insert(&mut self, leaf: &DTensor, gradient: DTensor) {
        if let Some(edge) = leaf.edge() {
            self.by_leaf.insert(edge.id(), gradient);
        }
    }

    /// Adds the gradients of another loss, of the next part of a batch for example.
    pub fn accumulate(&mut self, others: Gradients) -> Result<()> {
        // In the order in which the leaves were made, which is the same on every rank: an addition may communicate.
        let mut others: Vec<(u64, DTensor)> = others.by_leaf.into_iter().collect();
        others.sort_unstable_by_key(|(id, _)| *id);
        for (id, gradient) in others {
            let sum = match self.by_leaf.get(&id) {
                Some(before) => before.add(&gradient)?,
                None => gradient,
            };
            self.by_leaf.insert(id, sum);
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

    pub(super) fn put(&mut self, edge: &Edge, gradient: DTensor) {
        self.by_leaf.insert(edge.id(), gradient);
    }
}

impl fmt::Debug for Gradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gradients of {} leaves", self.len())
    }
}
