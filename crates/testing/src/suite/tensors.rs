//! Distributed tensors on a real world.

use dtensor::{
    DTensor, DType, DeviceMesh, Mesh,
    Placement::{self, Partial, Replicate, Shard},
    ReduceOp, Tensor, World, WorldKind, distribute_tensor_from, randn, random,
};

use crate::{
    dense::Dense,
    noise::Noise,
    tensors::{dense, layouts_of, mesh, place, sweep, tensor},
};

/// 5 does not divide by 2, 3 or 4, and of 2 columns the later ranks get none.
const SHAPE: [usize; 2] = [5, 2];

/// Between every two placements on one axis, and on two where the ranks make two.
pub(super) fn redistributed(world: &World) -> Result<(), String> {
    let whole = noise(&SHAPE);
    for sizes in mesh_sizes(world.size()) {
        let mesh = mesh(world, &sizes);
        let layouts = layouts_of(&SHAPE, DType::F64, &sizes);
        // All pairs of two axes are a test of their own; here every few are enough.
        let step = if sizes.len() > 1 { 5 } else { 1 };
        for from in layouts.iter().step_by(step) {
            let x = place(&whole, DType::F64, &mesh, from, 4);
            for to in layouts.iter().step_by(step) {
                let mixed = |(a, b): (&Placement, &Placement)| {
                    a.reduce_op().zip(b.reduce_op()).is_some_and(|(a, b)| a != b)
                };
                if from.iter().zip(to).any(mixed) {
                    continue;
                }
                let y = x.redistribute(to).map_err(text)?;
                same(&y, &whole, &format!("{from:?} -> {to:?}"))?;
            }
        }
    }
    Ok(())
}

/// What one rank finds wrong with the values it holds is the same error on all, and the world goes on.
pub(super) fn refused_values(world: &World) -> Result<(), String> {
    let n = world.size();
    let mesh = mesh(world, &[n]);
    let table = place(&noise(&[5, 2]), DType::F64, &mesh, &[Replicate], 1);
    for bad in 0..n {
        // Two indices per rank, of which that of one rank is out of range.
        let indices: Vec<f64> =
            (0..2 * n).map(|at| if at == 2 * bad { 99.0 } else { 1.0 }).collect();
        let indices = place(&Dense::new(&[2 * n], indices), DType::I64, &mesh, &[Shard(0)], 1);
        let error = match table.index_select(0, &indices) {
            Ok(_) => return Err(format!("index 99 of rank {bad} was taken")),
            Err(error) => error.to_string(),
        };
        if !error.contains("99") {
            return Err(format!("of index 99 on rank {bad}: {error}"));
        }
        let ones = dtensor::ones(&[n], DType::I64, &mesh, &[Shard(0)]).map_err(text)?;
        let sum = ones.sum(&[], false).and_then(|sum| sum.item::<i64>()).map_err(text)?;
        if sum != n as i64 {
            return Err(format!("afterwards {n} ones are {sum}"));
        }
    }
    Ok(())
}

/// From the first ranks to the last, some of which are the same.
pub(super) fn to_other_meshes(world: &World) -> Result<(), String> {
    let whole = noise(&SHAPE);
    let n = world.size();
    let part = n.div_ceil(2);
    for (from, to) in [
        (format!("a={n}"), format!("b={part}:1@{}", n - part)),
        (format!("a={part}:1@0"), format!("b={part}:1@{}", n - part)),
    ] {
        let made = |text_of: &str| {
            let parsed: Mesh = text_of.parse().map_err(text)?;
            DeviceMesh::from_mesh(world, parsed).map_err(text)
        };
        let (from, to) = (made(&from)?, made(&to)?);
        let local = tensor(&whole, DType::F64)?;
        let x = distribute_tensor_from(&local, &from, &[Shard(0)], None).map_err(text)?;
        for placement in [Shard(1), Replicate] {
            let y = x.redistribute_to(&to, &[placement]).map_err(text)?;
            match to.coord() {
                Some(_) => same(&y, &whole, &format!("{from} -> {to}"))?,
                None if y.full_tensor().is_ok() => return Err("a value on no mesh".to_string()),
                None => {}
            }
        }
    }
    Ok(())
}

