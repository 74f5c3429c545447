//! Transfers between host memory and a memory that a worker maps, as values.

use super::message::Memory;
use dml_core::{Fill, HostSource, HostTarget, Span};

/// A range of bytes in a memory that a worker maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) memory: Memory,
    /// The bytes, counted from the start of the memory.
    pub(super) span: Span,
}

impl Place {
    /// An empty place.
    pub(super) const NOTHING: Self = Self { memory: Memory::Own, span: Span::new(0, 0) };
}

/// A change of a memory that a worker maps, or a copy out of it.
///
/// A transfer owns the loan of its host memory.
pub(super) enum Transfer {
    /// Copies host memory to a place of the same length.
    In { place: Place, from: HostSource },
    /// Copies from a place into host memory of the same length.
    Out { place: Place, to: HostTarget },
    /// Sets every byte of a place. If core requested the fill, its request lives until the transfer has
    /// ended.
    Fill { place: Place, byte: u8, _request: Option<Fill> },
}
