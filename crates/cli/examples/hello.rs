//! The program of the README: a product of matrices, each cut in its own way.
#![allow(clippy::print_stdout, reason = "an example that prints")]

use dtensor::{DType, DeviceMesh, Placement::*, Runner, randn};

fn main() -> Result<(), dtensor::RunError> {
    Runner::new().ranks(4).run(|world| {
        let mesh = DeviceMesh::new(world, &[("dp", 2), ("tp", world.size() / 2)])?;
        let x = randn(&[13, 8], DType::F32, &mesh, &[Shard(0), Replicate])?;
        let w = randn(&[8, 6], DType::F32, &mesh, &[Replicate, Shard(1)])?;
        let y = x.matmul(&w)?; // nothing is sent
        let z = y.redistribute(&[Replicate, Shard(1)])?; // an all-gather along dp
        println!("rank {}: {:?} of {:?}", world.rank(), z.to_local().shape(), z.layout());
        Ok::<_, dtensor::Error>(())
    })?;
    Ok(())
}