/// Several at a time, and others meanwhile.
pub(super) fn pending(world: &World) -> Result<(), String> {
    let whole = noise(&SHAPE);
    let mesh = mesh(world, &[world.size()]);
    for from in [Shard(0), Shard(1), Partial(ReduceOp::Sum)] {
        let x = place(&whole, DType::F64, &mesh, &[from], 4);
        let first = x.start_redistribute(&[Replicate]).map_err(text)?;
        let second = x.start_redistribute(&[Shard(1)]).map_err(text)?;
        same(&x, &whole, "meanwhile")?;
        same(&second.wait().map_err(text)?, &whole, "the second")?;
        same(&first.wait().map_err(text)?, &whole, "the first")?;
    }
    Ok(())
}

pub(super) fn constructed(world: &World) -> Result<(), String> {
    let (rank, n) = (world.rank(), world.size());
    let mesh = mesh(world, &[n]);
    let last = n - 1;
    let own = Tensor::full(&SHAPE, rank as f64).map_err(text)?;
    for placement in [Shard(0), Shard(1), Replicate, Partial(ReduceOp::Sum)] {
        let x = distribute_tensor_from(&own, &mesh, &[placement], Some(last)).map_err(text)?;
        let want = Dense::from_fn(&SHAPE, |_| last as f64);
        same(&x, &want, &format!("the last rank's data as {placement}"))?;
    }
    // Parts that the ranks put together: two rows each, but for the last.
    let rows = if rank == last { 1 } else { 2 };
    let part = Tensor::full(&[rows, 3], rank as f64).map_err(text)?;
    let x = DTensor::from_local(&part, &mesh, &[Shard(0)]).map_err(text)?;
    let want = Dense::from_fn(&[2 * n - 1, 3], |index| (index[0] / 2) as f64);
    same(&x, &want, "parts")?;
    // And such as nobody can: every rank is told.
    let part = Tensor::full(&[rank + 1, 3], 0.0).map_err(text)?;
    match (DTensor::from_local(&part, &mesh, &[Shard(0)]), n) {
        (Ok(_), 1) | (Err(dtensor::Error::WrongLocal { rank: 0, .. }), _) => Ok(()),
        (other, _) => Err(format!("parts of 1, 2, ... rows: {other:?}")),
    }
}

pub(super) fn random(world: &World) -> Result<(), String> {
    let mesh = mesh(world, &[world.size()]);
    random::manual_seed(5);
    let first = randn(&SHAPE, DType::F32, &mesh, &[Replicate]).map_err(text)?;
    let want = first.to_local().to_vec::<f32>().map_err(text)?;
    for placement in [Shard(0), Shard(1), Partial(ReduceOp::Sum)] {
        random::manual_seed(5);
        let other = randn(&SHAPE, DType::F32, &mesh, &[placement]).map_err(text)?;
        if other.to_vec::<f32>().map_err(text)? != want {
            return Err(format!("{placement} has other values"));
        }
    }
    Ok(())
}

/// Every operation with every placement of its first operand. Threads have a test of their own for that;
/// processes run every few of them.
pub(super) fn operations(world: &World) -> Result<(), String> {
    let mesh = mesh(world, &[world.size()]);
    let step = if world.kind() == WorldKind::Mpi { 3 } else { 19 };
    for case in sweep::cases(&[world.size()]).iter().step_by(step) {
        case.check(&mesh).map_err(|why| format!("{}: {why}", case.name()))?;
    }
    Ok(())
}

pub(super) fn mesh_sizes(n_ranks: usize) -> Vec<Vec<usize>> {
    let divisor = (2..n_ranks).find(|divisor| n_ranks.is_multiple_of(*divisor));
    let two = divisor.map(|divisor| vec![divisor, n_ranks / divisor]);
    std::iter::once(vec![n_ranks]).chain(two).collect()
}

pub(super) fn noise(shape: &[usize]) -> Dense {
    let mut noise = Noise::new(3);
    Dense::from_fn(shape, |_| 3.0 * noise.signed())
}

pub(super) fn same(got: &DTensor, want: &Dense, what: &str) -> Result<(), String> {
    let got = dense(&got.full_tensor().map_err(text)?).map_err(text)?;
    match got.is_close(want) {
        true => Ok(()),
        false => Err(format!("{what}: got {got:?}, want {want:?}")),
    }
}

pub(super) fn text(error: impl std::error::Error) -> String {
    error.to_string()
}
