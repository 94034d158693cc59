use super::{
    batch::{check_dtypes, product},
    equation::{Equation, Label, Labels},
};
use crate::{DType, LocalError, Result, Tensor, bf16, dims::Dims, f16};

impl Tensor {
    /// The sum of products that an equation of letters describes, as `torch.einsum`: a letter in two
    /// terms runs along both dims at once, a letter that the result does not have is summed over, a
    /// letter twice in a term takes the diagonal, `...` stands for dims that are broadcast.
    ///
    /// More than two operands are combined from left to right.
    ///
    /// Permutations and diagonals are views. Letters of one role (say, all that are summed over) are
    /// treated as one dim; an operand is copied if its memory has no such dim.
    ///
    /// ```
    /// # use dtensor_local::Tensor;
    /// let a = Tensor::from_vec((0..6).map(f64::from).collect(), &[2, 3])?;
    /// let gram = Tensor::einsum("ik,jk->ij", &[&a, &a])?;
    /// assert_eq!(gram.to_vec::<f64>()?, [5.0, 14.0, 14.0, 50.0]);
    /// assert_eq!(Tensor::einsum("ii", &[&gram])?.item::<f64>()?, 55.0);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn einsum(equation: &str, operands: &[&Tensor]) -> Result<Tensor> {
        let n_dims: Vec<usize> = operands.iter().map(|operand| operand.n_dims()).collect();
        let parsed = Equation::parse(equation, &n_dims)?;
        let bad = |why| LocalError::BadEquation { equation: equation.to_owned(), why };
        let mut terms = operands
            .iter()
            .zip(parsed.operands)
            .map(|(operand, labels)| {
                check_dtypes("einsum", operands[0], operand)?;
                diagonal(operand, &labels)
                    .ok_or_else(|| bad("a letter has dims of different sizes"))
            })
            .collect::<Result<Vec<Term>>>()?;
        same_sizes(&mut terms).ok_or_else(|| bad("a letter has dims of different sizes"))?;
        let mut terms = terms.into_iter();
        let mut sum = terms.next().ok_or_else(|| bad("there is no operand"))?;
        while let Some(next) = terms.next() {
            let later = |label: &Label| {
                parsed.result.contains(label)
                    || terms.as_slice().iter().any(|term| term.labels.contains(label))
            };
            sum = contract(sum, next, later)?;
        }
        let sum = sum.summed(|label| parsed.result.contains(label))?;
        sum.arranged(&parsed.result)
    }
}

/// A tensor whose dims have names, each its own.
struct Term {
    tensor: Tensor,
    labels: Labels,
}

impl Term {
    /// The dims in this order; all of them are named.
    fn arranged(&self, order: &[Label]) -> Result<Tensor> {
        let place = |label| self.labels.iter().position(|other| other == label);
        let dims: Dims<isize> = order.iter().filter_map(place).map(|dim| dim as isize).collect();
        self.tensor.permute(&dims)
    }

    /// The dims of each group as one, in this order.
    fn grouped(&self, groups: &[&[Label]]) -> Result<Tensor> {
        let arranged = self.arranged(&groups.concat())?;
        let mut sizes = arranged.shape().iter();
        let shape: Dims =
            groups.iter().map(|group| sizes.by_ref().take(group.len()).product()).collect();
        arranged.reshape(&shape)
    }

    /// Without the dims that are not kept: sums over them.
    ///
    /// A sum is a product with ones, which `product` does in any dtype, with one rounding.
    fn summed(self, kept: impl Fn(&Label) -> bool) -> Result<Term> {
        let (kept, gone): (Labels, Labels) = self.labels.iter().copied().partition(kept);
        if gone.is_empty() {
            return Ok(self);
        }
        let matrix = self.grouped(&[&kept, &gone])?;
        let ones = one(&matrix)?.expand(&[matrix.shape()[1], 1])?;
        let shape = self.arranged_shape(&kept);
        Ok(Term { tensor: product("einsum", &matrix, &ones, &shape)?, labels: kept })
    }

