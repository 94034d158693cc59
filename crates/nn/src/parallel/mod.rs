//! Parallel styles: how the parameters of a module are cut over a mesh axis, and where its operand and its result lie.

mod distribute;
mod prepare;
mod spot;
mod styles;

use std::{fmt, sync::Arc};

use dtensor::{DTensor, DeviceMesh};

pub use distribute::distribute_module;
pub use prepare::{PrepareInput, PrepareInputOutput, PrepareOutput};
pub use spot::Spot;
pub use styles::{ColwiseParallel, RowwiseParallel, SequenceParallel};
pub(crate) use styles::{axis_name, surround};

use crate::{
    Error, Member, Module, ModuleState, Result, for_each_module, module_names, named_parameters,
    pattern, traverse,
};

/// What is done to a module to run it on the ranks of a mesh axis.
pub trait ParallelStyle: fmt::Debug + Send + Sync {
    /// Cuts the parameters of the module called `name`, and puts before and after it what brings its operand and its result
    /// to where they belong.
    fn apply(&self, name: &str, module: &mut dyn Module, axis: usize) -> Result<()>;
}

/// Styles by the names of modules.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    styles: Vec<(String, Arc<dyn ParallelStyle>)>,
}

impl Plan {
    /// Without a style.
    pub fn new() -> Plan {
        Plan::default()
    }

    /// With a style for all modules whose names match a pattern: part by part between the dots, `*` stands for anything, `?`
    /// for one character, `[abc]` for one of these. The empty pattern is the module itself.
    #[must_use]
    pub fn with(mut self, pattern: &str, style: impl ParallelStyle + 'static) -> Plan {
        self.styles.push((pattern.to_owned(), Arc::new(style)));
        self
    }

    /// The patterns, in order.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        self.styles.iter().map(|(pattern, _)| pattern.as_str())
    }
}

/// Runs the modules of a model on the ranks of a mesh axis, each by the style that a plan has for its name. A pattern that
/// matches nothing is an error, and so is a style that a module cannot have; then nothing is changed.
///
/// Parameters lie on `mesh`, which may have other axes. It comes before [`fully_shard`](crate::fully_shard) and
/// [`replicate`](crate::replicate): a module that has parameters which these gather is refused.
///
/// ```
/// use dtensor::{CommDebug, DType, DeviceMesh, Placement::Replicate, Runner, ones};
/// use dtensor_nn::{Activation, ColwiseParallel, Forward, Mlp, Plan, RowwiseParallel, parallelize_module};
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "tp")?;
///     let mut mlp = Mlp::new(4, 16, Activation::Gelu, true, DType::F32, &mesh)?;
///     let plan = Plan::new().with("w1", ColwiseParallel::default()).with("w2", RowwiseParallel::default());
///     parallelize_module(&mut mlp, &mesh, "tp", &plan)?;
///     let x = ones(&[3, 4], DType::F32, &mesh, &[Replicate])?;
///     let (y, comm) = CommDebug::record(|| mlp.call(&x));
///     assert_eq!((y?.placements()[0], comm.calls()), (Replicate, 1));   // one all-reduce
///     Ok::<_, dtensor_nn::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn parallelize_module(
    module: &mut dyn Module,
    mesh: &DeviceMesh,
    axis: &str,
    plan: &Plan,
) -> Result<()> {
    let axis = mesh.axis_index(axis)?;
    let names = module_names(module);
    for pattern in plan.patterns() {
        pattern::check(pattern, &names)?;
    }
    let parameters = named_parameters(module);
    for (name, parameter) in &parameters {
        let own = parameter.value().mesh().clone();
        if own != *mesh {
            let (own, mesh) = (own.to_string(), mesh.to_string());
            return Err(Error::OtherMesh { name: name.clone(), own, mesh });
        }
    }
    refuse_gathered("parallelize_module", module, |parameter| {
        // All modules that it is in, of which the outermost has the empty name.
        let mut modules = [0].into_iter().chain(parameter.match_indices('.').map(|(at, _)| at));
        modules
            .any(|end| plan.patterns().any(|pattern| pattern::matches(pattern, &parameter[..end])))
    })?;
    crate::assign_names(module);
    let values: Vec<DTensor> = parameters.iter().map(|(_, own)| own.value()).collect();
    let mut states: Vec<ModuleState> = Vec::new();
    let outcome = for_each_module(module, |name, module| {
        states.push(module.state().clone());
        for (pattern, style) in &plan.styles {
            if pattern::matches(pattern, name) {
                style.apply(name, module, axis)?;
            }
        }
        Ok(())
    });
    if outcome.is_err() {
        for ((_, parameter), value) in parameters.iter().zip(&values) {
            parameter.restore(value)?;
        }
        let mut states = states.into_iter();
        for_each_module(module, |_, module| {
            if let Some(state) = states.next() {
                *module.state_mut() = state;
            }
            Ok::<_, Error>(())
        })?;
    }
    outcome
}

/// Refuses to place what is gathered for use: how it is gathered would bring it back to where it was, whole.
fn refuse_gathered(
    op: &'static str,
    module: &dyn Module,
    is_placed: impl Fn(&str) -> bool,
) -> Result<()> {
    let mut gathered = None;
    traverse::walk(module, "", &mut |name, member| {
        if let Member::Parameter(parameter) = member
            && gathered.is_none()
            && parameter.gather().is_some()
            && is_placed(name)
        {
            gathered = Some(name.to_owned());
        }
        true
    });
    gathered.map_or(Ok(()), |name| Err(Error::GatheredAlready { op, name }))
}
