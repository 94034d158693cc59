//! Elements to the places that indices name, the opposite of [`Tensor::gather`].

use super::{
    accumulate::{ScatterReduce, accumulate},
    bits::scalar_of,
    indices::{check_index_dtype, checked_indices},
    places::{Laid, Places, same_dtype, with_a_dim},
};
use crate::{DType, LocalError, Result, Scalar, Tensor, dims::normal_dim};

impl Tensor {
    /// A copy with `copy[indices[i][j][k]][j][k] = source[i][j][k]`, for `dim` 0. Of several values for one
    /// element the last stays.
    ///
    /// The indices are not negative and have as many dims as the tensor and the source; no dim of them is
    /// larger than that of the source nor, but for `dim`, than that of the tensor. What is wrong is found
    /// before anything is written. The same holds for all operations of this family.
    ///
    /// ```
    /// use dtensor_local::{DType, Tensor};
    /// let zeros = Tensor::zeros(&[2, 3], DType::I32)?;
    /// let columns = Tensor::from_vec(vec![2_i64, 0], &[2, 1])?;
    /// let values = Tensor::from_vec(vec![5, 7], &[2, 1])?;
    /// let scattered = zeros.scatter(1, &columns, &values)?;
    /// assert_eq!(scattered.to_vec::<i32>()?, [0, 0, 5, 7, 0, 0]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn scatter(&self, dim: isize, indices: &Tensor, source: &Tensor) -> Result<Tensor> {
        self.scattered("scatter", dim, indices, Some(source), |mut into, places, values| {
            places.put(&mut into, values)?;
            Ok(into)
        })
    }

    /// As [`scatter`](Tensor::scatter), with one value for all elements, cast to the dtype.
    pub fn scatter_scalar(
        &self,
        dim: isize,
        indices: &Tensor,
        value: impl Into<Scalar>,
    ) -> Result<Tensor> {
        let value = scalar_of(value.into(), self.dtype())?;
        self.scattered("scatter_scalar", dim, indices, None, |mut into, places, _| {
            places.fill(&mut into, &value)?;
            Ok(into)
        })
    }

    /// As [`scatter`](Tensor::scatter), but the values are added to what is there, in the order of the
    /// indices: the result does not depend on the number of threads. Integers wrap, `bool` is *or*, half
    /// precision is added as `f32` and rounded once.
    pub fn scatter_add(&self, dim: isize, indices: &Tensor, source: &Tensor) -> Result<Tensor> {
        self.scattered("scatter_add", dim, indices, Some(source), |into, places, values| {
            accumulate("scatter_add", into, places, values, ScatterReduce::Sum, true)
        })
    }

    /// As [`scatter_add`](Tensor::scatter_add), with another way to make one value of several. Without
    /// `include_self`, what is there counts only where no value arrives.
    ///
    /// ```
    /// use dtensor_local::{ScatterReduce, Tensor};
    /// let x = Tensor::from_vec(vec![1.0_f32, 2.0], &[2])?;
    /// let zero = Tensor::from_vec(vec![0_i64, 0], &[2])?;
    /// let values = Tensor::from_vec(vec![5.0_f32, 9.0], &[2])?;
    /// let means = x.scatter_reduce(0, &zero, &values, ScatterReduce::Mean, false)?;
    /// assert_eq!(means.to_vec::<f32>()?, [7.0, 2.0]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn scatter_reduce(
        &self,
        dim: isize,
        indices: &Tensor,
        source: &Tensor,
        reduce: ScatterReduce,
        include_self: bool,
    ) -> Result<Tensor> {
        let op = "scatter_reduce";
        if self.dtype() == DType::Bool && reduce == ScatterReduce::Mean {
            return Err(LocalError::UnsupportedDType { op, dtype: DType::Bool });
        }
        self.scattered(op, dim, indices, Some(source), |into, places, values| {
            accumulate(op, into, places, values, reduce, include_self)
        })
    }

    /// Checks the operands, and gives this tensor with at least one dim, the places, and the values for
    /// them to `change`.
    fn scattered(
        &self,
        op: &'static str,
        dim: isize,
        indices: &Tensor,
        source: Option<&Tensor>,
        change: impl FnOnce(Tensor, &Places, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let (into, list) = (with_a_dim(self)?, with_a_dim(indices)?);
        // Without a source, the indices stand in: they fit themselves.
        let values = source.map_or_else(|| Ok(list.clone()), with_a_dim)?;
        let dim = normal_dim(op, dim, into.shape())?;
        check_index_dtype(op, indices)?;
        if let Some(source) = source {
            same_dtype(op, self, source)?;
        }
        check_sizes(op, dim, &into, &list, &values)?;
        if [self, indices, &values].iter().any(|tensor| tensor.is_meta()) {
            return Tensor::meta(self.shape(), self.dtype());
        }
        let numbers = checked_indices(op, &list, dim, into.shape()[dim])?;
        let into = into.contiguous();
        // Strides of consecutive elements: what is written to is a copy of that form.
        let laid = Laid::of(&into, 0);
        let places = Places::of_elements(&laid, list.shape(), dim, &numbers);
        drop(laid);
        let mut used = values;
        for (dim, size) in list.shape().iter().enumerate() {
            used = used.narrow(dim as isize, 0, *size)?;
        }
        change(into, &places, &used)?.reshape(self.shape())
    }
}

fn check_sizes(
    op: &'static str,
    dim: usize,
    into: &Tensor,
    indices: &Tensor,
    values: &Tensor,
) -> Result<()> {
    let mismatch = |to: &Tensor, why| LocalError::ShapeMismatch {
        op,
        from: indices.shape().to_vec(),
        to: to.shape().to_vec(),
        why,
    };
    let fits = |to: &Tensor, any: Option<usize>| {
        let mut sizes = indices.shape().iter().zip(to.shape()).enumerate();
        indices.n_dims() == to.n_dims()
            && sizes.all(|(d, (have, max))| Some(d) == any || have <= max)
    };
    if !fits(into, Some(dim)) {
        return Err(mismatch(
            into,
            "the indices have as many dims as the tensor, and but for the scattered one none is larger",
        ));
    }
    if !fits(values, None) {
        return Err(mismatch(
            values,
            "the indices have as many dims as the source, and none is larger",
        ));
    }
    Ok(())
}
