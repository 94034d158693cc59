//! Layouts against JAX's, Shardy's and XLA's texts, and properties that hold for all of them.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::ops::Range;

use dtensor_layout::{DType, Layout, LayoutError, Mesh, Placement};
use dtensor_testing::golden::{XlaCase, xla_cases};
use proptest::prelude::*;

const F32: DType = DType::F32;

fn layout_of(case: &XlaCase) -> Layout {
    let mesh = Mesh::new(&case.mesh).unwrap();
    Layout::from_axes_per_dim(&case.shape, F32, &mesh, &case.spec).unwrap()
}

/// What every rank holds, in rank order.
fn boxes(layout: &Layout) -> Vec<Vec<Vec<Range<usize>>>> {
    let mut ranks: Vec<usize> = layout.mesh().ranks().collect();
    ranks.sort_unstable();
    let coord = |rank: usize| layout.mesh().coord_of(rank).unwrap();
    ranks
        .into_iter()
        .map(|rank| layout.boxes(&coord(rank)).into_iter().map(|held| held.0).collect())
        .collect()
}

#[test]
fn all_200_layouts_print_as_jax_prints_them() {
    for (number, case) in xla_cases().into_iter().enumerate() {
        let layout = layout_of(&case);
        let context = format!("line {}: {layout:?}", number + 1);
        assert_eq!(layout.partition_spec().unwrap(), case.spec, "{context}");
        assert_eq!(layout.to_hlo().unwrap(), case.hlo, "{context}");
        // JAX writes a sharding for every array of a program, so the file has one in every line.
        assert_eq!(Some(layout.to_shardy().unwrap()), case.sdy, "{context}");
        let want: Vec<Vec<Vec<Range<usize>>>> = case
            .boxes
            .iter()
            .map(|dims| vec![dims.iter().map(|(start, stop)| *start..*stop).collect()])
            .collect();
        assert_eq!(boxes(&layout), want, "{context}");
    }
}

#[test]
fn all_200_layouts_parse_from_what_jax_prints() {
    for case in xla_cases() {
        let layout = layout_of(&case);
        let (shape, mesh) = (&case.shape, layout.mesh());
        let sdy = Layout::from_shardy(shape, F32, mesh, case.sdy.as_ref().unwrap()).unwrap();
        assert_eq!(sdy, layout);
        let hlo = Layout::from_hlo(shape, F32, mesh, &case.hlo).unwrap();
        assert_eq!(boxes(&hlo), boxes(&layout), "{}", case.hlo);
        // Python's repr of the list of entries.
        let entries: Vec<String> = case
            .spec
            .iter()
            .map(|axes| match axes.as_slice() {
                [] => "None".to_string(),
                [axis] => format!("'{axis}'"),
                axes => format!(
                    "({})",
                    axes.iter().map(|axis| format!("'{axis}'")).collect::<Vec<_>>().join(", ")
                ),
            })
            .collect();
        let comma = if entries.len() == 1 { "," } else { "" };
        let spec = format!("P({}{comma})", entries.join(", "));
        assert_eq!(Layout::from_partition_spec(shape, F32, mesh, &spec).unwrap(), layout, "{spec}");
    }
}

#[track_caller]
fn check_hlo(mesh: &str, shape: &[usize], placements: &str, want: &str) {
    let mesh: Mesh = mesh.parse().unwrap();
    let layout = Layout::parse(shape, F32, &mesh, placements).unwrap();
    assert_eq!(layout.to_hlo().unwrap(), want);
    assert_eq!(Layout::from_hlo(shape, F32, &mesh, want).unwrap(), layout);
}

