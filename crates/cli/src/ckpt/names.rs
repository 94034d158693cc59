//! Which names take part, and how names are shown.

use clap::Args;
use dtensor_checkpoint::{Pattern, Rename, Selection, StoredType, Value};
use dtensor_picture::units::count;
use serde_json::{Value as Json, json};

use crate::error::Result;

/// Which names take part.
#[derive(Args)]
pub struct NamesArgs {
    /// Only names that match this pattern; may be given several times
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Leave out names that match this pattern; may be given several times
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
}

/// Names that change.
#[derive(Args)]
pub struct RenameArgs {
    /// Other names for those that match: "module.*=*"; the first that matches counts
    #[arg(long, value_name = "OLD=NEW")]
    rename: Vec<String>,
}

impl NamesArgs {
    pub fn selection(&self, rename: Option<&RenameArgs>) -> Result<Selection> {
        let patterns = |texts: &[String]| texts.iter().map(Pattern::new).collect();
        let rename = rename.iter().flat_map(|args| &args.rename).map(|text| text.parse::<Rename>());
        Ok(Selection {
            only: patterns(&self.only),
            exclude: patterns(&self.exclude),
            rename: rename.collect::<Result<_, _>>()?,
        })
    }
}

/// A part of a dotted name; numbers are in their order: 2 comes before 10.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NamePart {
    Number(u64, String),
    Text(String),
}

/// The parts of a dotted name.
pub fn parts(name: &str) -> Vec<NamePart> {
    let part = |part: &str| match part.parse() {
        Ok(number) => NamePart::Number(number, part.to_owned()),
        Err(_) => NamePart::Text(part.to_owned()),
    };
    name.split('.').map(part).collect()
}

impl NamePart {
    pub fn text(&self) -> &str {
        match self {
            NamePart::Number(_, text) | NamePart::Text(text) => text,
        }
    }
}

/// A name or a text of a file for a terminal: what would move the cursor or colour the rest is escaped.
pub fn printable(text: &str) -> String {
    let escaped = |character: char| match character.is_control() {
        true => character.escape_default().collect::<Vec<_>>(),
        false => vec![character],
    };
    text.chars().flat_map(escaped).collect()
}

/// As `--dtype` takes it.
pub fn dtype(stored: StoredType) -> String {
    stored.name().to_ascii_lowercase()
}

/// A value for people.
pub fn value_text(value: &Value) -> String {
    match value {
        Value::Nothing => "none".into(),
        Value::Text(text) => format!("\"{}\"", printable(text)),
        Value::Bytes(bytes) => count(bytes.len(), "byte"),
        Value::EmptyList => "[]".into(),
        Value::EmptyDict => "{}".into(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Float(value) => format!("{value:?}"),
        _ => format!("{value:?}"),
    }
}

/// A value for programs. What JSON cannot say is a text: infinities and NaN by name, bytes by their digits.
pub fn value_json(value: &Value) -> Json {
    match value {
        Value::Nothing => Json::Null,
        Value::Bool(value) => json!(value),
        Value::Int(value) => json!(value),
        Value::Float(value) if value.is_finite() => json!(value),
        Value::Text(text) => json!(text),
        Value::Bytes(bytes) => {
            bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
        }
        Value::EmptyList => json!([]),
        Value::EmptyDict => json!({}),
        other => json!(value_text(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_are_in_their_order() {
        let mut names = ["l.10.w", "l.2.w", "l.x", "a", "l.2"];
        names.sort_by_key(|name| parts(name));
        assert_eq!(names, ["a", "l.2", "l.2.w", "l.10.w", "l.x"]);
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        assert_eq!(printable("a\x1b[31mb\nc é"), "a\\u{1b}[31mb\\nc é");
    }
}
