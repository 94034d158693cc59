//! Modules and tensors by their paths.

use super::{ModuleTensor, ShardableModule};

/// All tensors of a module and of those in it, by their paths: names with dots between.
pub fn named_tensors(module: &dyn ShardableModule) -> Vec<(String, &ModuleTensor)> {
    let mut named = module.tensors();
    for (name, child) in module.children() {
        let below = named_tensors(child).into_iter();
        named.extend(below.map(|(path, tensor)| (format!("{name}.{path}"), tensor)));
    }
    named
}

/// Calls `visit` with every tensor, to be changed.
pub(crate) fn for_each_tensor_mut<E>(
    module: &mut dyn ShardableModule,
    visit: &mut dyn FnMut(&str, &mut ModuleTensor) -> Result<(), E>,
) -> Result<(), E> {
    for (name, tensor) in module.tensors_mut() {
        visit(&name, tensor)?;
    }
    for (name, child) in module.children_mut() {
        for_each_tensor_mut(child, &mut |path, tensor| visit(&format!("{name}.{path}"), tensor))?;
    }
    Ok(())
}

/// The tensor at a path.
pub(super) fn tensor_mut<'a>(
    module: &'a mut dyn ShardableModule,
    path: &str,
) -> Option<&'a mut ModuleTensor> {
    match path.split_once('.') {
        None => module
            .tensors_mut()
            .into_iter()
            .find(|(name, _)| name == path)
            .map(|(_, tensor)| tensor),
        Some((first, rest)) => {
            let child = module.children_mut().into_iter().find(|(name, _)| name == first);
            tensor_mut(child?.1, rest)
        }
    }
}

/// The module at a path; the empty path is the module itself.
pub(super) fn module_mut<'a>(
    module: &'a mut dyn ShardableModule,
    path: &str,
) -> Option<&'a mut dyn ShardableModule> {
    if path.is_empty() {
        return Some(module);
    }
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let child = module.children_mut().into_iter().find(|(name, _)| name == first);
    module_mut(child?.1, rest)
}

/// Whether there is a module at a path.
pub(super) fn has_module(module: &dyn ShardableModule, path: &str) -> bool {
    if path.is_empty() {
        return true;
    }
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    module.children().into_iter().any(|(name, child)| name == first && has_module(child, rest))
}
