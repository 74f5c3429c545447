//! Which devices use storage in place.

use super::{DiscoverError, is_worker};
use std::collections::BTreeSet;

/// Which devices use storage in place, where others have copies of their own. By default none does.
///
/// A constructor chooses the memory in which main memory's buffers lie. [`bind`](Self::bind) and
/// [`allow_binding`](Self::allow_binding) add devices that use main memory's storage, and take turns with
/// the host.
///
/// | | devices that share with `cpu` | at the same time | vectors of the application |
/// |---|---|---|---|
/// | `default()` | none | | in place |
/// | [`in_place`](Self::in_place) | all that can at the same time | yes | copied |
/// | [`memory`](Self::memory) | those named: workers, OpenCL devices | workers yes, OpenCL no | copied |
/// | [`fine_grained`](Self::fine_grained) | one OpenCL device | yes | copied |
/// | [`page_locked`](Self::page_locked) | CUDA GPUs, if bound | yes | in place; copied for bound GPUs |
/// | [`bound`](Self::bound) | the OpenCL devices named | no | in place |
///
/// # Examples
/// ```
/// use dml_arenas::{Discover, DiscoverOptions, Sharing};
/// use dml_core::Platform;
///
/// let options = DiscoverOptions::default().only(["cpu"]).sharing(Sharing::in_place());
/// let platform = Platform::builder().discover_with(&options)?.build()?;
/// assert_eq!(platform.arenas().len(), 1, "the processor alone needs no shared memory");
///
/// let workers = Sharing::memory(["cpu", "offload:0", "offload:1"]).bytes(1 << 30);
/// let gpu = Sharing::page_locked(8 << 30).allow_binding("cuda:0");
/// # let _ = (workers, gpu);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Source
/// "Abstract Representation of Shared Data for Heterogeneous Computing", sections 3.2 (bind-allocation) and 4
/// (ION, page-locked memory).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Sharing {
    memory: Memory,
    bytes: Option<u64>,
    bound: BTreeSet<String>,
    bindable: BTreeSet<String>,
}

/// The memory in which main memory's buffers lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Memory {
    /// Ordinary memory.
    #[default]
    Ordinary,
    /// To be chosen by discovery.
    InPlace,
    /// A memory that the processor shares with all workers.
    Workers,
    /// Fine-grained memory of the first OpenCL device that has it.
    AnyFineGrained,
    /// A memory that these devices share.
    Shared(BTreeSet<String>),
    /// Fine-grained memory of this OpenCL device.
    FineGrained(String),
    /// At most this many bytes of page-locked memory.
    PageLocked(u64),
}

impl Sharing {
    fn of(memory: Memory) -> Self {
        Self { memory, ..Self::default() }
    }

    /// The processor shares with all devices that can use buffers concurrently with it. No byte is moved
    /// between these devices, and they need not take turns.
    ///
    /// If workers are opened, `cpu` and the workers share one memory, as by [`memory`](Self::memory). The
    /// workers are then trusted with this process's buffers. If no worker is opened, `cpu` and the first
    /// OpenCL device that supports it share, as by [`fine_grained`](Self::fine_grained). This has no effect
    /// if a device is [bound](Self::bind).
    pub fn in_place() -> Self {
        Self::of(Memory::InPlace)
    }

    /// These devices share one memory: `cpu`, workers (`offload:0`) and OpenCL devices. A buffer that DML
    /// allocates lies in that memory, and all of them use it in place. A vector that the application moves in
    /// stays where it is, and is copied to the workers once.
    ///
    /// The processor and the workers may hold ranges of one buffer at the same time, if the ranges do not
    /// conflict. An OpenCL device takes turns with them: while it uses a buffer, or any range of it, they
    /// wait, and the other way around. A buffer that no OpenCL device has touched is not affected. A device
    /// that [`DiscoverOptions::only`](super::DiscoverOptions::only) leaves out is not opened and does not
    /// share.
    ///
    /// Without `cpu` among them, main memory stays apart from the memory that the others share.
    ///
    /// A worker that shares has the whole memory mapped for writing. So its program and every function that
    /// it runs are trusted with this process's buffers there, like code of this process. Without sharing, a
    /// worker is trusted with its own memory only.
    pub fn memory<N: Into<String>>(devices: impl IntoIterator<Item = N>) -> Self {
        Self::of(Memory::Shared(devices.into_iter().map(Into::into).collect()))
    }