    fn arranged_shape(&self, order: &[Label]) -> Dims {
        order.iter().filter_map(|label| self.size(label)).collect()
    }

    fn size(&self, label: &Label) -> Option<usize> {
        self.labels.iter().position(|other| other == label).map(|dim| self.tensor.shape()[dim])
    }
}

/// The product of two terms, with the labels that are needed later.
fn contract(a: Term, b: Term, later: impl Fn(&Label) -> bool) -> Result<Term> {
    // What one operand alone has and nobody needs is summed first, while it is small.
    let a = a.summed(|label| later(label) || b.labels.contains(label))?;
    let b = b.summed(|label| later(label) || a.labels.contains(label))?;
    let (shared, rows): (Labels, Labels) =
        a.labels.iter().copied().partition(|label| b.labels.contains(label));
    let (batch, inner): (Labels, Labels) = shared.iter().copied().partition(&later);
    let columns: Labels =
        b.labels.iter().copied().filter(|label| !shared.contains(label)).collect();
    let labels: Labels = [&batch[..], &rows, &columns].concat().into();
    let size = |label| a.size(label).or_else(|| b.size(label));
    let shape: Dims = labels.iter().filter_map(size).collect();
    let tensor = product(
        "einsum",
        &a.grouped(&[&batch, &rows, &inner])?,
        &b.grouped(&[&batch, &inner, &columns])?,
        &shape,
    )?;
    Ok(Term { tensor, labels })
}

/// A view in which every label is one dim. `None` if one has two sizes.
fn diagonal(operand: &Tensor, labels: &[Label]) -> Option<Term> {
    let (mut unique, mut shape, mut strides) = (Labels::new(), Dims::new(), Dims::<isize>::new());
    for (dim, label) in labels.iter().enumerate() {
        let (size, stride) = (operand.shape()[dim], operand.strides()[dim]);
        match unique.iter().position(|other| other == label) {
            Some(first) if shape[first] == size => strides[first] += stride,
            Some(_) => return None,
            None => {
                unique.push(*label);
                shape.push(size);
                strides.push(stride);
            }
        }
    }
    // Every index of the view is one of the operand, with the same numbers in several dims.
    Some(Term { tensor: operand.view(shape, strides, operand.offset()), labels: unique })
}

/// Repeats dims of size 1 to the size that their label has elsewhere. `None` if one has two others.
fn same_sizes(terms: &mut [Term]) -> Option<()> {
    let sizes: Vec<(Label, usize)> = terms
        .iter()
        .flat_map(|term| term.labels.iter().copied().zip(term.tensor.shape().iter().copied()))
        .filter(|(_, size)| *size != 1)
        .collect();
    for term in terms {
        let mut shape = Dims::from(term.tensor.shape());
        for (label, size) in term.labels.iter().zip(&mut shape) {
            for (_, other) in sizes.iter().filter(|(other, _)| other == label) {
                match *size {
                    1 => *size = *other,
                    size if size != *other => return None,
                    _ => {}
                }
            }
        }
        term.tensor = term.tensor.expand(&shape).ok()?;
    }
    Some(())
}

/// One, of the dtype of `like`.
fn one(like: &Tensor) -> Result<Tensor> {
    if like.is_meta() {
        return Tensor::meta(&[], like.dtype());
    }
    Ok(match like.dtype() {
        DType::F32 => Tensor::scalar(1.0_f32),
        DType::F64 => Tensor::scalar(1.0_f64),
        DType::Bf16 => Tensor::scalar(bf16::ONE),
        DType::F16 => Tensor::scalar(f16::ONE),
        DType::I64 => Tensor::scalar(1_i64),
        DType::I32 => Tensor::scalar(1_i32),
        DType::U8 => Tensor::scalar(1_u8),
        dtype => return Err(LocalError::UnsupportedDType { op: "einsum", dtype }),
    })
}
