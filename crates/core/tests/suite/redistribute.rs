//! From any layout to any other: the data is the same.

use dtensor::{DTensor, DType, DeviceMesh, Layout, Mesh, Placement, ReduceOp, Tensor};
use dtensor_local::random::{Distribution, Stream};
use dtensor_testing::{dense::Dense, generate, noise::Noise, spmd};
use proptest::prelude::*;

use crate::support::{dense, layouts_of, mesh, place};

/// Between all pairs of layouts of these sizes.
fn all_pairs(n_ranks: usize, sizes: &[usize], shape: &[usize]) {
    let layouts = layouts_of(shape, DType::F64, sizes);
    let mut noise = Noise::new(5);
    let whole = Dense::from_fn(shape, |_| 3.0 * noise.signed());
    spmd(n_ranks, |world| {
        let mesh = mesh(world, sizes);
        for from in &layouts {
            let x = place(&whole, DType::F64, &mesh, from, 9);
            for to in &layouts {
                let differ = |(a, b): (&Placement, &Placement)| match (a.reduce_op(), b.reduce_op())
                {
                    (Some(a), Some(b)) => a != b,
                    _ => false,
                };
                let y = x.redistribute(to);
                if from.iter().zip(to).any(differ) {
                    assert!(y.is_err(), "{from:?} -> {to:?}");
                    continue;
                }
                let y = y?;
                assert_eq!(y.placements(), to);
                let got = dense(&y.full_tensor()?)?;
                assert!(got.is_close(&whole), "{from:?} -> {to:?}: {got:?}, not {whole:?}");
            }
        }
        Ok(())
    });
}

#[test]
fn two_ranks() {
    all_pairs(2, &[2], &[3, 2]);
}

#[test]
fn three_ranks() {
    all_pairs(3, &[3], &[5, 2]);
}

#[test]
fn two_axes() {
    all_pairs(4, &[2, 2], &[3, 2]);
}

#[test]
fn a_scalar() {
    all_pairs(2, &[2], &[]);
}

#[test]
fn every_dtype() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        for dtype in DType::ALL {
            let values: Vec<f64> = (0..10).map(|i| f64::from(i % 2)).collect();
            let whole = Dense::new(&[5, 2], values);
            let pending = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::Product];
            let pending = pending.map(Placement::Partial);
            let all = [Placement::Replicate, Placement::Shard(0), Placement::Shard(1)];
            for from in all.iter().chain(&pending) {
                let x = place(&whole, dtype, &mesh, &[*from], 2);
                for to in &all {
                    let y = x.redistribute(&[*to])?;
                    assert_eq!(y.dtype(), dtype);
                    let got = dense(&y.full_tensor()?)?;
                    let error = if dtype.size() == 2 { 0.1 } else { 1e-5 };
                    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= error;
                    assert!(
                        got.data().iter().zip(whole.data()).all(close),
                        "{dtype} {from} -> {to}: {got:?}"
                    );
                }
            }
        }
        Ok(())
    });
}

#[test]
fn to_another_mesh_of_the_world() {
    let shape = [7, 3];
    let whole = Dense::from_fn(&shape, |index| (index[0] * 10 + index[1]) as f64);
    let meshes: Vec<Mesh> = ["a=2", "b=3", "c=2,d=2", "e=2:2", "f=2:1@1", "g=1:1@3"]
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
    spmd(4, |world| {
        for from in &meshes {
            for to in &meshes {
                let (from, to) = (
                    DeviceMesh::from_mesh(world, from.clone())?,
                    DeviceMesh::from_mesh(world, to.clone())?,
                );
                let placed = |mesh: &DeviceMesh, last| {
                    let mut placements = vec![Placement::Shard(0); mesh.n_axes()];
                    placements[mesh.n_axes() - 1] = last;
                    placements
                };
                for last in [Placement::Shard(0), Placement::Shard(1), Placement::Replicate] {
                    let local = crate::support::tensor(&whole, DType::F64)?;
                    let x =
                        dtensor::distribute_tensor_from(&local, &from, &placed(&from, last), None)?;
                    let y = x.redistribute_to(&to, &placed(&to, Placement::Shard(1)))?;
                    assert_eq!(y.shape(), shape);
                    if to.coord().is_some() {
                        let got = dense(&y.full_tensor()?)?;
                        assert!(got.is_close(&whole), "{from} {to} {last}: {got:?}");
                    } else {
                        assert!(y.full_tensor().is_err());
                    }
                }
            }
        }
        Ok(())
    });
}

/// Large values are reduced in two calls, with the bits of one.
#[test]
fn a_large_pending_value_is_reduced_as_a_small_one() {
    const N: usize = (1 << 18) + 5;
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let own = Tensor::random(
            &[N],
            DType::F32,
            Distribution::Normal { mean: 0.0, std: 1.0 },
            Stream { seed: world.rank() as u64, offset: 0 },
        )?;
        for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max] {
            let pending = [Placement::Partial(op)];
            let x = DTensor::from_local_with_shape(&own, &mesh, &pending, &[N])?;
            let large = x.full_tensor()?;
            let end = own.narrow(0, N - 10, 10)?;
            let x = DTensor::from_local_with_shape(&end, &mesh, &pending, &[10])?;
            let small = x.full_tensor()?;
            assert_eq!(
                large.narrow(0, N - 10, 10)?.to_vec::<f32>()?,
                small.to_vec::<f32>()?,
                "{op}"
            );
        }
        Ok(())
    });
}

/// Parts of several boxes, of which the rows are in pieces.
#[test]
fn strided_shards_of_any_dim() {
    let mut noise = Noise::new(8);
    let whole = Dense::from_fn(&[7, 6, 5], |_| 3.0 * noise.signed());
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let parse = |text: &str| Layout::parse(&[7, 6, 5], DType::F64, mesh.mesh(), text);
        let plain = place(&whole, DType::F64, &mesh, &[Placement::Replicate; 2], 1);
        let texts =
            ["[S(0), _S(1, 3)]", "[_S(2, 2), S(1)]", "[_S(1, 2), _S(2, 3)]", "[R, _S(1, 3)]"];
        for from in texts {
            let x = plain.redistribute_layout(&parse(from)?)?;
            assert!(dense(&x.full_tensor()?)?.is_close(&whole), "{from}");
            for to in texts {
                let y = x.redistribute_layout(&parse(to)?)?;
                assert!(dense(&y.full_tensor()?)?.is_close(&whole), "{from} -> {to}");
            }
        }
        Ok(())
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any order of cuts, strided shards, any meshes up to 8 ranks.
    #[test]
    fn any_layout_can_be_gathered(layout in generate::layout(DType::F64, 6), seed: u64) {
        let mut noise = Noise::new(seed);
        let whole = Dense::from_fn(layout.global_shape(), |_| 3.0 * noise.signed());
        let layout: &Layout = &layout;
        let last = layout.mesh().ranks().max().unwrap_or(0);
        spmd(last + 1, |world| {
            let mesh = DeviceMesh::from_mesh(world, layout.mesh().clone())?;
            let replicated = vec![Placement::Replicate; mesh.n_axes()];
            let x = place(&whole, DType::F64, &mesh, &replicated, seed);
            if layout.is_partial() {
                return Ok(());
            }
            let y = x.redistribute_layout(layout)?;
            let got = dense(&y.full_tensor()?)?;
            assert!(got.is_close(&whole), "{layout:?}");
            Ok(())
        });
    }
}
