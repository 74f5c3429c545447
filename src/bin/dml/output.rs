//! The files that users name: read with a limit, written whole, and each for one purpose.

use crate::failure::Failure;
use dml::arenas::files::{self, Source};
use std::io::{self, Write};
use std::path::Path;

/// The longest file that is read, in bytes.
const LARGEST_FILE_BYTES: u64 = 1 << 30;

/// The text of a file that users name. `what` is what it has to be, such as `trace`, and `other` what it is
/// if it is no text.
pub(crate) fn read(path: &Path, what: &str, other: &str) -> Result<String, Failure> {
    let shown = path.display();
    let bytes = files::read(path, Source::FileOrPipe, LARGEST_FILE_BYTES)
        .map_err(|error| Failure::Usage(format!("cannot read the {what} {shown}: {error}")))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::Usage(format!("{shown}: {other}: byte {at} is no text in UTF-8"))
    })
}

/// Writes a file. `what` is what it is, such as `trace`.
pub(crate) fn write(
    path: &Path,
    what: &str,
    contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    files::write(path, contents)
        .map_err(|error| Failure::Work(format!("cannot write the {what} {}: {error}", path.display())))
}

/// Checks that each file is one thing: an output replaces no input and no other output.
pub(crate) fn check(inputs: &[(&str, &Path)], outputs: &[(&str, &Path)]) -> Result<(), Failure> {
    for (index, (output, path)) in outputs.iter().enumerate() {
        let others = inputs.iter().chain(&outputs[..index]);
        if let Some((other, named)) = others.into_iter().find(|(_, other)| files::are_same(other, path)) {
            let named = if named == path { String::new() } else { format!("{}, ", named.display()) };
            let shown = path.display();
            return Err(Failure::Usage(format!("{other} and {output} are one file: {named}{shown}")));
        }
    }
    Ok(())
}

/// Why files were not written whose results are printed nevertheless.
#[derive(Debug, Default)]
pub(crate) struct Unwritten(Vec<String>);

impl Unwritten {
    /// The path for people and for JSON, if the file was written. U+FFFD stands for what is not UTF-8 in it.
    pub(crate) fn name(&mut self, path: &Path, written: Result<(), Failure>) -> Option<String> {
        match written {
            Ok(()) => Some(path.display().to_string()),
            Err(failure) => {
                self.add(&failure);
                None
            }
        }
    }

    pub(crate) fn add(&mut self, failure: &Failure) {
        self.0.push(failure.to_string());
    }

    /// # Errors
    /// All of them, as failed work.
    pub(crate) fn end(self) -> Result<(), Failure> {
        if self.0.is_empty() { Ok(()) } else { Err(Failure::Work(self.0.join("; "))) }
    }
}
