//! Joining, splitting and picking against plain loops.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

mod plain;

use dtensor_local::{DType, PadMode, Tensor};
use plain::{
    any_dtype, check, flat, index_tensor, indices, is_meta, laid, numbers, refuses, some_tensor,
};
use proptest::prelude::*;

/// A list of indices with its shape, or all of a dim.
type Entry = Option<(Vec<usize>, Vec<i64>)>;

/// For every element of `x[entries]`, in order, which element it is; and the shape.
fn picked(shape: &[usize], entries: &[Entry]) -> (Vec<usize>, Vec<usize>) {
    let indexed: Vec<usize> = (0..entries.len()).filter(|dim| entries[*dim].is_some()).collect();
    let lists: Vec<&(Vec<usize>, Vec<i64>)> = entries.iter().flatten().collect();
    let n_common = lists.iter().map(|(shape, _)| shape.len()).max().unwrap_or(0);
    let common: Vec<usize> = (0..n_common)
        .map(|dim| {
            let sizes = lists.iter().filter_map(|(shape, _)| {
                (dim + shape.len()).checked_sub(n_common).map(|own| shape[own])
            });
            // The size that is not 1, which may be 0.
            sizes.fold(1, |so_far, size| if size == 1 { so_far } else { size })
        })
        .collect();
    let neighbours = indexed.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    let n_before = if neighbours { indexed.first().copied().unwrap_or(0) } else { 0 };
    let others: Vec<usize> = (0..shape.len()).filter(|dim| !indexed.contains(dim)).collect();
    let (before, after) = others.split_at(n_before);
    let sizes = |dims: &[usize]| dims.iter().map(|dim| shape[*dim]).collect::<Vec<_>>();
    let result = [sizes(before), common.clone(), sizes(after)].concat();
    let elements = indices(&result)
        .into_iter()
        .map(|index| {
            let among = &index[n_before..n_before + n_common];
            let mut source = vec![0; shape.len()];
            for (place, dim) in others.iter().enumerate() {
                source[*dim] =
                    if place < n_before { index[place] } else { index[place + n_common] };
            }
            for (dim, (list_shape, list)) in indexed.iter().zip(&lists) {
                let own: Vec<usize> = among[n_common - list_shape.len()..]
                    .iter()
                    .zip(list_shape)
                    .map(|(i, size)| if *size == 1 { 0 } else { *i })
                    .collect();
                let number = list[flat(list_shape, &own)];
                source[*dim] =
                    if number < 0 { number + shape[*dim] as i64 } else { number } as usize;
            }
            flat(shape, &source)
        })
        .collect();
    (elements, result)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_split_and_joined_again_is_the_same(
        shape in prop::collection::vec(0usize..6, 1..4),
        dim in 0usize..3,
        parts in 1usize..5,
        kind in 0usize..5,
        dtype in any_dtype(),
    ) {
        let dim = (dim % shape.len()) as isize;
        let (tensor, values) = some_tensor(dtype, &shape, 3);
        let tensor = laid(&tensor, kind);
        let pieces = tensor.chunk(parts, dim).unwrap();
        prop_assert_eq!(pieces.len(), parts);
        let joined = Tensor::cat(&pieces.iter().collect::<Vec<_>>(), dim).unwrap();
        check(&joined, dtype, &shape, &values);
        let stacked = Tensor::stack(&[&tensor, &tensor], dim).unwrap();
        for one in [0, 1] {
            check(&stacked.select(dim, one).unwrap(), dtype, &shape, &values);
        }
    }

    #[test]
    fn picking_picks_what_the_index_names(
        shape in prop::collection::vec(0usize..6, 1..4),
        dim in 0usize..3,
        picks in prop::collection::vec(0usize..100, 0..7),
        shift in -10isize..10,
        (kind, short) in (0usize..5, any::<bool>()),
        dtype in any_dtype(),
    ) {
        let dim = dim % shape.len();
        let size = shape[dim];
        let (tensor, values) = some_tensor(dtype, &shape, 4);
        let tensor = laid(&tensor, kind);
        let picks: Vec<i64> = if size == 0 { vec![] } else {
            picks.iter().map(|pick| (pick % size) as i64).collect()
        };
        let of = |shape: &[usize], source: &dyn Fn(&[usize]) -> Vec<usize>, from: &[usize]| -> Vec<f64> {
            indices(shape).iter().map(|index| values[flat(from, &source(index))]).collect()
        };
        let mut selected = shape.clone();
        selected[dim] = picks.len();
        let list = index_tensor(&picks, &[picks.len()], short);
        let want = of(&selected, &|index| {
            let mut source = index.to_vec();
            source[dim] = picks[index[dim]] as usize;
            source
        }, &shape);
        check(&tensor.index_select(dim as isize, &list).unwrap(), dtype, &selected, &want);

        let want = of(&shape, &|index| {
            let mut source = index.to_vec();
            source[dim] = (index[dim] as isize - shift).rem_euclid(size as isize) as usize;
            source
        }, &shape);
        check(&tensor.roll(shift, dim as isize).unwrap(), dtype, &shape, &want);

        let mut smaller: Vec<usize> = shape.iter().map(|size| size.div_ceil(2)).collect();
        smaller[dim] = if size == 0 { 0 } else { 3 };
        let numbers: Vec<i64> =
            (0..smaller.iter().product::<usize>()).map(|i| (i * 7 % size) as i64).collect();
        let which = laid(&index_tensor(&numbers, &smaller, short), kind + 1);
        let want = of(&smaller, &|index| {
            let mut source = index.to_vec();
            source[dim] = numbers[flat(&smaller, index)] as usize;
            source
        }, &shape);
        check(&tensor.gather(dim as isize, &which).unwrap(), dtype, &smaller, &want);

        let n = values.len() as i64;
        let places: Vec<i64> = if n == 0 { vec![] } else { (0..6).map(|i| (i * 11) % (2 * n) - n).collect() };
        let want: Vec<f64> = places.iter().map(|place| values[place.rem_euclid(n.max(1)) as usize]).collect();
        let taken_shape = [places.len() / 2, 2];
        let taken = tensor.take(&index_tensor(&places, &taken_shape, short)).unwrap();
        check(&taken, dtype, &taken_shape, &want);
    }

    #[test]
    fn lists_of_indices_name_elements_together(
        shape in prop::collection::vec(1usize..5, 1..5),
        entries in prop::collection::vec(prop::option::weighted(0.6, 0usize..4), 0..5),
        (rows, columns) in (0usize..3, 1usize..4),
        seed in 0usize..50,
        (kind, other_kind, short) in (0usize..5, 0usize..5, any::<bool>()),
        dtype in any_dtype(),
        broadcast: bool,
    ) {
        // Lists of the forms that can be broadcast to rows x columns.
        let entries: Vec<Entry> = entries.iter().take(shape.len()).enumerate().map(|(dim, form)| {
            let list_shape = match (*form)? {
                0 => vec![],
                1 => vec![columns],
                2 => vec![rows, 1],
                _ => vec![rows, columns],
            };
            let size = shape[dim] as i64;
            let list = (0..list_shape.iter().product::<usize>())
                .map(|i| (i * 5 + seed + dim) as i64 % (2 * size) - size)
                .collect();
            Some((list_shape, list))
        }).collect();
        let lists: Vec<Option<Tensor>> = entries.iter().map(|entry| {
            entry.as_ref().map(|(shape, list)| laid(&index_tensor(list, shape, short), other_kind))
        }).collect();
        let lists: Vec<Option<&Tensor>> = lists.iter().map(Option::as_ref).collect();
        let (tensor, values) = some_tensor(dtype, &shape, seed);
        let tensor = laid(&tensor, kind);
        let (elements, result) = picked(&shape, &entries);
        let want: Vec<f64> = elements.iter().map(|element| values[*element]).collect();
        check(&tensor.index(&lists).unwrap(), dtype, &result, &want);

        // Written, and added up, at the same elements.
        let source_shape = if broadcast { &result[result.len().min(1)..] } else { &result };
        let (source, new) = some_tensor(dtype, source_shape, seed + 1);
        let new: Vec<f64> = indices(&result)
            .iter()
            .map(|index| new[flat(source_shape, &index[index.len() - source_shape.len()..])])
            .collect();
        let source = laid(&source, other_kind);
        let (mut put, mut sums) = (values.clone(), values);
        for (element, new) in elements.iter().zip(new) {
            put[*element] = new;
            sums[*element] += new;
        }
        check(&tensor.index_put(&lists, &source, false).unwrap(), dtype, &shape, &put);
        check(&tensor.index_put(&lists, &source, true).unwrap(), dtype, &shape, &sums);
    }

    #[test]
    fn a_mask_names_the_elements_where_it_is_true(
        shape in prop::collection::vec(0usize..5, 0..4),
        seed in 0usize..50,
        kind in 0usize..5,
        dtype in any_dtype(),
        broadcast: bool,
    ) {
        let (tensor, values) = some_tensor(dtype, &shape, seed);
        let tensor = laid(&tensor, kind);
        let mask_shape = if broadcast { &shape[shape.len().min(1)..] } else { &shape };
        let (mask, flags) = some_tensor(DType::U8, mask_shape, seed + 2);
        let mask = mask.rem_scalar(3).unwrap().to_dtype(DType::Bool).unwrap();
        let flags: Vec<bool> = indices(&shape)
            .iter()
            .map(|index| flags[flat(mask_shape, &index[index.len() - mask_shape.len()..])] % 3.0 != 0.0)
            .collect();
        let mask = laid(&mask, kind + 1);
        let places: Vec<usize> = (0..values.len()).filter(|i| flags[*i]).collect();
        let chosen: Vec<f64> = places.iter().map(|i| values[*i]).collect();
        check(&tensor.masked_select(&mask).unwrap(), dtype, &[places.len()], &chosen);

        let (source, new) = some_tensor(dtype, &[2, values.len()], seed + 1);
        let mut want = values.clone();
        for (place, new) in places.iter().zip(&new) {
            want[*place] = *new;
        }
        let source = laid(&source, kind);
        check(&tensor.masked_scatter(&mask, &source).unwrap(), dtype, &shape, &want);

        let found: Vec<f64> = indices(&shape)
            .iter()
            .filter(|index| values[flat(&shape, index)] != 0.0)
            .flatten()
            .map(|i| *i as f64)
            .collect();
        let count = values.iter().filter(|value| **value != 0.0).count();
        check(&tensor.nonzero().unwrap(), DType::I64, &[count, shape.len()], &found);

        // A mask in a list of indices stands for its dims.
        if !broadcast && !shape.is_empty() {
            check(&tensor.index(&[Some(&mask)]).unwrap(), dtype, &[places.len()], &chosen);
            let first = laid(&tensor.select(-1, 0).unwrap_or(tensor.clone()), 0);
            if shape.last() != Some(&0) && shape.len() > 1 {
                let column = mask.select(-1, 0).unwrap();
                let want = first.masked_select(&column).unwrap();
                let zero = Tensor::scalar(0_i64);
                let got = tensor.index(&[Some(&column), Some(&zero)]).unwrap();
                check(&got, dtype, want.shape(), &numbers(&want));
            }
        }
    }
}

