//! Printing, as NumPy prints: nested brackets, aligned columns, the middle of long dims left out.

use std::fmt;

use crate::{DType, Element, Tensor, bf16, f16};

/// A dim longer than this is shown by its ends, if the tensor has more elements than
/// [`MAX_WHOLE`].
const ENDS: usize = 3;
const MAX_WHOLE: usize = 1000;

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_meta() {
            return write!(f, "{}{:?} (meta)", self.dtype(), self.shape());
        }
        let elide = self.numel() > MAX_WHOLE;
        let texts = match self.dtype() {
            DType::F32 => texts::<f32>(self, elide, float),
            DType::F64 => texts::<f64>(self, elide, float),
            DType::Bf16 => texts::<bf16>(self, elide, float),
            DType::F16 => texts::<f16>(self, elide, float),
            DType::I64 => texts::<i64>(self, elide, plain),
            DType::I32 => texts::<i32>(self, elide, plain),
            DType::U8 => texts::<u8>(self, elide, plain),
            DType::Bool => texts::<bool>(self, elide, plain),
        };
        let width = texts.iter().map(String::len).max().unwrap_or(0);
        let mut texts = texts.into_iter();
        write_dim(f, self.shape(), 0, elide, width, &mut texts)?;
        write!(f, " {}{:?}", self.dtype(), self.shape())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The indices of a dim that are shown; `None` stands for those left out.
fn shown(size: usize, elide: bool) -> Vec<Option<usize>> {
    if !elide || size <= 2 * ENDS {
        return (0..size).map(Some).collect();
    }
    (0..ENDS).map(Some).chain([None]).chain((size - ENDS..size).map(Some)).collect()
}

/// The texts of all elements that are shown, in order.
fn texts<T: Element>(tensor: &Tensor, elide: bool, text: fn(&T) -> String) -> Vec<String> {
    let Some(size) = tensor.shape().first().copied() else {
        return tensor.item::<T>().iter().map(text).collect();
    };
    let parts = shown(size, elide).into_iter().flatten();
    parts
        .filter_map(|index| tensor.select(0, index as isize).ok())
        .flat_map(|part| texts(&part, elide, text))
        .collect()
}

fn write_dim(
    f: &mut fmt::Formatter<'_>,
    shape: &[usize],
    depth: usize,
    elide: bool,
    width: usize,
    texts: &mut impl Iterator<Item = String>,
) -> fmt::Result {
    let Some((size, inner)) = shape.split_first() else {
        return write!(f, "{:>width$}", texts.next().unwrap_or_default());
    };
    f.write_str("[")?;
    for (position, index) in shown(*size, elide).into_iter().enumerate() {
        if position > 0 {
            match inner.len() {
                0 => f.write_str(", ")?,
                // One line per row, and one empty line more for every dim above the rows.
                lines => write!(f, ",{:\n<lines$}{:depth$} ", "", "")?,
            }
        }
        match index {
            Some(_) => write_dim(f, inner, depth + 1, elide, width, texts)?,
            None => f.write_str("...")?,
        }
    }
    f.write_str("]")
}

fn plain<T: fmt::Display>(value: &T) -> String {
    value.to_string()
}

/// The shortest text that means the value, with a point so that it is seen to be a float.
fn float<T: Copy + Into<f64> + fmt::Display>(value: &T) -> String {
    let (text, wide) = (value.to_string(), (*value).into());
    let large = wide != 0.0 && !(1e-4..1e8).contains(&wide.abs());
    match wide.is_finite() {
        true if large => format!("{wide:e}"),
        true if !text.contains('.') => text + ".",
        _ => text,
    }
}
