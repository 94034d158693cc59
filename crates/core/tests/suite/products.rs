//! What the sweep does not see of this family: layouts of results, calls and bytes, errors.

use dtensor::{
    CommDebug, DTensor, DType, Error, Layout,
    Placement::{Partial, Replicate, Shard},
    ReduceOp, Tensor, ones, randn,
};
use dtensor_testing::spmd;

use crate::support::mesh;

#[test]
fn a_bias_is_added_once_where_the_inner_dim_is_cut() {
    spmd(4, |world| {
        for sizes in [vec![4], vec![2, 2]] {
            let mesh = mesh(world, &sizes);
            let every = |placement| vec![placement; sizes.len()];
            let a = ones(&[3, 6], DType::F32, &mesh, &every(Shard(1)))?;
            let b = ones(&[6, 2], DType::F32, &mesh, &every(Shard(0)))?;
            let sum = Partial(ReduceOp::Sum);
            // Whole or pending, it stays where it is.
            for placement in [Replicate, sum] {
                let bias = ones(&[2], DType::F32, &mesh, &every(placement))?;
                let (result, comm) = CommDebug::record(|| bias.addmm(&a, &b, 10.0, 2.0));
                let result = result?;
                assert_eq!((comm.calls(), result.placements()), (0, &every(sum)[..]), "{comm}");
                assert_eq!(result.to_vec::<f32>()?, [22.0; 6]);
            }
        }
        Ok(())
    });
}

#[test]
fn an_equation_says_where_its_result_lies() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let sum = Partial(ReduceOp::Sum);
        let x = randn(&[4, 5, 6], DType::F64, &mesh, &[Shard(0), Shard(2)])?;
        let w = randn(&[6, 3], DType::F64, &mesh, &[Replicate, Shard(0)])?;
        let cases: [(&str, &[&DTensor], _); 4] = [
            ("bsd,df->bsf", &[&x, &w], [Shard(0), sum]),
            ("bsd->sdb", &[&x], [Shard(2), Shard(1)]),
            ("b...->...", &[&x], [sum, Shard(1)]),
            ("bsd,bsd->", &[&x, &x], [sum, sum]),
        ];
        for (equation, operands, placements) in cases {
            let (result, comm) = CommDebug::record(|| DTensor::einsum(equation, operands));
            let result = result?;
            assert_eq!((comm.calls(), result.placements()), (0, &placements[..]), "{equation}");
            let plain: Vec<Tensor> =
                operands.iter().map(|x| x.full_tensor()).collect::<Result<_, _>>()?;
            let want = Tensor::einsum(equation, &plain.iter().collect::<Vec<_>>())?;
            assert!(result.full_tensor()?.allclose(&want, 1e-12, 1e-12, false)?, "{equation}");
        }
        Ok(())
    });
}

#[test]
fn a_product_keeps_the_order_of_shards() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let a = randn(&[5, 3], DType::F64, &mesh, &[Replicate; 2])?;
        let layout = Layout::parse(&[5, 3], DType::F64, mesh.mesh(), "[S(0)[1], S(0)[0]]")?;
        let b = randn(&[3, 2], DType::F64, &mesh, &[Replicate; 2])?;
        let want = a.mm(&b)?.to_vec::<f64>()?;
        let cut = a.redistribute_layout(&layout)?;
        let (product, comm) = CommDebug::record(|| cut.mm(&b));
        let product = product?;
        assert_eq!((comm.calls(), product.layout().to_string()), (0, layout.to_string()));
        assert_eq!(product.to_vec::<f64>()?, want);
        Ok(())
    });
}

#[test]
fn a_kronecker_product_lies_as_its_first_operand() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let a = randn(&[4, 3], DType::F64, &mesh, &[Shard(0)])?;
        let b = randn(&[2, 2], DType::F64, &mesh, &[Replicate])?;
        let (product, comm) = CommDebug::record(|| a.kron(&b));
        let product = product?;
        assert_eq!((comm.calls(), product.placements()), (0, &[Shard(0)][..]));
        let want = a.full_tensor()?.kron(&b.full_tensor()?)?;
        assert_eq!(product.to_vec::<f64>()?, want.to_vec::<f64>()?);
        Ok(())
    });
}

#[test]
fn mistakes_are_found_on_every_rank_alike() {
    let errors = spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = ones(&[4, 3], DType::F32, &mesh, &[Shard(0)])?;
        let v = ones(&[4], DType::F32, &mesh, &[Shard(0)])?;
        let three = ones(&[1, 4, 4], DType::F32, &mesh, &[Shard(0)])?;
        let errors = [
            x.mm(&x).unwrap_err(),
            x.bmm(&x).unwrap_err(),
            v.dot(&x).unwrap_err(),
            three.addmm(&x, &x, 1.0, 1.0).unwrap_err(),
            DTensor::einsum("ij,jk->ik", &[&x, &x]).unwrap_err(),
            DTensor::einsum("ij->ik", &[&x]).unwrap_err(),
            DTensor::einsum("", &[]).unwrap_err(),
        ];
        assert!(errors[..6].iter().all(|error| matches!(error, Error::Local(_))), "{errors:?}");
        Ok(errors)
    });
    assert_eq!(errors[0], errors[1]);
}
