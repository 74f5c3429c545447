//! The library that stands in for an OpenCL loader and its drivers (`driver.c`).

use crate::stand_in::{COMMON, Driver, Source, alone};
use libloading::Library;
use std::ops::Deref;
use std::sync::OnceLock;

/// What fails, as OpenCL numbers it.
pub(crate) mod code {
    pub(crate) const DEVICE_NOT_AVAILABLE: i32 = -2;
    pub(crate) const NO_MEMORY: i32 = -4;
    pub(crate) const OUT_OF_RESOURCES: i32 = -5;
    pub(crate) const INVALID_VALUE: i32 = -30;
    pub(crate) const INVALID_OPERATION: i32 = -59;
}

/// The stand-in, which the calling thread has for itself.
#[derive(Clone, Copy)]
pub(crate) struct StandIn(Driver);

impl Deref for StandIn {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        &self.0
    }
}

/// Opens the stand-in. From then on, every open of the loader returns it.
pub(crate) fn stand_in() -> StandIn {
    static OPENED: OnceLock<Library> = OnceLock::new();
    alone();
    let driver = StandIn(Driver(OPENED.get_or_init(|| {
        assert!(std::env::var_os("OPENCL_DYLIB_PATH").is_none(), "OPENCL_DYLIB_PATH names another loader");
        let text = [include_str!("driver.c"), include_str!("objects.h"), COMMON].concat();
        Source { soname: "libOpenCL.so.1", file: "opencl_driver/driver.c", text: &text }.open()
    })));
    // What a test before has used: scratch memory is kept for a second.
    driver.until("contexts", 0);
    // SAFETY: a function without arguments; no command runs any more.
    unsafe { driver.call::<unsafe extern "C" fn()>(c"stand_in_forget")() };
    driver
}

impl StandIn {
    /// Holds back the driver's callbacks at the end of commands until the result is dropped.
    pub(crate) fn silence(self) -> Silence {
        self.set(c"stand_in_silence", 1);
        Silence(self)
    }

    /// The last launch: the kernel, its sizes, and the bytes of its arguments.
    pub(crate) fn launched(self) -> String {
        self.text(c"stand_in_launched")
    }

    /// The options that a program was built with last.
    pub(crate) fn options(self) -> String {
        self.text(c"stand_in_options")
    }
}

/// While it lives, the driver holds its callbacks back.
#[must_use]
pub(crate) struct Silence(StandIn);

impl Drop for Silence {
    fn drop(&mut self) {
        self.0.set(c"stand_in_silence", 0);
    }
}
