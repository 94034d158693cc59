//! What is saved and loaded: tensors and values by name.

use std::collections::{HashMap, hash_map};

use dtensor::DTensor;

use crate::{Error, Result, Value};

/// Tensors and values by name, in the order in which they were put in. The parts of nested things have dotted names.
///
/// Every rank has the same names in the same order; tensors lie on meshes of one world.
#[derive(Clone, Debug, Default)]
pub struct State {
    entries: Vec<(String, Entry)>,
    positions: HashMap<String, usize>,
}

/// What a name in a [`State`] stands for.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A tensor; each rank saves what it holds.
    Tensor(DTensor),
    /// A value that is the same on every rank.
    Value(Value),
}

impl State {
    /// Nothing yet.
    pub fn new() -> State {
        State::default()
    }

    /// Adds an entry. A name that is there already is an error: with dots, two different paths can mean one name.
    pub fn insert(&mut self, name: impl Into<String>, entry: impl Into<Entry>) -> Result<()> {
        let name = name.into();
        match self.positions.entry(name.clone()) {
            hash_map::Entry::Occupied(_) => Err(Error::Twice { name }),
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(self.entries.len());
                self.entries.push((name, entry.into()));
                Ok(())
            }
        }
    }

    /// Tensors by name, such as a module lists them.
    pub fn from_tensors<N: Into<String>>(
        tensors: impl IntoIterator<Item = (N, DTensor)>,
    ) -> Result<State> {
        let mut state = State::new();
        tensors.into_iter().try_for_each(|(name, tensor)| state.insert(name, tensor))?;
        Ok(state)
    }

    /// Its tensors by name, in order; what is no tensor is left out.
    pub fn tensors(&self) -> impl Iterator<Item = (String, DTensor)> + '_ {
        self.iter().filter_map(|(name, entry)| match entry {
            Entry::Tensor(tensor) => Some((name.to_owned(), tensor.clone())),
            Entry::Value(_) => None,
        })
    }

    /// Adds all entries of another state, with `prefix` and a dot before their names.
    pub fn insert_all(&mut self, prefix: &str, other: State) -> Result<()> {
        for (name, entry) in other.entries {
            self.insert(format!("{prefix}.{name}"), entry)?;
        }
        Ok(())
    }

    /// The entries whose names begin with `prefix` and a dot, without that.
    pub fn part(&self, prefix: &str) -> State {
        let mut part = State::new();
        for (name, entry) in &self.entries {
            if let Some(rest) = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.')) {
                part.positions.insert(rest.to_owned(), part.entries.len());
                part.entries.push((rest.to_owned(), entry.clone()));
            }
        }
        part
    }

    /// The entry with this name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.positions.get(name).map(|&position| &self.entries[position].1)
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&DTensor> {
        match self.get(name)? {
            Entry::Tensor(tensor) => Some(tensor),
            Entry::Value(_) => None,
        }
    }

    /// The value with this name.
    pub fn value(&self, name: &str) -> Option<&Value> {
        match self.get(name)? {
            Entry::Value(value) => Some(value),
            Entry::Tensor(_) => None,
        }
    }

    /// The entries in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// The entries in order, to be changed.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = (&str, &mut Entry)> {
        self.entries.iter_mut().map(|(name, entry)| (name.as_str(), entry))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl IntoIterator for State {
    type Item = (String, Entry);
    type IntoIter = std::vec::IntoIter<(String, Entry)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

impl From<DTensor> for Entry {
    fn from(tensor: DTensor) -> Entry {
        Entry::Tensor(tensor)
    }
}

impl<V: Into<Value>> From<V> for Entry {
    fn from(value: V) -> Entry {
        Entry::Value(value.into())
    }
}
