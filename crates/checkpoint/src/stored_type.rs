//! Element types in files.

use std::fmt;

use dtensor::DType;

/// The type of the elements of a stored tensor: all that safetensors and PyTorch know, of which a [`DType`] is one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)] // Their names say it.
pub enum StoredType {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F8E4M3,
    F8E5M2,
    /// A power of two: eight bits of exponent, and nothing else.
    F8E8M0,
    F8E4M3Fnuz,
    F8E5M2Fnuz,
    F16,
    Bf16,
    F32,
    F64,
    C64,
    C128,
}

impl StoredType {
    /// All of them.
    pub const ALL: [StoredType; 20] = [
        StoredType::Bool,
        StoredType::U8,
        StoredType::I8,
        StoredType::U16,
        StoredType::I16,
        StoredType::U32,
        StoredType::I32,
        StoredType::U64,
        StoredType::I64,
        StoredType::F8E4M3,
        StoredType::F8E5M2,
        StoredType::F8E8M0,
        StoredType::F8E4M3Fnuz,
        StoredType::F8E5M2Fnuz,
        StoredType::F16,
        StoredType::Bf16,
        StoredType::F32,
        StoredType::F64,
        StoredType::C64,
        StoredType::C128,
    ];

    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            StoredType::Bool | StoredType::U8 | StoredType::I8 => 1,
            StoredType::F8E4M3 | StoredType::F8E5M2 | StoredType::F8E8M0 => 1,
            StoredType::F8E4M3Fnuz | StoredType::F8E5M2Fnuz => 1,
            StoredType::U16 | StoredType::I16 | StoredType::F16 | StoredType::Bf16 => 2,
            StoredType::U32 | StoredType::I32 | StoredType::F32 => 4,
            StoredType::U64 | StoredType::I64 | StoredType::F64 | StoredType::C64 => 8,
            StoredType::C128 => 16,
        }
    }

    /// As safetensors writes it.
    pub fn name(self) -> &'static str {
        match self {
            StoredType::Bool => "BOOL",
            StoredType::U8 => "U8",
            StoredType::I8 => "I8",
            StoredType::U16 => "U16",
            StoredType::I16 => "I16",
            StoredType::U32 => "U32",
            StoredType::I32 => "I32",
            StoredType::U64 => "U64",
            StoredType::I64 => "I64",
            StoredType::F8E4M3 => "F8_E4M3",
            StoredType::F8E5M2 => "F8_E5M2",
            StoredType::F8E8M0 => "F8_E8M0",
            StoredType::F8E4M3Fnuz => "F8_E4M3FNUZ",
            StoredType::F8E5M2Fnuz => "F8_E5M2FNUZ",
            StoredType::F16 => "F16",
            StoredType::Bf16 => "BF16",
            StoredType::F32 => "F32",
            StoredType::F64 => "F64",
            StoredType::C64 => "C64",
            StoredType::C128 => "C128",
        }
    }

    /// Bits of an element of a type that safetensors knows, if it is smaller than a byte. Such are not among these types, since
    /// their elements have no addresses.
    pub(crate) fn bits_of_packed(name: &str) -> Option<u64> {
        match name {
            "F4" => Some(4),
            "F6_E2M3" | "F6_E3M2" => Some(6),
            _ => None,
        }
    }

    /// From what safetensors writes.
    pub fn from_name(name: &str) -> Option<StoredType> {
        StoredType::ALL.into_iter().find(|stored| stored.name() == name)
    }

    /// The type of a tensor with such elements, if there is one.
    pub fn dtype(self) -> Option<DType> {
        Some(match self {
            StoredType::Bool => DType::Bool,
            StoredType::U8 => DType::U8,
            StoredType::I32 => DType::I32,
            StoredType::I64 => DType::I64,
            StoredType::F16 => DType::F16,
            StoredType::Bf16 => DType::Bf16,
            StoredType::F32 => DType::F32,
            StoredType::F64 => DType::F64,
            _ => return None,
        })
    }
}

impl From<DType> for StoredType {
    fn from(dtype: DType) -> StoredType {
        match dtype {
            DType::Bool => StoredType::Bool,
            DType::U8 => StoredType::U8,
            DType::I32 => StoredType::I32,
            DType::I64 => StoredType::I64,
            DType::F16 => StoredType::F16,
            DType::Bf16 => StoredType::Bf16,
            DType::F32 => StoredType::F32,
            DType::F64 => StoredType::F64,
        }
    }
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
