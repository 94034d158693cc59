//! Seeing what happens: counts and bytes of the important cases, explanations, pictures, traces.

use dtensor::{
    CommDebug, DType, Phase,
    Placement::{Partial, Replicate, Shard},
    ReduceOp, cache_stats, explain_calls, module_scope, ones,
    op::Meta,
    plan::StepKind,
    replace_rule,
    rule::Rule,
    visualize_sharding, visualize_sharding_svg,
};
use dtensor_testing::spmd;

use crate::support::mesh;

#[test]
fn a_column_and_row_parallel_mlp_has_one_all_reduce() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = ones(&[3, 4], DType::F32, &mesh, &[Replicate])?;
        let up = ones(&[4, 6], DType::F32, &mesh, &[Shard(1)])?;
        let down = ones(&[6, 4], DType::F32, &mesh, &[Shard(0)])?;
        let (y, comm) = CommDebug::record(|| {
            let hidden = x.matmul(&up)?.gelu()?;
            hidden.matmul(&down)?.add(&x)
        });
        assert_eq!(y?.placements(), [Replicate]);
        assert_eq!((comm.calls(), comm.calls_of(StepKind::AllReduce)), (1, 1), "{comm}");
        // Two ranks send half of 48 bytes and receive the other half reduced, each way.
        assert_eq!(comm.bytes(), 2 * 48);
        assert_eq!((comm.ops["matmul"], comm.ops["add"]), (2, 1));
        Ok(())
    });
}

#[test]
fn what_is_where_it_is_needed_is_not_sent() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let a = ones(&[6, 4], DType::F32, &mesh, &[Shard(0), Replicate])?;
        let b = ones(&[6, 4], DType::F32, &mesh, &[Shard(0), Replicate])?;
        let w = ones(&[4, 8], DType::F32, &mesh, &[Replicate, Shard(1)])?;
        let (results, comm) = CommDebug::record(|| {
            Ok::<_, dtensor::Error>([
                a.add(&b)?,
                a.mul(2.0)?.relu()?,
                a.matmul(&w)?,
                a.sum(&[0], false)?,
                a.sum(&[1], true)?,
            ])
        });
        let layouts = results?.map(|result| result.layout().to_string());
        assert_eq!(layouts, ["[S(0), R]", "[S(0), R]", "[S(0), S(1)]", "[P(sum), R]", "[S(0), R]"]);
        assert_eq!(comm.calls(), 0, "{comm}");
        Ok(())
    });
}

#[test]
fn an_order_of_cuts_passes_through() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let whole = dtensor::randn(&[7, 4], DType::F64, &mesh, &[Replicate; 2])?;
        let layout = dtensor::Layout::with_order(
            &[7, 4],
            DType::F64,
            mesh.mesh(),
            &[Shard(0), Shard(0)],
            &[(0, &[1, 0])],
        )?;
        let x = whole.redistribute_layout(&layout)?;
        let (y, comm) = CommDebug::record(|| x.mul(&x)?.add(1.0)?.sum(&[1], false));
        let y = y?;
        assert_eq!((y.layout().to_string().as_str(), comm.calls()), ("[S(0)[1], S(0)[0]]", 0));
        let want = whole.mul(&whole)?.add(1.0)?.sum(&[1], false)?;
        assert_eq!(y.to_vec::<f64>()?, want.to_vec::<f64>()?);
        Ok(())
    });
}

#[test]
fn decisions_are_remembered_and_rules_can_be_replaced() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = ones(&[4, 4], DType::F32, &mesh, &[Shard(0)])?;
        x.exp()?;
        let before = cache_stats();
        x.exp()?;
        let after = cache_stats();
        assert_eq!((after.hits - before.hits, after.misses), (1, before.misses));
        {
            let whole = |_: &dyn dtensor::op::Op, _: &[Meta]| Ok(Rule::of("a! b! -> a! b!", &[]));
            let _replaced = replace_rule("exp", whole);
            assert_eq!(x.exp()?.placements(), [Replicate]);
        }
        assert_eq!(x.exp()?.placements(), [Shard(0)]);
        Ok(())
    });
}

