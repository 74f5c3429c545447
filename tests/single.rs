//! `dml reproduce single` as people meet it.

#![cfg(not(dml_loom))]

use dml_workloads::single::Length;
use serde_json::Value;
use std::path::Path;

mod program;
use program::{dml, folder};

/// What a command that succeeds prints.
fn printed(folder: &Path, arguments: &[&str]) -> String {
    let output = dml(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The names of the devices that the machine has.
fn devices(folder: &Path) -> Vec<String> {
    let found: Value = serde_json::from_str(&printed(folder, &["devices", "--json"])).expect("JSON");
    let found = found["devices"].as_array().expect("a list").iter();
    let names: Vec<_> = found.map(|device| device["name"].as_str().expect("a name").to_owned()).collect();
    let expected = std::env::var("DML_EXPECT").is_ok_and(|all| all.split(',').any(|one| one == "opencl"));
    assert!(names.iter().any(|name| name == "opencl:0") || !expected, "DML_EXPECT says that OpenCL is there");
    names
}

#[test]
fn every_device_is_measured_or_left_out_with_a_reason() {
    let folder = folder("single_all");
    let (measured, others): (Vec<_>, Vec<_>) = devices(&folder)
        .into_iter()
        .partition(|name| name == "cpu" || name.starts_with("opencl:") || name.starts_with("cuda:"));
    let arguments = ["reproduce", "single", "--size", "tiny", "--runs", "1", "--json"];
    let result: Value = serde_json::from_str(&printed(&folder, &arguments)).expect("JSON");
    assert_eq!(
        (&result["table"], &result["workload"], &result["size"], &result["memory"], &result["runs"]),
        (&"single".into(), &"matmul".into(), &"tiny".into(), &"auto".into(), &1.into())
    );
    assert_eq!((&result["verified"], &result["missed"]), (&true.into(), &0.into()));
    let rows = result["rows"].as_array().expect("a list");
    let expected = measured.iter().flat_map(|name| Length::ALL.map(|length| (name.as_str(), length)));
    let found = rows.iter().map(|row| (row["device"].as_str(), row["length"].as_str()));
    assert!(found.eq(expected.clone().map(|(name, length)| (Some(name), Some(length.name())))), "{result}");
    for (row, (_, length)) in rows.iter().zip(expected) {
        let number = |value: &Value| value.as_f64().expect("a number");
        assert_eq!(row["pairs"], length.pairs_per_round(), "{row}");
        for side in ["hand", "dml"] {
            let [min, median, max] =
                ["seconds_min", "seconds", "seconds_max"].map(|name| number(&row[side][name]));
            assert!(0.0 < min && min <= median && median <= max, "{row}");
        }
        let [min, median, max] = ["ratio_min", "ratio", "ratio_max"].map(|name| number(&row[name]));
        assert!(min <= median && median <= max, "{row}");
        if length.pairs_per_round() == 1 {
            let [hand, dml] = ["hand", "dml"].map(|side| number(&row[side]["seconds"]));
            assert!(
                (median - dml / hand).abs() < 1e-9 && (number(&row["more_s"]) - (dml - hand)).abs() < 1e-9
            );
        }
        assert!(row["goal"].is_null() && row["kept"].is_null(), "goals are those of whole lengths: {row}");
    }
    let left_out = result["left_out"].as_array().expect("a list");
    let names = left_out.iter().map(|left| left["device"].as_str().expect("a name"));
    assert!(names.eq(others.iter().map(String::as_str)), "{result}");
    assert!(left_out.iter().all(|left| left["reason"].as_str().is_some_and(|reason| !reason.is_empty())));
}

#[test]
fn the_table_is_text_or_markdown() {
    let folder = folder("single_printed");
    let arguments = ["reproduce", "single", "--size", "tiny", "--runs", "1", "--devices", "cpu"];
    let text = printed(&folder, &arguments);
    assert!(
        text.starts_with("single: matmul, tiny size, memory auto;") && text.contains("by hand"),
        "{text}"
    );
    let markdown = printed(&folder, &[&arguments[..], &["--markdown"]].concat());
    let lines: Vec<_> = markdown.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(lines.len(), 2 + Length::ALL.len(), "{markdown}");
    assert!(lines.iter().all(|line| line.matches('|').count() == 10), "{markdown}");
}

#[test]
fn a_wrong_request_is_named_and_exits_with_2() {
    let folder = folder("single_refused");
    let worker = devices(&folder).contains(&"offload:0".to_owned());
    let worker =
        worker.then_some((&["single", "--devices", "offload:0"][..], "offload:0 has no hand-written form"));
    let refused = [
        (&["single", "--devices", "tpu:3"][..], "tpu:3"),
        (&["single", "--devices", "cpu,cpu"], "twice"),
        (&["single", "--runs", "0"], "0"),
        (&["single", "--memory", "unified"], "unified"),
        (&["single", "--policy", "static"], "--policy does not apply to single"),
        (&["single", "--output", "."], "--output does not apply to single"),
        (&["table1", "--memory", "bound"], "--memory does not apply to table1"),
    ];
    for (arguments, named) in refused.into_iter().chain(worker) {
        let output = dml(&folder, &[&["reproduce"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(
            said.contains(named) && output.stdout.is_empty(),
            "{arguments:?} does not name {named:?}: {said}"
        );
    }
}
