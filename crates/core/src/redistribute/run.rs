//! Running a route on data.

use dtensor_comm::{Group, ReduceOp, Values, ValuesMut};
use dtensor_layout::{DType, chunk};
use dtensor_local::Tensor;

use super::{
    parts::{Parts, view},
    route::{Hop, Reduction, Route, Work},
};
use crate::{Error, Result, debug};

impl Route {
    /// What the rank holds at the end.
    pub(crate) fn run(&self, op: &'static str, local: &Tensor) -> Result<Tensor> {
        let mut local = local.clone();
        for hop in &self.hops {
            let _sending = debug::saw(op, hop);
            local = hop.run(op, &local)?;
        }
        Ok(local)
    }
}

impl Hop {
    pub(super) fn run(&self, op: &'static str, local: &Tensor) -> Result<Tensor> {
        let dtype = local.dtype();
        match &self.work {
            Work::Nothing if local.is_meta() => Ok(Tensor::meta(&self.shape, dtype)?),
            Work::Nothing => Ok(Tensor::empty(&self.shape, dtype)?),
            Work::Keep => Ok(local.clone()),
            Work::AllReduce { group, reduction } => {
                let reduced = all_reduced(op, &local.contiguous(), group, reduction.op)?;
                reduction.divide(reduced)
            }
            Work::AllGather { group, send, recv } => {
                let send = send.pack(local)?;
                let gathered = received(op, recv, dtype, |bytes| {
                    let recv_values = ValuesMut::from_bytes(dtype, bytes)?;
                    let send = Values::from_bytes(dtype, send_bytes(&send))?;
                    group.erased().all_gather_v(send, recv_values, &recv.counts)
                })?;
                recv.unpack(&gathered, &self.shape)
            }
            Work::ReduceScatter { group, send, recv, reduction } => {
                let packed = send.pack(local)?;
                let reduced = received(op, recv, dtype, |bytes| {
                    let recv_values = ValuesMut::from_bytes(dtype, bytes)?;
                    let values = Values::from_bytes(dtype, send_bytes(&packed))?;
                    let counts = &send.counts;
                    group.erased().reduce_scatter_v(values, recv_values, counts, reduction.op)
                })?;
                reduction.divide(recv.unpack(&reduced, &self.shape)?)
            }
            Work::Exchange { group, send, recv } => {
                let nothing = Parts::none(group.size());
                let packed = match send {
                    Some(send) => send.pack(local)?,
                    None => Tensor::empty(&[0], dtype)?,
                };
                let send = send.as_ref().unwrap_or(&nothing);
                let recv_parts = recv.as_ref().unwrap_or(&nothing);
                let exchanged = received(op, recv_parts, dtype, |bytes| {
                    let recv_values = ValuesMut::from_bytes(dtype, bytes)?;
                    let values = Values::from_bytes(dtype, send_bytes(&packed))?;
                    let group = group.erased();
                    group.all_to_all_v(values, &send.counts, recv_values, &recv_parts.counts)
                })?;
                match recv {
                    Some(recv) => recv.unpack(&exchanged, &self.shape),
                    None => Ok(Tensor::empty(&[0], dtype)?),
                }
            }
            Work::Slice { send, recv } => match send.only() {
                Some(part) => view(local, part),
                None => recv.unpack(&send.pack(local)?, &self.shape),
            },
            Work::Pad { send, recv } => {
                let packed = send.pack(local)?.reshape(&[send.numel()])?;
                recv.unpack_into(Tensor::zeros(&self.shape, dtype)?, &packed)
            }
            Work::Fill { instead: None } => Ok(local.clone()),
            Work::Fill { instead: Some(ReduceOp::Product) } => {
                Ok(Tensor::ones(&self.shape, dtype)?)
            }
            Work::Fill { instead: Some(_) } => Ok(Tensor::zeros(&self.shape, dtype)?),
        }
    }
}

impl Reduction {
    pub(super) fn divide(self, reduced: Tensor) -> Result<Tensor> {
        match self.divisor {
            1 => Ok(reduced),
            divisor => Ok(reduced.div_scalar(divisor as f64)?),
        }
    }
}

/// Bytes from which on it pays to reduce into new memory in two calls.
const LARGE: usize = 1 << 20;

/// The reduction of what all ranks hold. The call for that works in place, so that a tensor is copied first;
/// a large one is reduced piece by piece into new memory, and the pieces gathered: the same bits without the
/// copy.
fn all_reduced(
    op: &'static str,
    local: &Tensor,
    group: &Group,
    reduction: ReduceOp,
) -> Result<Tensor> {
    let (dtype, comm) = (local.dtype(), Error::comm(op));
    let values = || Values::from_bytes(dtype, send_bytes(local)).map_err(&comm);
    let (n, size) = (local.numel(), group.size());
    if n * dtype.size() < LARGE {
        return Tensor::from_bytes_with(local.shape(), dtype, |bytes| {
            bytes.copy_from_slice(send_bytes(local));
            let buf = ValuesMut::from_bytes(dtype, bytes).map_err(&comm)?;
            group.erased().all_reduce(buf, reduction).map_err(&comm)
        });
    }
    let counts: Vec<usize> = (0..size).map(|rank| chunk(n, size, rank).len()).collect();
    let piece = Tensor::from_bytes_with(&[counts[group.rank()]], dtype, |bytes| {
        let recv = ValuesMut::from_bytes(dtype, bytes).map_err(&comm)?;
        group.erased().reduce_scatter_v(values()?, recv, &counts, reduction).map_err(&comm)
    })?;
    Tensor::from_bytes_with(local.shape(), dtype, |bytes| {
        let recv = ValuesMut::from_bytes(dtype, bytes).map_err(&comm)?;
        let send = Values::from_bytes(dtype, send_bytes(&piece)).map_err(&comm)?;
        group.erased().all_gather_v(send, recv, &counts).map_err(&comm)
    })
}

/// A tensor of one dim that a call receives.
fn received(
    op: &'static str,
    parts: &Parts,
    dtype: DType,
    call: impl FnOnce(&mut [u8]) -> Result<(), dtensor_comm::CommError>,
) -> Result<Tensor> {
    Tensor::from_bytes_with(&[parts.numel()], dtype, |bytes| call(bytes).map_err(Error::comm(op)))
}

/// The bytes of a tensor that was packed, and so is contiguous and has values. Were it not so, an empty
/// message would not fit the counts, which is an error.
fn send_bytes(packed: &Tensor) -> &[u8] {
    packed.as_bytes().unwrap_or_default()
}
