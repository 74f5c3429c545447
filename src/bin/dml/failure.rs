//! Failures of the command: wrong usage, or failed work.

use std::error::Error;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;

/// A failure, with its message and exit code.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request is wrong or impossible on this machine: exit code 2.
    Usage(String),
    /// The work failed: exit code 1.
    Work(String),
}

impl Failure {
    pub(crate) fn usage(error: impl Error) -> Self {
        Self::Usage(chain(&error))
    }

    pub(crate) fn work(error: impl Error) -> Self {
        Self::Work(chain(&error))
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Work(_) => ExitCode::from(1),
        }
    }
}

/// Returns an error and its causes on one line. A cause that the text already contains is omitted.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Prints to standard output. A closed pipe is not a failure; a full disk is.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_to(&mut std::io::stdout().lock(), text)
}

fn print_to(out: &mut impl Write, text: &str) -> Result<(), Failure> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::Work(format!("cannot write the result: {error}")))
        }
        _ => Ok(()),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Work(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Nested(&'static str, Option<Box<Nested>>);

    impl fmt::Display for Nested {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Nested {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as &dyn Error)
        }
    }

    /// A writer that accepts this many bytes and then fails with this error.
    struct Failing(usize, std::io::ErrorKind);

    impl Write for Failing {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.0 == 0 {
                return Err(self.1.into());
            }
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            Ok(taken)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_has_gone_is_no_failure_and_a_full_disk_is() {
        let told =
            |takes, kind| print_to(&mut Failing(takes, kind), "some text").map_err(|it| it.to_string());
        assert_eq!(told(4, std::io::ErrorKind::BrokenPipe), Ok(()));
        let full = told(4, std::io::ErrorKind::StorageFull);
        assert!(full.is_err_and(|text| text.contains("cannot write the result")));
        assert_eq!(told(9, std::io::ErrorKind::StorageFull), Ok(()), "all of it was written");
    }

    #[test]
    fn each_cause_is_said_once() {
        let last = Nested("the disk is full", None);
        let middle = Nested("cannot write: the disk is full", Some(Box::new(last)));
        let first = Nested("no table", Some(Box::new(middle)));
        assert_eq!(Failure::work(first).to_string(), "no table: cannot write: the disk is full");
    }
}
