//! Arrays of devices as sizes and strides: the arithmetic under XLA's tile assignments.
//!
//! An array of devices is a sequence of [`Factor`]s, major first: its elements in row-major order
//! are what a counter with these digits adds up to. Two sequences are the same array exactly if
//! they are equal after [`coalesce`].

use crate::{Factor, Mesh, MeshAxis, mesh::coalesce};

/// Sorts factors by stride, the largest first: the same devices, in ascending order.
pub(super) fn ascending(mut factors: Vec<Factor>) -> Vec<Factor> {
    factors.sort_by_key(|factor| std::cmp::Reverse(factor.stride));
    factors
}

/// Whether the ranks of the mesh are `0..size`, in whatever order its coordinates visit them.
pub(super) fn counts_from_zero(mesh: &Mesh) -> bool {
    let all = mesh.axes().iter().flat_map(|axis| axis.factors().iter().copied());
    let joined = coalesce(ascending(all.filter(|factor| factor.size > 1).collect()));
    mesh.base() == 0
        && match joined.as_slice() {
            [] => true,
            [one] => one.stride == 1,
            _ => false,
        }
}

/// `<=[4,2]T(1,0)`: how XLA writes an array of all devices, given its factors.
pub(super) fn iota_text(factors: Vec<Factor>) -> String {
    let factors = coalesce(factors);
    let sorted = ascending(factors.clone());
    let join = |numbers: Vec<String>| numbers.join(",");
    let sizes = join(sorted.iter().map(|factor| factor.size.to_string()).collect());
    if sorted.len() < 2 {
        return format!("<=[{}]", if sizes.is_empty() { "1" } else { &sizes });
    }
    let position = |factor: &Factor| sorted.iter().take_while(|other| *other != factor).count();
    let order = join(factors.iter().map(|factor| position(factor).to_string()).collect());
    format!("<=[{sizes}]T({order})")
}

/// The factors of the iota of `sizes`, transposed by `order`.
pub(super) fn iota_factors(sizes: &[usize], order: &[usize]) -> Vec<Factor> {
    // Minor to major, so that texts of very many sizes cost no more than their length.
    let mut stride = 1;
    let mut factors: Vec<Factor> = Vec::with_capacity(sizes.len());
    for size in sizes.iter().rev() {
        factors.push(Factor { size: *size, stride });
        stride *= size;
    }
    factors.reverse();
    coalesce(order.iter().map(|dim| factors[*dim]))
}

/// The factors of a list of devices, if it is an array of sizes and strides from device 0.
pub(super) fn list_factors(devices: &[usize]) -> Option<Vec<Factor>> {
    if devices.first() != Some(&0) {
        return None;
    }
    let mut factors = Vec::new();
    // The first `block` devices are explained; see how often they repeat, each time further on.
    let mut block = 1;
    while block < devices.len() {
        let stride = devices[block];
        let repeats = |chunk: &[usize], times: usize| {
            chunk.len() == block
                && chunk.iter().zip(devices).all(|(device, first)| {
                    times.checked_mul(stride).and_then(|offset| offset.checked_add(*first))
                        == Some(*device)
                })
        };
        let chunks = devices.chunks(block).enumerate();
        let size = chunks.take_while(|(times, chunk)| repeats(chunk, *times)).count();
        if stride == 0 || size < 2 || !devices.len().is_multiple_of(block * size) {
            return None;
        }
        factors.push(Factor { size, stride });
        block *= size;
    }
    factors.reverse();
    Some(factors)
}

/// Takes an array of `size` devices from the major end; `None` if the factors do not divide so.
pub(super) fn take_major(factors: &mut Vec<Factor>, mut size: usize) -> Option<Vec<Factor>> {
    let mut taken = Vec::new();
    while size > 1 {
        let major = *factors.first()?;
        if size.is_multiple_of(major.size) {
            size /= major.size;
            taken.push(factors.remove(0));
        } else if major.size.is_multiple_of(size) {
            let left = major.size / size;
            taken.push(Factor { size, stride: major.stride * left });
            factors[0].size = left;
            size = 1;
        } else {
            return None;
        }
    }
    Some(taken)
}

