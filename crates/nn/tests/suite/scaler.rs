//! Losses that are scaled for `f16`: gradients that would vanish, or overflow.

use dtensor::{DTensor, DType, DeviceMesh, Placement::Replicate, Placement::Shard};
use dtensor_nn::{
    Error, Forward, FullyShardOptions, Linear, Optimizer, Parameter, Result, Sgd, clip_grad_norm,
    fully_shard, named_parameters, optim::GradScaler, parameters,
};
use dtensor_testing::spmd;

use crate::support::{assert_close, copies, fill, mesh, tensor};

/// A layer with parameters in `f32`, computed with in `dtype`.
fn layer(dtype: DType, mesh: &DeviceMesh) -> Result<Linear> {
    let mut layer = Linear::new(6, 4, true, DType::F32, mesh)?;
    fill(&layer)?;
    let options = FullyShardOptions::default().mixed_precision(dtype, DType::F32);
    fully_shard(&mut layer, "x", &options)?;
    Ok(layer)
}

/// A loss whose gradients are below what `f16` can hold.
fn loss(layer: &Linear, mesh: &DeviceMesh) -> dtensor::Result<DTensor> {
    let x = tensor(&[8, 6], 1.0, DType::F32, mesh, &[Shard(0)]);
    layer.call(&x)?.sum(&[], false)?.to_dtype(DType::F32)?.mul(1e-9)
}

fn values(layer: &Linear) -> Result<Vec<f64>> {
    let mut all = Vec::new();
    for (_, parameter) in named_parameters(layer) {
        all.extend(parameter.value().to_dtype(DType::F64)?.to_vec::<f64>()?);
    }
    Ok(all)
}

#[test]
fn gradients_that_vanish_in_f16_do_not_if_the_loss_is_scaled() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        const RATE: f64 = 1e7;
        let step = |dtype: DType, scaler: Option<GradScaler>| -> Result<Vec<f64>> {
            let layer = layer(dtype, &mesh)?;
            let before = values(&layer)?;
            let mut sgd = Sgd::new(parameters(&layer), RATE);
            let loss = loss(&layer, &mesh)?;
            match scaler {
                None => sgd.step(&loss.backward()?)?,
                Some(mut scaler) => {
                    let gradients = scaler.scale(&loss)?.backward()?;
                    assert!(scaler.step(&parameters(&layer), gradients, &mut sgd)?);
                }
            }
            Ok(values(&layer)?.iter().zip(before).map(|(after, before)| after - before).collect())
        };
        let want = step(DType::F32, None)?;
        assert!(want.iter().any(|change| change.abs() > 1e-3), "{want:?}");
        assert!(step(DType::F16, None)?.iter().all(|change| *change == 0.0), "they vanish");
        let scaled = step(DType::F16, Some(GradScaler::new(65_536.0, 10)))?;
        assert_close(&scaled, &want, 2e-2, "scaled");
        // Far too large: the step is left out, on every rank.
        let layer = layer(DType::F16, &mesh)?;
        let before = values(&layer)?;
        let mut scaler = GradScaler::new(1e15, 10);
        let gradients = scaler.scale(&loss(&layer, &mesh)?)?.backward()?;
        let mut sgd = Sgd::new(parameters(&layer), RATE);
        assert!(!scaler.step(&parameters(&layer), gradients, &mut sgd)?);
        assert_eq!((values(&layer)?, scaler.factor()), (before, 5e14));
        Ok(())
    });
}

