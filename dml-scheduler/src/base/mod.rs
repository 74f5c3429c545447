//! Shared foundations of the other modules: packages, calls into foreign code, and cancellation.

pub(crate) mod cancel;
pub(crate) mod guard;
pub(crate) mod package;
