//! Spans of the `tracing` crate around the slow operations. `internal` exports them to other crates.
//!
//! ```text
//!  run ──▶ package ──▶ acquire ──▶ transfer        each is the parent of the next
//! ```
//! Without the feature `tracing` a [`TraceSpan`] is nothing, and its fields are not computed.
//!
//! A subscriber is foreign code, and is called without a lock. If it panics, the span is left out.

#[cfg(feature = "tracing")]
use crate::base::guard::{Quiet, guard};

/// A span that is reported to the subscriber. It ends when this value is dropped.
#[derive(Debug, Default)]
#[must_use = "a span ends when it is dropped"]
pub struct TraceSpan {
    #[cfg(feature = "tracing")]
    span: Option<Quiet<tracing::Span>>,
}

impl TraceSpan {
    /// Returns a span that is not reported.
    pub const fn none() -> Self {
        Self {
            #[cfg(feature = "tracing")]
            span: None,
        }
    }

    /// Begins a span. It is not reported if the subscriber has disabled it.
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

    /// Runs `act` within the span, which becomes the parent of spans that this thread begins meanwhile.
    #[inline]
    pub fn within<R>(&self, act: impl FnOnce() -> R) -> R {
        #[cfg(feature = "tracing")]
        if let Some(span) = &self.span {
            // `Quiet` ignores a panic of the subscriber at the exit, also while a panic of `act` unwinds.
            let _entered = Quiet::new(guard(|| span.enter()).ok());
            return act();
        }
        act()
    }
}
