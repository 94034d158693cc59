//! What `dtensor bench kernels` measures: where a transformer spends its time, and plain memory traffic.

use std::hint::black_box;

use dtensor_local::{
    DType, LocalError, Tensor,
    nn::{AdamW, Attention, CrossEntropy},
    random::{Distribution, Stream},
};

type Result<T> = std::result::Result<T, LocalError>;

/// A kernel on operands of its own.
pub struct Case {
    /// Operations, or bytes read and written at least.
    pub work: f64,
    pub unit: &'static str,
    pub run: Box<dyn FnMut() -> Result<()>>,
}

type Build = fn(&mut Operands) -> Result<Case>;

/// All of them, in the order in which they are measured. A case whose name ends in `_out` writes elsewhere to
/// a tensor that is there already; here the memory of the dropped result is that, except for copies.
pub const CASES: &[(&str, Build)] = &[
    ("matmul_f32_512", |make| product(512, false, make)),
    ("matmul_f32_512_nt", |make| product(512, true, make)),
    ("matmul_f32_512_out", |make| product(512, false, make)),
    ("matmul_f32_1024", |make| product(1024, false, make)),
    ("matmul_f32_1024_nt", |make| product(1024, true, make)),
    ("matmul_f32_1024_out", |make| product(1024, false, make)),
    ("matmul_f32_2048", |make| product(2048, false, make)),
    ("matmul_f32_2048_nt", |make| product(2048, true, make)),
    ("matmul_f32_2048_out", |make| product(2048, false, make)),
    ("matmul_bf16_1024", product_in_bf16),
    ("bmm_32x256x64x256", products),
    ("add_8x8", |make| add(&[8, 8], make)),
    ("add_16M", |make| add(&[N], make)),
    ("add_16M_out", |make| add(&[N], make)),
    ("add_16M_inplace", add_in_place),
    ("copy_16M_out", copy),
    ("clone_16M", |make| unary(&[N], |a| Ok(a.copied()), make)),
    ("gelu_erf_16M", |make| unary(&[N], Tensor::gelu, make)),
    ("gelu_erf_16M_out", |make| unary(&[N], Tensor::gelu, make)),
    ("gelu_tanh_16M", |make| unary(&[N], Tensor::gelu_tanh, make)),
    ("softmax_4096x1024", |make| unary(&[4096, 1024], |a| a.softmax(-1), make)),
    ("softmax_4096x1024_out", |make| unary(&[4096, 1024], |a| a.softmax(-1), make)),
    ("layer_norm_4096x1024", layer_norm),
    ("sdpa_causal_4x8x256x64", attention),
    ("sdpa_causal_4x8x256x64_fwdbwd", attention_with_gradient),
    ("embedding_50000x512_8192idx", embedding),
    ("cross_entropy_1024x8192", cross_entropy),
    ("cross_entropy_1024x8192_fwdbwd", cross_entropy_with_gradient),
    ("transpose_copy_4096", |make| {
        unary(&[4096, 4096], |a| Ok(a.transpose(0, 1)?.contiguous()), make)
    }),
    ("transpose_copy_4096_out", transpose_to),
    ("sum_dim0_4096", |make| sum(&[0], make)),
    ("sum_dim1_4096", |make| sum(&[1], make)),
    ("sum_all_4096", |make| sum(&[0, 1], make)),
    // Three ways of PyTorch's; here there is one.
    ("adamw_fused_50M", adamw),
    ("adamw_foreach_50M", adamw),
    ("adamw_loop_50M", adamw),
];

const N: usize = 16 << 20;
const FLOPS: &str = "GFLOP/s";
const BYTES: &str = "GB/s";

/// Random operands, different ones for every call.
#[derive(Default)]
pub struct Operands {
    made: u64,
}

impl Operands {
    fn normal(&mut self, shape: &[usize]) -> Result<Tensor> {
        self.random(shape, DType::F32, Distribution::Normal { mean: 0.0, std: 1.0 })
    }

    fn indices(&mut self, n: usize, below: i64) -> Result<Tensor> {
        self.random(&[n], DType::I64, Distribution::Randint { low: 0, high: below })
    }

    fn random(
        &mut self,
        shape: &[usize],
        dtype: DType,
        distribution: Distribution,
    ) -> Result<Tensor> {
        self.made += 1;
        Tensor::random(shape, dtype, distribution, Stream { seed: self.made, offset: 0 })
    }
}

/// A case whose result is dropped.
fn returning(
    work: usize,
    unit: &'static str,
    mut call: impl FnMut() -> Result<Tensor> + 'static,
) -> Result<Case> {
    changing(work, unit, move || call().map(|result| drop(black_box(result))))
}

/// A case that has no result, or drops it itself.
fn changing(
    work: usize,
    unit: &'static str,
    call: impl FnMut() -> Result<()> + 'static,
) -> Result<Case> {
    Ok(Case { work: work as f64, unit, run: Box::new(call) })
}

fn product(n: usize, transposed: bool, make: &mut Operands) -> Result<Case> {
    let (a, b) = (make.normal(&[n, n])?, make.normal(&[n, n])?);
    let b = if transposed { b.transpose(0, 1)? } else { b };
    returning(2 * n * n * n, FLOPS, move || a.matmul(&b))
}

fn product_in_bf16(make: &mut Operands) -> Result<Case> {
    let a = make.normal(&[1024, 1024])?.to_dtype(DType::Bf16)?;
    let b = make.normal(&[1024, 1024])?.to_dtype(DType::Bf16)?;
    returning(2 << 30, FLOPS, move || a.matmul(&b))
}

