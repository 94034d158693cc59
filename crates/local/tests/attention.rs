//! Attention against the unfused composition in `f64`, and its gradients against finite differences.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

mod floats;

use dtensor_local::{DType, LocalError, Tensor, bf16, nn::Attention};
use floats::noise;
use proptest::prelude::*;

/// Sizes of one case.
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
}

impl Case {
    fn shapes(&self) -> [[usize; 4]; 4] {
        let heads = self.key_heads * self.group;
        [
            [self.batch, heads, self.n_queries, self.depth],
            [self.batch, self.key_heads, self.n_keys, self.depth],
            [self.batch, self.key_heads, self.n_keys, self.width],
            [self.batch, heads, self.n_queries, self.width],
        ]
    }

    fn settings(&self) -> Attention {
        Attention { causal: self.causal, scale: Some(0.7) }
    }

    /// The composition, with all scores.
    fn reference(&self, queries: &[f64], keys: &[f64], values: &[f64]) -> Vec<f64> {
        let Case { n_queries, n_keys, depth, width, .. } = *self;
        let mut out = Vec::new();
        for head in 0..self.batch * self.key_heads * self.group {
            let key_row = head / self.group * n_keys;
            for i in 0..n_queries {
                let query = &queries[(head * n_queries + i) * depth..][..depth];
                let n_seen = if self.causal { n_keys.min(i + 1) } else { n_keys };
                let score = |j: usize| {
                    let key = &keys[(key_row + j) * depth..][..depth];
                    query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() * 0.7
                };
                let scores: Vec<f64> = (0..n_seen).map(score).collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for e in 0..width {
                    let term = |j: usize| weights[j] * values[(key_row + j) * width + e];
                    out.push((0..n_seen).map(term).sum::<f64>() / sum);
                }
            }
        }
        out
    }
}

fn numel(shape: &[usize]) -> usize {
    shape.iter().product()
}

#[track_caller]
fn check(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(
            (got - want).abs() <= tolerance * want.abs().max(1.0),
            "{what}: {got} is not {want} at {i}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn attention_is_the_composition(
        batch in 1usize..3, key_heads in 1usize..3, group in 1usize..3, n_queries in 0usize..150,
        n_keys in 1usize..150, depth in 1usize..36, width in 1usize..36, causal: bool, seed: u64,
    ) {
        let case = Case { batch, key_heads, group, n_queries, n_keys, depth, width, causal };
        let [queries, keys, values, out_shape] = case.shapes();
        let [q, k, v] = [(&queries, 1), (&keys, 2), (&values, 3)].map(|(shape, i)| noise(numel(shape), seed ^ i));
        let want = case.reference(&q, &k, &v);
        let of = |x: &[f64], shape: &[usize]| Tensor::from_vec(x.to_vec(), shape).unwrap();
        let (out, _) = of(&q, &queries).attention(&of(&k, &keys), &of(&v, &values), &case.settings()).unwrap();
        prop_assert_eq!(out.shape(), out_shape);
        check("f64", &out.to_vec::<f64>().unwrap(), &want, 1e-12);
        // The keys as a transposed view, in f32.
        let of = |x: &[f64], shape: &[usize]| {
            Tensor::from_vec(x.iter().map(|x| *x as f32).collect(), shape).unwrap()
        };
        let view = of(&k, &keys).transpose(2, 3).unwrap().contiguous().transpose(2, 3).unwrap();
        let (out, _) = of(&q, &queries).attention(&view, &of(&v, &values), &case.settings()).unwrap();
        let out: Vec<f64> = out.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect();
        check("f32", &out, &want, 3e-5);
    }
}

