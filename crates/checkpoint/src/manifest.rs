//! The manifest: the file that makes files a checkpoint.
//!
//! It is written last, lists every other file with its size and the checksum of its header, holds the values, and ends
//! with nothing that could be missing: it begins with a checksum of itself. So every byte of a checkpoint is covered.
//! The manifest covers itself and the headers, and the headers cover the tensors.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Map, Value as Json, json};

use crate::{Error, Result, Value, formats::safetensors::MAX_HEADER, hash};

/// The name of the manifest's file.
pub const MANIFEST_FILE: &str = "dtensor.manifest.json";

/// What [`Manifest::version`] is today.
pub const MANIFEST_VERSION: u64 = 1;

/// Hexadecimal digits of [`Manifest::id`].
pub(crate) const ID_DIGITS: usize = 16;

/// The most bytes of a manifest: as of a header.
pub(crate) const MAX_MANIFEST: u64 = MAX_HEADER;

/// What every manifest begins with. The checksum lies at a fixed place, so that it can be found before anything is believed.
const BEGIN: &str = "{\n  \"checksum\": \"";

/// What a checkpoint consists of.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// Of the format.
    pub version: u64,
    /// Of the save that wrote it, different for every save: 16 hexadecimal digits.
    pub id: String,
    /// When it was saved, in seconds since 1970.
    pub time: u64,
    /// The files with tensors, by name.
    pub files: Vec<FileRecord>,
    /// What is no tensor, by name.
    pub values: BTreeMap<String, Value>,
    /// Number of tensors.
    pub tensors: u64,
    /// Bytes of all tensors, each element counted once.
    pub bytes: u64,
}

/// A file with tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRecord {
    /// Relative to the checkpoint.
    pub name: String,
    /// Its bytes.
    pub size: u64,
    /// The checksum of its header: the eight bytes of length, the JSON and the spaces after it.
    pub header_hash: u128,
}

impl Manifest {
    /// Of a checkpoint that is saved now.
    pub(crate) fn new(
        id: String,
        files: Vec<FileRecord>,
        values: BTreeMap<String, Value>,
        tensors: u64,
        bytes: u64,
    ) -> Manifest {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Manifest { version: MANIFEST_VERSION, id, time, files, values, tensors, bytes }
    }

    /// The content of its file, which is written only if it can be read again: [`Error::Unsupported`] if it has more than `limit`
    /// bytes.
    pub(crate) fn to_file(&self, limit: u64) -> Result<Vec<u8>> {
        let bytes = self.to_bytes();
        check_size(bytes.len() as u64, limit)?;
        Ok(bytes)
    }

