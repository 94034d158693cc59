use super::{
    batch::{shape_error, store_identity},
    lu::inv,
};
use crate::{Result, Tensor};

impl Tensor {
    /// Each square matrix in the last two dims multiplied with itself `n` times; the identity for 0, and
    /// powers of the inverse below it. Products as in [`Tensor::matmul`], with its dtypes.
    ///
    /// ```
    /// # use dtensor_local::Tensor;
    /// let fibonacci = Tensor::from_vec(vec![1_i64, 1, 1, 0], &[2, 2])?;
    /// assert_eq!(fibonacci.matrix_power(50)?.to_vec::<i64>()?[1], 12_586_269_025);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn matrix_power(&self, n: isize) -> Result<Tensor> {
        let op = "matrix_power";
        match self.shape() {
            [.., rows, columns] if rows == columns => {}
            _ => return Err(shape_error(op, self, "the matrices must be square")),
        }
        // The power 2^i of the matrix for bit i of the exponent.
        let mut square = if n < 0 { inv(self)? } else { self.clone() };
        let mut exponent = n.unsigned_abs();
        let mut power: Option<Tensor> = None;
        while exponent > 0 {
            if exponent & 1 == 1 {
                power = Some(match power {
                    Some(power) => power.matmul(&square)?,
                    None => square.clone(),
                });
            }
            exponent >>= 1;
            if exponent > 0 {
                square = square.matmul(&square)?;
            }
        }
        match power {
            Some(power) => Ok(power),
            None if self.is_meta() => Tensor::meta(self.shape(), self.dtype()),
            None => {
                let size = self.shape()[self.n_dims() - 1];
                let identity =
                    Tensor::write(op, &[size, size], |out: &mut [f64]| store_identity(size, out))?;
                Ok(identity.to_dtype(self.dtype())?.expand(self.shape())?.contiguous())
            }
        }
    }
}
