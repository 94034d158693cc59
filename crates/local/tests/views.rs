//! Views against a plain list of values, over random chains of them.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

use dtensor_local::{DType, LocalError, Tensor};
use proptest::prelude::*;

/// The reference: a shape and every value in order.
#[derive(Clone, Debug, PartialEq)]
struct List {
    shape: Vec<usize>,
    values: Vec<i32>,
}

impl List {
    /// The list whose value at every index is the old one at `source(index)`.
    fn mapped(&self, shape: Vec<usize>, source: impl Fn(&[usize]) -> Vec<usize>) -> List {
        let values = indices(&shape).iter().map(|index| self.at(&source(index))).collect();
        List { shape, values }
    }

    fn at(&self, index: &[usize]) -> i32 {
        let position =
            index.iter().zip(&self.shape).fold(0, |position, (i, size)| position * size + i);
        self.values[position]
    }
}

fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![vec![]], |done, size| {
        done.into_iter()
            .flat_map(|index| (0..*size).map(move |i| [index.clone(), vec![i]].concat()))
            .collect()
    })
}

/// A view to take, with numbers that are made to fit the shape at hand.
#[derive(Clone, Debug)]
enum View {
    Permute(usize),
    Slice(usize, usize, usize, usize),
    Select(usize, usize),
    Unsqueeze(usize),
    Squeeze(usize),
    Flip(usize),
    Expand(usize),
    Unfold(usize, usize, usize),
    Flatten,
    Split(usize, usize),
}

fn views() -> impl Strategy<Value = View> {
    let n = || 0usize..20;
    prop_oneof![
        n().prop_map(View::Permute),
        (n(), n(), n(), 1usize..4).prop_map(|(a, b, c, d)| View::Slice(a, b, c, d)),
        (n(), n()).prop_map(|(a, b)| View::Select(a, b)),
        n().prop_map(View::Unsqueeze),
        n().prop_map(View::Squeeze),
        n().prop_map(View::Flip),
        n().prop_map(View::Expand),
        (n(), n(), 1usize..4).prop_map(|(a, b, c)| View::Unfold(a, b, c)),
        Just(View::Flatten),
        (n(), n()).prop_map(|(a, b)| View::Split(a, b)),
    ]
}

