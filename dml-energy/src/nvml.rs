//! The energy counters of NVIDIA's GPUs, from NVML, which comes with the driver and is loaded at run time.

use crate::{EnergyCounter, GpuCounters};
use nvml_wrapper::error::NvmlError;
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Longest update interval of a GPU's counter.
const STEP: Duration = Duration::from_millis(100);

/// NVIDIA's management library. It is loaded when the first counter is requested, so it need not be
/// installed.
///
/// It has no counters in a fork of the process that loaded it, because the driver does not work there.
#[derive(Debug)]
pub struct Nvml {
    library: PathBuf,
    loaded: OnceLock<Result<Arc<Loaded>, String>>,
}

impl Default for Nvml {
    fn default() -> Self {
        Self::new()
    }
}

impl Nvml {
    /// Returns the library of this machine.
    #[must_use]
    pub fn new() -> Self {
        let name = if cfg!(windows) { "nvml.dll" } else { "libnvidia-ml.so.1" };
        // SAFETY: the driver's own library implements NVML's interface (obligation 1 of `at`).
        unsafe { Self::at(name) }
    }

    /// Returns the library at a path.
    ///
    /// # Safety
    /// 1. Each symbol that the library exports under a name of NVML has the type that NVML declares, and does
    ///    what NVML documents.
    #[must_use]
    pub unsafe fn at(library: impl Into<PathBuf>) -> Self {
        Self { library: library.into(), loaded: OnceLock::new() }
    }
}

impl GpuCounters for Nvml {
    fn counter(&self, hardware: &str) -> Result<Arc<dyn EnergyCounter>, String> {
        let address =
            hardware.strip_prefix("pci ").ok_or_else(|| format!("{hardware} is not a PCI address"))?;
        let loaded = self.loaded.get_or_init(|| Loaded::load(&self.library));
        let nvml = loaded.as_ref().map_err(Clone::clone)?.clone();
        let counter = GpuCounter { nvml, address: address.to_owned() };
        counter.read_uj()?;
        Ok(Arc::new(counter))
    }
}

/// The library, loaded and initialised.
struct Loaded {
    /// Shut down by its destructor, which must not run in a fork.
    nvml: ManuallyDrop<nvml_wrapper::Nvml>,
    /// The process that loaded the library.
    process: u32,
}

impl Loaded {
    fn load(library: &Path) -> Result<Arc<Self>, String> {
        let nvml = nvml_wrapper::Nvml::builder().lib_path(library.as_os_str()).init();
        let nvml = nvml.map_err(|error| format!("NVML ({}): {}", library.display(), message(&error)))?;
        Ok(Arc::new(Self { nvml: ManuallyDrop::new(nvml), process: std::process::id() }))
    }

    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("process", &self.process).finish_non_exhaustive()
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: the value is dropped once, here, and not used after this.
            unsafe { ManuallyDrop::drop(&mut self.nvml) };
        }
    }
}

/// Returns the message of an error of NVML, with that of the loader.
fn message(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(cause) => cause.to_string(),
        error => error.to_string(),
    }
}

/// The counter of one GPU.
#[derive(Debug)]
struct GpuCounter {
    nvml: Arc<Loaded>,
    address: String,
}

impl EnergyCounter for GpuCounter {
    fn name(&self) -> String {
        format!("gpu {}", self.address)
    }

    fn read_uj(&self) -> Result<u64, String> {
        if !self.nvml.is_here() {
            return Err("this process is a fork of the one that loaded NVML".to_owned());
        }
        let device = self.nvml.nvml.device_by_pci_bus_id(self.address.as_str());
        let millijoules = device.and_then(|device| device.total_energy_consumption());
        let millijoules =
            millijoules.map_err(|error| format!("NVML, GPU {}: {}", self.address, message(&error)))?;
        millijoules.checked_mul(1000).ok_or_else(|| format!("{millijoules} mJ overflow in microjoules"))
    }

    fn range_uj(&self) -> Option<u64> {
        None
    }

    fn step(&self) -> Duration {
        STEP
    }
}
