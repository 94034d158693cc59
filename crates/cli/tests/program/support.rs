//! Running the real program.

use std::{
    io::Write,
    process::{Command, Stdio},
    thread,
};

use serde_json::Value;

/// What a run of the program left behind.
pub struct Ran {
    pub stdout: String,
    pub stderr: String,
    pub code: i32,
}

/// Runs `dtensor` with arguments.
pub fn dtensor(args: &[&str]) -> Ran {
    dtensor_with_input(args, "")
}

/// Runs `dtensor` with arguments and standard input.
pub fn dtensor_with_input(args: &[&str], input: impl AsRef<[u8]>) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dtensor"));
    command.args(args);
    run(&mut command, input.as_ref())
}

/// Runs a command in an environment that does not depend on who runs the tests.
pub fn run(command: &mut Command, input: &[u8]) -> Ran {
    let mut child = command
        .env_remove("NO_COLOR")
        .env_remove("COLUMNS")
        .env_remove("DTENSOR_RANKS")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = thread::scope(|scope| {
        // A program that answers line by line would otherwise wait for us while we wait for it.
        scope.spawn(move || {
            // One that does not read its input is no failure of the test.
            let _ = stdin.write_all(input);
        });
        child.wait_with_output().unwrap()
    });
    Ran {
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
        code: output.status.code().unwrap_or(-1),
    }
}

/// Every line of the output as a JSON value.
pub fn json_lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

impl Ran {
    /// The output of a run that went well.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""), "{}", self.stdout);
        self.stdout
    }

    /// Nothing went wrong that nobody had thought of.
    #[track_caller]
    pub fn no_bug(&self) {
        let bug = self.stderr.contains("internal error") || self.stderr.contains("panicked");
        assert!(!bug && (0..=2).contains(&self.code), "{}", self.stderr);
    }

    /// The message of a run that went wrong: one block, and nothing on stdout.
    #[track_caller]
    pub fn error(self, code: i32) -> String {
        assert_eq!((self.code, self.stdout.as_str()), (code, ""), "{}", self.stderr);
        assert!(self.stderr.starts_with("error: "), "{}", self.stderr);
        self.no_bug();
        self.stderr
    }
}
