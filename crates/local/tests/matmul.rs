//! Matrix products against plain loops, over views of every kind.
//!
//! The elements are small whole numbers: every order of summation gives the same exact sum, so results
//! are compared for equality, in `bf16` and `f16` with the sum rounded once.

#![allow(clippy::unwrap_used)]

use dtensor_local::{DType, LocalError, Tensor, bf16, f16, set_threads};

const DTYPES: [DType; 7] =
    [DType::F32, DType::F64, DType::Bf16, DType::F16, DType::I64, DType::I32, DType::U8];

#[test]
fn matmul_follows_the_rules_of_torch_for_every_dtype_and_view() {
    let cases: [(&[usize], &[usize], &[usize]); 22] = [
        (&[3, 4], &[4, 5], &[3, 5]),
        (&[4], &[4], &[]),
        (&[4], &[4, 3], &[3]),
        (&[3, 4], &[4], &[3]),
        (&[4], &[2, 4, 3], &[2, 3]),
        (&[2, 3, 4], &[4], &[2, 3]),
        (&[2, 3, 4], &[4, 5], &[2, 3, 5]),
        (&[3, 4], &[2, 4, 5], &[2, 3, 5]),
        (&[2, 1, 3, 4], &[5, 4, 2], &[2, 5, 3, 2]),
        (&[7, 1, 2, 4], &[1, 3, 4, 2], &[7, 3, 2, 2]),
        (&[0, 4], &[4, 5], &[0, 5]),
        (&[3, 0], &[0, 5], &[3, 5]),
        (&[0], &[0], &[]),
        (&[2, 0, 4], &[4, 5], &[2, 0, 5]),
        (&[0, 3, 4], &[4, 5], &[0, 3, 5]),
        (&[1, 70], &[70, 90], &[1, 90]),
        (&[90, 70], &[70, 1], &[90, 1]),
        (&[40, 2], &[2, 30], &[40, 30]),
        (&[40, 1], &[1, 30], &[40, 30]),
        (&[13, 37], &[37, 29], &[13, 29]),
        (&[4, 70, 33], &[4, 33, 65], &[4, 70, 65]),
        (&[3, 11, 19], &[19, 23], &[3, 11, 23]),
    ];
    let mut random = Random(1);
    for (a_shape, b_shape, want_shape) in cases {
        for dtype in DTYPES {
            for _ in 0..6 {
                let (a, b) = (view(&mut random, a_shape, dtype), view(&mut random, b_shape, dtype));
                spoil_the_pool(want_shape, dtype);
                let got = a.matmul(&b).unwrap();
                assert_eq!((got.shape(), got.dtype()), (want_shape, dtype));
                let what = format!(
                    "{dtype} {a_shape:?} {:?} x {b_shape:?} {:?}",
                    a.strides(),
                    b.strides()
                );
                assert_eq!(values(&got), reference_matmul(&a, &b, want_shape), "{what}");
                let meta = |tensor: &Tensor| Tensor::meta(tensor.shape(), dtype).unwrap();
                let meta = meta(&a).matmul(&meta(&b)).unwrap();
                assert_eq!((meta.shape(), meta.dtype(), meta.is_meta()), (want_shape, dtype, true));
            }
        }
    }
}

#[test]
fn random_products_equal_plain_loops() {
    let mut random = Random(2);
    for _ in 0..400 {
        let dtype = DTYPES[random.below(7)];
        let mut size = |limit| random.below(limit);
        let (batch, m, k, n) = (size(4), size(40), size(40), size(40));
        let (a, b) =
            (view(&mut random, &[batch, m, k], dtype), view(&mut random, &[batch, k, n], dtype));
        spoil_the_pool(&[batch, m, n], dtype);
        let want = reference_matmul(&a, &b, &[batch, m, n]);
        let what = format!("{dtype} {batch} {m} {k} {n} {:?} {:?}", a.strides(), b.strides());
        assert_eq!(values(&a.bmm(&b).unwrap()), want, "{what}");
    }
}

