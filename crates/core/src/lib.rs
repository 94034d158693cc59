//! Distributed tensors: a program is written once, as for one device, and a tensor's layout on a mesh of
//! ranks decides what each rank holds and what is communicated.
//!
//! ```
//! use dtensor::{DType, DeviceMesh, Placement::{Replicate, Shard}, Runner, randn};
//!
//! fn main() -> Result<(), dtensor::RunError> {
//!     // `dtensor::run` takes the number of ranks from the environment, and processes from mpirun.
//!     Runner::threads(4).run(|world| {
//!         let mesh = DeviceMesh::new(world, &[("dp", 2), ("tp", 2)])?;
//!         let x = randn(&[6, 8], DType::F32, &mesh, &[Shard(0), Replicate])?;
//!         let w = randn(&[8, 5], DType::F32, &mesh, &[Replicate, Shard(1)])?;
//!         let y = x.matmul(&w)?;                                // nothing is sent
//!         assert_eq!(y.layout().to_string(), "[S(0), S(1)]");
//!         let whole = y.redistribute(&[Replicate, Replicate])?; // here it is
//!         assert_eq!(whole.to_local().shape(), [6, 5]);
//!         Ok::<_, dtensor::Error>(())
//!     })?;
//!     Ok(())
//! }
//! ```
//!
//! # What there is
//!
//! - [`DeviceMesh`]: ranks on named axes. [`Placement`]: per axis a tensor is cut ([`Shard`](Placement::Shard)),
//!   copied ([`Replicate`](Placement::Replicate)) or a pending reduction ([`Partial`](Placement::Partial)).
//! - [`DTensor`]: from plain tensors ([`distribute_tensor`], [`DTensor::from_local`]), from factories
//!   ([`zeros`], [`randn`], ...), with an operation per method, and back ([`DTensor::full_tensor`],
//!   [`DTensor::to_local`]).
//! - [`explicit`] and [`implicit_replication`]: what operations may do unasked.
//! - [`op`]: what an operation is, for those of your own; [`ops`]: the table of those that are there.
//! - [`CommDebug`]: what is communicated, and why.
//!
//! Who knows PyTorch's DTensor begins with [`from_pytorch`].
//!
//! # Trade-offs
//!
//! - *Every rank runs the same program.* An operation is called on all ranks of its mesh, in the same order.
//!   In return no rank asks another what to do: all decide alike from what all know.
//! - *Tensors are values.* There are no views that write through to another tensor.
//! - *An operation may communicate unasked*, where that is the cheapest way to its result. [`CommDebug`] shows
//!   it, [`explicit`] forbids it.

#![forbid(unsafe_code)]

mod autograd;
mod debug;
mod dispatch;
mod error;
mod exchange;
#[doc = include_str!("from_pytorch.md")]
pub mod from_pytorch {}
mod local_map;
mod log;
mod mesh;
pub mod op;
mod operand;
mod operators;
pub mod ops;
pub mod random;
mod redistribute;
mod scope;
mod tensor;

pub use autograd::{
    BackwardOptions, Gradients, Keeper, checkpoint, enable_grad, grad, is_grad_enabled, no_grad,
};
pub use debug::{
    AxisRows, CommDebug, CommEvent, Explanation, ModuleSpan, Phase, RowCost, detect_anomaly,
    explain, explain_calls, module_scope, phase, visualize_sharding, visualize_sharding_svg,
};
pub use dispatch::{CacheStats, RuleReplacement, cache_stats, call, clear_cache, replace_rule};
pub use dtensor_comm::{CommError, Group, RunError, Runner, World, WorldKind, run};
pub use dtensor_dtype::{DType, Element, ReduceOp, bf16, f16};
pub use dtensor_layout::{Cut, Layout, LayoutError, Mesh, MeshAxis, Placement, plan, rule};
pub use dtensor_local::{
    Interpolation, LocalError, MeshIndexing, PadMode, Scalar, ScatterReduce, Tensor,
    fft::{Elements, Norm},
    linalg::MatrixNorm,
};
pub use error::{Error, Result};
pub use local_map::{LocalOperand, LocalResult, local_map};
pub use log::log_from_env;
pub use mesh::DeviceMesh;
pub use operand::Operand;
pub use random::{
    bernoulli, cauchy, exponential, geometric, log_normal, normal, rand, randint, randn, randperm,
    uniform,
};
pub use redistribute::{PendingDTensor, RedistributeOptions};
pub use scope::{OnImplicit, explicit, implicit_replication};
pub use tensor::{
    DTensor, LocalOptions, arange, distribute_tensor, distribute_tensor_from, empty, eye, full,
    linspace, logspace, ones, zeros,
};
