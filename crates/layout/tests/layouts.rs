//! Layouts against PyTorch's, and properties that hold for all of them.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

use dtensor_layout::{DType, Layout, LayoutError, Mesh, Placement, ReduceOp};
use dtensor_testing::{
    generate,
    golden::{LocalCase, layout_cases},
};
use proptest::prelude::*;

#[test]
fn all_600_layouts_are_pytorchs() {
    for (number, case) in layout_cases().into_iter().enumerate() {
        let mesh = Mesh::from_sizes(&case.mesh).unwrap();
        let layout = Layout::parse(&case.shape, DType::F32, &mesh, &case.placements).unwrap();
        let local: Vec<LocalCase> = mesh
            .coords()
            .map(|coord| LocalCase {
                shape: layout.local_shape(&coord),
                offset: layout.local_offset(&coord),
                coord,
            })
            .collect();
        assert_eq!(local, case.local, "line {}: {layout:?}", number + 1);
    }
}

#[test]
fn strided_shards_survive_the_way_to_pytorch_and_back() {
    for case in layout_cases() {
        let mesh = Mesh::from_sizes(&case.mesh).unwrap();
        let layout = Layout::parse(&case.shape, DType::F32, &mesh, &case.placements).unwrap();
        let again = Layout::from_torch(&case.shape, DType::F32, &mesh, &layout.to_torch().unwrap())
            .unwrap();
        assert_eq!(again, layout, "{:?}", case.placements);
    }
}

/// Layouts of every kind, explicit orders and strided shards among them.
fn layouts() -> impl Strategy<Value = Layout> {
    (generate::shape(3), generate::mesh(27))
        .prop_flat_map(|(shape, mesh)| generate::any_layout_of(shape, mesh, DType::F32))
}

/// Every index of a shape.
fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![vec![]], |done, size| {
        done.into_iter()
            .flat_map(|index| (0..*size).map(move |i| [index.clone(), vec![i]].concat()))
            .collect()
    })
}

proptest! {
    #[test]
    fn the_boxes_of_a_coordinate_are_what_its_owners_say(layout in layouts()) {
        for coord in layout.mesh().coords() {
            let boxes = layout.boxes(&coord);
            let n_held: usize = boxes.iter().map(|held| held.numel()).sum();
            prop_assert_eq!(n_held, layout.local_numel(&coord));
            for index in indices(layout.global_shape()) {
                let inside = boxes.iter().any(|held| held.0.iter().zip(&index).all(|(range, i)| range.contains(i)));
                let owners = layout.owners(&index).unwrap();
                let owns = owners.0.iter().zip(&coord).all(|(owner, i)| owner.is_none_or(|owner| owner == *i));
                prop_assert_eq!(inside, owns, "{:?} at {:?}, index {:?}", layout, coord, index);
            }
        }
    }

    #[test]
    fn layouts_print_and_parse_back_to_the_same_allocation(layout in layouts()) {
        let complete = format!("{layout:?}");
        prop_assert_eq!(&complete.parse::<Layout>().unwrap(), &layout);
        let short = Layout::parse(layout.global_shape(), layout.dtype(), layout.mesh(), &layout.to_string()).unwrap();
        prop_assert_eq!(short, layout);
    }

    #[test]
    fn the_rank_at_zero_holds_the_most(layout in layouts()) {
        // A strided cut of an uneven remainder may give a later rank more.
        prop_assume!(layout.order().dims().flatten().all(|cut| cut.split_factor == 1));
        let zero = vec![0; layout.mesh().n_axes()];
        for coord in layout.mesh().coords() {
            prop_assert!(layout.local_numel(&coord) <= layout.local_numel(&zero));
        }
    }
}

#[test]
fn a_scalar_is_a_layout_without_dims() {
    let mesh = Mesh::new(&[("dp", 2)]).unwrap();
    let layout = Layout::new(&[], DType::I64, &mesh, &[Placement::Replicate]).unwrap();
    assert_eq!((layout.numel(), layout.local_bytes(&[1])), (1, 8));
    assert_eq!(layout.boxes(&[0]).len(), 1);
    assert_eq!(format!("{layout:?}").parse(), Ok(layout));
}

#[test]
fn bad_input_names_the_values_and_the_cure() {
    let mesh = Mesh::new(&[("dp", 2), ("tp", 2)]).unwrap();
    let check = |placements: &str, dtype: DType, want: &str| {
        let error = Layout::parse(&[4, 6], dtype, &mesh, placements).unwrap_err();
        assert_eq!(error.to_string(), want);
    };
    let f32 = DType::F32;
    check("S(2), R", f32, "dim 2 is out of range for a tensor of 2 dims; give -2..2");
    check("S(-3), R", f32, "dim -3 is out of range for a tensor of 2 dims; give -2..2");
    check("R", f32, "1 placements for a mesh of 2 axes (dp=2,tp=2); give one per axis");
    check("R, R, R", f32, "3 placements for a mesh of 2 axes (dp=2,tp=2); give one per axis");
    check(
        "P(sum), P(max)",
        f32,
        "P(sum) and P(max) in one layout do not commute; reduce one of them first (only sum and avg mix)",
    );
    check(
        "P(avg), R",
        DType::I64,
        "P(avg) is not defined for i64; cast to a float dtype, or use P(sum)",
    );
    check(
        "S(0)[0], S(0)",
        f32,
        "`S(0)[0], S(0)` is not a list of placements: the cuts of a dim are numbered 0, 1, ... or not at all",
    );
    check(
        "S(0), X",
        f32,
        "` X` is not a placement: expected R, S(dim), S(dim)[position], _S(dim, factor) or P(reduction)",
    );
    let huge = Layout::new(&[usize::MAX, 2], f32, &mesh, &[Placement::Replicate; 2]);
    assert!(matches!(huge, Err(LayoutError::Overflow { .. })));
    let too_many_bytes =
        Layout::new(&[usize::MAX / 4], DType::F64, &mesh, &[Placement::Replicate; 2]);
    assert!(matches!(too_many_bytes, Err(LayoutError::Overflow { .. })));
    let wrong_order = Layout::with_order(
        &[4, 6],
        f32,
        &mesh,
        &[Placement::Shard(0), Placement::Replicate],
        &[(0, &[1])],
    );
    assert!(matches!(wrong_order, Err(LayoutError::BadShardOrder { .. })));
    let mixed = [Placement::Partial(ReduceOp::Sum), Placement::Partial(ReduceOp::Avg)];
    assert!(Layout::new(&[4], f32, &mesh, &mixed).is_ok(), "sum and avg mix");
}

#[test]
fn an_empty_dim_beside_huge_ones_is_empty() {
    let mesh = Mesh::new(&[("dp", 2)]).unwrap();
    let huge = usize::MAX / 2;
    let layout = Layout::new(&[huge, huge, 0], DType::F64, &mesh, &[Placement::Shard(1)]).unwrap();
    assert_eq!((layout.numel(), layout.local_numel(&[1]), layout.local_bytes(&[0])), (0, 0, 0));
}
