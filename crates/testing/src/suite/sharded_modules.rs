//! Modules, optimizers and operations on sharded tensors, on a real world.

use std::collections::BTreeMap;

use dtensor_sharded::{
    ChunkShardingSpec, Error, ProcessGroup, Result, ShardedTensor, Spec, Tensor, World,
    load_with_process_group,
    module::{
        ModuleTensor, ShardableModule, ShardingPlan, StateDict, load_state_dict, named_tensors,
        shard_module, state_dict,
    },
    ops::linear,
    optim::{Sgd, ShardedOptimizer},
    shard_tensor,
};

use super::{
    sharded::{SIZE, numbered, same, specs},
    tensors::text,
};

/// Every cut becomes bytes on its rank and the same tensor again, and bytes of another rank are refused.
pub(super) fn stored(world: &World) -> Result<(), String> {
    let group = ProcessGroup::of_world(world);
    let (rank, n) = (world.rank(), world.size());
    let want = numbered(&SIZE)?.to_vec::<f32>().map_err(text)?;
    for spec in specs(n)? {
        let x = shard_tensor(&numbered(&SIZE)?, &spec, 0, world).map_err(text)?;
        let bytes = x.to_bytes().map_err(text)?;
        let read = load_with_process_group(&group, || ShardedTensor::from_bytes(&bytes));
        let read = read.and_then(|read| read).map_err(text)?;
        same(&read.full_tensor().map_err(text)?, &want, &format!("{spec:?} of bytes"))?;
        let all = world.group().all_gather_lists(&bytes).map_err(text)?;
        let next = (rank + 1) % n;
        match ShardedTensor::from_bytes_on(&all[next], &group) {
            Err(Error::LoadedElsewhere { .. }) if n > 1 => {}
            Ok(_) if n == 1 => {}
            other => return Err(format!("of the bytes of rank {next}: {other:?}")),
        }
    }
    Ok(())
}

/// A module is cut by a plan and trained as the whole one is; its state goes by bytes into one that is cut otherwise.
pub(super) fn trained(world: &World) -> Result<(), String> {
    let (n, group) = (world.size(), ProcessGroup::of_world(world));
    let (mut whole, mut module) = (layer()?, layer()?);
    shard_module(&mut module, &plan(0, (0..n).rev())?, 0, &group).map_err(text)?;
    let optimizer = Sgd { lr: 0.5, momentum: 0.5, ..Sgd::default() };
    let mut of_whole = ShardedOptimizer::new(&whole, optimizer);
    let mut of_module = ShardedOptimizer::new(&module, optimizer);
    for step in 0..4 {
        if step == 2 {
            // On its way through bytes, and with the state of the optimizer, to a module in columns.
            let stored = through_bytes(state_dict(&module), &group).map_err(text)?;
            module = layer()?;
            shard_module(&mut module, &plan(1, 0..n)?, 0, &group).map_err(text)?;
            load_state_dict(&mut module, &stored, true).map_err(text)?;
            let state = through_bytes(of_module.state_dict().map_err(text)?, &group);
            of_module = ShardedOptimizer::new(&module, optimizer);
            of_module.load_state_dict(&state.map_err(text)?).map_err(text)?;
        }
        let (a, b) = (gradients(&whole), gradients(&module));
        of_whole.step(&mut whole, &a.map_err(text)?).map_err(text)?;
        of_module.step(&mut module, &b.map_err(text)?).map_err(text)?;
    }
    for ((path, want), (_, got)) in named_tensors(&whole).into_iter().zip(named_tensors(&module)) {
        let want = values(want).map_err(text)?;
        same(&full(got).map_err(text)?, &want, &path)?;
    }
    Ok(())
}

