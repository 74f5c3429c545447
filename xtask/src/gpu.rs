//! `cargo xtask gpu-check`: bundles the tests and benchmarks of GPUs for a machine without a toolchain.
//!
//! ```text
//!   this machine                                        the machine with a GPU
//!   release builds ──▶ target/carry ── copy manually ──▶ sh check.sh ──▶ results.txt
//! ```

use crate::Failure;
use crate::shell::{Outcome, Report, cargo, output_of, repository_root, run};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Test programs that use GPUs, by package.
const TESTS: &[(&str, &[&str])] = &[
    ("dml-arenas", &["conformance", "cuda", "cuda_interop", "cuda_loss", "cuda_streams"]),
    ("dml-arenas", &["opencl", "opencl_awaited", "opencl_bound", "opencl_overlap"]),
    ("dml-workloads", &["by_hand", "single", "table1"]),
    ("dml", &["kernels", "launching", "observing"]),
];

/// Arguments that select the test program which is linked against the driver, as the crate `cust` requires.
const LINKED: &[&str] = &["--package", "dml-arenas", "--features", "cust", "--test", "cuda_cust"];

/// Runs `cargo xtask gpu-check`: builds the `dml` command, the tests that use GPUs and the benchmark of the
/// CUDA arenas, and copies them with a script into `target/carry`.
///
/// This checks nothing by itself. `sh check.sh` runs the checks on a machine with a GPU, without a toolchain.
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
    report.step("programs", || {
        let mut carried = Vec::new();
        for arguments in [&["--bin", "dml"][..], &["--package", "dml-arenas", "--example", "cuda_speed"]] {
            if let Err(reason) =
                run(without_debug(&mut cargo(["build", "--profile", "dist"])).args(arguments))
            {
                return Outcome::Failed(reason);
            }
        }
        let built = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| target.clone(), PathBuf::from);
        carried.extend([built.join("dist/dml"), built.join("dist/examples/cuda_speed")]);
        ended(carry(&folder, &carried, name_of))
    });
    report.step("tests", || {
        // One package at a time, because tests of several packages have the same name.
        let mut carried = Vec::new();
        for (package, tests) in TESTS {
            let mut command = tests_of(&["--package", package]);
            match built(command.args(tests.iter().flat_map(|test| ["--test", test]))) {
                Ok(programs) => carried.extend(programs),
                Err(reason) => return Outcome::Failed(reason),
            }
        }
        ended(carry(&folder, &carried, test_of))
    });
    report.step("tests with `cust`", || {
        let linked = stand_in(&target.join("cuda-stand-in"))
            .and_then(|installation| built(tests_of(LINKED).env("CUDA_LIBRARY_PATH", installation)));
        match linked {
            Ok(programs) => ended(carry(&folder, &programs, test_of)),
            Err(reason) => Outcome::Failed(reason),
        }
    });
    report.step("script", || {
        let script = folder.join("check.sh");
        let from = repository_root().join("xtask/src/gpu-check.sh");
        ended(fs::copy(from, script).map(|_| ()))
    });
    report.note(format!("GPU checks: run sh check.sh of {} on a machine with a GPU", folder.display()));
    report.finish()
}

/// Returns the command that builds tests without running them.
fn tests_of(arguments: &[&str]) -> Command {
    let mut command = cargo(["test", "--release", "--no-run"]);
    without_debug(&mut command).args(arguments);
    command
}

/// Leaves out the debug information, which would make up most of the bundle.
fn without_debug(command: &mut Command) -> &mut Command {
    command.env("CARGO_PROFILE_RELEASE_DEBUG", "0").env("CARGO_PROFILE_RELEASE_STRIP", "true")
}

/// Builds tests and returns their programs, or the build's error output.
fn built(command: &mut Command) -> Result<Vec<PathBuf>, String> {
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output();
    let output = output.map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(executables(&said)) } else { Err(said.into_owned()) }
}