    /// The processor and one OpenCL device share fine-grained virtual memory of OpenCL 2, which PoCL offers
    /// and NVIDIA does not. A buffer that DML allocates lies in that memory. No byte is moved, and neither of
    /// the two waits for the other unless their ranges conflict. If the device's driver does not offer such
    /// memory, discovery fails with [`DiscoverError::BadSharing`].
    ///
    /// A buffer larger than the driver's largest allocation lies in ordinary memory, and the device cannot
    /// use it ([`AllocError::TooLarge`](dml_core::AllocError::TooLarge)).
    pub fn fine_grained(device: impl Into<String>) -> Self {
        Self::of(Memory::FineGrained(device.into()))
    }

    /// Main memory's buffers are allocated in page-locked memory, at most `limit_bytes` of it. CUDA GPUs
    /// transfer it at the speed of the link from the first transfer on, and [bound](Self::bind) GPUs use it
    /// in place.
    ///
    /// A vector that the application moves in stays where it is. A buffer that does not fit is an error that
    /// names `cuda_pinned`. Without a CUDA GPU, this has no effect. A buffer whose hints ask for copies
    /// ([`Pattern::StreamedOnce`](dml_core::Pattern::StreamedOnce),
    /// [`Pattern::ReadMostly`](dml_core::Pattern::ReadMostly)) is allocated in ordinary memory.
    ///
    /// Page-locked memory cannot be swapped out, and takes longer to allocate than ordinary memory. Freed
    /// memory is cached for later buffers.
    pub fn page_locked(limit_bytes: u64) -> Self {
        Self::of(Memory::PageLocked(limit_bytes))
    }

    /// An OpenCL device is bound to ordinary main memory, as by [`bind`](Self::bind).
    pub fn bound(device: impl Into<String>) -> Self {
        Self::default().bind(device)
    }

    /// Sets the size of the memory that devices share, in bytes. The default is half of the machine's memory.
    /// Its pages are allocated as buffers need them. A buffer that does not fit is an error that names
    /// `shared`: it is not allocated elsewhere.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// Binds an OpenCL device to main memory: it uses the storage there, including the application's own
    /// vectors, instead of copies. No bytes are moved if device and host share their memory. Otherwise the
    /// driver mirrors the memory, and copies are as fast: see
    /// [`DiscoverOptions::page_locks`](super::DiscoverOptions::page_locks).
    ///
    /// The device and the host take turns: while one of them uses a buffer, or any range of it, the other
    /// waits. So bind devices that work alone. A kernel that such a device shares with the host is computed
    /// correctly, by one of the two at a time. A device that
    /// [`DiscoverOptions::only`](super::DiscoverOptions::only) leaves out is neither opened nor bound.
    ///
    /// A CUDA GPU is bound to [page-locked](Self::page_locked) memory. A vector that the application moves in
    /// is copied into such memory, which counts towards the limit. Kernels of the GPU access the host's
    /// memory across the link on every use, and nothing else is moved. That is the fastest way for bytes
    /// touched once, which stream over the link during the kernel. Bytes read repeatedly take many times as
    /// long: for these, [`allow_binding`](Self::allow_binding). The processor may use other ranges of the
    /// buffer at the same time.
    pub fn bind(mut self, device: impl Into<String>) -> Self {
        self.bound.insert(device.into());
        self
    }

    /// Allows a device to be [bound](Self::bind) for only those buffers whose hints ask for it
    /// ([`Pattern::ToAndFro`](dml_core::Pattern::ToAndFro)). All others are copied. It has no effect on a
    /// device that [`bind`](Self::bind) names too.
    pub fn allow_binding(mut self, device: impl Into<String>) -> Self {
        self.bindable.insert(device.into());
        self
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
        matches!(&self.memory, Memory::FineGrained(chosen) if chosen == device)
    }

    /// Returns whether the first OpenCL device that supports it is to use fine-grained shared virtual memory.
    #[cfg(feature = "opencl")]
    pub(crate) fn any_fine_grained(&self) -> bool {
        self.memory == Memory::AnyFineGrained
    }

