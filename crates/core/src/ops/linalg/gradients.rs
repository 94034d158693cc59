//! Gradients of decompositions and solutions: the formulas of PyTorch, written with operations on batches.
//!
//! Of what looks at one triangle of a symmetric matrix, the gradient is in that triangle. To whatever a symmetric matrix
//! was computed from, this passes on the same as one that is spread over both.

use dtensor_local::linalg::MatrixNorm;
use smallvec::smallvec;

use super::matrices::Question::{
    self, Cholesky, Cond, Det, Eigh, Eigvalsh, Inv, Lstsq, MatrixPower, MatrixRank, Pinv, Qr,
    QrComplete, Slogdet, Solve, Svd, Svdvals,
};
use crate::{
    DTensor, Error, Result,
    autograd::plus,
    eye, is_grad_enabled,
    op::{Backward, Grads, Keep, Number},
};

impl Question {
    pub(super) fn keeps(&self) -> Option<Keep> {
        Some(match self {
            Qr | Svd { full_matrices: false } | Eigh | Cholesky { .. } | Inv => Keep::RESULTS,
            Svdvals | Cond | Question::MatrixNorm(_) | Eigvalsh | Slogdet | MatrixPower(_) => {
                Keep::OPERANDS
            }
            Pinv { .. } | Det => Keep::OPERANDS.and(Keep::RESULTS),
            Solve => Keep::operands(&[0]).and(Keep::RESULTS),
            Lstsq { .. } => Keep::OPERANDS.and(Keep::results(&[0])),
            // What else is in an orthogonal basis is not determined by the matrix.
            Svd { full_matrices: true } | QrComplete => return None,
            MatrixRank { .. } => Keep::NOTHING,
        })
    }

    pub(super) fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        match self {
            Solve => solve(backward),
            Lstsq { rcond } => lstsq(backward, *rcond),
            _ => backward.first(|| self.of_matrices(backward)),
        }
    }

    /// The gradient of the only operand.
    fn of_matrices(&self, backward: &Backward<'_>) -> Result<DTensor> {
        match self {
            Qr => qr(backward),
            Svd { .. } => svd(backward),
            Svdvals => of_singular_values(&backward.operand(0)?, |_| backward.grad()),
            Question::MatrixNorm(norm) => {
                let grad = backward.grad()?.unsqueeze(-1)?;
                of_singular_values(&backward.operand(0)?, |values| match norm {
                    MatrixNorm::Two => share(values, &values.amax(&[-1], true)?)?.mul(&grad),
                    MatrixNorm::MinusTwo => share(values, &values.amin(&[-1], true)?)?.mul(&grad),
                    _ => values.ones_like()?.mul(&grad),
                })
            }
            Cond => {
                let grad = backward.grad()?.unsqueeze(-1)?;
                of_singular_values(&backward.operand(0)?, |values| {
                    let (most, least) = (values.amax(&[-1], true)?, values.amin(&[-1], true)?);
                    let of_least = share(values, &least)?.mul(&most.div(&least)?)?;
                    share(values, &most)?.sub(&of_least)?.div(&least)?.mul(&grad)
                })
            }
            Pinv { .. } => pinv(&backward.operand(0)?, &backward.result(0)?, &backward.grad()?),
            Eigvalsh => {
                let (_, vectors) = backward.operand(0)?.eigh()?;
                let scaled = vectors.mul(&backward.grad()?.unsqueeze(-2)?)?;
                in_lower_triangle(&scaled.matmul(&across(&vectors)?)?)
            }
            Eigh => eigh(backward),
            Cholesky { upper } => cholesky(backward, *upper),
            Inv => {
                let inverse = across(&backward.result(0)?)?;
                inverse.matmul(&backward.grad()?)?.matmul(&inverse)?.neg()
            }
            Det => det(backward),
            Slogdet => {
                // The sign does not change.
                let grad = backward.grad_of(1)?.unsqueeze(-1)?.unsqueeze(-1)?;
                across(&backward.operand(0)?.inv()?)?.mul(&grad)
            }
            MatrixPower(n) => matrix_power(&backward.operand(0)?, *n, &backward.grad()?),
            QrComplete | MatrixRank { .. } | Solve | Lstsq { .. } => {
                Err(Error::NoGradient { op: self.name() })
            }
        }
    }
}

