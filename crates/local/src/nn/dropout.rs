//! Dropout by a mask that is given.

use super::real::{Real, by_real, check_dtype, check_float, check_shape, rounded, widened};
use crate::{DType, LocalError, Result, Tensor, threads};

impl Tensor {
    /// `x / (1 - p)` where the mask (`bool`, of the same shape) is true, and `x` times zero elsewhere; all are dropped if
    /// `p` is 1. `p` is the probability by which the mask was made. The gradient is the same function of the gradient
    /// of the result. As `torch.nn.functional.dropout` in training.
    ///
    /// ```
    /// use dtensor_local::Tensor;
    ///
    /// let x = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0], &[3])?;
    /// let mask = Tensor::from_vec(vec![true, false, true], &[3])?;
    /// assert_eq!(x.dropout(&mask, 0.5)?.to_vec::<f32>()?, [2.0, 0.0, 6.0]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn dropout(&self, mask: &Tensor, p: f64) -> Result<Tensor> {
        let op = "dropout";
        check_float(op, self)?;
        check_dtype(op, mask, DType::Bool)?;
        check_shape(op, mask, self.shape(), "the mask has the shape of the values")?;
        if !(0.0..=1.0).contains(&p) {
            let (name, got, want) = ("p", p.to_string(), "a probability from 0 to 1");
            return Err(LocalError::BadNumber { op, name, got, want });
        }
        if self.is_meta() || mask.is_meta() {
            return Tensor::meta(self.shape(), self.dtype());
        }
        let (wide, mask) = (widened(op, self)?, mask.contiguous());
        let mask = mask.as_slice::<bool>()?;
        let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
        let out = by_real!(wide, R => {
            let (x, scale) = (wide.as_slice::<R>()?, R::of(scale));
            Tensor::write(op, self.shape(), |out: &mut [R]| {
                threads::for_pieces_of(out, 1, 32 * 1024, |piece, out| {
                    for (out, (x, keeps)) in
                        out.iter_mut().zip(x[piece.clone()].iter().zip(&mask[piece]))
                    {
                        *out = *x * if *keeps { scale } else { R::ZERO };
                    }
                });
            })?
        });
        rounded(op, out, self.dtype())
    }
}
