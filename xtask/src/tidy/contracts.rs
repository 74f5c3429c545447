//! The rule about contracts: each numbered obligation in a doc comment names a test that checks it.
//!
//! An obligation is a list item that begins with its number: `- **A-1** ...`. Its code spans name tests.

use super::Violation;
use super::source::{SourceFile, identifiers};
use std::collections::BTreeSet;

/// Returns the functions in the test code of a file.
pub(super) fn tests_of(file: &SourceFile) -> impl Iterator<Item = String> + '_ {
    file.lines.iter().filter(|line| line.is_test).filter_map(|line| {
        let mut words = identifiers(&line.code).map(|(_, word)| word);
        words.find(|word| *word == "fn").and_then(|_| words.next()).map(str::to_owned)
    })
}

/// Checks that each obligation in a file names one of the test functions.
pub(super) fn check(file: &SourceFile, tests: &BTreeSet<String>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut open: Option<(usize, String, bool)> = None;
    let mut close = |open: &mut Option<(usize, String, bool)>| {
        if let Some((line, number, false)) = open.take() {
            let text = format!("{number} names no existing test");
            violations.push(Violation { path: file.path.clone(), line, rule: "contract-tests", text });
        }
    };
    for (number, line) in file.numbered_lines() {
        let comment = line.comment.trim();
        let Some(text) = comment.strip_prefix("///").or_else(|| comment.strip_prefix("//!")) else {
            close(&mut open);
            continue;
        };
        let item = text.trim_start().strip_prefix("- ");
        if item.is_some() || text.trim().is_empty() {
            close(&mut open);
        }
        if let Some(obligation) = item.and_then(numbered) {
            open = Some((number, obligation.to_owned(), false));
        }
        if let Some((.., is_held)) = &mut open {
            *is_held |= text.split('`').skip(1).step_by(2).any(|code| tests.contains(code));
        }
    }
    close(&mut open);
    violations
}

/// Returns the number at the start of a contract's item: capitals, a hyphen, digits.
fn numbered(item: &str) -> Option<&str> {
    let number = item.strip_prefix("**")?.split_once("**")?.0;
    let (letters, digits) = number.split_once('-')?;
    let is_all = |text: &str, of: fn(char) -> bool| !text.is_empty() && text.chars().all(of);
    (is_all(letters, |c| c.is_ascii_uppercase()) && is_all(digits, |c| c.is_ascii_digit())).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTRACT: &str = "\
/// What it owes.
///
/// - **A-1** It does this. (`suite`
///   `this_is_done`)
/// - **A-2** It does that. (`suite` `that_was_done_once`)
/// - **A-3** And this as well, see [`this_is_done`].
/// - **A-4** Nothing holds it.
///
/// `this_is_done` belongs to none of them.
pub trait Owing {}

/// - **Bold** words are no number.
pub trait Free {}

#[cfg(test)]
mod tests {
    #[test]
    fn this_is_done() {}
}
";

    #[test]
    fn an_obligation_names_a_test_that_is_there() {
        let file = SourceFile::new("some/src/lib.rs", CONTRACT);
        let tests: BTreeSet<String> = tests_of(&file).collect();
        assert_eq!(tests, BTreeSet::from(["this_is_done".to_owned()]));
        let found = check(&file, &tests);
        let told: Vec<_> = found.iter().map(|found| (found.line, found.text.as_str())).collect();
        let names = |number| format!("{number} names no existing test");
        assert_eq!(told, [(5, names("A-2").as_str()), (7, names("A-4").as_str())]);
    }
}
