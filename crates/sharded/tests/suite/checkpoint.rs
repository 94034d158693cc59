//! Sharded tensors in checkpoints.

use std::path::Path;

use dtensor::{DTensor, DeviceMesh, Placement, distribute_tensor_from};
use dtensor_checkpoint::{LoadOptions, SaveOptions, State, Value, save};
use dtensor_sharded::{
    DType, Error, ProcessGroup, Result, ShardedTensor, Spec, Tensor, World, checkpoint,
    embedding::embedding, module::ModuleTensor, module::StateDict, shard_tensor, zeros,
};
use dtensor_testing::spmd;
use tempfile::TempDir;

use crate::support::{Grid, boxes, chunks, cut, numbered};

/// 7 does not divide by 2, 3 or 4; of 2 columns the later ranks get none.
pub const SIZE: [usize; 2] = [7, 2];

/// A place for one checkpoint.
pub struct Place(TempDir);

impl Place {
    pub fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> String {
        self.0.path().join("checkpoint").to_str().unwrap().to_owned()
    }
}

/// Saves one tensor as `x`.
pub fn save_one(world: &World, tensor: &ShardedTensor, path: &str) -> Result<()> {
    let mut state = State::new();
    checkpoint::insert(&mut state, "x", tensor)?;
    save(world, &state, path, &SaveOptions::default())?;
    Ok(())
}

/// Loads `x` into a tensor.
pub fn load_one(world: &World, tensor: &mut ShardedTensor, path: &str) -> Result<()> {
    let tensors = &mut [("x", tensor)];
    checkpoint::load(world, &mut State::new(), tensors, path, &LoadOptions::default())?;
    Ok(())
}

/// The same by way of a state.
pub fn load_by_state(world: &World, tensor: &mut ShardedTensor, path: &str) -> Result<()> {
    let mut state = State::new();
    checkpoint::insert(&mut state, "x", tensor)?;
    dtensor_checkpoint::load(world, &mut state, path, &LoadOptions::default())?;
    checkpoint::take(&state, "x", tensor)
}

fn specs(n_ranks: usize) -> Vec<Spec> {
    let last = n_ranks - 1;
    let ranks: Vec<usize> = (0..n_ranks).collect();
    let turned: Vec<usize> = (0..n_ranks).rev().collect();
    vec![
        chunks(0, &ranks),
        chunks(1, &ranks),
        chunks(0, &turned),
        // Several shards per rank, and ranks without any.
        chunks(0, &[last, 0, last, 0, 0]),
        // The whole on one rank, and two ranks of several.
        chunks(1, &[last]),
        chunks(0, &[0, last]),
        boxes(&[(&[0, 0], &[7, 1], last), (&[0, 1], &[2, 1], 0), (&[2, 1], &[5, 1], last)]),
        // One per rank, of sizes that no layout has.
        boxes(&[(&[0, 0], &[1, 2], 0), (&[1, 0], &[6, 2], last)]),
    ]
}

#[test]
fn every_spec_loads_what_every_spec_has_saved_on_any_number_of_ranks() {
    let whole = numbered(&SIZE).to_vec::<f32>().unwrap();
    for from_ranks in [1, 2, 4] {
        for (number, from) in specs(from_ranks).iter().enumerate() {
            let place = Place::new();
            spmd(from_ranks, |world| {
                Ok(save_one(world, &cut(&SIZE, from, world)?, &place.path())?)
            });
            let to_ranks = [3, 1, 4, 2][number % 4];
            spmd(to_ranks, |world| {
                for to in specs(to_ranks) {
                    for by_state in [false, true] {
                        let mut x = zeros(&to, &SIZE, DType::F32, world)?;
                        let (id, shards) = (x.id(), x.metadata().shards_metadata.clone());
                        match by_state {
                            true => load_by_state(world, &mut x, &place.path())?,
                            false => load_one(world, &mut x, &place.path())?,
                        }
                        assert_eq!(x.full_tensor()?.to_vec::<f32>()?, whole, "{from:?} to {to:?}");
                        assert_eq!((x.id(), &x.metadata().shards_metadata), (id, &shards));
                    }
                }
                Ok(())
            });
        }
    }
}

#[test]
fn distributed_tensors_load_what_sharded_ones_have_saved() {
    for spec in specs(3) {
        let place = Place::new();
        spmd(3, |world| Ok(save_one(world, &cut(&SIZE, &spec, world)?, &place.path())?));
        spmd(2, |world| {
            let mesh = DeviceMesh::of_world(world, "x")?;
            for placement in [Placement::Shard(0), Placement::Shard(1), Placement::Replicate] {
                let mut state = State::new();
                state.insert("x", dtensor::zeros(&SIZE, DType::F32, &mesh, &[placement])?)?;
                dtensor_checkpoint::load(
                    world,
                    &mut state,
                    &place.path(),
                    &LoadOptions::default(),
                )?;
                let loaded = state.tensor("x").unwrap().full_tensor()?;
                assert!(loaded.equal(&numbered(&SIZE))?, "{spec:?} to {placement}");
            }
            Ok(())
        });
    }
}

