use dtensor::{DTensor, DType, DeviceMesh, Result};

use crate::{
    Activation, AttentionConfig, ColwiseParallel, Dropout, Embedding, Error, Forward, LayerNorm,
    Linear, Mlp, Module, ModuleState, MultiHeadAttention, Plan, RowwiseParallel, Sequence,
    SequenceParallel, traverse,
};

/// What a [`Gpt`] is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GptConfig {
    /// Number of different tokens.
    pub vocabulary: usize,
    /// The most positions.
    pub sequence: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Features of a position.
    pub dim: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Probability with which results of blocks are dropped.
    pub dropout: f64,
    /// Whether blocks are computed again on the way back, instead of keeping what they computed.
    pub recompute: bool,
}

impl Default for GptConfig {
    fn default() -> GptConfig {
        GptConfig {
            vocabulary: 256,
            sequence: 128,
            layers: 4,
            dim: 128,
            heads: 4,
            dropout: 0.0,
            recompute: false,
        }
    }
}

/// A transformer with learnt positions, layer normalisation before every part and gelu, as GPT-2. Takes tokens
/// `[batch, positions]` and gives logits `[batch, positions, tokens]`.
#[derive(Clone, Debug, Module)]
pub struct Gpt {
    /// Of tokens.
    pub tok: Embedding,
    /// Of positions.
    pub pos: Embedding,
    /// The blocks.
    pub layers: Vec<GptBlock>,
    /// Before the last product.
    pub lnf: LayerNorm,
    /// To logits.
    pub head: Linear,
    #[module(skip)]
    config: GptConfig,
    #[module(skip)]
    sequence: Sequence,
    state: ModuleState,
}

/// Attention and two products, each added to its operand.
#[derive(Clone, Debug, Module)]
pub struct GptBlock {
    /// Before the attention.
    pub ln1: LayerNorm,
    /// The attention.
    pub attn: MultiHeadAttention,
    /// Before the products.
    pub ln2: LayerNorm,
    /// The products.
    pub mlp: Mlp,
    /// What is dropped of both.
    pub drop: Dropout,
    state: ModuleState,
}

impl Gpt {
    /// With first values as GPT-2's: normal with deviation 0.02, a copy on every rank.
    pub fn new(config: &GptConfig, dtype: DType, mesh: &DeviceMesh) -> Result<Gpt, Error> {
        let GptConfig { vocabulary, sequence, layers, dim, .. } = *config;
        let blocks = (0..layers).map(|_| GptBlock::new(config, dtype, mesh));
        let mut model = Gpt {
            tok: Embedding::new(vocabulary, dim, 0.02, dtype, mesh)?,
            pos: Embedding::new(sequence, dim, 0.02, dtype, mesh)?,
            layers: blocks.collect::<Result<Vec<_>, Error>>()?,
            lnf: LayerNorm::new(dim, true, 1e-5, dtype, mesh)?,
            head: Linear::new(dim, vocabulary, false, dtype, mesh)?,
            config: *config,
            sequence: Sequence::Plain,
            state: ModuleState::default(),
        };
        super::init_normal(&model, 0.02)?;
        traverse::assign_names(&mut model);
        Ok(model)
    }

    /// In which order positions lie. [`ContextParallel`](crate::ContextParallel) sets it, here and in the blocks.
    pub(crate) fn set_sequence(&mut self, sequence: Sequence) {
        self.sequence = sequence;
        for block in &mut self.layers {
            block.drop.set_sequence(sequence);
        }
    }
}

impl Forward for Gpt {
    fn forward(&self, ids: &DTensor) -> Result<DTensor> {
        super::check_tokens("Gpt", ids, self.config.sequence)?;
        let positions = self.sequence.rows(&self.pos.weight.get()?, ids.shape()[1])?;
        let x = self.tok.call(ids)?.add(&positions)?;
        let x = super::through(&self.layers, x, self.config.recompute)?;
        self.head.call(&self.lnf.call(&x)?)
    }
}

impl GptBlock {
    /// With first values as PyTorch's.
    pub fn new(config: &GptConfig, dtype: DType, mesh: &DeviceMesh) -> Result<GptBlock, Error> {
        let GptConfig { dim, heads, .. } = *config;
        let attention = AttentionConfig { dim, heads, key_heads: heads, causal: true, bias: true };
        Ok(GptBlock {
            ln1: LayerNorm::new(dim, true, 1e-5, dtype, mesh)?,
            attn: MultiHeadAttention::new(&attention, None, dtype, mesh)?,
            ln2: LayerNorm::new(dim, true, 1e-5, dtype, mesh)?,
            mlp: Mlp::new(dim, 4 * dim, Activation::Gelu, true, dtype, mesh)?,
            drop: Dropout::new(config.dropout),
            state: ModuleState::default(),
        })
    }
}

impl Forward for GptBlock {
    fn forward(&self, x: &DTensor) -> Result<DTensor> {
        let x = x.add(&self.drop.call(&self.attn.call(&self.ln1.call(x)?)?)?)?;
        x.add(&self.drop.call(&self.mlp.call(&self.ln2.call(&x)?)?)?)
    }
}

/// Tensor parallel for a [`Gpt`]: attention by heads, products by hidden features, logits by tokens, the table of tokens by its rows.
/// Per block two sums are reduced on the way there, and two on the way back.
pub fn gpt_plan() -> Plan {
    Plan::new()
        .with("tok", RowwiseParallel::default())
        .with("layers.*.attn.w[qkv]", ColwiseParallel::default())
        .with("layers.*.attn.wo", RowwiseParallel::default())
        .with("layers.*.mlp.w1", ColwiseParallel::default())
        .with("layers.*.mlp.w2", RowwiseParallel::default())
        .with("head", ColwiseParallel::default())
}

/// As [`gpt_plan`], with norms and what is added on cut positions: the same bytes are sent, and less is held.
pub fn gpt_sequence_plan() -> Plan {
    super::sequence_plan()
        .with("layers.*.mlp.w1", ColwiseParallel::default())
        .with("layers.*.ln[12]", SequenceParallel::default())
        .with("lnf", SequenceParallel::default())
}
