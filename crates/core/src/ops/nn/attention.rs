//! Attention.

use std::ops::Range;

use dtensor_layout::{
    DType, Layout, Placement,
    rule::{Law, Rule},
};
use dtensor_local::{LocalError, Tensor, nn};

pub use dtensor_local::nn::Attention;

use super::steps::{cuts_whole_groups, letter, letters, rule};
use crate::{
    DTensor, Result,
    autograd::plus,
    dispatch::{call, call_three, call_two},
    op::{
        Backward, Grads, Keep, LocalContext, Meta, Number, Op, OpRecord, Outputs, Sample,
        SampleValues, two,
    },
};

/// Masks of [`DTensor::attention_masked`]. Each broadcasts to `[..., H, T, S]`: all heads, queries and keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionMask<'a> {
    /// `bool`: whether a query sees a key. Or of the dtype of the queries: what is added to their product, after scaling.
    /// A query that sees no key gives zeros, as in PyTorch.
    pub mask: Option<&'a DTensor>,
    /// Dropout: which weights stay after the softmax (`bool`), and the probability by which the others were dropped;
    /// what stays is divided by one less that.
    pub dropout: Option<(&'a DTensor, f64)>,
}

/// The settings as attributes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Settings {
    pub(super) causal: bool,
    pub(super) scale: Option<Number>,
    mask: bool,
    dropout: Option<Number>,
    /// Whether heads of queries are cut beside all heads of keys, of which a rank takes those that it needs.
    pub(super) whole_keys: bool,
}

/// The result and the logarithms of the sums, of queries, keys, values, and masks. Nothing is sent where batches or
/// heads are cut, or queries: then every rank has all keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Attend(Settings);

/// The gradients of queries, keys and values, from these, the two results, the gradient of the first, and masks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct AttendBackward(Settings);

impl Settings {
    pub(super) fn new(settings: &Attention, masks: &AttentionMask) -> Settings {
        Settings {
            causal: settings.causal,
            scale: settings.scale.map(Number),
            mask: masks.mask.is_some(),
            dropout: masks.dropout.map(|(_, p)| Number(p)),
            whole_keys: false,
        }
    }

    /// What a kernel is given, on a rank that holds these operands.
    fn local(
        &self,
        x: &[&Tensor],
        n_plain: usize,
        context: &LocalContext,
    ) -> Result<Local, LocalError> {
        let mut masks = x[n_plain.min(x.len())..].iter().map(|mask| (*mask).clone());
        let mut mask = masks.next().filter(|_| self.mask);
        let kept = x.last().filter(|_| self.dropout.is_some()).map(|kept| (*kept).clone());
        let scale = self.scale.map(|scale| scale.0);
        let mut settings = Attention { causal: self.causal, scale };
        let (mut keys, mut values, mut heads) = (x[1].clone(), x[2].clone(), None);
        let n_dims = x[0].n_dims();
        if n_dims < 3 || context.operand(0).is_none() {
            // What does not fit is for the kernel to say.
            return Ok(Local { keys, values, heads, settings, mask, kept, p: self.p() });
        }
        let (head, query) = (n_dims - 3, n_dims - 2);
        if self.whole_keys {
            let indices = key_heads(x, context, head)?;
            keys = keys.index_select(head as isize, &indices)?;
            values = values.index_select(head as isize, &indices)?;
            heads = Some(indices);
        }
        let n_queries = context.global_size(0, query, x[0].shape()[query]);
        let rows = context.operand_range(0, query, n_queries);
        if self.causal && rows != (0..n_queries) && !x[0].is_meta() {
            mask = Some(causal_mask(rows, x[1].shape()[query], mask.as_ref())?);
            settings.causal = false;
        }
        Ok(Local { keys, values, heads, settings, mask, kept, p: self.p() })
    }

    fn p(&self) -> f64 {
        self.dropout.map_or(0.0, |p| p.0)
    }

    /// Whether the heads of queries are cut so that no cut of the heads of keys fits.
    pub(super) fn needs_whole_keys(&self, queries: &Layout, keys: &Layout) -> bool {
        let Some(head) = queries.n_dims().checked_sub(3) else { return false };
        let (n_heads, n_key_heads) = (queries.global_shape()[head], keys.global_shape()[head]);
        let fits = cuts_whole_groups(queries, head, n_key_heads);
        !self.whole_keys && n_heads != n_key_heads && !fits
    }

