use std::{
    fmt,
    hash::{Hash, Hasher},
    str::FromStr,
    sync::{Arc, LazyLock},
};

use crate::{
    Cut, DType, IndexBox, Intervals, LayoutError, Mesh, Placement, ReduceOp, Result, ShardOrder,
    index_box::numel,
    intern::Interner,
    mesh::checked_product,
    text::{PlacementText, bad},
    torch::canonical_cuts,
};

/// How a tensor lies on a mesh: global shape, dtype, mesh, one placement per axis, shard order.
///
/// Equal layouts are one allocation: `==`, hashing and cloning cost a pointer. Prints as
/// `[S(0), R]`; the [`Debug`](fmt::Debug) form is complete, `f32[13, 8] on dp=2,tp=2: [S(0), R]`,
/// and parses back.
#[derive(Clone)]
pub struct Layout(Arc<Inner>);

#[derive(PartialEq, Eq, Hash)]
struct Inner {
    shape: Vec<usize>,
    dtype: DType,
    mesh: Mesh,
    placements: Vec<Placement>,
    order: ShardOrder,
}

/// Which ranks hold an element: per mesh axis one index, or every index of the axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners(pub Vec<Option<usize>>);

static LAYOUTS: LazyLock<Interner<Inner>> = LazyLock::new(Interner::new);

impl Layout {
    /// A layout in which, where several axes cut one dim, the outer axis cuts first.
    pub fn new(
        shape: &[usize],
        dtype: DType,
        mesh: &Mesh,
        placements: &[Placement],
    ) -> Result<Layout> {
        check_placements(shape, dtype, mesh, placements)?;
        let order = ShardOrder::left_to_right(placements, shape.len());
        Layout::intern(shape, dtype, mesh, placements, order)
    }

    /// A layout with the axes that cut a dim in an explicit order.
    ///
    /// ```
    /// use dtensor_layout::{DType, Layout, Mesh, Placement::Shard};
    /// let mesh = Mesh::new(&[("dp", 2), ("tp", 2)])?;
    /// // The rows of a weight: tensor parallelism cuts first, sharded data parallelism its shards.
    /// let layout = Layout::with_order(&[8, 3], DType::F32, &mesh, &[Shard(0), Shard(0)], &[(0, &[1, 0])])?;
    /// assert_eq!(layout.to_string(), "[S(0)[1], S(0)[0]]");
    /// assert_eq!(layout.local_offset(&[1, 0]), [2, 0]);
    /// # Ok::<(), dtensor_layout::LayoutError>(())
    /// ```
    pub fn with_order(
        shape: &[usize],
        dtype: DType,
        mesh: &Mesh,
        placements: &[Placement],
        order: &[(usize, &[usize])],
    ) -> Result<Layout> {
        check_placements(shape, dtype, mesh, placements)?;
        let order = ShardOrder::with(placements, shape.len(), order)?;
        Layout::intern(shape, dtype, mesh, placements, order)
    }

    /// A layout whose dims are cut as `order` says, split factors included.
    pub fn with_cuts(
        shape: &[usize],
        dtype: DType,
        mesh: &Mesh,
        placements: &[Placement],
        order: &[Vec<Cut>],
    ) -> Result<Layout> {
        check_placements(shape, dtype, mesh, placements)?;
        let order = ShardOrder::from_cuts(order.to_vec());
        match order.dims().count() == shape.len() {
            true => order.check(placements)?,
            false => {
                return Err(LayoutError::BadShardOrder {
                    order: format!("{order:?}"),
                    placements: placements_text(placements),
                    why: "there must be one list of cuts per dim",
                });
            }
        }
        Layout::intern(shape, dtype, mesh, placements, order)
    }

    /// Every rank holds the whole tensor.
    pub fn replicated(shape: &[usize], dtype: DType, mesh: &Mesh) -> Result<Layout> {
        Layout::new(shape, dtype, mesh, &vec![Placement::Replicate; mesh.n_axes()])
    }

