//! A mesh of ranks of a world.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use dtensor_comm::{Group, World, WorldKind};
use dtensor_layout::{Mesh, MeshAxis};

use crate::{Error, Result};

/// Ranks of a [`World`], arranged on named axes. Cloning is cheap.
///
/// Making one does not communicate, and costs the same for 4 ranks and for 262,144. A rank that is not on
/// the mesh may make it as well, and tensors on it: there it holds nothing and calls return at once.
///
/// ```
/// use dtensor::{DeviceMesh, Runner};
///
/// Runner::threads(4).run(|world| {
///     let mesh = DeviceMesh::new(world, &[("dp", 2), ("tp", 2)])?;
///     let tp = mesh.submesh(&["tp"])?;      // the two ranks beside this one
///     assert_eq!(tp.size(), 2);
///     assert_eq!(mesh.coord(), Some(&[world.rank() / 2, world.rank() % 2][..]));
///     Ok::<_, dtensor::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
#[derive(Clone)]
pub struct DeviceMesh(Arc<Inner>);

struct Inner {
    world: World,
    mesh: Mesh,
    /// `None` for a rank that is not on the mesh.
    coord: Option<Vec<usize>>,
    /// By the set of axes, a bit each: a set has few members, so that the list is short.
    groups: Mutex<HashMap<u32, Group>>,
    /// The mesh of this rank alone.
    alone: OnceLock<DeviceMesh>,
}

impl DeviceMesh {
    /// A mesh over the ranks `0..product of sizes`, the last axis varying fastest.
    pub fn new<N: AsRef<str>>(world: &World, axes: &[(N, usize)]) -> Result<DeviceMesh> {
        let mesh = Mesh::new(axes).map_err(Error::layout("DeviceMesh::new"))?;
        DeviceMesh::from_mesh(world, mesh)
    }

    /// A mesh of one axis with all ranks.
    pub fn of_world(world: &World, axis: &str) -> Result<DeviceMesh> {
        DeviceMesh::new(world, &[(axis, world.size())])
    }

    /// The ranks that a [`Mesh`] describes.
    pub fn from_mesh(world: &World, mesh: Mesh) -> Result<DeviceMesh> {
        let reach = |axis: &MeshAxis| axis.offset(axis.size() - 1);
        let last = mesh.base() + mesh.axes().iter().map(reach).sum::<usize>();
        if last >= world.size() {
            return Err(Error::MeshTooLarge {
                mesh: mesh.to_string().into(),
                rank: last,
                size: world.size(),
            });
        }
        if world.kind() == WorldKind::Threads {
            // The ranks compute at the same time, and share the cores.
            dtensor_local::share_threads(world.size());
        }
        let coord = mesh.coord_of(world.rank());
        let (world, groups, alone) = (world.clone(), Mutex::default(), OnceLock::new());
        let inner = Inner { world, mesh, coord, groups, alone };
        Ok(DeviceMesh(Arc::new(inner)))
    }

    /// The ranks of a group as one axis. They must be equally spaced.
    pub fn from_group(world: &World, group: &Group, axis: &str) -> Result<DeviceMesh> {
        let ranks = group.world_ranks();
        let not_an_axis = || Error::NotAnAxis { ranks: ranks[..ranks.len().min(16)].into() };
        let first = *ranks.first().ok_or_else(not_an_axis)?;
        let stride = match ranks.get(1) {
            Some(second) => second.checked_sub(first).ok_or_else(not_an_axis)?,
            None => 1,
        };
        if ranks.iter().enumerate().any(|(index, rank)| *rank != first + index * stride) {
            return Err(not_an_axis());
        }
        let text = format!("{axis}={}:{stride}@{first}", ranks.len());
        let mesh = text.parse::<Mesh>().map_err(Error::layout("DeviceMesh::from_group"))?;
        DeviceMesh::from_mesh(world, mesh)
    }

    /// The mesh of this rank alone, with one axis `own`: what lies on it is never sent.
    pub fn alone(&self) -> Result<DeviceMesh> {
        if let Some(alone) = self.0.alone.get() {
            return Ok(alone.clone());
        }
        let text = format!("own=1:1@{}", self.0.world.rank());
        let mesh = text.parse::<Mesh>().map_err(Error::layout("DeviceMesh::alone"))?;
        let made = DeviceMesh::from_mesh(&self.0.world, mesh)?;
        Ok(self.0.alone.get_or_init(|| made).clone())
    }

    /// The world that its ranks belong to.
    pub fn world(&self) -> &World {
        &self.0.world
    }

    /// Its sizes, names and strides, without a world.
    pub fn mesh(&self) -> &Mesh {
        &self.0.mesh
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.0.mesh.size()
    }

    /// Number of axes.
    pub fn n_axes(&self) -> usize {
        self.0.mesh.n_axes()
    }

    /// This rank's coordinate, one index per axis; `None` if it is not on the mesh.
    pub fn coord(&self) -> Option<&[usize]> {
        self.0.coord.as_deref()
    }

    /// This rank's index on the axis of this name; `None` if it is not on the mesh.
    pub fn local_rank(&self, axis: &str) -> Result<Option<usize>> {
        let axis = self.axis_index(axis)?;
        Ok(self.coord().map(|coord| coord[axis]))
    }