    pub(super) fn with_whole_keys(&self) -> Settings {
        Settings { whole_keys: true, ..self.clone() }
    }

    /// The letters of queries, keys, values, result and logarithms, and of the masks with a comma before each.
    pub(super) fn letters(&self, operands: &[Meta], n_plain: usize, wide_values: bool) -> Letters {
        let n_dims = operands[0].n_dims();
        let (head, new) = (n_dims - 3, |number| letter(n_dims + number));
        let batch = letters(0..head, |_| false);
        let (n_heads, n_key_heads) = (operands[0].shape[head], operands[1].shape[head]);
        let group = n_heads / n_key_heads.max(1);
        let (query_head, key_head, sizes) = match (n_heads == n_key_heads, group) {
            _ if self.whole_keys => (new(1), new(0) + "!", String::new()),
            (true, _) => (new(0), new(0), String::new()),
            (false, 0) => (new(1) + "!", new(0) + "!", String::new()),
            (false, _) => {
                (format!("({} {})", new(0), new(1)), new(0), format!(" {{{}={group}}}", new(1)))
            }
        };
        let (queries, keys, depth) = (new(2), new(3) + "!", new(4) + "!");
        let width = new(5) + if wide_values { "" } else { "!" };
        let full = [
            (0..head).map(letter).collect::<Vec<_>>(),
            vec![query_head.clone(), queries.clone(), keys.clone()],
        ]
        .concat();
        let mut full_shape = operands[0].shape.clone();
        full_shape[n_dims - 1] = operands[1].shape[n_dims - 2];
        let masks = operands[n_plain..].iter().map(|mask| {
            let first = n_dims.saturating_sub(mask.n_dims());
            let dims = mask.shape.iter().enumerate().map(|(dim, size)| {
                let is_repeated = *size == 1 && full_shape[first + dim] != 1;
                if is_repeated { "1" } else { &full[first + dim] }
            });
            format!(", {}", dims.collect::<Vec<_>>().join(" "))
        });
        Letters {
            queries: format!("{batch} {query_head} {queries} {depth}"),
            keys: format!("{batch} {key_head} {keys} {depth}"),
            values: format!("{batch} {key_head} {keys} {width}"),
            result: format!("{batch} {query_head} {queries} {width}"),
            log_sums: format!("{batch} {query_head} {queries}"),
            masks: masks.collect(),
            sizes,
        }
    }
}

impl Settings {
    /// The gradients of queries, keys and values.
    fn plain_grads(
        &self,
        operands: &[DTensor],
        backward: &Backward<'_>,
    ) -> Result<[Option<DTensor>; 3]> {
        let ([queries, keys, values], log_sums) =
            ([&operands[0], &operands[1], &operands[2]], backward.result(1)?);
        let mut grads = [None, None, None];
        if backward.has_grad(0) {
            let (out, grad) = (backward.result(0)?, backward.grad()?);
            let plain = [queries, keys, values, &out, &log_sums, &grad].into_iter();
            let all: Vec<&DTensor> = plain.chain(&operands[3..]).collect();
            let found = call_three(&AttendBackward(self.clone()), &all)?;
            grads = [Some(found.0), Some(found.1), Some(found.2)];
        }
        if backward.has_grad(1) {
            // The gradient of a sum of weights that are not dropped, each of value one.
            let grad = backward.grad_of(1)?.to_dtype(queries.dtype())?.unsqueeze(-1)?;
            let (mut ones, last) = (keys.shape().to_vec(), keys.n_dims() - 1);
            ones[last] = 1;
            let copies = vec![Placement::Replicate; keys.mesh().n_axes()];
            let ones = keys.new_ones(&ones, &copies)?;
            let none = grad.settled()?.zeros_like()?;
            let plain = [queries, keys, &ones, &none, &log_sums, &grad].into_iter();
            let all: Vec<&DTensor> =
                plain.chain(operands[3..].iter().take(usize::from(self.mask))).collect();
            let found =
                call_three(&AttendBackward(Settings { dropout: None, ..self.clone() }), &all)?;
            for (grad, more) in grads.iter_mut().zip([found.0, found.1]) {
                *grad = Some(plus(grad.take(), more)?);
            }
        }
        Ok(grads)
    }

