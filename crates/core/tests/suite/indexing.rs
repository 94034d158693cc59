//! What the sweep does not see of this family: layouts of results, calls and bytes, errors.

use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh, Error, Layout, LocalError, OnImplicit,
    Placement::{self, Partial, Replicate, Shard},
    ReduceOp, Scalar, ScatterReduce, Tensor, World, arange, distribute_tensor_from, explicit, full,
    ones,
    plan::StepKind,
    zeros,
};
use dtensor_testing::spmd;

use crate::support::mesh;

/// A tensor with these values in this layout, of which every rank has the whole.
fn placed<T: dtensor::Element>(
    values: &[T],
    shape: &[usize],
    mesh: &DeviceMesh,
    placements: &[Placement],
) -> DTensor {
    let whole = Tensor::from_slice(values, shape).unwrap();
    distribute_tensor_from(&whole, mesh, placements, None).unwrap()
}

#[test]
fn picking_along_the_cut_dim_sends_nothing_until_the_sum_is_needed() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let x = arange(0, 20, 1, DType::F32, &mesh, &[Shard(0)])?;
        let list = placed(&[19_i64, 0, 7, 7], &[4], &mesh, &[Replicate]);
        let (results, comm) = CommDebug::record(|| {
            Ok::<_, Error>([
                x.index_select(0, &list)?,
                x.gather(0, &list)?,
                x.take(&list)?,
                x.index(&[Some(&list)])?,
            ])
        });
        assert_eq!(comm.calls(), 0, "{comm}");
        for result in results? {
            assert_eq!(result.placements(), [Partial(ReduceOp::Sum)]);
            let (values, comm) = CommDebug::record(|| result.to_vec::<f32>());
            assert_eq!(values?, [19.0, 0.0, 7.0, 7.0]);
            assert_eq!((comm.calls_of(StepKind::AllReduce), comm.calls()), (1, 1), "{comm}");
        }
        // Cut indices: the result is cut as they are.
        let whole = x.redistribute(&[Replicate])?;
        let cut = list.redistribute(&[Shard(0)])?;
        let (picked, comm) = CommDebug::record(|| whole.index_select(0, &cut));
        // One number: whether all indices are in range.
        assert_eq!((comm.bytes(), picked?.placements()), (8 * 4, &[Shard(0)][..]), "{comm}");
        Ok(())
    });
}

#[test]
fn what_is_not_picked_does_not_leak_into_the_sum() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let values = [f32::NAN, f32::INFINITY, 3.0, f32::NEG_INFINITY];
        let x = placed(&values, &[4], &mesh, &[Shard(0)]);
        let list = placed(&[1_i64, 2], &[2], &mesh, &[Replicate]);
        for picked in [x.index_select(0, &list)?, x.gather(0, &list)?, x.index(&[Some(&list)])?] {
            assert_eq!(picked.to_vec::<f32>()?, [f32::INFINITY, 3.0]);
        }
        Ok(())
    });
}

#[test]
fn every_dtype_is_picked_and_written_along_the_cut_dim() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let list = placed(&[3_i64, 0, 4], &[3], &mesh, &[Replicate]);
        for dtype in DType::ALL {
            let whole = Tensor::from_vec(vec![1_i64, 0, 0, 1, 0], &[5])?.to_dtype(dtype)?;
            let x = distribute_tensor_from(&whole, &mesh, &[Shard(0)], None)?;
            let dense = list.full_tensor()?;
            let check = |got: DTensor, want: Tensor| -> Result<(), Error> {
                assert_eq!(got.dtype(), dtype);
                let numbers = |x: Tensor| x.to_dtype(DType::F64)?.to_vec::<f64>();
                assert_eq!(numbers(got.full_tensor()?)?, numbers(want)?, "{dtype}");
                Ok(())
            };
            check(x.index_select(0, &list)?, whole.index_select(0, &dense)?)?;
            check(x.gather(0, &list)?, whole.gather(0, &dense)?)?;
            check(x.take(&list)?, whole.take(&dense)?)?;
            check(x.index(&[Some(&list)])?, whole.index(&[Some(&dense)])?)?;
            let ones = Tensor::ones(&[3], dtype)?;
            let values = distribute_tensor_from(&ones, &mesh, &[Replicate], None)?;
            check(x.scatter(0, &list, &values)?, whole.scatter(0, &dense, &ones)?)?;
            check(x.scatter_add(0, &list, &values)?, whole.scatter_add(0, &dense, &ones)?)?;
            check(x.index_add(0, &list, &values, 1)?, whole.index_add(0, &dense, &ones, 1)?)?;
            check(x.index_copy(0, &list, &values)?, whole.index_copy(0, &dense, &ones)?)?;
            check(x.index_fill(0, &list, true)?, whole.index_fill(0, &dense, true)?)?;
            let mask = whole.eq_scalar(0)?;
            let cut = distribute_tensor_from(&mask, &mesh, &[Shard(0)], None)?;
            check(x.masked_select(&cut)?, whole.masked_select(&mask)?)?;
            check(x.masked_scatter(&cut, &values)?, whole.masked_scatter(&mask, &ones)?)?;
        }
        Ok(())
    });
}

