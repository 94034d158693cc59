//! Diagonals, triangles, repetition, padding and moved dims against plain loops.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

mod plain;

use dtensor_local::{DType, MeshIndexing, PadMode, Scalar, Tensor};
use plain::{any_dtype, check, flat, indices, is_meta, laid, numbers, refuses, some_tensor};
use proptest::prelude::*;

/// The values of a result whose element at each index is found by a loop.
fn values(shape: &[usize], value: impl Fn(&[usize]) -> f64) -> Vec<f64> {
    indices(shape).iter().map(|index| value(index)).collect()
}

/// Which element is beyond the end of a dim, if not a constant.
fn beyond(mode: PadMode, position: isize, size: isize) -> Option<isize> {
    match mode {
        PadMode::Reflect if position < 0 => Some(-position),
        PadMode::Reflect if position >= size => Some(2 * (size - 1) - position),
        PadMode::Replicate => Some(position.clamp(0, size - 1)),
        PadMode::Circular => Some(position.rem_euclid(size)),
        _ => (0..size).contains(&position).then_some(position),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn triangles_keep_one_side_of_a_diagonal(
        shape in prop::collection::vec(0usize..6, 2..5),
        diagonal in -7isize..8,
        kind in 0usize..5,
        dtype in any_dtype(),
    ) {
        let (x, before) = some_tensor(dtype, &shape, 1);
        let x = laid(&x, kind);
        let kept = |keep: &dyn Fn(isize) -> bool| values(&shape, |index| {
            let n = index.len();
            let right = index[n - 1] as isize - index[n - 2] as isize;
            if keep(right) { before[flat(&shape, index)] } else { 0.0 }
        });
        check(&x.tril(diagonal).unwrap(), dtype, &shape, &kept(&|right| right <= diagonal));
        check(&x.triu(diagonal).unwrap(), dtype, &shape, &kept(&|right| right >= diagonal));
    }

    #[test]
    fn a_diagonal_is_a_view_and_can_be_laid_out_again(
        shape in prop::collection::vec(0usize..6, 2..5),
        (a, b) in (0usize..4, 1usize..4),
        offset in -7isize..8,
        kind in 0usize..5,
        dtype in any_dtype(),
    ) {
        let (x, before) = some_tensor(dtype, &shape, 2);
        let x = laid(&x, kind);
        let n = shape.len();
        let (rows, columns) = (a % n, (a % n + 1 + b % (n - 1)) % n);
        let (down, right) = ((-offset).max(0) as usize, offset.max(0) as usize);
        let length = shape[rows].saturating_sub(down).min(shape[columns].saturating_sub(right));
        let others: Vec<usize> = (0..n).filter(|dim| *dim != rows && *dim != columns).collect();
        let mut want_shape: Vec<usize> = others.iter().map(|dim| shape[*dim]).collect();
        want_shape.push(length);
        let want = values(&want_shape, |index| {
            let mut source = vec![0; n];
            for (dim, i) in others.iter().zip(index) {
                source[*dim] = *i;
            }
            (source[rows], source[columns]) = (index[n - 2] + down, index[n - 2] + right);
            before[flat(&shape, &source)]
        });
        let (rows, columns) = (rows as isize, columns as isize - n as isize);
        let diagonal = x.diagonal(offset, rows, columns).unwrap();
        check(&diagonal, dtype, &want_shape, &want);
        let embedded = diagonal.diag_embed(offset, rows, columns).unwrap();
        prop_assert_eq!(embedded.n_dims(), n);
        check(&embedded.diagonal(offset, rows, columns).unwrap(), dtype, &want_shape, &want);
        // And nothing anywhere else.
        let count = |values: Vec<f64>| values.iter().filter(|value| **value != 0.0).count();
        prop_assert_eq!(count(numbers(&embedded)), count(want));
        let size = length + down + right;
        prop_assert_eq!(embedded.select(rows, 0).ok().map(|row| row.shape().contains(&size)), (size > 0).then_some(true));
    }

    #[test]
    fn repeated_values_are_those_of_the_index_modulo_or_divided(
        shape in prop::collection::vec(0usize..4, 0..4),
        repeats in prop::collection::vec(0usize..4, 4),
        (new, dim) in (0usize..2, 0usize..3),
        kind in 0usize..5,
        dtype in any_dtype(),
    ) {
        let (x, before) = some_tensor(dtype, &shape, 3);
        let x = laid(&x, kind);
        let repeats = &repeats[..(shape.len() + new).min(4)];
        let new = repeats.len() - shape.len();
        let full: Vec<usize> = vec![1; new].into_iter().chain(shape.iter().copied()).collect();
        let tiled: Vec<usize> = full.iter().zip(repeats).map(|(a, b)| a * b).collect();
        let want = values(&tiled, |index| {
            let source: Vec<usize> = index.iter().zip(&full).map(|(i, size)| i % size).collect();
            before[flat(&full, &source)]
        });
        check(&x.repeat(repeats).unwrap(), dtype, &tiled, &want);
        check(&x.tile(repeats).unwrap(), dtype, &tiled, &want);
        if let Some((last, first)) = shape.split_last() {
            let twice: Vec<usize> = first.iter().copied().chain([last * 2]).collect();
            let want = values(&twice, |index| {
                let (at, rest) = index.split_last().unwrap();
                before[flat(&shape, &[rest, &[at % last]].concat())]
            });
            check(&x.tile(&[2]).unwrap(), dtype, &twice, &want);

            let (dim, count) = (dim % shape.len(), repeats[0]);
            let mut longer = shape.clone();
            longer[dim] *= count;
            let want = values(&longer, |index| {
                let mut source = index.to_vec();
                source[dim] /= count;
                before[flat(&shape, &source)]
            });
            check(&x.repeat_interleave(count, Some(dim as isize)).unwrap(), dtype, &longer, &want);
            let one = Tensor::scalar(count as i64);
            let by_tensor = x.repeat_interleave_tensor(&one, Some(dim as isize)).unwrap();
            check(&by_tensor, dtype, &longer, &want);

            let numbers: Vec<i32> = (0..shape[dim] as i32).map(|i| (i * 2 + 1) % 4).collect();
            let sources: Vec<usize> = (0..shape[dim])
                .flat_map(|i| std::iter::repeat_n(i, numbers[i] as usize))
                .collect();
            longer[dim] = sources.len();
            let want = values(&longer, |index| {
                let mut source = index.to_vec();
                source[dim] = sources[index[dim]];
                before[flat(&shape, &source)]
            });
            let numbers = Tensor::from_vec(numbers, &[shape[dim]]).unwrap();
            let got = x.repeat_interleave_tensor(&numbers, Some(dim as isize - shape.len() as isize));
            check(&got.unwrap(), dtype, &longer, &want);
        }
        let line: Vec<f64> = before.iter().flat_map(|value| [*value, *value]).collect();
        check(&x.repeat_interleave(2, None).unwrap(), dtype, &[line.len()], &line);
    }

    #[test]
    fn padding_looks_beyond_the_ends_of_a_dim(
        sizes in prop::collection::vec((1usize..6, -3isize..7, -3isize..7), 0..4),
        n_pairs in 0usize..4,
        mode in prop::sample::select(vec![
            PadMode::Constant(Scalar::Int(1)), PadMode::Reflect, PadMode::Replicate, PadMode::Circular,
        ]),
        kind in 0usize..5,
        dtype in any_dtype(),
    ) {
        let shape: Vec<usize> = sizes.iter().map(|(size, _, _)| *size).collect();
        let first_padded = sizes.len().saturating_sub(n_pairs);
        let mut pads: Vec<(isize, isize)> = sizes
            .iter()
            .map(|(size, before, after)| {
                let (size, cut) = (*size as isize, (-before).max(0) + (-after).max(0));
                let most = match mode {
                    PadMode::Reflect => size - 1,
                    PadMode::Circular => size - cut,
                    _ => 7,
                };
                if cut > size { (0, 0) } else { ((*before).min(most), (*after).min(most)) }
            })
            .collect();
        pads[..first_padded].fill((0, 0));
        let list: Vec<isize> =
            pads[first_padded..].iter().rev().flat_map(|(before, after)| [*before, *after]).collect();
        let (x, values_before) = some_tensor(dtype, &shape, 4);
        let want_shape: Vec<usize> = shape
            .iter()
            .zip(&pads)
            .map(|(size, (before, after))| (*size as isize + before + after) as usize)
            .collect();
        let want = values(&want_shape, |index| {
            let mut source = Vec::new();
            for (dim, i) in index.iter().enumerate() {
                let (before, after) = pads[dim];
                let (size, mut position) = (shape[dim] as isize, *i as isize - before);
                // Circular padding goes around what is left; the others know all of the dim.
                let found = if mode == PadMode::Circular {
                    let first = (-before).max(0);
                    position -= first;
                    beyond(mode, position, size - first - (-after).max(0)).map(|found| found + first)
                } else {
                    beyond(mode, position, size)
                };
                match found {
                    Some(found) => source.push(found as usize),
                    None => return 1.0,
                }
            }
            values_before[flat(&shape, &source)]
        });
        check(&laid(&x, kind).pad(&list, mode).unwrap(), dtype, &want_shape, &want);
        is_meta(Tensor::meta(&shape, dtype).unwrap().pad(&list, mode), dtype, &want_shape);
    }

    #[test]
    fn turning_four_times_is_nothing_and_moving_back_too(
        shape in prop::collection::vec(0usize..5, 2..5),
        (a, b, k) in (0usize..4, 1usize..4, -9isize..9),
        kind in 0usize..5,
    ) {
        let dtype = DType::I32;
        let (x, before) = some_tensor(dtype, &shape, 5);
        let x = laid(&x, kind);
        let n = shape.len();
        let (first, second) = (a % n, (a % n + 1 + b % (n - 1)) % n);
        let dims = [first as isize, second as isize - n as isize];
        let mut turned_shape = shape.clone();
        turned_shape.swap(first, second);
        // One turn: the last column comes to the first row.
        let want = values(&turned_shape, |index| {
            let mut source = index.to_vec();
            source[second] = shape[second] - 1 - index[first];
            source[first] = index[second];
            before[flat(&shape, &source)]
        });
        let once = x.rot90(1, dims).unwrap();
        check(&once, dtype, &turned_shape, &want);
        let back = x.rot90(k, dims).unwrap().rot90(-k, dims).unwrap();
        check(&back, dtype, &shape, &before);
        let twice = once.rot90(1, dims).unwrap();
        check(&x.rot90(2, dims).unwrap(), dtype, &shape, &numbers(&twice));
        check(&x.rot90(-1, dims).unwrap(), dtype, &turned_shape, &numbers(&twice.rot90(1, dims).unwrap()));

        let moved = x.movedim(&[dims[0], dims[1]], &[1, 0]).unwrap();
        let others: Vec<usize> = (0..n).filter(|dim| *dim != first && *dim != second).collect();
        let order: Vec<isize> = [second, first].into_iter().chain(others).map(|dim| dim as isize).collect();
        let want = x.permute(&order).unwrap();
        check(&moved, dtype, want.shape(), &numbers(&want));
        check(&moved.movedim(&[1, 0], &[dims[0], dims[1]]).unwrap(), dtype, &shape, &before);
    }

    #[test]
    fn a_kronecker_product_has_a_block_per_element(
        a_shape in prop::collection::vec(0usize..4, 0..4),
        b_shape in prop::collection::vec(0usize..4, 0..4),
        kind in 0usize..5,
    ) {
        let ((a, a_values), (b, b_values)) =
            (some_tensor(DType::I64, &a_shape, 1), some_tensor(DType::I64, &b_shape, 2));
        let n = a_shape.len().max(b_shape.len());
        let wide = |shape: &[usize]| [vec![1; n - shape.len()], shape.to_vec()].concat();
        let (a_wide, b_wide) = (wide(&a_shape), wide(&b_shape));
        let shape: Vec<usize> = a_wide.iter().zip(&b_wide).map(|(a, b)| a * b).collect();
        let want = values(&shape, |index| {
            let block: Vec<usize> = index.iter().zip(&b_wide).map(|(i, size)| i / size).collect();
            let within: Vec<usize> = index.iter().zip(&b_wide).map(|(i, size)| i % size).collect();
            a_values[flat(&a_wide, &block)] * b_values[flat(&b_wide, &within)]
        });
        check(&laid(&a, kind).kron(&laid(&b, kind + 1)).unwrap(), DType::I64, &shape, &want);
    }
}

#[test]
fn a_diagonal_shares_the_memory() {
    let x = Tensor::from_vec((0..12).collect::<Vec<i32>>(), &[3, 4]).unwrap();
    assert_eq!(x.diagonal(1, 0, 1).unwrap().strides(), [5]);
    assert_eq!(x.flip(0).unwrap().diagonal(0, 0, 1).unwrap().to_vec::<i32>().unwrap(), [8, 5, 2]);
    assert_eq!(
        x.expand(&[2, 3, 4]).unwrap().diagonal(-2, 1, 2).unwrap().to_vec::<i32>().unwrap(),
        [8, 8]
    );
    assert_eq!(x.diagonal(-9, 0, 1).unwrap().shape(), [0]);
    assert_eq!(x.diagonal(isize::MIN, 0, 1).unwrap().shape(), [0]);
}

#[test]
fn diag_goes_both_ways_and_trace_sums() {
    let line = Tensor::from_vec(vec![1_i32, 2], &[2]).unwrap();
    let matrix = line.diag(-1).unwrap();
    assert_eq!(matrix.to_vec::<i32>().unwrap(), [0, 0, 0, 1, 0, 0, 0, 2, 0]);
    assert_eq!(matrix.diag(-1).unwrap().to_vec::<i32>().unwrap(), [1, 2]);
    assert_eq!(Tensor::zeros(&[0], DType::F32).unwrap().diag(2).unwrap().shape(), [2, 2]);
    assert_eq!(line.diag(0).unwrap().trace().unwrap().item::<i64>().unwrap(), 3);
    let empty = Tensor::zeros(&[0, 3], DType::F32).unwrap();
    assert_eq!(empty.trace().unwrap().item::<f32>().unwrap(), 0.0);
    // Nothing to lay out, however far from the main diagonal.
    let nothing = Tensor::zeros(&[0, 2], DType::F32).unwrap();
    assert_eq!(nothing.diag_embed(1 << 20, -2, -1).unwrap().numel(), 0);
    let shape = Tensor::ones(&[4, 2], DType::U8).unwrap().diag_embed(1, 0, 2).unwrap();
    assert_eq!(shape.shape(), [3, 4, 3]);
}

#[test]
fn meshgrids_vary_along_their_own_dim() {
    let line = |n: usize| Tensor::arange(0, n as i64, 1, DType::I64).unwrap();
    let (a, b, c) = (line(2), line(3), line(4));
    for (indexing, shape, places) in
        [(MeshIndexing::Ij, [2, 3, 4], [0, 1, 2]), (MeshIndexing::Xy, [3, 2, 4], [1, 0, 2])]
    {
        let grids = Tensor::meshgrid(&[&a, &b, &c], indexing).unwrap();
        for (grid, place) in grids.iter().zip(places) {
            check(grid, DType::I64, &shape, &values(&shape, |index| index[place] as f64));
        }
    }
    let one = Tensor::meshgrid(&[&a], MeshIndexing::Xy).unwrap();
    assert_eq!(one[0].shape(), [2]);
    let with_scalar = Tensor::meshgrid(&[&Tensor::scalar(1_i64), &b], MeshIndexing::Xy).unwrap();
    assert!(with_scalar.iter().all(|grid| grid.shape() == [3, 1]));
    assert!(Tensor::meshgrid(&[], MeshIndexing::Ij).unwrap().is_empty());
    assert!(Tensor::meshgrid(&[&a, &Tensor::scalar(1_i32)], MeshIndexing::Ij).is_err());
    assert!(
        Tensor::meshgrid(&[&Tensor::zeros(&[2, 2], DType::I64).unwrap()], MeshIndexing::Ij)
            .is_err()
    );
}

#[test]
fn negative_paddings_are_those_of_pytorch() {
    let line = Tensor::arange(0, 5, 1, DType::F32).unwrap();
    for (pads, mode, want) in [
        ([-1, 3], PadMode::Reflect, vec![1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0]),
        ([-2, 3], PadMode::Replicate, vec![2.0, 3.0, 4.0, 4.0, 4.0, 4.0]),
        ([2, -3], PadMode::Replicate, vec![0.0, 0.0, 0.0, 1.0]),
        ([-1, 3], PadMode::Circular, vec![1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0]),
        ([-2, 1], PadMode::Constant(9.into()), vec![2.0, 3.0, 4.0, 9.0]),
    ] {
        check(&line.pad(&pads, mode).unwrap(), DType::F32, &[want.len()], &want);
    }
    // A constant is cut to the dtype.
    let ints = Tensor::arange(0, 2, 1, DType::I64).unwrap();
    let padded = ints.pad(&[1, 1], PadMode::Constant(2.5.into())).unwrap();
    assert_eq!(padded.to_vec::<i64>().unwrap(), [2, 0, 1, 2]);
}

#[test]
fn padding_an_empty_dim_needs_a_constant() {
    let empty = Tensor::zeros(&[2, 0], DType::F32).unwrap();
    let padded = empty.pad(&[1, 1], PadMode::Constant(7.0.into())).unwrap();
    check(&padded, DType::F32, &[2, 2], &[7.0; 4]);
    for mode in [PadMode::Reflect, PadMode::Replicate, PadMode::Circular] {
        assert!(empty.pad(&[1, 0], mode).is_err());
        assert_eq!(empty.pad(&[0, 0, 0, 1], mode).unwrap().shape(), [3, 0]);
        let line = Tensor::ones(&[2, 3], DType::F32).unwrap();
        assert_eq!(line.pad(&[-1, -2], mode).unwrap().shape(), [2, 0]);
    }
}

#[test]
fn meta_tensors_have_the_shapes_of_the_results() {
    let dtype = DType::F16;
    let x = Tensor::meta(&[2, 3, 3], dtype).unwrap();
    is_meta(x.tril(0), dtype, &[2, 3, 3]);
    is_meta(x.triu(-1), dtype, &[2, 3, 3]);
    is_meta(x.diagonal(1, 1, 2), dtype, &[2, 2]);
    is_meta(x.diag_embed(-1, 0, 1), dtype, &[4, 4, 2, 3]);
    is_meta(x.select(0, 0).unwrap().trace(), dtype, &[]);
    is_meta(x.repeat(&[2, 1, 1, 3]), dtype, &[2, 2, 3, 9]);
    is_meta(x.repeat_interleave(4, Some(1)), dtype, &[2, 12, 3]);
    is_meta(x.repeat_interleave_tensor(&Tensor::scalar(4_i64), None), dtype, &[72]);
    is_meta(x.rot90(1, [0, 2]), dtype, &[3, 3, 2]);
    is_meta(x.kron(&Tensor::ones(&[2, 2], dtype).unwrap()), dtype, &[2, 6, 6]);
    refuses(
        x.repeat_interleave_tensor(&Tensor::meta(&[3], DType::I64).unwrap(), Some(1)),
        "repeat_interleave_tensor: a meta tensor of shape [3] has no values; it is for shapes only",
    );
}

#[test]
fn wrong_requests_say_what_and_how_to_mend_it() {
    let x = Tensor::zeros(&[2, 3], DType::F32).unwrap();
    let line = x.select(0, 0).unwrap();
    refuses(line.tril(0), "tril: the number of dims is 1; give at least 2");
    refuses(x.diagonal(0, 1, -1), "diagonal: dim -1 is named twice in [1, -1]; name each once");
    refuses(
        Tensor::scalar(1.0_f32).diag_embed(0, -2, -1),
        "diag_embed: dim -2 is out of range for shape [0]; give -1..1",
    );
    refuses(
        x.unsqueeze(0).unwrap().diag(0),
        "diag: the number of dims is 3; give 1 or 2, or use diagonal or diag_embed",
    );
    refuses(line.trace(), "trace: the number of dims is 1; give 2, or sum a diagonal");
    refuses(
        x.repeat(&[2]),
        "repeat: shape [2, 3] does not fit shape [2]: there are fewer numbers of repeats than dims; give one for each, or use tile",
    );
    assert!(x.repeat(&[usize::MAX, 2]).is_err());
    assert!(x.repeat_interleave(usize::MAX, Some(0)).is_err());
    let minus = Tensor::from_vec(vec![1_i64, -1], &[2]).unwrap();
    refuses(
        x.repeat_interleave_tensor(&minus, Some(0)),
        "repeat_interleave_tensor: a number of repeats is -1; give zero or more",
    );
    refuses(
        x.repeat_interleave_tensor(&minus, Some(1)),
        "repeat_interleave_tensor: shape [2] does not fit shape [3]: there is one number of repeats per slice, or one for all",
    );
    let huge = Tensor::from_vec(vec![i64::MAX, i64::MAX], &[2]).unwrap();
    assert!(x.repeat_interleave_tensor(&huge, Some(0)).is_err());
    refuses(
        x.pad(&[1], PadMode::Reflect),
        "pad: the number of paddings is 1; give a pair per dim, or fewer pairs",
    );
    refuses(
        x.pad(&[3, 0], PadMode::Reflect),
        "pad: a padding is [3, 0] for a dim of size 3; give less than the size of the dim",
    );
    refuses(
        x.pad(&[-3, -1], PadMode::Replicate),
        "pad: a negative padding is [-3, -1] for a dim of size 3; give no more than there are elements to take away",
    );
    refuses(
        x.pad(&[-2, 2], PadMode::Circular),
        "pad: a padding is [-2, 2] for a dim of size 3; give at most what is left of the dim",
    );
    assert!(x.pad(&[isize::MAX, isize::MAX], PadMode::Constant(0.into())).is_err());
    assert!(x.pad(&[isize::MIN, 0], PadMode::Constant(0.into())).is_err());
    assert!(x.pad(&[isize::MAX, 0], PadMode::Replicate).is_err());
    refuses(
        x.movedim(&[0, 1], &[0]),
        "movedim: the number of destinations is 1; give one for each dim that is moved",
    );
    refuses(
        x.movedim(&[0, -2], &[0, 1]),
        "movedim: dim -2 is named twice in [0, -2]; name each once",
    );
    refuses(x.rot90(1, [0, 0]), "rot90: dim 0 is named twice in [0, 0]; name each once");
}
