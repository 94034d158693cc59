use std::collections::BTreeMap;

use dtensor_layout::{Cut, Layout, chunk};

/// How many indices of a dim are held, by how many coordinates of the axes that cut it.
///
/// Counted by cases, not by walking the coordinates: a cut leaves at most a few different lengths,
/// however many ranks make it.
pub fn lengths(layout: &Layout, dim: usize) -> BTreeMap<usize, usize> {
    let mut lengths = BTreeMap::from([(layout.global_shape()[dim], 1)]);
    for Cut { axis, split_factor } in layout.order().cuts(dim) {
        let parts = layout.mesh().axis_size(*axis);
        let mut after = BTreeMap::new();
        for (length, coords) in lengths {
            for (part, indices) in part_lengths(length, parts, *split_factor) {
                *after.entry(part).or_default() += coords * indices;
            }
        }
        lengths = after;
    }
    lengths
}

/// The lengths that `parts` indices of an axis get of `length`, each with the number of indices
/// that get it. The length is first split into pieces (one, but for a strided shard), and an index
/// gets its chunk of every piece; only the last piece can be short.
fn part_lengths(length: usize, parts: usize, split_factor: usize) -> Vec<(usize, usize)> {
    if length == 0 {
        return vec![(0, parts)];
    }
    let piece = length.div_ceil(split_factor);
    let (full_pieces, rest) = (length / piece, length % piece);
    // The chunks of one piece change their length after the last full one and after the short one.
    let mut changes = vec![0, parts];
    for piece in [piece, rest].into_iter().filter(|piece| *piece > 0) {
        let full_chunks = piece / piece.div_ceil(parts);
        changes.extend([full_chunks, full_chunks + 1].map(|index| index.min(parts)));
    }
    changes.sort_unstable();
    changes.dedup();
    let runs = changes.windows(2).map(|run| {
        let held = |piece| chunk(piece, parts, run[0]).len();
        (full_pieces * held(piece) + held(rest), run[1] - run[0])
    });
    runs.collect()
}

#[cfg(test)]
mod tests {
    use dtensor_layout::{DType, Mesh};

    use super::*;

    #[test]
    fn counting_by_cases_agrees_with_walking_the_coordinates() {
        let mesh = Mesh::from_sizes(&[3, 4]).unwrap();
        for placements in
            ["S(0), S(0)", "S(0)[1], S(0)[0]", "_S(0, 2), S(0)", "_S(0, 5), R", "S(0), _S(0, 3)"]
        {
            for size in 0..40 {
                let layout = Layout::parse(&[size], DType::F32, &mesh, placements).unwrap();
                let mut walked = BTreeMap::new();
                for coord in mesh.coords() {
                    *walked.entry(layout.local_shape(&coord)[0]).or_insert(0) += 1;
                }
                let cut_axes = layout.order().cuts(0).iter().map(|cut| mesh.axis_size(cut.axis));
                let copies = mesh.size() / cut_axes.product::<usize>();
                let counted: BTreeMap<usize, usize> =
                    lengths(&layout, 0).into_iter().map(|(len, n)| (len, n * copies)).collect();
                assert_eq!(counted, walked, "{layout:?}");
            }
        }
    }

    #[test]
    fn millions_of_ranks_are_a_few_cases() {
        let mesh = Mesh::from_sizes(&[1_000_000]).unwrap();
        let layout = Layout::parse(&[2_500_000], DType::F32, &mesh, "S(0)").unwrap();
        let want = BTreeMap::from([(0, 166_666), (1, 1), (3, 833_333)]);
        assert_eq!(lengths(&layout, 0), want);
    }
}
