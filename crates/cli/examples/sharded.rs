//! The sharded table of the README: boxes on any ranks, looked up and cut in another way.
#![allow(clippy::print_stdout, reason = "an example that prints")]

use dtensor_sharded::{embedding::*, *};

fn main() -> Result<(), RunError> {
    Runner::new().ranks(3).run(|world| {
        let boxes = EnumerableShardingSpec::new(vec![
            ShardMetadata::new(&[0, 0], &[100, 8], Some("rank:2/cpu".parse()?))?,
            ShardMetadata::new(&[100, 0], &[900, 3], Some("rank:0/cpu".parse()?))?,
            ShardMetadata::new(&[100, 3], &[900, 5], Some("rank:2/cpu".parse()?))?,
        ])?;
        let mut table = randn(boxes, &[1000, 8], DType::F32, world)?; // rank 1 has nothing of it

        let ids = Tensor::from_vec(vec![999, 7, world.rank() as i64], &[1, 3])?; // each rank its own
        let means = embedding_bag(&ids, None, &table, &BagOptions::default())?;
        println!("rank {}: {means}", world.rank());

        table.reshard(ChunkShardingSpec::over_ranks(0, 0..3)?)?; // what moves is sent once
        assert!(means.equal(&embedding_bag(&ids, None, &table, &BagOptions::default())?)?);
        Ok::<_, Error>(())
    })?;
    Ok(())
}
