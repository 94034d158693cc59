//! Parameters by name, and files of them.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
};

use dtensor::{
    DType, DeviceMesh,
    Placement::{self, Replicate, Shard},
    Tensor,
};
use dtensor_nn::{
    Activation, Error, FullyShardOptions, Mlp, Result, StateDict, fully_shard, load_state_dict,
    load_tensors, named_parameters, read_safetensors, state_dict, write_safetensors,
};
use dtensor_testing::spmd;

use crate::support::{fill, mesh, numbers, tensor};

/// A directory that goes with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("dtensor-nn-state-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mlp(dtype: DType, mesh: &DeviceMesh) -> Result<Mlp> {
    Ok(Mlp::new(5, 7, Activation::SwiGlu, true, dtype, mesh)?)
}

/// Whole, on every rank.
fn values(mlp: &Mlp) -> Result<BTreeMap<String, Vec<f64>>> {
    let one = |(name, value): (String, dtensor::DTensor)| {
        Ok((name, value.to_dtype(DType::F64)?.to_vec::<f64>()?))
    };
    state_dict(mlp).into_iter().map(one).collect()
}

#[test]
fn a_file_goes_round_on_any_number_of_ranks() {
    let scratch = Scratch::new();
    for (wrote, read) in [(1, 4), (2, 3), (3, 2), (4, 1)] {
        let path = scratch.0.join(format!("{wrote}.safetensors"));
        let want = spmd(wrote, |world| {
            let mesh = mesh(world, &[("x", wrote)]);
            let mut mlp = mlp(DType::F32, &mesh)?;
            fill(&mlp)?;
            fully_shard(&mut mlp, "x", &FullyShardOptions::default())?;
            write_safetensors(&path, &state_dict(&mlp))?;
            Ok(values(&mlp)?)
        });
        spmd(read, |world| {
            let mesh = mesh(world, &[("x", read)]);
            let mut mlp = mlp(DType::F32, &mesh)?;
            let mut options = FullyShardOptions::default();
            options.dim = 1;
            fully_shard(&mut mlp, "x", &options)?;
            let layout = mlp.w1.weight.layout();
            // Every rank reads: the file is there when all have written.
            load_tensors(&mlp, &read_safetensors(&path)?)?;
            assert_eq!(mlp.w1.weight.layout(), layout);
            assert!(mlp.w1.weight.is_learnt());
            assert_eq!(values(&mlp)?, want[0]);
            Ok(())
        });
    }
    let names: Vec<_> = fs::read_dir(&scratch.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 4, "nothing is left over: {names:?}");
}

#[test]
fn every_dtype_goes_round() {
    let scratch = Scratch::new();
    let path = scratch.0.join("all.safetensors");
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let mut state = StateDict::new();
        for dtype in [
            DType::F64,
            DType::F32,
            DType::F16,
            DType::Bf16,
            DType::I64,
            DType::I32,
            DType::U8,
            DType::Bool,
        ] {
            let whole = tensor(&[5], 1.0, DType::F64, &mesh, &[Shard(0)]).mul(10.0)?.abs()?;
            state.insert(dtype.to_string(), whole.to_dtype(dtype)?);
        }
        state.insert("scalar".to_owned(), dtensor::full(&[], 7_i64, &mesh, &[Replicate])?);
        state.insert("empty".to_owned(), dtensor::zeros(&[0, 3], DType::F32, &mesh, &[Shard(0)])?);
        write_safetensors(&path, &state)?;
        // The first rank writes, and this is where the others wait for it.
        world.group().barrier()?;
        let read = read_safetensors(&path)?;
        assert_eq!(read.len(), state.len());
        for (name, tensor) in read {
            let want = state[&name].full_tensor()?;
            assert_eq!((tensor.shape(), tensor.dtype()), (want.shape(), want.dtype()));
            let bytes = |tensor: &Tensor| tensor.contiguous().as_bytes().unwrap().to_vec();
            assert_eq!(bytes(&tensor), bytes(&want), "{name}");
        }
        Ok(())
    });
}

