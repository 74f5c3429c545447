//! A scratch copy of the repository for patches, and the verdict of a test on it.

use super::{PROFILE, without_debug_information};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A copy of the repository.
pub(super) struct Copy {
    tree: PathBuf,
    build: PathBuf,
}

impl Copy {
    /// Updates the copy in `folder`. Only files that differ are written, so that builds stay incremental.
    pub(super) fn of(root: &Path, folder: &Path) -> io::Result<Self> {
        let copy = Self { tree: folder.join("tree"), build: folder.join("build") };
        let mut list = Command::new("git");
        list.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
        let listed = list.output()?;
        if !listed.status.success() {
            return Err(io::Error::other("git ls-files failed in the repository"));
        }
        let names = String::from_utf8_lossy(&listed.stdout).into_owned();
        let names: BTreeSet<_> = names.split_terminator('\0').collect();
        update(root, &copy.tree, &names)?;
        Ok(copy)
    }

    /// Applies the patch, calls `work`, and reverts the patch.
    pub(super) fn with<R>(&self, patch: &Path, work: impl FnOnce() -> R) -> Result<R, String> {
        self.apply(patch, &[])?;
        let result = work();
        self.apply(patch, &["--reverse"])?;
        Ok(result)
    }

    fn apply(&self, patch: &Path, how: &[&str]) -> Result<(), String> {
        let mut git = Command::new("git");
        // The copy may lie inside the repository. Without the ceiling, git would patch the repository itself.
        let ceiling = self.tree.parent().unwrap_or(&self.tree);
        git.arg("apply").args(how).arg(patch).current_dir(&self.tree).env("GIT_CEILING_DIRECTORIES", ceiling);
        match git.output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => {
                Err(format!("does not apply: {}", String::from_utf8_lossy(&output.stderr).trim_end()))
            }
            Err(error) => Err(format!("could not start git: {error}")),
        }
    }

    /// Configures a cargo command to run in the copy.
    pub(super) fn prepare(&self, command: &mut Command) {
        command.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.build).env("CARGO_TERM_COLOR", "never");
        command.env("NEXTEST_PROFILE", PROFILE).env("CARGO_INCREMENTAL", "1");
        without_debug_information(command);
    }
}

/// The outcome of a test on a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// This test failed or timed out.
    Killed(String),
    /// Every test passed.
    Survived,
    /// The mutant could not be tested, for this reason.
    Broken(String),
}

pub(super) fn verdict(mut command: Command) -> Verdict {
    match command.output() {
        Ok(output) => read_verdict(&output),
        Err(error) => Verdict::Broken(format!("could not start: {error}")),
    }
}

/// Parses the output of nextest, or of a command that runs it.
fn read_verdict(output: &Output) -> Verdict {
    if output.status.success() {
        return Verdict::Survived;
    }
    let text = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat();
    if let Some(line) = text.lines().find(|line| line.contains("could not compile")) {
        return Verdict::Broken(line.trim().to_owned());
    }
    let mut lines = text.lines().map(str::trim);
    let failed =
        lines.find(|line| ["FAIL", "ABORT", "SIG", "TIMEOUT"].iter().any(|word| line.starts_with(word)));
    match failed.and_then(|line| line.split_whitespace().last()) {
        Some(test) => Verdict::Killed(test.to_owned()),
        None => Verdict::Broken(text.lines().last().unwrap_or("no output").to_owned()),
    }
}

/// Updates `to` to hold exactly these files of `from`.
fn update(from: &Path, to: &Path, names: &BTreeSet<&str>) -> io::Result<()> {
    for name in names {
        let (source, target) = (from.join(name), to.join(name));
        // Git also lists files that were deleted without being staged.
        let Ok(text) = fs::read(&source) else { continue };
        if fs::read(&target).is_ok_and(|old| old == text) {
            continue;
        }
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&target, text)?;
    }
    let mut folders = vec![to.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.strip_prefix(to).unwrap_or(&path).to_string_lossy().replace('\\', "/");
            if path.is_dir() {
                folders.push(path);
            } else if !(names.contains(name.as_str()) && from.join(&name).is_file()) {
                fs::remove_file(&path)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn ended(code: i32, stderr: &str) -> Verdict {
        let status = ExitStatus::from_raw(code << 8);
        read_verdict(&Output { status, stdout: Vec::new(), stderr: stderr.as_bytes().to_vec() })
    }

    #[test]
    fn the_first_failed_test_is_named() {
        let text = "\
        PASS [   0.006s] (1/3) dml::coherence i02_a
        FAIL [   0.016s] (2/3) dml::coherence i02_b
     TIMEOUT [   4.016s] (3/3) dml::coherence i02_c
error: test run failed";
        assert_eq!(ended(100, text), Verdict::Killed("i02_b".to_owned()));
        assert_eq!(ended(100, &text.replace("FAIL", "PASS")), Verdict::Killed("i02_c".to_owned()));
        assert_eq!(ended(0, text), Verdict::Survived);
        let aborted = "     SIGABRT [   0.2s] (1/3) dml::sharing i10_a";
        assert_eq!(ended(100, aborted), Verdict::Killed("i10_a".to_owned()));
    }

    #[test]
    fn what_does_not_build_kills_nothing() {
        let text = "error: could not compile `dml-core` (lib) due to 1 previous error";
        assert_eq!(ended(101, text), Verdict::Broken(text.to_owned()));
        assert!(matches!(ended(4, "error: no tests to run"), Verdict::Broken(_)));
    }

    #[test]
    fn a_copy_has_the_files_listed_and_no_others() {
        let root = std::env::temp_dir().join(format!("dml-mutants-{}", std::process::id()));
        let (from, to) = (root.join("from"), root.join("to"));
        fs::create_dir_all(from.join("tests")).unwrap();
        fs::create_dir_all(to.join("tests")).unwrap();
        for name in ["tests/model.rs", "tests/faults.rs", "unlisted.rs"] {
            fs::write(from.join(name), name).unwrap();
        }
        fs::write(to.join("tests/faults.rs"), "mutated").unwrap();
        fs::write(to.join("tests/model_old.rs"), "stale").unwrap();
        update(&from, &to, &["tests/model.rs", "tests/faults.rs", "tests/gone.rs"].into()).unwrap();
        assert_eq!(fs::read_to_string(to.join("tests/faults.rs")).unwrap(), "tests/faults.rs");
        assert!(to.join("tests/model.rs").is_file());
        assert!(!to.join("unlisted.rs").exists() && !to.join("tests/model_old.rs").exists());
        fs::remove_dir_all(&root).unwrap();
    }
}
