//! From plain tensors to distributed ones.

use dtensor_comm::{ReduceOp, Values, ValuesMut};
use dtensor_layout::{DType, IndexBox, Layout, Placement};
use dtensor_local::{LocalError, Tensor};

use crate::{
    DTensor, DeviceMesh, Error, Result,
    exchange::members,
    redistribute::{Parts, view},
};

/// Distributes a tensor that the first rank of the mesh has: every rank gets its part of *that* tensor.
/// All ranks pass one of the same shape and dtype.
///
/// ```
/// use dtensor::{DeviceMesh, Placement::Shard, Runner, Tensor, distribute_tensor};
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "x")?;
///     let mine = Tensor::full(&[3], world.rank() as f32)?;
///     let x = distribute_tensor(&mine, &mesh, &[Shard(0)])?;
///     assert_eq!(x.to_vec::<f32>()?, [0.0; 3]);
///     Ok::<_, dtensor::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn distribute_tensor(
    tensor: &Tensor,
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> Result<DTensor> {
    distribute_tensor_from(tensor, mesh, placements, Some(0))
}

/// As [`distribute_tensor`], of the tensor that rank `src_data_rank` of the mesh has (counted in the order of
/// coordinates). With `None` nothing is sent: every rank takes its part of its own, which must be the same
/// everywhere.
pub fn distribute_tensor_from(
    tensor: &Tensor,
    mesh: &DeviceMesh,
    placements: &[Placement],
    src_data_rank: Option<usize>,
) -> Result<DTensor> {
    const OP: &str = "distribute_tensor";
    let layout = Layout::new(tensor.shape(), tensor.dtype(), mesh.mesh(), placements)
        .map_err(Error::layout(OP))?;
    let source = match src_data_rank {
        None => None,
        Some(rank) => Some(mesh.mesh().coords().nth(rank).ok_or_else(|| {
            let what = format!("src_data_rank {rank} is not on mesh {mesh}");
            Error::Unsupported { op: OP, what: what.into(), way_out: "the ranks count from 0" }
        })?),
    };
    let dtype = tensor.dtype();
    let local = match mesh.coord() {
        None => Tensor::empty(&[0], dtype)?,
        Some(coord) if mesh.is_fake() => Tensor::meta(&layout.local_shape(coord), dtype)?,
        Some(coord) => {
            let part = match &source {
                None => part_of(tensor, &layout, coord)?,
                Some(source) => received_from(OP, tensor, &layout, mesh, coord, source)?,
            };
            contribution(part, &layout, coord)?
        }
    };
    Ok(DTensor::from_parts(local, layout, mesh.clone()))
}

/// How [`DTensor::from_local_with`] takes parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalOptions {
    /// The global shape. Without it the ranks tell each other the shapes of their parts, in one small
    /// exchange, and put it together.
    pub shape: Option<Vec<usize>>,
    /// Whether to compare, too, that parts which should be copies are: it sends a checksum.
    pub run_check: bool,
    /// What the gradients of the parts are to each other; see [`DTensor::from_local_part`].
    pub grad_placements: Option<Vec<Placement>>,
}

impl DTensor {
    /// The tensor of which every rank has a part. Parts may be uneven as [`Layout`] means it: chunks of equal
    /// size, of which the last ones are short or empty. What is cut any other way is refused, on all ranks.
    ///
    /// ```
    /// use dtensor::{DTensor, DeviceMesh, Placement::Shard, Runner, Tensor};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let mesh = DeviceMesh::of_world(world, "x")?;
    ///     let mine = Tensor::full(&[[3, 2][world.rank()], 4], 1.0_f32)?;
    ///     let x = DTensor::from_local(&mine, &mesh, &[Shard(0)])?;
    ///     assert_eq!(x.shape(), [5, 4]);
    ///     Ok::<_, dtensor::Error>(())
    /// })?;
    /// # Ok::<(), dtensor::RunError>(())
    /// ```
    pub fn from_local(
        local: &Tensor,
        mesh: &DeviceMesh,
        placements: &[Placement],
    ) -> Result<DTensor> {
        DTensor::from_local_with(local, mesh, placements, &LocalOptions::default())
    }