    /// Returns the size of the memory that devices are to share, or `None` if none are. `Some(None)` leaves
    /// the size open.
    #[cfg(all(feature = "offload", target_os = "linux"))]
    pub(crate) fn shared_memory(&self) -> Option<Option<u64>> {
        match &self.memory {
            Memory::Workers => Some(self.bytes),
            Memory::Shared(devices) if !devices.is_empty() => Some(self.bytes),
            _ => None,
        }
    }

    /// Returns whether the device is to share memory.
    #[cfg(all(feature = "offload", target_os = "linux"))]
    pub(crate) fn shares(&self, device: &str) -> bool {
        match &self.memory {
            Memory::Workers => device == "cpu" || is_worker(device),
            Memory::Shared(devices) => devices.contains(device),
            _ => false,
        }
    }

    /// Returns the maximum size of page-locked memory, if main memory's buffers are to lie there.
    #[cfg(feature = "cuda")]
    pub(crate) fn page_locked_bytes(&self) -> Option<u64> {
        match self.memory {
            Memory::PageLocked(limit_bytes) => Some(limit_bytes),
            _ => None,
        }
    }

    /// Returns whether discovery has to choose the devices that share.
    pub(crate) fn is_open(&self) -> bool {
        self.memory == Memory::InPlace && self.bound.is_empty() && self.bindable.is_empty()
    }

    /// Returns the choice of the workers.
    pub(crate) fn with_workers(&self) -> Self {
        Self { memory: Memory::Workers, ..self.clone() }
    }

    /// Returns the choice of the first OpenCL device that can.
    pub(crate) fn with_fine_grained(&self) -> Self {
        Self { memory: Memory::AnyFineGrained, ..self.clone() }
    }

    /// Returns the devices that it names.
    pub(crate) fn named(&self) -> impl Iterator<Item = &String> {
        let (shared, chosen) = match &self.memory {
            Memory::Shared(devices) => (Some(devices), None),
            Memory::FineGrained(device) => (None, Some(device)),
            _ => (None, None),
        };
        shared.into_iter().flatten().chain(chosen).chain(&self.bound).chain(&self.bindable)
    }

    /// Returns what cannot be as it is asked for.
    pub(crate) fn errors(&self) -> Vec<DiscoverError> {
        let bound: BTreeSet<_> = self.bound.union(&self.bindable).collect();
        let mut errors: Vec<_> = bound.into_iter().filter_map(|device| self.binding_error(device)).collect();
        let mut bad = |device: &str, reason: &str| {
            errors.push(DiscoverError::BadSharing { device: device.to_owned(), reason: reason.to_owned() });
        };
        match &self.memory {
            Memory::FineGrained(device) if !device.starts_with("opencl:") => {
                bad(device, "only opencl devices have fine-grained shared virtual memory");
            }
            Memory::Shared(devices) => {
                let Some(first) = devices.first() else { return errors };
                if !cfg!(feature = "offload") {
                    bad(first, "this program was built without the feature `offload`");
                } else if !cfg!(target_os = "linux") {
                    bad(first, "the memory files of Linux are needed");
                }
                if self.bytes == Some(0) {
                    bad(first, "the shared memory is to have no bytes");
                }
                let can =
                    |device: &str| device == "cpu" || is_worker(device) || device.starts_with("opencl:");
                devices
                    .iter()
                    .filter(|device| !can(device))
                    .for_each(|device| bad(device, "only cpu, offload and opencl devices can"));
            }
            _ => {}
        }
        errors
    }

