use std::{slice, sync::Arc};

use crate::{
    DType, Element, LocalError, Result, copy,
    dims::{Dims, contiguous_strides, numel},
    pool::Buffer,
    storage::Storage,
};

/// A dense tensor: a shape, strides and an offset into shared memory of one dtype.
///
/// Cloning and taking views costs no copy. An empty tensor (a zero in the shape) and a tensor
/// without dims (one value) are ordinary ones.
#[derive(Clone)]
pub struct Tensor {
    /// `None` for a meta tensor.
    storage: Option<Arc<Storage>>,
    dtype: DType,
    shape: Dims,
    /// In elements. Negative where a view runs backwards.
    strides: Dims<isize>,
    /// Of the element at index zero, in elements.
    ///
    /// Invariant: with `strides`, every index within `shape` is an element of the storage.
    offset: usize,
}

impl Tensor {
    /// A tensor that takes over a vector of values, the last dim varying fastest. Nothing is copied.
    pub fn from_vec<T: Element>(values: Vec<T>, shape: &[usize]) -> Result<Tensor> {
        check_number("from_vec", values.len(), shape, T::DTYPE)?;
        Ok(Tensor::of_storage(Storage::Vec(Box::new(values)), shape, T::DTYPE))
    }

    /// A tensor with a copy of these values, the last dim varying fastest.
    pub fn from_slice<T: Element>(values: &[T], shape: &[usize]) -> Result<Tensor> {
        check_number("from_slice", values.len(), shape, T::DTYPE)?;
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let mut buffer = Buffer::any(bytes.len());
        buffer.as_mut_slice().copy_from_slice(bytes);
        Ok(Tensor::of_storage(Storage::Pooled(buffer), shape, T::DTYPE))
    }

    /// One value, without dims.
    pub fn scalar<T: Element>(value: T) -> Tensor {
        let bytes = bytemuck::bytes_of(&value);
        let mut buffer = Buffer::any(bytes.len());
        buffer.as_mut_slice().copy_from_slice(bytes);
        Tensor::of_storage(Storage::Pooled(buffer), &[], T::DTYPE)
    }

    /// Zeros (false, for `bool`).
    pub fn zeros(shape: &[usize], dtype: DType) -> Result<Tensor> {
        let n = numel("zeros", shape, dtype)?;
        let buffer = Buffer::zeros(n * dtype.size());
        Ok(Tensor::of_storage(Storage::Pooled(buffer), shape, dtype))
    }

    /// The same value everywhere.
    pub fn full<T: Element>(shape: &[usize], value: T) -> Result<Tensor> {
        let mut tensor = Tensor::zeros(shape, T::DTYPE)?;
        tensor.as_mut_slice::<T>()?.fill(value);
        Ok(tensor)
    }

    /// A tensor without values: operations on it give shapes and compute nothing.
    pub fn meta(shape: &[usize], dtype: DType) -> Result<Tensor> {
        numel("meta", shape, dtype)?;
        let strides = contiguous_strides(shape);
        Ok(Tensor { storage: None, dtype, shape: shape.into(), strides, offset: 0 })
    }

