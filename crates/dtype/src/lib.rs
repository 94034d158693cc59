//! The eight element types and the five reductions that every dtensor crate agrees on.
//!
//! `layout` costs bytes, `comm` moves and reduces them, `local` computes with them. Those three
//! do not know each other, so the words they share live here, below all of them.
//!
//! ```
//! use dtensor_dtype::{DType, Element, ReduceOp};
//!
//! assert_eq!("bf16".parse(), Ok(DType::Bf16));
//! assert_eq!(DType::Bf16.size(), 2);
//! assert_eq!(<f32 as Element>::DTYPE, DType::F32);
//! assert_eq!(ReduceOp::Avg.to_string(), "avg");
//! // A mean of integers is not an integer: refused, never rounded.
//! assert!(!ReduceOp::Avg.supports(DType::I64));
//! ```

#![deny(unsafe_code)]

mod buffer;
mod dtype;
mod element;
mod reduce;

pub use buffer::{RecvBuffer, SendBuffer};
pub use bytemuck;
pub use dtype::{DType, UnknownDType};
pub use element::Element;
pub use half::{bf16, f16};
pub use reduce::{ReduceOp, UnknownReduceOp};
