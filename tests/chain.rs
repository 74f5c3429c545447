//! `dml bench acquire`, `dml bench chain` and `dml bench pipeline`, on the devices of the machine.

#![cfg(not(dml_loom))]

mod program;

use program::{dml, folder};
use serde_json::Value;

/// Every figure of the data layer is there, and the chart is written.
#[test]
fn the_data_layer_is_measured_with_a_chart() {
    let folder = folder("acquire");
    let found = json(
        &folder,
        &["bench", "acquire", "--runs", "1", "--buffers", "10000", "--chart", "acquire.svg", "--json"],
    );
    let figures = |value: &Value| -> Vec<(String, f64)> {
        let fields = value.as_object().expect("an object").iter();
        fields.map(|(name, figure)| (name.clone(), figure.as_f64().expect("a number"))).collect()
    };
    let named = [
        ("acquire_release_ns", &["read", "read_write", "write", "read_slice", "read_view", "read_await"][..]),
        (
            "two_threads_ns",
            &[
                "different_mutexes",
                "same_mutex",
                "different_buffers",
                "same_buffer_read",
                "same_buffer_write",
            ],
        ),
        ("by_ranges_ns", &["1", "10", "1000", "100000"]),
        ("by_buffers_ns", &["1000", "10000"]),
        ("by_held_ns", &["10", "1000", "10000"]),
    ];
    for (group, names) in named {
        let figures = figures(&found[group]);
        assert!(figures.iter().all(|(_, ns)| *ns > 0.0), "{group}: {figures:?}");
        assert!(
            names.iter().all(|name| figures.iter().any(|(known, _)| known == name)),
            "{group}: {figures:?}"
        );
        assert_eq!(figures.len(), names.len(), "{group}: {figures:?}");
    }
    for name in ["mutex_pair_ns", "ten_buffers_ns", "submit_ns", "new_buffer_ns"] {
        assert!(found[name].as_f64().expect("a number") > 0.0, "{name}");
    }
    if cfg!(target_os = "linux") {
        assert!(found["buffer_bytes"].as_f64().expect("a number") > 100.0, "{found}");
    }
    let chart = std::fs::read_to_string(folder.join("acquire.svg")).expect("the chart is written");
    assert!(chart.starts_with("<svg") && chart.contains("submit a kernel"), "{chart}");
    // A file that cannot be written loses no results.
    let line = ["bench", "acquire", "--runs", "1", "--buffers", "1000", "--chart", "no/folder.svg", "--json"];
    let output = dml(&folder, &line);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && told.contains("cannot write the chart no/folder.svg"),
        "{told}"
    );
    let found: Value = serde_json::from_slice(&output.stdout).expect("the results are there");
    assert_eq!(found["runs"], 1);
}

/// A chain is measured on each device with compiled kernels, and refused where there is none.
#[test]
fn a_chain_of_kernels_stands_beside_the_same_by_hand() {
    let line = ["bench", "chain", "--kernels", "10", "--runs", "1", "--json"];
    let Some(found) = measured("chain", &line) else { return };
    let rows = found["rows"].as_array().expect("a list");
    assert_eq!((rows.len(), &found["kernels"], &found["runs"]), (9, &10.into(), &1.into()));
    assert_eq!(found["pairs"], Value::Array(Vec::new()), "one device is no pair");
    for row in rows {
        assert_eq!(row["device"], "opencl:0");
        let time = |field: &str| row[field].as_f64().expect("a number");
        let ratio = time("per_kernel_ns") / time("by_hand_ns");
        assert!((ratio / time("over_by_hand") - 1.0).abs() < 1e-9, "one round: {row}");
        assert!(time("one_grant_ns") > 0.0 && time("one_by_one_ns") > 0.0, "{row}");
    }
}

/// The ways of a pipeline stand beside each other, and its rounds are chosen if they are not given.
#[test]
fn a_pipeline_of_chunks_stands_beside_the_same_by_hand() {
    let line = ["bench", "pipeline", "--chunks", "3", "--elements", "1000", "--runs", "1", "--json"];
    for given in [&[][..], &["--rounds", "5"]] {
        let Some(found) = measured("pipeline", &[&line[..], given].concat()) else { return };
        let sizes = ["chunks", "elements", "runs"].map(|field| found[field].as_u64());
        assert_eq!(sizes, [Some(3), Some(1000), Some(1)]);
        let [row] = &found["rows"].as_array().expect("a list")[..] else { panic!("one device: {found}") };
        assert_eq!(row["device"], "opencl:0");
        let rounds = row["rounds"].as_u64().expect("an integer");
        assert!(if given.is_empty() { rounds >= 1 } else { rounds == 5 }, "{row}");
        let figure = |field: &str| row[field].as_f64().expect("a number");
        let [submitted, by_hand] = ["submitted_s", "by_hand_s"].map(figure);
        assert!((by_hand / submitted / figure("of_by_hand") - 1.0).abs() < 1e-9, "one round: {row}");
        assert!(figure("one_by_one_s") > 0.0, "{row}");
        let both = figure("transfers_s") + figure("kernels_s");
        for (whole, hidden) in [(submitted, "hidden"), (by_hand, "hidden_by_hand")] {
            let found = both - figure(hidden) * figure("transfers_s");
            assert!((found / whole - 1.0).abs() < 1e-9, "{hidden}: {row}");
        }
    }
}

/// A device that uses the host's memory in place has no transfers to hide.
#[test]
fn a_pipeline_without_transfers_is_refused() {
    let output = dml(&folder("bound"), &["bench", "pipeline", "--memory", "bound"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && told.contains("pipeline needs transfers"), "{told}");
}

/// Runs a benchmark on the OpenCL device. Where there is none, checks that the benchmark is refused.
fn measured(test: &str, line: &[&str]) -> Option<Value> {
    let folder = folder(test);
    let devices = json(&folder, &["devices", "--json"])["devices"].clone();
    let has_opencl = devices.as_array().expect("a list").iter().any(|device| device["name"] == "opencl:0");
    if has_opencl {
        return Some(json(&folder, &[line, &["--devices", "opencl:0"]].concat()));
    }
    let output = dml(&folder, line);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    None
}

fn json(folder: &std::path::Path, arguments: &[&str]) -> Value {
    let output = dml(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}