/// Builds a stub CUDA installation and returns its folder. Its library has the driver's name, with a stub for
/// each function that `cust_raw` declares. Programs linked against it load the real driver at run time.
fn stand_in(folder: &Path) -> Result<PathBuf, String> {
    let metadata =
        output_of(cargo(["metadata", "--format-version", "1", "--all-features"]).stderr(Stdio::null()));
    let metadata = metadata.ok_or("cargo metadata failed")?;
    let declarations = bindings(&metadata).ok_or("the crate cust_raw is not among the dependencies")?;
    let text =
        fs::read_to_string(&declarations).map_err(|error| format!("{}: {error}", declarations.display()))?;
    let functions = declared(&text);
    if functions.is_empty() {
        return Err(format!("{} declares no function of the driver", declarations.display()));
    }
    let libraries = folder.join("lib64");
    fs::create_dir_all(&libraries).map_err(|error| format!("{}: {error}", libraries.display()))?;
    let source = folder.join("driver.rs");
    let stubs =
        functions.iter().map(|name| format!("#[unsafe(no_mangle)] pub extern \"C\" fn {name}() {{}}\n"));
    let stubs = format!("#![allow(non_snake_case)]\n{}", stubs.collect::<String>());
    fs::write(&source, stubs).map_err(|error| format!("{}: {error}", source.display()))?;
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition", "2024", "--crate-type", "cdylib", "-Clink-arg=-Wl,-soname,libcuda.so.1", "-o"]);
    run(rustc.arg(libraries.join("libcuda.so")).arg(&source))?;
    Ok(folder.to_owned())
}

/// Returns the file in which the crate `cust_raw` declares the driver's functions. `metadata` is the output
/// of `cargo metadata`.
fn bindings(metadata: &str) -> Option<PathBuf> {
    let manifests = metadata.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    let manifest = manifests.map(Path::new).find(|manifest| {
        let folder = manifest.parent().map(name_of).unwrap_or_default();
        folder.starts_with("cust_raw-")
    })?;
    Some(manifest.with_file_name("src").join("cuda.rs"))
}

/// Returns the names of the functions that bindings declare: `    pub fn cuInit(Flags: c_uint) -> CUresult;`.
fn declared(bindings: &str) -> BTreeSet<&str> {
    let functions = bindings.lines().filter_map(|line| line.trim().strip_prefix("pub fn "));
    functions
        .filter_map(|function| function.split('(').next())
        .filter(|name| name.starts_with("cu"))
        .collect()
}

fn ended(done: io::Result<()>) -> Outcome {
    done.map_or_else(|error| Outcome::Failed(error.to_string()), |()| Outcome::Passed)
}

/// Copies files into a folder, each under its new name.
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

/// Returns the bundled name of a test program: `test-cuda` for `cuda-0123456789abcdef`.
fn test_of(path: &Path) -> String {
    let name = name_of(path);
    format!("test-{}", name.rsplit_once('-').map_or(name.as_str(), |(test, _)| test))
}

/// Parses the programs in the output of `cargo test --no-run`, in lines like
/// `Executable tests/cuda.rs (target/release/deps/cuda-01ab)`.
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

    #[test]
    fn functions_of_the_driver_are_found_where_the_crate_declares_them() {
        let metadata = r#"{"packages":[{"manifest_path":"/r/cust-0.3.2/Cargo.toml"},{"name":"cust_raw",
            "manifest_path":"/r/cust_raw-0.11.3/Cargo.toml","targets":[]}]}"#;
        assert_eq!(bindings(metadata), Some(PathBuf::from("/r/cust_raw-0.11.3/src/cuda.rs")));
        assert_eq!(bindings(r#"{"packages":[{"manifest_path":"/r/cust-0.3.2/Cargo.toml"}]}"#), None);
        let text = "extern \"C\" {\n    pub fn cuInit(Flags: c_uint) -> CUresult;\n    pub fn other();\n\
            pub fn cuMemFree_v2(\n        dptr: CUdeviceptr,\n    ) -> CUresult;\n}\n";
        assert_eq!(declared(text), BTreeSet::from(["cuInit", "cuMemFree_v2"]));
    }
}
