//! Linear algebra by what it promises: factors multiply to the matrix, are orthogonal or triangular, and
//! solutions solve. Over batches, empty matrices, views, and both dtypes.

#![allow(clippy::unwrap_used)]

use dtensor_local::{
    DType, LocalError, Tensor, bf16,
    linalg::{self, MatrixNorm},
    set_threads,
};

const DTYPES: [DType; 2] = [DType::F32, DType::F64];

/// Batches of matrices: tall, wide, square, empty, and large enough to be cut into blocks.
const SHAPES: [&[usize]; 14] = [
    &[1, 1],
    &[3, 3],
    &[7, 4],
    &[4, 7],
    &[1, 6],
    &[6, 1],
    &[2, 5, 3],
    &[3, 2, 4, 4],
    &[0, 4],
    &[4, 0],
    &[0, 0],
    &[0, 3, 2],
    &[2, 0, 3],
    &[70, 53],
];

#[test]
fn qr_has_orthonormal_columns_times_a_triangle() {
    for_each_shape(1, |a| {
        let (rows, columns) = matrix(a);
        let rank = rows.min(columns);
        let (q, r) = linalg::qr(a).unwrap();
        assert_eq!(q.shape(), with(a, &[rows, rank]));
        assert_eq!(r.shape(), with(a, &[rank, columns]));
        assert_close(&wide(&q).matmul(&wide(&r)).unwrap(), &wide(a), a);
        assert_orthonormal_columns(&q);
        assert_triangle(&r, false);

        let (q, r) = linalg::qr_complete(a).unwrap();
        assert_eq!(q.shape(), with(a, &[rows, rows]));
        assert_eq!(r.shape(), with(a, &[rows, columns]));
        assert_close(&wide(&q).matmul(&wide(&r)).unwrap(), &wide(a), a);
        assert_orthonormal_columns(&q);
        assert_triangle(&r, false);
    });
}

#[test]
fn svd_has_orthonormal_factors_and_decreasing_values() {
    for_each_shape(2, |a| {
        let (rows, columns) = matrix(a);
        let rank = rows.min(columns);
        for full in [false, true] {
            let (u, s, vh) = linalg::svd(a, full).unwrap();
            let (left, right) = if full { (rows, columns) } else { (rank, rank) };
            assert_eq!(u.shape(), with(a, &[rows, left]));
            assert_eq!(s.shape(), with(a, &[rank]));
            assert_eq!(vh.shape(), with(a, &[right, columns]));
            assert_orthonormal_columns(&u);
            assert_orthonormal_columns(&vh.transpose(-2, -1).unwrap());
            let scaled = wide(&u).narrow(-1, 0, rank).unwrap();
            let scaled = scaled.mul(&wide(&s).unsqueeze(-2).unwrap()).unwrap();
            let product = scaled.matmul(&wide(&vh).narrow(-2, 0, rank).unwrap()).unwrap();
            assert_close(&product, &wide(a), a);
            for values in values(&s).chunks(rank.max(1)) {
                assert!(values.iter().all(|value| *value >= 0.0), "{values:?}");
                assert!(values.is_sorted_by(|a, b| a >= b), "{values:?}");
            }
            assert_close(&linalg::svdvals(a).unwrap(), &s, a);
        }
    });
}

#[test]
fn singular_and_eigenvectors_do_not_turn_round_with_the_last_digit() {
    let mut random = Random(8);
    for number in 0..50 {
        let shape = [[4, 4], [5, 3], [3, 5]][number % 3];
        let a = view(&mut random, &shape, DType::F64);
        let near = a.mul_scalar(1.0 + 1e-14).unwrap();
        let (u, _, vh) = linalg::svd(&a, false).unwrap();
        let (near_u, _, near_vh) = linalg::svd(&near, false).unwrap();
        assert!(u.allclose(&near_u, 0.0, 1e-6, false).unwrap());
        assert!(vh.allclose(&near_vh, 0.0, 1e-6, false).unwrap());
        if number % 3 == 0 {
            let (v, near_v) = (linalg::eigh(&a).unwrap().1, linalg::eigh(&near).unwrap().1);
            assert!(v.allclose(&near_v, 0.0, 1e-6, false).unwrap());
        }
    }
}

