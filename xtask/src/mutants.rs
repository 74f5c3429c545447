//! `cargo xtask mutants`: mutation testing, with hand-made patches and with generated mutants.
//!
//! ```text
//! tests/mutants/*.patch ──▶ copy of the repository: apply ──▶ the test in the patch's row ──▶ killed?
//! .cargo/mutants/*.toml ──▶ cargo-mutants: mutants of one part ──▶ unit tests ──▶ other tests ──▶ killed?
//! ```
//!
//! - `cargo xtask mutants [FILTER]` runs the hand-made patches, one for each numbered invariant. Each must
//!   apply, build, and be killed by the test that its row in `tests/mutants/README.md` names.
//! - `cargo xtask mutants --generated PART [--shard K/N] [ARGS]` has cargo-mutants change one part of the
//!   repository.
//! - `cargo xtask mutants --changed [BASE]` runs the patches that a change concerns, and generated mutants of
//!   the changed lines. `--patches-only` omits the latter.
//!
//! The copy stays in `target/mutants`, so that the next run builds little.

mod copy;
mod generated;
mod killer;

use crate::Failure;
use crate::shell::{Outcome, Report, has_cargo_subcommand, repository_root};
use copy::{Copy, Verdict, verdict};
use killer::{Killer, killers};
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folder of the patches.
const PATCHES: &str = "tests/mutants";
/// File with the table that names the test which kills each patch.
const TABLE: &str = "tests/mutants/README.md";
/// Nextest profile that stops at the first failure and kills hanging tests.
const PROFILE: &str = "mutants";
/// Default base of a change.
const BASE: &str = "HEAD~1";

/// Runs `cargo xtask mutants` with a filter of patches, a part or a change.
///
/// # Errors
/// [`Failure::Work`] if a patch does not apply or build, or if a mutant survives; [`Failure::Usage`] for
/// unknown arguments.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let options = Options::parse(arguments)?;
    let mut report = Report::default();
    if !has_cargo_subcommand("nextest") {
        let reason = "cargo-nextest is not installed, and cargo test cannot kill a hanging test";
        report.step("mutants", || Outcome::Failed(reason.to_owned()));
        return report.finish();
    }
    let root = repository_root();
    match options {
        Options::Generated { part, arguments } => generated::run(&mut report, &root, &part, &arguments)?,
        Options::Patches { filter } => {
            let is_meant = |name: &str| filter.as_ref().is_none_or(|filter| name.contains(filter));
            if try_patches(&mut report, &root, |name, _, _| is_meant(name))? == 0 {
                return Err(Failure::Usage(format!("no patch in {PATCHES} matches")));
            }
        }
        Options::Changed { base, generates } => {
            let base = base.as_deref().unwrap_or(BASE);
            let touched = touched(&root, base)?;
            let is_meant = |name: &str, patch: &str, killer: Option<&Killer>| {
                is_concerned(name, patch, killer, &touched)
            };
            let tried = try_patches(&mut report, &root, is_meant)?;
            report.note(format!("{tried} patches concern the changes since {base}"));
            if generates {
                let diff = folder_of(&root).join("changed.diff");
                fs::write(&diff, git(&root, &["diff", base])?).map_err(broken)?;
                generated::of_change(&mut report, &root, &diff, &touched)?;
            }
        }
    }
    report.finish()
}

#[derive(Debug, PartialEq, Eq)]
enum Options {
    /// The patches whose names contain the filter.
    Patches { filter: Option<String> },
    /// The patches that a change since the base concerns, and generated mutants of the changed lines.
    Changed { base: Option<String>, generates: bool },
    /// Generated mutants of a part, with these arguments for cargo-mutants.
    Generated { part: String, arguments: Vec<String> },
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let unknown = |word: &str| Err(Failure::Usage(format!("mutants: unknown argument `{word}`")));
        match arguments.split_first() {
            None => Ok(Self::Patches { filter: None }),
            Some((first, rest)) if first == "--generated" => match rest.split_first() {
                Some((part, rest)) if !part.starts_with('-') => {
                    Ok(Self::Generated { part: part.clone(), arguments: rest.to_vec() })
                }
                _ => Err(Failure::Usage(format!("--generated takes one of {}", generated::names()))),
            },
            Some((first, rest)) if first == "--changed" => {
                let (mut generates, mut base) = (true, None);
                for argument in rest {
                    match argument.as_str() {
                        "--patches-only" => generates = false,
                        word if !word.starts_with('-') && base.is_none() => base = Some(word.to_owned()),
                        other => return unknown(other),
                    }
                }
                Ok(Self::Changed { base, generates })
            }
            Some((filter, [])) if !filter.starts_with('-') => {
                Ok(Self::Patches { filter: Some(filter.clone()) })
            }
            Some((first, rest)) => unknown(rest.first().unwrap_or(first)),
        }
    }
}

