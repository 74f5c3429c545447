//! `cargo xtask tidy`: the architecture invariants, checked on the text of the repository.
//!
//! ```text
//! files of the repository --> SourceFile (code, strings and comments apart) --> rules     --.
//!                         --> the same, and the names of all tests          --> contracts --+
//!                         --> Cargo.toml                                    --> manifests --+--> violations
//!                         --> *.md                                          --> links     --+
//! comments and documents  -----------------------------------------------------> prose     --'
//! ```
//!
//! 1. `unsafe` appears only in `dml-arenas`, in four files of `dml-core`, and where kernels are launched on
//!    devices. Every block has a comment that says why it is sound.
//! 2. `dml-core::state` is pure: no clocks, threads, locks, atomics or I/O.
//! 3. `dml-core` names no memory framework and `dml-scheduler` no arena, in code or as a dependency.
//! 4. Only `dml-core/src/base/sync` names the libraries that provide locks. The rooms (top-level modules) of
//!    `dml-core` and `dml-scheduler` import only from earlier rooms.
//! 5. No file is too long, no placeholder is left, crates inherit the workspace's lints, and no link is dead.
//! 6. Every numbered obligation of a public trait names an existing test.
//! 7. Lines of prose have at most 110 columns, and use no paraphrase of a list.
//!
//! The rules check text, not semantics: they catch mistakes, not deliberate evasion.

mod contracts;
mod links;
mod manifests;
mod paths;
mod prose;
mod rules;
mod source;

use crate::Failure;
use crate::shell::repository_root;
use source::SourceFile;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

/// A violation of an invariant, with its place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    line: usize,
    rule: &'static str,
    text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.text)
    }
}

/// Checks the repository.
///
/// # Errors
/// [`Failure::Work`] if there are violations, [`Failure::Usage`] if there are arguments.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    if let Some(argument) = arguments.first() {
        return Err(Failure::Usage(format!("tidy takes no arguments, not `{argument}`")));
    }
    match print_violations() {
        Ok(0) => Ok(()),
        Ok(_) => Err(Failure::Work),
        Err(error) => {
            eprintln!("tidy: {error}");
            Err(Failure::Work)
        }
    }
}

/// Checks the repository, prints the violations and returns their number.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn print_violations() -> io::Result<usize> {
    let violations = violations_of(&repository_root())?;
    for violation in &violations {
        println!("{violation}");
    }
    Ok(violations.len())
}

fn violations_of(root: &Path) -> io::Result<Vec<Violation>> {
    let mut violations = manifests::check(root)?;
    let (mut sources, mut tests) = (Vec::new(), BTreeSet::new());
    for path in files_of(root)? {
        let read = || {
            fs::read_to_string(root.join(&path))
                .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))
        };
        if path.ends_with(".rs") {
            let source = SourceFile::new(&path, &read()?);
            violations.extend(rules::check(&source));
            violations.extend(prose::check_source(&source));
            tests.extend(contracts::tests_of(&source));
            sources.push(source);
        } else if path.ends_with(".md") {
            let text = read()?;
            violations.extend(links::check(&path, &text, &|target| root.join(target).exists()));
            violations.extend(prose::check_document(&path, &text));
        }
    }
    violations.extend(sources.iter().flat_map(|source| contracts::check(source, &tests)));
    violations.sort();
    Ok(violations)
}

/// Returns the paths of all files in the repository, sorted and relative to its root, with `/` separators.
///
/// Omits hidden files and folders, build outputs, and the output folder of the `dml` command (`out`).
fn files_of(root: &Path) -> io::Result<Vec<String>> {
    let mut files = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let build_output = name == "target" && root.join(&folder).join("Cargo.toml").exists();
            if name.starts_with('.') || build_output || (folder.is_empty() && name == "out") {
                continue;
            }
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A temporary folder that is removed on drop.
    struct Scratch(std::path::PathBuf);

    impl Scratch {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("dml-tidy-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_violation_prints_as_path_line_rule_text() {
        let violation =
            Violation { path: "a/b.rs".to_owned(), line: 7, rule: "unsafe-place", text: "why".to_owned() };
        assert_eq!(violation.to_string(), "a/b.rs:7: unsafe-place: why");
    }

    #[test]
    fn build_outputs_and_hidden_folders_are_not_looked_at() {
        let bad = "fn main() { unsafe { go() } }";
        let scratch = Scratch::new(
            "skipped",
            &[
                ("Cargo.toml", "[workspace]\nmembers = []\n"),
                ("target/a.rs", bad),
                ("out/a.rs", bad),
                (".dev/a.rs", bad),
                ("docs/target/a.md", "[x](b.md)"),
            ],
        );
        assert_eq!(files_of(&scratch.0).unwrap(), ["Cargo.toml", "docs/target/a.md"]);
    }

    #[test]
    fn every_family_of_rules_is_applied() {
        let member = "[package]\nname = \"a\"\n";
        let scratch = Scratch::new(
            "families",
            &[
                ("Cargo.toml", "[workspace]\nmembers = [\"a\"]\n"),
                ("a/Cargo.toml", member),
                ("a/src/lib.rs", "\nfn f() { todo!() }\n"),
                ("README.md", "[gone](docs/gone.md)\n"),
            ],
        );
        let found: Vec<_> = violations_of(&scratch.0)
            .unwrap()
            .into_iter()
            .map(|violation| (violation.path, violation.line, violation.rule))
            .collect();
        let expected = [
            ("README.md".to_owned(), 1, "dead-link"),
            ("a/Cargo.toml".to_owned(), 1, "workspace-lints"),
            ("a/src/lib.rs".to_owned(), 2, "placeholder"),
        ];
        assert_eq!(found, expected);
    }
}
