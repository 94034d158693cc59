//! Nested lists and dicts of a pickle as tensors and values with dotted names.

use super::{
    budget::Budget,
    numpy,
    pickle::{Call, Global, Node, Object, Tree, dtype_name},
    sharded_view::ShardedView,
    tensor_view::TensorView,
};
use crate::{Error, Result, Value};

/// As deep as lists and dicts may be nested; what is deeper holds itself.
const MAX_DEPTH: usize = 64;
/// What an entry takes beside its name and its text.
const ENTRY: u64 = 64;

/// What a pickle holds, by name, in its order.
#[derive(Debug, Default)]
pub(crate) struct Flat<'t> {
    pub tensors: Vec<(String, TensorView<'t>)>,
    /// Tensors of which there are some shards.
    pub sharded: Vec<(String, ShardedView<'t>)>,
    pub values: Vec<(String, Value)>,
    /// What is neither tensor nor value, and why.
    pub unreadable: Vec<(String, String)>,
}

/// Everything below the root of a tree. Names begin with `prefix`; a root that is neither list nor dict has that name.
pub(crate) fn flatten<'t>(
    tree: &Tree<'t>,
    prefix: &str,
    file: &str,
    budget: &Budget,
) -> Result<Flat<'t>> {
    let mut walk = Walk { tree, file, budget, flat: Flat::default() };
    walk.visit(&mut prefix.to_owned(), tree.root(), 0)?;
    Ok(walk.flat)
}

struct Walk<'w, 't> {
    tree: &'w Tree<'t>,
    file: &'w str,
    budget: &'w Budget,
    flat: Flat<'t>,
}

