//! The length of all gradients, whatever their layouts and meshes.

use dtensor::{
    DType, Gradients,
    Placement::{Partial, Replicate, Shard},
    ReduceOp,
};
use dtensor_nn::{Error, Parameter, clip_grad_norm, clip_grad_norm_by};
use dtensor_testing::spmd;

use crate::support::{assert_close, mesh, numbers, tensor};

const SHAPES: [&[usize]; 6] = [&[5, 3], &[7], &[4, 2], &[3], &[2, 2], &[6]];

fn dense_norm() -> f64 {
    let squares = SHAPES.iter().enumerate().flat_map(|(number, shape)| {
        numbers(shape.iter().product(), number as f64).into_iter().map(|value| value * value)
    });
    squares.sum::<f64>().sqrt()
}

#[test]
fn every_element_counts_once_on_any_mesh() {
    let norm = dense_norm();
    for max_norm in [norm / 3.0, 2.0 * norm, f64::INFINITY] {
        spmd(4, |world| {
            let square = mesh(world, &[("x", 2), ("y", 2)]);
            let line = mesh(world, &[("z", 4)]);
            let places = [
                (&square, vec![Shard(0), Replicate]),
                (&square, vec![Replicate, Replicate]),
                (&square, vec![Shard(0), Shard(0)]),
                (&line, vec![Shard(0)]),
                (&line, vec![Partial(ReduceOp::Sum)]),
                (&square, vec![Partial(ReduceOp::Sum), Shard(0)]),
            ];
            let (mut parameters, mut gradients) = (Vec::new(), Gradients::default());
            for (number, (shape, (mesh, placements))) in SHAPES.iter().zip(&places).enumerate() {
                let copies = vec![Replicate; mesh.n_axes()];
                let gradient = tensor(shape, number as f64, DType::F64, mesh, &copies);
                let home: Vec<_> = placements
                    .iter()
                    .map(|one| if let Partial(_) = one { Replicate } else { *one })
                    .collect();
                let parameter = Parameter::new(&gradient.redistribute(&home)?)?;
                gradients.insert(&parameter.value(), gradient.redistribute(placements)?);
                parameters.push(parameter);
            }
            // One that the loss does not depend on.
            parameters.push(Parameter::new(&tensor(&[2], 9.0, DType::F64, &line, &[Shard(0)]))?);
            let got = clip_grad_norm(&parameters, &mut gradients, max_norm)?;
            assert!((got - norm).abs() < 1e-12 * norm, "{got} {norm}");
            let factor = (max_norm / (norm + 1e-6)).min(1.0);
            for (number, (shape, parameter)) in SHAPES.iter().zip(&parameters).enumerate() {
                let want: Vec<f64> = numbers(shape.iter().product(), number as f64)
                    .iter()
                    .map(|value| value * factor)
                    .collect();
                let gradient = gradients.get(&parameter.value()).unwrap();
                assert_close(&gradient.to_vec::<f64>()?, &want, 1e-12, "clipped");
            }
            assert_eq!(gradients.len(), SHAPES.len());
            Ok(())
        });
    }
}

#[test]
fn one_number_is_reduced() {
    spmd(3, |world| {
        let mesh = mesh(world, &[("x", 3)]);
        let (mut parameters, mut gradients) = (Vec::new(), Gradients::default());
        for (number, shape) in SHAPES.iter().enumerate() {
            let parameter =
                Parameter::new(&tensor(shape, number as f64, DType::F64, &mesh, &[Shard(0)]))?;
            gradients.insert(&parameter.value(), parameter.value().detach());
            parameters.push(parameter);
        }
        let before = world.recorder().calls();
        clip_grad_norm(&parameters, &mut gradients, 0.1)?;
        assert_eq!(world.recorder().calls() - before, 1);
        let after = clip_grad_norm(&parameters, &mut gradients, 0.1)?;
        assert!((after - 0.1).abs() < 1e-5, "{after}");
        assert_eq!(clip_grad_norm(&[], &mut gradients, 1.0)?, 0.0);
        Ok(())
    });
}

