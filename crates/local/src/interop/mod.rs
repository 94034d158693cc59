//! Conversions to and from the tensors of other crates, each behind the feature of its name.

#[cfg(feature = "candle")]
mod candle;
#[cfg(feature = "ndarray")]
mod ndarray;
