//! Writing the header of a safetensors file.

use std::{cmp::Reverse, fmt::Write};

use crate::StoredType;

/// A line of a processor's cache. The format asks for eight bytes; the system copies to and from memory faster if both sides
/// are aligned to this.
const ALIGNED: usize = 64;

/// Bytes of the length that a file begins with.
const LENGTH: usize = 8;

/// Where in a file a tensor comes, as in the format's own library: wide elements first, so that all are aligned, and then
/// by name.
pub(crate) fn file_order(stored: StoredType, name: &str) -> impl Ord + use<'_> {
    const ORDER: [StoredType; 20] = [
        StoredType::Bool,
        StoredType::U8,
        StoredType::I8,
        StoredType::F8E5M2,
        StoredType::F8E4M3,
        StoredType::F8E8M0,
        StoredType::F8E4M3Fnuz,
        StoredType::F8E5M2Fnuz,
        StoredType::I16,
        StoredType::U16,
        StoredType::F16,
        StoredType::Bf16,
        StoredType::I32,
        StoredType::U32,
        StoredType::F32,
        StoredType::C64,
        StoredType::F64,
        StoredType::I64,
        StoredType::U64,
        StoredType::C128,
    ];
    (Reverse(ORDER.iter().position(|other| *other == stored)), name)
}

/// The first bytes of a file with these texts about it and these tensors, in the order of their bytes: the length, the JSON,
/// and spaces, so that the bytes of tensors begin at a multiple of [`ALIGNED`].
pub(crate) fn header_bytes<'t>(
    texts: &[(&str, &str)],
    tensors: impl Iterator<Item = (&'t str, StoredType, &'t [usize])>,
) -> Vec<u8> {
    // Written by hand, because the order of keys is that of the bytes.
    let mut json = String::from("{\"__metadata__\":{");
    for (index, (key, text)) in texts.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        add(&mut json, format_args!("{comma}{}:{}", quoted(key), quoted(text)));
    }
    json.push('}');
    let mut start = 0;
    for (name, stored, shape) in tensors {
        let end = start + shape.iter().product::<usize>() as u64 * stored.size() as u64;
        let (name, shape) = (quoted(name), numbers(shape, ","));
        let about = format_args!(
            ",{name}:{{\"dtype\":\"{stored}\",\"shape\":{shape},\"data_offsets\":[{start},{end}]}}"
        );
        add(&mut json, about);
        start = end;
    }
    json.push('}');
    let spaces = (LENGTH + json.len()).next_multiple_of(ALIGNED) - (LENGTH + json.len());
    json.extend(std::iter::repeat_n(' ', spaces));
    [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat()
}

/// Writing to a `String` cannot fail.
pub(super) fn add(json: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = json.write_fmt(text);
}

pub(super) fn numbers(numbers: &[usize], comma: &str) -> String {
    let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
    format!("[{}]", numbers.join(comma))
}

pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