/// A mesh that not every rank is on: its first rank counts, and the others hear of it.
#[test]
fn ranks_that_have_nothing_take_part() {
    spmd(3, |world| {
        let pair = mesh(world, &[("x", 2)]);
        let all = mesh(world, &[("y", 3)]);
        let parameters = [
            Parameter::new(&tensor(&[4], 0.0, DType::F64, &all, &[Shard(0)]))?,
            Parameter::new(&dtensor::full(&[5], 2.0_f64, &pair, &[Shard(0)])?)?,
        ];
        let mut gradients = Gradients::default();
        for parameter in &parameters {
            gradients.insert(&parameter.value(), parameter.value().detach());
        }
        let squares: f64 = numbers(4, 0.0).iter().map(|value| value * value).sum();
        let norm = clip_grad_norm(&parameters, &mut gradients, 1e9)?;
        assert!((norm - (squares + 20.0).sqrt()).abs() < 1e-12, "{norm}");
        // A gradient that is no number is not hidden.
        let leaf = parameters[0].value();
        gradients.insert(&leaf, leaf.detach().mul(f64::NAN)?);
        assert!(clip_grad_norm(&parameters, &mut gradients, 1.0)?.is_nan());
        Ok(())
    });
}

#[test]
fn norms_of_other_powers_count_every_element_once() {
    for power in [1.0, 3.0, 0.5, f64::INFINITY] {
        spmd(2, |world| {
            let mesh = mesh(world, &[("x", 2)]);
            let placements = [Shard(0), Replicate, Partial(ReduceOp::Sum)];
            let (mut parameters, mut gradients) = (Vec::new(), Gradients::default());
            let mut all = Vec::new();
            for (number, (shape, placement)) in SHAPES.iter().zip(placements).enumerate() {
                let gradient = tensor(shape, number as f64, DType::F64, &mesh, &[Replicate]);
                let parameter = Parameter::new(&gradient)?;
                gradients.insert(&parameter.value(), gradient.redistribute(&[placement])?);
                parameters.push(parameter);
                all.extend(numbers(shape.iter().product(), number as f64));
            }
            let sizes = all.iter().map(|value| value.abs());
            let want = match power.is_infinite() {
                true => sizes.fold(0.0, f64::max),
                false => sizes.map(|size| size.powf(power)).sum::<f64>().powf(1.0 / power),
            };
            let got = clip_grad_norm_by(&parameters, &mut gradients, want / 2.0, power)?;
            assert!((got - want).abs() < 1e-12 * want, "{power}: {got} {want}");
            let after = clip_grad_norm_by(&parameters, &mut gradients, want, power)?;
            assert!((after - want / 2.0).abs() < 1e-5 * want, "{power}: {after} {want}");
            // A gradient that is no number is not hidden.
            let leaf = parameters[0].value();
            gradients.insert(&leaf, leaf.detach().mul(f64::NAN)?);
            assert!(clip_grad_norm_by(&parameters, &mut gradients, 1.0, power)?.is_nan());
            Ok(())
        });
    }
}

/// Gradients would turn around.
#[test]
fn bounds_that_make_no_sense_are_refused() {
    spmd(1, |world| {
        let mesh = mesh(world, &[("x", 1)]);
        let parameters = [Parameter::new(&tensor(&[3], 0.0, DType::F64, &mesh, &[Replicate]))?];
        let leaf = parameters[0].value();
        let mut gradients = Gradients::default();
        gradients.insert(&leaf, leaf.detach());
        for (max_norm, power) in
            [(-1.0, 2.0), (f64::NAN, 2.0), (1.0, 0.0), (1.0, -2.0), (1.0, f64::NAN)]
        {
            let refused = clip_grad_norm_by(&parameters, &mut gradients, max_norm, power);
            assert!(matches!(refused, Err(Error::BadSetting { .. })), "{refused:?}");
            assert_eq!(gradients.get(&leaf).unwrap().to_vec::<f64>()?, leaf.to_vec::<f64>()?);
        }
        Ok(())
    });
}
