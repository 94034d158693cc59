//! Decompositions and solutions of batches of matrices. The batch may be cut, and so may the columns of
//! right-hand sides; a matrix is worked on whole.

use dtensor_layout::rule::Rule;
use dtensor_local::{
    LocalError, Tensor,
    linalg::{self, MatrixNorm},
};

use super::checked::OnMatrices;
use crate::{
    DTensor, Error, Result,
    dispatch::{call, call_one, call_two},
    op::{
        LocalContext, Meta, Number, Op, OpRecord, Sample,
        SampleValues::{Positive, Signed},
    },
    ops::letters::rule,
};

/// What is asked of matrices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Question {
    Qr,
    QrComplete,
    Svd { full_matrices: bool },
    Svdvals,
    Pinv { rcond: Option<Number> },
    MatrixRank { rcond: Option<Number> },
    Cond,
    MatrixNorm(MatrixNorm),
    Eigh,
    Eigvalsh,
    Cholesky { upper: bool },
    Inv,
    Det,
    Slogdet,
    MatrixPower(isize),
    Solve,
    Lstsq { rcond: Option<Number> },
}

use Question::{
    Cholesky, Cond, Det, Eigh, Eigvalsh, Inv, Lstsq, MatrixPower, MatrixRank, Pinv, Qr, QrComplete,
    Slogdet, Solve, Svd, Svdvals,
};

impl Question {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Qr => "qr",
            QrComplete => "qr_complete",
            Svd { .. } => "svd",
            Svdvals => "svdvals",
            Pinv { .. } => "pinv",
            MatrixRank { .. } => "matrix_rank",
            Cond => "cond",
            Question::MatrixNorm(_) => "matrix_norm",
            Eigh => "eigh",
            Eigvalsh => "eigvalsh",
            Cholesky { .. } => "cholesky",
            Inv => "inv",
            Det => "det",
            Slogdet => "slogdet",
            MatrixPower(_) => "matrix_power",
            Solve => "solve",
            Lstsq { .. } => "lstsq",
        }
    }

    /// Whether there are matrices without an answer.
    pub(super) fn may_fail(&self) -> bool {
        !matches!(self, MatrixPower(0..))
    }

    /// The letters of the rule, and the rows that letters cannot say.
    fn letters(&self, operands: &[Meta]) -> (&'static str, Vec<String>) {
        let letters = match self {
            Qr => "... m! n! -> ... m! k!, ... k! n!",
            QrComplete => "... m! n! -> ... m! k!, ... m! n!",
            Svd { .. } => "... m! n! -> ... m! k!, ... l!, ... o! n!",
            Svdvals => "... m! n! -> ... k!",
            Pinv { .. } => "... m! n! -> ... n! m!",
            MatrixRank { .. } | Cond | Question::MatrixNorm(_) | Det => "... m! n! -> ...",
            Eigh => "... m! n! -> ... n!, ... m! n!",
            Eigvalsh => "... m! n! -> ... n!",
            Cholesky { .. } | Inv | MatrixPower(_) => "... m! n! -> ... m! n!",
            Slogdet => "... m! n! -> ..., ...",
            Solve => {
                // Linear in the right-hand side.
                let rows = vec!["R P(sum) -> P(sum)".into(), "R P(avg) -> P(avg)".into()];
                let letters = match Sides::of(&operands[0].shape, &operands[1].shape) {
                    Sides::OneVector => "... m! n!, m! -> ... n!",
                    Sides::Vectors => "... m! n!, ... m! -> ... n!",
                    Sides::Matrices => "... m! n!, ... m! c -> ... n! c",
                };
                return (letters, rows);
            }
            Lstsq { .. } => {
                return match Sides::of(&operands[0].shape, &operands[1].shape) {
                    Sides::OneVector => ("... m! n!, m! -> ... n!, ..., ..., ... k!", Vec::new()),
                    Sides::Vectors => ("... m! n!, ... m! -> ... n!, ..., ..., ... k!", Vec::new()),
                    Sides::Matrices => {
                        // Where columns are cut, every rank finds rank and singular values.
                        let dims = operands[0].n_dims().max(operands[1].n_dims());
                        let (b, x, rest) = (operands[1].n_dims() - 1, dims - 1, dims - 2);
                        let columns = format!("R S({b}) -> S({x}) S({rest}) R R");
                        ("... m! n!, ... m! c! -> ... n! c!, ... c!, ..., ... k!", vec![columns])
                    }
                };
            }
        };
        (letters, Vec::new())
    }

    pub(super) fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let (letters, rows) = self.letters(operands);
        let rows: String = rows.iter().map(|row| format!("; {row}")).collect();
        rule(self.name(), &format!("{letters}{rows}"), &[])
    }

    pub(super) fn answer(
        &self,
        x: &[&Tensor],
        context: &LocalContext,
    ) -> Result<Vec<Tensor>, LocalError> {
        let number = |number: &Option<Number>| number.map(|number| number.0);
        let pair = |(a, b)| vec![a, b];
        let a = x[0];
        match self {
            Qr => linalg::qr(a).map(pair),
            QrComplete => linalg::qr_complete(a).map(pair),
            Svd { full_matrices } => {
                linalg::svd(a, *full_matrices).map(|(u, s, vh)| vec![u, s, vh])
            }
            Svdvals => linalg::svdvals(a).map(|s| vec![s]),
            Pinv { rcond } => linalg::pinv(a, number(rcond)).map(|inverse| vec![inverse]),
            MatrixRank { rcond } => linalg::matrix_rank(a, number(rcond)).map(|rank| vec![rank]),
            Cond => linalg::cond(a).map(|cond| vec![cond]),
            Question::MatrixNorm(norm) => linalg::matrix_norm(a, *norm).map(|norm| vec![norm]),
            Eigh => linalg::eigh(a).map(pair),
            Eigvalsh => linalg::eigvalsh(a).map(|values| vec![values]),
            Cholesky { upper } => linalg::cholesky(a, *upper).map(|factor| vec![factor]),
            Inv => linalg::inv(a).map(|inverse| vec![inverse]),
            Det => linalg::det(a).map(|det| vec![det]),
            Slogdet => linalg::slogdet(a).map(pair),
            MatrixPower(n) => a.matrix_power(*n).map(|power| vec![power]),
            Solve => with_sides(x, context, |a, b| Ok(vec![linalg::solve(a, b)?]), &[0]),
            Lstsq { rcond } => with_sides(
                x,
                context,
                |a, b| {
                    let found = linalg::lstsq(a, b, number(rcond))?;
                    Ok(vec![found.solution, found.residuals, found.rank, found.singular_values])
                },
                &[0, 1],
            ),
        }
    }
}