#[test]
fn large_products_cross_the_blocks_of_every_kernel() {
    let mut random = Random(3);
    for (m, k, n) in
        [(1030, 3, 5), (5, 3, 1030), (1030, 4, 1027), (70, 2100, 65), (1, 3000, 130), (200, 1, 900)]
    {
        for dtype in DTYPES {
            let (a, b) = (view(&mut random, &[m, k], dtype), view(&mut random, &[k, n], dtype));
            let got = a.mm(&b).unwrap();
            assert_eq!(values(&got), reference_matmul(&a, &b, &[m, n]), "{dtype} {m} {k} {n}");
        }
    }
}

#[test]
fn sums_of_fractions_are_close_to_those_of_f64() {
    let mut random = Random(4);
    let (m, k, n) = (37, 1500, 41);
    let mut fractions = |n| -> Vec<f64> {
        (0..n).map(|_| bf16::from_f64(random.below(2001) as f64 / 1000.0 - 1.0).to_f64()).collect()
    };
    let (a, b) = (fractions(m * k), fractions(k * n));
    let exact = tensor(&a, &[m, k], DType::F64).matmul(&tensor(&b, &[k, n], DType::F64)).unwrap();
    let exact = exact.to_vec::<f64>().unwrap();
    // Half a place of bf16, and a little for the sum in f32; a sum in bf16 would be off by far more.
    for (dtype, relative) in
        [(DType::F32, 0.0), (DType::Bf16, 1.0 / 256.0), (DType::F16, 1.0 / 2048.0)]
    {
        let got = tensor(&a, &[m, k], dtype).matmul(&tensor(&b, &[k, n], dtype)).unwrap();
        for (got, exact) in values(&got).iter().zip(&exact) {
            let bound = exact.abs() * relative + if dtype == DType::F16 { 0.05 } else { 1e-3 };
            assert!((got - exact).abs() <= bound, "{dtype}: {got} for {exact}");
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let mut random = Random(5);
    let shapes: [(&[usize], &[usize]); 6] = [
        (&[300, 700], &[700, 200]),
        (&[1, 3000], &[3000, 500]),
        (&[2000, 600], &[600, 1]),
        (&[9, 64, 100], &[9, 100, 64]),
        (&[2, 257, 300], &[2, 300, 129]),
        (&[4, 150, 100], &[100, 130]),
    ];
    for (a_shape, b_shape) in shapes {
        for dtype in [DType::F32, DType::F64, DType::Bf16] {
            let mut fractions = |shape: &[usize]| {
                let values: Vec<f64> = (0..shape.iter().product())
                    .map(|_| random.below(1_000_003) as f64 / 7919.0 - 60.0)
                    .collect();
                tensor(&values, shape, dtype)
            };
            let (a, b) = (fractions(a_shape), fractions(b_shape));
            let results = [1, 2, 3, 5].map(|threads| {
                set_threads(threads);
                values(&a.matmul(&b).unwrap())
            });
            assert!(results.iter().all(|result| *result == results[0]), "{dtype} {a_shape:?}");
        }
    }
}

#[test]
fn addmm_scales_both_parts_and_ignores_what_beta_zero_hides() {
    let mut random = Random(6);
    for dtype in DTYPES {
        for (m, k, n) in [(3, 4, 5), (1, 1, 1), (40, 50, 60), (4, 0, 3), (0, 2, 3), (33, 20, 1)] {
            for input_shape in [&[m, n][..], &[n], &[], &[m, 1], &[1, n]] {
                let (a, b) = (view(&mut random, &[m, k], dtype), view(&mut random, &[k, n], dtype));
                let input = view(&mut random, input_shape, dtype);
                let kept = values(&input);
                for (beta, alpha) in [(1.0, 1.0), (2.0, 3.0), (0.0, 2.0), (3.0, 0.0)] {
                    let got = input.addmm(&a, &b, beta, alpha).unwrap();
                    let (wide, narrow) =
                        (sums(&a, &b, &[m, n]), values(&input.expand(&[m, n]).unwrap()));
                    let want: Vec<f64> = wide
                        .iter()
                        .zip(&narrow)
                        .map(|(sum, kept)| rounded(dtype, alpha * sum + beta * kept))
                        .collect();
                    assert_eq!(
                        values(&got),
                        want,
                        "{dtype} {m} {k} {n} {input_shape:?} {beta} {alpha}"
                    );
                }
                assert_eq!(values(&input), kept, "the input has changed");
            }
        }
    }
    let nan = Tensor::full(&[20, 20], f32::NAN).unwrap();
    let ones = Tensor::full(&[20, 20], 1.0_f32).unwrap();
    assert_eq!(values(&nan.addmm(&ones, &ones, 0.0, 1.0).unwrap()), [20.0; 400]);
    assert!(values(&nan.addmm(&ones, &ones, 1.0, 1.0).unwrap()).iter().all(|value| value.is_nan()));
    assert!(values(&ones.addmm(&nan, &ones, 1.0, 1.0).unwrap()).iter().all(|value| value.is_nan()));
}

#[test]
fn a_linear_layer_is_a_product_with_the_transposed_weight_and_a_bias() {
    let mut random = Random(4);
    for dtype in DTYPES {
        for rows in [&[][..], &[3], &[2, 3], &[0, 3], &[2, 1, 40]] {
            for (n_in, n_out) in [(4, 5), (0, 3), (33, 17)] {
                let x = view(&mut random, &[rows, &[n_in]].concat(), dtype);
                let weight = view(&mut random, &[n_out, n_in], dtype);
                let bias = view(&mut random, &[n_out], dtype);
                let shape = [rows, &[n_out]].concat();
                let transposed = weight.transpose(0, 1).unwrap();
                let sums = sums(&x, &transposed, &shape);
                let got = x.linear(&weight, None).unwrap();
                assert_eq!((got.shape(), got.dtype()), (&shape[..], dtype));
                let want: Vec<f64> = sums.iter().map(|sum| rounded(dtype, *sum)).collect();
                assert_eq!(values(&got), want, "{dtype} {rows:?} {n_in} {n_out}");
                let bias_values = values(&bias);
                let both = |(at, sum): (usize, &f64)| sum + bias_values[at % n_out];
                let want: Vec<f64> =
                    sums.iter().enumerate().map(both).map(|sum| rounded(dtype, sum)).collect();
                let got = x.linear(&weight, Some(&bias)).unwrap();
                assert_eq!((got.shape(), values(&got)), (&shape[..], want), "{dtype} {rows:?}");
            }
        }
    }
    let ones = |shape: &[usize]| Tensor::ones(shape, DType::F32).unwrap();
    assert!(ones(&[2, 3]).linear(&ones(&[4, 2]), None).is_err());
    assert!(ones(&[2, 3]).linear(&ones(&[3]), None).is_err());
    assert!(ones(&[2, 3]).linear(&ones(&[4, 3]), Some(&ones(&[3]))).is_err());
}

#[test]
fn dot_and_outer_are_products_of_vectors() {
    let mut random = Random(7);
    for dtype in DTYPES {
        for (m, n) in [(0, 3), (1, 1), (5, 7), (2000, 3), (3, 1500)] {
            let (a, b, c) = (
                view(&mut random, &[m], dtype),
                view(&mut random, &[n], dtype),
                view(&mut random, &[m], dtype),
            );
            assert_eq!(values(&a.dot(&c).unwrap()), reference_matmul(&a, &c, &[]), "{dtype} {m}");
            let outer = a.outer(&b).unwrap();
            assert_eq!(outer.shape(), [m, n]);
            let (a, b) = (values(&a), values(&b));
            let want: Vec<f64> =
                a.iter().flat_map(|a| b.iter().map(move |b| rounded(dtype, a * b))).collect();
            assert_eq!(values(&outer), want, "{dtype} {m} {n}");
        }
    }
}

#[test]
fn integers_wrap_around() {
    let large = Tensor::full(&[2, 2], i32::MAX).unwrap();
    assert_eq!(large.mm(&large).unwrap().to_vec::<i32>().unwrap(), [2; 4]);
    let large = Tensor::full(&[20, 20], 255_u8).unwrap();
    assert_eq!(large.mm(&large).unwrap().to_vec::<u8>().unwrap(), [20; 400]);
}

#[test]
fn einsum_equals_the_loops_that_the_equation_says() {
    let sizes = |letter: char| match letter {
        'a' => 2,
        'b' => 3,
        'c' => 4,
        'd' => 1,
        _ => 5,
    };
    let equations = [
        "ab,bc->ac",
        "ab,bc",
        "ab,cb->ca",
        "eab,ebc->eac",
        "a,b->ab",
        "a,a->",
        "ab->ba",
        "ab->a",
        "ab->",
        "aa->a",
        "aa",
        "aab->ba",
        "ab,ab->ab",
        "ab,ab->",
        "abc,ce->abe",
        "cabe,ceb->ac",
        "abc,d->cab",
        "ab,c->b",
        "eaeb,be->ab",
        "abcd,cbae->de",
        "ab,ba->",
        "bac,eca->bec",
        "ab,bc,ce->ae",
        "a,b,c->cab",
        "abe,eb,c->ac",
        "a,ab,b->",
        "ab,b->ab",
        ",ab->ab",
        ",->",
    ];
    let mut random = Random(8);
    for equation in equations {
        for dtype in [DType::F64, DType::F32, DType::I64, DType::U8] {
            let terms: Vec<&str> = equation.split("->").next().unwrap().split(',').collect();
            let operands: Vec<Tensor> = terms
                .iter()
                .map(|term| view(&mut random, &term.chars().map(sizes).collect::<Vec<_>>(), dtype))
                .collect();
            let result = match equation.split_once("->") {
                Some((_, result)) => result.to_owned(),
                None => {
                    let letters: String = terms.concat();
                    let once = |letter: &char| letters.matches(*letter).count() == 1;
                    letters.chars().filter(once).collect()
                }
            };
            let got = Tensor::einsum(equation, &operands.iter().collect::<Vec<_>>()).unwrap();
            let shape: Vec<usize> = result.chars().map(sizes).collect();
            assert_eq!(got.shape(), shape, "{equation}");
            let want = reference_einsum(&terms, &result, &operands, sizes, dtype);
            assert_eq!(values(&got), want, "{dtype} {equation}");
            let metas: Vec<Tensor> =
                operands.iter().map(|x| Tensor::meta(x.shape(), dtype).unwrap()).collect();
            let meta = Tensor::einsum(equation, &metas.iter().collect::<Vec<_>>()).unwrap();
            assert_eq!((meta.shape(), meta.is_meta()), (&shape[..], true));
        }
    }
}

#[test]
fn an_ellipsis_stands_for_dims_that_are_broadcast() {
    let mut random = Random(9);
    let a = view(&mut random, &[5, 1, 3, 4], DType::F64);
    let b = view(&mut random, &[2, 4, 3], DType::F64);
    let got = Tensor::einsum("...ij,...jk->...ik", &[&a, &b]).unwrap();
    assert_eq!((got.shape(), values(&got)), (&[5, 2, 3, 3][..], values(&a.matmul(&b).unwrap())));
    let turned = Tensor::einsum("i...->...i", &[&a]).unwrap();
    assert_eq!(values(&turned), values(&a.permute(&[1, 2, 3, 0]).unwrap()));
    let summed = Tensor::einsum("...i->i", &[&b]).unwrap();
    assert_eq!(summed.shape(), [3]);
    let ones = Tensor::full(&[8], 1.0).unwrap();
    let want = ones.matmul(&b.contiguous().reshape(&[8, 3]).unwrap()).unwrap();
    assert_eq!(values(&summed), values(&want));
    let of_nothing = Tensor::zeros(&[0, 3], DType::F64).unwrap();
    assert_eq!(values(&Tensor::einsum("ij->j", &[&of_nothing]).unwrap()), [0.0; 3]);
}

#[test]
fn what_does_not_fit_is_an_error_that_says_so() {
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype).unwrap();
    let f = |shape: &[usize]| zeros(shape, DType::F32);
    let text = |result: Result<Tensor, LocalError>| result.unwrap_err().to_string();
    for (result, words) in [
        (f(&[2, 3]).matmul(&f(&[2, 3])), ["matmul: ", "[2, 3]"]),
        (f(&[]).matmul(&f(&[2])), ["matmul: ", "scalar"]),
        (f(&[2, 3, 4]).matmul(&f(&[3, 4, 4])), ["matmul: ", "broadcast"]),
        (f(&[2]).mm(&f(&[2, 2])), ["mm: ", "two dims"]),
        (f(&[2, 3]).mm(&f(&[2, 3])), ["mm: ", "[2, 3]"]),
        (f(&[2, 3, 4]).bmm(&f(&[1, 4, 4])), ["bmm: ", "[1, 4, 4]"]),
        (f(&[2]).dot(&f(&[3])), ["dot: ", "[3]"]),
        (f(&[2]).outer(&f(&[3, 1])), ["outer: ", "[3, 1]"]),
        (f(&[3]).addmm(&f(&[2, 3]), &f(&[3, 2]), 1.0, 1.0), ["addmm: ", "[2, 2]"]),
        (f(&[2, 3]).mm(&zeros(&[3, 2], DType::F64)), ["mm: ", "f64"]),
        (zeros(&[2, 2], DType::Bool).mm(&zeros(&[2, 2], DType::Bool)), ["mm: ", "bool"]),
        (Tensor::einsum("ij,jk", &[&f(&[2, 3]), &f(&[2, 3])]), ["einsum: ", "sizes"]),
        (Tensor::einsum("ii", &[&f(&[2, 3])]), ["einsum: ", "sizes"]),
        (Tensor::einsum("", &[]), ["einsum: ", "operand"]),
    ] {
        let text = text(result);
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
    let whole = zeros(&[2, 2], DType::I32);
    assert!(text(whole.addmm(&whole, &whole, 1.0, 0.5)).contains("alpha is 0.5"));
}

/// A small generator (SplitMix64), so that failures repeat.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }
}

/// Small whole numbers in a random view: dims stored in any order, some repeated, reversed, or parts of
/// larger ones.
fn view(random: &mut Random, shape: &[usize], dtype: DType) -> Tensor {
    let mut order: Vec<usize> = (0..shape.len()).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last + 1));
    }
    let kinds: Vec<usize> = shape.iter().map(|_| random.below(7)).collect();
    let stored = |dim: usize| match kinds[dim] {
        0 => 1,
        1 => 2 * shape[dim],
        2 => shape[dim] + 3,
        _ => shape[dim],
    };
    let base: Vec<usize> = order.iter().map(|dim| stored(*dim)).collect();
    let n = base.iter().product();
    let numbers: Vec<f64> = (0..n)
        .map(|_| random.below(7) as f64 - if dtype == DType::U8 { 0.0 } else { 3.0 })
        .collect();
    let back: Vec<isize> = (0..shape.len())
        .map(|dim| order.iter().position(|stored| *stored == dim).unwrap() as isize)
        .collect();
    let mut tensor = tensor(&numbers, &base, dtype).permute(&back).unwrap();
    for (dim, kind) in kinds.iter().enumerate() {
        let (at, size) = (dim as isize, shape[dim]);
        tensor = match kind {
            1 => tensor.slice(at, 0, 2 * size, 2).unwrap(),
            2 => tensor.narrow(at, 2, size).unwrap(),
            3 => tensor.flip(at).unwrap(),
            _ => tensor,
        };
    }
    tensor.expand(shape).unwrap()
}

