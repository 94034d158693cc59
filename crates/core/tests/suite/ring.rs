//! Attention over a sequence that is cut: keys and values go around, and nothing is gathered.

use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh, Error, LocalError,
    Placement::{self, Partial, Replicate, Shard},
    ReduceOp, Result, Tensor, World, distribute_tensor,
    ops::nn::{Attention, Positions},
    plan::StepKind,
    randn, zeros,
};
use dtensor_local::nn;
use dtensor_testing::spmd;

use crate::support::mesh;

const ORDERS: [Positions; 3] = [Positions::InOrder, Positions::HeadTail(2), Positions::HeadTail(4)];

/// Queries, keys and values.
struct Case {
    queries: &'static [usize],
    keys: &'static [usize],
    values: &'static [usize],
}

const CASES: [Case; 4] = [
    // As many positions as pieces, several batches and heads.
    Case { queries: &[2, 2, 8, 3], keys: &[2, 2, 8, 3], values: &[2, 2, 8, 2] },
    // Uneven, and some ranks have nothing.
    Case { queries: &[1, 5, 2], keys: &[1, 5, 2], values: &[1, 5, 3] },
    // Grouped heads.
    Case { queries: &[2, 4, 9, 2], keys: &[2, 2, 9, 2], values: &[2, 2, 9, 2] },
    // Other keys than queries.
    Case { queries: &[2, 7, 1], keys: &[2, 10, 1], values: &[2, 10, 2] },
];

/// The dense result, the logarithms, and the gradients, with a table of who sees whom.
fn dense(
    [q, k, v]: [&Tensor; 3],
    grad: &Tensor,
    settings: &Attention,
    order: Positions,
) -> Result<[Tensor; 5]> {
    let dim = q.n_dims() - 2;
    let positions = |x: &Tensor| order.of(x.shape()[dim]);
    let (of_queries, of_keys) = (positions(q), positions(k));
    let sees = |query: &usize| of_keys.iter().map(|key| key <= query).collect::<Vec<bool>>();
    let table: Vec<bool> = of_queries.iter().flat_map(sees).collect();
    let table = Tensor::from_vec(table, &[of_queries.len(), of_keys.len()])?;
    let mask = settings.causal.then_some(&table);
    let masks = nn::AttentionMask { mask, dropout: None };
    let plain = Attention { causal: false, ..*settings };
    let (out, sums) = q.attention_masked(k, v, &plain, &masks)?;
    let grads = q.attention_masked_backward(k, v, (&out, &sums), grad, &plain, &masks)?;
    Ok([out, sums, grads.queries, grads.keys, grads.values])
}

#[track_caller]
fn assert_close(got: &DTensor, want: &Tensor, tolerance: f64) {
    let got = got.full_tensor().unwrap();
    assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()));
    let values = |tensor: &Tensor| tensor.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    for (got, want) in values(&got).into_iter().zip(values(want)) {
        assert!((got - want).abs() <= tolerance * (1.0 + want.abs()), "{got} is not {want}");
    }
}

fn random(mesh: &DeviceMesh, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let copies = vec![Replicate; mesh.n_axes()];
    randn(shape, dtype, mesh, &copies)?.full_tensor()
}

