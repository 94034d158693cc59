//! What a machine has of what the feature `mpi` needs.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    error::Error,
    process::{self, Output},
};

/// Something that the feature `mpi` needs and that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    Mpicc,
    Mpirun,
    Libclang,
    ClangHeaders,
}

impl Missing {
    fn name(self) -> &'static str {
        match self {
            Missing::Mpicc => "mpicc",
            Missing::Mpirun => "mpirun",
            Missing::Libclang => "libclang",
            Missing::ClangHeaders => "clang's own headers",
        }
    }

    /// Debian's packages. MPI is asked for as a whole and only if a part of it is missing, so that
    /// a machine with MPICH does not get a second MPI.
    fn packages(self) -> &'static [&'static str] {
        match self {
            Missing::Mpicc | Missing::Mpirun => &["libopenmpi-dev", "openmpi-bin"],
            Missing::Libclang | Missing::ClangHeaders => &["libclang-dev"],
        }
    }
}

/// Where to look on a machine: a value, so that tests can look at a machine that does not exist.
pub struct Machine {
    root: PathBuf,
    search_path: Vec<PathBuf>,
    mpicc: String,
    mpirun: String,
    /// If set, libclang is here (a file or a directory) and nowhere else.
    libclang_path: Option<PathBuf>,
    /// Directories of libraries that the environment names, besides the usual ones.
    library_dirs: Vec<PathBuf>,
}

/// Where bindgen looks for libclang, on Linux and then on macOS.
const LIBRARY_DIRS: [&str; 11] = [
    "usr/local/llvm*/lib*",
    "usr/local/lib*/*/*",
    "usr/local/lib*/*",
    "usr/local/lib*",
    "usr/lib*/*/*",
    "usr/lib*/*",
    "usr/lib*",
    "usr/local/opt/llvm*/lib",
    "opt/homebrew/opt/llvm*/lib",
    "Library/Developer/CommandLineTools/usr/lib",
    "Applications/Xcode.app/Contents/Developer/Toolchains/XcodeDefault.xctoolchain/usr/lib",
];

/// Where clang keeps the headers that are part of the compiler, below such a directory.
const HEADER_DIRS: [&str; 2] = ["clang/*/include", "llvm*/lib*/clang/*/include"];

impl Machine {
    pub fn this() -> Machine {
        let paths = |name: &str| -> Vec<PathBuf> {
            env::var_os(name).map(|list| env::split_paths(&list).collect()).unwrap_or_default()
        };
        let mut library_dirs = paths("LD_LIBRARY_PATH");
        library_dirs.extend(paths("LIBRARY_PATH"));
        if let Some(prefix) = llvm_prefix() {
            library_dirs.extend(["bin", "lib", "lib64"].map(|dir| prefix.join(dir)));
        }
        Machine {
            root: PathBuf::from("/"),
            search_path: paths("PATH"),
            mpicc: env::var("MPICC").unwrap_or_else(|_| "mpicc".to_string()),
            mpirun: env::var("MPIRUN").unwrap_or_else(|_| "mpirun".to_string()),
            libclang_path: env::var_os("LIBCLANG_PATH").map(PathBuf::from),
            library_dirs,
        }
    }

    pub fn missing(&self) -> Vec<Missing> {
        let mut missing = Vec::new();
        if !self.has_program(&self.mpicc) {
            missing.push(Missing::Mpicc);
        }
        if !self.has_program(&self.mpirun) {
            missing.push(Missing::Mpirun);
        }
        if !self.has_libclang() {
            missing.push(Missing::Libclang);
        } else if !self.has_clang_headers() {
            missing.push(Missing::ClangHeaders);
        }
        missing
    }

    fn has_program(&self, name: &str) -> bool {
        if name.contains('/') {
            return Path::new(name).is_file();
        }
        self.search_path.iter().any(|dir| dir.join(name).is_file())
    }

