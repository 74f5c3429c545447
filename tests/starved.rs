//! The `dml` command where the system has no thread to give.

#![cfg(not(dml_loom))]

mod program;

use program::{command, dml, folder};

/// A stack larger than any address space: no thread of the standard library can be made.
const NO_THREAD: (&str, &str) = ("RUST_MIN_STACK", "70368744177664");

#[test]
fn no_thread_is_failed_work_and_no_panic() {
    let folder = folder("threads");
    let found = dml(&folder, &["devices"]);
    // Workers cannot start without threads. With OpenCL, never-loses still has two devices to compare.
    let has_opencl = String::from_utf8_lossy(&found.stdout).contains("opencl:0");
    let lines = [
        "bench saxpy --size tiny --runs 1 --devices cpu",
        "bench gaussian --size tiny --runs 1 --devices cpu --limit cpu=1",
        "bench all --size tiny --runs 1",
        "reproduce table1 --size tiny --runs 1",
        "reproduce single --size tiny --runs 1 --devices cpu",
        "reproduce memory --size tiny --runs 1",
        "reproduce coexec --size tiny --runs 1",
    ];
    let never_loses = "bench never-loses saxpy --runs 1 --longest 0.001";
    let told = if has_opencl { (1, "cannot start") } else { (2, "offload:0 could not be started") };
    for (line, (code, reason)) in
        lines.map(|line| (line, (1, "cannot start"))).into_iter().chain([(never_loses, told)])
    {
        let arguments: Vec<_> = line.split(' ').collect();
        let output =
            command(&folder, &arguments).env(NO_THREAD.0, NO_THREAD.1).output().expect("it was built");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{line}: {said}");
        assert!(said.contains(reason), "{line}: {said}");
        assert!(!said.contains("panicked"), "{line}: {said}");
    }
    assert!(dml(&folder, &["bench", "saxpy", "--size", "tiny", "--runs", "1"]).status.success());
    let mut devices = command(&folder, &["devices"]);
    assert!(devices.env(NO_THREAD.0, NO_THREAD.1).output().expect("it was built").status.success());
}
