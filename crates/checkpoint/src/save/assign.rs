//! Which rank writes which part: every part is written once, whoever holds copies of it.
//!
//! Every rank computes this alone, from layouts; there is no gathering of plans.
//!
//! The rule is PyTorch's, so that its files and ours have the same content: the ranks are walked in order, and the tensors
//! of each in the order of the state. A part that was not met before goes to that rank among its holders which has the
//! least so far, and the bytes of the whole tensor are added to what that rank has.
//!
//! So rank 0, which is walked first, is charged for all of a tensor of which it writes a part, and copies go to the others. Where that
//! makes a rank write more than the mean and the largest copy, what each rank must write is counted first, and then the copies go,
//! the largest first, to the holder with the least, if that is better. Any reader reads either.

use std::{
    cmp::Reverse,
    collections::{HashMap, hash_map::Entry as Slot},
};

use dtensor_layout::Layout;

/// For every tensor, in order: whether `rank` writes what it holds of it.
pub(crate) fn written_by(rank: usize, n_ranks: usize, layouts: &[Layout]) -> Vec<bool> {
    let mut mine = vec![false; layouts.len()];
    assign(n_ranks, layouts, &mut |writer, tensor, _| mine[tensor] |= writer == rank);
    mine
}

/// For every rank: the tensors of which it writes what it holds, ascending.
pub(crate) fn written_by_all(n_ranks: usize, layouts: &[Layout]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new(); n_ranks];
    assign(n_ranks, layouts, &mut |writer, tensor, _| all[writer].push(tensor));
    // They come in the order in which their parts were met.
    all.iter_mut().for_each(|tensors: &mut Vec<usize>| tensors.sort_unstable());
    all
}

/// Is told a rank, a tensor, and the bytes of the part of it that this rank writes.
type Give<'g> = dyn FnMut(usize, usize, u64) + 'g;

/// Says of every part of every tensor which rank writes it.
///
/// Costs a few nanoseconds per tensor and rank. What a layout says about its ranks is computed once for all tensors that
/// have this layout.
fn assign(n_ranks: usize, layouts: &[Layout], give: &mut Give<'_>) {
    let tensors = Tensors::new(n_ranks, layouts);
    let most = |rule: fn(&Tensors, &mut Give<'_>)| {
        let mut loads = vec![0_u64; n_ranks];
        rule(&tensors, &mut |writer, _, bytes| loads[writer] += bytes);
        let mean = loads.iter().sum::<u64>() / n_ranks.max(1) as u64;
        (loads.into_iter().max().unwrap_or(0), mean)
    };
    let (theirs, mean) = most(Tensors::as_pytorch);
    let is_even = theirs <= mean.saturating_add(tensors.largest_copy());
    match is_even || theirs <= most(Tensors::evenly).0 {
        true => tensors.as_pytorch(give),
        false => tensors.evenly(give),
    }
}

/// Who holds what.
struct Tensors {
    n_ranks: usize,
    kinds: Vec<Holders>,
    /// By tensor: its position in the list of kinds.
    kind_of: Vec<usize>,
}

impl Tensors {
    fn new(n_ranks: usize, layouts: &[Layout]) -> Tensors {
        let mut kinds: Vec<Holders> = Vec::new();
        let mut positions: HashMap<&Layout, usize> = HashMap::new();
        let kind_of = layouts
            .iter()
            .map(|layout| match positions.entry(layout) {
                Slot::Occupied(kind) => *kind.get(),
                Slot::Vacant(vacant) => {
                    kinds.push(Holders::new(layout, n_ranks));
                    *vacant.insert(kinds.len() - 1)
                }
            })
            .collect();
        Tensors { n_ranks, kinds, kind_of }
    }

    fn as_pytorch(&self, give: &mut Give<'_>) {
        let parts = |&kind: &usize| vec![false; self.kinds[kind].of_part.len()];
        let mut given: Vec<Vec<bool>> = self.kind_of.iter().map(parts).collect();
        let mut load = vec![0_u64; self.n_ranks];
        for walker in 0..self.n_ranks {
            for (tensor, &kind) in self.kind_of.iter().enumerate() {
                let holders = &self.kinds[kind];
                let Some(part) = holders.part_of_rank[walker] else { continue };
                if std::mem::replace(&mut given[tensor][part], true) {
                    continue;
                }
                let writer = least(&holders.of_part[part], &load).unwrap_or(walker);
                load[writer] += holders.bytes;
                give(writer, tensor, holders.bytes_of_part[part]);
            }
        }
    }

    fn evenly(&self, give: &mut Give<'_>) {
        let mut load = vec![0_u64; self.n_ranks];
        let mut copies = Vec::new();
        for (tensor, &kind) in self.kind_of.iter().enumerate() {
            let holders = &self.kinds[kind];
            for (part, &bytes) in holders.bytes_of_part.iter().enumerate() {
                match holders.of_part[part][..] {
                    [only] => {
                        load[only] += bytes;
                        give(only, tensor, bytes);
                    }
                    _ => copies.push((bytes, tensor, part)),
                }
            }
        }
        // Those that are equally large stay in the order of the state.
        copies.sort_by_key(|&(bytes, ..)| Reverse(bytes));
        for (bytes, tensor, part) in copies {
            if let Some(writer) = least(&self.kinds[self.kind_of[tensor]].of_part[part], &load) {
                load[writer] += bytes;
                give(writer, tensor, bytes);
            }
        }
    }

