//! Random values by global index: a shard fills itself, and every layout gets the same values.
//!
//! The value of an element is a function of the seed, the offset of the stream and the element's index in the
//! *global* tensor (Philox4x32-10, a counter-based generator), and of nothing else: not of the rank, the
//! number of threads, or the order of the fill.
//!
//! ```
//! use dtensor_local::{DType, Tensor, random::{Distribution, Stream}};
//!
//! let stream = Stream { seed: 7, offset: 0 };
//! let normal = Distribution::Normal { mean: 0.0, std: 1.0 };
//! let whole = Tensor::random(&[4, 6], DType::F32, normal, stream)?;
//! // The rank that holds columns 2 to 4 makes them itself.
//! let part = Tensor::random_shard(&[4, 2], DType::F32, normal, stream, &[4, 6], &[vec![0..4, 2..4]])?;
//! assert_eq!(part.to_vec::<f32>()?, whole.narrow(1, 2, 2)?.to_vec::<f32>()?);
//! # Ok::<(), dtensor_local::LocalError>(())
//! ```
//!
//! # How it works
//!
//! One call of Philox gives 128 bits. Its counter is a number of such a block in the lower half and the offset
//! of the stream in the upper half; its key is the seed. Distributions that need 32 bits per element take four
//! elements from a block, those that need 64 take two. The next random operation of a program takes the next
//! offset: blocks of different operations never meet.
//!
//! [`Tensor::random_permutation`](crate::Tensor::random_permutation) sorts indices by keys of 64 bits.
//!
//! `f32` normals (Box and Muller) are computed with polynomials of our own and without fused
//! multiplication, so that they are the same on every processor.

mod distribution;
mod fill;
mod normal;
mod philox;

pub use distribution::Distribution;
pub use philox::{Stream, philox4x32_10};
