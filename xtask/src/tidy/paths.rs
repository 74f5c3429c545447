//! Extracts the paths in a piece of code, with `use` trees expanded.
//!
//! `use std::{fs, sync::{Arc, Mutex}}; std::io::sink()` names `std::fs`, `std::sync::Arc`, `std::sync::Mutex`
//! and `std::io::sink`. A rule that forbids `std::fs` finds it in every notation.

use super::source::identifiers;

/// A path and the line of its last segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NamedPath {
    pub(super) line: usize,
    pub(super) segments: Vec<String>,
}

#[derive(Debug, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    Joint,
    Open,
    Close,
    Comma,
    Other,
}

/// Returns every path in the numbered lines of code.
pub(super) fn named_paths<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<NamedPath> {
    let tokens: Vec<_> =
        lines.flat_map(|(line, code)| tokens(code).into_iter().map(move |token| (line, token))).collect();
    let mut paths = Vec::new();
    let mut next = 0;
    while next < tokens.len() {
        match tokens[next].1 {
            Token::Word(_) => next = path_tree(&tokens, next, &[], &mut paths),
            _ => next += 1,
        }
    }
    paths
}

/// Reads the path at `next`, with its `use` tree, and returns the index of the following token.
fn path_tree(
    tokens: &[(usize, Token<'_>)],
    mut next: usize,
    prefix: &[String],
    paths: &mut Vec<NamedPath>,
) -> usize {
    let mut segments = prefix.to_vec();
    let mut line = 0;
    while let Some((at, Token::Word(word))) = tokens.get(next) {
        line = *at;
        segments.push((*word).to_owned());
        next += 1;
        match (tokens.get(next).map(|token| &token.1), tokens.get(next + 1).map(|token| &token.1)) {
            (Some(Token::Joint), Some(Token::Word(_))) => next += 1,
            (Some(Token::Joint), Some(Token::Open)) => {
                return branches(tokens, next + 2, &segments, paths);
            }
            _ => break,
        }
    }
    paths.push(NamedPath { line, segments });
    next
}

/// Reads the paths in the braces of a `use` tree and returns the index of the following token.
fn branches(
    tokens: &[(usize, Token<'_>)],
    mut next: usize,
    prefix: &[String],
    paths: &mut Vec<NamedPath>,
) -> usize {
    while let Some((_, token)) = tokens.get(next) {
        match token {
            Token::Word(_) => next = path_tree(tokens, next, prefix, paths),
            Token::Close => return next + 1,
            _ => next += 1,
        }
    }
    next
}

fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = 0;
    let between = |text: &str, tokens: &mut Vec<Token<'_>>| {
        let mut characters = text.chars().filter(|c| !c.is_whitespace()).peekable();
        while let Some(character) = characters.next() {
            tokens.push(match character {
                ':' if characters.next_if_eq(&':').is_some() => Token::Joint,
                '{' => Token::Open,
                '}' => Token::Close,
                ',' => Token::Comma,
                _ => Token::Other,
            });
        }
    };
    for (start, word) in identifiers(code) {
        between(&code[rest..start], &mut tokens);
        tokens.push(Token::Word(word));
        rest = start + word.len();
    }
    between(&code[rest..], &mut tokens);
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(code: &str) -> Vec<(usize, String)> {
        named_paths(code.lines().enumerate().map(|(index, line)| (index + 1, line)))
            .into_iter()
            .map(|path| (path.line, path.segments.join("::")))
            .filter(|(_, path)| path.contains("::"))
            .collect()
    }

    fn owned(expected: &[(usize, &str)]) -> Vec<(usize, String)> {
        expected.iter().map(|&(line, path)| (line, path.to_owned())).collect()
    }

    #[test]
    fn trees_are_written_out() {
        let code = "use std::{\n    fs,\n    sync::{Arc, atomic::{AtomicU8, Ordering}},\n    io::*,\n};\nuse a::b as c;";
        let expected = [
            (2, "std::fs"),
            (3, "std::sync::Arc"),
            (3, "std::sync::atomic::AtomicU8"),
            (3, "std::sync::atomic::Ordering"),
            (4, "std::io"),
            (6, "a::b"),
        ];
        assert_eq!(paths(code), owned(&expected));
    }

    #[test]
    fn paths_in_expressions_are_seen() {
        let code = "let x: u8 = crate::sync::f(std :: io::sink(), T::<a::B>::new());";
        assert_eq!(paths(code), owned(&[(1, "crate::sync::f"), (1, "std::io::sink"), (1, "a::B")]));
    }

    #[test]
    fn a_path_may_go_over_lines() {
        assert_eq!(paths("std::\n    time::Instant"), owned(&[(2, "std::time::Instant")]));
    }
}
