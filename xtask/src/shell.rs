//! Runs other programs, and reports their outcomes.
//!
//! A command is printed before it runs, so that it can be repeated by hand. Its output goes straight to the
//! terminal. A [`Report`] runs its steps in order and continues after a failure, so that one run shows all
//! failures.

use crate::Failure;
use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Returns the folder of the root package.
pub(crate) fn repository_root() -> PathBuf {
    let package = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&package).parent().expect("xtask lies in a folder of the repository").to_owned()
}

/// Returns the folder of a package of the workspace, which is not the root package.
pub(crate) fn package_folder(package: &str) -> &str {
    if package == "dml-coherence" { "dml-core" } else { package }
}

/// Returns a command of the cargo that runs this program, to be started in the repository's root.
pub(crate) fn cargo<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(repository_root());
    command
}

/// Returns whether `cargo <subcommand>` is installed.
pub(crate) fn has_cargo_subcommand(subcommand: &str) -> bool {
    succeeds_quietly(&mut cargo([subcommand, "--version"]))
}

/// Returns whether the command runs and succeeds. Its output is discarded.
pub(crate) fn succeeds_quietly(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Returns the command's standard output if it succeeds. Its standard error goes to the terminal.
pub(crate) fn output_of(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the path of `program` on the search path.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|candidate| candidate.is_file())
}

/// Prints and runs the command.
///
/// # Errors
/// Why the command did not start, or its exit status if it failed.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    eprintln!("$ {}", shown(command));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(status.to_string()),
        Err(error) => Err(format!("could not start {}: {error}", command.get_program().display())),
    }
}

/// Returns the command as typed in a shell, with the environment variables that it sets.
fn shown(command: &Command) -> String {
    let quoted = |word: &OsStr| {
        let word = word.to_string_lossy();
        if word.contains([' ', '\'', '"', '(', '&', '|', '*']) {
            format!("{word:?}")
        } else {
            word.into_owned()
        }
    };
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    command
        .get_envs()
        .filter_map(|(key, value)| Some(format!("{}={}", key.display(), quoted(value?))))
        .chain([quoted(program)])
        .chain(command.get_args().map(quoted))
        .collect::<Vec<_>>()
        .join(" ")
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The check succeeded.
    Passed,
    /// The check failed or could not run, for this reason.
    Failed(String),
    /// The check did not run, for this reason.
    Skipped(String),
}

#[derive(Debug)]
struct Step {
    name: String,
    outcome: Outcome,
    took: Duration,
}

/// The steps that ran or were skipped. Its [`Display`](fmt::Display) is the final table.
#[derive(Debug, Default)]
pub(crate) struct Report {
    steps: Vec<Step>,
    notes: Vec<String>,
    remarks: Vec<String>,
}

impl Report {
    /// Runs `command` as a step.
    pub(crate) fn command(&mut self, name: &str, mut command: Command) {
        self.step(name, || match run(&mut command) {
            Ok(()) => Outcome::Passed,
            Err(reason) => Outcome::Failed(reason),
        });
    }

    /// Runs a step that is a function.
    pub(crate) fn step(&mut self, name: &str, work: impl FnOnce() -> Outcome) {
        eprintln!("\n== {name}");
        let start = Instant::now();
        let outcome = work();
        self.steps.push(Step { name: name.to_owned(), outcome, took: start.elapsed() });
    }

    /// Adds a line to the list of what was not installed or not run.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Adds a paragraph above the list of what was not installed or not run.
    pub(crate) fn remark(&mut self, remark: impl Into<String>) {
        self.remarks.push(remark.into());
    }

    /// Prints the table, with the remarks and notes.
    ///
    /// # Errors
    /// [`Failure::Work`] if a step failed.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        println!("\n{self}");
        let failed = self.steps.iter().any(|step| matches!(step.outcome, Outcome::Failed(_)));
        if failed { Err(Failure::Work) } else { Ok(()) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.steps.iter().map(|step| step.name.len()).max().unwrap_or(0).max("step".len());
        write!(f, "{:width$}  outcome  seconds", "step")?;
        for Step { name, outcome, took } in &self.steps {
            let (word, reason) = match outcome {
                Outcome::Passed => ("passed", ""),
                Outcome::Failed(reason) => ("FAILED", reason.as_str()),
                Outcome::Skipped(reason) => ("skipped", reason.as_str()),
            };
            let line = format!("{name:width$}  {word:7}  {:7.1}  {reason}", took.as_secs_f64());
            write!(f, "\n{}", line.trim_end())?;
        }
        self.remarks.iter().try_for_each(|remark| write!(f, "\n\n{remark}"))?;
        if !self.notes.is_empty() {
            write!(f, "\n\nnot installed or not run:")?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n- {note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, outcome: Outcome, took_ms: u64) -> Step {
        Step { name: name.to_owned(), outcome, took: Duration::from_millis(took_ms) }
    }

    #[test]
    fn the_table_lines_up_and_lists_what_was_left_out() {
        let report = Report {
            steps: vec![
                step("doc tests", Outcome::Passed, 1_250),
                step("tidy", Outcome::Failed("2 violations".to_owned()), 40),
                step("deny", Outcome::Skipped("not installed".to_owned()), 0),
            ],
            notes: vec!["cargo-deny".to_owned()],
            remarks: vec!["one was slow".to_owned()],
        };
        let expected = "\
step       outcome  seconds
doc tests  passed       1.2
tidy       FAILED       0.0  2 violations
deny       skipped      0.0  not installed

one was slow

not installed or not run:
- cargo-deny";
        assert_eq!(report.to_string(), expected);
        assert_eq!(report.finish(), Err(Failure::Work));
    }

    #[test]
    fn a_skipped_step_is_no_failure() {
        let mut report = Report::default();
        report.step("deny", || Outcome::Skipped("not installed".to_owned()));
        assert_eq!(report.finish(), Ok(()));
    }

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let mut command = Command::new("/opt/bin/cargo");
        command.args(["test", "-E", "test(a)"]).env("RUSTFLAGS", "--cfg x").env_remove("HOME");
        assert_eq!(shown(&command), "RUSTFLAGS=\"--cfg x\" cargo test -E \"test(a)\"");
    }

    #[test]
    fn a_program_that_is_not_there_is_a_failure_not_a_panic() {
        let reason = run(&mut Command::new("/nonexistent/program")).unwrap_err();
        assert!(reason.starts_with("could not start /nonexistent/program"), "{reason}");
        assert!(!succeeds_quietly(&mut Command::new("/nonexistent/program")));
    }
}