/// What a right-hand side is, by the rules of `torch.linalg.solve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sides {
    /// One for all matrices.
    OneVector,
    /// One for each.
    Vectors,
    Matrices,
}

impl Sides {
    fn of(a: &[usize], b: &[usize]) -> Sides {
        match a.split_last() {
            _ if b.len() == 1 => Sides::OneVector,
            Some((_, rows)) if rows == b => Sides::Vectors,
            _ => Sides::Matrices,
        }
    }
}

/// Calls a kernel that tells vectors from matrices by shapes. Those of parts may mislead it, so here the
/// global shapes decide, and it gets matrices. `with_columns` are the results that have a dim for these.
fn with_sides(
    x: &[&Tensor],
    context: &LocalContext,
    kernel: impl Fn(&Tensor, &Tensor) -> Result<Vec<Tensor>, LocalError>,
    with_columns: &[usize],
) -> Result<Vec<Tensor>, LocalError> {
    let (Some(a), Some(b)) = (context.operand(0), context.operand(1)) else {
        return kernel(x[0], x[1]);
    };
    let vectors = Sides::of(a.global_shape(), b.global_shape()) != Sides::Matrices;
    let mut b = if vectors { x[1].unsqueeze(-1)? } else { x[1].clone() };
    while b.n_dims() < x[0].n_dims() {
        b = b.unsqueeze(0)?;
    }
    let mut results = kernel(x[0], &b)?;
    for result in with_columns.iter().filter(|_| vectors) {
        results[*result] = results[*result].squeeze(-1)?;
    }
    Ok(results)
}

