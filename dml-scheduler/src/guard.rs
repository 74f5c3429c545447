//! Calls into foreign code, which may panic.

use dml_core::panic_text;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs foreign code, and turns a panic into its message.
pub(crate) fn guarded<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let message = panic_text(&*panic).to_string();
        // The payload of a panic may itself panic when it is dropped.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(again);
        }
        message
    })
}

/// Drops a foreign value, and ignores a panic of its destructor.
pub(crate) fn quietly<T>(theirs: T) {
    let _ = guarded(|| drop(theirs));
}

/// A foreign value that is dropped [`quietly`], also where another panic unwinds.
pub(crate) struct Quiet<T>(Option<T>);

impl<T> Quiet<T> {
    pub(crate) fn new(theirs: T) -> Self {
        Self(Some(theirs))
    }
}

impl<T> Deref for Quiet<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl<T> Drop for Quiet<T> {
    fn drop(&mut self) {
        if let Some(theirs) = self.0.take() {
            quietly(theirs);
        }
    }
}
