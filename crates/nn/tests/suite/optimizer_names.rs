//! What optimizers remember, by the names of parameters.

use dtensor::{DType, DeviceMesh, Gradients, Placement::Replicate};
use dtensor_nn::{
    Activation, AdamW, Error, Mlp, Optimizer, Parameter, Result, Sgd, blank_optimizer_state_dict,
    load_optimizer_state_dict, named_parameters,
    optim::{Adam, Group, Lion, Muon},
    optimizer_state_dict, parameters,
};
use dtensor_testing::spmd;

use crate::support::{assert_close, copies, fill, mesh, tensor};

type Make = fn(Vec<Parameter>) -> Box<dyn Optimizer>;

const ALL: [(&str, Make); 6] = [
    ("sgd", |p| Box::new(Sgd::new(p, 0.1))),
    ("momentum", |p| Box::new(Sgd::new(p, 0.1).momentum(0.9))),
    ("adam", |p| Box::new(Adam::new(p, 0.1))),
    ("adamw", |p| Box::new(AdamW::new(p, 0.1))),
    ("lion", |p| Box::new(Lion::of_groups(vec![Group::new(p, 0.1)]))),
    ("muon", |p| Box::new(Muon::new(p, 0.02, 0.1))),
];

fn mlp(mesh: &DeviceMesh) -> Result<Mlp> {
    let model = Mlp::new(3, 5, Activation::Gelu, true, DType::F64, mesh)?;
    fill(&model)?;
    Ok(model)
}

/// A step with gradients that depend on the names of parameters and on the step.
fn step(model: &Mlp, optimizer: &mut dyn Optimizer, number: i32) -> Result<()> {
    let mut gradients = Gradients::default();
    for (name, parameter) in named_parameters(model) {
        let value = parameter.value();
        let seed = f64::from(number) + name.len() as f64;
        let gradient = tensor(value.shape(), seed, DType::F64, value.mesh(), &copies(value.mesh()));
        gradients.insert(&value, gradient);
    }
    optimizer.step(&gradients)
}

fn values(model: &Mlp) -> Result<Vec<f64>> {
    let mut all = Vec::new();
    for (_, parameter) in named_parameters(model) {
        all.extend(parameter.value().to_vec::<f64>()?);
    }
    Ok(all)
}

#[test]
fn names_outlive_another_order_of_parameters() {
    for (what, make) in ALL {
        spmd(2, |world| {
            let mesh = mesh(world, &[("x", 2)]);
            let (one, two) = (mlp(&mesh)?, mlp(&mesh)?);
            let mut first = make(parameters(&one));
            let mut turned = parameters(&two);
            turned.reverse();
            let mut second = make(turned);
            step(&one, &mut *first, 0)?;
            step(&two, &mut *second, 0)?;
            step(&one, &mut *first, 1)?;
            let state = optimizer_state_dict(&one, &*first)?;
            let blank = blank_optimizer_state_dict(&one, &*first)?;
            assert!(state.keys().eq(blank.keys()), "{what}: {:?} {:?}", state.keys(), blank.keys());
            let known: Vec<String> =
                named_parameters(&one).into_iter().map(|(name, _)| name).collect();
            let is_known = |key: &&String| {
                known.iter().any(|name| key.rsplit_once('.').is_some_and(|(own, _)| own == name))
            };
            assert!(state.keys().all(|key| is_known(&key)), "{what}: {:?}", state.keys());
            // What the second has learnt meanwhile is replaced.
            load_optimizer_state_dict(&two, &mut *second, &state)?;
            for ((_, from), (_, to)) in
                named_parameters(&one).into_iter().zip(named_parameters(&two))
            {
                to.set(&from.value().detach())?;
            }
            step(&one, &mut *first, 2)?;
            step(&two, &mut *second, 2)?;
            assert_close(&values(&two)?, &values(&one)?, 1e-14, what);
            Ok(())
        });
    }
}

#[test]
fn what_does_not_fit_is_named_and_changes_nothing() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let model = mlp(&mesh)?;
        let mut optimizer = AdamW::new(parameters(&model), 0.1);
        step(&model, &mut optimizer, 0)?;
        let good = optimizer_state_dict(&model, &optimizer)?;
        let mut other = good.clone();
        other.insert("w9.weight.exp_avg".into(), good["w1.weight.exp_avg"].clone());
        let error = load_optimizer_state_dict(&model, &mut optimizer, &other);
        assert!(matches!(error, Err(Error::Unexpected { name }) if name == "w9.weight.exp_avg"));
        let mut other = good.clone();
        other.insert("w1.weight.exp_avg".into(), good["w1.bias.exp_avg"].clone());
        let error = load_optimizer_state_dict(&model, &mut optimizer, &other);
        assert!(matches!(error, Err(Error::Misshapen { name, .. }) if name == "w1.weight.exp_avg"));
        let mut other = good.clone();
        other.remove("w2.bias.exp_avg_sq");
        let error = load_optimizer_state_dict(&model, &mut optimizer, &other);
        assert!(matches!(error, Err(Error::Missing { name, .. }) if name == "w2.bias.exp_avg_sq"));
        let now = optimizer_state_dict(&model, &optimizer)?;
        for (name, value) in &good {
            assert_eq!(
                now[name].to_dtype(DType::F64)?.to_vec::<f64>()?,
                value.to_dtype(DType::F64)?.to_vec::<f64>()?,
                "{name}"
            );
        }
        let stranger = Parameter::new(&tensor(&[2], 1.0, DType::F64, &mesh, &[Replicate]))?;
        let error = optimizer_state_dict(&model, &AdamW::new(vec![stranger], 0.1));
        assert!(matches!(error, Err(Error::BadSetting { .. })));
        Ok(())
    });
}