    fn has_libclang(&self) -> bool {
        if let Some(path) = &self.libclang_path {
            return path.is_file() || holds_libclang(path);
        }
        self.library_dirs.iter().any(|dir| holds_libclang(dir))
            || LIBRARY_DIRS
                .iter()
                .any(|pattern| expand(&self.root, pattern).iter().any(|dir| holds_libclang(dir)))
    }

    /// A libclang without them (Debian's libclang1 alone, say) loads, and then finds no `stddef.h`.
    fn has_clang_headers(&self) -> bool {
        // Who says where libclang is has an installation of their own, with a layout of its own.
        self.libclang_path.is_some()
            || ["usr/lib*", "usr/local/lib*"].iter().any(|lib| {
                HEADER_DIRS
                    .iter()
                    .flat_map(|dir| expand(&self.root, &format!("{lib}/{dir}")))
                    .any(|dir| dir.join("stddef.h").is_file())
            })
    }
}

/// The packages that bring what is missing, each once.
pub fn packages(missing: &[Missing]) -> Vec<&'static str> {
    let mut packages = Vec::new();
    for package in missing.iter().flat_map(|what| what.packages()) {
        if !packages.contains(package) {
            packages.push(*package);
        }
    }
    packages
}

/// One line for whoever has to install it.
pub fn what_to_install(missing: &[Missing]) -> Error {
    let names: Vec<&str> = missing.iter().map(|what| what.name()).collect();
    let names = names.join(", ");
    let packages = packages(missing).join(" ");
    Error::new(format!(
        "missing {names}: install them, on Debian by `sudo apt-get install {packages}`"
    ))
}

fn llvm_prefix() -> Option<PathBuf> {
    let program = env::var_os("LLVM_CONFIG_PATH").unwrap_or_else(|| "llvm-config".into());
    let mut command = Command::new(program);
    let ended = process::run(command.arg("--prefix"), process::SHORT, Output::Collect).ok()?;
    ended.status.success().then(|| ended.lines.first().map(PathBuf::from)).flatten()
}

/// The directories that a pattern stands for. A `*` ends a component: it matches any rest of it.
fn expand(root: &Path, pattern: &str) -> Vec<PathBuf> {
    let mut dirs = vec![root.to_path_buf()];
    for component in pattern.split('/') {
        dirs = match component.strip_suffix('*') {
            None => dirs.iter().map(|dir| dir.join(component)).collect(),
            Some(prefix) => dirs
                .iter()
                .flat_map(|dir| names_in(dir).into_iter().map(move |name| (dir, name)))
                .filter(|(_, name)| name.starts_with(prefix))
                .map(|(dir, name)| dir.join(name))
                .collect(),
        };
    }
    dirs.retain(|dir| dir.is_dir());
    dirs
}

fn holds_libclang(dir: &Path) -> bool {
    names_in(dir).iter().any(|name| is_libclang(name) && dir.join(name).is_file())
}

/// Tells `libclang.so`, `libclang-14.so.1` and `libclang.dylib` from `libclang-cpp.so.14` (another
/// library) and `libclang_rt.asan-x86_64.so` (the sanitizers).
fn is_libclang(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("libclang") else { return false };
    (rest.starts_with('.') || rest.starts_with('-'))
        && !rest.starts_with("-cpp")
        && (rest.ends_with(".so") || rest.contains(".so.") || rest.ends_with(".dylib"))
}

