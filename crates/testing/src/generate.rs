//! Proptest strategies. Small values, and such that mistakes show: a shape of equal sizes hides a
//! transposition, an even split hides a wrong offset, positive values hide a wrong sign.

use dtensor_layout::{DType, Layout, Mesh, Placement, ReduceOp, TorchPlacement};
use proptest::{prelude::*, sample::select};

/// Shapes of up to `max_dims` dims of sizes from 0 to 8: most often all different, sometimes any.
pub fn shape(max_dims: usize) -> impl Strategy<Value = Vec<usize>> {
    let sizes = vec![2usize, 3, 5, 7, 8, 4, 1, 6];
    let different = (0..=max_dims.min(sizes.len()), Just(sizes).prop_shuffle())
        .prop_map(|(n_dims, sizes)| sizes[..n_dims].to_vec());
    let any = prop::collection::vec(0usize..=8, 0..=max_dims);
    prop_oneof![4 => different, 1 => any]
}

/// Meshes of one to three axes and at most `max_ranks` ranks, axes of one rank included.
pub fn mesh(max_ranks: usize) -> impl Strategy<Value = Mesh> {
    let max_ranks = max_ranks.max(1);
    let mut meshes: Vec<Vec<usize>> = (1..=max_ranks).map(|size| vec![size]).collect();
    for a in 1..=max_ranks {
        for b in 1..=max_ranks / a {
            meshes.push(vec![a, b]);
            meshes.extend((1..=max_ranks / (a * b)).map(|c| vec![a, b, c]));
        }
    }
    select(meshes).prop_map(|sizes| Mesh::from_sizes(&sizes).unwrap())
}

/// One of the eight dtypes.
pub fn dtype() -> impl Strategy<Value = DType> {
    select(&DType::ALL[..])
}

/// Placements that are legal together: the pending reductions commute and are defined on `dtype`.
pub fn placements(
    n_axes: usize,
    n_dims: usize,
    dtype: DType,
) -> impl Strategy<Value = Vec<Placement>> {
    let pending: Vec<ReduceOp> =
        ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)).collect();
    select(pending).prop_flat_map(move |op| {
        let kept = select(vec![Placement::Replicate, Placement::Partial(op)]).boxed();
        let one = match n_dims {
            0 => kept,
            // Cuts are where the arithmetic is, so they come as often as the rest together.
            n_dims => prop_oneof![kept, (0..n_dims).prop_map(Placement::Shard)].boxed(),
        };
        prop::collection::vec(one, n_axes)
    })
}

/// Layouts on at most `max_ranks` ranks, as [`layout_of`] gives them.
pub fn layout(dtype: DType, max_ranks: usize) -> impl Strategy<Value = Layout> {
    (shape(4), mesh(max_ranks)).prop_flat_map(move |(shape, mesh)| layout_of(shape, mesh, dtype))
}

/// Layouts of one tensor on one mesh; sometimes the axes cut a dim in another order than from left
/// to right.
pub fn layout_of(shape: Vec<usize>, mesh: Mesh, dtype: DType) -> impl Strategy<Value = Layout> {
    let n_axes = mesh.n_axes();
    let order = Just((0..n_axes).collect::<Vec<usize>>());
    let order = prop_oneof![2 => order.clone(), 1 => order.prop_shuffle()];
    (placements(n_axes, shape.len(), dtype), order).prop_map(move |(placements, order)| {
        let axes_of = |dim| {
            let cuts = |axis: &&usize| placements[**axis] == Placement::Shard(dim);
            order.iter().filter(cuts).copied().collect::<Vec<usize>>()
        };
        let orders: Vec<(usize, Vec<usize>)> =
            (0..shape.len()).map(|dim| (dim, axes_of(dim))).collect();
        let orders: Vec<(usize, &[usize])> =
            orders.iter().map(|(dim, axes)| (*dim, axes.as_slice())).collect();
        Layout::with_order(&shape, dtype, &mesh, &placements, &orders).unwrap()
    })
}

