//! Numbers a kernel's blocks of threads within the whole run, when a launch is only a part of it.
//!
//! CUDA launches have no offset, so a kernel that was written for a whole grid counts the blocks of each part
//! from zero. Such a kernel gets a further parameter, from which each block reads its place before its first
//! statement. `blockIdx` and `gridDim` are then replaced by that place. The definition is found in the text:
//! `__global__`, the kernel's name, parentheses, a brace.

use super::compile::is_ptx;
use crate::compiled::{defines, includes, opts_out};
use std::borrow::Cow;
use std::ops::Range;

/// Prefix of a source whose blocks are numbered within the run.
const PRELUDE: &str = include_str!("numbering.cuh");
/// The size of `DmlPart`, the added parameter, in bytes.
pub(super) const PART_BYTES: usize = 72;

/// How the blocks of a kernel are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbering {
    /// Within each launch, as in CUDA.
    Launch,
    /// Within each launch, although the source may read its block or the grid.
    Unaware,
    /// Within the whole run.
    Run,
}

/// Returns the source to compile for parts of a run, and how its blocks are numbered.
///
/// # Errors
/// A sentence that says why the kernel cannot be launched in parts.
pub(super) fn of_run<'a>(
    source: &'a str,
    name: &str,
    options: &str,
) -> Result<(Cow<'a, str>, Numbering), String> {
    if opts_out(source, options) {
        return Ok((source.into(), Numbering::Launch));
    }
    if is_ptx(source) {
        return Ok((source.into(), Numbering::Unaware));
    }
    if source.contains("%ctaid") || source.contains("%nctaid") {
        return Err("it reads %ctaid or %nctaid, which number the blocks of each part alone".to_owned());
    }
    if BUILTINS.iter().any(|name| defines(source, name)) {
        return Err("it defines blockIdx or gridDim as a macro".to_owned());
    }
    let code = blanked(source);
    let definitions = definitions(&code, name);
    let is_told = definitions.iter().any(|found| word(&code[found.parameters.clone()], "DmlItems").is_some());
    // Included files may read the block, also if the kernel receives its items.
    let is_defined = definitions.iter().any(|found| found.body.is_some());
    let may_ask = asks(&code) || asks(options) || asks_in_a_macro(source);
    match (may_ask || (is_defined && includes(source, options)), is_told) {
        (false, true) => return Ok((source.into(), Numbering::Launch)),
        // A macro or a header defines the kernel: its last parameter shows whether it receives its items.
        (false, false) if definitions.is_empty() => return Ok((source.into(), Numbering::Unaware)),
        _ if !is_defined => {
            return Err(format!("its blocks must be numbered, and its source has no definition of {name}"));
        }
        _ => {}
    }
    let mut text = source.to_owned();
    for Definition { parameters, body } in definitions.into_iter().rev() {
        if let Some(body) = body {
            text.insert_str(body, " dml_enter(dml_part_of_run);");
        }
        match code[parameters.clone()].trim() {
            "" | "void" => text.replace_range(parameters, "const DmlPart dml_part_of_run"),
            _ => text.insert_str(parameters.end, ", const DmlPart dml_part_of_run"),
        }
    }
    Ok((format!("{PRELUDE}#line 1 \"kernel.cu\"\n{text}").into(), Numbering::Run))
}

/// Returns how the blocks of an unchanged source are numbered.
pub(super) fn of_launch(source: &str, options: &str) -> Numbering {
    match (asks(&blanked(source)) || asks(options) || asks_in_a_macro(source)) && !opts_out(source, options) {
        true => Numbering::Unaware,
        false => Numbering::Launch,
    }
}

/// Returns whether a preprocessor directive may read the block or the grid. `blanked` removes directives.
fn asks_in_a_macro(source: &str) -> bool {
    source.contains("##") || source.lines().any(|line| line.trim_start().starts_with('#') && asks(line))
}

/// The variables that hold a block's place and the size of the grid.
const BUILTINS: [&str; 2] = ["blockIdx", "gridDim"];

/// Returns whether code reads its block or the size of the grid.
fn asks(code: &str) -> bool {
    BUILTINS.iter().any(|name| word(code, name).is_some())
}

