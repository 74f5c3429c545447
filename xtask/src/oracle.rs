//! `cargo xtask oracle`: the access analysis against Oclgrind's simulations of kernels.
//!
//! Oclgrind loads a plug-in of ours that prints each access. The plug-in is compiled for its headers.

use crate::Failure;
use crate::shell::{Outcome, Report, cargo, find_program, output_of, repository_root};
use crate::test;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// System packages with the simulator and its headers.
const PACKAGES: &[&str] = &["oclgrind", "liboclgrind-dev", "opencl-c-headers"];
/// The environment variable with the path of the plug-in.
pub(crate) const PLUGIN: &str = "DML_ORACLE";
/// Compilers of C++ that build the plug-in.
const COMPILERS: [&str; 3] = ["c++", "g++", "clang++"];

/// Compares all kernels of the tests with their simulations.
///
/// # Errors
/// [`Failure::Work`] if one differs or the simulator is missing, [`Failure::Usage`] with arguments.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    if let Some(argument) = arguments.first() {
        return Err(Failure::Usage(format!("oracle: unknown argument `{argument}`")));
    }
    let mut report = Report::default();
    let mut command =
        cargo(["test", "--release", "--package", "dml-analysis", "--test", "kernels", "oracle", "--"]);
    command.args(["--include-ignored", "--nocapture"]);
    match plugin(true) {
        Ok(plugin) => {
            command.env(PLUGIN, plugin);
            report.command("oracle", command);
        }
        Err(why) => report.step("oracle", || Outcome::Failed(why)),
    }
    report.finish()
}

/// Returns the path of the plug-in, which is built if it is not there.
///
/// # Errors
/// What is missing.
pub(crate) fn plugin(may_install: bool) -> Result<PathBuf, String> {
    if find_program("oclgrind-kernel").is_none() {
        let packages = PACKAGES.join(" ");
        if !may_install {
            return Err(format!("no oclgrind-kernel; {packages} not installed because of --no-install"));
        }
        eprintln!("Oclgrind: installing {packages}");
        test::install(PACKAGES).map_err(|why| format!("{packages} could not be installed: {why}"))?;
    }
    let compiler = COMPILERS.into_iter().find(|compiler| find_program(compiler).is_some());
    let compiler = compiler.ok_or("no compiler of C++ for its plug-in")?;
    let folder = repository_root().join("target/oracle");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let plugin = folder.join("libaccesses.so");
    let mut command = Command::new(compiler);
    // The simulator is built without run-time types.
    command.args(["-std=c++17", "-O1", "-fno-rtti", "-shared", "-fPIC", "-I/usr/include/oclgrind", "-o"]);
    command.arg(&plugin).arg(repository_root().join("dml-analysis/oracle/accesses.cpp")).arg("-loclgrind");
    output_of(&mut command).ok_or_else(|| format!("{compiler} cannot build its plug-in: {PACKAGES:?}"))?;
    Ok(plugin)
}