/// Result and gradients of a case where its operands are cut so, against the dense ones.
fn check(
    mesh: &DeviceMesh,
    case: &Case,
    at: &[Placement],
    settings: &Attention,
    order: Positions,
) -> Result<()> {
    let place = |x: &Tensor| distribute_tensor(x, mesh, at);
    let [q, k, v] = [case.queries, case.keys, case.values]
        .map(|shape| random(mesh, shape, DType::F64).unwrap());
    let out_shape =
        [&case.queries[..case.queries.len() - 1], &case.values[case.values.len() - 1..]];
    let grad = random(mesh, &out_shape.concat(), DType::F64)?;
    let want = dense([&q, &k, &v], &grad, settings, order)?;
    let [q, k, v] = [place(&q)?, place(&k)?, place(&v)?];
    let (results, comm) = CommDebug::record(|| q.ring_attention(&k, &v, settings, order));
    let (out, sums) = results?;
    assert_eq!((out.placements(), sums.placements()), (at, at));
    assert_close(&out, &want[0], 1e-12);
    assert_close(&sums, &want[1], 1e-12);
    assert_eq!(comm.calls_of(StepKind::Exchange), comm.calls(), "{comm}");
    let grad = place(&grad)?;
    let (grads, comm) = CommDebug::record(|| {
        q.ring_attention_backward(&k, &v, (&out, &sums), &grad, settings, order)
    });
    let (dq, dk, dv) = grads?;
    assert_eq!(comm.calls_of(StepKind::Exchange), comm.calls(), "{comm}");
    for (got, want) in [&dq, &dk, &dv].into_iter().zip(&want[2..]) {
        assert_eq!(got.placements(), at);
        assert_close(got, want, 1e-12);
    }
    // The same through the graph.
    let [q, k, v] = [q.requires_grad()?, k.requires_grad()?, v.requires_grad()?];
    let (out, _) = q.ring_attention(&k, &v, settings, order)?;
    let gradients = out.mul(&grad)?.sum(&[], false)?.backward()?;
    for (of, want) in [&q, &k, &v].into_iter().zip(&want[2..]) {
        let got = gradients.get(of).unwrap();
        assert_eq!(got.layout(), of.layout());
        assert_close(got, want, 1e-12);
    }
    Ok(())
}

fn each_setting(mut body: impl FnMut(&Attention, Positions) -> Result<()>) -> Result<()> {
    for order in ORDERS {
        for (causal, scale) in [(false, None), (true, Some(0.7))] {
            body(&Attention { causal, scale }, order)?;
        }
    }
    Ok(())
}

#[test]
fn cut_positions_give_the_dense_result_and_gradients() {
    for n in 1..=4 {
        spmd(n, |world| {
            let mesh = mesh(world, &[n]);
            for case in &CASES {
                let at = [Shard(case.queries.len() - 2)];
                each_setting(|settings, order| check(&mesh, case, &at, settings, order))?;
            }
            Ok(())
        });
    }
}

#[test]
fn batches_and_heads_may_be_cut_on_other_axes() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let positions = Shard(2);
        for other in [Shard(0), Shard(1), Replicate, positions] {
            for (at, case) in [([other, positions], &CASES[0]), ([positions, other], &CASES[2])] {
                each_setting(|settings, order| check(&mesh, case, &at, settings, order))?;
            }
        }
        Ok(())
    });
    spmd(8, |world| {
        let mesh = DeviceMesh::new(world, &[("dp", 2), ("cp", 2), ("tp", 2)])?;
        let at = [Shard(0), Shard(2), Shard(1)];
        let settings = Attention { causal: true, scale: None };
        for case in [&CASES[0], &CASES[2]] {
            check(&mesh, case, &at, &settings, Positions::HeadTail(2))?;
        }
        Ok(())
    });
}

/// One head of keys for four of queries on two ranks: each has the whole head, and a part of its gradient.
#[test]
fn a_head_of_keys_that_cannot_be_cut_goes_around_whole() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let shapes: [&[usize]; 3] = [&[1, 4, 6, 2], &[1, 1, 6, 2], &[1, 1, 6, 3]];
        let [q, k, v] = shapes.map(|shape| random(&mesh, shape, DType::F64).unwrap());
        let grad = random(&mesh, &[1, 4, 6, 3], DType::F64)?;
        for order in ORDERS {
            let settings = Attention { causal: true, scale: None };
            let want = dense([&q, &k, &v], &grad, &settings, order)?;
            let (of_queries, of_keys) = ([Shard(2), Shard(1)], [Shard(2), Replicate]);
            let place = |x: &Tensor, at: [Placement; 2]| distribute_tensor(x, &mesh, &at);
            let (q, k, v) = (place(&q, of_queries)?, place(&k, of_keys)?, place(&v, of_keys)?);
            let (out, sums) = q.ring_attention(&k, &v, &settings, order)?;
            assert_eq!(out.placements(), of_queries);
            assert_close(&out, &want[0], 1e-12);
            let grad = place(&grad, of_queries)?;
            let (dq, dk, dv) =
                q.ring_attention_backward(&k, &v, (&out, &sums), &grad, &settings, order)?;
            assert_eq!(dk.placements(), [Shard(2), Partial(ReduceOp::Sum)]);
            for (got, want) in [&dq, &dk, &dv].into_iter().zip(&want[2..]) {
                assert_close(got, want, 1e-12);
            }
        }
        Ok(())
    });
}

