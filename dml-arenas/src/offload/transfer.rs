//! Transfers: what is to be moved between host memory and a worker's memory, as values.

use dml_core::{Fill, HostSource, HostTarget, Span};

/// A change of a worker's memory, or a copy out of it. Offsets and places count from the start of the worker's memory.
///
/// A transfer owns the loan of its host memory.
pub(super) enum Transfer {
    /// Copies host memory into the worker's memory.
    In { offset: u64, from: HostSource },
    /// Copies the worker's memory into host memory.
    Out { offset: u64, to: HostTarget },
    /// Sets every byte of a place. Core's request, where there is one, lives until the transfer has ended.
    Fill { place: Span, byte: u8, _request: Option<Fill> },
}
