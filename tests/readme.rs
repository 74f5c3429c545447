//! The snippets of the README are those that `src/readme.rs` has compiled.

#![cfg(not(dml_loom))]

const README: &str = include_str!("../README.md");
const COMPILED: &str = include_str!("../src/readme.rs");

/// The blocks between a line that begins with `open` and one that is a fence.
fn blocks<'a>(lines: impl Iterator<Item = &'a str>, open: &str) -> Vec<Vec<&'a str>> {
    let (mut blocks, mut block) = (Vec::new(), None);
    for line in lines {
        match &mut block {
            None if line.starts_with(open) => block = Some(Vec::new()),
            None => {}
            Some(_) if line == "```" => blocks.extend(block.take()),
            Some(block) => block.push(line),
        }
    }
    blocks
}

#[test]
fn every_snippet_is_compiled_as_it_stands() {
    let told = blocks(README.lines(), "```rust");
    let comments = COMPILED.lines().filter_map(|line| line.strip_prefix("///"));
    let comments = comments.map(|line| line.strip_prefix(' ').unwrap_or(line));
    let shown = comments.filter(|line| !line.trim_start().starts_with("# "));
    let compiled = blocks(shown, "```no_run");
    assert_eq!(told.len(), compiled.len());
    for (told, compiled) in told.iter().zip(&compiled) {
        assert_eq!(told, compiled);
    }
    assert!(told.len() > 5);
}
