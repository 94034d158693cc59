//! Loading into any layout and type.

use dtensor::{DType, Layout, Mesh};
use dtensor_checkpoint::{LoadOptions, Progress, State, StoredType, Value, load};
use dtensor_testing::spmd;

use crate::{
    load_support::{check, expected, state_of, zeros_in},
    load_written::{Whole, write},
};

const OPTIONS: LoadOptions<'static> = LoadOptions { verify: true, partial: false, progress: None };

/// Tensors of many kinds, cut in many ways over three files.
fn some_tensors() -> Vec<Whole> {
    vec![
        Whole::new("rows", StoredType::F32, &[13, 6]).cut(0, &[5, 8, 0]),
        Whole::new("columns", StoredType::F32, &[9, 14]).cut(1, &[3, 4, 7]),
        Whole::new("deep", StoredType::Bf16, &[4, 5, 6]).cut(1, &[2, 2, 1]),
        Whole::new("line", StoredType::I64, &[29]).cut(0, &[10, 10, 9]),
        Whole::new("one", StoredType::F64, &[]),
        Whole::new("none", StoredType::F32, &[0, 3]),
        Whole::new("flags", StoredType::Bool, &[7, 3]).cut(0, &[3, 3, 1]),
        Whole::new("bytes", StoredType::U8, &[5, 1, 7]).cut(2, &[0, 4, 3]),
    ]
}

/// The layouts of these tensors that a text means: those whose dims exist, copies for the others.
fn layouts(tensors: &[Whole], mesh: &Mesh, text: &str) -> Vec<Layout> {
    let copies = format!("[{}]", vec!["R"; mesh.n_axes()].join(", "));
    let layout = |whole: &Whole| {
        let dtype = whole.stored.dtype().unwrap();
        Layout::parse(&whole.shape, dtype, mesh, text)
            .or_else(|_| Layout::parse(&whole.shape, dtype, mesh, &copies))
            .unwrap()
    };
    tensors.iter().map(layout).collect()
}

#[test]
fn every_rank_gets_what_its_layout_says() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = some_tensors();
    for block in [16, 64, 1 << 20] {
        let path = dir.path().join(format!("blocks-of-{block}"));
        write(&path, &tensors, &[], block);
        for (mesh, text) in [
            ("x=1", "[S(0)]"),
            ("x=2", "[R]"),
            ("x=2", "[S(0)]"),
            ("x=3", "[S(1)]"),
            ("x=4", "[S(0)]"),
            ("x=5", "[S(1)]"),
            ("x=2,y=2", "[S(0), S(1)]"),
            ("x=2,y=3", "[S(0), S(0)]"),
            ("x=2,y=3", "[S(0)[1], S(0)[0]]"),
            ("x=2,y=2", "[R, S(1)]"),
            ("x=2,y=2", "[_S(0, 2), S(0)]"),
            ("x=2,y=2,z=2", "[S(2), R, S(1)]"),
            ("x=2:1,y=2:2", "[S(0), S(1)]"),
            ("x=2:2@1", "[S(1)]"),
        ] {
            let mesh: Mesh = mesh.parse().unwrap();
            let layouts = layouts(&tensors, &mesh, text);
            let n_ranks = mesh.ranks().max().unwrap() + 1;
            spmd(n_ranks, |world| {
                let mut state = state_of(world, tensors.iter().zip(&layouts))?;
                let report = load(world, &mut state, path.to_str().unwrap(), &OPTIONS)?;
                assert_eq!(report.tensors, tensors.len());
                check(world, &state, tensors.iter().zip(&layouts));
                Ok(())
            });
        }
    }
}

