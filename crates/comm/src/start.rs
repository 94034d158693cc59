//! The `start_` form of every call.

use dtensor_dtype::ReduceOp;

use crate::{
    CommError, Group, Pending, RecvBuffer, SendBuffer,
    call::Counts,
    operation::{Operation, Side},
};

/// The calls as [`Pending`] handles. They take their buffers and give the receiving one back at the
/// end; `Vec<T>` is the usual buffer, `Arc<[T]>` what is sent and still used. Otherwise each is as
/// the call of its name.
impl Group {
    /// Begins a [`barrier`](Group::barrier).
    pub fn start_barrier(&self) -> Result<Pending<()>, CommError> {
        self.start(Operation::barrier(), NOTHING, (), |()| None)
    }

    /// Begins a [`broadcast`](Group::broadcast).
    pub fn start_broadcast<R: RecvBuffer>(
        &self,
        buf: R,
        root: usize,
    ) -> Result<Pending<R>, CommError> {
        self.start(Operation::broadcast(buf.elements(), root), NOTHING, buf, recv_side)
    }

    /// Begins a [`scatter`](Group::scatter).
    pub fn start_scatter<S: SendBuffer, R: RecvBuffer>(
        &self,
        send: Option<S>,
        recv: R,
        root: usize,
    ) -> Result<Pending<R>, CommError> {
        self.start(Operation::scatter(Counts::Even(recv.elements()), root), send, recv, recv_side)
    }

    /// Begins a [`scatter_v`](Group::scatter_v).
    pub fn start_scatter_v<S: SendBuffer, R: RecvBuffer>(
        &self,
        send: Option<S>,
        counts: &[usize],
        recv: R,
        root: usize,
    ) -> Result<Pending<R>, CommError> {
        self.start(Operation::scatter(Counts::Each(counts), root), send, recv, recv_side)
    }

    /// Begins a [`gather`](Group::gather).
    pub fn start_gather<S: SendBuffer, R: RecvBuffer>(
        &self,
        send: S,
        recv: Option<R>,
        root: usize,
    ) -> Result<Pending<Option<R>>, CommError> {
        let operation = Operation::gather(Counts::Even(send.elements()), root);
        self.start(operation, Some(send), recv, |recv| recv.as_mut().and_then(recv_side))
    }

    /// Begins a [`gather_v`](Group::gather_v).
    pub fn start_gather_v<S: SendBuffer, R: RecvBuffer>(
        &self,
        send: S,
        recv: Option<R>,
        counts: &[usize],
        root: usize,
    ) -> Result<Pending<Option<R>>, CommError> {
        let operation = Operation::gather(Counts::Each(counts), root);
        self.start(operation, Some(send), recv, |recv| recv.as_mut().and_then(recv_side))
    }

    /// Begins an [`all_gather`](Group::all_gather).
    pub fn start_all_gather<S: SendBuffer, R: RecvBuffer>(
        &self,
        send: S,
        recv: R,
    ) -> Result<Pending<R>, CommError> {
        let operation = Operation::all_gather(Counts::Even(send.elements()));
        self.start(operation, Some(send), recv, recv_side)
    }

    /// Begins an [`all_gather_v`](Group::all_gather_v).
    pub fn start_all_gather_v<S: SendBuffer, R: RecvBuffer>(
        &self,
        send: S,
        recv: R,
        counts: &[usize],
    ) -> Result<Pending<R>, CommError> {
        self.start(Operation::all_gather(Counts::Each(counts)), Some(send), recv, recv_side)
    }

    /// Begins a [`reduce_scatter`](Group::reduce_scatter).
    pub fn start_reduce_scatter<S: SendBuffer, R: RecvBuffer>(
        &self,
        send: S,
        recv: R,
        op: ReduceOp,
    ) -> Result<Pending<R>, CommError> {
        let operation = Operation::reduce_scatter(Counts::Even(recv.elements()), op);
        self.start(operation, Some(send), recv, recv_side)
    }

    /// Begins a [`reduce_scatter_v`](Group::reduce_scatter_v).
    pub fn start_reduce_scatter_v<S: SendBuffer, R: RecvBuffer>(
        &self,
        send: S,
        recv: R,
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<Pending<R>, CommError> {
        self.start(Operation::reduce_scatter(Counts::Each(counts), op), Some(send), recv, recv_side)
    }

    /// Begins an [`all_reduce`](Group::all_reduce).
    pub fn start_all_reduce<R: RecvBuffer>(
        &self,
        buf: R,
        op: ReduceOp,
    ) -> Result<Pending<R>, CommError> {
        self.start(Operation::all_reduce(buf.elements(), op), NOTHING, buf, recv_side)
    }

    /// Begins an [`all_to_all`](Group::all_to_all).
    pub fn start_all_to_all<S: SendBuffer, R: RecvBuffer>(
        &self,
        send: S,
        recv: R,
    ) -> Result<Pending<R>, CommError> {
        let operation = Operation::all_to_all(Counts::Even(send.elements()));
        self.start(operation, Some(send), recv, recv_side)
    }

    /// Begins an [`all_to_all_v`](Group::all_to_all_v).
    pub fn start_all_to_all_v<S: SendBuffer, R: RecvBuffer>(
        &self,
        send: S,
        send_counts: &[usize],
        recv: R,
        recv_counts: &[usize],
    ) -> Result<Pending<R>, CommError> {
        let counts = Counts::Pairs { send: send_counts, recv: recv_counts };
        self.start(Operation::all_to_all(counts), Some(send), recv, recv_side)
    }

    /// Begins a [`send`](Group::send); gives the sent buffer back when it has been received.
    pub fn start_send<S: SendBuffer>(&self, buf: S, to: usize) -> Result<Pending<S>, CommError> {
        self.start_sending(Operation::send(buf.elements(), to), buf)
    }

    /// Begins a [`recv`](Group::recv).
    pub fn start_recv<R: RecvBuffer>(&self, buf: R, from: usize) -> Result<Pending<R>, CommError> {
        self.start(Operation::recv(buf.elements(), from), NOTHING, buf, recv_side)
    }
}

/// No send buffer, with the type that `None` alone does not tell.
const NOTHING: Option<Vec<u8>> = None;

fn recv_side(recv: &mut impl RecvBuffer) -> Option<Side> {
    Some(Side { ptr: recv.recv_ptr(), len: recv.elements(), dtype: recv.dtype() })
}
