//! The program of the README: every rank says which rows of a 13 x 8 matrix it holds.
#![allow(clippy::print_stdout, reason = "an example that prints")]

use std::error::Error;

use dtensor_comm::{ReduceOp, run};
use dtensor_layout::{DType, Layout, Mesh};

fn main() -> Result<(), Box<dyn Error>> {
    run(|world| -> Result<(), Box<dyn Error + Send + Sync>> {
        let mesh = Mesh::new(&[("dp", world.size())])?;
        let layout = Layout::parse(&[13, 8], DType::F32, &mesh, "S(0)")?;
        let mine = layout.local_shape(&[world.rank()]);
        let mut elements = [(mine[0] * mine[1]) as i64];
        world.group().all_reduce(&mut elements, ReduceOp::Sum)?;
        println!("rank {} holds {mine:?} of {} elements", world.rank(), elements[0]);
        Ok(())
    })?;
    Ok(())
}
