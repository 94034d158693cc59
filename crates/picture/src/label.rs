use std::fmt;

use dtensor_layout::{Factor, Layout, Placement, ReduceOp};

/// The ranks that hold one block, as a picture names them: `0`, `0-3`, `0,4,..,28`.
///
/// Pending contributions are in brackets behind their reduction, `sum(0,1)`; copies of such a sum
/// are set apart by a bar, `sum(0,1) | sum(2,3)`. `owner` has the index on every axis that cuts.
pub fn label(layout: &Layout, owner: &[(usize, usize)]) -> String {
    let mesh = layout.mesh();
    let mut base = mesh.base();
    let (mut copies, mut contributions) = (Vec::new(), Vec::new());
    let mut reductions: Vec<ReduceOp> = Vec::new();
    for (index, axis) in mesh.axes().iter().enumerate() {
        match layout.placements()[index] {
            Placement::Shard(_) => {
                let at = owner.iter().find(|(axis, _)| *axis == index);
                base += axis.offset(at.map_or(0, |(_, at)| *at));
            }
            Placement::Replicate => copies.extend_from_slice(axis.factors()),
            Placement::Partial(op) => {
                contributions.extend_from_slice(axis.factors());
                if !reductions.contains(&op) {
                    reductions.push(op);
                }
            }
        }
    }
    let copies = Ranks::new(base, copies);
    if reductions.is_empty() {
        return copies.to_string();
    }
    // Sum and avg are the only ones that mix, and commute.
    let name = reductions.iter().map(ReduceOp::to_string).collect::<Vec<_>>().join(" ");
    let one_copy = |base| format!("{name}({})", Ranks::new(base, contributions.clone()));
    let (first, last) = (one_copy(copies.get(0)), one_copy(copies.get(copies.len() - 1)));
    match copies.len() {
        1 => first,
        2 => format!("{first} | {last}"),
        _ => format!("{first} |..| {last}"),
    }
}

/// Ascending ranks as they are written: `0,1`, `0-3,8`.
pub fn rank_list(ranks: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => runs.push((*rank, *rank)),
        }
    }
    join_runs(runs.len(), |index| runs[index])
}

/// Runs of neighbours from first to last: all of a few, of many the first two and the last.
fn join_runs(n_runs: usize, run: impl Fn(usize) -> (usize, usize)) -> String {
    let text = |index| match run(index) {
        (first, last) if first == last => first.to_string(),
        (first, last) if first + 1 == last => format!("{first},{last}"),
        (first, last) => format!("{first}-{last}"),
    };
    match n_runs {
        0..=4 => (0..n_runs).map(text).collect::<Vec<_>>().join(","),
        _ => format!("{},{},..,{}", text(0), text(1), text(n_runs - 1)),
    }
}

/// The ranks of a block in ascending order, without listing them: a base and strides, of which the
/// smaller ones together never reach the next larger one.
struct Ranks {
    base: usize,
    /// Largest stride first.
    factors: Vec<Factor>,
}

impl Ranks {
    fn new(base: usize, mut factors: Vec<Factor>) -> Ranks {
        factors.retain(|factor| factor.size > 1);
        factors.sort_by_key(|factor| std::cmp::Reverse(factor.stride));
        Ranks { base, factors }
    }

    fn len(&self) -> usize {
        self.factors.iter().map(|factor| factor.size).product()
    }

    /// The `position`-th smallest rank.
    fn get(&self, mut position: usize) -> usize {
        let mut rank = self.base;
        for factor in self.factors.iter().rev() {
            rank += position % factor.size * factor.stride;
            position /= factor.size;
        }
        rank
    }

    /// Length of a run of neighbours; all runs are equally long.
    fn run_length(&self) -> usize {
        let mut run = 1;
        for factor in self.factors.iter().rev() {
            if factor.stride != run {
                break;
            }
            run *= factor.size;
        }
        run
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run = self.run_length();
        let first = |index: usize| self.get(index * run);
        f.write_str(&join_runs(self.len() / run, |index| (first(index), first(index) + run - 1)))
    }
}

#[cfg(test)]
mod tests {
    use dtensor_layout::{DType, Mesh};

    use super::*;

    #[track_caller]
    fn check(mesh: &str, placements: &str, owner: &[(usize, usize)], want: &str) {
        let mesh: Mesh = mesh.parse().unwrap();
        let layout = Layout::parse(&[64, 64], DType::F32, &mesh, placements).unwrap();
        assert_eq!(label(&layout, owner), want);
    }

    #[test]
    fn a_block_is_named_by_its_ranks() {
        check("2,4", "S(0),S(1)", &[(0, 1), (1, 2)], "6");
        check("2,4", "S(0),R", &[(0, 1)], "4-7");
        check("2,4", "R,S(0)", &[(1, 3)], "3,7");
        check("8,4", "R,S(0)", &[(1, 0)], "0,4,..,28");
        check("8,2,2", "R,S(0),R", &[(1, 1)], "2,3,6,7,..,30,31");
    }

    #[test]
    fn contributions_are_in_brackets_and_copies_apart() {
        check("2,2", "P(sum),P(sum)", &[], "sum(0-3)");
        check("2,2", "R,P(max)", &[], "max(0,1) | max(2,3)");
        check("4,2", "R,P(sum)", &[], "sum(0,1) |..| sum(6,7)");
        check("2,2", "P(avg),P(sum)", &[], "avg sum(0-3)");
        check("2,2", "S(0),P(sum)", &[(0, 1)], "sum(2,3)");
    }

    #[test]
    fn millions_of_copies_have_a_short_name() {
        check("1000000,4", "R,S(0)", &[(1, 1)], "1,5,..,3999997");
        check("1000000,4", "S(0),R", &[(0, 5)], "20-23");
        check("1000000,4", "R,R", &[], "0-3999999");
    }

    #[test]
    fn lists_of_ranks_are_short() {
        assert_eq!(rank_list(&[]), "");
        assert_eq!(rank_list(&[6, 7]), "6,7");
        assert_eq!(rank_list(&[0, 1, 2, 5]), "0-2,5");
        assert_eq!(rank_list(&[0, 2, 4, 6, 8, 10]), "0,2,..,10");
    }
}
