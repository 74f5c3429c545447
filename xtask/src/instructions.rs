//! `cargo xtask instructions`: the processor's instructions for eight operations of the data layer, against
//! the counts that the tree keeps.
//!
//! ```text
//!   overhead PROGRAM N  ─┐
//!   overhead PROGRAM 2N ─┴─▶ callgrind ──▶ difference / N ──▶ at most 5 % above benches/instructions.txt?
//! ```
//! Counts need no quiet machine. They depend on the compiler, so counts of another compiler are not compared.

use crate::Failure;
use crate::shell::{
    Outcome, Report, cargo, output_of, repository_root, run as run_command, succeeds_quietly,
};
use crate::test;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The file with the counts, in the repository.
const FILE: &str = "benches/instructions.txt";
/// The system package with callgrind.
const PACKAGES: &[&str] = &["valgrind"];
/// The programs of `dml_workloads::overhead` that are counted.
const PROGRAMS: [&str; 8] =
    ["read", "write", "slice", "ten-buffers", "new-buffer", "submit", "ranges:1000", "held:10"];
/// Number of operations of the shorter run.
const OPERATIONS: u64 = 2000;
/// Largest allowed increase of a count, in percent.
const MOST_INCREASE: u64 = 5;

/// Counts, and compares with the tree. With `--write`, replaces the counts of the tree.
///
/// # Errors
/// [`Failure::Work`] if a count is more than 5 % larger or nothing could be counted, [`Failure::Usage`] for
/// other arguments.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let writes = match arguments {
        [] => false,
        [write] if write == "--write" => true,
        [other, ..] => {
            return Err(Failure::Usage(format!("instructions: unknown argument `{other}`")));
        }
    };
    let mut report = Report::default();
    report.step("instructions", || match (valgrind(true), writes) {
        (Err(why), _) => Outcome::Failed(why),
        (Ok(()), true) => replaced().map_or_else(Outcome::Failed, |()| Outcome::Passed),
        (Ok(()), false) => compared(),
    });
    report.finish()
}

/// Compares, as one step of a longer report.
pub(crate) fn step(report: &mut Report, may_install: bool) {
    match valgrind(may_install) {
        Ok(()) => report.step("instructions", compared),
        Err(why) => report.note(format!("callgrind: {why}; instructions were not counted")),
    }
}

/// Installs valgrind if it is not there. Returns why there is none.
fn valgrind(may_install: bool) -> Result<(), String> {
    let is_there = || succeeds_quietly(Command::new("valgrind").arg("--version"));
    if is_there() {
        return Ok(());
    }
    if !may_install {
        return Err("not installed because of --no-install".to_owned());
    }
    eprintln!("callgrind: installing valgrind");
    test::install(PACKAGES)?;
    if is_there() { Ok(()) } else { Err("valgrind is installed, and does not start".to_owned()) }
}

fn compared() -> Outcome {
    let known = match fs::read_to_string(repository_root().join(FILE)) {
        Ok(text) => text,
        Err(error) => return Outcome::Failed(format!("{FILE}: {error}")),
    };
    let known = match parsed(&known) {
        Ok(known) => known,
        Err(line) => return Outcome::Failed(format!("{FILE}: cannot read `{line}`")),
    };
    let compiler = compiler();
    if known.compiler != compiler {
        return Outcome::Skipped(format!("the counts are of {}, and this is {compiler}", known.compiler));
    }
    match counted() {
        Ok(counts) => judged(&known.counts, &counts),
        Err(why) => Outcome::Failed(why),
    }
}

fn replaced() -> Result<(), String> {
    let mut text = format!("{}\n", compiler());
    for (program, count) in counted()? {
        let _ = writeln!(text, "{program} {count}");
    }
    fs::write(repository_root().join(FILE), text).map_err(|error| format!("{FILE}: {error}"))
}

/// The counts of a compiler.
#[derive(Debug, PartialEq, Eq)]
struct Known {
    compiler: String,
    counts: Counts,
}

/// Instructions per operation, by program.
type Counts = BTreeMap<String, u64>;