#[test]
fn gradients_of_attention_are_finite_differences() {
    const STEP: f64 = 1e-5;
    let base = Case {
        batch: 1,
        key_heads: 2,
        group: 2,
        n_queries: 5,
        n_keys: 7,
        depth: 3,
        width: 4,
        causal: true,
    };
    // More than one block of keys and of queries, in few differences.
    let long =
        Case { key_heads: 1, group: 1, n_queries: 70, n_keys: 67, depth: 2, width: 1, ..base };
    for case in [base, Case { causal: false, ..base }, Case { n_queries: 9, ..base }, long] {
        let shapes = case.shapes();
        let [q, k, v, grad] = [0, 1, 2, 3].map(|i| noise(numel(&shapes[i]), 30 + i as u64));
        let tensor = |x: &[f64], i: usize| Tensor::from_vec(x.to_vec(), &shapes[i]).unwrap();
        let (queries, keys, values) = (tensor(&q, 0), tensor(&k, 1), tensor(&v, 2));
        let (out, log_sums) = queries.attention(&keys, &values, &case.settings()).unwrap();
        let grads = queries
            .attention_backward(
                &keys,
                &values,
                (&out, &log_sums),
                &tensor(&grad, 3),
                &case.settings(),
            )
            .unwrap();
        let operands = [q, k, v];
        for (which, got) in [grads.queries, grads.keys, grads.values].iter().enumerate() {
            assert_eq!(got.shape(), shapes[which]);
            let loss = |i: usize, by: f64| {
                let mut moved = operands.clone();
                moved[which][i] += by;
                let out = case.reference(&moved[0], &moved[1], &moved[2]);
                out.iter().zip(&grad).map(|(out, grad)| out * grad).sum::<f64>()
            };
            let want: Vec<f64> = (0..operands[which].len())
                .map(|i| (loss(i, STEP) - loss(i, -STEP)) / (2.0 * STEP))
                .collect();
            check(&format!("{case:?} {which}"), &got.to_vec::<f64>().unwrap(), &want, 1e-6);
        }
    }
}

#[test]
fn bf16_is_computed_in_f32_and_rounded_once() {
    let shape = [1, 2, 70, 16];
    let of = |seed| {
        let x = noise(numel(&shape), seed).into_iter().map(bf16::from_f64).collect::<Vec<_>>();
        let wide = x.iter().map(|x| x.to_f32()).collect::<Vec<_>>();
        (Tensor::from_vec(x, &shape).unwrap(), Tensor::from_vec(wide, &shape).unwrap())
    };
    let ((q, wide_q), (k, wide_k), (v, wide_v)) = (of(1), of(2), of(3));
    let settings = Attention { causal: true, scale: None };
    let (got, _) = q.attention(&k, &v, &settings).unwrap();
    let (want, _) = wide_q.attention(&wide_k, &wide_v, &settings).unwrap();
    let want: Vec<bf16> = want.to_vec::<f32>().unwrap().into_iter().map(bf16::from_f32).collect();
    assert_eq!(got.to_vec::<bf16>().unwrap(), want);
}

#[test]
fn meta_operands_give_shapes_and_misfits_are_errors() {
    let meta = |shape: &[usize]| Tensor::meta(shape, DType::F32).unwrap();
    let (queries, keys, values) =
        (meta(&[2, 8, 1 << 30, 64]), meta(&[2, 2, 9, 64]), meta(&[2, 2, 9, 5]));
    let settings = Attention::default();
    let (out, log_sums) = queries.attention(&keys, &values, &settings).unwrap();
    assert_eq!((out.shape(), log_sums.shape()), (&[2, 8, 1 << 30, 5][..], &[2, 8, 1 << 30][..]));
    let grads =
        queries.attention_backward(&keys, &values, (&out, &log_sums), &out, &settings).unwrap();
    assert_eq!(grads.values.shape(), values.shape());
    for (keys, values) in [
        (meta(&[2, 3, 9, 64]), meta(&[2, 3, 9, 5])),
        (meta(&[2, 2, 9, 63]), meta(&[2, 2, 9, 5])),
        (meta(&[2, 2, 9, 64]), meta(&[2, 2, 8, 5])),
        (meta(&[1, 2, 9, 64]), meta(&[1, 2, 9, 5])),
        (meta(&[9]), meta(&[9])),
    ] {
        assert!(matches!(
            queries.attention(&keys, &values, &settings),
            Err(LocalError::ShapeMismatch { .. })
        ));
    }
}
