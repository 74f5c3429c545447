//! Arenas and mechanisms that fail on cue, for tests of what core does then.
//!
//! ```text
//!   core ──call──▶ Faulty<A> ── script says nothing ──▶ A
//!                            ── fail / short / slow / panic / report ──▶ that, instead of A or around it
//! ```
//! A [`Script`] names calls by their number, counted from one over all calls or over those of one [`CallKind`]. The
//! same calls in the same order meet the same faults: there is no chance and no clock in it.

mod arena;
mod cross;
mod script;

pub use arena::Faulty;
pub use cross::FaultyCross;
pub use script::{CallKind, Fault, Script};