#[test]
fn pending_sums_print_as_in_xlas_tests() {
    // From XLA's sharding_conversions_test.cc (Apache 2.0).
    check_hlo("a=3,b=2", &[4, 4, 4], "[P, P]", "{unreduced}");
    check_hlo(
        "a=3,b=2",
        &[4, 4, 6],
        "[S(2), P]",
        "{devices=[1,1,3,2]<=[6] last_tile_dims={unreduced}}",
    );
    check_hlo(
        "a=2,b=3",
        &[6, 4],
        "[P, S(0)]",
        "{devices=[3,1,2]<=[2,3]T(1,0) last_tile_dims={unreduced}}",
    );
    check_hlo(
        "a=3,b=2",
        &[4, 4, 4],
        "[R, P]",
        "{devices=[1,1,1,2,3]<=[3,2]T(1,0) last_tile_dims={unreduced, replicated}}",
    );
    check_hlo(
        "a=3,b=2,c=2",
        &[6],
        "[S(0), R, P]",
        "{devices=[3,2,2]<=[3,2,2]T(0,2,1) last_tile_dims={unreduced, replicated}}",
    );
    check_hlo(
        "a=7,b=2,c=5,d=3",
        &[6, 4],
        "[R, P, R, S(0)]",
        "{devices=[3,1,2,35]<=[7,2,5,3]T(3,1,0,2) last_tile_dims={unreduced, replicated}}",
    );
    // Pending axes in another order than ours mean the same.
    let mesh = Mesh::from_sizes(&[12, 3, 2, 5, 6, 3, 3]).unwrap();
    let text = "{devices=[2,3,45,72]<=[12,3,2,5,6,3,3]T(2,1,6,3,5,0,4) last_tile_dims={unreduced, replicated}}";
    let layout = Layout::from_hlo(&[4, 6], F32, &mesh, text).unwrap();
    assert_eq!(layout.to_string(), "[R, S(1), S(0), P(sum), R, P(sum), P(sum)]");
    let sorted = "{devices=[2,3,45,72]<=[12,3,2,5,6,9]T(2,1,3,5,0,4) last_tile_dims={unreduced, replicated}}";
    assert_eq!(layout.to_hlo().unwrap(), sorted);
}

#[test]
fn scalars_and_meshes_of_one_rank_have_texts() {
    check_hlo("a=2,b=2", &[], "[R, R]", "{replicated}");
    check_hlo(
        "a=2,b=2",
        &[],
        "[P, R]",
        "{devices=[2,2]<=[4] last_tile_dims={unreduced, replicated}}",
    );
    check_hlo("a=1", &[3], "[R]", "{replicated}");
    check_hlo("a=1:1@5", &[3], "[R]", "{maximal device=5}");
    let mesh: Mesh = "a=1".parse().unwrap();
    let layout = Layout::parse(&[3], F32, &mesh, "[S(0)]").unwrap();
    assert_eq!(layout.to_hlo().unwrap(), "{replicated}", "one tile is the whole");
    let scalar = Layout::parse(&[], F32, &mesh, "[R]").unwrap();
    assert_eq!(scalar.to_partition_spec().unwrap(), "P()");
    assert_eq!(scalar.to_shardy().unwrap(), "#sdy.sharding<@mesh, []>");
    assert_eq!(Layout::from_partition_spec(&[], F32, &mesh, "P()").unwrap(), scalar);
    assert_eq!(Layout::from_shardy(&[], F32, &mesh, "#sdy.sharding<@mesh, []>").unwrap(), scalar);
}

#[test]
fn a_transposed_mesh_shows_in_the_hlo_text() {
    check_hlo("tp=4:1,dp=2:4", &[8, 8], "[S(0), S(1)]", "{devices=[4,2]<=[2,4]T(1,0)}");
    check_hlo("tp=4:1,dp=2:4", &[8, 8], "[S(1), S(0)]", "{devices=[2,4]<=[8]}");
    // Devices that hold the same are in ascending order, whatever the mesh says.
    check_hlo(
        "b=2:1,a=3:2,c=2:6",
        &[8],
        "[R, R, S(0)]",
        "{devices=[2,6]<=[12] last_tile_dim_replicate}",
    );
    // An axis that was flattened from two that do not lie next to each other.
    check_hlo("dp_tp=2:6*2:1,cp=3:2", &[8, 9], "[S(0), S(1)]", "{devices=[4,3]<=[2,3,2]T(0,2,1)}");
    check_hlo(
        "dp_tp=2:6*2:1,cp=3:2",
        &[8, 9],
        "[R, S(1)]",
        "{devices=[1,3,4]<=[2,3,2]T(1,0,2) last_tile_dim_replicate}",
    );
}

