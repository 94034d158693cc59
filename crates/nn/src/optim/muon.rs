use dtensor::{DTensor, Gradients};

use super::{AdamW, Group, Optimizer, check_some, find_twice, given_twice};
use crate::{Error, Parameter, Result, StateDict, state_dict};

/// Muon, by Jordan and others: the direction of a matrix is made orthogonal before it is followed. Products of matrices are needed for
/// that, of the whole matrix: they run as operations on the parameter's layout. Other parameters are left to [`AdamW`].
#[derive(Debug)]
pub struct Muon {
    /// Of matrices.
    groups: Vec<Group>,
    /// Per matrix over all groups.
    directions: Vec<Option<DTensor>>,
    factor: f64,
    momentum: f64,
    others: AdamW,
    /// A parameter that it was given twice.
    twice: Option<Parameter>,
}

impl Muon {
    /// Matrices with a learning rate, momentum 0.95, and the others with [`AdamW`] and a learning rate of their own. Tables of
    /// tokens and the last product are matrices as well, for which Muon is not meant: see [`of_groups`](Muon::of_groups).
    pub fn new(parameters: Vec<Parameter>, lr: f64, others_lr: f64) -> Muon {
        let (matrices, others): (Vec<_>, Vec<_>) =
            parameters.into_iter().partition(|parameter| parameter.value().n_dims() == 2);
        let others = AdamW::of_groups(vec![Group::new(others, others_lr)]);
        Muon::made(vec![Group::new(matrices, lr)], others)
    }

    /// Of groups of matrices that differ in learning rate and decay, and whatever [`AdamW`] is to have.
    ///
    /// ```
    /// use dtensor::{DType, DeviceMesh, Runner};
    /// use dtensor_nn::{AdamW, Gpt, GptConfig, Optimizer, named_parameters, optim::{Group, Muon}};
    ///
    /// Runner::threads(1).run(|world| {
    ///     let mesh = DeviceMesh::of_world(world, "x")?;
    ///     let config = GptConfig { vocabulary: 8, sequence: 4, layers: 2, dim: 4, heads: 2, ..GptConfig::default() };
    ///     let model = Gpt::new(&config, DType::F32, &mesh)?;
    ///     let (blocks, others): (Vec<_>, Vec<_>) = named_parameters(&model).into_iter()
    ///         .partition(|(name, own)| name.starts_with("layers.") && own.value().n_dims() == 2);
    ///     let only = |all: Vec<(String, _)>| all.into_iter().map(|(_, parameter)| parameter).collect();
    ///     let matrices = Group::new(only(blocks), 0.02).weight_decay(0.1);
    ///     let muon = Muon::of_groups(vec![matrices], AdamW::new(only(others), 3e-4))?;
    ///     assert_eq!(muon.learning_rates(), [0.02, 3e-4]);
    ///     Ok::<_, dtensor_nn::Error>(())
    /// })?;
    /// # Ok::<(), dtensor::RunError>(())
    /// ```
    pub fn of_groups(groups: Vec<Group>, others: AdamW) -> Result<Muon> {
        for parameter in groups.iter().flat_map(|group| &group.parameters) {
            let value = parameter.value();
            if value.n_dims() != 2 {
                let got = format!("{:?}", value.shape());
                let want = "Muon is for matrices: give it to AdamW";
                return Err(Error::bad("the shape of a parameter", got, want));
            }
        }
        let muon = Muon::made(groups, others);
        muon.twice.as_ref().map_or(Ok(()), |twice| Err(given_twice(twice)))?;
        Ok(muon)
    }

    fn made(groups: Vec<Group>, others: AdamW) -> Muon {
        let n = groups.iter().map(|group| group.parameters.len()).sum();
        let (directions, twice) = (vec![None; n], None);
        let mut muon = Muon { groups, directions, factor: 1.0, momentum: 0.95, others, twice };
        muon.twice = find_twice(muon.numbered_parameters().iter().map(|(_, own)| own));
        muon
    }

    /// With so much of the last direction.
    #[must_use]
    pub fn momentum(mut self, momentum: f64) -> Muon {
        self.momentum = momentum;
        self
    }

    /// With decay of the matrices, of all groups.
    #[must_use]
    pub fn weight_decay(mut self, weight_decay: f64) -> Muon {
        for group in &mut self.groups {
            group.weight_decay = weight_decay;
        }
        self
    }

    fn matrices(&self) -> impl Iterator<Item = &Parameter> {
        self.groups.iter().flat_map(|group| &group.parameters)
    }
}

