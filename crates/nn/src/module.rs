//! What a module is: a struct whose fields are parameters and other modules.

use std::{any::Any, fmt, sync::Arc};

use dtensor::{DTensor, Result, module_scope};

pub use dtensor_nn_derive::Module;

use crate::{Parameter, fully_shard::Unit};

/// A part of a model: it has parameters and other modules, and names for them. Derived:
///
/// ```
/// use dtensor::{DTensor, DType, DeviceMesh, Placement::Replicate, Result, Runner, ones};
/// use dtensor_nn::{Forward, Linear, Module, ModuleState, named_parameters};
///
/// #[derive(Clone, Debug, Module)]
/// struct Perceptron {
///     up: Linear,
///     down: Linear,
///     #[module(skip)]
///     slope: f64,
///     state: ModuleState,
/// }
///
/// impl Forward for Perceptron {
///     fn forward(&self, x: &DTensor) -> Result<DTensor> {
///         self.down.call(&self.up.call(x)?.leaky_relu(self.slope)?)
///     }
/// }
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "dp")?;
///     let up = Linear::new(4, 8, true, DType::F32, &mesh)?;
///     let down = Linear::new(8, 2, false, DType::F32, &mesh)?;
///     let model = Perceptron { up, down, slope: 0.1, state: ModuleState::default() };
///     let names: Vec<String> = named_parameters(&model).into_iter().map(|(name, _)| name).collect();
///     assert_eq!(names, ["up.weight", "up.bias", "down.weight"]);
///     let y = model.call(&ones(&[3, 4], DType::F32, &mesh, &[Replicate])?)?;
///     assert_eq!(y.shape(), [3, 2]);
///     Ok::<_, dtensor::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub trait Module: Any + Send + Sync {
    /// What every module has.
    fn state(&self) -> &ModuleState;
    /// The same, to change it.
    fn state_mut(&mut self) -> &mut ModuleState;
    /// Lists parameters and modules, in the order of the fields.
    fn members<'a>(&'a self, members: &mut Members<'a>);
    /// Lists modules.
    fn modules_mut<'a>(&'a mut self, modules: &mut ModulesMut<'a>);
}

/// A module that takes a tensor and gives one.
pub trait Forward: Module {
    /// The result. Write this, and use [`call`](Forward::call).
    fn forward(&self, x: &DTensor) -> Result<DTensor>;

    /// Runs [`forward`](Forward::forward) and what parallel styles have put around it.
    fn call(&self, x: &DTensor) -> Result<DTensor> {
        self.state().around(x, |x| self.forward(x))
    }
}

/// What a module consists of, by name.
pub type Members<'a> = Vec<(String, Member<'a>)>;

/// The modules in a module, by name.
pub type ModulesMut<'a> = Vec<(String, &'a mut dyn Module)>;

/// A part of a module.
pub enum Member<'a> {
    /// What is learnt, or a buffer.
    Parameter(&'a Parameter),
    /// Another module.
    Module(&'a dyn Module),
}

/// A function that is put before or after a module.
pub type Hook = Arc<dyn Fn(&DTensor) -> Result<DTensor> + Send + Sync>;

/// What every module has beside its own fields.
#[derive(Clone)]
pub struct ModuleState {
    /// Its name within the module above it.
    name: Option<Arc<str>>,
    training: bool,
    before: Vec<Hook>,
    after: Vec<Hook>,
    unit: Option<Arc<Unit>>,
}

impl Default for ModuleState {
    fn default() -> ModuleState {
        ModuleState {
            name: None,
            training: true,
            before: Vec::new(),
            after: Vec::new(),
            unit: None,
        }
    }
}

impl ModuleState {
    /// Whether the model learns, and is not only used: dropout drops.
    pub fn is_training(&self) -> bool {
        self.training
    }

    /// Puts a function before the module: it sees its operand. What is put later comes first.
    pub fn put_before(&mut self, hook: Hook) {
        self.before.insert(0, hook);
    }

    /// Puts a function after the module: it sees its result.
    pub fn put_after(&mut self, hook: Hook) {
        self.after.push(hook);
    }

    pub(crate) fn set_training(&mut self, training: bool) {
        self.training = training;
    }

    pub(crate) fn set_name(&mut self, name: &str) {
        self.name = Some(name.into());
    }

    pub(crate) fn set_unit(&mut self, unit: Arc<Unit>) {
        self.unit = Some(unit);
    }

    pub(crate) fn unit(&self) -> Option<&Arc<Unit>> {
        self.unit.as_ref()
    }

    /// Runs a module with what is put before and after it. For modules that take something else than one tensor.
    pub fn around(
        &self,
        x: &DTensor,
        forward: impl FnOnce(&DTensor) -> Result<DTensor>,
    ) -> Result<DTensor> {
        let run = || {
            let mut x = x.clone();
            for hook in &self.before {
                x = hook(&x)?;
            }
            let mut y = match &self.unit {
                Some(unit) => unit.around(&x, forward)?,
                None => forward(&x)?,
            };
            for hook in &self.after {
                y = hook(&y)?;
            }
            Ok(y)
        };
        match &self.name {
            Some(name) => module_scope(name, run),
            None => run(),
        }
    }
}

impl fmt::Debug for ModuleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModuleState")
            .field("training", &self.training)
            .field("before", &self.before.len())
            .field("after", &self.after.len())
            .finish_non_exhaustive()
    }
}

/// A field of a module: a parameter, a module, or several.
pub trait Field {
    /// Lists what it has.
    fn list<'a>(&'a self, name: &str, members: &mut Members<'a>);
    /// Lists the modules.
    fn list_mut<'a>(&'a mut self, name: &str, modules: &mut ModulesMut<'a>);
}

impl Field for Parameter {
    fn list<'a>(&'a self, name: &str, members: &mut Members<'a>) {
        members.push((name.to_owned(), Member::Parameter(self)));
    }

    fn list_mut<'a>(&'a mut self, _: &str, _: &mut ModulesMut<'a>) {}
}

impl<M: Module> Field for M {
    fn list<'a>(&'a self, name: &str, members: &mut Members<'a>) {
        members.push((name.to_owned(), Member::Module(self)));
    }

    fn list_mut<'a>(&'a mut self, name: &str, modules: &mut ModulesMut<'a>) {
        modules.push((name.to_owned(), self));
    }
}

impl<F: Field> Field for Option<F> {
    fn list<'a>(&'a self, name: &str, members: &mut Members<'a>) {
        if let Some(field) = self {
            field.list(name, members);
        }
    }

    fn list_mut<'a>(&'a mut self, name: &str, modules: &mut ModulesMut<'a>) {
        if let Some(field) = self {
            field.list_mut(name, modules);
        }
    }
}

/// Named by their numbers.
impl<F: Field> Field for Vec<F> {
    fn list<'a>(&'a self, name: &str, members: &mut Members<'a>) {
        for (number, field) in self.iter().enumerate() {
            field.list(&format!("{name}.{number}"), members);
        }
    }

    fn list_mut<'a>(&'a mut self, name: &str, modules: &mut ModulesMut<'a>) {
        for (number, field) in self.iter_mut().enumerate() {
            field.list_mut(&format!("{name}.{number}"), modules);
        }
    }
}
