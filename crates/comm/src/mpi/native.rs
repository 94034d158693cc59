//! Reductions by MPI itself, in whatever order it likes ([`Runner::native_reductions`]).
//!
//! Only what MPI computes as we do but for the order: sums and products, and `max` and `min` of
//! integers. (Of floats they differ where there is a NaN, and MPI knows neither bf16 nor f16.) And
//! only on the group of all ranks: a sub-group has no communicator here, because making one is a
//! blocking call that could not be given up (see [`stream`](super::stream)). Everything else is
//! reduced in the canonical order, by the same rule on every rank.
//!
//! A collective of MPI cannot be withdrawn, so it works on copies: if the call fails they are leaked
//! and the user's buffers are free.
//!
//! [`Runner::native_reductions`]: crate::Runner::native_reductions

use std::{os::raw::c_int, ptr};

use dtensor_dtype::{DType, ReduceOp};
use mpi::ffi::{self, MPI_Datatype, MPI_Op};

use super::{
    group::GroupInfo,
    plan::Post,
    result::{Request, check},
    scratch::Scratch,
    stream::Key,
    transfer::Trouble,
};
use crate::{
    CommError,
    call::{Call, CallKind, Counts},
    transport::Buffers,
};

/// One such reduction.
pub(super) struct Native {
    dtype: DType,
    op: ReduceOp,
    /// Elements of each rank's result; `None` for all_reduce.
    counts: Option<Box<[c_int]>>,
    /// The whole operand, and where this rank's result goes.
    operand: *const u8,
    operand_bytes: usize,
    result: *mut u8,
    result_bytes: usize,
    /// Operand, then result, while MPI works on them.
    copies: Option<Scratch>,
}

// SAFETY: As `Buffers`: the pointers are used by one thread at a time, whoever progresses the call.
unsafe impl Send for Native {}

impl Native {
    /// The plan, if MPI can do it.
    pub(super) fn new(call: &Call<'_>, buffers: &Buffers, group: &GroupInfo) -> Option<Native> {
        let op = call.op?;
        let size = group.size();
        if group.key != Key::WORLD || size == 1 || !is_native(call.dtype, op) {
            return None;
        }
        let (operand, operand_bytes, counts) = match call.kind {
            CallKind::AllReduce => (buffers.recv.cast_const(), buffers.recv_bytes, None),
            CallKind::ReduceScatter => {
                let counts = counts(&call.counts, size)?;
                (buffers.send, buffers.send_bytes, Some(counts))
            }
            _ => return None,
        };
        c_int::try_from(operand_bytes / call.dtype.size()).ok()?;
        Some(Native {
            dtype: call.dtype,
            op,
            counts,
            operand,
            operand_bytes,
            result: buffers.recv,
            result_bytes: buffers.recv_bytes,
            copies: None,
        })
    }

    /// # Safety
    /// As [`Plan::advance`](super::plan::Plan::advance).
    pub(super) unsafe fn advance(&mut self, post: &mut Post<'_>) -> Result<bool, Trouble> {
        let result_at = self.operand_bytes.next_multiple_of(64);
        if let Some(mut copies) = self.copies.take() {
            // SAFETY: MPI has finished: the result is complete, in memory of our own.
            unsafe {
                let result = copies.as_mut_ptr().add(result_at);
                ptr::copy_nonoverlapping(result, self.result, self.result_bytes);
                if self.op == ReduceOp::Avg {
                    self.divide(post.group.size());
                }
            }
            post.engine.scratch.give_back(copies);
            return Ok(false);
        }
        let copies = self.copies.insert(post.engine.scratch.take(result_at + self.result_bytes));
        let operand = copies.as_mut_ptr();
        // SAFETY: The copies are long enough, and stay where they are until MPI has finished or for
        // ever.
        let request = unsafe {
            ptr::copy_nonoverlapping(self.operand, operand, self.operand_bytes);
            self.begin(post, operand, operand.add(result_at))
        }?;
        post.transfers.add(request);
        Ok(true)
    }

