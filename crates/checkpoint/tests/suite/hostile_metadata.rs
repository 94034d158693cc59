//! Metadata of distributed checkpoints that lie.

use dtensor_checkpoint::{Catalog, Error};

use crate::{
    formats_support::{Memory, check_refused, refusal},
    hostile_support::{
        call, dict, global, instance, int, list, nothing, pickle, saved, size, tensor, text, tuple,
    },
};

const MODULE: &str = "torch.distributed.checkpoint.metadata";

/// A chunk: where it lies in the tensor and its sizes; and file, offset and length of its archive.
#[derive(Clone)]
struct Chunk {
    at: Vec<i64>,
    sizes: Vec<i64>,
    path: String,
    offset: i64,
    length: i64,
    transforms: Vec<u8>,
}

/// A tensor of floats, cut into chunks of rows, each in a file of its own.
struct Case {
    shape: Vec<i64>,
    chunks: Vec<Chunk>,
    layout: &'static str,
    properties: Vec<u8>,
    memory_format: Vec<u8>,
    /// What is no tensor, by name, each in a file of its own: the length of its archive.
    objects: Vec<(String, i64)>,
}

/// Two chunks of a tensor of 5 x 2.
fn good() -> (Case, Memory) {
    let chunk = |first: i64, rows: i64, path: &str| Chunk {
        at: vec![first, 0],
        sizes: vec![rows, 2],
        path: path.to_owned(),
        offset: 3,
        length: archive(rows).len() as i64,
        transforms: nothing(),
    };
    let properties = global(MODULE, "TensorProperties");
    let memory_format = call(global(MODULE, "_MEM_FORMAT_ENCODING"), &[int(0)]);
    let chunks = vec![chunk(0, 3, "a.distcp"), chunk(3, 2, "b.distcp")];
    let padded = |rows| [vec![0; 3], archive(rows)].concat();
    let files = Memory::of([("a.distcp", padded(3)), ("b.distcp", padded(2))]);
    let (shape, layout, objects) = (vec![5, 2], "torch.strided", Vec::new());
    (Case { shape, chunks, layout, properties, memory_format, objects }, files)
}

/// That tensor, and objects that are each a pickle with this body.
pub fn with_objects(objects: &[(&str, Vec<u8>)]) -> Memory {
    let (mut case, mut files) = good();
    for (name, body) in objects {
        let archive = saved(pickle(body.clone()), &[]);
        case.objects.push(((*name).to_owned(), archive.len() as i64));
        files = files.with(&format!("{name}.distcp"), archive);
    }
    files.with(".metadata", case.metadata())
}

fn archive(rows: i64) -> Vec<u8> {
    let view = tensor("0", 2 * rows, 0, &[rows, 2], &[2, 1]);
    saved(pickle(view), &[("0", vec![0; 8 * rows as usize])])
}

