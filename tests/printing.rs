//! What the `dml` command prints and says beside, where that goes, and what it keeps.

#![cfg(not(dml_loom))]

mod program;

#[cfg(target_os = "linux")]
use program::command;
use program::{dml, folder};
#[cfg(all(feature = "offload", target_os = "linux"))]
use serde_json::Value;
#[cfg(all(feature = "offload", target_os = "linux"))]
use std::path::Path;

/// A small benchmark on one core.
const BENCH: [&str; 10] =
    ["bench", "saxpy", "--size", "tiny", "--runs", "1", "--devices", "cpu", "--limit", "cpu=1"];

/// What a benchmark of `cpu` and `offload:0` alone prints as JSON.
#[cfg(all(feature = "offload", target_os = "linux"))]
fn with_worker(folder: &Path, arguments: &[&str]) -> Value {
    let limits = ["--limit", "cpu=1", "--limit", "offload:0=1", "--runs", "1", "--json"];
    let mut command = command(folder, &[arguments, &limits].concat());
    let output = command.env("OCL_ICD_VENDORS", folder.join("nowhere")).output().expect("it was built");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("--json prints one JSON value")
}

/// The table is printed once and nothing beside it, no device is left out, and the knowledge is saved.
#[test]
fn a_table_for_people_is_all_that_is_printed() {
    let folder = folder("for_people");
    let output = dml(&folder, &BENCH);
    let [printed, said] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    assert!(output.status.success(), "{said}");
    assert!(printed.starts_with("saxpy: ") && printed.matches("verified").count() == 1, "{printed}");
    assert!(!printed.contains("\"workload\""), "it is JSON as well: {printed}");
    assert!(!said.contains("left out"), "{said}");
    let kept: Vec<_> = std::fs::read_dir(folder.join("cache/dml")).expect("it was made").flatten().collect();
    let [file] = &kept[..] else { panic!("one file is kept: {kept:?}") };
    assert!(file.file_name().to_string_lossy().starts_with("knowledge-"), "{file:?}");
    assert!(std::fs::read_to_string(file.path()).is_ok_and(|text| text.contains("saxpy")));
}

/// What cannot be written is failed work, but a reader may leave.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_and_a_reader_that_has_gone_is_not() {
    let folder = folder("full");
    let full = std::fs::File::options().write(true).open("/dev/full").expect("every Linux has it");
    let output = command(&folder, &BENCH).stdout(full).output().expect("the command was built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot write the result"), "{said}");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = command(&folder, &BENCH).stdout(writer).output().expect("the command was built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.contains("cannot")), (Some(0), false), "{said}");
}

/// Where no GPU transfers page-locked memory, a note says that it changes nothing.
#[test]
fn a_wish_for_page_locked_memory_is_a_note_where_nobody_transfers_it() {
    let folder = folder("page_locked");
    let arguments = ["reproduce", "single", "--size", "tiny", "--runs", "1", "--devices", "cpu"];
    for (more, is_told) in [(&[][..], false), (&["--pinned", "1M"], true)] {
        let output = dml(&folder, &[&arguments[..], more].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(said.contains("--pinned has no effect without a CUDA GPU"), is_told, "{said}");
    }
}

/// A worker that is requested by number takes part.
#[cfg(all(feature = "offload", target_os = "linux"))]
#[test]
fn a_worker_that_is_asked_for_takes_part() {
    let result = with_worker(&folder("asked_for"), &["bench", "saxpy", "--size", "tiny", "--offload", "1"]);
    let devices = result["devices"].as_array().expect("a list").iter();
    let names: Vec<_> = devices.map(|device| &device["name"]).collect();
    assert_eq!(names, ["cpu", "offload:0"]);
}

/// Its steps are the sets of several devices, of which there is one here. How long one takes is not asked.
#[cfg(all(feature = "offload", target_os = "linux"))]
#[test]
fn never_loses_ends_where_every_set_was_compared() {
    let arguments = ["bench", "never-loses", "saxpy", "--devices", "cpu,offload:0", "--longest", "0.001"];
    let found = with_worker(&folder("few_sets"), &arguments);
    let rows = found["rows"].as_array().expect("a list").iter();
    assert!(
        rows.map(|row| &row["devices"]).all(|devices| *devices == serde_json::json!(["cpu", "offload:0"]))
    );
}

#[test]
fn the_help_has_examples_and_a_shell_completes_the_commands() {
    let said = |arguments: &[&str]| {
        let output = dml(&folder("help"), arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(said(&["--help"]).lines().filter(|line| line.starts_with("  dml ")).count(), 3);
    for shell in ["bash", "zsh", "fish"] {
        assert!(said(&["completions", shell]).contains("never-loses"), "{shell}");
    }
}
