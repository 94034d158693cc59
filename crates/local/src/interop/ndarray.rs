use ndarray::{Array, ArrayD, ArrayView, ArrayViewD, Dimension, IxDyn};

use crate::{Element, LocalError, Result, Tensor};

/// Takes over the array without a copy if its elements lie in order, the last axis varying fastest, and
/// nothing else lies beside them.
impl<T: Element, D: Dimension> TryFrom<Array<T, D>> for Tensor {
    type Error = LocalError;

    fn try_from(array: Array<T, D>) -> Result<Tensor> {
        let shape = array.shape().to_vec();
        if !array.is_standard_layout() {
            return Tensor::from_vec(array.iter().copied().collect(), &shape);
        }
        let n = array.len();
        let (mut values, start) = array.into_raw_vec_and_offset();
        // A part of what was once larger: the rest goes.
        values.drain(..start.unwrap_or(0));
        values.truncate(n);
        Tensor::from_vec(values, &shape)
    }
}

/// Copies the elements.
impl<T: Element, D: Dimension> TryFrom<ArrayView<'_, T, D>> for Tensor {
    type Error = LocalError;

    fn try_from(array: ArrayView<'_, T, D>) -> Result<Tensor> {
        match array.as_slice() {
            Some(values) => Tensor::from_slice(values, array.shape()),
            None => Tensor::from_vec(array.iter().copied().collect(), array.shape()),
        }
    }
}

/// Copies the elements. The tensor must be of this dtype.
impl<T: Element> TryFrom<&Tensor> for ArrayD<T> {
    type Error = LocalError;

    fn try_from(tensor: &Tensor) -> Result<ArrayD<T>> {
        let values = tensor.to_vec::<T>()?;
        ArrayD::from_shape_vec(IxDyn(tensor.shape()), values).map_err(|_| too_large(tensor))
    }
}

/// Borrows the elements, which must be consecutive and of this dtype.
impl<'a, T: Element> TryFrom<&'a Tensor> for ArrayViewD<'a, T> {
    type Error = LocalError;

    fn try_from(tensor: &'a Tensor) -> Result<ArrayViewD<'a, T>> {
        let values = tensor.as_slice::<T>()?;
        ArrayViewD::from_shape(IxDyn(tensor.shape()), values).map_err(|_| too_large(tensor))
    }
}

/// The one reason for which `ndarray` refuses a shape that the values fill: it multiplies the sizes of an
/// empty one without the zeros.
fn too_large(tensor: &Tensor) -> LocalError {
    LocalError::TooLarge { op: "to ndarray", shape: tensor.shape().to_vec(), dtype: tensor.dtype() }
}
