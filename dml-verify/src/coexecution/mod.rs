//! Policies in virtual time: devices that are made up, and the production splitter and policies, driven as
//! the director drives them.
//!
//! ```text
//!   System (devices) --+
//!   Profile (costs) ---+--> Scenario::run --> Outcome (makespan, ideal, balance, packages)
//!   Splitter (policy) -+
//!
//!   a package:   handed --way in--> turnaround --> begun --launch, items--> ended --way out--> done
//! ```
//! A unit asks for its next package as long as its device has fewer than `depth` to compute. What it has is
//! carried out in order: each way is free for one package at a time, and so is the device. The turnaround
//! costs nothing while the device is busy. Nothing else is modelled: no contention for memory, no cores that
//! two devices share.
//!
//! [`tables`] has what `cargo xtask policies` prints.

pub mod profile;
pub mod run;
pub mod system;
pub mod tables;
#[cfg(test)]
mod tests;

pub use profile::{Costs, Profile};
pub use run::{Outcome, Scenario};
pub use system::{Device, Link, System};