/// In PyTorch such a write is lost silently.
#[test]
fn what_is_written_along_the_cut_dim_is_written_and_nothing_is_sent() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        // 6 rows on 4 ranks: the last has nothing.
        let x = zeros(&[6, 2], DType::F32, &mesh, &[Shard(0)])?;
        let list = placed(&[5_i64, 1, 5], &[3], &mesh, &[Replicate]);
        let rows = placed(&[1_f32, 2., 3., 4., 5., 6.], &[3, 2], &mesh, &[Replicate]);
        let lists = placed(&[5_i64, 5, 1, 1, 5, 0], &[3, 2], &mesh, &[Replicate]);
        let (results, comm) = CommDebug::record(|| {
            Ok::<_, Error>([
                (x.index_copy(0, &list, &rows)?, [0., 0., 3., 4., 0., 0., 0., 0., 0., 0., 5., 6.]),
                (
                    x.index_add(0, &list, &rows, 2)?,
                    [0., 0., 6., 8., 0., 0., 0., 0., 0., 0., 12., 16.],
                ),
                (x.index_fill(0, &list, 7)?, [0., 0., 7., 7., 0., 0., 0., 0., 0., 0., 7., 7.]),
                (x.scatter(0, &lists, &rows)?, [0., 6., 3., 4., 0., 0., 0., 0., 0., 0., 5., 2.]),
                (x.scatter_scalar(0, &lists, 1)?, [0., 1., 1., 1., 0., 0., 0., 0., 0., 0., 1., 1.]),
                (
                    x.scatter_add(0, &lists, &rows)?,
                    [0., 6., 3., 4., 0., 0., 0., 0., 0., 0., 6., 2.],
                ),
                (
                    x.scatter_reduce(0, &lists, &rows, ScatterReduce::Mean, false)?,
                    [0., 6., 3., 4., 0., 0., 0., 0., 0., 0., 3., 2.],
                ),
                (
                    x.index_put(&[Some(&list)], &rows, false)?,
                    [0., 0., 3., 4., 0., 0., 0., 0., 0., 0., 5., 6.],
                ),
                (
                    x.index_put(&[Some(&list)], &rows, true)?,
                    [0., 0., 3., 4., 0., 0., 0., 0., 0., 0., 6., 8.],
                ),
            ])
        });
        assert_eq!(comm.calls(), 0, "{comm}");
        for (result, want) in results? {
            assert_eq!(result.layout(), x.layout());
            assert_eq!(result.to_vec::<f32>()?, want);
        }
        Ok(())
    });
}

#[test]
fn additions_from_several_ranks_are_a_pending_sum() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let x = full(&[4], 10_i64, &mesh, &[Replicate])?;
        let list = placed(&[0_i64, 1, 1, 3, 1], &[5], &mesh, &[Shard(0)]);
        let values = placed(&[1_i64, 2, 3, 4, 5], &[5], &mesh, &[Shard(0)]);
        let (results, comm) = CommDebug::record(|| {
            Ok::<_, Error>([
                x.index_add(0, &list, &values, 1)?,
                x.scatter_add(0, &list, &values)?,
                x.index_put(&[Some(&list)], &values, true)?,
            ])
        });
        // One number each: whether all indices are in range.
        assert_eq!((comm.calls(), comm.bytes()), (3, 3 * 8 * 4), "{comm}");
        for result in results? {
            assert_eq!(result.placements(), [Partial(ReduceOp::Sum)]);
            assert_eq!(result.to_vec::<i64>()?, [11, 20, 10, 14]);
        }
        Ok(())
    });
}

