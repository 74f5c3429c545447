//! Tokens of a kernel's source, with macros expanded.
//!
//! ```text
//!   text ──scan──▶ lines of tokens ──conditions, definitions──▶ tokens ──expand──▶ tokens of C
//! ```
//! 1. A token that comes from a macro has the place where the macro is used.
//! 2. Included files are not read: a source that needs one is refused where it uses an unknown name.
//! 3. Whether a macro of the compiler is defined is unknown, and after an `#include` whether any is. Such a
//!    condition is assumed to hold, or not, for each reading of the source.

use crate::{Language, Refusal};
use std::collections::HashMap;
use std::rc::Rc;

/// A position in bytes of the source.
pub(crate) type Place = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Name,
    Number,
    /// A string or a character.
    Text,
    Sign,
}

#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) text: Rc<str>,
    pub(crate) at: Place,
    /// Whether white space precedes it. Only then does `NAME (` define a macro without parameters.
    is_apart: bool,
    /// Whether it is the first one of its line.
    is_first: bool,
}

impl Token {
    pub(crate) fn is(&self, text: &str) -> bool {
        self.kind != Kind::Text && &*self.text == text
    }
}

/// Signs, the longest first.
const SIGNS: [&str; 24] = [
    "<<=", ">>=", "...", "->", "++", "--", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=",
    "/=", "%=", "&=", "|=", "^=", "##", "::",
];

/// How deeply macros may be nested.
const DEPTH: usize = 64;
/// The most tokens of an expanded source.
const TOKENS: usize = 1 << 20;
/// The most readings of a source.
const READINGS: usize = 32;

#[derive(Debug)]
struct Macro {
    parameters: Option<Vec<Rc<str>>>,
    body: Vec<Token>,
}

/// Splits a text into tokens, without comments.
fn scan(text: &str) -> Result<Vec<Token>, Refusal> {
    let bytes = text.as_bytes();
    let (mut tokens, mut at) = (Vec::new(), 0);
    let (mut is_apart, mut is_first) = (true, true);
    let find = |from: usize, end: &str| text[from..].find(end).map_or(text.len(), |found| from + found);
    while at < bytes.len() {
        let rest = &text[at..];
        let spliced = ["\\\n", "\\\r\n"].iter().find(|splice| rest.starts_with(**splice));
        if let Some(splice) = spliced {
            (at, is_apart) = (at + splice.len(), true);
            continue;
        }
        if rest.starts_with("//") {
            let mut end = find(at, "\n");
            while text[..end].ends_with('\\') && end < text.len() {
                end = find(end + 1, "\n");
            }
            at = end;
            continue;
        }
        if rest.starts_with("/*") {
            (at, is_apart) = ((find(at + 2, "*/") + 2).min(text.len()), true);
            continue;
        }
        let first = rest.chars().next().unwrap_or('\0');
        if first.is_whitespace() {
            is_first |= first == '\n';
            (at, is_apart) = (at + first.len_utf8(), true);
            continue;
        }
        let is_word = |character: &char| character.is_ascii_alphanumeric() || *character == '_';
        let (kind, length) = if first.is_ascii_alphabetic() || first == '_' {
            (Kind::Name, rest.chars().take_while(is_word).count())
        } else if first.is_ascii_digit() || first == '.' && bytes.get(at + 1).is_some_and(u8::is_ascii_digit)
        {
            (Kind::Number, number(rest))
        } else if first == '"' || first == '\'' {
            let mut end = at + 1;
            while end < bytes.len() && bytes[end] != first as u8 {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            if end >= bytes.len() || !text.is_char_boundary(end + 1) {
                return Err(Refusal::new(at, "a string that does not end"));
            }
            (Kind::Text, end + 1 - at)
        } else {
            let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
            (Kind::Sign, sign.map_or(first.len_utf8(), |sign| sign.len()))
        };
        let text = Rc::from(&text[at..at + length]);
        tokens.push(Token { kind, text, at, is_apart, is_first });
        (at, is_apart, is_first) = (at + length, false, false);
    }
    Ok(tokens)
}

/// Returns the length of the number that a text begins with.
fn number(text: &str) -> usize {
    let mut last = ' ';
    let is_hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    let goes_on = |character: &char| {
        let is_exponent = matches!((last, is_hexadecimal), ('e' | 'E', false) | ('p' | 'P', _));
        let goes_on = character.is_ascii_alphanumeric()
            || *character == '.'
            || is_exponent && "+-".contains(*character);
        last = *character;
        goes_on
    };
    text.chars().take_while(goes_on).count()
}

/// Conditions on macros of the compiler, each with whether it is assumed to hold.
pub(crate) type Assumed = Vec<(Rc<str>, bool)>;

/// Returns the tokens of each reading of a source, with these macros defined first, each as `NAME` or
/// `NAME=TOKENS`. In the first one, no condition is assumed to hold.
pub(crate) fn readings(
    text: &str,
    defines: &[String],
    language: Language,
) -> Vec<(Assumed, Result<Vec<Token>, Refusal>)> {
    let (mut open, mut readings) = (vec![Assumed::new()], Vec::new());
    while let Some(assumed) = open.pop() {
        let mut preprocessor = Preprocessor {
            language,
            assumed: &assumed,
            unknown: None,
            has_included: false,
            macros: HashMap::new(),
            tokens: Vec::new(),
        };
        let read = preprocessor.read(text, defines);
        let Some((at, condition)) = preprocessor.unknown else {
            let read = read.map(|()| preprocessor.tokens);
            readings.push((assumed, read));
            continue;
        };
        if readings.len() + open.len() >= READINGS {
            let refusal =
                Refusal::new(at, "too many conditions on macros of the compiler or of included files");
            return vec![(assumed, Err(refusal))];
        }
        let with = |holds| assumed.iter().cloned().chain([(condition.clone(), holds)]).collect();
        open.extend([with(true), with(false)]);
    }
    readings
}

struct Preprocessor<'a> {
    language: Language,
    assumed: &'a Assumed,
    /// The first condition that is neither known nor assumed, and its place.
    unknown: Option<(Place, Rc<str>)>,
    /// Whether a file may have defined macros.
    has_included: bool,
    macros: HashMap<Rc<str>, Rc<Macro>>,
    tokens: Vec<Token>,
}