#[test]
fn a_mesh_of_a_trillion_ranks_costs_as_much_as_one_of_eight() {
    // Anything that enumerated ranks would not come back from this.
    let mesh = Mesh::new(&[("x", 1 << 20), ("y", 1 << 10), ("z", 1 << 10)]).unwrap();
    let shape = [1 << 31, 1 << 10];
    let layout = Layout::parse(&shape, F32, &mesh, "[S(0)[1], R, S(0)[0]]").unwrap();
    let text = "{devices=[1073741824,1,1024]<=[1073741824,1024]T(1,0) last_tile_dim_replicate}";
    assert_eq!(layout.to_hlo().unwrap(), text);
    assert_eq!(Layout::from_hlo(&shape, F32, &mesh, text).unwrap(), layout);
}

#[test]
fn lists_of_devices_and_other_spellings_parse() {
    let mesh = Mesh::new(&[("x", 2), ("y", 2), ("one", 1)]).unwrap();
    let check = |text: &str, want: &str| {
        let layout = Layout::from_hlo(&[4, 4], F32, &mesh, text);
        assert_eq!(layout.unwrap().to_string(), want, "{text}");
    };
    check("{devices=[2,2]0,1,2,3}", "[S(0), S(1), R]");
    check("{devices=[2,2]0,2,1,3}", "[S(1), S(0), R]");
    check("{devices=[4,1]0,1,2,3}", "[S(0), S(0), R]");
    check("{devices=[4,1]0,2,1,3}", "[S(0)[1], S(0)[0], R]");
    check("{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}", "[S(0), R, R]");
    check("{devices=[2,1,2]1,0,3,2 last_tile_dim_replicate}", "[S(0), R, R]");
    check("{devices=[1,2,2]2,0,3,1 last_tile_dims={replicated}}", "[R, S(1), R]");
    check("{devices=[1,1,2,2]0,1,2,3 last_tile_dims={replicated, replicated}}", "[R, R, R]");
    check("{devices=[1,1,2,2]0,1,2,3 last_tile_dims={replicated, unreduced}}", "[R, P(sum), R]");
    check("{devices=[1,1,1,4]<=[4] last_tile_dims={replicated, unreduced}}", "[P(sum), P(sum), R]");
    check(" { devices=[2, 1, 2]<=[2, 2]T(0, 1) last_tile_dims={replicated} } ", "[S(0), R, R]");
    check("{unreduced}", "[P(sum), P(sum), R]");
    let check = |text: &str, want: &str| {
        let layout = Layout::from_partition_spec(&[4, 4], F32, &mesh, text);
        assert_eq!(layout.unwrap().to_string(), want, "{text}");
    };
    check("P()", "[R, R, R]");
    check("P('x')", "[S(0), R, R]");
    check("P(('x',), ())", "[S(0), R, R]");
    check("PartitionSpec(None, ('y', 'x'))", "[S(1)[1], S(1)[0], R]");
    check("jax.sharding.PartitionSpec( None , \"one\" , )", "[R, R, S(1)]");
    check("P('x', unreduced={'y'})", "[S(0), P(sum), R]");
    check("P(unreduced={'y', 'x'})", "[P(sum), P(sum), R]");
    let check = |text: &str, want: &str| {
        let layout = Layout::from_shardy(&[4, 4], F32, &mesh, text);
        assert_eq!(layout.unwrap().to_string(), want, "{text}");
    };
    check("<@mesh, [{\"x\"}, {}]>", "[S(0), R, R]");
    check("#sdy.sharding<@mesh, [{}, {}], replicated={\"x\"}>", "[R, R, R]");
    check(
        "#sdy.sharding<@mesh, [{}, {}], unreduced={\"y\"}, replicated={\"x\"}>",
        "[R, P(sum), R]",
    );
    check("#sdy.sharding<@mesh, [{\"x\"}, {}], unreduced=max{\"y\"}>", "[S(0), P(max), R]");
    check("#sdy.sharding<mesh<[\"x\"=2, \"y\"=2, \"one\"=1]>, [{\"x\"}, {}]>", "[S(0), R, R]");
}

