//! Checkpoints written as the ranks of a mesh would have saved them.

use std::fs;

use dtensor::{DeviceMesh, Placement, Tensor, distribute_tensor};
use dtensor_checkpoint::{
    Error, Format, MANIFEST_FILE, Manifest, SaveOptions, State, Value, VerifyOptions,
    convert::{ConvertOptions, Converted, PlacementPlan, to_native, to_safetensors},
    save, verify,
};
use dtensor_layout::Mesh;
use dtensor_testing::spmd;

use crate::convert_support::{
    Place, assert_same, bytes_of, entry, floats, golden, names_in, open, part, refused,
};

fn reshard(source: &str, target: &str, mesh: &str, plan: &str) -> Result<Converted, Error> {
    let mesh: Mesh = mesh.parse().unwrap();
    to_native(&open(source), target, &mesh, &plan.parse()?, &ConvertOptions::default())
}

#[test]
fn the_files_are_those_that_the_ranks_would_have_saved() {
    let place = Place::new();
    let saved = place.path("saved");
    spmd(4, |world| {
        let mesh = DeviceMesh::new(world, &[("dp", 2), ("tp", 2)])?;
        let mut state = State::new();
        let cases: [(&str, &[usize], [Placement; 2]); 5] = [
            ("a.weight", &[700, 1001], [Placement::Shard(0), Placement::Shard(1)]),
            ("b.weight", &[5, 3], [Placement::Replicate, Placement::Shard(0)]),
            ("c.rows", &[3, 2], [Placement::Shard(0), Placement::Shard(0)]),
            ("d.copies", &[40], [Placement::Replicate, Placement::Replicate]),
            ("e.scalar", &[], [Placement::Replicate, Placement::Replicate]),
        ];
        for (name, shape, placements) in cases {
            let n = shape.iter().product();
            let values: Vec<f32> = (0..n).map(|index| index as f32 / 7.0).collect();
            let whole = Tensor::from_vec(values, shape)?;
            state.insert(name, distribute_tensor(&whole, &mesh, &placements)?)?;
        }
        state.insert("step", 7)?;
        Ok(save(world, &state, &saved, &SaveOptions::default())?)
    });
    let whole = place.path("whole.safetensors");
    to_safetensors(&open(&saved), &whole, &ConvertOptions::default()).unwrap();
    let plan = "a.* = S(0), S(1)\nb.* = R, S(0)\nc.* = S(0), S(0)\n* = R, R";
    reshard(&whole, &place.path("again"), "dp=2,tp=2", plan).unwrap();
    let names = names_in(&saved);
    assert_eq!(names_in(&place.path("again")), names);
    for name in names.iter().filter(|name| *name != MANIFEST_FILE) {
        let read = |directory: &str| fs::read(place.path(&format!("{directory}/{name}"))).unwrap();
        assert!(read("saved") == read("again"), "{name}");
    }
    let manifest = |directory: &str| {
        let bytes = fs::read(place.path(&format!("{directory}/{MANIFEST_FILE}"))).unwrap();
        Manifest::parse(MANIFEST_FILE, &bytes).unwrap()
    };
    let (saved, again) = (manifest("saved"), manifest("again"));
    assert_eq!(Manifest { id: saved.id.clone(), time: saved.time, ..again.clone() }, saved);
    assert_ne!(again.id, saved.id);
}

#[test]
fn every_kind_becomes_native_and_is_whole() {
    let place = Place::new();
    for (number, name) in
        ["four_ranks/dcp", "four_ranks/hf", "four_ranks/full.safetensors", "torch_save/training.pt"]
            .iter()
            .enumerate()
    {
        let (source, target) = (golden(name), place.path(&number.to_string()));
        reshard(&source, &target, "dp=2,tp=2", "").unwrap();
        let native = open(&target);
        assert_eq!(native.catalog().format, Format::Native);
        let report = verify(native.catalog(), native.storage(), &VerifyOptions::default()).unwrap();
        assert!(report.is_whole() && report.unverified_bytes == 0, "{name}: {report:?}");
        assert_same(&source, &target);
    }
    assert_eq!(place.names().len(), 4);
}

#[test]
fn types_that_no_tensor_has_are_cut_like_others() {
    use dtensor_checkpoint::StoredType::{C64, F8E4M3, I8, U64};
    let place = Place::new();
    let parts = [I8, F8E4M3, U64, C64].map(|dtype| {
        let bytes = (0..7 * dtype.size()).map(|index| index as u8).collect();
        part(dtype.name(), dtype, &[7], bytes)
    });
    let source = place.file("x.safetensors", &parts);
    reshard(&source, &place.path("native"), "x=3", "").unwrap();
    assert_same(&source, &place.path("native"));
    assert_eq!(entry(&open(&place.path("native")), "I8").chunks.len(), 3);
}

