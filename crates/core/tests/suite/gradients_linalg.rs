//! Gradients of matrices that samples cannot be: positive definite, and singular.

use dtensor::{
    DTensor, DType, DeviceMesh,
    Placement::{self, Replicate, Shard},
    Result, Tensor, distribute_tensor, eye, no_grad, randn,
};
use dtensor_testing::spmd;

use crate::support::mesh;

/// Compares the gradient of a function of `x` with finite differences, along a random direction.
fn check(
    name: &str,
    mesh: &DeviceMesh,
    placement: Placement,
    function: &dyn Fn(&DTensor) -> Result<DTensor>,
) -> Result<()> {
    let x = randn(&[5, 3, 3], DType::F64, mesh, &[placement])?;
    let along = randn(&[5, 3, 3], DType::F64, mesh, &[placement])?;
    let leaf = x.requires_grad()?;
    let gradient = function(&leaf)?.backward()?.remove(&leaf).unwrap();
    let got = gradient.mul(&along)?.sum(&[], false)?.item::<f64>()?;
    let at = |step: f64| no_grad(|| function(&x.add(&along.mul(step)?)?)?.item::<f64>());
    let want = (at(1e-6)? - at(-1e-6)?) / 2e-6;
    assert!((got - want).abs() < 1e-5 * want.abs().max(1.0), "{name}: {got} {want}");
    Ok(())
}

#[test]
fn decompositions_of_symmetric_matrices_pass_gradients_on_to_what_these_were_computed_from() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let weights = randn(&[3, 3], DType::F64, &mesh, &[Replicate])?;
        let positive = |x: &DTensor| {
            let product = DTensor::einsum("bij,bkj->bik", &[x, x])?;
            product.add(&eye(3, 3, DType::F64, &mesh, &[Replicate])?)
        };
        let loss = |x: DTensor| x.mul(&weights)?.sum(&[], false);
        for placement in [Replicate, Shard(0), Shard(1)] {
            check("cholesky", &mesh, placement, &|x| loss(positive(x)?.cholesky(false)?))?;
            check("upper", &mesh, placement, &|x| loss(positive(x)?.cholesky(true)?))?;
            check("eigh", &mesh, placement, &|x| loss(positive(x)?.eigh()?.1))?;
            check("inv", &mesh, placement, &|x| loss(positive(x)?.inv()?))?;
        }
        Ok(())
    });
}

#[test]
fn the_determinant_of_a_singular_matrix_has_its_minors_as_gradient() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let a = Tensor::from_vec(vec![1.0_f64, 2.0, 2.0, 4.0], &[2, 2])?;
        let a = distribute_tensor(&a, &mesh, &[Shard(0)])?.requires_grad()?;
        let gradient = a.det()?.backward()?.remove(&a).unwrap().to_vec::<f64>()?;
        for (got, want) in gradient.iter().zip([4.0, -2.0, -2.0, 1.0]) {
            assert!((got - want).abs() < 1e-12, "{gradient:?}");
        }
        Ok(())
    });
}

#[test]
fn the_norm_of_equal_singular_values_divides_its_gradient_among_them() {
    spmd(1, |world| {
        let mesh = mesh(world, &[1]);
        let a = eye(2, 2, DType::F64, &mesh, &[Replicate])?.requires_grad()?;
        let norm = a.matrix_norm(dtensor_local::linalg::MatrixNorm::Two)?;
        let gradient = norm.backward()?.remove(&a).unwrap().to_vec::<f64>()?;
        assert_eq!(gradient, [0.5, 0.0, 0.0, 0.5]);
        Ok(())
    });
}