#[test]
fn eigh_diagonalises_by_the_lower_triangle() {
    let mut random = Random(3);
    for shape in [&[1, 1][..], &[4, 4], &[3, 5, 5], &[0, 0], &[0, 3, 3], &[2, 0, 0], &[60, 60]] {
        for dtype in DTYPES {
            let a = view(&mut random, shape, dtype);
            let (w, v) = linalg::eigh(&a).unwrap();
            assert_eq!((w.dtype(), v.dtype()), (dtype, dtype));
            assert_eq!((w.shape(), v.shape()), (&shape[..shape.len() - 1], shape));
            assert_orthonormal_columns(&v);
            let scaled = wide(&v).mul(&wide(&w).unsqueeze(-2).unwrap()).unwrap();
            let product = scaled.matmul(&wide(&v).transpose(-2, -1).unwrap()).unwrap();
            assert_close(&product, &mirrored(&a), &a);
            let size = shape[shape.len() - 1];
            assert!(values(&w).chunks(size.max(1)).all(<[f64]>::is_sorted));
            assert_close(&linalg::eigvalsh(&a).unwrap(), &w, &a);
        }
    }
}

#[test]
fn cholesky_factors_are_triangles_whose_squares_are_the_matrix() {
    let mut random = Random(4);
    for shape in [&[1, 1][..], &[4, 4], &[2, 3, 5, 5], &[0, 0], &[0, 3, 3], &[90, 90]] {
        for dtype in DTYPES {
            let a = positive(&mut random, shape, dtype);
            for upper in [false, true] {
                let factor = linalg::cholesky(&a, upper).unwrap();
                assert_eq!((factor.shape(), factor.dtype()), (shape, dtype));
                assert_triangle(&factor, !upper);
                let (factor, other) = (wide(&factor), wide(&factor).transpose(-2, -1).unwrap());
                let (left, right) = if upper { (other, factor) } else { (factor, other) };
                assert_close(&left.matmul(&right).unwrap(), &wide(&a), &a);
            }
        }
    }
}

#[test]
fn cholesky_and_eigh_do_not_look_at_the_other_triangle() {
    let a = Tensor::from_vec(vec![4.0_f64, f64::NAN, 2.0, 5.0], &[2, 2]).unwrap();
    assert_eq!(linalg::cholesky(&a, false).unwrap().to_vec::<f64>().unwrap(), [2.0, 0.0, 1.0, 2.0]);
    let upper = a.transpose(0, 1).unwrap();
    assert_eq!(
        linalg::cholesky(&upper, true).unwrap().to_vec::<f64>().unwrap(),
        [2.0, 1.0, 0.0, 2.0]
    );
    let values = linalg::eigvalsh(&a).unwrap().to_vec::<f64>().unwrap();
    let root = 17.0_f64.sqrt() / 2.0;
    assert!((values[0] - (4.5 - root)).abs() < 1e-14 && (values[1] - (4.5 + root)).abs() < 1e-14);
}

#[test]
fn errors_name_the_first_matrix_of_the_batch_that_is_at_fault() {
    let mut a = positive(&mut Random(5), &[40, 3, 4, 4], DType::F64);
    for bad in [37, 65, 100] {
        a.as_mut_slice::<f64>().unwrap()[bad * 16..][..16].fill(0.0);
    }
    let matrix = vec![12, 1];
    let error = linalg::cholesky(&a, false).unwrap_err();
    assert_eq!(error, LocalError::NotPositiveDefinite { op: "cholesky", matrix: matrix.clone() });
    assert!(error.to_string().starts_with("cholesky: matrix [12, 1] of the batch is not positive"));
    let error = linalg::inv(&a).unwrap_err();
    assert_eq!(error, LocalError::Singular { op: "inv", matrix: matrix.clone() });
    let b = Tensor::zeros(&[4, 2], DType::F64).unwrap();
    assert_eq!(linalg::solve(&a, &b).unwrap_err(), LocalError::Singular { op: "solve", matrix });
    let one = Tensor::zeros(&[2, 2], DType::F32).unwrap();
    let error = linalg::inv(&one).unwrap_err().to_string();
    assert_eq!(error, "inv: the matrix is singular; lstsq and pinv take those too");
}

