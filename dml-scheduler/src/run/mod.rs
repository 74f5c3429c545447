//! One run: checks it, sets it up, computes its packages on units, and gathers the results.
//!
//! ```text
//!   Coexecutor::run ───▶ director ──▶ round ──▶ unit, one per device ◀── packages ── commander
//!   Coexecutor::start ─▶ running ───────┘                └── hooks
//! ```

mod coexecutor;
mod commander;
mod director;
mod hooks;
mod round;
mod running;
mod unit;

pub use coexecutor::Coexecutor;
pub use hooks::{Hooks, NoHooks};
pub use running::{DeviceProgress, Progress, RunCanceller, Running};