fn apply(view: &View, tensor: &Tensor, list: &List) -> (Tensor, List) {
    let shape = list.shape.clone();
    let n = shape.len();
    let dim_of = |number: usize| number % n.max(1);
    match *view {
        View::Flatten => {
            let flat = List { shape: vec![list.values.len()], values: list.values.clone() };
            return (tensor.reshape(&flat.shape).unwrap(), flat);
        }
        View::Unsqueeze(number) => {
            let dim = number % (n + 1);
            let mut new = shape;
            new.insert(dim, 1);
            let values = list.values.clone();
            return (tensor.unsqueeze(dim as isize).unwrap(), List { shape: new, values });
        }
        _ if n == 0 => return (tensor.clone(), list.clone()),
        _ => {}
    }
    match *view {
        View::Permute(number) => {
            let order: Vec<usize> = (0..n).map(|dim| (dim * (n - 1) + number) % n).collect();
            let distinct = (0..n).all(|dim| order.contains(&dim));
            let order = if distinct { order } else { (0..n).rev().collect() };
            let signed: Vec<isize> = order.iter().map(|dim| *dim as isize - n as isize).collect();
            let new = order.iter().map(|dim| shape[*dim]).collect();
            let source = |index: &[usize]| {
                let mut old = vec![0; n];
                order.iter().zip(index).for_each(|(dim, i)| old[*dim] = *i);
                old
            };
            (tensor.permute(&signed).unwrap(), list.mapped(new, source))
        }
        View::Slice(number, a, b, step) => {
            let dim = dim_of(number);
            let (a, b) = (a % (shape[dim] + 1), b % (shape[dim] + 1));
            let (start, end) = (a.min(b), a.max(b));
            let mut new = shape.clone();
            new[dim] = (end - start).div_ceil(step);
            let source = |index: &[usize]| {
                let mut old = index.to_vec();
                old[dim] = start + index[dim] * step;
                old
            };
            (tensor.slice(dim as isize, start, end, step).unwrap(), list.mapped(new, source))
        }
        View::Select(number, index) => {
            let dim = dim_of(number);
            if shape[dim] == 0 {
                assert!(tensor.select(dim as isize, 0).is_err());
                return (tensor.clone(), list.clone());
            }
            let at = index % shape[dim];
            let mut new = shape.clone();
            new.remove(dim);
            let source = |index: &[usize]| [&index[..dim], &[at], &index[dim..]].concat();
            (
                tensor.select(dim as isize, at as isize - shape[dim] as isize).unwrap(),
                list.mapped(new, source),
            )
        }
        View::Squeeze(number) => {
            let dim = dim_of(number);
            let mut new = shape.clone();
            if new[dim] == 1 {
                new.remove(dim);
            }
            (
                tensor.squeeze(dim as isize).unwrap(),
                List { shape: new, values: list.values.clone() },
            )
        }
        View::Flip(number) => {
            let dim = dim_of(number);
            let source = |index: &[usize]| {
                let mut old = index.to_vec();
                old[dim] = shape[dim] - 1 - index[dim];
                old
            };
            (tensor.flip(dim as isize).unwrap(), list.mapped(shape.clone(), source))
        }
        View::Expand(number) => {
            let mut new = shape.clone();
            for size in new.iter_mut().filter(|size| **size == 1) {
                *size = number % 4;
            }
            new.insert(0, 2);
            let source = |index: &[usize]| {
                index[1..]
                    .iter()
                    .zip(&shape)
                    .map(|(i, size)| if *size == 1 { 0 } else { *i })
                    .collect()
            };
            (tensor.expand(&new).unwrap(), list.mapped(new.clone(), source))
        }
        View::Unfold(number, size, step) => {
            let dim = dim_of(number);
            let size = size % (shape[dim] + 1);
            let mut new = shape.clone();
            new[dim] = (shape[dim] - size) / step + 1;
            new.push(size);
            let source = |index: &[usize]| {
                let mut old = index[..n].to_vec();
                old[dim] = index[dim] * step + index[n];
                old
            };
            (tensor.unfold(dim as isize, size, step).unwrap(), list.mapped(new, source))
        }
        View::Split(number, factor) => {
            let dim = dim_of(number);
            let factor = 1 + factor % 4;
            if !shape[dim].is_multiple_of(factor) {
                return (tensor.clone(), list.clone());
            }
            let mut new = shape.clone();
            new.splice(dim..=dim, [factor, shape[dim] / factor]);
            (tensor.reshape(&new).unwrap(), List { shape: new, values: list.values.clone() })
        }
        View::Flatten | View::Unsqueeze(_) => unreachable!("done above"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chains_of_views_show_the_same_values_as_a_list(
        shape in prop::collection::vec(0usize..5, 0..4),
        chain in prop::collection::vec(views(), 0..7),
    ) {
        let values: Vec<i32> = (0..shape.iter().product::<usize>() as i32).collect();
        let mut tensor = Tensor::from_vec(values.clone(), &shape).unwrap();
        let mut meta = Tensor::meta(&shape, DType::I32).unwrap();
        let mut list = List { shape, values };
        for view in &chain {
            // Expanding again and again would take all day.
            if list.values.len() > 10_000 {
                break;
            }
            meta = apply(view, &meta, &List { values: list.values.clone(), ..list.clone() }).0;
            (tensor, list) = apply(view, &tensor, &list);
            prop_assert_eq!(tensor.shape(), &list.shape[..]);
            prop_assert_eq!(meta.shape(), &list.shape[..]);
            prop_assert_eq!(&tensor.to_vec::<i32>().unwrap(), &list.values, "{:?}", view);
            let whole = tensor.contiguous();
            prop_assert!(whole.is_contiguous());
            prop_assert_eq!(whole.as_slice::<i32>().unwrap(), &list.values[..]);
        }
        prop_assert!(meta.is_meta());
    }
}

#[test]
fn a_large_transposition_is_copied_right() {
    let (rows, columns) = (131, 77);
    let values: Vec<f64> = (0..rows * columns).map(f64::from).collect();
    let tensor = Tensor::from_vec(values, &[rows as usize, columns as usize]).unwrap();
    let turned = tensor.transpose(0, 1).unwrap().contiguous();
    for (position, value) in turned.as_slice::<f64>().unwrap().iter().enumerate() {
        let (column, row) = (position as i32 / rows, position as i32 % rows);
        assert_eq!(*value, f64::from(row * columns + column));
    }
}

#[test]
fn writing_in_place_is_seen_by_no_other_tensor() {
    let mut a = Tensor::from_slice(&[1_i64, 2, 3, 4], &[2, 2]).unwrap();
    let b = a.clone();
    let row = a.select(0, 1).unwrap();
    a.as_mut_slice::<i64>().unwrap().fill(9);
    assert_eq!(b.to_vec::<i64>().unwrap(), [1, 2, 3, 4]);
    assert_eq!(row.to_vec::<i64>().unwrap(), [3, 4]);
    let address = a.as_slice::<i64>().unwrap().as_ptr();
    a.as_mut_slice::<i64>().unwrap()[0] = 7;
    assert_eq!(a.as_slice::<i64>().unwrap().as_ptr(), address, "nobody else sees it: no copy");
    let mut turned = a.transpose(0, 1).unwrap();
    turned.as_mut_slice::<i64>().unwrap()[1] = 5;
    assert_eq!(turned.to_vec::<i64>().unwrap(), [7, 5, 9, 9]);
    assert_eq!(a.to_vec::<i64>().unwrap(), [7, 9, 9, 9]);
    let mut part =
        Tensor::from_vec(vec![true, false, true], &[3]).unwrap().narrow(0, 1, 2).unwrap();
    part.as_mut_slice::<bool>().unwrap()[0] = true;
    assert_eq!(part.to_vec::<bool>().unwrap(), [true, true]);
}

#[test]
fn a_vector_is_taken_over_without_a_copy() {
    let values = vec![1.0_f32; 1000];
    let address = values.as_ptr();
    let tensor = Tensor::from_vec(values, &[10, 100]).unwrap();
    assert_eq!(tensor.as_slice::<f32>().unwrap().as_ptr(), address);
}

#[test]
fn wrong_requests_say_what_and_how_to_mend_it() {
    let tensor = Tensor::zeros(&[2, 3], DType::F32).unwrap();
    let check = |error: LocalError, want: &str| assert_eq!(error.to_string(), want);
    check(
        Tensor::from_vec(vec![1_u8; 5], &[2, 3]).unwrap_err(),
        "from_vec: 5 values for shape [2, 3], which has 6",
    );
    check(
        tensor.select(2, 0).unwrap_err(),
        "select: dim 2 is out of range for shape [2, 3]; give -2..2",
    );
    check(
        tensor.select(1, -4).unwrap_err(),
        "select: index -4 is out of range for dim 1 of size 3",
    );
    check(
        tensor.narrow(1, 2, 2).unwrap_err(),
        "narrow: range 2..4 step 1 is not within dim 1 of size 3",
    );
    check(
        tensor.permute(&[0, 0]).unwrap_err(),
        "permute: [0, 0] is not an order of the 2 dims; name each once",
    );
    check(
        tensor.permute(&[0]).unwrap_err(),
        "permute: [0] is not an order of the 2 dims; name each once",
    );
    check(
        tensor.expand(&[4, 3]).unwrap_err(),
        "expand: shape [2, 3] does not fit shape [4, 3]: a dim of a size other than 1 keeps its size",
    );
    check(
        tensor.reshape(&[4]).unwrap_err(),
        "reshape: shape [2, 3] does not fit shape [4]: the numbers of elements differ",
    );
    check(tensor.to_vec::<i32>().unwrap_err(), "to_vec: the tensor is f32, not i32; cast it first");
    check(
        tensor.transpose(0, 1).unwrap().as_slice::<f32>().unwrap_err(),
        "as_slice: the elements of shape [3, 2] with strides [1, 3] are not consecutive; call contiguous() first",
    );
    check(
        Tensor::meta(&[2], DType::U8).unwrap().to_vec::<u8>().unwrap_err(),
        "to_vec: a meta tensor of shape [2] has no values; it is for shapes only",
    );
    check(
        Tensor::zeros(&[usize::MAX, 2], DType::U8).unwrap_err(),
        "zeros: shape [18446744073709551615, 2] of u8 is too large for memory",
    );
    assert!(tensor.slice(0, 0, 2, 0).is_err());
    assert!(tensor.unfold(0, 3, 1).is_err());
    assert!(tensor.item::<f32>().is_err());
    assert_eq!(tensor.unfold(0, 2, usize::MAX).unwrap().shape(), [1, 3, 2]);
}

#[test]
fn empty_and_single_tensors_are_ordinary_ones() {
    let empty = Tensor::zeros(&[0, 3], DType::Bf16).unwrap();
    assert_eq!((empty.numel(), empty.is_contiguous()), (0, true));
    assert_eq!(
        empty.transpose(0, 1).unwrap().flip(0).unwrap().reshape(&[7, 0]).unwrap().shape(),
        [7, 0]
    );
    let huge = Tensor::meta(&[usize::MAX, 0], DType::F64).unwrap();
    assert_eq!(huge.numel(), 0);
    let one = Tensor::scalar(2.5_f64);
    assert_eq!((one.shape().len(), one.item::<f64>().unwrap()), (0, 2.5));
    assert_eq!(one.expand(&[2, 2]).unwrap().to_vec::<f64>().unwrap(), [2.5; 4]);
    assert_eq!(Tensor::full(&[3], 7_i32).unwrap().to_vec::<i32>().unwrap(), [7; 3]);
}

#[test]
fn tensors_print_as_numpy_prints() {
    let print = |tensor: &Tensor| tensor.to_string();
    let a = Tensor::from_vec(vec![1.0_f32, -2.5, 10.0, 0.125], &[2, 2]).unwrap();
    assert_eq!(print(&a), "[[   1.,  -2.5],\n [  10., 0.125]] f32[2, 2]");
    assert_eq!(print(&Tensor::scalar(true)), "true bool[]");
    assert_eq!(print(&Tensor::zeros(&[0], DType::I64).unwrap()), "[] i64[0]");
    assert_eq!(print(&Tensor::meta(&[5], DType::F16).unwrap()), "f16[5] (meta)");
    let cube = Tensor::from_vec((0..8).collect::<Vec<i32>>(), &[2, 2, 2]).unwrap();
    assert_eq!(print(&cube), "[[[0, 1],\n  [2, 3]],\n\n [[4, 5],\n  [6, 7]]] i32[2, 2, 2]");
    let long = Tensor::from_vec((0..2000).collect::<Vec<i64>>(), &[2000]).unwrap();
    assert_eq!(print(&long), "[   0,    1,    2, ..., 1997, 1998, 1999] i64[2000]");
    let special = Tensor::from_vec(vec![f64::NAN, f64::INFINITY, 1e-9, 2e20], &[4]).unwrap();
    assert_eq!(print(&special), "[ NaN,  inf, 1e-9, 2e20] f64[4]");
}