    /// The content of its file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let file = |file: &FileRecord| json!({"name": file.name, "size": file.size, "header_xxh3": hash::to_hex(file.header_hash)});
        let values: Map<String, Json> =
            self.values.iter().map(|(name, value)| (name.clone(), value_to_json(value))).collect();
        let rest = json!({
            "version": self.version,
            "id": self.id,
            "time": self.time,
            "files": self.files.iter().map(file).collect::<Vec<_>>(),
            "values": values,
            "tensors": self.tensors,
            "bytes": self.bytes,
        });
        // The checksum is computed with zeros in its place. The brace that opens the rest is in `BEGIN`.
        let rest = format!("{rest:#}");
        let mut bytes =
            format!("{BEGIN}{}\",{}\n", "0".repeat(hash::DIGITS), &rest[1..]).into_bytes();
        let checksum = hash::to_hex(hash::xxh3(&bytes));
        bytes[BEGIN.len()..][..hash::DIGITS].copy_from_slice(checksum.as_bytes());
        bytes
    }

    /// Reads a manifest from the content of its file, whose name is for errors. A manifest of which a single bit is not as
    /// it was written is [`Error::Damaged`] or [`Error::Broken`].
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Manifest> {
        verify(name, bytes)?;
        let broken = |what: &str| Error::broken(name, what);
        let json: Json =
            serde_json::from_slice(bytes).map_err(|error| broken(&error.to_string()))?;
        let number =
            |key: &str| json[key].as_u64().ok_or_else(|| broken(&format!("`{key}` is no number")));
        let version = number("version")?;
        if version > MANIFEST_VERSION {
            return Err(Error::Unsupported {
                what: format!("version {version} of the format"),
                place: name.to_owned(),
                way_out: "read it with the version of this crate that wrote it, or a later one",
            });
        }
        let id = json["id"].as_str().ok_or_else(|| broken("`id` is no text"))?.to_owned();
        let files = json["files"].as_array().ok_or_else(|| broken("`files` is no list"))?;
        let files = files.iter().map(file).collect::<Option<Vec<_>>>();
        let files = files.ok_or_else(|| broken("a file without name, size and checksum"))?;
        let values = json["values"].as_object().ok_or_else(|| broken("`values` is no object"))?;
        let value = |(key, json): (&String, &Json)| {
            let value = value_from_json(json);
            let value =
                value.ok_or_else(|| broken(&format!("`{key}` is none of the kinds of value")))?;
            Ok((key.clone(), value))
        };
        let values = values.iter().map(value).collect::<Result<_>>()?;
        let (time, tensors, bytes) = (number("time")?, number("tensors")?, number("bytes")?);
        Ok(Manifest { version, id, time, files, values, tensors, bytes })
    }
}

/// Whether a manifest of so many bytes could be read again.
pub(crate) fn check_size(bytes: u64, limit: u64) -> Result<()> {
    match bytes <= limit {
        true => Ok(()),
        false => Err(Error::Unsupported {
            what: format!("a manifest of {bytes} bytes, of at most {limit},"),
            place: MANIFEST_FILE.to_owned(),
            way_out: "it holds all values that are no tensors; save large ones as tensors of u8",
        }),
    }
}

/// Whether the bytes are those that were written.
fn verify(name: &str, bytes: &[u8]) -> Result<()> {
    let written = bytes.strip_prefix(BEGIN.as_bytes()).and_then(|rest| rest.get(..hash::DIGITS));
    let written = written.and_then(|digits| std::str::from_utf8(digits).ok());
    let Some((written, stored)) = written.and_then(|text| Some((text, hash::from_hex(text)?)))
    else {
        return Err(Error::broken(name, "it does not begin with a checksum"));
    };
    let mut zeroed = bytes.to_vec();
    zeroed[BEGIN.len()..][..hash::DIGITS].fill(b'0');
    let computed = hash::xxh3(&zeroed);
    match computed == stored {
        true => Ok(()),
        false => Err(Error::Damaged {
            file: name.to_owned(),
            what: "the manifest".into(),
            stored: written.to_owned(),
            computed: hash::to_hex(computed),
        }),
    }
}

fn file(json: &Json) -> Option<FileRecord> {
    Some(FileRecord {
        name: json["name"].as_str()?.to_owned(),
        size: json["size"].as_u64()?,
        header_hash: hash::from_hex(json["header_xxh3"].as_str()?)?,
    })
}

/// Whole numbers, texts and truth values are those of JSON. The others are objects with one key, or empty.
pub(crate) fn value_to_json(value: &Value) -> Json {
    match value {
        Value::Nothing => Json::Null,
        Value::Bool(value) => json!(value),
        Value::Int(value) => json!(value),
        // As text, because JSON has no infinities, and because readers of JSON round.
        Value::Float(value) => json!({"float": value.to_string()}),
        Value::Text(text) => json!(text),
        Value::Bytes(bytes) => json!({"bytes": bytes_to_hex(bytes)}),
        Value::EmptyList => json!([]),
        Value::EmptyDict => json!({}),
    }
}

