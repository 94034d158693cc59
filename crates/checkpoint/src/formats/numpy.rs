//! NumPy's scalars, which end up in checkpoints as learning rates and losses.
//!
//! ```text
//! scalar(dtype, bytes)    dtype = numpy.dtype("f4", False, True), filled with (version, byte order, ...)
//! ```

use super::pickle::{Global, Object, Tree};
use crate::Value;

/// The value of a scalar, if it is a number of up to 64 bits in this machine's byte order.
pub(super) fn scalar(tree: &Tree<'_>, dtype: Object, bytes: &[u8]) -> Option<Value> {
    let dtype = tree.call(dtype).filter(|call| call.callee == Global::NumpyDType)?;
    let kind = tree.text(*tree.tuple(dtype.arguments)?.first()?)?;
    let order = tree.text(*tree.tuple(dtype.state?)?.get(1)?)?;
    if !matches!(order, "<" | "|") {
        return None;
    }
    let sign = if bytes.last()? & 0x80 == 0 { 0 } else { 0xff };
    let filled = |fill: u8| {
        let mut wide = [fill; 8];
        wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(wide)
    };
    match (kind, bytes.len()) {
        ("b1", 1) => Some(Value::Bool(bytes != [0])),
        ("f4", 4) => Some(f32::from_le_bytes(bytes.try_into().ok()?).into()),
        ("f8", 8) => Some(f64::from_le_bytes(filled(0)?).into()),
        ("i1", 1) | ("i2", 2) | ("i4", 4) | ("i8", 8) => {
            Some(i64::from_le_bytes(filled(sign)?).into())
        }
        ("u1", 1) | ("u2", 2) | ("u4", 4) | ("u8", 8) => {
            Some(i64::try_from(u64::from_le_bytes(filled(0)?)).ok()?.into())
        }
        _ => None,
    }
}
