//! From any cut to any layout.

use std::{ops::Range, sync::Arc};

use dtensor::{DType, Layout, Mesh};
use dtensor_checkpoint::{
    LoadOptions, SaveOptions, State, StoredType, Value, load, load_from, save,
};
use dtensor_testing::{generate, spmd};
use proptest::prelude::*;

use crate::{
    load_support::{Files, check, filled, state_of},
    load_written::{Whole, write},
};

/// Ranges that cut a size at any places; some may be empty.
fn cuts(size: usize) -> impl Strategy<Value = Vec<Range<usize>>> {
    prop::collection::vec(0..=size, 0..3).prop_map(move |mut places| {
        places.extend([0, size]);
        places.sort_unstable();
        places.windows(2).map(|pair| pair[0]..pair[1]).collect()
    })
}

/// A tensor that is cut in every dim, with its parts in files of which no two of one tensor are the same.
fn whole(name: &'static str) -> impl Strategy<Value = Whole> {
    let stored = prop::sample::select(&DType::ALL[..]).prop_map(StoredType::from);
    (generate::shape(4), stored).prop_flat_map(move |(shape, stored)| {
        let cuts: Vec<_> = shape.iter().map(|&size| cuts(size)).collect();
        cuts.prop_map(move |cuts| {
            let mut parts = vec![Vec::new()];
            for dim in cuts {
                let longer = |begun: &Vec<Range<usize>>| {
                    let begun = begun.clone();
                    dim.clone().into_iter().map(move |range| [begun.as_slice(), &[range]].concat())
                };
                parts = parts.iter().flat_map(longer).collect();
            }
            Whole {
                parts: parts.into_iter().enumerate().collect(),
                ..Whole::new(name, stored, &shape)
            }
        })
    })
}

/// A tensor of any type, with a layout on the one mesh to be saved in and one on the other to be loaded into, of any type.
fn saved_and_loaded(
    name: &'static str,
    from: &Mesh,
    to: &Mesh,
) -> impl Strategy<Value = (Whole, Layout, Layout)> + use<> {
    let (from, to) = (from.clone(), to.clone());
    let whole = |no_reductions: BoxedStrategy<Layout>| {
        no_reductions.prop_filter("pending", |layout| !layout.is_partial())
    };
    (generate::shape(4), generate::dtype(), generate::dtype()).prop_flat_map(
        move |(shape, stored, wanted)| {
            let tensor = Whole::new(name, stored.into(), &shape);
            let saved = generate::any_layout_of(shape.clone(), from.clone(), stored);
            let loaded = generate::any_layout_of(shape, to.clone(), wanted);
            (Just(tensor), whole(saved.boxed()), whole(loaded.boxed()))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn what_one_mesh_saves_another_loads(
        (a, b) in (generate::mesh(6), generate::mesh(6)).prop_flat_map(|(from, to)| {
            (saved_and_loaded("a", &from, &to), saved_and_loaded("b.c", &from, &to))
        }),
        step in any::<i64>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint");
        let path = path.to_str().unwrap();
        spmd(a.1.mesh().size(), |world| {
            let mut state = State::new();
            for (whole, layout, _) in [&a, &b] {
                state.insert(whole.name.as_str(), filled(world, whole, layout)?)?;
            }
            state.insert("step", step)?;
            save(world, &state, path, &SaveOptions::default().sync(false))?;
            Ok(())
        });
        spmd(a.2.mesh().size(), |world| {
            let tensors = [(&a.0, &a.2), (&b.0, &b.2)];
            let mut state = state_of(world, tensors)?;
            state.insert("step", 0)?;
            load(world, &mut state, path, &LoadOptions::default())?;
            check(world, &state, tensors);
            assert_eq!(state.value("step"), Some(&Value::Int(step)));
            Ok(())
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn any_cut_is_loaded_into_any_layout(
        (tensors, layouts, block, verify) in (whole("a"), whole("b"), generate::mesh(6)).prop_flat_map(|(a, b, mesh)| {
            let layout = |whole: &Whole| {
                let (shape, mesh) = (whole.shape.clone(), mesh.clone());
                generate::dtype().prop_flat_map(move |dtype| generate::any_layout_of(shape.clone(), mesh.clone(), dtype))
                    .prop_filter("pending", |layout| !layout.is_partial())
            };
            let layouts = (layout(&a), layout(&b));
            (Just([a, b]), layouts, prop::sample::select(vec![16_usize, 48, 1 << 20]), any::<bool>())
        })
    ) {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &tensors, &[], block);
        let files = Files::of(dir.path());
        let layouts: [Layout; 2] = layouts.into();
        let n_ranks = layouts[0].mesh().size();
        spmd(n_ranks, |world| {
            let mut state = state_of(world, tensors.iter().zip(&layouts))?;
            let options = LoadOptions { verify, ..LoadOptions::default() };
            load_from(world, &mut state, Arc::new(files.clone()), &options)?;
            check(world, &state, tensors.iter().zip(&layouts));
            Ok(())
        });
    }
}
