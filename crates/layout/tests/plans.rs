//! Plans: right data on every rank, never more bytes than the greedy plan, never a detour.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

mod simulator;

use dtensor_layout::{
    DType, Layout, LayoutError, Mesh,
    Placement::{self, Partial, Replicate, Shard},
    ReduceOp,
    plan::{Plan, PlanOptions, StepKind, Topology},
};
use dtensor_testing::generate;
use proptest::prelude::*;

const SIZES: [usize; 7] = [0, 1, 2, 3, 5, 7, 8];

/// Every list of placements over {R, S(0), S(1), P(sum)}.
fn all_placements(n_axes: usize) -> Vec<Vec<Placement>> {
    let one = [Replicate, Shard(0), Shard(1), Partial(ReduceOp::Sum)];
    (0..n_axes).fold(vec![vec![]], |lists, _| {
        lists
            .into_iter()
            .flat_map(|list| one.map(|placement| [list.as_slice(), &[placement]].concat()))
            .collect()
    })
}

/// Runs the plan of every pair on the simulator and compares with the greedy plan.
fn check_all_pairs(mesh: &str, shapes: &[[usize; 2]]) {
    let mesh: Mesh = mesh.parse().unwrap();
    for shape in shapes {
        let layouts: Vec<Layout> = all_placements(mesh.n_axes())
            .iter()
            .map(|placements| Layout::new(shape, DType::F32, &mesh, placements).unwrap())
            .collect();
        for from in &layouts {
            let ranks = simulator::scatter(from);
            simulator::check(from, &ranks, "the simulator's own scatter");
            for to in &layouts {
                let plan = Plan::new(from, to).unwrap();
                let (ranks, moved) = simulator::run(&plan, ranks.clone());
                simulator::check(to, &ranks, &plan.to_string());
                let cost = plan.cost(&Topology::default());
                assert_eq!(cost.bytes_sent, moved * 4, "{plan}");
                assert!(!plan.exceeds_memory_bound(), "{plan}");
                let greedy = Plan::greedy(from, to).unwrap();
                let greedy_cost = greedy.cost(&Topology::default());
                assert!(
                    cost.bytes_sent <= greedy_cost.bytes_sent,
                    "{plan}\nbut the greedy plan is\n{greedy}"
                );
            }
        }
    }
}

/// All pairs of sizes.
fn all_shapes() -> Vec<[usize; 2]> {
    SIZES.iter().flat_map(|a| SIZES.map(|b| [*a, b])).collect()
}

#[test]
fn every_pair_is_right_on_2_ranks() {
    check_all_pairs("2", &all_shapes());
}

#[test]
fn every_pair_is_right_on_3_ranks() {
    check_all_pairs("3", &all_shapes());
}

#[test]
fn every_pair_is_right_on_2x2() {
    check_all_pairs("2x2", &all_shapes());
}

#[test]
fn every_pair_is_right_on_2x3() {
    check_all_pairs("2x3", &all_shapes());
}

/// Those 49 times 4,096 pairs take the longest, so they are shared out among four tests.
fn check_a_quarter_on_2x2x2(quarter: usize) {
    let shapes: Vec<[usize; 2]> = all_shapes().into_iter().skip(quarter).step_by(4).collect();
    check_all_pairs("2x2x2", &shapes);
}

#[test]
fn every_pair_is_right_on_2x2x2_first_quarter() {
    check_a_quarter_on_2x2x2(0);
}

#[test]
fn every_pair_is_right_on_2x2x2_second_quarter() {
    check_a_quarter_on_2x2x2(1);
}

#[test]
fn every_pair_is_right_on_2x2x2_third_quarter() {
    check_a_quarter_on_2x2x2(2);
}

#[test]
fn every_pair_is_right_on_2x2x2_fourth_quarter() {
    check_a_quarter_on_2x2x2(3);
}

/// The greedy plan is a plan too: the simulator can run it, and with it the classification of
/// steps that the search does not take.
#[test]
fn greedy_plans_are_right() {
    for mesh in ["2x2", "2x3"] {
        let mesh: Mesh = mesh.parse().unwrap();
        let lists = all_placements(2);
        for (from, to) in lists.iter().flat_map(|from| lists.iter().map(move |to| (from, to))) {
            let layout = |placements: &[Placement]| {
                Layout::new(&[5, 7], DType::F32, &mesh, placements).unwrap()
            };
            let plan = Plan::greedy(&layout(from), &layout(to)).unwrap();
            let (ranks, _) = simulator::run(&plan, simulator::scatter(plan.from()));
            simulator::check(plan.to(), &ranks, &plan.to_string());
        }
    }
}

