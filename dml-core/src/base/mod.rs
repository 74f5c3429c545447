//! Definitions that all other modules use.

pub(crate) mod access;
pub(crate) mod cost;
pub(crate) mod counters;
pub(crate) mod forks;
pub(crate) mod gate;
pub(crate) mod guard;
pub(crate) mod helpers;
pub(crate) mod id;
pub(crate) mod names;
pub(crate) mod polling;
pub(crate) mod range;
pub(crate) mod rank;
pub(crate) mod spans;
pub mod sync;