#[test]
fn an_index_beyond_the_whole_dim_is_the_same_error_on_every_rank() {
    let errors = spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let x = zeros(&[5, 2], DType::F32, &mesh, &[Shard(0)])?;
        // Beyond what each rank holds, but only 5 is beyond the whole.
        let list = placed(&[4_i64, 5], &[2], &mesh, &[Replicate]);
        let lists = placed(&[4_i64, 5, 0, 0], &[2, 2], &mesh, &[Replicate]);
        let rows = zeros(&[2, 2], DType::F32, &mesh, &[Replicate])?;
        let errors = [
            x.index_select(0, &list),
            x.gather(0, &lists),
            x.index(&[Some(&list)]),
            x.scatter(0, &lists, &rows),
            x.scatter_add(0, &lists, &rows),
            x.index_add(0, &list, &rows, 1),
            x.index_copy(0, &list, &rows),
            x.index_fill(0, &list, 1),
            x.index_put(&[Some(&list)], &rows, false),
        ];
        Ok(errors.map(|result| match result {
            Err(Error::Local(error)) => match *error {
                LocalError::IndexOutOfRange { index: 5, dim: 0, size: 5, .. } => error.to_string(),
                other => panic!("{other}"),
            },
            other => panic!("{other:?}"),
        }))
    });
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
}

#[test]
fn negative_indices_count_from_the_end_where_the_kernels_do_so() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = arange(0, 6, 1, DType::I64, &mesh, &[Shard(0)])?;
        let list = placed(&[-1_i64, -6, 2], &[3], &mesh, &[Replicate]);
        assert_eq!(x.take(&list)?.to_vec::<i64>()?, [5, 0, 2]);
        assert_eq!(x.index(&[Some(&list)])?.to_vec::<i64>()?, [5, 0, 2]);
        let values = full(&[], 9_i64, &mesh, &[Replicate])?;
        let written = x.index_put(&[Some(&list)], &values, false)?;
        assert_eq!(written.to_vec::<i64>()?, [9, 1, 9, 3, 4, 9]);
        assert!(x.index_select(0, &list).is_err());
        Ok(())
    });
}

#[test]
fn masks_stand_for_the_lists_of_where_they_are_true() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        for placement in [Shard(0), Shard(1), Replicate] {
            let x = placed(&(0..12).collect::<Vec<i32>>(), &[4, 3], &mesh, &[placement]);
            let mask =
                [false, true, true, false, false, false, true, false, false, false, true, true];
            let mask = placed(&mask, &[4, 3], &mesh, &[placement]);
            assert_eq!(x.index(&[Some(&mask)])?.to_vec::<i32>()?, [1, 2, 6, 10, 11]);
            let rows = placed(&[true, false, true, false], &[4], &mesh, &[Replicate]);
            assert_eq!(x.index(&[Some(&rows)])?.to_vec::<i32>()?, [0, 1, 2, 6, 7, 8]);
            let minus = full(&[], -1_i32, &mesh, &[Replicate])?;
            let written = x.index_put(&[Some(&mask)], &minus, false)?;
            assert_eq!(written.to_vec::<i32>()?, [0, -1, -1, 3, 4, 5, -1, 7, 8, 9, -1, -1]);
        }
        let x = ones(&[4], DType::F32, &mesh, &[Shard(0)])?;
        let mask = ones(&[3], DType::Bool, &mesh, &[Replicate])?;
        assert!(x.index(&[Some(&mask)]).is_err());
        Ok(())
    });
}

