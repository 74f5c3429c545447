//! `dml report`, and what `dml bench` writes of a run: a trace, and the page that shows it.

use crate::cli::{BenchOptions, ReportOptions};
use crate::failure::{self, Failure};
use crate::json;
use crate::progress::Progress;
use dml::scheduler::timeline::{Finding, Summary, Trace};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// What `dml report --json` prints.
#[derive(Debug, Serialize)]
struct Reported {
    trace: String,
    html: String,
    summary: Summary,
    findings: Vec<Finding>,
}

/// Draws a trace.
pub(crate) fn run(options: &ReportOptions) -> Result<(), Failure> {
    let path = &options.trace;
    let output = options.output.clone().unwrap_or_else(|| path.with_extension("html"));
    let mut progress = Progress::new(3);
    let bytes = fs::read(path)
        .map_err(|error| Failure::Usage(format!("cannot read the trace {}: {error}", path.display())))?;
    if output == *path {
        return Err(Failure::Usage(format!(
            "the page would replace the trace {}: name another file with -o",
            path.display()
        )));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::Usage(format!("{}: not a trace: byte {at} is no text in UTF-8", path.display()))
    })?;
    progress.step("report: read");
    let trace = Trace::read(&text).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
    progress.step("report: checked");
    write_page(&trace, &output)?;
    progress.step("report: written");
    progress.done();
    let (trace_name, html) = (path.display().to_string(), output.display().to_string());
    if options.json {
        return json::print(&Reported {
            trace: trace_name,
            html,
            summary: trace.summary(),
            findings: trace.findings(),
        });
    }
    let findings = trace.findings();
    let lines = findings.iter().map(|finding| finding.text.as_str()).map(printable);
    let lines: Vec<String> = lines.chain([format!("timeline    {html}"), String::new()]).collect();
    failure::print(&lines.join("\n"))
}

/// What a trace says, without anything that a terminal would obey.
fn printable(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '\u{fffd}' } else { character }).collect()
}

/// Whether the runs are to be recorded.
pub(crate) fn is_wanted(options: &BenchOptions) -> bool {
    options.trace.is_some() || options.html.is_some()
}

/// Checks that each of the files is one thing.
pub(crate) fn check(options: &BenchOptions, workloads: usize) -> Result<(), Failure> {
    let files = [
        ("--trace", &options.trace),
        ("--html", &options.html),
        ("--decisions", &options.decisions),
        ("--output", &options.output),
    ];
    let given: Vec<(&str, &PathBuf)> =
        files.iter().filter_map(|(option, path)| Some((*option, path.as_ref()?))).collect();
    for (index, (option, path)) in given.iter().enumerate() {
        if workloads > 1 {
            return Err(Failure::Usage(format!("{option} names one file: give one workload")));
        }
        if let Some((other, _)) = given[..index].iter().find(|(_, other)| other == path) {
            return Err(Failure::Usage(format!("{other} and {option} are one file: {}", path.display())));
        }
    }
    Ok(())
}

/// Checks that no timeline is asked for, and no counters are named, of what has none.
pub(crate) fn check_none(options: &BenchOptions, name: &str) -> Result<(), Failure> {
    let given = [
        ("--trace", options.trace.is_some()),
        ("--html", options.html.is_some()),
        ("--powercap", options.powercap.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(Failure::Usage(format!("{option} means nothing to {name}"))),
        None => Ok(()),
    }
}

/// Writes the files that the options ask for.
pub(crate) fn write(
    options: &BenchOptions,
    trace: impl FnOnce() -> Result<Trace, Failure>,
) -> Result<(), Failure> {
    if !is_wanted(options) {
        return Ok(());
    }
    let trace = trace()?;
    if let Some(path) = &options.trace {
        let written = fs::File::create(path).and_then(|file| trace.write_perfetto(file));
        written
            .map_err(|error| Failure::Work(format!("cannot write the trace {}: {error}", path.display())))?;
    }
    options.html.as_ref().map_or(Ok(()), |path| write_page(&trace, path))
}

fn write_page(trace: &Trace, path: &Path) -> Result<(), Failure> {
    let written = fs::File::create(path).and_then(|file| trace.write_page(file));
    written.map_err(|error| Failure::Work(format!("cannot write the page {}: {error}", path.display())))
}

/// A path for people.
pub(crate) fn shown(path: &Option<PathBuf>) -> Option<String> {
    path.as_ref().map(|path| path.display().to_string())
}
