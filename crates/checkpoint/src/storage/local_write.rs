//! Checkpoints in directories of this machine: written beside their place, and put there in one step.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, ErrorKind, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{
    Destination, LocalFiles, NewCheckpoint, NewFile, WriteAt,
    leftovers::{NOTES, OLD, PARTIAL, Room, beside},
    replace::{exchange, failed, replace, sync_directory},
    write_behind::{self, WriteBehind},
};
use crate::{Error, MANIFEST_FILE, Manifest, Result};

impl Destination for LocalFiles {
    fn place(&self) -> String {
        self.root().display().to_string()
    }

    fn new_checkpoint(&self, id: &str, sync: bool) -> Box<dyn NewCheckpoint> {
        Box::new(NewDirectory::new(resolved(self.root()), id, sync))
    }
}

struct NewDirectory {
    id: String,
    target: PathBuf,
    partial: PathBuf,
    old: PathBuf,
    notes: PathBuf,
    sync: bool,
    replace: Replace,
    /// Of rank 0, which has made it.
    room: Mutex<Option<Room>>,
}

/// A way to put the directory of a new checkpoint at its place: the new one, the place, and where the old one may go.
type Replace = fn(&Path, &Path, &Path) -> io::Result<()>;

impl NewCheckpoint for NewDirectory {
    fn place(&self) -> String {
        self.target.display().to_string()
    }

    fn begin(&self) -> Result<()> {
        check_replaceable(&self.target)?;
        let directory = parent(&self.target);
        let missing: Vec<&Path> =
            directory.ancestors().take_while(|ancestor| !ancestor.exists()).collect();
        fs::create_dir_all(directory).map_err(failed("create", directory))?;
        if self.sync {
            missing.iter().try_for_each(|made| sync_directory(parent(made)))?;
        }
        *self.room() = Some(Room::make(&self.target, &self.partial)?);
        Ok(())
    }

    fn create(&self, name: &str, _: u64) -> Result<Box<dyn NewFile>> {
        Ok(Box::new(LocalNewFile::create(self.partial.join(name), self.sync)?))
    }

    fn shares_files(&self) -> bool {
        true
    }

    fn join(&self, name: &str) -> Result<Box<dyn NewFile>> {
        Ok(Box::new(LocalNewFile::join(self.partial.join(name), self.sync)?))
    }

    fn discard(&self, name: &str) {
        let _ = fs::remove_file(self.partial.join(name));
    }

    fn final_name(&self, name: &str) -> String {
        name.to_owned()
    }

    fn commit(&self, manifest: &[u8]) -> Result<()> {
        let path = self.partial.join(MANIFEST_FILE);
        let mut file = File::create_new(&path).map_err(failed("create", &path))?;
        file.write_all(manifest).map_err(failed("write", &path))?;
        if self.sync {
            file.sync_all().map_err(failed("sync", &path))?;
            // The names of the files have to be on the disk before the name of the directory is.
            sync_directory(&self.partial)?;
        }
        // Something else may have appeared there since the save began.
        check_replaceable(&self.target)?;
        (self.replace)(&self.partial, &self.target, &self.old)
            .map_err(failed("rename", &self.partial))?;
        if self.sync {
            // Nobody has been told that the save succeeded, so that there is a way back.
            sync_directory(parent(&self.target)).inspect_err(|_| self.put_back())?;
        }
        // The old one is no harm if it stays: the next save removes it.
        let _ = fs::remove_dir_all(&self.partial);
        let _ = fs::remove_dir_all(&self.old);
        Ok(())
    }

    fn is_committed(&self) -> bool {
        let manifest = fs::read(self.target.join(MANIFEST_FILE));
        let manifest = manifest.ok().and_then(|it| Manifest::parse(MANIFEST_FILE, &it).ok());
        manifest.is_some_and(|manifest| manifest.id == self.id)
    }

    fn abandon(&self) {
        let _ = fs::remove_dir_all(&self.partial);
    }