#[test]
fn lists_for_dims_that_are_no_neighbours_come_first() {
    let (shape, list) = ([2, 3, 4, 5], vec![0_i64, -1]);
    let (tensor, values) = some_tensor(DType::I32, &shape, 6);
    let index = index_tensor(&list, &[2], false);
    let entry = || Some((vec![2], list.clone()));
    for (entries, want_shape) in [
        (vec![None, entry(), None, entry()], vec![2, 2, 4]),
        (vec![entry(), None, entry()], vec![2, 3, 5]),
        (vec![None, entry(), entry()], vec![2, 2, 5]),
        (vec![None, None, entry()], vec![2, 3, 2, 5]),
    ] {
        let lists: Vec<Option<&Tensor>> =
            entries.iter().map(|entry| entry.as_ref().map(|_| &index)).collect();
        let (elements, result) = picked(&shape, &entries);
        assert_eq!(result, want_shape);
        let want: Vec<f64> = elements.iter().map(|element| values[*element]).collect();
        check(&tensor.index(&lists).unwrap(), DType::I32, &want_shape, &want);
    }
}

#[test]
fn one_hot_has_one_one_per_row() {
    let hot = Tensor::from_vec(vec![1_i64, 0, 2], &[3]).unwrap().one_hot(3).unwrap();
    assert_eq!(hot.to_vec::<i64>().unwrap(), [0, 1, 0, 1, 0, 0, 0, 0, 1]);
}

