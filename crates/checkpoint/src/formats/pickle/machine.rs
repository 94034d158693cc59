//! The machine that a pickle is a program for.

use super::{Call, Global, Node, Object, Place, Tree, cursor::Cursor};
use crate::{Error, Result};

/// There may be this many nodes, whatever the length of the pickle.
const FREE_NODES: usize = 1 << 16;
/// Beyond that, one per this many bytes. Honest pickles have one per ten bytes or more.
const BYTES_PER_NODE: usize = 4;

/// See the module's documentation.
pub(super) struct Machine<'a, 'p> {
    input: Cursor<'a>,
    place: Place<'p>,
    /// Where the opcode is that is being run.
    at: usize,
    nodes: Vec<Node<'a>>,
    stack: Vec<Object>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: Vec<Option<Object>>,
    /// Of nodes, memo numbers and marks.
    limit: usize,
}

impl<'a, 'p> Machine<'a, 'p> {
    pub fn new(bytes: &'a [u8], place: Place<'p>) -> Machine<'a, 'p> {
        Machine {
            input: Cursor::new(bytes),
            place,
            at: 0,
            nodes: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            limit: FREE_NODES + bytes.len() / BYTES_PER_NODE,
        }
    }

    pub fn run(mut self) -> Result<Tree<'a>> {
        loop {
            self.at = self.input.at();
            match self.input.byte().ok_or_else(|| self.cut_off())? {
                b'.' => break,
                opcode => self.step(opcode)?,
            }
            let most = self.nodes.len().max(self.memo.len()).max(self.marks.len());
            // A long tuple is on the stack in full, and a small number has two bytes.
            if most > self.limit || self.stack.len() > 2 * self.limit {
                return Err(self.broken("more objects than an honest pickle of this length has"));
            }
        }
        let root = self.pop()?;
        match (self.stack.is_empty() && self.marks.is_empty(), self.input.left()) {
            (true, 0) => Ok(Tree { nodes: self.nodes, root }),
            (true, rest) => Err(self.broken(format!("{rest} bytes after its end"))),
            (false, _) => Err(self.broken("it ends with objects that belong nowhere")),
        }
    }

    fn step(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            // PROTO and FRAME.
            b'\x80' => match self.input.byte().ok_or_else(|| self.cut_off())? {
                2..=5 => {}
                protocol => return Err(self.broken(format!("protocol {protocol}, of 2 to 5"))),
            },
            b'\x95' => {
                self.number::<8>()?;
            }

            // Plain things.
            b'N' => self.stack.push(Object::Nothing),
            b'\x88' => self.stack.push(Object::Bool(true)),
            b'\x89' => self.stack.push(Object::Bool(false)),
            b'J' => {
                let bytes = self.input.array().ok_or_else(|| self.cut_off())?;
                self.stack.push(Object::Int(i32::from_le_bytes(bytes).into()));
            }
            b'K' => self.push_int::<1>()?,
            b'M' => self.push_int::<2>()?,
            b'G' => {
                let bytes = self.input.array().ok_or_else(|| self.cut_off())?;
                self.stack.push(Object::Float(f64::from_be_bytes(bytes)));
            }
            b'\x8a' => self.push_long::<1>()?,
            b'\x8b' => self.push_long::<4>()?,
            b'\x8c' => self.push_text::<1>()?,
            b'X' => self.push_text::<4>()?,
            b'\x8d' => self.push_text::<8>()?,
            b'C' => self.push_bytes::<1>()?,
            b'B' => self.push_bytes::<4>()?,
            b'\x8e' | b'\x96' => self.push_bytes::<8>()?,

            // Containers.
            b')' => self.push(Node::Tuple(Vec::new())),
            b']' => self.push(Node::List(Vec::new())),
            b'}' => self.push(Node::Dict(Vec::new())),
            b'\x8f' => self.push(Node::Set(Vec::new())),
            b'(' => self.marks.push(self.stack.len()),
            b't' => {
                let elements = self.since_mark()?;
                self.push(Node::Tuple(elements));
            }
            b'\x85'..=b'\x87' => {
                let height = self.stack.len().checked_sub(usize::from(opcode - b'\x84'));
                let height = height.ok_or_else(|| self.empty())?;
                let elements = self.stack.split_off(height);
                self.push(Node::Tuple(elements));
            }
            b'l' => {
                let elements = self.since_mark()?;
                self.push(Node::List(elements));
            }
            b'\x91' => {
                let elements = self.since_mark()?;
                self.push(Node::Set(elements));
            }
            b'd' => {
                let items = self.since_mark()?;
                self.push(Node::Dict(Vec::new()));
                self.set_items(&items)?;
            }
            b'a' => {
                let element = self.pop()?;
                self.append(&[element])?;
            }
            b'e' | b'\x90' => {
                let elements = self.since_mark()?;
                self.append(&elements)?;
            }
            b's' => {
                let (key, value) = self.pop_pair()?;
                self.set_items(&[key, value])?;
            }
            b'u' => {
                let items = self.since_mark()?;
                self.set_items(&items)?;
            }

            // The stack and the memo.
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                self.since_mark()?;
            }
            b'2' => self.stack.push(self.top()?),
            b'\x94' => {
                self.memo.push(Some(self.top()?));
            }
            b'q' => self.put::<1>()?,
            b'r' => self.put::<4>()?,
            b'h' => self.get::<1>()?,
            b'j' => self.get::<4>()?,

            // Names and calls.
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push_global(module, name)?;
            }
            b'\x93' => {
                let (module, name) = self.pop_pair()?;
                let (Some(module), Some(name)) = (self.text(module), self.text(name)) else {
                    return Err(self.broken("a global whose name is no text"));
                };
                self.push_global(module, name)?;
            }
            // REDUCE, and NEWOBJ, which makes an instance of a class.
            b'R' | b'\x81' => {
                let (callee, arguments) = self.pop_pair()?;
                self.push_call(callee, arguments)?;
            }
            b'b' => self.build()?,
            b'Q' => {
                let id = self.pop()?;
                self.push(Node::Persistent(id));
            }
            opcode => {
                let what = format!("opcode 0x{opcode:02x}, which PyTorch does not write");
                return Err(self.broken(what));
            }
        }
        Ok(())
    }

    fn push(&mut self, node: Node<'a>) {
        // The limit of nodes is far below that of positions, since a pickle has at most `MAX_PICKLE` bytes.
        self.stack.push(Object::Node(self.nodes.len() as u32));
        self.nodes.push(node);
    }

    fn push_int<const N: usize>(&mut self) -> Result<()> {
        let number = self.number::<N>()?;
        self.stack.push(Object::Int(number as i64)); // At most two bytes.
        Ok(())
    }

    fn push_long<const N: usize>(&mut self) -> Result<()> {
        let bytes = self.counted::<N>()?;
        let negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
        let mut wide = [if negative { 0xff } else { 0 }; 8];
        match wide.get_mut(..bytes.len()) {
            Some(low) => {
                low.copy_from_slice(bytes);
                self.stack.push(Object::Int(i64::from_le_bytes(wide)));
            }
            None => self.push(Node::BigInt),
        }
        Ok(())
    }

    fn push_text<const N: usize>(&mut self) -> Result<()> {
        let bytes = self.counted::<N>()?;
        let text = std::str::from_utf8(bytes).map_err(|_| self.broken("a text is no UTF-8"))?;
        self.push(Node::Text(text));
        Ok(())
    }

    fn push_bytes<const N: usize>(&mut self) -> Result<()> {
        let bytes = self.counted::<N>()?;
        self.push(Node::Bytes(bytes));
        Ok(())
    }

    fn push_global(&mut self, module: &str, name: &str) -> Result<()> {
        let global = Global::find(module, name);
        let global = global.ok_or_else(|| self.forbidden(shown(module, name)))?;
        self.stack.push(Object::Global(global));
        Ok(())
    }

    fn push_call(&mut self, callee: Object, arguments: Object) -> Result<()> {
        let Object::Global(callee) = callee else {
            return Err(self.broken("a call of something that is no global"));
        };
        let Some(Node::Tuple(given)) = self.node(arguments) else {
            return Err(self.broken("a call whose arguments are no tuple"));
        };
        match (callee, given.as_slice()) {
            (Global::GetAttr, [Object::Global(Global::MemoryFormat), _]) => {}
            (Global::GetAttr, [Object::Global(Global::ShardedTensor), name])
                if self.text(*name) == Some("ProcessGroupState") =>
            {
                self.stack.push(Object::Global(Global::ProcessGroupState));
                return Ok(());
            }
            (Global::GetAttr, _) => return Err(self.forbidden("builtins.getattr".to_owned())),
            _ => {}
        }
        self.push(match callee {
            // Their items follow; what a `defaultdict` gives for missing keys is of no use here.
            Global::OrderedDict | Global::DefaultDict => Node::Dict(Vec::new()),
            _ => Node::Call(Box::new(Call { callee, arguments, state: None })),
        });
        Ok(())
    }

    /// BUILD: attributes for the instance below them.
    fn build(&mut self) -> Result<()> {
        let state = self.pop()?;
        let target = self.top()?;
        match self.node_mut(target) {
            Some(Node::Call(call)) if call.state.is_none() => call.state = Some(state),
            // A dict with attributes: the `_metadata` that `Module.state_dict` leaves. They are no items.
            Some(Node::Dict(_)) => {}
            _ => return Err(self.broken("attributes for something that has none")),
        }
        Ok(())
    }

    fn append(&mut self, elements: &[Object]) -> Result<()> {
        let target = self.top()?;
        match self.node_mut(target) {
            Some(Node::List(list) | Node::Set(list)) => list.extend_from_slice(elements),
            _ => return Err(self.broken("elements for something that is no list")),
        }
        Ok(())
    }

    fn set_items(&mut self, items: &[Object]) -> Result<()> {
        let (pairs, rest) = items.as_chunks::<2>();
        let target = self.top()?;
        match self.node_mut(target) {
            Some(Node::Dict(dict)) if rest.is_empty() => {
                dict.extend(pairs.iter().map(|[key, value]| (*key, *value)))
            }
            _ => return Err(self.broken("items for something that is no dict")),
        }
        Ok(())
    }

    fn since_mark(&mut self) -> Result<Vec<Object>> {
        // What was below a mark when it was set may have been taken since: a broken pickle.
        let height = self.marks.pop().filter(|&height| height <= self.stack.len());
        let height = height.ok_or_else(|| self.broken("there is no mark"))?;
        Ok(self.stack.split_off(height))
    }

    /// The upper two objects, in the order in which they were pushed.
    fn pop_pair(&mut self) -> Result<(Object, Object)> {
        let upper = self.pop()?;
        Ok((self.pop()?, upper))
    }

    fn pop(&mut self) -> Result<Object> {
        self.stack.pop().ok_or_else(|| self.empty())
    }

    fn top(&self) -> Result<Object> {
        self.stack.last().copied().ok_or_else(|| self.empty())
    }

    fn put<const N: usize>(&mut self) -> Result<()> {
        let position = self.number::<N>()? as usize; // At most four bytes.
        // Writers count upwards. A number out of the blue must not take memory.
        if position > self.limit {
            return Err(self.broken(format!("memo number {position} is too large")));
        }
        if position >= self.memo.len() {
            self.memo.resize(position + 1, None);
        }
        self.memo[position] = Some(self.top()?);
        Ok(())
    }

    fn get<const N: usize>(&mut self) -> Result<()> {
        let position = self.number::<N>()? as usize; // At most four bytes.
        let object = self.memo.get(position).copied().flatten();
        let object = object.ok_or_else(|| self.broken(format!("memo {position} is not set")))?;
        self.stack.push(object);
        Ok(())
    }

    fn node(&self, object: Object) -> Option<&Node<'a>> {
        match object {
            Object::Node(position) => self.nodes.get(position as usize),
            _ => None,
        }
    }

    fn node_mut(&mut self, object: Object) -> Option<&mut Node<'a>> {
        match object {
            Object::Node(position) => self.nodes.get_mut(position as usize),
            _ => None,
        }
    }

    fn text(&self, object: Object) -> Option<&'a str> {
        match self.node(object)? {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    fn counted<const N: usize>(&mut self) -> Result<&'a [u8]> {
        self.input.counted::<N>().ok_or_else(|| self.cut_off())
    }

    fn number<const N: usize>(&mut self) -> Result<u64> {
        self.input.number::<N>().ok_or_else(|| self.cut_off())
    }

    fn line(&mut self) -> Result<&'a str> {
        let line = self.input.line().ok_or_else(|| self.cut_off())?;
        std::str::from_utf8(line).map_err(|_| self.broken("a name is no UTF-8"))
    }

    fn forbidden(&self, global: String) -> Error {
        let at = self.place.start + self.at as u64;
        Error::ForbiddenGlobal { file: self.place.file.to_owned(), at, global }
    }

    fn empty(&self) -> Error {
        self.broken("the stack is empty")
    }

    fn cut_off(&self) -> Error {
        self.broken("it is cut off")
    }

    fn broken(&self, what: impl AsRef<str>) -> Error {
        self.place.broken(self.at, what)
    }
}

/// The name of a global, for an error. Names are short; what is not is shown in part.
fn shown(module: &str, name: &str) -> String {
    let mut shown = format!("{module}.{name}");
    if shown.len() > 200 {
        let end = (0..=200).rev().find(|&end| shown.is_char_boundary(end)).unwrap_or_default();
        shown.truncate(end);
        shown.push_str("...");
    }
    shown
}