    unsafe fn begin(
        &self,
        post: &Post<'_>,
        operand: *const u8,
        result: *mut u8,
    ) -> Result<Request, CommError> {
        let comm = post.lane.comm.raw();
        let (datatype, op) = (datatype(self.dtype), operation(self.op));
        let elements = (self.operand_bytes / self.dtype.size()) as c_int;
        // SAFETY: A constant of the MPI library.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        let (name, code) = match &self.counts {
            None => {
                // SAFETY: Both buffers hold `elements` elements, as the caller promises.
                let code = unsafe {
                    ffi::MPI_Iallreduce(
                        operand.cast(),
                        result.cast(),
                        elements,
                        datatype,
                        op,
                        comm,
                        &raw mut request,
                    )
                };
                ("MPI_Iallreduce", code)
            }
            Some(counts) => {
                // SAFETY: The counts add up to the operand, the own one is the result, and they are
                // kept as long as the copies.
                let code = unsafe {
                    ffi::MPI_Ireduce_scatter(
                        operand.cast(),
                        result.cast(),
                        counts.as_ptr(),
                        datatype,
                        op,
                        comm,
                        &raw mut request,
                    )
                };
                ("MPI_Ireduce_scatter", code)
            }
        };
        check(name, code)?;
        Ok(Request::adopt(request))
    }

    /// Makes the sum an average.
    unsafe fn divide(&self, size: usize) {
        let elements = self.result_bytes / self.dtype.size();
        // SAFETY: The result holds so many elements, aligned, of the dtype.
        unsafe {
            match self.dtype {
                DType::F32 => {
                    let sums = std::slice::from_raw_parts_mut(self.result.cast::<f32>(), elements);
                    sums.iter_mut().for_each(|sum| *sum /= size as f32);
                }
                DType::F64 => {
                    let sums = std::slice::from_raw_parts_mut(self.result.cast::<f64>(), elements);
                    sums.iter_mut().for_each(|sum| *sum /= size as f64);
                }
                // `is_native` lets no other dtype be averaged.
                _ => {}
            }
        }
    }
}

fn is_native(dtype: DType, op: ReduceOp) -> bool {
    match dtype {
        DType::F32 | DType::F64 => {
            matches!(op, ReduceOp::Sum | ReduceOp::Product | ReduceOp::Avg)
        }
        DType::I64 | DType::I32 | DType::U8 => op != ReduceOp::Avg,
        DType::Bf16 | DType::F16 | DType::Bool => false,
    }
}

fn counts(counts: &Counts<'_>, size: usize) -> Option<Box<[c_int]>> {
    match counts {
        Counts::Even(n) => Some(vec![c_int::try_from(*n).ok()?; size].into()),
        Counts::Each(counts) => counts.iter().map(|&n| n.try_into().ok()).collect(),
        Counts::Pairs { .. } => None,
    }
}

fn datatype(dtype: DType) -> MPI_Datatype {
    // SAFETY: Constants of the MPI library.
    unsafe {
        match dtype {
            DType::F32 => ffi::RSMPI_FLOAT,
            DType::F64 => ffi::RSMPI_DOUBLE,
            DType::I64 => ffi::RSMPI_INT64_T,
            DType::I32 => ffi::RSMPI_INT32_T,
            DType::U8 | DType::Bf16 | DType::F16 | DType::Bool => ffi::RSMPI_UINT8_T,
        }
    }
}

fn operation(op: ReduceOp) -> MPI_Op {
    // SAFETY: Constants of the MPI library.
    unsafe {
        match op {
            ReduceOp::Sum | ReduceOp::Avg => ffi::RSMPI_SUM,
            ReduceOp::Max => ffi::RSMPI_MAX,
            ReduceOp::Min => ffi::RSMPI_MIN,
            ReduceOp::Product => ffi::RSMPI_PROD,
        }
    }
}