/// The names in a directory; none if it cannot be read.
fn names_in(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory tree that stands for a machine, and goes away with the value.
    struct Tree(PathBuf);

    impl Tree {
        fn of(test: &str, files: &[&str]) -> Tree {
            let root = env::temp_dir().join(format!("xtask-machine-{}-{test}", std::process::id()));
            for file in files {
                let path = root.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "").unwrap();
            }
            Tree(root)
        }

        fn machine(&self) -> Machine {
            Machine {
                root: self.0.clone(),
                search_path: vec![self.0.join("usr/local/bin"), self.0.join("usr/bin")],
                mpicc: "mpicc".to_string(),
                mpirun: "mpirun".to_string(),
                libclang_path: None,
                library_dirs: Vec::new(),
            }
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const MPI: [&str; 2] = ["usr/bin/mpicc", "usr/bin/mpirun"];
    const HEADER: &str = "usr/lib/llvm-14/lib/clang/14.0.6/include/stddef.h";

    #[test]
    fn a_bare_machine_lacks_everything_and_the_line_says_what_to_install() {
        let tree = Tree::of("bare", &["usr/lib/x86_64-linux-gnu/libc.so.6"]);
        let missing = tree.machine().missing();
        assert_eq!(missing, [Missing::Mpicc, Missing::Mpirun, Missing::Libclang]);
        assert_eq!(packages(&missing), ["libopenmpi-dev", "openmpi-bin", "libclang-dev"]);
        let line = what_to_install(&missing).to_string();
        assert!(line.contains("mpicc, mpirun, libclang") && !line.contains('\n'), "{line}");
    }

    #[test]
    fn a_machine_with_an_mpi_gets_libclang_only() {
        let tree = Tree::of("mpi", &MPI);
        assert_eq!(packages(&tree.machine().missing()), ["libclang-dev"]);
    }

    #[track_caller]
    fn check_libclang(test: &str, files: &[&str], want: &[Missing]) {
        let tree = Tree::of(test, &[&MPI[..], files].concat());
        assert_eq!(tree.machine().missing(), want, "{files:?}");
    }

    #[test]
    fn libclang_is_found_wherever_bindgen_finds_it() {
        check_libclang("llvm", &[HEADER, "usr/lib/llvm-14/lib/libclang.so.1"], &[]);
        check_libclang("multiarch", &[HEADER, "usr/lib/x86_64-linux-gnu/libclang-14.so.1"], &[]);
        check_libclang(
            "lib64",
            &["usr/lib/clang/17/include/stddef.h", "usr/lib64/libclang.so"],
            &[],
        );
        check_libclang("local", &[HEADER, "usr/local/lib/libclang.so.17.0"], &[]);
    }

    #[test]
    fn what_is_only_called_like_libclang_is_not_taken_for_it() {
        let others = [
            HEADER,
            "usr/lib/x86_64-linux-gnu/libclang-cpp.so.14",
            "usr/lib/llvm-14/lib/libclang_rt.asan-x86_64.so",
            "usr/lib/llvm-14/lib/libclangAST.a",
            "usr/lib/llvm-14/lib/libclang-14.a",
        ];
        check_libclang("others", &others, &[Missing::Libclang]);
    }

    #[test]
    fn a_libclang_without_headers_is_not_enough() {
        check_libclang("headers", &["usr/lib/llvm-14/lib/libclang.so.1"], &[Missing::ClangHeaders]);
    }

    #[test]
    fn the_environment_says_where_things_are() {
        let tree = Tree::of(
            "environment",
            &["opt/mpi/bin/mpicc", "opt/mpi/bin/mpirun", "opt/llvm/libclang.so"],
        );
        let mut machine = tree.machine();
        machine.mpicc = tree.0.join("opt/mpi/bin/mpicc").display().to_string();
        machine.search_path.push(tree.0.join("opt/mpi/bin"));
        assert_eq!(machine.missing(), [Missing::Libclang]);
        for place in ["opt/llvm", "opt/llvm/libclang.so"] {
            machine.libclang_path = Some(tree.0.join(place));
            assert_eq!(machine.missing(), [], "{place}");
        }
        // As bindgen does, a wrong path is not made up for by searching elsewhere.
        machine.library_dirs = vec![tree.0.join("opt/llvm")];
        machine.libclang_path = Some(tree.0.join("opt/nothing"));
        assert_eq!(machine.missing(), [Missing::Libclang]);
    }
}
