//! The thin layer over MPI's C functions: every return code becomes a [`CommError::Mpi`] with MPI's
//! own words, and every argument has a type that MPI could have had.
//!
//! rsmpi offers safe wrappers, but they drop the return codes, which are all that is left of an
//! error on a communicator with `MPI_ERRORS_RETURN`. So only its raw bindings are used here.
//!
//! Everything moves as bytes: dtypes are compared in the check stage, and reductions are computed
//! by [`crate::reduce`], so MPI never needs to know what the bytes mean.
//!
//! None of these functions may run at the same time as another one: the library is initialised
//! with `MPI_THREAD_SERIALIZED`. They are only called under the lock of
//! [`Shared`](super::engine::Shared), and before it exists and after it is closed by one thread.

use std::{ffi::CStr, mem::MaybeUninit, os::raw::c_int, ptr};

use mpi::ffi::{self, MPI_Comm, MPI_Message, MPI_Request};

use crate::CommError;

/// Turns a return code into a result.
pub(super) fn check(call: &'static str, code: c_int) -> Result<(), CommError> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0; ffi::MPI_MAX_ERROR_STRING as usize + 1];
    let mut length = 0;
    // SAFETY: MPI writes at most MPI_MAX_ERROR_STRING characters, and one more is a zero in any
    // case because the array was zeroed.
    let text = unsafe {
        ffi::MPI_Error_string(code, text.as_mut_ptr(), &raw mut length);
        CStr::from_ptr(text.as_ptr())
    };
    Err(CommError::Mpi { call, code, text: text.to_string_lossy().into() })
}

/// A communicator. A plain handle: the owner decides when to [`free`](Comm::free) it.
#[derive(Clone, Copy)]
pub(super) struct Comm(MPI_Comm);

// SAFETY: A handle is a number or a pointer that only MPI follows, from any thread as long as the
// calls do not overlap in time.
unsafe impl Send for Comm {}

/// The other side of a receive.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// Messages with this tag from this rank of the communicator.
    Rank(usize, c_int),
    /// Any message.
    Any,
}

impl Comm {
    /// `MPI_COMM_WORLD`. Errors on it are returned as on all others.
    pub(super) fn world() -> Result<Comm, CommError> {
        // SAFETY: A constant of the MPI library.
        let world = Comm(unsafe { ffi::RSMPI_COMM_WORLD });
        world.return_errors()?;
        Ok(world)
    }

    /// This process's rank.
    pub(super) fn rank(self) -> Result<usize, CommError> {
        let mut rank = 0;
        // SAFETY: `rank` outlives the call.
        check("MPI_Comm_rank", unsafe { ffi::MPI_Comm_rank(self.0, &raw mut rank) })?;
        Ok(rank as usize)
    }

    /// The number of processes.
    pub(super) fn size(self) -> Result<usize, CommError> {
        let mut size = 0;
        // SAFETY: `size` outlives the call.
        check("MPI_Comm_size", unsafe { ffi::MPI_Comm_size(self.0, &raw mut size) })?;
        Ok(size as usize)
    }

    /// The largest tag that a message may have; MPI promises at least 32767.
    pub(super) fn tag_bound(self) -> Result<c_int, CommError> {
        let mut value = ptr::null_mut::<c_int>();
        let mut found = 0;
        // SAFETY: For this key MPI stores a pointer to an int that lives as long as the library.
        let code = unsafe {
            ffi::MPI_Comm_get_attr(
                self.0,
                ffi::MPI_TAG_UB as c_int,
                (&raw mut value).cast(),
                &raw mut found,
            )
        };
        check("MPI_Comm_get_attr", code)?;
        // SAFETY: As above, if it was found.
        Ok(if found != 0 && !value.is_null() { unsafe { *value } } else { 32767 })
    }

