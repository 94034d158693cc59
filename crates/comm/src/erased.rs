//! The blocking calls for memory whose dtype is known at run time: the core that the typed ones
//! wrap.

use dtensor_dtype::ReduceOp;

use crate::{
    CommError, Group, Values, ValuesMut,
    call::Counts,
    operation::{Operation, Side},
};

/// The calls of a [`Group`] on [`Values`] and [`ValuesMut`]. Each is described at the method of the
/// same name there; in addition to its errors, send and receive side must have the same dtype.
///
/// ```
/// use dtensor_comm::{CommError, DType, ReduceOp, Runner, ValuesMut};
///
/// let sums = Runner::threads(2).run(|world| {
///     let mut bytes = [1_u8, 2, 3];
///     let values = ValuesMut::from_bytes(DType::U8, &mut bytes)?;
///     world.group().erased().all_reduce(values, ReduceOp::Sum)?;
///     Ok::<_, CommError>(bytes)
/// })?;
/// assert_eq!(sums, [[2, 4, 6]; 2]);
/// # Ok::<(), dtensor_comm::RunError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Erased<'g> {
    group: &'g Group,
}

impl<'g> Erased<'g> {
    pub(crate) fn new(group: &'g Group) -> Erased<'g> {
        Erased { group }
    }

    /// See [`Group::barrier`].
    pub fn barrier(&self) -> Result<(), CommError> {
        self.run(Operation::barrier(), None, None)
    }

    /// See [`Group::broadcast`].
    pub fn broadcast(&self, buf: ValuesMut<'_>, root: usize) -> Result<(), CommError> {
        self.run(Operation::broadcast(buf.len(), root), None, Some(buf))
    }

    /// See [`Group::scatter`].
    pub fn scatter(
        &self,
        send: Option<Values<'_>>,
        recv: ValuesMut<'_>,
        root: usize,
    ) -> Result<(), CommError> {
        self.run(Operation::scatter(Counts::Even(recv.len()), root), send, Some(recv))
    }

    /// See [`Group::scatter_v`].
    pub fn scatter_v(
        &self,
        send: Option<Values<'_>>,
        counts: &[usize],
        recv: ValuesMut<'_>,
        root: usize,
    ) -> Result<(), CommError> {
        self.run(Operation::scatter(Counts::Each(counts), root), send, Some(recv))
    }

    /// See [`Group::gather`].
    pub fn gather(
        &self,
        send: Values<'_>,
        recv: Option<ValuesMut<'_>>,
        root: usize,
    ) -> Result<(), CommError> {
        self.run(Operation::gather(Counts::Even(send.len()), root), Some(send), recv)
    }

    /// See [`Group::gather_v`].
    pub fn gather_v(
        &self,
        send: Values<'_>,
        recv: Option<ValuesMut<'_>>,
        counts: &[usize],
        root: usize,
    ) -> Result<(), CommError> {
        self.run(Operation::gather(Counts::Each(counts), root), Some(send), recv)
    }

    /// See [`Group::all_gather`].
    pub fn all_gather(&self, send: Values<'_>, recv: ValuesMut<'_>) -> Result<(), CommError> {
        self.run(Operation::all_gather(Counts::Even(send.len())), Some(send), Some(recv))
    }

    /// See [`Group::all_gather_v`].
    pub fn all_gather_v(
        &self,
        send: Values<'_>,
        recv: ValuesMut<'_>,
        counts: &[usize],
    ) -> Result<(), CommError> {
        self.run(Operation::all_gather(Counts::Each(counts)), Some(send), Some(recv))
    }

    /// See [`Group::reduce_scatter`].
    pub fn reduce_scatter(
        &self,
        send: Values<'_>,
        recv: ValuesMut<'_>,
        op: ReduceOp,
    ) -> Result<(), CommError> {
        self.run(Operation::reduce_scatter(Counts::Even(recv.len()), op), Some(send), Some(recv))
    }

    /// See [`Group::reduce_scatter_v`].
    pub fn reduce_scatter_v(
        &self,
        send: Values<'_>,
        recv: ValuesMut<'_>,
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<(), CommError> {
        self.run(Operation::reduce_scatter(Counts::Each(counts), op), Some(send), Some(recv))
    }

    /// See [`Group::all_reduce`].
    pub fn all_reduce(&self, buf: ValuesMut<'_>, op: ReduceOp) -> Result<(), CommError> {
        self.run(Operation::all_reduce(buf.len(), op), None, Some(buf))
    }

    /// See [`Group::all_to_all`].
    pub fn all_to_all(&self, send: Values<'_>, recv: ValuesMut<'_>) -> Result<(), CommError> {
        self.run(Operation::all_to_all(Counts::Even(send.len())), Some(send), Some(recv))
    }

    /// See [`Group::all_to_all_v`].
    pub fn all_to_all_v(
        &self,
        send: Values<'_>,
        send_counts: &[usize],
        recv: ValuesMut<'_>,
        recv_counts: &[usize],
    ) -> Result<(), CommError> {
        let counts = Counts::Pairs { send: send_counts, recv: recv_counts };
        self.run(Operation::all_to_all(counts), Some(send), Some(recv))
    }

    /// See [`Group::send`].
    pub fn send(&self, buf: Values<'_>, to: usize) -> Result<(), CommError> {
        self.run(Operation::send(buf.len(), to), Some(buf), None)
    }

    /// See [`Group::recv`].
    pub fn recv(&self, buf: ValuesMut<'_>, from: usize) -> Result<(), CommError> {
        self.run(Operation::recv(buf.len(), from), None, Some(buf))
    }

    fn run(
        &self,
        operation: Operation<'_>,
        send: Option<Values<'_>>,
        mut recv: Option<ValuesMut<'_>>,
    ) -> Result<(), CommError> {
        let send_side = send.map(|values| Side {
            ptr: values.as_ptr().cast_mut(),
            len: values.len(),
            dtype: values.dtype(),
        });
        let recv_side = recv.as_mut().map(|values| Side {
            ptr: values.as_mut_ptr(),
            len: values.len(),
            dtype: values.dtype(),
        });
        let (call, buffers, ticket) = self.group.prepare(operation, send_side, recv_side)?;
        // SAFETY: `prepare` checked the lengths against the call. The memory is borrowed by `send`
        // and `recv`, which outlive this call, `recv` exclusively; a shared and an exclusive borrow
        // do not overlap. The transport does not write through `send`.
        let result = unsafe { self.group.transport().execute(&call, &buffers) };
        self.group.recorder().end(ticket, result.is_ok());
        result
    }
}
