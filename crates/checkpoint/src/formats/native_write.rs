//! The header of a file of our own: a safetensors header with PyTorch's sharding information, and ours.

use dtensor_layout::Layout;

use super::{
    safetensors::{MAX_HEADER, OWN_INFO, SHARDING_INFO},
    safetensors_write::{add, file_order, header_bytes, numbers, quoted},
};
use crate::{Error, Result, StoredType, hash, hash::DIGITS};

/// A part of a tensor, as a file has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    pub name: String,
    pub stored: StoredType,
    /// Of the whole tensor.
    pub global_shape: Vec<usize>,
    /// Where the part begins, in every dim.
    pub offsets: Vec<usize>,
    pub shape: Vec<usize>,
    /// Placements and mesh of the tensor, for people.
    pub layout: String,
}

/// Where in a file everything lies. Known before any data are, because a checksum is as long as any other.
#[derive(Clone, Debug)]
pub(crate) struct FilePlan {
    /// In the order of the state.
    parts: Vec<Part>,
    /// Their positions, in the order of the file.
    order: Vec<usize>,
    /// Bytes of the header.
    pub data_start: u64,
    /// Bytes of the file.
    pub size: u64,
}

impl Part {
    /// What the rank at a coordinate of the mesh holds of a tensor: one part, or several where a strided shard cut it. An
    /// empty shard is one empty part.
    pub(crate) fn held(
        name: &str,
        stored: StoredType,
        layout: &Layout,
        coord: &[usize],
    ) -> Vec<Part> {
        let part = |offsets, shape| Part {
            name: name.to_owned(),
            stored,
            global_shape: layout.global_shape().to_vec(),
            offsets,
            shape,
            layout: format!("{layout} on {}", layout.mesh()),
        };
        let boxes = layout.boxes(coord);
        match boxes.is_empty() {
            true => vec![part(layout.local_offset(coord), layout.local_shape(coord))],
            false => boxes
                .iter()
                .map(|index| part(index.0.iter().map(|range| range.start).collect(), index.shape()))
                .collect(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.stored.size()) as u64
    }
}

impl FilePlan {
    /// A file with these parts, which are given in the order of the state.
    pub(crate) fn new(file: &str, parts: Vec<Part>) -> Result<FilePlan> {
        let mut order: Vec<usize> = (0..parts.len()).collect();
        let key = |position: usize| file_order(parts[position].stored, &parts[position].name);
        order.sort_by(|&one, &other| key(one).cmp(&key(other)));
        let mut plan = FilePlan { parts, order, data_start: 0, size: 0 };
        let no_hashes: Vec<Vec<u128>> =
            plan.parts().map(|(_, part)| vec![0; hash::n_blocks(part.bytes())]).collect();
        plan.data_start = plan.header(&no_hashes).len() as u64;
        plan.size = plan.data_start + plan.parts.iter().map(Part::bytes).sum::<u64>();
        match plan.data_start - 8 <= MAX_HEADER {
            true => Ok(plan),
            false => Err(Error::Unsupported {
                what: format!("a header of {} bytes", plan.data_start),
                place: file.to_owned(),
                way_out: "the format allows 100 MB, so save from more ranks",
            }),
        }
    }

    /// The parts in the order of the file, each with its position in the list that the file was planned for.
    pub(crate) fn parts(&self) -> impl ExactSizeIterator<Item = (usize, &Part)> {
        self.order.iter().map(|&position| (position, &self.parts[position]))
    }

    /// The first bytes of the file. `hashes` are those of the blocks of each part, in the order of the file.
    pub(crate) fn header(&self, hashes: &[Vec<u128>]) -> Vec<u8> {
        let texts = [
            ("format", "pt"),
            ("DCP_VERSION", "1.0"),
            (SHARDING_INFO, &self.sharding_info()),
            ("dtensor.version", "1"),
            (OWN_INFO, &self.our_information(hashes)),
        ];
        let tensors = self.parts().map(|(_, part)| (part.name.as_str(), part.stored, &*part.shape));
        header_bytes(&texts, tensors)
    }

    /// As Python's `json.dumps` writes it.
    fn sharding_info(&self) -> String {
        let mut json = String::from("{");
        for (index, part) in self.parts.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            let (name, offsets) = (quoted_in_ascii(&part.name), numbers(&part.offsets, ", "));
            add(&mut json, format_args!("{comma}{name}: {{\"saved_offsets\": {offsets}}}"));
        }
        json.push('}');
        json
    }

    fn our_information(&self, hashes: &[Vec<u128>]) -> String {
        let mut json = String::from("{");
        for (index, ((_, part), hashes)) in self.parts().zip(hashes).enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let (name, layout) = (quoted(&part.name), quoted(&part.layout));
            let (shape, block) = (numbers(&part.global_shape, ","), hash::BLOCK);
            let about = format_args!(
                "{comma}{name}:{{\"shape\":{shape},\"layout\":{layout},\"block\":{block},\"xxh3\":["
            );
            add(&mut json, about);
            for (index, hash) in hashes.iter().enumerate() {
                let comma = if index == 0 { "" } else { "," };
                add(&mut json, format_args!("{comma}\"{hash:0DIGITS$x}\""));
            }
            json.push_str("]}");
        }
        json.push('}');
        json
    }
}

/// As Python quotes: everything but printable ASCII is escaped.
fn quoted_in_ascii(text: &str) -> String {
    let mut quoted = String::from("\"");
    for char in text.chars() {
        match char {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            ' '..='~' => quoted.push(char),
            _ => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    add(&mut quoted, format_args!("\\u{unit:04x}"));
                }
            }
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_as_python_quotes_them() {
        // `json.dumps` of these texts.
        let cases = [
            ("layers.0.w", r#""layers.0.w""#),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("é\u{7f}\u{1}", r#""\u00e9\u007f\u0001""#),
            ("\u{1F600}\n\t", r#""\ud83d\ude00\n\t""#),
        ];
        for (text, want) in cases {
            assert_eq!(quoted_in_ascii(text), want);
        }
    }

    #[test]
    fn the_length_of_a_header_does_not_depend_on_its_checksums() {
        let part = |name: &str, rows| Part {
            name: name.into(),
            stored: StoredType::F32,
            global_shape: vec![rows, 1024],
            offsets: vec![0, 0],
            shape: vec![rows, 1024],
            layout: "[R] on x=2".into(),
        };
        let plan =
            FilePlan::new("file", vec![part("b \"é\"", 300), part("a", 0), part("c", 7)]).unwrap();
        let names: Vec<&str> = plan.parts().map(|(_, part)| part.name.as_str()).collect();
        assert_eq!(names, ["a", "b \"é\"", "c"]);
        let header = plan.header(&[vec![], vec![u128::MAX, 5], vec![0]]);
        assert_eq!(header.len() as u64, plan.data_start);
        assert_eq!(header.len() % 64, 0);
        assert_eq!(plan.size, plan.data_start + 307 * 4096);
    }
}
