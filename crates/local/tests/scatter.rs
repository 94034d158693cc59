//! Scattering and adding up against plain loops.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

mod plain;

use dtensor_local::{DType, ScatterReduce, Tensor, set_threads};
use plain::{
    any_dtype, check, flat, index_tensor, indices, is_meta, laid, refuses, some_tensor, tensor_of,
};
use proptest::prelude::*;

const REDUCTIONS: [ScatterReduce; 5] = [
    ScatterReduce::Sum,
    ScatterReduce::Prod,
    ScatterReduce::Mean,
    ScatterReduce::Amax,
    ScatterReduce::Amin,
];

/// One value of those that meet.
fn reduced(reduce: ScatterReduce, dtype: DType, values: &[f64]) -> f64 {
    let mean = || values.iter().sum::<f64>() / values.len() as f64;
    match reduce {
        ScatterReduce::Sum => values.iter().sum(),
        ScatterReduce::Prod => values.iter().product(),
        ScatterReduce::Mean if dtype.is_float() => mean(),
        ScatterReduce::Mean => mean().floor(),
        ScatterReduce::Amax => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ScatterReduce::Amin => values.iter().copied().fold(f64::INFINITY, f64::min),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn scattering_is_the_loop_over_the_indices(
        shape in prop::collection::vec(0usize..5, 1..4),
        smaller in prop::collection::vec(0usize..3, 3),
        dim in 0usize..3,
        length in 0usize..6,
        seed in 0usize..100,
        (kind, other_kind, short) in (0usize..5, 0usize..5, any::<bool>()),
        dtype in any_dtype(),
    ) {
        let dim = dim % shape.len();
        let (tensor, before) = some_tensor(dtype, &shape, seed);
        let size = shape[dim];
        let mut list_shape: Vec<usize> =
            shape.iter().zip(&smaller).map(|(size, less)| size.saturating_sub(*less)).collect();
        list_shape[dim] = if size == 0 { 0 } else { length };
        // The source may be larger than the indices.
        let source_shape: Vec<usize> =
            list_shape.iter().zip(&smaller).map(|(size, more)| size + more).collect();
        let (source, values) = some_tensor(dtype, &source_shape, seed + 1);
        let list: Vec<i64> = (0..list_shape.iter().product::<usize>())
            .map(|i| ((i * 7 + seed + i / 3) % size) as i64)
            .collect();
        let which = laid(&index_tensor(&list, &list_shape, short), other_kind);
        let (x, y) = (laid(&tensor, kind), laid(&source, other_kind));

        // What comes to each element, in order.
        let mut come: Vec<Vec<f64>> = vec![vec![]; before.len()];
        for index in indices(&list_shape) {
            let mut to = index.clone();
            to[dim] = list[flat(&list_shape, &index)] as usize;
            come[flat(&shape, &to)].push(values[flat(&source_shape, &index)]);
        }
        let by = |value: &dyn Fn(f64, &[f64]) -> f64| -> Vec<f64> {
            before.iter().zip(&come).map(|(old, come)| value(*old, come)).collect()
        };
        let d = dim as isize - shape.len() as isize;
        let last = by(&|old, come| come.last().copied().unwrap_or(old));
        check(&x.scatter(d, &which, &y).unwrap(), dtype, &shape, &last);
        let one = by(&|old, come| if come.is_empty() { old } else { 1.0 });
        check(&x.scatter_scalar(d, &which, 1).unwrap(), dtype, &shape, &one);
        let sum = by(&|old, come| old + come.iter().sum::<f64>());
        check(&x.scatter_add(d, &which, &y).unwrap(), dtype, &shape, &sum);
        for reduce in REDUCTIONS {
            for include_self in [true, false] {
                let result = x.scatter_reduce(d, &which, &y, reduce, include_self);
                if dtype == DType::Bool && reduce == ScatterReduce::Mean {
                    prop_assert!(result.is_err());
                    continue;
                }
                let want = by(&|old, come| {
                    let all = if include_self { [&[old], come].concat() } else { come.to_vec() };
                    if come.is_empty() { old } else { reduced(reduce, dtype, &all) }
                });
                check(&result.unwrap(), dtype, &shape, &want);
            }
        }
        // And what is gathered again is what was scattered last.
        let again = x.scatter(d, &which, &y).unwrap().gather(d, &which).unwrap();
        let want: Vec<f64> = indices(&list_shape)
            .into_iter()
            .map(|mut index| {
                index[dim] = list[flat(&list_shape, &index)] as usize;
                last[flat(&shape, &index)]
            })
            .collect();
        check(&again, dtype, &list_shape, &want);
    }

    #[test]
    fn slices_go_where_the_list_says(
        shape in prop::collection::vec(0usize..5, 1..4),
        dim in 0usize..3,
        picks in prop::collection::vec(0usize..100, 0..7),
        seed in 0usize..100,
        (kind, other_kind, short) in (0usize..5, 0usize..5, any::<bool>()),
        dtype in any_dtype(),
    ) {
        let dim = dim % shape.len();
        let (tensor, before) = some_tensor(dtype, &shape, seed);
        let picks: Vec<i64> = if shape[dim] == 0 { vec![] } else {
            picks.iter().map(|pick| (pick % shape[dim]) as i64).collect()
        };
        let mut source_shape = shape.clone();
        source_shape[dim] = picks.len();
        let (source, values) = some_tensor(dtype, &source_shape, seed + 1);
        let list = laid(&index_tensor(&picks, &[picks.len()], short), other_kind);
        let (x, y) = (laid(&tensor, kind), laid(&source, other_kind));
        let (mut copied, mut added, mut doubled, mut filled) =
            (before.clone(), before.clone(), before.clone(), before.clone());
        for index in indices(&source_shape) {
            let mut to = index.clone();
            to[dim] = picks[index[dim]] as usize;
            let (to, from) = (flat(&shape, &to), values[flat(&source_shape, &index)]);
            copied[to] = from;
            added[to] += from;
            doubled[to] += 2.0 * from;
            filled[to] = 1.0;
        }
        let d = dim as isize;
        check(&x.index_copy(d, &list, &y).unwrap(), dtype, &shape, &copied);
        check(&x.index_add(d, &list, &y, 1).unwrap(), dtype, &shape, &added);
        check(&x.index_add(d, &list, &y, 2.0).unwrap(), dtype, &shape, &doubled);
        check(&x.index_fill(d, &list, 1).unwrap(), dtype, &shape, &filled);
    }

    #[test]
    fn a_box_is_overwritten_and_nothing_else(
        sizes in prop::collection::vec((0usize..6, 0usize..6, 0usize..6), 0..4),
        n_ranges in 0usize..4,
        repeated: bool,
        (kind, other_kind) in (0usize..5, 0usize..5),
        dtype in any_dtype(),
        other_dtype in any_dtype(),
    ) {
        let shape: Vec<usize> = sizes.iter().map(|(size, _, _)| *size).collect();
        let ranges: Vec<std::ops::Range<usize>> = sizes
            .iter()
            .take(n_ranges)
            .map(|(size, a, b)| a.min(b).min(size).to_owned()..(*a).max(*b).min(*size))
            .collect();
        let mut box_shape = shape.clone();
        for (size, range) in box_shape.iter_mut().zip(&ranges) {
            *size = range.len();
        }
        // Values of the last dim only are broadcast over the others.
        let values_shape = if repeated { &box_shape[box_shape.len().min(1)..] } else { &box_shape };
        let (tensor, mut want) = some_tensor(dtype, &shape, 1);
        let (source, values) = some_tensor(DType::U8, values_shape, 2);
        let source = source.to_dtype(other_dtype).unwrap();
        let values = if other_dtype == DType::Bool {
            values.iter().map(|value| f64::from(*value != 0.0)).collect()
        } else {
            values
        };
        for index in indices(&box_shape) {
            let to: Vec<usize> = index
                .iter()
                .enumerate()
                .map(|(dim, i)| i + ranges.get(dim).map_or(0, |range| range.start))
                .collect();
            let from = &index[index.len() - values_shape.len()..];
            want[flat(&shape, &to)] = values[flat(values_shape, from)];
        }
        let x = laid(&tensor, kind);
        let kept = plain::numbers(&x);
        let mut in_place = x.clone();
        let assigned = x.slice_assign(&ranges, &laid(&source, other_kind)).unwrap();
        check(&assigned, dtype, &shape, &want);
        in_place.slice_assign_in_place(&ranges, &source).unwrap();
        check(&in_place, dtype, &shape, &want);
        // Somebody else could see the memory.
        check(&x, dtype, &shape, &kept);
    }
}

#[test]
fn sums_do_not_depend_on_the_number_of_threads() {
    let (rows, columns, n) = (700, 90, 3000);
    let at = |i: usize| ((i * 2_654_435_761) >> 7) as f32;
    let values: Vec<f32> = (0..n * columns).map(|i| (at(i) % 1009.0) * 0.37 - 150.0).collect();
    let source = Tensor::from_vec(values, &[n, columns]).unwrap();
    // Every row, so that also those are changed of which two threads have a part each.
    let list: Vec<i64> = (0..n).map(|i| (i * 31 % rows) as i64).collect();
    let list = Tensor::from_vec(list, &[n]).unwrap();
    let each: Vec<i64> = (0..n * columns).map(|i| (i * 31 % rows) as i64).collect();
    let each = Tensor::from_vec(each, &[n, columns]).unwrap();
    let into = Tensor::ones(&[rows, columns], DType::F32).unwrap();
    let before = dtensor_local::threads();
    let results: Vec<[Vec<f32>; 3]> = [1, 2, 3, 7]
        .into_iter()
        .map(|threads| {
            set_threads(threads);
            [
                into.index_add(0, &list, &source, 1).unwrap().to_vec().unwrap(),
                into.scatter_add(0, &each, &source).unwrap().to_vec().unwrap(),
                into.index_put(&[Some(&list)], &source, true).unwrap().to_vec().unwrap(),
            ]
        })
        .collect();
    set_threads(before);
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
    // In the order of the list, which is what a plain loop does.
    let (source, list) = (source.to_vec::<f32>().unwrap(), list.to_vec::<i64>().unwrap());
    let mut want = vec![1.0_f32; rows * columns];
    for (row, to) in list.iter().enumerate() {
        for column in 0..columns {
            want[*to as usize * columns + column] += source[row * columns + column];
        }
    }
    assert_eq!(results[0][0], want);
    assert_eq!(results[0][2], want);
}

#[test]
fn half_precision_is_rounded_once() {
    // In bf16, 256 + 1 is 256 again: added one by one nothing would change.
    let x = tensor_of(DType::Bf16, &[1], &[256.0]);
    let ones = Tensor::ones(&[64], DType::Bf16).unwrap();
    let zeros = Tensor::zeros(&[64], DType::I64).unwrap();
    check(&x.scatter_add(0, &zeros, &ones).unwrap(), DType::Bf16, &[1], &[320.0]);
    check(&x.index_add(0, &zeros, &ones, 0.5).unwrap(), DType::Bf16, &[1], &[288.0]);
}

#[test]
fn a_nan_is_the_largest_and_the_smallest() {
    let x = Tensor::from_vec(vec![1.0_f32, 2.0, f32::NAN], &[3]).unwrap();
    let list = Tensor::from_vec(vec![0_i64, 0, 1, 2], &[4]).unwrap();
    let source = Tensor::from_vec(vec![f32::NAN, 5.0, 7.0, 3.0], &[4]).unwrap();
    for (reduce, want) in [(ScatterReduce::Amax, 7.0), (ScatterReduce::Amin, 2.0)] {
        let got = x.scatter_reduce(0, &list, &source, reduce, true).unwrap();
        let got = got.to_vec::<f32>().unwrap();
        assert!(got[0].is_nan() && got[1] == want && got[2].is_nan(), "{got:?}");
        let without = x.scatter_reduce(0, &list, &source, reduce, false).unwrap();
        assert_eq!(without.to_vec::<f32>().unwrap()[1..], [7.0, 3.0]);
    }
}

#[test]
fn integers_wrap_and_means_of_them_round_down() {
    let bytes = tensor_of(DType::U8, &[2], &[200.0, 3.0]);
    let list = Tensor::from_vec(vec![0_i64, 1], &[2]).unwrap();
    let more = tensor_of(DType::U8, &[2], &[100.0, 100.0]);
    check(&bytes.scatter_add(0, &list, &more).unwrap(), DType::U8, &[2], &[44.0, 103.0]);
    let x = Tensor::from_vec(vec![-2_i32, 3], &[2]).unwrap();
    let source = Tensor::from_vec(vec![-7_i32, 4], &[2]).unwrap();
    let means = x.scatter_reduce(0, &list, &source, ScatterReduce::Mean, true).unwrap();
    assert_eq!(means.to_vec::<i32>().unwrap(), [-5, 3]);
}

#[test]
fn tensors_without_dims_have_one_element_to_scatter_to() {
    let (x, y) = (Tensor::scalar(3.0_f32), Tensor::scalar(4.0_f32));
    let zero = Tensor::scalar(0_i64);
    for (result, want) in [
        (x.scatter(0, &zero, &y), 4.0),
        (x.scatter_scalar(-1, &zero, 2.0), 2.0),
        (x.scatter_add(0, &zero, &y), 7.0),
        (x.index_add(0, &zero, &y, 1), 7.0),
        (x.index_copy(-1, &zero, &y), 4.0),
        (x.gather(0, &zero), 3.0),
        (x.index_select(0, &zero), 3.0),
        (x.slice_assign(&[], &y), 4.0),
    ] {
        let result = result.unwrap();
        assert_eq!((result.shape(), result.item::<f32>().unwrap()), (&[][..], want));
    }
    // One index without dims in a tensor with one.
    let line = Tensor::from_vec(vec![1, 2, 3], &[3]).unwrap();
    let one = line.gather(0, &Tensor::scalar(1_i64)).unwrap();
    assert_eq!((one.shape(), one.item::<i32>().unwrap()), (&[][..], 2));
    assert_eq!(line.index_select(0, &Tensor::scalar(2_i64)).unwrap().to_vec::<i32>().unwrap(), [3]);
}

#[test]
fn meta_tensors_give_the_shapes_and_are_checked_too() {
    let x = Tensor::meta(&[4, 6], DType::Bf16).unwrap();
    let source = Tensor::zeros(&[2, 6], DType::Bf16).unwrap();
    let which = Tensor::zeros(&[2, 6], DType::I64).unwrap();
    let list = Tensor::meta(&[2], DType::I32).unwrap();
    let (dtype, shape) = (DType::Bf16, [4, 6]);
    is_meta(x.scatter(0, &which, &source), dtype, &shape);
    is_meta(x.scatter_scalar(0, &which, 1.0), dtype, &shape);
    is_meta(x.scatter_add(0, &which, &source), dtype, &shape);
    is_meta(x.scatter_reduce(0, &which, &source, ScatterReduce::Amin, true), dtype, &shape);
    is_meta(x.index_add(0, &list, &source, 1), dtype, &shape);
    is_meta(x.index_copy(0, &list, &source), dtype, &shape);
    is_meta(x.index_fill(0, &list, 1), dtype, &shape);
    is_meta(x.slice_assign(&[1..3, 0..6], &source), dtype, &shape);
    is_meta(
        Tensor::zeros(&shape, dtype)
            .unwrap()
            .slice_assign(&[0..1, 0..1], &x.narrow(0, 0, 1).unwrap().narrow(1, 0, 1).unwrap()),
        dtype,
        &shape,
    );
    assert!(x.index_add(1, &list, &source, 1).is_err());
    assert!(x.scatter(0, &list, &source).is_err());
}

#[test]
fn wrong_requests_say_what_and_how_to_mend_it() {
    let x = Tensor::zeros(&[2, 3], DType::F32).unwrap();
    let index = |value: i64| Tensor::from_vec(vec![value], &[1, 1]).unwrap();
    let one = Tensor::ones(&[1, 1], DType::F32).unwrap();
    refuses(x.scatter(1, &index(3), &one), "scatter: index 3 is out of range for dim 1 of size 3");
    refuses(
        x.scatter_add(0, &index(-1), &one),
        "scatter_add: index -1 is out of range for dim 0 of size 2",
    );
    refuses(
        x.scatter(2, &index(0), &one),
        "scatter: dim 2 is out of range for shape [2, 3]; give -2..2",
    );
    refuses(x.scatter(0, &one, &one), "scatter: the tensor is f32, not i64; cast it first");
    refuses(
        x.scatter(0, &index(0), &one.to_dtype(DType::F64).unwrap()),
        "scatter: the tensor is f64, not f32; cast it first",
    );
    let wide = Tensor::zeros(&[1, 4], DType::I64).unwrap();
    refuses(
        x.scatter_scalar(0, &wide, 1.0),
        "scatter_scalar: shape [1, 4] does not fit shape [2, 3]: the indices have as many dims as the tensor, and but for the scattered one none is larger",
    );
    refuses(
        x.scatter(1, &wide, &one),
        "scatter: shape [1, 4] does not fit shape [1, 1]: the indices have as many dims as the source, and none is larger",
    );
    let list = Tensor::zeros(&[2], DType::I64).unwrap();
    refuses(
        x.index_add(0, &list, &one, 1),
        "index_add: shape [1, 1] does not fit shape [2, 3]: the source has one slice per index, each like those of the tensor",
    );
    refuses(
        x.index_copy(0, &wide, &one),
        "index_copy: shape [1, 4] does not fit shape [4]: the indices have one dim; reshape them",
    );
    refuses(
        x.index_fill(1, &Tensor::from_vec(vec![5_i32], &[1]).unwrap(), 1),
        "index_fill: index 5 is out of range for dim 1 of size 3",
    );
    refuses(
        x.slice_assign(&[0..3, 0..1], &one),
        "slice_assign: range 0..3 step 1 is not within dim 0 of size 2",
    );
    refuses(
        x.slice_assign(&[0..1, 0..1, 0..1], &one),
        "slice_assign: the number of ranges is 3; give at most one per dim",
    );
    refuses(
        x.slice_assign(&[0..1, 0..3], &Tensor::zeros(&[2, 3], DType::F32).unwrap()),
        "slice_assign: shape [2, 3] does not fit shape [1, 3]: the values must have the shape of where they go, or be broadcast to it",
    );
    let truth = Tensor::zeros(&[1], DType::Bool).unwrap();
    refuses(
        truth.scatter_reduce(0, &list.narrow(0, 0, 1).unwrap(), &truth, ScatterReduce::Mean, true),
        "scatter_reduce: is not defined on bool; cast to another dtype first",
    );
}