#[test]
fn meshes_of_shardy_have_names() {
    let mesh = Mesh::new(&[("x", 2)]).unwrap();
    let layout = Layout::parse(&[4], F32, &mesh, "[S(0)]").unwrap();
    let text = layout.to_shardy_on("mesh_0").unwrap();
    assert_eq!(text, "#sdy.sharding<@mesh_0, [{\"x\"}]>");
    assert_eq!(Layout::from_shardy_on("mesh_0", &[4], F32, &mesh, &text).unwrap(), layout);
    let error = Layout::from_shardy(&[4], F32, &mesh, &text).unwrap_err();
    assert_eq!(
        error.to_string(),
        "#sdy.sharding<@mesh_0, [{\"x\"}]> cannot be written as placements on the mesh: \
         it is on mesh `@mesh_0`, not `@mesh`; give that name to from_shardy_on"
    );
    assert!(matches!(layout.to_shardy_on("a b"), Err(LayoutError::Parse { .. })));
}

/// One line per text that was printed or refused: `Ok` texts as they are, errors by their reason.
fn texts(layout: &Layout) -> [String; 4] {
    let short = |result: Result<String, LayoutError>| match result {
        Ok(text) => text,
        Err(LayoutError::NotExpressible { form, why, .. }) => format!("{form}: {why}"),
        Err(other) => panic!("{other}"),
    };
    let list = layout.partition_spec().map(|spec| format!("{spec:?}"));
    [layout.to_partition_spec(), layout.to_shardy(), layout.to_hlo(), list].map(short)
}

#[test]
fn what_a_notation_cannot_say_is_refused_with_the_way_out() {
    let mesh = Mesh::new(&[("x", 2), ("y", 3)]).unwrap();
    let texts =
        |shape: &[usize], placements| texts(&Layout::parse(shape, F32, &mesh, placements).unwrap());
    assert_eq!(
        texts(&[6], "[P(max), S(0)]"),
        [
            "a PartitionSpec: it has no P(max), as on axis `x`; reduce that axis first",
            "#sdy.sharding<@mesh, [{\"y\"}], unreduced=max{\"x\"}>",
            "an HLO sharding: it has no P(max), as on axis `x`; reduce that axis first",
            "a list of axes per dim: it has no P(max), as on axis `x`; reduce that axis first",
        ]
    );
    assert_eq!(
        texts(&[6], "[P(sum), P(avg)]")[1],
        "a Shardy sharding: it has no P(avg), as on axis `y`; reduce that axis first"
    );
    for text in texts(&[9], "[_S(0, 2), R]") {
        assert!(text.ends_with("dim 0 has a strided shard; redistribute it to S(0)"), "{text}");
    }
    for text in texts(&[4, 7], "[S(1), S(1)]") {
        let want = "XLA cuts the 7 indices of dim 1 into 6 tiles at once, which are not the pieces that cuts \
                    by x and y after each other give; pad the dim to a multiple of 6, or cut it by one axis";
        assert!(text.ends_with(want), "{text}");
    }
    // One axis is fine, and so are several where the pieces are the same.
    assert_eq!(texts(&[7], "[R, S(0)]")[2], "{devices=[3,2]<=[2,3]T(1,0) last_tile_dim_replicate}");
    assert_eq!(texts(&[11], "[S(0), S(0)]")[2], "{devices=[6]<=[6]}");
    assert_eq!(texts(&[1], "[S(0), S(0)]")[2], "{devices=[6]<=[6]}");

    let slice = Mesh::new(&[("x", 2), ("y", 3)]).unwrap().slice(&["x"], &[0, 1]).unwrap();
    let layout = Layout::parse(&[4], F32, &slice, "[S(0)]").unwrap();
    assert_eq!(layout.to_partition_spec().unwrap(), "P(\"x\")");
    let why = "its devices count from 0 without gaps, the ranks of mesh x=2:3@1 do not; \
               use a mesh that numbers them so, and tell XLA the devices separately";
    assert_eq!(
        layout.to_hlo().unwrap_err().to_string(),
        format!("f32[4] on x=2:3@1: [S(0)] cannot be written as an HLO sharding: {why}")
    );
    for text in ["{devices=[2]<=[2]}", "{replicated}", "{unreduced}"] {
        assert_eq!(
            Layout::from_hlo(&[4], F32, &slice, text).unwrap_err().to_string(),
            format!("{text} cannot be written as placements on the mesh: {why}")
        );
    }
}

