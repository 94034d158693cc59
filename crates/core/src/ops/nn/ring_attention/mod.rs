//! Attention over a sequence that is cut: keys and values go around the ranks, and are never gathered.
//!
//! By Liu and others, "Ring Attention with Blockwise Transformers", 2023. What the queries of a rank see of one block of
//! keys is joined with what they have seen of others by the logarithms of the sums of the weights, so the result is
//! that of all keys.

mod local;
mod positions;
mod ring;

use dtensor_layout::{
    Layout,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor};
use smallvec::smallvec;

pub use positions::Positions;

use local::{Block, Look, Owed, Seen};
use ring::{Ring, axes_of};

use super::{
    attention::{Attention, AttentionMask, Letters, Settings, key_heads},
    steps::{rule, wide},
};
use crate::{
    DTensor, Placement, Result,
    dispatch::{
        call, call_three, call_two,
        choose::{Choice, choose},
    },
    exchange::blank,
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, two},
};

/// The result and the logarithms of the sums, of queries, keys and values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RingAttention {
    settings: Settings,
    order: Positions,
}

/// The gradients of queries, keys and values, from these, the two results, and the gradient of the first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RingAttentionBackward {
    settings: Settings,
    order: Positions,
}

impl DTensor {
    /// As [`attention`](DTensor::attention), for queries, keys and values whose positions are cut alike: keys and values
    /// go around the ranks while these compute, and no rank ever has more than two blocks of them. On `n` ranks that
    /// is `n - 1` exchanges with a neighbour, in all no more bytes than gathering keys and values; with
    /// `settings.causal` and [`Positions::InOrder`] half of them. Where positions are not cut, it is attention.
    ///
    /// `order` says which positions the elements of the sequence have, for `settings.causal`: with
    /// [`Positions::HeadTail`] all ranks have equally much to do.
    pub fn ring_attention(
        &self,
        keys: &DTensor,
        values: &DTensor,
        settings: &Attention,
        order: Positions,
    ) -> Result<(DTensor, DTensor)> {
        let settings = Settings::new(settings, &AttentionMask::default());
        call_two(&RingAttention { settings, order }, &[self, keys, values])
    }

    /// Gradients of [`ring_attention`](DTensor::ring_attention) with respect to queries (`self`), keys and values, given
    /// its two results and the gradient of the first. Keys and values go around once more, and their gradients behind them.
    pub fn ring_attention_backward(
        &self,
        keys: &DTensor,
        values: &DTensor,
        (out, log_sums): (&DTensor, &DTensor),
        grad: &DTensor,
        settings: &Attention,
        order: Positions,
    ) -> Result<(DTensor, DTensor, DTensor)> {
        let settings = Settings::new(settings, &AttentionMask::default());
        let op = RingAttentionBackward { settings, order };
        call_three(&op, &[self, keys, values, out, log_sums, grad])
    }
}

