//! Which tensors are loaded, and what is said of the others.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use dtensor::{DType, Layout, World, WorldKind};

use super::{LoadReport, Misshapen, grid::Grid};
use crate::{Catalog, Entry, Error, Result, State, TensorEntry, Value, convert_type, read};

/// A tensor that is loaded.
pub(super) struct Target<'c> {
    /// In the state.
    pub position: usize,
    /// In the checkpoint.
    pub name: &'c str,
    pub entry: &'c TensorEntry,
    pub dtype: DType,
    pub grid: Arc<Grid>,
}

impl Target<'_> {
    /// Whether elements are not taken as they are stored.
    pub(super) fn converts(&self) -> bool {
        !convert_type::is_same(self.entry.stored, self.dtype)
    }
}

/// What is loaded into which places of the state.
pub(super) struct Targets<'c> {
    pub tensors: Vec<Target<'c>>,
    pub values: Vec<(usize, Value)>,
    pub report: LoadReport,
}

impl<'c> Targets<'c> {
    /// Finds for every name of the state what the checkpoint has of it. From what all ranks share: either all ranks get the
    /// same error, or none does.
    pub(super) fn find(
        world: &World,
        state: &State,
        catalog: &'c Catalog,
        partial: bool,
    ) -> Result<Targets<'c>> {
        check_world(world, state)?;
        let (mut tensors, mut values) = (Vec::new(), Vec::new());
        let mut report = LoadReport::default();
        let mut grids: HashMap<Layout, Arc<Grid>> = HashMap::new();
        for (position, (name, entry)) in state.iter().enumerate() {
            if catalog.unreadable.contains_key(name) {
                report.unreadable.push(name.to_owned());
                continue;
            }
            match entry {
                Entry::Tensor(tensor) => {
                    let Some((name, entry)) = catalog.tensors.get_key_value(name) else {
                        report.missing.push(name.to_owned());
                        continue;
                    };
                    if entry.shape != tensor.shape() {
                        let (stored, wanted) = (entry.shape.clone(), tensor.shape().to_vec());
                        report.misshapen.push(Misshapen { name: name.clone(), stored, wanted });
                        continue;
                    }
                    convert_type::check_convertible(name, entry.stored)?;
                    let (layout, coord) = (tensor.layout(), tensor.mesh().coord());
                    let grid = grids
                        .entry(layout.clone())
                        .or_insert_with(|| Arc::new(Grid::new(layout, coord)));
                    let (dtype, grid) = (tensor.dtype(), Arc::clone(grid));
                    tensors.push(Target { position, name, entry, dtype, grid });
                }
                Entry::Value(_) => match catalog.values.get(name) {
                    Some(value) => values.push((position, value.clone())),
                    None => report.missing.push(name.to_owned()),
                },
            }
        }
        let found: HashSet<&str> = state.iter().map(|(name, _)| name).collect();
        let unexpected = catalog.names().filter(|name| !found.contains(name));
        report.unexpected = unexpected.map(str::to_owned).collect();
        report.unexpected.sort_unstable();
        if !partial {
            refuse(&report, catalog)?;
        }
        (report.tensors, report.values) = (tensors.len(), values.len());
        Ok(Targets { tensors, values, report })
    }
}

/// The first thing for which a load that is not partial cannot be.
fn refuse(report: &LoadReport, catalog: &Catalog) -> Result<()> {
    if let Some(name) = report.unreadable.first().or(report.missing.first()) {
        return Err(read::missing(catalog, name));
    }
    match report.misshapen.first() {
        Some(Misshapen { name, stored, wanted }) => {
            let (name, stored, wanted) = (name.clone(), stored.clone(), wanted.clone());
            Err(Error::Misshapen { name, stored, wanted })
        }
        None => Ok(()),
    }
}

/// Whether all tensors can be filled by the ranks of this world.
fn check_world(world: &World, state: &State) -> Result<()> {
    for (name, entry) in state.iter() {
        let Entry::Tensor(tensor) = entry else { continue };
        let refused = |what: &str, way_out| {
            let (what, place) = (what.to_owned(), name.to_owned());
            Err(Error::Unsupported { what, place, way_out })
        };
        if !tensor.mesh().world().is_same(world) {
            return refused("a tensor of another world", "load with the world of its mesh");
        }
        if world.kind() == WorldKind::Fake {
            return refused("a tensor without values", "load in a world that is not fake");
        }
        if tensor.layout().is_partial() {
            return refused(
                "a pending reduction",
                "redistribute the tensor to shards or copies first",
            );
        }
    }
    Ok(())
}