    /// The gradient of a mask that is added: one number per query and key, which no other gradient needs in memory.
    fn mask_gradient(&self, operands: &[DTensor], backward: &Backward<'_>) -> Result<DTensor> {
        let ([queries, mask], log_sums) = ([&operands[0], &operands[3]], backward.result(1)?);
        let (n_dims, width) = (queries.n_dims(), queries.shape()[queries.n_dims() - 1]);
        let group = queries.shape()[n_dims - 3] / operands[1].shape()[n_dims - 3].max(1);
        let of_all_heads = |x: &DTensor| match group {
            1 => Ok(x.clone()),
            group => x.repeat_interleave(group, Some(-3)),
        };
        let across = |x: &DTensor| of_all_heads(x)?.transpose(-1, -2);
        let scale = self.scale.map_or(1.0 / (width as f64).sqrt(), |scale| scale.0);
        let scores = queries.matmul(&across(&operands[1])?)?.mul(scale)?.add(mask)?;
        let beside = |x: &DTensor| x.to_dtype(queries.dtype())?.unsqueeze(-1);
        let log_sums = beside(&log_sums)?;
        let mut weights = scores.sub(&log_sums)?.exp()?;
        // Of a query that sees no key.
        weights = weights.masked_fill(&log_sums.eq(f64::NEG_INFINITY)?, 0)?;
        if self.causal {
            weights = weights.tril(0)?;
        }
        let (out, grad) = (backward.result(0)?, backward.grad()?);
        let mut of_weights = grad.matmul(&across(&operands[2])?)?;
        if let Some(p) = self.dropout {
            of_weights = of_weights.dropout_by(&operands[4], p.0)?;
        }
        let mut along = grad.mul(&out)?.sum(&[-1], true)?;
        if backward.has_grad(1) {
            along = along.sub(&beside(&backward.grad_of(1)?)?)?;
        }
        weights.mul(&of_weights.sub(&along)?)
    }
}

pub(super) struct Letters {
    pub(super) queries: String,
    pub(super) keys: String,
    pub(super) values: String,
    pub(super) result: String,
    pub(super) log_sums: String,
    pub(super) masks: String,
    pub(super) sizes: String,
}

/// What the kernel of a rank is given beside its queries.
struct Local {
    keys: Tensor,
    values: Tensor,
    /// The heads that keys and values were taken from, if they are not as they were.
    heads: Option<Tensor>,
    settings: Attention,
    mask: Option<Tensor>,
    kept: Option<Tensor>,
    p: f64,
}

impl Local {
    fn masks(&self) -> nn::AttentionMask<'_> {
        let dropout = self.kept.as_ref().map(|kept| (kept, self.p));
        nn::AttentionMask { mask: self.mask.as_ref(), dropout }
    }
}

/// For every head of queries that is held its head of keys.
pub(super) fn key_heads(
    x: &[&Tensor],
    context: &LocalContext,
    head: usize,
) -> Result<Tensor, LocalError> {
    let n_heads = context.global_size(0, head, x[0].shape()[head]);
    let group = n_heads / x[1].shape()[head].max(1);
    let heads = context.operand_range(0, head, n_heads);
    let heads: Vec<i64> = heads.map(|query| (query / group.max(1)) as i64).collect();
    Tensor::from_vec(heads, &[x[0].shape()[head]])
}

/// Which keys some of the queries see, if no query sees a later key, and a mask says more.
fn causal_mask(
    queries: Range<usize>,
    n_keys: usize,
    mask: Option<&Tensor>,
) -> Result<Tensor, LocalError> {
    let numbers = |range: Range<usize>| {
        let number = |at: usize| i64::try_from(at).unwrap_or(i64::MAX);
        Tensor::arange(number(range.start), number(range.end), 1, DType::I64)
    };
    let sees = numbers(queries)?.unsqueeze(1)?.ge(&numbers(0..n_keys)?.unsqueeze(0)?)?;
    match mask {
        None => Ok(sees),
        Some(mask) if mask.dtype() == DType::Bool => sees.logical_and(mask),
        Some(mask) => {
            let hidden = Tensor::scalar(f64::NEG_INFINITY).to_dtype(mask.dtype())?;
            sees.where_self(mask, &hidden)
        }
    }
}