/// The matrices with rows and columns exchanged.
fn across(x: &DTensor) -> Result<DTensor> {
    x.transpose(-2, -1)
}

/// Zeros, and ones on the diagonal, of the size of the last dim.
fn identity(like: &DTensor) -> Result<DTensor> {
    let size = like.shape().last().copied().unwrap_or(0);
    let copies = vec![crate::Placement::Replicate; like.mesh().n_axes()];
    eye(size, size, like.dtype(), like.mesh(), &copies)
}

fn diagonal_of(values: &DTensor) -> Result<DTensor> {
    values.diag_embed(0, -2, -1)
}

/// What is in the upper triangle, added to its mirror image in the lower one.
fn in_lower_triangle(x: &DTensor) -> Result<DTensor> {
    x.tril(0)?.add(&across(x)?.tril(-1)?)
}

/// The differences of all pairs along the last dim, later ones in rows less those in columns, and one between each and
/// itself: to divide by.
fn differences(values: &DTensor) -> Result<DTensor> {
    values.unsqueeze(-2)?.sub(&values.unsqueeze(-1)?)?.add(&identity(values)?)
}

/// One, divided evenly among those of the values that are equal to what is beside them.
fn share(values: &DTensor, to: &DTensor) -> Result<DTensor> {
    let is_one = values.eq(to)?.to_dtype(values.dtype())?;
    is_one.div(&is_one.sum(&[-1], true)?)
}

/// The gradient of matrices from that of their singular values, which is a function of these.
fn of_singular_values(
    a: &DTensor,
    gradient: impl FnOnce(&DTensor) -> Result<DTensor>,
) -> Result<DTensor> {
    let (u, values, vh) = a.svd(false)?;
    u.mul(&gradient(&values)?.unsqueeze(-2)?)?.matmul(&vh)
}

fn qr(backward: &Backward<'_>) -> Result<DTensor> {
    let (q, r) = (backward.result(0)?, backward.result(1)?);
    let (mut of_q, mut of_r) = (backward.grad_of(0)?, backward.grad_of(1)?);
    let n_columns = r.shape()[r.n_dims() - 1];
    let size = q.shape()[q.n_dims() - 1];
    let (mut square, mut of_others) = (r.clone(), None);
    if n_columns > size {
        // The columns behind the first ones are a product with `q`, which these determine alone.
        let others = |x: &DTensor| x.narrow(-1, size, n_columns - size);
        let (behind, of_behind) = (others(&r)?, others(&of_r)?);
        of_others = Some(q.matmul(&of_behind)?);
        of_q = of_q.add(&q.matmul(&behind.matmul(&across(&of_behind)?)?)?)?;
        (square, of_r) = (r.narrow(-1, 0, size)?, of_r.narrow(-1, 0, size)?);
    }
    let both = square.matmul(&across(&of_r)?)?.sub(&across(&of_q)?.matmul(&q)?)?;
    let symmetric = both.tril(0)?.add(&across(&both.tril(-1)?)?)?;
    let product = of_q.add(&q.matmul(&symmetric)?)?;
    let of_first = across(&square.solve(&across(&product)?)?)?;
    match of_others {
        None => Ok(of_first),
        Some(of_others) => DTensor::cat(&[&of_first, &of_others], -1),
    }
}