fn products(make: &mut Operands) -> Result<Case> {
    let (a, b) = (make.normal(&[32, 256, 64])?, make.normal(&[32, 64, 256])?);
    returning(2 * 32 * 256 * 64 * 256, FLOPS, move || a.bmm(&b))
}

fn add(shape: &[usize], make: &mut Operands) -> Result<Case> {
    let (a, b) = (make.normal(shape)?, make.normal(shape)?);
    returning(12 * a.numel(), BYTES, move || a.add(&b))
}

fn add_in_place(make: &mut Operands) -> Result<Case> {
    let (mut a, b) = (make.normal(&[N])?, make.normal(&[N])?);
    changing(12 * N, BYTES, move || a.add_assign(&b))
}

fn copy(make: &mut Operands) -> Result<Case> {
    let (mut to, from) = (Tensor::zeros(&[N], DType::F32)?, make.normal(&[N])?);
    changing(8 * N, BYTES, move || to.copy_from(&from))
}

fn unary(
    shape: &[usize],
    call: fn(&Tensor) -> Result<Tensor>,
    make: &mut Operands,
) -> Result<Case> {
    let a = make.normal(shape)?;
    returning(8 * a.numel(), BYTES, move || call(&a))
}

fn layer_norm(make: &mut Operands) -> Result<Case> {
    let a = make.normal(&[4096, 1024])?;
    let (weight, bias) = (make.normal(&[1024])?, make.normal(&[1024])?);
    returning(8 * a.numel(), BYTES, move || a.layer_norm(&[1024], Some(&weight), Some(&bias), 1e-5))
}

const HEADS: [usize; 4] = [4, 8, 256, 64];
const CAUSAL: Attention = Attention { causal: true, scale: None };
/// Two products, of which the mask leaves half.
const ATTENTION: usize = 2 * 2 * 4 * 8 * 256 * 256 * 64 / 2;

fn attention(make: &mut Operands) -> Result<Case> {
    let [q, k, v] = [(); 3].map(|()| make.normal(&HEADS));
    let (q, k, v) = (q?, k?, v?);
    returning(ATTENTION, FLOPS, move || Ok(q.attention(&k, &v, &CAUSAL)?.0))
}

fn attention_with_gradient(make: &mut Operands) -> Result<Case> {
    let [q, k, v, grad] = [(); 4].map(|()| make.normal(&HEADS));
    let (q, k, v, grad) = (q?, k?, v?, grad?);
    changing(ATTENTION / 2 * 7, FLOPS, move || {
        let (out, log_sums) = q.attention(&k, &v, &CAUSAL)?;
        let grads = q.attention_backward(&k, &v, (&out, &log_sums), &grad, &CAUSAL)?;
        drop(black_box(grads));
        Ok(())
    })
}

fn embedding(make: &mut Operands) -> Result<Case> {
    let (table, ids) = (make.normal(&[50_000, 512])?, make.indices(8192, 50_000)?);
    returning(8 * 8192 * 512, BYTES, move || table.embedding(&ids))
}

fn cross_entropy(make: &mut Operands) -> Result<Case> {
    let (logits, targets) = (make.normal(&[1024, 8192])?, make.indices(1024, 8192)?);
    let settings = CrossEntropy::default();
    returning(4 * logits.numel(), BYTES, move || Ok(logits.cross_entropy(&targets, &settings)?.0))
}

fn cross_entropy_with_gradient(make: &mut Operands) -> Result<Case> {
    let (logits, targets) = (make.normal(&[1024, 8192])?, make.indices(1024, 8192)?);
    let (settings, grad) = (CrossEntropy::default(), Tensor::scalar(1.0_f32));
    returning(8 * logits.numel(), BYTES, move || {
        let (_, log_sums) = logits.cross_entropy(&targets, &settings)?;
        logits.cross_entropy_backward(&targets, &log_sums, &grad, &settings)
    })
}

fn transpose_to(make: &mut Operands) -> Result<Case> {
    let (mut to, from) = (Tensor::zeros(&[4096, 4096], DType::F32)?, make.normal(&[4096, 4096])?);
    changing(8 * from.numel(), BYTES, move || to.copy_from(&from.transpose(0, 1)?))
}

fn sum(dims: &'static [isize], make: &mut Operands) -> Result<Case> {
    let a = make.normal(&[4096, 4096])?;
    returning(4 * a.numel(), BYTES, move || a.sum(dims, false))
}

fn adamw(make: &mut Operands) -> Result<Case> {
    const SHAPE: [usize; 2] = [1024, 1024];
    const TENSORS: usize = 48;
    let mut parameters = Vec::new();
    for _ in 0..TENSORS {
        let zeros = || Tensor::zeros(&SHAPE, DType::F32);
        parameters.push((make.normal(&SHAPE)?, make.normal(&SHAPE)?, zeros()?, zeros()?));
    }
    let settings = AdamW { lr: 1e-4, ..AdamW::default() };
    let mut step = 0;
    changing((28 * TENSORS) << 20, BYTES, move || {
        step += 1;
        parameters.iter_mut().try_for_each(|(parameter, grad, mean, square)| {
            settings.step(parameter, grad, mean, square, step)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_different_and_the_small_cases_run() {
        let names: std::collections::BTreeSet<_> = CASES.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), CASES.len());
        // The large ones take too long here.
        for (name, build) in CASES.iter().filter(|(name, _)| name.contains("512")) {
            let mut case = build(&mut Operands::default()).unwrap();
            (case.run)().unwrap();
            assert!(case.work > 0.0, "{name}");
        }
    }
}
