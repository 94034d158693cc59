//! Lists and dicts of tensors and values, which are flattened on their way into a state.

use crate::{Entry, Error, Result, State, Value};

/// As deep as lists and dicts may be nested; readers go no deeper either.
const MAX_DEPTH: usize = 64;

/// A tensor or a value, or a list or a dict of such. In a [`State`] its parts have dotted names, as they have in PyTorch's
/// checkpoints: `optimizer.groups.0.lr`.
#[derive(Clone, Debug)]
pub enum Nested {
    /// A tensor or a value.
    One(Entry),
    /// A list; the names of its elements are their numbers, from 0 on.
    List(Vec<Nested>),
    /// A dict, in its order.
    Dict(Vec<(String, Nested)>),
}

impl Nested {
    /// A list of these.
    pub fn list(elements: impl IntoIterator<Item = impl Into<Nested>>) -> Nested {
        Nested::List(elements.into_iter().map(Into::into).collect())
    }

    /// A dict of these.
    pub fn dict<K: Into<String>>(items: impl IntoIterator<Item = (K, Nested)>) -> Nested {
        Nested::Dict(items.into_iter().map(|(key, item)| (key.into(), item)).collect())
    }
}

impl<E: Into<Entry>> From<E> for Nested {
    fn from(entry: E) -> Nested {
        Nested::One(entry.into())
    }
}

impl State {
    /// Adds what is nested, each part under `name`, a dot and its own name. A list or a dict without elements is a value that says
    /// so. Nothing is added if there is an error.
    ///
    /// ```
    /// use dtensor_checkpoint::{Nested, State};
    ///
    /// let group = |lr: f64| Nested::dict([("lr", lr.into()), ("betas", Nested::list([0.9, 0.999]))]);
    /// let mut state = State::new();
    /// state.insert_nested("groups", Nested::list([group(0.1), group(0.2)]))?;
    /// let names: Vec<&str> = state.iter().map(|(name, _)| name).collect();
    /// assert_eq!(names[..3], ["groups.0.lr", "groups.0.betas.0", "groups.0.betas.1"]);
    /// assert_eq!(names.len(), 6);
    /// # Ok::<(), dtensor_checkpoint::Error>(())
    /// ```
    pub fn insert_nested(
        &mut self,
        name: impl Into<String>,
        nested: impl Into<Nested>,
    ) -> Result<()> {
        let mut flat = State::new();
        flatten(&mut flat, name.into(), nested.into(), 0)?;
        if let Some((name, _)) = flat.iter().find(|(name, _)| self.get(name).is_some()) {
            return Err(Error::Twice { name: name.to_owned() });
        }
        flat.into_iter().try_for_each(|(name, entry)| self.insert(name, entry))
    }
}

fn flatten(flat: &mut State, name: String, nested: Nested, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(Error::Unsupported {
            what: format!("lists and dicts nested deeper than {MAX_DEPTH}"),
            place: name.chars().take(200).collect(),
            way_out: "give parts of it names of their own",
        });
    }
    match nested {
        Nested::One(entry) => flat.insert(name, entry),
        Nested::List(elements) if elements.is_empty() => flat.insert(name, Value::EmptyList),
        Nested::Dict(items) if items.is_empty() => flat.insert(name, Value::EmptyDict),
        Nested::List(elements) => elements.into_iter().enumerate().try_for_each(|(number, one)| {
            flatten(flat, format!("{name}.{number}"), one, depth + 1)
        }),
        Nested::Dict(items) => items
            .into_iter()
            .try_for_each(|(key, one)| flatten(flat, format!("{name}.{key}"), one, depth + 1)),
    }
}
