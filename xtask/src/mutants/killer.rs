//! The tests that kill the patches, parsed from the rows of the table.

use super::PROFILE;
use super::copy::Copy;
use crate::shell::{cargo, package_folder};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The test that kills a patch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Killer {
    /// The short name of a crate, [`LOOM`], or the file or folder of the root package's integration tests.
    runner: String,
    /// The file or folder of the crate's integration tests; `None` for unit tests.
    target: Option<String>,
    /// The test's path; empty for all loom models.
    pub(super) test: String,
}

/// Short names of crates in the table, with the crates' names.
const CRATES: &[(&str, &str)] = &[
    ("unit", "dml-coherence"),
    ("arenas", "dml-arenas"),
    ("energy", "dml-energy"),
    ("scheduler", "dml-scheduler"),
    ("policies", "dml-verify"),
    ("workloads", "dml-workloads"),
];

/// Short name of the loom models in the table.
const LOOM: &str = "loom";

impl Killer {
    /// Returns the crate of the test, or `None` for the root package.
    fn package(&self) -> Option<&'static str> {
        CRATES.iter().find(|(short, _)| *short == self.runner).map(|(_, package)| *package)
    }

    /// Returns the folder and the name of the integration tests, or `None` for unit tests.
    pub(super) fn target(&self, root: &Path) -> Option<(PathBuf, String)> {
        match (self.package(), &self.target) {
            (Some(package), target) => {
                target.clone().map(|target| (root.join(package_folder(package)).join("tests"), target))
            }
            (None, target) => Some((root.join("tests"), target.clone().unwrap_or(self.runner.clone()))),
        }
    }

    /// Returns whether the killing test is an integration test in this file. Unit tests are beside
    /// the code that they test.
    pub(super) fn is_in(&self, file: &str) -> bool {
        let Some((folder, target)) = self.target(Path::new("")) else { return false };
        let folder = folder.join(target).to_string_lossy().replace('\\', "/");
        file.strip_prefix(&folder).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    }

    /// Returns whether the test exists, in the file of its module or in a file of its integration tests.
    #[cfg(test)]
    pub(super) fn is_there(&self, root: &Path) -> bool {
        let (modules, test) = self.test.rsplit_once("::").unwrap_or(("", &self.test));
        let has_test = |path: PathBuf| {
            std::fs::read_to_string(path).is_ok_and(|text| text.contains(&format!("fn {test}(")))
        };
        if let Some((folder, target)) = self.target(root) {
            let folders = [folder.join(&target), folder.join("common")];
            let inside = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
            let mut files = inside.flatten().map(|entry| entry.path());
            return test.is_empty() || has_test(folder.join(format!("{target}.rs"))) || files.any(has_test);
        }
        let Some(package) = self.package() else { return false };
        let (parent, source) =
            (modules.trim_end_matches("tests"), root.join(package_folder(package)).join("src"));
        let file = |modules: &str| source.join(modules.trim_end_matches("::").replace("::", "/"));
        let candidates = [file(modules).with_extension("rs"), file(parent).with_extension("rs")];
        candidates.into_iter().chain([file(parent).join("mod.rs")]).any(has_test)
    }

    /// Returns the command that runs only this test.
    pub(super) fn command(&self, copy: &Copy) -> Command {
        if self.runner == LOOM {
            let mut command = cargo(["run", "--quiet", "--package", "xtask", "--", "loom"]);
            command.args(Some(&self.test).filter(|test| !test.is_empty()));
            copy.prepare(&mut command);
            return command;
        }
        let mut command = cargo(["nextest", "run", "--profile", PROFILE]);
        match (self.package(), &self.target) {
            (Some(package), Some(target)) => command.args(["--package", package, "--test", target]),
            (Some(package), None) => command.args(["--package", package, "--lib"]),
            (None, target) => {
                // The `command` feature, with the workloads, takes long to build.
                command.args(["--package", "dml", "--no-default-features", "--features", "offload,opencl"]);
                command.args(["--test", target.as_ref().unwrap_or(&self.runner)])
            }
        };
        // A large model may be the killer.
        command.args(["--run-ignored", "all", "-E", &format!("test({})", self.test)]);
        copy.prepare(&mut command);
        command
    }
}

/// Parses the table. A row's first code span is the patch; the code spans of its last column name the test.
pub(super) fn killers(table: &str) -> BTreeMap<String, Killer> {
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
            [LOOM] => killer(LOOM, None, ""),
            [runner, test] => killer(runner, None, test),
            [runner, target, test] => killer(runner, Some(target), test),
            _ => return None,
        };
        Some((name.to_owned(), killer))
    })
    .collect()
}

#[cfg(test)]
pub(super) const ROWS: &str = "\
| patch | what it breaks | killed by |
|---|---|---|
| `first` | a rule of `this` | `unit` `wait::tests::one` |
| `second` | another | `arenas` `conformance` `of_null::two` (hang) |
| `third` | a third | `hostile` `lies::three` |
| `fourth` | it has no test | nobody |
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_names_the_test_that_kills_a_patch() {
        let killers = killers(ROWS);
        assert_eq!(killers.keys().collect::<Vec<_>>(), ["first", "second", "third"]);
        let names = |name: &str| {
            let Killer { runner, target, test } = killers[name].clone();
            (runner, target.unwrap_or_default(), test)
        };
        assert_eq!(names("first"), ("unit".into(), String::new(), "wait::tests::one".into()));
        assert_eq!(names("second"), ("arenas".into(), "conformance".into(), "of_null::two".into()));
        assert_eq!(names("third"), ("hostile".into(), String::new(), "lies::three".into()));
    }
}