    /// As [`from_local`](DTensor::from_local), of this global shape. Nothing is sent: a part that does not
    /// fit is refused on the rank that has it.
    pub fn from_local_with_shape(
        local: &Tensor,
        mesh: &DeviceMesh,
        placements: &[Placement],
        shape: &[usize],
    ) -> Result<DTensor> {
        let options = LocalOptions { shape: Some(shape.to_vec()), ..LocalOptions::default() };
        DTensor::from_local_with(local, mesh, placements, &options)
    }

    /// As [`from_local`](DTensor::from_local), with options.
    pub fn from_local_with(
        local: &Tensor,
        mesh: &DeviceMesh,
        placements: &[Placement],
        options: &LocalOptions,
    ) -> Result<DTensor> {
        const OP: &str = "from_local";
        // What is wrong with the placements alone is the same on every rank.
        let n_dims = options.shape.as_ref().map_or(local.n_dims(), Vec::len);
        let stand_in = Layout::new(&vec![1; n_dims], local.dtype(), mesh.mesh(), placements);
        stand_in.map_err(Error::layout(OP))?;
        let dtype = local.dtype();
        let layout = |shape: &[usize]| {
            Layout::new(shape, dtype, mesh.mesh(), placements).map_err(Error::layout(OP))
        };
        let cuts = placements.iter().any(|placement| placement.shard_dim().is_some());
        let layout = match &options.shape {
            Some(shape) => layout(shape)?,
            None => {
                mesh.own_coord(OP)?;
                match cuts && !mesh.is_fake() {
                    true => agree_on_shape(local, mesh, placements)?,
                    // Nothing to put together, or nobody to ask: then shards are even.
                    false => layout(&even_shape(local, mesh, placements))?,
                }
            }
        };
        let Some(coord) = mesh.coord() else {
            // What its dtype is elsewhere, only the others know.
            return Ok(DTensor::from_parts(Tensor::empty(&[0], dtype)?, layout, mesh.clone()));
        };
        check_part(local, &layout, mesh.world().rank(), coord)?;
        if options.run_check && !mesh.is_fake() {
            check_copies(local, &layout, mesh)?;
        }
        let local = match mesh.is_fake() {
            true => Tensor::meta(local.shape(), dtype)?,
            false => local.clone(),
        };
        Ok(DTensor::from_parts(local, layout, mesh.clone()))
    }
}

/// The part of a whole tensor that the rank at `coord` holds. In memory of its own: the whole may be large.
fn part_of(whole: &Tensor, layout: &Layout, coord: &[usize]) -> Result<Tensor> {
    let boxes = layout.boxes(coord);
    if let [one] = &*boxes {
        let part = view(whole, one)?;
        return Ok(if part.shape() == whole.shape() { part } else { part.copied() });
    }
    let mut part = Tensor::zeros(&layout.local_shape(coord), whole.dtype())?;
    for global in &boxes {
        if let Some(local) = layout.local_box(coord, global) {
            part.slice_assign_in_place(&local.0, &view(whole, global)?)?;
        }
    }
    Ok(part)
}

/// Where a reduction is pending, the first rank of the axis keeps the value.
fn contribution(part: Tensor, layout: &Layout, coord: &[usize]) -> Result<Tensor> {
    let pending = layout.placements().iter().zip(coord).filter(|(_, index)| **index != 0);
    for op in pending.filter_map(|(placement, _)| placement.reduce_op()) {
        match op {
            ReduceOp::Sum => return Ok(part.zeros_like()?),
            ReduceOp::Product => return Ok(part.ones_like()?),
            ReduceOp::Avg | ReduceOp::Max | ReduceOp::Min => {}
        }
    }
    Ok(part)
}