impl Op for Attend {
    fn name(&self) -> &'static str {
        if self.0.mask || self.0.dropout.is_some() { "attention_masked" } else { "attention" }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let last = operands[0].n_dims() - 1;
        let Letters { queries, keys, values, result, log_sums, masks, sizes } =
            self.0.letters(operands, 3, false);
        // By the same weights: columns of the values, or contributions to them.
        let others = operands[3..].iter().map(|_| " R").collect::<String>();
        let values_alone = [format!("S({last})"), "P(sum)".into(), "P(avg)".into()];
        let rows: String =
            values_alone.iter().map(|row| format!("; R R {row}{others} -> {row} R")).collect();
        let text =
            format!("{queries}, {keys}, {values}{masks} -> {result}, {log_sums}{sizes}{rows}");
        rule(self.name(), &text, &[])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let local = self.0.local(x, 3, context)?;
        two(x[0].attention_masked(&local.keys, &local.values, &local.settings, &local.masks()))
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.0.needs_whole_keys(operands[0], operands[1])
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        call(&Attend(self.0.with_whole_keys()), operands)
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::OPERANDS.and(Keep::RESULTS))
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let operands = (0..backward.n_operands()).map(|operand| backward.operand(operand));
        let operands = operands.collect::<Result<Vec<DTensor>>>()?;
        let mut grads: Grads = operands.iter().map(|_| None).collect();
        if (0..3).any(|operand| backward.needs(operand)) {
            let found = self.0.plain_grads(&operands, backward)?;
            grads[..3].clone_from_slice(&found);
        }
        if self.0.mask && backward.needs(3) {
            grads[3] = Some(self.0.mask_gradient(&operands, backward)?);
        }
        Ok(grads)
    }
}

impl Op for AttendBackward {
    fn name(&self) -> &'static str {
        match self.0.mask || self.0.dropout.is_some() {
            true => "attention_masked_backward",
            false => "attention_backward",
        }
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let Letters { queries, keys, values, result, log_sums, masks, sizes } =
            self.0.letters(operands, 6, true);
        let text = format!(
            "{queries}, {keys}, {values}, {result}, {log_sums}, {result}{masks} -> \
             {queries}, {keys}, {values}{sizes}"
        );
        rule(self.name(), &text, &[Law::LinearIn(5)])
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        let local = self.0.local(x, 6, context)?;
        let (keys, values) = (&local.keys, &local.values);
        let grads = x[0].attention_masked_backward(
            keys,
            values,
            (x[3], x[4]),
            x[5],
            &local.settings,
            &local.masks(),
        )?;
        let Some(heads) = &local.heads else {
            return Ok([grads.queries, grads.keys, grads.values].into_iter().collect());
        };
        // Back to the heads that were taken, some of them several times.
        let head = x[0].n_dims() as isize - 3;
        let summed =
            |of: &Tensor, grads: &Tensor| of.zeros_like()?.index_add(head, heads, grads, 1);
        let (keys, values) = (summed(x[1], &grads.keys)?, summed(x[2], &grads.values)?);
        Ok([grads.queries, keys, values].into_iter().collect())
    }

    fn needs_offsets(&self) -> bool {
        true
    }

    fn decomposes(&self, operands: &[&Layout]) -> bool {
        self.0.needs_whole_keys(operands[0], operands[1])
    }

    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        call(&AttendBackward(self.0.with_whole_keys()), operands)
    }
}

impl DTensor {
    /// `softmax(scale queries keys^T) values`, where `self` has the queries `[..., H, T, D]`, for keys
    /// `[..., G, S, D]` and values `[..., G, S, E]`: `[..., H, T, E]`. `G` divides `H`: neighbouring heads of queries
    /// share a head of keys. Gives the result, and the logarithm of the sum of every softmax for
    /// [`attention_backward`](DTensor::attention_backward). Nothing is sent if batches or heads are cut. As
    /// `torch.nn.functional.scaled_dot_product_attention`.
    pub fn attention(
        &self,
        keys: &DTensor,
        values: &DTensor,
        settings: &Attention,
    ) -> Result<(DTensor, DTensor)> {
        self.attention_masked(keys, values, settings, &AttentionMask::default())
    }

    /// As [`attention`](DTensor::attention), of which a mask hides some keys from some queries or biases their products,
    /// and with dropout. Where `settings.causal` is set too, both hide.
    pub fn attention_masked(
        &self,
        keys: &DTensor,
        values: &DTensor,
        settings: &Attention,
        masks: &AttentionMask,
    ) -> Result<(DTensor, DTensor)> {
        let operands: Vec<&DTensor> =
            [self, keys, values].into_iter().chain(masks.operands()).collect();
        call_two(&Attend(Settings::new(settings, masks)), &operands)
    }