#[test]
fn what_a_mask_selects_stays_cut() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        let x = arange(0, 40, 1, DType::I64, &mesh, &[Shard(0)])?;
        // Rank 0 has everything that is selected.
        let mask = x.lt(10_i64)?;
        let (selected, comm) = CommDebug::record(|| x.masked_select(&mask));
        let selected = selected?;
        assert_eq!((selected.shape(), selected.placements()), (&[10][..], &[Shard(0)][..]));
        assert_eq!(selected.to_local().numel(), [3, 3, 3, 1][world.rank()]);
        assert_eq!(selected.to_vec::<i64>()?, (0..10).collect::<Vec<_>>());
        assert_eq!(comm.calls_of(StepKind::AllGather), 1, "{comm}");
        assert_eq!(comm.calls_of(StepKind::Exchange), 1, "{comm}");
        // The numbers of elements of 3 other ranks, and 7 elements.
        assert_eq!(comm.bytes(), 4 * 3 * 8 + 7 * 8);
        // Nothing has to move where the parts are chunks already.
        let (all, comm) = CommDebug::record(|| x.masked_select(&x.ge(0_i64)?));
        assert_eq!((all?.layout(), comm.calls()), (x.layout(), 1), "{comm}");
        // Nor does anything for a tensor that every rank has.
        let whole = x.redistribute(&[Replicate])?;
        let (all, comm) = CommDebug::record(|| whole.nonzero());
        assert_eq!((all?.placements(), comm.calls()), (&[Replicate][..], 0));
        Ok(())
    });
}

#[test]
fn nothing_is_selected_from_nothing() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = zeros(&[0, 3], DType::F32, &mesh, &[Shard(0)])?;
        assert_eq!(x.nonzero()?.shape(), [0, 2]);
        let x = zeros(&[5], DType::F32, &mesh, &[Shard(0)])?;
        assert_eq!(x.nonzero()?.shape(), [0, 1]);
        assert_eq!(x.masked_select(&x.gt(0.0)?)?.shape(), [0]);
        Ok(())
    });
}

#[test]
fn a_source_that_is_too_short_and_repeats_below_zero_are_errors_on_every_rank() {
    let errors = spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        let x = zeros(&[7], DType::F32, &mesh, &[Shard(0)])?;
        let mask = ones(&[7], DType::Bool, &mesh, &[Shard(0)])?;
        let source = zeros(&[6], DType::F32, &mesh, &[Shard(0)])?;
        let short = x.masked_scatter(&mask, &source).unwrap_err();
        // Only one rank sees it.
        let repeats = placed(&[1_i64, 1, 1, 1, 1, 1, -2], &[7], &mesh, &[Shard(0)]);
        let negative = x.repeat_interleave_tensor(&repeats, Some(0)).unwrap_err();
        Ok([short.to_string(), negative.to_string()])
    });
    assert!(errors[0][0].contains("6 values"), "{errors:?}");
    assert!(errors[0][1].contains("-2"), "{errors:?}");
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
}

#[test]
fn repeated_slices_move_only_across_the_boundaries_of_chunks() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = arange(0, 4, 1, DType::I64, &mesh, &[Shard(0)])?;
        let repeats = placed(&[3_i64, 2, 1, 0], &[4], &mesh, &[Shard(0)]);
        let (repeated, comm) = CommDebug::record(|| x.repeat_interleave_tensor(&repeats, Some(0)));
        let repeated = repeated?;
        assert_eq!(repeated.placements(), [Shard(0)]);
        assert_eq!(repeated.to_vec::<i64>()?, [0, 0, 0, 1, 1, 2]);
        // Two numbers of each rank, and two elements.
        assert_eq!((comm.calls(), comm.bytes()), (2, 2 * 16 + 2 * 8), "{comm}");
        Ok(())
    });
}