/// The rank at `source` sends the ranks beside it on the axes that cut their parts; those and it pass theirs
/// on along the other axes.
fn received_from(
    op: &'static str,
    tensor: &Tensor,
    layout: &Layout,
    mesh: &DeviceMesh,
    coord: &[usize],
    source: &[usize],
) -> Result<Tensor> {
    let dtype = layout.dtype();
    let is_cut = |axis: &usize| layout.placements()[*axis].shard_dim().is_some();
    let cut: Vec<usize> = (0..mesh.n_axes()).filter(is_cut).collect();
    let other: Vec<usize> = (0..mesh.n_axes()).filter(|axis| !is_cut(axis)).collect();
    let shape = layout.local_shape(coord);
    let boxes_at = |coord: &[usize]| layout.boxes(coord);
    let own = |boxes: Vec<IndexBox>| Parts::new(layout, coord, std::iter::once(boxes));
    let mut part = None;
    if other.iter().all(|axis| coord[*axis] == source[*axis]) {
        let group = mesh.group_of(op, &cut)?.tag(op);
        let members = members(mesh, &cut, coord);
        let root = members.iter().position(|member| member == source).unwrap_or(0);
        let counts: Vec<usize> = members.iter().map(|member| layout.local_numel(member)).collect();
        let packed = match coord == source {
            true => {
                let views = members.iter().flat_map(|member| boxes_at(member));
                let views =
                    views.map(|global| view(tensor, &global)).collect::<Result<Vec<_>>>()?;
                Some(Tensor::pack(dtype, &views)?)
            }
            false => None,
        };
        let received = Tensor::from_bytes_with(&[layout.local_numel(coord)], dtype, |bytes| {
            let recv = ValuesMut::from_bytes(dtype, bytes).map_err(Error::comm(op))?;
            let send = match &packed {
                Some(packed) => {
                    Some(Values::from_bytes(dtype, packed.as_bytes()?).map_err(Error::comm(op))?)
                }
                None => None,
            };
            group.erased().scatter_v(send, &counts, recv, root).map_err(Error::comm(op))
        })?;
        part = Some(own(boxes_at(coord)).unpack(&received, &shape)?);
    }
    if other.is_empty() {
        return part.map_or_else(|| Ok(Tensor::empty(&shape, dtype)?), Ok);
    }
    let group = mesh.group_of(op, &other)?.tag(op);
    let beside = members(mesh, &other, coord);
    let is_root = |member: &Vec<usize>| other.iter().all(|axis| member[*axis] == source[*axis]);
    let root = beside.iter().position(is_root).unwrap_or(0);
    Tensor::from_bytes_with(&shape, dtype, |bytes| {
        if let Some(part) = &part {
            bytes.copy_from_slice(part.contiguous().as_bytes()?);
        } else {
            // Any bytes are numbers, but bools are checked before they are overwritten.
            bytes.fill(0);
        }
        let buf = ValuesMut::from_bytes(dtype, bytes).map_err(Error::comm(op))?;
        group.erased().broadcast(buf, root).map_err(Error::comm(op))
    })
}

/// The global shape if shards are even.
fn even_shape(local: &Tensor, mesh: &DeviceMesh, placements: &[Placement]) -> Vec<usize> {
    let mut shape = local.shape().to_vec();
    for (axis, placement) in placements.iter().enumerate() {
        if let Some(size) = placement.shard_dim().and_then(|dim| shape.get_mut(dim)) {
            *size *= mesh.mesh().axis_size(axis);
        }
    }
    shape
}

/// The most dims that parts may have whose shapes are to be put together.
const MAX_DIMS: usize = 14;

