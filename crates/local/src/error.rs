use crate::DType;

/// What can be wrong with an operation on local tensors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// A number of values that does not fill the shape.
    #[error("{op}: {got} values for shape {shape:?}, which has {want}")]
    WrongNumberOfValues {
        /// The operation.
        op: &'static str,
        /// Values given.
        got: usize,
        /// Values needed.
        want: usize,
        /// The shape.
        shape: Vec<usize>,
    },
    /// A shape with more bytes than a buffer can have.
    #[error("{op}: shape {shape:?} of {dtype} is too large for memory")]
    TooLarge {
        /// The operation.
        op: &'static str,
        /// The shape.
        shape: Vec<usize>,
        /// The dtype.
        dtype: DType,
    },
    /// A dim that the tensor does not have.
    #[error("{op}: dim {dim} is out of range for shape {shape:?}; give -{n}..{n}", n = shape.len())]
    DimOutOfRange {
        /// The operation.
        op: &'static str,
        /// As the caller gave it.
        dim: isize,
        /// The shape.
        shape: Vec<usize>,
    },
    /// A list of dims that names one twice, or not all.
    #[error("{op}: {dims:?} is not an order of the {n_dims} dims; name each once")]
    NotAPermutation {
        /// The operation.
        op: &'static str,
        /// The list.
        dims: Vec<isize>,
        /// Dims of the tensor.
        n_dims: usize,
    },
    /// An index beyond the size of its dim.
    #[error("{op}: index {index} is out of range for dim {dim} of size {size}")]
    IndexOutOfRange {
        /// The operation.
        op: &'static str,
        /// The index.
        index: isize,
        /// The dim.
        dim: usize,
        /// Its size.
        size: usize,
    },
    /// A range that is not within its dim.
    #[error("{op}: range {start}..{end} step {step} is not within dim {dim} of size {size}")]
    BadRange {
        /// The operation.
        op: &'static str,
        /// First index.
        start: usize,
        /// One past the last index.
        end: usize,
        /// Distance between indices.
        step: usize,
        /// The dim.
        dim: usize,
        /// Its size.
        size: usize,
    },
    /// Shapes that do not fit.
    #[error("{op}: shape {from:?} does not fit shape {to:?}: {why}")]
    ShapeMismatch {
        /// The operation.
        op: &'static str,
        /// The tensor's.
        from: Vec<usize>,
        /// The one asked for.
        to: Vec<usize>,
        /// The reason and the way out.
        why: &'static str,
    },
    /// A dtype other than the one asked for.
    #[error("{op}: the tensor is {got}, not {want}; cast it first")]
    WrongDType {
        /// The operation.
        op: &'static str,
        /// The tensor's.
        got: DType,
        /// The one asked for.
        want: DType,
    },
    /// A view where consecutive memory is needed.
    #[error(
        "{op}: the elements of shape {shape:?} with strides {strides:?} are not consecutive; call contiguous() first"
    )]
    NotContiguous {
        /// The operation.
        op: &'static str,
        /// The shape.
        shape: Vec<usize>,
        /// The strides.
        strides: Vec<isize>,
    },
    /// A question about values that a meta tensor does not have.
    #[error("{op}: a meta tensor of shape {shape:?} has no values; it is for shapes only")]
    Meta {
        /// The operation.
        op: &'static str,
        /// The shape.
        shape: Vec<usize>,
    },
    /// A dtype that is not floating point where mathematics needs it.
    #[error("{op}: the tensor is {got}, which is not floating point; cast it first")]
    NotFloat {
        /// The operation.
        op: &'static str,
        /// The tensor's.
        got: DType,
    },
    /// A setting out of its range.
    #[error("{op}: {name} is {got}; give {want}")]
    BadNumber {
        /// The operation.
        op: &'static str,
        /// The setting.
        name: &'static str,
        /// As the caller gave it.
        got: String,
        /// The range.
        want: &'static str,
    },
    /// A list that names a dim twice.
    #[error("{op}: dim {dim} is named twice in {dims:?}; name each once")]
    RepeatedDim {
        /// The operation.
        op: &'static str,
        /// As the caller gave it.
        dim: isize,
        /// The list.
        dims: Vec<isize>,
    },
    /// A reduction of no elements to a value that there is none of.
    #[error(
        "{op}: the reduced dims of shape {shape:?} have no elements, of which there is no {op}"
    )]
    NothingToReduce {
        /// The operation.
        op: &'static str,
        /// The shape.
        shape: Vec<usize>,
    },
    /// A dtype on which the operation is not defined.
    #[error("{op}: is not defined on {dtype}; cast to another dtype first")]
    UnsupportedDType {
        /// The operation.
        op: &'static str,
        /// The dtype in which the operands meet.
        dtype: DType,
    },
    /// An integer divided by zero.
    #[error("{op}: division of {dtype} by zero; only floats have infinities")]
    DivisionByZero {
        /// The operation.
        op: &'static str,
        /// The dtype in which the operands meet.
        dtype: DType,
    },
    /// An equation of `einsum` that has no meaning for its operands.
    #[error("einsum: \"{equation}\": {why}")]
    BadEquation {
        /// As the caller gave it.
        equation: String,
        /// The reason and the way out.
        why: &'static str,
    },
    /// A dtype other than those of full precision, where an algorithm is written for these alone.
    #[error(
        "{op}: the tensor is {got}; only f32 and f64 are computed with: convert it with to_dtype first"
    )]
    NotFullPrecision {
        /// The operation.
        op: &'static str,
        /// The tensor's.
        got: DType,
    },
    /// A shape on which the operation is not defined.
    #[error("{op}: not defined on shape {shape:?}: {why}")]
    BadShape {
        /// The operation.
        op: &'static str,
        /// The shape.
        shape: Vec<usize>,
        /// The reason and the way out.
        why: &'static str,
    },
    /// A matrix with an infinity or a NaN, of which an algorithm makes nothing.
    #[error("{op}: {} has values that are not finite; see isfinite", name_matrix(matrix))]
    NotFinite {
        /// The operation.
        op: &'static str,
        /// Which of the batch, as an index of its dims.
        matrix: Vec<usize>,
    },
    /// A matrix without an inverse.
    #[error("{op}: {} is singular; lstsq and pinv take those too", name_matrix(matrix))]
    Singular {
        /// The operation.
        op: &'static str,
        /// Which of the batch, as an index of its dims.
        matrix: Vec<usize>,
    },
    /// A matrix that is not positive definite.
    #[error("{op}: {} is not positive definite; eigvalsh shows by how much", name_matrix(matrix))]
    NotPositiveDefinite {
        /// The operation.
        op: &'static str,
        /// Which of the batch, as an index of its dims.
        matrix: Vec<usize>,
    },
    /// An iteration that did not come to an end.
    #[error("{op}: the iteration for {} did not converge; scale its values", name_matrix(matrix))]
    NoConvergence {
        /// The operation.
        op: &'static str,
        /// Which of the batch, as an index of its dims.
        matrix: Vec<usize>,
    },
    /// What another library said while tensors were converted to or from its own.
    #[error("{op}: {why}")]
    Foreign {
        /// The conversion.
        op: &'static str,
        /// In its words.
        why: String,
    },
}

/// One of a batch, or the only one.
fn name_matrix(index: &[usize]) -> String {
    if index.is_empty() { "the matrix".into() } else { format!("matrix {index:?} of the batch") }
}

/// Result of this crate.
pub type Result<T, E = LocalError> = std::result::Result<T, E>;
