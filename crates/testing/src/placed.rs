//! What a layout means: from a whole tensor to what each rank holds, and back.

use dtensor_layout::{Layout, Placement, ReduceOp};

use crate::{
    dense::{Dense, close, for_each_index},
    noise::Noise,
};

/// What each rank of the layout's mesh holds of `whole`, in the order of their coordinates.
///
/// Contributions to a pending reduction are uneven and of mixed signs, so that a wrong rule or a
/// forgotten reduction cannot pass by luck.
///
/// # Panics
/// If the layout is of another shape.
#[track_caller]
pub fn scatter(whole: &Dense, layout: &Layout, noise: &mut Noise) -> Vec<Dense> {
    assert_eq!(whole.shape(), layout.global_shape(), "shape of the layout");
    let mut parts = Vec::with_capacity(layout.mesh().size());
    split(whole, layout, noise, &mut Vec::new(), &mut parts);
    parts
}

/// The whole tensor of which each rank holds a part, in the order of their coordinates; the inverse
/// of [`scatter`]. An error if the parts are no tensor of this layout, and why.
pub fn gather(parts: &[Dense], layout: &Layout) -> Result<Dense, String> {
    let mut parts = parts.iter();
    let whole = join(&mut parts, layout, &mut Vec::new())?;
    let missing = || "an element is on no rank".to_string();
    let data: Option<Vec<f64>> = whole.into_iter().collect();
    Ok(Dense::new(layout.global_shape(), data.ok_or_else(missing)?))
}

/// Axis after axis, from the outermost: contributions where a reduction is pending, the same
/// otherwise; at the end the part of the coordinate.
fn split(
    value: &Dense,
    layout: &Layout,
    noise: &mut Noise,
    coord: &mut Vec<usize>,
    parts: &mut Vec<Dense>,
) {
    let Some(placement) = layout.placements().get(coord.len()) else {
        let part = (0..layout.n_dims()).fold(value.clone(), |part, dim| {
            let held: Vec<usize> = layout.intervals(dim, coord).iter().flatten().collect();
            part.select(dim, &held)
        });
        parts.push(part);
        return;
    };
    let n_ranks = layout.mesh().axis_size(coord.len());
    let values = match placement.reduce_op() {
        Some(op) => contributions(value, op, n_ranks, noise),
        None => vec![value.clone(); n_ranks],
    };
    for (index, value) in values.iter().enumerate() {
        coord.push(index);
        split(value, layout, noise, coord, parts);
        coord.pop();
    }
}

/// Values, one per rank, of which `value` is the reduction.
fn contributions(value: &Dense, op: ReduceOp, n_ranks: usize, noise: &mut Noise) -> Vec<Dense> {
    let mut parts = vec![value.clone(); n_ranks];
    for (position, element) in value.data().iter().enumerate() {
        // The rank that makes up for what the others hold: another one for every element.
        let last = noise.below(n_ranks);
        let mut total = *element * if op == ReduceOp::Avg { n_ranks as f64 } else { 1.0 };
        for (rank, part) in parts.iter_mut().enumerate() {
            if rank == last {
                continue;
            }
            let own = match op {
                ReduceOp::Sum | ReduceOp::Avg => 3.0 * noise.signed(),
                ReduceOp::Product => 2.0 * noise.signed_nonzero(),
                ReduceOp::Max => element - 0.5 - noise.signed().abs(),
                ReduceOp::Min => element + 0.5 + noise.signed().abs(),
            };
            match op {
                ReduceOp::Sum | ReduceOp::Avg => total -= own,
                ReduceOp::Product => total /= own,
                ReduceOp::Max | ReduceOp::Min => {}
            }
            part.data_mut()[position] = own;
        }
        parts[last].data_mut()[position] = total;
    }
    parts
}

/// A tensor of which some elements may be elsewhere.
type Holes = Vec<Option<f64>>;

/// The inverse of [`split`]: takes the parts of all coordinates that begin with `coord`.
fn join<'a>(
    parts: &mut impl Iterator<Item = &'a Dense>,
    layout: &Layout,
    coord: &mut Vec<usize>,
) -> Result<Holes, String> {
    let Some(placement) = layout.placements().get(coord.len()) else {
        let part = parts.next().ok_or("a rank has no part")?;
        return spread(part, layout, coord);
    };
    let axis = coord.len();
    let mut values = Vec::new();
    for index in 0..layout.mesh().axis_size(axis) {
        coord.push(index);
        values.push(join(parts, layout, coord)?);
        coord.pop();
    }
    let n_ranks = values.len() as f64;
    let mut values = values.into_iter();
    let first = values.next().unwrap_or_default();
    let whole = values.try_fold(first, |whole, value| -> Result<Holes, String> {
        whole.into_iter().zip(value).map(|(a, b)| combine(*placement, a, b)).collect()
    })?;
    match placement {
        Placement::Partial(ReduceOp::Avg) => {
            Ok(whole.into_iter().map(|element| element.map(|sum| sum / n_ranks)).collect())
        }
        _ => Ok(whole),
    }
}

