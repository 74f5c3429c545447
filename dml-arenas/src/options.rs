//! The options of discovery, and its errors.

#[cfg(feature = "calibration")]
use crate::calibrate::CalibrationSource;
use crate::kit::Backend;
#[cfg(any(feature = "cuda", feature = "opencl"))]
use crate::machine_memory::total_bytes;
use dml_core::internal::sync::Arc;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

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
    bound: BTreeSet<String>,
    page_lock_bytes: Option<u64>,
    locked_scratch_bytes: Option<u64>,
    #[cfg_attr(
        not(feature = "opencl"),
        allow(dead_code, reason = "asked of a build that has one mechanism alone")
    )]
    pub(crate) mechanisms: Mechanisms,
    pub(crate) backends: Vec<Arc<dyn Backend>>,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "asked of a build that has none"))]
    pub(crate) cuda_pinned_bytes: Option<u64>,
    shared: BTreeSet<String>,
    #[cfg_attr(
        not(all(feature = "offload", target_os = "linux")),
        allow(dead_code, reason = "asked of a build that has none")
    )]
    pub(crate) shared_memory: Option<u64>,
    bindable: BTreeSet<String>,
    fine_grained: BTreeSet<String>,
    in_place: InPlace,
    pub(crate) offload: OffloadWishes,
    #[cfg(feature = "calibration")]
    pub(crate) calibration: CalibrationSource,
}

/// The devices that use main memory's buffers in place, if the options name none for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum InPlace {
    /// No device.
    #[default]
    Nobody,
    /// All devices that can do so concurrently with the processor. Discovery finds these.
    Wanted,
    /// The workers.
    Workers,
    /// The first OpenCL device with fine-grained shared virtual memory.
    FineGrained,
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