impl Op for RingAttention {
    fn name(&self) -> &'static str {
        "ring_attention"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let last = operands[0].n_dims() - 1;
        // By the same weights: columns of the values, or contributions to them.
        let rows = format!("; R R S({last}) -> S({last}) R; R R P(sum) -> P(sum) R");
        let rows = format!("{rows}; R R P(avg) -> P(avg) R");
        rule(self.name(), &(self.letters(operands) + &rows), &[])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        check_order(self.name(), self.order)?;
        if x.iter().any(|x| x.is_meta()) {
            let (keys, values) = of_heads(&self.settings, x, context)?;
            return two(x[0].attention(&keys, &values, &plain(&self.settings)));
        }
        let look = look(&self.settings, self.order, x, context)?;
        let runs = all_keys(self.order, x[1]);
        let mut seen = Seen::nothing(&look, x[0], x[2].shape()[x[2].n_dims() - 1])?;
        seen.see(&Block { keys: x[1], values: x[2], runs: &runs })?;
        two(seen.results(x[0]))
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        goes_in_steps(&self.settings, operands, || self.choice(operands))
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let layouts: Vec<&Layout> = operands.iter().map(|operand| operand.layout()).collect();
        if self.settings.needs_whole_keys(layouts[0], layouts[1]) {
            let settings = self.settings.with_whole_keys();
            return call(&RingAttention { settings, order: self.order }, operands);
        }
        let around = Around { op: self.name(), settings: &self.settings, order: self.order };
        around.run(operands, self.choice(&layouts)?, None, |ring, look, x| {
            let mut seen = Seen::nothing(look, x[0], x[2].shape()[x[2].n_dims() - 1])?;
            ring.forward(&mut seen, [x[1], x[2]])?;
            Ok(two(seen.results(x[0]))?)
        })
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::OPERANDS.and(Keep::RESULTS))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let [queries, keys, mut values] =
            [backward.operand(0)?, backward.operand(1)?, backward.operand(2)?];
        let (mut out, log_sums) = (backward.result(0)?, backward.result(1)?);
        let (mut grad, width) = (backward.grad()?, out.shape()[out.n_dims() - 1]);
        if backward.has_grad(1) {
            // The gradient of a logarithm is that of one more column of values which are all 1, if what all keys of a
            // query share leaves it out: there its result is 0.
            let of_sums = backward.grad_of(1)?.to_dtype(grad.dtype())?.unsqueeze(-1)?.settled()?;
            values = DTensor::cat(&[&values, &column_of_ones(&values)?], -1)?;
            out = DTensor::cat(&[&out, &of_sums.zeros_like()?], -1)?;
            grad = DTensor::cat(&[&grad, &of_sums], -1)?;
        }
        let op = RingAttentionBackward { settings: self.settings.clone(), order: self.order };
        let operands = [&queries, &keys, &values, &out, &log_sums, &grad];
        let (queries, keys, values) = call_three(&op, &operands)?;
        let values = match backward.has_grad(1) {
            true => values.narrow(-1, 0, width)?,
            false => values,
        };
        let grads = [queries, keys, values].into_iter().enumerate();
        Ok(grads.map(|(operand, grad)| backward.needs(operand).then_some(grad)).collect())
    }
}

impl RingAttention {
    fn letters(&self, operands: &[Meta]) -> String {
        let Letters { queries, keys, values, result, log_sums, sizes, .. } =
            self.settings.letters(operands, 3, false);
        format!("{queries}, {keys}, {values} -> {result}, {log_sums}{sizes}")
    }

    /// Where operands and results lie if keys may go around: then positions may be cut everywhere.
    fn choice(&self, operands: &[&Layout]) -> Result<Choice> {
        let metas = metas_of(operands);
        let row = round(operands[0], 3, 2);
        let rule = rule(self.name(), &(self.letters(&metas) + &row), &[])?;
        choose(self.name(), &rule, operands, &self.infer(&metas)?, true)
    }
}

impl Op for RingAttentionBackward {
    fn name(&self) -> &'static str {
        "ring_attention_backward"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        rule(self.name(), &self.letters(operands), &[Law::LinearIn(5)])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        check_order(self.name(), self.order)?;
        let results = (x[3], x[4]);
        if x.iter().any(|x| x.is_meta()) {
            let (keys, values) = of_heads(&self.settings, x, context)?;
            let settings = plain(&self.settings);
            x[0].attention_backward(&keys, &values, results, x[5], &settings)?;
            let meta = |x: &&Tensor| Tensor::meta(x.shape(), x.dtype());
            return x[..3].iter().map(meta).collect();
        }
        let look = look(&self.settings, self.order, x, context)?;
        let runs = all_keys(self.order, x[1]);
        let mut owed = Owed::new(&look, x[0], results, x[5])?;
        let grads = owed.see(&Block { keys: x[1], values: x[2], runs: &runs })?;
        self.rounded(x, owed, grads)
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        goes_in_steps(&self.settings, operands, || self.choice(operands))
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let layouts: Vec<&Layout> = operands.iter().map(|operand| operand.layout()).collect();
        if self.settings.needs_whole_keys(layouts[0], layouts[1]) {
            let settings = self.settings.with_whole_keys();
            return call(&RingAttentionBackward { settings, order: self.order }, operands);
        }
        let around = Around { op: self.name(), settings: &self.settings, order: self.order };
        let of_gradients = wide(operands[1].dtype()).size();
        around.run(operands, self.choice(&layouts)?, Some(of_gradients), |ring, look, x| {
            let mut owed = Owed::new(look, x[0], (x[3], x[4]), x[5])?;
            let grads = ring.backward(&mut owed, [x[1], x[2]])?;
            Ok(self.rounded(x, owed, grads)?)
        })
    }
}