#[test]
fn any_order_of_cuts_and_any_scope_will_do() {
    spmd(4, |world| {
        let mesh = mesh(world, &[2, 2]);
        let layout = Layout::with_order(
            &[7, 3],
            DType::I64,
            mesh.mesh(),
            &[Shard(0), Shard(0)],
            &[(0, &[1, 0])],
        )?;
        let dense = Tensor::from_vec((0..21_i64).map(|i| i % 4).collect(), &[7, 3])?;
        let x = distribute_tensor_from(&dense, &mesh, &[Replicate; 2], None)?;
        let x = x.redistribute_layout(&layout)?;
        let list = placed(&[6_i64, 2, 2], &[3], &mesh, &[Replicate; 2]);
        let local = list.full_tensor()?;
        let check = |got: DTensor, want: Tensor| -> Result<(), Error> {
            assert_eq!(got.to_vec::<i64>()?, want.to_vec::<i64>()?);
            Ok(())
        };
        check(x.index_select(0, &list)?, dense.index_select(0, &local)?)?;
        check(x.nonzero()?, dense.nonzero()?)?;
        check(x.masked_select(&x.gt(2_i64)?)?, dense.masked_select(&dense.gt_scalar(2)?)?)?;
        let repeats = placed(&[2_i64, 0, 1, 3, 1, 0, 1], &[7], &mesh, &[Replicate; 2]);
        let want = dense.repeat_interleave_tensor(&repeats.full_tensor()?, Some(0))?;
        // What an operation sends by its definition is not unasked for.
        let got = explicit(OnImplicit::Refuse, || x.repeat_interleave_tensor(&repeats, Some(0)))?;
        check(got, want).map_err(Into::into)
    });
}

#[test]
fn a_fake_mesh_has_layouts_and_ranks_outside_have_nothing() -> Result<(), Error> {
    let world =
        World::fake(8, 3).map_err(|source| Error::Comm { op: "fake", source: source.into() })?;
    let fake = DeviceMesh::of_world(&world, "x")?;
    let x = zeros(&[100, 4], DType::F32, &fake, &[Shard(0)])?;
    let list = zeros(&[10], DType::I64, &fake, &[Replicate])?;
    assert_eq!(x.index_select(0, &list)?.layout().to_string(), "[P(sum)]");
    let rows = zeros(&[10, 4], DType::F32, &fake, &[Replicate])?;
    assert_eq!(x.index_add(0, &list, &rows, 1)?.layout(), x.layout());
    assert_eq!(x.index_put(&[Some(&list)], &rows, false)?.layout(), x.layout());
    assert!(matches!(x.nonzero(), Err(Error::Unsupported { op: "nonzero", .. })));
    let mask = zeros(&[100, 4], DType::Bool, &fake, &[Shard(0)])?;
    assert_eq!(x.masked_scatter(&mask, &x)?.layout(), x.layout());
    spmd(3, |world| {
        let two = DeviceMesh::from_mesh(world, "x=2".parse()?)?;
        let x = ones(&[4, 4], DType::F32, &two, &[Shard(0)])?;
        let list = zeros(&[3], DType::I64, &two, &[Replicate])?;
        assert_eq!(x.index_select(0, &list)?.shape(), [3, 4]);
        let mask = ones(&[4, 4], DType::Bool, &two, &[Shard(0)])?;
        assert_eq!(x.masked_scatter(&mask, &x)?.shape(), [4, 4]);
        if world.rank() == 2 {
            assert!(matches!(x.nonzero(), Err(Error::NotOnMesh { .. })));
        } else {
            assert_eq!(x.nonzero()?.shape(), [16, 2]);
        }
        Ok(())
    });
    Ok(())
}

#[test]
fn a_value_that_is_zero_passes_through_a_pending_sum() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let x = arange(1, 5, 1, DType::F32, &mesh, &[Partial(ReduceOp::Sum)])?;
        let list = placed(&[1_i64, 3], &[2], &mesh, &[Replicate]);
        let (zeroed, comm) = CommDebug::record(|| x.index_fill(0, &list, Scalar::Float(0.0)));
        let zeroed = zeroed?;
        assert_eq!((comm.calls(), zeroed.placements()), (0, &[Partial(ReduceOp::Sum)][..]));
        assert_eq!(zeroed.to_vec::<f32>()?, [1.0, 0.0, 3.0, 0.0]);
        let filled = x.index_fill(0, &list, 5)?;
        assert_eq!(filled.to_vec::<f32>()?, [1.0, 5.0, 3.0, 5.0]);
        Ok(())
    });
}
