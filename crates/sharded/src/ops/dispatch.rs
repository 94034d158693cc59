//! Who carries an operation out.

use std::{
    any::TypeId,
    collections::HashMap,
    sync::{Arc, LazyLock, PoisonError, RwLock},
};

use dtensor::{DTensor, Scalar};
use dtensor_local::Tensor;

use super::{OpValue, table};
use crate::{Error, ProcessGroup, Result, ShardedTensor, ShardingSpec};

/// A call of an operation.
#[derive(Clone, Copy, Debug)]
pub struct OpCall<'a> {
    name: &'static str,
    operands: &'a [OpValue],
    first: &'a ShardedTensor,
}

/// Registers who carries out an operation, of this name, from now on and on all ranks of this process: a new
/// one, or instead of what is in the table.
pub fn register_op(
    name: &'static str,
    handler: impl Fn(&OpCall<'_>) -> Result<OpValue> + Send + Sync + 'static,
) {
    let mut registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
    registry.ops.insert(name, Arc::new(handler));
}

/// Registers who carries out an operation if its first sharded operand is cut by a spec of this kind.
pub fn register_spec_op<S: ShardingSpec>(
    name: &'static str,
    handler: impl Fn(&OpCall<'_>) -> Result<OpValue> + Send + Sync + 'static,
) {
    let mut registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
    registry.spec_ops.insert((TypeId::of::<S>(), name), Arc::new(handler));
}

/// Carries out an operation. At least one operand is a sharded tensor, and all that are lie on one group.
pub fn call(name: &'static str, operands: &[OpValue]) -> Result<OpValue> {
    if operands.is_empty() {
        return Err(Error::NoOperands { op: name.into() });
    }
    let sharded = |value: &'_ OpValue| matches!(value, OpValue::Sharded(_));
    let Some(OpValue::Sharded(first)) = operands.iter().find(|value| sharded(value)) else {
        return Err(Error::NoShardedOperand { op: name.into() });
    };
    for (operand, value) in operands.iter().enumerate() {
        if let OpValue::Sharded(other) = value {
            first.process_group().check_same(name, operand, other.process_group())?;
        }
    }
    let call = OpCall { name, operands, first };
    let registered = {
        let registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
        let of_spec = || registry.spec_ops.get(&(first.sharding_spec().kind(), name));
        registry.ops.get(name).or_else(of_spec).cloned()
    };
    match (registered, table::find(name)) {
        (Some(handler), _) => handler(&call),
        (None, Some(record)) => (record.run)(&call),
        (None, None) => Err(Error::Unsupported {
            op: name.into(),
            what: format!("no such operation on tensors cut by {:?}", first.sharding_spec()).into(),
            way_out: "register it, or use to_dtensor and the operations there".into(),
        }),
    }
}

impl<'a> OpCall<'a> {
    /// The name of the operation.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// All operands.
    pub fn operands(&self) -> &'a [OpValue] {
        self.operands
    }

    /// The group of the sharded operands.
    pub fn process_group(&self) -> &'a ProcessGroup {
        self.first.process_group()
    }

    /// An operand; those that are missing at the end are [left out](OpValue::Nothing).
    pub fn operand(&self, index: usize) -> &'a OpValue {
        self.operands.get(index).unwrap_or(&OpValue::Nothing)
    }

    /// An operand that is a sharded tensor.
    pub fn sharded(&self, index: usize) -> Result<&'a ShardedTensor> {
        match self.operand(index) {
            OpValue::Sharded(tensor) => Ok(tensor),
            other => Err(self.wrong(index, other, "a sharded tensor")),
        }
    }

    /// An operand that is a distributed tensor.
    pub fn distributed(&self, index: usize) -> Result<&'a DTensor> {
        match self.operand(index) {
            OpValue::Distributed(tensor) => Ok(tensor),
            other => Err(self.wrong(index, other, "a distributed tensor")),
        }
    }

    /// An operand that is a plain tensor.
    pub fn plain(&self, index: usize) -> Result<&'a Tensor> {
        match self.operand(index) {
            OpValue::Plain(tensor) => Ok(tensor),
            other => Err(self.wrong(index, other, "a plain tensor")),
        }
    }

    /// An operand that is a number.
    pub fn number(&self, index: usize) -> Result<Scalar> {
        match self.operand(index) {
            OpValue::Number(number) => Ok(*number),
            other => Err(self.wrong(index, other, "a number")),
        }
    }

    /// An operand that is a number, or `default` if it is left out.
    pub fn number_or(&self, index: usize, default: impl Into<Scalar>) -> Result<Scalar> {
        match self.operand(index) {
            OpValue::Nothing => Ok(default.into()),
            _ => self.number(index),
        }
    }

    /// An operand that is a text, or `default` if it is left out.
    pub fn text_or(&self, index: usize, default: &'a str) -> Result<&'a str> {
        match self.operand(index) {
            OpValue::Nothing => Ok(default),
            OpValue::Text(text) => Ok(text),
            other => Err(self.wrong(index, other, "a text")),
        }
    }

    /// An operand that is an integer.
    pub fn integer(&self, index: usize) -> Result<isize> {
        let wrong = |other: &OpValue| self.wrong(index, other, "an integer");
        match self.operand(index) {
            OpValue::Number(Scalar::Int(number)) => {
                isize::try_from(*number).map_err(|_| wrong(self.operand(index)))
            }
            other => Err(wrong(other)),
        }
    }

    /// An operand that is a list of integers.
    pub fn integers(&self, index: usize) -> Result<&'a [isize]> {
        match self.operand(index) {
            OpValue::Integers(list) => Ok(list),
            other => Err(self.wrong(index, other, "a list of integers")),
        }
    }

    /// An operand that may be left out.
    pub fn optional<T>(
        &self,
        index: usize,
        get: impl FnOnce(&Self, usize) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.operand(index) {
            OpValue::Nothing => Ok(None),
            _ => get(self, index).map(Some),
        }
    }

    fn wrong(&self, operand: usize, got: &OpValue, want: &'static str) -> Error {
        Error::WrongOperand {
            op: self.name.into(),
            operand,
            got: got.kind().into(),
            want: want.into(),
        }
    }
}

type Handler = Arc<dyn Fn(&OpCall<'_>) -> Result<OpValue> + Send + Sync>;

#[derive(Default)]
struct Registry {
    ops: HashMap<&'static str, Handler>,
    spec_ops: HashMap<(TypeId, &'static str), Handler>,
}

static REGISTRY: LazyLock<RwLock<Registry>> = LazyLock::new(RwLock::default);