/// A mesh over `0..n` with its axes in any order, some of them flattened from two.
fn meshes() -> impl Strategy<Value = Mesh> {
    let sizes = prop::collection::vec(1usize..4, 1..5);
    let order = Just([0usize, 1, 2, 3]).prop_shuffle();
    (sizes, order, any::<bool>(), any::<bool>()).prop_map(|(sizes, order, transpose, flatten)| {
        let order = order.into_iter().filter(|i| *i < sizes.len());
        let order = if transpose { order.collect() } else { (0..sizes.len()).collect::<Vec<_>>() };
        let stride = |i: usize| sizes[i + 1..].iter().product::<usize>();
        let mut factors: Vec<String> =
            order.into_iter().map(|i| format!("{}:{}", sizes[i], stride(i))).collect();
        if flatten && factors.len() > 1 {
            let minor = factors.remove(1);
            factors[0] = format!("{}*{minor}", factors[0]);
        }
        let axes: Vec<String> =
            factors.iter().enumerate().map(|(i, factor)| format!("a{i}={factor}")).collect();
        axes.join(",").parse().unwrap()
    })
}

/// A tensor on such a mesh, cut in any order; sizes that divide and sizes that do not.
fn layouts() -> impl Strategy<Value = Layout> {
    let size = prop_oneof![
        3 => prop::sample::select(vec![6usize, 12, 24, 36, 72]),
        1 => 0usize..12,
    ];
    (meshes(), prop::collection::vec(size, 1..4), prop_oneof![5 => Just("sum"), 1 => Just("max")])
        .prop_flat_map(|(mesh, shape, reduction)| {
            let dims = 0..shape.len();
            let placement = prop_oneof![
                4 => dims.clone().prop_map(|dim| format!("S({dim})")),
                1 => (dims, 1usize..3).prop_map(|(dim, factor)| format!("_S({dim}, {factor})")),
                2 => Just("R".to_string()),
                1 => Just(format!("P({reduction})")),
            ];
            let placements = prop::collection::vec(placement, mesh.n_axes());
            (Just(mesh), Just(shape), placements)
        })
        .prop_map(|(mesh, shape, placements)| {
            Layout::parse(&shape, F32, &mesh, &placements.join(", ")).unwrap()
        })
}

/// The tile of every device and whether it is pending with others, by the definition of the text:
/// build the iota, transpose it, look every device up.
fn boxes_by_definition(text: &str, shape: &[usize], n_devices: usize) -> Vec<Vec<Range<usize>>> {
    let numbers = |list: &str| -> Vec<usize> {
        list.split(',').map(|number| number.parse().unwrap()).collect()
    };
    let Some(rest) = text.strip_prefix("{devices=[") else {
        assert!(["{replicated}", "{unreduced}"].contains(&text), "{text}");
        return vec![shape.iter().map(|size| 0..*size).collect(); n_devices];
    };
    let (tiles, rest) = rest.split_once("]<=[").unwrap();
    let (sizes, rest) = rest.split_once(']').unwrap();
    let (tiles, sizes) = (numbers(tiles), numbers(sizes));
    let order = match rest.strip_prefix("T(") {
        Some(rest) => numbers(rest.split_once(')').unwrap().0),
        None => vec![0],
    };
    let mut boxes = vec![Vec::new(); n_devices];
    for position in 0..n_devices {
        let mut index = vec![0; sizes.len()];
        let mut rest = position;
        for dim in order.iter().rev() {
            index[*dim] = rest % sizes[*dim];
            rest /= sizes[*dim];
        }
        let device = index.iter().zip(&sizes).fold(0, |device, (i, size)| device * size + i);
        let mut tile = vec![0; tiles.len()];
        let mut rest = position;
        for (index, size) in tile.iter_mut().zip(&tiles).rev() {
            *index = rest % size;
            rest /= size;
        }
        assert!(boxes[device].is_empty(), "device {device} twice in {text}");
        boxes[device] = shape
            .iter()
            .zip(&tiles)
            .zip(tile)
            .map(|((size, tiles), tile)| {
                let length = size.div_ceil(*tiles);
                (tile * length).min(*size)..((tile + 1) * length).min(*size)
            })
            .collect();
    }
    boxes
}