impl DTensor {
    /// `a = q r`, with orthonormal columns in `q` and an upper triangle in `r`: for `[.., m, n]` they are
    /// `[.., m, k]` and `[.., k, n]`, where `k` is the smaller of `m` and `n`.
    pub fn qr(&self) -> Result<(DTensor, DTensor)> {
        call_two(&OnMatrices::new(Qr), &[self])
    }

    /// As [`qr`](DTensor::qr), with all columns of the orthogonal matrix. If there are more rows than columns, it has no
    /// gradient: the further columns are not determined.
    pub fn qr_complete(&self) -> Result<(DTensor, DTensor)> {
        if let [.., rows, columns] = self.shape()
            && rows <= columns
        {
            return self.qr();
        }
        call_two(&OnMatrices::new(QrComplete), &[self])
    }

    /// `a = u diag(s) vh`, with orthonormal columns in `u`, orthonormal rows in `vh` and singular values in
    /// decreasing order. With `full_matrices`, `u` and `vh` are square; that has no gradient, since what is added to them is
    /// not determined.
    pub fn svd(&self, full_matrices: bool) -> Result<(DTensor, DTensor, DTensor)> {
        let op = OnMatrices::new(Svd { full_matrices });
        let mut results = call(&op, &[self])?.into_iter();
        match (results.next(), results.next(), results.next()) {
            (Some(u), Some(s), Some(vh)) => Ok((u, s, vh)),
            _ => Err(too_few(&op)),
        }
    }

    /// The singular values in decreasing order.
    pub fn svdvals(&self) -> Result<DTensor> {
        call_one(&OnMatrices::new(Svdvals), &[self])
    }

    /// The pseudo-inverse. Singular values up to `rcond` times the largest count as zero.
    pub fn pinv(&self, rcond: Option<f64>) -> Result<DTensor> {
        call_one(&OnMatrices::new(Pinv { rcond: rcond.map(Number) }), &[self])
    }

    /// How many singular values are larger than `rcond` times the largest, as `i64`.
    pub fn matrix_rank(&self, rcond: Option<f64>) -> Result<DTensor> {
        call_one(&OnMatrices::new(MatrixRank { rcond: rcond.map(Number) }), &[self])
    }

    /// The condition number: the largest over the smallest singular value.
    pub fn cond(&self) -> Result<DTensor> {
        call_one(&OnMatrices::new(Cond), &[self])
    }

    /// The eigenvalues of symmetric matrices in increasing order, and eigenvectors as columns. Of a matrix
    /// the lower triangle is looked at, and has the gradient.
    pub fn eigh(&self) -> Result<(DTensor, DTensor)> {
        call_two(&OnMatrices::new(Eigh), &[self])
    }

    /// The eigenvalues of symmetric matrices in increasing order.
    pub fn eigvalsh(&self) -> Result<DTensor> {
        call_one(&OnMatrices::new(Eigvalsh), &[self])
    }

    /// The triangle `l` of positive definite matrices `l lᵀ`; or with `upper`, `u` of `uᵀ u`.
    pub fn cholesky(&self, upper: bool) -> Result<DTensor> {
        call_one(&OnMatrices::new(Cholesky { upper }), &[self])
    }

    /// The inverse of square matrices. A singular one is an error on every rank.
    pub fn inv(&self) -> Result<DTensor> {
        call_one(&OnMatrices::new(Inv), &[self])
    }

    /// The determinant of square matrices.
    pub fn det(&self) -> Result<DTensor> {
        call_one(&OnMatrices::new(Det), &[self])
    }

    /// The sign of the determinant and the logarithm of its absolute value.
    pub fn slogdet(&self) -> Result<(DTensor, DTensor)> {
        call_two(&OnMatrices::new(Slogdet), &[self])
    }

    /// Square matrices multiplied with themselves `n` times; the identity for 0, and powers of the inverse
    /// below it.
    pub fn matrix_power(&self, n: isize) -> Result<DTensor> {
        call_one(&OnMatrices::new(MatrixPower(n)), &[self])
    }

    /// The solution `x` of `self x = b` for square matrices: `b` has matrices, whose columns are solved for, or
    /// a vector for every matrix (or one for all). A singular matrix is an error on every rank.
    pub fn solve(&self, b: &DTensor) -> Result<DTensor> {
        call_one(&OnMatrices::new(Solve), &[self, b])
    }

