//! Other element types for some tensors.

use std::str::FromStr;

use super::numbers;
use crate::{Error, Pattern, Result, StoredType, select::must_match};

/// Another floating-point type for the tensors whose names match.
///
/// Only floating-point tensors are cast, to floating-point types: whole numbers and truth values count or mean something
/// that a float of few bits would lose.
///
/// ```
/// use dtensor_checkpoint::convert::Cast;
/// let all: Cast = "bf16".parse()?;
/// let some: Cast = "*.norm.weight=f32".parse()?;
/// assert!("i64".parse::<Cast>().is_err());
/// # Ok::<(), dtensor_checkpoint::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cast {
    pattern: Pattern,
    to: StoredType,
}

impl Cast {
    /// Refuses a type that is no floating-point one, or one that is only read.
    pub fn new(pattern: Pattern, to: StoredType) -> Result<Cast> {
        match numbers::is_written(to) {
            true => Ok(Cast { pattern, to }),
            false => Err(not_float(to.name())),
        }
    }
}

impl FromStr for Cast {
    type Err = Error;

    /// Reads `bf16`, for all tensors, or `pattern=bf16`.
    fn from_str(text: &str) -> Result<Cast> {
        let (pattern, name) = text.rsplit_once('=').unwrap_or(("*", text));
        let to = StoredType::from_name(&name.to_ascii_uppercase());
        Cast::new(Pattern::new(pattern), to.ok_or_else(|| not_float(name))?)
    }
}

/// The type that a tensor has afterwards: the first cast that matches decides.
pub(super) fn type_after(casts: &[Cast], name: &str, stored: StoredType) -> StoredType {
    let cast = casts.iter().find(|cast| cast.pattern.matches(name));
    cast.filter(|_| numbers::is_float(stored)).map_or(stored, |cast| cast.to)
}

/// Refuses a cast that no name matches.
pub(super) fn check<'n>(
    casts: &[Cast],
    names: impl Iterator<Item = &'n str> + Clone,
) -> Result<()> {
    casts.iter().try_for_each(|cast| must_match(&cast.pattern, names.clone()))
}

fn not_float(name: &str) -> Error {
    let floats = StoredType::ALL.into_iter().filter(|stored| numbers::is_written(*stored));
    let floats: Vec<String> = floats.map(|stored| stored.name().to_ascii_lowercase()).collect();
    Error::BadText {
        text: name.to_owned(),
        what: "type to cast to",
        why: format!("give one of {}", floats.join(", ")),
    }
}
