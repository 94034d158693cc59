//! Training on a real world: gradients, every way to cut a model, and the same bits as on threads.

use dtensor::{
    DType, DeviceMesh,
    Placement::{Replicate, Shard},
    Runner, World, WorldKind, randint, random,
};
use dtensor_nn::{
    AdamW, Forward, FullyShardOptions, Gpt, GptConfig, Optimizer, clip_grad_norm, cross_entropy,
    fully_shard, gpt_plan, parallelize_module, parameters,
};

use crate::{
    spmd,
    tensors::{
        gradients::{check_in_layout, on_one_rank},
        mesh, sweep,
    },
};

/// How a model is cut.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Data,
    Tensor,
    Sharded,
    /// Both, where the ranks make two axes.
    ShardedTensor,
}

/// Gradients of some of all operations, in some of their layouts.
pub(super) fn gradients(world: &World) -> Result<(), String> {
    // All of them on threads; here every few are enough.
    const STEP: usize = 29;
    let sizes = [world.size()];
    let mesh = mesh(world, &sizes);
    for case in sweep::cases(&sizes).iter().step_by(STEP) {
        let sample = case.sample();
        let gives_floats = sample
            .op
            .infer(&sample.metas())
            .is_ok_and(|results| results.iter().any(|result| result.dtype.is_float()));
        if sample.op.keeps().is_none() || !gives_floats {
            continue;
        }
        let alone = spmd(1, |world| Ok(on_one_rank(sample, &crate::tensors::mesh(world, &[1]))));
        let want = alone.into_iter().next().unwrap_or_else(|| Err("no rank".to_owned()));
        let want = want.map_err(|why| format!("{} on one rank: {why}", case.name()))?;
        check_in_layout(case, &mesh, &want).map_err(|why| format!("{}: {why}", case.name()))?;
    }
    Ok(())
}

/// Losses and lengths of gradients of a few steps are bit for bit those of ranks as threads.
pub(super) fn steps(world: &World) -> Result<(), String> {
    for cut in [Cut::Data, Cut::Tensor, Cut::Sharded, Cut::ShardedTensor] {
        if matches!(cut, Cut::ShardedTensor) && world.size() != 4 {
            continue;
        }
        let here = train(world, cut).map_err(|error| format!("{cut:?}: {error}"))?;
        if world.kind() != WorldKind::Mpi {
            continue;
        }
        let threads = Runner::threads(world.size()).run(|world| train(world, cut));
        let threads = threads.map_err(|error| format!("{cut:?}: {error}"))?;
        if threads[0] != here {
            return Err(format!("{cut:?}: {here:?}, on threads {:?}", threads[0]));
        }
    }
    Ok(())
}

/// Losses and lengths of gradients.
fn train(world: &World, cut: Cut) -> dtensor_nn::Result<Vec<(f32, f64)>> {
    random::manual_seed(3);
    let n = world.size();
    let mesh = match cut {
        Cut::ShardedTensor => DeviceMesh::new(world, &[("dp", n / 2), ("tp", 2)])?,
        Cut::Tensor => DeviceMesh::new(world, &[("dp", 1), ("tp", n)])?,
        _ => DeviceMesh::new(world, &[("dp", n), ("tp", 1)])?,
    };
    let config = GptConfig {
        vocabulary: 11,
        sequence: 5,
        layers: 2,
        dim: 12,
        heads: 3,
        dropout: 0.1,
        ..GptConfig::default()
    };
    let mut model = Gpt::new(&config, DType::F32, &mesh)?;
    if matches!(cut, Cut::Tensor | Cut::ShardedTensor) {
        parallelize_module(&mut model, &mesh, "tp", &gpt_plan())?;
    }
    if matches!(cut, Cut::Sharded | Cut::ShardedTensor) {
        let options = FullyShardOptions::default();
        for block in &mut model.layers {
            fully_shard(block, "dp", &options)?;
        }
        fully_shard(&mut model, "dp", &options)?;
    }
    let mut optimizer = AdamW::new(parameters(&model), 1e-2);
    let mut found = Vec::new();
    for _ in 0..3 {
        let tokens = || randint(0, 11, &[3, 5], DType::I64, &mesh, &[Shard(0), Replicate]);
        let (ids, targets) = (tokens()?, tokens()?);
        let loss = cross_entropy(&model.call(&ids)?, &targets)?;
        let mut gradients = loss.backward()?;
        let norm = clip_grad_norm(&parameters(&model), &mut gradients, 1.0)?;
        optimizer.step(&gradients)?;
        found.push((loss.item::<f32>()?, norm));
    }
    Ok(found)
}
