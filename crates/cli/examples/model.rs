//! The model of the README: a small GPT that learns to repeat what it reads, its products cut over one axis and the rest over another.
#![allow(clippy::print_stdout, reason = "an example that prints")]

use dtensor::{DType, DeviceMesh, Placement::*, RunError, Runner, randint};
use dtensor_nn::*;

fn main() -> Result<(), RunError> {
    Runner::new().ranks(4).run(|world| {
        let mesh = DeviceMesh::new(world, &[("dp", 2), ("tp", 2)])?;
        let mut model = Gpt::new(&GptConfig::default(), DType::F32, &mesh)?; // written as for one device
        parallelize_module(&mut model, &mesh, "tp", &gpt_plan())?; // products cut over tp
        fully_shard(&mut model, "dp", &FullyShardOptions::default())?; // the rest over dp, gathered for use
        let mut optimizer = AdamW::new(parameters(&model), 3e-3);

        let tokens = randint(0, 16, &[8, 128], DType::I64, &mesh, &[Shard(0), Replicate])?;
        for step in 0..10 {
            let loss = cross_entropy(&model.call(&tokens)?, &tokens)?;
            let mut gradients = loss.backward()?; // each in the layout of its parameter
            clip_grad_norm(&parameters(&model), &mut gradients, 1.0)?;
            optimizer.step(&gradients)?;
            let loss = loss.item::<f32>()?; // all ranks ask, since each has a part of the answer
            if world.rank() == 0 {
                println!("step {step}: loss {loss:.3}");
            }
        }
        Ok::<_, Error>(())
    })?;
    Ok(())
}
