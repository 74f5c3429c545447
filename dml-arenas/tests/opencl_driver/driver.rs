//! The library that stands in for an OpenCL loader and its drivers (`driver.c`).

use crate::stand_in::{COMMON, Driver, Source};
use libloading::Library;
use std::cell::Cell;
use std::ops::Deref;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Held by each test: what is counted is of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

thread_local! {
    static IS_ALONE: Cell<Option<MutexGuard<'static, ()>>> = const { Cell::new(None) };
}

/// What fails, as OpenCL numbers it.
pub(crate) mod code {
    pub(crate) const DEVICE_NOT_AVAILABLE: i32 = -2;
    pub(crate) const NO_MEMORY: i32 = -4;
    pub(crate) const OUT_OF_RESOURCES: i32 = -5;
    pub(crate) const INVALID_VALUE: i32 = -30;
    pub(crate) const INVALID_OPERATION: i32 = -59;
}

/// The stand-in, while the calling thread lives of this thread alone.
#[derive(Clone, Copy)]
pub(crate) struct StandIn(Driver);

impl Deref for StandIn {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        &self.0
    }
}

/// Opens the stand-in. From then on whoever opens the loader has it.
pub(crate) fn stand_in() -> StandIn {
    static OPENED: OnceLock<Library> = OnceLock::new();
    IS_ALONE.set(None);
    IS_ALONE.set(Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner)));
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
    /// Has the driver call nobody at the end of a command, until the result is dropped.
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

/// While it lives, the driver calls nobody.
#[must_use]
pub(crate) struct Silence(StandIn);

impl Drop for Silence {
    fn drop(&mut self) {
        self.0.set(c"stand_in_silence", 0);
    }
}

/// Runs one of these tests again, in a process of its own with this environment.
pub(crate) fn again(test: &str, environment: &[(&str, &str)]) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env("DML_TEST_CHILD", "1").envs(environment.iter().copied());
    let told = child.output().unwrap();
    let text = String::from_utf8_lossy(&told.stdout) + String::from_utf8_lossy(&told.stderr);
    assert!(told.status.success() && text.contains("1 passed"), "{environment:?}: {text}");
}

pub(crate) fn is_child() -> bool {
    std::env::var_os("DML_TEST_CHILD").is_some()
}