fn tensor(values: &[f64], shape: &[usize], dtype: DType) -> Tensor {
    macro_rules! of {
        ($convert:expr) => {
            Tensor::from_vec(values.iter().map($convert).collect(), shape).unwrap()
        };
    }
    match dtype {
        DType::F32 => of!(|x| *x as f32),
        DType::F64 => of!(|x| *x),
        DType::Bf16 => of!(|x| bf16::from_f64(*x)),
        DType::F16 => of!(|x| f16::from_f64(*x)),
        DType::I64 => of!(|x| *x as i64),
        DType::I32 => of!(|x| *x as i32),
        _ => of!(|x| *x as u8),
    }
}

fn values(tensor: &Tensor) -> Vec<f64> {
    macro_rules! of {
        ($type:ty, $convert:expr) => {
            tensor.to_vec::<$type>().unwrap().iter().map($convert).collect()
        };
    }
    match tensor.dtype() {
        DType::F32 => of!(f32, |x| f64::from(*x)),
        DType::F64 => of!(f64, |x| *x),
        DType::Bf16 => of!(bf16, |x| x.to_f64()),
        DType::F16 => of!(f16, |x| x.to_f64()),
        DType::I64 => of!(i64, |x| *x as f64),
        DType::I32 => of!(i32, |x| f64::from(*x)),
        _ => of!(u8, |x| f64::from(*x)),
    }
}

