/// Evaluates an expression with a type name standing for the Rust type of a dtype.
macro_rules! by_dtype {
    ($dtype:expr, $name:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F32 => {
                type $name = f32;
                $body
            }
            $crate::DType::F64 => {
                type $name = f64;
                $body
            }
            $crate::DType::Bf16 => {
                type $name = $crate::bf16;
                $body
            }
            $crate::DType::F16 => {
                type $name = $crate::f16;
                $body
            }
            $crate::DType::I64 => {
                type $name = i64;
                $body
            }
            $crate::DType::I32 => {
                type $name = i32;
                $body
            }
            $crate::DType::U8 => {
                type $name = u8;
                $body
            }
            $crate::DType::Bool => {
                type $name = bool;
                $body
            }
        }
    };
}
pub(crate) use by_dtype;
