//! Why a kernel could not be built.

use dml_core::internal::sync::Arc;
use thiserror::Error;

/// A kernel could not be built for an arena.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("kernel {kernel:?} for {arena}: {cause}")]
#[non_exhaustive]
pub struct BuildError {
    /// The arena's name.
    pub arena: Arc<str>,
    /// The name of the requested kernel.
    pub kernel: String,
    /// The reason.
    pub cause: BuildCause,
}

impl BuildError {
    pub(crate) fn new(arena: &Arc<str>, kernel: &str, cause: BuildCause) -> Self {
        Self { arena: arena.clone(), kernel: kernel.to_owned(), cause }
    }
}

/// Why a kernel could not be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BuildCause {
    /// The compiler rejected the source: its log.
    #[error("the compiler rejects the source:\n{0}")]
    Compile(String),
    /// There is no compiler on this machine: what is missing.
    #[error("it needs a compiler: {0}")]
    NoCompiler(String),
    /// The source has no kernel of this name: what a kernel is, or why the source has none.
    #[error("the source has no such kernel ({0})")]
    NoKernel(&'static str),
    /// The kernel cannot be launched in parts: why its groups cannot be numbered within the whole run.
    #[error(
        "it cannot be launched in parts: {0}; let it receive its items in a `DmlItems`, or define DML_PACKAGE_GROUPS \
         if it needs no numbers of the whole run"
    )]
    NotDivisible(String),
    /// This part contains a zero character: `the name`, `the options` or `the source`.
    #[error("{0} contains a zero character")]
    ZeroCharacter(&'static str),
    /// A call failed for another reason.
    #[error("{call} failed: {message} (code {code})")]
    Framework {
        /// The framework's call.
        call: &'static str,
        /// The framework's error code.
        code: i64,
        /// A description of the code.
        message: Arc<str>,
    },
}