#[test]
fn nan_is_not_zero_but_minus_zero_is() {
    let x = Tensor::from_vec(vec![f32::NAN, -0.0, 0.0, 1e-45], &[4]).unwrap();
    assert_eq!(x.nonzero().unwrap().to_vec::<i64>().unwrap(), [0, 3]);
    assert_eq!(Tensor::scalar(1.0_f32).nonzero().unwrap().shape(), [1, 0]);
    assert_eq!(Tensor::scalar(0.0_f32).nonzero().unwrap().shape(), [0, 0]);
}

#[test]
fn large_picks_are_shared_among_threads_and_right() {
    let (rows, columns) = (3000, 40);
    let values: Vec<i32> = (0..rows * columns).collect();
    let x = Tensor::from_vec(values, &[rows as usize, columns as usize]).unwrap();
    let picks: Vec<i64> = (0..5000).map(|i| (i * 17) % i64::from(rows)).collect();
    let list = Tensor::from_slice(&picks, &[picks.len()]).unwrap();
    let got = x.index_select(0, &list).unwrap().to_vec::<i32>().unwrap();
    let want: Vec<i32> =
        picks.iter().flat_map(|row| (0..columns).map(|c| *row as i32 * columns + c)).collect();
    assert_eq!(got, want);
    let joined = Tensor::cat(&[&x, &x.flip(0).unwrap()], 1).unwrap();
    assert_eq!(
        joined.narrow(1, 40, 40).unwrap().flip(0).unwrap().to_vec::<i32>().unwrap(),
        x.to_vec::<i32>().unwrap()
    );
}

