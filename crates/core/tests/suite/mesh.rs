//! Meshes: slices in any order, flattening and back, groups.

use dtensor::{DType, DeviceMesh, Error, Placement::Shard, arange};
use dtensor_testing::spmd;

#[test]
fn slices_flattened_axes_and_groups_have_the_right_ranks() {
    spmd(8, |world| {
        let mesh = DeviceMesh::new(world, &[("pp", 2), ("dp", 2), ("tp", 2)])?;
        let coord = mesh.coord().unwrap().to_vec();
        assert_eq!(coord, [world.rank() / 4, world.rank() / 2 % 2, world.rank() % 2]);
        let ranks = |mesh: &DeviceMesh| mesh.mesh().ranks().collect::<Vec<_>>();
        // In another order than the mesh's: PyTorch refuses that.
        let slice = mesh.submesh(&["tp", "dp"])?;
        let first = coord[0] * 4;
        assert_eq!(ranks(&slice), [first, first + 2, first + 1, first + 3]);
        let flat = mesh.submesh(&["pp", "tp"])?.flatten("both")?;
        let first = coord[1] * 2;
        assert_eq!(ranks(&flat), [first, first + 1, first + 4, first + 5]);
        let back = flat.unflatten("both", &[("pp", 2), ("tp", 2)])?;
        assert_eq!(back, mesh.submesh(&["pp", "tp"])?);
        let joined = DeviceMesh::concatenate(&[&mesh.axis("pp")?, &mesh.axis("tp")?])?;
        assert_eq!(ranks(&joined), ranks(&back));
        let group = mesh.group(&["dp"])?;
        assert_eq!(group.world_ranks(), ranks(&mesh.axis("dp")?));
        assert_eq!(DeviceMesh::from_group(world, &group, "dp")?, mesh.axis("dp")?);
        assert_eq!(mesh.local_rank("tp")?, Some(coord[2]));
        assert!(matches!(mesh.axis("ep"), Err(Error::Layout { .. })));
        // A tensor on a slice: every one of the slices has its own.
        let x = arange(0, 5, 1, DType::I64, &slice, &[Shard(0), Shard(0)])?;
        assert_eq!(x.to_vec::<i64>()?, [0, 1, 2, 3, 4]);
        Ok(())
    });
}

#[test]
fn a_mesh_that_does_not_fit_the_world_is_refused() {
    spmd(2, |world| {
        let error = DeviceMesh::new(world, &[("x", 3)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "mesh x=3 needs rank 2, but the world has 2 ranks; start more or shrink it"
        );
        let group = world.group();
        assert!(DeviceMesh::from_group(world, &group, "x").is_ok());
        Ok(())
    });
}
