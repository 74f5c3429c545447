//! Locks, condition variables and atomics: those of the standard library; loom's under `cfg(dml_loom)`, parking_lot's
//! under `cfg(dml_tsan)`. No other module names either.
//!
//! `Arc` is the standard one in both: loom's cannot hold a trait object, and a reference count is not what the models
//! explore.

pub use std::sync::Arc;

#[cfg(not(dml_loom))]
mod real;
#[cfg(not(dml_loom))]
pub use real::*;

#[cfg(dml_loom)]
mod model;
#[cfg(dml_loom)]
pub use model::*;