#[test]
fn no_detour_is_cheaper() {
    let topology = Topology::default();
    for (mesh, shape) in [
        ("2", [5, 7]),
        ("3", [2048, 2047]),
        ("2x2", [5, 7]),
        ("2x3", [4096, 4096]),
        ("2x2x2", [8, 8]),
        ("2x2x2", [1 << 12, 1 << 12]),
    ] {
        let mesh: Mesh = mesh.parse().unwrap();
        let layout = |placements: &Vec<Placement>| {
            Layout::new(&shape, DType::F32, &mesh, placements).unwrap()
        };
        let layouts: Vec<Layout> = all_placements(mesh.n_axes()).iter().map(layout).collect();
        let cost = |from: &Layout, to: &Layout| {
            let cost = Plan::new(from, to).unwrap().cost(&topology);
            (cost.transfer_us, cost.latency_us)
        };
        let costs: Vec<Vec<(f64, f64)>> =
            layouts.iter().map(|from| layouts.iter().map(|to| cost(from, to)).collect()).collect();
        for (a, from_a) in costs.iter().enumerate() {
            for (b, from_b) in costs.iter().enumerate() {
                for (c, direct) in from_a.iter().enumerate() {
                    // Two kinds of triples are beyond what a plan considers: reducing on the
                    // way what both ends have pending, and all orders in which to shard what
                    // becomes pending on more than one axis.
                    let pending = |layout: usize, axis: usize| {
                        layouts[layout].placements()[axis].reduce_op().is_some()
                    };
                    let axes = || 0..mesh.n_axes();
                    let reduces_what_stays = axes()
                        .any(|axis| pending(a, axis) && !pending(b, axis) && pending(c, axis));
                    let n_becoming_pending =
                        axes().filter(|axis| !pending(a, *axis) && pending(c, *axis)).count();
                    if reduces_what_stays || n_becoming_pending > 1 {
                        continue;
                    }
                    let detour = (from_a[b].0 + from_b[c].0, from_a[b].1 + from_b[c].1);
                    // Transfers count first, latencies among equals; up to rounding.
                    let rounding = 1e-9 * detour.0 + 1e-9;
                    let transfers_less = direct.0 < detour.0 - rounding;
                    let transfers_the_same = direct.0 <= detour.0 + rounding;
                    assert!(
                        transfers_less || (transfers_the_same && direct.1 <= detour.1 + 1e-9),
                        "{direct:?} > {detour:?} on {mesh:?} {shape:?}: {} by way of {} to {}",
                        layouts[a],
                        layouts[b],
                        layouts[c]
                    );
                }
            }
        }
    }
}

/// Two layouts of one tensor on one mesh.
fn pairs() -> impl Strategy<Value = (Layout, Layout)> {
    (generate::shape(3), generate::mesh(27)).prop_flat_map(|(shape, mesh)| {
        let any = || generate::any_layout_of(shape.clone(), mesh.clone(), DType::F32);
        (any(), any())
    })
}

/// Two layouts of one tensor on different meshes: another shape, or a part of the ranks.
fn pairs_across_meshes() -> impl Strategy<Value = (Layout, Layout)> {
    let mesh = || generate::mesh(27);
    (generate::shape(3), mesh(), mesh(), any::<bool>()).prop_flat_map(
        |(shape, one, other, slice)| {
            let coord: Vec<usize> = other.sizes().iter().map(|size| size - 1).collect();
            let names: Vec<&str> =
                other.axes().iter().rev().take(2).map(|axis| axis.name()).collect();
            let other = if slice { other.slice(&names, &coord).unwrap() } else { other };
            let any = |mesh| generate::any_layout_of(shape.clone(), mesh, DType::F32);
            (any(one), any(other))
        },
    )
}

