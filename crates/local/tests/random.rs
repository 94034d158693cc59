//! The generator against Random123's known answers; shards against the whole; moments of distributions.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

use std::ops::Range;

use dtensor_local::{
    DType, LocalError, Tensor,
    random::{Distribution, Stream, philox4x32_10},
};
use proptest::prelude::*;

/// From `kat_vectors` of the Random123 library.
#[test]
fn philox_gives_the_known_answers_of_random123() {
    for (counter, key, want) in [
        ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
        ([u32::MAX; 4], [u32::MAX; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
        (
            [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
            [0xa4093822, 0x299f31d0],
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
        ),
    ] {
        assert_eq!(philox4x32_10(counter, key), want);
    }
}

const STREAM: Stream = Stream { seed: 0x0123_4567_89ab_cdef, offset: 5 };
const DISTRIBUTIONS: [(Distribution, DType); 25] = [
    (Distribution::Uniform { low: -1.0, high: 3.0 }, DType::F32),
    (Distribution::Uniform { low: -1.0, high: 3.0 }, DType::F64),
    (Distribution::Normal { mean: 0.5, std: 2.0 }, DType::F32),
    (Distribution::Normal { mean: 0.5, std: 2.0 }, DType::F64),
    (Distribution::Normal { mean: 0.5, std: 2.0 }, DType::Bf16),
    (Distribution::Uniform { low: 0.0, high: 1.0 }, DType::F16),
    (Distribution::Bernoulli { probability: 0.3 }, DType::Bool),
    (Distribution::Randint { low: -5, high: 9 }, DType::I64),
    (Distribution::Randint { low: -5, high: 9 }, DType::I32),
    (Distribution::Randint { low: 0, high: 256 }, DType::U8),
    (Distribution::Exponential { rate: 2.0 }, DType::F32),
    (Distribution::Exponential { rate: 2.0 }, DType::F64),
    (Distribution::Exponential { rate: 2.0 }, DType::F16),
    (Distribution::Keys, DType::I64),
    (Distribution::Randint { low: -5, high: 9 }, DType::F32),
    (Distribution::Randint { low: -5, high: 9 }, DType::F64),
    (Distribution::Randint { low: 0, high: 2 }, DType::Bool),
    (Distribution::LogNormal { mean: 0.5, std: 0.25 }, DType::F32),
    (Distribution::LogNormal { mean: 0.5, std: 0.25 }, DType::F64),
    (Distribution::Cauchy { median: 1.0, sigma: 2.0 }, DType::F32),
    (Distribution::Cauchy { median: 1.0, sigma: 2.0 }, DType::F64),
    (Distribution::Cauchy { median: 1.0, sigma: 2.0 }, DType::Bf16),
    (Distribution::Geometric { probability: 0.25 }, DType::F16),
    (Distribution::Geometric { probability: 0.25 }, DType::F64),
    (Distribution::Geometric { probability: 0.25 }, DType::I32),
];

#[test]
fn elements_are_the_lanes_of_the_blocks_of_their_index() {
    let got =
        Tensor::random(&[10], DType::F32, Distribution::Uniform { low: 0.0, high: 1.0 }, STREAM);
    let want: Vec<f32> = (0..10u32)
        .map(|i| {
            let bits = philox4x32_10([i / 4, 0, 5, 0], [0x89ab_cdef, 0x0123_4567])[i as usize % 4];
            (bits >> 8) as f32 / (1 << 24) as f32
        })
        .collect();
    assert_eq!(got.unwrap().to_vec::<f32>().unwrap(), want);
}

/// Both tensors as text, which is equal only if all values are.
#[track_caller]
fn check_equal(got: &Tensor, want: &Tensor) {
    assert_eq!((got.shape(), got.dtype()), (want.shape(), want.dtype()));
    macro_rules! same {
        ($($dtype:ident $T:ty),*) => {
            match got.dtype() {
                $(DType::$dtype => assert_eq!(got.to_vec::<$T>().unwrap(), want.to_vec::<$T>().unwrap()),)*
            }
        };
    }
    same!(F32 f32, F64 f64, Bf16 dtensor_local::bf16, F16 dtensor_local::f16, I64 i64, I32 i32, U8 u8, Bool bool);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_shard_of_any_boxes_is_the_part_of_the_whole(
        shape in prop::collection::vec(1usize..9, 1..4),
        cuts in prop::collection::vec(prop::collection::vec(0usize..9, 4), 3),
        which in 0usize..DISTRIBUTIONS.len(),
    ) {
        let (distribution, dtype) = DISTRIBUTIONS[which];
        let whole = Tensor::random(&shape, dtype, distribution, STREAM).unwrap();
        // Two ranges per dim, apart from each other; the boxes are their combinations.
        let ranges: Vec<Vec<Range<usize>>> = shape.iter().zip(&cuts).map(|(size, cuts)| {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (size + 1)).collect();
            cuts.sort_unstable();
            let ranges = vec![cuts[0]..cuts[1], cuts[2]..cuts[3]];
            if ranges[0] == ranges[1] { vec![ranges[0].clone()] } else { ranges }
        }).collect();
        let boxes = ranges.iter().fold(vec![vec![]], |boxes: Vec<Vec<Range<usize>>>, ranges| {
            boxes.iter().flat_map(|b| ranges.iter().map(|r| [b.clone(), vec![r.clone()]].concat())).collect()
        });
        let local: Vec<usize> = ranges.iter().map(|r| r.iter().map(Range::len).sum()).collect();
        let shard = Tensor::random_shard(&local, dtype, distribution, STREAM, &shape, &boxes).unwrap();
        prop_assert_eq!(shard.shape(), &local);
        for index_box in boxes {
            let (mut part, mut want) = (shard.clone(), whole.clone());
            for (dim, range) in index_box.iter().enumerate() {
                let before: usize = ranges[dim].iter().take_while(|r| *r != range).map(Range::len).sum();
                part = part.narrow(dim as isize, before, range.len()).unwrap();
                want = want.narrow(dim as isize, range.start, range.len()).unwrap();
            }
            check_equal(&part, &want);
        }
    }
}

#[test]
fn large_fills_do_not_depend_on_where_threads_or_runs_begin() {
    for (distribution, dtype) in DISTRIBUTIONS {
        let whole = Tensor::random(&[50_001], dtype, distribution, STREAM).unwrap();
        for start in [1, 2, 3, 17_003] {
            let range = start..50_001;
            let part = Tensor::random_shard(
                &[range.len()],
                dtype,
                distribution,
                STREAM,
                &[50_001],
                &[vec![range.clone()]],
            );
            check_equal(&part.unwrap(), &whole.narrow(0, start, range.len()).unwrap());
        }
    }
}

#[test]
fn distributions_have_their_moments_and_stay_in_their_ranges() {
    const N: usize = 200_000;
    let draw = |distribution, dtype| Tensor::random(&[N], dtype, distribution, STREAM).unwrap();
    let floats = |distribution, dtype| -> Vec<f64> {
        let drawn = draw(distribution, dtype);
        if dtype == DType::F64 {
            return drawn.to_vec::<f64>().unwrap();
        }
        drawn.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect()
    };
    let moment = |values: &[f64], mean: f64, power: i32| {
        values.iter().map(|x| (x - mean).powi(power)).sum::<f64>() / N as f64
    };
    // Five standard deviations of the estimates; the draw is fixed, so this passes always or never.
    for dtype in [DType::F32, DType::F64] {
        let x = floats(Distribution::Normal { mean: 0.5, std: 2.0 }, dtype);
        assert!((moment(&x, 0.0, 1) - 0.5).abs() < 0.023, "{dtype}");
        assert!((moment(&x, 0.5, 2) - 4.0).abs() < 0.064, "{dtype}");
        assert!((moment(&x, 0.5, 4) / 16.0 - 3.0).abs() < 0.11, "{dtype}");
        // Neighbours come from one pair; they must not be related.
        let product: f64 =
            x.chunks(2).map(|p| (p[0] - 0.5) * (p[1] - 0.5)).sum::<f64>() / (N / 2) as f64;
        assert!(product.abs() < 0.064, "{dtype}: {product}");
        let x = floats(Distribution::Exponential { rate: 2.0 }, dtype);
        assert!(x.iter().all(|x| *x > 0.0 && *x < 20.0));
        assert!(
            (moment(&x, 0.0, 1) - 0.5).abs() < 0.0056 && (moment(&x, 0.5, 2) - 0.25).abs() < 0.0080,
            "{dtype}"
        );
        let x = floats(Distribution::Uniform { low: -1.0, high: 3.0 }, dtype);
        assert!(x.iter().all(|x| (-1.0..3.0).contains(x)));
        assert!(
            (moment(&x, 0.0, 1) - 1.0).abs() < 0.013
                && (moment(&x, 1.0, 2) - 16.0 / 12.0).abs() < 0.014
        );
    }
    let share = |values: &[f64], is: &dyn Fn(f64) -> bool| {
        values.iter().filter(|x| is(**x)).count() as f64 / N as f64
    };
    for dtype in [DType::F32, DType::F64] {
        let x = floats(Distribution::LogNormal { mean: 0.5, std: 0.25 }, dtype);
        let logs: Vec<f64> = x.iter().map(|x| x.ln()).collect();
        assert!((moment(&logs, 0.0, 1) - 0.5).abs() < 0.0028, "{dtype}");
        assert!((moment(&logs, 0.5, 2) - 0.0625).abs() < 0.001, "{dtype}");
        // It has no moments, but quartiles.
        let x = floats(Distribution::Cauchy { median: 1.0, sigma: 2.0 }, dtype);
        assert!(x.iter().all(|x| x.is_finite()));
        for (end, want) in [(-1.0, 0.25), (1.0, 0.5), (3.0, 0.75)] {
            assert!((share(&x, &|x| x < end) - want).abs() < 0.0056, "{dtype} {end}");
        }
        let x = floats(Distribution::Geometric { probability: 0.25 }, dtype);
        assert!(x.iter().all(|x| *x >= 1.0 && x.fract() == 0.0));
        assert!((moment(&x, 0.0, 1) - 4.0).abs() < 0.039, "{dtype}");
        for (n, want) in [(1.0, 0.25), (2.0, 0.1875), (3.0, 0.140_625)] {
            assert!((share(&x, &|x| x == n) - want).abs() < 0.0049, "{dtype} {n}");
        }
    }
    let rare = Distribution::Geometric { probability: 1e-6 };
    assert!(
        draw(rare, DType::U8).to_vec::<u8>().unwrap().iter().filter(|n| **n < 255).count() < 200
    );
    let ones =
        draw(Distribution::Bernoulli { probability: 0.3 }, DType::Bool).to_vec::<bool>().unwrap();
    assert!((ones.iter().filter(|x| **x).count() as f64 / N as f64 - 0.3).abs() < 0.0052);
    for (probability, want) in [(0.0, false), (1.0, true)] {
        let all =
            draw(Distribution::Bernoulli { probability }, DType::Bool).to_vec::<bool>().unwrap();
        assert!(all.iter().all(|x| *x == want));
    }
    let faces =
        draw(Distribution::Randint { low: -2, high: 5 }, DType::I64).to_vec::<i64>().unwrap();
    for face in -2..5 {
        let part = faces.iter().filter(|x| **x == face).count() as f64 / N as f64;
        assert!((part - 1.0 / 7.0).abs() < 0.004, "{face}: {part}");
    }
    assert!(faces.iter().all(|face| (-2..5).contains(face)));
    let wide = Distribution::Randint { low: i64::MIN, high: i64::MAX };
    assert!(draw(wide, DType::I64).to_vec::<i64>().unwrap().iter().any(|x| *x < i64::MIN / 2));
}

#[test]
fn a_permutation_has_every_number_once_and_no_favourite_place() {
    let draw = |n, offset| {
        let stream = Stream { offset, ..STREAM };
        Tensor::random_permutation(n, stream).unwrap().to_vec::<i64>().unwrap()
    };
    for n in [0, 1, 2, 1000] {
        let mut sorted = draw(n, 0);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..n as i64).collect::<Vec<_>>());
    }
    assert_eq!(draw(1000, 3), draw(1000, 3));
    assert_ne!(draw(1000, 3), draw(1000, 4));
    // Each of the six orders of three, five standard deviations.
    let mut counts = std::collections::HashMap::new();
    (0..6000).for_each(|offset| *counts.entry(draw(3, offset)).or_insert(0) += 1);
    assert!(counts.len() == 6 && counts.values().all(|n| (855..1145).contains(n)), "{counts:?}");
}

