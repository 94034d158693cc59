//! New tensors of random numbers: every rank makes its own part, and nothing is sent.

use std::ops::Range;

use dtensor_dtype::{bf16, f16};
use dtensor_layout::{DType, Layout, Placement};
use dtensor_local::{LocalError, Tensor, random::Distribution};

use super::draw::{RandomOp, by_stream, of_layout};
use crate::{DTensor, DeviceMesh, Error, Result};

const UNIT: Distribution = Distribution::Uniform { low: 0.0, high: 1.0 };
const STANDARD_NORMAL: Distribution = Distribution::Normal { mean: 0.0, std: 1.0 };

/// Values evenly in `0..1`. The same for every layout and number of ranks; see [`random`](crate::random).
pub fn rand(
    shape: &[usize],
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    filled(RandomOp::Rand, UNIT, shape, dtype, mesh, placements)
}

/// Gaussian values of mean 0 and standard deviation 1.
pub fn randn(
    shape: &[usize],
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    filled(RandomOp::Randn, STANDARD_NORMAL, shape, dtype, mesh, placements)
}

/// Integers in `low..high`, of any dtype that holds them exactly.
pub fn randint(
    low: i64,
    high: i64,
    shape: &[usize],
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    let distribution = Distribution::Randint { low, high };
    filled(RandomOp::Randint, distribution, shape, dtype, mesh, placements)
}

/// The numbers from 0 to `n - 1` in a random order, of any dtype that holds them exactly but `bool`. As
/// `torch.randperm`.
///
/// Every rank sorts `n` keys of 64 bits and takes its part: nothing is sent, and nothing is saved by cutting
/// it, but the memory of the result.
///
/// ```
/// use dtensor::{DType, DeviceMesh, Placement::Shard, Runner, arange, randperm};
///
/// Runner::threads(3).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "x")?;
///     let order = randperm(10, DType::I64, &mesh, &[Shard(0)])?;
///     assert_eq!(order.to_local().numel(), [4, 4, 2][world.rank()]);
///     let shuffled = arange(0, 10, 1, DType::F32, &mesh, &[Shard(0)])?.index_select(0, &order)?;
///     assert_eq!(shuffled.sum(&[], false)?.item::<f32>()?, 45.0);
///     Ok::<_, dtensor::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn randperm(
    n: usize,
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    let op = RandomOp::Randperm;
    let layout =
        Layout::new(&[n], dtype, mesh.mesh(), placements).map_err(Error::layout(op.name()))?;
    check_permutation(op.name(), n, dtype)?;
    by_stream(op, &layout, mesh, |stream, part| {
        let whole = Tensor::random_permutation(n, stream)?;
        let pieces = part.ranges[0].iter();
        let pieces = pieces.map(|range: &Range<usize>| whole.narrow(0, range.start, range.len()));
        let pieces = pieces.collect::<Result<Vec<_>, LocalError>>()?;
        let part = match &*pieces {
            [] => Tensor::empty(&[0], DType::I64)?,
            // In memory of its own: the whole is longer.
            [piece] if piece.numel() < n => piece.copied(),
            [piece] => piece.clone(),
            pieces => Tensor::cat(&pieces.iter().collect::<Vec<_>>(), 0)?,
        };
        Ok(part.to_dtype(dtype)?)
    })
}

