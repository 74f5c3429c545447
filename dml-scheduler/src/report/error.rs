//! Why a run could not be done.

use super::UnitFailure;
use crate::policy::PolicyError;
use dml_core::{BufferName, DeviceId, Span};
use std::ops::Range;
use std::time::Duration;
use thiserror::Error;

/// Names in a list, for errors.
fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Why a run could not be done.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The filter of devices lets none pass that the kernel has a variant for.
    #[error(
        "kernel {kernel}: no device to run on: the filter lets {} pass, and the kernel has variants for {}",
        listed(passed),
        listed(variants)
    )]
    NonePassed {
        /// The kernel's name.
        kernel: String,
        /// The names of the devices that the filter lets pass.
        passed: Vec<String>,
        /// The names of the devices that the kernel has a variant for.
        variants: Vec<String>,
    },
    /// The kernel was made for another platform: an argument is one of its buffers, or a variant was made for its devices.
    #[error("kernel {kernel}: {what} belongs to another platform than that of the run")]
    OtherPlatform {
        /// The kernel's name.
        kernel: String,
        /// What was made for the other platform.
        what: String,
    },
    /// The kernel was changed after its launchers had checked it, and does not fit.
    #[error("kernel {kernel}, changed after the launcher of {device} was added: {cause}")]
    Misfit {
        /// The kernel's name.
        kernel: String,
        /// The name of the launcher's device.
        device: String,
        /// What the launcher says.
        cause: String,
    },
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
        /// The unknown device.
        device: DeviceId,
        /// The number of devices of the platform.
        devices: usize,
    },
    /// No memory belongs to the device that was to collect the results.
    #[error("kernel {kernel}: results cannot be collected on device {device}, which has no arena")]
    NoArena {
        /// The kernel's name.
        kernel: String,
        /// The device's name.
        device: String,
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
    /// The number of powers differs from the number of devices.
    #[error("{powers} powers for {devices} devices")]
    Powers {
        /// The number of powers.
        powers: usize,
        /// The number of devices.
        devices: usize,
    },
    /// A written argument is not split by packages.
    #[error(
        "kernel {kernel}: argument {index}, {buffer}, is written whole by every package; packages run side by side, unless the kernel is undivided"
    )]
    WholeWrite {
        /// The kernel's name.
        kernel: String,
        /// The position of the argument among all, from 0.
        index: usize,
        /// The buffer of the argument.
        buffer: BufferName,
    },
    /// A buffer does not have bytes for all items.
    #[error("kernel {kernel}: argument {index}, {buffer}, has bytes for {holds} items, not for {items}")]
    TooManyItems {
        /// The kernel's name.
        kernel: String,
        /// The position of the argument among all, from 0.
        index: usize,
        /// The buffer of the argument.
        buffer: BufferName,
        /// The number of items that the buffer has bytes for.
        holds: u64,
        /// The number of items of the run.
        items: u64,
    },
    /// An argument was made of a part of a buffer, in place of a footprint.
    #[error(
        "kernel {kernel}: argument {index} is made of {}, and footprints count from the buffer's start",
        buffer.bytes(Span::new(bytes.start, bytes.end))
    )]
    PartOfBuffer {
        /// The kernel's name.
        kernel: String,
        /// The position of the argument among all, from 0.
        index: usize,
        /// The buffer of the argument.
        buffer: BufferName,
        /// The bytes of the part.
        bytes: Range<u64>,
    },
    /// Two arguments are one buffer, and one of them is written.
    #[error(
        "kernel {kernel}: arguments {first} and {second} are one buffer, and one of them is written; one argument can be read and written, and what all packages read of it can be copied before"
    )]
    OneBufferTwice {
        /// The kernel's name.
        kernel: String,
        /// The index of one argument.
        first: usize,
        /// The index of the other.
        second: usize,
    },
    /// The calling thread holds a buffer that the run or the check has to wait for, so that it could not end.
    #[error(
        "kernel {kernel}: the calling thread holds {buffer}, argument {index}, which would be waited for"
    )]
    HeldByCaller {
        /// The kernel's name.
        kernel: String,
        /// The position of the argument among all, from 0.
        index: usize,
        /// The buffer of the argument.
        buffer: BufferName,
    },
    /// Two packages would write the same bytes. Packages that follow each other are compared.
    #[error(
        "kernel {kernel}: argument {index} is written at {} by items {first:?} and by items {second:?}",
        buffer.bytes(Span::new(bytes.start, bytes.end))
    )]
    SharedWrites {
        /// The kernel's name.
        kernel: String,
        /// The position of the argument among all, from 0.
        index: usize,
        /// The buffer of the argument.
        buffer: BufferName,
        /// The items of one package.
        first: Range<u64>,
        /// The items of another package.
        second: Range<u64>,
        /// The first bytes that both write.
        bytes: Range<u64>,
    },
    /// A reduction could not be begun, or its partials not be combined.
    #[error("kernel {kernel}: argument {index}, {buffer}, cannot be reduced: {cause}")]
    Reduction {
        /// The kernel's name.
        kernel: String,
        /// The position of the argument among all, from 0.
        index: usize,
        /// The buffer of the argument.
        buffer: BufferName,
        /// What went wrong.
        cause: String,
    },
    /// The policy does not fit the devices.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The policy, the application's own, has panicked or given up. What was computed is committed; the bytes of all other items are as
    /// they were.
    #[error("kernel {kernel}: policy {policy} failed with {missing} items to compute: {cause}")]
    PolicyFailed {
        /// The kernel's name.
        kernel: String,
        /// The policy's name.
        policy: String,
        /// What it panicked with, or why it gave up.
        cause: String,
        /// The number of items that were not computed. With none, the results of a reduction were not put together.
        missing: u64,
        /// The units that gave up before.
        failures: Vec<UnitFailure>,
    },
    /// The run was cancelled before it was done. What was computed is committed; the bytes of all other items are as they were.
    #[error("kernel {kernel}: the run was cancelled with {missing} items to compute")]
    Cancelled {
        /// The kernel's name.
        kernel: String,
        /// The number of items that were not computed. With none, the results of a reduction were not put together.
        missing: u64,
        /// The units that gave up before, or on what was under way.
        failures: Vec<UnitFailure>,
    },
    /// A run that was started has not ended in time. It goes on.
    #[error("kernel {kernel}: the run has not ended within {waited:?}")]
    Timeout {
        /// The kernel's name.
        kernel: String,
        /// The time that was waited for.
        waited: Duration,
    },
    /// A thread of a run, in a hook or in a kernel, was to wait for that run.
    #[error("kernel {kernel}: a thread of the run would wait for the run")]
    WithinItself {
        /// The kernel's name.
        kernel: String,
    },
    /// The run was started by the process that this one is a fork of.
    #[error("kernel {kernel}: the run belongs to the process that this one is a fork of")]
    Forked {
        /// The kernel's name.
        kernel: String,
    },
    /// A run could not be started, because there is no thread for it.
    #[error("kernel {kernel}: there is no thread for the run: {cause}")]
    NoThread {
        /// The kernel's name.
        kernel: String,
        /// What the system says.
        cause: String,
    },
    /// Every unit failed with items left, or results were lost together with their inputs.
    #[error("kernel {kernel}: {missing} items were not computed, {}", failures.iter().map(|failure| format!("{} at items {:?}: {}", failure.device_name, failure.package.range(), failure.message)).collect::<Vec<_>>().join("; "))]
    Unfinished {
        /// The kernel's name.
        kernel: String,
        /// The number of items that were not computed.
        missing: u64,
        /// Why each unit failed.
        failures: Vec<UnitFailure>,
    },
}
