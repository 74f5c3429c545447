//! The co-execution scheduler: splits one data-parallel kernel over every device of the machine.
//!
//! ```text
//!  PolicySpec --build--> Policy ---lengths---> Splitter ---packages---> one unit per device
//!  "hguided:2"           pure, deterministic   places, rounds,     <--  complete, give_back, retire
//!                                              hands out each item once
//! ```
//!
//! A [`Policy`](policy::Policy) only decides how many items a unit gets next. The
//! [`Splitter`](policy::Splitter) turns those numbers into
//! [`Package`]s. It alone guarantees that every item is computed exactly once, for any answer of the policy
//! and any failed unit. Both are free of clocks, threads and devices. [`metrics`] turns the measured times
//! into the figures that the papers report.
//!
//! ```
//! use dml_scheduler::{UnitId, policy::{Assignment, Calibrated, PolicySpec}};
//!
//! let spec: PolicySpec = "hguided:2".parse()?;
//! let mut splitter = spec.splitter(&[1.0, 0.35], 1_000_000, 256)?;
//! let mut next_unit = 0;
//! while !splitter.is_finished() {
//!     if let Assignment::Package(package) = splitter.assign(UnitId(next_unit)) {
//!         // ... compute items package.range() on that unit's device ...
//!         splitter.complete(&package)?;
//!     }
//!     next_unit = 1 - next_unit;
//! }
//! assert_eq!(splitter.completed(), 1_000_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod base;
mod check;
mod iterate;
mod kernel;
mod model;
mod plan;
pub mod policy;
mod report;
mod run;

pub use base::package::{Package, UnitId};
pub use check::{CheckError, Checked, Departure, Observation, Observed, ObservedPart, Wrong};
pub use check::{check_footprints, observe_footprints};
pub use iterate::{Iterate, IterateError, Iterated, Measured, Stepped, Strip};
pub use kernel::{
    Argument, Footprint, FootprintError, FootprintFault, Kernel, KernelError, NotStarted, Variant,
};
pub use model::{Knowledge, KnowledgeError};
#[cfg(feature = "simulated")]
pub use plan::simulated;
pub use report::{
    CalledUp, DeviceReport, LeftOut, PackageRecord, Reason, Report, RunError, UnitFailure, metrics,
};
pub use run::{Coexecutor, DeviceProgress, Hooks, NoHooks, Progress, RunCanceller, Running};
