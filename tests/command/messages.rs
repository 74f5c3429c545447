//! What the command says of what it cannot do, and what it keeps.

use super::{dml, fails, folder, kept, ok};
use crate::program::command;
use serde_json::Value;
use std::path::Path;

/// A reader that has heard enough is no failure, a full disk is.
#[test]
#[cfg(target_os = "linux")]
fn what_cannot_be_written_is_failed_work_unless_nobody_reads() {
    let to = |out: std::process::Stdio| {
        let bench = ["bench", "saxpy", "--size", "16", "--devices", "cpu", "--runs", "1", "--json"];
        let mut command = command(&folder("what_cannot_be_written"), &bench);
        let piped = command.stdout(out).stderr(std::process::Stdio::piped());
        let ended = piped.spawn().unwrap().wait_with_output().unwrap();
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    };
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let (code, said) = to(writer.into());
    assert_eq!(code, Some(0), "{said}");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (code, said) = to(full.into());
    assert!(code == Some(1) && said.contains("cannot write the result"), "{code:?}: {said}");
}

/// What a run has shown is kept for the next one, unless it was not to be.
#[test]
fn what_was_learned_is_kept_for_later_runs() {
    let folder = folder("learned");
    let bench = ["bench", "mandelbrot", "--size", "tiny", "--devices", "cpu", "--runs", "1", "--json"];
    assert!(kept(&folder, "knowledge-").is_empty());
    ok(&folder, &bench);
    let [file] = &kept(&folder, "knowledge-")[..] else { panic!("{:?}", kept(&folder, "")) };
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains("mandelbrot"), "{text}");
}

/// Why a backend has no device here, as `dml devices` says; nothing where it has one.
fn missing(folder: &Path, backend: &str) -> Option<String> {
    let found = ok(folder, &["devices", "--offload", "0", "--json"]);
    let all = found["unavailable"].as_array().expect("a list");
    let said = all.iter().find(|said| said["backend"] == backend);
    said.map(|said| said["reason"].as_str().expect("a sentence").to_owned())
}

/// With what its own backend lacks, and no other one's word.
#[test]
fn a_device_that_is_not_there_is_told_with_what_its_backend_lacks() {
    let folder = folder("a_device_that_is_not_there");
    let cuda = missing(&folder, "cuda");
    let said = fails(2, &["bench", "saxpy", "--size", "tiny", "--devices", "cuda:77"]);
    assert!(said.contains("unknown device cuda:77: there are cpu"), "{said}");
    assert!(cuda.iter().all(|reason| said.contains(&format!("cuda: {reason}"))), "{said}");
    let said = fails(2, &["bench", "saxpy", "--size", "tiny", "--devices", "opencl:77"]);
    assert!(said.contains("unknown device opencl:77"), "{said}");
    assert!(cuda.iter().all(|reason| !said.contains(reason.as_str())), "{said}");
}

/// Page-locked memory is a GPU's. Without one the command says so, once, and goes on.
#[test]
fn page_locked_memory_without_a_gpu_is_a_note_with_the_reason() {
    let folder = folder("page_locked_memory_without_a_gpu");
    let bench = ["bench", "saxpy", "--size", "tiny", "--devices", "cpu", "--runs", "1", "--json"];
    let noted = |arguments: &[&str]| {
        let output = dml(&folder, arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(result["pinned_bytes"], Value::Null, "{result}");
        said.lines()
            .filter_map(|line| Some(line.split_once("without a GPU of CUDA: ")?.1.to_owned()))
            .collect::<Vec<_>>()
    };
    assert_eq!(noted(&bench), Vec::<String>::new());
    let why = missing(&folder, "cuda").unwrap_or_else(|| "none is among the devices".to_owned());
    assert_eq!(noted(&[&bench[..], &["--pinned", "1M"]].concat()), [why]);
}

/// Not less than nothing, and not nothing.
#[test]
fn a_power_of_nothing_is_refused() {
    let said = fails(2, &["bench", "saxpy", "--powers", "cpu=0"]);
    assert!(said.contains("power 0 of cpu is not a positive number"), "{said}");
}

#[test]
fn the_power_that_was_given_is_that_of_its_device() {
    let folder = folder("the_power_that_was_given");
    let bench = ["bench", "saxpy", "--size", "4096", "--devices", "cpu", "--runs", "1", "--policy", "static"];
    let result = ok(&folder, &[&bench[..], &["--powers", "cpu=3", "--powers", "cpu=2.5", "--json"]].concat());
    assert_eq!(result["devices"][0]["power"], 2.5, "{result}");
}

/// What a bench prints for people, of which nothing is JSON; and what its links are priced by, where there are any.
#[test]
fn people_are_told_what_was_measured_and_programs_in_json_alone() {
    let folder = folder("people_are_told");
    let told = |devices: &str| {
        let bench = ["bench", "saxpy", "--size", "4096", "--devices", devices, "--runs", "1"];
        let output = dml(&folder, &bench);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let alone = told("cpu");
    assert!(alone.starts_with("saxpy: 4096 ") && !alone.contains('{'), "{alone}");
    assert!(alone.contains("verified    every item"), "{alone}");
    if cfg!(feature = "offload") && cfg!(target_os = "linux") {
        let linked = told("offload:0");
        assert!(linked.contains("link prices: guesses; dml devices measures the links"), "{linked}");
    }
}

#[test]
fn a_kind_of_memory_is_one_or_the_other() {
    let single = ["reproduce", "single", "--size", "tiny", "--devices", "cpu", "--runs", "1"];
    let said = fails(2, &[&single[..], &["--memory", "bound", "--pinned", "1M"]].concat());
    assert!(said.contains("--pinned with --memory bound: buffers lie in one memory or the other"), "{said}");
}

/// A benchmark by itself: what it does not look at is refused, and its own device is not.
#[test]
#[cfg(all(feature = "offload", target_os = "linux"))]
fn the_benchmark_of_a_worker_takes_its_device_and_no_other() {
    let said = fails(2, &["bench", "offload", "--devices", "cpu"]);
    assert!(said.contains("--devices means nothing to offload"), "{said}");
    let output = dml(
        &folder("the_benchmark_of_a_worker"),
        &["bench", "offload", "--devices", "offload:0", "--runs", "1"],
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.starts_with("offload:0: transfers of"), "{text}");
}
