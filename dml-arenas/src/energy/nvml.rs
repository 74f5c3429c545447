//! The energy counters of NVIDIA's GPUs, from NVML, which comes with the driver and is opened at run time.

use super::{EnergyCounter, GpuCounters};
use std::path::PathBuf;
use std::sync::Arc;

/// NVIDIA's management library. It is opened when the first counter is requested, so it need not be
/// installed.
///
/// It has no counters in a fork of the process that opened it, because the driver does not work there.
#[derive(Debug)]
pub struct Nvml {
    library: PathBuf,
    #[cfg(target_os = "linux")]
    opened: std::sync::OnceLock<Result<Arc<linux::Opened>, String>>,
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
        // SAFETY: the driver's own library implements NVML's interface (obligation 1 of `at`).
        unsafe { Self::at("libnvidia-ml.so.1") }
    }

    /// Returns the library at a path.
    ///
    /// # Safety
    /// 1. Each symbol that the library exports under a name of NVML has the type that NVML declares, and does
    ///    what NVML documents.
    #[must_use]
    pub unsafe fn at(library: impl Into<PathBuf>) -> Self {
        Self {
            library: library.into(),
            #[cfg(target_os = "linux")]
            opened: std::sync::OnceLock::new(),
        }
    }
}

impl GpuCounters for Nvml {
    #[cfg(target_os = "linux")]
    fn counter(&self, hardware: &str) -> Result<Arc<dyn EnergyCounter>, String> {
        let place =
            hardware.strip_prefix("pci ").ok_or_else(|| format!("{hardware} is not a PCI address"))?;
        // SAFETY: guaranteed by the creator of this value (obligation 1 of `at`).
        let opened = self.opened.get_or_init(|| unsafe { linux::Opened::open(&self.library) });
        let counter = linux::GpuCounter::find(opened.as_ref().map_err(Clone::clone)?, place)?;
        Ok(Arc::new(counter))
    }

    #[cfg(not(target_os = "linux"))]
    fn counter(&self, _: &str) -> Result<Arc<dyn EnergyCounter>, String> {
        Err(format!("NVML ({}) is supported only on Linux", self.library.display()))
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use crate::energy::EnergyCounter;
    use crate::fork::Origin;
    use libloading::Library;
    use std::ffi::{CStr, CString, c_char, c_int, c_ulonglong, c_void};
    use std::fmt;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    /// Longest update interval of a GPU's counter.
    const STEP: Duration = Duration::from_millis(100);
    const SUCCESS: c_int = 0;

    type Device = *mut c_void;
    type Plain = unsafe extern "C" fn() -> c_int;
    type ByPlace = unsafe extern "C" fn(*const c_char, *mut Device) -> c_int;
    type TotalEnergy = unsafe extern "C" fn(Device, *mut c_ulonglong) -> c_int;
    type ErrorText = unsafe extern "C" fn(c_int) -> *const c_char;

    /// The library, opened and initialised.
    pub(super) struct Opened {
        shutdown: Plain,
        by_place: ByPlace,
        total_energy: TotalEnergy,
        error_text: ErrorText,
        origin: Origin,
        /// Keeps the functions above valid. It is closed after the last call.
        _library: Library,
    }

    impl fmt::Debug for Opened {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Opened").finish_non_exhaustive()
        }
    }

    impl Opened {
        /// Opens the library and initialises it.
        ///
        /// # Safety
        /// As [`Nvml::at`](super::Nvml::at).
        pub(super) unsafe fn open(path: &Path) -> Result<Arc<Self>, String> {
            // SAFETY: the caller guarantees what the library does when it is loaded.
            let library = unsafe { Library::new(path) }
                .map_err(|error| format!("NVML ({}) cannot be opened: {error}", path.display()))?;
            // SAFETY: the caller guarantees the types of these symbols.
            let (start, opened) = unsafe {
                let start: Plain = function(&library, c"nvmlInit_v2")?;
                let opened = Self {
                    shutdown: function(&library, c"nvmlShutdown")?,
                    by_place: function(&library, c"nvmlDeviceGetHandleByPciBusId_v2")?,
                    total_energy: function(&library, c"nvmlDeviceGetTotalEnergyConsumption")?,
                    error_text: function(&library, c"nvmlErrorString")?,
                    origin: Origin::here(),
                    _library: library,
                };
                (start, std::mem::ManuallyDrop::new(opened))
            };
            // SAFETY: a function of NVML without parameters.
            let code = unsafe { start() };
            match opened.ended("nvmlInit_v2", code) {
                Ok(()) => Ok(Arc::new(std::mem::ManuallyDrop::into_inner(opened))),
                // The drop is skipped: it would shut down an uninitialised library. The library stays loaded.
                Err(reason) => Err(reason),
            }
        }

