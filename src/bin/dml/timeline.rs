//! `dml report`, and the trace and page that `dml bench` writes.

use crate::cli::{BenchFiles, ReportOptions};
use crate::failure::{self, Failure};
use crate::json;
use crate::output::{self, Unwritten};
use crate::progress::Progress;
use dml::arenas::files;
use dml::timeline::{Finding, Summary, Trace};
use dml_workloads::prepare::Workload;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The output of `dml report --json`.
#[derive(Debug, Serialize)]
struct Reported {
    trace: String,
    html: Option<String>,
    summary: Summary,
    findings: Vec<Finding>,
}

/// Draws a trace as a page, and prints its findings.
pub(crate) fn run(options: &ReportOptions) -> Result<(), Failure> {
    let path = &options.trace;
    let shown = path.display();
    let page = options.output.clone().unwrap_or_else(|| path.with_extension("html"));
    let mut progress = Progress::new(2);
    let text = output::read(path, "trace", "not a trace")?;
    if options.output.is_none() && !path.is_file() {
        return Err(Failure::Usage(format!("{shown} is a pipe: name the file for the page with -o")));
    }
    if files::are_same(path, &page) {
        let why = "name another file with -o";
        return Err(Failure::Usage(format!("the page would replace the trace {shown}: {why}")));
    }
    progress.step("report: read");
    let trace = Trace::read(&text).map_err(|error| Failure::Usage(format!("{shown}: {error}")))?;
    progress.step("report: checked");
    progress.done();
    let findings = trace.findings();
    if !options.json {
        let lines = findings.iter().map(|finding| printable(&finding.text) + "\n");
        failure::print(&lines.collect::<String>())?;
        write_page(&trace, &page)?;
        return failure::print(&format!("timeline    {}\n", page.display()));
    }
    let mut unwritten = Unwritten::default();
    let html = unwritten.name(&page, write_page(&trace, &page));
    json::print(&Reported { trace: shown.to_string(), html, summary: trace.summary(), findings })?;
    unwritten.end()
}

/// Replaces control characters, which a terminal would obey.
fn printable(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '\u{fffd}' } else { character }).collect()
}

/// Returns whether to record the runs.
pub(crate) fn is_wanted(files: &BenchFiles) -> bool {
    files.trace.is_some() || files.html.is_some()
}

/// Checks that no two files that a benchmark reads or writes are the same.
pub(crate) fn check(files: &BenchFiles, workloads: &[Workload]) -> Result<(), Failure> {
    let named = [
        ("--trace", &files.trace),
        ("--html", &files.html),
        ("--decisions", &files.decisions),
        ("--output", &files.output),
    ];
    let named = named.iter().filter_map(|(option, path)| Some((*option, path.as_deref()?)));
    let mut outputs: Vec<(&str, &Path)> = named.collect();
    if let ([(option, _), ..], 2..) = (&outputs[..], workloads.len()) {
        return Err(Failure::Usage(format!("{option} names one file: give one workload")));
    }
    let drawing = workloads.iter().filter(|workload| files.output.is_none() && workload.makes_picture());
    let pictures: Vec<PathBuf> = drawing.map(|workload| picture(*workload)).collect();
    outputs.extend(pictures.iter().map(|path| ("the picture (see --output)", &**path)));
    let inputs: Vec<(&str, &Path)> = files.input.iter().map(|path| ("--input", &**path)).collect();
    output::check(&inputs, &outputs)
}

/// Returns the default path of a workload's picture.
pub(crate) fn picture(workload: Workload) -> PathBuf {
    PathBuf::from(format!("{workload}.png"))
}

/// The files of a timeline that the options request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files<'a> {
    pub(crate) trace: Option<&'a Path>,
    pub(crate) html: Option<&'a Path>,
}

impl Files<'_> {
    /// Writes the files. Returns the names of the trace and of the page, if they were written.
    pub(crate) fn write(
        &self,
        unwritten: &mut Unwritten,
        trace: impl FnOnce() -> Result<Trace, Failure>,
    ) -> [Option<String>; 2] {
        if self.trace.is_none() && self.html.is_none() {
            return [None, None];
        }
        let trace = match trace() {
            Ok(trace) => trace,
            Err(failure) => {
                unwritten.add(&failure);
                return [None, None];
            }
        };
        let write_trace = |path: &Path| output::write(path, "trace", |file| trace.write_perfetto(file));
        let perfetto = self.trace.and_then(|path| unwritten.name(path, write_trace(path)));
        let html = self.html.and_then(|path| unwritten.name(path, write_page(&trace, path)));
        [perfetto, html]
    }
}

/// Writes the files of a benchmark, as [`Files::write`] does.
pub(crate) fn write(
    files: &BenchFiles,
    unwritten: &mut Unwritten,
    trace: impl FnOnce() -> Result<Trace, Failure>,
) -> [Option<String>; 2] {
    Files { trace: files.trace.as_deref(), html: files.html.as_deref() }.write(unwritten, trace)
}

fn write_page(trace: &Trace, path: &Path) -> Result<(), Failure> {
    output::write(path, "page", |file| trace.write_page(file))
}
