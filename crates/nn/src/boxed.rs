//! Modules of any type in one place.

use std::any::Any;

use dtensor::{DTensor, Result};

use crate::{Forward, Members, Module, ModuleState, ModulesMut};

/// A field for a module of any type. [`replace_matching`](crate::replace_matching) puts one of another type there:
///
/// ```
/// use dtensor::{DType, DeviceMesh, Runner};
/// use dtensor_nn::{Forward, LayerNorm, Linear, RmsNorm, Sequential, named_parameters, replace_matching};
///
/// Runner::threads(1).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "x")?;
///     let mut model = Sequential::new()
///         .with(Linear::new(4, 8, true, DType::F32, &mesh)?)
///         .with(LayerNorm::new(8, true, 1e-5, DType::F32, &mesh)?);
///     replace_matching::<Box<dyn Forward>>(&mut model, "1", |_, _| {
///         Ok(Box::new(RmsNorm::new(8, 1e-5, DType::F32, &mesh)?))
///     })?;
///     let names: Vec<String> = named_parameters(&model).into_iter().map(|(name, _)| name).collect();
///     assert_eq!(names, ["0.weight", "0.bias", "1.weight"]);
///     Ok::<_, dtensor_nn::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
impl Module for Box<dyn Forward> {
    fn state(&self) -> &ModuleState {
        (**self).state()
    }

    fn state_mut(&mut self) -> &mut ModuleState {
        (**self).state_mut()
    }

    fn members<'a>(&'a self, members: &mut Members<'a>) {
        (**self).members(members);
    }

    fn modules_mut<'a>(&'a mut self, modules: &mut ModulesMut<'a>) {
        (**self).modules_mut(modules);
    }
}

impl Forward for Box<dyn Forward> {
    fn forward(&self, x: &DTensor) -> Result<DTensor> {
        (**self).forward(x)
    }

    fn call(&self, x: &DTensor) -> Result<DTensor> {
        (**self).call(x)
    }
}

/// Modules one after the other, each with the result of the one before it. Their names are their numbers.
#[derive(Default)]
pub struct Sequential {
    parts: Vec<Box<dyn Forward>>,
    state: ModuleState,
}

impl Sequential {
    /// Of none: the result is the operand.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// With one more at the end.
    #[must_use]
    pub fn with(mut self, part: impl Forward) -> Sequential {
        self.push(Box::new(part));
        self
    }

    /// Puts one more at the end.
    pub fn push(&mut self, part: Box<dyn Forward>) {
        self.parts.push(part);
        crate::assign_names(self);
    }

    /// The modules.
    pub fn parts(&self) -> &[Box<dyn Forward>] {
        &self.parts
    }
}

impl Module for Sequential {
    fn state(&self) -> &ModuleState {
        &self.state
    }

    fn state_mut(&mut self) -> &mut ModuleState {
        &mut self.state
    }

    fn members<'a>(&'a self, members: &mut Members<'a>) {
        for (number, part) in self.parts.iter().enumerate() {
            crate::Field::list(part, &number.to_string(), members);
        }
    }

    fn modules_mut<'a>(&'a mut self, modules: &mut ModulesMut<'a>) {
        for (number, part) in self.parts.iter_mut().enumerate() {
            crate::Field::list_mut(part, &number.to_string(), modules);
        }
    }
}

impl Forward for Sequential {
    fn forward(&self, x: &DTensor) -> Result<DTensor> {
        self.parts.iter().try_fold(x.clone(), |x, part| part.call(&x))
    }
}

/// A module as one of this type, also if it stands in a box.
pub(crate) fn cast<M: Module>(module: &dyn Module) -> Option<&M> {
    let any: &dyn Any = module;
    any.downcast_ref::<M>().or_else(|| cast(any.downcast_ref::<Box<dyn Forward>>()?.as_ref()))
}

/// The same, to change it.
pub(crate) fn cast_mut<M: Module>(module: &mut dyn Module) -> Option<&mut M> {
    let any: &mut dyn Any = module;
    match any.is::<M>() {
        true => any.downcast_mut(),
        false => cast_mut(any.downcast_mut::<Box<dyn Forward>>()?.as_mut()),
    }
}
