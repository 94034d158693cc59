//! Tensors that a model learns.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use dtensor::{DTensor, Layout, LocalError, Result, Tensor};

use crate::fully_shard::Gather;

/// A tensor that a module computes with and an optimizer changes. A clone is the same parameter: what one module learns,
/// the other sees, and so weights are tied.
#[derive(Clone)]
pub struct Parameter(Arc<Shared>);

struct Shared {
    value: Mutex<DTensor>,
    /// How it is gathered, if it lies in parts and is used whole.
    gather: Mutex<Option<Gather>>,
    /// Whether it was made to be not learnt.
    frozen: bool,
}

impl Parameter {
    /// A parameter that is learnt, with this value to begin with.
    pub fn new(value: &DTensor) -> Result<Parameter> {
        Ok(Parameter::of(value.requires_grad()?, false))
    }

    /// A buffer: a tensor of any dtype that belongs to a module and is not learnt. It has no gradient, and
    /// [`fully_shard`](crate::fully_shard) leaves it as it is.
    pub fn frozen(value: &DTensor) -> Parameter {
        Parameter::of(value.detach(), true)
    }

    fn of(value: DTensor, frozen: bool) -> Parameter {
        let (value, gather) = (Mutex::new(value), Mutex::new(None));
        Parameter(Arc::new(Shared { value, gather, frozen }))
    }

    /// The value to compute with: gathered, if the parameter lies in parts that are
    /// [gathered for use](crate::fully_shard).
    pub fn get(&self) -> Result<DTensor> {
        match &mut *self.gather() {
            None => Ok(self.value()),
            Some(gather) => gather.get(&self.value()),
        }
    }

    /// The value as it lies: the leaf that gradients are with respect to.
    pub fn value(&self) -> DTensor {
        self.lock().clone()
    }

    /// How it lies.
    pub fn layout(&self) -> Layout {
        self.lock().layout().clone()
    }

    /// Whether it is learnt.
    pub fn is_learnt(&self) -> bool {
        self.lock().needs_grad()
    }

    /// Whether it is a buffer: made [frozen](Parameter::frozen), and not learnt since. A parameter that is only
    /// [not learnt at present](Parameter::set_learnt) is none.
    pub fn is_buffer(&self) -> bool {
        self.0.frozen && !self.is_learnt()
    }

    /// Whether it is learnt from now on.
    pub fn set_learnt(&self, learnt: bool) -> Result<()> {
        self.forget()?;
        let mut value = self.lock();
        *value = if learnt { value.requires_grad()? } else { value.detach() };
        Ok(())
    }

    /// Another value, in any layout.
    pub fn set(&self, value: &DTensor) -> Result<()> {
        self.forget()?;
        let mut own = self.lock();
        *own = if own.needs_grad() { value.requires_grad()? } else { value.detach() };
        Ok(())
    }

    /// The value that it had before.
    pub(crate) fn restore(&self, value: &DTensor) -> Result<()> {
        self.forget()?;
        *self.lock() = value.clone();
        Ok(())
    }

    /// Changes what this rank holds, in place if nobody else has it.
    pub fn modify_local(
        &self,
        change: impl FnOnce(&mut Tensor) -> Result<(), LocalError>,
    ) -> Result<()> {
        self.forget()?;
        let mut own = self.lock();
        let learnt = own.needs_grad();
        own.modify_local(change)?;
        if learnt {
            *own = own.requires_grad()?;
        }
        Ok(())
    }

    /// Whether both are one parameter.
    pub fn is_same(&self, other: &Parameter) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn forget(&self) -> Result<()> {
        self.gather().as_mut().map_or(Ok(()), Gather::forget)
    }

    pub(crate) fn gather(&self) -> MutexGuard<'_, Option<Gather>> {
        self.0.gather.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, DTensor> {
        self.0.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value();
        write!(f, "Parameter {:?} {} {}", value.shape(), value.dtype(), value.layout())
    }
}
