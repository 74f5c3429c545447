//! `cargo xtask loom`, `tsan` and `asan`: one thin function for each checker that needs a build of its own.
//!
//! | checker | sees | runs |
//! |---|---|---|
//! | loom | every interleaving and memory order of a small model | `tests/loom`, compiled to nothing elsewhere |
//! | ThreadSanitizer | the data races of the runs it watches | the targets in [`THREADED_TESTS`] |
//! | AddressSanitizer | use after free, overruns | the unit tests of every crate, and the targets in [`HOSTILE_TESTS`] |
//!
//! Each builds into a folder of its own under the target folder, so that switching between them rebuilds nothing.

use crate::Failure;
use crate::shell::{Outcome, Report, cargo, has_cargo_subcommand, output_of, repository_root, run};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The integration tests of the root package that use threads in earnest.
const THREADED_TESTS: &[&str] = &["concurrency"];

/// The integration tests that AddressSanitizer watches, by their packages.
const HOSTILE_TESTS: &[(&str, &[&str])] =
    &[("dml", &["hostile", "topologies"]), ("dml-arenas", &["offload", "fork_opencl"])];

/// What the tests need of the sanitizer. Core leaks what an arena that broke its contract could still touch. A child that a signal
/// ends is what the tests of forks look for. PoCL's threads give up the signal stack that the sanitizer would free as they end.
const SANITIZER_OPTIONS: &str = "detect_leaks=0:handle_segv=0:use_sigaltstack=0";

/// What selects the models, with the only feature that they are about: the build of the others would take longer than the models.
const MODEL_TEST: &[&str] =
    &["--package", "dml", "--no-default-features", "--features", "offload", "--test", "loom"];

/// Of other people's packages only loom is at work in a model; to optimise the others takes longer than they then save.
const MODEL_PROFILE: &[&str] = &[
    "--config",
    "profile.test.package.\"*\".opt-level=0",
    "--config",
    "profile.test.package.loom.opt-level=1",
];

/// The only target the sanitizers are run on.
const SANITIZED_TARGET: &str = "x86_64-unknown-linux-gnu";

/// `cargo xtask loom [FILTER]`: every model, each in its own process, for loom keeps its state in the process; each says
/// how many interleavings it has.
///
/// What it covers: the real lock, queue, grants, acquires and futures, and whether two accesses to the same bytes are
/// always ordered. What it cannot: more than a few threads and operations, order that comes from reference counts, time
/// limits that pass, and interleavings with more than LOOM_MAX_PREEMPTIONS (3) where a model has that bound.
///
/// # Errors
/// [`Failure::Work`] if a model fails or none matches, [`Failure::Usage`] if there is more than one filter.
pub(crate) fn models(arguments: &[String]) -> Result<(), Failure> {
    let filter = filter_of(arguments)?;
    let mut report = Report::default();
    if has_cargo_subcommand("nextest") {
        let mut command = model_command(&["nextest", "run"]);
        command.args(["--no-fail-fast", "--success-output=immediate"]).args(filter);
        report.command("loom", command);
    } else {
        report.step("loom", || one_process_each(filter));
    }
    report.finish()
}

/// Every model, as one step of a longer report.
pub(crate) fn all_models(report: &mut Report) {
    if has_cargo_subcommand("nextest") {
        let mut command = model_command(&["nextest", "run"]);
        command.arg("--no-fail-fast");
        report.command("loom", command);
    } else {
        report.step("loom", || one_process_each(None));
    }
}

/// What nextest does, for machines without it: lists the models and runs them one by one.
fn one_process_each(filter: Option<&str>) -> Outcome {
    let mut list = model_command(&["test"]);
    list.arg("--").args(filter).args(["--list", "--format=terse"]);
    let Some(listing) = output_of(&mut list) else {
        return Outcome::Failed("the models could not be listed".to_owned());
    };
    let names = listed_tests(&listing);
    let failed: Vec<_> = names
        .iter()
        .filter(|name| {
            let mut one = model_command(&["test"]);
            one.args(["--", "--exact", "--nocapture", name]);
            run(&mut one).is_err()
        })
        .copied()
        .collect();
    match (names.len(), failed.len()) {
        (0, _) => Outcome::Failed("no model matches".to_owned()),
        (_, 0) => Outcome::Passed,
        (all, some) => Outcome::Failed(format!("{some} of {all} models: {}", failed.join(", "))),
    }
}

/// The names in what a test binary prints for `--list --format=terse`.
fn listed_tests(listing: &str) -> Vec<&str> {
    listing.lines().filter_map(|line| line.strip_suffix(": test")).collect()
}

fn model_command(subcommand: &[&str]) -> Command {
    let mut command = cargo(subcommand);
    command.args(MODEL_TEST).args(MODEL_PROFILE);
    command.arg("--target-dir").arg(target_folder("loom"));
    command.env("RUSTFLAGS", with_inherited_flags("--cfg dml_loom"));
    if env::var_os("LOOM_MAX_PREEMPTIONS").is_none() {
        command.env("LOOM_MAX_PREEMPTIONS", "3");
    }
    command
}