#[test]
fn values_that_are_not_finite_are_an_error_and_never_a_hang() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut a = Tensor::zeros(&[3, 4, 4], DType::F64).unwrap();
        a.as_mut_slice::<f64>().unwrap()[2 * 16 + 4] = bad;
        let error = |op| LocalError::NotFinite { op, matrix: vec![2] };
        assert_eq!(linalg::qr(&a).unwrap_err(), error("qr"));
        assert_eq!(linalg::qr_complete(&a).unwrap_err(), error("qr_complete"));
        assert_eq!(linalg::svd(&a, true).unwrap_err(), error("svd"));
        assert_eq!(linalg::svd(&a, false).unwrap_err(), error("svd"));
        assert_eq!(linalg::svdvals(&a).unwrap_err(), error("svdvals"));
        assert_eq!(linalg::eigh(&a).unwrap_err(), error("eigh"));
        assert_eq!(linalg::eigvalsh(&a).unwrap_err(), error("eigvalsh"));
        assert_eq!(linalg::det(&a).unwrap_err(), error("det"));
        assert_eq!(linalg::slogdet(&a).unwrap_err(), error("slogdet"));
        assert_eq!(linalg::pinv(&a, None).unwrap_err(), error("pinv"));
        assert_eq!(linalg::matrix_rank(&a, None).unwrap_err(), error("matrix_rank"));
        assert_eq!(linalg::lstsq(&a, &a, None).unwrap_err(), error("lstsq"));
        assert_eq!(linalg::cond(&a).unwrap_err(), error("cond"));
        let identity = a.matrix_power(0).unwrap();
        assert_eq!(linalg::solve(&identity, &a).unwrap_err(), error("solve"));
        let last = a.narrow(0, 2, 1).unwrap();
        let error = |op| LocalError::NotFinite { op, matrix: vec![0] };
        assert_eq!(linalg::cholesky(&last, false).unwrap_err(), error("cholesky"));
        assert_eq!(linalg::inv(&last).unwrap_err(), error("inv"));
    }
}

#[test]
fn solutions_solve_and_inverses_invert_for_vectors_matrices_and_broadcast_batches() {
    // The matrices, the right-hand side, the solution.
    let cases: [(&[usize], &[usize], &[usize]); 13] = [
        (&[3, 3], &[3], &[3]),
        (&[3, 3], &[3, 2], &[3, 2]),
        (&[4, 3, 3], &[4, 3], &[4, 3]),
        (&[4, 3, 3], &[3], &[4, 3]),
        (&[4, 3, 3], &[4, 3, 1], &[4, 3, 1]),
        (&[3, 3], &[4, 3, 2], &[4, 3, 2]),
        (&[2, 1, 3, 3], &[4, 3, 2], &[2, 4, 3, 2]),
        (&[0, 0], &[0], &[0]),
        (&[0, 0], &[0, 2], &[0, 2]),
        (&[0, 3, 3], &[0, 3], &[0, 3]),
        (&[3, 3], &[3, 0], &[3, 0]),
        (&[80, 80], &[80, 3], &[80, 3]),
        (&[1, 1], &[5, 1, 1], &[5, 1, 1]),
    ];
    let mut random = Random(6);
    for (a_shape, b_shape, x_shape) in cases {
        for dtype in DTYPES {
            // Random positive definite matrices are far from singular.
            let a = positive(&mut random, a_shape, dtype);
            let b = view(&mut random, b_shape, dtype);
            let x = linalg::solve(&a, &b).unwrap();
            assert_eq!((x.shape(), x.dtype()), (x_shape, dtype), "{a_shape:?} {b_shape:?}");
            let vectors = b.n_dims() == 1 || b.shape() == &a_shape[..a_shape.len() - 1];
            let columns = |t: &Tensor| if vectors { t.unsqueeze(-1).unwrap() } else { t.clone() };
            let back = wide(&a).matmul(&columns(&wide(&x))).unwrap();
            let want = columns(&wide(&b)).expand(back.shape()).unwrap();
            assert_close(&back, &want, &a);

            let product = wide(&a).matmul(&wide(&linalg::inv(&a).unwrap())).unwrap();
            assert_close(&product, &wide(&a).matrix_power(0).unwrap(), &a);
        }
    }
}