/// Parses the file: the compiler, then a program and its count on each line.
///
/// # Errors
/// The line that is neither.
fn parsed(text: &str) -> Result<Known, &str> {
    let mut lines = text.lines();
    let compiler = lines.next().unwrap_or_default().to_owned();
    let count = |line| -> Result<(String, u64), &str> {
        let (program, count): (&str, &str) = str::split_once(line, ' ').ok_or(line)?;
        Ok((program.to_owned(), count.parse().map_err(|_| line)?))
    };
    Ok(Known { compiler, counts: lines.map(count).collect::<Result<_, _>>()? })
}

/// Compares counts with the known ones, and prints both.
fn judged(known: &Counts, counts: &Counts) -> Outcome {
    let mut worse = Vec::new();
    for (program, count) in counts {
        let Some(before) = known.get(program) else {
            worse.push(format!("{program} is not in {FILE}"));
            continue;
        };
        let change = *count as f64 / *before as f64 * 100.0 - 100.0;
        println!("{program:12} {count:6} instructions, {change:+.1} %");
        if count * 100 > before * (100 + MOST_INCREASE) {
            worse.push(format!("{program}: {count}, before {before}"));
        }
    }
    match worse.is_empty() {
        true => Outcome::Passed,
        false => {
            Outcome::Failed(format!("{}; `cargo xtask instructions --write` accepts it", worse.join("; ")))
        }
    }
}

/// Returns the version of the compiler.
fn compiler() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    output_of(Command::new(rustc).arg("--version")).unwrap_or_default().trim().to_owned()
}

/// Builds the programs and counts.
fn counted() -> Result<Counts, String> {
    let mut build = cargo(["build", "--release", "--package", "dml-workloads", "--no-default-features"]);
    build.args(["--example", "overhead", "--target-dir"]).arg(target());
    run_command(&mut build)?;
    let binary = target().join("release/examples/overhead");
    let one = |program: &&str| Ok(((*program).to_owned(), per_operation(&binary, program)?));
    PROGRAMS.iter().map(one).collect()
}

fn target() -> std::path::PathBuf {
    repository_root().join("target/instructions")
}

fn per_operation(binary: &Path, program: &str) -> Result<u64, String> {
    let (less, more) =
        (instructions(binary, program, OPERATIONS)?, instructions(binary, program, 2 * OPERATIONS)?);
    Ok(more.saturating_sub(less) / OPERATIONS)
}

/// Returns the number of instructions of a run.
fn instructions(binary: &Path, program: &str, operations: u64) -> Result<u64, String> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(binary);
    command.args([program, &operations.to_string()]);
    let output = command.output().map_err(|error| format!("valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let count = said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    count
        .filter(|_| output.status.success())
        .ok_or_else(|| format!("{program} under callgrind failed: {said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(counts: &[(&str, u64)]) -> Counts {
        counts.iter().map(|(program, count)| ((*program).to_owned(), *count)).collect()
    }

    #[test]
    fn the_file_names_its_compiler_and_a_count_for_each_program() {
        let known = parsed("rustc 1.95.0\nread 100\nten-buffers 700\n").expect("it is a file of counts");
        let expected = counts(&[("read", 100), ("ten-buffers", 700)]);
        assert_eq!(known, Known { compiler: "rustc 1.95.0".to_owned(), counts: expected });
        assert_eq!(parsed("rustc\nread"), Err("read"));
        assert_eq!(parsed("rustc\nread many"), Err("read many"));
    }

    #[test]
    fn a_count_may_grow_by_a_twentieth_and_shrink_at_will() {
        let known = counts(&[("read", 100), ("write", 100)]);
        assert_eq!(judged(&known, &counts(&[("read", 105), ("write", 10)])), Outcome::Passed);
        let Outcome::Failed(why) = judged(&known, &counts(&[("read", 106), ("write", 100), ("new", 1)]))
        else {
            panic!("accepted");
        };
        assert!(why.starts_with("new is not in benches/instructions.txt; read: 106, before 100"), "{why}");
    }

    /// The file in the tree has a count for each program that is counted, and no other.
    #[test]
    fn the_tree_has_the_counts() {
        let text = fs::read_to_string(repository_root().join(FILE)).expect("the tree has the file");
        let known = parsed(&text).expect("it can be read");
        let mut programs = PROGRAMS;
        programs.sort_unstable();
        assert_eq!(known.counts.keys().collect::<Vec<_>>(), programs);
    }
}