    fn begin_notes(&self) -> Result<()> {
        match &mut *self.room() {
            Some(room) => room.extend(&self.notes),
            None => fs::create_dir(&self.notes).map_err(failed("create", &self.notes)),
        }
    }

    fn post(&self, note: &str, text: &[u8]) -> Result<()> {
        let (path, hidden) = (self.notes.join(note), self.notes.join(format!(".{note}")));
        fs::write(&hidden, text).map_err(failed("write", &hidden))?;
        fs::rename(&hidden, &path).map_err(failed("write", &path))
    }

    fn notes(&self) -> Result<Option<Vec<String>>> {
        let names = names_in(&self.notes).map_err(failed("list", &self.notes))?;
        Ok(names.map(|names| names.into_iter().filter(|name| !name.starts_with('.')).collect()))
    }

    fn read(&self, note: &str) -> Result<Vec<u8>> {
        let path = self.notes.join(note);
        fs::read(&path).map_err(failed("read", &path))
    }

    fn remove(&self, note: &str) {
        let _ = fs::remove_file(self.notes.join(note));
    }

    fn remove_notes(&self) {
        let _ = fs::remove_dir_all(&self.notes);
    }

    fn longest_nap(&self) -> Duration {
        Duration::from_millis(50)
    }
}

impl NewDirectory {
    fn new(target: PathBuf, id: &str, sync: bool) -> NewDirectory {
        NewDirectory {
            id: id.to_owned(),
            partial: beside(&target, PARTIAL, id),
            old: beside(&target, OLD, id),
            notes: beside(&target, NOTES, id),
            target,
            sync,
            replace,
            room: Mutex::default(),
        }
    }

    /// Undoes `replace`.
    fn put_back(&self) {
        let _ = match (self.old.exists(), self.partial.exists()) {
            (false, false) => fs::rename(&self.target, &self.partial),
            (false, true) => exchange(&self.partial, &self.target),
            (true, _) => fs::rename(&self.target, &self.partial)
                .and_then(|()| fs::rename(&self.old, &self.target)),
        };
    }

    fn room(&self) -> MutexGuard<'_, Option<Room>> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file that is brought to disk when it is finished, if that is asked.
pub(crate) struct LocalNewFile(Arc<Writer>);

struct Writer {
    path: PathBuf,
    file: WriteBehind,
    sync: bool,
}

impl LocalNewFile {
    pub(crate) fn create(path: PathBuf, sync: bool) -> Result<LocalNewFile> {
        let file = File::create_new(&path).map_err(failed("create", &path))?;
        Ok(LocalNewFile::of(path, file, sync))
    }

    /// One that another process has created. Opened for writing alone: a network file system would otherwise read a whole page
    /// around bytes that are written, and write back what the others have put there since.
    pub(crate) fn join(path: PathBuf, sync: bool) -> Result<LocalNewFile> {
        let file = File::options().write(true).open(&path).map_err(failed("open", &path))?;
        Ok(LocalNewFile::of(path, file, sync))
    }

    fn of(path: PathBuf, file: File, sync: bool) -> LocalNewFile {
        let file = WriteBehind::new(file, write_behind::EVERY);
        LocalNewFile(Arc::new(Writer { path, file, sync }))
    }
}

impl NewFile for LocalNewFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        match self.0.sync {
            true => self.0.file.finish().map_err(failed("sync", &self.0.path)),
            false => Ok(()),
        }
    }

    fn shared(&self) -> Option<Arc<dyn WriteAt>> {
        Some(Arc::<Writer>::clone(&self.0))
    }
}

impl WriteAt for Writer {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.file().write_all_at(bytes, offset).map_err(failed("write", &self.path))?;
        if self.sync {
            self.file.written(bytes.len());
        }
        Ok(())
    }
}

