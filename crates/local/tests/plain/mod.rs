//! What tests against plain loops share: values of any dtype, in any layout, by their index.
#![allow(dead_code)] // Each test file uses a part of this.

use dtensor_local::{DType, Tensor};
use proptest::prelude::*;

/// Numbers as values of a dtype. Integers wrap.
pub fn tensor_of(dtype: DType, shape: &[usize], values: &[f64]) -> Tensor {
    let tensor = Tensor::from_slice(values, shape).unwrap();
    let tensor = if matches!(dtype, DType::I64 | DType::I32 | DType::U8) {
        tensor.to_dtype(DType::I64).unwrap()
    } else {
        tensor
    };
    tensor.to_dtype(dtype).unwrap()
}

/// The values in order, as numbers that hold them exactly.
pub fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// Small numbers, different next to each other, that every dtype but `bool` holds; not negative for `u8`.
pub fn some_numbers(dtype: DType, n: usize, seed: usize) -> Vec<f64> {
    let low = if dtype == DType::U8 || dtype == DType::Bool { 0.0 } else { -6.0 };
    (0..n).map(|i| ((i * 5 + seed * 3 + i / 7) % 13) as f64 + low).collect()
}

/// A tensor of [`some_numbers`], and these as the dtype has them.
pub fn some_tensor(dtype: DType, shape: &[usize], seed: usize) -> (Tensor, Vec<f64>) {
    let n = shape.iter().product();
    let tensor = tensor_of(dtype, shape, &some_numbers(dtype, n, seed));
    let values = numbers(&tensor);
    (tensor, values)
}

/// The same values with other strides.
pub fn laid(tensor: &Tensor, kind: usize) -> Tensor {
    if tensor.n_dims() == 0 {
        return tensor.clone();
    }
    let reversed: Vec<isize> = (0..tensor.n_dims() as isize).rev().collect();
    match kind % 5 {
        1 => tensor.permute(&reversed).unwrap().copied().permute(&reversed).unwrap(),
        2 => tensor.flip(-1).unwrap().copied().flip(-1).unwrap(),
        3 => {
            let size = tensor.shape()[0];
            Tensor::cat(&[tensor, tensor], 0).unwrap().narrow(0, size, size).unwrap()
        }
        4 => Tensor::stack(&[tensor, tensor], -1).unwrap().select(-1, 1).unwrap(),
        _ => tensor.clone(),
    }
}

/// All indices of a shape, in order.
pub fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![vec![]], |done, size| {
        done.into_iter()
            .flat_map(|index| (0..*size).map(move |i| [index.clone(), vec![i]].concat()))
            .collect()
    })
}

/// Where an index of a shape is in a list of its values.
pub fn flat(shape: &[usize], index: &[usize]) -> usize {
    assert_eq!(shape.len(), index.len());
    shape.iter().zip(index).fold(0, |at, (size, i)| at * size + i)
}

pub fn any_dtype() -> impl Strategy<Value = DType> {
    prop::sample::select(DType::ALL.to_vec())
}

/// `i64` or `i32` indices.
pub fn index_tensor(values: &[i64], shape: &[usize], short: bool) -> Tensor {
    let tensor = Tensor::from_slice(values, shape).unwrap();
    if short { tensor.to_dtype(DType::I32).unwrap() } else { tensor }
}

/// Demands this shape, dtype and these values.
#[track_caller]
pub fn check(got: &Tensor, dtype: DType, shape: &[usize], want: &[f64]) {
    assert_eq!(got.shape(), shape);
    // The dtype rounds what is wanted as it rounds what was computed.
    let want = numbers(&tensor_of(dtype, shape, want));
    assert_eq!(got.dtype(), dtype);
    assert_eq!(numbers(got), want, "{dtype} {shape:?}");
}

/// Demands this error.
#[track_caller]
pub fn refuses(result: dtensor_local::Result<Tensor>, want: &str) {
    assert_eq!(result.unwrap_err().to_string(), want);
}

/// Demands a meta tensor of this shape and dtype.
#[track_caller]
pub fn is_meta(result: dtensor_local::Result<Tensor>, dtype: DType, shape: &[usize]) {
    let result = result.unwrap();
    assert!(result.is_meta());
    assert_eq!((result.dtype(), result.shape()), (dtype, shape));
}