/// The reduction that an axis would have to change.
fn changes_a_reduction(from: &Layout, to: &Layout) -> bool {
    let both = from.placements().iter().zip(to.placements());
    from.mesh() == to.mesh()
        && both.into_iter().any(|(a, b)| matches!((a, b), (Partial(a), Partial(b)) if a != b))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_pair_of_layouts_is_right((from, to) in pairs()) {
        match Plan::new(&from, &to) {
            Err(error) => {
                prop_assert!(changes_a_reduction(&from, &to), "{from:?} to {to:?}: {error}");
            }
            Ok(plan) => {
                prop_assert!(!changes_a_reduction(&from, &to));
                let (ranks, moved) = simulator::run(&plan, simulator::scatter(&from));
                simulator::check(&to, &ranks, &plan.to_string());
                prop_assert_eq!(plan.cost(&Topology::default()).bytes_sent, moved * 4, "{}", plan);
                prop_assert_eq!(plan.to_string().parse::<Plan>().unwrap(), plan);
            }
        }
    }

    #[test]
    fn any_pair_of_meshes_is_right((from, to) in pairs_across_meshes()) {
        prop_assume!(!changes_a_reduction(&from, &to));
        let plan = Plan::new(&from, &to).unwrap();
        let (ranks, moved) = simulator::run(&plan, simulator::scatter(&from));
        simulator::check(&to, &ranks, &plan.to_string());
        prop_assert_eq!(plan.cost(&Topology::default()).bytes_sent, moved * 4, "{}", plan);
        prop_assert_eq!(plan.to_string().parse::<Plan>().unwrap(), plan);
    }
}

#[track_caller]
fn check_text(tensor: &str, from: &str, to: &str, want: &str) {
    let from: Layout = format!("{tensor}: {from}").parse().unwrap();
    let to = Layout::parse(from.global_shape(), from.dtype(), from.mesh(), to).unwrap();
    let steps: Vec<String> =
        Plan::new(&from, &to).unwrap().steps().iter().map(|step| step.to_string()).collect();
    assert_eq!(steps.join("; "), want);
}

#[test]
fn plans_are_what_an_expert_would_write() {
    let big = "f32[4096, 4096] on dp=2,tp=4";
    check_text(big, "[S(0), S(0)]", "[R, R]", "all_gather over dp, tp -> [R, R]");
    check_text(big, "[P(sum), P(sum)]", "[R, R]", "all_reduce over dp, tp -> [R, R]");
    check_text(
        big,
        "[P(sum), P(avg)]",
        "[S(0), S(1)]",
        "reduce_scatter over dp, tp -> [S(0), S(1)]",
    );
    check_text(big, "[R, S(0)]", "[R, S(1)]", "exchange over tp -> [R, S(1)]");
    check_text(big, "[R, R]", "[S(0), S(1)]", "slice over dp, tp -> [S(0), S(1)]");
    check_text(big, "[R, R]", "[P(sum), R]", "fill over dp -> [P(sum), R]");
    check_text(big, "[S(0), R]", "[P(sum), R]", "pad over dp -> [P(sum), R]");
    // Slicing first leaves less to move: PyTorch gathers the whole rows.
    check_text(
        big,
        "[S(0), R]",
        "[R, S(1)]",
        "slice over tp -> [S(0), S(1)]; all_gather over dp -> [R, S(1)]",
    );
    // Another order of cuts is one exchange, not a gathering of everything.
    check_text(
        big,
        "[S(0), S(0)]",
        "[S(0)[1], S(0)[0]]",
        "exchange over dp, tp -> [S(0)[1], S(0)[0]]",
    );
    check_text(big, "[S(0), S(1)]", "[S(0), S(1)]", "");
}

#[test]
fn slow_links_between_hosts_change_the_plan() {
    let from: Layout = "f32[8192, 8192] on host=4,gpu=8: [S(0), S(0)]".parse().unwrap();
    let to = from.with_placements(&[Replicate, Replicate]).unwrap();
    let options = PlanOptions { topology: Topology::hosts(8), ..PlanOptions::default() };
    let plan = Plan::with_options(&from, &to, &options).unwrap();
    let one_call = Plan::new(&from, &to).unwrap();
    assert_eq!(one_call.steps().len(), 1);
    assert!(
        plan.cost(&options.topology).time_us() < one_call.cost(&options.topology).time_us(),
        "{plan}"
    );
    assert!(plan.steps().len() > 1, "{plan}");
}

