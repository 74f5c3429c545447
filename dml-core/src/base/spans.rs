//! Spans of the crate `tracing` around what takes time. [`crate::spans`] shows them to other crates.
//!
//! ```text
//!  run ──▶ package ──▶ acquire ──▶ transfer        each within the one before it
//! ```
//! Without the feature `tracing` a [`Span`] is nothing, and its fields are not computed.
//!
//! A subscriber is foreign code. It is called without a lock, and its panic reaches nobody: the span is then left out.

#[cfg(feature = "tracing")]
use crate::base::guard::{Quiet, guard};

/// A stretch of time that a subscriber is told of. It ends when this value is dropped.
#[derive(Debug, Default)]
#[must_use = "a span ends when it is dropped"]
pub struct Span {
    #[cfg(feature = "tracing")]
    span: Option<Quiet<tracing::Span>>,
}

impl Span {
    /// Returns a span that nobody is told of.
    pub const fn none() -> Self {
        Self {
            #[cfg(feature = "tracing")]
            span: None,
        }
    }

    /// Begins a span. Where nobody wants to hear of it, it is none.
    ///
    /// Debug builds check that the thread holds no lock of core.
    #[cfg(feature = "tracing")]
    pub fn new(make: impl FnOnce() -> tracing::Span) -> Self {
        let made = guard(|| {
            let span = Quiet::new(make());
            if span.is_disabled() { None } else { Some(span) }
        });
        Self { span: made.unwrap_or_default() }
    }

    /// Does something within the span: spans that this thread begins meanwhile lie within it.
    #[inline]
    pub fn within<R>(&self, act: impl FnOnce() -> R) -> R {
        #[cfg(feature = "tracing")]
        if let Some(span) = &self.span {
            // It is left quietly, also while a panic of the act goes on.
            let _entered = Quiet::new(guard(|| span.enter()).ok());
            return act();
        }
        act()
    }
}