#[test]
fn determinants_equal_their_expansion() {
    let mut random = Random(7);
    for size in 0..6 {
        for dtype in DTYPES {
            let a = view(&mut random, &[3, 2, size, size], dtype);
            let det = linalg::det(&a).unwrap();
            let (sign, log) = linalg::slogdet(&a).unwrap();
            assert_eq!((det.shape(), det.dtype(), log.shape()), (&[3, 2][..], dtype, &[3, 2][..]));
            let all = values(&a);
            for index in 0..6 {
                let want = expansion(&all[index * size * size..][..size * size], size);
                let (det, sign, log) =
                    (values(&det)[index], values(&sign)[index], values(&log)[index]);
                assert!((det - want).abs() <= tolerance(dtype), "{dtype} {size}: {det} {want}");
                assert_eq!(sign, want.signum());
                let bound = tolerance(dtype) * (1.0 + 1.0 / want.abs());
                assert!((sign * log.exp() - want).abs() <= bound, "{dtype} {size}: {log} {want}");
            }
        }
    }
    // Exactly singular, early and late, and in the first column.
    for singular in [vec![1.0_f64, 2.0, 2.0, 4.0], vec![0.0; 4], vec![0.0, 1.0, 0.0, 1.0]] {
        let a = Tensor::from_vec(singular, &[2, 2]).unwrap();
        assert_eq!(linalg::det(&a).unwrap().item::<f64>().unwrap(), 0.0);
        let (sign, log) = linalg::slogdet(&a).unwrap();
        assert_eq!(sign.item::<f64>().unwrap(), 0.0);
        assert_eq!(log.item::<f64>().unwrap(), f64::NEG_INFINITY);
    }
}

#[test]
fn least_squares_solutions_are_nearest_and_of_those_the_shortest() {
    let mut random = Random(8);
    let shapes: [(&[usize], &[usize]); 9] = [
        (&[5, 3], &[5, 2]),
        (&[3, 5], &[3, 2]),
        (&[4, 4], &[4]),
        (&[2, 6, 3], &[2, 6]),
        (&[6, 3], &[2, 6, 1]),
        (&[0, 3], &[0, 2]),
        (&[3, 0], &[3, 2]),
        (&[0, 4, 2], &[0, 4, 2]),
        (&[50, 20], &[50, 2]),
    ];
    for (a_shape, b_shape) in shapes {
        for dtype in DTYPES {
            for deficient in [false, true] {
                let mut a = view(&mut random, a_shape, dtype);
                if deficient && !a_shape.contains(&0) {
                    // Every column the same: rank 1.
                    a = a.narrow(-1, 0, 1).unwrap().expand(a_shape).unwrap();
                }
                let b = view(&mut random, b_shape, dtype);
                let found = linalg::lstsq(&a, &b, None).unwrap();
                let vectors = b.n_dims() == 1 || b.shape() == &a_shape[..a_shape.len() - 1];
                let columns =
                    |t: &Tensor| if vectors { t.unsqueeze(-1).unwrap() } else { t.clone() };
                let (a64, x) = (wide(&a), columns(&wide(&found.solution)));
                let rest = columns(&wide(&b)).sub(&a64.matmul(&x).unwrap()).unwrap();
                // Nearest: what is left is orthogonal to the columns.
                let transposed = a64.transpose(-2, -1).unwrap();
                let normal = transposed.matmul(&rest).unwrap();
                assert_close(&normal, &zeros_like(&normal), &a);
                // Shortest: the solution lies in the span of the rows.
                let inverse = wide(&linalg::pinv(&a, None).unwrap());
                let projected = inverse.matmul(&a64).unwrap().matmul(&x).unwrap();
                assert_close(&projected, &x, &a);
                let squares = rest.square().unwrap().sum(&[-2], false).unwrap();
                assert_close(&columns_of(&found.residuals, vectors), &squares, &a);
                let (rows, unknowns) = matrix(&a);
                let rank = if deficient { 1.min(rows.min(unknowns)) } else { rows.min(unknowns) };
                let ranks = found.rank.to_vec::<i64>().unwrap();
                assert!(ranks.iter().all(|got| *got == rank as i64), "{a_shape:?} {ranks:?}");
                assert_eq!(
                    found.rank.shape(),
                    &found.singular_values.shape()[..found.rank.n_dims()]
                );
                let want = linalg::matrix_rank(&a, None).unwrap().to_vec::<i64>().unwrap();
                assert!(want.iter().all(|want| *want == rank as i64));
            }
        }
    }
}