/// A conditional part of a source.
struct Part {
    /// Whether the part around it is compiled.
    is_outer: bool,
    /// Whether one of its branches was compiled already.
    is_settled: bool,
    is_active: bool,
}

impl Preprocessor<'_> {
    fn read(&mut self, text: &str, defines: &[String]) -> Result<(), Refusal> {
        for define in defines {
            let (name, value) = define.split_once('=').unwrap_or((define, "1"));
            let mut body = scan(value)?;
            body.iter_mut().for_each(|token| token.at = 0);
            self.macros.insert(name.trim().into(), Rc::new(Macro { parameters: None, body }));
        }
        self.run(&scan(text)?)
    }

    /// Returns whether a macro is defined, if that is known.
    fn defined(&self, name: &str) -> Option<bool> {
        let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        let (here, elsewhere): (&[&str], &[&str]) = match self.language {
            Language::OpenCl => {
                (&["__OPENCL_VERSION__", "__OPENCL_C_VERSION__"], &["__CUDA", "__NV", "__cplusplus"])
            }
            Language::Cuda => {
                (&["__CUDACC__", "__CUDACC_RTC__", "__CUDA_ARCH__", "__cplusplus"], &["__OPENCL", "cl_"])
            }
        };
        if self.macros.contains_key(name) || here.contains(&name) {
            return Some(true);
        }
        let is_open = !begins(elsewhere) && (self.has_included || begins(&["_", "cl_", "CL_"]));
        (!is_open).then_some(false)
    }

    /// Returns whether a condition is assumed to hold.
    fn assumed(&mut self, at: Place, condition: String) -> bool {
        if let Some((_, holds)) = self.assumed.iter().find(|(known, _)| **known == condition) {
            return *holds;
        }
        self.unknown.get_or_insert((at, condition.into()));
        false
    }

    fn run(&mut self, tokens: &[Token]) -> Result<(), Refusal> {
        let mut parts: Vec<Part> = Vec::new();
        let mut at = 0;
        let mut run = 0;
        while at < tokens.len() {
            let is_active = parts.last().is_none_or(|part| part.is_active);
            if !(tokens[at].is_first && tokens[at].is("#")) {
                at += 1;
                continue;
            }
            if is_active {
                self.extend(&tokens[run..at])?;
            }
            let end = tokens[at + 1..]
                .iter()
                .position(|token| token.is_first)
                .map_or(tokens.len(), |end| at + 1 + end);
            self.directive(tokens[at].at, &tokens[at + 1..end], &mut parts)?;
            (at, run) = (end, end);
        }
        if parts.last().is_none_or(|part| part.is_active) {
            self.extend(&tokens[run..])?;
        }
        Ok(())
    }

    fn extend(&mut self, tokens: &[Token]) -> Result<(), Refusal> {
        let expanded = self.expand(tokens, &mut Vec::new())?;
        self.tokens.extend(expanded);
        if self.tokens.len() > TOKENS {
            return Err(Refusal::new(0, format!("more than {TOKENS} tokens")));
        }
        Ok(())
    }

    fn directive(&mut self, at: Place, line: &[Token], parts: &mut Vec<Part>) -> Result<(), Refusal> {
        let Some((name, rest)) = line.split_first() else { return Ok(()) };
        let is_active = parts.last().is_none_or(|part| part.is_active);
        let begin = |is_true: bool| Part {
            is_outer: is_active,
            is_settled: is_true,
            is_active: is_active && is_true,
        };
        match &*name.text {
            "ifdef" | "ifndef" => {
                let of = rest.first().map_or("", |name| &*name.text);
                let known = if is_active { self.defined(of) } else { Some(false) };
                let is_defined = known.unwrap_or_else(|| self.assumed(at, format!("defined({of})")));
                parts.push(begin(is_defined == name.is("ifdef")));
            }
            "if" => parts.push(begin(is_active && self.condition(at, rest)?)),
            "elif" | "else" => {
                let part = parts.last_mut().ok_or_else(|| Refusal::new(at, "an #else without its #if"))?;
                let is_tried = part.is_outer && !part.is_settled;
                let is_true = is_tried && (name.is("else") || self.condition(at, rest)?);
                (part.is_active, part.is_settled) = (is_true, part.is_settled || is_true);
            }
            "endif" => {
                parts.pop().ok_or_else(|| Refusal::new(at, "an #endif without its #if"))?;
            }
            "define" if is_active => self.define(at, rest)?,
            "undef" if is_active => {
                rest.first().and_then(|name| self.macros.remove(&name.text));
            }
            "error" if is_active => return Err(Refusal::new(at, "an #error")),
            "include" if is_active => self.has_included = true,
            "pragma" if is_active && rest.first().is_some_and(|word| word.is("pack")) => {
                return Err(Refusal::new(at, "a #pragma pack"));
            }
            _ => {}
        }
        Ok(())
    }

    fn define(&mut self, at: Place, line: &[Token]) -> Result<(), Refusal> {
        let Some((name, mut body)) = line.split_first() else {
            return Err(Refusal::new(at, "an empty #define"));
        };
        let mut parameters = None;
        if body.first().is_some_and(|token| token.is("(") && !token.is_apart) {
            let end = body.iter().position(|token| token.is(")"));
            let end = end.ok_or_else(|| Refusal::new(at, "parameters of a macro that do not end"))?;
            let names = body[1..end].iter().filter(|token| !token.is(","));
            if names.clone().any(|token| token.kind != Kind::Name) {
                return Err(Refusal::new(at, "a macro with any number of parameters"));
            }
            parameters = Some(names.map(|token| token.text.clone()).collect());
            body = &body[end + 1..];
        }
        self.macros.insert(name.text.clone(), Rc::new(Macro { parameters, body: body.to_vec() }));
        Ok(())
    }

    /// Replaces macros. `active` are the macros that are being replaced.
    fn expand(&self, tokens: &[Token], active: &mut Vec<Rc<str>>) -> Result<Vec<Token>, Refusal> {
        let mut result = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            let token = &tokens[at];
            at += 1;
            let found = if token.kind == Kind::Name { self.macros.get(&token.text) } else { None };
            let Some(found) = found.filter(|_| !active.contains(&token.text)).cloned() else {
                result.push(token.clone());
                continue;
            };
            let mut body = found.body.clone();
            if let Some(sign) = body.iter().find(|token| token.is("#")) {
                return Err(Refusal::new(sign.at, "a macro that makes a string"));
            }
            if let Some(parameters) = &found.parameters {
                // Without arguments, the name is no use of the macro.
                if !tokens.get(at).is_some_and(|next| next.is("(")) {
                    result.push(token.clone());
                    continue;
                }
                let (arguments, end) = arguments(tokens, at)?;
                at = end;
                if arguments.len() != parameters.len() && !(parameters.is_empty() && arguments[0].is_empty())
                {
                    return Err(Refusal::new(
                        token.at,
                        format!("{} with other arguments than it has", token.text),
                    ));
                }
                let expanded: Vec<_> = arguments
                    .iter()
                    .map(|argument| self.expand(argument, active))
                    .collect::<Result<_, _>>()?;
                let is_joined = |at: usize| {
                    let is_sign = |at: usize| body.get(at).is_some_and(|token| token.is("##"));
                    is_sign(at + 1) || at > 0 && is_sign(at - 1)
                };
                let replaced = body.iter().enumerate().flat_map(|(at, token)| {
                    match parameters.iter().position(|name| token.is(name)) {
                        Some(index) if is_joined(at) => arguments[index].to_vec(),
                        Some(index) => expanded[index].clone(),
                        None => vec![token.clone()],
                    }
                });
                body = replaced.collect();
            }
            body = pasted(body)?;
            body.iter_mut().for_each(|part| part.at = token.at);
            if active.len() >= DEPTH || result.len() + body.len() > TOKENS {
                return Err(Refusal::new(token.at, "macros that are nested too deeply"));
            }
            active.push(token.text.clone());
            let expanded = self.expand(&body, active)?;
            active.pop();
            result.extend(expanded);
        }
        Ok(result)
    }

    /// Evaluates the condition of an `#if`. Names that are not defined are 0.
    fn condition(&mut self, at: Place, line: &[Token]) -> Result<bool, Refusal> {
        let mut replaced = Vec::new();
        let mut rest = line;
        while let Some((token, after)) = rest.split_first() {
            rest = after;
            if !token.is("defined") {
                replaced.push(token.clone());
                continue;
            }
            let skipped = usize::from(rest.first().is_some_and(|token| token.is("(")));
            let name = rest.get(skipped).ok_or_else(|| Refusal::new(at, "a `defined` of nothing"))?;
            let Some(is_defined) = self.defined(&name.text) else {
                return Ok(self.assumed(at, written(line)));
            };
            let value = if is_defined { "1" } else { "0" };
            replaced.push(Token { kind: Kind::Number, text: value.into(), ..token.clone() });
            rest = &rest[(2 * skipped + 1).min(rest.len())..];
        }
        let mut tokens = self.expand(&replaced, &mut Vec::new())?;
        let mut names = tokens.iter().filter(|token| token.kind == Kind::Name);
        if names.any(|name| self.defined(&name.text) != Some(false)) {
            return Ok(self.assumed(at, written(line)));
        }
        for token in tokens.iter_mut().filter(|token| token.kind == Kind::Name) {
            (token.kind, token.text) = (Kind::Number, "0".into());
        }
        crate::syntax::constant(&tokens, at).map(|value| value != 0)
    }
}