#[test]
fn sharded_tensors_load_what_distributed_ones_have_saved() {
    for placements in
        [[Placement::Shard(0), Placement::Shard(1)], [Placement::Replicate, Placement::Shard(0)]]
    {
        let place = Place::new();
        spmd(4, |world| {
            let mesh = DeviceMesh::new(world, &[("a", 2), ("b", 2)])?;
            let mut state = State::new();
            state
                .insert("x", distribute_tensor_from(&numbered(&SIZE), &mesh, &placements, None)?)?;
            save(world, &state, &place.path(), &SaveOptions::default())?;
            Ok(())
        });
        spmd(3, |world| {
            for spec in specs(3) {
                let mut x = zeros(&spec, &SIZE, DType::F32, world)?;
                load_one(world, &mut x, &place.path())?;
                assert!(x.full_tensor()?.equal(&numbered(&SIZE))?, "{placements:?} to {spec:?}");
            }
            Ok(())
        });
    }
}

#[test]
fn what_is_a_layout_is_saved_without_a_copy_and_nothing_else_moves() {
    spmd(4, |world| {
        let is_shared = |x: &ShardedTensor, y: &DTensor| match x.local_shards().next() {
            Some(shard) => {
                shard.tensor().as_bytes().unwrap().as_ptr()
                    == y.to_local().as_bytes().unwrap().as_ptr()
            }
            None => true,
        };
        let grid: Spec = Grid::over_ranks(2, 0..4).into();
        for (spec, layout) in [
            (chunks(0, &[0, 1, 2, 3]), "f32[8, 4] on shards=4: [S(0)]"),
            (chunks(1, &[0, 1, 2, 3]), "f32[8, 4] on shards=4: [S(1)]"),
            (chunks(0, &[1, 3]), "f32[8, 4] on shards=2:2@1: [S(0)]"),
            (chunks(0, &[2]), "f32[8, 4] on shards=1:1@2: [R]"),
            (grid, "f32[8, 4] on dim0=2,dim1=2: [S(0), S(1)]"),
        ] {
            let x = cut(&[8, 4], &spec, world)?;
            let mut state = State::new();
            checkpoint::insert(&mut state, "x", &x)?;
            let y = state.tensor("x").unwrap();
            assert!(is_shared(&x, y), "{spec:?}");
            assert_eq!(format!("{:?}", y.layout()), layout);
        }
        // The others are cut in the first dim that reaches all ranks.
        let spec = chunks(1, &[3, 2, 1, 0]);
        for (size, dim) in [([8, 4], 0), ([3, 4], 1), ([2, 3], 1)] {
            let mut state = State::new();
            checkpoint::insert(&mut state, "x", &cut(&size, &spec, world)?)?;
            assert_eq!(state.tensor("x").unwrap().placements(), [Placement::Shard(dim)]);
        }
        Ok(())
    });
}

#[test]
fn all_dtypes_are_saved_and_converted() {
    let place = Place::new();
    spmd(2, |world| {
        for dtype in DType::ALL {
            let values = numbered(&SIZE).to_dtype(dtype)?;
            for spec in [chunks(0, &[0, 1]), chunks(1, &[1, 0])] {
                save_one(world, &shard_tensor(&values, &spec, 0, world)?, &place.path())?;
                let mut same = zeros(chunks(0, &[1, 0]), &SIZE, dtype, world)?;
                load_one(world, &mut same, &place.path())?;
                assert!(same.full_tensor()?.equal(&values)?, "{dtype}");
                let mut wide = zeros(chunks(0, &[1, 0]), &SIZE, DType::F64, world)?;
                load_one(world, &mut wide, &place.path())?;
                assert!(wide.full_tensor()?.equal(&values.to_dtype(DType::F64)?)?, "{dtype}");
            }
        }
        Ok(())
    });
}

