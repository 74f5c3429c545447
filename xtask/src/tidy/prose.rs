//! The rules about prose: comments of Rust files and paragraphs of documents.
//!
//! | rule | forbids |
//! |---|---|
//! | `prose-width` | a line of more than 110 columns |
//! | `paraphrase` | a phrase in place of the field's term |
//!
//! Tables, pictures, links, quotes and code are exempt from the width.

use super::Violation;
use super::links::prose_lines;
use super::source::SourceFile;

/// The most columns of a line of prose.
const MOST_COLUMNS: usize = 110;

/// Phrases that hide an actor or a term, and what to write.
const PARAPHRASES: &[(&str, &str)] = &[
    ("whoever", "name the actor"),
    ("somebody", "name the actor"),
    ("nobody", "name the actor, or `no waiter`, `no thread`"),
    ("who waits", "a waiter"),
    ("those who", "name the actors"),
    ("what is lent", "name what is lent"),
    ("nothing is known", "unknown"),
];

/// Checks the comments of a Rust file.
pub(super) fn check_source(source: &SourceFile) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut in_picture = false;
    for (line, text) in source.numbered_lines() {
        let comment = text.comment.trim();
        let is_alone = text.raw.trim_start().starts_with("//");
        let prose = comment.trim_start_matches(['/', '!']).trim_start();
        if !is_alone {
            in_picture = false;
        } else if prose.starts_with("```") {
            in_picture = !in_picture;
        }
        if is_alone && !in_picture && is_wide(&text.raw, prose) {
            violations.push(violation(&source.path, line, "prose-width", width(&text.raw)));
        }
        violations.extend(paraphrases(&source.path, line, comment));
    }
    violations
}

/// Checks a document.
pub(super) fn check_document(path: &str, text: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let raw: Vec<&str> = text.lines().collect();
    for (line, prose) in prose_lines(text) {
        if is_wide(raw[line - 1], raw[line - 1]) {
            violations.push(violation(path, line, "prose-width", width(raw[line - 1])));
        }
        violations.extend(paraphrases(path, line, &prose));
    }
    violations
}

/// Returns whether a line of prose is too wide and not exempt.
fn is_wide(raw: &str, prose: &str) -> bool {
    raw.chars().count() > MOST_COLUMNS
        && !prose.starts_with(['|', '>'])
        && !raw.contains("](")
        && !raw.contains("://")
}

fn width(raw: &str) -> String {
    format!("{} columns, at most {MOST_COLUMNS}", raw.chars().count())
}

fn paraphrases(path: &str, line: usize, prose: &str) -> Vec<Violation> {
    let lower = prose.to_lowercase();
    let is_found = |phrase: &str| {
        lower.match_indices(phrase).any(|(at, _)| {
            let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
            !is_letter(lower[..at].chars().next_back())
                && !is_letter(lower[at + phrase.len()..].chars().next())
        })
    };
    let found = PARAPHRASES.iter().filter(|(phrase, _)| is_found(phrase));
    found.map(|(phrase, cure)| violation(path, line, "paraphrase", format!("\"{phrase}\": {cure}"))).collect()
}

fn violation(path: &str, line: usize, rule: &'static str, text: String) -> Violation {
    Violation { path: path.to_owned(), line, rule, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_source(text: &str) -> Vec<(usize, &'static str)> {
        let violations = check_source(&SourceFile::new("a.rs", text));
        violations.into_iter().map(|violation| (violation.line, violation.rule)).collect()
    }

    #[test]
    fn wide_comments_are_found_but_tables_pictures_links_and_code_are_exempt() {
        let long = "word ".repeat(25);
        assert_eq!(of_source(&format!("/// {long}\nfn f() {{}}\n")), [(1, "prose-width")]);
        assert_eq!(
            of_source(&format!("//! ```text\n//! {long}\n//! ```\n//! {long}\n")),
            [(4, "prose-width")]
        );
        for exempt in [
            format!("/// | {long} |\n"),
            format!("// [a](b) {long}\n"),
            format!("const A: &str = \"{long}\"; // a\n"),
        ] {
            assert_eq!(of_source(&exempt), [], "{exempt}");
        }
        let document = format!("{long}\n```\n{long}\n```\n| {long} |\n> {long}\n{long}\n");
        let found: Vec<_> = check_document("a.md", &document).into_iter().map(|found| found.line).collect();
        assert_eq!(found, [1, 7]);
    }

    #[test]
    fn phrases_are_found_as_words_in_comments_and_documents() {
        assert_eq!(of_source("// Whoever waits.\nlet nobody = 1; // `nobody_else`\n"), [(1, "paraphrase")]);
        assert_eq!(of_source("let a = 1; // nobody\n"), [(1, "paraphrase")]);
        let found = check_document("a.md", "a\nthe thread of which nothing is known\n`nobody`\n");
        assert_eq!(found.iter().map(|found| found.line).collect::<Vec<_>>(), [2]);
    }
}
