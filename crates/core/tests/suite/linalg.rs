//! What the sweep does not see of this family: layouts of results, calls and bytes, errors.

use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh, Error, LocalError,
    Placement::{Partial, Replicate, Shard},
    ReduceOp, Tensor, World, distribute_tensor_from,
    plan::StepKind,
    randn, zeros,
};
use dtensor_local::linalg::{self, MatrixNorm};
use dtensor_testing::spmd;

use crate::support::mesh;

/// Five matrices that are positive definite.
fn positive(mesh: &DeviceMesh) -> Result<DTensor, Error> {
    let x = randn(&[5, 3, 3], DType::F64, mesh, &[Replicate])?.full_tensor()?;
    let product = x.matmul(&x.transpose(-2, -1)?)?;
    let product = product.add(&Tensor::eye(3, 3, DType::F64)?)?;
    distribute_tensor_from(&product, mesh, &[Shard(0)], None)
}

#[test]
fn a_batch_that_is_cut_stays_so_and_ranks_agree_that_nothing_failed() {
    spmd(4, |world| {
        let a = positive(&mesh(world, &[4]))?;
        let whole = a.full_tensor()?;
        let (factor, comm) = CommDebug::record(|| a.cholesky(true));
        let factor = factor?;
        assert_eq!(factor.placements(), [Shard(0)]);
        assert!(factor.full_tensor()?.equal(&linalg::cholesky(&whole, true)?)?);
        // One number.
        assert_eq!((comm.calls(), comm.calls_of(StepKind::AllReduce)), (1, 1), "{comm}");
        // A power that is a product cannot fail.
        let (power, comm) = CommDebug::record(|| a.matrix_power(3));
        assert!(power?.full_tensor()?.allclose(&whole.matrix_power(3)?, 1e-12, 0.0, false)?);
        assert_eq!(comm.calls(), 0);
        // Copies fail alike.
        let copy = a.redistribute(&[Replicate])?;
        let (_, comm) = CommDebug::record(|| copy.inv());
        assert_eq!(comm.calls(), 0);
        Ok(())
    });
}

#[test]
fn a_matrix_without_an_answer_is_the_same_error_on_every_rank() {
    let errors = spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        // Of the batch of 3 x 4 the matrices at [1, 3] and [2, 0] are singular.
        let mut values = vec![0.0_f64; 3 * 4 * 4];
        for (number, matrix) in values.chunks_mut(4).enumerate() {
            matrix.copy_from_slice(&[
                2.0,
                1.0,
                1.0,
                if [7, 8].contains(&number) { 0.5 } else { 3.0 },
            ]);
        }
        let whole = Tensor::from_vec(values, &[3, 4, 2, 2])?;
        let a = distribute_tensor_from(&whole, &mesh, &[Shard(0), Shard(1)], None)?;
        let b = randn(&[2, 3], DType::F64, &mesh, &[Replicate, Shard(1)])?;
        let errors = [a.inv().unwrap_err(), a.solve(&b).unwrap_err()];
        let dense = linalg::inv(&whole).unwrap_err();
        assert_eq!(errors[0], Error::from(dense));
        let matrix = vec![1, 3];
        assert_eq!(errors[1], Error::from(LocalError::Singular { op: "solve", matrix }));
        // And the ranks are still together.
        assert_eq!(a.det()?.to_vec::<f64>()?, linalg::det(&whole)?.to_vec::<f64>()?);
        let negative = a.neg()?.cholesky(false).unwrap_err();
        let matrix = vec![0, 0];
        let want = LocalError::NotPositiveDefinite { op: "cholesky", matrix };
        assert_eq!(negative, Error::from(want));
        Ok(errors)
    });
    assert!(errors.iter().all(|of_rank| *of_rank == errors[0]), "{errors:?}");
}

#[test]
fn columns_of_a_right_hand_side_may_be_cut_or_pending() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let a = randn(&[4, 4], DType::F64, &mesh, &[Replicate])?;
        let sum = Partial(ReduceOp::Sum);
        for placement in [Shard(1), sum] {
            let b = randn(&[4, 5], DType::F64, &mesh, &[placement])?;
            let (x, comm) = CommDebug::record(|| a.solve(&b));
            let x = x?;
            // One number: whether all have an answer.
            assert_eq!((x.placements(), comm.bytes()), (&[placement][..], 8 * 4), "{comm}");
            assert!(a.mm(&x)?.allclose(&b, 1e-9, 1e-9, false)?);
        }
        let b = randn(&[4, 5], DType::F64, &mesh, &[Shard(1)])?;
        let (x, residuals, rank, values) = a.lstsq(&b, None)?;
        let layouts = [&x, &residuals, &rank, &values].map(|one| one.placements()[0]);
        assert_eq!(layouts, [Shard(1), Shard(0), Replicate, Replicate]);
        assert!(x.allclose(&a.solve(&b)?, 1e-9, 1e-9, false)?);
        Ok(())
    });
}

#[test]
fn norms_of_matrices_that_are_cut_move_no_matrix() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let a = randn(&[3, 5, 4], DType::F64, &mesh, &[Shard(1), Shard(2)])?;
        let whole = a.full_tensor()?;
        for norm in [MatrixNorm::Frobenius, MatrixNorm::One, MatrixNorm::Infinity, MatrixNorm::Two]
        {
            let (got, comm) = CommDebug::record(|| a.matrix_norm(norm));
            let want = linalg::matrix_norm(&whole, norm)?;
            assert!(got?.full_tensor()?.allclose(&want, 1e-12, 0.0, false)?, "{norm:?}");
            let moved = comm.calls_of(StepKind::AllGather) + comm.calls_of(StepKind::Exchange);
            assert_eq!(moved == 0, norm != MatrixNorm::Two, "{norm:?}\n{comm}");
        }
        assert!(a.vector_norm(f64::NAN, &[], false).is_err());
        let v = a.sum(&[0, 1], false)?;
        assert!(matches!(v.matrix_norm(MatrixNorm::One), Err(Error::Local(_))));
        Ok(())
    });
}

#[test]
fn distances_along_rows_that_are_cut_are_added() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let a = randn(&[3, 6], DType::F64, &mesh, &[Shard(1)])?;
        let b = randn(&[2, 6], DType::F64, &mesh, &[Shard(1)])?;
        for (p, calls) in [(2.0, 1), (1.0, 0), (f64::INFINITY, 0)] {
            let (distances, comm) = CommDebug::record(|| a.cdist(&b, p));
            assert_eq!(comm.calls(), calls, "{comm}");
            let want = a.full_tensor()?.cdist(&b.full_tensor()?, p)?;
            assert!(distances?.full_tensor()?.allclose(&want, 1e-12, 0.0, false)?);
        }
        Ok(())
    });
}

#[test]
fn a_fake_world_has_shapes_of_decompositions() {
    let world = World::fake(1024, 3).unwrap();
    let mesh = DeviceMesh::of_world(&world, "x").unwrap();
    let a = zeros(&[4096, 8, 6], DType::F32, &mesh, &[Shard(0)]).unwrap();
    let (u, s, vh) = a.svd(false).unwrap();
    assert_eq!(
        (u.shape(), s.shape(), vh.shape()),
        (&[4096, 8, 6][..], &[4096, 6][..], &[4096, 6, 6][..])
    );
    assert_eq!(u.to_local().shape(), [4, 8, 6]);
}