#[test]
fn tensors_on_a_part_of_the_world_are_saved_by_all() {
    let size = [7, 5];
    for (ranks, spec) in [
        // In order, and equally spaced; out of order; neither.
        ([1_usize, 3].as_slice(), chunks(0, &[1, 3])),
        (&[3, 1], chunks(0, &[3, 1])),
        (&[0, 1, 4], chunks(1, &[0, 1, 4])),
        (&[4, 0], boxes(&[(&[0, 0], &[7, 1], 4), (&[0, 1], &[7, 4], 4)])),
    ] {
        let place = Place::new();
        spmd(5, |world| {
            let group = ProcessGroup::new(world, ranks)?;
            save_one(world, &cut(&size, &spec, &group)?, &place.path())?;
            let mut back = zeros(&spec, &size, DType::F32, &group)?;
            load_one(world, &mut back, &place.path())?;
            let mut by_state = zeros(&spec, &size, DType::F32, &group)?;
            load_by_state(world, &mut by_state, &place.path())?;
            if group.rank().is_some() {
                assert!(back.full_tensor()?.equal(&numbered(&size))?);
                assert!(by_state.equal(&back)?);
            }
            // And on all, from there.
            let mut all = zeros(chunks(0, &[4, 3, 2, 1, 0]), &size, DType::F32, world)?;
            load_one(world, &mut all, &place.path())?;
            assert!(all.full_tensor()?.equal(&numbered(&size))?);
            Ok(())
        });
    }
}

#[test]
fn empty_tensors_and_single_elements_are_saved() {
    let place = Place::new();
    spmd(3, |world| {
        for (size, spec) in [
            (vec![0, 4], chunks(0, &[2, 1, 0])),
            (vec![4, 0], chunks(0, &[0, 1, 2])),
            (vec![], boxes(&[(&[], &[], 1)])),
            (vec![1], chunks(0, &[2, 0, 1])),
        ] {
            save_one(world, &cut(&size, &spec, world)?, &place.path())?;
            let mut x = zeros(&spec, &size, DType::F32, world)?;
            load_one(world, &mut x, &place.path())?;
            assert!(x.full_tensor()?.equal(&numbered(&size))?, "{size:?}");
        }
        Ok(())
    });
}

#[test]
fn a_state_has_the_elements_of_the_moment_and_takes_any_layout() {
    spmd(2, |world| {
        let mut x = cut(&SIZE, &chunks(0, &[0, 1]), world)?;
        let mut state = State::new();
        checkpoint::insert(&mut state, "x", &x)?;
        x.fill_constant(-1.0)?;
        assert!(state.tensor("x").unwrap().full_tensor()?.equal(&numbered(&SIZE))?);
        let mesh = DeviceMesh::of_world(world, "x")?;
        let copies =
            distribute_tensor_from(&numbered(&SIZE), &mesh, &[Placement::Replicate], None)?;
        let half = copies.mul(0.5)?.detach();
        let pending = DTensor::from_local(
            &half.to_local(),
            &mesh,
            &[Placement::Partial(dtensor::ReduceOp::Sum)],
        )?;
        state.insert("copies", copies)?;
        state.insert("pending", pending)?;
        let single =
            distribute_tensor_from(&Tensor::scalar(5_i64), &mesh, &[Placement::Replicate], None)?;
        state.insert("single", single)?;
        for name in ["x", "copies", "pending"] {
            x.fill_constant(-1.0)?;
            checkpoint::take(&state, name, &mut x)?;
            assert!(x.full_tensor()?.equal(&numbered(&SIZE))?, "{name}");
        }
        let mut single = zeros(boxes(&[(&[], &[], 1)]), &[], DType::F32, world)?;
        checkpoint::take(&state, "single", &mut single)?;
        assert_eq!(single.full_tensor()?.item::<f32>()?, 5.0);
        Ok(())
    });
}

#[test]
fn a_parameter_is_loaded_as_a_new_leaf() {
    let place = Place::new();
    spmd(2, |world| {
        let mut x = cut(&SIZE, &chunks(0, &[0, 1]), world)?;
        x.set_requires_grad(true)?;
        let before = x.to_dtensor()?;
        save_one(world, &x, &place.path())?;
        load_one(world, &mut x, &place.path())?;
        assert!(x.requires_grad() && x.is_leaf());
        let loss = x.to_dtensor()?.square()?.sum(&[], false)?;
        let gradients = loss.backward()?;
        assert!(gradients.get(&before).is_none());
        let gradient = x.gradient(&gradients)?.expect("a gradient");
        assert!(gradient.full_tensor()?.equal(&numbered(&SIZE).mul_scalar(2.0)?)?);
        Ok(())
    });
}

