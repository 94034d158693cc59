//! Where gradients lie.

use dtensor_layout::{Layout, Placement};

use crate::{DTensor, Error, Result, tensor::settled_layout};

/// The layout in which the gradient of a value in this layout is at home: the same, and copies where a reduction is
/// pending, since every contribution to a sum has the gradient of the sum.
pub(crate) fn dual(layout: &Layout) -> Result<Layout> {
    settled_layout("backward", layout)
}

/// The gradient of a result, before the formula of its operation sees it: cut where the result is, and copied where the
/// result is a pending sum. Both are needed sooner or later, by each operand that is cut likewise, and so it is done once.
/// Where the result is a copy, the gradient stays as it is: formulas are linear in it, and so a pending sum may stay one.
pub(crate) fn aligned(gradient: DTensor, result: &Layout) -> Result<DTensor> {
    let (have, home) = (gradient.placements(), result.placements());
    let want = |(have, home): (&Placement, &Placement)| match home {
        Placement::Shard(_) => *home,
        Placement::Partial(_) => Placement::Replicate,
        _ => *have,
    };
    let want: Vec<Placement> = have.iter().zip(home).map(want).collect();
    if want == have && gradient.layout().order() == result.order() {
        return Ok(gradient);
    }
    // An axis that cuts the gradient alone is not in the order of the result's cuts.
    let cut_alone =
        want.iter().zip(home).any(|(want, home)| want != home && want.shard_dim().is_some());
    let to = match cut_alone {
        true if want == have => return Ok(gradient),
        true => gradient.layout().with_placements(&want),
        false => result
            .with_dtype(gradient.dtype())
            .and_then(|result| result.with_placements_in_order(&want)),
    };
    gradient.redistribute_as("backward", &to.map_err(Error::layout("backward"))?)
}
