//! Dims moved and combined.

use super::diagonal::two_dims;
use crate::{
    LocalError, Result, Tensor,
    dims::{Dims, normal_dim, numel},
};

/// Which dim of the results of [`Tensor::meshgrid`] the first two tensors vary along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MeshIndexing {
    /// Tensor `i` along dim `i`: rows, then columns, as a matrix is indexed.
    Ij,
    /// The first along dim 1 and the second along dim 0: x, then y, as a point is written.
    Xy,
}

impl Tensor {
    /// Dims `source[i]` brought to the places `destination[i]`; the others keep their order. A view.
    pub fn movedim(&self, source: &[isize], destination: &[isize]) -> Result<Tensor> {
        let op = "movedim";
        if source.len() != destination.len() {
            return Err(LocalError::BadNumber {
                op,
                name: "the number of destinations",
                got: destination.len().to_string(),
                want: "one for each dim that is moved",
            });
        }
        let (from, to) = (distinct(op, source, self)?, distinct(op, destination, self)?);
        let mut others = (0..self.n_dims()).filter(|dim| !from.contains(dim));
        let order: Dims<isize> = (0..self.n_dims())
            .filter_map(|place| match to.iter().position(|to| *to == place) {
                Some(moved) => from.get(moved).copied(),
                None => others.next(),
            })
            .map(|dim| dim as isize)
            .collect();
        self.permute(&order)
    }

    /// Turned by `k` times 90 degrees in the plane of two dims, from the first towards the second: a view.
    pub fn rot90(&self, k: isize, dims: [isize; 2]) -> Result<Tensor> {
        let [first, second] = dims;
        two_dims("rot90", first, second, self.shape())?;
        match k.rem_euclid(4) {
            1 => self.flip(second)?.transpose(first, second),
            2 => self.flip(first)?.flip(second),
            3 => self.flip(first)?.transpose(first, second),
            _ => Ok(self.clone()),
        }
    }

    /// Tensors of at most one dim and of one dtype, each along a dim of its own and expanded along those of
    /// the others: views of one shape.
    ///
    /// ```
    /// use dtensor_local::{MeshIndexing, Tensor};
    /// let (a, b) = (Tensor::from_vec(vec![1, 2], &[2])?, Tensor::from_vec(vec![3, 4, 5], &[3])?);
    /// let grids = Tensor::meshgrid(&[&a, &b], MeshIndexing::Ij)?;
    /// assert_eq!(grids[0].to_vec::<i32>()?, [1, 1, 1, 2, 2, 2]);
    /// assert_eq!(grids[1].to_vec::<i32>()?, [3, 4, 5, 3, 4, 5]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn meshgrid(tensors: &[&Tensor], indexing: MeshIndexing) -> Result<Vec<Tensor>> {
        let op = "meshgrid";
        let place = |index: usize| match (indexing, index) {
            (MeshIndexing::Xy, 0 | 1) if tensors.len() > 1 => 1 - index,
            _ => index,
        };
        let mut shape: Dims = tensors.iter().map(|_| 1).collect();
        for (index, tensor) in tensors.iter().enumerate() {
            super::places::same_dtype(op, tensors[0], tensor)?;
            if tensor.n_dims() > 1 {
                return Err(LocalError::ShapeMismatch {
                    op,
                    from: tensor.shape().to_vec(),
                    to: vec![tensor.numel()],
                    why: "each tensor has at most one dim; reshape it",
                });
            }
            shape[place(index)] = tensor.numel();
        }
        let grid = |(index, tensor): (usize, &&Tensor)| {
            numel(op, &shape, tensor.dtype())?;
            let mut own: Dims = shape.iter().map(|_| 1).collect();
            own[place(index)] = tensor.numel();
            tensor.reshape(&own)?.expand(&shape)
        };
        tensors.iter().enumerate().map(grid).collect()
    }

    /// Every element times all of another tensor, laid out as blocks: the Kronecker product. The tensor with
    /// fewer dims gets new ones in front. A product with broadcasting, so dtypes meet as for
    /// [`mul`](Tensor::mul).
    pub fn kron(&self, other: &Tensor) -> Result<Tensor> {
        let n_dims = self.n_dims().max(other.n_dims());
        let (mut a, mut b, mut result) = (Dims::new(), Dims::new(), Dims::new());
        for dim in 0..n_dims {
            let size = |tensor: &Tensor| {
                let own = (dim + tensor.n_dims()).checked_sub(n_dims);
                own.map_or(1, |own| tensor.shape()[own])
            };
            a.extend([size(self), 1]);
            b.extend([1, size(other)]);
            result.push(size(self).saturating_mul(size(other)));
        }
        numel("kron", &result, crate::promote(self.dtype(), other.dtype()))?;
        self.reshape(&a)?.mul(&other.reshape(&b)?)?.reshape(&result)
    }
}

/// The dims, no one named twice.
fn distinct(op: &'static str, dims: &[isize], tensor: &Tensor) -> Result<Dims> {
    let mut normal = Dims::new();
    for dim in dims {
        let one = normal_dim(op, *dim, tensor.shape())?;
        if normal.contains(&one) {
            return Err(LocalError::RepeatedDim { op, dim: *dim, dims: dims.to_vec() });
        }
        normal.push(one);
    }
    Ok(normal)
}