impl RingAttentionBackward {
    fn letters(&self, operands: &[Meta]) -> String {
        let Letters { queries, keys, values, result, log_sums, sizes, .. } =
            self.settings.letters(operands, 6, true);
        format!(
            "{queries}, {keys}, {values}, {result}, {log_sums}, {result} -> \
             {queries}, {keys}, {values}{sizes}"
        )
    }

    fn choice(&self, operands: &[&Layout]) -> Result<Choice> {
        let metas = metas_of(operands);
        let row = round(operands[0], 6, 3);
        let rule = rule(self.name(), &(self.letters(&metas) + &row), &[])?;
        choose(self.name(), &rule, operands, &self.infer(&metas)?, true)
    }

    fn rounded(
        &self,
        x: &[&Tensor],
        owed: Owed<'_>,
        [keys, values]: [Tensor; 2],
    ) -> Result<Outputs, LocalError> {
        let dtype = x[0].dtype();
        Ok(smallvec![owed.result(x[0])?, keys.to_dtype(dtype)?, values.to_dtype(dtype)?])
    }
}

/// Whether it is computed by other operations, or by keys that go around.
fn goes_in_steps(
    settings: &Settings,
    operands: &[&Layout],
    choice: impl FnOnce() -> Result<Choice>,
) -> bool {
    settings.needs_whole_keys(operands[0], operands[1])
        || cuts_positions(operands) && choice().is_ok_and(|choice| goes_round(&choice))
}

/// Keys that go around, in the name of an operation.
struct Around<'a> {
    op: &'static str,
    settings: &'a Settings,
    order: Positions,
}

impl Around<'_> {
    /// Brings the operands to where a choice has them, and runs a rank's part of the work. `of_gradients` is the size of an
    /// element of the gradients that go behind the keys, if any do.
    fn run(
        &self,
        operands: &[&DTensor],
        choice: Choice,
        of_gradients: Option<usize>,
        part: impl FnOnce(&Ring, &Look, &[&Tensor]) -> Result<Outputs>,
    ) -> Result<Outputs<DTensor>> {
        let moved = operands.iter().zip(&choice.operands);
        let moved: Vec<DTensor> = moved
            .map(|(operand, layout)| operand.redistribute_as(self.op, layout))
            .collect::<Result<_>>()?;
        let mesh = operands[0].mesh();
        let locals: Outputs = match mesh.coord() {
            Some(coord) => {
                let x: Vec<&Tensor> = moved.iter().map(DTensor::local).collect();
                let of = [&choice.operands[0], &choice.operands[1], &choice.operands[2]];
                let causal = self.settings.causal;
                let ring = Ring::new(self.op, mesh, coord, of, causal, self.order)?;
                match mesh.is_fake() {
                    true => {
                        ring.pretend(x[1].dtype().size(), of_gradients);
                        blanks(operands[0], &choice, coord)?
                    }
                    false => {
                        let (operands, results) = (choice.operands.clone(), choice.results.clone());
                        let context = LocalContext::new(operands, results, coord.to_vec());
                        part(&ring, &look(self.settings, self.order, &x, &context)?, &x)?
                    }
                }
            }
            None => {
                let nothing = |layout: &Layout| Tensor::empty(&[0], layout.dtype());
                choice.results.iter().map(nothing).collect::<Result<_, LocalError>>()?
            }
        };
        let placed = locals.into_iter().zip(choice.results);
        Ok(placed.map(|(local, layout)| DTensor::from_parts(local, layout, mesh.clone())).collect())
    }
}

/// Results without values.
fn blanks(like: &DTensor, choice: &Choice, coord: &[usize]) -> Result<Outputs> {
    let results = choice.results.iter();
    results.map(|layout| blank(like.mesh(), &layout.local_shape(coord), layout.dtype())).collect()
}

/// The row in which keys go around: all tensors are cut along their positions.
fn round(queries: &Layout, n_operands: usize, n_results: usize) -> String {
    let cut = format!(" S({})", queries.n_dims() - 2);
    format!(";{} ->{}", cut.repeat(n_operands), cut.repeat(n_results))
}

/// Whether keys or values are cut along their positions.
fn cuts_positions(operands: &[&Layout]) -> bool {
    operands[1..3].iter().any(|layout| !axes_of(layout, layout.n_dims() - 2).is_empty())
}

