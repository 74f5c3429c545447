//! What the `dml` command does with GPUs of CUDA, and what it says where there is none. Tests that need one
//! say so and pass without it, unless `DML_EXPECT=cuda`.

#![cfg(not(dml_loom))]

use dml_workloads::prepare::Workload;
use serde_json::Value;
use std::path::{Path, PathBuf};

mod program;
use program::{dml, folder};

/// What a command that succeeds prints as JSON, and what it says beside.
fn json(folder: &Path, arguments: &[&str]) -> (Value, String) {
    let output = dml(folder, &[arguments, &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    (serde_json::from_slice(&output.stdout).expect("--json prints one JSON value"), said)
}

/// What a command that fails says.
fn refused(folder: &Path, code: i32, arguments: &[&str]) -> String {
    let output = dml(folder, arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?} printed a result as well");
    said
}

/// Why there is no GPU of CUDA; `None` if there is one.
fn missing(folder: &Path) -> Option<String> {
    let (found, _) = json(folder, &["devices"]);
    let devices = found["devices"].as_array().expect("a list");
    if devices.iter().any(|device| device["name"] == "cuda:0") {
        return None;
    }
    let expected = std::env::var("DML_EXPECT").is_ok_and(|all| all.split(',').any(|one| one == "cuda"));
    assert!(!expected, "DML_EXPECT says that CUDA is there: {}", found["unavailable"]);
    let missing = found["unavailable"].as_array().expect("a list");
    let missing = missing.iter().find(|missing| missing["backend"] == "cuda").expect("it is said");
    Some(missing["reason"].as_str().expect("a sentence").to_owned())
}

/// A folder and whether there is a GPU; otherwise a word about it.
fn has_gpu(test: &str) -> Option<PathBuf> {
    let folder = folder(test);
    match missing(&folder) {
        None => Some(folder),
        Some(reason) => {
            eprintln!("SKIPPED {test}: no CUDA device: {reason}");
            None
        }
    }
}

#[test]
fn bad_values_of_pinned_are_named_and_exit_with_2() {
    let folder = folder("bad_values");
    for (value, told) in [
        ("0", "expected at least 1 byte"),
        ("0G", "expected at least 1 byte"),
        ("many", "expected a number of bytes, such as 4096, 512M or 8G"),
        ("-1", "-1"),
        ("1.5G", "expected a number of bytes"),
        ("99999999999G", "more bytes than 64 bits can count"),
    ] {
        for command in [&["bench", "saxpy"][..], &["reproduce", "single"], &["devices"]] {
            let said = refused(&folder, 2, &[command, &["--pinned", value]].concat());
            assert!(said.contains(told), "{command:?} {value}: {said}");
        }
    }
    for (arguments, told) in [
        (&["reproduce", "single", "--memory", "bound"][..], "--pinned with --memory bound"),
        (&["reproduce", "memory"], "--pinned does not apply to memory"),
        (&["bench", "offload"], "unexpected argument '--pinned'"),
    ] {
        let said = refused(&folder, 2, &[arguments, &["--pinned", "1M"]].concat());
        assert!(said.contains(told), "{arguments:?}: {said}");
    }
}

#[test]
fn without_a_gpu_pinned_is_a_note_and_changes_nothing() {
    let folder = folder("note");
    let missing = missing(&folder);
    let bench = ["bench", "saxpy", "--size", "tiny", "--runs", "1", "--devices", "cpu"];
    let single = ["reproduce", "single", "--size", "tiny", "--runs", "1", "--devices", "cpu"];
    let coexec = ["reproduce", "coexec", "--size", "tiny", "--runs", "1", "--devices", "cpu"];
    let bound = [&bench[..], &["--memory", "bound"]].concat();
    for arguments in [&bench[..], &single, &coexec, &bound] {
        let (result, said) = json(&folder, &[arguments, &["--pinned", "1M"]].concat());
        assert!(result["pinned_bytes"].is_null(), "{result}");
        assert!(said.contains("--pinned has no effect without a CUDA GPU"), "{arguments:?}: {said}");
        assert!(missing.iter().all(|reason| said.contains(reason)), "{arguments:?}: {said}");
        let (_, said) = json(&folder, arguments);
        assert!(!said.contains("--pinned"), "it was not asked for: {said}");
    }
    let (found, said) = json(&folder, &["devices", "--pinned", "1M"]);
    let names: Vec<_> =
        found["arenas"].as_array().expect("a list").iter().map(|arena| &arena["name"]).collect();
    match &missing {
        Some(reason) => {
            assert!(said.contains("--pinned has no effect") && said.contains(reason), "{said}");
            assert!(!names.contains(&&Value::from("cuda_pinned")), "{found}");
        }
        None => assert!(said.is_empty() && names.contains(&&Value::from("cuda_pinned")), "{said}{found}"),
    }
    // Devices that share memory by default still do.
    if cfg!(all(feature = "offload", target_os = "linux")) && missing.is_some() {
        let shared = ["bench", "saxpy", "--size", "tiny", "--runs", "1", "--devices", "cpu,offload:0"];
        let (result, _) = json(&folder, &[&shared[..], &["--pinned", "1M"]].concat());
        assert_eq!(result["transfers"], serde_json::json!([]), "{result}");
    }
}

#[test]
fn a_gpu_that_is_not_there_is_named_with_what_is_missing() {
    let folder = folder("not_there");
    let missing = missing(&folder);
    for arguments in [
        &["bench", "saxpy", "--by-hand", "--devices", "cuda:99"][..],
        &["bench", "saxpy", "--pinned", "1M", "--devices", "cpu,cuda:99"],
        &["reproduce", "single", "--devices", "cuda:99"],
    ] {
        let said = refused(&folder, 2, arguments);
        assert!(said.contains("unknown device cuda:99"), "{arguments:?}: {said}");
        assert!(missing.iter().all(|reason| said.contains(reason)), "{arguments:?}: {said}");
    }
}

#[test]
fn a_table_of_a_gpu_that_is_not_there_says_what_is_missing() {
    let folder = folder("no_table");
    let missing = missing(&folder);
    let said = refused(&folder, 1, &["reproduce", "table1", "--size", "tiny", "--devices", "cuda:99"]);
    assert!(said.contains("table1 needs a CUDA device: cuda:99 cannot be used"), "{said}");
    assert!(missing.iter().all(|reason| said.contains(reason)), "{said}");
}

/// By hand in both memories, and on the layer.
#[test]
fn table1_is_reproduced_on_a_gpu() {
    let Some(folder) = has_gpu("table1") else { return };
    let arguments = ["reproduce", "table1", "--size", "tiny", "--runs", "1", "--devices", "cuda:0"];
    let (result, _) = json(&folder, &arguments);
    let rows = result["rows"].as_array().expect("a list");
    assert_eq!((rows.len(), &result["verified"]), (3, &true.into()));
    for row in rows {
        for mode in ["hand", "hand_pinned", "noopt", "opt"] {
            assert!(row[mode]["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{row}");
        }
        assert!(row["hand_bound"].is_null() && row["ratios"]["opt_over_hand_bound"].is_null(), "{row}");
        for ratio in ["opt_over_hand", "opt_over_hand_pinned", "noopt_over_hand"] {
            assert!(row["ratios"][ratio].as_f64().is_some_and(|ratio| ratio > 0.0), "{row}");
        }
    }
    let text = String::from_utf8(dml(&folder, &arguments).stdout).expect("text");
    assert!(text.contains("over hand_pinned") && !text.contains("hand_bound"), "{text}");
}

/// The GPU and the processor use the same buffers.
#[test]
fn a_gpu_uses_page_locked_memory_in_place() {
    let Some(folder) = has_gpu("in_place") else { return };
    for workload in Workload::ALL.map(Workload::name) {
        let arguments = [
            "bench",
            workload,
            "--devices",
            "cpu,cuda:0",
            "--size",
            "tiny",
            "--runs",
            "3",
            "--memory",
            "bound",
        ];
        let (result, _) = json(&folder, &[&arguments[..], &["--pinned", "64M"]].concat());
        assert_eq!((&result["verified"], &result["memory"]), (&true.into(), &"bound".into()), "{result}");
        let said = refused(&folder, 2, &arguments);
        assert!(said.contains("cuda:0 can be bound only to page-locked memory"), "{said}");
    }
}

#[test]
fn the_hand_written_program_runs_beside_in_either_memory() {
    let Some(folder) = has_gpu("native") else { return };
    for workload in Workload::ALL.map(Workload::name) {
        let bench = ["bench", workload, "--devices", "cuda:0", "--size", "tiny", "--runs", "1", "--by-hand"];
        for (pinned, bytes) in [(&[][..], Value::Null), (&["--pinned", "256M"], (256_u64 << 20).into())] {
            let (result, _) = json(&folder, &[&bench[..], pinned].concat());
            assert!(result["by_hand_s"]["cuda:0"].as_f64().is_some_and(|seconds| seconds > 0.0), "{result}");
            assert_eq!(result["pinned_bytes"], bytes, "{result}");
        }
    }
}

/// The links of page-locked memory are measured where it is asked for, and priced by that from then on.
#[test]
fn page_locked_memory_is_measured_and_its_figures_are_kept() {
    let Some(folder) = has_gpu("measured") else { return };
    let measured = |arguments: &[&str]| {
        let (found, _) = json(&folder, &[&["devices"], arguments].concat());
        let links = found["links"].as_array().expect("a list").iter();
        let ends = ["cuda_pinned", "cuda:0"];
        let between = |link: &&Value| {
            let is_end = |end: &str| ends.iter().any(|name| link[end] == *name);
            is_end("from") && is_end("to")
        };
        links.filter(between).map(|link| link["figures"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(measured(&[]), [] as [&str; 0]);
    assert_eq!(measured(&["--pinned", "256M"]), ["measured"; 2]);
    assert_eq!(measured(&["--pinned", "512M"]), ["cached"; 2]);
    let bench = ["bench", "saxpy", "--size", "tiny", "--runs", "1", "--devices", "cuda:0", "--pinned", "1M"];
    let (result, _) = json(&folder, &bench);
    assert_eq!(result["link_prices"]["guessed"], 0, "{result}");
    let text = String::from_utf8(dml(&folder, &bench).stdout).expect("text");
    assert!(text.contains("link prices: ") && !text.contains("measures the others"), "{text}");
}

#[test]
fn one_gpu_is_measured_beside_the_program_by_hand() {
    let Some(folder) = has_gpu("single") else { return };
    let single = ["reproduce", "single", "--size", "tiny", "--runs", "1", "--devices", "cuda:0"];
    for (pinned, bytes) in [(&[][..], Value::Null), (&["--pinned", "256M"], (256_u64 << 20).into())] {
        let (result, said) = json(&folder, &[&single[..], pinned].concat());
        assert_eq!(result["rows"].as_array().map(Vec::len), Some(3), "{result}");
        assert_eq!((&result["verified"], &result["pinned_bytes"]), (&true.into(), &bytes), "{result}");
        assert!(!said.contains("--pinned"), "{said}");
    }
}