#[test]
fn what_needs_several_rounds_arrives_whole() {
    let dir = tempfile::tempdir().unwrap();
    // Blocks end in the middle of rows, and rounds in the middle of tensors.
    let tensors = [
        Whole::new("a", StoredType::F32, &[1500, 1111]).cut(0, &[700, 800]),
        Whole::new("b", StoredType::F32, &[999, 2001]).cut(1, &[1000, 1001]),
        Whole::new("c", StoredType::U8, &[3_000_001]).cut(0, &[3_000_000, 1]),
    ];
    write(dir.path(), &tensors, &[], 1 << 20);
    for (mesh, text) in
        [("x=2", "[S(1)]"), ("x=3", "[R]"), ("x=2", "[S(0)]"), ("x=2,y=2", "[S(1), R]")]
    {
        let mesh: Mesh = mesh.parse().unwrap();
        let layouts = layouts(&tensors, &mesh, text);
        spmd(mesh.size(), |world| {
            let mut state = state_of(world, tensors.iter().zip(&layouts))?;
            let report = load(world, &mut state, dir.path().to_str().unwrap(), &OPTIONS)?;
            let held = tensors
                .iter()
                .zip(&layouts)
                .map(|(whole, layout)| expected(whole, layout, world.rank()).len());
            assert_eq!(report.bytes, held.sum::<usize>() as u64);
            for (whole, layout) in tensors.iter().zip(&layouts) {
                let found = state.tensor(&whole.name).unwrap().to_local();
                assert!(
                    found.contiguous().as_bytes()? == expected(whole, layout, world.rank()),
                    "`{}` {layout}",
                    whole.name
                );
            }
            Ok(())
        });
    }
}

#[test]
fn what_more_ranks_need_than_get_copies_is_sent_to_all() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = [
        Whole::new("a", StoredType::F32, &[37, 11]).cut(0, &[20, 17]),
        Whole::new("b", StoredType::F32, &[21, 3]).cut(1, &[1, 2]),
        Whole::new("small", StoredType::I32, &[5]),
    ];
    write(dir.path(), &tensors, &[], 64);
    let mesh: Mesh = "x=9,y=2".parse().unwrap();
    for text in ["[R, R]", "[R, S(1)]", "[S(0), R]", "[S(1), S(1)]"] {
        let layouts = layouts(&tensors, &mesh, text);
        spmd(18, |world| {
            let mut state = state_of(world, tensors.iter().zip(&layouts))?;
            load(world, &mut state, dir.path().to_str().unwrap(), &OPTIONS)?;
            check(world, &state, tensors.iter().zip(&layouts));
            Ok(())
        });
    }
}

#[test]
fn elements_are_converted_as_a_cast_converts_them() {
    let dir = tempfile::tempdir().unwrap();
    let stored = DType::ALL.map(StoredType::from);
    let name = |stored: StoredType| format!("from_{stored}");
    let tensors: Vec<Whole> = stored
        .iter()
        .map(|&stored| Whole::new(&name(stored), stored, &[6, 7]).cut(0, &[4, 2]))
        .collect();
    write(dir.path(), &tensors, &[], 32);
    for dtype in DType::ALL {
        for (mesh, text) in [("x=1", "[R]"), ("x=2", "[S(0)]"), ("x=2", "[S(1)]"), ("x=3", "[R]")] {
            let mesh: Mesh = mesh.parse().unwrap();
            let layout = Layout::parse(&[6, 7], dtype, &mesh, text).unwrap();
            spmd(mesh.size(), |world| {
                let mut state = state_of(world, tensors.iter().map(|whole| (whole, &layout)))?;
                load(world, &mut state, dir.path().to_str().unwrap(), &OPTIONS)?;
                check(world, &state, tensors.iter().map(|whole| (whole, &layout)));
                Ok(())
            });
        }
    }
}

#[test]
fn any_byte_of_a_stored_bool_but_zero_is_true() {
    let dir = tempfile::tempdir().unwrap();
    let mut whole = Whole::new("flags", StoredType::Bool, &[4]);
    whole.bytes = vec![0, 1, 2, 255];
    write(dir.path(), &[whole], &[], 64);
    for n_ranks in [1, 2] {
        let mesh = Mesh::from_sizes(&[n_ranks]).unwrap();
        let layout = Layout::parse(&[4], DType::Bool, &mesh, "[R]").unwrap();
        spmd(n_ranks, |world| {
            let mut state = State::new();
            state.insert("flags", zeros_in(world, &layout)?)?;
            load(world, &mut state, dir.path().to_str().unwrap(), &OPTIONS)?;
            let flags = state.tensor("flags").unwrap().to_local().to_vec::<bool>()?;
            assert_eq!(flags, [false, true, true, true]);
            Ok(())
        });
    }
}

