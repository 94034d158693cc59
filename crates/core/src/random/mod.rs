//! Random numbers that do not depend on where they are made.
//!
//! The value of an element is a function of the seed, of the number of random operations before, and of the
//! element's global index (Philox4x32-10). So a tensor has the same bits on one rank and on a thousand, in
//! every layout, uneven shards included, and nothing is sent.
//!
//! The state is two integers per rank thread, [`RandomState`]. All ranks must run the same random
//! operations, as they must run the same of all others. Threads begin with seed 0.
//!
//! ```
//! use dtensor::{DType, DeviceMesh, Placement::{Replicate, Shard}, Runner, random, randn};
//!
//! Runner::threads(3).run(|world| {
//!     let mesh = DeviceMesh::of_world(world, "x")?;
//!     random::manual_seed(7);
//!     let cut = randn(&[5, 2], DType::F32, &mesh, &[Shard(0)])?;
//!     random::manual_seed(7);
//!     let whole = randn(&[5, 2], DType::F32, &mesh, &[Replicate])?;
//!     assert_eq!(cut.to_vec::<f32>()?, whole.to_vec::<f32>()?);
//!     Ok::<_, dtensor::Error>(())
//! })?;
//! # Ok::<(), dtensor::RunError>(())
//! ```

mod draw;
mod factories;
mod weighted;

use std::cell::Cell;

use dtensor_local::random::Stream;

pub use draw::OPS;
pub(crate) use draw::{RandomOp, of_layout};
pub use factories::{
    bernoulli, cauchy, exponential, geometric, log_normal, normal, rand, randint, randn, randperm,
    uniform,
};

/// Where the next random numbers come from. To be saved with a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RandomState {
    /// What [`manual_seed`] set.
    pub seed: u64,
    /// Random operations since then.
    pub offset: u64,
}

thread_local! {
    static STATE: Cell<RandomState> = const { Cell::new(RandomState { seed: 0, offset: 0 }) };
}

/// Begins anew with this seed, on this rank. Call it on all.
pub fn manual_seed(seed: u64) {
    STATE.set(RandomState { seed, offset: 0 });
}

/// The state of this rank.
pub fn state() -> RandomState {
    STATE.get()
}

/// Goes on from a state.
pub fn set_state(state: RandomState) {
    STATE.set(state);
}

/// Runs `body` from a state, and goes on afterwards from where it was before, also after a panic: for
/// computing something again with the same random numbers.
pub fn with_state<T>(state: RandomState, body: impl FnOnce() -> T) -> T {
    struct Restore(RandomState);
    impl Drop for Restore {
        fn drop(&mut self) {
            STATE.set(self.0);
        }
    }
    let _restore = Restore(STATE.replace(state));
    body()
}

/// The stream of the next random operation. Private, so that whoever draws has a name in [`OPS`].
fn next_stream() -> Stream {
    let RandomState { seed, offset } = STATE.get();
    STATE.set(RandomState { seed, offset: offset.wrapping_add(1) });
    Stream { seed, offset }
}
