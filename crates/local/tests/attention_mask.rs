//! Attention with masks and dropout against the unfused composition, its gradients against finite differences.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

mod floats;

use dtensor_local::{
    DType, LocalError, Tensor,
    nn::{Attention, AttentionMask},
};
use floats::{check, differences, noise, noisy, tensor, values};
use proptest::prelude::*;

const SCALE: f64 = 0.7;
const P: f64 = 0.25;

/// Sizes of one case, and which masks it has.
#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    key_heads: usize,
    group: usize,
    n_queries: usize,
    n_keys: usize,
    depth: usize,
    width: usize,
    causal: bool,
    /// None, of `bool`, or of floats.
    mask: usize,
    has_dropout: bool,
    /// Dims of the masks that are broadcast, by bit.
    broadcast: usize,
    seed: u64,
}

impl Case {
    fn heads(&self) -> usize {
        self.key_heads * self.group
    }

    fn shapes(&self) -> [[usize; 4]; 4] {
        [
            [self.batch, self.heads(), self.n_queries, self.depth],
            [self.batch, self.key_heads, self.n_keys, self.depth],
            [self.batch, self.key_heads, self.n_keys, self.width],
            [self.batch, self.heads(), self.n_queries, self.width],
        ]
    }

    fn settings(&self) -> Attention {
        Attention { causal: self.causal, scale: Some(SCALE) }
    }

    /// `[batch, heads, queries, keys]`, some of them 1.
    fn mask_shape(&self) -> Vec<usize> {
        let full = [self.batch, self.heads(), self.n_queries, self.n_keys];
        (0..4).map(|dim| if self.broadcast >> dim & 1 == 1 { 1 } else { full[dim] }).collect()
    }

    /// The mask in any floating-point dtype or `bool`, and what stays of the weights.
    fn masks(&self, dtype: DType) -> (Option<Tensor>, Option<Tensor>) {
        let shape = self.mask_shape();
        let n = shape.iter().product();
        let bools = |seed: u64, above: f64| {
            let bools = noise(n, self.seed ^ seed).iter().map(|x| *x > above).collect();
            Tensor::from_vec(bools, &shape).unwrap()
        };
        let added = || {
            let values = noise(n, self.seed ^ 8);
            let hidden = |x: &f64| if *x < -1.0 { f64::NEG_INFINITY } else { *x };
            tensor(&values.iter().map(hidden).collect::<Vec<_>>(), &shape, dtype)
        };
        let mask = match self.mask {
            0 => None,
            1 => Some(bools(7, -0.5)),
            _ => Some(added()),
        };
        (mask, self.has_dropout.then(|| bools(9, -1.0)))
    }

    /// The composition, with all scores. Masks as values for every head, query and key.
    fn reference(&self, [q, k, v]: [&[f64]; 3], added: &[f64], factors: &[f64]) -> Vec<f64> {
        let Case { n_queries, n_keys, depth, width, .. } = *self;
        let mut out = Vec::new();
        for row in 0..self.batch * self.heads() * n_queries {
            let (head, query) = (row / n_queries, row % n_queries);
            let key_row = head / self.group * n_keys;
            let score = |j: usize| {
                let product: f64 =
                    (0..depth).map(|d| q[row * depth + d] * k[(key_row + j) * depth + d]).sum();
                let hidden = self.causal && j > query;
                if hidden { f64::NEG_INFINITY } else { product * SCALE + added[row * n_keys + j] }
            };
            let scores: Vec<f64> = (0..n_keys).map(score).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores
                .iter()
                .map(|s| if *s == f64::NEG_INFINITY { 0.0 } else { (s - largest).exp() })
                .collect();
            let sum: f64 = weights.iter().sum();
            for e in 0..width {
                let term = |j: usize| {
                    weights[j] * factors[row * n_keys + j] * v[(key_row + j) * width + e]
                };
                let all: f64 = (0..n_keys).map(term).sum();
                out.push(if sum == 0.0 { 0.0 } else { all / sum });
            }
        }
        out
    }

