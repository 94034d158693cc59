//! The header of a safetensors file.
//!
//! ```text
//! 0..8       length of the JSON, little-endian
//! 8..        {"__metadata__": {"format": "pt", ...}, "layer.weight": {"dtype": "F32", "shape": [5, 3], "data_offsets": [0, 60]}, ...}
//!            and spaces, mostly up to a multiple of eight bytes
//! 8 + length..   the tensors in row-major order, one after the other: `data_offsets` count from here, and leave no byte out
//! ```

use std::collections::BTreeMap;

use dtensor_layout::IndexBox;
use serde_json::Value as Json;

use crate::{Error, ReadAt, Result, StoredType};

/// As long as a header may be, as in the format's own library.
pub(crate) const MAX_HEADER: u64 = 100_000_000;

/// The text of a header that says where its tensors begin in the whole ones, as PyTorch writes it.
pub(crate) const SHARDING_INFO: &str = "DCP_SHARDING_INFO";

/// What we add: global shapes, layouts and checksums.
pub(crate) const OWN_INFO: &str = "dtensor.tensors";

/// What is no tensor, where a file has to hold it: a JSON object of names.
pub(crate) const VALUES: &str = "dtensor.values";

/// What the header of a file says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Header {
    /// Texts about the file.
    pub metadata: BTreeMap<String, String>,
    /// The tensors, in the order of their bytes.
    pub tensors: Vec<Stored>,
    /// Tensors whose elements are smaller than a byte.
    pub packed: Vec<Packed>,
    /// Where the bytes of tensors begin.
    pub data_start: u64,
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stored {
    pub name: String,
    pub stored: StoredType,
    pub shape: Vec<usize>,
    /// The first byte in the file.
    pub offset: u64,
    pub bytes: u64,
}

/// A tensor of a file whose elements cannot be read one by one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Packed {
    pub name: String,
    /// Why it cannot be read.
    pub reason: String,
    offset: u64,
    bytes: u64,
}

