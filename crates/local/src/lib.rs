//! Dense tensors in the memory of one rank: dtypes, views, kernels, a buffer pool.
//!
//! ```
//! use dtensor_local::{DType, Tensor};
//!
//! let a = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
//! let t = a.transpose(0, 1)?;             // a view: nothing is copied
//! assert_eq!(t.shape(), [3, 2]);
//! assert_eq!(t.to_vec::<f32>()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
//! assert_eq!(t.narrow(0, 1, 2)?.select(1, -1)?.to_vec::<f32>()?, [5.0, 6.0]);
//!
//! // A tensor without data, for dry runs: shapes only.
//! let meta = Tensor::meta(&[1 << 20, 1 << 20], DType::Bf16)?;
//! assert_eq!(meta.transpose(0, 1)?.shape(), [1 << 20, 1 << 20]);
//! # Ok::<(), dtensor_local::LocalError>(())
//! ```
//!
//! # Trade-offs
//!
//! * A tensor is an immutable value: clones and views share its memory. What writes in place
//!   ([`Tensor::as_mut_slice`]) copies first if somebody else can see it.
//! * Buffers come from a pool and go back to it ([`pool_stats`], [`set_pool_limit`], [`trim_pool`]):
//!   memory that a program has used once stays with it, up to a limit. So there are no `out`
//!   arguments: drop the old result before computing the new one, and it gets the same memory.
//! * Nothing communicates here, and nothing knows of a placement.
//!
//! # What there is
//!
//! Operations are methods of [`Tensor`] with the names and semantics of PyTorch; [`nn`], [`linalg`],
//! [`fft`] and [`random`] have the settings of some, and functions of their own. All give a
//! [`Result`]; none panics on its operands. Kernels of several processors are compiled in, and the
//! best is chosen when the program runs; pieces of work go to [`threads`], and the bits of a result
//! do not depend on how many there are.

// Kernels read and write raw memory. The arguments stand beside each block.
#![allow(unsafe_code)]

mod by_dtype;
mod bytes;
mod copy;
mod create;
mod dims;
mod disjoint;
mod display;
mod elementwise;
mod error;
pub mod fft;
mod indexing;
mod interop;
pub mod linalg;
mod matmul;
mod message;
pub mod nn;
mod pool;
pub mod random;
mod reduce;
mod run;
mod simd;
mod storage;
mod tensor;
mod threads;
mod transpose;
mod views;

pub use create::Sequence;
pub use dims::normal_dim;
pub use dtensor_dtype::{DType, Element, bf16, f16};
pub use elementwise::{Scalar, promote};
pub use error::{LocalError, Result};
pub use indexing::{MeshIndexing, PadMode, ScatterReduce};
pub use message::{RecvTensor, SendTensor};
pub use pool::{ALIGN, PoolStats, pool_stats, set_pool_limit, trim_pool};
pub use reduce::{Interpolation, Unique};
pub use tensor::Tensor;
pub use threads::{set_threads, share_threads, threads};
