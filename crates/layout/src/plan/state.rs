//! Layouts of one tensor on one mesh, small enough to search among.

use std::{cell::RefCell, rc::Rc};

use crate::{Cut, DType, Intervals, Layout, Mesh, Placement, ReduceOp, Result, ShardOrder};

/// What all states of one search share.
pub(super) struct Space<'a> {
    shape: &'a [usize],
    dtype: DType,
    mesh: &'a Mesh,
    sizes: Vec<usize>,
    extents: Vec<usize>,
    /// The ways to cut that a path may use, dim and split factor: those of the source and the
    /// target. Where something is reduced or padded, or links differ, also every plain one: to go
    /// by way of shards of another dim can then move a little less. Otherwise nothing moves less
    /// than the direct exchange.
    cuts: Vec<(usize, usize)>,
    /// The dims among `cuts`, each once.
    dims: Vec<usize>,
    /// See [`MAX_EXACT_COORDS`].
    max_exact_coords: usize,
    /// What each rank has of a dim that is cut in some way: a search asks for the same few again
    /// and again.
    held: RefCell<Vec<Held>>,
    /// Elements of the whole tensor.
    numel: u128,
    /// Elements of the dims that no state cuts.
    uncut_numel: u128,
}

/// What each rank has of a dim that is cut so.
struct Held {
    dim: usize,
    cuts: DimCuts,
    by_rank: Rc<[Intervals]>,
}

/// One layout: a code and, for cuts, the position in the dim's order, per axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct State {
    code: [u8; Mesh::MAX_AXES],
    position: [u8; Mesh::MAX_AXES],
}

/// On a mesh of up to this many ranks, what stays on its rank in an exchange is summed over all of
/// them; beyond, it is what it would be on average. Above it an exchange keeps at most a few percent of
/// its bytes at home, so the difference does not matter, and planning may not cost more on a
/// larger mesh.
pub(super) const MAX_EXACT_COORDS: usize = 64;

/// The same while searching, where it is asked for dozens of candidates.
const MAX_EXACT_COORDS_IN_SEARCH: usize = 16;

/// How many dims that neither end cuts are tried; more would only slow the search.
const MAX_FURTHER_DIMS: usize = 4;

const REPLICATE: u8 = 0;
/// Codes `1..=5` are the reductions of `ReduceOp::ALL`.
const FIRST_CUT: u8 = 1 + ReduceOp::ALL.len() as u8;

/// What an axis does in a [`State`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AxisUse {
    Replicate,
    Partial(ReduceOp),
    /// Index into the space's cuts.
    Cut(usize),
}

/// The cuts of one dim in order: axis and split factor.
#[derive(Clone, Copy)]
pub(super) struct DimCuts {
    cuts: [(u8, u8); Mesh::MAX_AXES],
    len: usize,
}