/// `cargo xtask tsan [FILTER]`: the threaded tests under ThreadSanitizer.
///
/// With the rust-src component std is built with the sanitizer too. Without it the sanitizer cannot see how std orders
/// its accesses: `tsan-suppressions.txt` names the false alarms, but those of `std::thread::scope` and `std::sync::mpsc`
/// show in the code of the tests and cannot be told from real ones.
///
/// # Errors
/// [`Failure::Work`] if a test fails or races, [`Failure::Usage`] if there is more than one filter.
pub(crate) fn thread_sanitizer(arguments: &[String]) -> Result<(), Failure> {
    let filter = filter_of(arguments)?;
    let mut report = Report::default();
    let std_sources = rust_sources_installed();
    for test in THREADED_TESTS {
        let mut command = sanitized_test("thread", "tsan");
        command.args(["--package", "dml", "--test", test]).args(filter);
        if std_sources {
            command.arg("-Zbuild-std");
        } else if env::var_os("TSAN_OPTIONS").is_none() {
            let suppressions = repository_root().join("xtask/tsan-suppressions.txt");
            command.env("TSAN_OPTIONS", format!("suppressions={}", suppressions.display()));
        }
        report.command(&format!("tsan: {test}"), command);
    }
    if !std_sources {
        report.note(
            "rust-src: std is not instrumented, races reported through std::thread::scope and std::sync::mpsc \
             may be false (rustup component add rust-src)",
        );
    }
    report.finish()
}

/// `cargo xtask asan [FILTER]`: the unit tests of every crate, the hostile plug-ins, the random topologies and the forks under
/// AddressSanitizer. Leaks are looked for in the unit tests alone.
///
/// # Errors
/// [`Failure::Work`] if a test fails or misuses memory, [`Failure::Usage`] if there is more than one filter.
pub(crate) fn address_sanitizer(arguments: &[String]) -> Result<(), Failure> {
    let filter = filter_of(arguments)?;
    let mut command = sanitized_test("address", "asan");
    command
        .args(["--workspace", "--lib", "--no-fail-fast"])
        .args(filter)
        .env("ASAN_OPTIONS", SANITIZER_OPTIONS);
    let mut report = Report::default();
    report.command("asan: unit tests", command);
    for (package, tests) in HOSTILE_TESTS {
        let mut command = sanitized_test("address", "asan");
        command.args(["--package", package, "--no-fail-fast"]).env("ASAN_OPTIONS", SANITIZER_OPTIONS);
        command.args(tests.iter().flat_map(|test| ["--test", test])).args(filter);
        report.command(&format!("asan: {}", tests.join(", ")), command);
    }
    report.finish()
}

/// `cargo test` with a sanitizer, which the stable compiler has but does not let one ask for by itself.
fn sanitized_test(sanitizer: &str, folder: &str) -> Command {
    let mut command = cargo(["test", "--target", SANITIZED_TARGET, "--target-dir"]);
    command.arg(target_folder(folder));
    // ThreadSanitizer sees into the locks that are chosen so.
    let flags = format!("-Zsanitizer={sanitizer} -Cunsafe-allow-abi-mismatch=sanitizer --cfg dml_tsan");
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", with_inherited_flags(&flags));
    command
}

/// Are the sources of std there, so that std can be built with the sanitizer?
fn rust_sources_installed() -> bool {
    output_of(Command::new("rustc").args(["--print", "sysroot"]).current_dir(repository_root()))
        .is_some_and(|root| Path::new(root.trim()).join("lib/rustlib/src/rust/library/Cargo.lock").is_file())
}

fn filter_of(arguments: &[String]) -> Result<Option<&str>, Failure> {
    match arguments {
        [] => Ok(None),
        [filter] if !filter.starts_with('-') => Ok(Some(filter)),
        _ => Err(Failure::Usage(format!("at most one filter, not `{}`", arguments.join(" ")))),
    }
}

fn target_folder(name: &str) -> PathBuf {
    let base = env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    repository_root().join(base).join(name)
}

fn with_inherited_flags(flags: &str) -> String {
    match env::var("RUSTFLAGS") {
        Ok(inherited) if !inherited.trim().is_empty() => format!("{inherited} {flags}"),
        _ => flags.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_are_taken_from_a_listing() {
        let listing = "i01_two_writers: test\ndeep::wait: test\nspeed: benchmark\n\n2 tests, 1 benchmark\n";
        assert_eq!(listed_tests(listing), ["i01_two_writers", "deep::wait"]);
    }

    #[test]
    fn a_filter_is_one_word_and_no_option() {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        assert_eq!(filter_of(&[]), Ok(None));
        assert_eq!(filter_of(&owned(&["i04"])), Ok(Some("i04")));
        assert!(filter_of(&owned(&["--release"])).is_err());
        assert!(filter_of(&owned(&["a", "b"])).is_err());
    }

    #[test]
    fn each_checker_builds_into_its_own_folder_of_the_repository() {
        let folders = ["loom", "tsan", "asan"].map(target_folder);
        assert!(folders.iter().all(|folder| folder.is_absolute()));
        assert!(folders[0] != folders[1] && folders[1] != folders[2]);
    }
}