/// What is no operation of shards alone is one of distributed tensors, where the cut is a layout.
pub(super) fn delegated(world: &World) -> Result<(), String> {
    let n = world.size();
    let whole = numbered(&SIZE)?;
    let want = |tensor: Tensor| tensor.to_vec::<f32>().map_err(text);
    for dim in 0..2 {
        let spec = ChunkShardingSpec::over_ranks(dim, 0..n).map_err(text)?;
        let x = shard_tensor(&whole, spec, 0, world).map_err(text)?;
        let y = x.to_dtensor().map_err(text)?;
        if y.to_vec::<f32>().map_err(text)? != want(whole.clone())? {
            return Err(format!("the distributed tensor of chunks of dim {dim} has other values"));
        }
        let back = ShardedTensor::from_dtensor(&y).map_err(text)?;
        if !back.equal(&x).map_err(text)? {
            return Err(format!("chunks of dim {dim} do not come back from a distributed tensor"));
        }
        let turned = x.transpose(0, 1).map_err(text)?.full_tensor().map_err(text)?;
        let turned_whole = whole.transpose(0, 1).map_err(text)?;
        same(&turned, &want(turned_whole.contiguous())?, "transpose")?;
        let viewed = x.view(&[3, 7]).map_err(text)?.full_tensor().map_err(text)?;
        same(&viewed, &want(whole.clone())?, "view")?;
        // Whole numbers, so that the order of the terms does not matter.
        let input = numbered(&[2, SIZE[1]])?;
        let y = linear(&input, &x, None::<&Tensor>).map_err(text)?.to_vec::<f32>().map_err(text)?;
        if y != want(input.matmul(&turned_whole).map_err(text)?)? {
            return Err(format!("linear with chunks of dim {dim}: {y:?}"));
        }
    }
    // Boxes are no layout, on any rank.
    for spec in specs(n)?.into_iter().skip(2).filter(|_| n > 1) {
        let x = shard_tensor(&whole, &spec, 0, world).map_err(text)?;
        if x.to_dtensor().is_ok() || x.softmax(0).is_ok() {
            return Err(format!("{spec:?} is taken for a layout"));
        }
    }
    Ok(())
}

pub(super) struct Layer {
    weight: ModuleTensor,
    bias: ModuleTensor,
}

impl ShardableModule for Layer {
    fn tensors(&self) -> Vec<(String, &ModuleTensor)> {
        vec![("weight".to_string(), &self.weight), ("bias".to_string(), &self.bias)]
    }

    fn tensors_mut(&mut self) -> Vec<(String, &mut ModuleTensor)> {
        vec![("weight".to_string(), &mut self.weight), ("bias".to_string(), &mut self.bias)]
    }
}

pub(super) fn layer() -> Result<Layer, String> {
    Ok(Layer { weight: numbered(&SIZE)?.into(), bias: numbered(&[SIZE[0]])?.into() })
}

fn plan(dim: isize, ranks: impl Iterator<Item = usize>) -> Result<ShardingPlan, String> {
    let spec = ChunkShardingSpec::over_ranks(dim, ranks).map(Spec::from).map_err(text)?;
    Ok(ShardingPlan::new().shard("weight", spec))
}

/// A half of each value: powers of two, so that every way to compute it gives the same bits.
fn gradients(module: &Layer) -> Result<StateDict> {
    let half = |tensor: &ModuleTensor| -> Result<ModuleTensor> {
        Ok(match tensor {
            ModuleTensor::Plain(tensor) => tensor.mul_scalar(0.5)?.into(),
            ModuleTensor::Sharded(tensor) => tensor.mul(0.5)?.into(),
        })
    };
    named_tensors(module).into_iter().map(|(path, tensor)| Ok((path, half(tensor)?))).collect()
}

/// As a rank stores it for itself, and reads it again.
fn through_bytes(state: StateDict, group: &ProcessGroup) -> Result<StateDict> {
    let read = |tensor: ModuleTensor| -> Result<ModuleTensor> {
        match tensor {
            ModuleTensor::Sharded(tensor) => {
                let bytes = tensor.to_bytes()?;
                let read = load_with_process_group(group, || ShardedTensor::from_bytes(&bytes));
                Ok(read??.into())
            }
            plain => Ok(plain),
        }
    };
    state
        .into_iter()
        .map(|(path, tensor)| Ok((path, read(tensor)?)))
        .collect::<Result<BTreeMap<_, _>>>()
}

fn full(tensor: &ModuleTensor) -> Result<Tensor> {
    match tensor {
        ModuleTensor::Plain(tensor) => Ok(tensor.clone()),
        ModuleTensor::Sharded(tensor) => tensor.full_tensor(),
    }
}

fn values(tensor: &ModuleTensor) -> Result<Vec<f32>> {
    Ok(full(tensor)?.to_vec::<f32>()?)
}