    /// Parses a list of placements: `[S(0), R]`, negative dims, explicit orders (`S(0)[1]`) and
    /// PyTorch's strided shards (`_S(0, 2)`) included.
    pub fn parse(shape: &[usize], dtype: DType, mesh: &Mesh, placements: &str) -> Result<Layout> {
        let written = PlacementText::parse_list(placements)?;
        if written.len() != mesh.n_axes() {
            return Err(wrong_number(written.len(), mesh));
        }
        let mut plain = Vec::with_capacity(written.len());
        // Per dim its cuts with their written positions.
        let mut dims: Vec<Vec<(Option<usize>, Cut)>> = vec![Vec::new(); shape.len()];
        for (axis, one) in written.iter().enumerate() {
            plain.push(match *one {
                PlacementText::Replicate => Placement::Replicate,
                PlacementText::Partial(op) => Placement::Partial(op),
                PlacementText::Shard { dim, position, split_factor } => {
                    let placement = Placement::shard(dim, shape.len())?;
                    let cut = Cut { axis, split_factor: split_factor.unwrap_or(1) };
                    dims[placement.shard_dim().unwrap_or_default()].push((position, cut));
                    placement
                }
            });
        }
        check_placements(shape, dtype, mesh, &plain)?;
        let mut order = Vec::with_capacity(shape.len());
        for (mut cuts, size) in dims.into_iter().zip(shape) {
            let numbered = cuts.iter().any(|(position, _)| position.is_some());
            cuts.sort_by_key(|(position, _)| *position);
            let counts_up =
                cuts.iter().enumerate().all(|(index, (position, _))| *position == Some(index));
            let cuts: Vec<Cut> = match (numbered, counts_up) {
                (true, true) => cuts.into_iter().map(|(_, cut)| cut).collect(),
                (true, false) => {
                    let why = "the cuts of a dim are numbered 0, 1, ... or not at all";
                    return Err(bad(placements, "list of placements", why));
                }
                (false, _) => {
                    canonical_cuts(cuts.into_iter().map(|(_, cut)| cut).collect(), *size, mesh)
                }
            };
            order.push(cuts);
        }
        Layout::intern(shape, dtype, mesh, &plain, ShardOrder::from_cuts(order))
    }

    /// The same tensor with other placements, cut from left to right.
    pub fn with_placements(&self, placements: &[Placement]) -> Result<Layout> {
        Layout::new(self.global_shape(), self.dtype(), self.mesh(), placements)
    }

    /// The same tensor with other placements, which cut the same dims by the same axes: in the order in which they do.
    ///
    /// ```
    /// use dtensor_layout::{DType, Layout, Mesh, Placement::*, ReduceOp};
    ///
    /// let mesh = Mesh::from_sizes(&[2, 2, 3])?;
    /// let pending = [Shard(0), Shard(0), Partial(ReduceOp::Sum)];
    /// let layout = Layout::with_order(&[8], DType::F32, &mesh, &pending, &[(0, &[1, 0])])?;
    /// let settled = layout.with_placements_in_order(&[Shard(0), Shard(0), Replicate])?;
    /// assert_eq!(settled.to_string(), "[S(0)[1], S(0)[0], R]");
    /// # Ok::<(), dtensor_layout::LayoutError>(())
    /// ```
    pub fn with_placements_in_order(&self, placements: &[Placement]) -> Result<Layout> {
        let cuts: Vec<Vec<Cut>> = self.order().dims().map(<[Cut]>::to_vec).collect();
        Layout::with_cuts(self.global_shape(), self.dtype(), self.mesh(), placements, &cuts)
    }

    /// The same placements for another shape of as many dims.
    pub fn with_shape(&self, shape: &[usize]) -> Result<Layout> {
        check_placements(shape, self.dtype(), self.mesh(), self.placements())?;
        match shape.len() == self.n_dims() {
            true => Layout::intern(
                shape,
                self.dtype(),
                self.mesh(),
                self.placements(),
                self.order().clone(),
            ),
            false => Layout::new(shape, self.dtype(), self.mesh(), self.placements()),
        }
    }

    /// The same layout for another dtype.
    pub fn with_dtype(&self, dtype: DType) -> Result<Layout> {
        check_placements(self.global_shape(), dtype, self.mesh(), self.placements())?;
        Layout::intern(
            self.global_shape(),
            dtype,
            self.mesh(),
            self.placements(),
            self.order().clone(),
        )
    }

    pub(crate) fn intern(
        shape: &[usize],
        dtype: DType,
        mesh: &Mesh,
        placements: &[Placement],
        order: ShardOrder,
    ) -> Result<Layout> {
        let (shape, placements) = (shape.to_vec(), placements.to_vec());
        Ok(Layout(LAYOUTS.intern(Inner { shape, dtype, mesh: mesh.clone(), placements, order })))
    }