/// A definition of the kernel, or a declaration.
#[derive(Debug, PartialEq, Eq)]
struct Definition {
    /// The text between the parentheses.
    parameters: Range<usize>,
    /// The offset behind the opening brace; `None` for a declaration.
    body: Option<usize>,
}

/// Finds the definitions and declarations of a kernel in code without comments and strings.
fn definitions(code: &str, name: &str) -> Vec<Definition> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = word(&code[from..], name).map(|at| from + at) {
        from = at + name.len();
        let rest = &code[from..];
        let Some(open) =
            rest.trim_start().starts_with('(').then(|| from + rest.len() - rest.trim_start().len())
        else {
            continue;
        };
        let before = code[..at].rfind([';', '{', '}']).map_or(0, |end| end + 1);
        let Some(close) = closing(code, open) else { continue };
        if word(&code[before..at], "__global__").is_none() {
            continue;
        }
        let behind = &code[close + 1..];
        let body = behind.trim_start().starts_with('{');
        let body = body.then(|| close + 1 + behind.len() - behind.trim_start().len() + 1);
        if body.is_some() || behind.trim_start().starts_with(';') {
            found.push(Definition { parameters: open + 1..close, body });
        }
    }
    found
}

/// Returns the offset of the parenthesis that closes the one at `open`.
fn closing(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0_u32;
    for (at, character) in code[open..].char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(open + at);
        }
    }
    None
}

/// Returns the offset of a whole word.
fn word(text: &str, word: &str) -> Option<usize> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    text.match_indices(word)
        .map(|(at, _)| at)
        .find(|&at| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}

