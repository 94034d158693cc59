use std::process::Command;

use crate::{
    error::Result,
    process::{self, Output},
};

/// An `mpirun`, and the family it belongs to: the families share the name and little else.
#[derive(Debug, PartialEq, Eq)]
pub struct Launcher {
    program: String,
    family: Family,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    OpenMpi {
        major: u32,
    },
    /// The launcher of MPICH and of what descends from it.
    Hydra,
    /// Any other: it gets nothing but the number of ranks, which all of them understand.
    Unknown,
}

impl Launcher {
    /// The launcher of this machine, told by what it says of itself.
    pub fn detect() -> Result<Launcher> {
        let program = std::env::var("MPIRUN").unwrap_or_else(|_| "mpirun".to_string());
        let mut command = Command::new(&program);
        let ended = process::run(command.arg("--version"), process::SHORT, Output::Collect)?;
        Ok(Launcher::new(program, &ended.lines.join("\n")))
    }

    /// The launcher `program`, of which `version` is what it answers to `--version`.
    pub fn new(program: impl Into<String>, version: &str) -> Launcher {
        Launcher { program: program.into(), family: Family::from_version(version) }
    }

    /// The command that starts `ranks` processes, to which the program is still to be added.
    pub fn command(&self, ranks: usize) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.family.flags()).arg("-n").arg(ranks.to_string());
        command
    }

    /// As [`command`](Launcher::command), for programs that are interrupted: they have some seconds to end by themselves.
    pub fn patient_command(&self, ranks: usize) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.family.flags()).args(self.family.flags_for_patience());
        command.arg("-n").arg(ranks.to_string());
        command
    }

    /// As [`command`](Launcher::command), for programs that lose a rank on purpose.
    pub fn fault_command(&self, ranks: usize, extra_flags: &[String]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.family.flags()).args(self.family.flags_to_keep_survivors());
        command.args(extra_flags).arg("-n").arg(ranks.to_string());
        command
    }

    /// What the user has to know where something else is to blame than the tests.
    pub fn describe(&self) -> String {
        match self.family {
            Family::OpenMpi { major } => format!("{} (Open MPI {major})", self.program),
            Family::Hydra => format!("{} (MPICH's Hydra)", self.program),
            Family::Unknown => format!("{} (neither Open MPI nor MPICH)", self.program),
        }
    }
}

impl Family {
    fn from_version(text: &str) -> Family {
        if let Some((_, rest)) = text.split_once("(Open MPI)") {
            let digits: String =
                rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
            // A version that cannot be read is taken for a recent one.
            return Family::OpenMpi { major: digits.parse().unwrap_or(5) };
        }
        // Intel's launcher is a Hydra that does not say so in its version.
        if text.contains("HYDRA") || text.contains("Intel(R) MPI") {
            return Family::Hydra;
        }
        Family::Unknown
    }

    /// More ranks than cores, as root, on this host alone:
    ///
    /// - binding is off: with more ranks than cores two would share one while another idles;
    /// - `ob1` over `self` and shared memory: nothing leaves the host, and no network is probed;
    /// - no single-copy mechanism: it reads other processes' memory, which containers forbid.
    fn flags(self) -> &'static [&'static str] {
        match self {
            #[rustfmt::skip]
            Family::OpenMpi { major: 0..=4 } => &[
                "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                "--mca", "pml", "ob1", "--mca", "btl", "self,vader",
                "--mca", "btl_vader_single_copy_mechanism", "none",
            ],
            // Version 5 calls the same transport `sm`, and has oversubscription as a mapping.
            #[rustfmt::skip]
            Family::OpenMpi { .. } => &[
                "--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none",
                "--mca", "pml", "ob1", "--mca", "btl", "self,sm",
                "--mca", "btl_sm_single_copy_mechanism", "none",
            ],
            // Root and oversubscription need no leave here.
            Family::Hydra => &["-launcher", "fork", "-iface", "lo"],
            Family::Unknown => &[],
        }
    }

    /// Open MPI kills what has not ended within one second of the signal, which a busy disk may take for a checkpoint. It waits for the
    /// whole of the time, so that more is not better.
    fn flags_for_patience(self) -> &'static [&'static str] {
        match self {
            Family::OpenMpi { .. } => &["--mca", "odls_base_sigkill_timeout", "5"],
            Family::Hydra | Family::Unknown => &[],
        }
    }

    /// By default a launcher kills all ranks when one dies, and the survivors could not show that
    /// they noticed by themselves.
    fn flags_to_keep_survivors(self) -> &'static [&'static str] {
        match self {
            Family::OpenMpi { .. } => &["--enable-recovery"],
            Family::Hydra => &["-disable-auto-cleanup"],
            Family::Unknown => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN_MPI_4: &str = "mpirun (Open MPI) 4.1.4\n\nReport bugs to the project\n";
    const OPEN_MPI_5: &str = "mpirun (Open MPI) 5.0.7\n\nReport bugs to the project\n";
    const MPICH: &str = "HYDRA build details:\n    Version:      4.2.1\n    CC:  gcc\n";
    const INTEL: &str = "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005\n";

    #[track_caller]
    fn check(version: &str, want: Family) {
        assert_eq!(Family::from_version(version), want, "{version}");
    }

    #[test]
    fn the_family_is_read_from_the_version_text() {
        check(OPEN_MPI_4, Family::OpenMpi { major: 4 });
        check(OPEN_MPI_5, Family::OpenMpi { major: 5 });
        check("mpirun (Open MPI) 10.1.0rc1", Family::OpenMpi { major: 10 });
        check("mpirun (Open MPI) gitclone", Family::OpenMpi { major: 5 });
        check(MPICH, Family::Hydra);
        check(INTEL, Family::Hydra);
        check("srun 23.11", Family::Unknown);
        check("", Family::Unknown);
    }

    #[track_caller]
    fn check_command(version: &str, want: &str) {
        let command = Launcher::new("mpirun", version).fault_command(3, &["--extra".to_string()]);
        assert_eq!(process::show(&command), want);
    }

    #[test]
    fn each_family_gets_flags_it_understands() {
        check_command(
            OPEN_MPI_4,
            "mpirun --allow-run-as-root --oversubscribe --bind-to none --mca pml ob1 \
             --mca btl self,vader --mca btl_vader_single_copy_mechanism none \
             --enable-recovery --extra -n 3",
        );
        check_command(
            OPEN_MPI_5,
            "mpirun --allow-run-as-root --map-by :OVERSUBSCRIBE --bind-to none --mca pml ob1 \
             --mca btl self,sm --mca btl_sm_single_copy_mechanism none \
             --enable-recovery --extra -n 3",
        );
        check_command(MPICH, "mpirun -launcher fork -iface lo -disable-auto-cleanup --extra -n 3");
        check_command("", "mpirun --extra -n 3");
    }

    #[test]
    fn survivors_are_kept_only_where_a_rank_is_lost_on_purpose() {
        let command = process::show(&Launcher::new("mpirun", OPEN_MPI_4).command(2));
        assert!(!command.contains("recovery") && command.ends_with("-n 2"), "{command}");
    }
}
