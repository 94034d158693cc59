use dtensor::{DTensor, DType, DeviceMesh, Result};

use crate::{
    Activation, AttentionConfig, ColwiseParallel, Dropout, Embedding, Error, Forward, Linear, Mlp,
    Module, ModuleState, MultiHeadAttention, Plan, RmsNorm, Rotary, RowwiseParallel, Sequence,
    SequenceParallel, layers::check_heads, traverse,
};

/// What a [`Llama`] is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LlamaConfig {
    /// Number of different tokens.
    pub vocabulary: usize,
    /// The most positions.
    pub sequence: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Features of a position.
    pub dim: usize,
    /// Features between the products of a block.
    pub hidden: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub key_heads: usize,
    /// Base of the rotations.
    pub base: f64,
    /// Probability with which results of blocks are dropped.
    pub dropout: f64,
    /// Whether blocks are computed again on the way back, instead of keeping what they computed.
    pub recompute: bool,
}

impl Default for LlamaConfig {
    fn default() -> LlamaConfig {
        LlamaConfig {
            vocabulary: 256,
            sequence: 128,
            layers: 4,
            dim: 128,
            hidden: 344,
            heads: 4,
            key_heads: 2,
            base: 10_000.0,
            dropout: 0.0,
            recompute: false,
        }
    }
}

/// A transformer with rotary positions, shared heads of keys, normalisation by the root mean square, and gated products, as
/// Llama. Takes tokens `[batch, positions]` and gives logits `[batch, positions, tokens]`.
#[derive(Clone, Debug, Module)]
pub struct Llama {
    /// Of tokens.
    pub tok: Embedding,
    /// The blocks.
    pub layers: Vec<LlamaBlock>,
    /// Before the last product.
    pub norm: RmsNorm,
    /// To logits.
    pub head: Linear,
    #[module(skip)]
    config: LlamaConfig,
    state: ModuleState,
}

/// Attention and gated products, each added to its operand.
#[derive(Clone, Debug, Module)]
pub struct LlamaBlock {
    /// Before the attention.
    pub norm1: RmsNorm,
    /// The attention.
    pub attn: MultiHeadAttention,
    /// Before the products.
    pub norm2: RmsNorm,
    /// The products.
    pub mlp: Mlp,
    /// What is dropped of both.
    pub drop: Dropout,
    state: ModuleState,
}

impl Llama {
    /// With first values normal with deviation 0.02, a copy on every rank.
    pub fn new(config: &LlamaConfig, dtype: DType, mesh: &DeviceMesh) -> Result<Llama, Error> {
        let LlamaConfig { vocabulary, sequence, layers, dim, heads, base, .. } = *config;
        check_heads(dim, heads)?;
        let rotary = Rotary::new(sequence, dim / heads, base)?;
        let blocks = (0..layers).map(|_| LlamaBlock::new(config, rotary.clone(), dtype, mesh));
        let mut model = Llama {
            tok: Embedding::new(vocabulary, dim, 0.02, dtype, mesh)?,
            layers: blocks.collect::<Result<Vec<_>, Error>>()?,
            norm: RmsNorm::new(dim, 1e-5, dtype, mesh)?,
            head: Linear::new(dim, vocabulary, false, dtype, mesh)?,
            config: *config,
            state: ModuleState::default(),
        };
        super::init_normal(&model, 0.02)?;
        traverse::assign_names(&mut model);
        Ok(model)
    }

    /// In which order positions lie. [`ContextParallel`](crate::ContextParallel) sets it.
    pub(crate) fn set_sequence(&mut self, sequence: Sequence) {
        for block in &mut self.layers {
            block.drop.set_sequence(sequence);
        }
    }
}

impl Forward for Llama {
    fn forward(&self, ids: &DTensor) -> Result<DTensor> {
        super::check_tokens("Llama", ids, self.config.sequence)?;
        let x = super::through(&self.layers, self.tok.call(ids)?, self.config.recompute)?;
        self.head.call(&self.norm.call(&x)?)
    }
}

impl LlamaBlock {
    /// With first values as PyTorch's.
    pub fn new(
        config: &LlamaConfig,
        rotary: Rotary,
        dtype: DType,
        mesh: &DeviceMesh,
    ) -> Result<LlamaBlock, Error> {
        let LlamaConfig { dim, hidden, heads, key_heads, .. } = *config;
        let attention = AttentionConfig { dim, heads, key_heads, causal: true, bias: false };
        Ok(LlamaBlock {
            norm1: RmsNorm::new(dim, 1e-5, dtype, mesh)?,
            attn: MultiHeadAttention::new(&attention, Some(rotary), dtype, mesh)?,
            norm2: RmsNorm::new(dim, 1e-5, dtype, mesh)?,
            mlp: Mlp::new(dim, hidden, Activation::SwiGlu, false, dtype, mesh)?,
            drop: Dropout::new(config.dropout),
            state: ModuleState::default(),
        })
    }
}

impl Forward for LlamaBlock {
    fn forward(&self, x: &DTensor) -> Result<DTensor> {
        let x = x.add(&self.drop.call(&self.attn.call(&self.norm1.call(x)?)?)?)?;
        x.add(&self.drop.call(&self.mlp.call(&self.norm2.call(&x)?)?)?)
    }
}

/// Tensor parallel for a [`Llama`], as [`gpt_plan`](crate::gpt_plan) for a [`Gpt`](crate::Gpt).
pub fn llama_plan() -> Plan {
    Plan::new()
        .with("tok", RowwiseParallel::default())
        .with("layers.*.attn.w[qkv]", ColwiseParallel::default())
        .with("layers.*.attn.wo", RowwiseParallel::default())
        .with("layers.*.mlp.w[13]", ColwiseParallel::default())
        .with("layers.*.mlp.w2", RowwiseParallel::default())
        .with("head", ColwiseParallel::default())
}

/// As [`llama_plan`], with norms and what is added on cut positions: the same bytes are sent, and less is held.
pub fn llama_sequence_plan() -> Plan {
    super::sequence_plan()
        .with("layers.*.mlp.w[13]", ColwiseParallel::default())
        .with("layers.*.norm[12]", SequenceParallel::default())
        .with("norm", SequenceParallel::default())
}