#[test]
fn an_explanation_has_rows_costs_choice_and_plan() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let rows = ones(&[4, 8], DType::F32, &mesh, &[Shard(0)])?;
        let columns = ones(&[4, 8], DType::F32, &mesh, &[Shard(1)])?;
        let (sum, why) = explain_calls(|| rows.add(&columns));
        let text = why[0].to_string();
        assert_eq!(&why[0].results[0], sum?.layout());
        for line in [
            "add: ..., ... -> ... | Linear, Affine, Increasing",
            "* S(0) S(0) -> S(0): 32 bytes per rank, 1 calls",
            "  R R -> R: 128 bytes per rank, 2 calls",
            "1. exchange over axis0 -> [S(0)]",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(explain_calls(|| rows.exp()).1[0].operands[0].1.steps().is_empty());
        Ok(())
    });
}

#[test]
fn what_was_communicated_is_told_to_other_programs() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = ones(&[4, 4], DType::F32, &mesh, &[Partial(ReduceOp::Sum)])?;
        let (_, comm) = CommDebug::record(|| x.redistribute(&[Replicate]));
        let json = comm.to_json();
        assert!(json.starts_with("{\"calls\":1,\"bytes\":128,\"ops\":{},\"events\":[{"), "{json}");
        let event = &comm.events[0];
        assert_eq!((event.op, event.kind), ("redistribute", StepKind::AllReduce));
        assert!(!event.took.is_zero());
        let trace = comm.to_chrome_trace(world.rank());
        assert!(trace.contains("\"name\":\"all_reduce\""), "{trace}");
        assert!(comm.to_string().contains("all_reduce"), "{comm}");
        // Scopes nest, and end with a panic.
        let (panicked, outer) = CommDebug::record(|| {
            std::panic::catch_unwind(|| CommDebug::record(|| panic!("on purpose")))
        });
        assert!(panicked.is_err());
        assert_eq!(outer.calls(), 0);
        Ok(())
    });
}

#[test]
fn modules_have_their_times_on_the_way_there_and_back() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = ones(&[4, 3], DType::F32, &mesh, &[Shard(0)])?.requires_grad()?;
        let (done, comm) = CommDebug::record(|| {
            let y = module_scope("a", || {
                let y = module_scope("b", || x.mul(2.0)?.exp())?;
                y.mul(3.0)
            })?;
            y.sum(&[], false)?.backward()
        });
        done?;
        let spans: Vec<_> = comm.modules.iter().map(|span| (&*span.module, span.phase)).collect();
        let want = [
            ("a", Phase::Forward),
            ("a.b", Phase::Forward),
            ("a", Phase::Backward),
            // Two operations.
            ("a.b", Phase::Backward),
        ];
        assert_eq!(spans, want);
        let [outer, inner, after, ..] = &comm.modules[..] else { panic!("{spans:?}") };
        assert!(outer.at <= inner.at && inner.at + inner.took <= outer.at + outer.took);
        assert!(outer.at + outer.took <= after.at && !outer.took.is_zero());
        let trace = comm.to_chrome_trace(world.rank());
        assert!(trace.contains("\"name\":\"a.b\",\"cat\":\"module\""), "{trace}");
        // What nobody listens to is not kept.
        let (_, comm) = CommDebug::record(|| ());
        assert!(comm.modules.is_empty());
        Ok(())
    });
}

#[test]
fn a_picture_of_three_dims_on_two_axes() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let x = ones(&[4, 6, 5], DType::F32, &mesh, &[Shard(1), Shard(2)])?;
        let picture = visualize_sharding(&x)?;
        assert!(picture.starts_with("f32[4, 6, 5] on axis0=2,axis1=2: [S(1), S(2)]"), "{picture}");
        assert!(visualize_sharding_svg(&x)?.starts_with("<svg"));
        Ok(())
    });
}
