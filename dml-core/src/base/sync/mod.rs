//! Locks, condition variables, atomics and threads. They come from the standard library, from loom under
//! `cfg(dml_loom)`, and the locks from parking_lot under `cfg(dml_tsan)`. No other module names these
//! libraries.
//!
//! `Arc` is always the standard one. loom's cannot hold a trait object, and the models do not explore
//! reference counts.

pub use std::sync::Arc;

#[cfg(not(dml_loom))]
mod real;
#[cfg(not(dml_loom))]
pub use real::*;

#[cfg(dml_loom)]
mod model;
#[cfg(dml_loom)]
pub use model::*;
