//! Calls into foreign code, which may panic: `dml_core`'s guards, with panic messages as strings.

pub(crate) use dml_core::internal::{Quiet, quietly};

/// Runs foreign code and turns a panic into its message.
pub(crate) fn guarded<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    dml_core::internal::guard(run).map_err(|message| message.to_string())
}
