//! The linear layer.

use dtensor_layout::rule::{
    Law::{Affine, IncreasingIn, Multilinear},
    Rule,
};
use dtensor_local::{LocalError, Tensor};

use super::addend::adds;
use crate::{
    DTensor, Error, Result,
    dispatch::call_one,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
    ops::letters::rule,
};

/// `x weightᵀ + bias`, of input, weight and bias, as far as that is there.
///
/// Where the inner dim is cut, every rank has a share of the product, and one of them adds the bias.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Linear;

/// The gradient of the weight, from that of the result, and the input: the sum over all rows of their outer products.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LinearWeightGradient;

impl Op for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        if operands.len() < 3 {
            return Ok(Rule::of("... i, o i -> ... o", &[Multilinear]));
        }
        // As long as a factor is pending, so is the product, to which one rank adds the bias; or each its own.
        let inner = operands[0].n_dims() - 1;
        let rows = format!(
            "P(sum) R R -> P(sum); R P(sum) R -> P(sum); \
             P(sum) R P(sum) -> P(sum); R P(sum) P(sum) -> P(sum); \
             P(avg) R P(avg) -> P(avg); R P(avg) P(avg) -> P(avg); \
             S({inner}) S(1) P(sum) -> P(sum)"
        );
        let rule = rule("linear", &format!("... i, o i, o -> ... o; {rows}"), &[Affine])?;
        match operands[2].dtype.is_float() {
            true => rule.with_laws(&[IncreasingIn(2)]).map_err(Error::rule("linear")),
            // Integers wrap around.
            false => Ok(rule),
        }
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let bias = x.get(2).copied().filter(|_| adds(context, 2));
        one(x[0].linear(x[1], bias))
    }

    fn keeps(&self) -> Option<Keep> {
        // The gradient of the bias needs neither.
        Some(Keep::others_among(&[0, 1]))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        backward.each(|operand| match operand {
            0 => grad.matmul(&backward.operand(1)?),
            1 => grad.linear_weight_gradient(&backward.operand(0)?),
            // It is summed over all rows when it is brought to the shape of the bias.
            _ => Ok(grad.clone()),
        })
    }
}

impl Op for LinearWeightGradient {
    fn name(&self) -> &'static str {
        "linear_weight_gradient"
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        Ok(Rule::of("... o, ... i -> o i", &[Multilinear]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        let (grad, input) = (x[0], x[1]);
        let rows = |of: &Tensor| of.shape().split_last().map(|(_, rows)| rows.to_vec());
        if rows(grad).is_none() || rows(grad) != rows(input) {
            return Err(LocalError::ShapeMismatch {
                op: self.name(),
                from: grad.shape().to_vec(),
                to: input.shape().to_vec(),
                why: "all dims but the last must be equal",
            });
        }
        let matrix = |of: &Tensor| match of.shape() {
            [_, _] => Ok(of.clone()),
            [rows @ .., last] => of.reshape(&[rows.iter().product(), *last]),
            [] => Ok(of.clone()),
        };
        one(matrix(grad)?.transpose(0, 1)?.mm(&matrix(input)?))
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::OTHERS)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        backward.each(|operand| match operand {
            0 => backward.operand(1)?.linear(&grad, None),
            _ => backward.operand(0)?.matmul(&grad),
        })
    }
}

impl DTensor {
    /// The linear layer `self weightᵀ + bias`, of `[..., in]` with a weight `[out, in]` and a bias `[out]`. If `weight` is
    /// cut along `out`, so is the result; if it is cut along `in`, the result is a pending sum. Nothing is sent. As
    /// `torch.nn.functional.linear`.
    ///
    /// ```
    /// use dtensor::{DType, DeviceMesh, Placement::{Partial, Replicate, Shard}, ReduceOp, Runner, ones};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let mesh = DeviceMesh::of_world(world, "tp")?;
    ///     let x = ones(&[3, 4], DType::F32, &mesh, &[Replicate])?;
    ///     let up = ones(&[8, 4], DType::F32, &mesh, &[Shard(0)])?;
    ///     let down = ones(&[4, 8], DType::F32, &mesh, &[Shard(1)])?;
    ///     let bias = ones(&[4], DType::F32, &mesh, &[Replicate])?;
    ///     let hidden = x.linear(&up, None)?;
    ///     assert_eq!(hidden.placements(), [Shard(1)]);
    ///     let y = hidden.linear(&down, Some(&bias))?;
    ///     assert_eq!(y.placements(), [Partial(ReduceOp::Sum)]);     // to be reduced once
    ///     assert_eq!(y.to_vec::<f32>()?, [33.0; 12]);
    ///     Ok::<_, dtensor::Error>(())
    /// })?;
    /// # Ok::<(), dtensor::RunError>(())
    /// ```
    pub fn linear(&self, weight: &DTensor, bias: Option<&DTensor>) -> Result<DTensor> {
        match bias {
            Some(bias) => call_one(&Linear, &[self, weight, bias]),
            None => call_one(&Linear, &[self, weight]),
        }
    }

    /// The gradient of [`linear`](DTensor::linear) with respect to its weight, where `self` is the gradient of its result:
    /// `[..., out]` and the input `[..., in]` give `[out, in]`. Where rows are cut, a pending sum.
    pub fn linear_weight_gradient(&self, input: &DTensor) -> Result<DTensor> {
        call_one(&LinearWeightGradient, &[self, input])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "linear",
        samples: || {
            vec![
                Sample::new(Linear, &[&[3, 4], &[5, 4], &[5]]),
                Sample::new(Linear, &[&[2, 3, 4], &[3, 4], &[3]]),
                Sample::new(Linear, &[&[2, 3, 5], &[2, 5]]),
                Sample::new(Linear, &[&[4], &[3, 4], &[3]]),
            ]
        },
    },
    OpRecord {
        name: "linear_weight_gradient",
        samples: || {
            vec![
                Sample::new(LinearWeightGradient, &[&[4, 5], &[4, 3]]),
                Sample::new(LinearWeightGradient, &[&[2, 3, 4], &[2, 3, 5]]),
                Sample::new(LinearWeightGradient, &[&[4], &[3]]),
            ]
        },
    },
];