/// Every rank tells every other the dtype and shape of its part; what they make of it is the same.
fn agree_on_shape(local: &Tensor, mesh: &DeviceMesh, placements: &[Placement]) -> Result<Layout> {
    const OP: &str = "from_local";
    let mut own = [0_i64; MAX_DIMS + 2];
    own[0] = DType::ALL.iter().position(|dtype| *dtype == local.dtype()).unwrap_or(0) as i64;
    own[1] = local.n_dims() as i64;
    for (place, size) in own[2..].iter_mut().zip(local.shape()) {
        *place = *size as i64;
    }
    let axes: Vec<usize> = (0..mesh.n_axes()).collect();
    let group = mesh.group_of(OP, &axes)?.tag(OP);
    let mut all = vec![0_i64; own.len() * group.size()];
    group.all_gather(&own, &mut all).map_err(Error::comm(OP))?;
    let parts: Vec<&[i64]> = all.chunks(own.len()).collect();
    let ranks = group.world_ranks();
    let differs = |position: &usize| parts[*position][0] != parts[0][0];
    if let Some(position) = (0..parts.len()).find(differs) {
        let dtype = |code: i64| DType::ALL[usize::try_from(code).unwrap_or(0) % DType::ALL.len()];
        return Err(Error::MixedDTypes {
            first_rank: ranks[0],
            first: dtype(parts[0][0]),
            rank: ranks[position],
            got: dtype(parts[position][0]),
        });
    }
    let shape_of = |part: &[i64]| -> Vec<usize> {
        let sizes = part[2..].iter().take(usize::try_from(part[1]).unwrap_or(0));
        sizes.map(|size| usize::try_from(*size).unwrap_or(0)).collect()
    };
    let coords: Vec<Vec<usize>> = mesh.mesh().coords().collect();
    let mut shape = shape_of(parts[0]);
    if let Some(part) = parts.iter().find(|part| part[1] != parts[0][1]) {
        return Err(LocalError::ShapeMismatch {
            op: OP,
            from: shape_of(part),
            to: shape,
            why: "the parts must have the same number of dims on all ranks",
        }
        .into());
    }
    if shape.len() > MAX_DIMS {
        let what = format!("parts of {} dims", shape.len()).into();
        return Err(Error::Unsupported { op: OP, what, way_out: "give the global shape" });
    }
    for (dim, size) in shape.iter_mut().enumerate() {
        let is_cut = |axis: usize| placements[axis] == Placement::Shard(dim);
        // The ranks at the beginning of all axes that do not cut this dim.
        let line = coords
            .iter()
            .zip(&parts)
            .filter(|(coord, _)| (0..coord.len()).all(|axis| is_cut(axis) || coord[axis] == 0));
        *size = line.map(|(_, part)| usize::try_from(part[2 + dim]).unwrap_or(0)).sum();
    }
    let layout =
        Layout::new(&shape, local.dtype(), mesh.mesh(), placements).map_err(Error::layout(OP))?;
    for ((coord, part), rank) in coords.iter().zip(&parts).zip(ranks) {
        let (got, want) = (shape_of(part), layout.local_shape(coord));
        if got != want {
            return Err(wrong_part(*rank, &got, &want, &layout));
        }
    }
    Ok(layout)
}

fn check_part(local: &Tensor, layout: &Layout, rank: usize, coord: &[usize]) -> Result<()> {
    let want = layout.local_shape(coord);
    match local.shape() == want {
        true => Ok(()),
        false => Err(wrong_part(rank, local.shape(), &want, layout)),
    }
}

fn wrong_part(rank: usize, got: &[usize], want: &[usize], layout: &Layout) -> Error {
    Error::WrongLocal {
        rank,
        got: got.into(),
        want: want.into(),
        global: layout.global_shape().into(),
        layout: layout.to_string().into(),
    }
}

/// That parts which should be copies have the same bytes, by a checksum.
fn check_copies(local: &Tensor, layout: &Layout, mesh: &DeviceMesh) -> Result<()> {
    const OP: &str = "from_local";
    let whole = local.contiguous();
    // FNV-1a: what differs by accident differs in this, too.
    let sum = whole.as_bytes()?.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    for (axis, placement) in layout.placements().iter().enumerate() {
        if *placement != Placement::Replicate {
            continue;
        }
        let group = mesh.group_of(OP, &[axis])?.tag(OP);
        let mut sums = vec![0_i64; group.size()];
        group.all_gather(&[sum as i64], &mut sums).map_err(Error::comm(OP))?;
        let differ = i64::from(sums.iter().any(|other| *other != sums[0]));
        // Others of the mesh may be fine; they are told.
        let all: Vec<usize> = (0..mesh.n_axes()).collect();
        let mut any = [differ];
        let everybody = mesh.group_of(OP, &all)?.tag(OP);
        everybody.all_reduce(&mut any, ReduceOp::Max).map_err(Error::comm(OP))?;
        if any[0] != 0 {
            return Err(Error::CopiesDiffer { axis: mesh.mesh().axes()[axis].name().into() });
        }
    }
    Ok(())
}
