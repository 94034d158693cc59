use crate::{
    error::{Error, Result},
    mpi_tests,
};

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Request {
    Help,
    Run(Command),
}

#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    Test,
    Check,
    MpiTest { ranks: Vec<usize> },
    Deny,
    Miri,
}

/// The commands and what each is for, in the order of the help.
const COMMANDS: [(&str, &str); 5] = [
    ("test", "everything CI runs: set-up, the checks below for MPI, the MPI suite"),
    ("check", "fmt, clippy, unit, property and doc tests, docs; needs no system package"),
    ("mpi-test", "the MPI suite alone, under mpirun; --ranks 2,3,4 says with how many ranks"),
    ("miri", "the unsafe code of memory and views under Miri; needs a nightly toolchain with it"),
    ("deny", "licences, advisories and sources of all dependencies, by cargo-deny"),
];

pub fn help() -> String {
    let mut text = String::from("Usage: cargo xtask COMMAND\n\nCommands:\n");
    for (name, about) in COMMANDS {
        text.push_str(&format!("  {name:<10}{about}\n"));
    }
    text.push_str(
        "\n\
         Environment:\n\
         \x20 MPICC, MPIRUN   the compiler wrapper and the launcher of the MPI to test with\n\
         \x20 LIBCLANG_PATH   where libclang is, if not in a usual place\n\
         \n\
         Exit code: 0 all steps passed, 1 a step failed, 2 wrong usage.\n",
    );
    text
}

pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Request> {
    let arguments: Vec<String> = arguments.into_iter().collect();
    // Help wins wherever it stands, so that `cargo xtask mpi-test --help` never starts the tests.
    if arguments.iter().any(|argument| matches!(argument.as_str(), "-h" | "--help" | "help")) {
        return Ok(Request::Help);
    }
    let Some((name, options)) = arguments.split_first() else {
        return Err(usage("no command given"));
    };
    let command = match name.as_str() {
        "test" => Command::Test,
        "check" => Command::Check,
        "deny" => Command::Deny,
        "miri" => Command::Miri,
        "mpi-test" => return parse_mpi_test(options),
        _ => return Err(usage(&format!("unknown command `{name}`"))),
    };
    match options.first() {
        None => Ok(Request::Run(command)),
        Some(option) => Err(Error::new(format!("`{name}` takes no options, but got `{option}`"))),
    }
}

fn parse_mpi_test(options: &[String]) -> Result<Request> {
    let list = match options {
        [] => return Ok(Request::Run(Command::MpiTest { ranks: mpi_tests::RANKS.to_vec() })),
        [option] => option.strip_prefix("--ranks="),
        [option, list] => (option == "--ranks").then_some(list.as_str()),
        _ => None,
    };
    let Some(list) = list else {
        let got = options.join(" ");
        return Err(Error::new(format!("`mpi-test` takes `--ranks LIST` only, but got `{got}`")));
    };
    let ranks: Option<Vec<usize>> =
        list.split(',').map(|n| n.trim().parse().ok().filter(|&n| n > 0)).collect();
    match ranks {
        Some(ranks) => Ok(Request::Run(Command::MpiTest { ranks })),
        None => Err(Error::new(format!(
            "`--ranks {list}` is not a list of positive numbers such as 2,3,4"
        ))),
    }
}

fn usage(problem: &str) -> Error {
    let names: Vec<&str> = COMMANDS.iter().map(|(name, _)| *name).collect();
    Error::new(format!("{problem}: one of {}; see `cargo xtask --help`", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Request> {
        parse(line.split_whitespace().map(String::from))
    }

    #[track_caller]
    fn check(line: &str, want: Request) {
        assert_eq!(parse_line(line), Ok(want), "{line}");
    }

    #[track_caller]
    fn check_refused(line: &str, words: &[&str]) {
        let error = parse_line(line).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "`{line}` gave `{error}`, which lacks `{word}`");
        }
    }

    #[test]
    fn every_command_of_the_help_is_parsed() {
        for (name, _) in COMMANDS {
            assert!(matches!(parse_line(name), Ok(Request::Run(_))), "{name}");
            assert!(help().contains(name), "{name}");
        }
    }

    #[test]
    fn help_wins_over_everything_else() {
        for line in ["--help", "-h", "help", "test --help", "mpi-test --ranks x -h"] {
            check(line, Request::Help);
        }
    }

    #[test]
    fn mpi_test_runs_on_all_sizes_unless_told_otherwise() {
        let ranks = |ranks: &[usize]| Request::Run(Command::MpiTest { ranks: ranks.to_vec() });
        check("mpi-test", ranks(&mpi_tests::RANKS));
        check("mpi-test --ranks 3", ranks(&[3]));
        check("mpi-test --ranks=2,8", ranks(&[2, 8]));
    }

    #[test]
    fn a_wrong_line_is_refused_with_what_was_wrong_and_what_is_right() {
        check_refused("", &["no command", "mpi-test", "--help"]);
        check_refused("tset", &["`tset`", "test", "check"]);
        check_refused("check --fast", &["`check`", "`--fast`"]);
        check_refused("mpi-test 3", &["--ranks", "`3`"]);
        check_refused("mpi-test --ranks", &["--ranks LIST"]);
        check_refused("mpi-test --ranks 2,,3", &["2,,3", "such as"]);
        check_refused("mpi-test --ranks 0", &["positive"]);
        check_refused("mpi-test --ranks 2 3", &["`--ranks 2 3`"]);
    }
}