#[test]
fn a_larger_mesh_has_the_same_plan() {
    let steps = |mesh: &str| {
        let from: Layout =
            format!("bf16[16777216, 4096] on {mesh}: [S(0), R, P(sum)]").parse().unwrap();
        let to = from.with_placements(&[Shard(0), Shard(1), Shard(0)]).unwrap();
        let plan = Plan::new(&from, &to).unwrap();
        plan.steps().iter().map(|step| step.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(steps("pp=2,dp=2,tp=2"), steps("pp=16,dp=128,tp=128"));
}

#[test]
fn impossible_requests_say_why() {
    let layout = |text: &str| text.parse::<Layout>().unwrap();
    let check = |from: &str, to: &str, want: &str| {
        assert_eq!(Plan::new(&layout(from), &layout(to)).unwrap_err().to_string(), want);
    };
    check(
        "f32[4] on dp=2: [P(sum)]",
        "f32[4] on dp=2: [P(max)]",
        "cannot turn P(sum) into P(max) on mesh axis `dp`: redistribute to R first, if that is what you mean",
    );
    check(
        "f32[4] on dp=2: [R]",
        "f32[5] on dp=2: [R]",
        "cannot redistribute f32[4] on dp=2: [R] to f32[5] on dp=2: [R]: the global shapes differ; reshape first",
    );
    check(
        "f32[4] on dp=2: [R]",
        "f64[4] on dp=2: [R]",
        "cannot redistribute f32[4] on dp=2: [R] to f64[4] on dp=2: [R]: the dtypes differ; cast first",
    );
    let greedy = Plan::greedy(&layout("f32[4] on dp=2: [R]"), &layout("f32[4] on x=2: [R]"));
    assert!(matches!(greedy, Err(LayoutError::CannotRedistribute { .. })));
}

#[test]
fn a_text_that_is_no_plan_is_refused() {
    let header = "f32[4, 4] on dp=2: [S(0)] -> [R]\n";
    assert!(format!("{header}  1. all_gather over dp -> [R]").parse::<Plan>().is_ok());
    for steps in [
        "",
        "  1. all_gather over dp -> [S(1)]",
        "  1. exchange over dp -> [R]",
        "  1. all_gather over tp -> [R]",
        "  all_gather",
    ] {
        assert!(format!("{header}{steps}").parse::<Plan>().is_err(), "{steps}");
    }
    assert!("".parse::<Plan>().is_err());
    assert!("f32[4] on dp=2: [P(sum)] -> [P(max)]".parse::<Plan>().is_err());
}

#[test]
fn a_mesh_of_many_axes_is_planned_too() {
    let mesh = Mesh::from_sizes(&[2; 10]).unwrap();
    let from = Layout::new(&[1 << 12, 1 << 12], DType::F32, &mesh, &[Shard(0); 10]).unwrap();
    let to = from.with_placements(&[Shard(1); 10]).unwrap();
    let plan = Plan::new(&from, &to).unwrap();
    assert_eq!(plan.steps().len(), 1);
    assert_eq!(plan.steps()[0].kind, StepKind::Exchange);
    let pending = from.with_placements(&[Partial(ReduceOp::Sum); 10]).unwrap();
    assert_eq!(Plan::new(&pending, &to).unwrap().steps().len(), 1);
    // As many as there can be, and every kind of change.
    let mesh = Mesh::from_sizes(&[2; Mesh::MAX_AXES]).unwrap();
    let mixed = [Shard(0), Shard(1), Replicate, Partial(ReduceOp::Sum)];
    let placements =
        |turn: usize| (0..Mesh::MAX_AXES).map(|axis| mixed[(axis + turn) % 4]).collect::<Vec<_>>();
    let from = Layout::new(&[1 << 12, 1 << 12], DType::F32, &mesh, &placements(0)).unwrap();
    for turn in 1..4 {
        let plan = Plan::new(&from, &from.with_placements(&placements(turn)).unwrap()).unwrap();
        assert!(!plan.steps().is_empty());
    }
}

#[test]
fn the_largest_mesh_there_can_be_has_a_plan() {
    let mesh = Mesh::from_sizes(&[usize::MAX]).unwrap();
    let from = Layout::new(&[1000], DType::F32, &mesh, &[Shard(0)]).unwrap();
    let to = from.with_placements(&[Replicate]).unwrap();
    let plan = Plan::new(&from, &to).unwrap();
    assert_eq!(plan.steps().len(), 1);
    assert!(plan.cost(&Topology::default()).time_us() > 0.0);
}
