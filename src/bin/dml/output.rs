//! Files that a user names: reads are limited, writes are atomic, and no file has two purposes.

use crate::failure::Failure;
use dml::arenas::files::{self, Source};
use std::io::{self, Write};
use std::path::Path;

/// Maximum size of a file to read, in bytes.
const LARGEST_FILE_BYTES: u64 = 1 << 30;

/// Reads the text of a file. `what` names its purpose, such as `trace`. `other` describes a file that is not
/// UTF-8, such as `not a trace`.
pub(crate) fn read(path: &Path, what: &str, other: &str) -> Result<String, Failure> {
    let shown = path.display();
    let bytes = files::read(path, Source::FileOrPipe, LARGEST_FILE_BYTES)
        .map_err(|error| Failure::Usage(format!("cannot read the {what} {shown}: {error}")))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::Usage(format!("{shown}: {other}: byte {at} is not valid UTF-8"))
    })
}

/// Writes a file. `what` names its purpose, such as `trace`.
pub(crate) fn write(
    path: &Path,
    what: &str,
    contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    files::write(path, contents)
        .map_err(|error| Failure::Work(format!("cannot write the {what} {}: {error}", path.display())))
}

/// Checks that no output replaces an input or another output.
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

/// The failures to write files, reported after the results are printed.
#[derive(Debug, Default)]
pub(crate) struct Unwritten(Vec<String>);

impl Unwritten {
    /// Returns the path to print if the file was written. U+FFFD replaces what is not UTF-8. Otherwise
    /// records the failure.
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
    /// All recorded failures, as [`Failure::Work`].
    pub(crate) fn end(self) -> Result<(), Failure> {
        if self.0.is_empty() { Ok(()) } else { Err(Failure::Work(self.0.join("; "))) }
    }
}
