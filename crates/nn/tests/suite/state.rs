//! Parameters by name.

use std::collections::BTreeMap;

use dtensor::{
    DType, DeviceMesh,
    Placement::{self, Replicate, Shard},
    Tensor,
};
use dtensor_nn::{
    Activation, Error, FullyShardOptions, Mlp, Result, StateDict, fully_shard, load_state_dict,
    load_tensors, named_parameters, state_dict,
};
use dtensor_testing::spmd;

use crate::support::{fill, mesh, numbers};

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
fn a_whole_tensor_of_another_shape_is_refused() {
    spmd(1, |world| {
        let mesh = mesh(world, &[("x", 1)]);
        let mlp = mlp(DType::F64, &mesh)?;
        let mut tensors = BTreeMap::new();
        let whole = Tensor::from_slice(&numbers(4, 0.0), &[2, 2])?;
        tensors.insert("w1.weight".to_owned(), whole);
        let error = load_tensors(&mlp, &tensors).unwrap_err();
        assert!(matches!(error, Error::Misshapen { .. }), "{error}");
        Ok(())
    });
}
