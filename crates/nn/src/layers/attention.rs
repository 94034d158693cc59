use dtensor::{DTensor, DType, DeviceMesh, Result, ops::nn::Attention};

use super::{Linear, Rotary};
use crate::{Error, Forward, Module, ModuleState, Sequence};

/// What a [`MultiHeadAttention`] is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Features of the input and of the result.
    pub dim: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values, of which neighbouring heads of queries share one.
    pub key_heads: usize,
    /// Whether a position sees only those before it.
    pub causal: bool,
    /// Whether the four products add a bias.
    pub bias: bool,
}

/// Attention of several heads. Head after head, the features of queries, keys and values lie side by side: cut by heads,
/// every rank computes its own, without communication.
#[derive(Clone, Debug, Module)]
pub struct MultiHeadAttention {
    /// Queries.
    pub wq: Linear,
    /// Keys.
    pub wk: Linear,
    /// Values.
    pub wv: Linear,
    /// What becomes of the heads' results.
    pub wo: Linear,
    #[module(skip)]
    config: AttentionConfig,
    #[module(skip)]
    rotary: Option<Rotary>,
    #[module(skip)]
    sequence: Sequence,
    state: ModuleState,
}

impl MultiHeadAttention {
    /// With first values as PyTorch's, a copy on every rank.
    pub fn new(
        config: &AttentionConfig,
        rotary: Option<Rotary>,
        dtype: DType,
        mesh: &DeviceMesh,
    ) -> Result<MultiHeadAttention, Error> {
        let AttentionConfig { dim, heads, key_heads, bias, .. } = *config;
        check_heads(dim, heads)?;
        if key_heads == 0 || heads % key_heads != 0 {
            let got = format!("{key_heads} for {heads} heads of queries");
            return Err(Error::bad("the number of key heads", got, "it must divide the others"));
        }
        if let Some(rotary) = rotary.as_ref().filter(|rotary| rotary.width() != dim / heads) {
            let got = format!("{} for heads of {}", rotary.width(), dim / heads);
            return Err(Error::bad("the width of the rotary positions", got, "make them equal"));
        }
        let width = dim / heads * key_heads;
        Ok(MultiHeadAttention {
            wq: Linear::new(dim, dim, bias, dtype, mesh)?,
            wk: Linear::new(dim, width, bias, dtype, mesh)?,
            wv: Linear::new(dim, width, bias, dtype, mesh)?,
            wo: Linear::new(dim, dim, bias, dtype, mesh)?,
            config: *config,
            rotary,
            sequence: Sequence::Plain,
            state: ModuleState::default(),
        })
    }

    /// How the sequence lies that it sees. [`ContextParallel`](crate::ContextParallel) sets it.
    pub fn set_sequence(&mut self, sequence: Sequence) {
        self.sequence = sequence;
    }

    /// `[batch, positions, features]` as `[batch, heads, positions, features of a head]`.
    fn by_heads(x: &DTensor, heads: usize) -> Result<DTensor> {
        let size = |dim: usize| x.shape()[dim].cast_signed();
        let width = x.shape()[2] / heads;
        x.reshape(&[size(0), size(1), heads.cast_signed(), width.cast_signed()])?.transpose(1, 2)
    }
}

/// Whether every head has as many features.
pub(crate) fn check_heads(dim: usize, heads: usize) -> Result<(), Error> {
    if heads == 0 || !dim.is_multiple_of(heads) {
        let got = format!("{heads} for {dim} features");
        return Err(Error::bad("the number of heads", got, "it must divide the features"));
    }
    Ok(())
}

impl Forward for MultiHeadAttention {
    fn forward(&self, x: &DTensor) -> Result<DTensor> {
        let AttentionConfig { dim, heads, key_heads, causal, .. } = self.config;
        if x.n_dims() != 3 || x.shape()[2] != dim {
            return Err(dtensor::Error::Unsupported {
                op: "MultiHeadAttention",
                what: format!("an operand of shape {:?}", x.shape()).into(),
                way_out: "give [batch, positions, features], with the features of the layer",
            });
        }
        let mut queries = Self::by_heads(&self.wq.call(x)?, heads)?;
        let mut keys = Self::by_heads(&self.wk.call(x)?, key_heads)?;
        let values = Self::by_heads(&self.wv.call(x)?, key_heads)?;
        if let Some(rotary) = &self.rotary {
            let turn = |x: &DTensor| rotary.turn_in(x, self.sequence);
            (queries, keys) = (turn(&queries)?, turn(&keys)?);
        }
        let settings = Attention { causal, scale: None };
        let (seen, _) = match self.sequence {
            Sequence::Plain => queries.attention(&keys, &values, &settings)?,
            ring => queries.ring_attention(&keys, &values, &settings, ring.positions())?,
        };
        self.wo.call(&seen.transpose(1, 2)?.flatten(2, 3)?)
    }
}
