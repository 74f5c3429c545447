//! The suite on devices together: every workload verified, with every configuration of memory.

#![cfg(not(dml_loom))]

mod program;

use dml_workloads::prepare::Workload;
use program::{dml, folder};
use serde_json::Value;
use std::path::Path;

/// What the command prints with `--json`.
fn printed(folder: &Path, arguments: &[&str]) -> Value {
    let output = dml(folder, &[arguments, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    serde_json::from_slice(&output.stdout).expect("--json prints one JSON value")
}

/// One device of each kind that this machine has. All three have to be there where `DML_EXPECT` says so.
fn devices(folder: &Path) -> String {
    let found = printed(folder, &["devices"]);
    let is_there =
        |name: &&str| found["devices"].as_array().expect("a list").iter().any(|one| one["name"] == **name);
    let expected = std::env::var("DML_EXPECT").is_ok_and(|all| all.split(',').any(|one| one == "opencl"));
    assert!(is_there(&"opencl:0") || !expected, "DML_EXPECT says that OpenCL is there");
    let names: Vec<_> = ["cpu", "opencl:0", "offload:0"].into_iter().filter(is_there).collect();
    names.join(",")
}

/// Every workload at its tiny size on a device of each kind. The work is split evenly, so that all of them
/// compute.
fn every_workload_is_verified(memory: &str) {
    let folder = folder(&format!("suite_{memory}"));
    let devices = devices(&folder);
    for workload in Workload::ALL {
        let result = printed(
            &folder,
            &[
                "bench",
                workload.name(),
                "--size",
                "tiny",
                "--devices",
                &devices,
                "--memory",
                memory,
                "--policy",
                "dynamic:12",
                "--runs",
                "2",
            ],
        );
        assert_eq!((&result["verified"], &result["memory"]), (&Value::Bool(true), &Value::from(memory)));
        assert_eq!(result["failures"], Value::Array(vec![]), "{workload}");
        let of_devices = result["devices"].as_array().expect("a list");
        assert_eq!(of_devices.len(), devices.split(',').count(), "{workload}");
        let items: Option<u64> = of_devices.iter().map(|device| device["items"].as_u64()).sum();
        assert_eq!(items, result["size"]["items"].as_u64(), "{workload}");
        let picture = result["picture"].as_str().map(|name| folder.join(name));
        assert_eq!(picture.is_some(), workload.makes_picture(), "{workload}");
        assert!(picture.is_none_or(|picture| std::fs::read(picture).is_ok()), "{workload}");
    }
}

#[test]
fn every_workload_is_verified_on_all_devices_with_copies() {
    every_workload_is_verified("copy");
}

#[test]
fn every_workload_is_verified_on_all_devices_in_one_memory() {
    every_workload_is_verified("bound");
}

#[test]
fn every_workload_is_verified_on_all_devices_as_the_planner_chooses() {
    every_workload_is_verified("auto");
}

/// Of sizes that take the best device longer than no time there are no rows, so that each workload runs once,
/// at its first size.
#[test]
fn never_loses_takes_every_workload() {
    let folder = folder("suite_never_loses");
    let names = Workload::ALL.map(Workload::name);
    let arguments =
        [&["bench", "never-loses"][..], &names, &["--devices", "cpu,offload:0", "--longest", "0"]];
    let result = printed(&folder, &arguments.concat());
    assert_eq!((&result["rows"], &result["learned"]["rows"]), (&Value::Array(vec![]), &Value::from(0)));
}

/// What the runs taught is shown, and forgotten on request.
#[test]
fn what_is_known_is_shown_and_forgotten() {
    let folder = folder("knowledge");
    let bench = ["bench", "vecadd", "--devices", "cpu", "--limit", "cpu=1", "--size", "1000", "--runs", "1"];
    assert!(dml(&folder, &bench).status.success());
    let known = printed(&folder, &["knowledge"]);
    assert_eq!(known["kernels"][0]["name"], "vecadd");
    assert_eq!(known["kernels"][0]["devices"], Value::from(vec!["cpu*1"]));
    let file = known["file"].as_str().expect("there is a cache folder");
    assert!(std::fs::read_to_string(file).is_ok_and(|text| text.contains("vecadd")));
    let unknown = dml(&folder, &["knowledge", "--forget", "saxpy"]);
    assert_eq!(unknown.status.code(), Some(2));
    let told = String::from_utf8_lossy(&unknown.stderr);
    assert!(told.contains("no knowledge of a kernel \"saxpy\""), "{told}");
    for forget in [&["knowledge", "--forget", "vecadd"][..], &["knowledge", "--forget-all"]] {
        assert_eq!(printed(&folder, forget)["kernels"], Value::Array(vec![]));
    }
}