#[test]
fn a_state_dict_is_saved_whole_tensors_included() {
    let place = Place::new();
    let dict = |world: &World, spec: &Spec, scale: f64| -> Result<StateDict> {
        let plain = ModuleTensor::Plain(numbered(&[3]).mul_scalar(scale)?);
        let table = cut(&SIZE, spec, world)?.mul(scale)?;
        Ok(StateDict::from([("bias".into(), plain), ("table".into(), table.into())]))
    };
    spmd(3, |world| {
        let mut state = State::new();
        checkpoint::insert_all(world, &mut state, &dict(world, &chunks(1, &[1, 0, 2]), 1.0)?)?;
        save(world, &state, &place.path(), &SaveOptions::default())?;
        Ok(())
    });
    spmd(2, |world| {
        let mut blank = dict(world, &chunks(0, &[1, 0]), 0.0)?;
        let mut state = State::new();
        checkpoint::insert_all(world, &mut state, &blank)?;
        dtensor_checkpoint::load(world, &mut state, &place.path(), &LoadOptions::default())?;
        checkpoint::take_all(&state, &mut blank)?;
        assert!(blank["bias"].plain().unwrap().equal(&numbered(&[3]))?);
        assert!(blank["table"].sharded().unwrap().full_tensor()?.equal(&numbered(&SIZE))?);
        // What is missing is found before anything is changed.
        let mut more = dict(world, &chunks(0, &[1, 0]), 0.0)?;
        more.insert("zone".into(), ModuleTensor::Plain(numbered(&[1])));
        let error = checkpoint::take_all(&state, &mut more).unwrap_err();
        assert!(matches!(error, Error::NoSuchName { ref path, .. } if &**path == "zone"));
        assert!(more["bias"].plain().unwrap().equal(&Tensor::zeros(&[3], DType::F32)?)?);
        Ok(())
    });
}

#[test]
fn checkpoints_of_pytorchs_sharded_tensors_load_in_any_cut_and_as_distributed_tensors() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/sharded_tensor");
    let path = path.to_str().unwrap();
    let of_boxes = [
        // As it was saved, and otherwise.
        boxes(&[(&[0, 0], &[7, 1], 1), (&[0, 1], &[2, 3], 0), (&[2, 1], &[5, 3], 1)]),
        chunks(0, &[0, 1]),
        chunks(1, &[1, 0, 1]),
    ];
    for spec in of_boxes {
        spmd(2, |world| {
            let mut boxes = zeros(&spec, &[7, 4], DType::F32, world)?;
            let mut rows = zeros(chunks(0, &[1, 0]), &[5, 3], DType::I64, world)?;
            let mut state = State::new();
            state.insert("step", 0)?;
            let tensors = &mut [("boxes", &mut boxes), ("chunks", &mut rows)];
            checkpoint::load(world, &mut state, tensors, path, &LoadOptions::default())?;
            assert_eq!(state.value("step"), Some(&Value::Int(3)));
            assert!(boxes.full_tensor()?.equal(&numbered(&[7, 4]))?);
            assert!(rows.full_tensor()?.equal(&numbered(&[5, 3]).to_dtype(DType::I64)?)?);
            let row = embedding(&Tensor::from_vec(vec![6_i64], &[1])?, &boxes)?;
            assert_eq!(row.to_vec::<f32>()?, [24.0, 25.0, 26.0, 27.0]);
            Ok(())
        });
    }
    spmd(3, |world| {
        let mesh = DeviceMesh::of_world(world, "x")?;
        let mut state = State::new();
        let blank = dtensor::zeros(&[7, 4], DType::F32, &mesh, &[Placement::Shard(1)])?;
        state.insert("boxes", blank)?;
        dtensor_checkpoint::load(world, &mut state, path, &LoadOptions::default())?;
        assert!(state.tensor("boxes").unwrap().full_tensor()?.equal(&numbered(&[7, 4]))?);
        Ok(())
    });
}

/// `torch.save` of a state dict, by two ranks.
#[test]
fn files_that_ranks_have_saved_for_themselves_load_on_any_number_of_ranks() {
    let folder = "../checkpoint/tests/golden/sharded_tensors";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let path = path.to_str().unwrap();
    spmd(3, |world| {
        let mesh = DeviceMesh::of_world(world, "x")?;
        let mut rows = zeros(chunks(1, &[2, 0, 1]), &[5, 3], DType::F32, world)?;
        let mut boxes = zeros(chunks(0, &[1, 1, 0]), &[4, 4], DType::F32, world)?;
        let mut state = State::new();
        state.insert("step", 0)?;
        state.insert("bias", dtensor::zeros(&[3], DType::F64, &mesh, &[Placement::Replicate])?)?;
        state.insert(
            "deep.param",
            dtensor::zeros(&[2, 4], DType::F32, &mesh, &[Placement::Shard(1)])?,
        )?;
        let tensors = &mut [("rows", &mut rows), ("deep.boxes", &mut boxes)];
        checkpoint::load(world, &mut state, tensors, path, &LoadOptions::default())?;
        assert_eq!(state.value("step"), Some(&Value::Int(7)));
        assert!(rows.full_tensor()?.equal(&numbered(&[5, 3]))?);
        assert!(boxes.full_tensor()?.equal(&numbered(&[4, 4]))?);
        assert!(state.tensor("deep.param").unwrap().full_tensor()?.equal(&numbered(&[2, 4]))?);
        let bias = state.tensor("bias").unwrap().full_tensor()?;
        assert_eq!(bias.to_vec::<f64>()?, [0.0, 1.0, 2.0]);
        Ok(())
    });
}
