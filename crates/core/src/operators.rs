//! `&a + &b`, `&a * 2.0` and so on. They give results, as everything does.

use std::ops::{Add, Div, Mul, Neg, Rem, Sub};

use crate::{DTensor, Result};

macro_rules! operators {
    ($($Trait:ident $method:ident;)*) => {$(
        impl $Trait<&DTensor> for &DTensor {
            type Output = Result<DTensor>;

            fn $method(self, other: &DTensor) -> Result<DTensor> {
                DTensor::$method(self, other)
            }
        }

        impl $Trait<f64> for &DTensor {
            type Output = Result<DTensor>;

            fn $method(self, number: f64) -> Result<DTensor> {
                DTensor::$method(self, number)
            }
        }
    )*};
}

operators! {
    Add add;
    Sub sub;
    Mul mul;
    Div div;
    Rem rem;
}

impl Neg for &DTensor {
    type Output = Result<DTensor>;

    fn neg(self) -> Result<DTensor> {
        DTensor::neg(self)
    }
}