    /// The least squares solution of `self x = b`, for matrices of any shape and rank: the solution, the
    /// squared length of `b - self x` for every column, the ranks and the singular values.
    pub fn lstsq(
        &self,
        b: &DTensor,
        rcond: Option<f64>,
    ) -> Result<(DTensor, DTensor, DTensor, DTensor)> {
        let op = OnMatrices::new(Lstsq { rcond: rcond.map(Number) });
        let mut results = call(&op, &[self, b])?.into_iter();
        match (results.next(), results.next(), results.next(), results.next()) {
            (Some(x), Some(residuals), Some(rank), Some(values)) => {
                Ok((x, residuals, rank, values))
            }
            _ => Err(too_few(&op)),
        }
    }
}

fn too_few(op: &OnMatrices) -> Error {
    Error::Unsupported {
        op: op.name(),
        what: "it gave too few results".into(),
        way_out: "please report this",
    }
}

/// Rows `name [questions and shapes of operands];`.
macro_rules! records {
    ($($name:literal $values:expr, [$($question:expr => $shapes:expr),*];)*) => {
        pub(super) const RECORDS: &[OpRecord] = &[$(OpRecord {
            name: $name,
            samples: || vec![$(
                Sample::new(OnMatrices::new($question), &$shapes).with(0, $values)
            ),*],
        }),*];
    };
}

records! {
    "qr" Signed, [Qr => [&[3, 3, 2]], Qr => [&[2, 3]]];
    "qr_complete" Signed, [QrComplete => [&[3, 3, 2]], QrComplete => [&[2, 3]]];
    "svd" Signed, [
        Svd { full_matrices: false } => [&[3, 3, 2]],
        Svd { full_matrices: false } => [&[2, 3]],
        Svd { full_matrices: true } => [&[2, 3]]
    ];
    "svdvals" Signed, [Svdvals => [&[3, 3, 2]]];
    "pinv" Signed, [Pinv { rcond: None } => [&[3, 3, 2]], Pinv { rcond: Some(Number(0.05)) } => [&[2, 3]]];
    "matrix_rank" Signed, [MatrixRank { rcond: Some(Number(0.5)) } => [&[3, 3, 2]]];
    "cond" Signed, [Cond => [&[3, 3, 2]]];
    "matrix_norm" Signed, [
        Question::MatrixNorm(MatrixNorm::Two) => [&[3, 3, 2]],
        Question::MatrixNorm(MatrixNorm::Nuclear) => [&[2, 3]]
    ];
    "eigh" Signed, [Eigh => [&[3, 2, 2]]];
    "eigvalsh" Signed, [Eigvalsh => [&[3, 2, 2]]];
    // Random matrices are positive definite if they are positive numbers; larger ones are in the tests of the family.
    "cholesky" Positive, [Cholesky { upper: false } => [&[3, 1, 1]], Cholesky { upper: true } => [&[5, 1, 1]]];
    "inv" Signed, [Inv => [&[3, 2, 2]], Inv => [&[2, 1, 3, 3]]];
    "det" Signed, [Det => [&[3, 2, 2]], Det => [&[2, 2]]];
    "slogdet" Signed, [Slogdet => [&[3, 2, 2]]];
    "matrix_power" Signed, [
        MatrixPower(3) => [&[3, 2, 2]],
        MatrixPower(-2) => [&[5, 2, 2]],
        MatrixPower(0) => [&[2, 2]]
    ];
    "solve" Signed, [
        Solve => [&[3, 2, 2], &[3, 2, 4]],
        Solve => [&[3, 2, 2], &[2]],
        Solve => [&[3, 2, 2], &[3, 2]],
        Solve => [&[6, 2, 2], &[2, 2]],
        Solve => [&[2, 2], &[3, 2, 1]]
    ];
    "lstsq" Signed, [
        Lstsq { rcond: None } => [&[3, 3, 2], &[3, 3, 4]],
        Lstsq { rcond: None } => [&[3, 3, 2], &[3, 3]],
        Lstsq { rcond: None } => [&[3, 2], &[3]],
        Lstsq { rcond: None } => [&[6, 2, 2], &[2, 5]]
    ];
}
