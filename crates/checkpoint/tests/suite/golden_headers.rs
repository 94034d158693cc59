//! What PyTorch 2.15 wrote on four ranks, and what we write of the same state.

use std::{fs, path::Path};

use dtensor::{DType, DeviceMesh, LocalError, Placement, Placement::*, Tensor, distribute_tensor};
use dtensor_checkpoint::{SaveOptions, State, save};
use dtensor_testing::spmd;
use serde_json::Value as Json;

use crate::saved::{Checkpoint, place};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/four_ranks");

/// In the order of the state; placements on the axes dp and tp.
const STATE: [(&str, [Placement; 2]); 7] = [
    ("embed.weight", [Shard(0), Shard(1)]),
    ("layers.0.attn.wq.weight", [Replicate, Shard(0)]),
    ("layers.0.attn.wo.weight", [Shard(0), Shard(0)]),
    ("layers.0.norm.weight", [Replicate, Replicate]),
    ("head.weight", [Shard(1), Replicate]),
    ("buffers.steps", [Shard(0), Replicate]),
    ("buffers.double", [Replicate, Shard(1)]),
];

#[test]
fn files_have_the_headers_and_the_bytes_of_pytorchs() {
    let whole = fs::read(Path::new(GOLDEN).join("full.safetensors")).unwrap();
    let (_directory, path, text) = place();
    spmd(4, |world| {
        let mesh = DeviceMesh::new(world, &[("dp", 2), ("tp", 2)])?;
        let mut state = State::new();
        for (name, placements) in STATE {
            state.insert(name, distribute_tensor(&tensor(&whole, name), &mesh, &placements)?)?;
        }
        save(world, &state, &text, &SaveOptions::default())?;
        Ok(())
    });
    assert_eq!(Checkpoint::read(&path).unwrap().headers.len(), 4);
    for rank in 1..=4 {
        let name = format!("shard-{rank:05}-model-00001-of-00001.safetensors");
        let (theirs, their_data) =
            split(&fs::read(Path::new(GOLDEN).join("hf").join(&name)).unwrap());
        let (mut ours, our_data) = split(&fs::read(path.join(&name)).unwrap());
        let metadata = ours["__metadata__"].as_object_mut().unwrap();
        assert_eq!(metadata.remove("dtensor.version"), Some("1".into()));
        assert!(metadata.remove("dtensor.tensors").is_some());
        assert_eq!(ours, theirs, "{name}");
        assert_eq!(our_data, their_data, "{name}");
    }
}

/// The header and the data of a file.
fn split(bytes: &[u8]) -> (Json, Vec<u8>) {
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    assert_eq!(start % 8, 0, "data are aligned");
    (serde_json::from_slice(&bytes[8..start]).unwrap(), bytes[start..].to_vec())
}

/// A whole tensor of a file.
fn tensor(file: &[u8], name: &str) -> Tensor {
    let (header, data) = split(file);
    let about = &header[name];
    let number = |json: &Json| json.as_u64().unwrap() as usize;
    let shape: Vec<usize> = about["shape"].as_array().unwrap().iter().map(number).collect();
    let dtype = match about["dtype"].as_str().unwrap() {
        "I64" => DType::I64,
        "F64" => DType::F64,
        "BF16" => DType::Bf16,
        _ => DType::F32,
    };
    let range = number(&about["data_offsets"][0])..number(&about["data_offsets"][1]);
    Tensor::from_bytes_with(&shape, dtype, |bytes| {
        bytes.copy_from_slice(&data[range]);
        Ok::<_, LocalError>(())
    })
    .unwrap()
}
