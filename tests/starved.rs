//! The `dml` command where the system has no thread to give.

#![cfg(not(dml_loom))]

mod program;

use program::{command, dml, folder};

/// A stack larger than any address space: no thread of the standard library can be made.
const NO_THREAD: (&str, &str) = ("RUST_MIN_STACK", "70368744177664");

#[test]
fn no_thread_is_failed_work_and_no_panic() {
    let folder = folder("threads");
    for line in [
        "bench saxpy --size tiny --runs 1 --devices cpu",
        "bench gaussian --size tiny --runs 1 --devices cpu --limit cpu=1",
        "bench all --size tiny --runs 1",
        "bench never-loses saxpy --runs 1 --longest 0.001",
        "reproduce table1 --size tiny --runs 1",
        "reproduce single --size tiny --runs 1 --devices cpu",
        "reproduce memory --size tiny --runs 1",
        "reproduce coexec --size tiny --runs 1",
    ] {
        let arguments: Vec<_> = line.split(' ').collect();
        let output =
            command(&folder, &arguments).env(NO_THREAD.0, NO_THREAD.1).output().expect("it was built");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert!(said.contains("cannot start"), "{line}: {said}");
        assert!(!said.contains("panicked"), "{line}: {said}");
    }
    assert!(dml(&folder, &["bench", "saxpy", "--size", "tiny", "--runs", "1"]).status.success());
    let mut devices = command(&folder, &["devices"]);
    assert!(devices.env(NO_THREAD.0, NO_THREAD.1).output().expect("it was built").status.success());
}
