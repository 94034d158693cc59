use half::{bf16, f16};

use crate::DType;

/// A Rust type that is one of the eight [`DType`]s. Sealed: the set is closed, so that code that
/// matches on a `DType` knows every type it can meet.
pub trait Element:
    bytemuck::NoUninit
    + bytemuck::CheckedBitPattern
    + PartialEq
    + PartialOrd
    + std::fmt::Debug
    + std::fmt::Display
    + Default
    + Send
    + Sync
    + sealed::Sealed
    + 'static
{
    /// The dtype of this type.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements! {
    f32 => F32,
    f64 => F64,
    bf16 => Bf16,
    f16 => F16,
    i64 => I64,
    i32 => I32,
    u8 => U8,
    bool => Bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_is_as_large_as_its_dtype_says() {
        fn check<T: Element>() {
            assert_eq!(size_of::<T>(), T::DTYPE.size(), "{}", T::DTYPE);
        }
        check::<f32>();
        check::<f64>();
        check::<bf16>();
        check::<f16>();
        check::<i64>();
        check::<i32>();
        check::<u8>();
        check::<bool>();
    }
}
