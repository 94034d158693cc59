//! The help is there, and every example in it runs.

use std::{env, fs, path::Path, process::Command};

use crate::support::{dtensor, run};

const COMMANDS: [&[&str]; 4] = [&["layout"], &["plan"], &["bench", "comm"], &["bench", "scale"]];

#[test]
fn every_command_has_help_with_examples() {
    for command in COMMANDS {
        for flag in ["-h", "--help"] {
            let help = dtensor(&[command, &[flag]].concat()).ok();
            assert!(help.contains("Examples:"), "{command:?}:\n{help}");
        }
    }
    assert!(dtensor(&["--help"]).ok().contains("Exit codes: 0 success, 1 failure, 2 wrong usage"));
    assert!(dtensor(&["--version"]).ok().starts_with("dtensor "));
}

#[test]
fn every_example_in_the_help_runs() {
    let program = Path::new(env!("CARGO_BIN_EXE_dtensor"));
    let mut path = vec![program.parent().unwrap().to_path_buf()];
    path.extend(env::split_paths(&env::var_os("PATH").unwrap()));
    let folder = env::temp_dir().join(format!("dtensor-help-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let mut n_examples = 0;
    for command in COMMANDS {
        let help = dtensor(&[command, &["--help"]].concat()).ok();
        let (_, examples) = help.split_once("Examples:").unwrap();
        for example in examples.lines().filter_map(|line| line.strip_prefix("    ")) {
            let is_whole = example.starts_with("dtensor ") || example.starts_with("echo ");
            if example.starts_with("mpirun ") {
                // Needs a build with MPI; those have tests of their own.
                continue;
            }
            assert!(is_whole, "an example was wrapped: {example}");
            // The size that a person wants to see is not the one that a test has time for.
            let small = if example.ends_with("comm --ranks 2") { " --bytes 1MiB" } else { "" };
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("{example}{small}")]).current_dir(&folder);
            let ran = run(shell.env("PATH", env::join_paths(&path).unwrap()), b"");
            assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{example}");
            assert!(!ran.stdout.is_empty(), "{example}");
            n_examples += 1;
        }
    }
    assert!(folder.join("layout.svg").exists());
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(n_examples, 6 + 5 + 2 + 2);
}