/// The axes that one after the other are this array, major first; or, as the error, an axis of
/// which it has only a part (none if the array is not even that). The factors are coalesced.
pub(super) fn whole_axes(
    mut rest: Vec<Factor>,
    mesh: &Mesh,
) -> Result<Vec<usize>, Option<&MeshAxis>> {
    let mut axes = Vec::new();
    while let Some(major) = rest.first() {
        // Factors of one mesh nest, so at most one of them ends where this one does.
        let axis_factors = |axis: &MeshAxis| coalesce(axis.factors().iter().copied());
        let ends_here = |axis: &MeshAxis| {
            axis_factors(axis).first().is_some_and(|first| end(*first) == end(*major))
        };
        let index = mesh.axes().iter().position(ends_here).ok_or_else(|| part_of(*major, mesh))?;
        let axis = &mesh.axes()[index];
        for factor in axis_factors(axis) {
            take_factor(&mut rest, factor).ok_or(Some(axis))?;
        }
        axes.push(index);
    }
    Ok(axes)
}

/// The axes that together, in any order, are the devices of this array; errors as [`whole_axes`].
pub(super) fn set_of_axes(
    factors: Vec<Factor>,
    mesh: &Mesh,
) -> Result<Vec<usize>, Option<&MeshAxis>> {
    let mut rest = coalesce(ascending(factors));
    let mut axes = Vec::new();
    // Axes may interleave, so factors are looked for by their strides, not axis by axis.
    let mut wanted: Vec<(usize, Factor)> = Vec::new();
    for (index, axis) in mesh.axes().iter().enumerate() {
        wanted.extend(axis.factors().iter().map(|factor| (index, *factor)));
    }
    wanted.retain(|(_, factor)| factor.size > 1);
    wanted.sort_by_key(|(_, factor)| std::cmp::Reverse(factor.stride));
    let mut missing = Vec::new();
    for (axis, factor) in wanted {
        match take_factor(&mut rest, factor) {
            Some(()) => axes.push(axis),
            None => missing.push(axis),
        }
    }
    if let Some(major) = rest.first() {
        return Err(part_of(*major, mesh));
    }
    axes.sort_unstable();
    axes.dedup();
    match axes.iter().find(|axis| missing.contains(axis)) {
        Some(axis) => Err(Some(&mesh.axes()[*axis])),
        None => Ok(axes),
    }
}

/// Takes one factor from the major end.
fn take_factor(factors: &mut Vec<Factor>, wanted: Factor) -> Option<()> {
    let major = factors.first_mut()?;
    if end(*major) != end(wanted) || !major.size.is_multiple_of(wanted.size) {
        return None;
    }
    major.size /= wanted.size;
    if major.size == 1 {
        factors.remove(0);
    }
    Some(())
}

/// The axis that has the devices of `factor` and more between them, for the message.
pub(super) fn part_of(factor: Factor, mesh: &Mesh) -> Option<&MeshAxis> {
    let overlaps = |other: &Factor| {
        other.size > 1 && other.stride < end(factor) && factor.stride < end(*other)
    };
    mesh.axes().iter().find(|axis| axis.factors().iter().any(overlaps))
}

/// The stride that the next larger factor has if the two are one.
fn end(factor: Factor) -> usize {
    factor.stride.saturating_mul(factor.size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(factors: &[Factor]) -> Vec<usize> {
        factors.iter().fold(vec![0], |done, factor| {
            let digit = |base: usize| (0..factor.size).map(move |i| base + i * factor.stride);
            done.into_iter().flat_map(digit).collect()
        })
    }

    #[track_caller]
    fn check(sizes: &[usize], order: &[usize], want: &str) {
        let factors = iota_factors(sizes, order);
        assert_eq!(iota_text(factors.clone()), want);
        assert_eq!(list_factors(&devices(&factors)), Some(factors));
    }

    #[test]
    fn iotas_print_as_in_the_comment_of_xlas_canonicalisation() {
        check(&[3, 4, 5], &[0, 1, 2], "<=[60]");
        check(&[3, 4, 5], &[2, 1, 0], "<=[3,4,5]T(2,1,0)");
        check(&[3, 4, 5], &[1, 2, 0], "<=[3,20]T(1,0)");
        check(&[3, 4, 5], &[1, 0, 2], "<=[3,4,5]T(1,0,2)");
        check(&[3, 4, 5], &[2, 0, 1], "<=[12,5]T(1,0)");
        check(&[1, 3, 1, 4, 1, 5], &[4, 3, 2, 5, 1, 0], "<=[3,20]T(1,0)");
        check(&[1], &[0], "<=[1]");
    }

    #[test]
    fn lists_that_are_no_pattern_are_not_forced_into_one() {
        for list in
            [&[][..], &[1, 0], &[0, 0], &[0, 1, 3, 2], &[0, 2, 1], &[0, 1, 2, 0], &[0, 1, 2, 3, 5]]
        {
            assert_eq!(list_factors(list), None, "{list:?}");
        }
    }
}
