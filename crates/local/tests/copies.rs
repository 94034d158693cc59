//! Copies of strided tensors, small and large, and writing into a tensor that is there already.
#![allow(clippy::unwrap_used)] // A test may.

use dtensor_local::{DType, Element, LocalError, Tensor, bf16, set_threads};
use proptest::prelude::*;

/// A tensor of different values, and the index of the value at each place: wrapped to fit the type.
fn counted<T: Element>(shape: &[usize], value: fn(usize) -> T) -> Tensor {
    let n = shape.iter().product();
    Tensor::from_vec((0..n).map(value).collect(), shape).unwrap()
}

/// Checks a permuted copy element by element, by counting through the new shape.
fn check_permuted<T: Element + PartialEq + std::fmt::Debug>(
    shape: &[usize],
    order: &[usize],
    value: fn(usize) -> T,
) {
    let x = counted(shape, value);
    let order_signed: Vec<isize> = order.iter().map(|dim| *dim as isize).collect();
    let got = x.permute(&order_signed).unwrap().copied();
    assert!(got.is_contiguous());
    let old_strides: Vec<usize> =
        (0..shape.len()).map(|dim| shape[dim + 1..].iter().product()).collect();
    let sizes: Vec<usize> = order.iter().map(|dim| shape[*dim]).collect();
    let strides: Vec<usize> = order.iter().map(|dim| old_strides[*dim]).collect();
    let mut index = vec![0; shape.len()];
    for (place, got) in got.as_slice::<T>().unwrap().iter().enumerate() {
        let source: usize = index.iter().zip(&strides).map(|(i, stride)| i * stride).sum();
        assert_eq!(*got, value(source), "{shape:?} {order:?} at {place}");
        for dim in (0..index.len()).rev() {
            index[dim] += 1;
            if index[dim] < sizes[dim] {
                break;
            }
            index[dim] = 0;
        }
    }
}

#[test]
fn large_transposed_copies_are_right_with_any_number_of_threads() {
    // Beyond the size from which on results are written past the caches. Rows that are whole lines of
    // memory, and rows that are not.
    for (rows, columns) in [(1600, 1504), (1599, 1501)] {
        for threads in [1, 3] {
            set_threads(threads);
            check_permuted(&[rows, columns], &[1, 0], |i| i as f32);
        }
    }
    check_permuted(&[1100, 1000], &[1, 0], |i| i as f64);
    check_permuted(&[2100, 2111], &[1, 0], |i| bf16::from_bits(i as u16 & 0x3fff));
    check_permuted(&[90, 200, 130], &[2, 1, 0], |i| i as i32);
    check_permuted(&[90, 200, 130], &[1, 2, 0], |i| i as u8);
}

proptest! {
    #[test]
    fn copies_of_permuted_tensors_of_any_sizes_are_right(
        sizes in prop::collection::vec(prop_oneof![0usize..4, 7usize..19, 60usize..75], 1..4),
        turn in 0usize..6,
    ) {
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.rotate_left(turn % sizes.len());
        if turn >= 3 {
            order.reverse();
        }
        check_permuted(&sizes, &order, |i| i as f32);
        check_permuted(&sizes, &order, |i| i as i64);
        check_permuted(&sizes, &order, |i| i % 3 == 0);
    }
}

#[test]
fn copy_from_broadcasts_converts_and_leaves_other_tensors_alone() {
    let mut x = Tensor::zeros(&[2, 3], DType::F32).unwrap();
    let memory = x.as_slice::<f32>().unwrap().as_ptr();
    x.copy_from(&Tensor::from_vec(vec![1_i64, 2, 3], &[3]).unwrap()).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    assert_eq!(x.as_slice::<f32>().unwrap().as_ptr(), memory, "written in place");
    // Whoever shares the memory keeps the old values; so does a view of the tensor itself.
    let before = x.clone();
    let turned = x.reshape(&[3, 2]).unwrap().transpose(0, 1).unwrap();
    x.copy_from(&turned).unwrap();
    assert_eq!(before.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 3.0, 2.0, 2.0, 1.0, 3.0]);
    let mut empty = Tensor::zeros(&[0, 3], DType::F32).unwrap();
    empty.copy_from(&Tensor::scalar(1.0_f32)).unwrap();
    assert_eq!(empty.shape(), [0, 3]);
}

#[test]
fn copy_from_refuses_what_does_not_fit_and_what_has_no_values() {
    let mut x = Tensor::zeros(&[2, 3], DType::F32).unwrap();
    let wide = Tensor::zeros(&[2, 2, 3], DType::F32).unwrap();
    assert!(matches!(x.copy_from(&wide), Err(LocalError::ShapeMismatch { .. })));
    let meta = Tensor::meta(&[2, 3], DType::F32).unwrap();
    assert!(matches!(x.copy_from(&meta), Err(LocalError::Meta { .. })));
    assert!(matches!(x.add_assign(&meta), Err(LocalError::Meta { .. })));
    let mut dry = meta;
    dry.copy_from(&x).unwrap();
    dry.add_assign(&x).unwrap();
    assert!(dry.is_meta());
}

#[test]
fn copied_has_memory_of_its_own() {
    let x = counted(&[4, 5], |i| i as f32);
    let own = x.copied();
    assert_eq!(own.to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
    assert_ne!(own.as_slice::<f32>().unwrap().as_ptr(), x.as_slice::<f32>().unwrap().as_ptr());
    assert!(Tensor::meta(&[3], DType::F32).unwrap().copied().is_meta());
}

#[test]
fn an_empty_tensor_may_have_huge_sizes_beside_its_zero() {
    let x = Tensor::zeros(&[1 << 40, 0, 1 << 40], DType::F32).unwrap();
    let turned = x.transpose(0, 2).unwrap();
    assert_eq!(turned.copied().shape(), [1 << 40, 0, 1 << 40]);
    assert_eq!(x.add(&turned).unwrap().numel(), 0);
    assert_eq!(x.sum(&[], false).unwrap().item::<f32>().unwrap(), 0.0);
}