    /// Shape of the whole tensor.
    pub fn global_shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// Number of tensor dims.
    pub fn n_dims(&self) -> usize {
        self.0.shape.len()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// The mesh it lies on.
    pub fn mesh(&self) -> &Mesh {
        &self.0.mesh
    }

    /// One placement per mesh axis.
    pub fn placements(&self) -> &[Placement] {
        &self.0.placements
    }

    /// The order in which axes cut each dim.
    pub fn order(&self) -> &ShardOrder {
        &self.0.order
    }

    /// One text per mesh axis, as a layout prints them: a strided shard and an explicit position among the cuts of
    /// a dim included.
    pub fn placement_texts(&self) -> Vec<String> {
        let text = |(axis, placement): (usize, &Placement)| {
            let Some(dim) = placement.shard_dim() else { return placement.to_string() };
            let cuts = self.order().cuts(dim);
            let position = cuts.iter().position(|cut| cut.axis == axis).unwrap_or_default();
            let plain = match cuts[position].split_factor {
                1 => placement.to_string(),
                factor => format!("_S({dim}, {factor})"),
            };
            // Unnumbered cuts are read as PyTorch means them; where that is not what they are,
            // they are numbered.
            let mut unnumbered = cuts.to_vec();
            unnumbered.sort_by_key(|cut| cut.axis);
            match canonical_cuts(unnumbered, self.0.shape[dim], self.mesh()) == cuts {
                true => plain,
                false => format!("{plain}[{position}]"),
            }
        };
        self.placements().iter().enumerate().map(text).collect()
    }

    /// Whether every rank holds the whole value.
    pub fn is_replicated(&self) -> bool {
        self.placements().iter().all(|placement| *placement == Placement::Replicate)
    }

    /// Whether a reduction is pending on some axis.
    pub fn is_partial(&self) -> bool {
        self.placements().iter().any(|placement| placement.reduce_op().is_some())
    }

    /// Number of elements of the whole tensor.
    pub fn numel(&self) -> usize {
        numel(self.0.shape.iter().copied())
    }

    /// The indices of one dim that the rank at `coord` holds.
    ///
    /// # Panics
    /// If the layout has no such dim, or `coord` is not on the mesh.
    pub fn intervals(&self, dim: usize, coord: &[usize]) -> Intervals {
        let mut held = Intervals::whole(self.0.shape[dim]);
        for Cut { axis, split_factor } in self.0.order.cuts(dim) {
            let parts = self.mesh().axis_size(*axis);
            assert!(coord[*axis] < parts, "coordinate {coord:?} is not on mesh {}", self.mesh());
            held = held.cut(parts, coord[*axis], *split_factor);
        }
        held
    }

    /// Shape of what the rank at `coord` holds.
    ///
    /// # Panics
    /// If `coord` is not on the mesh; so do the other questions about one coordinate.
    pub fn local_shape(&self, coord: &[usize]) -> Vec<usize> {
        (0..self.n_dims()).map(|dim| self.intervals(dim, coord).len()).collect()
    }

    /// The first global index held in every dim; for a dim of which nothing is held, its size.
    pub fn local_offset(&self, coord: &[usize]) -> Vec<usize> {
        let first = |dim| self.intervals(dim, coord).start().unwrap_or(self.0.shape[dim]);
        (0..self.n_dims()).map(first).collect()
    }

    /// Number of elements that the rank at `coord` holds.
    pub fn local_numel(&self, coord: &[usize]) -> usize {
        numel((0..self.n_dims()).map(|dim| self.intervals(dim, coord).len()))
    }

    /// Bytes that the rank at `coord` holds. Where all cuts are plain, coordinate zero holds the most.
    pub fn local_bytes(&self, coord: &[usize]) -> usize {
        self.local_numel(coord) * self.dtype().size()
    }

    /// The boxes of global indices that the rank at `coord` holds: one, or several under a strided
    /// shard, or none for an empty shard. In the order of their first elements in memory.
    pub fn boxes(&self, coord: &[usize]) -> Vec<IndexBox> {
        crate::index_box::product(
            &(0..self.n_dims()).map(|dim| self.intervals(dim, coord)).collect::<Vec<_>>(),
        )
    }

    /// The ranks that hold the element at a global index (or, on pending axes, a contribution).
    pub fn owners(&self, index: &[usize]) -> Result<Owners> {
        let inside = index.len() == self.n_dims()
            && index.iter().zip(&self.0.shape).all(|(i, size)| i < size);
        if !inside {
            return Err(LayoutError::BadIndex {
                index: index.to_vec(),
                shape: self.0.shape.clone(),
            });
        }
        let mut owners = vec![None; self.mesh().n_axes()];
        for (dim, start) in index.iter().enumerate() {
            // The element is at `position` of the `length` indices that the cuts so far have left.
            let (mut position, mut length) = (*start, self.0.shape[dim]);
            for Cut { axis, split_factor } in self.0.order.cuts(dim) {
                let parts = self.mesh().axis_size(*axis);
                let piece_size = length.div_ceil(*split_factor);
                let (piece, in_piece) = (position / piece_size, position % piece_size);
                let this_piece = piece_size.min(length - piece * piece_size);
                let chunk_size = this_piece.div_ceil(parts);
                let owner = in_piece / chunk_size;
                let part_of = |piece_length| crate::chunk(piece_length, parts, owner).len();
                position = piece * part_of(piece_size) + in_piece % chunk_size;
                let (full_pieces, rest) = (length / piece_size, length % piece_size);
                length = full_pieces * part_of(piece_size) + part_of(rest);
                owners[*axis] = Some(owner);
            }
        }
        Ok(Owners(owners))
    }

    /// The first coordinate that holds the element at a global index.
    pub fn owner(&self, index: &[usize]) -> Result<Vec<usize>> {
        Ok(self.owners(index)?.0.into_iter().map(Option::unwrap_or_default).collect())
    }
}

impl PartialEq for Layout {
    fn eq(&self, other: &Layout) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Layout {}

impl Hash for Layout {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]", self.placement_texts().join(", "))
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?} on {}: {self}", self.dtype(), self.global_shape(), self.mesh())
    }
}

