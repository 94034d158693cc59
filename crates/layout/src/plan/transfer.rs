//! Who sends what to whom in a step: what an executor needs, one coordinate at a time.

use super::{Step, StepKind, cross};
use crate::{IndexBox, Layout, index_box::product};

impl Step {
    /// The coordinates that communicate with the one at `coord`, itself included, in group order:
    /// the named axes vary, the last one fastest.
    ///
    /// Only `coord` itself for a local step. For an exchange between meshes there is no such
    /// group; all ranks of both meshes may take part.
    pub fn group(&self, coord: &[usize]) -> Vec<Vec<usize>> {
        let mut members = vec![coord.to_vec()];
        if self.kind.is_local() {
            return members;
        }
        for axis in &self.axes {
            let size = self.from.mesh().axis_size(*axis);
            members = members
                .into_iter()
                .flat_map(|member| {
                    (0..size).map(move |index| {
                        let mut member = member.clone();
                        member[*axis] = index;
                        member
                    })
                })
                .collect();
        }
        members
    }

    /// The boxes of global indices that the rank at `sender` (a coordinate of `from`'s mesh)
    /// contributes to the rank at `receiver` (a coordinate of `to`'s mesh), in the order in which
    /// both lay them into a message.
    ///
    /// In a gathering or an exchange every element that a receiver ends up with comes from exactly
    /// one sender; in a reduction it comes from every member of the group.
    pub fn boxes(&self, sender: &[usize], receiver: &[usize]) -> Vec<IndexBox> {
        let sends = match self.from.mesh() == self.to.mesh() {
            true => {
                let may_differ = |axis: &usize| !self.kind.is_local() && self.axes.contains(axis);
                (0..sender.len()).all(|axis| sender[axis] == receiver[axis] || may_differ(&axis))
            }
            false => cross::is_source(&self.from, sender, &self.to, receiver),
        };
        if !sends {
            return Vec::new();
        }
        let shared =
            |dim| self.from.intervals(dim, sender).intersect(&self.to.intervals(dim, receiver));
        product(&(0..self.from.n_dims()).map(shared).collect::<Vec<_>>())
    }

    /// Whether the step combines values (rather than only moving them).
    pub fn reduces(&self) -> bool {
        matches!(self.kind, StepKind::AllReduce | StepKind::ReduceScatter)
    }
}

impl Layout {
    /// Where a box of global indices lies in the local tensor of the rank at `coord`; `None` if
    /// the rank does not hold all of it as one box.
    ///
    /// ```
    /// use dtensor_layout::{DType, IndexBox, Layout, Mesh};
    /// let mesh = Mesh::new(&[("dp", 2)])?;
    /// let layout = Layout::parse(&[6, 4], DType::F32, &mesh, "S(0)")?;
    /// // Rows 3..6 are on rank 1; row 4 is its second.
    /// assert_eq!(layout.local_box(&[1], &IndexBox(vec![4..5, 0..4])), Some(IndexBox(vec![1..2, 0..4])));
    /// assert_eq!(layout.local_box(&[0], &IndexBox(vec![4..5, 0..4])), None);
    /// # Ok::<(), dtensor_layout::LayoutError>(())
    /// ```
    pub fn local_box(&self, coord: &[usize], global: &IndexBox) -> Option<IndexBox> {
        let in_dim = |(dim, range): (usize, &std::ops::Range<usize>)| {
            let start = self.intervals(dim, coord).position(range.start)?;
            let last = self.intervals(dim, coord).position(range.end.checked_sub(1)?)?;
            (last + 1 - start == range.len()).then_some(start..last + 1)
        };
        global.0.iter().enumerate().map(in_dim).collect::<Option<_>>().map(IndexBox)
    }
}