/// Whether a save may put a new checkpoint there: where nothing is, or nothing but a checkpoint of ours.
fn check_replaceable(target: &Path) -> Result<()> {
    let occupied =
        |found: String| Err(Error::Occupied { path: target.display().to_string(), found });
    let names = match names_in(target) {
        Ok(None) => return Ok(()),
        Ok(Some(names)) if names.is_empty() => return Ok(()),
        Ok(Some(names)) => names,
        Err(error) if error.kind() == ErrorKind::NotADirectory => return occupied("a file".into()),
        Err(error) => return Err(failed("list", target)(error)),
    };
    let path = target.join(MANIFEST_FILE);
    let ours = match fs::read(&path) {
        Ok(bytes) => Manifest::parse(MANIFEST_FILE, &bytes)?.files,
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(failed("read", &path)(error)),
    };
    let ours: HashSet<&str> = ours.iter().map(|file| file.name.as_str()).collect();
    let other = |name: &&String| *name != MANIFEST_FILE && !ours.contains(name.as_str());
    match names.iter().find(other) {
        Some(other) => occupied(format!("`{other}`")),
        None => Ok(()),
    }
}

/// The names of everything in a directory, if there is one.
fn names_in(directory: &Path) -> io::Result<Option<Vec<String>>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<_>>()
        .map(Some)
}

/// The path without symbolic links, as far as it exists, so that what lies beside a checkpoint is on its own file system.
fn resolved(path: &Path) -> PathBuf {
    if let Ok(resolved) = fs::canonicalize(path) {
        return resolved;
    }
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (absolute.parent().map(fs::canonicalize), absolute.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => absolute,
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

#[cfg(test)]
mod killed;

#[cfg(test)]
mod tests {
    use super::{
        super::{leftovers, replace::replace_in_two_steps},
        *,
    };

    const ID: &str = "0123456789abcdef";

    /// A directory with a new checkpoint, and maybe an old one; each has its name as its content.
    fn with_new(old: bool) -> (tempfile::TempDir, NewDirectory) {
        let directory = tempfile::tempdir().unwrap();
        let new = NewDirectory::new(directory.path().join("model"), ID, true);
        for (path, text) in [(&new.partial, "new"), (&new.target, "old")] {
            if old || text == "new" {
                fs::create_dir(path).unwrap();
                fs::write(path.join(MANIFEST_FILE), text).unwrap();
            }
        }
        (directory, new)
    }

    fn there(path: &Path) -> Option<String> {
        fs::read_to_string(path.join(MANIFEST_FILE)).ok()
    }

    #[test]
    fn a_new_checkpoint_takes_the_place_and_can_be_taken_out_again() {
        let ways: [(bool, Replace); 3] =
            [(true, replace), (false, replace), (true, replace_in_two_steps)];
        for (old, replace) in ways {
            let (_directory, new) = with_new(old);
            replace(&new.partial, &new.target, &new.old).unwrap();
            assert_eq!(there(&new.target).unwrap(), "new");
            new.put_back();
            assert_eq!(there(&new.target), old.then(|| "old".to_owned()));
            assert_eq!(there(&new.partial).unwrap(), "new");
        }
    }

    #[test]
    fn between_two_steps_the_old_checkpoint_is_found_and_the_next_save_puts_it_back() {
        let (_directory, new) = with_new(true);
        fs::rename(&new.target, &new.old).unwrap();
        assert_eq!(there(&leftovers::old_if_missing(&new.target)).unwrap(), "old");
        leftovers::clear(&new.target).unwrap();
        assert_eq!(there(&new.target).unwrap(), "old");
        assert!(!new.partial.exists() && !new.old.exists());
    }

    #[test]
    fn a_step_that_cannot_be_taken_leaves_the_old_checkpoint() {
        let (_directory, new) = with_new(true);
        fs::remove_dir_all(&new.partial).unwrap();
        replace_in_two_steps(&new.partial, &new.target, &new.old).unwrap_err();
        assert_eq!(there(&new.target).unwrap(), "old");
        replace(&new.partial, &new.target, &new.old).unwrap_err();
        assert_eq!(there(&new.target).unwrap(), "old");
    }
}
