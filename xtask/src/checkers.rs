//! `cargo xtask loom`, `tsan` and `asan`: the checkers that need separate builds.
//!
//! | checker | detects | runs |
//! |---|---|---|
//! | loom | errors in any interleaving and memory order of a small model | `tests/loom` (`--cfg dml_loom`) |
//! | ThreadSanitizer | data races in the observed executions | the targets in [`THREADED_TESTS`] |
//! | AddressSanitizer | use after free, overruns | all unit tests, and the targets in [`HOSTILE_TESTS`] |
//!
//! Each builds into its own folder under the target folder, so that switching between them rebuilds nothing.

use crate::Failure;
use crate::shell::{Outcome, Report, cargo, has_cargo_subcommand, output_of, repository_root, run};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Integration tests of the root package for ThreadSanitizer.
const THREADED_TESTS: &[&str] = &["concurrency", "submitting"];

/// Integration tests for AddressSanitizer, by package.
const HOSTILE_TESTS: &[(&str, &[&str])] =
    &[("dml", &["hostile", "topologies"]), ("dml-arenas", &["offload", "fork_opencl"])];

/// Options of AddressSanitizer. Core deliberately leaks memory that an arena which broke its contract could
/// still access. The fork tests expect children that are killed by a signal. PoCL's threads disable the
/// alternate signal stack that the sanitizer would free when they end.
const SANITIZER_OPTIONS: &str = "detect_leaks=0:handle_segv=0:use_sigaltstack=0";

/// Arguments that select the models, with the only feature that they test. Building the other features would
/// take longer than running the models.
const MODEL_TEST: &[&str] =
    &["--package", "dml", "--no-default-features", "--features", "offload", "--test", "loom"];

/// Profile of the dependencies. Models spend their time in loom, so only loom is worth optimising.
const MODEL_PROFILE: &[&str] = &[
    "--config",
    "profile.test.package.\"*\".opt-level=0",
    "--config",
    "profile.test.package.loom.opt-level=1",
];

/// The only target of the sanitizers.
const SANITIZED_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Runs `cargo xtask loom [FILTER]`: every model, each in its own process, because loom's state is global.
/// Each model prints its number of interleavings.
///
/// It covers the production lock, queue, grants, acquires and futures, and checks that accesses to the same
/// bytes are ordered. It does not cover more than a few threads and operations, ordering by reference counts,
/// or expiring timeouts. Where a model has a bound, it omits interleavings with more than
/// LOOM_MAX_PREEMPTIONS (3) preemptions.
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

/// Runs every model, as one step of a longer report.
pub(crate) fn all_models(report: &mut Report) {
    if has_cargo_subcommand("nextest") {
        let mut command = model_command(&["nextest", "run"]);
        command.arg("--no-fail-fast");
        report.command("loom", command);
    } else {
        report.step("loom", || one_process_each(None));
    }
}

/// Runs each model in its own process, for machines without nextest.
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

/// Parses the test names that a test program prints for `--list --format=terse`.
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

/// Runs `cargo xtask tsan [FILTER]`: the threaded tests under ThreadSanitizer.
///
/// With the rust-src component, std is instrumented as well. Without it, the sanitizer does not see the
/// synchronization inside std, and reports false races. `tsan-suppressions.txt` lists those in std's own
/// code. Those of `std::thread::scope` and `std::sync::mpsc` look like real races in the tests' code.
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
            // Tests that run at once share statics, which std initialises.
            command.env("RUST_TEST_THREADS", "1");
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

/// Runs `cargo xtask asan [FILTER]`: the unit tests of every crate, the hostile plug-ins, the random
/// topologies and the forks under AddressSanitizer, without leak detection.
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

/// Returns a `cargo test` command with a sanitizer. `RUSTC_BOOTSTRAP` enables its unstable flags on the
/// stable compiler.
fn sanitized_test(sanitizer: &str, folder: &str) -> Command {
    let mut command = cargo(["test", "--target", SANITIZED_TARGET, "--target-dir"]);
    command.arg(target_folder(folder));
    // `dml_tsan` selects locks that ThreadSanitizer can instrument.
    let flags = format!("-Zsanitizer={sanitizer} -Cunsafe-allow-abi-mismatch=sanitizer --cfg dml_tsan");
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", with_inherited_flags(&flags));
    command
}

/// Returns whether the sources of std are installed, so that std can be built with the sanitizer.
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
