//! Plain writes and reads of the same bytes, and what is done to files between cases.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use dtensor_checkpoint::{Entry, Error, State};

use super::Outcome;

/// Writes what this rank holds of every tensor to one file, and nothing else.
pub fn raw_write(path: &Path, state: &State, sync: bool) -> Outcome<()> {
    let failed = |error: io::Error| io_error("write", path, &error);
    let mut file = File::create(path).map_err(failed)?;
    for (_, entry) in state.iter() {
        if let Entry::Tensor(tensor) = entry {
            file.write_all(tensor.to_local().as_bytes()?).map_err(failed)?;
        }
    }
    match sync {
        true => file.sync_all().map_err(failed),
        false => Ok(()),
    }
}

/// Reads the files of all ranks, one after the other, each into its rows of every tensor. The tensors have one shape, so that a
/// file has as many bytes of each; files need not be equally long, as rows need not divide by the ranks.
pub fn raw_read(paths: &[PathBuf], state: &mut State) -> Outcome<()> {
    let n_tensors = state.len().max(1);
    let mut start = 0;
    for path in paths {
        let failed = |error: io::Error| io_error("read", path, &error);
        let mut file = File::open(path).map_err(failed)?;
        let part = file.metadata().map_err(failed)?.len() as usize / n_tensors;
        for (_, entry) in state.iter_mut() {
            let Entry::Tensor(tensor) = entry else { continue };
            let mut read = Ok(());
            tensor.modify_local(|local| {
                let bytes = local.as_bytes_mut()?;
                read = match bytes.get_mut(start..start + part) {
                    Some(rows) => file.read_exact(rows),
                    None => Err(io::ErrorKind::InvalidData.into()),
                };
                Ok(())
            })?;
            read.map_err(failed)?;
        }
        start += part;
    }
    Ok(())
}

/// Copies files into one, and brings it to disk: what a conversion cannot do without.
pub fn raw_copy(from: &[PathBuf], to: &Path) -> Outcome<()> {
    let failed = |error: io::Error| io_error("write", to, &error);
    let mut file = File::create(to).map_err(failed)?;
    let mut buffer = vec![0; 1 << 20];
    for path in from {
        let mut source = File::open(path).map_err(|error| io_error("read", path, &error))?;
        loop {
            match source.read(&mut buffer).map_err(|error| io_error("read", path, &error))? {
                0 => break,
                bytes => file.write_all(&buffer[..bytes]).map_err(failed)?,
            }
        }
    }
    file.sync_all().map_err(failed)
}

pub fn make_directory(path: &Path) -> Outcome<()> {
    fs::create_dir_all(path).map_err(|error| io_error("make", path, &error))
}

/// Everything below a directory that is a file, by name.
pub fn files_below(directory: &Path) -> Vec<PathBuf> {
    let (mut files, mut directories) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.path().is_dir() {
                true => directories.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    files.sort();
    files
}

pub fn bytes_below(directory: &Path) -> u64 {
    let size = |path: &PathBuf| fs::metadata(path).map_or(0, |about| about.len());
    files_below(directory).iter().map(size).sum()
}

/// Drops the pages of a file from memory.
pub fn forget_pages(path: &Path) -> Outcome<()> {
    let file = File::open(path).map_err(|error| io_error("open", path, &error))?;
    file.sync_all().map_err(|error| io_error("sync", path, &error))?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
        .map_err(|error| io_error("drop the pages of", path, &error.into()))
}

/// Whether the files of a directory live in memory, so that there is no reading them cold.
pub fn is_in_memory(directory: &Path) -> bool {
    #[cfg(target_os = "linux")]
    {
        // As statfs(2) has them: tmpfs and ramfs.
        rustix::fs::statfs(directory)
            .is_ok_and(|about| matches!(about.f_type, 0x0102_1994 | 0x8584_58f6))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = directory;
        false
    }
}

fn io_error(doing: &'static str, path: &Path, error: &io::Error) -> Error {
    let path = path.display().to_string();
    Error::Io { doing, path, kind: error.kind(), why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use dtensor::{DeviceMesh, Placement::Shard, Runner, Tensor, distribute_tensor_from};

    use super::*;

    /// A file per rank, of 7 rows on 3 ranks: 3, 3 and 1.
    #[test]
    fn rows_that_do_not_divide_by_the_ranks_are_read_back_on_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = |rank: usize| directory.path().join(format!("{rank}.bin"));
        let whole = |k: usize| {
            Tensor::from_slice(&(0..35).map(|n| (n + 100 * k) as f32).collect::<Vec<_>>(), &[7, 5])
        };
        let state_of = |world: &dtensor::World, blank: bool| {
            let mesh = DeviceMesh::of_world(world, "x")?;
            let mut state = State::new();
            for k in 0..2 {
                let values = if blank { Tensor::full(&[7, 5], -1.0_f32)? } else { whole(k)? };
                let tensor = distribute_tensor_from(&values, &mesh, &[Shard(0)], None)?;
                state.insert(format!("t{k}"), tensor)?;
            }
            Ok::<_, Error>(state)
        };
        let run = |ranks: usize, body: &(dyn Fn(&dtensor::World) -> Outcome<()> + Sync)| {
            Runner::new().ranks(ranks).run(|world| body(world)).unwrap();
        };
        run(3, &|world| raw_write(&path(world.rank()), &state_of(world, false)?, false));
        run(1, &|world| {
            let mut state = state_of(world, true)?;
            raw_read(&[path(0), path(1), path(2)], &mut state)?;
            for k in 0..2 {
                let got = state.tensor(&format!("t{k}")).unwrap().to_local();
                assert_eq!(got.as_bytes()?, whole(k)?.as_bytes()?);
            }
            Ok(())
        });
    }
}
