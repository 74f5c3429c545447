//! Lists the OpenCL devices of this machine in a fixed order, and splits them into parts.
//!
//! ```text
//!   list() ──▶ [Found]  platforms by (name, vendor, version), each one's devices as its driver lists them;
//!                       the index is the N of `opencl:N`
//!          ──▶ [Broken] drivers that failed, by name
//!   Found::part(units) ──▶ Part   the whole device, or a sub-device of `units` compute units
//! ```

use super::error::{FORKED, words};
use super::handle::SubDevice;
use crate::fork::Origin;
use dml_core::internal::sync::Mutex;
use opencl3::device::{
    CL_DEVICE_PARTITION_BY_COUNTS, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, CL_DEVICE_PARTITION_EQUALLY,
    CL_DEVICE_SVM_FINE_GRAIN_BUFFER, CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_CPU, CL_DEVICE_TYPE_GPU, Device,
    create_sub_devices, get_device_data,
};
use opencl3::error_codes::{CL_DEVICE_NOT_FOUND, ClError};
use opencl3::platform::{Platform, get_platforms};
use opencl3::types::cl_device_id;
use std::collections::{BTreeMap, HashSet};
use std::ptr::without_provenance_mut;
use std::sync::OnceLock;

/// The sort of an OpenCL device, as its driver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// The host's processor, driven through OpenCL.
    Cpu,
    /// A graphics processor.
    Gpu,
    /// Any other device.
    Other,
}

/// A device of the machine.
#[derive(Clone, Debug)]
pub(super) struct Found {
    device: Device,
    /// The vendor's name of the device, with its platform.
    pub(super) description: String,
    /// The driver's own version string.
    pub(super) driver: String,
    pub(super) sort: Sort,
    pub(super) units: u32,
    /// Whether commands in several queues may use one buffer concurrently, in different bytes. OpenCL 2.0
    /// defines races by bytes. Earlier versions leave all concurrent use of one object undefined.
    pub(super) overlaps: bool,
    /// Whether the device has its own memory, so that transfers cross a link.
    pub(super) is_discrete: bool,
    /// Whether host and device can use the same memory concurrently, byte by byte, without a map.
    pub(super) is_fine_grained: bool,
    /// The device's PCI address, if its driver reports it.
    pub(super) pci: Option<String>,
    /// Number of earlier devices that are the same processor: a driver may list it several times.
    twins: usize,
    /// Why the device cannot be used; `None` if it can.
    pub(super) defect: Option<String>,
}

/// A driver or device whose queries failed.
#[derive(Clone, Debug)]
pub(super) struct Broken {
    pub(super) reason: String,
}

/// All OpenCL devices of the machine.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) found: Vec<Found>,
    pub(super) broken: Vec<Broken>,
}

/// Lists every device of every platform. The order is the same in every run on one machine.
///
/// Each process queries the drivers once. PoCL 3.1 lists no devices to a thread that queries while another
/// thread's first query is in progress.
///
/// A fork of a process that has queried the drivers gets an error. It cannot query again, because the drivers
/// are already initialised.
///
/// # Errors
/// A message, if the loader is missing or has no platform, or this is a fork.
pub(super) fn list() -> Result<&'static Listing, String> {
    static ASKED: OnceLock<Origin> = OnceLock::new();
    static LISTING: OnceLock<Result<Listing, i32>> = OnceLock::new();
    if !ASKED.get_or_init(Origin::here).is_here() {
        return Err(FORKED.to_owned());
    }
    LISTING.get_or_init(find).as_ref().map_err(|code| words(*code))
}

fn find() -> Result<Listing, i32> {
    let mut platforms: Vec<(String, Platform)> = get_platforms()
        .map_err(|error| error.0)?
        .into_iter()
        .map(|platform| (title(&platform), platform))
        .collect();
    platforms.sort_by(|a, b| a.0.cmp(&b.0));
    let mut listing = Listing::default();
    let mut seen = HashSet::new();
    for (title, platform) in platforms {
        let ids = match platform.get_devices(CL_DEVICE_TYPE_ALL) {
            Ok(ids) if !ids.is_empty() => ids,
            Ok(_) | Err(ClError(CL_DEVICE_NOT_FOUND)) => {
                listing.broken.push(Broken { reason: format!("platform {title} has no devices") });
                continue;
            }
            Err(error) => {
                let reason = format!("platform {title} does not list its devices: {}", words(error.0));
                listing.broken.push(Broken { reason });
                continue;
            }
        };
        // A driver that is registered twice lists the same handles twice.
        for id in ids.into_iter().filter(|&id| seen.insert(id.addr())) {
            let name = platform.name().map_or_else(|_| title.clone(), |name| clean(&name));
            let mut found = Found::new(Device::new(id), &name);
            let is_twin = |other: &&Found| other.sort == Sort::Cpu && other.description == found.description;
            found.twins = listing.found.iter().filter(is_twin).count();
            listing.found.push(found);
        }
    }
    Ok(listing)
}

