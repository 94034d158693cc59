use dtensor::{DTensor, Result, Tensor, distribute_tensor_from};

use crate::{Error, Sequence, init};

/// Positions as rotations of pairs of features, by Su and others. Feature `i` is paired with feature `i + width / 2`.
///
/// The tables are no state of a model: they follow from the sizes, every rank has them, and they are where their operand
/// is, on whatever mesh.
#[derive(Clone, Debug)]
pub struct Rotary {
    /// `[positions, width / 2]`.
    cosines: Tensor,
    sines: Tensor,
    width: usize,
}

impl Rotary {
    /// For so many positions and heads of this width, which has to be even.
    pub fn new(positions: usize, width: usize, base: f64) -> Result<Rotary, Error> {
        if !width.is_multiple_of(2) {
            let want = "rotations are of pairs of features: make it even";
            return Err(Error::bad("the width of a head with rotary positions", width, want));
        }
        let half = width / 2;
        let angle = |at: usize| {
            let (position, feature) = (at / half.max(1), at % half.max(1));
            position as f64 * base.powf(-2.0 * feature as f64 / width as f64)
        };
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f64> = (0..positions * half).map(|at| of(angle(at))).collect();
            Tensor::from_slice(&values, &[positions, half]).map_err(dtensor::Error::from)
        };
        Ok(Rotary { cosines: table(f64::cos)?, sines: table(f64::sin)?, width })
    }

    /// The features of a head that it turns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Turns `[batch, heads, positions, width]`.
    pub fn turn(&self, x: &DTensor) -> Result<DTensor> {
        self.turn_in(x, Sequence::Plain)
    }

    /// The same for positions in another order.
    pub fn turn_in(&self, x: &DTensor, sequence: Sequence) -> Result<DTensor> {
        let (positions, half) = match *x.shape() {
            [_, _, positions, width] if width == self.width => (positions, width / 2),
            _ => {
                let what = format!("shape {:?}, with rotations of {}", x.shape(), self.width);
                let way_out =
                    "give [batch, heads, positions, width], with the width it is made for";
                return Err(dtensor::Error::Unsupported {
                    op: "Rotary",
                    what: what.into(),
                    way_out,
                });
            }
        };
        let copies = init::copies(x.mesh());
        let of = |table: &Tensor| {
            let table = distribute_tensor_from(table, x.mesh(), &copies, None)?;
            sequence.rows(&table, positions)?.to_dtype(x.dtype())
        };
        let (cosines, sines) = (of(&self.cosines)?, of(&self.sines)?);
        let (first, second) = (x.narrow(-1, 0, half)?, x.narrow(-1, half, half)?);
        let turned_first = first.mul(&cosines)?.sub(&second.mul(&sines)?)?;
        let turned_second = second.mul(&cosines)?.add(&first.mul(&sines)?)?;
        DTensor::cat(&[&turned_first, &turned_second], -1)
    }
}
