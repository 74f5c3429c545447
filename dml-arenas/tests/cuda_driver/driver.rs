//! The libraries that stand in for NVIDIA's driver and its compiler (`driver.c`, `compiler.c`).

use crate::stand_in::{COMMON, Driver, Source, alone};
use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_long, c_void};
use std::ops::Deref;
use std::sync::OnceLock;

/// What fails, as the driver numbers it.
pub(crate) mod code {
    pub(crate) const INVALID_VALUE: i32 = 1;
    pub(crate) const OUT_OF_MEMORY: i32 = 2;
    pub(crate) const LAUNCH_FAILED: i32 = 719;
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

/// Opens the stand-in. From then on, every open of the driver's library returns it.
pub(crate) fn stand_in() -> StandIn {
    static OPENED: OnceLock<Library> = OnceLock::new();
    alone();
    let driver = StandIn(Driver(OPENED.get_or_init(|| {
        let text = [include_str!("driver.c"), include_str!("streams.h"), COMMON].concat();
        Source { soname: "libcuda.so", file: "cuda_driver/driver.c", text: &text }.open()
    })));
    // What a test before has used: scratch memory is kept for a second.
    driver.until("contexts", 0);
    // SAFETY: a function without arguments; no command runs any more.
    unsafe { driver.call::<unsafe extern "C" fn()>(c"stand_in_forget")() };
    driver
}

/// What stands in for NVRTC (`compiler.c`).
#[derive(Clone, Copy)]
pub(crate) struct Compiler(&'static Library);

/// Opens the compiler's stand-in. From then on, every open of NVRTC returns it.
pub(crate) fn compiler() -> Compiler {
    static OPENED: OnceLock<Library> = OnceLock::new();
    let (soname, file, text) = ("libnvrtc.so", "cuda_driver/compiler.c", include_str!("compiler.c"));
    Compiler(OPENED.get_or_init(|| Source { soname, file, text }.open()))
}

impl Compiler {
    /// How often it compiled, and how many programs are there.
    pub(crate) fn counts(self) -> [i64; 2] {
        [c"stand_in_compiled", c"stand_in_programs"].map(|name| {
            // SAFETY: functions of this type, without arguments.
            unsafe { self.0.get::<unsafe extern "C" fn() -> c_long>(name.to_bytes_with_nul()).expect("it is there")() }
        })
    }
}

impl StandIn {
    /// Whether GPUs that reach each other do so by NVLink.
    pub(crate) fn nvlink(self, is_there: bool) {
        self.set(c"stand_in_nvlink", is_there.into());
    }

    /// Has the next call of a function sleep for a while before it does anything.
    pub(crate) fn pause(self, call: &str, millis: i32) {
        let call = CString::new(call).unwrap();
        let pause = self.call::<unsafe extern "C" fn(*const c_char, c_int)>(c"stand_in_pause");
        // SAFETY: a function that notes a number for a name.
        unsafe { pause(call.as_ptr(), millis) };
    }

    /// Memory of a device that lies in so many pieces of so many bytes, which the driver tells apart: mapped
    /// piece by piece, or allocated in the context.
    pub(crate) fn pieces(self, device: i32, count: i32, bytes: usize, is_mapped: bool) -> usize {
        let pieces = self.call::<unsafe extern "C" fn(c_int, c_int, usize, c_int) -> u64>(c"stand_in_pieces");
        // SAFETY: a device of the stand-in.
        usize::try_from(unsafe { pieces(device, count, bytes, is_mapped.into()) }).unwrap()
    }

    /// The text of the program that was loaded last.
    pub(crate) fn program(self) -> String {
        self.text(c"stand_in_program")
    }

    /// Registers pages as a program does by itself, by way of a device that is open.
    pub(crate) fn register(self, device_context: usize, memory: &[u8]) {
        let register =
            self.call::<unsafe extern "C" fn(*mut c_void, usize, u32) -> c_int>(c"cuMemHostRegister_v2");
        // SAFETY: memory that lives. It is never given back, and the process ends.
        let register = || unsafe { register(memory.as_ptr().cast_mut().cast(), memory.len(), 1) };
        self.within(device_context, register);
    }

    /// Makes a stream as a program does by itself, on a device that is open.
    pub(crate) fn stream(self, device_context: usize) -> usize {
        let create = self.call::<unsafe extern "C" fn(*mut *mut c_void, u32) -> c_int>(c"cuStreamCreate");
        let mut stream = std::ptr::null_mut();
        // SAFETY: the call writes a stream.
        self.within(device_context, || unsafe { create(&raw mut stream, 1) });
        stream.expose_provenance()
    }

    /// Destroys such a stream.
    pub(crate) fn destroy(self, device_context: usize, stream: usize) {
        let destroy = self.call::<unsafe extern "C" fn(*mut c_void) -> c_int>(c"cuStreamDestroy_v2");
        let stream = std::ptr::with_exposed_provenance_mut(stream);
        // SAFETY: a stream that was made by `stream`.
        self.within(device_context, || unsafe { destroy(stream) });
    }

    /// Makes a call in a context that is open.
    fn within(self, device_context: usize, call: impl FnOnce() -> c_int) {
        let push = self.call::<unsafe extern "C" fn(*mut c_void) -> c_int>(c"cuCtxPushCurrent_v2");
        let pop = self.call::<unsafe extern "C" fn(*mut *mut c_void) -> c_int>(c"cuCtxPopCurrent_v2");
        let mut context = std::ptr::with_exposed_provenance_mut(device_context);
        // SAFETY: a context that is open.
        let codes = unsafe { [push(context), call(), pop(&raw mut context)] };
        assert_eq!(codes, [0; 3]);
    }
}
