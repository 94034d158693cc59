//! The files of a place.

use crate::{Error, Result, SourceFile, Storage};

/// The files directly in a place, by name.
pub(crate) struct Listing(Vec<SourceFile>);

impl Listing {
    pub fn of(storage: &dyn Storage) -> Result<Listing> {
        let mut files = storage.list()?;
        files.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Listing(files))
    }

    pub fn iter(&self) -> impl Iterator<Item = &SourceFile> {
        self.0.iter()
    }

    pub fn contains(&self, name: &str) -> bool {
        self.position(name).is_some()
    }

    /// The file of this name, of which `by` says that it is there.
    ///
    /// Names come from files that anybody may have written. Only what is listed is ever opened, so that no name leads elsewhere.
    pub fn get(&self, name: &str, by: &str) -> Result<&SourceFile> {
        if let Some(position) = self.position(name) {
            return Ok(&self.0[position]);
        }
        let shown: String = name.chars().take(200).collect();
        let what = match name.contains(['/', '\\']) || matches!(name, "." | "..") {
            true => format!("it names `{shown}`, which is not a file in the same place"),
            false => format!("it names `{shown}`, which is missing"),
        };
        Err(Error::broken(by, what))
    }

    /// What is there, in short, for an error.
    pub fn shown(&self) -> String {
        let names: Vec<String> =
            self.iter().take(8).map(|file| format!("`{}`", file.name)).collect();
        match self.0.len() {
            0 => "there are no files".to_owned(),
            n if n > names.len() => format!("{}, and {} more", names.join(", "), n - names.len()),
            _ => names.join(", "),
        }
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.0.binary_search_by(|file| file.name.as_str().cmp(name)).ok()
    }
}
