//! The `dml` command, for tests that meet it as people do.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder of a test's own, empty at the start.
pub(crate) fn folder(test: &str) -> PathBuf {
    let name = format!("{}_{test}", env!("CARGO_CRATE_NAME"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the target folder is writable");
    folder
}

/// The command in a folder, with a cache of its own there: a test neither finds nor leaves measured speeds
/// elsewhere. Kernels that OpenCL has compiled once serve all tests.
pub(crate) fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dml"));
    command.current_dir(folder).env("XDG_CACHE_HOME", folder.join("cache")).args(arguments);
    command.env("POCL_CACHE_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"));
    command
}

/// Runs the command in a folder.
#[allow(dead_code, reason = "some tests change the command first")]
pub(crate) fn dml(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().expect("the command was built")
}
