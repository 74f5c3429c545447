//! The libraries that stand in for NVIDIA's driver and its compiler (`driver.c`, `compiler.c`): built, opened, asked.

use libloading::{Library, Symbol};
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long something may take that happens at once.
const LIMIT: Duration = Duration::from_secs(20);

/// Held by each test: what is counted is of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

thread_local! {
    static IS_ALONE: Cell<Option<MutexGuard<'static, ()>>> = const { Cell::new(None) };
}

/// What fails, as the driver numbers it.
pub(crate) mod code {
    pub(crate) const INVALID_VALUE: i32 = 1;
    pub(crate) const OUT_OF_MEMORY: i32 = 2;
    pub(crate) const LAUNCH_FAILED: i32 = 719;
}

/// The stand-in, while the calling thread lives of this thread alone.
#[derive(Clone, Copy)]
pub(crate) struct StandIn(&'static Library);

/// Opens the stand-in. From then on whoever opens the driver has it.
pub(crate) fn stand_in() -> StandIn {
    static OPENED: OnceLock<Library> = OnceLock::new();
    IS_ALONE.set(None);
    IS_ALONE.set(Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner)));
    let driver = StandIn(OPENED.get_or_init(|| {
        let text = concat!(include_str!("driver.c"), include_str!("streams.h"));
        open("libcuda", "driver.c", text)
    }));
    // What a test before has used: scratch memory is kept for a second.
    let begun = Instant::now();
    while driver.count("contexts") > 0 && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: a function without arguments; no command runs any more.
    unsafe { driver.call::<unsafe extern "C" fn()>(c"stand_in_forget")() };
    driver
}

/// Builds a library, by the compiler that also links this test, unless one of this source is there. It has the first name that its users
/// look for: whoever looks finds what is open already.
fn built(name: &str, source: &str, text: &str) -> PathBuf {
    let digest = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let library = folder.join(format!("{name}-{digest:016x}.so"));
    if !library.exists() {
        let made = folder.join(format!("{name}-{}.so", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda_driver").join(source);
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]);
        compiler.arg(format!("-Wl,-soname,{name}.so")).arg(source).arg("-o").arg(&made);
        assert!(compiler.status().expect("the C compiler").success(), "{name} does not build");
        std::fs::rename(made, &library).unwrap();
    }
    library
}

fn open(name: &str, source: &str, text: &str) -> Library {
    // SAFETY: the libraries made of these sources have no initialisers.
    unsafe { Library::new(built(name, source, text)) }.expect("the library opens")
}

