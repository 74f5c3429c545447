//! Mistakes in an application file, each with its place.

use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A mistake in an application file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The application file.
    pub path: Arc<Path>,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// What is wrong there, and what was expected.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.path.display(), self.line, self.column, self.message)
    }
}

/// The mistakes in an application file, in the order of their places; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// Returns the mistakes.
    #[must_use]
    pub fn as_slice(&self) -> &[Fault] {
        &self.0
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            fault.fmt(f)?;
        }
        Ok(())
    }
}

impl Error for Faults {}

/// A position in bytes of the text.
pub(crate) type Span = Range<usize>;

/// The text of a file, and the mistakes found in it.
#[derive(Debug)]
pub(crate) struct Checked<'a> {
    path: Arc<Path>,
    text: &'a str,
    faults: Vec<(usize, Fault)>,
}

impl<'a> Checked<'a> {
    pub(crate) fn new(path: &Path, text: &'a str) -> Self {
        Self { path: path.into(), text, faults: Vec::new() }
    }

    /// Returns the path of a file that the application names relative to itself.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(name)
    }

    pub(crate) fn fault(&self, span: &Span, message: impl Into<String>) -> Fault {
        let mut start = span.start.min(self.text.len());
        while !self.text.is_char_boundary(start) {
            start -= 1;
        }
        let before = &self.text[..start];
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Fault { path: self.path.clone(), line, column, message: message.into() }
    }

    /// Adds a mistake.
    pub(crate) fn wrong(&mut self, span: &Span, message: impl Into<String>) {
        let fault = self.fault(span, message);
        self.faults.push((span.start, fault));
    }

    /// Returns a result's value, or adds its error as a mistake.
    pub(crate) fn or_wrong<T>(&mut self, span: &Span, result: Result<T, String>) -> Option<T> {
        result.map_err(|message| self.wrong(span, message)).ok()
    }

    /// Returns the mistakes if there are any.
    pub(crate) fn end(mut self) -> Result<(), Faults> {
        if self.faults.is_empty() {
            return Ok(());
        }
        self.faults.sort_by_key(|(start, _)| *start);
        Err(Faults(self.faults.into_iter().map(|(_, fault)| fault).collect()))
    }
}
