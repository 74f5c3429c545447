//! Libraries that stand in for drivers, in C: built, opened, asked.

use dml_arenas::{Discover, DiscoverError, DiscoverOptions};
use dml_core::internal::sync::Arc;
use dml_core::{Arena, ArenaId, Fence, OwnBlock, Platform, PlatformBuilder, Span};
use libloading::{Library, Symbol};
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_long};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::task::Wake;
use std::time::{Duration, Instant};

/// How long something may take that happens at once.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// What all of them include.
pub(crate) const COMMON: &str = include_str!("stand_in.h");

/// Where a library comes from.
pub(crate) struct Source<'a> {
    /// The name that users try first. An open by that name returns the library that is open already.
    pub(crate) soname: &'a str,
    /// The file, in the folder of tests.
    pub(crate) file: &'a str,
    /// All that is compiled.
    pub(crate) text: &'a str,
}

impl Source<'_> {
    /// Builds the library, by the compiler that also links this test, unless one of this source is there.
    fn built(&self) -> PathBuf {
        let digest = self.text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
            (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let (folder, soname) = (Path::new(env!("CARGO_TARGET_TMPDIR")), self.soname);
        let library = folder.join(format!("{soname}-{digest:016x}"));
        if !library.exists() {
            let made = folder.join(format!("{soname}-{}", std::process::id()));
            let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
            let mut compiler = Command::new("cc");
            compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-x", "c"]);
            compiler.arg(format!("-Wl,-soname,{soname}")).arg(tests.join(self.file)).arg("-o").arg(&made);
            assert!(compiler.status().expect("the C compiler").success(), "{} does not build", self.file);
            std::fs::rename(made, &library).unwrap();
        }
        library
    }

    /// Opens the library, for as long as the process lives.
    pub(crate) fn open(&self) -> Library {
        // SAFETY: what the libraries made of these sources do when they are opened is to fill tables of their
        // own.
        unsafe { Library::new(self.built()) }.expect("the library opens")
    }
}

/// A library that is open, and includes what all have.
#[derive(Clone, Copy)]
pub(crate) struct Driver(pub(crate) &'static Library);

impl Driver {
    pub(crate) fn call<F: Copy + 'static>(self, name: &CStr) -> F {
        // SAFETY: each caller names the type of its function.
        let symbol: Symbol<F> = unsafe { self.0.get(name.to_bytes_with_nul()) }.expect("it is there");
        *symbol
    }

    /// How many there are of something: `events`, `queues`, and so on.
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

    pub(crate) fn set(self, name: &CStr, value: c_int) {
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

    /// A text that the driver was given.
    pub(crate) fn text(self, name: &CStr) -> String {
        let text = self.call::<unsafe extern "C" fn() -> *const c_char>(name);
        // SAFETY: a text that ends with a zero and is never freed.
        unsafe { CStr::from_ptr(text()) }.to_str().unwrap().to_owned()
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
pub(crate) struct Held(Driver);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.set(c"stand_in_hold", 0);
    }
}

/// Lets no other test of this process run until the calling thread ends or asks again: what is counted is of
/// the whole process.
pub(crate) fn alone() {
    static ALONE: Mutex<()> = Mutex::new(());
    thread_local! {
        static IS_ALONE: Cell<Option<MutexGuard<'static, ()>>> = const { Cell::new(None) };
    }
    IS_ALONE.set(None);
    IS_ALONE.set(Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner)));
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

/// Waits until no thread of this process has the name.
#[track_caller]
pub(crate) fn no_thread_is_left(name: &str) {
    let begun = Instant::now();
    while threads().iter().any(|thread| thread == name) {
        assert!(begun.elapsed() < LIMIT, "threads named {name} are left");
        std::thread::yield_now();
    }
}

/// The names of this process's threads.
pub(crate) fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

/// How many calls this thread makes meanwhile to read files, pipes and the like; `None` where the kernel does
/// not count them.
pub(crate) fn reads_by(does: impl FnOnce()) -> Option<u64> {
    let reads = || {
        let counts = std::fs::read_to_string("/proc/thread-self/io").ok()?;
        counts.lines().find_map(|line| line.strip_prefix("syscr: ")?.parse::<u64>().ok())
    };
    // To ask takes some, too.
    let [one, two] = [reads()?, reads()?];
    does();
    Some((reads()? - two).saturating_sub(two - one))
}

/// Says on a channel that it was woken.
pub(crate) struct Says(pub(crate) mpsc::Sender<()>);

impl Wake for Says {
    fn wake(self: std::sync::Arc<Self>) {
        let _ = self.0.send(());
    }
}

/// What is discovered of main memory and these devices, with the options.
pub(crate) fn discovered(
    options: DiscoverOptions,
    devices: &[&str],
) -> Result<PlatformBuilder, DiscoverError> {
    let devices = ["cpu"].iter().chain(devices).copied();
    Platform::builder().discover_with(&options.only(devices))
}

/// A platform of main memory and these devices, with the options.
pub(crate) fn platform_with(options: DiscoverOptions, devices: &[&str]) -> Platform {
    let builder = discovered(options, devices).expect("the stand-in has them");
    builder.build().expect("what discovery adds fits together")
}

pub(crate) fn platform(devices: &[&str]) -> Platform {
    platform_with(DiscoverOptions::default(), devices)
}

pub(crate) fn home(platform: &Platform, device: &str) -> ArenaId {
    platform.home(platform.device(device).unwrap()).expect("a device has an arena")
}

pub(crate) fn arena(platform: &Platform, device: &str) -> Arc<dyn Arena> {
    platform.arena(home(platform, device)).clone()
}

pub(crate) fn alloc(arena: &Arc<dyn Arena>, len: u64) -> OwnBlock {
    OwnBlock::alloc(arena, len).unwrap()
}

/// A command that moves all bytes of a block, and is as long under way as the stand-in is held.
pub(crate) fn fill(block: &OwnBlock, byte: u8) -> Fence {
    block.fill(Span::new(0, block.block().len()), byte).unwrap()
}