#[test]
fn strided_shards_have_several_files_of_a_rank() {
    let place = Place::new();
    let values: Vec<f32> = (0..24).map(|index| index as f32).collect();
    let source = place.file("x.safetensors", &[floats("w", &[8, 3], &values)]);
    reshard(&source, &place.path("native"), "x=2", "w = _S(0, 2)").unwrap();
    assert_eq!(names_in(&place.path("native")).len(), 4 + 1);
    assert_same(&source, &place.path("native"));
}

#[test]
fn values_casts_and_names_come_along() {
    let place = Place::new();
    let source = golden("torch_save/training.pt");
    let mesh = Mesh::from_sizes(&[2]).unwrap();
    let casts = vec!["bf16".parse().unwrap()];
    let options = ConvertOptions { casts, ..ConvertOptions::default() };
    let target = place.path("native");
    let converted =
        to_native(&open(&source), &target, &mesh, &PlacementPlan::new(), &options).unwrap();
    let (before, after) = (open(&source), open(&target));
    assert_eq!(after.catalog().values.len(), converted.values);
    let same = |(one, other): (&Value, &Value)| format!("{one:?}") == format!("{other:?}");
    assert!(before.catalog().values.values().zip(after.catalog().values.values()).all(same));
    assert!(converted.bytes < before.catalog().tensors.values().map(|entry| entry.bytes()).sum());
}

#[test]
fn plans_that_cannot_be_are_refused_before_anything_is_written() {
    let place = Place::new();
    let source = golden("four_ranks/dcp");
    for (mesh, plan, want) in [
        ("dp=2", "layer.* = S(0)", "no name matches `layer.*`"),
        ("dp=2", "embed.* = S(2)", "`embed.weight` [13, 8]"),
        ("dp=2", "embed.* = S(0), R", "2 placements for a mesh of 1 axes"),
        ("dp=2", "embed.* = P(sum)", "no pending reduction"),
        ("dp=2", "embed.weight", "no line of a plan"),
        ("dp=100,tp=100", "", "10000 ranks"),
    ] {
        let error = refused(&place, || reshard(&source, &place.path("native"), mesh, plan));
        assert!(error.to_string().contains(want), "{error}");
    }
}

#[test]
fn a_tensor_that_could_not_be_read_again_is_not_cut_so() {
    let place = Place::new();
    let source = place.file("w.safetensors", &[floats("w", &[2; 7], &[0.5; 128])]);
    let (mesh, target) = ("a=2,b=2,c=2,d=2,e=2,f=2,g=2", place.path("native"));
    let all = "w = S(0), S(1), S(2), S(3), S(4), S(5), S(6)";
    let error = refused(&place, || reshard(&source, &target, mesh, all));
    assert!(error.to_string().contains("more than 6 dims"), "{error}");
    reshard(&source, &target, mesh, "w = S(0), S(1), S(2), S(3), S(4), S(5), R").unwrap();
    assert_eq!(bytes_of(&open(&target), "w"), bytes_of(&open(&source), "w"));
}

#[test]
fn what_exists_is_replaced_only_if_that_is_allowed() {
    let place = Place::new();
    let (source, target) = (golden("four_ranks/dcp"), place.path("native"));
    reshard(&source, &target, "dp=4", "").unwrap();
    let error = refused(&place, || reshard(&source, &target, "dp=2", ""));
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    let error = refused(&place, || reshard(&target, &target, "dp=2", ""));
    assert!(matches!(error, Error::SamePlace { .. }), "{error}");
    let overwrite = ConvertOptions { overwrite: true, ..ConvertOptions::default() };
    let mesh = Mesh::from_sizes(&[2]).unwrap();
    let plan = PlacementPlan::new();
    to_native(&open(&source), &target, &mesh, &plan, &overwrite).unwrap();
    assert_same(&source, &target);
    assert_eq!(names_in(&target).len(), 2 + 1);
    assert_eq!(place.names(), ["native"]);
}

#[cfg(feature = "object-store")]
#[test]
fn an_object_store_is_read_and_written() {
    let place = Place::new();
    let (source, target) = (golden("four_ranks/dcp"), "memory://convert/native");
    reshard(&source, target, "dp=2,tp=2", "").unwrap();
    assert_same(&source, target);
    to_safetensors(&open(target), &place.path("x.safetensors"), &ConvertOptions::default())
        .unwrap();
    assert_same(&source, &place.path("x.safetensors"));
    let error = refused(&place, || reshard(&source, target, "dp=2", ""));
    assert!(matches!(error, Error::Exists { .. }), "{error}");
}