/// Singular values brought near 1, by five steps of Newton and Schulz.
fn orthogonal(matrix: &DTensor) -> dtensor::Result<DTensor> {
    const A: f64 = 3.4445;
    const B: f64 = -4.7750;
    const C: f64 = 2.0315;
    let is_tall = matrix.shape()[0] > matrix.shape()[1];
    let mut x = if is_tall { matrix.t()? } else { matrix.clone() };
    let norm = x.square()?.sum(&[], false)?.sqrt()?.add(1e-7)?;
    x = x.div(&norm)?;
    for _ in 0..5 {
        let a = x.matmul(&x.t()?)?.settled()?;
        let b = a.mul(B)?.add(&a.matmul(&a)?.mul(C)?)?.settled()?;
        x = x.mul(A)?.add(&b.matmul(&x)?)?.settled()?;
    }
    if is_tall { x.t() } else { Ok(x) }
}

impl Optimizer for Muon {
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        self.twice.as_ref().map_or(Ok(()), |twice| Err(given_twice(twice)))?;
        check_some(self.numbered_parameters().iter().map(|(_, own)| own), gradients)?;
        let of_group = |group: &Group| {
            let (lr, weight_decay) = (group.lr * self.factor, group.weight_decay);
            group
                .parameters
                .iter()
                .map(move |matrix| (matrix.clone(), lr, weight_decay))
                .collect::<Vec<_>>()
        };
        let matrices = self.groups.iter().flat_map(of_group);
        for ((matrix, lr, weight_decay), direction) in matrices.zip(&mut self.directions) {
            let value = matrix.value();
            let Some(gradient) = gradients.get(&value) else { continue };
            let value = value.detach();
            let gradient = gradient.redistribute_layout(value.layout())?;
            let mean = match direction.take() {
                Some(before) => before.lerp(&gradient, 1.0 - self.momentum)?,
                None => gradient.mul(1.0 - self.momentum)?,
            };
            let ahead = gradient.lerp(&mean, self.momentum)?;
            let [rows, columns] = *value.shape() else { continue };
            let scale = (rows as f64 / columns as f64).max(1.0).sqrt();
            let update = orthogonal(&ahead)?.mul(lr * scale)?;
            let value = value.mul(1.0 - lr * weight_decay)?.sub(&update)?;
            matrix.set(&value.redistribute_layout(&matrix.layout())?)?;
            *direction = Some(mean);
        }
        self.others.step_some(gradients)
    }

    fn numbered_parameters(&self) -> Vec<(String, Parameter)> {
        let matrices = self.matrices().enumerate();
        let matrices = matrices.map(|(number, matrix)| (number.to_string(), matrix.clone()));
        let others = self.others.numbered_parameters().into_iter();
        let others = others.map(|(number, parameter)| (format!("others.{number}"), parameter));
        matrices.chain(others).collect()
    }

    fn learning_rates(&self) -> Vec<f64> {
        let own = self.groups.iter().map(|group| group.lr * self.factor);
        own.chain(self.others.learning_rates()).collect()
    }

    fn scale_learning_rate(&mut self, factor: f64) {
        self.factor = factor;
        self.others.scale_learning_rate(factor);
    }

    fn state_dict(&self) -> Result<StateDict> {
        let mut state = StateDict::new();
        for (name, value) in self.others.state_dict()? {
            state.insert(format!("others.{name}"), value);
        }
        for (number, direction) in self.directions.iter().enumerate() {
            if let Some(direction) = direction {
                state.insert(format!("{number}.momentum_buffer"), direction.clone());
            }
        }
        Ok(state)
    }

    fn blank_state_dict(&self) -> Result<StateDict> {
        let mut state = StateDict::new();
        for (name, value) in self.others.blank_state_dict()? {
            state.insert(format!("others.{name}"), value);
        }
        for (number, matrix) in self.matrices().enumerate() {
            let value = matrix.value().detach();
            state.insert(format!("{number}.momentum_buffer"), value.empty_like()?);
        }
        Ok(state)
    }

    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let mut of_others = StateDict::new();
        let matrices: Vec<&Parameter> = self.matrices().collect();
        let mut directions = vec![None; matrices.len()];
        for (name, value) in state {
            if let Some(name) = name.strip_prefix("others.") {
                of_others.insert(name.to_owned(), value.clone());
                continue;
            }
            let number = name.strip_suffix(".momentum_buffer").and_then(|text| text.parse().ok());
            let Some(number) = number.filter(|number: &usize| *number < matrices.len()) else {
                return Err(Error::Unexpected { name: name.clone() });
            };
            directions[number] =
                Some(state_dict::placed_as(name, value, &matrices[number].value())?);
        }
        self.others.load_state_dict(&of_others)?;
        self.directions = directions;
        Ok(())
    }
}
