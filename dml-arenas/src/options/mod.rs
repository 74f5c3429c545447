//! The options of discovery, and its errors.

mod error;
mod sharing;
mod workers;

pub use error::DiscoverError;
pub use sharing::Sharing;
pub use workers::Workers;

#[cfg(feature = "calibration")]
use crate::calibrate::CalibrationSource;
use crate::kit::Backend;
#[cfg(any(feature = "cuda", feature = "opencl"))]
use crate::machine_memory::total_bytes;
use dml_core::internal::sync::Arc;
#[cfg(any(feature = "cuda", feature = "opencl"))]
use dml_core::{ArenaId, PlatformBuilder};
use std::collections::{BTreeMap, BTreeSet};

/// The devices to look for, and how much of each to use.
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
    pub(crate) sharing: Sharing,
    pub(crate) workers: Workers,
    pub(crate) backends: Vec<Arc<dyn Backend>>,
    page_lock_bytes: Option<u64>,
    locked_scratch_bytes: Option<u64>,
    #[cfg_attr(
        not(feature = "opencl"),
        allow(dead_code, reason = "asked of a build that has one mechanism alone")
    )]
    pub(crate) mechanisms: Mechanisms,
    #[cfg(feature = "calibration")]
    pub(crate) calibration: CalibrationSource,
}

/// The mechanisms that copy between main memory and an OpenCL device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mechanisms {
    /// Both. Each plan takes the cheaper one.
    #[default]
    All,
    /// The device's memory is mapped for the host, and the processor copies: the paper's default cross-arena.
    Mapped,
    /// The framework's read and write calls.
    Staged,
}

impl DiscoverOptions {
    /// Limits a device to `units` of its compute units: threads of `cpu` or of a worker, a sub-device of an
    /// OpenCL device.
    pub fn limit(mut self, device: impl Into<String>, units: u32) -> Self {
        self.limits.insert(device.into(), units);
        self
    }

    /// Opens only these devices. The device `cpu` and its main memory are always opened, because every
    /// platform begins with them.
    pub fn only<N: Into<String>>(mut self, devices: impl IntoIterator<Item = N>) -> Self {
        self.only = Some(devices.into_iter().map(Into::into).collect());
        self
    }

    /// Chooses which devices use storage in place. By default, none does.
    pub fn sharing(mut self, sharing: Sharing) -> Self {
        self.sharing = sharing;
        self
    }

    /// Sets the workers to start, as coprocessors: their number, or [`Workers`]. The default is one.
    pub fn offload(mut self, workers: impl Into<Workers>) -> Self {
        self.workers = workers.into();
        self
    }

    /// Adds a backend from outside this crate. Its devices come after those of this crate's backends, and may
    /// be named in the same ways. A [binding](Sharing::bind) and [cores](Workers::pin) are options of
    /// the backend itself.
    pub fn backend(mut self, backend: impl Backend + 'static) -> Self {
        self.backends.push(Arc::new(backend));
        self
    }

    /// Sets how many bytes of main memory drivers may lock at a time. The default is half of the machine's
    /// memory. Transfers between locked pages and a device with its own memory are several times as fast.
    /// With zero, nothing is locked.
    ///
    /// Pages are locked block by block, once a block's transfers would have paid for it, until the block is
    /// dropped. Locked memory cannot be swapped out. Each backend has its own budget: if CUDA and OpenCL both
    /// lock pages, each may lock this many.
    pub fn page_locks(mut self, limit_bytes: u64) -> Self {
        self.page_lock_bytes = Some(limit_bytes);
        self
    }

    /// Sets how many bytes of scratch memory drivers may lock at a time. The default is 64 MiB.
    ///
    /// Large transfers between unlocked memory and a device with its own memory pass through scratch memory,
    /// if several cores can copy. So do transfers from one such device to another. It is part of the budget
    /// of [`page_locks`](Self::page_locks). It is allocated when a transfer first needs it, and freed after a
    /// second without use. Each backend has its own. With zero, or while all of it is in use, transfers
    /// proceed without it.
    pub fn locked_scratch(mut self, limit_bytes: u64) -> Self {
        self.locked_scratch_bytes = Some(limit_bytes);
        self
    }

    /// Restricts OpenCL devices to some of the mechanisms that copy to them and from them. By default they
    /// have all. A worker has only one mechanism, and keeps it.
    ///
    /// This is for comparisons of mechanisms. A bound device copies nothing, and needs none of them.
    ///
    /// # Source
    /// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.2: the default
    /// implementation maps both arenas and copies.
    pub fn mechanisms(mut self, mechanisms: Mechanisms) -> Self {
        self.mechanisms = mechanisms;
        self
    }

