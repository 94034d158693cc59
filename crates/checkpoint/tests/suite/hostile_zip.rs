//! Archives that lie.

use dtensor_checkpoint::{Catalog, Error};

use crate::{
    formats_support::{Memory, check_refused, contents, refusal},
    hostile_support::{Record, dict, int, pickle, record, saved, tensor, zip, zip_saying},
};

fn memory(bytes: Vec<u8>) -> Memory {
    Memory::of([("x.pt", bytes)])
}

/// The records of a good file: a tensor of two floats.
fn good() -> Vec<Record> {
    let state = pickle(dict(&[("w", tensor("0", 2, 0, &[2], &[1])), ("n", int(5))]));
    vec![record("archive/data.pkl", state), record("archive/data/0", [1, 2, 3, 4, 5, 6, 7, 8])]
}

#[track_caller]
fn check(change: impl Fn(&mut [Record]), parts: &[&str]) {
    let mut records = good();
    change(&mut records);
    check_refused(&memory(zip(&records)), parts);
}

#[test]
fn archives_with_and_without_64_bit_numbers_are_read() {
    let wide: Vec<Record> = good().into_iter().map(|r| Record { wide: true, ..r }).collect();
    let commented = |mut bytes: Vec<u8>, comment: &[u8]| {
        let at = bytes.len() - 2;
        bytes.truncate(at);
        [bytes, (comment.len() as u16).to_le_bytes().to_vec(), comment.to_vec()].concat()
    };
    for bytes in [
        zip(&good()),
        zip_saying(&good(), [None; 3], true),
        zip_saying(&wide, [None; 3], true),
        zip_saying(&wide, [None; 3], false),
        commented(zip(&good()), b"a comment"),
        commented(zip(&good()), &[b'x'; 65535]),
    ] {
        let memory = memory(bytes);
        let found = contents(&memory, &Catalog::open(&memory).unwrap());
        assert_eq!(found["tensors"]["w"]["hex"], "0102030405060708");
        assert_eq!(found["values"]["n"]["int"], 5);
    }
}

#[test]
fn records_outside_of_the_file_are_refused() {
    for number in [1 << 20, u64::from(u32::MAX), 1 << 40, i64::MAX as u64, u64::MAX] {
        for field in 0..3 {
            check(
                |records| {
                    records[1].said[field] = Some(number);
                    records[1].wide = true;
                },
                &["data/0"],
            );
        }
        check(
            |records| {
                records[1].said = [Some(number), Some(number), None];
                records[1].wide = true;
            },
            &["`archive/data/0` has", "bytes from byte"],
        );
    }
}

#[test]
fn a_record_that_reaches_into_the_directory_is_refused() {
    check(|records| records[1].said = [Some(40), Some(40), None], &["data/0", "directory begins"]);
}

#[test]
fn a_local_header_must_be_where_the_directory_says() {
    check(|records| records[1].said[2] = Some(3), &["`data/0`", "not its local header"]);
    check(
        |records| records[1].local_name = Some("archive/data/1".into()),
        &["not its local header"],
    );
    check(
        |records| records[1].local_name = Some("archive/data/00".into()),
        &["not its local header"],
    );
}

#[test]
fn compressed_and_encrypted_records_are_never_unpacked() {
    check(|records| records[0].method = 8, &["data.pkl", "compressed by method 8", "torch.save"]);
    check(|records| records[1].method = 12, &["data/0", "compressed by method 12"]);
    check(|records| records[1].flags |= 1, &["encrypted", "data/0"]);
    // A bomb: few bytes that say that they are very many.
    let bomb = |records: &mut [Record]| {
        records[0].method = 8;
        (records[0].said, records[0].wide) = ([Some(1 << 50), None, None], true);
    };
    check(bomb, &["compressed"]);
    check(
        |records| records[0].said[0] = Some(1 << 20),
        &["`archive/data.pkl` has 1048576 bytes, stored in"],
    );
}

#[test]
fn two_records_of_one_name_are_refused() {
    let mut records = good();
    records.push(record("archive/data/0", [0; 8]));
    check_refused(&memory(zip(&records)), &["two records `data/0`"]);
}

#[test]
fn missing_records_are_named() {
    check_refused(&memory(zip(&good()[..1])), &["`data/0`", "missing"]);
    check_refused(&memory(zip(&good()[1..])), &["`data.pkl`", "missing"]);
    check_refused(&memory(zip(&[])), &["x.pt"]);
}

#[test]
fn an_end_record_that_lies_is_refused() {
    let numbers = [0, 1, 3, 1 << 16, u64::from(u32::MAX), 1 << 62, u64::MAX];
    for wide in [true, false] {
        for field in 0..3 {
            for number in numbers {
                let mut said = [None; 3];
                said[field] = Some(number);
                let error = refusal(&memory(zip_saying(&good(), said, wide)));
                assert!(matches!(error, Error::Broken { .. }), "{wide} {field} {number}: {error}");
            }
        }
    }
}

#[test]
fn names_that_are_no_text_are_refused() {
    let bytes = zip(&good());
    let at = bytes.windows(14).rposition(|window| window == b"archive/data/0").unwrap();
    let mut wrong = bytes;
    wrong[at] = 0xff;
    check_refused(&memory(wrong), &["no UTF-8"]);
}

#[test]
fn an_archive_in_front_of_other_bytes_is_none() {
    let bytes = [zip(&good()), vec![0; 100]].concat();
    check_refused(&memory(bytes), &["no zip directory", "cut off"]);
}

#[test]
fn two_names_may_share_a_record_and_one_may_not_be_there_twice() {
    let one = tensor("0", 2, 0, &[2], &[1]);
    let state =
        |items: &[(&str, Vec<u8>)]| memory(saved(pickle(dict(items)), &[("0", vec![0; 8])]));
    assert!(Catalog::open(&state(&[("a", one.clone()), ("b", one.clone())])).is_ok());
    let twice = state(&[("a", one.clone()), ("a", one.clone())]);
    assert!(matches!(refusal(&twice), Error::Twice { .. }));
    let dotted = state(&[("a.b", one.clone()), ("a", dict(&[("b", one)]))]);
    assert!(matches!(refusal(&dotted), Error::Twice { .. }));
    let mixed = state(&[("a.b", tensor("0", 2, 0, &[2], &[1])), ("a", dict(&[("b", int(1))]))]);
    assert!(matches!(refusal(&mixed), Error::Twice { .. }));
}