#[test]
fn tensors_on_different_meshes_and_values_are_loaded_together() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = [
        Whole::new("a", StoredType::F32, &[8, 3]).cut(0, &[4, 4]),
        Whole::new("b", StoredType::F32, &[5]),
        Whole::new("c", StoredType::F32, &[2, 9]).cut(1, &[4, 5]),
    ];
    let values =
        [("step", Value::Int(7)), ("rng.key", Value::Bytes(vec![1, 2])), ("lr", Value::Float(0.5))];
    write(dir.path(), &tensors, &values, 1 << 20);
    let layout = |whole: &Whole, mesh: &str, text: &str| {
        Layout::parse(&whole.shape, DType::F32, &mesh.parse().unwrap(), text).unwrap()
    };
    let layouts = [
        layout(&tensors[0], "x=2:1@1", "[S(0)]"),
        layout(&tensors[1], "y=2:2", "[R]"),
        layout(&tensors[2], "x=2,y=2", "[S(1), S(1)]"),
    ];
    spmd(4, |world| {
        let mut state = State::new();
        state.insert("step", 0)?;
        for (whole, layout) in tensors.iter().zip(&layouts) {
            state.insert(whole.name.as_str(), zeros_in(world, layout)?)?;
        }
        state.insert("lr", 0.25)?;
        state.insert("rng.key", Value::Nothing)?;
        let report = load(world, &mut state, dir.path().to_str().unwrap(), &OPTIONS)?;
        assert_eq!((report.tensors, report.values), (3, 3));
        check(world, &state, tensors.iter().zip(&layouts));
        for (name, value) in &values {
            assert_eq!(state.value(name), Some(value));
        }
        Ok(())
    });
}

#[test]
fn another_handle_to_the_same_memory_does_not_change() {
    let dir = tempfile::tempdir().unwrap();
    let whole = Whole::new("a", StoredType::F32, &[6]);
    write(dir.path(), std::slice::from_ref(&whole), &[], 64);
    let layout = Layout::parse(&[6], DType::F32, &"x=1".parse().unwrap(), "[R]").unwrap();
    spmd(1, |world| {
        let mut state = state_of(world, [(&whole, &layout)])?;
        let before = state.tensor("a").unwrap().clone();
        load(world, &mut state, dir.path().to_str().unwrap(), &OPTIONS)?;
        check(world, &state, [(&whole, &layout)]);
        assert_eq!(before.to_vec::<f32>()?, [0.0; 6]);
        Ok(())
    });
}

#[test]
fn progress_ends_with_all_bytes_that_a_rank_holds() {
    let dir = tempfile::tempdir().unwrap();
    let whole = Whole::new("a", StoredType::F32, &[60, 5]).cut(0, &[30, 30]);
    write(dir.path(), std::slice::from_ref(&whole), &[], 64);
    let layout = Layout::parse(&[60, 5], DType::Bf16, &"x=2".parse().unwrap(), "[S(1)]").unwrap();
    spmd(2, |world| {
        let mut state = state_of(world, [(&whole, &layout)])?;
        let told = std::sync::Mutex::new(Vec::new());
        let tell = |now: Progress| told.lock().unwrap().push((now.done, now.total));
        let options = LoadOptions { progress: Some(&tell), ..OPTIONS };
        load(world, &mut state, dir.path().to_str().unwrap(), &options)?;
        let told = told.into_inner().unwrap();
        let bytes = [60 * 3 * 2, 60 * 2 * 2][world.rank()];
        assert!(told.is_sorted());
        assert_eq!(told.last(), Some(&(bytes, bytes)));
        Ok(())
    });
}