    /// The masks for every head, query and key: what is added, and what weights are multiplied by.
    fn full_masks(&self) -> [Vec<f64>; 2] {
        let full = [self.batch, self.heads(), self.n_queries, self.n_keys];
        let n = full.iter().product();
        let (mask, kept) = self.masks(DType::F64);
        let bools = |tensor: &Tensor| tensor.expand(&full).unwrap().to_vec::<bool>().unwrap();
        let added = match &mask {
            None => vec![0.0; n],
            Some(mask) if mask.dtype() == DType::Bool => {
                bools(mask).iter().map(|seen| if *seen { 0.0 } else { f64::NEG_INFINITY }).collect()
            }
            Some(mask) => values(&mask.expand(&full).unwrap()),
        };
        let factor = |kept: &bool| if *kept { 1.0 / (1.0 - P) } else { 0.0 };
        [added, kept.map_or(vec![1.0; n], |kept| bools(&kept).iter().map(factor).collect())]
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let sizes = (1usize..3, 1usize..3, 1usize..3, 1usize..90, 1usize..140, 1usize..9, 1usize..9);
    (sizes, any::<bool>(), 0usize..3, any::<bool>(), 0usize..16, any::<u64>()).prop_map(
        |(
            (batch, key_heads, group, n_queries, n_keys, depth, width),
            causal,
            mask,
            has_dropout,
            broadcast,
            seed,
        )| Case {
            batch,
            key_heads,
            group,
            n_queries,
            n_keys,
            depth,
            width,
            causal,
            mask,
            has_dropout,
            broadcast,
            seed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn masked_attention_is_the_composition(case in cases()) {
        let shapes = case.shapes();
        let [added, factors] = case.full_masks();
        let mut want = Vec::new();
        for dtype in [DType::F64, DType::F32] {
            let [q, k, v] = [0, 1, 2].map(|i| noisy(&shapes[i], case.seed ^ i as u64, dtype));
            if dtype == DType::F64 {
                want = case.reference([&values(&q), &values(&k), &values(&v)], &added, &factors);
            }
            let (mask, kept) = case.masks(dtype);
            let masks = AttentionMask { mask: mask.as_ref(), dropout: kept.as_ref().map(|kept| (kept, P)) };
            let (out, _) = q.attention_masked(&k, &v, &case.settings(), &masks).unwrap();
            prop_assert_eq!(out.shape(), shapes[3]);
            check("masked", &out, &want, 20.0);
        }
    }
}

#[test]
fn gradients_of_masked_attention_are_finite_differences() {
    let base = Case {
        batch: 2,
        key_heads: 2,
        group: 2,
        n_queries: 4,
        n_keys: 5,
        depth: 2,
        width: 3,
        causal: false,
        mask: 1,
        has_dropout: true,
        broadcast: 0,
        seed: 3,
    };
    // More than one block of keys and of queries, in few differences.
    let long = Case {
        batch: 1,
        key_heads: 1,
        group: 1,
        n_queries: 66,
        n_keys: 67,
        depth: 1,
        width: 1,
        ..base
    };
    let cases = [
        base,
        Case { mask: 2, causal: true, broadcast: 0b0011, ..base },
        Case { mask: 0, broadcast: 0b1000, ..base },
        Case { has_dropout: false, mask: 1, broadcast: 0b0100, ..base },
        long,
        Case { mask: 2, causal: true, ..long },
    ];
    for case in cases {
        let shapes = case.shapes();
        let [q, k, v, grad] = [0, 1, 2, 3].map(|i| noisy(&shapes[i], 30 + i as u64, DType::F64));
        let [added, factors] = case.full_masks();
        let (mask, kept) = case.masks(DType::F64);
        let masks =
            AttentionMask { mask: mask.as_ref(), dropout: kept.as_ref().map(|kept| (kept, P)) };
        let settings = case.settings();
        let (out, log_sums) = q.attention_masked(&k, &v, &settings, &masks).unwrap();
        let grads = q
            .attention_masked_backward(&k, &v, (&out, &log_sums), &grad, &settings, &masks)
            .unwrap();
        let operands = [values(&q), values(&k), values(&v)];
        for (which, got) in [grads.queries, grads.keys, grads.values].iter().enumerate() {
            let want = differences(&operands[which], &values(&grad), |moved| {
                let mut all = [&operands[0][..], &operands[1], &operands[2]];
                all[which] = moved;
                case.reference(all, &added, &factors)
            });
            check(&format!("{case:?} {which}"), got, &want, 1e5);
        }
    }
}

#[test]
fn a_query_that_sees_no_key_gives_zeros_and_has_no_gradient() {
    let q = noisy(&[1, 1, 2, 3], 1, DType::F32);
    let mask = Tensor::from_vec(vec![false, true], &[2, 1]).unwrap();
    let masks = AttentionMask { mask: Some(&mask), dropout: None };
    let (out, sums) = q.attention_masked(&q, &q, &Attention::default(), &masks).unwrap();
    assert_eq!(out.to_vec::<f32>().unwrap()[..3], [0.0; 3]);
    let grads = q
        .attention_masked_backward(&q, &q, (&out, &sums), &q, &Attention::default(), &masks)
        .unwrap();
    let of_queries = grads.queries.to_vec::<f32>().unwrap();
    assert_eq!(of_queries[..3], [0.0; 3]);
    assert!(grads.keys.to_vec::<f32>().unwrap().iter().chain(&of_queries).all(|x| x.is_finite()));
    // No keys at all are the same.
    let none = Tensor::zeros(&[1, 1, 0, 3], DType::F32).unwrap();
    let (out, _) = q.attention(&none, &none, &Attention::default()).unwrap();
    assert_eq!(out.to_vec::<f32>().unwrap(), [0.0; 6]);
}

#[test]
fn masks_that_do_not_fit_are_errors() {
    let q = Tensor::meta(&[2, 4, 5, 3], DType::F32).unwrap();
    let k = Tensor::meta(&[2, 4, 7, 3], DType::F32).unwrap();
    let run = |mask: Option<&Tensor>, dropout: Option<(&Tensor, f64)>| {
        q.attention_masked(&k, &k, &Attention::default(), &AttentionMask { mask, dropout })
            .map(|_| ())
    };
    let of = |shape: &[usize], dtype: DType| Tensor::meta(shape, dtype).unwrap();
    assert!(run(Some(&of(&[5, 7], DType::Bool)), None).is_ok());
    assert!(run(Some(&of(&[2, 1, 5, 1], DType::F32)), Some((&of(&[7], DType::Bool), 0.5))).is_ok());
    let fails = run(Some(&of(&[7, 5], DType::Bool)), None);
    assert!(matches!(fails, Err(LocalError::ShapeMismatch { .. })));
    assert!(matches!(
        run(Some(&of(&[5, 7], DType::F64)), None),
        Err(LocalError::WrongDType { .. })
    ));
    let kept = of(&[5, 7], DType::Bool);
    assert!(matches!(run(None, Some((&kept, 1.5))), Err(LocalError::BadNumber { .. })));
    assert!(matches!(run(None, Some((&q, 0.5))), Err(LocalError::WrongDType { .. })));
}