fn columns_of(residuals: &Tensor, vectors: bool) -> Tensor {
    let residuals = wide(residuals);
    if vectors { residuals.unsqueeze(-1).unwrap() } else { residuals }
}

#[test]
fn pseudo_inverses_fulfil_the_four_equations() {
    for_each_shape(9, |a| {
        let inverse = linalg::pinv(a, None).unwrap();
        let (rows, columns) = matrix(a);
        assert_eq!(inverse.shape(), with(a, &[columns, rows]));
        let (a64, p) = (wide(a), wide(&inverse));
        let (ap, pa) = (a64.matmul(&p).unwrap(), p.matmul(&a64).unwrap());
        assert_close(&ap.matmul(&a64).unwrap(), &a64, a);
        assert_close(&pa.matmul(&p).unwrap(), &p, a);
        assert_close(&ap.transpose(-2, -1).unwrap(), &ap, a);
        assert_close(&pa.transpose(-2, -1).unwrap(), &pa, a);
    });
    let diagonal = Tensor::from_vec(vec![2.0_f64, 0.0, 0.0, 1e-3], &[2, 2]).unwrap();
    let cut = linalg::pinv(&diagonal, Some(1e-2)).unwrap().to_vec::<f64>().unwrap();
    assert!(cut[3] == 0.0 && (cut[0] - 0.5).abs() < 1e-15, "{cut:?}");
    assert_eq!(linalg::matrix_rank(&diagonal, Some(1e-2)).unwrap().item::<i64>().unwrap(), 1);
}

#[test]
fn norms_condition_numbers_and_powers_follow_their_definitions() {
    let a = Tensor::from_vec(vec![1.0_f64, -2.0, 0.0, 3.0, 4.0, 5.0], &[2, 3]).unwrap();
    let norm = |norm| linalg::matrix_norm(&a, norm).unwrap().item::<f64>().unwrap();
    // From PyTorch.
    for (kind, want) in [
        (MatrixNorm::Frobenius, 7.416198487095663),
        (MatrixNorm::Nuclear, 9.219544457292887),
        (MatrixNorm::One, 6.0),
        (MatrixNorm::Infinity, 12.0),
        (MatrixNorm::Two, 7.1097722286464435),
        (MatrixNorm::MinusTwo, 2.109772228646444),
    ] {
        assert!((norm(kind) - want).abs() < 1e-13, "{kind:?}: {}", norm(kind));
    }
    let cond = linalg::cond(&a).unwrap().item::<f64>().unwrap();
    assert!((cond - 3.3699240762154807).abs() < 1e-12);
    let all = linalg::vector_norm(&a, 1.0, &[], false).unwrap();
    assert_eq!(all.item::<f64>().unwrap(), 15.0);
    let empty = Tensor::zeros(&[2, 0, 3], DType::F32).unwrap();
    assert_eq!(linalg::cond(&empty).unwrap().to_vec::<f32>().unwrap(), [0.0, 0.0]);
    let singular = Tensor::from_vec(vec![1.0_f32, 0.0, 0.0, 0.0], &[2, 2]).unwrap();
    assert_eq!(linalg::cond(&singular).unwrap().item::<f32>().unwrap(), f32::INFINITY);

    let b = positive(&mut Random(10), &[2, 3, 3], DType::F64);
    let mut want = b.matrix_power(0).unwrap();
    for exponent in 0..8 {
        assert_close(&b.matrix_power(exponent).unwrap(), &want, &want);
        let back = b.matrix_power(-exponent).unwrap().matmul(&want).unwrap();
        assert_close(&back, &b.matrix_power(0).unwrap(), &want);
        want = want.matmul(&b).unwrap();
    }
}

