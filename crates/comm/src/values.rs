//! Slices whose element type is a value: how storage that knows its dtype only at run time meets
//! the calls of a group.

use std::marker::PhantomData;

use dtensor_dtype::{DType, Element};

use crate::CommError;

/// A shared slice of elements of a dtype that is known at run time.
///
/// ```
/// use dtensor_comm::{DType, Values};
///
/// let typed = Values::from(&[1.0_f32, 2.0][..]);
/// assert_eq!((typed.dtype(), typed.len()), (DType::F32, 2));
///
/// // Bytes are checked: whole elements, aligned, and 0 or 1 if they are to be bools.
/// assert!(Values::from_bytes(DType::Bool, &[0, 1]).is_ok());
/// assert!(Values::from_bytes(DType::Bool, &[0, 7]).is_err());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    ptr: *const u8,
    len: usize,
    dtype: DType,
    borrow: PhantomData<&'a [u8]>,
}

/// An exclusive slice of elements of a dtype that is known at run time; see [`Values`].
#[derive(Debug)]
pub struct ValuesMut<'a> {
    ptr: *mut u8,
    len: usize,
    dtype: DType,
    borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: It is a `&[T]` of one of the element types, all of which are `Sync`.
unsafe impl Send for Values<'_> {}
// SAFETY: As above.
unsafe impl Sync for Values<'_> {}
// SAFETY: It is a `&mut [T]` of one of the element types, all of which are `Send`.
unsafe impl Send for ValuesMut<'_> {}
// SAFETY: A shared `ValuesMut` gives no access at all to the elements.
unsafe impl Sync for ValuesMut<'_> {}

impl<'a> Values<'a> {
    /// The elements that `bytes` are, if they are some: a whole number of them, aligned, and 0 or
    /// 1 for `bool` (a peer may receive them as Rust bools, for which nothing else is allowed).
    pub fn from_bytes(dtype: DType, bytes: &'a [u8]) -> Result<Values<'a>, CommError> {
        let len = check_bytes(dtype, bytes)?;
        Ok(Values { ptr: bytes.as_ptr(), len, dtype, borrow: PhantomData })
    }

    /// The dtype of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.ptr
    }
}

impl<'a> ValuesMut<'a> {
    /// As [`Values::from_bytes`]. The present bytes are checked too, because they may be read (the
    /// root of a broadcast, an all-reduce).
    pub fn from_bytes(dtype: DType, bytes: &'a mut [u8]) -> Result<ValuesMut<'a>, CommError> {
        let len = check_bytes(dtype, bytes)?;
        Ok(ValuesMut { ptr: bytes.as_mut_ptr(), len, dtype, borrow: PhantomData })
    }

    /// The dtype of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }
}

impl<'a, T: Element> From<&'a [T]> for Values<'a> {
    fn from(slice: &'a [T]) -> Values<'a> {
        Values {
            ptr: slice.as_ptr().cast(),
            len: slice.len(),
            dtype: T::DTYPE,
            borrow: PhantomData,
        }
    }
}

impl<'a, T: Element> From<&'a mut [T]> for ValuesMut<'a> {
    fn from(slice: &'a mut [T]) -> ValuesMut<'a> {
        ValuesMut {
            ptr: slice.as_mut_ptr().cast(),
            len: slice.len(),
            dtype: T::DTYPE,
            borrow: PhantomData,
        }
    }
}

fn check_bytes(dtype: DType, bytes: &[u8]) -> Result<usize, CommError> {
    // The size of each of the eight types is also its alignment, or a multiple of it.
    let why = if !bytes.len().is_multiple_of(dtype.size()) {
        "not a whole number of elements"
    } else if !bytes.is_empty() && !bytes.as_ptr().addr().is_multiple_of(dtype.size()) {
        "not aligned to the size of an element"
    } else if dtype == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
        "a bool is 0 or 1"
    } else {
        return Ok(bytes.len() / dtype.size());
    };
    let alignment = 1 << bytes.as_ptr().addr().trailing_zeros().min(6);
    Err(CommError::WrongBytes { dtype, bytes: bytes.len(), alignment, why })
}