    /// Begins to make a copy with a matching space of its own. The only step that involves all
    /// processes, and not a blocking one: whoever waits can give up.
    pub(super) fn start_dup(self) -> Result<NewComm, CommError> {
        // SAFETY: A constant of the MPI library.
        let null = unsafe { ffi::RSMPI_COMM_NULL };
        let mut new = NewComm { comm: Box::new(null), request: Request::null() };
        // SAFETY: The handle is on the heap, where MPI may still write to it when the wait for it
        // has been given up and `new` is leaked.
        let code =
            unsafe { ffi::MPI_Comm_idup(self.0, &raw mut *new.comm, &raw mut new.request.0) };
        check("MPI_Comm_idup", code)?;
        Ok(new)
    }

    /// Begins to collect `all[i * n..][..n]` from every process `i`, `n` being the length of `own`.
    ///
    /// # Safety
    /// Both are valid until the request is complete, `all` is as long as the size of the communicator
    /// asks, and is not accessed meanwhile.
    pub(super) unsafe fn start_all_gather(
        self,
        own: &[u8],
        all: *mut u8,
    ) -> Result<Request, CommError> {
        let mut request = Request::null();
        let n = own.len() as c_int;
        // SAFETY: The caller's promise.
        let code = unsafe {
            ffi::MPI_Iallgather(
                own.as_ptr().cast(),
                n,
                ffi::RSMPI_UINT8_T,
                all.cast(),
                n,
                ffi::RSMPI_UINT8_T,
                self.0,
                &raw mut request.0,
            )
        };
        check("MPI_Iallgather", code)?;
        Ok(request)
    }

    /// Makes errors on this communicator come back as codes instead of ending the process.
    fn return_errors(self) -> Result<(), CommError> {
        // SAFETY: A constant of the MPI library and a live communicator.
        let code = unsafe { ffi::MPI_Comm_set_errhandler(self.0, ffi::RSMPI_ERRORS_RETURN) };
        check("MPI_Comm_set_errhandler", code)
    }

    /// Begins to send. With `synchronous` the request completes only when the receiver has matched
    /// the message.
    ///
    /// # Safety
    /// The bytes are valid and not written to until the request is complete, or until it is
    /// certain that no process will match the message.
    pub(super) unsafe fn send(
        self,
        bytes: *const u8,
        count: usize,
        to: usize,
        tag: c_int,
        synchronous: bool,
    ) -> Result<Request, CommError> {
        let mut request = Request::null();
        let (name, function): (_, unsafe extern "C" fn(_, _, _, _, _, _, _) -> _) = if synchronous {
            ("MPI_Issend", ffi::MPI_Issend)
        } else {
            ("MPI_Isend", ffi::MPI_Isend)
        };
        // SAFETY: The buffer by the contract of this function; the request is written at once.
        let code = unsafe {
            function(
                bytes.cast(),
                count as c_int,
                ffi::RSMPI_UINT8_T,
                to as c_int,
                tag,
                self.0,
                &raw mut request.0,
            )
        };
        check(name, code)?;
        Ok(request)
    }

    /// Takes the next message from `source` out of the queue, if one is there.
    pub(super) fn probe(self, source: Source) -> Result<Option<Incoming>, CommError> {
        let (rank, tag) = match source {
            Source::Rank(rank, tag) => (rank as c_int, tag),
            // SAFETY: Constants of the MPI library.
            Source::Any => unsafe { (ffi::RSMPI_ANY_SOURCE, ffi::RSMPI_ANY_TAG) },
        };
        let mut found = 0;
        let mut status = MaybeUninit::uninit();
        // SAFETY: A constant of the MPI library.
        let mut message = unsafe { ffi::RSMPI_MESSAGE_NULL };
        // SAFETY: All three results outlive the call.
        let code = unsafe {
            ffi::MPI_Improbe(
                rank,
                tag,
                self.0,
                &raw mut found,
                &raw mut message,
                status.as_mut_ptr(),
            )
        };
        check("MPI_Improbe", code)?;
        if found == 0 {
            return Ok(None);
        }
        // SAFETY: MPI fills the status when it found a message.
        let status = unsafe { status.assume_init() };
        let mut bytes = 0;
        // SAFETY: `status` is initialised, `bytes` outlives the call.
        let code =
            unsafe { ffi::MPI_Get_count(&raw const status, ffi::RSMPI_UINT8_T, &raw mut bytes) };
        check("MPI_Get_count", code)?;
        Ok(Some(Incoming { message, bytes: bytes as usize, from: status.MPI_SOURCE as usize }))
    }