#[test]
fn other_dtypes_and_shapes_are_errors_that_say_what_to_do() {
    let half = Tensor::full(&[2, 2], bf16::ONE).unwrap();
    let error = linalg::det(&half).unwrap_err();
    assert_eq!(error, LocalError::NotFullPrecision { op: "det", got: DType::Bf16 });
    assert!(error.to_string().ends_with("convert it with to_dtype first"));
    let wide = Tensor::zeros(&[2, 3], DType::F32).unwrap();
    let vector = Tensor::zeros(&[2], DType::F32).unwrap();
    for error in [
        linalg::det(&wide).unwrap_err(),
        linalg::cholesky(&wide, false).unwrap_err(),
        linalg::cholesky(&vector, true).unwrap_err(),
        linalg::solve(&wide, &vector).unwrap_err(),
        linalg::qr(&vector).unwrap_err(),
        linalg::lstsq(&vector, &vector, None).unwrap_err(),
        wide.matrix_power(2).unwrap_err(),
        linalg::matrix_norm(&vector, MatrixNorm::One).unwrap_err(),
    ] {
        assert!(matches!(error, LocalError::BadShape { .. }), "{error}");
    }
    let square = Tensor::zeros(&[3, 3], DType::F32).unwrap();
    let error = linalg::solve(&square, &vector).unwrap_err();
    assert!(matches!(error, LocalError::ShapeMismatch { op: "solve", .. }), "{error}");
    let batch = Tensor::zeros(&[2, 3, 3], DType::F32).unwrap();
    let other = Tensor::zeros(&[4, 3, 1], DType::F32).unwrap();
    let error = linalg::solve(&batch, &other).unwrap_err();
    assert!(matches!(error, LocalError::ShapeMismatch { op: "solve", .. }), "{error}");
    let double = Tensor::zeros(&[3], DType::F64).unwrap();
    let error = linalg::solve(&square, &double).unwrap_err();
    assert!(matches!(error, LocalError::WrongDType { op: "solve", .. }), "{error}");
}