/// The bytes of a file before its tensors.
pub(crate) fn read_header_bytes(file: &dyn ReadAt) -> Result<Vec<u8>> {
    let mut length = [0; 8];
    if file.size() < 8 {
        return Err(Error::broken(
            file.name(),
            format!("{} bytes are no safetensors file", file.size()),
        ));
    }
    file.read_at(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER || length > file.size() - 8 {
        let what = format!(
            "a header of {length} bytes in a file of {}; it is cut off, or no safetensors file",
            file.size()
        );
        return Err(Error::broken(file.name(), what));
    }
    let mut header = vec![0; 8 + length as usize];
    file.read_at(0, &mut header)?;
    Ok(header)
}

/// What the header of a file of `size` bytes says. `bytes` are the length and the JSON.
pub(crate) fn parse_header(file: &str, bytes: &[u8], size: u64) -> Result<Header> {
    let broken = |what: String| Error::broken(file, what);
    let json = bytes.get(8..).ok_or_else(|| broken("it has no header".into()))?;
    let json: Json =
        serde_json::from_slice(json).map_err(|error| broken(format!("its header: {error}")))?;
    let Json::Object(entries) = json else {
        return Err(broken("its header is no JSON object".into()));
    };
    let data_start = bytes.len() as u64;
    let mut header =
        Header { metadata: BTreeMap::new(), tensors: Vec::new(), packed: Vec::new(), data_start };
    for (name, entry) in entries {
        match name.as_str() {
            "__metadata__" => {
                header.metadata =
                    metadata(entry).ok_or_else(|| broken("`__metadata__` holds no texts".into()))?
            }
            _ => add(&mut header, file, name, &entry)?,
        }
    }
    header.tensors.sort_by_key(|tensor| (tensor.offset, tensor.bytes));
    // Files have no holes and no second reader of a byte: each tensor begins where the last one ended.
    let tensors = header.tensors.iter().map(|tensor| (tensor.offset, tensor.bytes, &tensor.name));
    let packed = header.packed.iter().map(|tensor| (tensor.offset, tensor.bytes, &tensor.name));
    let mut places: Vec<(u64, u64, &String)> = tensors.chain(packed).collect();
    places.sort_by_key(|(offset, bytes, _)| (*offset, *bytes));
    let mut end = data_start;
    for (offset, bytes, name) in places {
        if offset != end {
            return Err(broken(format!(
                "`{name}` begins at byte {offset}, and the one before it ends at {end}"
            )));
        }
        end += bytes;
    }
    match end == size {
        true => Ok(header),
        false => Err(broken(format!("its tensors end at byte {end}, and it has {size}"))),
    }
}

fn metadata(json: Json) -> Option<BTreeMap<String, String>> {
    let Json::Object(texts) = json else { return None };
    texts.into_iter().map(|(key, text)| Some((key, text.as_str()?.to_owned()))).collect()
}

/// Adds what a header says of a tensor.
fn add(header: &mut Header, file: &str, name: String, json: &Json) -> Result<()> {
    let broken = |what: &str| Error::broken(file, format!("`{name}`: {what}"));
    let text = json["dtype"].as_str().ok_or_else(|| broken("it has no dtype"))?;
    let stored = StoredType::from_name(text);
    let bits = stored.map(|stored| 8 * stored.size() as u64);
    let Some(bits) = bits.or_else(|| StoredType::bits_of_packed(text)) else {
        let (what, place) = (format!("dtype {text}"), format!("{file}: {name}"));
        let way_out = "convert the tensor with the tool that wrote it";
        return Err(Error::Unsupported { what, place, way_out });
    };
    let numbers =
        |json: &Json| json.as_array()?.iter().map(Json::as_u64).collect::<Option<Vec<u64>>>();
    let shape = numbers(&json["shape"]).ok_or_else(|| broken("its shape is no list of sizes"))?;
    let [start, end] = numbers(&json["data_offsets"])
        .and_then(|offsets| <[u64; 2]>::try_from(offsets).ok())
        .ok_or_else(|| broken("its data_offsets are not two numbers"))?;
    let size = shape.iter().try_fold(u128::from(bits), |bits, &size| bits.checked_mul(size.into()));
    let bytes = end.checked_sub(start).filter(|&bytes| Some(u128::from(bytes) * 8) == size);
    let bytes = bytes.ok_or_else(|| broken("its data_offsets do not fit its shape and dtype"))?;
    let offset = header.data_start.checked_add(start);
    let offset = offset.filter(|offset| offset.checked_add(bytes).is_some());
    let offset = offset.ok_or_else(|| broken("its data_offsets are beyond any file"))?;
    let Some(stored) = stored else {
        let reason = format!(
            "its dtype {text} has elements of {bits} bits, {bytes} bytes of shape {shape:?} in `{file}`, \
             which are not read one by one; leave it out"
        );
        header.packed.push(Packed { name, reason, offset, bytes });
        return Ok(());
    };
    let shape = shape.into_iter().map(usize::try_from).collect::<std::result::Result<_, _>>();
    let shape = shape.map_err(|_| broken("its shape is beyond this machine"))?;
    header.tensors.push(Stored { name, stored, shape, offset, bytes });
    Ok(())
}

/// Where a part of a tensor lies, if that is a place that indices can name.
pub(crate) fn index_at(offsets: &[usize], shape: &[usize]) -> Option<IndexBox> {
    let range = |(&start, &size): (&usize, &usize)| Some(start..start.checked_add(size)?);
    offsets.iter().zip(shape).map(range).collect::<Option<_>>().map(IndexBox)
}

/// A list of sizes in JSON.
pub(crate) fn sizes(json: &Json) -> Option<Vec<usize>> {
    let size = |size: &Json| usize::try_from(size.as_u64()?).ok();
    json.as_array()?.iter().map(size).collect()
}
