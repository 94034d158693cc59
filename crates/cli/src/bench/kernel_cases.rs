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
    pub name: &'static str,
    /// Operations, or bytes read and written at least.
    pub work: f64,
    pub unit: &'static str,
    /// Calls per sample.
    pub repeats: usize,
    pub run: Box<dyn FnMut() -> Result<()>>,
}

/// All of them, in the order in which they are measured.
pub const NAMES: &[&str] = &[
    "matmul_f32_512",
    "matmul_f32_512_nt",
    "matmul_f32_512_out",
    "matmul_f32_1024",
    "matmul_f32_1024_nt",
    "matmul_f32_1024_out",
    "matmul_f32_2048",
    "matmul_f32_2048_nt",
    "matmul_f32_2048_out",
    "matmul_bf16_1024",
    "bmm_32x256x64x256",
    "add_8x8",
    "add_16M",
    "add_16M_out",
    "add_16M_inplace",
    "copy_16M_out",
    "clone_16M",
    "gelu_erf_16M",
    "gelu_erf_16M_out",
    "gelu_tanh_16M",
    "softmax_4096x1024",
    "softmax_4096x1024_out",
    "layer_norm_4096x1024",
    "sdpa_causal_4x8x256x64",
    "sdpa_causal_4x8x256x64_fwdbwd",
    "embedding_50000x512_8192idx",
    "cross_entropy_1024x8192",
    "cross_entropy_1024x8192_fwdbwd",
    "transpose_copy_4096",
    "transpose_copy_4096_out",
    "sum_dim0_4096",
    "sum_dim1_4096",
    "sum_all_4096",
    "adamw_fused_50M",
    "adamw_foreach_50M",
    "adamw_loop_50M",
];