/// Returns the platform's name, vendor and version, as far as the driver reports them.
fn title(platform: &Platform) -> String {
    let parts = [platform.name(), platform.vendor(), platform.version()];
    let parts: Vec<String> = parts.into_iter().flatten().map(|part| clean(&part)).collect();
    parts.join(", ")
}

/// Returns a driver's text as one line, without control characters and extra white space.
fn clean(text: &str) -> String {
    text.split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

impl Found {
    fn new(device: Device, platform: &str) -> Self {
        let mut found = Self {
            device,
            description: format!("unnamed device of {platform}"),
            driver: String::new(),
            sort: Sort::Other,
            units: 1,
            overlaps: false,
            is_discrete: false,
            is_fine_grained: false,
            pci: None,
            twins: 0,
            defect: None,
        };
        found.defect = found
            .inspect(platform)
            .unwrap_or_else(|error| Some(format!("its driver does not describe it: {}", words(error.0))));
        found
    }

    /// Queries the device's properties. Returns why the device cannot be used, or `None` if it can.
    fn inspect(&mut self, platform: &str) -> Result<Option<String>, ClError> {
        self.description = format!("{} ({platform})", clean(&self.device.name()?));
        self.units = self.device.max_compute_units()?.max(1);
        self.sort = match self.device.dev_type()? {
            kind if kind & CL_DEVICE_TYPE_CPU != 0 => Sort::Cpu,
            kind if kind & CL_DEVICE_TYPE_GPU != 0 => Sort::Gpu,
            _ => Sort::Other,
        };
        let version = self.device.version()?;
        self.overlaps = version_of(&version) >= (2, 0);
        self.is_discrete = !self.device.host_unified_memory()?;
        // Drivers before OpenCL 2.0 do not know this query.
        self.is_fine_grained =
            self.overlaps && self.device.svm_mem_capability() & CL_DEVICE_SVM_FINE_GRAIN_BUFFER != 0;
        self.pci = pci_of(&self.device);
        self.driver = clean(&self.device.driver_version()?);
        Ok(if !self.device.available()? {
            Some("its driver says that it is not available".into())
        } else if !self.device.compiler_available()? {
            Some("its driver has no compiler".into())
        } else if version_of(&version) < (1, 2) {
            Some(format!("it offers {}, and OpenCL 1.2 is needed", clean(&version)))
        } else {
            None
        })
    }

    /// Returns the whole device, or a sub-device of `limit` compute units if the device has more.
    ///
    /// # Errors
    /// A message with the reason why the limit cannot be met.
    pub(super) fn part(&self, limit: Option<u32>) -> Result<Part, String> {
        let units = limit.unwrap_or(self.units);
        if units == 0 || units > self.units {
            return Err(format!("it has {} compute units", self.units));
        }
        if units == self.units {
            return Ok(Part {
                device: self.device,
                units,
                overlaps: self.overlaps,
                is_discrete: self.is_discrete,
                sort: self.sort,
                is_sub_device: false,
            });
        }
        Ok(Part {
            device: Device::new(self.sub_device(units)?),
            units,
            overlaps: self.overlaps,
            is_discrete: self.is_discrete,
            sort: self.sort,
            is_sub_device: true,
        })
    }

    /// Returns the sub-device of `units` compute units, made once in the life of the program and never
    /// released. Devices that are the same processor get different units, if there are enough.
    ///
    /// A sub-device should live until the last queue on it is gone. PoCL 3.1 frees it with its last
    /// reference, although the thread that completed a command still releases the event, and with it the
    /// queue.
    fn sub_device(&self, units: u32) -> Result<cl_device_id, String> {
        type Made = BTreeMap<(usize, u32), usize>;
        static MADE: OnceLock<Mutex<Made>> = OnceLock::new();
        let mut made = MADE.get_or_init(Mutex::default).lock();
        let key = (self.device.id().addr(), units);
        if let Some(&id) = made.get(&key) {
            return Ok(without_provenance_mut(id));
        }
        let count = isize::try_from(units).map_err(|_| "the number is too large".to_owned())?;
        let by_counts = [CL_DEVICE_PARTITION_BY_COUNTS, count, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0];
        let equally = [CL_DEVICE_PARTITION_EQUALLY, count, 0];
        let ways = if self.twins > 0 { [&equally[..], &by_counts] } else { [&by_counts[..], &equally] };
        let ids = create_sub_devices(self.device.id(), ways[0])
            .or_else(|_| create_sub_devices(self.device.id(), ways[1]))
            .map_err(|code| format!("its driver cannot split it: {}", words(code)))?;
        // SAFETY: the call created these sub-devices, and hands over one reference to each.
        let parts: Vec<_> = ids.into_iter().map(|id| unsafe { SubDevice::own(id) }).collect();
        let place = self.twins % parts.len().max(1);
        let part = parts.into_iter().nth(place);
        let part = part.ok_or_else(|| "its driver returned no sub-devices".to_owned())?;
        let id = part.raw();
        let got = Device::new(id).max_compute_units().map_err(|error| words(error.0))?;
        if got != units {
            return Err(format!("its driver made a sub-device of {got} compute units"));
        }
        made.insert(key, id.addr());
        std::mem::forget(part);
        Ok(id)
    }
}

/// A device or sub-device, for which a context can be created.
#[derive(Debug)]
pub(super) struct Part {
    device: Device,
    pub(super) units: u32,
    /// As in [`Found`].
    pub(super) overlaps: bool,
    /// As in [`Found`].
    pub(super) is_discrete: bool,
    /// As in [`Found`].
    pub(super) sort: Sort,
    /// Whether this is less than the whole device.
    pub(super) is_sub_device: bool,
}

impl Part {
    /// Returns the device, for queries.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the device's handle, valid while the part lives.
    pub(super) fn id(&self) -> cl_device_id {
        self.device.id()
    }
}

/// Returns a device's PCI address, as `domain:bus:device.function`.
fn pci_of(device: &Device) -> Option<String> {
    /// From the extensions `cl_khr_pci_bus_info` and, for the others, `cl_nv_device_attribute_query`.
    const CL_DEVICE_PCI_BUS_INFO_KHR: u32 = 0x410F;
    const CL_DEVICE_PCI_BUS_ID_NV: u32 = 0x4008;
    const CL_DEVICE_PCI_SLOT_ID_NV: u32 = 0x4009;
    const CL_DEVICE_PCI_DOMAIN_ID_NV: u32 = 0x400A;
    let extensions = device.extensions().ok()?;
    let has = |name: &str| extensions.split_whitespace().any(|extension| extension == name);
    let number = |parameter: u32| {
        let bytes: Vec<u8> = get_device_data(device.id(), parameter).ok()?;
        Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
    };
    if has("cl_khr_pci_bus_info") {
        let bytes: Vec<u8> = get_device_data(device.id(), CL_DEVICE_PCI_BUS_INFO_KHR).ok()?;
        let words: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        let [domain, bus, slot, function] = words[..] else { return None };
        return Some(pci_text(domain, bus, slot, function));
    }
    if !has("cl_nv_device_attribute_query") {
        return None;
    }
    let (bus, slot) = (number(CL_DEVICE_PCI_BUS_ID_NV)?, number(CL_DEVICE_PCI_SLOT_ID_NV)?);
    Some(pci_text(number(CL_DEVICE_PCI_DOMAIN_ID_NV).unwrap_or(0), bus, slot >> 3, slot & 7))
}

fn pci_text(domain: u32, bus: u32, slot: u32, function: u32) -> String {
    format!("{domain:04x}:{bus:02x}:{slot:02x}.{function:x}")
}

/// Returns the numbers in `OpenCL <major>.<minor> <anything>`.
fn version_of(text: &str) -> (u32, u32) {
    let number = text.split_whitespace().nth(1).unwrap_or_default();
    let mut parts = number.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        assert_eq!(version_of("OpenCL 1.2 CUDA 12.2"), (1, 2));
        assert_eq!(version_of("OpenCL 3.0 PoCL HSTR: pthread"), (3, 0));
        assert!(version_of("OpenCL 1.1 Mesa") < (1, 2));
        assert_eq!(version_of("nonsense"), (0, 0));
    }

    #[test]
    fn places_on_the_bus_read_as_cuda_writes_them() {
        assert_eq!(pci_text(0, 0x1a, 3, 0), "0000:1a:03.0");
    }

    #[test]
    fn text_of_drivers_fits_a_line() {
        assert_eq!(clean("  Intel(R)\tXeon \n\0"), "Intel(R) Xeon");
    }
}
