//! Parameters that are numbers.

use dtensor::ReduceOp;
use dtensor_nn::{Module, named_parameters};

use super::{Failure, Outcome};

/// Refuses a model of which a parameter is NaN or infinite, on all ranks, and names the first.
///
/// An operation whose operands are infinite is not blamed for what comes out of it; so whoever looks for the first that is to blame
/// looks at the parameters before.
pub fn check_parameters(module: &dyn Module, step: u64) -> Outcome<()> {
    let named = named_parameters(module);
    let Some((_, first)) = named.first() else { return Ok(()) };
    let world = first.value().mesh().world().clone();
    let mut bad = vec![false; named.len()];
    for (bad, (_, parameter)) in bad.iter_mut().zip(&named) {
        let local = parameter.value().to_local();
        if local.dtype().is_float() && local.numel() > 0 {
            let finite = local.isfinite().and_then(|finite| finite.all(&[], false));
            let finite = finite.and_then(|finite| finite.item::<bool>());
            *bad = !finite.map_err(dtensor::Error::from)?;
        }
    }
    let mut found: Vec<i64> = bad.into_iter().map(i64::from).collect();
    let everybody = world.group().tag("finite");
    everybody.all_reduce(&mut found, ReduceOp::Max).map_err(|source| dtensor::Error::Comm {
        op: "finite",
        source: std::sync::Arc::new(source),
    })?;
    match found.iter().zip(&named).find(|(bad, _)| **bad != 0) {
        Some((_, (name, _))) => Err(Failure::Parameter { step, name: name.clone() }),
        None => Ok(()),
    }
}
