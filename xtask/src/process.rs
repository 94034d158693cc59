//! Child processes with a time limit.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    error::{Error, Result},
    process_tree,
};

/// The limit of commands that only answer a question, such as `--version`.
pub const SHORT: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(10);
const GRACE: Duration = Duration::from_secs(5);

/// Where the output of a child goes. What is not collected is shown as it comes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Output {
    Show,
    Collect,
    CollectStdout,
    ShowAndCollectStdout,
}

#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub lines: Vec<String>,
}

/// Runs `command` to its end, without standard input. Not starting and not ending are errors; an
/// exit code other than 0 is an answer.
pub fn run(command: &mut Command, limit: Duration, output: Output) -> Result<Ended> {
    let (status, lines) = run_within(command, limit, output)?;
    match status {
        Ok(status) => Ok(Ended { status, lines }),
        Err(reason) => {
            if matches!(output, Output::Collect | Output::CollectStdout) {
                // Nobody will see these lines otherwise, and they are all there is to go by.
                lines.iter().for_each(|line| println!("    {line}"));
            }
            Err(Error::new(format!("`{}` {reason}", show(command))))
        }
    }
}

/// How a child ended, or why it had to be stopped, and what it said until then.
type EndAndLines = (std::result::Result<ExitStatus, String>, Vec<String>);

/// As [`run`], where not ending within the limit is an answer too.
pub fn run_within(command: &mut Command, limit: Duration, output: Output) -> Result<EndAndLines> {
    let stderr = if output == Output::Collect { Stdio::piped() } else { Stdio::inherit() };
    let stdout = if output == Output::Show { Stdio::inherit() } else { Stdio::piped() };
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        .spawn()
        .map_err(|error| Error::new(format!("cannot start `{}`: {error}", show(command))))?;

    let mut collector = Collector::new(output == Output::ShowAndCollectStdout);
    collector.read(child.stdout.take());
    collector.read(child.stderr.take());
    let status = wait(&mut child, limit, GRACE);
    Ok((status, collector.finish()))
}

/// As [`run`], where an exit code other than 0 is an error too.
pub fn run_checked(command: &mut Command, limit: Duration, output: Output) -> Result<Vec<String>> {
    let ended = run(command, limit, output)?;
    if ended.status.success() {
        return Ok(ended.lines);
    }
    if matches!(output, Output::Collect) {
        ended.lines.iter().for_each(|line| println!("    {line}"));
    }
    Err(Error::new(format!("`{}` ended with {}", show(command), ended.status)))
}

/// The command as one would type it: the program by its name, not by the path it was found at.
pub fn show(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let words = program.file_name().into_iter().chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

fn wait(
    child: &mut Child,
    limit: Duration,
    grace: Duration,
) -> std::result::Result<ExitStatus, String> {
    match wait_until(child, Instant::now() + limit)? {
        Some(status) => Ok(status),
        None => {
            stop(child, grace)?;
            Err(format!("did not end within {} s and was stopped", limit.as_secs()))
        }
    }
}

fn wait_until(
    child: &mut Child,
    deadline: Instant,
) -> std::result::Result<Option<ExitStatus>, String> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(Some(status)),
            Ok(None) if Instant::now() >= deadline => return Ok(None),
            Ok(None) => thread::sleep(POLL),
            Err(error) => return Err(format!("cannot be waited for: {error}")),
        }
    }
}

/// Ends the child and everything below it. It is asked first, because mpirun then ends its ranks in
/// good order.
fn stop(child: &mut Child, grace: Duration) -> std::result::Result<(), String> {
    // Listed first: once the child is gone, its children no longer say whose they were.
    let below = process_tree::below(child.id());
    process_tree::send("TERM", &[child.id()]);
    if wait_until(child, Instant::now() + grace)?.is_none() {
        // It has not been waited for, so its number is still its own.
        process_tree::send("KILL", &[child.id()]);
        wait_until(child, Instant::now() + grace)?;
    }
    process_tree::kill(&below);
    Ok(())
}

/// Reads the pipes of a child, each on a thread: with one thread a child that fills the pipe not
/// being read would stop for ever.
struct Collector {
    echo: bool,
    lines: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Collector {
    fn new(echo: bool) -> Collector {
        Collector { echo, lines: Arc::default(), readers: Vec::new() }
    }

    fn read(&mut self, pipe: Option<impl Read + Send + 'static>) {
        let Some(pipe) = pipe else { return };
        let (echo, lines) = (self.echo, Arc::clone(&self.lines));
        self.readers.push(thread::spawn(move || {
            // Not by `lines()`: a byte that is not UTF-8 must not end the reading.
            for line in BufReader::new(pipe).split(b'\n').map_while(std::result::Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_string();
                if echo {
                    println!("{line}");
                }
                lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        }));
    }

    /// The lines so far, once the pipes are closed. A process that outlived the child may hold them
    /// open; it is not waited for beyond the grace period.
    fn finish(self) -> Vec<String> {
        let deadline = Instant::now() + GRACE;
        while self.readers.iter().any(|reader| !reader.is_finished()) && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn both_outputs_are_collected_and_the_exit_code_is_an_answer() {
        let ended =
            run(&mut shell("echo out; echo err >&2; exit 3"), SHORT, Output::Collect).unwrap();
        let mut lines = ended.lines;
        lines.sort();
        assert_eq!(lines, ["err", "out"]);
        assert_eq!(ended.status.code(), Some(3));
    }

    #[test]
    fn a_bad_exit_code_is_an_error_where_success_is_asked_for() {
        let error = run_checked(&mut shell("exit 3"), SHORT, Output::Show).unwrap_err().to_string();
        assert!(error.contains("sh -c exit 3") && error.contains("exit status: 3"), "{error}");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let mut command = Command::new("no-such-program");
        let error = run(&mut command, SHORT, Output::Show).unwrap_err().to_string();
        assert!(error.contains("`no-such-program`"), "{error}");
    }

    #[test]
    fn bytes_that_are_no_text_do_not_end_the_reading() {
        let ended = run(&mut shell(r"printf 'a\377\nb\n'"), SHORT, Output::Collect).unwrap();
        assert_eq!(ended.lines, ["a\u{fffd}", "b"]);
    }

    #[test]
    fn a_child_that_does_not_end_is_stopped_with_all_below_it() {
        // The shell ignores the polite signal, and its sleeper is in a session of its own, as the
        // ranks of mpirun are in groups of their own.
        let mut command = shell("trap '' TERM; setsid sleep 1000 & wait; wait");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut pipe = child.stdout.take().unwrap();
        let patience = Duration::from_millis(300);
        let error = wait(&mut child, patience, patience).unwrap_err();
        assert!(error.contains("did not end"), "{error}");
        // The sleeper holds the pipe, too: that it ends shows that the sleeper has.
        assert_eq!(pipe.read_to_end(&mut Vec::new()).unwrap(), 0);
    }
}
