//! `cargo xtask lint`: the static checks.
//!
//! These are formatting, clippy (also of the library with only one kind of arena), rustdoc, and the licences,
//! sources and advisories of the dependencies. Every step runs even if an earlier one fails.

use crate::Failure;
use crate::shell::{Outcome, Report, cargo, has_cargo_subcommand};
use crate::test::FEATURES;

/// Runs every lint.
///
/// # Errors
/// [`Failure::Work`] if one fails, [`Failure::Usage`] if there are arguments.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    if let Some(argument) = arguments.first() {
        return Err(Failure::Usage(format!("lint takes no arguments, not `{argument}`")));
    }
    let mut report = Report::default();
    report.command("format", cargo(["fmt", "--all", "--check"]));
    report.command("format (fuzz)", cargo(["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]));
    // With the features of the test builds.
    let mut clippy = cargo(["clippy", "--workspace", "--all-targets"]);
    clippy.args(FEATURES).args(["--", "-D", "warnings"]);
    report.command("clippy", clippy);
    // A typical application enables only one of these features, and no spans.
    for arenas in ["cuda", "offload", "opencl"] {
        let alone = ["clippy", "-p", "dml", "--lib", "--no-default-features", "--features", arenas];
        let mut clippy = cargo(alone);
        clippy.args(["--", "-D", "warnings"]);
        report.command(&format!("clippy ({arenas} alone)"), clippy);
    }
    let mut doc = cargo(["doc", "--workspace", "--no-deps"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    report.command("rustdoc", doc);
    if has_cargo_subcommand("deny") {
        report.command("deny", cargo(["deny", "--workspace", "check"]));
    } else {
        report.step("deny", || Outcome::Skipped("cargo-deny is not installed".to_owned()));
        report
            .note("cargo-deny: licences, sources and advisories were not checked (cargo install cargo-deny)");
    }
    report.finish()
}