#[test]
fn meta_tensors_give_the_shapes_of_results() {
    let meta = |shape: &[usize]| Tensor::meta(shape, DType::F32).unwrap();
    let check = |tensor: &Tensor, shape: &[usize], dtype| {
        assert_eq!((tensor.shape(), tensor.dtype(), tensor.is_meta()), (shape, dtype, true));
    };
    // Larger than memory: nothing may be computed.
    let n = 1 << 22;
    let (a, square) = (meta(&[3, n, 2 * n]), meta(&[3, n, n]));
    let (u, s, vh) = linalg::svd(&a, true).unwrap();
    check(&u, &[3, n, n], DType::F32);
    check(&s, &[3, n], DType::F32);
    check(&vh, &[3, 2 * n, 2 * n], DType::F32);
    check(&linalg::qr(&a).unwrap().1, &[3, n, 2 * n], DType::F32);
    check(&linalg::cholesky(&square, false).unwrap(), &[3, n, n], DType::F32);
    check(&linalg::eigh(&square).unwrap().0, &[3, n], DType::F32);
    check(&linalg::solve(&square, &meta(&[3, n])).unwrap(), &[3, n], DType::F32);
    check(&linalg::det(&square).unwrap(), &[3], DType::F32);
    check(&linalg::matrix_rank(&a, None).unwrap(), &[3], DType::I64);
    let found = linalg::lstsq(&a, &meta(&[3, n, 5]), None).unwrap();
    check(&found.solution, &[3, 2 * n, 5], DType::F32);
    check(&found.residuals, &[3, 5], DType::F32);
    check(&square.matrix_power(5).unwrap(), &[3, n, n], DType::F32);
    check(&meta(&[2, 5, 3]).cdist(&meta(&[7, 3]), 2.0).unwrap(), &[2, 5, 7], DType::F32);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let a = positive(&mut Random(11), &[60, 9, 9], DType::F64);
    let mut seen = Vec::new();
    for threads in [1, 2, 5] {
        set_threads(threads);
        let (u, s, vh) = linalg::svd(&a, true).unwrap();
        let inverse = linalg::inv(&a).unwrap();
        let distances = a.cdist(&inverse, 2.0).unwrap();
        seen.push([u, s, vh, inverse, distances].map(|tensor| values(&tensor)));
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn distances_equal_plain_loops_for_every_norm() {
    let mut random = Random(12);
    let shapes: [(&[usize], &[usize], &[usize]); 9] = [
        (&[4, 3], &[5, 3], &[4, 5]),
        (&[2, 4, 3], &[5, 3], &[2, 4, 5]),
        (&[2, 1, 4, 3], &[3, 5, 3], &[2, 3, 4, 5]),
        (&[40, 7], &[3, 7], &[40, 3]),
        (&[2, 30, 19], &[2, 33, 19], &[2, 30, 33]),
        (&[0, 3], &[5, 3], &[0, 5]),
        (&[4, 3], &[0, 3], &[4, 0]),
        (&[30, 0], &[5, 0], &[30, 5]),
        (&[0, 4, 3], &[5, 3], &[0, 4, 5]),
    ];
    for (a_shape, b_shape, shape) in shapes {
        for dtype in DTYPES {
            let (a, b) = (view(&mut random, a_shape, dtype), view(&mut random, b_shape, dtype));
            for p in [0.0, 0.5, 1.0, 2.0, 3.0, f64::INFINITY] {
                let got = a.cdist(&b, p).unwrap();
                assert_eq!((got.shape(), got.dtype()), (shape, dtype));
                let rows = |t: &Tensor| {
                    let batch = &shape[..shape.len() - 2];
                    let matrix = &t.shape()[t.n_dims() - 2..];
                    values(&t.expand(&[batch, matrix].concat()).unwrap())
                };
                let (m, n) = (shape[shape.len() - 2], shape[shape.len() - 1]);
                let width = a_shape[a_shape.len() - 1];
                let (a, b) = (rows(&a), rows(&b));
                for (at, got) in values(&got).into_iter().enumerate() {
                    let (batch, i, j) = (at / (m * n), at / n % m, at % n);
                    let (a, b) = (&a[(batch * m + i) * width..], &b[(batch * n + j) * width..]);
                    let d = (0..width).map(|k| (a[k] - b[k]).abs());
                    let want = match p {
                        0.0 => d.filter(|d| *d != 0.0).count() as f64,
                        f64::INFINITY => d.fold(0.0, f64::max),
                        p => d.map(|d| d.powf(p)).sum::<f64>().powf(1.0 / p),
                    };
                    let bound = tolerance(dtype) * (1.0 + want);
                    assert!((got - want).abs() <= bound, "{dtype} p {p}: {got} {want}");
                }
            }
        }
    }
}

#[test]
fn distances_of_rows_that_nearly_agree_are_exact() {
    // Far from the origin: a product alone would lose every digit.
    let rows =
        |offset: f64| -> Vec<f64> { (0..30 * 4).map(|at| 1e6 + f64::from(at) + offset).collect() };
    let a = Tensor::from_vec(rows(0.0), &[30, 4]).unwrap();
    let b = Tensor::from_vec(rows(0.125), &[30, 4]).unwrap();
    let distances = a.cdist(&b, 2.0).unwrap();
    for at in 0..30 {
        let distance = distances.select(0, at).unwrap().select(0, at).unwrap();
        assert_eq!(distance.item::<f64>().unwrap(), 0.25);
        let itself = a.cdist(&a, 2.0).unwrap().select(0, at).unwrap().select(0, at).unwrap();
        assert_eq!(itself.item::<f64>().unwrap(), 0.0);
    }
    let mut infinite = rows(0.0);
    infinite[0] = f64::INFINITY;
    let infinite = Tensor::from_vec(infinite, &[30, 4]).unwrap();
    let distances = infinite.cdist(&a, 2.0).unwrap().to_vec::<f64>().unwrap();
    assert!(distances[..30].iter().all(|d| *d == f64::INFINITY) && distances[30].is_finite());
    let error = a.cdist(&b, -1.0).unwrap_err();
    assert!(matches!(error, LocalError::BadNumber { op: "cdist", .. }), "{error}");
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Between -1 and 1, exact in `f32`.
    fn value(&mut self) -> f64 {
        f64::from((self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0)
    }
}

/// Random values in a random view: transposed, reversed, or a part of something larger.
fn view(random: &mut Random, shape: &[usize], dtype: DType) -> Tensor {
    let n_dims = shape.len();
    let kind = random.next() % 5;
    let last = shape[n_dims - 1];
    let first = if n_dims > 1 { shape[n_dims - 2] } else { 1 };
    let mut stored = shape.to_vec();
    match kind {
        0 if n_dims > 1 => stored.swap(n_dims - 1, n_dims - 2),
        1 => stored[n_dims - 1] = last * 2,
        2 if n_dims > 1 => stored[n_dims - 2] = first + 3,
        _ => {}
    }
    let values = (0..stored.iter().product()).map(|_| random.value()).collect::<Vec<f64>>();
    let tensor = Tensor::from_vec(values, &stored).unwrap().to_dtype(dtype).unwrap();
    match kind {
        0 if n_dims > 1 => tensor.transpose(-1, -2).unwrap(),
        1 => tensor.slice(-1, 0, last * 2, 2).unwrap(),
        2 if n_dims > 1 => tensor.narrow(-2, 2, first).unwrap(),
        3 => tensor.flip(-1).unwrap(),
        _ => tensor,
    }
}

/// Symmetric matrices with eigenvalues of at least one half.
fn positive(random: &mut Random, shape: &[usize], dtype: DType) -> Tensor {
    let a = view(random, shape, DType::F64);
    let size = shape[shape.len() - 1].max(1) as f64;
    let square = a.matmul(&a.transpose(-2, -1).unwrap()).unwrap().div_scalar(size).unwrap();
    let identity = a.matrix_power(0).unwrap().mul_scalar(0.5).unwrap();
    square.add(&identity).unwrap().to_dtype(dtype).unwrap()
}

#[track_caller]
fn for_each_shape(seed: u64, check: impl Fn(&Tensor)) {
    let mut random = Random(seed);
    for shape in SHAPES {
        for dtype in DTYPES {
            for _ in 0..4 {
                check(&view(&mut random, shape, dtype));
            }
        }
    }
}

fn matrix(a: &Tensor) -> (usize, usize) {
    (a.shape()[a.n_dims() - 2], a.shape()[a.n_dims() - 1])
}

/// The batch dims, then these.
fn with(a: &Tensor, dims: &[usize]) -> Vec<usize> {
    [&a.shape()[..a.n_dims() - 2], dims].concat()
}

fn wide(tensor: &Tensor) -> Tensor {
    tensor.to_dtype(DType::F64).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f64> {
    wide(tensor).to_vec().unwrap()
}

fn zeros_like(tensor: &Tensor) -> Tensor {
    Tensor::zeros(tensor.shape(), tensor.dtype()).unwrap()
}

fn tolerance(dtype: DType) -> f64 {
    if dtype == DType::F32 { 2e-5 } else { 1e-11 }
}

/// The symmetric matrices with the lower triangles of these, in `f64`.
fn mirrored(a: &Tensor) -> Tensor {
    let (size, _) = matrix(a);
    let mut mirrored = values(a);
    for matrix in mirrored.chunks_mut((size * size).max(1)) {
        for row in 0..size {
            for column in row + 1..size {
                matrix[row * size + column] = matrix[column * size + row];
            }
        }
    }
    Tensor::from_vec(mirrored, a.shape()).unwrap()
}

/// Close for the dtype of `like`, relative to the largest value.
#[track_caller]
fn assert_close(got: &Tensor, want: &Tensor, like: &Tensor) {
    assert_eq!(got.shape(), want.shape());
    let (got, want) = (values(got), values(want));
    let largest = want.iter().fold(1.0_f64, |max, value| max.max(value.abs()));
    for (got, want) in got.iter().zip(&want) {
        let close = (got - want).abs() <= tolerance(like.dtype()) * largest;
        assert!(close, "{} {:?}: {got} for {want}", like.dtype(), like.shape());
    }
}

#[track_caller]
fn assert_orthonormal_columns(q: &Tensor) {
    let q64 = wide(q);
    let product = q64.transpose(-2, -1).unwrap().matmul(&q64).unwrap();
    assert_close(&product, &product.matrix_power(0).unwrap(), q);
}

#[track_caller]
fn assert_triangle(a: &Tensor, lower: bool) {
    let (rows, columns) = matrix(a);
    for (at, value) in values(a).into_iter().enumerate() {
        let (row, column) = (at / columns % rows, at % columns);
        let outside = if lower { column > row } else { column < row };
        assert!(!outside || value == 0.0, "{value} at {row}, {column}");
    }
}

/// The determinant by expansion along the first row.
fn expansion(a: &[f64], size: usize) -> f64 {
    if size == 0 {
        return 1.0;
    }
    (0..size)
        .map(|skipped| {
            let minor: Vec<f64> =
                (size..size * size).filter(|at| at % size != skipped).map(|at| a[at]).collect();
            let sign = if skipped % 2 == 0 { 1.0 } else { -1.0 };
            sign * a[skipped] * expansion(&minor, size - 1)
        })
        .sum()
}