#[test]
fn offsets_and_seeds_give_other_values() {
    let draw = |stream| {
        let normal = Distribution::Normal { mean: 0.0, std: 1.0 };
        Tensor::random(&[100], DType::F32, normal, stream).unwrap().to_vec::<f32>().unwrap()
    };
    let first = draw(STREAM);
    assert_eq!(draw(STREAM), first);
    for stream in [Stream { offset: 6, ..STREAM }, Stream { seed: 1, ..STREAM }] {
        assert!(draw(stream).iter().zip(&first).all(|(a, b)| a != b));
    }
}

#[test]
fn scalars_and_empty_tensors_are_ordinary() {
    let one = Distribution::Bernoulli { probability: 1.0 };
    assert_eq!(Tensor::random(&[], DType::U8, one, STREAM).unwrap().item::<u8>().unwrap(), 1);
    assert_eq!(Tensor::random(&[3, 0], DType::U8, one, STREAM).unwrap().shape(), [3, 0]);
    let shard = Tensor::random_shard(&[0, 4], DType::F32, one, STREAM, &[3, 4], &[]).unwrap();
    assert_eq!(shard.shape(), [0, 4]);
    let shard =
        Tensor::random_shard(&[0, 4], DType::F32, one, STREAM, &[3, 4], &[vec![3..3, 0..4]])
            .unwrap();
    assert_eq!(shard.shape(), [0, 4]);
}