/// The options of workers, which are coprocessors in processes of their own.
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

    /// Binds an OpenCL device to main memory: it uses the storage there, including the application's own
    /// vectors, instead of copies. No bytes are moved if device and host share their memory. Otherwise the
    /// driver mirrors the memory, and copies are as fast: see [`page_locks`](Self::page_locks).
    ///
    /// The device and the host take turns: while one of them uses a buffer, or any range of it, the other
    /// waits. So bind devices that work alone. A kernel that such a device shares with the host is computed
    /// correctly, by one of the two at a time. A device that [`only`](Self::only) leaves out is not opened
    /// and not bound.
    ///
    /// A CUDA GPU is bound to page-locked memory, in which main memory's buffers must then be allocated
    /// ([`cuda_pinned`](Self::cuda_pinned)). A vector that the application moves in is copied into such
    /// memory, which counts towards the limit. Kernels of the GPU access the host's memory across the link on
    /// every use, and nothing else is moved. That is the fastest way for bytes touched once, which stream
    /// over the link during the kernel. Bytes read repeatedly take many times as long. For these, bind the
    /// device by [`allow_binding`](Self::allow_binding). The processor may use other ranges of the buffer at
    /// the same time.
    ///
    /// # Source
    /// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.2 (bind-allocation).
    pub fn bind(mut self, device: impl Into<String>) -> Self {
        self.bound.insert(device.into());
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

    /// Makes these devices share one memory, in addition to those named before: `cpu`, workers (`offload:0`)
    /// and OpenCL devices. A buffer that DML allocates lies in that memory, and all of them use it in place:
    /// no byte is moved between them. A vector that the application moves in stays where it is, and is copied
    /// to the workers once.
    ///
    /// The processor and the workers may hold ranges of one buffer at the same time, if the ranges do not
    /// conflict. An OpenCL device takes turns with them: while it uses a buffer, or any range of it, they
    /// wait, and the other way around. A buffer that no OpenCL device has touched is not affected. A device
    /// that [`only`](Self::only) leaves out is not opened and does not share.
    ///
    /// A worker that shares has the whole memory mapped for writing. So its program and every function that
    /// it runs are trusted with this process's buffers there, like code of this process. Without sharing, a
    /// worker is trusted with its own memory only.
    ///
    /// # Examples
    /// ```no_run
    /// use dml_arenas::{Discover, DiscoverOptions};
    /// use dml_core::Platform;
    ///
    /// let options = DiscoverOptions::default().offload(2).share(["cpu", "offload:0", "offload:1"]);
    /// let platform = Platform::builder().discover_with(&options)?.build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Source
    /// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.2 (bind-allocation),
    /// section 4 (ION).
    pub fn share<N: Into<String>>(mut self, devices: impl IntoIterator<Item = N>) -> Self {
        self.shared.extend(devices.into_iter().map(Into::into));
        self
    }

    /// Sets the size of the shared memory, in bytes. The default is half of the machine's memory. Its pages
    /// are allocated as buffers need them. A buffer that does not fit is an error that names `shared`: it is
    /// not allocated elsewhere.
    pub fn shared_memory(mut self, bytes: u64) -> Self {
        self.shared_memory = Some(bytes);
        self
    }

    /// Allows a device to be [bound](Self::bind) for only those buffers whose hints ask for it
    /// ([`Pattern::ToAndFro`](dml_core::Pattern::ToAndFro)). All others are copied, as without this option.
    /// It has no effect on a device that [`bind`](Self::bind) names too.
    pub fn allow_binding(mut self, device: impl Into<String>) -> Self {
        self.bindable.insert(device.into());
        self
    }

    /// Shares buffers in place between the processor and one OpenCL device, which may use them at the same
    /// time. This needs fine-grained shared virtual memory of OpenCL 2, which PoCL offers and NVIDIA does
    /// not. A buffer that DML allocates lies in that memory. No byte is moved, and neither of the two waits
    /// for the other unless their ranges conflict. A vector that the application moves in stays where it is,
    /// and is copied. A device that [`only`](Self::only) leaves out is not opened.
    ///
    /// A buffer larger than the driver's largest allocation lies in ordinary memory, and the device cannot
    /// use it ([`AllocError::TooLarge`](dml_core::AllocError::TooLarge)).
    ///
    /// Neither the device nor `cpu` may be bound or share memory in another way. If the device's driver does
    /// not offer such memory, discovery fails with [`DiscoverError::BadSharing`].
    ///
    /// # Source
    /// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.2 (bind-allocation).
    pub fn fine_grained(mut self, device: impl Into<String>) -> Self {
        self.fine_grained.insert(device.into());
        self
    }

    /// Shares buffers in place between the processor and all devices that can use them concurrently with it.
    /// No byte is moved between these devices, and they need not take turns. All other devices have memories
    /// of their own, and bytes are copied.
    ///
    /// If workers are opened, `cpu` and the workers share one memory, as by [`share`](Self::share). The
    /// workers are then trusted with this process's buffers. If no worker is opened, `cpu` and the first
    /// OpenCL device that supports it share, as by [`fine_grained`](Self::fine_grained).
    ///
    /// This has no effect if the options also name devices that are bound or share, or allocate main memory's
    /// buffers in page-locked memory.
    ///
    /// # Examples
    /// ```
    /// use dml_arenas::{Discover, DiscoverOptions};
    /// use dml_core::Platform;
    ///
    /// let options = DiscoverOptions::default().only(["cpu"]).in_place();
    /// let platform = Platform::builder().discover_with(&options)?.build()?;
    /// assert_eq!(platform.arenas().len(), 1, "the processor alone needs no shared memory");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Source
    /// "Abstract Representation of Shared Data for Heterogeneous Computing", section 3.2 (bind-allocation).
    pub fn in_place(mut self) -> Self {
        self.in_place = InPlace::Wanted;
        self
    }

    /// Allocates main memory's buffers in page-locked memory, at most `limit_bytes` of it. CUDA GPUs transfer
    /// it at the speed of the link from the first transfer on.
    ///
    /// A vector that the application moves in stays where it is. A buffer that does not fit is an error that
    /// names `cuda_pinned`. Without a CUDA GPU, this has no effect. A buffer whose hints ask for copies
    /// ([`Pattern::StreamedOnce`](dml_core::Pattern::StreamedOnce),
    /// [`Pattern::ReadMostly`](dml_core::Pattern::ReadMostly)) is allocated in ordinary memory. GPUs have
    /// copies, except that [bound](Self::bind) GPUs use the memory in place.
    ///
    /// Page-locked memory cannot be swapped out, and takes longer to allocate than ordinary memory. Freed
    /// memory is cached for later buffers.
    ///
    /// # Source
    /// "Abstract Representation of Shared Data for Heterogeneous Computing", section 4.
    pub fn cuda_pinned(mut self, limit_bytes: u64) -> Self {
        self.cuda_pinned_bytes = Some(limit_bytes);
        self
    }

    /// Starts this many workers as coprocessors, `offload:0` and on. The default is one; with zero, there are
    /// none.
    pub fn offload(mut self, workers: u32) -> Self {
        self.offload.workers = workers;
        self
    }

    /// Sets the program that workers run. By default it is this program if it calls `offload::hook`.
    /// Otherwise it is `dml-offload-worker`, beside this program or on the `PATH`.
    pub fn offload_program(mut self, program: impl Into<PathBuf>) -> Self {
        self.offload.program = Some(program.into());
        self
    }

    /// Sets the size of each worker's memory, in bytes. By default the workers share half of the machine's
    /// memory evenly.
    pub fn offload_memory(mut self, bytes: u64) -> Self {
        self.offload.memory_bytes = Some(bytes);
        self
    }

    /// Sets the timeout of a run on a worker, after which the worker counts as hung; `None` for no timeout.
    pub fn offload_time_limit(mut self, limit: Option<Duration>) -> Self {
        self.offload.time_limit = Some(limit);
        self
    }

    /// Pins the threads of a worker to these cores, by the operating system's numbers.
    pub fn pin(mut self, device: impl Into<String>, cores: impl IntoIterator<Item = u32>) -> Self {
        self.offload.pins.insert(device.into(), cores.into_iter().collect());
        self
    }

    /// Adds a backend from outside this crate. Its devices come after those of this crate's backends, and may
    /// be named in the same ways. A [binding](Self::bind) and [cores](Self::pin) are options of the backend
    /// itself.
    pub fn backend(mut self, backend: impl Backend + 'static) -> Self {
        self.backends.push(Arc::new(backend));
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

    /// Returns whether the device is to be bound to main memory, or to the memory that holds its buffers.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    pub(crate) fn is_bound(&self, device: &str) -> bool {
        self.bound.contains(device)
    }

    /// Returns whether the device may be bound for some buffers only.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    pub(crate) fn is_bindable(&self, device: &str) -> bool {
        self.bindable.contains(device)
    }

    /// Returns whether the device is to use fine-grained shared virtual memory.
    #[cfg(feature = "opencl")]
    pub(crate) fn is_fine_grained(&self, device: &str) -> bool {
        self.fine_grained.contains(device)
    }

    /// Returns whether any device is to share memory.
    #[cfg(all(feature = "offload", target_os = "linux"))]
    pub(crate) fn shares_any(&self) -> bool {
        !self.shared.is_empty() || self.in_place == InPlace::Workers
    }

    /// Returns whether the device is to share memory.
    #[cfg(all(feature = "offload", target_os = "linux"))]
    pub(crate) fn shares(&self, device: &str) -> bool {
        let is_meant = || device == "cpu" || is_worker(device);
        self.shared.contains(device) || (self.in_place == InPlace::Workers && is_meant())
    }

    /// Returns whether all devices that can are to use buffers in place, and no other option concerns main
    /// memory.
    pub(crate) fn wants_in_place(&self) -> bool {
        let named = [&self.bound, &self.bindable, &self.shared, &self.fine_grained];
        let is_said = self.cuda_pinned_bytes.is_some() || named.iter().any(|devices| !devices.is_empty());
        self.in_place == InPlace::Wanted && !is_said
    }

    /// Returns these options, with the devices that use buffers in place resolved.
    pub(crate) fn with_in_place(&self, in_place: InPlace) -> Self {
        Self { in_place, ..self.clone() }
    }

    /// Returns whether the first OpenCL device that supports it is to use fine-grained shared virtual memory.
    #[cfg(feature = "opencl")]
    pub(crate) fn any_fine_grained(&self) -> bool {
        self.in_place == InPlace::FineGrained
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

    /// Returns whether the options name the device, so that it must not be left out.
    pub(crate) fn names(&self, device: &str) -> bool {
        self.limits.contains_key(device)
            || self.bound.contains(device)
            || self.shared.contains(device)
            || self.bindable.contains(device)
            || self.fine_grained.contains(device)
            || self.offload.pins.contains_key(device)
            || self.only.as_ref().is_some_and(|only| only.contains(device))
    }

    /// Checks that pins name only workers, the only devices whose threads can be pinned.
    pub(crate) fn check_pins(&self) -> Result<(), DiscoverError> {
        match self.offload.pins.iter().find(|(device, _)| !is_worker(device)) {
            Some((device, cores)) => Err(DiscoverError::BadPin {
                device: device.clone(),
                cores: cores.clone(),
                reason: "only the threads of offload devices can be".to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Returns the devices that are to be bound to main memory, or may be. CUDA GPUs are excluded: they are
    /// bound to the memory that holds its buffers.
    fn bound_to_main(&self) -> impl Iterator<Item = &String> {
        self.bound.iter().chain(&self.bindable).filter(|device| !device.starts_with("cuda:"))
    }

    /// Checks that only devices are bound that can be: OpenCL devices to main memory, and CUDA GPUs to
    /// page-locked memory.
    pub(crate) fn check_bindings(&self) -> Result<(), DiscoverError> {
        for device in self.bound.union(&self.bindable) {
            let reason = match device {
                device if device.starts_with("opencl:") => continue,
                device if device.starts_with("cuda:") && self.cuda_pinned_bytes.is_some() => continue,
                device if device.starts_with("cuda:") => {
                    "main memory's buffers have to be made of page-locked memory for that (`cuda_pinned`)"
                }
                _ => "only opencl and cuda devices can be",
            };
            return Err(DiscoverError::BadBinding { device: device.clone(), reason: reason.to_owned() });
        }
        Ok(())
    }

    /// Checks that at most one OpenCL device uses fine-grained shared virtual memory, and that neither it nor
    /// main memory shares other memory.
    pub(crate) fn check_fine_grained(&self) -> Result<(), DiscoverError> {
        let bad = |device: &String, reason: String| {
            Err(DiscoverError::BadSharing { device: device.clone(), reason })
        };
        let mut devices = self.fine_grained.iter();
        let Some(first) = devices.next() else { return Ok(()) };
        if let Some(device) = self.fine_grained.iter().find(|device| !device.starts_with("opencl:")) {
            return bad(device, "only opencl devices have fine-grained shared virtual memory".to_owned());
        }
        if let Some(second) = devices.next() {
            return bad(second, format!("main memory is to use that of {first} already"));
        }
        if [&self.bound, &self.bindable, &self.shared].iter().any(|others| others.contains(first)) {
            return bad(first, "it is to be bound or to share in another way as well".to_owned());
        }
        if let Some(other) = self.bound_to_main().next() {
            return bad(
                first,
                format!("main memory is to use its memory, and {other} to be bound to main memory"),
            );
        }
        if self.shared.contains("cpu") {
            return bad(first, "main memory is to use the shared memory already".to_owned());
        }
        Ok(())
    }

    /// Checks that main memory's buffers are allocated in only one kind of memory.
    pub(crate) fn check_pinned(&self) -> Result<(), DiscoverError> {
        if self.cuda_pinned_bytes.is_none() {
            return Ok(());
        }
        let others = self.bound_to_main().chain(&self.fine_grained);
        let shares = self.shared.iter().filter(|device| *device == "cpu");
        match others.chain(shares).next() {
            Some(device) => Err(DiscoverError::BadSharing {
                device: device.clone(),
                reason: "main memory is to use page-locked memory of CUDA already".to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Checks that the devices that share can, and are not also bound to main memory.
    pub(crate) fn check_sharing(&self) -> Result<(), DiscoverError> {
        let bad = |device: &String, reason: &str| {
            Err(DiscoverError::BadSharing { device: device.clone(), reason: reason.to_owned() })
        };
        let Some(first) = self.shared.first() else { return Ok(()) };
        if !cfg!(all(feature = "offload", target_os = "linux")) {
            let reason = match cfg!(feature = "offload") {
                true => "the memory files of Linux are needed",
                false => "this program was built without the feature `offload`",
            };
            return bad(first, reason);
        }
        if self.shared_memory == Some(0) {
            return bad(first, "the shared memory is to have no bytes");
        }
        let can_share = |device: &&String| {
            *device == "cpu" || ["offload:", "opencl:"].iter().any(|kind| device.starts_with(kind))
        };
        if let Some(device) = self.shared.iter().find(|device| !can_share(device)) {
            return bad(device, "only cpu, offload and opencl devices can");
        }
        if let Some(device) =
            self.shared.intersection(&self.bound).chain(self.shared.intersection(&self.bindable)).next()
        {
            return bad(device, "it is to be bound to main memory as well");
        }
        match self.bound_to_main().next() {
            Some(device) if self.shared.contains("cpu") => bad(
                device,
                "it is to be bound to main memory, which is itself to share: name it in `share` instead",
            ),
            _ => Ok(()),
        }
    }

    pub(crate) fn check_names(&self, known: &[String]) -> Result<(), DiscoverError> {
        let named = self.limits.keys().chain(self.offload.pins.keys());
        let named =
            named.chain(&self.bound).chain(&self.bindable).chain(&self.shared).chain(&self.fine_grained);
        let mut named = named.chain(self.only.iter().flatten());
        match named.find(|name| !known.contains(name)) {
            Some(name) => Err(DiscoverError::UnknownDevice { name: name.clone(), known: known.to_vec() }),
            None => Ok(()),
        }
    }
}

/// Returns whether a device is a worker, by its name.
pub(crate) fn is_worker(device: &str) -> bool {
    device.starts_with("offload:")
}

/// Why the requested devices cannot be used. A missing backend is not an error: see
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
    /// The device cannot be limited to this many compute units.
    #[error("{device} cannot be limited to {units} compute units: {reason}")]
    BadLimit {
        /// The device's name.
        device: String,
        /// The requested limit.
        units: u32,
        /// Why the limit cannot be kept.
        reason: String,
    },
    /// The device's threads cannot be pinned to these cores.
    #[error("{device} cannot be kept on cores {cores:?}: {reason}")]
    BadPin {
        /// The device's name.
        device: String,
        /// The requested cores.
        cores: Vec<u32>,
        /// Why its threads cannot be pinned to these cores.
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
    /// The device cannot share memory with others.
    #[error("{device} cannot share memory: {reason}")]
    BadSharing {
        /// The device's name.
        device: String,
        /// Why the device cannot share.
        reason: String,
    },
    /// A device that the options name exists but does not work, or the memory to share cannot be created.
    #[error("{device} cannot be used: {reason}")]
    Unusable {
        /// The device's name.
        device: String,
        /// Why the device does not work.
        reason: String,
    },
}

impl DiscoverError {
    /// Creates the error of a device or a store that does not work.
    #[must_use]
    pub fn unusable(device: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Unusable { device: device.into(), reason: reason.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each option affects only the device that it names.
    #[test]
    #[cfg(all(feature = "offload", feature = "opencl", target_os = "linux"))]
    fn options_are_what_was_said() {
        let of = DiscoverOptions::default;
        let bound = of().bind("opencl:0").allow_binding("opencl:1").fine_grained("opencl:2");
        for (index, device) in ["opencl:0", "opencl:1", "opencl:2", "opencl:3"].into_iter().enumerate() {
            let asked = [bound.is_bound(device), bound.is_bindable(device), bound.is_fine_grained(device)];
            assert_eq!(asked, [index == 0, index == 1, index == 2], "{device}");
            assert_eq!(bound.names(device), index < 3, "{device}");
        }
        assert!(!of().any_fine_grained() && of().with_in_place(InPlace::FineGrained).any_fine_grained());
        assert!(!of().shares_any() && of().share(["cpu"]).shares_any());
        let workers = of().with_in_place(InPlace::Workers);
        assert!(workers.shares_any() && workers.shares("cpu") && workers.shares("offload:0"));
        assert!(!workers.shares("opencl:0"));
        assert!(!of().wants_in_place() && of().in_place().wants_in_place());
        assert!(!workers.wants_in_place(), "it is settled");
        for said in [of().bind("opencl:0"), of().allow_binding("opencl:0"), of().share(["cpu"])] {
            assert!(!said.in_place().wants_in_place(), "something else was said");
        }
        assert_eq!(
            (of().locked_scratch_limit(), of().locked_scratch(4096).locked_scratch_limit()),
            (64 << 20, 4096)
        );
        assert_eq!(of().page_locks(4096).page_lock_limit(), 4096);
        assert_eq!(of().page_lock_limit(), total_bytes() / 2);
    }

    #[test]
    fn only_workers_are_pinned() {
        let of = DiscoverOptions::default;
        assert_eq!(of().check_pins(), Ok(()));
        assert_eq!(of().pin("offload:0", [0]).pin("offload:1", [1]).check_pins(), Ok(()));
        for wrong in ["cpu", "opencl:0", "offload"] {
            let told = of().pin("offload:0", [0]).pin(wrong, [3]).check_pins();
            let Err(DiscoverError::BadPin { device, cores, .. }) = told else { panic!("{told:?}") };
            assert_eq!((device.as_str(), cores), (wrong, vec![3]));
        }
    }

    #[test]
    #[cfg(all(feature = "offload", target_os = "linux"))]
    fn those_share_that_can_and_are_not_bound_as_well() {
        let of = DiscoverOptions::default;
        let sharing = of().share(["cpu", "offload:0", "opencl:1"]);
        assert_eq!(of().check_sharing(), Ok(()));
        assert_eq!(sharing.check_sharing(), Ok(()));
        assert_eq!(of().share(["offload:0"]).bind("opencl:0").check_sharing(), Ok(()));
        for (wrong, device) in [
            (of().share(["offload:0", "cuda:0"]), "cuda:0"),
            (of().share(["opencl:1"]).bind("opencl:1"), "opencl:1"),
            (of().share(["opencl:1"]).allow_binding("opencl:1"), "opencl:1"),
            (sharing.clone().bind("opencl:0"), "opencl:0"),
            (sharing.clone().allow_binding("opencl:0"), "opencl:0"),
            (of().share(["offload:0"]).shared_memory(0), "offload:0"),
        ] {
            let told = wrong.check_sharing();
            assert!(
                matches!(&told, Err(DiscoverError::BadSharing { device: of, .. }) if of == device),
                "{told:?}"
            );
        }
    }

    #[test]
    fn devices_of_opencl_are_bound_and_those_of_cuda_to_page_locked_memory() {
        let of = DiscoverOptions::default;
        assert_eq!(of().bind("opencl:0").allow_binding("opencl:1").check_bindings(), Ok(()));
        for bound in [of().bind("cuda:1"), of().allow_binding("cuda:1")] {
            let told = bound.check_bindings();
            let Err(DiscoverError::BadBinding { device, reason }) = &told else { panic!("{told:?}") };
            assert!(device == "cuda:1" && reason.contains("cuda_pinned"), "{told:?}");
            let pinned = bound.cuda_pinned(1 << 20);
            #[cfg(all(feature = "offload", target_os = "linux"))]
            {
                let sharing = pinned.clone().share(["cpu", "offload:0"]);
                assert_eq!((sharing.check_sharing(), sharing.check_fine_grained()), (Ok(()), Ok(())));
                let told = sharing.check_pinned();
                assert!(
                    matches!(&told, Err(DiscoverError::BadSharing { device, .. }) if device == "cpu"),
                    "{told:?}"
                );
            }
            assert_eq!((pinned.check_bindings(), pinned.check_pinned()), (Ok(()), Ok(())));
        }
        for wrong in [of().bind("cpu"), of().allow_binding("cpu"), of().bind("opencl:0").bind("cpu")] {
            let told = wrong.check_bindings();
            assert!(
                matches!(&told, Err(DiscoverError::BadBinding { device, .. }) if device == "cpu"),
                "{told:?}"
            );
        }
    }

    #[test]
    fn main_memory_shares_in_one_way_alone() {
        let fine = || DiscoverOptions::default().fine_grained("opencl:0");
        assert_eq!(fine().share(["offload:0", "opencl:1"]).check_fine_grained(), Ok(()));
        for (options, named) in [
            (fine().fine_grained("opencl:1"), "opencl:1"),
            (fine().fine_grained("cpu"), "cpu"),
            (fine().share(["cpu"]), "opencl:0"),
            (fine().bind("opencl:0"), "opencl:0"),
            (fine().bind("opencl:1"), "opencl:0"),
            (fine().allow_binding("opencl:1"), "opencl:0"),
        ] {
            let refused = options.check_fine_grained();
            assert!(
                matches!(&refused, Err(DiscoverError::BadSharing { device, .. }) if device == named),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn page_locked_memory_is_the_only_one_under_main_memory() {
        let pinned = || DiscoverOptions::default().cuda_pinned(1 << 20);
        assert_eq!(pinned().share(["offload:0"]).check_pinned(), Ok(()));
        for (options, named) in [
            (pinned().bind("opencl:0"), "opencl:0"),
            (pinned().allow_binding("opencl:1"), "opencl:1"),
            (pinned().fine_grained("opencl:0"), "opencl:0"),
            (pinned().share(["cpu", "offload:0"]), "cpu"),
        ] {
            let refused = options.check_pinned();
            assert!(
                matches!(&refused, Err(DiscoverError::BadSharing { device, .. }) if device == named),
                "{refused:?}"
            );
        }
    }
}
