//! Redistribution that goes on while the program computes.

use std::sync::Arc;

use dtensor_comm::Pending;
use dtensor_layout::{Layout, Placement};
use dtensor_local::{RecvTensor, SendTensor, Tensor};

use super::{
    RedistributeOptions,
    gradient::moved,
    route::{Hop, Route, Work},
};
use crate::{DTensor, Error, Result, debug, dispatch};

/// A tensor that is on its way to another layout. [`wait`](PendingDTensor::wait) gives it.
///
/// What comes before the first call that communicates is done when it begins, what comes after it in
/// `wait`. So a plan of one step, as gathering a parameter is, goes on by itself.
#[must_use = "the tensor arrives only with `wait`"]
#[derive(Debug)]
pub struct PendingDTensor {
    op: &'static str,
    route: Arc<Route>,
    /// Steps that are done or under way.
    n_begun: usize,
    state: State,
    to: Layout,
    /// Gradients go back to it.
    from: DTensor,
    options: RedistributeOptions,
}

#[derive(Debug)]
enum State {
    Here(Tensor),
    UnderWay(Pending<RecvTensor>),
}

impl DTensor {
    /// Begins what [`redistribute`](DTensor::redistribute) does. Other operations may run before the result is
    /// waited for; all ranks must begin and wait in the same order.
    ///
    /// ```
    /// use dtensor::{DType, DeviceMesh, Placement::{Replicate, Shard}, Runner, ones};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let mesh = DeviceMesh::of_world(world, "dp")?;
    ///     let weight = ones(&[6, 4], DType::F32, &mesh, &[Shard(0)])?;
    ///     let gathering = weight.start_redistribute(&[Replicate])?;
    ///     let other = ones(&[4, 4], DType::F32, &mesh, &[Shard(0)])?.exp()?;   // meanwhile
    ///     assert_eq!(gathering.wait()?.to_local().numel(), 24);
    ///     # drop(other);
    ///     Ok::<_, dtensor::Error>(())
    /// })?;
    /// # Ok::<(), dtensor::RunError>(())
    /// ```
    pub fn start_redistribute(&self, placements: &[Placement]) -> Result<PendingDTensor> {
        self.start_redistribute_with(placements, &RedistributeOptions::default())
    }

    /// As [`start_redistribute`](DTensor::start_redistribute), with options.
    pub fn start_redistribute_with(
        &self,
        placements: &[Placement],
        options: &RedistributeOptions,
    ) -> Result<PendingDTensor> {
        const OP: &str = "redistribute";
        let dtype = options.forward_dtype.unwrap_or(self.dtype());
        let cast = self.cast_parts(OP, dtype)?;
        let to = cast.layout().with_placements(placements).map_err(Error::layout(OP))?;
        let (mesh, options) = (self.mesh(), *options);
        let route = dispatch::route(OP, (cast.layout(), mesh), (&to, mesh))?;
        let mut local = cast.to_local();
        for (number, hop) in route.hops.iter().enumerate() {
            if let Some(pending) = hop.start(OP, &local)? {
                let state = State::UnderWay(pending);
                let (n_begun, from) = (number + 1, self.clone());
                return Ok(PendingDTensor { op: OP, route, n_begun, state, to, from, options });
            }
            let _sending = debug::saw(OP, hop);
            local = hop.run(OP, &local)?;
        }
        let n_begun = route.hops.len();
        let (state, from) = (State::Here(local), self.clone());
        Ok(PendingDTensor { op: OP, route, n_begun, state, to, from, options })
    }
}

impl PendingDTensor {
    /// The layout that it is on its way to.
    pub fn layout(&self) -> &Layout {
        &self.to
    }

    /// Whether [`wait`](PendingDTensor::wait) would not have to wait for the call that is under way. Makes
    /// progress.
    pub fn test(&mut self) -> Result<bool> {
        match &mut self.state {
            State::Here(_) => Ok(true),
            State::UnderWay(pending) => pending.test().map_err(Error::comm(self.op)),
        }
    }

    /// The tensor in its new layout.
    pub fn wait(self) -> Result<DTensor> {
        let PendingDTensor { op, route, n_begun, state, to, from, options } = self;
        let mut local = match state {
            State::Here(local) => local,
            State::UnderWay(pending) => {
                let received = pending.wait().map_err(Error::comm(op))?;
                route.hops[n_begun - 1].finish(received)?
            }
        };
        for hop in &route.hops[n_begun..] {
            let _sending = debug::saw(op, hop);
            local = hop.run(op, &local)?;
        }
        let there = DTensor::from_parts(local, to, from.mesh().clone());
        debug::brought(op, &from, &there)?;
        Ok(moved(op, &from, there, &options))
    }
}

impl Hop {
    /// Begins the call of a step; `None` if the step makes none.
    fn start(&self, op: &'static str, local: &Tensor) -> Result<Option<Pending<RecvTensor>>> {
        let dtype = local.dtype();
        let begun = match &self.work {
            Work::AllReduce { group, reduction } => {
                group.start_all_reduce(RecvTensor::copy_of(local)?, reduction.op)
            }
            Work::AllGather { group, send, recv } => {
                let (packed, room) =
                    (SendTensor::new(&send.pack(local)?)?, RecvTensor::new(recv.numel(), dtype)?);
                group.start_all_gather_v(packed, room, &recv.counts)
            }
            Work::ReduceScatter { group, send, recv, reduction } => {
                let (packed, room) =
                    (SendTensor::new(&send.pack(local)?)?, RecvTensor::new(recv.numel(), dtype)?);
                group.start_reduce_scatter_v(packed, room, &send.counts, reduction.op)
            }
            Work::Exchange { group, send: Some(send), recv: Some(recv) } => {
                let (packed, room) =
                    (SendTensor::new(&send.pack(local)?)?, RecvTensor::new(recv.numel(), dtype)?);
                group.start_all_to_all_v(packed, &send.counts, room, &recv.counts)
            }
            _ => return Ok(None),
        };
        drop(debug::saw(op, self));
        Ok(Some(begun.map_err(Error::comm(op))?))
    }

    /// What the rank holds after a call that [`start`](Hop::start) began.
    fn finish(&self, received: RecvTensor) -> Result<Tensor> {
        match &self.work {
            Work::AllReduce { reduction, .. } => {
                reduction.divide(received.into_tensor(&self.shape)?)
            }
            Work::AllGather { recv, .. } | Work::Exchange { recv: Some(recv), .. } => {
                recv.unpack(&received.into_tensor(&[recv.numel()])?, &self.shape)
            }
            Work::ReduceScatter { recv, reduction, .. } => {
                let received = received.into_tensor(&[recv.numel()])?;
                reduction.divide(recv.unpack(&received, &self.shape)?)
            }
            // `start` begins no other.
            _ => Ok(received.into_tensor(&self.shape)?),
        }
    }
}
