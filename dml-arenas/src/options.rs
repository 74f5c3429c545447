//! The options of discovery, and its errors.

#[cfg(feature = "calibration")]
use crate::calibrate::CalibrationSource;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// Which devices to look for, and how much of each to use.
///
/// # Examples
/// ```
/// use dml_arenas::DiscoverOptions;
/// let options = DiscoverOptions::default().limit("cpu", 1).only(["cpu"]);
/// # let _ = options;
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct DiscoverOptions {
    limits: BTreeMap<String, u32>,
    only: Option<BTreeSet<String>>,
    bound: BTreeSet<String>,
    bindable: BTreeSet<String>,
    pub(crate) offload: OffloadWishes,
    #[cfg(feature = "calibration")]
    pub(crate) calibration: CalibrationSource,
}

/// The options of coprocessors that are worker processes.
#[derive(Clone, Debug)]
#[cfg_attr(
    not(all(feature = "offload", target_os = "linux")),
    allow(dead_code, reason = "asked of a build that has none")
)]
pub(crate) struct OffloadWishes {
    pub(crate) workers: u32,
    pub(crate) program: Option<PathBuf>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) time_limit: Option<Option<Duration>>,
    pub(crate) pins: BTreeMap<String, Vec<u32>>,
}

impl Default for OffloadWishes {
    fn default() -> Self {
        Self { workers: 1, program: None, memory_bytes: None, time_limit: None, pins: BTreeMap::new() }
    }
}

impl DiscoverOptions {
    /// Limits a device to `units` of its compute units: threads of `cpu` or of a worker, a sub-device of an OpenCL
    /// device.
    pub fn limit(mut self, device: impl Into<String>, units: u32) -> Self {
        self.limits.insert(device.into(), units);
        self
    }

    /// Opens only these devices. The device `cpu` and its main memory are always opened, because every platform begins
    /// with them.
    pub fn only<N: Into<String>>(mut self, devices: impl IntoIterator<Item = N>) -> Self {
        self.only = Some(devices.into_iter().map(Into::into).collect());
        self
    }

    /// Binds an OpenCL device to main memory: it uses the storage there, the application's own vectors included, in
    /// place of copies. No bytes are moved where device and host share their memory; elsewhere the driver locks the
    /// pages and mirrors them.
    ///
    /// The device and the host take turns: while one of them uses a buffer, or any range of it, the other waits. So bind
    /// devices that work on their own. A kernel that such a device shares with the host is computed correctly, by one of
    /// the two at a time. A device that [`only`](Self::only) leaves out is not opened and not bound.
    ///
    /// # Source
    /// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.2 (bind-allocation).
    pub fn bind(mut self, device: impl Into<String>) -> Self {
        self.bound.insert(device.into());
        self
    }

    /// Lets an OpenCL device be bound to main memory for those buffers alone whose hints ask for it
    /// ([`Pattern::ToAndFro`](dml_core::Pattern::ToAndFro)). All others are copied, as without this option. For a device
    /// that [`bind`](Self::bind) names too, it changes nothing.
    pub fn allow_binding(mut self, device: impl Into<String>) -> Self {
        self.bindable.insert(device.into());
        self
    }

    /// Starts this many workers as coprocessors, `offload:0` and on; one by default, none with zero.
    pub fn offload(mut self, workers: u32) -> Self {
        self.offload.workers = workers;
        self
    }

    /// Sets the program that workers run. By default it is this program if it calls `offload::hook`, otherwise
    /// `dml-offload-worker`, beside this program or on the `PATH`.
    pub fn offload_program(mut self, program: impl Into<PathBuf>) -> Self {
        self.offload.program = Some(program.into());
        self
    }

    /// Sets the size of each worker's memory, in bytes. By default the workers share half of the machine's memory
    /// evenly.
    pub fn offload_memory(mut self, bytes: u64) -> Self {
        self.offload.memory_bytes = Some(bytes);
        self
    }

    /// Sets how long a run on a worker may take before the worker counts as hung; `None` for no limit.
    pub fn offload_time_limit(mut self, limit: Option<Duration>) -> Self {
        self.offload.time_limit = Some(limit);
        self
    }

    /// Keeps the threads of a worker on these cores, as the operating system numbers them.
    pub fn pin(mut self, device: impl Into<String>, cores: impl IntoIterator<Item = u32>) -> Self {
        self.offload.pins.insert(device.into(), cores.into_iter().collect());
        self
    }