macro_rules! distributions {
    ($(
        $(#[$doc:meta])*
        $function:ident $like:ident ($($setting:ident),*) $Op:ident $Like:ident $Distribution:ident;
    )*) => {
        $(
            $(#[$doc])*
            pub fn $function(
                $($setting: f64,)*
                shape: &[usize],
                dtype: DType,
                mesh: &DeviceMesh,
                placements: &[Placement],
            ) -> Result<DTensor> {
                let distribution = Distribution::$Distribution { $($setting),* };
                filled(RandomOp::$Op, distribution, shape, dtype, mesh, placements)
            }
        )*

        impl DTensor {
            $(
                $(#[$doc])*
                ///
                /// In the same shape, dtype and layout.
                pub fn $like(&self, $($setting: f64),*) -> Result<DTensor> {
                    filled_like(RandomOp::$Like, self, Distribution::$Distribution { $($setting),* })
                }
            )*
        }
    };
}

distributions! {
    /// Values evenly in `low..high`; floating point. As `Tensor.uniform_`.
    uniform uniform_like (low, high) Uniform UniformLike Uniform;

    /// Gaussian values; floating point. As `torch.normal` and `Tensor.normal_`.
    normal normal_like (mean, std) Normal NormalLike Normal;

    /// Exponentials of Gaussian values, of which these are mean and standard deviation; floating point. As
    /// `Tensor.log_normal_`.
    log_normal log_normal_like (mean, std) LogNormal LogNormalLike LogNormal;

    /// Positive values of density `rate * exp(-rate * x)`; floating point. As `Tensor.exponential_`.
    exponential exponential_like (rate) Exponential ExponentialLike Exponential;

    /// Values of density `sigma / (pi * (sigma^2 + (x - median)^2))`; floating point. As `Tensor.cauchy_`.
    cauchy cauchy_like (median, sigma) Cauchy CauchyLike Cauchy;

    /// How many coins, each one with this probability, are thrown until the first one, which is counted; any
    /// dtype but `bool`. As `Tensor.geometric_`.
    geometric geometric_like (probability) Geometric GeometricLike Geometric;

    /// One with this probability, else zero; any dtype. As `Tensor.bernoulli_`.
    bernoulli bernoulli_like (probability) Bernoulli BernoulliLike Bernoulli;
}

impl DTensor {
    /// Values evenly in `0..1` in the same shape, dtype and layout.
    pub fn rand_like(&self) -> Result<DTensor> {
        filled_like(RandomOp::RandLike, self, UNIT)
    }

    /// Gaussian values of mean 0 and standard deviation 1 in the same shape, dtype and layout.
    pub fn randn_like(&self) -> Result<DTensor> {
        filled_like(RandomOp::RandnLike, self, STANDARD_NORMAL)
    }

    /// Integers in `low..high` in the same shape, dtype and layout.
    pub fn randint_like(&self, low: i64, high: i64) -> Result<DTensor> {
        filled_like(RandomOp::RandintLike, self, Distribution::Randint { low, high })
    }

    /// One with probability `p`, else zero, in the same shape, dtype and layout: another name of
    /// [`bernoulli_like`](DTensor::bernoulli_like), as `Tensor.bernoulli(p)`.
    pub fn bernoulli(&self, p: f64) -> Result<DTensor> {
        self.bernoulli_like(p)
    }
}

fn filled(
    op: RandomOp,
    distribution: Distribution,
    shape: &[usize],
    dtype: DType,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    let layout = Layout::new(shape, dtype, mesh.mesh(), placements);
    of_layout(op, &layout.map_err(Error::layout(op.name()))?, mesh, distribution)
}

fn filled_like(op: RandomOp, like: &DTensor, distribution: Distribution) -> Result<DTensor> {
    of_layout(op, like.layout(), like.mesh(), distribution)
}

/// Refuses numbers that the dtype does not have.
fn check_permutation(op: &'static str, n: usize, dtype: DType) -> Result<()> {
    let most = match dtype {
        DType::Bool => {
            return Err(LocalError::WrongDType { op, got: dtype, want: DType::I64 }.into());
        }
        DType::U8 => 1 << 8,
        DType::I32 => 1 << 31,
        DType::I64 => 1 << 63,
        // Up to 2^digits there are no gaps.
        DType::F64 => (1_u64 << f64::MANTISSA_DIGITS) + 1,
        DType::F32 => (1 << f32::MANTISSA_DIGITS) + 1,
        DType::F16 => (1 << f16::MANTISSA_DIGITS) + 1,
        DType::Bf16 => (1 << bf16::MANTISSA_DIGITS) + 1,
    };
    if n as u64 <= most {
        return Ok(());
    }
    let want = "a number such that the dtype has all smaller ones";
    Err(LocalError::BadNumber { op, name: "n", got: n.to_string(), want }.into())
}
