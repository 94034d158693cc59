//! Gradients of activation functions, each in one pass.

use super::{
    kinds::{float, float_kernels},
    math32::slope,
    math64,
};
use crate::{Result, Tensor};

/// Rows `name of function where "what the tensor is": kernels;`.
macro_rules! backward {
    ($($name:ident of $function:ident where $is:literal: $kernels:expr;)*) => {
        impl Tensor {
            $(
                #[doc = concat!("The gradient of [`", stringify!($function), "`](Tensor::", stringify!($function), ")")]
                #[doc = concat!("with respect to its operand, where `self` is ", $is, " and `grad` the gradient of the result.")]
                pub fn $name(&self, grad: &Tensor) -> Result<Tensor> {
                    float(stringify!($name), [self.into(), grad.into()], &$kernels)
                }
            )*
        }
    };
}

backward! {
    // A NaN is not below zero, so its gradient passes, as in PyTorch.
    relu_backward of relu where "that operand or its result": float_kernels!(|x, grad|
        f32: if x <= 0.0 { 0.0 } else { grad }, f64: if x <= 0.0 { 0.0 } else { grad });
    // As a product, since 1 - y^2 would be rounded where y is nearly 1.
    tanh_backward of tanh where "its result": float_kernels!(|y, grad|
        f32: grad * ((1.0 - y) * (1.0 + y)), f64: grad * ((1.0 - y) * (1.0 + y)));
    sigmoid_backward of sigmoid where "its result": float_kernels!(|y, grad|
        f32: grad * ((1.0 - y) * y), f64: grad * ((1.0 - y) * y));
    silu_backward of silu where "that operand": float_kernels!(|x, grad|
        f32: grad * slope::silu::<FMA>(x), f64: grad * math64::silu_slope(x));
    gelu_backward of gelu where "that operand": float_kernels!(|x, grad|
        f32: grad * slope::gelu::<FMA>(x), f64: grad * math64::gelu_slope(x));
    gelu_tanh_backward of gelu_tanh where "that operand": float_kernels!(|x, grad|
        f32: grad * slope::gelu_tanh::<FMA>(x), f64: grad * math64::gelu_tanh_slope(x));
}
