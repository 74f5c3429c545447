//! `cargo xtask gpu-check`: what a machine with a GPU, but without a toolchain, needs to check and measure DML there.
//!
//! ```text
//!   here                                                there
//!   release builds ──▶ target/carry ── by any means ──▶ sh check.sh ──▶ results.txt
//! ```

use crate::Failure;
use crate::shell::{Outcome, Report, cargo, repository_root, run};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// The test programs that use GPUs, by package.
const TESTS: &[(&str, &[&str])] = &[
    ("dml-arenas", &["conformance", "cuda", "cuda_interop", "cuda_loss", "cuda_native"]),
    ("dml-workloads", &["single", "table1"]),
    ("dml", &["launching"]),
];

/// `cargo xtask gpu-check`: builds the command, the tests of the CUDA arenas and what measures them, and puts them beside a
/// script into `target/carry`.
///
/// What it covers: nothing by itself. The script is run where a GPU is (`sh check.sh`, no toolchain needed).
///
/// # Errors
/// [`Failure::Work`] if something cannot be built, [`Failure::Usage`] if there are arguments.
pub(crate) fn check(arguments: &[String]) -> Result<(), Failure> {
    if let Some(argument) = arguments.first() {
        return Err(Failure::Usage(format!("gpu-check takes no arguments, not `{argument}`")));
    }
    let target = repository_root().join("target");
    let folder = target.join("carry");
    let mut report = Report::default();
    let release = |arguments: &[&str]| {
        let mut command = cargo(["build", "--release"]);
        // Debug information would be most of what is carried.
        command
            .args(arguments)
            .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
            .env("CARGO_PROFILE_RELEASE_STRIP", "true");
        command
    };
    report.step("programs", || {
        let mut carried = Vec::new();
        for arguments in [&["--bin", "dml"][..], &["--package", "dml-arenas", "--example", "cuda_speed"]] {
            if let Err(reason) = run(&mut release(arguments)) {
                return Outcome::Failed(reason);
            }
        }
        let built = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| target.clone(), PathBuf::from);
        carried.extend([built.join("release/dml"), built.join("release/examples/cuda_speed")]);
        ended(carry(&folder, &carried, name_of))
    });
    report.step("tests", || {
        // One after the other: tests of several packages have the same name.
        let mut carried = Vec::new();
        for (package, tests) in TESTS {
            let mut command = cargo(["test", "--release", "--no-run", "--package", package]);
            command.env("CARGO_PROFILE_RELEASE_DEBUG", "0").env("CARGO_PROFILE_RELEASE_STRIP", "true");
            // What tests take is of no interest, and each would be linked for a minute.
            command.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
            command.args(tests.iter().flat_map(|test| ["--test", test]));
            match command.stdin(Stdio::null()).stdout(Stdio::null()).output() {
                Ok(output) if output.status.success() => {
                    carried.extend(executables(&String::from_utf8_lossy(&output.stderr)));
                }
                Ok(output) => return Outcome::Failed(String::from_utf8_lossy(&output.stderr).into_owned()),
                Err(error) => return Outcome::Failed(error.to_string()),
            }
        }
        ended(carry(&folder, &carried, test_of))
    });
    report.step("script", || {
        let script = folder.join("check.sh");
        let from = repository_root().join("xtask/src/gpu-check.sh");
        ended(fs::copy(from, script).map(|_| ()))
    });
    report.note(format!("sh check.sh, in {}, runs where a GPU is", folder.display()));
    report.finish()
}

fn ended(done: io::Result<()>) -> Outcome {
    done.map_or_else(|error| Outcome::Failed(error.to_string()), |()| Outcome::Passed)
}

/// Copies files into a folder, each under the name that it is to have there.
fn carry(folder: &Path, files: &[PathBuf], name: impl Fn(&Path) -> String) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for file in files {
        let to = folder.join(name(file));
        fs::copy(file, &to).map_err(|error| {
            io::Error::new(error.kind(), format!("{} to {}: {error}", file.display(), to.display()))
        })?;
    }
    Ok(())
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the name of a test from that of its program: `test-cuda` of `cuda-0123456789abcdef`.
fn test_of(path: &Path) -> String {
    let name = name_of(path);
    format!("test-{}", name.rsplit_once('-').map_or(name.as_str(), |(test, _)| test))
}

/// Returns the programs that `cargo test --no-run` tells of: `Executable tests/cuda.rs (target/release/deps/cuda-01ab)`.
fn executables(said: &str) -> Vec<PathBuf> {
    let programs = said.lines().filter_map(|line| {
        let line = line.trim().strip_prefix("Executable ")?;
        let (_, program) = line.rsplit_once(" (")?;
        Some(repository_root().join(program.strip_suffix(')')?))
    });
    programs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_what_cargo_says() {
        let said = "   Compiling dml-arenas v0.1.0 (/a/b)\n    Finished `release` profile\n  \
            Executable tests/cuda_loss.rs (/t/release/deps/cuda_loss-0f1e)\n";
        let found = executables(said);
        assert_eq!(found, [PathBuf::from("/t/release/deps/cuda_loss-0f1e")]);
        assert_eq!(test_of(&found[0]), "test-cuda_loss");
    }
}