    /// Returns why a device cannot be bound as asked: OpenCL devices are bound to ordinary main memory, and
    /// CUDA GPUs to page-locked memory.
    fn binding_error(&self, device: &str) -> Option<DiscoverError> {
        let binding = |reason: &str| {
            Some(DiscoverError::BadBinding { device: device.to_owned(), reason: reason.to_owned() })
        };
        let sharing = |reason: &str| {
            Some(DiscoverError::BadSharing { device: device.to_owned(), reason: reason.to_owned() })
        };
        match &self.memory {
            Memory::PageLocked(_) if device.starts_with("cuda:") => None,
            _ if device.starts_with("cuda:") => binding(
                "main memory's buffers have to lie in page-locked memory for that (`Sharing::page_locked`)",
            ),
            _ if !device.starts_with("opencl:") => binding("only opencl and cuda devices can be"),
            Memory::PageLocked(_) => sharing("main memory is to use page-locked memory of CUDA already"),
            Memory::FineGrained(other) => {
                sharing(&format!("main memory is to use fine-grained memory of {other} already"))
            }
            Memory::Shared(devices) if devices.contains(device) => {
                sharing("it is to be bound to main memory as well")
            }
            Memory::Shared(devices) if devices.contains("cpu") => sharing(
                "it is to be bound to main memory, which is itself to share: name it in `Sharing::memory` instead",
            ),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the devices of the errors.
    fn refused(sharing: &Sharing) -> Vec<String> {
        let device = |error| match error {
            DiscoverError::BadSharing { device, .. } | DiscoverError::BadBinding { device, .. } => device,
            other => panic!("{other}"),
        };
        sharing.errors().into_iter().map(device).collect()
    }

    #[test]
    #[cfg(all(feature = "offload", feature = "opencl", feature = "cuda", target_os = "linux"))]
    fn a_choice_concerns_the_devices_that_it_names() {
        let sharing = Sharing::fine_grained("opencl:2").bind("opencl:0").allow_binding("opencl:1");
        for (index, device) in ["opencl:0", "opencl:1", "opencl:2", "opencl:3"].into_iter().enumerate() {
            let asked =
                [sharing.is_bound(device), sharing.is_bindable(device), sharing.is_fine_grained(device)];
            assert_eq!(asked, [index == 0, index == 1, index == 2], "{device}");
            assert_eq!(sharing.named().any(|named| named == device), index < 3, "{device}");
        }
        assert_eq!(Sharing::default().shared_memory(), None);
        assert_eq!(Sharing::memory(Vec::<String>::new()).shared_memory(), None);
        assert_eq!(Sharing::memory(["cpu"]).bytes(7).shared_memory(), Some(Some(7)));
        assert_eq!(
            [Sharing::page_locked(7), sharing].map(|sharing| sharing.page_locked_bytes()),
            [Some(7), None]
        );
    }

    #[test]
    #[cfg(all(feature = "offload", feature = "opencl", target_os = "linux"))]
    fn discovery_chooses_who_shares_unless_a_device_is_bound() {
        let open = Sharing::in_place();
        assert!(open.is_open() && open.shared_memory().is_none());
        assert!(!Sharing::default().is_open() && !open.clone().bind("opencl:0").is_open());
        assert!(!open.clone().allow_binding("opencl:0").is_open());
        let workers = open.with_workers();
        assert!(!workers.is_open() && workers.shared_memory().is_some());
        let shares = ["cpu", "offload:0", "opencl:0"].map(|device| workers.shares(device));
        assert_eq!(shares, [true, true, false]);
        assert!(open.with_fine_grained().any_fine_grained() && !open.any_fine_grained());
    }

    #[test]
    #[cfg(all(feature = "offload", target_os = "linux"))]
    fn all_that_contradicts_itself_is_named_at_once() {
        let shared = || Sharing::memory(["cpu", "offload:0", "opencl:1"]);
        for fine in [
            Sharing::default(),
            shared(),
            Sharing::memory(["offload:0"]).bind("opencl:0"),
            Sharing::default().bind("opencl:0").allow_binding("opencl:1"),
            Sharing::page_locked(1).bind("cuda:0").allow_binding("cuda:1"),
            Sharing::fine_grained("opencl:0"),
        ] {
            assert_eq!(refused(&fine), [""; 0], "{fine:?}");
        }
        for (wrong, devices) in [
            (Sharing::memory(["offload:0", "cuda:0", "fpga"]), &["cuda:0", "fpga"][..]),
            (shared().bind("opencl:1"), &["opencl:1"]),
            (shared().allow_binding("opencl:0").bind("opencl:1"), &["opencl:0", "opencl:1"]),
            (Sharing::memory(["offload:0"]).bytes(0), &["offload:0"]),
            (Sharing::default().bind("cuda:1").bind("cpu"), &["cpu", "cuda:1"]),
            (shared().allow_binding("cuda:1"), &["cuda:1"]),
            (Sharing::fine_grained("cpu"), &["cpu"]),
            (Sharing::fine_grained("opencl:0").bind("opencl:0"), &["opencl:0"]),
            (Sharing::fine_grained("opencl:0").allow_binding("opencl:1"), &["opencl:1"]),
            (Sharing::page_locked(1).bind("opencl:0"), &["opencl:0"]),
        ] {
            assert_eq!(refused(&wrong), devices, "{wrong:?}");
        }
    }
}