#[test]
fn what_has_no_elements_costs_nothing_however_large_its_other_dims() {
    let large = 1 << 40;
    let empty = Tensor::zeros(&[large, 3, 0], DType::F32).unwrap();
    let list = Tensor::zeros(&[2], DType::I64).unwrap();
    assert_eq!(empty.index_select(1, &list).unwrap().shape(), [large, 2, 0]);
    assert_eq!(empty.index(&[None, Some(&list)]).unwrap().shape(), [large, 2, 0]);
    let which = Tensor::zeros(&[large, 1, 0], DType::I64).unwrap();
    assert_eq!(empty.gather(1, &which).unwrap().shape(), [large, 1, 0]);
    assert_eq!(empty.scatter_scalar(1, &which, 1).unwrap().shape(), [large, 3, 0]);
    let slices = Tensor::zeros(&[large, 2, 0], DType::F32).unwrap();
    assert_eq!(empty.index_add(1, &list, &slices, 1).unwrap().shape(), [large, 3, 0]);
    assert_eq!(empty.pad(&[0, 0, 1, 1], PadMode::Replicate).unwrap().shape(), [large, 5, 0]);
    assert_eq!(empty.tril(0).unwrap().shape(), [large, 3, 0]);
}

#[test]
fn meta_tensors_have_the_shapes_of_the_results() {
    let meta = Tensor::meta(&[4, 6], DType::F32).unwrap();
    let real = Tensor::zeros(&[4, 2], DType::F32).unwrap();
    let list = Tensor::zeros(&[5], DType::I64).unwrap();
    let which = Tensor::meta(&[1, 6], DType::I32).unwrap();
    let dtype = DType::F32;
    is_meta(Tensor::cat(&[&meta, &real], 1), dtype, &[4, 8]);
    is_meta(meta.index_select(1, &list), dtype, &[4, 5]);
    is_meta(meta.gather(0, &which), dtype, &[1, 6]);
    is_meta(real.take(&which), dtype, &[1, 6]);
    is_meta(meta.index(&[None, Some(&list)]), dtype, &[4, 5]);
    is_meta(real.index(&[Some(&which)]), dtype, &[1, 6, 2]);
    is_meta(meta.index_put(&[Some(&list)], &Tensor::scalar(1.0_f32), true), dtype, &[4, 6]);
    let mask = Tensor::meta(&[2, 4, 6], DType::Bool).unwrap();
    is_meta(meta.masked_scatter(&mask, &real), dtype, &[2, 4, 6]);
    // How many elements there are is not known.
    refuses(
        meta.masked_select(&mask),
        "masked_select: a meta tensor of shape [2, 4, 6] has no values; it is for shapes only",
    );
    refuses(
        meta.nonzero(),
        "nonzero: a meta tensor of shape [4, 6] has no values; it is for shapes only",
    );
}