    /// Sets the figures by which links are priced. The default is guesses, so that plans do not depend on the
    /// machine's speed or on files. Discovery never measures, and never writes a file.
    #[cfg(feature = "calibration")]
    pub fn calibration(mut self, source: CalibrationSource) -> Self {
        self.calibration = source;
        self
    }

    /// Returns the number of compute units that a device is limited to, for its [`Backend`].
    #[must_use]
    pub fn limit_of(&self, device: &str) -> Option<u32> {
        self.limits.get(device).copied()
    }

    /// Returns these options with another choice of sharing.
    pub(crate) fn with_sharing(&self, sharing: Sharing) -> Self {
        Self { sharing, ..self.clone() }
    }

    /// Returns how many bytes drivers may lock at a time.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    pub(crate) fn page_lock_limit(&self) -> u64 {
        self.page_lock_bytes.unwrap_or_else(|| total_bytes() / 2)
    }

    /// Returns how many bytes of scratch memory drivers may lock at a time.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    pub(crate) fn locked_scratch_limit(&self) -> u64 {
        self.locked_scratch_bytes.unwrap_or(64 << 20)
    }

    /// Returns whether a device is to be opened, for its [`Backend`].
    #[must_use]
    pub fn wants(&self, device: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(device))
    }

    /// Returns the rate at which bytes were measured to move by the framework's calls between two arenas, if
    /// the figures by which links are priced have it.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    pub(crate) fn measured_bytes_per_s(
        &self,
        builder: &PlatformBuilder,
        [from, to]: [ArenaId; 2],
    ) -> Option<u64> {
        #[cfg(feature = "calibration")]
        return self.calibration.bytes_per_s(builder, [from, to]);
        #[cfg(not(feature = "calibration"))]
        {
            let _ = (builder, from, to);
            None
        }
    }

    /// Returns the devices that the options name, which must not be left out.
    fn named(&self) -> impl Iterator<Item = &String> {
        let named = self.limits.keys().chain(self.workers.pins.keys()).chain(self.only.iter().flatten());
        named.chain(self.sharing.named())
    }

    /// Returns whether the options name the device.
    pub(crate) fn names(&self, device: &str) -> bool {
        self.named().any(|named| named == device)
    }

    /// Returns what cannot be as it is asked for, on a machine with these devices.
    pub(crate) fn errors(&self, known: &[String]) -> Vec<DiscoverError> {
        let unknown: BTreeSet<_> = self.named().filter(|name| !known.contains(name)).collect();
        let unknown = unknown
            .into_iter()
            .map(|name| DiscoverError::UnknownDevice { name: name.clone(), known: known.to_vec() });
        let pinned = self.workers.pins.iter().filter(|(device, _)| !is_worker(device));
        let pinned = pinned.map(|(device, cores)| DiscoverError::BadPin {
            device: device.clone(),
            cores: cores.clone(),
            reason: "only the threads of offload devices can be".to_owned(),
        });
        unknown.chain(pinned).chain(self.sharing.errors()).collect()
    }
}

/// Returns whether a device is a worker, by its name.
pub(crate) fn is_worker(device: &str) -> bool {
    device.starts_with("offload:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    fn locked_memory_has_the_size_that_was_said() {
        let of = DiscoverOptions::default;
        assert_eq!([of(), of().locked_scratch(4096)].map(|of| of.locked_scratch_limit()), [64 << 20, 4096]);
        assert_eq!([of(), of().page_locks(4096)].map(|of| of.page_lock_limit()), [total_bytes() / 2, 4096]);
    }

    /// A device that is named twice is unknown once.
    #[test]
    fn all_that_is_wrong_is_found() {
        let known = ["cpu", "offload:0"].map(str::to_owned);
        let errors = |options: DiscoverOptions| {
            let errors = options.errors(&known).into_iter().map(|error| error.to_string());
            errors.map(|error| error.split(':').take(2).collect::<String>()).collect::<Vec<_>>()
        };
        assert_eq!(errors(DiscoverOptions::default().limit("cpu", 1).only(["offload:0"])), [""; 0]);
        let pins = Workers::new(1).pin("offload:0", [0]).pin("cpu", [3]);
        let options = DiscoverOptions::default().limit("gpu", 1).only(["cpu", "gpu", "tpu"]).offload(pins);
        assert_eq!(
            errors(options),
            [
                "unknown device gpu there are cpu, offload",
                "unknown device tpu there are cpu, offload",
                "cpu cannot be kept on cores [3] only the threads of offload devices can be",
            ]
        );
    }
}
