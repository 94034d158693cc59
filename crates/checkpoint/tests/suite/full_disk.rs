//! Disks that are full, and other refusals in the middle of a save.

use std::{
    env, fs,
    io::{ErrorKind, Write},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use dtensor::Placement::*;
use dtensor_checkpoint::{
    Destination, Error, LocalFiles, NewCheckpoint, NewFile, Result, SaveOptions, State, async_save,
    save, save_to,
};
use dtensor_testing::spmd;

use crate::saved::{names_in, numbered, place, small_state, small_version};

/// A directory on a disk with room for so many bytes, of the files of one rank's destination.
struct SmallDisk {
    files: LocalFiles,
    room: Arc<AtomicI64>,
}

struct OnSmallDisk {
    new: Box<dyn NewCheckpoint>,
    room: Arc<AtomicI64>,
}

struct SmallFile {
    file: Box<dyn NewFile>,
    room: Arc<AtomicI64>,
}

/// Takes room for bytes, if there is.
fn take(room: &AtomicI64, bytes: usize) -> Result<()> {
    match room.fetch_sub(bytes as i64, Ordering::Relaxed) >= bytes as i64 {
        true => Ok(()),
        false => Err(Error::Io {
            doing: "write",
            path: "small disk".into(),
            kind: ErrorKind::StorageFull,
            why: "no space left".into(),
        }),
    }
}

impl Destination for SmallDisk {
    fn place(&self) -> String {
        Destination::place(&self.files)
    }

    fn new_checkpoint(&self, id: &str, sync: bool) -> Box<dyn NewCheckpoint> {
        let new = self.files.new_checkpoint(id, sync);
        Box::new(OnSmallDisk { new, room: Arc::clone(&self.room) })
    }
}

impl NewCheckpoint for OnSmallDisk {
    fn place(&self) -> String {
        self.new.place()
    }

    fn begin(&self) -> Result<()> {
        self.new.begin()
    }

    fn create(&self, name: &str, size: u64) -> Result<Box<dyn NewFile>> {
        take(&self.room, 1)?;
        Ok(Box::new(SmallFile { file: self.new.create(name, size)?, room: Arc::clone(&self.room) }))
    }

    fn discard(&self, name: &str) {
        self.new.discard(name);
    }

    fn final_name(&self, name: &str) -> String {
        self.new.final_name(name)
    }

    fn commit(&self, manifest: &[u8]) -> Result<()> {
        take(&self.room, manifest.len())?;
        self.new.commit(manifest)
    }

    fn abandon(&self) {
        self.new.abandon();
    }

    fn begin_notes(&self) -> Result<()> {
        self.new.begin_notes()
    }

    fn post(&self, note: &str, text: &[u8]) -> Result<()> {
        self.new.post(note, text)
    }

    fn notes(&self) -> Result<Option<Vec<String>>> {
        self.new.notes()
    }

    fn read(&self, note: &str) -> Result<Vec<u8>> {
        self.new.read(note)
    }

    fn remove(&self, note: &str) {
        self.new.remove(note);
    }

    fn remove_notes(&self) {
        self.new.remove_notes();
    }

    fn longest_nap(&self) -> Duration {
        self.new.longest_nap()
    }
}

impl NewFile for SmallFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        take(&self.room, bytes.len())?;
        self.file.write_at(offset, bytes)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        take(&self.room, 1)?;
        self.file.finish()
    }
}

#[test]
fn a_disk_that_is_full_at_any_point_of_a_save_is_an_error_on_every_rank() {
    let (directory, path, text) = place();
    spmd(3, |world| Ok(save(world, &small_state(world, 1)?, &text, &SaveOptions::default())?));
    let (mut room, mut n_refused) = (0, 0);
    let last = loop {
        let shared = Arc::new(AtomicI64::new(room));
        let outcomes = spmd(3, |world| {
            let disk = SmallDisk { files: LocalFiles::new(&path), room: Arc::clone(&shared) };
            Ok(save_to(world, &small_state(world, 2)?, &disk, &SaveOptions::default().sync(false)))
        });
        if outcomes.iter().all(|outcome| outcome.is_ok()) {
            break outcomes;
        }
        n_refused += 1;
        assert_one_failure(&outcomes, ErrorKind::StorageFull);
        assert_eq!(small_version(&path), Ok(1), "room for {room} bytes");
        assert_eq!(names_in(directory.path()), ["model"], "room for {room} bytes");
        room += 37;
    };
    assert!(n_refused > 50, "{n_refused}");
    assert_eq!(last[0].as_ref().unwrap().tensors, 3);
    assert_eq!(small_version(&path), Ok(2));
}

#[test]
fn a_full_file_system_is_an_error_on_every_rank() {
    let (_directory, path, _) = place();
    fs::create_dir(&path).unwrap();
    let _mounted = match Mounted::new(&path) {
        Ok(mounted) => mounted,
        Err(why) => {
            // Where everything is to be tested this is a failure; elsewhere it is said, also of a test that passes.
            let is_ci = env::var_os("CI").is_some_and(|ci| ci == "true");
            assert!(!is_ci || !rustix::process::geteuid().is_root(), "no file system: {why}");
            let said = format!("not tested: a full file system, because of `{why}`\n");
            return std::io::stderr().write_all(said.as_bytes()).unwrap();
        }
    };
    let checkpoint = path.join("model");
    let text = checkpoint.to_str().unwrap();
    spmd(2, |world| Ok(save(world, &small_state(world, 1)?, text, &SaveOptions::default())?));
    let large = |world: &dtensor::World| {
        let mut state = State::new();
        state.insert("large", numbered(world, &[1 << 19], 0, Shard(0))?)?;
        Ok::<_, dtensor_testing::Failure>(state)
    };
    let outcomes = spmd(2, |world| Ok(save(world, &large(world)?, text, &SaveOptions::default())));
    assert_one_failure(&outcomes, ErrorKind::StorageFull);
    let outcomes = spmd(2, |world| {
        let options = SaveOptions::default().patience(Duration::from_secs(20));
        Ok(async_save(world, &large(world)?, text, &options)?.wait())
    });
    assert_one_failure(&outcomes, ErrorKind::StorageFull);
    assert_eq!(small_version(&checkpoint), Ok(1));
    assert_eq!(names_in(&path), ["model"]);
}

/// One rank has an error of this kind, and all others are told of it.
fn assert_one_failure<T: std::fmt::Debug>(outcomes: &[Result<T>], want: ErrorKind) {
    let own = |outcome: &Result<T>| matches!(outcome, Err(Error::Io { kind, .. }) if *kind == want);
    let failed = outcomes.iter().position(own).unwrap_or_else(|| panic!("{outcomes:?}"));
    let text = outcomes[failed].as_ref().unwrap_err().to_string();
    for (rank, outcome) in outcomes.iter().enumerate().filter(|(rank, _)| *rank != failed) {
        let told = matches!(outcome, Err(Error::OnRank { rank, message }) if (*rank, message) == (failed, &text));
        assert!(told, "rank {rank}: {outcome:?}, and rank {failed}: {text}");
    }
}

/// A file system of 2 MiB, if this process may mount one.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    fn new(path: &'a Path) -> std::result::Result<Mounted<'a>, String> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(path);
        let output = mount.output().map_err(|error| format!("no `mount`: {error}"))?;
        match output.status.success() {
            true => Ok(Mounted(path)),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).output();
    }
}
