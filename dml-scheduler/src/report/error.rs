//! Why a run failed or was refused.

use super::UnitFailure;
use crate::policy::PolicyError;
use dml_core::{BufferName, DeviceId, Span};
use std::ops::Range;
use std::time::Duration;
use thiserror::Error;

/// Joins names for an error message.
fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Why a run failed or was refused.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum RunError {
    /// No device that passes the filter has a variant of the kernel.
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
    /// The kernel was made for another platform: an argument is a buffer of that platform, or a variant was
    /// made for its devices.
    #[error("kernel {kernel}: {what} belongs to a different platform than the run")]
    OtherPlatform {
        /// The kernel's name.
        kernel: String,
        /// The buffer or variant that was made for the other platform.
        what: String,
    },
    /// The kernel was changed after its launchers had checked it, and a launcher now refuses it.
    #[error("kernel {kernel}, changed after the launcher of {device} was added: {cause}")]
    Misfit {
        /// The kernel's name.
        kernel: String,
        /// The name of the launcher's device.
        device: String,
        /// The launcher's error.
        cause: String,
    },
    /// The list of devices is empty, or the kernel has no variant.
    #[error("kernel {kernel}: no device to run on")]
    NoDevices {
        /// The kernel's name.
        kernel: String,
    },
    /// The platform has no such device.
    #[error("kernel {kernel}: unknown device {device}: the platform has {devices} devices")]
    UnknownDevice {
        /// The kernel's name.
        kernel: String,
        /// The unknown device.
        device: DeviceId,
        /// The number of devices of the platform.
        devices: usize,
    },
    /// The collecting device has no arena.
    #[error("kernel {kernel}: results cannot be collected on device {device}, which has no arena")]
    NoArena {
        /// The kernel's name.
        kernel: String,
        /// The device's name.
        device: String,
    },
    /// The kernel has no variant for a device.
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
    /// Every package writes the whole of an argument.
    #[error(
        "kernel {kernel}: argument {index}, {buffer}, is written whole by every package; \
         packages run concurrently unless the kernel is undivided"
    )]
    WholeWrite {
        /// The kernel's name.
        kernel: String,
        /// The position of the argument among all, from 0.
        index: usize,
        /// The buffer of the argument.
        buffer: BufferName,
    },
    /// A buffer is too small for the items of the run.
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
    /// An argument was made from a part of a buffer, instead of a footprint.
    #[error(
        "kernel {kernel}: argument {index} was made from {}, but footprints count from the buffer's start",
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
    /// Two arguments are the same buffer, and one of them is written.
    #[error(
        "kernel {kernel}: arguments {first} and {second} are the same buffer, and one of them is written; \
         use one read-write argument, or copy in advance what all packages read"
    )]
    OneBufferTwice {
        /// The kernel's name.
        kernel: String,
        /// The position of the first argument among all, from 0.
        first: usize,
        /// The position of the second argument among all, from 0.
        second: usize,
    },
    /// The calling thread holds a buffer for which the run or the check would wait: a deadlock.
    #[error(
        "kernel {kernel}: the calling thread holds {buffer}, argument {index}; waiting for it would deadlock"
    )]
    HeldByCaller {
        /// The kernel's name.
        kernel: String,
        /// The position of the argument among all, from 0.
        index: usize,
        /// The buffer of the argument.
        buffer: BufferName,
    },
    /// Two packages would write the same bytes. The check compares adjacent packages.
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
    /// The partials of a reduction could not be made or combined.
    #[error("kernel {kernel}: argument {index}, {buffer}, cannot be reduced: {cause}")]
    Reduction {
        /// The kernel's name.
        kernel: String,
        /// The position of the argument among all, from 0.
        index: usize,
        /// The buffer of the argument.
        buffer: BufferName,
        /// Why the reduction failed.
        cause: String,
    },
    /// The policy could not be built.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The application's own policy has panicked or given up.
    ///
    /// The results of computed items are committed; the bytes of all other items are unchanged.
    #[error("kernel {kernel}: policy {policy} failed with {missing} items to compute: {cause}")]
    PolicyFailed {
        /// The kernel's name.
        kernel: String,
        /// The policy's name.
        policy: String,
        /// The message of its panic, or why it gave up.
        cause: String,
        /// The number of items not computed. Even if it is 0, the partials of reductions were not combined.
        missing: u64,
        /// The units that failed before.
        failures: Vec<UnitFailure>,
    },
    /// The run was cancelled before it was complete.
    ///
    /// The results of computed items are committed; the bytes of all other items are unchanged.
    #[error("kernel {kernel}: the run was cancelled with {missing} items to compute")]
    Cancelled {
        /// The kernel's name.
        kernel: String,
        /// The number of items not computed. If it is 0, the partials of a reduction were not combined.
        missing: u64,
        /// The units that failed before the cancellation, or on packages in flight.
        failures: Vec<UnitFailure>,
    },
    /// A started run has not ended within the timeout. The run continues.
    #[error("kernel {kernel}: the run has not ended within {waited:?}")]
    Timeout {
        /// The kernel's name.
        kernel: String,
        /// The timeout.
        waited: Duration,
    },
    /// A thread of a run, in a hook, a policy or a kernel, tried to wait for that run: a deadlock.
    #[error("kernel {kernel}: a thread of the run cannot wait for that run")]
    WithinItself {
        /// The kernel's name.
        kernel: String,
    },
    /// This process is a fork of the one that started the run.
    #[error("kernel {kernel}: this process is a fork of the one that started the run")]
    Forked {
        /// The kernel's name.
        kernel: String,
    },
    /// A run could not be started, because no thread is available for it.
    #[error("kernel {kernel}: no thread is available for the run: {cause}")]
    NoThread {
        /// The kernel's name.
        kernel: String,
        /// The system's error.
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
