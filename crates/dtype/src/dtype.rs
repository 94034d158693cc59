use std::{fmt, str::FromStr};

/// The type of one tensor element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
    /// The upper half of an `F32`: 8 bits of exponent, 7 of fraction.
    Bf16,
    /// IEEE 754 half precision.
    F16,
    /// 64-bit signed integer.
    I64,
    /// 32-bit signed integer.
    I32,
    /// 8-bit unsigned integer.
    U8,
    /// One byte, 0 or 1.
    Bool,
}

/// A text that names no [`DType`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype `{0}`: one of f32, f64, bf16, f16, i64, i32, u8, bool")]
pub struct UnknownDType(pub String);

impl DType {
    /// Every dtype, in the order of the documentation.
    pub const ALL: [DType; 8] = [
        DType::F32,
        DType::F64,
        DType::Bf16,
        DType::F16,
        DType::I64,
        DType::I32,
        DType::U8,
        DType::Bool,
    ];

    /// Bytes of one element.
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::Bf16 | DType::F16 => 2,
            DType::U8 | DType::Bool => 1,
        }
    }

    /// Whether it is one of the four floating-point types.
    #[inline]
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::Bf16 | DType::F16)
    }

    /// The name that [`Display`](fmt::Display) prints and [`FromStr`] parses.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::I64 => "i64",
            DType::I32 => "i32",
            DType::U8 => "u8",
            DType::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = UnknownDType;

    /// Parses our own names and PyTorch's (`float32`, `bfloat16`, `int64`, `uint8`, ...).
    fn from_str(text: &str) -> Result<DType, UnknownDType> {
        Ok(match text.trim().trim_start_matches("torch.") {
            "f32" | "float32" | "float" => DType::F32,
            "f64" | "float64" | "double" => DType::F64,
            "bf16" | "bfloat16" => DType::Bf16,
            "f16" | "float16" | "half" => DType::F16,
            "i64" | "int64" | "long" => DType::I64,
            "i32" | "int32" | "int" => DType::I32,
            "u8" | "uint8" | "byte" => DType::U8,
            "bool" => DType::Bool,
            _ => return Err(UnknownDType(text.to_string())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_prints_and_parses_back() {
        for dtype in DType::ALL {
            assert_eq!(dtype.to_string().parse(), Ok(dtype));
        }
    }

    #[test]
    fn a_wrong_name_lists_the_right_ones() {
        let error = "f8".parse::<DType>().unwrap_err().to_string();
        assert!(error.contains("`f8`") && error.contains("bf16"), "{error}");
    }
}
