//! Calls into foreign code, which may panic. [`crate::foreign`] shows them to other crates.

use crate::base::rank::assert_unlocked;
use crate::base::sync::Arc;
use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Drops a foreign value, and ignores a panic of its destructor.
pub fn quietly<T>(theirs: T) {
    let _ = guard(|| drop(theirs));
}

/// A foreign value that is dropped [`quietly`]. Otherwise, a panic of its destructor during an unwinding
/// would abort the process.
#[derive(Clone, Debug)]
pub struct Quiet<T>(Option<T>);

impl<T> Quiet<T> {
    /// Wraps a value.
    pub const fn new(theirs: T) -> Self {
        Self(Some(theirs))
    }

    /// Returns the value. The caller then drops it like any other value.
    #[must_use]
    pub fn into_inner(mut self) -> T {
        self.0.take().expect("the value is present until the drop")
    }
}

impl<T> Deref for Quiet<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("the value is present until the drop")
    }
}

impl<T> DerefMut for Quiet<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("the value is present until the drop")
    }
}

impl<T> Drop for Quiet<T> {
    fn drop(&mut self) {
        if let Some(theirs) = self.0.take() {
            quietly(theirs);
        }
    }
}

/// Runs foreign code, and converts a panic into its message.
///
/// Debug builds check that the thread holds no lock of core.
///
/// # Errors
/// The message of the panic.
pub fn guard<R>(call: impl FnOnce() -> R) -> Result<R, Arc<str>> {
    assert_unlocked();
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = panic_text(&*panic).into();
        // The panic's payload may panic when it is dropped.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(again);
        }
        text
    })
}

/// Returns the message of a caught panic, for errors.
#[must_use]
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}
