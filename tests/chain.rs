//! `dml bench chain`, on the devices of the machine.

#![cfg(not(dml_loom))]

mod program;

use program::{dml, folder};
use serde_json::Value;

/// A chain is measured on each device with compiled kernels, and refused where there is none.
#[test]
fn a_chain_of_kernels_stands_beside_the_same_by_hand() {
    let folder = folder("chain");
    let line = ["bench", "chain", "--kernels", "10", "--runs", "1", "--json"];
    let devices = json(&folder, &["devices", "--json"])["devices"].clone();
    let has_opencl = devices.as_array().expect("a list").iter().any(|device| device["name"] == "opencl:0");
    if !has_opencl {
        let output = dml(&folder, &line);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        return;
    }
    let found = json(&folder, &[&line[..], &["--devices", "opencl:0"]].concat());
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

fn json(folder: &std::path::Path, arguments: &[&str]) -> Value {
    let output = dml(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}