/// What stands in for NVRTC (`compiler.c`).
#[derive(Clone, Copy)]
pub(crate) struct Compiler(&'static Library);

/// Opens the compiler's stand-in. From then on whoever opens NVRTC has it.
pub(crate) fn compiler() -> Compiler {
    static OPENED: OnceLock<Library> = OnceLock::new();
    Compiler(OPENED.get_or_init(|| open("libnvrtc", "compiler.c", include_str!("compiler.c"))))
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
    fn call<F: Copy + 'static>(self, name: &CStr) -> F {
        // SAFETY: each caller names the type of its function.
        let symbol: Symbol<F> = unsafe { self.0.get(name.to_bytes_with_nul()) }.expect("it is there");
        *symbol
    }

    /// How many there are of something: `events`, `locked`, and so on.
    pub(crate) fn count(self, what: &str) -> i64 {
        let what = CString::new(what).unwrap();
        let count = self.call::<unsafe extern "C" fn(*const c_char) -> c_long>(c"stand_in_count");
        // SAFETY: a text that ends with a zero.
        let count = unsafe { count(what.as_ptr()) };
        assert!(count >= 0, "the stand-in does not count {what:?}");
        count
    }

    /// How often a function of the driver was called.
    pub(crate) fn made(self, call: &str) -> i64 {
        let call = CString::new(call).unwrap();
        let made = self.call::<unsafe extern "C" fn(*const c_char) -> c_long>(c"stand_in_made");
        // SAFETY: as above.
        unsafe { made(call.as_ptr()) }
    }

    /// How often a function is called while something is done.
    pub(crate) fn made_by<T>(self, call: &str, does: impl FnOnce() -> T) -> (i64, T) {
        let before = self.made(call);
        let done = does();
        (self.made(call) - before, done)
    }

    /// Has one call of a function fail, after so many more that do not.
    pub(crate) fn fail(self, call: &str, after: i32, code: i32) {
        let call = CString::new(call).unwrap();
        let fail = self.call::<unsafe extern "C" fn(*const c_char, c_int, c_int)>(c"stand_in_fail");
        // SAFETY: as above.
        unsafe { fail(call.as_ptr(), after, code) };
    }

    /// Lets no command run until the result is dropped.
    pub(crate) fn hold(self) -> Held {
        self.set(c"stand_in_hold", 1);
        Held(self)
    }

    /// Whether GPUs that reach each other do so by NVLink.
    pub(crate) fn nvlink(self, is_there: bool) {
        self.set(c"stand_in_nvlink", is_there.into());
    }

    fn set(self, name: &CStr, value: c_int) {
        let set = self.call::<unsafe extern "C" fn(c_int)>(name);
        // SAFETY: a function that sets a number.
        unsafe { set(value) };
    }

    /// From now on every call on a device fails with this code. Zero brings the device back.
    pub(crate) fn lose(self, device: i32, code: i32) {
        let lose = self.call::<unsafe extern "C" fn(c_int, c_int)>(c"stand_in_lose");
        // SAFETY: a device of the stand-in.
        unsafe { lose(device, code) };
    }

    /// Memory of a device that lies in so many pieces of so many bytes, which the driver tells apart: mapped piece by piece, or
    /// allocated in the context.
    pub(crate) fn pieces(self, device: i32, count: i32, bytes: usize, is_mapped: bool) -> usize {
        let pieces = self.call::<unsafe extern "C" fn(c_int, c_int, usize, c_int) -> u64>(c"stand_in_pieces");
        // SAFETY: a device of the stand-in.
        usize::try_from(unsafe { pieces(device, count, bytes, is_mapped.into()) }).unwrap()
    }

    /// The text of the program that was loaded last.
    pub(crate) fn program(self) -> String {
        let text = self.call::<unsafe extern "C" fn() -> *const c_char>(c"stand_in_program");
        // SAFETY: a text that ends with a zero and is never freed.
        unsafe { CStr::from_ptr(text()) }.to_str().unwrap().to_owned()
    }

    /// Registers pages as a program does by itself, by way of a device that is open.
    pub(crate) fn register(self, device_context: usize, memory: &[u8]) {
        let push = self.call::<unsafe extern "C" fn(*mut c_void) -> c_int>(c"cuCtxPushCurrent_v2");
        let pop = self.call::<unsafe extern "C" fn(*mut *mut c_void) -> c_int>(c"cuCtxPopCurrent_v2");
        let register =
            self.call::<unsafe extern "C" fn(*mut c_void, usize, u32) -> c_int>(c"cuMemHostRegister_v2");
        let mut context = std::ptr::with_exposed_provenance_mut(device_context);
        // SAFETY: a context that is open, and memory that lives. It is never given back, and the process ends.
        let codes = unsafe {
            let pushed = push(context);
            [pushed, register(memory.as_ptr().cast_mut().cast(), memory.len(), 1), pop(&raw mut context)]
        };
        assert_eq!(codes, [0; 3]);
    }

    /// Waits until so many of something are there.
    #[track_caller]
    pub(crate) fn until(self, what: &str, count: i64) {
        let begun = Instant::now();
        while self.count(what) != count {
            assert!(begun.elapsed() < LIMIT, "{} {what}, not {count}", self.count(what));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// While it lives, no command runs.
#[must_use]
pub(crate) struct Held(StandIn);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.set(c"stand_in_hold", 0);
    }
}