fn combine(placement: Placement, a: Option<f64>, b: Option<f64>) -> Result<Option<f64>, String> {
    match (placement, a, b) {
        (_, None, None) => Ok(None),
        (Placement::Shard(_), Some(one), None) | (Placement::Shard(_), None, Some(one)) => {
            Ok(Some(one))
        }
        (Placement::Replicate, Some(a), Some(b)) => match close(a, b) {
            true => Ok(Some(a)),
            false => Err(format!("ranks that should hold the same hold {a} and {b}")),
        },
        (Placement::Partial(op), Some(a), Some(b)) => Ok(Some(match op {
            ReduceOp::Sum | ReduceOp::Avg => a + b,
            ReduceOp::Max => a.max(b),
            ReduceOp::Min => a.min(b),
            ReduceOp::Product => a * b,
        })),
        _ => Err(format!("{placement}: an element is on too many or too few ranks")),
    }
}

/// The part of one rank at its place in the whole.
fn spread(part: &Dense, layout: &Layout, coord: &[usize]) -> Result<Holes, String> {
    let want = layout.local_shape(coord);
    if part.shape() != want {
        return Err(format!(
            "the rank at {coord:?} has {:?}, by the layout {want:?}",
            part.shape()
        ));
    }
    let held: Vec<_> = (0..layout.n_dims()).map(|dim| layout.intervals(dim, coord)).collect();
    let mut whole = Holes::with_capacity(layout.numel());
    for_each_index(layout.global_shape(), |index| {
        let local: Option<Vec<usize>> =
            held.iter().zip(index).map(|(held, i)| held.position(*i)).collect();
        whole.push(local.map(|local| part.at(&local)));
    });
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use dtensor_layout::{DType, Mesh};
    use proptest::prelude::*;

    use super::*;
    use crate::generate;

    fn layout(shape: &[usize], sizes: &[usize], placements: &str) -> Layout {
        Layout::parse(shape, DType::F64, &Mesh::from_sizes(sizes).unwrap(), placements).unwrap()
    }

    proptest! {
        #[test]
        fn gathering_what_was_scattered_is_the_identity(
            layout in generate::layout(DType::F64, 8),
            seed: u64,
        ) {
            let mut noise = Noise::new(seed);
            let whole = Dense::from_fn(layout.global_shape(), |_| 3.0 * noise.signed());
            let parts = scatter(&whole, &layout, &mut noise);
            prop_assert_eq!(parts.len(), layout.mesh().size());
            let back = gather(&parts, &layout);
            prop_assert!(back.as_ref().is_ok_and(|back| back.is_close(&whole)), "{:?}", back);
        }
    }

    #[test]
    fn parts_of_another_layout_are_refused() {
        let two = |a: &[f64], b: &[f64]| {
            [Dense::new(&[a.len()], a.to_vec()), Dense::new(&[b.len()], b.to_vec())]
        };
        let check = |parts: &[Dense], placements: &str, why: &str| {
            let error = gather(parts, &layout(&[4], &[2], placements)).unwrap_err();
            assert!(error.contains(why), "{error}");
        };
        check(&two(&[1., 2., 3., 4.], &[1., 2., 3., 5.]), "R", "hold 4 and 5");
        check(&two(&[1., 2., 3.], &[4.]), "S(0)", "by the layout [2]");
        check(&two(&[1., 2.], &[3., 4.])[..1], "S(0)", "has no part");
    }

    #[test]
    fn contributions_are_uneven_and_of_both_signs() {
        let whole = Dense::from_fn(&[20], |_| 1.0);
        for op in ReduceOp::ALL {
            let layout = layout(&[20], &[3], &format!("P({op})"));
            let parts = scatter(&whole, &layout, &mut Noise::new(1));
            for part in &parts {
                assert!(part.data().iter().any(|x| *x != part.data()[0]), "P({op}): {part:?}");
            }
            if op != ReduceOp::Min {
                let negative = parts.iter().filter(|part| part.data().iter().any(|x| *x < 0.0));
                assert_eq!(negative.count(), 3, "P({op})");
            }
        }
    }
}