/// Events and bytes of forward and backward.
fn traffic(
    mesh: &DeviceMesh,
    at: &[Placement],
    shape: &[usize],
    dtype: DType,
    settings: &Attention,
    order: Positions,
) -> Result<[(usize, u128); 2]> {
    let x = zeros(shape, dtype, mesh, at)?;
    let (results, there) = CommDebug::record(|| x.ring_attention(&x, &x, settings, order));
    let (out, sums) = results?;
    let (grads, back) = CommDebug::record(|| {
        x.ring_attention_backward(&x, &x, (&out, &sums), &out, settings, order)
    });
    assert_eq!(grads?.1.layout(), x.layout());
    Ok([there, back].map(|comm| {
        assert_eq!(comm.calls_of(StepKind::Exchange), comm.calls());
        (comm.calls(), comm.bytes())
    }))
}

#[test]
fn a_ring_makes_one_exchange_less_than_it_has_ranks_and_gathers_nothing() {
    let of = |mesh: &DeviceMesh, causal, order| {
        let settings = Attention { causal, scale: None };
        traffic(mesh, &[Shard(1)], &[2, 16, 3], DType::Bf16, &settings, order).unwrap()
    };
    // Keys and values of four positions, and their gradients in single precision.
    let block = 2 * 2 * 4 * 3 * 2_u128;
    let gathered = 4 * 3 * block;
    let all = [(3, gathered), (7, gathered + 4 * 4 * 2 * block)];
    // Block 0 goes three steps, block 1 two, block 2 one; and each goes home from the last rank.
    let half = [(3, 6 * block), (7, 6 * block + (6 + 3) * 2 * block)];
    let found = spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        assert_eq!(of(&mesh, false, Positions::InOrder), all);
        assert_eq!(of(&mesh, true, Positions::HeadTail(4)), all);
        assert_eq!(of(&mesh, true, Positions::InOrder), half);
        let x = zeros(&[2, 16, 3], DType::Bf16, &mesh, &[Shard(1)])?;
        let (_, comm) = CommDebug::record(|| x.redistribute(&[Replicate]));
        Ok(comm.bytes())
    });
    assert_eq!(found, [gathered / 2; 4]);
    // A fake mesh counts the same.
    let world = World::fake(4, 1).unwrap();
    let mesh = DeviceMesh::of_world(&world, "cp").unwrap();
    assert_eq!(of(&mesh, false, Positions::InOrder), all);
    assert_eq!(of(&mesh, true, Positions::HeadTail(4)), all);
    assert_eq!(of(&mesh, true, Positions::InOrder), half);
}

#[test]
fn a_fake_mesh_of_many_ranks_counts_what_all_send() -> Result<()> {
    let world = World::fake(1024, 77).unwrap();
    let mesh = DeviceMesh::new(&world, &[("dp", 8), ("cp", 16), ("tp", 8)])?;
    let (at, shape) = ([Shard(0), Shard(2), Shard(1)], [16, 32, 4096, 64]);
    let settings = Attention { causal: true, scale: None };
    let order = Positions::HeadTail(16);
    let [there, back] = traffic(&mesh, &at, &shape, DType::F32, &settings, order)?;
    let whole = 2 * 4 * 16 * 32 * 4096 * 64_u128;
    assert_eq!(there, (15, 15 * whole));
    assert_eq!(back, (15 + 16, (15 + 16) * whole));
    Ok(())
}

