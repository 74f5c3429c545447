//! Generated mutants: cargo-mutants changes one part of the repository, one mutant at a time.
//!
//! ```text
//!   mutants of a part ──▶ tests of its crate ──missed──▶ integration tests ──missed──▶ survivors
//! ```
//! `.cargo/mutants/PART.toml` selects the code to mutate, and lists the accepted survivors with their
//! reasons. Two steps are faster than one: the unit tests kill most mutants, and take less time than linking
//! one test program of the root.

use super::{PROFILE, broken, folder_of, without_debug_information};
use crate::Failure;
use crate::shell::{Outcome, Report, cargo, has_cargo_subcommand, output_of, package_folder};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A part of the repository with a configuration of its own.
struct Part {
    name: &'static str,
    package: &'static str,
    /// The arguments of nextest that select the tests of the part's crate.
    own: &'static [&'static str],
    /// The integration tests for the mutants that these miss, of the root package or of the crate. If empty,
    /// there is no second step.
    outer: &'static [&'static str],
    /// The features of the root package that these tests need.
    features: &'static str,
}

const PARTS: &[Part] = &[
    Part {
        name: "core",
        package: "dml-coherence",
        own: &["--lib"],
        outer: &[
            "accounts",
            "attaching",
            "awaiting",
            "bindings",
            "building",
            "closing",
            "coherence",
            "faults",
            "hints",
            "hostile",
            "interleaved",
            "losing",
            "outcomes",
            "overlapping",
            "prefetching",
            "requests",
            "retiring",
            "sharing",
            "waiting",
        ],
        features: "",
    },
    Part {
        name: "arenas",
        package: "dml-arenas",
        own: &["--lib", "--test=cuda_driver", "--test=opencl_driver", "--test=dlpack", "--test=offload"],
        outer: &[
            "functions",
            "launching",
            "stores",
            "conformance",
            "calibration",
            "discovery",
            "faulty",
            "in_place",
            "lent",
            "null",
            "opencl",
            "through_core",
        ],
        features: "dml/cuda,dml/offload,dml/opencl",
    },
    Part {
        name: "scheduler",
        package: "dml-scheduler",
        own: &["--lib"],
        outer: &[
            "changed_once",
            "coexecution",
            "launching",
            "pipelines",
            "refusals",
            "same_cores",
            "started",
            "twins",
            "under_compute",
            "without_threads",
            "workers",
        ],
        features: "dml/offload,dml/opencl",
    },
    Part {
        name: "timeline",
        package: "dml-timeline",
        own: &["--lib"],
        outer: &["timeline"],
        features: "dml/timeline",
    },
    Part { name: "energy", package: "dml-energy", own: &["--all-targets"], outer: &[], features: "" },
    Part { name: "workloads", package: "dml-workloads", own: &["--all-targets"], outer: &[], features: "" },
    Part {
        name: "command",
        package: "dml",
        own: &["--bin", "dml"],
        outer: &["command", "replay", "report", "reproduce", "suite"],
        features: "command,cuda,offload,opencl",
    },
];

/// Returns the names of the parts, separated by commas.
pub(super) fn names() -> String {
    PARTS.iter().map(|part| part.name).collect::<Vec<_>>().join(", ")
}

/// Mutates a part, and passes `arguments` to cargo-mutants.
pub(super) fn run(report: &mut Report, root: &Path, part: &str, arguments: &[String]) -> Result<(), Failure> {
    let Some(part) = PARTS.iter().find(|known| known.name == part) else {
        return Err(Failure::Usage(format!("unknown part `{part}`: the parts are {}", names())));
    };
    if is_installed(report) { part.run(report, root, arguments) } else { Ok(()) }
}

/// Mutates the changed lines of each part that a change touches.
pub(super) fn of_change(
    report: &mut Report,
    root: &Path,
    diff: &Path,
    touched: &BTreeSet<String>,
) -> Result<(), Failure> {
    if !is_installed(report) {
        return Ok(());
    }
    let in_diff = ["--in-diff".to_owned(), diff.to_string_lossy().into_owned()];
    let is_touched = |part: &&Part| touched.iter().any(|file| part.has(file));
    PARTS.iter().filter(is_touched).try_for_each(|part| part.run(report, root, &in_diff))
}

fn is_installed(report: &mut Report) -> bool {
    let is_installed = has_cargo_subcommand("mutants");
    if !is_installed {
        report.step("generated mutants", || Outcome::Skipped("cargo-mutants is not installed".to_owned()));
        report.note("cargo-mutants: no mutants were generated (cargo install cargo-mutants --locked)");
    }
    is_installed
}

impl Part {
    /// Returns whether a file belongs to this part.
    fn has(&self, file: &str) -> bool {
        let folder = if self.package == "dml" { "src/" } else { package_folder(self.package) };
        file.starts_with(folder) && file.ends_with(".rs")
    }