/// Replaces comments, literals and directives by spaces, byte by byte.
fn blanked(source: &str) -> String {
    #[derive(PartialEq)]
    enum In {
        Code,
        Line,
        Block,
        Literal(u8),
        Directive,
    }
    let bytes = source.as_bytes();
    let mut code = bytes.to_vec();
    let (mut place, mut at, mut line_is_empty) = (In::Code, 0, true);
    while at < bytes.len() {
        let (byte, next) = (bytes[at], bytes.get(at + 1).copied());
        let mut length = 1;
        match place {
            In::Code => match (byte, next) {
                (b'/', Some(b'/')) => place = In::Line,
                (b'/', Some(b'*')) => (place, length) = (In::Block, 2),
                // An apostrophe may separate digits.
                (b'\'', _) if at > 0 && bytes[at - 1].is_ascii_digit() => {}
                (b'"' | b'\'', _) => place = In::Literal(byte),
                (b'#', _) if line_is_empty => place = In::Directive,
                _ => {}
            },
            In::Line | In::Directive if byte == b'\n' => place = In::Code,
            In::Line | In::Directive | In::Literal(_) if byte == b'\\' => length = 2,
            In::Block if (byte, next) == (b'*', Some(b'/')) => {
                code[at..at + 2].fill(b' ');
                (place, at) = (In::Code, at + 2);
                continue;
            }
            In::Literal(end) if byte == end || byte == b'\n' => {
                code[at] = b' ';
                (place, at) = (In::Code, at + 1);
                continue;
            }
            _ => {}
        }
        line_is_empty = byte == b'\n' || (line_is_empty && byte.is_ascii_whitespace());
        if place != In::Code {
            let end = (at + length).min(bytes.len());
            for (to, from) in code[at..end].iter_mut().zip(&bytes[at..end]) {
                if *from != b'\n' {
                    *to = b' ';
                }
            }
        }
        at += length;
    }
    // All delimiters are single bytes, so a character of several bytes is blanked as a whole or not at all.
    String::from_utf8(code).unwrap_or_else(|_| source.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the source for parts of a run, without its prefix.
    fn numbered(source: &str) -> String {
        let (text, numbering) = of_run(source, "k", "").unwrap();
        assert_eq!(numbering, Numbering::Run, "{source}");
        text.strip_prefix(&format!("{PRELUDE}#line 1 \"kernel.cu\"\n")).unwrap().to_owned()
    }

    #[test]
    fn a_kernel_that_asks_for_its_block_learns_its_part() {
        for (source, expected) in [
            (
                "extern \"C\" __global__ void k(int* a) { a[blockIdx.x] = 1; }",
                "extern \"C\" __global__ void k(int* a, const DmlPart dml_part_of_run) { dml_enter(dml_part_of_run); a[blockIdx.x] = 1; }",
            ),
            (
                "__global__ void __launch_bounds__(64) k ( void )\n{ gridDim.x; }",
                "__global__ void __launch_bounds__(64) k (const DmlPart dml_part_of_run)\n{ dml_enter(dml_part_of_run); gridDim.x; }",
            ),
            (
                "__global__ void k();\nvoid h() { k(); }\n__global__ void k() {}",
                "__global__ void k(const DmlPart dml_part_of_run);\nvoid h() { k(); }\n__global__ void k(const DmlPart dml_part_of_run) { dml_enter(dml_part_of_run);}",
            ),
            (
                "// __global__ void k() {\n#define K k(\\\n) {\n__global__ void k(float (*f)(int), int2 b /* ) */) { char c = '\\''; }",
                "// __global__ void k() {\n#define K k(\\\n) {\n__global__ void k(float (*f)(int), int2 b /* ) */, const DmlPart dml_part_of_run) { dml_enter(dml_part_of_run); char c = '\\''; }",
            ),
            (
                "__global__ void k(int* a, DmlItems i) { a[blockIdx.x] = 1'000; }",
                "__global__ void k(int* a, DmlItems i, const DmlPart dml_part_of_run) { dml_enter(dml_part_of_run); a[blockIdx.x] = 1'000; }",
            ),
        ] {
            assert_eq!(numbered(source), expected);
        }
    }

    #[test]
    fn a_kernel_that_knows_its_items_stays_as_it_is() {
        let told = "__global__ void k(int* a, DmlItems i) { a[i.x()] = 1; } // not by blockIdx";
        assert_eq!(of_run(told, "k", ""), Ok((told.into(), Numbering::Launch)));
        let own = "__global__ void k(int* a) { a[blockIdx.x] = 1; }";
        assert_eq!(of_run(own, "k", "-DDML_PACKAGE_GROUPS"), Ok((own.into(), Numbering::Launch)));
        assert_eq!(of_launch(own, ""), Numbering::Unaware);
        assert_eq!(
            (of_launch(told, ""), of_launch(own, "-DDML_PACKAGE_GROUPS")),
            (Numbering::Launch, Numbering::Launch)
        );
    }

    /// The block is read in a macro, in the options or in an included file.
    #[test]
    fn a_macro_may_ask_for_the_block() {
        for (source, options) in [
            ("#define B blockIdx.x\n__global__ void k(int* a, DmlItems i) { a[B] = 1; }", ""),
            ("#define P(a, b) a##b\n__global__ void k(int* a, DmlItems i) { a[P(block, Idx).x] = 1; }", ""),
            ("__global__ void k(int* a, DmlItems i) { a[B] = 1; }", "-DB=blockIdx.x"),
            ("#include <b.cuh>\n__global__ void k(int* a, DmlItems i) { a[b()] = 1; }", ""),
        ] {
            assert_eq!(of_run(source, "k", options).unwrap().1, Numbering::Run, "{source}");
        }
    }

    #[test]
    fn a_kernel_that_cannot_be_numbered_is_refused_or_asked_for_its_items() {
        for refused in [
            "#define KERNEL __global__ void k\nKERNEL(int* a) { a[blockIdx.x] = 1; }",
            "__global__ void k(int* a) { asm(\"mov.u32 %0, %ctaid.x;\" : \"=r\"(a[0])); }",
            "__global__ void k(int* a);",
            "#define blockIdx mine()\n__global__ void k(int* a) { a[0] = 1; }",
        ] {
            assert!(of_run(refused, "k", "").is_err(), "{refused}");
        }
        for unknown in ["#include \"k.cuh\"", ".version 8.0\n.entry k() { %ctaid.x }"] {
            assert_eq!(of_run(unknown, "k", ""), Ok((unknown.into(), Numbering::Unaware)));
        }
    }

    #[test]
    fn code_is_told_from_comments_literals_and_directives() {
        let source = "a /* b */ c // d \\\n e\nf \"g \\\" h\" 'i' é\n #define j \\\n k\nl # m";
        let code = blanked(source);
        assert_eq!(code.len(), source.len());
        assert_eq!(code.split_whitespace().collect::<Vec<_>>(), ["a", "c", "f", "é", "l", "#", "m"]);
        assert_eq!(code.lines().count(), source.lines().count());
    }
}