#[test]
fn where_positions_are_whole_it_is_attention() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let settings = Attention { causal: true, scale: None };
        let [q, k, v] = [[4, 8, 6, 3], [4, 4, 6, 3], [4, 4, 6, 2]]
            .map(|shape| random(&mesh, &shape, DType::F64).unwrap());
        let (want, _) = q.attention(&k, &v, &settings)?;
        for (at, of_keys) in [(Shard(0), Shard(0)), (Shard(1), Shard(1)), (Shard(2), Replicate)] {
            let place = |x: &Tensor, at| distribute_tensor(x, &mesh, &[at]);
            let (q, k, v) = (place(&q, at)?, place(&k, of_keys)?, place(&v, of_keys)?);
            let run = || q.ring_attention(&k, &v, &settings, Positions::InOrder);
            let (results, comm) = CommDebug::record(run);
            let (out, _) = results?;
            assert_eq!((out.placements(), comm.calls()), (&[at][..], 0));
            assert_close(&out, &want, 1e-12);
        }
        Ok(())
    });
}

#[test]
fn contributions_are_rounded_once() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let settings = Attention { causal: true, scale: None };
        let [q, k, v] = [(); 3].map(|()| random(&mesh, &[2, 16, 4], DType::Bf16).unwrap());
        let (want, sums) = q.attention(&k, &v, &settings)?;
        let grads = q.attention_backward(&k, &v, (&want, &sums), &want, &settings)?;
        let place = |x: &Tensor| distribute_tensor(x, &mesh, &[Shard(1)]);
        let [q, k, v] = [place(&q)?, place(&k)?, place(&v)?];
        let order = Positions::InOrder;
        let (out, log_sums) = q.ring_attention(&k, &v, &settings, order)?;
        assert_eq!(log_sums.dtype(), DType::F32);
        // Half of the last bit, and what the sums differ by.
        let unit = 1.0 / 256.0 + 1e-5;
        assert_close(&out, &want, unit);
        let (dq, dk, dv) = q.ring_attention_backward(
            &k,
            &v,
            (&place(&want)?, &log_sums),
            &place(&want)?,
            &settings,
            order,
        )?;
        assert_close(&dq, &grads.queries, unit);
        assert_close(&dk, &grads.keys, unit);
        assert_close(&dv, &grads.values, unit);
        Ok(())
    });
}

#[test]
fn ranks_outside_of_the_mesh_take_part_harmlessly() {
    spmd(4, |world| {
        let mesh = DeviceMesh::from_mesh(world, "cp=3".parse()?)?;
        let settings = Attention { causal: true, scale: None };
        let (at, order) = ([Shard(1)], Positions::HeadTail(3));
        let x = zeros(&[2, 7, 3], DType::F32, &mesh, &at)?;
        let (out, sums) = x.ring_attention(&x, &x, &settings, order)?;
        assert_eq!((out.layout(), sums.shape()), (x.layout(), &[2, 7][..]));
        let (dq, ..) = x.ring_attention_backward(&x, &x, (&out, &sums), &out, &settings, order)?;
        assert_eq!(dq.layout(), x.layout());
        Ok(())
    });
}

#[test]
fn mistakes_are_found_on_every_rank() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let x = zeros(&[2, 6, 3], DType::F32, &mesh, &[Shard(1)])?;
        let settings = Attention::default();
        let refused = |keys: &DTensor, order| match x.ring_attention(keys, &x, &settings, order) {
            Err(Error::Local(error)) => *error,
            other => panic!("{other:?}"),
        };
        let found = refused(&x, Positions::HeadTail(0));
        assert!(matches!(found, LocalError::BadNumber { .. }), "{found}");
        let wide = zeros(&[2, 6, 4], DType::F32, &mesh, &[Shard(1)])?;
        let found = refused(&wide, Positions::InOrder);
        assert!(matches!(found, LocalError::ShapeMismatch { .. }), "{found}");
        Ok(())
    });
}
