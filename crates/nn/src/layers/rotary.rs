use dtensor::{DTensor, DeviceMesh, Result, Tensor, distribute_tensor_from};

use crate::{Sequence, init};

/// Positions as rotations of pairs of features, by Su and others. Feature `i` is paired with feature `i + width / 2`.
#[derive(Clone, Debug)]
pub struct Rotary {
    /// `[positions, width / 2]`.
    cosines: DTensor,
    sines: DTensor,
}

impl Rotary {
    /// For so many positions and heads of this width.
    pub fn new(positions: usize, width: usize, base: f64, mesh: &DeviceMesh) -> Result<Rotary> {
        let half = width / 2;
        let angle = |at: usize| {
            let (position, feature) = (at / half.max(1), at % half.max(1));
            position as f64 * base.powf(-2.0 * feature as f64 / width as f64)
        };
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f64> = (0..positions * half).map(|at| of(angle(at))).collect();
            let plain = Tensor::from_slice(&values, &[positions, half])?;
            distribute_tensor_from(&plain, mesh, &init::copies(mesh), None)
        };
        Ok(Rotary { cosines: table(f64::cos)?, sines: table(f64::sin)? })
    }

    /// Turns `[batch, heads, positions, width]`.
    pub fn turn(&self, x: &DTensor) -> Result<DTensor> {
        self.turn_in(x, Sequence::Plain)
    }

    /// The same for positions in another order.
    pub fn turn_in(&self, x: &DTensor, sequence: Sequence) -> Result<DTensor> {
        let (positions, half) = (x.shape()[2], x.shape()[3] / 2);
        let of = |table: &DTensor| sequence.rows(table, positions)?.to_dtype(x.dtype());
        let (cosines, sines) = (of(&self.cosines)?, of(&self.sines)?);
        let (first, second) = (x.narrow(-1, 0, half)?, x.narrow(-1, half, half)?);
        let turned_first = first.mul(&cosines)?.sub(&second.mul(&sines)?)?;
        let turned_second = second.mul(&cosines)?.add(&first.mul(&sines)?)?;
        DTensor::cat(&[&turned_first, &turned_second], -1)
    }
}
