//! `cargo xtask api`: the public interface of the published crates, compared with the snapshot in `api`.
//!
//! ```text
//!   cargo public-api ──▶ one line per item ──▶ equal to api/CRATE.txt?   + added, - removed
//!                                          └─▶ number of items, without those that a trait requires
//! ```
//! A change of the interface is thereby seen in the commit that makes it, and before a release.

use crate::Failure;
use crate::shell::{Outcome, Report, cargo, has_cargo_subcommand, output_of, repository_root};
use std::collections::BTreeSet;
use std::fs;
use std::io;

/// The crates with an interface.
const CRATES: [&str; 8] = [
    "dml-coherence",
    "dml-arenas",
    "dml-scheduler",
    "dml-timeline",
    "dml-energy",
    "dml-analysis",
    "dml-app",
    "dml",
];
/// What begins the line of an item, after its attributes and qualifiers.
const KINDS: [&str; 9] = ["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "macro"];

/// Compares each crate's interface with its snapshot, or with `--write` replaces the snapshots. Items hidden
/// from the documentation are no part of it.
///
/// # Errors
/// [`Failure::Work`] if an interface differs or cannot be listed, [`Failure::Usage`] for other arguments, and
/// without cargo-public-api.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let writes = match arguments {
        [] => false,
        [flag] if flag == "--write" => true,
        _ => return Err(Failure::Usage("api takes no arguments but --write".to_owned())),
    };
    if !has_cargo_subcommand("public-api") {
        return Err(Failure::Usage("api needs `cargo install --locked cargo-public-api`".to_owned()));
    }
    let (mut report, mut total) = (Report::default(), 0);
    for name in CRATES {
        report.step(name, || match compare(name, writes) {
            Ok(count) => {
                total += count;
                Outcome::Passed
            }
            Err(reason) => Outcome::Failed(reason),
        });
    }
    report.remark(format!("{total} public items, without those that a trait requires"));
    report.finish()
}

/// Compares the interface of one crate with its snapshot, or replaces that. Returns the number of items.
fn compare(name: &str, writes: bool) -> Result<usize, String> {
    let mut list = cargo(["public-api", "--package", name, "--simplified", "--simplified", "--simplified"]);
    // Listing an interface needs unstable options of rustdoc.
    let listed = output_of(list.env("RUSTC_BOOTSTRAP", "1")).ok_or("cargo public-api failed")?;
    let file = repository_root().join("api").join(format!("{name}.txt"));
    let failed = |error: io::Error| format!("{}: {error}", file.display());
    if writes {
        fs::create_dir_all(file.parent().expect("it lies in a folder")).map_err(failed)?;
        fs::write(&file, &listed).map_err(failed)?;
    }
    let changes = changes(&fs::read_to_string(&file).map_err(failed)?, &listed);
    changes.iter().for_each(|change| println!("{change}"));
    match changes.len() {
        0 => Ok(count(&listed)),
        lines => Err(format!("{lines} lines differ: if that is meant, run `cargo xtask api --write`")),
    }
}

/// Returns the lines that were removed and added, each with its sign.
fn changes(old: &str, new: &str) -> Vec<String> {
    let [old, new] = [old, new].map(|text| text.lines().collect::<BTreeSet<_>>());
    let removed = old.difference(&new).map(|line| format!("- {line}"));
    removed.chain(new.difference(&old).map(|line| format!("+ {line}"))).collect()
}

/// Returns the number of functions, types, traits, constants, modules and macros of a listing. Functions,
/// types and constants in implementations of traits are not counted, nor are fields and variants.
fn count(listed: &str) -> usize {
    let (mut count, mut is_required) = (0, false);
    for line in listed.lines() {
        let mut words = line.split(' ').skip_while(|word| word.starts_with('#'));
        match words.next() {
            Some(word) if word.starts_with("impl") => is_required = line.contains(" for "),
            Some("pub") => {
                let qualifiers = ["unsafe", "const", "async", "extern", "\"C\""];
                let words: Vec<_> = words.collect();
                let is_function = words.iter().find(|word| !qualifiers.contains(word)) == Some(&"fn");
                let kind = if is_function { "fn" } else { words.first().copied().unwrap_or_default() };
                if !KINDS.contains(&kind) {
                    continue;
                }
                is_required &= matches!(kind, "fn" | "type" | "const");
                count += usize::from(!is_required);
            }
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_differ_have_a_sign() {
        assert_eq!(changes("a\nb\n", "b\nc\n"), ["- a", "+ c"]);
        assert!(changes("a\n", "a\n").is_empty());
    }

    #[test]
    fn items_are_counted_without_those_that_a_trait_requires() {
        let listed = "pub mod dml_core\n#[non_exhaustive] pub enum dml_core::Access\n\
                      pub dml_core::Access::Read\npub const fn dml_core::Access::reads(self) -> bool\n\
                      impl core::fmt::Display for dml_core::Access\npub fn dml_core::Access::fmt(&self)\n\
                      pub type dml_core::Access::Target = u8\nimpl dml_core::Access\n\
                      pub unsafe fn dml_core::Access::new() -> Self\npub const dml_core::Access::ALL: u8\n\
                      impl Drop for X\npub struct dml_core::Cost\npub dml_core::Cost::ns: u64\n";
        assert_eq!(count(listed), 6);
    }
}