/// As [`layout_of`], with PyTorch's strided shards among them.
pub fn any_layout_of(shape: Vec<usize>, mesh: Mesh, dtype: DType) -> impl Strategy<Value = Layout> {
    let factors = prop::collection::vec(1usize..5, mesh.n_axes());
    let placements = placements(mesh.n_axes(), shape.len(), dtype);
    let (same_shape, same_mesh) = (shape.clone(), mesh.clone());
    let strided = (placements, factors).prop_map(move |(placements, factors)| {
        let strided = |(placement, split_factor): (&Placement, &usize)| match *placement {
            Placement::Shard(dim) => {
                TorchPlacement::StridedShard { dim, split_factor: *split_factor }
            }
            other => other.into(),
        };
        let placements: Vec<TorchPlacement> =
            placements.iter().zip(&factors).map(strided).collect();
        Layout::from_torch(&same_shape, dtype, &same_mesh, &placements).unwrap()
    });
    prop_oneof![3 => layout_of(shape, mesh, dtype), 1 => strided]
}

/// `len` values of either sign that `dtype` holds exactly, and so small that sums and products of a
/// few of them are exact as well. 0 and 1 for `bool`; `u8` has no negative ones.
pub fn values(dtype: DType, len: usize) -> impl Strategy<Value = Vec<f64>> {
    let one: BoxedStrategy<f64> = match dtype {
        DType::Bool => any::<bool>().prop_map(f64::from).boxed(),
        DType::U8 => (0i32..6).prop_map(f64::from).boxed(),
        DType::I32 | DType::I64 => (-9i32..=9).prop_map(f64::from).boxed(),
        // Multiples of 1/4 below 4 have at most 4 significant bits; bf16 has 8.
        DType::F32 | DType::F64 | DType::Bf16 | DType::F16 => {
            (-15i32..=15).prop_map(|quarters| f64::from(quarters) / 4.0).boxed()
        }
    };
    prop::collection::vec(one, len)
}

#[cfg(test)]
mod tests {
    use proptest::strategy::ValueTree;

    use super::*;

    fn sample<S: Strategy>(strategy: S) -> Vec<S::Value> {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        (0..200).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
    }

    #[test]
    fn most_shapes_have_different_sizes() {
        let boring = |shape: &&Vec<usize>| {
            shape.iter().enumerate().any(|(i, size)| shape[..i].contains(size))
        };
        let shapes = sample(shape(4));
        assert!(shapes.iter().filter(boring).count() < shapes.len() / 4);
        assert!(shapes.iter().any(|shape| shape.contains(&0)));
        assert!(shapes.iter().any(Vec::is_empty));
    }

    #[test]
    fn layouts_come_in_every_kind() {
        let layouts = sample(layout(DType::I32, 8));
        let any = |is: &dyn Fn(&Layout) -> bool| layouts.iter().any(is);
        assert!(any(&Layout::is_partial) && any(&Layout::is_replicated));
        assert!(any(&|layout| !layout.order().is_left_to_right()));
        assert!(any(
            &|layout| layout.local_numel(&vec![0; layout.mesh().n_axes()]) != layout.numel()
        ));
        assert!(layouts.iter().all(|layout| layout.mesh().size() <= 8));
    }

    #[test]
    fn values_have_both_signs_and_are_exact_in_their_dtype() {
        let all = |dtype| sample(values(dtype, 3)).concat();
        for dtype in DType::ALL {
            let unsigned = matches!(dtype, DType::U8 | DType::Bool);
            assert_eq!(all(dtype).iter().any(|value| *value < 0.0), !unsigned, "{dtype}");
            assert_eq!(all(dtype).iter().any(|value| value.fract() != 0.0), dtype.is_float());
        }
        let exact = |value: f64| f64::from(dtensor_dtype::bf16::from_f64(value)) == value;
        assert!(all(DType::Bf16).into_iter().all(exact));
    }
}
