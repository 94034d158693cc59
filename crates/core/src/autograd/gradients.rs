//! What a walk from a loss found.

use std::{collections::BTreeMap, fmt};

use dtensor_layout::{DType, Layout};

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
    /// What it is sent in on the way there, if not its own dtype.
    sent_in: Option<DType>,
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
            self.by_leaf.insert(edge.id(), Found { gradient, home, sent_in: None });
        }
    }

    /// Adds the gradients of another loss, of the next part of a batch for example.
    pub fn accumulate(&mut self, others: Gradients) -> Result<()> {
        // In the order in which the leaves were made, which is the same on every rank: an addition may communicate.
        for (id, other) in others.by_leaf {
            let found = match self.by_leaf.remove(&id) {
                Some(before) => Found {
                    gradient: before.gradient.add(&other.gradient)?,
                    home: before.home,
                    // What one loss wants in full is not rounded for another.
                    sent_in: before.sent_in.filter(|dtype| other.sent_in == Some(*dtype)),
                },
                None => other,
            };
            self.by_leaf.insert(id, found);
        }
        Ok(())
    }

    /// Brings gradients that were left [unreduced](crate::BackwardOptions::unreduced) to the layouts of their leaves, in the
    /// dtypes in which each walk would have sent them.
    pub fn reduce(&mut self) -> Result<()> {
        const OP: &str = "backward";
        for found in self.by_leaf.values_mut() {
            let dtype = found.sent_in.unwrap_or(found.home.dtype());
            let there = found.gradient.brought_in(OP, &found.home, dtype)?;
            found.gradient = there.cast_as_it_lies(OP, found.home.dtype())?;
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

    pub(super) fn put(
        &mut self,
        edge: &Edge,
        gradient: DTensor,
        home: Layout,
        sent_in: Option<DType>,
    ) {
        self.by_leaf.insert(edge.id(), Found { gradient, home, sent_in });
    }
}

impl fmt::Debug for Gradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gradients of {} leaves", self.len())
    }
}
