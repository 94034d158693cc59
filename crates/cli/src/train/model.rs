//! The model, and how it is cut.

use dtensor::{DTensor, DType, DeviceMesh};
use dtensor_nn::{
    Forward, FullyShardOptions, Gpt, GptConfig, Llama, LlamaConfig, Module, context_plan,
    fully_shard, gpt_plan, gpt_sequence_plan, llama_plan, llama_sequence_plan, parallelize_module,
    replicate,
};

use super::{args::ModelKind, config::Config, strategy::Role};

/// A model that can be trained.
pub enum Model {
    Gpt(Gpt),
    Llama(Llama),
}

/// Sizes of a model beside those of the configuration.
pub struct Sizes {
    pub vocabulary: usize,
}

impl Model {
    /// A new model, cut as the configuration says.
    pub fn new(config: &Config, sizes: &Sizes, mesh: &DeviceMesh) -> dtensor_nn::Result<Model> {
        let Config { layers, dim, heads, dropout, recompute, .. } = *config;
        let (vocabulary, sequence) = (sizes.vocabulary, config.seq);
        let mut model = match config.model {
            ModelKind::Gpt => {
                let gpt =
                    GptConfig { vocabulary, sequence, layers, dim, heads, dropout, recompute };
                Model::Gpt(Gpt::new(&gpt, DType::F32, mesh)?)
            }
            ModelKind::Llama => {
                let llama = LlamaConfig {
                    vocabulary,
                    sequence,
                    layers,
                    dim,
                    // Three products instead of two: as many parameters.
                    hidden: (dim * 8 / 3).next_multiple_of(8),
                    heads,
                    key_heads: if heads % 2 == 0 { heads / 2 } else { heads },
                    dropout,
                    recompute,
                    ..LlamaConfig::default()
                };
                Model::Llama(Llama::new(&llama, DType::F32, mesh)?)
            }
        };
        model.cut(config, mesh)?;
        Ok(model)
    }

    pub fn module(&self) -> &dyn Module {
        match self {
            Model::Gpt(model) => model,
            Model::Llama(model) => model,
        }
    }

    pub fn module_mut(&mut self) -> &mut dyn Module {
        match self {
            Model::Gpt(model) => model,
            Model::Llama(model) => model,
        }
    }

    /// Logits `[batch, positions, tokens]` of tokens `[batch, positions]`.
    pub fn logits(&self, tokens: &DTensor) -> dtensor::Result<DTensor> {
        match self {
            Model::Gpt(model) => model.call(tokens),
            Model::Llama(model) => model.call(tokens),
        }
    }

    fn cut(&mut self, config: &Config, mesh: &DeviceMesh) -> dtensor_nn::Result<()> {
        let strategy = &config.strategy;
        for axis in strategy.axes(Role::Tensor) {
            let plan = match (&self, strategy.sequence_parallel) {
                (Model::Gpt(_), false) => gpt_plan(),
                (Model::Gpt(_), true) => gpt_sequence_plan(),
                (Model::Llama(_), false) => llama_plan(),
                (Model::Llama(_), true) => llama_sequence_plan(),
            };
            parallelize_module(self.module_mut(), mesh, axis, &plan)?;
        }
        for axis in strategy.axes(Role::Context) {
            parallelize_module(self.module_mut(), mesh, axis, &context_plan(true))?;
        }
        let mut options = FullyShardOptions::default();
        if let Some(dtype) = config.dtype.compute_dtype() {
            options = options.mixed_precision(dtype, DType::F32);
            options.output_dtype = Some(dtype);
        }
        let sharded: Vec<&str> = strategy.axes(Role::Sharded).collect();
        // Where nothing is sharded, units are only for their dtypes.
        let (axis, cuts) = match (&*sharded, strategy.axes(Role::Data).next()) {
            ([axis, ..], _) => (*axis, true),
            ([], Some(axis)) if config.dtype.compute_dtype().is_some() => (axis, false),
            ([], None) if config.dtype.compute_dtype().is_some() => {
                (mesh.mesh().axes()[0].name(), false)
            }
            _ => return Ok(()),
        };
        let shard = if cuts { fully_shard } else { replicate };
        match self {
            Model::Gpt(model) => {
                for block in &mut model.layers {
                    shard(block, axis, &options)?;
                }
            }
            Model::Llama(model) => {
                for block in &mut model.layers {
                    shard(block, axis, &options)?;
                }
            }
        }
        options.output_dtype = Some(DType::F32);
        shard(self.module_mut(), axis, &options)
    }
}
