//! What was gathered leads back to its parameter, whoever gathered it.

use dtensor::{
    BackwardOptions, CommDebug, DTensor, DType, DeviceMesh, Placement::Shard, checkpoint, grad,
    no_grad, plan::StepKind::AllGather,
};
use dtensor_nn::{Forward, FullyShardOptions, Module, ModuleState, Parameter, Result, fully_shard};
use dtensor_testing::spmd;

use crate::support::{assert_close, copies, mesh, tensor};

const N: usize = 5;

/// Two products with one weight. It is read before the first, and again before the second.
#[derive(Clone, Module)]
struct Twice {
    weight: Parameter,
    #[module(skip)]
    first: First,
    state: ModuleState,
}

/// How the first product is computed.
#[derive(Clone, Copy, Debug)]
enum First {
    Plainly,
    /// And once more on the way back.
    Again,
    /// And once without gradients before, for another use.
    Looked,
}

impl Twice {
    fn new(first: First, shards: bool, mesh: &DeviceMesh) -> Result<Twice> {
        let weight = Parameter::new(&tensor(&[N, N], 1.0, DType::F64, mesh, &copies(mesh)))?;
        let mut module = Twice { weight, first, state: ModuleState::default() };
        if shards {
            fully_shard(&mut module, "x", &FullyShardOptions::default())?;
        }
        Ok(module)
    }
}

impl Forward for Twice {
    fn forward(&self, x: &DTensor) -> dtensor::Result<DTensor> {
        let weight = self.weight.clone();
        let product = move |x: &DTensor| x.matmul(&weight.get()?)?.tanh();
        let x = match self.first {
            First::Plainly => product(x)?,
            First::Again => checkpoint(x, product.clone())?,
            First::Looked => {
                no_grad(|| product(x))?;
                product(x)?
            }
        };
        product(&x)
    }
}

fn operand(mesh: &DeviceMesh) -> dtensor::Result<DTensor> {
    tensor(&[7, N], 3.0, DType::F64, mesh, &[Shard(0)]).requires_grad()
}

#[test]
fn a_parameter_that_was_read_without_gradients_has_one_where_it_is_read_with() {
    for first in [First::Plainly, First::Again, First::Looked] {
        spmd(2, |world| {
            let mesh = mesh(world, &[("x", 2)]);
            let slope = |shards: bool| {
                let module = Twice::new(first, shards, &mesh)?;
                let found = module.call(&operand(&mesh)?)?.square()?.sum(&[], false)?.backward()?;
                Ok::<_, dtensor_nn::Error>(
                    found.get(&module.weight.value()).unwrap().to_vec::<f64>()?,
                )
            };
            assert_close(&slope(true)?, &slope(false)?, 1e-13, &format!("{first:?}"));
            Ok(())
        });
    }
}

/// A walk that keeps the graph gathers without gradients; one that wants gradients of gradients after it, or before it, does not.
#[test]
fn gradients_of_gradients_do_not_depend_on_earlier_walks() {
    #[derive(Clone, Copy, Debug)]
    enum Before {
        Nothing,
        /// A walk through all of the graph.
        All,
        /// One that needs the weight in one product of two.
        Half,
        /// One for gradients of gradients.
        Second,
    }
    for before in [Before::Nothing, Before::All, Before::Half, Before::Second] {
        spmd(2, |world| {
            let mesh = mesh(world, &[("x", 2)]);
            let slopes = |shards: bool| {
                let module = Twice::new(First::Plainly, shards, &mesh)?;
                let (a, weight) = (operand(&mesh)?, module.weight.value());
                let b = operand(&mesh)?.mul(0.5)?;
                let of = |x: &DTensor| module.call(x);
                let (of_a, of_b) = (of(&a)?.square()?, of(&b)?.square()?);
                let loss = of_a.mul(&of_b)?.sum(&[], false)?;
                let keep = BackwardOptions::default().retain_graph();
                let create = BackwardOptions::default().create_graph();
                match before {
                    Before::Nothing => {}
                    Before::All => drop(loss.backward_with(&keep)?),
                    Before::Half => {
                        grad(&of_a.sum(&[], false)?, &[&a], &keep)?;
                    }
                    Before::Second => drop(grad(&loss, &[&a], &create)?),
                }
                let first = grad(&loss, &[&a], &create)?.remove(0).unwrap();
                let second = first.square()?.sum(&[], false)?.backward_with(&keep)?;
                let third = loss.backward_with(&keep)?;
                let of = |found: &dtensor::Gradients| found.get(&weight).unwrap().to_vec::<f64>();
                Ok::<_, dtensor_nn::Error>((of(&second)?, of(&third)?))
            };
            let (got, want) = (slopes(true)?, slopes(false)?);
            assert_close(&got.0, &want.0, 1e-12, &format!("second after {before:?}"));
            assert_close(&got.1, &want.1, 1e-12, &format!("first after {before:?}"));
            Ok(())
        });
    }
}

/// What a graph that is kept holds of a weight are its parts, after a walk as before it.
#[test]
fn a_graph_that_is_walked_again_gathers_again() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let module = Twice::new(First::Plainly, true, &mesh)?;
        let loss = module.call(&operand(&mesh)?)?.square()?.sum(&[], false)?;
        for walk in 0..3 {
            let keep = BackwardOptions::default().retain_graph();
            let (found, comm) = CommDebug::record(|| loss.backward_with(&keep));
            assert_eq!(found?.len(), 2);
            assert_eq!(comm.calls_of(AllGather), 1, "walk {walk}, for both products");
        }
        Ok(())
    });
}
