//! What a pickle describes.

use std::borrow::Cow;

use super::Global;

/// The most dims that a tensor of PyTorch has.
const MAX_DIMS: usize = 64;

/// A pickle as a tree, or, where it says so, a graph.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    pub(super) nodes: Vec<Node<'a>>,
    pub(super) root: Object,
}

/// A thing of a tree: small, and copied freely.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Object {
    Nothing,
    Bool(bool),
    Int(i64),
    Float(f64),
    Global(Global),
    /// By its position in the table of nodes.
    Node(u32),
}

/// What does not fit into an [`Object`].
#[derive(Debug)]
pub(crate) enum Node<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
    /// An integer beyond 64 bits.
    BigInt,
    Tuple(Vec<Object>),
    List(Vec<Object>),
    Set(Vec<Object>),
    Dict(Vec<(Object, Object)>),
    /// What a call of a global gives.
    Call(Box<Call>),
    /// What the writer keeps outside of the pickle, by its id.
    Persistent(Object),
}

/// A call that was asked for, and is not made.
#[derive(Debug)]
pub(crate) struct Call {
    pub callee: Global,
    /// A tuple.
    pub arguments: Object,
    /// What the result should be filled with: for an instance of a class, its attributes.
    pub state: Option<Object>,
}

impl<'a> Tree<'a> {
    /// What was pickled.
    pub fn root(&self) -> Object {
        self.root
    }

    /// The node that an object stands for.
    pub fn node(&self, object: Object) -> Option<&Node<'a>> {
        match object {
            Object::Node(position) => self.nodes.get(position as usize),
            _ => None,
        }
    }

    /// A text.
    pub fn text(&self, object: Object) -> Option<&'a str> {
        match self.node(object)? {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Bytes: as such, as a `bytearray`, or as the text of their Latin-1 letters.
    pub fn bytes(&self, object: Object) -> Option<Cow<'a, [u8]>> {
        match self.node(object)? {
            Node::Bytes(bytes) => Some(Cow::Borrowed(bytes)),
            Node::Call(call) => match (call.callee, self.tuple(call.arguments)?) {
                (Global::Encode, [text, encoding]) => {
                    let latin1 = matches!(self.text(*encoding)?, "latin1" | "latin-1");
                    let letters = self.text(*text).filter(|_| latin1)?.chars();
                    let bytes = letters.map(|letter| u8::try_from(u32::from(letter)).ok());
                    Some(Cow::Owned(bytes.collect::<Option<_>>()?))
                }
                (Global::Bytes, []) => Some(Cow::Borrowed(&[])),
                // One level of calls, so that a circle of them ends.
                (Global::Bytes, [inner]) => match self.node(*inner)? {
                    Node::Call(call) if call.callee != Global::Encode => None,
                    _ => self.bytes(*inner),
                },
                _ => None,
            },
            _ => None,
        }
    }

    /// A tuple.
    pub fn tuple(&self, object: Object) -> Option<&[Object]> {
        match self.node(object)? {
            Node::Tuple(elements) => Some(elements),
            _ => None,
        }
    }

    /// The elements of a list, a tuple, a set, or a `torch.Size`.
    pub fn sequence(&self, object: Object) -> Option<&[Object]> {
        match self.node(object)? {
            Node::Tuple(elements) | Node::List(elements) | Node::Set(elements) => Some(elements),
            Node::Call(call) if matches!(call.callee, Global::Size | Global::Set) => {
                match self.tuple(call.arguments)? {
                    [] => Some(&[]),
                    [elements] => match self.node(*elements)? {
                        Node::Tuple(elements) | Node::List(elements) => Some(elements),
                        _ => None,
                    },
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// The items of a dict.
    pub fn dict(&self, object: Object) -> Option<&[(Object, Object)]> {
        match self.node(object)? {
            Node::Dict(items) => Some(items),
            _ => None,
        }
    }

    /// A call.
    pub fn call(&self, object: Object) -> Option<&Call> {
        match self.node(object)? {
            Node::Call(call) => Some(call),
            _ => None,
        }
    }

    /// Attribute of an instance of a class.
    pub fn attribute(&self, object: Object, class: Global, name: &str) -> Option<Object> {
        let call = self.call(object).filter(|call| call.callee == class)?;
        let state = match self.tuple(call.state?) {
            // Of a class that lists its attributes: those of others come first, and there are none.
            Some([Object::Nothing, listed]) => *listed,
            _ => call.state?,
        };
        let mut items = self.dict(state)?.iter();
        items.find(|(key, _)| self.text(*key) == Some(name)).map(|(_, value)| *value)
    }

    /// Sizes, offsets or strides, one per dim.
    pub fn sizes(&self, object: Object) -> Option<Vec<usize>> {
        let sizes = self.sequence(object).filter(|sizes| sizes.len() <= MAX_DIMS)?;
        sizes.iter().map(|size| self.size(*size)).collect()
    }

    /// A whole number that is not negative.
    pub fn size<N: TryFrom<i64>>(&self, object: Object) -> Option<N> {
        match object {
            Object::Int(number) if number >= 0 => N::try_from(number).ok(),
            _ => None,
        }
    }
}
