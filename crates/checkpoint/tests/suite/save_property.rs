//! Whatever the layouts: every element is written once, and copies are spread over the ranks.

use dtensor::{
    DTensor, DType, DeviceMesh, LocalError, Mesh, Tensor, World, distribute_tensor_from,
};
use dtensor_checkpoint::{AsyncSaver, SaveOptions, State, save};
use dtensor_layout::{Layout, Placement};
use dtensor_testing::{Failure, generate, spmd};
use proptest::prelude::*;

use crate::saved::{Checkpoint, names_in, place};

/// A tensor with bytes that tell where they are, in this layout.
fn tensor(world: &World, layout: &Layout, number: usize) -> Result<DTensor, Failure> {
    let mesh = DeviceMesh::from_mesh(world, layout.mesh().clone())?;
    let whole = Tensor::from_bytes_with(layout.global_shape(), layout.dtype(), |bytes| {
        bytes.copy_from_slice(&content(layout, number));
        Ok::<_, LocalError>(())
    })?;
    let copies = vec![Placement::Replicate; layout.mesh().n_axes()];
    let copied = distribute_tensor_from(&whole, &mesh, &copies, None)?;
    Ok(copied.redistribute_layout(layout)?)
}

fn content(layout: &Layout, number: usize) -> Vec<u8> {
    let n_bytes = layout.numel() * layout.dtype().size();
    let modulus = if layout.dtype() == DType::Bool { 2 } else { 251 };
    (0..n_bytes).map(|index| ((index * 7 + number * 31) % modulus) as u8).collect()
}

/// Layouts without pending values, on meshes of up to this many ranks.
fn layouts(max_ranks: usize) -> impl Strategy<Value = Vec<Layout>> {
    let one = (generate::shape(3), generate::mesh(max_ranks), generate::dtype())
        .prop_flat_map(|(shape, mesh, dtype)| generate::any_layout_of(shape, mesh, dtype))
        .prop_map(|layout| {
            let settled = |placement: &Placement| match placement {
                Placement::Partial(_) => Placement::Replicate,
                other => *other,
            };
            let placements: Vec<Placement> = layout.placements().iter().map(settled).collect();
            layout.with_placements_in_order(&placements).unwrap()
        });
    prop::collection::vec(one, 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_element_is_written_once(layouts in layouts(6), n_ranks in 6_usize..8, behind: bool) {
        let (directory, path, text) = place();
        let written = spmd(n_ranks, |world| {
            let mut state = State::new();
            for (number, layout) in layouts.iter().enumerate() {
                state.insert(format!("t{number}"), tensor(world, layout, number)?)?;
            }
            let options = SaveOptions::default().sync(false);
            let saved = match behind {
                true => AsyncSaver::new().save(world, &state, &text, &options)?.wait()?,
                false => save(world, &state, &text, &options)?,
            };
            Ok(saved.written)
        });
        let checkpoint = Checkpoint::read(&path).unwrap();
        let mut bytes = 0;
        for (number, layout) in layouts.iter().enumerate() {
            let name = format!("t{number}");
            prop_assert_eq!(checkpoint.tensor(&name), content(layout, number), "{:?}", layout);
            prop_assert!(checkpoint.parts[&name].iter().all(|part| part.global_shape == layout.global_shape()));
            bytes += layout.numel() * layout.dtype().size();
        }
        prop_assert_eq!(checkpoint.parts.len(), layouts.len());
        prop_assert_eq!(written.iter().sum::<u64>(), bytes as u64);
        prop_assert_eq!(checkpoint.manifest["bytes"].as_u64(), Some(bytes as u64));
        prop_assert_eq!(names_in(directory.path()), ["model"]);
    }

    #[test]
    fn copies_are_spread_evenly(sizes in prop::collection::vec(1_usize..50, 1..30), n_ranks in 1_usize..5) {
        let (_directory, path, text) = place();
        spmd(n_ranks, |world| {
            let mesh = Mesh::from_sizes(&[n_ranks])?;
            let mut state = State::new();
            for (number, size) in sizes.iter().enumerate() {
                let layout = Layout::replicated(&[*size], DType::I32, &mesh)?;
                state.insert(format!("t{number}"), tensor(world, &layout, number)?)?;
            }
            Ok(save(world, &state, &text, &SaveOptions::default().sync(false))?)
        });
        let checkpoint = Checkpoint::read(&path).unwrap();
        let by_file = checkpoint.bytes_by_file();
        let most = by_file.values().copied().max().unwrap();
        let least = if by_file.len() < n_ranks { 0 } else { by_file.values().copied().min().unwrap() };
        prop_assert!(most - least <= 4 * sizes.iter().max().unwrap(), "{:?}", by_file);
    }
}