/// Placements without those of axes of one rank, which no HLO text shows.
fn visible(layout: &Layout) -> Vec<Placement> {
    let axes = layout.mesh().axes().iter().zip(layout.placements());
    axes.filter(|(axis, _)| axis.size() > 1).map(|(_, placement)| *placement).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn names_print_and_parse_back_to_the_same_layout(layout in layouts()) {
        let (shape, mesh) = (layout.global_shape(), layout.mesh());
        if let Ok(text) = layout.to_partition_spec() {
            prop_assert_eq!(&Layout::from_partition_spec(shape, F32, mesh, &text).unwrap(), &layout);
        }
        if let Ok(text) = layout.to_shardy() {
            prop_assert_eq!(&Layout::from_shardy(shape, F32, mesh, &text).unwrap(), &layout);
        }
        if let Ok(axes) = layout.partition_spec() {
            prop_assert_eq!(&Layout::from_axes_per_dim(shape, F32, mesh, &axes).unwrap(), &layout);
        }
    }

    #[test]
    fn hlo_prints_what_it_means_and_parses_back(layout in layouts()) {
        let (shape, mesh) = (layout.global_shape(), layout.mesh());
        let Ok(text) = layout.to_hlo() else { return Ok(()) };
        let want = boxes_by_definition(&text, shape, mesh.size());
        for (held, want) in boxes(&layout).into_iter().zip(want) {
            let want = if want.iter().any(Range::is_empty) { vec![] } else { vec![want] };
            prop_assert_eq!(held, want, "{:?} as {}", layout, text);
        }
        let again = Layout::from_hlo(shape, F32, mesh, &text).unwrap();
        prop_assert_eq!(visible(&again), visible(&layout), "{:?} as {}", layout, text);
        prop_assert_eq!(boxes(&again), boxes(&layout), "{:?} as {}", layout, text);
        prop_assert_eq!(again.to_hlo().unwrap(), text);
    }

    #[test]
    fn only_what_a_notation_cannot_say_is_refused(layout in layouts()) {
        let is_strided = layout.order().dims().flatten().any(|cut| cut.split_factor > 1);
        let is_max = layout.to_string().contains("P(max)");
        let is_even = layout.order().dims().zip(layout.global_shape()).all(|(cuts, size)| {
            let tiles: usize = cuts.iter().map(|cut| layout.mesh().axis_size(cut.axis)).product();
            cuts.len() <= 1 || size % tiles == 0
        });
        if is_even && !is_strided {
            prop_assert!(layout.to_shardy().is_ok());
            prop_assert_eq!(layout.to_partition_spec().is_ok(), !is_max);
            prop_assert_eq!(layout.to_hlo().is_ok(), !is_max);
        }
        prop_assert_eq!(layout.to_shardy().is_ok() && is_strided, false);
        prop_assert_eq!(layout.partition_spec().is_ok() && layout.is_partial(), false);
    }

    #[test]
    fn lists_of_devices_mean_what_iotas_mean(layout in layouts()) {
        let (shape, mesh) = (layout.global_shape(), layout.mesh());
        let Ok(text) = layout.to_hlo() else { return Ok(()) };
        let Some((head, tail)) = text.split_once("<=") else { return Ok(()) };
        // The devices in the order of their tiles, and of their rank among those of one tile.
        let tail = tail.find(' ').map_or("}", |space| &tail[space..]);
        prop_assume!(!tail.contains("unreduced"));
        let tiles = boxes_by_definition(&text, &shape.iter().map(|_| 1 << 20).collect::<Vec<_>>(), mesh.size());
        let mut devices: Vec<usize> = (0..mesh.size()).collect();
        devices.sort_by_key(|device| tiles[*device].iter().map(|range| range.start).collect::<Vec<_>>());
        let devices: Vec<String> = devices.iter().map(usize::to_string).collect();
        let list = format!("{head}{}{tail}", devices.join(","));
        let from_list = Layout::from_hlo(shape, F32, mesh, &list).unwrap();
        prop_assert_eq!(from_list, Layout::from_hlo(shape, F32, mesh, &text).unwrap(), "{}", list);
    }

    #[test]
    fn no_text_whatever_panics(
        fragments in prop::collection::vec(
            prop::sample::select(vec![
                "{", "}", "[", "]", "(", ")", "<", ">", "<=[", "T(", ",", "=", "?", "@mesh", ":", "'", "\"", " ", "é",
                "devices=[", "replicated", "unreduced", "maximal device=", "last_tile_dim_replicate",
                "last_tile_dims={", "#sdy.sharding<@mesh, [", "mesh<[", "P(", "None", "unreduced={", "\"x\"", "'y'",
                "0", "1", "2", "4", "8", "0,1,2,3,4,5,6,7", "99999999999", "18446744073709551615", "-1", "p0", ":(1)2",
            ]),
            0..12,
        ),
        anything in any::<String>(),
    ) {
        let mesh = Mesh::new(&[("x", 2), ("y", 4)]).unwrap();
        let joined = fragments.concat();
        let texts = [
            joined.clone(),
            format!("{{devices=[{joined}"),
            format!("{{devices=[8,1]{joined}"),
            format!("{{devices=[2,4]<=[{joined}"),
            format!("{{devices=[2,1,4]<=[8]{joined}"),
            format!("#sdy.sharding<@mesh, [{joined}"),
            format!("P({joined}"),
            anything,
        ];
        for text in texts {
            for shape in [&[8, 8][..], &[], &[3]] {
                let _ = Layout::from_hlo(shape, F32, &mesh, &text);
                let _ = Layout::from_shardy(shape, F32, &mesh, &text);
                let _ = Layout::from_partition_spec(shape, F32, &mesh, &text);
            }
        }
    }

    #[test]
    fn hlo_texts_of_any_numbers_mean_themselves_or_are_refused(
        sizes in prop::sample::select(vec![vec![24], vec![2, 12], vec![12, 2], vec![2, 3, 4], vec![3, 2, 4], vec![4, 6]]),
        order in Just([0usize, 1, 2]).prop_shuffle(),
        tiles in prop::sample::select(vec![[24, 1], [2, 12], [12, 2], [6, 4], [4, 6], [3, 8], [8, 3], [1, 24]]),
        suffix in prop::sample::select(vec!["", " last_tile_dim_replicate", " last_tile_dims={unreduced}"]),
    ) {
        let mesh = Mesh::new(&[("x", 2), ("y", 3), ("z", 4)]).unwrap();
        let order: Vec<usize> = order.into_iter().filter(|i| *i < sizes.len()).collect();
        let join = |list: &[usize]| list.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let text = format!("{{devices=[{}]<=[{}]T({}){suffix}}}", join(&tiles), join(&sizes), join(&order));
        let shape = if suffix.is_empty() { vec![24, 24] } else { vec![24] };
        match Layout::from_hlo(&shape, F32, &mesh, &text) {
            Ok(layout) => {
                let want = boxes_by_definition(&text, &shape, 24);
                prop_assert_eq!(boxes(&layout).concat(), want, "{} as {:?}", text, layout);
            }
            Err(error) => prop_assert!(matches!(error, LayoutError::NotExpressible { .. }), "{}", error),
        }
    }
}
