//! A dense tensor in plain loops: the reference that everything distributed is compared with.

use std::{fmt, ops::Range};

/// A row-major tensor of `f64`. Slow and obvious.
#[derive(Clone, PartialEq)]
pub struct Dense {
    shape: Vec<usize>,
    data: Vec<f64>,
}

impl Dense {
    /// A tensor of these values in row-major order.
    ///
    /// # Panics
    /// If there are not as many values as the shape has elements.
    #[track_caller]
    pub fn new(shape: &[usize], data: Vec<f64>) -> Dense {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "elements of shape {shape:?}");
        Dense { shape: shape.to_vec(), data }
    }

    /// A tensor whose elements are a function of their index.
    pub fn from_fn(shape: &[usize], mut value: impl FnMut(&[usize]) -> f64) -> Dense {
        let mut data = Vec::with_capacity(shape.iter().product());
        for_each_index(shape, |index| data.push(value(index)));
        Dense { shape: shape.to_vec(), data }
    }

    /// Size of every dim.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The values in row-major order.
    pub fn data(&self) -> &[f64] {
        &self.data
    }

    /// The values in row-major order, to be changed.
    pub fn data_mut(&mut self) -> &mut [f64] {
        &mut self.data
    }

    /// The element at an index.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn at(&self, index: &[usize]) -> f64 {
        let inside = index.len() == self.shape.len()
            && index.iter().zip(&self.shape).all(|(i, size)| i < size);
        assert!(inside, "index {index:?} is outside of shape {:?}", self.shape);
        self.data[index.iter().zip(&self.shape).fold(0, |flat, (i, size)| flat * size + i)]
    }

    /// The tensor of `f(element)`.
    pub fn map(&self, f: impl FnMut(f64) -> f64) -> Dense {
        Dense { shape: self.shape.clone(), data: self.data.iter().copied().map(f).collect() }
    }

    /// The tensor of `f(left, right)`, broadcast as NumPy does; an error if the shapes do not allow
    /// it.
    pub fn zip(&self, other: &Dense, f: impl Fn(f64, f64) -> f64) -> Result<Dense, String> {
        let shape = broadcast_shape(&self.shape, &other.shape)?;
        Ok(Dense::from_fn(&shape, |index| f(self.at_broadcast(index), other.at_broadcast(index))))
    }

    /// The element that broadcasting finds at an index of the broadcast shape.
    #[track_caller]
    pub fn at_broadcast(&self, index: &[usize]) -> f64 {
        let own = &index[index.len() - self.shape.len()..];
        let own: Vec<usize> =
            own.iter().zip(&self.shape).map(|(i, size)| if *size == 1 { 0 } else { *i }).collect();
        self.at(&own)
    }

    /// The part of one dim.
    ///
    /// # Panics
    /// If the dim or the range is not there.
    #[track_caller]
    pub fn narrow(&self, dim: usize, range: Range<usize>) -> Dense {
        self.select(dim, &range.collect::<Vec<_>>())
    }

    /// These indices of one dim, in this order.
    ///
    /// # Panics
    /// If the dim or an index is not there.
    #[track_caller]
    pub fn select(&self, dim: usize, indices: &[usize]) -> Dense {
        let mut shape = self.shape.clone();
        shape[dim] = indices.len();
        Dense::from_fn(&shape, |index| {
            let mut index = index.to_vec();
            index[dim] = indices[index[dim]];
            self.at(&index)
        })
    }

    /// The fold over one dim, which vanishes; `init` where that dim is empty.
    pub fn fold(&self, dim: usize, init: f64, f: impl Fn(f64, f64) -> f64) -> Dense {
        let mut shape = self.shape.clone();
        let size = shape.remove(dim);
        Dense::from_fn(&shape, |index| {
            let at = |i| {
                let mut index = index.to_vec();
                index.insert(dim, i);
                self.at(&index)
            };
            (0..size).map(at).fold(init, &f)
        })
    }

    /// The same values in another shape; an error if it has not as many elements.
    pub fn reshape(&self, shape: &[usize]) -> Result<Dense, String> {
        match shape.iter().product::<usize>() == self.data.len() {
            true => Ok(Dense { shape: shape.to_vec(), data: self.data.clone() }),
            false => Err(format!("cannot reshape {:?} to {shape:?}", self.shape)),
        }
    }

    /// Whether it is the same tensor up to rounding.
    pub fn is_close(&self, other: &Dense) -> bool {
        self.shape == other.shape && self.data.iter().zip(&other.data).all(|(a, b)| close(*a, *b))
    }
}

impl fmt::Debug for Dense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{:?}", self.shape, self.data)
    }
}

/// The shape that two shapes broadcast to, as NumPy does.
pub fn broadcast_shape(left: &[usize], right: &[usize]) -> Result<Vec<usize>, String> {
    let n_dims = left.len().max(right.len());
    let size = |shape: &[usize], dim: usize| {
        (dim + shape.len()).checked_sub(n_dims).map_or(1, |dim| shape[dim])
    };
    (0..n_dims)
        .map(|dim| match (size(left, dim), size(right, dim)) {
            (a, b) if a == b || b == 1 => Ok(a),
            (1, b) => Ok(b),
            _ => Err(format!("{left:?} and {right:?} do not broadcast")),
        })
        .collect()
}

/// Equal up to the rounding of a short computation in `f64`; equal infinities are close, NaN is
/// close to nothing.
pub(crate) fn close(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()))
}

/// Calls `visit` with every index, in row-major order.
pub(crate) fn for_each_index(shape: &[usize], mut visit: impl FnMut(&[usize])) {
    let mut index = vec![0; shape.len()];
    for _ in 0..shape.iter().product() {
        visit(&index);
        for dim in (0..shape.len()).rev() {
            index[dim] += 1;
            if index[dim] < shape[dim] {
                break;
            }
            index[dim] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iota(shape: &[usize]) -> Dense {
        let mut next = -1.0;
        Dense::from_fn(shape, |_| {
            next += 1.0;
            next
        })
    }

    #[test]
    fn elements_lie_in_row_major_order() {
        assert_eq!(iota(&[2, 3]).at(&[1, 0]), 3.0);
        assert_eq!(iota(&[]).data(), [0.0]);
        assert!(iota(&[2, 0]).data().is_empty());
    }

    #[test]
    fn broadcasting_repeats_missing_dims_and_dims_of_size_one() {
        let sum = iota(&[2, 1]).zip(&iota(&[3]), |a, b| 10.0 * a + b).unwrap();
        assert_eq!((sum.shape(), sum.data()), (&[2, 3][..], &[0., 1., 2., 10., 11., 12.][..]));
        assert!(iota(&[2]).zip(&iota(&[3]), |a, _| a).is_err());
        assert_eq!(broadcast_shape(&[1], &[0]), Ok(vec![0]));
    }

    #[test]
    fn parts_and_folds_speak_of_one_dim() {
        assert_eq!(iota(&[2, 3]).narrow(1, 1..3).data(), [1., 2., 4., 5.]);
        assert_eq!(iota(&[2, 3]).fold(0, 0.0, |a, b| a + b).data(), [3., 5., 7.]);
        assert_eq!(iota(&[2, 0]).fold(1, 7.0, f64::max).data(), [7., 7.]);
    }

    #[test]
    fn nan_is_close_to_nothing() {
        assert!(close(f64::INFINITY, f64::INFINITY) && !close(f64::NAN, f64::NAN));
        assert!(close(1.0, 1.0 + 1e-12) && !close(1.0, 1.001));
    }
}