/// Tries the selected patches, each with the test that its row names. Returns the number of tried patches.
fn try_patches(
    report: &mut Report,
    root: &Path,
    is_meant: impl Fn(&str, &str, Option<&Killer>) -> bool,
) -> Result<usize, Failure> {
    let killers = killers(&fs::read_to_string(root.join(TABLE)).map_err(broken)?);
    let copy = Copy::of(root, &folder_of(root)).map_err(broken)?;
    // The verdict of each test without a patch: a test that fails anyway would kill every patch.
    let mut sound = BTreeMap::new();
    let mut tried = 0;
    for path in patches(root).map_err(broken)? {
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let patch = fs::read_to_string(&path).map_err(broken)?;
        let killer = killers.get(&name);
        if !is_meant(&name, &patch, killer) {
            continue;
        }
        tried += 1;
        report.step(&name, || {
            let Some(killer) = killer else {
                return Outcome::Failed(format!("{TABLE} has no row that names a test for this patch"));
            };
            let alone = sound.entry(killer.clone()).or_insert_with(|| verdict(killer.command(&copy)));
            if *alone != Verdict::Survived {
                return Outcome::Failed(format!(
                    "{} does not pass without the patch: {alone:?}",
                    killer.test
                ));
            }
            match copy.with(&path, || verdict(killer.command(&copy))) {
                Ok(Verdict::Killed(_)) => Outcome::Passed,
                Ok(Verdict::Survived) => Outcome::Failed(format!("survived the test {}", killer.test)),
                Ok(Verdict::Broken(reason)) | Err(reason) => Outcome::Failed(reason),
            }
        });
    }
    Ok(tried)
}

/// Returns the paths of the patches, in alphabetical order.
fn patches(root: &Path) -> io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(root.join(PATCHES))?.map(|entry| Ok(entry?.path()));
    let mut patches = paths.collect::<io::Result<Vec<_>>>()?;
    patches.retain(|path| path.extension().is_some_and(|extension| extension == "patch"));
    patches.sort();
    Ok(patches)
}

fn is_concerned(name: &str, patch: &str, killer: Option<&Killer>, touched: &BTreeSet<String>) -> bool {
    let mut breaks = patch.lines().filter_map(|line| line.strip_prefix("+++ b/"));
    breaks.any(|file| touched.contains(file))
        || touched.contains(&format!("{PATCHES}/{name}.patch"))
        || killer.is_some_and(|killer| touched.iter().any(|file| killer.is_in(file)))
}

/// Returns the files that were changed or added since the base.
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

fn broken(error: io::Error) -> Failure {
    eprintln!("mutants: {error}");
    Failure::Work
}

/// Returns the folder of all build outputs of mutants.
fn folder_of(root: &Path) -> PathBuf {
    let base = env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    root.join(base).join("mutants")
}

/// Disables debug information, which would triple the size of the test programs.
fn without_debug_information(command: &mut Command) {
    command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_TEST_DEBUG", "0");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_a_filter_a_part_or_a_change() {
        let parse =
            |words: &[&str]| Options::parse(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(parse(&[]), Ok(Options::Patches { filter: None }));
        assert_eq!(parse(&["poison"]), Ok(Options::Patches { filter: Some("poison".to_owned()) }));
        let arguments = vec!["--shard".to_owned(), "0/8".to_owned()];
        let expected = Options::Generated { part: "core".to_owned(), arguments };
        assert_eq!(parse(&["--generated", "core", "--shard", "0/8"]), Ok(expected));
        let changed =
            |base: Option<&str>, generates| Options::Changed { base: base.map(str::to_owned), generates };
        assert_eq!(parse(&["--changed"]), Ok(changed(None, true)));
        assert_eq!(parse(&["--changed", "--patches-only", "main"]), Ok(changed(Some("main"), false)));
        for wrong in [
            &["--fast"] as &[_],
            &["a", "b"],
            &["--generated"],
            &["--generated", "--shard"],
            &["--changed", "a", "b"],
        ] {
            assert!(matches!(parse(wrong), Err(Failure::Usage(_))), "{wrong:?}");
        }
    }

    #[test]
    fn a_change_concerns_what_it_touches() {
        let patch = "diff --git a/dml-core/src/a.rs b/dml-core/src/a.rs\n--- a/dml-core/src/a.rs\n+++ b/dml-core/src/a.rs\n";
        let killers = killers(killer::ROWS);
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
        ] {
            let touched = [file.to_owned()].into();
            assert_eq!(is_concerned(name, patch, Some(&killers[name]), &touched), is_so, "{file} {name}");
        }
        assert!(!is_concerned("first", patch, None, &BTreeSet::new()));
    }

    #[test]
    fn every_patch_has_a_row_with_a_test_that_is_there() {
        let root = repository_root();
        let killers = killers(&fs::read_to_string(root.join(TABLE)).unwrap());
        let mut names: BTreeSet<String> = killers.keys().cloned().collect();
        for path in patches(&root).unwrap() {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            assert!(names.remove(&name), "{name} has no row that names a test");
        }
        assert_eq!(names, BTreeSet::new(), "rows without a patch");
        for (name, killer) in killers {
            assert!(killer.is_there(&root), "{name}: there is no test {killer:?}");
        }
    }
}