fn goes_round(choice: &Choice) -> bool {
    cuts_positions(&choice.operands.iter().collect::<Vec<_>>())
}

fn metas_of(operands: &[&Layout]) -> Vec<Meta> {
    operands.iter().map(|layout| Meta::of_layout(layout)).collect()
}

fn check_order(op: &'static str, order: Positions) -> Result<(), LocalError> {
    match order {
        Positions::HeadTail(0) => Err(LocalError::BadNumber {
            op,
            name: "the number of ranks of a head-tail order",
            got: "0".into(),
            want: "at least 1",
        }),
        _ => Ok(()),
    }
}

fn plain(settings: &Settings) -> Attention {
    Attention { causal: settings.causal, scale: settings.scale.map(|scale| scale.0) }
}

/// How the queries of a rank look at keys.
fn look(
    settings: &Settings,
    order: Positions,
    x: &[&Tensor],
    context: &LocalContext,
) -> Result<Look, LocalError> {
    let (head, dim) = (x[0].n_dims() - 3, x[0].n_dims() - 2);
    let n_queries = context.global_size(0, dim, x[0].shape()[dim]);
    let runs = order.runs(context.operand_range(0, dim, n_queries), n_queries);
    let heads = match settings.whole_keys && context.operand(0).is_some() {
        true => Some(key_heads(x, context, head)?),
        false => None,
    };
    let Attention { causal, scale } = plain(settings);
    Ok(Look { causal, scale, runs, heads })
}

/// Keys and values without values, for the heads of the queries of a rank.
fn of_heads(
    settings: &Settings,
    x: &[&Tensor],
    context: &LocalContext,
) -> Result<(Tensor, Tensor), LocalError> {
    if !settings.whole_keys || context.operand(0).is_none() {
        return Ok((x[1].clone(), x[2].clone()));
    }
    let head = x[0].n_dims() - 3;
    let heads = key_heads(x, context, head)?;
    let of = |x: &Tensor| x.index_select(head.cast_signed(), &heads);
    Ok((of(x[1])?, of(x[2])?))
}

/// The positions of keys that are all here.
fn all_keys(order: Positions, keys: &Tensor) -> Vec<positions::Run> {
    let n_keys = keys.shape()[keys.n_dims() - 2];
    order.runs(0..n_keys, n_keys)
}

/// Beside values, and cut as they are.
fn column_of_ones(values: &DTensor) -> Result<DTensor> {
    let last = values.n_dims() - 1;
    let mut shape = values.shape().to_vec();
    shape[last] = 1;
    let placements = values.placements().iter().map(|placement| match placement {
        Placement::Shard(dim) if *dim != last => *placement,
        _ => Placement::Replicate,
    });
    let placements: Vec<Placement> = placements.collect();
    crate::ones(&shape, values.dtype(), values.mesh(), &placements)
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "ring_attention",
        samples: || samples(|settings, order| RingAttention { settings, order }, false),
    },
    OpRecord {
        name: "ring_attention_backward",
        samples: || samples(|settings, order| RingAttentionBackward { settings, order }, true),
    },
];

fn samples<O: Op>(op: fn(Settings, Positions) -> O, is_backward: bool) -> Vec<Sample> {
    let sample = |causal, scale: Option<f64>, order, whole_keys, shapes: [&[usize]; 3]| {
        let plain = Settings::new(&Attention { causal, scale }, &AttentionMask::default());
        let settings = if whole_keys { plain.with_whole_keys() } else { plain };
        super::attention::sample_of(op(settings, order), &shapes, is_backward, &[])
    };
    let (in_order, head_tail) = (Positions::InOrder, Positions::HeadTail(2));
    vec![
        sample(false, None, in_order, false, [&[3, 2, 2], &[3, 4, 2], &[3, 4, 3]]),
        sample(true, Some(0.3), in_order, false, [&[2, 4, 3, 2], &[2, 2, 3, 2], &[2, 2, 3, 1]]),
        sample(true, None, head_tail, false, [&[2, 5, 2], &[2, 5, 2], &[2, 5, 1]]),
        sample(true, None, head_tail, true, [&[4, 4, 1], &[2, 4, 1], &[2, 4, 2]]),
    ]
}
