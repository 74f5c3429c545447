//! Separates the code, the literals and the comments of a Rust file.
//!
//! ```text
//! let x = "unsafe"; // todo!      raw
//! let x = "      ";               code     without comments and the contents of literals
//! let x = "unsafe";               literal  the code and the contents of literals
//!                   // todo!      comment
//! ```
//!
//! 1. Each of the three has as many lines as the file, and each character is in its original column.
//! 2. Every character of the file that is not white space is in exactly one of `comment` and `literal`.
//!
//! This is a lexer, not a parser. It knows nested comments, raw strings, and lifetimes (`'a`) from `'a'`.

use std::ops::Range;

/// A file, split into lines.
#[derive(Debug)]
pub(super) struct SourceFile {
    /// The path relative to the repository's root, with `/` separators.
    pub(super) path: String,
    pub(super) lines: Vec<Line>,
}

/// A line with its three readings.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) raw: String,
    pub(super) code: String,
    pub(super) literal: String,
    pub(super) comment: String,
    /// Whether the line is only compiled for tests.
    pub(super) is_test: bool,
}

impl SourceFile {
    /// Splits a file's text.
    pub(super) fn new(path: &str, text: &str) -> Self {
        let readings = Lexer::new(text).run();
        let mut lines: Vec<_> = text
            .lines()
            .zip(readings.code.lines())
            .zip(readings.literal.lines().zip(readings.comment.lines()))
            .map(|((raw, code), (literal, comment))| Line {
                raw: raw.to_owned(),
                code: code.to_owned(),
                literal: literal.to_owned(),
                comment: comment.to_owned(),
                is_test: false,
            })
            .collect();
        let whole_file =
            path.ends_with("/tests.rs") || path.starts_with("tests/") || path.contains("/tests/");
        for range in test_regions(&readings.code) {
            lines[range].iter_mut().for_each(|line| line.is_test = true);
        }
        lines.iter_mut().for_each(|line| line.is_test |= whole_file);
        Self { path: path.to_owned(), lines }
    }

    /// Returns the lines that are compiled outside of tests, numbered from 1.
    pub(super) fn production_lines(&self) -> impl Iterator<Item = (usize, &Line)> {
        self.numbered_lines().filter(|(_, line)| !line.is_test)
    }

    /// Returns all lines, numbered from 1.
    pub(super) fn numbered_lines(&self) -> impl Iterator<Item = (usize, &Line)> {
        self.lines.iter().enumerate().map(|(index, line)| (index + 1, line))
    }
}

/// Returns the identifiers and keywords in the code, each with its byte offset. Numbers are omitted.
pub(super) fn identifiers(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut rest = 0;
    std::iter::from_fn(move || {
        let start = rest + code[rest..].find(is_word)?;
        let end = code[start..].find(|c| !is_word(c)).map_or(code.len(), |length| start + length);
        rest = end;
        Some((start, &code[start..end]))
    })
    .filter(|(_, word)| !word.starts_with(|c: char| c.is_ascii_digit()))
}

/// Returns the lines (from 0) of the items under `#[cfg(test)]` or similar; all lines under `#![cfg(test)]`.
fn test_regions(code: &str) -> Vec<Range<usize>> {
    let line_of = |byte: usize| code[..byte].matches('\n').count();
    let mut regions = Vec::new();
    for (start, _) in code.match_indices("#") {
        let after = &code[start + 1..];
        let (inner, after) = after.strip_prefix('!').map_or((false, after), |after| (true, after));
        if !after.starts_with("[cfg(") {
            continue;
        }
        let Some(end) = closing(after) else { continue };
        let words: Vec<_> = identifiers(&after[..end]).map(|(_, word)| word).collect();
        if !words.contains(&"test") || words.contains(&"not") || words.contains(&"any") {
            continue;
        }
        if inner {
            regions.push(0..code.lines().count());
            continue;
        }
        let item = code.len() - after.len() + end + 1;
        let end = end_of_item(&code[item..]).map_or(code.len() - 1, |length| item + length);
        regions.push(line_of(start)..line_of(end) + 1);
    }
    regions
}

/// Returns the end of the item at the start of `code`: its closing brace, or its semicolon without braces.
fn end_of_item(code: &str) -> Option<usize> {
    let mut rest = 0;
    while let Some(found) = code[rest..].find(['{', ';', '(', '[']) {
        let at = rest + found;
        match code.as_bytes()[at] {
            b';' => return Some(at),
            b'{' => return closing(&code[at..]).map(|length| at + length),
            _ => rest = at + closing(&code[at..])? + 1,
        }
    }
    None
}