#[test]
fn what_does_not_fit_is_named_and_changes_nothing() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let mut own = mlp(DType::F64, &mesh)?;
        fully_shard(&mut own, "x", &FullyShardOptions::default())?;
        let other = mlp(DType::F64, &mesh)?;
        fill(&other)?;
        let good = state_dict(&other);
        let before = values(&own)?;
        let mut without = good.clone();
        without.remove("w2.bias");
        let mut beside = good.clone();
        beside.insert("w4.bias".to_owned(), good["w1.bias"].clone());
        let mut misshapen = good.clone();
        misshapen.insert("w3.weight".to_owned(), good["w2.weight"].clone());
        let errors = [
            load_state_dict(&own, &without, true).unwrap_err(),
            load_state_dict(&own, &without, false).unwrap_err(),
            load_state_dict(&own, &StateDict::new(), true).unwrap_err(),
            load_state_dict(&own, &beside, true).unwrap_err(),
            load_state_dict(&own, &misshapen, false).unwrap_err(),
        ];
        let texts = errors.map(|error| error.to_string());
        assert_eq!(
            texts,
            [
                "`w2.bias` is missing; the nearest name is `w3.bias`",
                "`w2.bias` is missing; the nearest name is `w3.bias`",
                "`w1.weight` is missing; the nearest name is none",
                "`w4.bias` is no parameter of the model; leave it out, or load without strict",
                "`w3.weight` has shape [5, 7], the model wants [7, 5]",
            ]
        );
        assert_eq!(values(&own)?, before);
        load_state_dict(&own, &beside, false)?;
        assert_eq!(values(&own)?, values(&other)?);
        Ok(())
    });
}

#[test]
fn other_dtypes_and_other_meshes_are_brought_to_the_model() {
    spmd(4, |world| {
        let (line, square) = (mesh(world, &[("x", 4)]), mesh(world, &[("x", 2), ("y", 2)]));
        let from = mlp(DType::F32, &line)?;
        fill(&from)?;
        let mut to = mlp(DType::F64, &square)?;
        fully_shard(&mut to, "y", &FullyShardOptions::default())?;
        let cut = |(name, value): (String, dtensor::DTensor)| {
            Ok((name, value.redistribute(&[Shard(0)])?))
        };
        let state = state_dict(&from).into_iter().map(cut).collect::<dtensor::Result<_>>()?;
        load_state_dict(&to, &state, true)?;
        assert_eq!(values(&to)?, values(&from)?);
        let placements: [Placement; 2] = [Replicate, Shard(0)];
        assert_eq!(to.w1.weight.layout().placements(), placements);
        assert_eq!(to.w1.weight.value().dtype(), DType::F64);
        Ok(())
    });
}

#[test]
fn a_shared_parameter_has_one_value_and_all_its_names() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let mut own = mlp(DType::F64, &mesh)?;
        own.w3.as_mut().unwrap().weight = own.w1.weight.clone();
        fill(&own)?;
        let mut state = state_dict(&own);
        assert!(!state.contains_key("w3.weight") && state.len() == 5);
        load_state_dict(&own, &state, true)?;
        state.insert("w3.weight".to_owned(), state["w1.weight"].clone());
        load_state_dict(&own, &state, true)?;
        assert_eq!(named_parameters(&own).len(), 5);
        Ok(())
    });
}

#[test]
fn files_that_are_none_are_refused() {
    let scratch = Scratch::new();
    let there = scratch.0.join("bad.safetensors");
    fs::write(&there, b"no tensors").unwrap();
    for path in [&there, &scratch.0.join("nowhere.safetensors")] {
        let error = read_safetensors(path).unwrap_err();
        assert!(
            matches!(&error, Error::File { path: own, .. } if *own == path.display().to_string())
        );
    }
    spmd(1, |world| {
        let mesh = mesh(world, &[("x", 1)]);
        let mlp = mlp(DType::F64, &mesh)?;
        let nowhere = scratch.0.join("no/such/file.safetensors");
        let error = write_safetensors(&nowhere, &state_dict(&mlp)).unwrap_err();
        assert!(matches!(error, Error::File { .. }));
        let mut tensors = BTreeMap::new();
        let whole = Tensor::from_slice(&numbers(4, 0.0), &[2, 2])?;
        tensors.insert("w1.weight".to_owned(), whole);
        let error = load_tensors(&mlp, &tensors).unwrap_err();
        assert!(matches!(error, Error::Misshapen { .. }), "{error}");
        Ok(())
    });
}
