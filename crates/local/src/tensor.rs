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
    #[inline]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Distance between neighbours in every dim, in elements.
    #[inline]
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// Number of dims.
    #[inline]
    pub fn n_dims(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    #[inline]
    pub fn numel(&self) -> usize {
        if self.shape.contains(&0) { 0 } else { self.shape.iter().product() }
    }

    /// Element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether it has no values, only a shape.
    #[inline]
    pub fn is_meta(&self) -> bool {
        self.storage.is_none()
    }

    /// Whether its elements lie next to each other, the last dim varying fastest.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        let consecutive = self.shape.iter().zip(&self.strides).rev().all(|(size, stride)| {
            let fits = *size <= 1 || *stride == expected;
            // May wrap for an empty tensor with other sizes that are huge.
            expected = expected.wrapping_mul(*size as isize);
            fits
        });
        consecutive || self.numel() == 0
    }

    /// The same values in consecutive memory: itself, or a copy.
    pub fn contiguous(&self) -> Tensor {
        if self.is_contiguous() { self.clone() } else { self.copied() }
    }

    /// The same values in memory of its own: what `clone` is in PyTorch. (Here a clone shares memory,
    /// and what writes in place copies first.)
    pub fn copied(&self) -> Tensor {
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

    /// Takes the values of another tensor, broadcast and converted, in place. If somebody else can
    /// see the memory this tensor gets its own.
    ///
    /// ```
    /// use dtensor_local::{DType, Tensor};
    ///
    /// let mut table = Tensor::zeros(&[2, 3], DType::F32)?;
    /// table.copy_from(&Tensor::from_vec(vec![1_i64, 2, 3], &[3])?)?;
    /// assert_eq!(table.to_vec::<f32>()?, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn copy_from(&mut self, other: &Tensor) -> Result<()> {
        let other = other.to_dtype(self.dtype)?.expand(&self.shape)?;
        if self.is_meta() {
            return Ok(());
        }
        let Some(start) = other.start() else {
            return Err(LocalError::Meta { op: "copy_from", shape: other.shape.to_vec() });
        };
        let (n_bytes, offset) = (self.numel() * self.dtype.size(), self.offset * self.dtype.size());
        let consecutive = self.is_contiguous();
        match self.storage.as_mut().and_then(Arc::get_mut).filter(|_| consecutive) {
            // SAFETY: This tensor's elements are consecutive and nobody else's, so none of them is one
            // of `other`, which has as many.
            Some(storage) => unsafe {
                let to = storage.start_mut().add(if n_bytes == 0 { 0 } else { offset });
                let to = slice::from_raw_parts_mut(to, n_bytes);
                copy::gather(start, &other.shape, &other.strides, other.dtype, to);
            },
            None => *self = other.copied(),
        }
        Ok(())
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

    /// The values, if they are of this type and consecutive.
    #[inline]
    pub(crate) fn plain<T: Element>(&self) -> Option<&[T]> {
        let start = self.start()?;
        if self.dtype != T::DTYPE || !self.is_contiguous() {
            return None;
        }
        // SAFETY: As in `as_slice`.
        Some(unsafe { slice::from_raw_parts(start.cast(), self.numel()) })
    }

    /// The values, to be changed in place. If the elements are not consecutive, or if another
    /// tensor can see them, they are copied first; that tensor does not change.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.typed_start::<T>("as_mut_slice")?;
        let n = self.numel();
        let start = self.own_start("as_mut_slice")?;
        // SAFETY: `n` consecutive elements, of type `T` by the check of the dtype; the storage has no other owner.
        Ok(unsafe { slice::from_raw_parts_mut(start.cast(), n) })
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
    #[inline]
    pub(crate) fn write<T: Element>(
        op: &'static str,
        shape: &[usize],
        fill: impl FnOnce(&mut [T]),
    ) -> Result<Tensor> {
        let mut fill = Some(fill);
        Tensor::write_raw(op, shape, T::DTYPE, &mut |start, n| {
            // SAFETY: `n` values of this dtype, that nobody else sees.
            let values = unsafe { slice::from_raw_parts_mut(start.cast(), n) };
            if let Some(fill) = fill.take() {
                fill(values);
            }
        })
    }

    /// As [`Tensor::write`], for any dtype: `fill` is called once with the start of the new values and
    /// their number. Not generic, so that kernels share it.
    pub(crate) fn write_raw(
        op: &'static str,
        shape: &[usize],
        dtype: DType,
        fill: &mut dyn FnMut(*mut u8, usize),
    ) -> Result<Tensor> {
        let n = numel(op, shape, dtype)?;
        let bytes = n * dtype.size();
        // Any bytes are numbers; only 0 and 1 are bools. The buffer is aligned for every dtype.
        let mut buffer =
            if dtype == DType::Bool { Buffer::zeros(bytes) } else { Buffer::any(bytes) };
        fill(buffer.as_mut_slice().as_mut_ptr(), n);
        Ok(Tensor::of_storage(Storage::Pooled(buffer), shape, dtype))
    }

    /// A view of the same memory.
    pub(crate) fn view(&self, shape: Dims, strides: Dims<isize>, offset: usize) -> Tensor {
        debug_assert!(self.holds(&shape, &strides, offset), "{shape:?} {strides:?} at {offset}");
        Tensor { storage: self.storage.clone(), dtype: self.dtype, shape, strides, offset }
    }

    /// All of the memory between its first and its last element, as a tensor of one dim, and where in it
    /// the element at index zero is.
    pub(crate) fn span(&self) -> (Tensor, usize) {
        let line =
            |length, offset| self.view(Dims::from_slice(&[length]), Dims::from_slice(&[1]), offset);
        if self.numel() == 0 {
            return (line(0, 0), 0);
        }
        let (mut before, mut after) = (0, 0);
        for (size, stride) in self.shape.iter().zip(&self.strides) {
            let reach = (*size as isize - 1) * stride;
            *(if reach < 0 { &mut before } else { &mut after }) += reach.unsigned_abs();
        }
        (line(before + after + 1, self.offset - before), before)
    }

    /// The first of consecutive elements in memory that no other tensor sees: it is copied first if need be.
    pub(crate) fn own_start(&mut self, op: &'static str) -> Result<*mut u8> {
        let whole = self.storage.as_ref().is_some_and(|storage| Arc::strong_count(storage) == 1);
        if !whole || !self.is_contiguous() {
            *self = self.copied();
        }
        let at = if self.numel() == 0 { 0 } else { self.offset * self.dtype.size() };
        match self.storage.as_mut().and_then(Arc::get_mut) {
            // SAFETY: Within the storage, by the invariant.
            Some(storage) => Ok(unsafe { storage.start_mut().add(at) }),
            None => Err(LocalError::Meta { op, shape: self.shape.to_vec() }),
        }
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
    #[inline]
    pub(crate) fn start(&self) -> Option<*const u8> {
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

    #[inline]
    pub(crate) fn of_storage(storage: Storage, shape: &[usize], dtype: DType) -> Tensor {
        let strides = contiguous_strides(shape);
        let shape = Dims::from_slice(shape);
        Tensor { storage: Some(Arc::new(storage)), dtype, shape, strides, offset: 0 }
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
