//! What every other room uses: packages, calls into foreign code, and cancellation.

pub(crate) mod cancel;
pub(crate) mod guard;
pub(crate) mod package;
