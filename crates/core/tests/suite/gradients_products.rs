//! Gradients of products: what is sent, and what is kept.

use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh, Placement,
    Placement::{Partial, Replicate, Shard},
    ReduceOp, Result,
    plan::StepKind,
    randn,
};
use dtensor_testing::spmd;

use crate::support::mesh;

const SUM: Placement = Partial(ReduceOp::Sum);

/// Numbers of all-reduces, and of all calls.
fn calls(comm: &CommDebug) -> [usize; 2] {
    [comm.calls_of(StepKind::AllReduce), comm.calls()]
}

/// Weight and bias of a layer, in a layout.
fn layer(
    sizes: [usize; 2],
    mesh: &DeviceMesh,
    [weight, bias]: [Placement; 2],
) -> Result<[DTensor; 2]> {
    Ok([
        randn(&sizes, DType::F64, mesh, &[weight])?.requires_grad()?,
        randn(&sizes[..1], DType::F64, mesh, &[bias])?.requires_grad()?,
    ])
}

#[test]
fn two_layers_that_are_cut_along_what_is_between_send_one_sum_each_way() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let [up, up_bias] = layer([8, 5], &mesh, [Shard(0), Shard(0)])?;
        let [down, down_bias] = layer([5, 8], &mesh, [Shard(1), Replicate])?;
        let batch = randn(&[2, 3, 5], DType::F64, &mesh, &[Replicate])?;
        for (x, want) in [(batch.clone(), [0, 0]), (batch.requires_grad()?, [1, 1])] {
            let (loss, forward) = CommDebug::record(|| {
                let hidden = x.linear(&up, Some(&up_bias))?;
                assert_eq!(hidden.placements(), [Shard(2)]);
                let out = hidden.mul(&hidden)?.linear(&down, Some(&down_bias))?;
                assert_eq!(out.placements(), [SUM]);
                let out = out.redistribute(&[Replicate])?;
                out.mul(&out)?.sum(&[], false)
            });
            assert_eq!(calls(&forward), [1, 1], "{forward}");
            let (gradients, backward) = CommDebug::record(|| loss?.backward());
            assert_eq!(calls(&backward), want, "{backward}");
            let gradients = gradients?;
            for leaf in [&up, &up_bias, &down, &down_bias] {
                assert_eq!(gradients.get(leaf).unwrap().layout(), leaf.layout());
            }
        }
        Ok(())
    });
}

#[test]
fn a_layer_on_a_batch_that_is_cut_reduces_its_parameters_gradients_and_nothing_else() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let [weight, bias] = layer([4, 5], &mesh, [Replicate; 2])?;
        for cut in [Shard(0), Shard(1)] {
            let x = randn(&[4, 6, 5], DType::F64, &mesh, &[cut])?.requires_grad()?;
            let (loss, forward) = CommDebug::record(|| {
                let out = x.linear(&weight, Some(&bias))?;
                assert_eq!(out.placements(), [cut]);
                out.mul(&out)?.sum(&[], false)
            });
            assert_eq!(calls(&forward), [0, 0], "{forward}");
            let (gradients, backward) = CommDebug::record(|| loss?.backward());
            assert_eq!(calls(&backward), [2, 2], "{backward}");
            assert_eq!(gradients?.get(&x).unwrap().placements(), [cut]);
        }
        Ok(())
    });
}

#[test]
fn a_product_with_one_matrix_for_all_batches_sums_over_them_at_once() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = randn(&[4, 3, 5], DType::F64, &mesh, &[Shard(0)])?;
        let weight = randn(&[5, 2], DType::F64, &mesh, &[Replicate])?.requires_grad()?;
        let out = x.matmul(&weight)?;
        let (gradients, comm) = CommDebug::record(|| out.mul(&out)?.sum(&[], false)?.backward());
        assert_eq!(calls(&comm), [1, 1], "{comm}");
        // As of one matrix of all rows.
        let rows = x.full_tensor()?.reshape(&[12, 5])?;
        let weight_rows = weight.full_tensor()?;
        let want = rows.transpose(0, 1)?.mm(&rows.mm(&weight_rows)?.mul_scalar(2.0)?)?;
        let got = gradients?.get(&weight).unwrap().full_tensor()?;
        assert!(got.allclose(&want, 1e-12, 1e-12, false)?);
        Ok(())
    });
}
