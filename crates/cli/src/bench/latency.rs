use std::time::Instant;

use dtensor_comm::{CommError, Group, ReduceOp};

use super::{plain_mpi::PlainMpi, samples::Samples};

/// Times of single all-reduces of 8 bytes on the slowest rank, one after the other.
pub fn all_reduce(group: &Group) -> Result<Samples, CommError> {
    let mut value = [1.0f64];
    measure(group, || {
        // The maximum of ones stays one, however often it is taken.
        group.all_reduce(&mut value, ReduceOp::Max)
    })
}

/// The same by the plain MPI call.
pub fn plain_all_reduce(group: &Group, plain: &PlainMpi) -> Result<Samples, CommError> {
    measure(group, || {
        plain.small_all_reduce();
        Ok(())
    })
}

fn measure(
    group: &Group,
    mut call: impl FnMut() -> Result<(), CommError>,
) -> Result<Samples, CommError> {
    const WARM_UP: usize = 100;
    const MOST: usize = 20_000;
    const BUDGET_US: f64 = 500_000.0;
    group.barrier()?;
    let start = Instant::now();
    for _ in 0..WARM_UP {
        call()?;
    }
    // With more ranks than cores a call takes a thousand times as long: fewer of them, then. The
    // ranks must agree on how many.
    let mut us_per_call = [start.elapsed().as_secs_f64() * 1e6 / WARM_UP as f64];
    group.all_reduce(&mut us_per_call, ReduceOp::Max)?;
    let n_calls = ((BUDGET_US / us_per_call[0]) as usize).clamp(50, MOST);
    let mut times = vec![0.0f64; n_calls];
    group.barrier()?;
    for time in &mut times {
        let start = Instant::now();
        call()?;
        *time = start.elapsed().as_secs_f64() * 1e6;
    }
    group.all_reduce(&mut times, ReduceOp::Max)?;
    Ok(Samples::new(times))
}