impl Case {
    fn metadata(&self) -> Vec<u8> {
        let layout = call(global("torch.serialization", "_get_layout"), &[text(self.layout)]);
        let format = self.memory_format.clone();
        let no = b"\x89".to_vec();
        let properties = tuple(&[global("torch", "float32"), layout, no.clone(), format, no]);
        let chunk = |chunk: &Chunk| {
            let state = dict(&[("offsets", size(&chunk.at)), ("sizes", size(&chunk.sizes))]);
            instance(global(MODULE, "ChunkStorageMetadata"), state)
        };
        let about = dict(&[
            ("properties", instance(self.properties.clone(), properties)),
            ("size", size(&self.shape)),
            ("chunks", list(&self.chunks.iter().map(chunk).collect::<Vec<_>>())),
        ]);
        let about = instance(global(MODULE, "TensorStorageMetadata"), about);
        let storage =
            |name: &str, at: Vec<u8>, path: &str, range: [i64; 2], transforms: Vec<u8>| {
                let key = dict(&[("fqn", text(name)), ("index", int(0)), ("offset", at)]);
                let info = dict(&[
                    ("relative_path", text(path)),
                    ("offset", int(range[0])),
                    ("length", int(range[1])),
                    ("transform_descriptors", transforms),
                ]);
                let info = instance(
                    global("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
                    info,
                );
                [instance(global(MODULE, "MetadataIndex"), key), info].concat()
            };
        let place = |chunk: &Chunk| {
            let range = [chunk.offset, chunk.length];
            storage("w", size(&chunk.at), &chunk.path, range, chunk.transforms.clone())
        };
        let object = |(name, length): &(String, i64)| {
            storage(name, nothing(), &format!("{name}.distcp"), [0, *length], nothing())
        };
        let objects = self.objects.iter();
        let places: Vec<Vec<u8>> =
            self.chunks.iter().map(place).chain(objects.clone().map(object)).collect();
        let bytes = instance(global(MODULE, "BytesStorageMetadata"), dict(&[]));
        let mut items = vec![("w", about)];
        items.extend(objects.map(|(name, _)| (name.as_str(), bytes.clone())));
        let places = [b"}(".to_vec(), places.concat(), b"u".to_vec()].concat();
        let state = dict(&[
            ("state_dict_metadata", dict(&items)),
            ("planner_data", dict(&[])),
            ("storage_data", places),
        ]);
        pickle(instance(global(MODULE, "Metadata"), state))
    }
}

#[track_caller]
fn check(change: impl Fn(&mut Case), parts: &[&str]) {
    let (mut case, files) = good();
    change(&mut case);
    check_refused(&files.with(".metadata", case.metadata()), parts);
}

#[test]
fn the_case_that_others_are_made_of_is_good() {
    let (case, files) = good();
    let catalog = Catalog::open(&files.with(".metadata", case.metadata())).unwrap();
    assert_eq!(catalog.tensors["w"].chunks.len(), 2);
}

#[test]
fn enums_by_name_are_read_as_early_python_3_11_writes_them() {
    let (mut case, files) = good();
    let class = global(MODULE, "_MEM_FORMAT_ENCODING");
    case.memory_format =
        call(global("builtins", "getattr"), &[class, text("TORCH_CONTIGUOUS_FORMAT")]);
    assert!(Catalog::open(&files.with(".metadata", case.metadata())).is_ok());
}

#[test]
fn names_of_older_versions_are_known() {
    let (mut case, files) = good();
    let module = "torch.distributed._shard.sharded_tensor.metadata";
    case.properties = global(module, "TensorProperties");
    case.memory_format = call(global(module, "MEM_FORMAT_ENCODING"), &[int(0)]);
    assert!(Catalog::open(&files.with(".metadata", case.metadata())).is_ok());
}

#[test]
fn paths_do_not_lead_out_of_the_checkpoint() {
    for path in ["../a.distcp", "/etc/passwd", "..", ".", "sub/a.distcp", "..\\a.distcp"] {
        check(
            |case| case.chunks[0].path = path.to_owned(),
            &[path, "not a file in the same place"],
        );
    }
    check(|case| case.chunks[0].path = String::new(), &["missing"]);
    check(|case| case.chunks[0].path = "c.distcp".to_owned(), &["`c.distcp`", "missing"]);
}

#[test]
fn archives_are_inside_of_their_files() {
    for number in [1, 1 << 20, i64::MAX] {
        check(|case| case.chunks[0].length = number, &["distcp"]);
        check(|case| case.chunks[0].offset = number, &["distcp"]);
    }
    check(
        |case| (case.chunks[0].offset, case.chunks[0].length) = (i64::MAX, i64::MAX),
        &["cut off"],
    );
    check(|case| case.chunks[0].offset = -1, &["no path, offset and length"]);
    check(|case| case.chunks[0].length = 0, &["a.distcp"]);
    check(|case| case.chunks[0].length -= 1, &["a.distcp"]);
}

#[test]
fn archives_do_not_overlap() {
    let swap = |case: &mut Case| {
        let first = case.chunks[0].clone();
        case.chunks[1] =
            Chunk { at: vec![3, 0], sizes: vec![2, 2], offset: 4, length: 10, ..first };
    };
    check(swap, &["`w` is at bytes", "a.distcp"]);
}

#[test]
fn chunks_are_the_whole_tensor_once() {
    check(|case| case.shape = vec![6, 2], &["10 of 12 elements"]);
    check(|case| case.shape = vec![4, 2], &["outside"]);
    check(|case| case.shape = vec![5], &["no offsets"]);
    check(|case| case.chunks[1].at = vec![2, 0], &["overlap"]);
    check(|case| case.chunks[1].at = vec![4, 0], &["outside"]);
    check(|case| case.chunks[1].at = vec![i64::MAX, 0], &["outside"]);
    check(|case| case.shape = vec![i64::MAX, i64::MAX], &["larger than any file"]);
    check(|case| case.shape = vec![1 << 60, 2], &["larger than any file"]);
    check(
        |case| {
            case.chunks.remove(1);
        },
        &["6 of 10 elements"],
    );
    check(|case| case.chunks[1] = case.chunks[0].clone(), &["`w` is at two places"]);
    check(|case| case.chunks[0].at = vec![-1, 0], &["`w`"]);
}

#[test]
fn archives_hold_what_the_metadata_say() {
    check(|case| case.chunks[0].sizes = vec![2, 2], &["F32 [3, 2]", "F32 [2, 2]"]);
    check(|case| case.chunks[0].path = "b.distcp".to_owned(), &["b.distcp"]);
    let (case, files) = good();
    let mut case = case;
    let other = saved(pickle(int(1)), &[]);
    case.chunks[0].length = other.len() as i64;
    let files = files.with("a.distcp", [vec![0; 3], other].concat());
    check_refused(&files.with(".metadata", case.metadata()), &["something else"]);
}

#[test]
fn what_is_not_supported_says_the_way_out() {
    check(|case| case.chunks[0].transforms = list(&[text("stream.zstd")]), &["_extensions"]);
    check(|case| case.layout = "torch.sparse_coo", &["torch.sparse_coo", "to_dense"]);
    let (mut case, files) = good();
    case.chunks[0].transforms = list(&[]);
    assert!(Catalog::open(&files.with(".metadata", case.metadata())).is_ok());
}

#[test]
fn a_pickle_of_something_else_is_no_metadata() {
    for body in [nothing(), dict(&[]), instance(global(MODULE, "Metadata"), dict(&[]))] {
        check_refused(&Memory::of([(".metadata", pickle(body))]), &["no `Metadata`"]);
    }
    let state = dict(&[("storage_data", dict(&[])), ("state_dict_metadata", int(1))]);
    let memory = Memory::of([(".metadata", pickle(instance(global(MODULE, "Metadata"), state)))]);
    assert!(matches!(refusal(&memory), Error::Broken { .. }));
    let bytes = instance(global(MODULE, "BytesStorageMetadata"), dict(&[]));
    let items = dict(&[("n", bytes)]);
    let state = dict(&[("storage_data", dict(&[])), ("state_dict_metadata", items)]);
    let memory = Memory::of([(".metadata", pickle(instance(global(MODULE, "Metadata"), state)))]);
    check_refused(&memory, &["`n`", "not in `storage_data`"]);
}

#[test]
fn many_chunks_that_are_hard_to_compare_take_little_time() {
    // A staircase: however they are sorted, every chunk is still open when the next one begins.
    let n = 20_000;
    let (mut case, files) = good();
    let stair = |i: i64| Chunk { at: vec![i, i], sizes: vec![n - i, 1], ..case.chunks[0].clone() };
    case.chunks = (0..n).map(stair).collect();
    case.shape = vec![n, n];
    let file = archive(3);
    for (i, chunk) in case.chunks.iter_mut().enumerate() {
        chunk.offset = (i * file.len()) as i64;
    }
    refusal(&files.with("a.distcp", file.repeat(n as usize)).with(".metadata", case.metadata()));
}