/// Joins the tokens on both sides of each `##`.
fn pasted(body: Vec<Token>) -> Result<Vec<Token>, Refusal> {
    let mut joined: Vec<Token> = Vec::new();
    let mut rest = body.into_iter();
    while let Some(token) = rest.next() {
        if !token.is("##") {
            joined.push(token);
            continue;
        }
        let both = joined.pop().zip(rest.next());
        let text =
            both.as_ref().map_or_else(String::new, |(one, other)| format!("{}{}", one.text, other.text));
        let (Some((left, _)), [one]) = (both, &scan(&text)?[..]) else {
            return Err(Refusal::new(token.at, "a macro that joins tokens to no token"));
        };
        joined.push(Token { kind: one.kind, text: one.text.clone(), ..left });
    }
    Ok(joined)
}

fn written(tokens: &[Token]) -> String {
    let texts: Vec<_> = tokens.iter().map(|token| &*token.text).collect();
    texts.join(" ")
}

/// Returns the arguments of a macro whose `(` is at this index, and the index behind them.
fn arguments(tokens: &[Token], open: usize) -> Result<(Vec<&[Token]>, usize), Refusal> {
    let (mut depth, mut start, mut arguments) = (0, open + 1, Vec::new());
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match &*token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 || depth == 1 && token.is(",") {
            arguments.push(&tokens[start..index]);
            start = index + 1;
        }
        if depth == 0 {
            return Ok((arguments, index + 1));
        }
    }
    Err(Refusal::new(tokens[open].at, "arguments of a macro that do not end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str, defines: &[&str]) -> Result<String, String> {
        let defines: Vec<_> = defines.iter().map(|define| (*define).to_owned()).collect();
        let mut readings = readings(text, &defines, Language::OpenCl);
        let tokens = readings.remove(0).1.map_err(|refusal| refusal.to_string())?;
        Ok(written(&tokens))
    }

    #[test]
    fn conditions_on_the_compiler_are_read_both_ways() {
        let read = |text: &str, language| {
            let readings = readings(text, &[], language).into_iter();
            readings.map(|(_, tokens)| written(&tokens.unwrap_or_default())).collect::<Vec<_>>()
        };
        for (text, opencl, cuda) in [
            ("#ifdef cl_khr_fp64\na\n#else\nb\n#endif", &["b", "a"][..], &["b"][..]),
            ("#ifndef _F\na\n#endif\n#ifdef _F\nb\n#endif", &["a", "b"], &["a", "b"]),
            ("#ifdef __CUDACC__\na\n#else\nb\n#endif", &["b"], &["a"]),
            ("#if __OPENCL_C_VERSION__ >= 120\na\n#endif", &["", "a"], &[""]),
            ("#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700\na\n#endif", &[""], &["", "a"]),
            ("#ifdef F\na\n#endif", &[""], &[""]),
            (
                "#include \"f.h\"\n#ifdef F\na\n#endif\n#if G\nb\n#endif",
                &["", "b", "a", "a b"],
                &["", "b", "a", "a b"],
            ),
            ("#define _F\n#ifdef _F\na\n#endif", &["a"], &["a"]),
            ("#ifdef F\n#ifdef _F\na\n#endif\n#endif", &[""], &[""]),
        ] {
            assert_eq!(read(text, Language::OpenCl), opencl, "{text}");
            assert_eq!(read(text, Language::Cuda), cuda, "{text}");
        }
        let many: String = (0..6).map(|n| format!("#ifdef _F{n}\na\n#endif\n")).collect();
        assert!(
            readings(&many, &[], Language::OpenCl).remove(0).1.unwrap_err().to_string().contains("too many")
        );
    }

    #[test]
    fn macros_are_expanded() {
        for (text, expected) in [
            ("#define N 16\nint a[N*N];", "int a [ 16 * 16 ] ;"),
            (
                "#define AT(i, j) ((i) * n + (j))\nx[AT(y - 1, f(x, 2))]",
                "x [ ( ( y - 1 ) * n + ( f ( x , 2 ) ) ) ]",
            ),
            ("#define AT (n)\nAT", "( n )"),
            ("#define F(x) x\nF F(1) F (2)", "F 1 2"),
            ("#define A B\n#define B A\nA B", "A B"),
            ("#define TWICE(x) x x\nTWICE(TWICE(1))", "1 1 1 1"),
            ("#define LONG a \\\n  b // c\nLONG", "a b"),
            ("#define N() 1\nN()", "1"),
            ("#define N 7\n#define J(a, b) a##b + a\nJ(N, 2) J(1.5, f)", "N2 + 7 1.5f + 1.5"),
            ("#define A(x) x ## _a ## x\nA(b)", "b_ab"),
            ("#define N 1\n#undef N\nN", "N"),
            ("a /* b */ c 1.5e-3f .5 0x1Fu 'x' \"a b\" >>= ->", "a c 1.5e-3f .5 0x1Fu 'x' \"a b\" >>= ->"),
        ] {
            assert_eq!(expanded(text, &[]).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn conditions_choose_lines() {
        let text =
            "#if defined(A) && N > 2\none\n#elif !defined B\ntwo\n#if 1\ninner\n#endif\n#else\nthree\n#endif";
        assert_eq!(expanded(text, &["A", "N=3"]).as_deref(), Ok("one"));
        assert_eq!(expanded(text, &["A", "N=(1 + 1)"]).as_deref(), Ok("two inner"));
        assert_eq!(expanded(text, &["B=1"]).as_deref(), Ok("three"));
        assert_eq!(expanded("#ifndef A\n#error no\n#else\nx\n#endif", &["A"]).as_deref(), Ok("x"));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (text, expected) in [
            ("#define J(a, b) a##b\nJ(+, 2)", "joins tokens"),
            ("#define J(a) a##\nJ(1)", "joins tokens"),
            ("#define S(a) #a\nS(1)", "a string"),
            ("#define V(...) 1", "any number"),
            ("#define F(x) x\nF(1, 2)", "other arguments"),
            ("#define F(x) x\nF(1", "do not end"),
            ("#error", "#error"),
            ("#else", "#else without"),
            ("\"abc", "does not end"),
        ] {
            assert!(expanded(text, &[]).unwrap_err().contains(expected), "{text}");
        }
        let mut doubling = "#define A0 x x\n".to_owned();
        (1..40).for_each(|n| doubling += &format!("#define A{n} A{} A{}\n", n - 1, n - 1));
        assert!(expanded(&(doubling + "A39"), &[]).unwrap_err().contains("too"));
    }
}
