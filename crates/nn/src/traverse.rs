//! All parameters and all modules of a model.

use crate::{Member, Module, Parameter};

/// Every parameter with its name, in the order of the fields; one that several modules share is there once. Buffers are among
/// them, as they are in a state dict.
pub fn named_parameters(module: &dyn Module) -> Vec<(String, Parameter)> {
    let mut found: Vec<(String, Parameter)> = Vec::new();
    walk(module, "", &mut |name, member| {
        if let Member::Parameter(parameter) = member
            && !found.iter().any(|(_, other)| other.is_same(parameter))
        {
            found.push((name.to_owned(), (*parameter).clone()));
        }
        true
    });
    found
}

/// Every [buffer](Parameter::frozen) with its name, in the same order.
pub fn named_buffers(module: &dyn Module) -> Vec<(String, Parameter)> {
    let all = named_parameters(module).into_iter();
    all.filter(|(_, parameter)| parameter.is_buffer()).collect()
}

/// Every parameter that is learnt.
pub fn parameters(module: &dyn Module) -> Vec<Parameter> {
    let all = named_parameters(module).into_iter().map(|(_, parameter)| parameter);
    all.filter(Parameter::is_learnt).collect()
}

/// The names of all modules below this one.
pub fn module_names(module: &dyn Module) -> Vec<String> {
    let mut names = Vec::new();
    walk(module, "", &mut |name, member| {
        if let Member::Module(_) = member {
            names.push(name.to_owned());
        }
        true
    });
    names
}

/// Runs a function on every module below this one, with its name, and last on this one, whose name is empty.
pub fn for_each_module<E>(
    module: &mut dyn Module,
    mut visit: impl FnMut(&str, &mut dyn Module) -> Result<(), E>,
) -> Result<(), E> {
    for_each(module, "", &mut visit)
}

/// Whether the model learns, or is only used.
pub fn set_training(module: &mut dyn Module, training: bool) {
    let _: Result<(), std::convert::Infallible> = for_each_module(module, |_, module| {
        module.state_mut().set_training(training);
        Ok(())
    });
}

/// Gives every module its name, by which communication is counted. Models of this crate have theirs; call it on your own.
pub fn assign_names(module: &mut dyn Module) {
    let mut modules = Vec::new();
    module.modules_mut(&mut modules);
    for (name, module) in modules {
        module.state_mut().set_name(&name);
        assign_names(module);
    }
}

/// Visits members, and those of modules for which `visit` says so.
pub(crate) fn walk<'a>(
    module: &'a dyn Module,
    prefix: &str,
    visit: &mut dyn FnMut(&str, &Member<'a>) -> bool,
) {
    let mut members = Vec::new();
    module.members(&mut members);
    for (name, member) in &members {
        let path = joined(prefix, name);
        if let (true, Member::Module(module)) = (visit(&path, member), member) {
            walk(*module, &path, visit);
        }
    }
}

fn for_each<E>(
    module: &mut dyn Module,
    path: &str,
    visit: &mut dyn FnMut(&str, &mut dyn Module) -> Result<(), E>,
) -> Result<(), E> {
    let mut modules = Vec::new();
    module.modules_mut(&mut modules);
    for (name, module) in modules {
        for_each(module, &joined(path, &name), visit)?;
    }
    visit(path, module)
}

pub(crate) fn joined(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}