/// An exact sum as the dtype has it.
fn rounded(dtype: DType, exact: f64) -> f64 {
    match dtype {
        DType::Bf16 => bf16::from_f64(exact).to_f64(),
        DType::F16 => f16::from_f64(exact).to_f64(),
        DType::U8 => (exact as i64).rem_euclid(256) as f64,
        _ => exact,
    }
}

/// Leaves NaN (or other bytes that are wrong) where the result will be: it must not be read.
fn spoil_the_pool(shape: &[usize], dtype: DType) {
    let bytes = shape.iter().product::<usize>() * dtype.size();
    drop(Tensor::full(&[bytes], 255_u8).unwrap());
}

fn reference_matmul(a: &Tensor, b: &Tensor, shape: &[usize]) -> Vec<f64> {
    sums(a, b, shape).into_iter().map(|sum| rounded(a.dtype(), sum)).collect()
}

/// The exact products of matrices, by plain loops.
fn sums(a: &Tensor, b: &Tensor, shape: &[usize]) -> Vec<f64> {
    let (left, right) = (a.n_dims() == 1, b.n_dims() == 1);
    let a = if left { a.unsqueeze(0).unwrap() } else { a.clone() };
    let b = if right { b.unsqueeze(1).unwrap() } else { b.clone() };
    let n_batch = shape.len() + usize::from(left) + usize::from(right) - 2;
    let batch = &shape[..n_batch];
    let (m, k) = (a.shape()[a.n_dims() - 2], a.shape()[a.n_dims() - 1]);
    let n = b.shape()[b.n_dims() - 1];
    let a = values(&a.expand(&[batch, &[m, k]].concat()).unwrap());
    let b = values(&b.expand(&[batch, &[k, n]].concat()).unwrap());
    let mut out = Vec::new();
    for batch in 0..batch.iter().product() {
        for i in 0..m {
            for j in 0..n {
                let term = |p| a[(batch * m + i) * k + p] * b[(batch * k + p) * n + j];
                out.push((0..k).map(term).sum());
            }
        }
    }
    out
}

fn reference_einsum(
    terms: &[&str],
    result: &str,
    operands: &[Tensor],
    size: impl Fn(char) -> usize,
    dtype: DType,
) -> Vec<f64> {
    let mut letters: Vec<char> = terms.concat().chars().collect();
    letters.sort_unstable();
    letters.dedup();
    let operands: Vec<Vec<f64>> = operands.iter().map(values).collect();
    let mut sums = vec![0.0; result.chars().map(&size).product()];
    for mut index in 0..letters.iter().map(|letter| size(*letter)).product::<usize>() {
        let mut at = std::collections::HashMap::new();
        for letter in &letters {
            at.insert(*letter, index % size(*letter));
            index /= size(*letter);
        }
        let flat = |term: &str| term.chars().fold(0, |flat, c| flat * size(c) + at[&c]);
        let product: f64 =
            terms.iter().zip(&operands).map(|(term, values)| values[flat(term)]).product();
        sums[flat(result)] += product;
    }
    sums.into_iter().map(|sum| rounded(dtype, sum)).collect()
}