/// Returns the offset of the bracket that closes the one at the start of `code`.
fn closing(code: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// The reading that a character belongs to.
#[derive(Clone, Copy)]
enum Reading {
    Code,
    Literal,
    Comment,
}

/// Writes each character to its readings, and white space to the others.
struct Lexer {
    characters: Vec<char>,
    next: usize,
    code: String,
    literal: String,
    comment: String,
}

impl Lexer {
    fn new(text: &str) -> Self {
        let [code, literal, comment] = [(); 3].map(|()| String::with_capacity(text.len()));
        Self { characters: text.chars().collect(), next: 0, code, literal, comment }
    }

    fn run(mut self) -> Self {
        while let Some(character) = self.peek(0) {
            match (character, self.peek(1)) {
                ('/', Some('/')) => self.take_while(Reading::Comment, |c| c != '\n'),
                ('/', Some('*')) => self.block_comment(),
                ('"', _) => self.quoted('"'),
                ('\'', Some('\\')) => self.quoted('\''),
                ('\'', _) if self.peek(2) == Some('\'') => self.quoted('\''),
                (c, _) if c.is_alphanumeric() || c == '_' => self.word(),
                _ => self.take(Reading::Code),
            }
        }
        self
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.characters.get(self.next + ahead).copied()
    }

    fn take(&mut self, reading: Reading) {
        let Some(character) = self.peek(0) else { return };
        self.next += 1;
        let elsewhere = if character == '\n' { '\n' } else { ' ' };
        let [code, literal, comment] = match reading {
            Reading::Code => [character, character, elsewhere],
            Reading::Literal => [elsewhere, character, elsewhere],
            Reading::Comment => [elsewhere, elsewhere, character],
        };
        self.code.push(code);
        self.literal.push(literal);
        self.comment.push(comment);
    }

    fn take_while(&mut self, reading: Reading, wanted: impl Fn(char) -> bool) {
        while self.peek(0).is_some_and(&wanted) {
            self.take(reading);
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        while self.peek(0).is_some() {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => depth += 1,
                (Some('*'), Some('/')) => depth -= 1,
                _ => {
                    self.take(Reading::Comment);
                    continue;
                }
            }
            self.take(Reading::Comment);
            self.take(Reading::Comment);
            if depth == 0 {
                return;
            }
        }
    }

    /// Reads a string or character literal with escapes. Its quotes count as code.
    fn quoted(&mut self, quote: char) {
        self.take(Reading::Code);
        while let Some(character) = self.peek(0).filter(|&character| character != quote) {
            self.take(Reading::Literal);
            if character == '\\' {
                self.take(Reading::Literal);
            }
        }
        self.take(Reading::Code);
    }

    /// Reads an identifier or a number, and a raw string that follows it.
    fn word(&mut self) {
        let start = self.next;
        self.take_while(Reading::Code, |c| c.is_alphanumeric() || c == '_');
        let is_raw = matches!(self.characters[start..self.next], ['r'] | ['b' | 'c', 'r']);
        let hashes = self.characters[self.next..].iter().take_while(|&&c| c == '#').count();
        if !is_raw || self.peek(hashes) != Some('"') {
            return;
        }
        (0..=hashes).for_each(|_| self.take(Reading::Code));
        let is_end =
            |lexer: &Self| lexer.peek(0) == Some('"') && (1..=hashes).all(|i| lexer.peek(i) == Some('#'));
        while self.peek(0).is_some() && !is_end(self) {
            self.take(Reading::Literal);
        }
        (0..=hashes).for_each(|_| self.take(Reading::Code));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        SourceFile::new("a.rs", text)
            .lines
            .iter()
            .map(|line| line.code.trim_end())
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        assert_eq!(code("a // b"), "a");
        assert_eq!(code("a /* b /* c */ d */ e"), "a                   e");
        assert_eq!(code("/// unsafe\nfn"), "\nfn");
        assert_eq!(code(r#"f("a \" b", c)"#), r#"f("      ", c)"#);
        assert_eq!(code("r#\"a \" b\"# c"), "r#\"     \"# c");
        assert_eq!(code(r#"br"a\" c"#), r#"br"  " c"#);
        assert_eq!(code("\"a\nb\" c"), "\"\n \" c");
    }

    #[test]
    fn lifetimes_are_code_and_characters_are_not() {
        assert_eq!(code("fn f<'a>(x: &'a str) { '\"' }"), "fn f<'a>(x: &'a str) { ' ' }");
        assert_eq!(code(r"['\'', b'\\', 'x'] y"), r"['  ', b'  ', ' '] y");
        assert_eq!(code("r#type 'a'"), "r#type ' '");
    }

    #[test]
    fn every_character_keeps_its_place_in_exactly_one_of_comment_and_literal() {
        let text = include_str!("source.rs");
        let file = SourceFile::new("source.rs", text);
        assert_eq!(file.lines.len(), text.lines().count());
        for (number, line) in file.numbered_lines() {
            let readings = line.literal.chars().zip(line.comment.chars());
            for (raw, (literal, comment)) in line.raw.chars().zip(readings).filter(|(raw, _)| *raw != ' ') {
                assert!((literal == raw) != (comment == raw), "line {number}: {}", line.raw);
            }
        }
    }

    #[test]
    fn what_is_compiled_for_tests_only_is_marked() {
        let text = "\
use a::b;
#[cfg(test)]
use c::{d, e};
fn f() {}
#[cfg(test)]
mod tests {
    fn g() { let braces = \"}\"; }
}
#[cfg(all(test, unix))]
mod more;
#[cfg(not(test))]
fn h([a; 2]: [u8; 2]) {}
#[cfg(test)]
fn i([a; 2]: [u8; 2]) {
}
fn j() {}
";
        let file = SourceFile::new("dml-core/src/a.rs", text);
        let production: Vec<_> = file.production_lines().map(|(number, _)| number).collect();
        assert_eq!(production, [1, 4, 11, 12, 16]);
    }

    #[test]
    fn whole_files_can_be_tests() {
        for (path, text) in
            [("a/src/b/tests.rs", "x\n"), ("tests/a.rs", "x\n"), ("a/src/b.rs", "#![cfg(test)]\nx\n")]
        {
            assert_eq!(SourceFile::new(path, text).production_lines().count(), 0, "{path}");
        }
    }

    #[test]
    fn numbers_are_no_identifiers() {
        let found: Vec<_> = identifiers("let a_1 = 0xunsafe + 1u8.max(b);").collect();
        assert_eq!(found, [(0, "let"), (4, "a_1"), (25, "max"), (29, "b")]);
    }
}
