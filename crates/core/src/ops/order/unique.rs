//! Different values. Every rank finds those of its part; they are gathered, and the different ones of these are
//! the result, which every rank then has. That is little where values repeat, which is what the question is
//! for; the tensor itself is not sent.

use dtensor_layout::{DType, Layout, Placement, rule::Rule};
use dtensor_local::{LocalError, Tensor, Unique};

use crate::{
    DTensor, Error, Result,
    dispatch::call_three,
    op::{
        LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::{Index, Integer},
    },
    ops::indexing::{
        held::{RESULT, TENSOR, letters, normal},
        ragged::{InOrder, Line, check_values, cut_axes, infer_by_values, rows_layout},
    },
};

/// `unique`, `unique_consecutive` and `unique_dim`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Of {
    All,
    /// Only equal neighbours are one.
    Neighbours,
    Slices(isize),
}

impl Op for Of {
    fn name(&self) -> &'static str {
        match self {
            Of::All => "unique",
            Of::Neighbours => "unique_consecutive",
            Of::Slices(_) => "unique_dim",
        }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let marked = |family, n_dims: usize| {
            let names = letters(family, n_dims);
            names.iter().map(|name| format!("{name}! ")).collect::<String>()
        };
        let n_dims = operands[0].n_dims();
        let tensor = marked(TENSOR, n_dims);
        let (values, inverse) = match self {
            Of::All | Of::Neighbours => ("n!".to_string(), tensor.clone()),
            Of::Slices(_) => (marked(RESULT, n_dims.max(1)), "m!".to_string()),
        };
        Ok(Rule::of(&format!("{tensor} -> {values}, {inverse}, n!"), &[]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let Unique { values, inverse, counts } = self.kernel(x[0])?;
        Ok([values, inverse, counts].into_iter().collect())
    }

    fn infer(&self, operands: &[Meta]) -> Result<Outputs<Meta>> {
        if let Of::Slices(dim) = self
            && operands[0].n_dims() > 0
        {
            operands[0].dim(self.name(), *dim)?;
        }
        infer_by_values(self, operands)
    }

    fn decomposes(&self, _: &[&Layout]) -> bool {
        true
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let (op, x) = (self.name(), operands[0].settled()?);
        check_values(op, &x)?;
        match self {
            Of::All => self.all(&x),
            Of::Neighbours => {
                let axes = cut_axes(&[&x]);
                let order = InOrder { op, mesh: x.mesh(), shape: x.shape(), axes: &axes };
                let x = x.redistribute_as(op, &order.layout(&x)?)?;
                self.again(&x, 0, x.layout(), None)
            }
            Of::Slices(dim) if x.n_dims() > 0 => {
                let dim = normal(*dim, x.n_dims());
                // Slices are compared whole.
                let cut = |placement: &Placement| match placement.shard_dim() {
                    Some(_) => Placement::Shard(dim),
                    None => *placement,
                };
                let placements: Vec<Placement> = x.placements().iter().map(cut).collect();
                let to = x.layout().with_placements(&placements).map_err(Error::layout(op))?;
                let x = x.redistribute_as(op, &to)?;
                let (mesh, axes) = (x.mesh(), cut_axes(&[&x]));
                let of_inverse = rows_layout(op, mesh, &axes, &x.shape()[dim..=dim], DType::I64)?;
                self.again(&x, dim, &of_inverse, None)
            }
            Of::Slices(_) => {
                let one = rows_layout(op, x.mesh(), &[], &[1], DType::I64)?;
                self.again(&x, 0, &one, None)
            }
        }
    }
}

impl Of {
    fn kernel(&self, x: &Tensor) -> Result<Unique, LocalError> {
        match self {
            Of::All => x.unique(),
            Of::Neighbours => x.unique_consecutive(),
            Of::Slices(dim) => x.unique_dim(*dim),
        }
    }

    /// However the tensor is cut: what is found is put in the order of the first element of each value, which
    /// decides which of two zeros it is, and which NaN comes first.
    fn all(&self, x: &DTensor) -> Result<Outputs<DTensor>> {
        let coord = x.mesh().own_coord(self.name())?;
        // The place of an element of the part in the whole.
        let held: Vec<Vec<usize>> = (0..x.n_dims())
            .map(|dim| x.layout().intervals(dim, coord).iter().flatten().collect())
            .collect();
        let place = |number: usize| {
            let (mut rest, mut place, mut stride) = (number, 0, 1);
            for (held, size) in held.iter().zip(x.shape()).rev() {
                place += held[rest % held.len()] * stride;
                rest /= held.len();
                stride *= size;
            }
            place as i64
        };
        self.again(x, 0, x.layout(), Some(&place))
    }