impl FromStr for Layout {
    type Err = LayoutError;

    /// Parses the complete form, `f32[13, 8] on dp=2,tp=2: [S(0), R]`.
    fn from_str(text: &str) -> Result<Layout> {
        let bad = |why| bad(text, "layout", why);
        let (tensor, rest) = text
            .split_once(" on ")
            .ok_or_else(|| bad("expected `dtype[shape] on mesh: [placements]`"))?;
        let (mesh, placements) =
            rest.split_once(": ").ok_or_else(|| bad("no `: ` between mesh and placements"))?;
        let (dtype, shape) =
            tensor.split_once('[').ok_or_else(|| bad("no `[` before the shape"))?;
        let shape =
            shape.trim_end().strip_suffix(']').ok_or_else(|| bad("no `]` after the shape"))?;
        let dtype = dtype.parse().map_err(|_| bad("unknown dtype"))?;
        let sizes = shape.split(',').filter(|_| !shape.trim().is_empty());
        let shape =
            sizes.map(|size| size.trim().parse().map_err(|_| bad("a size is not a number")));
        Layout::parse(&shape.collect::<Result<Vec<usize>>>()?, dtype, &mesh.parse()?, placements)
    }
}

/// `[S(0), R]`, for messages about placements that are no layout yet.
pub(crate) fn placements_text(placements: &[Placement]) -> String {
    format!("[{}]", placements.iter().map(Placement::to_string).collect::<Vec<_>>().join(", "))
}

fn wrong_number(got: usize, mesh: &Mesh) -> LayoutError {
    LayoutError::WrongNumberOfPlacements { got, want: mesh.n_axes(), mesh: mesh.to_string() }
}

/// Whatever makes placements no layout of this shape on this mesh.
pub(crate) fn check_placements(
    shape: &[usize],
    dtype: DType,
    mesh: &Mesh,
    placements: &[Placement],
) -> Result<()> {
    if placements.len() != mesh.n_axes() {
        return Err(wrong_number(placements.len(), mesh));
    }
    let numel = checked_product("tensor sizes", shape)?;
    if numel.checked_mul(dtype.size()).is_none_or(|bytes| isize::try_from(bytes).is_err()) {
        return Err(LayoutError::Overflow { what: "tensor sizes", sizes: shape.to_vec() });
    }
    let mut pending: Option<ReduceOp> = None;
    for placement in placements {
        match *placement {
            Placement::Shard(dim) if dim >= shape.len() => {
                let dim = isize::try_from(dim).unwrap_or(isize::MAX);
                return Err(LayoutError::DimOutOfRange { dim, n_dims: shape.len() });
            }
            Placement::Partial(op) if !op.supports(dtype) => {
                return Err(LayoutError::PartialNotDefined { op, dtype });
            }
            Placement::Partial(second) => match pending {
                Some(first) if !commute(first, second) => {
                    return Err(LayoutError::MixedPartials { first, second });
                }
                _ => pending = Some(second),
            },
            Placement::Shard(_) | Placement::Replicate => {}
        }
    }
    Ok(())
}

/// Whether two pending reductions on different axes give the same value in either order.
pub(crate) fn commute(first: ReduceOp, second: ReduceOp) -> bool {
    let linear = |op| matches!(op, ReduceOp::Sum | ReduceOp::Avg);
    first == second || (linear(first) && linear(second))
}