    /// The bytes of the largest part that several ranks hold.
    fn largest_copy(&self) -> u64 {
        let copies = self.kinds.iter().flat_map(|holders| {
            let parts = holders.bytes_of_part.iter().zip(&holders.of_part);
            parts.filter(|(_, of_part)| of_part.len() > 1).map(|(&bytes, _)| bytes)
        });
        copies.max().unwrap_or(0)
    }
}

/// The holder with the least; of several the lowest, which is the first.
fn least(holders: &[usize], load: &[u64]) -> Option<usize> {
    holders.iter().copied().min_by_key(|&holder| load[holder])
}

/// Which ranks hold the same part of a tensor.
struct Holders {
    /// By rank; `None` for ranks that are not on the mesh.
    part_of_rank: Vec<Option<usize>>,
    /// By part, ascending.
    of_part: Vec<Vec<usize>>,
    /// By part.
    bytes_of_part: Vec<u64>,
    /// Of the whole tensor, and one for a tensor without elements.
    bytes: u64,
}

impl Holders {
    fn new(layout: &Layout, n_ranks: usize) -> Holders {
        let mut part_of_rank = vec![None; n_ranks];
        let mut of_part: Vec<Vec<usize>> = Vec::new();
        let mut bytes_of_part = Vec::new();
        let mut parts: HashMap<Vec<usize>, usize> = HashMap::new();
        // Ranks ascend, so that the lists of holders do.
        for (rank, part_of_rank) in part_of_rank.iter_mut().enumerate() {
            let Some(coord) = layout.mesh().coord_of(rank) else { continue };
            // Where a part begins says which it is: parts that are not empty begin in different places, and of parts without
            // elements in the same place one is enough.
            let part = *parts.entry(layout.local_offset(&coord)).or_insert_with(|| {
                of_part.push(Vec::new());
                bytes_of_part.push(layout.local_bytes(&coord) as u64);
                of_part.len() - 1
            });
            of_part[part].push(rank);
            *part_of_rank = Some(part);
        }
        let bytes = (layout.numel() * layout.dtype().size()) as u64;
        Holders { part_of_rank, of_part, bytes_of_part, bytes: bytes.max(1) }
    }
}

#[cfg(test)]
mod tests {
    use dtensor_layout::{DType, Mesh};
    use proptest::prelude::*;

    use super::*;

    fn writers(n_ranks: usize, layouts: &[Layout]) -> Vec<Vec<usize>> {
        let by_rank: Vec<Vec<bool>> =
            (0..n_ranks).map(|rank| written_by(rank, n_ranks, layouts)).collect();
        let of_tensor =
            |tensor: usize| (0..n_ranks).filter(|&rank| by_rank[rank][tensor]).collect();
        (0..layouts.len()).map(of_tensor).collect()
    }

    /// What each rank writes.
    fn loads(n_ranks: usize, layouts: &[Layout]) -> Vec<u64> {
        let mut loads = vec![0; n_ranks];
        assign(n_ranks, layouts, &mut |writer, _, bytes| loads[writer] += bytes);
        loads
    }

    #[test]
    fn copies_beside_a_large_sharded_tensor_go_to_all_ranks() {
        let mesh = Mesh::from_sizes(&[4]).unwrap();
        let layout = |n: usize, text| Layout::parse(&[n << 20], DType::U8, &mesh, text).unwrap();
        let mut layouts = vec![layout(1024, "[S(0)]")];
        layouts.extend((0..15).map(|_| layout(64, "[R]")));
        // As PyTorch does it rank 0 would write 256, and each of the others 576.
        assert_eq!(
            loads(4, &layouts).iter().map(|bytes| bytes >> 20).collect::<Vec<_>>(),
            [512, 512, 512, 448]
        );
    }

    proptest! {
        #[test]
        fn no_rank_writes_more_than_the_mean_and_the_largest_copy(
            n_ranks in 1_usize..9,
            tensors in prop::collection::vec((0_usize..50, any::<bool>()), 0..40),
        ) {
            let mesh = Mesh::from_sizes(&[n_ranks]).unwrap();
            let layout = |&(n, is_sharded): &(usize, bool)| match is_sharded {
                // Every rank has as much of it.
                true => Layout::parse(&[n * n_ranks], DType::F32, &mesh, "[S(0)]").unwrap(),
                false => Layout::parse(&[n], DType::F32, &mesh, "[R]").unwrap(),
            };
            let layouts: Vec<Layout> = tensors.iter().map(layout).collect();
            let loads = loads(n_ranks, &layouts);
            let total: u64 = loads.iter().sum();
            let bytes = layouts.iter().map(|layout| layout.numel() as u64 * 4);
            prop_assert_eq!(total, bytes.sum::<u64>());
            let largest = tensors.iter().filter(|(_, is_sharded)| !is_sharded).map(|&(n, _)| n as u64 * 4).max();
            let most = loads.iter().max().copied().unwrap_or(0);
            prop_assert!(most <= total / n_ranks as u64 + largest.unwrap_or(0), "{:?}", loads);
        }
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