    /// Gradients of [`attention`](DTensor::attention) with respect to queries (`self`), keys and values, given its two
    /// results and the gradient of the first.
    pub fn attention_backward(
        &self,
        keys: &DTensor,
        values: &DTensor,
        results: (&DTensor, &DTensor),
        grad: &DTensor,
        settings: &Attention,
    ) -> Result<(DTensor, DTensor, DTensor)> {
        let masks = AttentionMask::default();
        self.attention_masked_backward(keys, values, results, grad, settings, &masks)
    }

    /// Gradients of [`attention_masked`](DTensor::attention_masked) with respect to queries (`self`), keys and values,
    /// given its two results and the gradient of the first. The masks have none.
    pub fn attention_masked_backward(
        &self,
        keys: &DTensor,
        values: &DTensor,
        (out, log_sums): (&DTensor, &DTensor),
        grad: &DTensor,
        settings: &Attention,
        masks: &AttentionMask,
    ) -> Result<(DTensor, DTensor, DTensor)> {
        let op = AttendBackward(Settings::new(settings, masks));
        let operands = [self, keys, values, out, log_sums, grad].into_iter();
        call_three(&op, &operands.chain(masks.operands()).collect::<Vec<_>>())
    }
}

impl<'a> AttentionMask<'a> {
    fn operands(&self) -> impl Iterator<Item = &'a DTensor> {
        self.mask.into_iter().chain(self.dropout.map(|(kept, _)| kept))
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord { name: "attention", samples: || plain_samples(Attend, false) },
    OpRecord { name: "attention_masked", samples: || masked_samples(Attend, false) },
    OpRecord { name: "attention_backward", samples: || plain_samples(AttendBackward, true) },
    OpRecord {
        name: "attention_masked_backward",
        samples: || masked_samples(AttendBackward, true),
    },
];

fn plain_samples<O: Op>(op: fn(Settings) -> O, is_backward: bool) -> Vec<Sample> {
    let settings = |causal, scale: Option<f64>| Settings {
        causal,
        scale: scale.map(Number),
        mask: false,
        dropout: None,
        whole_keys: false,
    };
    let sample =
        |settings, shapes: [&[usize]; 3]| sample_of(op(settings), &shapes, is_backward, &[]);
    vec![
        sample(settings(false, None), [&[3, 2, 2], &[3, 4, 2], &[3, 4, 3]]),
        sample(settings(true, Some(0.3)), [&[2, 4, 3, 2], &[2, 2, 3, 2], &[2, 2, 3, 1]]),
        sample(settings(false, None), [&[6, 2, 1], &[3, 3, 1], &[3, 3, 2]]),
        sample(settings(false, None).with_whole_keys(), [&[4, 2, 1], &[2, 3, 1], &[2, 3, 2]]),
    ]
}

fn masked_samples<O: Op>(op: fn(Settings) -> O, is_backward: bool) -> Vec<Sample> {
    let shapes: [&[usize]; 3] = [&[2, 4, 3, 2], &[2, 2, 5, 2], &[2, 2, 5, 3]];
    let settings = |causal, mask, dropout: Option<f64>| Settings {
        causal,
        scale: None,
        mask,
        dropout: dropout.map(Number),
        whole_keys: false,
    };
    let first = if is_backward { 6 } else { 3 };
    let sample =
        |settings, masks: &[&[usize]]| sample_of(op(settings), &shapes, is_backward, masks);
    vec![
        sample(settings(true, true, None), &[&[3, 5]]),
        sample(settings(false, true, Some(0.25)), &[&[4, 1, 5], &[2, 1, 3, 5]])
            .with(first, SampleValues::Truth)
            .with(first + 1, SampleValues::Truth),
    ]
}

/// With the shapes of results and gradient, if there are any.
pub(super) fn sample_of(
    op: impl Op,
    shapes: &[&[usize]; 3],
    is_backward: bool,
    masks: &[&[usize]],
) -> Sample {
    let sums = &shapes[0][..shapes[0].len() - 1];
    let out = [sums, &shapes[2][shapes[2].len() - 1..]].concat();
    let results: &[&[usize]] = if is_backward { &[&out, sums, &out] } else { &[] };
    Sample::new(op, &[&shapes[..], results, masks].concat())
}
