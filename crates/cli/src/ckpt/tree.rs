//! Tensors as a tree of their dotted names, with totals.

use std::collections::BTreeMap;

use dtensor_checkpoint::TensorEntry;
use dtensor_picture::{
    Align, Table,
    units::{bytes, grouped},
};

use super::names::{NamePart, dtype, parts, printable};

/// A part of names that begin alike.
#[derive(Default)]
pub struct Tree<'c> {
    /// The tensor with just this name.
    tensor: Option<&'c TensorEntry>,
    children: BTreeMap<NamePart, Tree<'c>>,
    tensors: usize,
    bytes: u64,
}

impl<'c> Tree<'c> {
    pub fn new(tensors: impl Iterator<Item = (&'c str, &'c TensorEntry)>) -> Tree<'c> {
        let mut root = Tree::default();
        for (name, entry) in tensors {
            let mut node = &mut root;
            node.count(entry);
            for part in parts(name) {
                node = node.children.entry(part).or_default();
                node.count(entry);
            }
            node.tensor = Some(entry);
        }
        root
    }

    fn count(&mut self, entry: &TensorEntry) {
        self.tensors += 1;
        self.bytes += entry.bytes();
    }

    /// The lines, down to so many parts of names. Parts that have one child are shown as one with it.
    pub fn lines(&self, depth: usize) -> Vec<String> {
        let mut table = Table::new(&[
            ("name", Align::Left),
            ("tensors", Align::Right),
            ("size", Align::Right),
            ("dtype", Align::Left),
            ("shape", Align::Left),
        ]);
        self.rows("", depth, &mut table);
        table.lines()
    }

    fn rows(&self, indent: &str, depth: usize, table: &mut Table) {
        let last = self.children.len().saturating_sub(1);
        for (position, (part, child)) in self.children.iter().enumerate() {
            let (branch, below) =
                if position == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            let (mut name, mut node, mut deep) = (printable(part.text()), child, 1);
            while let (None, 1, Some((part, only))) =
                (node.tensor, node.children.len(), node.children.first_key_value())
                && deep < depth
            {
                name = format!("{name}.{}", printable(part.text()));
                (node, deep) = (only, deep + 1);
            }
            let (dtype, shape) = match node.tensor {
                Some(entry) => (dtype(entry.stored), format!("{:?}", entry.shape)),
                None => (String::new(), String::new()),
            };
            let name = format!("{indent}{branch}{name}");
            table.row([name, grouped(node.tensors), bytes(node.bytes as f64), dtype, shape]);
            if deep < depth {
                node.rows(&format!("{indent}{below}"), depth - deep, table);
            }
        }
    }
}
