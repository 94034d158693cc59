//! Modules by the patterns of their names.

use std::any::type_name;

use crate::{
    Error, Module, Result, assign_names,
    boxed::{cast, cast_mut},
    for_each_module, module_names, named_parameters, pattern, set_training, traverse,
};

/// Runs a function on every module whose name matches a pattern, as [`Plan::with`](crate::Plan::with) has them, those in a
/// module before it. A pattern that matches nothing is an error.
///
/// ```
/// use dtensor::{DType, DeviceMesh, Runner};
/// use dtensor_nn::{Gpt, GptConfig, for_each_matching, named_parameters, parameters};
///
/// Runner::threads(1).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "x")?;
///     let config = GptConfig { vocabulary: 8, sequence: 4, layers: 2, dim: 4, heads: 2, ..GptConfig::default() };
///     let mut model = Gpt::new(&config, DType::F32, &mesh)?;
///     let n = parameters(&model).len();
///     for_each_matching(&mut model, "layers.*.mlp.w?", |_, module| {      // these are not learnt from now on
///         named_parameters(module).iter().try_for_each(|(_, own)| Ok(own.set_learnt(false)?))
///     })?;
///     assert_eq!(parameters(&model).len(), n - 2 * 2 * 2);
///     Ok::<_, dtensor_nn::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn for_each_matching(
    module: &mut dyn Module,
    pattern: &str,
    mut visit: impl FnMut(&str, &mut dyn Module) -> Result<()>,
) -> Result<()> {
    pattern::check(pattern, &module_names(module))?;
    for_each_module(module, |name, module| match pattern::matches(pattern, name) {
        true => visit(name, module),
        false => Ok(()),
    })
}

/// Puts another module in the place of every module whose name matches a pattern: the one that `make` gives for it, of the
/// same type, as the field is; in a field that is a `Box<dyn Forward>`, of any type. Styles that were put around it stay; what it was in mode of learning, the new one is.
///
/// An error, after which nothing is changed: a pattern that matches nothing, a module that is no `M`, one whose parameters
/// are gathered for use ([`fully_shard`](crate::fully_shard) comes afterwards), and what `make` says.
///
/// ```
/// use dtensor::{DType, DeviceMesh, Runner};
/// use dtensor_nn::{Activation, Linear, Mlp, replace_matching};
///
/// Runner::threads(1).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "x")?;
///     let mut mlp = Mlp::new(4, 8, Activation::Gelu, true, DType::F32, &mesh)?;
///     replace_matching(&mut mlp, "w?", |_, old: &Linear| {
///         let [rows, columns] = *old.weight.value().shape() else { unreachable!() };
///         Ok(Linear::new(columns, rows, false, DType::F32, &mesh)?)          // without a bias
///     })?;
///     assert!(mlp.w1.bias.is_none() && mlp.w2.bias.is_none());
///     Ok::<_, dtensor_nn::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn replace_matching<M: Module>(
    module: &mut dyn Module,
    pattern: &str,
    mut make: impl FnMut(&str, &M) -> Result<M>,
) -> Result<()> {
    const OP: &str = "replace_matching";
    pattern::check(pattern, &module_names(module))?;
    let mut made = Vec::new();
    for_each_module(module, |name, module| {
        if !pattern::matches(pattern, name) {
            return Ok(());
        }
        let is_gathered = |(_, own): &(String, crate::Parameter)| own.gather().is_some();
        if let Some((parameter, _)) = named_parameters(module).into_iter().find(is_gathered) {
            let name = traverse::joined(name, &parameter);
            return Err(Error::GatheredAlready { op: OP, name });
        }
        let Some(old) = cast::<M>(module) else {
            let (module, wanted) = (name.to_owned(), type_name::<M>());
            return Err(Error::OtherType { op: OP, module, wanted });
        };
        let mut new = make(name, old)?;
        *new.state_mut() = old.state().clone();
        set_training(&mut new, old.state().is_training());
        made.push(new);
        Ok(())
    })?;
    let mut made = made.into_iter();
    for_each_module(module, |name, module| {
        if pattern::matches(pattern, name)
            && let Some(place) = cast_mut::<M>(module)
            && let Some(new) = made.next()
        {
            *place = new;
        }
        Ok::<_, Error>(())
    })?;
    assign_names(module);
    Ok(())
}
