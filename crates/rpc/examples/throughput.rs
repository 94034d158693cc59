//! How fast a large body arrives on this machine: `cargo run --release --example throughput [MiB] [KiB of a
//! chunk]`.
#![allow(clippy::print_stdout)] // A program, not a library.

use std::{error::Error, time::Instant};

use dtensor_comm::Runner;
use dtensor_rpc::{Bytes, Options, Reply, init_rpc};

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let argument =
        |n: usize, default: usize| std::env::args().nth(n).map_or(Ok(default), |text| text.parse());
    let (mib, kib) = (argument(1, 64)?, argument(2, 1024)?);
    Runner::threads(2).run(|world| {
        let name = ["fetches", "has"][world.rank()];
        let agent = init_rpc(world, name, Options { chunk: kib << 10, ..Options::default() })?;
        // Shared by every answer, and copied by none.
        let data = Bytes::from(vec![7; mib << 20]);
        agent.register("data", move |_, _| Ok(Reply::new("").with_body([data.clone()])))?;
        world.group().barrier()?;
        if world.rank() == 0 {
            let mut room = vec![0; mib << 20];
            let mut times = Vec::new();
            for _ in 0..12 {
                let start = Instant::now();
                agent.open(1, "data", "", None)?.read_into(&mut room)?;
                times.push(start.elapsed().as_secs_f64());
            }
            times.sort_by(f64::total_cmp);
            let rate = |time: f64| (mib << 20) as f64 / time / 1e9;
            println!(
                "{mib} MiB: median {:.2} GB/s, best {:.2} GB/s",
                rate(times[6]),
                rate(times[0])
            );
        }
        agent.shutdown()?;
        Ok::<_, Failure>(())
    })?;
    Ok(())
}