    /// Sets which figures links are priced by: guesses by default, so that plans do not depend on the machine's speed or
    /// on files. Discovery never measures, and never writes a file.
    #[cfg(feature = "calibration")]
    pub fn calibration(mut self, source: CalibrationSource) -> Self {
        self.calibration = source;
        self
    }

    pub(crate) fn limit_of(&self, device: &str) -> Option<u32> {
        self.limits.get(device).copied()
    }

    /// Returns whether the device is to be bound to main memory.
    #[cfg(feature = "opencl")]
    pub(crate) fn is_bound(&self, device: &str) -> bool {
        self.bound.contains(device)
    }

    /// Returns whether the device may be bound to main memory for some buffers.
    #[cfg(feature = "opencl")]
    pub(crate) fn is_bindable(&self, device: &str) -> bool {
        self.bindable.contains(device)
    }

    /// Returns whether the device is to be opened.
    #[cfg(any(feature = "offload", feature = "opencl"))]
    pub(crate) fn wants(&self, device: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(device))
    }

    /// Returns whether the options name the device, so that it must not be left out.
    #[cfg(any(feature = "offload", feature = "opencl"))]
    pub(crate) fn names(&self, device: &str) -> bool {
        self.limits.contains_key(device)
            || self.bound.contains(device)
            || self.bindable.contains(device)
            || self.offload.pins.contains_key(device)
            || self.only.as_ref().is_some_and(|only| only.contains(device))
    }

    /// Checks that pins name only workers, the only devices whose threads can be pinned.
    pub(crate) fn check_pins(&self) -> Result<(), DiscoverError> {
        match self.offload.pins.iter().find(|(device, _)| !device.starts_with("offload:")) {
            Some((device, cores)) => Err(DiscoverError::BadPin {
                device: device.clone(),
                cores: cores.clone(),
                reason: "only the threads of offload devices can be".to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Checks that only OpenCL devices are bound: no other arena can use main memory in place.
    pub(crate) fn check_bindings(&self) -> Result<(), DiscoverError> {
        match self.bound.union(&self.bindable).find(|device| !device.starts_with("opencl:")) {
            Some(device) => Err(DiscoverError::BadBinding {
                device: device.clone(),
                reason: "only opencl devices can be".to_owned(),
            }),
            None => Ok(()),
        }
    }

    pub(crate) fn check_names(&self, known: &[String]) -> Result<(), DiscoverError> {
        let named = self.limits.keys().chain(self.offload.pins.keys());
        let mut named = named.chain(&self.bound).chain(&self.bindable).chain(self.only.iter().flatten());
        match named.find(|name| !known.contains(name)) {
            Some(name) => Err(DiscoverError::UnknownDevice { name: name.clone(), known: known.to_vec() }),
            None => Ok(()),
        }
    }
}

/// Why the requested devices cannot be used. A missing backend is no error: see
/// [`Platform::unavailable`](dml_core::Platform::unavailable).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DiscoverError {
    /// The options name a device that this machine does not have.
    #[error("unknown device {name}: there are {}", known.join(", "))]
    UnknownDevice {
        /// The name that no device has.
        name: String,
        /// The names of the existing devices.
        known: Vec<String>,
    },
    /// The device cannot be limited to so many compute units.
    #[error("{device} cannot be limited to {units} compute units: {reason}")]
    BadLimit {
        /// The device's name.
        device: String,
        /// The limit asked for.
        units: u32,
        /// Why the limit cannot be kept.
        reason: String,
    },
    /// The device cannot be kept on these cores.
    #[error("{device} cannot be kept on cores {cores:?}: {reason}")]
    BadPin {
        /// The device's name.
        device: String,
        /// The cores asked for.
        cores: Vec<u32>,
        /// Why the device cannot be kept on these cores.
        reason: String,
    },
    /// The device cannot be bound to main memory.
    #[error("{device} cannot be bound to main memory: {reason}")]
    BadBinding {
        /// The device's name.
        device: String,
        /// Why the device cannot be bound.
        reason: String,
    },
    /// A device that was asked for by name exists but does not work.
    #[error("{device} cannot be used: {reason}")]
    Unusable {
        /// The device's name.
        device: String,
        /// Why the device does not work.
        reason: String,
    },
}