impl DimCuts {
    /// Axis and index of the cut (which stands for dim and split factor), in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.cuts[..self.len].iter().map(|(axis, cut)| (usize::from(*axis), usize::from(*cut)))
    }

    /// How many cuts both orders begin with.
    pub(super) fn common_prefix(&self, other: &DimCuts) -> usize {
        self.iter().zip(other.iter()).take_while(|(a, b)| a == b).count()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl<'a> Space<'a> {
    /// The space in which both layouts lie; they are of one shape, dtype and mesh.
    pub(super) fn new(from: &'a Layout, to: &Layout) -> Space<'a> {
        Space { max_exact_coords: MAX_EXACT_COORDS, ..Space::for_search(from, to, false) }
    }

    /// The space to search in, which may hold more layouts than the two.
    pub(super) fn for_search(from: &'a Layout, to: &Layout, links_differ: bool) -> Space<'a> {
        let mesh = from.mesh();
        let mut cuts: Vec<(usize, usize)> = Vec::new();
        let mut dims = Vec::new();
        for order in [from.order(), to.order()] {
            for (dim, dim_cuts) in order.dims().enumerate() {
                for cut in dim_cuts {
                    if !cuts.contains(&(dim, cut.split_factor)) {
                        cuts.push((dim, cut.split_factor));
                    }
                    if !dims.contains(&dim) {
                        dims.push(dim);
                    }
                }
            }
        }
        let reduces_or_pads = |(a, b): (&Placement, &Placement)| {
            a != b && (a.reduce_op().is_some() || *b == Placement::Partial(ReduceOp::Sum))
        };
        if links_differ || from.placements().iter().zip(to.placements()).any(reduces_or_pads) {
            for dim in (0..from.n_dims()).take(MAX_FURTHER_DIMS) {
                if !cuts.contains(&(dim, 1)) {
                    cuts.push((dim, 1));
                }
                if !dims.contains(&dim) {
                    dims.push(dim);
                }
            }
        }
        let extent =
            |axis: &crate::MeshAxis| axis.factors().iter().map(|f| (f.size - 1) * f.stride).sum();
        let elements = |dims: &mut dyn Iterator<Item = usize>| -> u128 {
            dims.map(|dim| from.global_shape()[dim] as u128).product()
        };
        Space {
            max_exact_coords: MAX_EXACT_COORDS_IN_SEARCH,
            held: RefCell::default(),
            numel: elements(&mut (0..from.n_dims())),
            uncut_numel: elements(&mut (0..from.n_dims()).filter(|dim| !dims.contains(dim))),
            shape: from.global_shape(),
            dtype: from.dtype(),
            mesh,
            sizes: mesh.sizes(),
            extents: mesh.axes().iter().map(extent).collect(),
            cuts,
            dims,
        }
    }

    pub(super) fn mesh(&self) -> &Mesh {
        self.mesh
    }

    pub(super) fn n_axes(&self) -> usize {
        self.sizes.len()
    }

    pub(super) fn n_ranks(&self) -> usize {
        self.mesh.size()
    }

    pub(super) fn axis_size(&self, axis: usize) -> usize {
        self.sizes[axis]
    }

    pub(super) fn axis_extent(&self, axis: usize) -> usize {
        self.extents[axis]
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn max_exact_coords(&self) -> usize {
        self.max_exact_coords
    }

    /// The cuts that a state may use.
    pub(super) fn n_cuts(&self) -> usize {
        self.cuts.len()
    }

    /// Split factor of a cut.
    pub(super) fn split_factor(&self, cut: usize) -> usize {
        self.cuts[cut].1
    }

    /// The dims that some state cuts.
    pub(super) fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Global size of a dim.
    pub(super) fn dim_size(&self, dim: usize) -> usize {
        self.shape[dim]
    }

    /// Elements of the dims that no state cuts.
    pub(super) fn uncut_numel(&self) -> u128 {
        self.uncut_numel
    }

    /// Elements of the whole tensor.
    pub(super) fn numel(&self) -> u128 {
        self.numel
    }

    /// The state of a layout of this space.
    pub(super) fn state(&self, layout: &Layout) -> State {
        let mut state = State { code: [REPLICATE; Mesh::MAX_AXES], position: [0; Mesh::MAX_AXES] };
        for (axis, placement) in layout.placements().iter().enumerate() {
            if let Placement::Partial(op) = placement {
                state.set(axis, AxisUse::Partial(*op), 0);
            }
        }
        for (dim, cuts) in layout.order().dims().enumerate() {
            for (position, cut) in cuts.iter().enumerate() {
                let index = self.cuts.iter().position(|known| *known == (dim, cut.split_factor));
                state.set(cut.axis, AxisUse::Cut(index.unwrap_or_default()), position);
            }
        }
        state
    }

    /// The state of placements whose cuts are plain and go from left to right.
    pub(super) fn left_to_right(&self, placements: &[Placement]) -> State {
        let mut state = State { code: [REPLICATE; Mesh::MAX_AXES], position: [0; Mesh::MAX_AXES] };
        for (axis, placement) in placements.iter().enumerate() {
            match placement {
                Placement::Replicate => {}
                Placement::Partial(op) => state.set(axis, AxisUse::Partial(*op), 0),
                Placement::Shard(dim) => {
                    let cut = self.cuts.iter().position(|known| *known == (*dim, 1));
                    state = self.with_last_cut(&state, axis, cut.unwrap_or_default());
                }
            }
        }
        state
    }

    /// The layout of a state.
    pub(super) fn layout(&self, state: &State) -> Result<Layout> {
        let mut placements = vec![Placement::Replicate; self.n_axes()];
        let mut order: Vec<Vec<Cut>> = vec![Vec::new(); self.shape.len()];
        for (axis, placement) in placements.iter_mut().enumerate() {
            if let AxisUse::Partial(op) = state.axis_use(axis) {
                *placement = Placement::Partial(op);
            }
        }
        for dim in &self.dims {
            for (axis, cut) in self.dim_cuts(state, *dim).iter() {
                placements[axis] = Placement::Shard(*dim);
                order[*dim].push(Cut { axis, split_factor: self.cuts[cut].1 });
            }
        }
        Layout::intern(self.shape, self.dtype, self.mesh, &placements, ShardOrder::from_cuts(order))
    }

    /// The cuts of a dim, in order.
    pub(super) fn dim_cuts(&self, state: &State, dim: usize) -> DimCuts {
        let mut cuts = DimCuts { cuts: [(0, 0); Mesh::MAX_AXES], len: 0 };
        for axis in 0..self.n_axes() {
            if let AxisUse::Cut(cut) = state.axis_use(axis)
                && self.cuts[cut].0 == dim
            {
                cuts.cuts[usize::from(state.position[axis])] = (axis as u8, cut as u8);
                cuts.len += 1;
            }
        }
        cuts
    }

    /// What every rank has of a dim that is cut so, in the order of the mesh's coordinates. For
    /// small meshes.
    pub(super) fn held(&self, dim: usize, cuts: &DimCuts) -> Rc<[Intervals]> {
        // So few that looking at all of them is faster than hashing.
        let same = |known: &&Held| known.dim == dim && known.cuts.iter().eq(cuts.iter());
        if let Some(known) = self.held.borrow().iter().find(same) {
            return Rc::clone(&known.by_rank);
        }
        let mut coord = [0; Mesh::MAX_AXES];
        let at = |mut number: usize| {
            for axis in (0..self.n_axes()).rev() {
                coord[axis] = number % self.axis_size(axis);
                number /= self.axis_size(axis);
            }
            cuts.iter().fold(Intervals::whole(self.dim_size(dim)), |held, (axis, cut)| {
                held.cut(self.axis_size(axis), coord[axis], self.split_factor(cut))
            })
        };
        let by_rank: Rc<[Intervals]> = (0..self.n_ranks()).map(at).collect();
        self.held.borrow_mut().push(Held { dim, cuts: *cuts, by_rank: Rc::clone(&by_rank) });
        by_rank
    }

    /// Whether no other cut of the dim comes after this axis's.
    pub(super) fn is_last_cut(&self, state: &State, axis: usize) -> bool {
        match state.axis_use(axis) {
            AxisUse::Cut(cut) => {
                let dim = self.cuts[cut].0;
                let of_dim = (0..self.n_axes()).filter(|other| self.cuts_dim(state, *other, dim));
                of_dim.count() == usize::from(state.position[axis]) + 1
            }
            AxisUse::Replicate | AxisUse::Partial(_) => false,
        }
    }

    /// The state in which `axis`, so far no cut or the last of its dim, cuts last as `cut` says.
    pub(super) fn with_last_cut(&self, state: &State, axis: usize, cut: usize) -> State {
        let mut next = *state;
        next.set(axis, AxisUse::Replicate, 0);
        let dim = self.cuts[cut].0;
        let position = (0..self.n_axes()).filter(|other| self.cuts_dim(&next, *other, dim)).count();
        next.set(axis, AxisUse::Cut(cut), position);
        next
    }

    fn cuts_dim(&self, state: &State, axis: usize, dim: usize) -> bool {
        matches!(state.axis_use(axis), AxisUse::Cut(cut) if self.cuts[cut].0 == dim)
    }
}

impl State {
    pub(super) fn axis_use(&self, axis: usize) -> AxisUse {
        match self.code[axis] {
            REPLICATE => AxisUse::Replicate,
            code if code < FIRST_CUT => AxisUse::Partial(ReduceOp::ALL[usize::from(code - 1)]),
            code => AxisUse::Cut(usize::from(code - FIRST_CUT)),
        }
    }

    /// Whether an axis does the same in both, at the same position.
    pub(super) fn same_use(&self, other: &State, axis: usize) -> bool {
        self.code[axis] == other.code[axis] && self.position[axis] == other.position[axis]
    }

    /// The state in which `axis`, so far no cut or the last of its dim, is replicated or pending.
    pub(super) fn with(&self, axis: usize, axis_use: AxisUse) -> State {
        let mut next = *self;
        next.set(axis, axis_use, 0);
        next
    }

    fn set(&mut self, axis: usize, axis_use: AxisUse, position: usize) {
        self.position[axis] = position as u8;
        self.code[axis] = match axis_use {
            AxisUse::Replicate => REPLICATE,
            AxisUse::Partial(op) => 1 + op as u8,
            AxisUse::Cut(cut) => FIRST_CUT + cut as u8,
        };
    }
}