    /// The different ones of those that the ranks find. `first` gives the place of an element in the whole,
    /// where the parts are not in order.
    fn again(
        &self,
        x: &DTensor,
        dim: usize,
        of_inverse: &Layout,
        first: Option<&dyn Fn(usize) -> i64>,
    ) -> Result<Outputs<DTensor>> {
        let (op, mesh, axes) = (self.name(), x.mesh(), cut_axes(&[x]));
        let line = Line { op, mesh, axes: &axes };
        let of_inverse = of_inverse.with_dtype(DType::I64).map_err(Error::layout(op))?;
        let own = self.kernel(x.local())?;
        let found = own.counts.numel();
        let all = line.agree(&[found as i64])?;
        let counts: Vec<usize> =
            all.iter().map(|one| usize::try_from(one[0]).unwrap_or(0)).collect();
        let before: usize = counts[..line.position(mesh.own_coord(op)?)].iter().sum();
        // One row per value, so that the values of ranks are rows of one tensor.
        let rows = own.values.transpose(0, dim as isize)?.contiguous();
        let mut shape = rows.shape().to_vec();
        let width: usize = shape[1..].iter().product();
        shape[0] = counts.iter().sum();
        let sizes: Vec<usize> = counts.iter().map(|count| count * width).collect();
        let mut rows = line.gather(&rows, &sizes)?.reshape(&shape)?;
        let mut numbers = line.gather(&own.counts, &counts)?;
        // From where a value was gathered to where it is now.
        let mut moved: Option<Tensor> = None;
        if let Some(first) = first {
            let inverse = own.inverse.to_vec::<i64>()?;
            let mut firsts = vec![0_i64; found];
            for (number, group) in inverse.iter().enumerate().rev() {
                firsts[*group as usize] = first(number);
            }
            let firsts = line.gather(&Tensor::from_vec(firsts, &[found])?, &counts)?;
            let order = firsts.argsort(0, false)?;
            rows = rows.index_select(0, &order)?;
            numbers = numbers.index_select(0, &order)?;
            moved = Some(order.argsort(0, false)?);
        }
        let whole = self.kernel(&rows.transpose(0, dim as isize)?.contiguous())?;
        let n = whole.counts.numel();
        let zeros = Tensor::zeros(&[n], DType::I64)?;
        let totals = zeros.index_add(0, &whole.inverse, &numbers, 1)?;
        let mut groups = whole.inverse;
        if let Some(moved) = moved {
            groups = groups.index_select(0, &moved)?;
        }
        let groups = groups.narrow(0, before, found)?.contiguous();
        let inverse = groups.take(&own.inverse)?;
        let copy = |local: Tensor| {
            let layout = Layout::replicated(local.shape(), local.dtype(), mesh.mesh());
            Ok::<_, Error>(DTensor::from_parts(
                local,
                layout.map_err(Error::layout(op))?,
                mesh.clone(),
            ))
        };
        let inverse = DTensor::from_parts(inverse, of_inverse, mesh.clone());
        Ok([copy(whole.values)?, inverse, copy(totals)?].into_iter().collect())
    }
}

impl DTensor {
    /// The different values of all elements, sorted; for every element the index of its value, as `i64`, cut
    /// as the tensor is; and how often each value is there, as `i64`. Two NaN are different, as in PyTorch.
    ///
    /// Every rank has all values of the result: what the ranks find in their parts is gathered.
    pub fn unique(&self) -> Result<(DTensor, DTensor, DTensor)> {
        call_three(&Of::All, &[self])
    }

    /// As [`unique`](DTensor::unique), but only equal neighbours become one, and their order stays.
    pub fn unique_consecutive(&self) -> Result<(DTensor, DTensor, DTensor)> {
        call_three(&Of::Neighbours, &[self])
    }

    /// As [`unique`](DTensor::unique), of slices along a dim, sorted by their values in order. A NaN equals
    /// itself here. What is cut along another dim is cut along this one before.
    pub fn unique_dim(&self, dim: isize) -> Result<(DTensor, DTensor, DTensor)> {
        call_three(&Of::Slices(dim), &[self])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "unique",
        samples: || {
            let sample = |shape: &[usize], values| Sample::new(Of::All, &[shape]).with(0, values);
            vec![sample(&[5, 3], Integer), sample(&[7], Index(3)), sample(&[], Index(3))]
        },
    },
    OpRecord {
        name: "unique_consecutive",
        samples: || {
            let sample = |shape: &[usize]| Sample::new(Of::Neighbours, &[shape]).with(0, Index(2));
            vec![sample(&[5, 3]), sample(&[9]), sample(&[1, 8]), sample(&[])]
        },
    },
    OpRecord {
        name: "unique_dim",
        samples: || {
            let sample =
                |dim, shape: &[usize]| Sample::new(Of::Slices(dim), &[shape]).with(0, Index(2));
            vec![sample(0, &[5, 2]), sample(-1, &[2, 7]), sample(1, &[2, 5, 1]), sample(0, &[])]
        },
    },
];