#[test]
fn wrong_requests_say_what_and_how_to_mend_it() {
    let tensor = Tensor::zeros(&[2, 3], DType::F32).unwrap();
    refuses(Tensor::cat(&[], 0), "cat: the number of tensors is 0; give at least one");
    refuses(
        Tensor::cat(&[&tensor, &Tensor::zeros(&[2, 4], DType::F32).unwrap()], 0),
        "cat: shape [2, 4] does not fit shape [2, 3]: all sizes but that of the joined dim must be equal",
    );
    refuses(
        Tensor::cat(&[&tensor, &Tensor::zeros(&[2, 3], DType::I32).unwrap()], 0),
        "cat: the tensor is i32, not f32; cast it first",
    );
    let index = |value: i64| Tensor::from_vec(vec![value], &[1]).unwrap();
    refuses(
        tensor.index_select(1, &index(3)),
        "index_select: index 3 is out of range for dim 1 of size 3",
    );
    refuses(
        tensor.index_select(0, &index(-1)),
        "index_select: index -1 is out of range for dim 0 of size 2",
    );
    refuses(
        tensor.index_select(0, &Tensor::zeros(&[1], DType::F32).unwrap()),
        "index_select: the tensor is f32, not i64; cast it first",
    );
    refuses(index(7).one_hot(3), "one_hot: index 7 is out of range for dim 1 of size 3");
    refuses(tensor.take(&index(6)), "take: index 6 is out of range for dim 0 of size 6");
    refuses(tensor.take(&index(-7)), "take: index -7 is out of range for dim 0 of size 6");
    refuses(
        tensor.take(&index(i64::MIN)),
        "take: index -9223372036854775808 is out of range for dim 0 of size 6",
    );
    refuses(
        tensor.index(&[None, Some(&index(-4))]),
        "index: index -4 is out of range for dim 1 of size 3",
    );
    refuses(
        tensor.index(&[None, None, Some(&index(0))]),
        "index: the number of indices is 3; give at most one per dim",
    );
    let two = Tensor::zeros(&[2], DType::I64).unwrap();
    let three = Tensor::zeros(&[3], DType::I64).unwrap();
    refuses(
        tensor.index(&[Some(&two), Some(&three)]),
        "index: shape [3] does not fit shape [2]: dims, aligned at the last, must be equal or 1; expand or reshape one of them",
    );
    let mask = Tensor::zeros(&[3], DType::Bool).unwrap();
    refuses(
        tensor.index(&[Some(&mask)]),
        "index: shape [3] does not fit shape [2, 3]: a mask has the sizes of the dims that it stands for",
    );
    refuses(
        tensor.index_put(&[Some(&two)], &Tensor::zeros(&[4], DType::F32).unwrap(), false),
        "index_put: shape [4] does not fit shape [2, 3]: the values must have the shape of where they go, or be broadcast to it",
    );
    refuses(
        tensor.masked_select(&two),
        "masked_select: the tensor is i64, not bool; cast it first",
    );
    let truth = Tensor::ones(&[3], DType::Bool).unwrap();
    refuses(
        tensor.masked_scatter(&truth, &Tensor::zeros(&[5], DType::F32).unwrap()),
        "masked_scatter: 5 values for shape [2, 3], which has 6",
    );
    assert!(tensor.split(&[1, 2], 0).is_err());
    assert!(tensor.chunk(0, 0).is_err());
    assert!(Tensor::zeros(&[0], DType::I64).unwrap().one_hot(0).unwrap().numel() == 0);
    // An index into nothing is out of range; no index is not.
    let nothing = Tensor::zeros(&[0, 3], DType::F32).unwrap();
    assert!(nothing.index(&[Some(&two)]).is_err());
    let none = Tensor::zeros(&[0], DType::I64).unwrap();
    assert_eq!(nothing.index(&[Some(&none)]).unwrap().shape(), [0, 3]);
    assert!(tensor.index(&[Some(&Tensor::scalar(true))]).is_err());
}