    /// Position of the axis of this name.
    pub fn axis_index(&self, name: &str) -> Result<usize> {
        self.0.mesh.axis_index(name).map_err(Error::layout("DeviceMesh"))
    }

    /// The part of the mesh on these axes, in this order, that this rank is on.
    pub fn submesh<N: AsRef<str>>(&self, names: &[N]) -> Result<DeviceMesh> {
        let coord = self.own_coord("submesh")?;
        let mesh = self.0.mesh.slice(names, coord).map_err(Error::layout("submesh"))?;
        DeviceMesh::from_mesh(&self.0.world, mesh)
    }

    /// The ranks beside this one on an axis, as a mesh of that axis.
    pub fn axis(&self, name: &str) -> Result<DeviceMesh> {
        self.submesh(&[name])
    }

    /// One axis that walks all ranks in the order of their coordinates.
    pub fn flatten(&self, name: &str) -> Result<DeviceMesh> {
        let mesh = self.0.mesh.flatten(name).map_err(Error::layout("flatten"))?;
        DeviceMesh::from_mesh(&self.0.world, mesh)
    }

    /// Replaces one axis by several whose sizes multiply to it, the last varying fastest.
    pub fn unflatten<N: AsRef<str>>(&self, axis: &str, parts: &[(N, usize)]) -> Result<DeviceMesh> {
        let mesh = self.0.mesh.unflatten(axis, parts).map_err(Error::layout("unflatten"))?;
        DeviceMesh::from_mesh(&self.0.world, mesh)
    }

    /// The axes of several meshes that this rank is on, together.
    pub fn concatenate(parts: &[&DeviceMesh]) -> Result<DeviceMesh> {
        const OP: &str = "concatenate";
        let Some(first) = parts.first() else {
            return Err(Error::layout(OP)(dtensor_layout::LayoutError::EmptyMesh));
        };
        let meshes: Vec<Mesh> = parts.iter().map(|part| part.mesh().clone()).collect();
        let mesh =
            Mesh::concatenate_at(&meshes, first.world().rank()).map_err(Error::layout(OP))?;
        DeviceMesh::from_mesh(first.world(), mesh)
    }

    /// The ranks beside this one on some axes, as the group that communicates there. In the order of
    /// their coordinates, the last of the named axes varying fastest.
    pub fn group<N: AsRef<str>>(&self, axes: &[N]) -> Result<Group> {
        let axes = axes.iter().map(|axis| self.axis_index(axis.as_ref()));
        self.group_of("DeviceMesh::group", &axes.collect::<Result<Vec<_>>>()?)
    }

    /// As [`group`](DeviceMesh::group), of axes by their positions, which ascend.
    pub(crate) fn group_of(&self, op: &'static str, axes: &[usize]) -> Result<Group> {
        let mask = axes.iter().fold(0, |mask, axis| mask | 1 << axis);
        let ascending = axes.is_sorted_by(|a, b| a < b);
        let mut groups = self.0.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if ascending && let Some(group) = groups.get(&mask) {
            return Ok(group.clone());
        }
        let coord = self.own_coord(op)?;
        let mesh = self.mesh();
        let here = mesh.rank_at(coord).map_err(Error::layout(op))?;
        let first =
            here - axes.iter().map(|axis| mesh.axes()[*axis].offset(coord[*axis])).sum::<usize>();
        let mut ranks = vec![first];
        for axis in axes.iter().map(|axis| &mesh.axes()[*axis]) {
            ranks = ranks
                .into_iter()
                .flat_map(|rank| (0..axis.size()).map(move |index| rank + axis.offset(index)))
                .collect();
        }
        let group = self.0.world.subgroup(&ranks).map_err(Error::comm(op))?;
        if ascending {
            groups.insert(mask, group.clone());
        }
        Ok(group)
    }

    /// Whether nothing is computed or sent: tensors on it have shapes and layouts only.
    pub fn is_fake(&self) -> bool {
        self.0.world.kind() == WorldKind::Fake
    }

    /// This rank's coordinate, or an error that says that it has none.
    pub(crate) fn own_coord(&self, op: &'static str) -> Result<&[usize]> {
        self.coord().ok_or_else(|| Error::NotOnMesh {
            op,
            rank: self.0.world.rank(),
            mesh: self.0.mesh.to_string().into(),
        })
    }

    /// Whether they are one value, not only equal ones: the test of the fast path.
    #[inline]
    pub(crate) fn is_same(&self, other: &DeviceMesh) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    #[inline]
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }
}

/// Meshes are equal if they arrange the same ranks of one world in the same way.
impl PartialEq for DeviceMesh {
    fn eq(&self, other: &DeviceMesh) -> bool {
        self.is_same(other) || (self.0.mesh == other.0.mesh && self.0.world.is_same(&other.0.world))
    }
}

impl Eq for DeviceMesh {}

impl fmt::Debug for DeviceMesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMesh({})", self.0.mesh)
    }
}

impl fmt::Display for DeviceMesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.mesh.fmt(f)
    }
}
