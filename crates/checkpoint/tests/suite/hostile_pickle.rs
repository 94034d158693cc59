//! Pickles that ask for too much.

use dtensor_checkpoint::{Catalog, Error};

use crate::{
    formats_support::{Memory, check_refused, only_chunk, refusal, unreadable},
    hostile_support::{
        call, dict, global, instance, int, list, nothing, pickle, saved, tensor, text, tuple,
    },
};

/// A file of `torch.save` with this pickle, and a record of six floats.
fn file(pickle: Vec<u8>) -> Memory {
    Memory::of([("x.pt", saved(pickle, &[("0", vec![7; 24])]))])
}

fn state(body: Vec<u8>) -> Memory {
    file(pickle(dict(&[("w", body)])))
}

#[track_caller]
fn check(opcodes: &[u8], parts: &[&str]) {
    check_refused(&file(opcodes.to_vec()), parts);
    // The metadata of a distributed checkpoint are read by the same machine.
    check_refused(&Memory::of([(".metadata", opcodes.to_vec())]), parts);
}

#[test]
fn nothing_but_the_known_names_can_be_asked_for() {
    for (module, name) in [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("__builtin__", "exec"),
        ("subprocess", "Popen"),
        ("torch", "load"),
        ("torch", "Storage"),
        ("torch.storage", "_load_from_bytes"),
        ("torch.hub", "load"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("collections", "OrderedDict.fromkeys"),
        ("torch.distributed.checkpoint.metadata", "dataclass"),
        ("", ""),
    ] {
        let name_found = format!("{module}.{name}");
        let asked = call(global(module, name), &[text("echo")]);
        let stacked = [text(module), text(name), b"\x93".to_vec()].concat();
        for body in [asked, stacked, dict(&[("deep", list(&[global(module, name)]))])] {
            match refusal(&state(body)) {
                Error::ForbiddenGlobal { global, .. } => assert_eq!(global, name_found),
                error => panic!("{error}"),
            }
        }
    }
}

#[test]
fn attributes_can_be_asked_of_an_enum_only() {
    let attribute = |of: Vec<u8>| call(global("builtins", "getattr"), &[of, text("system")]);
    for of in [nothing(), text("os"), global("torch", "Size"), dict(&[])] {
        match refusal(&state(attribute(of))) {
            Error::ForbiddenGlobal { global, .. } => assert_eq!(global, "builtins.getattr"),
            error => panic!("{error}"),
        }
    }
}

#[test]
fn the_name_of_a_global_may_not_hide_in_a_call() {
    check(b"\x80\x02X\x02\x00\x00\x00osX\x06\x00\x00\x00system)R.", &["no global"]);
    check(b"\x80\x04K\x01K\x02\x93.", &["no text"]);
    check(b"\x80\x02ctorch\nSize\nK\x01R.", &["no tuple"]);
    check(b"\x80\x02ctorch\nSize\n)Rh\x00.", &["memo 0"]);
}

#[test]
fn a_broken_program_is_an_error_with_its_place() {
    for (opcodes, what) in [
        (&b""[..], "cut off"),
        (b"\x80", "cut off"),
        (b"\x80\x02", "cut off"),
        (b"\x80\x02.", "the stack is empty"),
        (b"\x80\x02NN.", "belong nowhere"),
        (b"\x80\x02(N.", "belong nowhere"),
        (b"\x80\x02N.N", "1 bytes after its end"),
        (b"\x80\x01N.", "protocol 1"),
        (b"\x80\x06N.", "protocol 6"),
        (b"\x80\x02t.", "no mark"),
        (b"\x80\x02N(0t.", "no mark"),
        (b"\x80\x02\x86.", "the stack is empty"),
        (b"\x80\x02Na.", "the stack is empty"),
        (b"\x80\x02NNa.", "no list"),
        (b"\x80\x02NNNs.", "no dict"),
        (b"\x80\x02}(Nu.", "no dict"),
        (b"\x80\x02NNb.", "has none"),
        (b"\x80\x02q\x00.", "the stack is empty"),
        (b"\x80\x02Nq", "cut off"),
        (b"\x80\x02h\x05.", "memo 5 is not set"),
        (b"\x80\x02Nr\xff\xff\xff\xff.", "memo number 4294967295 is too large"),
        (b"\x80\x02j\xff\xff\xff\xff.", "is not set"),
        (b"\x80\x02X\xff\xff\xff\xff.", "cut off"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "cut off"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "cut off"),
        (b"\x80\x02\x8b\xff\xff\xff\x7f.", "cut off"),
        (b"\x80\x02X\x01\x00\x00\x00\xff.", "no UTF-8"),
        (b"\x80\x02cos", "cut off"),
        (b"\x80\x02cos\nsystem", "cut off"),
        (b"\x80\x02i", "opcode 0x69"),
        (b"\x80\x02(o.", "opcode 0x6f"),
        (b"\x80\x02\x82\x01.", "opcode 0x82"),
        (b"\x80\x05\x97.", "opcode 0x97"),
        (b"\x80\x02P0\n.", "opcode 0x50"),
        (b"(lp0\n.", "opcode 0x70"),
    ] {
        check(opcodes, &["pickle, byte", what]);
    }
}

#[test]
fn more_objects_than_bytes_allow_are_refused() {
    for opcode in [b"]", b"(", b"\x94", b"}", b")"] {
        let body = [vec![b'N'], opcode.repeat(1 << 20)].concat();
        check(&pickle(body), &["more objects"]);
    }
    check(&pickle(b"N".repeat(1 << 20)), &["more objects"]);
}

#[test]
fn a_list_that_holds_itself_is_refused() {
    check_refused(&file(b"\x80\x02]q\x00h\x00a.".to_vec()), &["holds itself"]);
    check_refused(&file(b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.".to_vec()), &["holds itself"]);
    let parameter = b"\x80\x02(q\x00ctorch._utils\n_rebuild_parameter\n)R.".to_vec();
    refusal(&file(parameter));
    let deep = [b"]".repeat(1000), b"a".repeat(999)].concat();
    check_refused(&file(pickle(deep)), &["nested too deep"]);
    let deep = [b"]".repeat(50_000), b"a".repeat(49_999)].concat();
    check_refused(&file(pickle(deep)), &["nested too deep"]);
}

#[test]
fn few_bytes_do_not_become_a_billion_elements() {
    for bomb in bombs() {
        check_refused(&bomb, &["far larger"]);
    }
}

/// Small files that say one thing many times.
pub fn bombs() -> Vec<Memory> {
    // Ten times the same list of ten times the same list, and so on.
    let mut lists = b"]q\x00(K\x01K\x01K\x01K\x01K\x01K\x01K\x01K\x01K\x01K\x01e".to_vec();
    for level in 1..=12_u8 {
        lists.extend([b']', b'q', level, b'(']);
        lists.extend([b'h', level - 1].repeat(10));
        lists.extend(b"e");
    }
    let long = "t".repeat(100_000);
    let many = |element: &[u8]| list(&vec![element.to_vec(); 10_000]);
    let named = [b"}".to_vec(), text(&long), many(b"K\x01"), b"s".to_vec()].concat();
    let texts = [text(&long), b"q\x00".to_vec(), many(b"h\x00")].concat();
    let bytes = call(global("_codecs", "encode"), &[text(&long), text("latin1")]);
    let bytes = [bytes, b"q\x00".to_vec(), many(b"h\x00")].concat();
    // Whatever is below on the stack is saved as well, in a tuple.
    let all = |body: Vec<u8>| file(pickle([b"(".to_vec(), body, b"t".to_vec()].concat()));
    vec![all(lists), all(named), all(texts), all(bytes)]
}

#[test]
fn tensors_stay_in_their_storages() {
    let check = |tensor: Vec<u8>, part: &str| check_refused(&state(tensor), &["`w`", part]);
    assert!(Catalog::open(&state(tensor("0", 6, 1, &[5], &[1]))).is_ok());
    check(tensor("0", 6, 2, &[5], &[1]), "ends at 7 elements");
    check(tensor("0", 6, 0, &[2, 3], &[4, 1]), "ends at 7 elements");
    check(tensor("0", 7, 0, &[2], &[1]), "28 bytes, and the record only 24");
    check(tensor("0", 6, i64::MAX, &[1], &[1]), "ends at");
    check(tensor("0", 6, i64::MAX, &[3], &[i64::MAX]), "beyond any file");
    check(tensor("0", 6, 0, &[i64::MAX], &[1]), "beyond any file");
    check(tensor("0", 6, 0, &[i64::MAX, i64::MAX, 3], &[0, 0, 1]), "beyond any file");
    check(tensor("0", i64::MAX, 0, &[1], &[1]), "not one that torch.save writes");
    check(tensor("0", 6, -1, &[1], &[1]), "offset");
    check(tensor("0", 6, 0, &[-1], &[1]), "size");
    check(tensor("0", 6, 0, &[2], &[-1]), "strides");
    check(tensor("0", 6, 0, &[2, 2], &[1]), "different numbers of dims");
    check(tensor("0", 6, 0, &[1; 65], &[1; 65]), "size");
    check_refused(&state(tensor("1", 6, 0, &[1], &[1])), &["data/1", "missing"]);
    check_refused(&state(tensor("../0", 6, 0, &[1], &[1])), &["missing"]);
    let empty = state(tensor("0", 6, i64::MAX, &[0, 1 << 62], &[1 << 62, 1 << 62]));
    let catalog = Catalog::open(&empty).unwrap();
    assert_eq!(only_chunk(&catalog, "w").0.strides, None);
}

#[test]
fn a_view_that_repeats_elements_is_small() {
    assert!(Catalog::open(&state(tensor("0", 6, 0, &[1000, 6], &[0, 1]))).is_ok());
    check_refused(&state(tensor("0", 6, 0, &[1 << 40, 6], &[0, 1])), &["`w`", "clone()"]);
    // Each of them alone would be small enough.
    let view = tensor("0", 6, 0, &[1 << 20], &[0]);
    check_refused(&state(list(&vec![view; 100])), &["clone()"]);
}

#[test]
fn what_only_looks_like_a_tensor_is_refused() {
    let rebuild =
        |name: &str, arguments: &[Vec<u8>]| state(call(global("torch._utils", name), arguments));
    refusal(&rebuild("_rebuild_tensor_v2", &[]));
    refusal(&rebuild("_rebuild_parameter", &[]));
    refusal(&rebuild("_rebuild_parameter", &[int(1), nothing(), nothing()]));
    let storage = |id: &[Vec<u8>]| [tuple(id), b"Q".to_vec()].concat();
    let float = global("torch", "FloatStorage");
    for id in [
        vec![],
        vec![text("module"), float.clone(), text("0"), text("cpu"), int(6)],
        vec![text("storage"), global("torch", "Size"), text("0"), text("cpu"), int(6)],
        vec![text("storage"), float.clone(), int(0), text("cpu"), int(6)],
        vec![text("storage"), float.clone(), text("0"), text("cpu"), int(-6)],
        vec![
            text("storage"),
            global("torch.storage", "UntypedStorage"),
            text("0"),
            text("cpu"),
            int(6),
        ],
    ] {
        let arguments = [storage(&id), int(0), tuple(&[int(1)]), tuple(&[int(1)])];
        refusal(&rebuild("_rebuild_tensor_v2", &arguments));
    }
    assert!(unreadable(&state(storage(&[text("storage")]))).contains("another kind"));
    // Parameters of parameters, without an end.
    let mut nested = tensor("0", 6, 0, &[1], &[1]);
    for _ in 0..20 {
        nested =
            call(global("torch._utils", "_rebuild_parameter"), &[nested, nothing(), nothing()]);
    }
    check_refused(&state(nested), &["no tensor in a parameter"]);
}

#[test]
fn calls_of_known_names_with_strange_arguments_are_not_read() {
    for body in [
        call(global("torch", "Size"), &[int(1)]),
        call(global("torch", "device"), &[int(1)]),
        call(global("_codecs", "encode"), &[text("€"), text("latin1")]),
        call(global("_codecs", "encode"), &[text("a"), text("rot13")]),
        call(global("builtins", "bytearray"), &[int(1 << 40)]),
        call(global("builtins", "complex"), &[int(1), int(1)]),
        call(global("pathlib", "PosixPath"), &[int(1)]),
        call(global("numpy.core.multiarray", "scalar"), &[int(1), int(2)]),
        call(global("numpy.core.multiarray", "scalar"), &[text("f4"), b"C\x00".to_vec()]),
        instance(global("torch.distributed.checkpoint.metadata", "Metadata"), dict(&[])),
        global("torch", "FloatStorage"),
    ] {
        let reason = unreadable(&state(body));
        assert!(reason.contains("is not supported"), "{reason}");
    }
}
