//! Arenas and mechanisms that fail as a script says, to test how core reacts.
//!
//! ```text
//!   core ──call──▶ Faulty<A> ── script says nothing ──▶ A
//!                            ── fail / short / slow / panic / report ──▶ that, instead of A or around it
//! ```
//! A [`Script`](crate::Script) names calls by their number, counted from one over all calls or over those of one
//! [`CallKind`]. The same calls in the same order meet the same faults: scripts use no randomness and no
//! clock.

pub(crate) mod arena;
pub(crate) mod cross;
pub(crate) mod script;
mod wrapped;

pub use arena::Faults;
pub use script::{CallKind, Fault};
pub use wrapped::{Around, Piece, Wrapped};