    /// Gives the communicator back. Collective: all processes do it, when none uses it any more.
    pub(super) fn free(mut self) -> Result<(), CommError> {
        // SAFETY: By agreement of the processes nobody uses the communicator any more.
        check("MPI_Comm_free", unsafe { ffi::MPI_Comm_free(&raw mut self.0) })
    }

    /// Ends all processes of the job. The last resort; returns only if MPI cannot even do that.
    pub(super) fn abort(self) {
        // SAFETY: A live communicator.
        unsafe { ffi::MPI_Abort(self.0, 1) };
    }

    /// The raw handle, for the few functions that only one module uses.
    pub(super) fn raw(self) -> MPI_Comm {
        self.0
    }

    /// Takes over a new communicator from such a function.
    pub(super) fn adopt(raw: MPI_Comm) -> Result<Comm, CommError> {
        let comm = Comm(raw);
        comm.return_errors()?;
        Ok(comm)
    }
}

/// A communicator in the making.
pub(super) struct NewComm {
    comm: Box<MPI_Comm>,
    request: Request,
}

impl NewComm {
    /// The communicator, once all processes have asked for it.
    pub(super) fn test(&mut self) -> Result<Option<Comm>, CommError> {
        if self.request.test()? { Comm::adopt(*self.comm).map(Some) } else { Ok(None) }
    }
}

/// A message that has been taken out of the queue but not received. It must be received, or it
/// occupies memory of MPI for good.
pub(super) struct Incoming {
    message: MPI_Message,
    /// Its length.
    pub(super) bytes: usize,
    /// The rank in the communicator that sent it.
    pub(super) from: usize,
}

impl Incoming {
    /// Begins to receive it.
    ///
    /// # Safety
    /// `buffer` has room for `self.bytes` and is not accessed by anybody else until the request is
    /// complete.
    pub(super) unsafe fn receive(mut self, buffer: *mut u8) -> Result<Request, CommError> {
        let mut request = Request::null();
        // SAFETY: The buffer by the contract of this function. The count is the message's own, so
        // that it cannot be too long for the buffer (see `transfer`, "Never a truncated message").
        let code = unsafe {
            ffi::MPI_Imrecv(
                buffer.cast(),
                self.bytes as c_int,
                ffi::RSMPI_UINT8_T,
                &raw mut self.message,
                &raw mut request.0,
            )
        };
        check("MPI_Imrecv", code)?;
        Ok(request)
    }
}

/// A transfer in progress.
pub(super) struct Request(MPI_Request);

// SAFETY: As for `Comm`.
unsafe impl Send for Request {}

impl Request {
    /// The request that is always complete.
    pub(super) fn null() -> Request {
        // SAFETY: A constant of the MPI library.
        Request(unsafe { ffi::RSMPI_REQUEST_NULL })
    }

    /// Whether it is complete; makes progress on all requests of the process. Once complete it
    /// stays so.
    pub(super) fn test(&mut self) -> Result<bool, CommError> {
        let mut done = 0;
        // SAFETY: A request of ours; MPI replaces it by the null request when it is complete.
        let code =
            unsafe { ffi::MPI_Test(&raw mut self.0, &raw mut done, ffi::RSMPI_STATUS_IGNORE) };
        check("MPI_Test", code)?;
        Ok(done != 0)
    }

    /// Takes over the request of a function that only one module uses.
    pub(super) fn adopt(raw: MPI_Request) -> Request {
        Request(raw)
    }
}