    /// Size of every dim.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Distance between neighbours in every dim, in elements.
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// Number of dims.
    pub fn n_dims(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        if self.shape.contains(&0) { 0 } else { self.shape.iter().product() }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether it has no values, only a shape.
    pub fn is_meta(&self) -> bool {
        self.storage.is_none()
    }

    /// Whether its elements lie next to each other, the last dim varying fastest.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        let consecutive = self.shape.iter().zip(&self.strides).rev().all(|(size, stride)| {
            let fits = *size <= 1 || *stride == expected;
            expected *= *size as isize;
            fits
        });
        consecutive || self.numel() == 0
    }

    /// The same values in consecutive memory: itself, or a copy.
    pub fn contiguous(&self) -> Tensor {
        if self.is_contiguous() {
            return self.clone();
        }
        let strides = contiguous_strides(&self.shape);
        let storage = self.start().map(|start| {
            let mut buffer = Buffer::any(self.numel() * self.dtype.size());
            // SAFETY: By the invariant of a tensor every element is there to be read, and the new
            // buffer has room for all of them.
            unsafe {
                copy::gather(start, &self.shape, &self.strides, self.dtype, buffer.as_mut_slice());
            }
            Arc::new(Storage::Pooled(buffer))
        });
        Tensor { storage, dtype: self.dtype, shape: self.shape.clone(), strides, offset: 0 }
    }

    /// The values of a tensor whose elements are consecutive.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        let start = self.typed_start::<T>("as_slice")?;
        if !self.is_contiguous() {
            return Err(self.not_contiguous("as_slice"));
        }
        // SAFETY: `numel` consecutive elements of the storage, by the invariant and the check above;
        // of type `T`, by the check of the dtype; shared memory is not written.
        Ok(unsafe { slice::from_raw_parts(start, self.numel()) })
    }

    /// The values, to be changed in place. If the elements are not consecutive, or if another
    /// tensor can see them, they are copied first; that tensor does not change.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.typed_start::<T>("as_mut_slice")?;
        let whole = self.storage.as_ref().is_some_and(|storage| Arc::strong_count(storage) == 1);
        if !whole || !self.is_contiguous() {
            *self = self.copied();
        }
        let (n, offset) = (self.numel(), self.offset);
        let storage = self.storage.as_mut().and_then(Arc::get_mut);
        let Some(storage) = storage else {
            return Err(LocalError::Meta { op: "as_mut_slice", shape: self.shape.to_vec() });
        };
        // SAFETY: As in `as_slice`; and the storage has no other owner.
        Ok(unsafe {
            let start = storage.start_mut().cast::<T>().add(if n == 0 { 0 } else { offset });
            slice::from_raw_parts_mut(start, n)
        })
    }

    /// A copy of the values, the last dim varying fastest.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.typed_start::<T>("to_vec")?;
        self.contiguous().as_slice::<T>().map(<[T]>::to_vec)
    }

    /// The value of a tensor that has one.
    pub fn item<T: Element>(&self) -> Result<T> {
        let start = self.typed_start::<T>("item")?;
        if self.numel() != 1 {
            return Err(LocalError::ShapeMismatch {
                op: "item",
                from: self.shape.to_vec(),
                to: Vec::new(),
                why: "it does not have exactly one element; select one first",
            });
        }
        // SAFETY: The one element, of type `T`.
        Ok(unsafe { *start })
    }

    /// A new tensor whose values `fill` writes, the last dim varying fastest. The slice holds
    /// anything at first, so `fill` must write all of it.
    pub(crate) fn write<T: Element>(
        op: &'static str,
        shape: &[usize],
        fill: impl FnOnce(&mut [T]),
    ) -> Result<Tensor> {
        let n = numel(op, shape, T::DTYPE)?;
        let bytes = n * T::DTYPE.size();
        // Any bytes are numbers; only 0 and 1 are bools.
        let mut buffer =
            if T::DTYPE == DType::Bool { Buffer::zeros(bytes) } else { Buffer::any(bytes) };
        // SAFETY: The buffer's own memory: as long, aligned for every dtype, initialised, and of bytes
        // that are values of `T`.
        fill(unsafe { slice::from_raw_parts_mut(buffer.as_mut_slice().as_mut_ptr().cast(), n) });
        Ok(Tensor::of_storage(Storage::Pooled(buffer), shape, T::DTYPE))
    }

    /// A view of the same memory.
    pub(crate) fn view(&self, shape: Dims, strides: Dims<isize>, offset: usize) -> Tensor {
        debug_assert!(self.holds(&shape, &strides, offset), "{shape:?} {strides:?} at {offset}");
        Tensor { storage: self.storage.clone(), dtype: self.dtype, shape, strides, offset }
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn not_contiguous(&self, op: &'static str) -> LocalError {
        let (shape, strides) = (self.shape.to_vec(), self.strides.to_vec());
        LocalError::NotContiguous { op, shape, strides }
    }

    /// The element at index zero, or where the storage begins if there is no element; `None` for a
    /// meta tensor.
    fn start(&self) -> Option<*const u8> {
        let storage = self.storage.as_ref()?;
        let at = if self.numel() == 0 { 0 } else { self.offset * self.dtype.size() };
        // SAFETY: Within the storage, by the invariant.
        Some(unsafe { storage.start().add(at) })
    }

    /// The element at index zero, of a tensor of this dtype that has values.
    pub(crate) fn typed_start<T: Element>(&self, op: &'static str) -> Result<*const T> {
        if T::DTYPE != self.dtype {
            return Err(LocalError::WrongDType { op, got: self.dtype, want: T::DTYPE });
        }
        let start = self.start().map(<*const u8>::cast);
        start.ok_or_else(|| LocalError::Meta { op, shape: self.shape.to_vec() })
    }

    /// The same values in memory of its own.
    fn copied(&self) -> Tensor {
        let whole = self.contiguous();
        let Some(start) = whole.start().filter(|_| self.is_contiguous()) else { return whole };
        let mut buffer = Buffer::any(self.numel() * self.dtype.size());
        // SAFETY: As in `contiguous`.
        unsafe {
            copy::gather(start, &whole.shape, &whole.strides, self.dtype, buffer.as_mut_slice())
        };
        Tensor::of_storage(Storage::Pooled(buffer), &self.shape, self.dtype)
    }

    fn of_storage(storage: Storage, shape: &[usize], dtype: DType) -> Tensor {
        let strides = contiguous_strides(shape);
        Tensor { storage: Some(Arc::new(storage)), dtype, shape: shape.into(), strides, offset: 0 }
    }

    /// The invariant.
    fn holds(&self, shape: &[usize], strides: &[isize], offset: usize) -> bool {
        let Some(storage) = self.storage.as_ref().filter(|_| !shape.contains(&0)) else {
            return true;
        };
        let (mut first, mut last) = (offset as i128, offset as i128);
        for (size, stride) in shape.iter().zip(strides) {
            let reach = (*size as i128 - 1) * *stride as i128;
            if reach < 0 { first += reach } else { last += reach }
        }
        first >= 0 && last < (storage.bytes() / self.dtype.size()) as i128
    }
}

fn check_number(op: &'static str, got: usize, shape: &[usize], dtype: DType) -> Result<()> {
    match numel(op, shape, dtype)? {
        want if want == got => Ok(()),
        want => Err(LocalError::WrongNumberOfValues { op, got, want, shape: shape.to_vec() }),
    }
}
