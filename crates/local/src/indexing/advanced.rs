//! Several lists of indices at once, as in `x[:, rows, columns]`.

use super::{
    accumulate::{ScatterReduce, accumulate},
    indices::{check_index_dtype, wrapped_indices},
    places::{Laid, Places, all_sums, dim_offsets, expand_for, same_dtype},
};
use crate::{
    DType, LocalError, Result, Tensor,
    dims::{Dims, broadcast},
};

impl Tensor {
    /// The elements that lists of indices name together, as `x[i0, i1, ...]` in PyTorch and NumPy.
    ///
    /// `indices[d]` belongs to dim `d`; `None`, or an entry that is missing at the end, takes all of a dim.
    /// The lists (`i64` or `i32`, negative ones count from the end) are broadcast to one shape, which
    /// stands in the result where the indexed dims were if these are neighbours, else in front. A mask
    /// (`bool`) stands for as many dims as it has, and for the lists of where it is true.
    ///
    /// ```
    /// use dtensor_local::Tensor;
    /// let x = Tensor::from_vec((0..6).collect(), &[2, 3])?;
    /// let rows = Tensor::from_vec(vec![0_i64, 1], &[2])?;
    /// let columns = Tensor::from_vec(vec![-1_i64, 0], &[2])?;
    /// assert_eq!(x.index(&[Some(&rows), Some(&columns)])?.to_vec::<i32>()?, [2, 3]);
    /// assert_eq!(x.index(&[None, Some(&columns)])?.to_vec::<i32>()?, [2, 0, 5, 3]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn index(&self, indices: &[Option<&Tensor>]) -> Result<Tensor> {
        let request = Request::of("index", self, indices)?;
        let shape = request.shape();
        if self.is_meta() || request.is_meta() {
            return Tensor::meta(&shape, self.dtype());
        }
        let laid = Laid::of(self, request.run());
        request.places(&laid)?.pick("index", &laid.memory, &shape)
    }

    /// A copy with these values, broadcast, at the elements that [`index`](Tensor::index) would give.
    ///
    /// With `accumulate` they are added to what is there, as by [`scatter_add`](Tensor::scatter_add);
    /// without it the last of several values for one element stays.
    pub fn index_put(
        &self,
        indices: &[Option<&Tensor>],
        values: &Tensor,
        accumulate: bool,
    ) -> Result<Tensor> {
        let op = "index_put";
        same_dtype(op, self, values)?;
        let request = Request::of(op, self, indices)?;
        let values = expand_for(op, values, &request.shape())?;
        if self.is_meta() || request.is_meta() || values.is_meta() {
            return Tensor::meta(self.shape(), self.dtype());
        }
        let mut into = self.contiguous();
        let places = request.places(&Laid::of(&into, 0))?;
        if accumulate {
            return self::accumulate(op, into, &places, &values, ScatterReduce::Sum, true);
        }
        places.put(&mut into, &values)?;
        Ok(into)
    }
}

/// Lists of indices that fit a tensor.
struct Request {
    op: &'static str,
    /// Of the tensor.
    sizes: Dims,
    /// The indexed dims in order, each with its list, expanded to the common shape.
    lists: Vec<(usize, Tensor)>,
    /// Of the lists.
    common: Dims,
}

impl Request {
    fn of(op: &'static str, tensor: &Tensor, indices: &[Option<&Tensor>]) -> Result<Request> {
        let sizes = Dims::from(tensor.shape());
        let mut lists = Vec::new();
        let mut dim = 0;
        for entry in indices {
            match entry {
                Some(mask) if mask.dtype() == DType::Bool => {
                    let marked = sizes.get(dim..dim + mask.n_dims());
                    if mask.n_dims() == 0 || marked != Some(mask.shape()) {
                        return Err(LocalError::ShapeMismatch {
                            op,
                            from: mask.shape().to_vec(),
                            to: sizes.get(dim..).unwrap_or_default().to_vec(),
                            why: "a mask has the sizes of the dims that it stands for",
                        });
                    }
                    let found = mask.nonzero()?;
                    for column in 0..mask.n_dims() {
                        lists.push((dim, found.select(1, column as isize)?));
                        dim += 1;
                    }
                }
                Some(list) => {
                    check_index_dtype(op, list)?;
                    lists.push((dim, (*list).clone()));
                    dim += 1;
                }
                None => dim += 1,
            }
        }
        if dim > sizes.len() {
            return Err(LocalError::BadNumber {
                op,
                name: "the number of indices",
                got: dim.to_string(),
                want: "at most one per dim",
            });
        }
        let common = broadcast(op, lists.iter().map(|(_, list)| list.shape()))?;
        for (_, list) in &mut lists {
            *list = expand_for(op, list, &common)?;
        }
        Ok(Request { op, sizes, lists, common })
    }

    fn is_meta(&self) -> bool {
        self.lists.iter().any(|(_, list)| list.is_meta())
    }

    fn is_indexed(&self, dim: usize) -> bool {
        self.lists.iter().any(|(indexed, _)| *indexed == dim)
    }

    /// The dims from which on nothing is indexed.
    fn run(&self) -> usize {
        self.lists.last().map_or(0, |(dim, _)| dim + 1)
    }

    /// How many dims of the tensor come before those of the lists in the result.
    fn n_before(&self) -> usize {
        match (self.lists.first(), self.lists.last()) {
            (Some((first, _)), Some((last, _))) if last - first + 1 == self.lists.len() => *first,
            _ => 0,
        }
    }

    /// The dims that are not indexed, before and after those of the lists.
    fn others(&self) -> (Vec<usize>, Vec<usize>) {
        let before = self.n_before();
        let after = (before..self.sizes.len()).filter(|dim| !self.is_indexed(*dim)).collect();
        ((0..before).collect(), after)
    }

    /// Of the result.
    fn shape(&self) -> Dims {
        let (before, after) = self.others();
        let sizes = |dims: Vec<usize>| dims.into_iter().map(|dim| self.sizes[dim]);
        sizes(before).chain(self.common.iter().copied()).chain(sizes(after)).collect()
    }

    /// Where the elements of the result are, in its order. All indices are checked.
    fn places(&self, laid: &Laid) -> Result<Places> {
        let mut together = vec![0isize; self.common.iter().product()];
        for (dim, list) in &self.lists {
            let numbers = wrapped_indices(self.op, list, *dim, self.sizes[*dim])?;
            for (sum, number) in together.iter_mut().zip(numbers) {
                *sum += number as isize * laid.strides[*dim];
            }
        }
        if self.shape().contains(&0) {
            return Ok(Places::none());
        }
        let (before, after) = self.others();
        let offsets = |dim: usize| dim_offsets(self.sizes[dim], laid.strides[dim]);
        let mut lists: Vec<Vec<isize>> = before.into_iter().map(offsets).collect();
        lists.push(together);
        lists.extend(after.into_iter().filter(|dim| *dim < self.run()).map(offsets));
        let width = self.sizes[self.run()..].iter().product();
        Ok(Places { starts: all_sums(laid.start, &lists), width })
    }
}
