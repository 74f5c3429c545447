//! What a co-execution did, and why one could not be done.

use crate::metrics;
use crate::package::Package;
use crate::policy::PolicyError;
use dml_core::DeviceId;
use std::time::Duration;
use thiserror::Error;

/// One package that was computed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackageRecord {
    /// The package.
    pub package: Package,
    /// The device that computed it.
    pub device: DeviceId,
    /// When its sub-buffers were asked for, since the run began.
    pub start: Duration,
    /// When its results were where they were to be, since the run began.
    pub end: Duration,
}

/// What one device did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceReport {
    /// The device.
    pub device: DeviceId,
    /// Packages computed, those whose results were lost with it not counted.
    pub packages: u64,
    /// Items computed, counted likewise.
    pub items: u64,
    /// The time it spent on packages, their transfers included, and those that were lost.
    pub busy: Duration,
    /// When its last package was done, since the run began; zero if it had none.
    pub end: Duration,
}

/// A unit that gave up, or whose device was lost with results that nobody else had; others computed the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnitFailure {
    /// The device.
    pub device: DeviceId,
    /// The package it failed on, or the last one whose results were lost.
    pub package: Package,
    /// What it failed of. Where its device is gone, it says so.
    pub message: String,
}

/// A finished run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// From the first package asked for to the last one done.
    pub duration: Duration,
    /// Every device, in the order given to the run.
    pub devices: Vec<DeviceReport>,
    /// Every package, by device and time. One that had to be computed again is here once, as it was computed last.
    pub packages: Vec<PackageRecord>,
    /// Units that gave up on the way.
    pub failures: Vec<UnitFailure>,
}

impl Report {
    /// How evenly the devices ended: the earliest end over the latest.
    #[must_use]
    pub fn balance(&self) -> f64 {
        let ends: Vec<f64> = self.devices.iter().map(|device| device.end.as_secs_f64()).collect();
        metrics::balance(&ends)
    }
}

/// Why a run could not be done.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum RunError {
    /// No device was given, or none was left.
    #[error("kernel {kernel}: no device to run on")]
    NoDevices {
        /// The kernel's name.
        kernel: String,
    },
    /// The platform has no such device.
    #[error("kernel {kernel}: there is no device {device}, of {devices}")]
    UnknownDevice {
        /// The kernel's name.
        kernel: String,
        /// The device.
        device: DeviceId,
        /// How many the platform has.
        devices: usize,
    },
    /// A device cannot run the kernel.
    #[error("kernel {kernel} has no variant for device {device}")]
    NoVariant {
        /// The kernel's name.
        kernel: String,
        /// The device's name.
        device: String,
    },
    /// A device was given twice.
    #[error("device {device} is named twice")]
    DuplicateDevice {
        /// The device's name.
        device: String,
    },
    /// Not one power per device.
    #[error("{powers} powers for {devices} devices")]
    Powers {
        /// How many powers there are.
        powers: usize,
        /// How many devices.
        devices: usize,
    },
    /// A written argument is not split by packages.
    #[error("kernel {kernel}: argument {index} is written whole by every package")]
    WholeWrite {
        /// The kernel's name.
        kernel: String,
        /// Which argument.
        index: usize,
    },
    /// The policy does not fit the devices.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Every unit failed with items left, or results were lost together with what they were computed from.
    #[error("kernel {kernel}: {missing} items were not computed, {}", failures.iter().map(|failure| failure.message.clone()).collect::<Vec<_>>().join("; "))]
    Unfinished {
        /// The kernel's name.
        kernel: String,
        /// How many items.
        missing: u64,
        /// What each unit failed of.
        failures: Vec<UnitFailure>,
    },
}