#[test]
fn what_does_not_fit_is_a_typed_error() {
    let uniform = Distribution::Uniform { low: 0.0, high: 1.0 };
    let shard = |local: &[usize], boxes: &[Vec<Range<usize>>]| {
        Tensor::random_shard(local, DType::F32, uniform, STREAM, &[4, 6], boxes).unwrap_err()
    };
    assert!(matches!(shard(&[4, 6], &[vec![0..4, 1..7]]), LocalError::BadRange { dim: 1, .. }));
    assert!(matches!(shard(&[4, 6], &[vec![0..4, 0..5]]), LocalError::ShapeMismatch { .. }));
    assert!(matches!(shard(&[4, 6], &[vec![0..4, 0..6, 0..1]]), LocalError::ShapeMismatch { .. }));
    // Two corners are no grid.
    assert!(matches!(
        shard(&[4, 6], &[vec![0..2, 0..3], vec![2..4, 3..6]]),
        LocalError::ShapeMismatch { .. }
    ));
    let draw = |dtype, distribution| Tensor::random(&[2], dtype, distribution, STREAM).unwrap_err();
    assert!(matches!(draw(DType::I32, uniform), LocalError::NotFloat { .. }));
    let exponential = Distribution::Exponential { rate: 1.0 };
    assert!(matches!(draw(DType::U8, exponential), LocalError::NotFloat { .. }));
    assert!(matches!(draw(DType::I32, Distribution::Keys), LocalError::WrongDType { .. }));
    for distribution in [
        Distribution::Uniform { low: 1.0, high: 0.0 },
        Distribution::Uniform { low: f64::NAN, high: 0.0 },
        Distribution::Normal { mean: 0.0, std: -1.0 },
        Distribution::Bernoulli { probability: 1.1 },
        Distribution::Exponential { rate: 0.0 },
        Distribution::LogNormal { mean: f64::NAN, std: 1.0 },
        Distribution::Cauchy { median: 0.0, sigma: 0.0 },
        Distribution::Geometric { probability: 0.0 },
        Distribution::Geometric { probability: 1.0 },
    ] {
        assert!(matches!(draw(DType::F32, distribution), LocalError::BadNumber { .. }));
    }
    assert!(matches!(
        draw(DType::U8, Distribution::Randint { low: 0, high: 257 }),
        LocalError::BadNumber { .. }
    ));
    assert!(matches!(
        draw(DType::I64, Distribution::Randint { low: 0, high: 0 }),
        LocalError::BadNumber { .. }
    ));
    // 257 is the first integer that `bf16` has not.
    let ints = |high| Distribution::Randint { low: -256, high };
    assert!(Tensor::random(&[2], DType::Bf16, ints(257), STREAM).is_ok());
    assert!(matches!(draw(DType::Bf16, ints(258)), LocalError::BadNumber { .. }));
    assert!(matches!(draw(DType::Bool, ints(2)), LocalError::BadNumber { .. }));
    let geometric = Distribution::Geometric { probability: 0.5 };
    assert!(matches!(draw(DType::Bool, geometric), LocalError::WrongDType { .. }));
}
