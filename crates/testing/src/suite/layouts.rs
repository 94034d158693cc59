//! Layouts on a real world: what `placed` computes for all ranks in a loop, done by the ranks.

use dtensor_comm::{ReduceOp, World};
use dtensor_layout::{DType, Layout, Mesh, Placement};

use crate::{
    dense::Dense,
    noise::Noise,
    placed::{gather, scatter},
};

/// 5 does not divide by 2, 3 or 4, and of 2 rows the later ranks get none.
const SHAPE: [usize; 3] = [5, 2, 3];

/// Every rank holds its part and collects those of the others.
pub(super) fn gathered(world: &World) -> Result<(), String> {
    for mesh in meshes(world.size())? {
        for placements in every_placement(&mesh) {
            let (layout, whole, parts) = distribute(&mesh, &placements)?;
            let counts: Vec<usize> = parts.iter().map(|part| part.data().len()).collect();
            let mut all = vec![0.0; counts.iter().sum()];
            let own = parts[world.rank()].data();
            world.group().tag("gathered").all_gather_v(own, &mut all, &counts).map_err(text)?;
            let mut rest = &all[..];
            let mut received = Vec::new();
            for part in &parts {
                let (data, after) = rest.split_at(part.data().len());
                received.push(Dense::new(part.shape(), data.to_vec()));
                rest = after;
            }
            same(&gather(&received, &layout)?, &whole, &layout)?;
        }
    }
    Ok(())
}

/// Every rank holds a contribution and reduces it with its neighbours along the axis.
pub(super) fn reduced(world: &World) -> Result<(), String> {
    for mesh in meshes(world.size())? {
        for op in ReduceOp::ALL {
            let placements = vec![Placement::Partial(op); mesh.n_axes()];
            let (layout, whole, parts) = distribute(&mesh, &placements)?;
            let mut own = parts[world.rank()].clone();
            let coord = mesh.coord_of(world.rank()).ok_or("a rank outside of the mesh")?;
            for axis in 0..mesh.n_axes() {
                let ranks: Vec<usize> = mesh.axis_ranks(axis, &coord).map_err(text)?.collect();
                let group = world.subgroup(&ranks).map_err(text)?;
                group.tag("reduced").all_reduce(own.data_mut(), op).map_err(text)?;
            }
            same(&own, &whole, &layout)?;
        }
    }
    Ok(())
}

/// One axis, and two where the number of ranks has a divisor.
fn meshes(n_ranks: usize) -> Result<Vec<Mesh>, String> {
    let mut sizes = vec![vec![n_ranks]];
    let divisor = (2..n_ranks).find(|divisor| n_ranks.is_multiple_of(*divisor));
    sizes.extend(divisor.map(|divisor| vec![divisor, n_ranks / divisor]));
    sizes.iter().map(|sizes| Mesh::from_sizes(sizes).map_err(text)).collect()
}

fn every_placement(mesh: &Mesh) -> Vec<Vec<Placement>> {
    use Placement::{Partial, Replicate, Shard};
    let one = [Shard(0), Shard(1), Shard(2), Replicate, Partial(ReduceOp::Sum)];
    (0..mesh.n_axes()).fold(vec![Vec::new()], |all, _| {
        all.iter()
            .flat_map(|outer| one.map(|inner| [outer.as_slice(), &[inner]].concat()))
            .collect()
    })
}

/// A tensor and its parts: the same on every rank, since the noise is.
fn distribute(
    mesh: &Mesh,
    placements: &[Placement],
) -> Result<(Layout, Dense, Vec<Dense>), String> {
    let layout = Layout::new(&SHAPE, DType::F64, mesh, placements).map_err(text)?;
    let mut noise = Noise::new(7);
    let whole = Dense::from_fn(&SHAPE, |_| 3.0 * noise.signed());
    let parts = scatter(&whole, &layout, &mut noise);
    Ok((layout, whole, parts))
}

fn same(got: &Dense, want: &Dense, layout: &Layout) -> Result<(), String> {
    match got.is_close(want) {
        true => Ok(()),
        false => Err(format!("{layout:?}: got {got:?}, want {want:?}")),
    }
}

fn text(error: impl std::error::Error) -> String {
    error.to_string()
}