#[test]
fn gradients_are_unscaled_before_they_are_clipped() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let start = tensor(&[5], 1.0, DType::F64, &mesh, &[Shard(0)]);
        let parameter = Parameter::new(&start)?;
        let all = std::slice::from_ref(&parameter);
        let length = start.square()?.sum(&[], false)?.sqrt()?.item::<f64>()?;
        let mut scaler = GradScaler::new(1024.0, 10);
        let mut sgd = Sgd::new(all.to_vec(), 1.0);
        let loss = || parameter.value().square()?.mul(0.5)?.sum(&[], false);
        let mut gradients = scaler.scale(&loss()?)?.backward()?;
        assert!(scaler.unscale(all, &mut gradients)?);
        let again = scaler.unscale(all, &mut gradients);
        assert!(matches!(again, Err(Error::BadSetting { what: "the gradient", .. })), "{again:?}");
        // The gradient is the value: of its true length half is left.
        let norm = clip_grad_norm(all, &mut gradients, length / 2.0)?;
        assert!((norm - length).abs() < 1e-12);
        assert!(scaler.step(all, gradients, &mut sgd)?);
        let want: Vec<f64> = start.to_vec::<f64>()?.iter().map(|x| x / 2.0).collect();
        assert_close(&parameter.value().to_vec::<f64>()?, &want, 1e-5, "clipped");
        // What is not finite is known before the step, which is then left out.
        let mut gradients = scaler.scale(&loss()?.mul(f64::INFINITY)?)?.backward()?;
        assert!(!scaler.unscale(all, &mut gradients)?);
        assert!(!scaler.step(all, gradients, &mut sgd)?);
        assert_eq!(scaler.factor(), 512.0);
        // And the next one is as if nothing had been.
        let gradients = scaler.scale(&loss()?)?.backward()?;
        assert!(scaler.step(all, gradients, &mut sgd)?);
        Ok(())
    });
}

/// Divided in `f16`, they would vanish after all.
#[test]
fn gradients_in_f16_are_refused() {
    spmd(1, |world| {
        let mesh = mesh(world, &[("x", 1)]);
        let parameter = Parameter::new(&tensor(&[3], 1.0, DType::F16, &mesh, &[Replicate]))?;
        let mut scaler = GradScaler::default();
        let gradients = parameter.value().sum(&[], false)?.backward()?;
        let mut sgd = Sgd::new(vec![parameter.clone()], 0.1);
        let error = scaler.step(&[parameter], gradients, &mut sgd).unwrap_err().to_string();
        assert!(error.contains("f16") && error.contains("mixed_precision"), "{error}");
        Ok(())
    });
}

#[test]
fn a_scaler_goes_on_from_its_state() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let parameter = Parameter::new(&tensor(&[5], 1.0, DType::F64, &mesh, &[Shard(0)]))?;
        let all = std::slice::from_ref(&parameter);
        let mut sgd = Sgd::new(all.to_vec(), 0.1);
        let mut step = |scaler: &mut GradScaler| -> Result<f64> {
            let loss = parameter.value().square()?.sum(&[], false)?;
            scaler.step(all, scaler.scale(&loss)?.backward()?, &mut sgd)?;
            Ok(scaler.factor())
        };
        let mut first = GradScaler::new(8.0, 3);
        step(&mut first)?;
        step(&mut first)?;
        let state = first.state_dict(&mesh)?;
        assert_eq!(state.keys().collect::<Vec<_>>(), ["growth_tracker", "scale"]);
        let mut second = GradScaler::new(2.0, 3);
        second.load_state_dict(&state)?;
        assert_eq!(second, first);
        assert_eq!((step(&mut first)?, step(&mut second)?), (16.0, 16.0));
        // What does not fit changes nothing.
        let number = |value: f64| dtensor::full(&[], value, &mesh, &copies(&mesh));
        for (name, value) in [("scale", Some(0.0)), ("growth_tracker", Some(-1.0)), ("scale", None)]
        {
            let mut wrong = state.clone();
            match value {
                Some(value) => wrong.insert(name.to_owned(), number(value)?),
                None => wrong.remove(name),
            };
            assert!(second.load_state_dict(&wrong).is_err(), "{name} {value:?}");
        }
        let mut more = state.clone();
        more.insert("shift".to_owned(), number(1.0)?);
        let error = second.load_state_dict(&more).unwrap_err();
        assert_eq!(error, Error::Unexpected { name: "shift".to_owned() });
        assert_eq!(second.factor(), 16.0);
        Ok(())
    });
}
