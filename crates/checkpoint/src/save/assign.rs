//! Which rank writes which part: every part is written once, whoever holds copies of it.
//!
//! The rule is PyTorch's, so that its files and ours have the same content: the ranks are walked in order, and the tensors
//! of each in the order of the state. A part that was not met before goes to that rank among its holders which has the
//! least so far, and the bytes of the whole tensor are added to what that rank has. Every rank computes this alone, from
//! layouts; there is no gathering of plans.

use std::collections::{HashMap, hash_map::Entry as Slot};

use dtensor_layout::Layout;

/// For every tensor, in order: whether `rank` writes what it holds of it.
pub(crate) fn written_by(rank: usize, n_ranks: usize, layouts: &[Layout]) -> Vec<bool> {
    let mut mine = vec![false; layouts.len()];
    assign(n_ranks, layouts, |writer, tensor| mine[tensor] |= writer == rank);
    mine
}

/// For every rank: the tensors of which it writes what it holds, ascending.
pub(crate) fn written_by_all(n_ranks: usize, layouts: &[Layout]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new(); n_ranks];
    assign(n_ranks, layouts, |writer, tensor| all[writer].push(tensor));
    // They come in the order in which their parts were met.
    all.iter_mut().for_each(|tensors: &mut Vec<usize>| tensors.sort_unstable());
    all
}

/// Says of every part of every tensor which rank writes it.
///
/// Costs a few nanoseconds per tensor and rank. What a layout says about its ranks is computed once for all tensors that
/// have this layout.
fn assign(n_ranks: usize, layouts: &[Layout], mut give: impl FnMut(usize, usize)) {
    let mut kinds: Vec<Holders> = Vec::new();
    let mut positions: HashMap<&Layout, usize> = HashMap::new();
    let kind_of: Vec<usize> = layouts
        .iter()
        .map(|layout| match positions.entry(layout) {
            Slot::Occupied(kind) => *kind.get(),
            Slot::Vacant(vacant) => {
                kinds.push(Holders::new(layout, n_ranks));
                *vacant.insert(kinds.len() - 1)
            }
        })
        .collect();
    let mut given: Vec<Vec<bool>> =
        kind_of.iter().map(|&kind| vec![false; kinds[kind].of_part.len()]).collect();
    let mut load = vec![0_u64; n_ranks];
    for walker in 0..n_ranks {
        for (tensor, &kind) in kind_of.iter().enumerate() {
            let holders = &kinds[kind];
            let Some(part) = holders.part_of_rank[walker] else { continue };
            if std::mem::replace(&mut given[tensor][part], true) {
                continue;
            }
            let all = &holders.of_part[part];
            // The first of several with the least, and that is the lowest.
            let writer = all.iter().copied().min_by_key(|&holder| load[holder]).unwrap_or(walker);
            load[writer] += holders.bytes;
            give(writer, tensor);
        }
    }
}

/// Which ranks hold the same part of a tensor.
struct Holders {
    /// By rank; `None` for ranks that are not on the mesh.
    part_of_rank: Vec<Option<usize>>,
    /// By part, ascending.
    of_part: Vec<Vec<usize>>,
    /// Of the whole tensor, and one for a tensor without elements.
    bytes: u64,
}

impl Holders {
    fn new(layout: &Layout, n_ranks: usize) -> Holders {
        let mut part_of_rank = vec![None; n_ranks];
        let mut of_part: Vec<Vec<usize>> = Vec::new();
        let mut parts: HashMap<Vec<usize>, usize> = HashMap::new();
        // Ranks ascend, so that the lists of holders do.
        for (rank, part_of_rank) in part_of_rank.iter_mut().enumerate() {
            let Some(coord) = layout.mesh().coord_of(rank) else { continue };
            // Where a part begins says which it is: parts that are not empty begin in different places, and of parts without
            // elements in the same place one is enough.
            let part = *parts.entry(layout.local_offset(&coord)).or_insert_with(|| {
                of_part.push(Vec::new());
                of_part.len() - 1
            });
            of_part[part].push(rank);
            *part_of_rank = Some(part);
        }
        let bytes = (layout.numel() * layout.dtype().size()) as u64;
        Holders { part_of_rank, of_part, bytes: bytes.max(1) }
    }
}

#[cfg(test)]
mod tests {
    use dtensor_layout::{DType, Mesh};

    use super::*;

    fn writers(n_ranks: usize, layouts: &[Layout]) -> Vec<Vec<usize>> {
        let by_rank: Vec<Vec<bool>> =
            (0..n_ranks).map(|rank| written_by(rank, n_ranks, layouts)).collect();
        let of_tensor =
            |tensor: usize| (0..n_ranks).filter(|&rank| by_rank[rank][tensor]).collect();
        (0..layouts.len()).map(of_tensor).collect()
    }

    #[test]
    fn copies_are_spread_over_the_ranks() {
        let mesh = Mesh::from_sizes(&[3]).unwrap();
        let layout = |n| Layout::parse(&[n], DType::F32, &mesh, "[R]").unwrap();
        let layouts = [layout(10), layout(1), layout(2), layout(3), layout(3), layout(3)];
        assert_eq!(writers(3, &layouts), [[0], [1], [2], [1], [2], [1]]);
    }

    #[test]
    fn ranks_that_are_not_on_the_mesh_write_nothing() {
        let mesh: Mesh = "x=2:2@1".parse().unwrap();
        let layouts =
            ["[S(0)]", "[R]"].map(|text| Layout::parse(&[4], DType::F32, &mesh, text).unwrap());
        // The copy goes to rank 3, which is the only one with nothing when rank 1 walks by.
        assert_eq!(writers(5, &layouts), [vec![1, 3], vec![3]]);
    }

    #[test]
    fn an_empty_part_is_written_once() {
        let mesh = Mesh::from_sizes(&[4]).unwrap();
        let layout = Layout::parse(&[2, 3], DType::F32, &mesh, "[S(0)]").unwrap();
        // Rows 0 and 1, and one of the two ranks that have none.
        assert_eq!(writers(4, &[layout]), [[0, 1, 2]]);
    }

    #[test]
    fn thousands_of_tensors_on_a_thousand_ranks_are_assigned_at_once() {
        let mesh = Mesh::from_sizes(&[32, 32]).unwrap();
        let layouts: Vec<Layout> = (0..2000)
            .map(|index| {
                let text = ["[S(0), R]", "[R, S(0)]", "[S(0), S(0)]", "[R, R]"][index % 4];
                Layout::parse(&[4096 + index % 5], DType::F32, &mesh, text).unwrap()
            })
            .collect();
        assert!(written_by(1023, 1024, &layouts).contains(&true));
    }
}
