//! `dml bench --trace`, `--html` and `dml report`, as people meet them.

#![cfg(not(dml_loom))]

use dml::timeline::Trace;
use serde_json::Value;
use std::path::Path;

mod program;
use program::{dml, folder};

fn ok(folder: &Path, arguments: &[&str]) -> String {
    let output = dml(folder, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&ok(folder, arguments)).expect("--json prints one JSON value")
}

/// What a failing command says, having checked its exit code.
fn fails(folder: &Path, code: i32, arguments: &[&str]) -> String {
    let output = dml(folder, arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    assert!(output.stdout.is_empty(), "{arguments:?} printed a result as well");
    errors
}

/// The trace is of the run whose figures are printed, and the page of `--html` is that of `dml report`.
#[test]
fn a_bench_writes_its_median_run_and_a_report_draws_it() {
    let folder = folder("bench");
    let bench = json(
        &folder,
        &[
            "bench",
            "mandelbrot",
            "--size",
            "tiny",
            "--runs",
            "3",
            "--policy",
            "dynamic:6",
            "--json",
            "--trace",
            "run.json",
            "--html",
            "run.html",
        ],
    );
    assert_eq!((&bench["trace"], &bench["html"]), (&"run.json".into(), &"run.html".into()));
    let text = std::fs::read_to_string(folder.join("run.json")).expect("it was written");
    let trace = Trace::read(&text).expect("its own trace");
    assert_eq!((trace.label.as_str(), trace.policy.as_str()), ("mandelbrot", "dynamic:6"));
    assert_eq!(
        bench["coexec_s"].as_f64().map(|seconds| (seconds * 1e9).round() as u64),
        Some(trace.total_ns)
    );
    let devices = bench["devices"].as_array().expect("a list");
    assert_eq!(devices.len(), trace.devices.len());
    for (printed, device) in devices.iter().zip(&trace.devices) {
        assert_eq!(
            (&printed["name"], &printed["arena"]),
            (&device.name.as_str().into(), &arena(&trace, device.arena).into())
        );
        assert_eq!(
            (&printed["packages"], &printed["items"]),
            (&device.packages.into(), &device.items.into())
        );
        let alone = device.alone_ns.expect("each ran alone");
        assert_eq!(printed["alone_s"].as_f64().map(|seconds| (seconds * 1e9).round() as u64), Some(alone));
    }
    let summary = trace.summary();
    assert!(
        (summary.efficiency.expect("all ran alone") - bench["efficiency"].as_f64().expect("a number")).abs()
            < 1e-6
    );
    // The transfers are those that were counted.
    for row in bench["transfers"].as_array().expect("a list") {
        let of_pair = summary.links.iter().filter(|link| link.from == row["from"] && link.to == row["to"]);
        let (bytes, copies) = of_pair.fold((0, 0), |sum, link| (sum.0 + link.bytes, sum.1 + link.copies));
        assert_eq!((&row["bytes"], &row["copies"]), (&bytes.into(), &copies.into()), "{row}");
    }
    let said = ok(&folder, &["report", "run.json", "-o", "again.html"]);
    for finding in trace.findings() {
        assert!(said.contains(&finding.text), "{said}");
    }
    let page = |name: &str| std::fs::read_to_string(folder.join(name)).expect("it was written");
    assert_eq!(page("again.html"), page("run.html"));
    // By default the page stands beside the trace.
    let reported = json(&folder, &["report", "run.json", "--json"]);
    assert_eq!((&reported["html"], &reported["trace"]), (&"run.html".into(), &"run.json".into()));
    assert_eq!(reported["summary"]["balance"].as_f64(), Some(summary.balance));
    assert_eq!(reported["findings"][0]["kind"], "outcome");
}

fn arena(trace: &Trace, index: Option<usize>) -> String {
    index.map_or_else(String::new, |index| trace.arenas[index].name.clone())
}

/// Without the options nothing is written, and the JSON says so.
#[test]
fn a_bench_without_the_options_writes_no_trace() {
    let folder = folder("without");
    let bench =
        json(&folder, &["bench", "saxpy", "--size", "100", "--runs", "1", "--devices", "cpu", "--json"]);
    assert_eq!((&bench["trace"], &bench["html"]), (&Value::Null, &Value::Null));
    let files: Vec<_> =
        std::fs::read_dir(&folder).expect("its own").flatten().map(|file| file.file_name()).collect();
    assert!(files.iter().all(|name| name == "cache"), "{files:?}");
}

#[test]
fn what_cannot_be_reported_is_named() {
    let folder = folder("bad");
    let write = |name: &str, text: &[u8]| std::fs::write(folder.join(name), text).expect("its own folder");
    write("empty.json", b"");
    write("other.json", b"{\"traceEvents\":[{\"ph\":\"X\"}]}");
    write("binary.json", &[0x50, 0x4b, 3, 4, 0xff, 0xfe]);
    write("newer.json", b"{\"dml\":{\"format\":\"dml-trace\",\"version\":7,\"all\":\"new\"}}");
    write("cut.json", b"{\"traceEvents\":[],\n\"dml\":{\"format\":\"dml-tr");
    write("page.html", b"<html>");
    for (arguments, named) in [
        (&["report"][..], &["TRACE"][..]),
        (&["report", "none.json"], &["none.json", "No such file"]),
        (&["report", "."], &["cannot read"]),
        (&["report", "empty.json"], &["empty.json", "it is empty"]),
        (&["report", "other.json"], &["other.json", "another program"]),
        (&["report", "binary.json"], &["binary.json", "byte 4"]),
        (&["report", "newer.json"], &["newer.json", "version 7", "newer dml"]),
        (&["report", "cut.json"], &["cut.json", "truncated", "line 2"]),
        (&["report", "page.html"], &["page.html", "would replace"]),
        (&["report", "page.html", "-o", "x.html"], &["page.html", "invalid JSON at line 1, column 1"]),
        (&["bench", "all", "--trace", "t.json"], &["unexpected argument '--trace'"]),
        (&["bench", "saxpy", "vecadd", "--html", "t.html"], &["--html", "one file"]),
        (&["bench", "saxpy", "--html", "t", "--trace", "t"], &["--trace and --html", "one file: t"]),
        (&["bench", "offload", "--trace", "t.json"], &["unexpected argument '--trace'"]),
        (&["bench", "never-loses", "--html", "t.html"], &["unexpected argument '--html'"]),
    ] {
        let said = fails(&folder, 2, arguments);
        assert!(
            named.iter().all(|named| said.contains(named)),
            "{arguments:?} does not name {named:?}: {said}"
        );
    }
    assert_eq!(std::fs::read(folder.join("page.html")).expect("untouched"), b"<html>");
}
