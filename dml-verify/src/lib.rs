//! Checks DML with test platforms, generators and oracles. The tests, the fuzz targets and `cargo xtask` use
//! this crate; no shipped crate depends on it.
//!
//! ```text
//!   platforms   platforms of arenas that record, police, fail and stop on cue; named, and drawn at random
//!   kernels     kernels that run on them, and questions about their buffers
//!   threads     futures polled by hand, and threads that must end
//!   mortal      an arena whose device dies
//!   held        copies that end when they are told to
//!   machine     the pure machine, its engine step by step, and what the storages really hold
//!   model       explores every state of a small configuration of it
//!   coexecution policies in virtual time, on devices that are made up, and the tables of how they do
//!   simulate    the production engine on one thread, in virtual time
//!   reference   sequences of operations, and a model that says what may be answered
//!   conformance what every arena has to do, as one list of checks
//!   history     replays recorded events and says what contradicts them
//!   fuzz        what the fuzz targets do with an input
//!   stress      threads that use the same buffers in every way, with shadows of what must be in them
//! ```

#[cfg(not(dml_loom))]
pub mod coexecution;
#[cfg(not(dml_loom))]
pub mod conformance;
#[cfg(not(dml_loom))]
pub mod fuzz;
#[cfg(not(dml_loom))]
pub mod held;
pub mod history;
pub mod kernels;
#[cfg(not(dml_loom))]
pub mod machine;
#[cfg(not(dml_loom))]
pub mod model;
pub mod mortal;
pub mod platforms;
pub mod random;
#[cfg(not(dml_loom))]
pub mod reference;
#[cfg(not(dml_loom))]
pub mod simulate;
#[cfg(not(dml_loom))]
pub mod stress;
pub mod threads;

pub use history::Audited;
pub use kernels::*;
pub use mortal::{Death, Mortal, Mortality, mortal};
pub use platforms::*;
pub use threads::*;
