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

use std::{cell::Cell, ops::Range};

use dtensor_layout::{DType, Layout, Placement};
use dtensor_local::{
    Tensor,
    random::{Distribution, Stream},
};

use crate::{
    DTensor, DeviceMesh, Error, Result,
    tensor::{Part, make_layout},
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

/// The stream of the next random operation.
pub(crate) fn next_stream() -> Stream {
    let RandomState { seed, offset } = STATE.get();
    STATE.set(RandomState { seed, offset: offset.wrapping_add(1) });
    Stream { seed, offset }
}

pub(crate) fn filled(
    op: &'static str,
    shape: &[usize],
    dtype: DType,
    distribution: Distribution,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    let layout = Layout::new(shape, dtype, mesh.mesh(), placements).map_err(Error::layout(op))?;
    of_layout(op, &layout, mesh, distribution)
}

pub(crate) fn filled_like(
    op: &'static str,
    like: &DTensor,
    distribution: Distribution,
) -> Result<DTensor> {
    of_layout(op, like.layout(), like.mesh(), distribution)
}

pub(crate) fn of_layout(
    op: &'static str,
    layout: &Layout,
    mesh: &DeviceMesh,
    distribution: Distribution,
) -> Result<DTensor> {
    let dtype = layout.dtype();
    // What is wrong is so on every rank, also on one that has nothing to fill.
    Tensor::random(&[0], dtype, distribution, Stream::default())?;
    let stream = next_stream();
    make_layout(op, layout, mesh, |part| {
        let boxes = boxes(part);
        let global = layout.global_shape();
        Ok(Tensor::random_shard(&part.shape, dtype, distribution, stream, global, &boxes)?)
    })
}

/// Every combination of the ranges of the dims.
fn boxes(part: &Part) -> Vec<Vec<Range<usize>>> {
    part.ranges.iter().fold(vec![Vec::new()], |boxes, ranges| {
        let extended = boxes.iter().flat_map(|done: &Vec<Range<usize>>| {
            ranges.iter().map(|range| [done.as_slice(), std::slice::from_ref(range)].concat())
        });
        extended.collect()
    })
}