    fn run(&self, report: &mut Report, root: &Path, arguments: &[String]) -> Result<(), Failure> {
        let name = |step: &str| format!("{}, {step}", self.name);
        let folder = emptied(self.output(root, "own")).map_err(broken)?;
        // Unoptimised code compiles faster. The root's tests keep their profile, because they measure times.
        let unoptimised = ["", "package.dml-coherence.", "package.dml-verify."]
            .map(|package| format!("--config=profile.test.{package}opt-level=0"));
        let tests: Vec<&str> =
            self.own.iter().copied().chain(unoptimised.iter().map(String::as_str)).collect();
        let own = self.command(root, &folder, &tests);
        let Some(mut missed) = missed(report, &name("own tests"), with(own, arguments), &folder) else {
            return Ok(());
        };
        if !missed.is_empty() && !self.outer.is_empty() {
            // `--iterate` skips mutants that are listed as caught: here, all but the missed ones.
            let listed = with(self.command(root, &folder, &[]), &["--list"]);
            let listed = output_of(&mut { listed }).ok_or(Failure::Work)?;
            let folder = emptied(self.output(root, "outer")).map_err(broken)?;
            let caught: Vec<&str> =
                listed.lines().filter(|name| missed.iter().all(|other| other != name)).collect();
            let before = folder.join("mutants.out");
            fs::create_dir_all(&before).map_err(broken)?;
            fs::write(before.join("caught.txt"), caught.join("\n")).map_err(broken)?;
            let mut tests = vec!["--package=dml", "--no-default-features", "--features", self.features];
            self.outer.iter().for_each(|test| tests.extend(["--test", test]));
            let outer = with(self.command(root, &folder, &tests), &["--iterate"]);
            let Some(left) = self::missed(report, &name("other tests"), outer, &folder) else {
                return Ok(());
            };
            missed = left;
        }
        let survivors = missed.join("\n");
        report.step(&name("survivors"), || match missed.len() {
            0 => Outcome::Passed,
            count => Outcome::Failed(format!("{count}:\n{survivors}")),
        });
        Ok(())
    }

    fn output(&self, root: &Path, step: &str) -> PathBuf {
        folder_of(root).join("generated").join(self.name).join(step)
    }

    /// Returns the cargo-mutants command for this part. `tests` are arguments of every cargo call.
    fn command(&self, root: &Path, output: &Path, tests: &[&str]) -> Command {
        let mut command = cargo(["mutants", "--package", self.package]);
        command.arg("--config").arg(root.join(".cargo/mutants").join(format!("{}.toml", self.name)));
        command.arg("--output").arg(output);
        tests.iter().for_each(|test| _ = command.arg(format!("--cargo-arg={test}")));
        // A few cases of each property kill nearly as many mutants as all of them.
        command.env("PROPTEST_CASES", "32").env("NEXTEST_PROFILE", PROFILE);
        // Cargo does not distinguish a copied workspace from the original: they must not share build outputs.
        command.env("CARGO_TARGET_DIR", folder_of(root).join("generated/target"));
        without_debug_information(&mut command);
        command
    }
}

fn with<S: AsRef<OsStr>>(mut command: Command, arguments: &[S]) -> Command {
    command.args(arguments);
    command
}

/// Creates the folder, or empties it if it exists.
fn emptied(folder: PathBuf) -> io::Result<PathBuf> {
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir_all(&folder)?,
    }
    Ok(folder)
}

/// Runs cargo-mutants and returns the mutants that the tests missed, or `None` if it failed.
fn missed(report: &mut Report, step: &str, mut command: Command, output: &Path) -> Option<Vec<String>> {
    let mut missed = None;
    report.step(step, || match command.status() {
        // 2: some mutants were missed; 3: some tests timed out.
        Ok(status) if matches!(status.code(), Some(0 | 2 | 3)) => {
            let names = fs::read_to_string(output.join("mutants.out/missed.txt")).unwrap_or_default();
            missed = Some(names.lines().map(str::to_owned).collect());
            Outcome::Passed
        }
        Ok(status) => Outcome::Failed(status.to_string()),
        Err(error) => Outcome::Failed(error.to_string()),
    });
    missed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::repository_root;

    #[test]
    fn each_part_has_a_configuration_and_tests_that_are_there() {
        let root = repository_root();
        for part in PARTS {
            let configuration = root.join(".cargo/mutants").join(format!("{}.toml", part.name));
            assert!(configuration.is_file(), "{}", configuration.display());
            for test in part.outer {
                let is_in =
                    |folder: &Path| folder.join(format!("{test}.rs")).is_file() || folder.join(test).is_dir();
                let is_there = is_in(&root.join("tests"))
                    || is_in(&root.join(package_folder(part.package)).join("tests"));
                assert!(is_there, "{}: no test {test}", part.name);
            }
        }
        let configurations = fs::read_dir(root.join(".cargo/mutants")).unwrap().count();
        assert_eq!(configurations, PARTS.len());
    }

    #[test]
    fn a_file_belongs_to_its_part() {
        let parts =
            |file: &str| PARTS.iter().filter(|part| part.has(file)).map(|part| part.name).collect::<Vec<_>>();
        assert_eq!(parts("dml-core/src/state/plan.rs"), ["core"]);
        assert_eq!(parts("src/bin/dml/bench.rs"), ["command"]);
        assert!(parts("docs/spec.md").is_empty() && parts("tests/faults.rs").is_empty());
    }
}