        /// Returns the error of a call, if it failed.
        fn ended(&self, call: &str, code: c_int) -> Result<(), String> {
            if code == SUCCESS {
                return Ok(());
            }
            // SAFETY: the function accepts any code, and returns a text that lives as long as the library.
            let text = unsafe { (self.error_text)(code) };
            if text.is_null() {
                return Err(format!("{call}: error {code}"));
            }
            // SAFETY: the text is not null, ends with a zero, and never changes.
            let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
            Err(format!("{call}: {text} ({code})"))
        }
    }

    impl Drop for Opened {
        fn drop(&mut self) {
            if self.origin.is_here() {
                // SAFETY: the library was initialised, and no handle of it is used after this.
                unsafe { (self.shutdown)() };
            }
        }
    }

    /// Finds a function of a library.
    ///
    /// # Safety
    /// The function has the type `F`, and is not called after the library is closed.
    unsafe fn function<F: Copy>(library: &Library, name: &CStr) -> Result<F, String> {
        // SAFETY: the caller guarantees the type.
        let found = unsafe { library.get::<F>(name.to_bytes_with_nul()) };
        found.map(|found| *found).map_err(|error| format!("NVML has no {}: {error}", name.to_string_lossy()))
    }

    /// The counter of one GPU.
    pub(super) struct GpuCounter {
        nvml: Arc<Opened>,
        device: Device,
        place: String,
    }

    // SAFETY: NVML may be called from any thread, and its handles are not tied to threads.
    unsafe impl Send for GpuCounter {}
    // SAFETY: as above; NVML is thread-safe.
    unsafe impl Sync for GpuCounter {}

    impl fmt::Debug for GpuCounter {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_tuple("GpuCounter").field(&self.place).finish()
        }
    }

    impl GpuCounter {
        /// Finds a GPU by its PCI address, and checks that it has a counter.
        pub(super) fn find(nvml: &Arc<Opened>, place: &str) -> Result<Self, String> {
            if !nvml.origin.is_here() {
                return Err("this process is a fork of the one that opened NVML".to_owned());
            }
            let text = CString::new(place).map_err(|_| format!("{place:?} is not a PCI address"))?;
            let mut device = std::ptr::null_mut();
            // SAFETY: the text ends with a zero, and the handle is written to a variable of its type.
            let code = unsafe { (nvml.by_place)(text.as_ptr(), &raw mut device) };
            nvml.ended(&format!("nvmlDeviceGetHandleByPciBusId_v2 of {place}"), code)?;
            let counter = Self { nvml: nvml.clone(), device, place: place.to_owned() };
            counter.read_uj()?;
            Ok(counter)
        }
    }

    impl EnergyCounter for GpuCounter {
        fn name(&self) -> String {
            format!("gpu {}", self.place)
        }

        fn read_uj(&self) -> Result<u64, String> {
            if !self.nvml.origin.is_here() {
                return Err("this process is a fork of the one that opened NVML".to_owned());
            }
            let mut millijoules: c_ulonglong = 0;
            // SAFETY: the handle is NVML's, and the energy is written to a variable of its type.
            let code = unsafe { (self.nvml.total_energy)(self.device, &raw mut millijoules) };
            self.nvml.ended("nvmlDeviceGetTotalEnergyConsumption", code)?;
            millijoules.checked_mul(1000).ok_or_else(|| format!("{millijoules} mJ overflow in microjoules"))
        }

        fn range_uj(&self) -> Option<u64> {
            None
        }

        fn step(&self) -> Duration {
            STEP
        }
    }
}