fn svd(backward: &Backward<'_>) -> Result<DTensor> {
    let [u, values, vh] = [backward.result(0)?, backward.result(1)?, backward.result(2)?];
    let in_rows = values.unsqueeze(-2)?;
    let mut middle = diagonal_of(&backward.grad_of(1)?)?;
    let mut found: Option<DTensor> = None;
    let squares = differences(&values.mul(&values)?)?;
    let skew = |x: &DTensor| x.sub(&across(x)?)?.div(&squares);
    let size = values.shape().last().copied().unwrap_or(0);
    if backward.has_grad(0) {
        let of_u = backward.grad_of(0)?;
        middle = middle.add(&skew(&across(&u)?.matmul(&of_u)?)?.mul(&in_rows)?)?;
        if u.shape()[u.n_dims() - 2] > size {
            // What turns the columns out of the space that they span.
            let of_u = of_u.div(&in_rows)?;
            let beside = of_u.sub(&u.matmul(&across(&u)?.matmul(&of_u)?)?)?;
            found = Some(beside.matmul(&vh)?);
        }
    }
    if backward.has_grad(2) {
        let of_vh = backward.grad_of(2)?;
        let turned = skew(&vh.matmul(&across(&of_vh)?)?)?;
        middle = middle.add(&turned.mul(&values.unsqueeze(-1)?)?)?;
        if vh.shape()[vh.n_dims() - 1] > size {
            let of_vh = of_vh.div(&values.unsqueeze(-1)?)?;
            let beside = of_vh.sub(&of_vh.matmul(&across(&vh)?)?.matmul(&vh)?)?;
            let more = u.matmul(&beside)?;
            found = Some(plus(found, more)?);
        }
    }
    plus(found, u.matmul(&middle)?.matmul(&vh)?)
}

/// Of matrices whose rank stays the same, with their pseudo-inverses, and the gradient of these.
fn pinv(a: &DTensor, inverse: &DTensor, grad: &DTensor) -> Result<DTensor> {
    let [rows, columns] = [a.shape()[a.n_dims() - 2], a.shape()[a.n_dims() - 1]];
    let (inverse_across, grad) = (across(inverse)?, across(grad)?);
    if rows <= columns {
        let k = grad.matmul(inverse)?;
        let right = k.matmul(&inverse_across)?;
        let sum = right.sub(&across(&inverse.matmul(&k)?)?)?;
        let sum = sum.sub(&a.matmul(inverse)?.matmul(&right)?)?;
        sum.add(&inverse_across.matmul(&inverse.matmul(&grad.sub(&k.matmul(a)?)?)?)?)
    } else {
        let k = inverse.matmul(&grad)?;
        let left = inverse_across.matmul(&k)?;
        let sum = left.sub(&across(&k.matmul(inverse)?)?)?;
        let sum = sum.sub(&left.matmul(inverse)?.matmul(a)?)?;
        sum.add(&grad.sub(&a.matmul(&k)?)?.matmul(inverse)?.matmul(&inverse_across)?)
    }
}

fn eigh(backward: &Backward<'_>) -> Result<DTensor> {
    let (values, vectors) = (backward.result(0)?, backward.result(1)?);
    let mut middle = diagonal_of(&backward.grad_of(0)?)?;
    if backward.has_grad(1) {
        let turned = across(&vectors)?.matmul(&backward.grad_of(1)?)?;
        let turned = turned.mul(&identity(&vectors)?.neg()?.add(1.0)?)?;
        middle = middle.add(&turned.div(&differences(&values)?)?)?;
    }
    in_lower_triangle(&vectors.matmul(&middle)?.matmul(&across(&vectors)?)?)
}

fn cholesky(backward: &Backward<'_>, upper: bool) -> Result<DTensor> {
    let turned = |x: DTensor| if upper { across(&x) } else { Ok(x) };
    let lower_across = across(&turned(backward.result(0)?)?)?;
    let product = lower_across.matmul(&turned(backward.grad()?)?)?;
    let half = product.tril(0)?.sub(&product.mul(&identity(&product)?)?.mul(0.5)?)?;
    let left = lower_across.solve(&half)?;
    let both = across(&lower_across.solve(&across(&left)?)?)?;
    turned(in_lower_triangle(&both)?)
}

fn det(backward: &Backward<'_>) -> Result<DTensor> {
    let grad = backward.grad()?.unsqueeze(-1)?.unsqueeze(-1)?;
    let a = backward.operand(0)?;
    if is_grad_enabled() {
        // Which is what has a gradient itself.
        let det = backward.result(0)?.unsqueeze(-1)?.unsqueeze(-1)?;
        return across(&a.inv()?)?.mul(&det.mul(&grad)?);
    }
    // The minors, also of a singular matrix: for each singular value the product of the others.
    let (u, values, vh) = a.svd(false)?;
    let pairs = values.unsqueeze(-2)?.expand(u.shape())?;
    let is_itself = identity(&values)?.to_dtype(crate::DType::Bool)?;
    let products = pairs.masked_fill(&is_itself, 1.0)?.prod(&[-1], false)?;
    let sign = u.det()?.mul(&vh.det()?)?.unsqueeze(-1)?.unsqueeze(-1)?;
    u.mul(&products.unsqueeze(-2)?)?.matmul(&vh)?.mul(&sign.mul(&grad)?)
}

