//! The rules about `Cargo.toml`: crates inherit the workspace's lints and depend on no higher layer.
//!
//! | rule | forbids |
//! |---|---|
//! | `workspace-lints` | a member without `[lints] workspace = true`, or without a manifest |
//! | `core-frameworks` | a memory framework or a higher layer among the dependencies of `dml-core` |
//! | `scheduler-arenas` | `dml-arenas` or a framework among the dependencies of `dml-scheduler` |
//!
//! Dev-dependencies are not restricted. Manifests are parsed line by line, in their usual layout: this is no
//! TOML parser.

use super::Violation;
use std::fs;
use std::io;
use std::path::Path;

/// Crates that are memory frameworks, or bindings to one.
const FRAMEWORK_CRATES: &[&str] = &["opencl3", "cl3", "cudarc", "cust"];
/// Crates of the workspace in layers above `dml-core`.
const UPPER_CRATES: &[&str] = &["dml-arenas", "dml-scheduler", "dml-workloads", "dml"];

/// Checks the manifests of the workspace at `root`.
///
/// # Errors
/// If the workspace's own manifest cannot be read.
pub(super) fn check(root: &Path) -> io::Result<Vec<Violation>> {
    let workspace = fs::read_to_string(root.join("Cargo.toml"))
        .map_err(|error| io::Error::new(error.kind(), format!("Cargo.toml: {error}")))?;
    let mut violations = Vec::new();
    if entries(&workspace).any(|entry| entry.section == "package") {
        violations.extend(check_package("Cargo.toml", &workspace));
    }
    for member in members(&workspace) {
        let path = format!("{member}/Cargo.toml");
        match fs::read_to_string(root.join(&path)) {
            Ok(manifest) => violations.extend(check_package(&path, &manifest)),
            Err(error) => {
                violations.push(Violation { path, line: 1, rule: "workspace-lints", text: error.to_string() })
            }
        }
    }
    Ok(violations)
}

fn check_package(path: &str, manifest: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let violation = |line, rule, text| Violation { path: path.to_owned(), line, rule, text };
    let takes_lints = entries(manifest).any(|entry| {
        (entry.section == "lints" && entry.key == "workspace" || entry.key == "lints.workspace")
            && entry.value == "true"
    });
    if !takes_lints {
        violations.push(violation(1, "workspace-lints", "no `[lints] workspace = true`".to_owned()));
    }
    let (rule, forbidden) = match path {
        "dml-core/Cargo.toml" => ("core-frameworks", [FRAMEWORK_CRATES, UPPER_CRATES].concat()),
        "dml-scheduler/Cargo.toml" => {
            ("scheduler-arenas", [FRAMEWORK_CRATES, &["dml-arenas", "dml"]].concat())
        }
        _ => return violations,
    };
    for entry in entries(manifest) {
        let Some(name) = entry.dependency() else { continue };
        if forbidden.contains(&name) {
            violations.push(violation(entry.line, rule, format!("depends on `{name}`")));
        }
    }
    violations
}

/// A `key = value` line, or a section heading (with an empty key).
struct Entry<'a> {
    line: usize,
    section: &'a str,
    key: &'a str,
    value: &'a str,
}

impl<'a> Entry<'a> {
    /// Returns the crate that this line declares as a dependency outside of tests.
    fn dependency(&self) -> Option<&'a str> {
        let own = |section: &str| {
            let section = section
                .strip_prefix("target.")
                .and_then(|rest| rest.rsplit_once('.'))
                .map_or(section, |it| it.1);
            matches!(section, "dependencies" | "build-dependencies")
        };
        if own(self.section) && !self.key.is_empty() {
            return self.key.split('.').next();
        }
        let (section, name) = self.section.rsplit_once('.')?;
        (own(section) && self.key.is_empty()).then_some(name)
    }
}

fn entries(manifest: &str) -> impl Iterator<Item = Entry<'_>> {
    let mut section = "";
    manifest.lines().enumerate().filter_map(move |(index, line)| {
        let text = line.split('#').next().unwrap_or_default().trim();
        if let Some(heading) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = heading.trim();
            return Some(Entry { line: index + 1, section, key: "", value: "" });
        }
        let (key, value) = text.split_once('=')?;
        Some(Entry { line: index + 1, section, key: key.trim(), value: value.trim() })
    })
}

/// Returns the folders of the workspace's members.
fn members(workspace: &str) -> Vec<&str> {
    let list = workspace.split_once("\nmembers").and_then(|(_, rest)| rest.split_once('['));
    let Some((list, _)) = list.and_then(|(_, rest)| rest.split_once(']')) else { return Vec::new() };
    list.split('"').skip(1).step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(path: &str, manifest: &str) -> Vec<(usize, &'static str)> {
        check_package(path, manifest).into_iter().map(|violation| (violation.line, violation.rule)).collect()
    }

    #[test]
    fn every_crate_takes_the_workspace_lints() {
        for manifest in [
            "[lints]\nworkspace = true\n",
            "[package]\n[lints]\n\nworkspace=true # all\n",
            "lints.workspace = true\n",
        ] {
            assert!(broken("a/Cargo.toml", manifest).is_empty(), "{manifest}");
        }
        for manifest in
            ["", "[lints]\n", "[package]\nworkspace = true\n", "[lints.rust]\nmissing_docs = \"deny\"\n"]
        {
            assert_eq!(broken("a/Cargo.toml", manifest), [(1, "workspace-lints")], "{manifest}");
        }
    }

    #[test]
    fn core_depends_on_no_framework_and_on_no_upper_layer() {
        let manifest = "\
[lints]
workspace = true
[dependencies]
bytemuck.workspace = true
dml-arenas.workspace = true
[dependencies.cudarc]
version = \"0.19\"
[target.'cfg(unix)'.dependencies]
opencl3 = { version = \"0.12\" }
[dev-dependencies]
dml-arenas = { path = \"../dml-arenas\" }
";
        assert_eq!(broken("dml-core/Cargo.toml", manifest), [5, 6, 9].map(|line| (line, "core-frameworks")));
        assert_eq!(
            broken("dml-scheduler/Cargo.toml", manifest),
            [5, 6, 9].map(|line| (line, "scheduler-arenas"))
        );
        assert!(broken("dml-workloads/Cargo.toml", manifest).is_empty());
    }

    #[test]
    fn members_are_read_from_one_line_and_from_many() {
        let one = "[workspace]\nresolver = \"3\"\nmembers = [\"a\", \"b\"]\nexclude = [\"c\"]\n";
        let many = "[workspace]\nmembers = [\n    \"a\",\n    \"b\",\n]\n";
        assert_eq!(members(one), ["a", "b"]);
        assert_eq!(members(many), ["a", "b"]);
        assert!(members("[workspace]\n").is_empty());
    }
}
