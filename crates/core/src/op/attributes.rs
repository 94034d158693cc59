//! Numbers as attributes: equal if their bits are, so that they can be keys.

use std::hash::{Hash, Hasher};

use dtensor_local::Scalar;

/// A floating-point attribute.
#[derive(Clone, Copy, Debug)]
pub struct Number(pub f64);

impl PartialEq for Number {
    fn eq(&self, other: &Number) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Number {}

impl Hash for Number {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.to_bits());
    }
}

/// A scalar attribute.
#[derive(Clone, Copy, Debug)]
pub struct Value(pub Scalar);

impl Value {
    /// Its kind and its bits.
    fn bits(self) -> (u8, u64) {
        match self.0 {
            Scalar::Float(value) => (0, value.to_bits()),
            Scalar::Int(value) => (1, value as u64),
            Scalar::Bool(value) => (2, u64::from(value)),
        }
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        self.bits() == other.bits()
    }
}

impl Eq for Value {}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bits().hash(state);
    }
}
