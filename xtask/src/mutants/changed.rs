//! `cargo xtask mutants --changed [BASE]`: the patches that a change concerns, each under the one test that its row names.
//!
//! A patch is concerned if the change touches a file that it breaks, the patch itself, or the tests that kill it. That takes a build
//! and a test for each, minutes where all patches under all tools take hours.

use super::{Copy, PATCHES, PROFILE, Verdict, broken, patches_of, verdict, without_debug_information};
use crate::Failure;
use crate::shell::{Outcome, Report, cargo, has_cargo_subcommand, repository_root};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// What has changed since, where nothing else is said.
const BASE: &str = "HEAD~1";

/// The table that says who kills which patch.
const TABLE: &str = "tests/mutants/README.md";

/// Tries the patches that everything since `base` concerns, what is not committed included.
pub(super) fn run(base: Option<&str>, generates: bool) -> Result<(), Failure> {
    let mut report = Report::default();
    let root = repository_root();
    let base = base.unwrap_or(BASE);
    let touched = touched(&root, base)?;
    let killers = killers(&fs::read_to_string(root.join(TABLE)).map_err(broken)?);
    let copy = Copy::of(&root).map_err(broken)?;
    let (mut tried, mut sound) = (0, BTreeMap::new());
    for path in patches_of(&root.join(PATCHES), None).map_err(broken)? {
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let patch = fs::read_to_string(&path).map_err(broken)?;
        let killer = killers.get(&name);
        if !is_concerned(&name, &patch, killer, &touched) {
            continue;
        }
        tried += 1;
        report.step(&name, || match killer {
            None => Outcome::Failed(format!("{TABLE} has no row that names a test for it")),
            // A test that fails by itself notices nothing.
            Some(killer)
                if *sound.entry(killer.clone()).or_insert_with(|| verdict(killer.command(&copy)))
                    != Verdict::Survived =>
            {
                Outcome::Failed(format!(
                    "{} does not pass without the patch: {:?}",
                    killer.test, sound[killer]
                ))
            }
            Some(killer) => match copy.with(&path, || verdict(killer.command(&copy))) {
                Ok(Verdict::Killed(_) | Verdict::Hang(_)) => Outcome::Passed,
                Ok(Verdict::Survived) => Outcome::Failed(format!("{} does not notice", killer.test)),
                Ok(Verdict::Broken(reason)) | Err(reason) => Outcome::Failed(reason),
            },
        });
    }
    report.note(format!("{tried} patches are concerned by what has changed since {base}"));
    if generates {
        generated(&mut report, &root, base)?;
    }
    report.finish()
}

/// Lets cargo-mutants make up mutants of the changed lines.
fn generated(report: &mut Report, root: &Path, base: &str) -> Result<(), Failure> {
    if !has_cargo_subcommand("mutants") {
        report.note("no mutants were made up: cargo-mutants is not installed (cargo install cargo-mutants)");
        return Ok(());
    }
    let diff = super::folder_of(root).join("changed.diff");
    fs::write(&diff, git(root, &["diff", base])?).map_err(broken)?;
    let mut command = cargo(["mutants", "--workspace", "--in-diff"]);
    command.arg(&diff).env("NEXTEST_PROFILE", PROFILE);
    command.env("CARGO_TARGET_DIR", super::folder_of(root).join("generated"));
    without_debug_information(&mut command);
    report.command("cargo-mutants", command);
    Ok(())
}

/// The files that have changed, those that git does not know yet included.
fn touched(root: &Path, base: &str) -> Result<BTreeSet<String>, Failure> {
    let listed = git(root, &["diff", "--name-only", "--no-renames", base])?;
    let fresh = git(root, &["ls-files", "--others", "--exclude-standard"])?;
    Ok(listed.lines().chain(fresh.lines()).map(str::to_owned).collect())
}