impl<'w, 't> Walk<'w, 't> {
    fn visit(&mut self, name: &mut String, object: Object, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            let what = format!("`{}` is nested too deep, or holds itself", shortened(name));
            return Err(Error::broken(self.file, what));
        }
        self.pay(name, ENTRY + name.len() as u64)?;
        let tree = self.tree;
        if let Some(call) = tree.call(object) {
            if ShardedView::is_one(tree, call) {
                let view = ShardedView::read(tree, call, name, self.file)?;
                self.pay(name, (1 + view.shards.len() as u64) * 32 * view.shape.len() as u64)?;
                self.flat.sharded.push((name.clone(), view));
                return Ok(());
            }
            if TensorView::is_one(call) {
                let view = TensorView::read(tree, call, name, self.file)?;
                self.pay(name, 16 * view.shape.len() as u64)?;
                self.flat.tensors.push((name.clone(), view));
                return Ok(());
            }
            if let (Global::Namespace, Some(state)) = (call.callee, call.state) {
                return self.visit(name, state, depth + 1);
            }
        }
        if let Some(items) = tree.dict(object) {
            let mut nameless = None;
            for (key, value) in items {
                match self.key(name, *key) {
                    Ok(key) => self.visit_part(name, &key, *value, depth)?,
                    // All that there is has no name that could be listed.
                    Err(error) if name.is_empty() => return Err(error),
                    Err(error) => nameless = Some(error),
                }
            }
            if let Some(error) = nameless {
                self.note_unreadable(name, &error)?;
            }
            return self.note_empty(name, items.is_empty(), Value::EmptyDict);
        }
        if let Some(elements) = tree.sequence(object) {
            for (position, element) in elements.iter().enumerate() {
                self.visit_part(name, &position.to_string(), *element, depth)?;
            }
            return self.note_empty(name, elements.is_empty(), Value::EmptyList);
        }
        match self.value(name, object) {
            Ok(value) => {
                self.pay(name, size(&value))?;
                self.flat.values.push((name.clone(), value));
                Ok(())
            }
            Err(error) => self.note_unreadable(name, &error),
        }
    }

    fn visit_part(
        &mut self,
        name: &mut String,
        part: &str,
        object: Object,
        depth: usize,
    ) -> Result<()> {
        let length = name.len();
        if length > 0 {
            name.push('.');
        }
        name.push_str(part);
        self.visit(name, object, depth + 1)?;
        name.truncate(length);
        Ok(())
    }

    /// A list or dict without elements has no dotted names, and is an entry itself; unless it is all that there is.
    fn note_empty(&mut self, name: &str, empty: bool, value: Value) -> Result<()> {
        if empty && !name.is_empty() {
            self.flat.values.push((name.to_owned(), value));
        }
        Ok(())
    }

    /// One thing that nobody can read is no reason to refuse the others; but it is never left out in silence.
    fn note_unreadable(&mut self, name: &str, error: &Error) -> Result<()> {
        let reason = error.to_string();
        self.pay(name, reason.len() as u64)?;
        self.flat.unreadable.push((name.to_owned(), reason));
        Ok(())
    }

    /// As Python's `str` has it, which is what PyTorch joins to dotted names.
    fn key(&self, name: &str, key: Object) -> Result<String> {
        match key {
            Object::Nothing => Ok("None".to_owned()),
            Object::Bool(true) => Ok("True".to_owned()),
            Object::Bool(false) => Ok("False".to_owned()),
            Object::Int(number) => Ok(number.to_string()),
            _ => match self.tree.text(key) {
                Some(text) => Ok(text.to_owned()),
                None => Err(self.unsupported(
                    "a key that is neither text nor number",
                    name,
                    "give the dict other keys",
                )),
            },
        }
    }

    fn value(&self, name: &str, object: Object) -> Result<Value> {
        match object {
            Object::Nothing => return Ok(Value::Nothing),
            Object::Bool(value) => return Ok(Value::Bool(value)),
            Object::Int(value) => return Ok(Value::Int(value)),
            Object::Float(value) => return Ok(Value::Float(value)),
            Object::Global(Global::DType(stored)) => return Ok(dtype_name(stored).into()),
            _ => {}
        }
        if let Some(bytes) = self.tree.bytes(object) {
            return Ok(Value::Bytes(bytes.into_owned()));
        }
        let known = match self.tree.node(object) {
            Some(Node::Text(text)) => Some((*text).into()),
            Some(Node::BigInt) => {
                let way_out = "save it as a text, or as a tensor";
                return Err(self.unsupported("an integer beyond 64 bits", name, way_out));
            }
            Some(Node::Call(call)) => self.called(call),
            _ => None,
        };
        known.ok_or_else(|| {
            let way_out = "save only tensors, numbers, texts, and lists and dicts of them";
            self.unsupported("an object of another kind", name, way_out)
        })
    }

    fn called(&self, call: &Call) -> Option<Value> {
        let tree = self.tree;
        let arguments = tree.tuple(call.arguments)?;
        match (call.callee, arguments) {
            (Global::Device, [kind]) => Some(tree.text(*kind)?.into()),
            (Global::Device, [kind, Object::Int(index)]) => {
                Some(format!("{}:{index}", tree.text(*kind)?).into())
            }
            (Global::GetLayout, [name]) => Some(tree.text(*name)?.into()),
            (Global::Path, parts) => {
                let parts: Option<Vec<&str>> = parts.iter().map(|part| tree.text(*part)).collect();
                Some(parts?.join("/").replacen("//", "/", 1).into())
            }
            (Global::NumpyScalar, [dtype, bytes]) => {
                numpy::scalar(tree, *dtype, &tree.bytes(*bytes)?)
            }
            _ => None,
        }
    }

    fn pay(&self, name: &str, bytes: u64) -> Result<()> {
        match self.budget.pay(bytes) {
            true => Ok(()),
            false => {
                let name = shortened(name);
                let what =
                    format!("written out, its entries up to `{name}` are far larger than it");
                Err(Error::broken(self.file, what))
            }
        }
    }

    fn unsupported(&self, what: &str, name: &str, way_out: &'static str) -> Error {
        let place = format!("{}: {}", self.file, shortened(name));
        Error::Unsupported { what: what.to_owned(), place, way_out }
    }
}

fn size(value: &Value) -> u64 {
    match value {
        Value::Text(text) => text.len() as u64,
        Value::Bytes(bytes) => bytes.len() as u64,
        _ => 0,
    }
}

/// The name, for an error: one that a hostile file has made may be long.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name.to_owned(),
    }
}
