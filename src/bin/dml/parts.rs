//! The check of declared parts, by launches in another process.
//!
//! ```text
//!   dml run ──▶ parts that the sources do not prove? ──▶ the same command with DML_CHECKS_PARTS ──▶ exit status
//! ```
//! A kernel that leaves its arrays may end the process.

use crate::cli::RunOptions;
use crate::failure::Failure;
use dml::app::{Application, Prepared};
use dml::scheduler::Knowledge;
use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Set for the process that launches kernels to check their parts, to the kernels that it checks.
const CHECKING: &str = "DML_CHECKS_PARTS";
const ALL: &str = "all";
const UNPROVEN: &str = "unproven";

/// Checks the parts if this is the process that launches kernels for it. Returns whether it is.
pub(crate) fn is_check(application: &Application, prepared: &mut Prepared) -> Result<bool, Failure> {
    let Some(which) = env::var_os(CHECKING) else { return Ok(false) };
    let unproven = application.unproven();
    let is_meant = |kernel: &str| which != UNPROVEN || unproven.contains(&kernel);
    let unseen = prepared.check_parts(is_meant).map_err(Failure::usage)?;
    unseen.iter().for_each(|note| eprintln!("dml: note: {note}"));
    Ok(true)
}

/// Checks the parts of all kernels.
pub(crate) fn check_all(application: &Application) -> Result<(), Failure> {
    check(application, ALL)?.map_err(|ended| {
        let why = "a kernel probably accesses elements outside of an array, such as by work-items past the last one";
        Failure::Usage(format!("{ended}: {why}"))
    })
}

/// Checks declared parts that the sources do not prove, once for a file with its sources and inputs.
pub(crate) fn check_unproven(
    options: &RunOptions,
    application: &Application,
    devices: &[String],
) -> Result<(), Failure> {
    let unproven = application.unproven();
    if options.unchecked || unproven.is_empty() {
        return Ok(());
    }
    let mark = if options.no_knowledge { None } else { mark(application, devices) };
    if mark.as_ref().is_some_and(|mark| mark.exists()) {
        return Ok(());
    }
    let kernels = unproven.join(", ");
    eprintln!(
        "dml: note: first checking declared parts of {kernels}, which the source does not prove (--unchecked: not)"
    );
    match check(application, UNPROVEN)? {
        Ok(()) => application.contradictions().iter().for_each(|note| {
            eprintln!("dml: note: {note}; the check found nothing wrong");
        }),
        Err(ended) => eprintln!("dml: note: the parts are not checked: {ended}"),
    }
    if let Some(mark) = mark
        && let Some(folder) = mark.parent()
        && let Err(error) = fs::create_dir_all(folder).and_then(|()| fs::write(&mark, ""))
    {
        eprintln!("dml: note: the next run checks the parts again: {}: {error}", mark.display());
    }
    Ok(())
}

/// Returns how the process of the check ended, if a kernel ended it.
fn check(application: &Application, which: &str) -> Result<Result<(), String>, Failure> {
    let mut command = Command::new(env::current_exe().map_err(Failure::work)?);
    command.args(env::args_os().skip(1)).env(CHECKING, which).stdout(Stdio::null());
    let status = command.status().map_err(Failure::work)?;
    match status.code() {
        Some(0) => Ok(Ok(())),
        // It has said why.
        Some(2) => Err(Failure::Usage(format!("{} has mistakes", application.name()))),
        _ => Ok(Err(format!("the process of the check ended ({status})"))),
    }
}

/// Returns the file that says that these parts were checked, beside the knowledge of earlier runs.
fn mark(application: &Application, devices: &[String]) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    devices.hash(&mut hasher);
    application.parameters().for_each(|(name, value)| (name, value.to_bits()).hash(&mut hasher));
    for input in application.inputs() {
        let known = fs::metadata(input).ok()?;
        (fs::canonicalize(input).ok()?, known.len(), known.modified().ok()?).hash(&mut hasher);
    }
    let knowledge = Knowledge::of_this_machine();
    Some(knowledge.file()?.with_file_name("checked").join(format!("{:016x}", hasher.finish())))
}