fn git(root: &Path, arguments: &[&str]) -> Result<String, Failure> {
    let output = Command::new("git").args(arguments).current_dir(root).output().map_err(broken)?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        return Err(Failure::Usage(format!("git {}: {why}", arguments.join(" "))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn is_concerned(name: &str, patch: &str, killer: Option<&Killer>, touched: &BTreeSet<String>) -> bool {
    let breaks = patch.lines().filter_map(|line| line.strip_prefix("+++ b/"));
    breaks.into_iter().any(|file| touched.contains(file))
        || touched.contains(&format!("{PATCHES}/{name}.patch"))
        || killer.is_some_and(|killer| touched.iter().any(|file| killer.is_in(file)))
}

/// The test that notices a patch, as its row names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Killer {
    /// A crate's unit tests, by the short name of the crate, or the tests of the root package in this file or folder.
    runner: String,
    /// The file or folder of a crate's integration tests.
    target: Option<String>,
    /// All models of loom, where it is empty.
    test: String,
}

/// The short name of a crate in the table, and the crate.
const CRATES: &[(&str, &str)] = &[
    ("unit", "dml-core"),
    ("arenas", "dml-arenas"),
    ("scheduler", "dml-scheduler"),
    ("policies", "dml-verify"),
    ("workloads", "dml-workloads"),
    ("xtask", "xtask"),
];

/// The short name of the command: of its unit tests, or of those of the root package that look at it.
const COMMAND: &str = "command";

impl Killer {
    /// The crate of the test; the root package, where there is none.
    fn package(&self) -> Option<&'static str> {
        CRATES.iter().find(|(short, _)| *short == self.runner).map(|(_, package)| *package)
    }

    /// Whether the killing test stands in this file. Unit tests stand beside what they test.
    fn is_in(&self, file: &str) -> bool {
        let folder = match (self.package(), &self.target) {
            (Some(package), Some(target)) => format!("{package}/tests/{target}"),
            (Some(_), None) => return false,
            (None, Some(target)) => format!("tests/{target}"),
            (None, None) => format!("tests/{}", self.runner),
        };
        file.strip_prefix(&folder).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    }

    /// What runs the test, and no other.
    fn command(&self, copy: &Copy) -> Command {
        if self.runner == "loom" {
            let mut command = cargo(["run", "--quiet", "--package", "xtask", "--", "loom"]);
            command.args(Some(&self.test).filter(|test| !test.is_empty()));
            copy.prepare(&mut command);
            return command;
        }
        let mut command = cargo(["nextest", "run", "--profile", PROFILE]);
        match (self.package(), &self.target) {
            (Some(package), Some(target)) => command.args(["--package", package, "--test", target]),
            (Some("xtask"), None) => command.args(["--package", "xtask"]),
            (Some(package), None) => command.args(["--package", package, "--lib"]),
            (None, Some(target)) => command.args(["--package", "dml", "--test", target]),
            (None, None) if self.runner == COMMAND => command.args(["--package", "dml", "--bin", "dml"]),
            (None, None) => command.args(["--package", "dml", "--test", &self.runner]),
        };
        command.args(["-E", &format!("test({})", self.test)]);
        copy.prepare(&mut command);
        command
    }
}

/// Reads the table: a row's first word in code marks is the patch, those of its last column name the test.
fn killers(table: &str) -> BTreeMap<String, Killer> {
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
    rows.filter_map(|row| {
        let (name, rest) = row.split_once('`')?;
        let (_, last) = rest.rsplit_once(" | ")?;
        let words: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        let killer = |runner: &str, target: Option<&str>, test: &str| Killer {
            runner: runner.to_owned(),
            target: target.map(str::to_owned),
            test: test.to_owned(),
        };
        let killer = match words[..] {
            ["loom"] => killer("loom", None, ""),
            [runner, test] => killer(runner, None, test),
            [runner, target, test] => killer(runner, Some(target), test),
            _ => return None,
        };
        Some((name.to_owned(), killer))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "\
| mutant | what it breaks | killed by |
|---|---|---|
| `first` | a rule of `this` | `unit` `wait::tests::one` |
| `second` | another | `arenas` `conformance` `of_null::two` (hang) |
| `third` | a third | `hostile` `lies::three` |
| `fourth` | it has no test | nobody |
| `fifth` | a figure | `command` `bench::tests::five` |
| `sixth` | another figure | `command` `timeline` `six` |
";

    fn killer(name: &str) -> Killer {
        killers(ROWS)[name].clone()
    }

    #[test]
    fn a_row_names_who_kills_a_patch() {
        assert_eq!(killers(ROWS).keys().collect::<Vec<_>>(), ["fifth", "first", "second", "sixth", "third"]);
        let names = |name| {
            let Killer { runner, target, test } = killer(name);
            (runner, target.unwrap_or_default(), test)
        };
        assert_eq!(names("first"), ("unit".into(), String::new(), "wait::tests::one".into()));
        assert_eq!(names("second"), ("arenas".into(), "conformance".into(), "of_null::two".into()));
        assert_eq!(names("third"), ("hostile".into(), String::new(), "lies::three".into()));
    }

    #[test]
    fn a_change_concerns_what_it_touches() {
        let patch = "diff --git a/dml-core/src/a.rs b/dml-core/src/a.rs\n--- a/dml-core/src/a.rs\n+++ b/dml-core/src/a.rs\n";
        for (file, name, is_so) in [
            ("dml-core/src/a.rs", "first", true),
            ("dml-core/src/b.rs", "first", false),
            ("tests/mutants/first.patch", "first", true),
            ("tests/mutants/first.patch", "second", false),
            ("tests/hostile/lies.rs", "third", true),
            ("tests/hostile.rs", "third", true),
            ("tests/hostile_more.rs", "third", false),
            ("dml-arenas/tests/conformance.rs", "second", true),
            ("tests/conformance.rs", "second", false),
            ("tests/timeline.rs", "sixth", true),
            ("tests/command.rs", "sixth", false),
        ] {
            let touched = [file.to_owned()].into();
            assert_eq!(is_concerned(name, patch, Some(&killer(name)), &touched), is_so, "{file} {name}");
        }
        assert!(!is_concerned("first", patch, None, &BTreeSet::new()));
    }

    /// Each patch has a row, and each row names tests that stand somewhere.
    #[test]
    fn every_patch_has_a_row_with_a_test_that_is_there() {
        let root = repository_root();
        let killers = killers(&fs::read_to_string(root.join(TABLE)).unwrap());
        let mut names: BTreeSet<String> = killers.keys().cloned().collect();
        for path in patches_of(&root.join(PATCHES), None).unwrap() {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            assert!(names.remove(&name), "{name} has no row that names a test");
        }
        assert_eq!(names, BTreeSet::new(), "rows without a patch");
        for (name, killer) in killers {
            let (folder, file) = match (killer.package(), &killer.target) {
                (Some(package), Some(target)) => (root.join(package).join("tests"), target.clone()),
                (Some(_), None) => continue,
                (None, None) if killer.runner == COMMAND => continue,
                (None, target) => (root.join("tests"), target.clone().unwrap_or(killer.runner.clone())),
            };
            let is_there =
                folder.join(format!("{file}.rs")).is_file() || folder.join(&file).join("main.rs").is_file();
            assert!(is_there, "{name}: no tests {file}");
        }
    }
}