/// The cases that are wanted. Operands are made only for those.
pub fn build(wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Case>> {
    let names = NAMES.iter().copied().filter(|name| wanted(name));
    names.map(|name| case(name, &mut Operands::default())).collect()
}

/// Random operands, different ones for every call.
#[derive(Default)]
struct Operands {
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
    name: &'static str,
    work: usize,
    unit: &'static str,
    mut call: impl FnMut() -> Result<Tensor> + 'static,
) -> Case {
    changing(name, work, unit, move || call().map(|result| drop(black_box(result))))
}

/// A case that has no result, or drops it itself.
fn changing(
    name: &'static str,
    work: usize,
    unit: &'static str,
    call: impl FnMut() -> Result<()> + 'static,
) -> Case {
    Case { name, work: work as f64, unit, repeats: 1, run: Box::new(call) }
}

const FLOPS: &str = "GFLOP/s";
const BYTES: &str = "GB/s";

fn case(name: &'static str, make: &mut Operands) -> Result<Case> {
    const N: usize = 16 << 20;
    let plain = name.strip_suffix("_out").unwrap_or(name);
    Ok(match plain {
        "matmul_f32_512" | "matmul_f32_1024" | "matmul_f32_2048" => {
            product(name, plain, false, make)?
        }
        "matmul_f32_512_nt" | "matmul_f32_1024_nt" | "matmul_f32_2048_nt" => {
            product(name, plain.trim_end_matches("_nt"), true, make)?
        }
        "matmul_bf16_1024" => {
            let a = make.normal(&[1024, 1024])?.to_dtype(DType::Bf16)?;
            let b = make.normal(&[1024, 1024])?.to_dtype(DType::Bf16)?;
            returning(name, 2 << 30, FLOPS, move || a.matmul(&b))
        }
        "bmm_32x256x64x256" => {
            let (a, b) = (make.normal(&[32, 256, 64])?, make.normal(&[32, 64, 256])?);
            returning(name, 2 * 32 * 256 * 64 * 256, FLOPS, move || a.bmm(&b))
        }
        "add_8x8" => {
            let (a, b) = (make.normal(&[8, 8])?, make.normal(&[8, 8])?);
            returning(name, 12 * 64, BYTES, move || a.add(&b))
        }
        "add_16M" => {
            let (a, b) = (make.normal(&[N])?, make.normal(&[N])?);
            returning(name, 12 * N, BYTES, move || a.add(&b))
        }
        "add_16M_inplace" => {
            let (mut a, b) = (make.normal(&[N])?, make.normal(&[N])?);
            changing(name, 12 * N, BYTES, move || a.add_assign(&b))
        }
        "copy_16M" => {
            let (mut to, from) = (Tensor::zeros(&[N], DType::F32)?, make.normal(&[N])?);
            changing(name, 8 * N, BYTES, move || to.copy_from(&from))
        }
        "clone_16M" => {
            let a = make.normal(&[N])?;
            returning(name, 8 * N, BYTES, move || Ok(a.copied()))
        }
        "gelu_erf_16M" => {
            let a = make.normal(&[N])?;
            returning(name, 8 * N, BYTES, move || a.gelu())
        }
        "gelu_tanh_16M" => {
            let a = make.normal(&[N])?;
            returning(name, 8 * N, BYTES, move || a.gelu_tanh())
        }
        "softmax_4096x1024" => {
            let a = make.normal(&[4096, 1024])?;
            returning(name, 8 * a.numel(), BYTES, move || a.softmax(-1))
        }
        "layer_norm_4096x1024" => {
            let a = make.normal(&[4096, 1024])?;
            let (weight, bias) = (make.normal(&[1024])?, make.normal(&[1024])?);
            returning(name, 8 * a.numel(), BYTES, move || {
                a.layer_norm(&[1024], Some(&weight), Some(&bias), 1e-5)
            })
        }
        "sdpa_causal_4x8x256x64" | "sdpa_causal_4x8x256x64_fwdbwd" => attention(name, make)?,
        "embedding_50000x512_8192idx" => {
            let (table, ids) = (make.normal(&[50_000, 512])?, make.indices(8192, 50_000)?);
            returning(name, 8 * 8192 * 512, BYTES, move || table.embedding(&ids))
        }
        "cross_entropy_1024x8192" => {
            let (logits, targets) = (make.normal(&[1024, 8192])?, make.indices(1024, 8192)?);
            let settings = CrossEntropy::default();
            returning(name, 4 * logits.numel(), BYTES, move || {
                Ok(logits.cross_entropy(&targets, &settings)?.0)
            })
        }
        "cross_entropy_1024x8192_fwdbwd" => {
            let (logits, targets) = (make.normal(&[1024, 8192])?, make.indices(1024, 8192)?);
            let (settings, grad) = (CrossEntropy::default(), Tensor::scalar(1.0_f32));
            returning(name, 8 * logits.numel(), BYTES, move || {
                let (_, log_sums) = logits.cross_entropy(&targets, &settings)?;
                logits.cross_entropy_backward(&targets, &log_sums, &grad, &settings)
            })
        }
        "transpose_copy_4096" if name != plain => {
            let (mut to, from) =
                (Tensor::zeros(&[4096, 4096], DType::F32)?, make.normal(&[4096, 4096])?);
            changing(name, 8 * from.numel(), BYTES, move || to.copy_from(&from.transpose(0, 1)?))
        }
        "transpose_copy_4096" => {
            let a = make.normal(&[4096, 4096])?;
            returning(name, 8 * a.numel(), BYTES, move || Ok(a.transpose(0, 1)?.contiguous()))
        }
        "sum_dim0_4096" => sum(name, &[0], make)?,
        "sum_dim1_4096" => sum(name, &[1], make)?,
        "sum_all_4096" => sum(name, &[0, 1], make)?,
        // Three ways of PyTorch's; here there is one.
        _ => adamw(name, make)?,
    })
}

fn product(name: &'static str, sized: &str, transposed: bool, make: &mut Operands) -> Result<Case> {
    let n: usize = sized.trim_start_matches("matmul_f32_").parse().unwrap_or(512);
    let (a, b) = (make.normal(&[n, n])?, make.normal(&[n, n])?);
    let b = if transposed { b.transpose(0, 1)? } else { b };
    Ok(returning(name, 2 * n * n * n, FLOPS, move || a.matmul(&b)))
}

fn attention(name: &'static str, make: &mut Operands) -> Result<Case> {
    const SHAPE: [usize; 4] = [4, 8, 256, 64];
    let work = 2 * 2 * 4 * 8 * 256 * 256 * 64 / 2;
    let [q, k, v, grad] = [(); 4].map(|()| make.normal(&SHAPE));
    let (q, k, v, grad) = (q?, k?, v?, grad?);
    let settings = Attention { causal: true, ..Attention::default() };
    if !name.ends_with("fwdbwd") {
        return Ok(returning(name, work, FLOPS, move || Ok(q.attention(&k, &v, &settings)?.0)));
    }
    Ok(changing(name, work / 2 * 7, FLOPS, move || {
        let (out, log_sums) = q.attention(&k, &v, &settings)?;
        let grads = q.attention_backward(&k, &v, (&out, &log_sums), &grad, &settings)?;
        drop(black_box(grads));
        Ok(())
    }))
}

fn sum(name: &'static str, dims: &'static [isize], make: &mut Operands) -> Result<Case> {
    let a = make.normal(&[4096, 4096])?;
    Ok(returning(name, 4 * a.numel(), BYTES, move || a.sum(dims, false)))
}

fn adamw(name: &'static str, make: &mut Operands) -> Result<Case> {
    const SHAPE: [usize; 2] = [1024, 1024];
    const TENSORS: usize = 48;
    let mut parameters = Vec::new();
    for _ in 0..TENSORS {
        let zeros = || Tensor::zeros(&SHAPE, DType::F32);
        parameters.push((make.normal(&SHAPE)?, make.normal(&SHAPE)?, zeros()?, zeros()?));
    }
    let settings = AdamW { lr: 1e-4, ..AdamW::default() };
    let mut step = 0;
    Ok(changing(name, (28 * TENSORS) << 20, BYTES, move || {
        step += 1;
        parameters.iter_mut().try_for_each(|(parameter, grad, mean, square)| {
            settings.step(parameter, grad, mean, square, step)
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_case_that_runs() {
        // The large ones take too long here; what differs is only their size.
        for name in NAMES.iter().filter(|name| name.contains("512") || name.contains("8x8")) {
            let mut case = case(name, &mut Operands::default()).unwrap();
            (case.run)().unwrap();
            assert!(case.work > 0.0);
        }
    }
}
