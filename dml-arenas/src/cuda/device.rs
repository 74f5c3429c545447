//! Lists the GPUs of NVIDIA's driver in the driver's order: the index is the N of `cuda:N`.

use super::error::{FORKED, Failure, check, words};
use crate::fork::Origin;
use cudarc::driver::sys::{
    self, CUdevice, CUdevice_attribute as Attribute, CUuuid, cuDeviceGet, cuDeviceGetAttribute,
    cuDeviceGetCount, cuDeviceGetName, cuDeviceGetPCIBusId, cuDeviceGetUuid_v2, cuDeviceTotalMem_v2,
    cuDriverGetVersion, cuInit,
};
use dml_core::internal::guard;
use std::ffi::CStr;
use std::sync::OnceLock;

/// Minimum CUDA version of the driver, as 1000 * major + 10 * minor. CUDA 12.4 added the query of a kernel's
/// parameters.
const LEAST_VERSION: i32 = 12_040;

/// A GPU of the machine.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) device: CUdevice,
    /// The vendor's name of the GPU.
    pub(super) name: String,
    /// The driver's UUID of the GPU, as `nvidia-smi` shows it.
    pub(super) uuid: String,
    /// The PCI address of the GPU: domain, bus, device and function.
    pub(super) pci: String,
    /// The CUDA version of the driver, as 1000 * major + 10 * minor.
    pub(super) version: i32,
    /// The number of multiprocessors.
    pub(super) units: u32,
    /// The size of the memory, in bytes.
    pub(super) memory_bytes: u64,
    /// The compute capability, major and minor.
    pub(super) capability: (u32, u32),
    /// Whether the driver has memory pools for the GPU.
    pub(super) has_pools: bool,
}

impl Found {
    /// Returns the driver's version as text.
    pub(super) fn driver(&self) -> String {
        format!("CUDA {}", version_text(self.version))
    }
}

/// Lists every GPU. Queries the driver once per process.
///
/// # Errors
/// A sentence, if the driver is missing, too old or broken, lists no device, or cannot be used in this fork.
pub(super) fn list() -> Result<&'static [Found], String> {
    static ASKED: OnceLock<Origin> = OnceLock::new();
    static LISTING: OnceLock<Result<Vec<Found>, String>> = OnceLock::new();
    if !ASKED.get_or_init(Origin::here).is_here() {
        return Err(FORKED.to_owned());
    }
    // The loader panics if the library lacks a symbol.
    let find = || guard(find).unwrap_or_else(|panic| Err(format!("the CUDA driver cannot be used: {panic}")));
    LISTING.get_or_init(find).as_deref().map_err(Clone::clone)
}

fn find() -> Result<Vec<Found>, String> {
    // SAFETY: opens libraries by the names of NVIDIA's driver. Their initialisers are trusted like the
    // driver.
    if !unsafe { sys::is_culib_present() } {
        return Err("no CUDA driver was found (libcuda.so.1): NVIDIA's driver installs it".to_owned());
    }
    let said = |failure: Failure| format!("{} failed: {}", failure.call, words(failure.code));
    let mut version = 0;
    // SAFETY: the call writes a number.
    check("cuDriverGetVersion", unsafe { cuDriverGetVersion(&raw mut version) }).map_err(said)?;
    if version < LEAST_VERSION {
        let (has, needs) = (version_text(version), version_text(LEAST_VERSION));
        return Err(format!("the driver offers CUDA {has}, and {needs} is needed: install a newer driver"));
    }
    // SAFETY: the call takes no memory, and its flags are zero, as required.
    check("cuInit", unsafe { cuInit(0) }).map_err(said)?;
    let mut count = 0;
    // SAFETY: the call writes a number.
    check("cuDeviceGetCount", unsafe { cuDeviceGetCount(&raw mut count) }).map_err(said)?;
    if count == 0 {
        return Err("the CUDA driver lists no device".to_owned());
    }
    (0..count).map(|index| inspect(index, version).map_err(said)).collect()
}

fn inspect(index: i32, version: i32) -> Result<Found, Failure> {
    let mut device = 0;
    // SAFETY: the call writes a handle, which is a number.
    check("cuDeviceGet", unsafe { cuDeviceGet(&raw mut device, index) })?;
    let number = |attribute: Attribute| {
        let mut value = 0;
        // SAFETY: the call writes a number, and the device is valid.
        let asked = unsafe { cuDeviceGetAttribute(&raw mut value, attribute, device) };
        check("cuDeviceGetAttribute", asked).map(|()| u32::try_from(value).unwrap_or(0))
    };
    let mut text = [0; 256];
    let length = text.len() as i32;
    // SAFETY: the call writes at most `length` characters, including the terminating zero.
    check("cuDeviceGetName", unsafe { cuDeviceGetName(text.as_mut_ptr(), length, device) })?;
    // SAFETY: a C string: the initial zeros, or the characters that the call wrote.
    let name = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().trim().to_owned();
    text.fill(0);
    // SAFETY: as above.
    check("cuDeviceGetPCIBusId", unsafe { cuDeviceGetPCIBusId(text.as_mut_ptr(), length, device) })?;
    // SAFETY: as above.
    let pci = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().to_lowercase();
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: the call writes sixteen bytes.
    check("cuDeviceGetUuid", unsafe { cuDeviceGetUuid_v2(&raw mut uuid, device) })?;
    let mut memory = 0;
    // SAFETY: the call writes a number.
    check("cuDeviceTotalMem", unsafe { cuDeviceTotalMem_v2(&raw mut memory, device) })?;
    Ok(Found {
        device,
        name,
        uuid: uuid_text(&uuid.bytes.map(|byte| byte as u8)),
        pci,
        version,
        units: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1),
        memory_bytes: memory as u64,
        capability: (
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        has_pools: number(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0,
    })
}

/// Returns a CUDA version as text, such as 12.4.
pub(super) fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn uuid_text(bytes: &[u8; 16]) -> String {
    let hex = |range: std::ops::Range<usize>| -> String {
        bytes[range].iter().map(|byte| format!("{byte:02x}")).collect()
    };
    format!("GPU-{}-{}-{}-{}-{}", hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_uuids_read_as_people_write_them() {
        assert_eq!([12_040, 13_000].map(version_text), ["12.4", "13.0"]);
        let bytes: [u8; 16] = std::array::from_fn(|index| index as u8 * 17);
        assert_eq!(uuid_text(&bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn what_is_missing_is_said() {
        match list() {
            Ok(found) => assert!(!found.is_empty()),
            Err(reason) => assert!(reason.contains("driver") || reason.contains("cuInit"), "{reason}"),
        }
    }
}