pub(crate) fn value_from_json(json: &Json) -> Option<Value> {
    Some(match json {
        Json::Null => Value::Nothing,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => Value::Int(number.as_i64()?),
        Json::String(text) => Value::Text(text.clone()),
        Json::Array(elements) if elements.is_empty() => Value::EmptyList,
        Json::Object(keys) if keys.is_empty() => Value::EmptyDict,
        Json::Object(keys) if keys.len() == 1 => match (keys.get("float"), keys.get("bytes")) {
            (Some(Json::String(text)), None) => Value::Float(text.parse().ok()?),
            (None, Some(Json::String(text))) => Value::Bytes(bytes_from_hex(text)?),
            _ => return None,
        },
        Json::Array(_) | Json::Object(_) => return None,
    })
}

fn bytes_to_hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn bytes_from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let values = [
            ("nothing", Value::Nothing),
            ("on", Value::Bool(true)),
            ("step", Value::Int(i64::MIN)),
            ("loss", Value::Float(0.1 + 0.2)),
            ("zero", Value::Float(-0.0)),
            ("one", Value::Float(1.0)),
            ("least", Value::Float(f64::MIN_POSITIVE / 8.0)),
            ("best", Value::Float(f64::NEG_INFINITY)),
            ("run \"7\" é", Value::Text("naïve\n\u{1F600}".into())),
            ("key", Value::Bytes(vec![0, 255, 16, 1])),
            ("none", Value::Bytes(Vec::new())),
            ("list", Value::EmptyList),
            ("dict", Value::EmptyDict),
        ];
        let file = |rank: u64| FileRecord {
            name: format!("shard-{rank:05}.safetensors"),
            size: rank << 40,
            header_hash: hash::xxh3(&rank.to_le_bytes()),
        };
        Manifest {
            version: MANIFEST_VERSION,
            id: "00c0ffee00c0ffee".into(),
            time: 1_700_000_000,
            files: vec![file(1), file(3)],
            values: values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            tensors: 12,
            bytes: u64::MAX,
        }
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        let (written, bytes) = (manifest(), manifest().to_bytes());
        let read = Manifest::parse(MANIFEST_FILE, &bytes).unwrap();
        assert_eq!(read, written);
        assert_eq!(read.to_bytes(), bytes);
        let Some(Value::Float(zero)) = read.values.get("zero") else { panic!("no zero") };
        assert!(zero.is_sign_negative());
    }

    #[test]
    fn a_manifest_that_could_not_be_read_again_is_not_written() {
        let manifest = manifest();
        let bytes = manifest.to_bytes();
        assert_eq!(manifest.to_file(bytes.len() as u64), Ok(bytes.clone()));
        let error = manifest.to_file(bytes.len() as u64 - 1).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }

    #[test]
    fn a_nan_is_read_as_a_nan() {
        let values = BTreeMap::from([("loss".to_owned(), Value::Float(f64::NAN))]);
        let bytes = Manifest { values, ..manifest() }.to_bytes();
        let read = Manifest::parse(MANIFEST_FILE, &bytes).unwrap();
        assert!(matches!(read.values["loss"], Value::Float(value) if value.is_nan()));
    }

    #[test]
    fn every_flipped_bit_of_a_manifest_is_found() {
        let bytes = manifest().to_bytes();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let found = Manifest::parse(MANIFEST_FILE, &flipped);
            assert!(
                matches!(found, Err(Error::Damaged { .. } | Error::Broken { .. })),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn every_manifest_that_is_cut_off_is_found() {
        let bytes = manifest().to_bytes();
        for length in 0..bytes.len() {
            Manifest::parse(MANIFEST_FILE, &bytes[..length]).unwrap_err();
        }
    }

    #[test]
    fn a_manifest_of_a_later_version_says_so() {
        let bytes = Manifest { version: 2, ..manifest() }.to_bytes();
        let error = Manifest::parse(MANIFEST_FILE, &bytes).unwrap_err().to_string();
        assert!(error.contains("version 2 of the format"), "{error}");
    }
}