fn matrix_power(a: &DTensor, n: isize, grad: &DTensor) -> Result<DTensor> {
    if n < 0 {
        let inverse = a.inv()?;
        let of_inverse = matrix_power(&inverse, -n, grad)?;
        let turned = across(&inverse)?;
        return turned.matmul(&of_inverse)?.matmul(&turned)?.neg();
    }
    if n == 0 {
        return a.settled()?.zeros_like();
    }
    // The sum of all `b^i grad b^j` with `i + j = n - 1`, and `b^n`, for every prefix of the bits of `n`.
    let base = across(a)?;
    let (mut sum, mut power) = (grad.clone(), base.clone());
    for bit in (0..n.ilog2()).rev() {
        sum = power.matmul(&sum)?.add(&sum.matmul(&power)?)?;
        power = power.matmul(&power)?;
        if n >> bit & 1 == 1 {
            sum = base.matmul(&sum)?.add(&grad.matmul(&power)?)?;
            power = power.matmul(&base)?;
        }
    }
    Ok(sum)
}

/// Whether the right-hand sides are vectors, of which the solutions have a dim less than there are in a product.
fn are_vectors(backward: &Backward<'_>) -> bool {
    let (a, b) = (backward.shape(0), backward.shape(1));
    b.len() == 1 || a.split_last().is_some_and(|(_, rows)| rows == b)
}

fn solve(backward: &Backward<'_>) -> Result<Grads> {
    let turned = across(&backward.operand(0)?)?;
    let of_b = turned.solve(&backward.grad()?)?;
    let of_a = backward.needs(0).then(|| {
        let x = backward.result(0)?;
        match are_vectors(backward) {
            true => of_b.unsqueeze(-1)?.mul(&x.unsqueeze(-2)?)?.neg(),
            false => of_b.matmul(&across(&x)?)?.neg(),
        }
    });
    Ok(smallvec![of_a.transpose()?, Some(of_b)])
}

fn lstsq(backward: &Backward<'_>, rcond: Option<Number>) -> Result<Grads> {
    let are_vectors = are_vectors(backward);
    let columns = |x: DTensor| if are_vectors { x.unsqueeze(-1) } else { Ok(x) };
    let (a, b) = (backward.operand(0)?, columns(backward.operand(1)?)?);
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    if backward.has_grad(0) {
        let grad = columns(backward.grad()?)?;
        let inverse = a.pinv(rcond.map(|rcond| rcond.0))?;
        of_a.push(pinv(&a, &inverse, &grad.matmul(&across(&b)?)?)?);
        of_b.push(across(&inverse)?.matmul(&grad)?);
    }
    if backward.has_grad(1) {
        // The solution is where they do not depend on it.
        let x = columns(backward.result(0)?)?;
        let grad = columns(backward.grad_of(1)?)?.unsqueeze(-2)?.mul(2.0)?;
        let of_rest = b.sub(&a.matmul(&x)?)?.mul(&grad)?;
        of_a.push(of_rest.matmul(&across(&x)?)?.neg()?);
        of_b.push(of_rest);
    }
    if backward.has_grad(3) {
        of_a.push(of_singular_values(&a, |_| backward.grad_of(3))?);
    }
    let sum = |terms: &[DTensor], shape: &[usize]| {
        let mut sum: Option<DTensor> = None;
        for term in terms {
            sum = Some(plus(sum, term.sum_to(shape)?)?);
        }
        Ok(sum)
    };
    backward.each_or_none(|operand| match operand {
        0 => sum(&of_a, a.shape()),
        _ => match sum(&of_b, b.shape())? {
            Some(of_b) if are_vectors => of_b.squeeze(-1).map(Some),
            of_b => Ok(of_b),
        },
    })
}
