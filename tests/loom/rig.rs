//! The machines that the models run on, the buffer that their threads share, and what their kernels write.

use dml::arenas::{MainMem, Null, kit};
use dml::core::internal::sync::{Arc, Mutex};
use dml::core::{
    Acquire, Arena, ArenaDesc, ArenaKind, Concurrency, DeviceDesc, DeviceId, DeviceKind, DeviceSet, Grants,
    LinkSpeed, Platform, PlatformBuilder, RawBuffer, Region,
    record::{Operation, Recording},
};
pub(crate) use dml::core::{AcquireError, ArenaId};
use dml_verify::history::assert_history;
use loom::model::Builder;
pub(crate) use loom::thread;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

pub(crate) const CPU: DeviceId = DeviceId(0);
pub(crate) const GPU: DeviceId = DeviceId(1);
pub(crate) const GPU2: DeviceId = DeviceId(2);
pub(crate) const MAIN: ArenaId = ArenaId(0);
pub(crate) const VIDEO: ArenaId = ArenaId(1);

/// The size of every buffer: every byte is an object of loom's.
pub(crate) const BYTES: u64 = 4;
pub(crate) const ALL: Range<u64> = 0..BYTES;
pub(crate) const LEFT: Range<u64> = 0..BYTES / 2;
pub(crate) const RIGHT: Range<u64> = BYTES / 2..BYTES;

/// Runs a model in every interleaving with as few preemptions as `LOOM_MAX_PREEMPTIONS` says.
pub(crate) fn explore(model: impl Fn() + Send + Sync + 'static) {
    run(&Builder::new(), model);
}

/// As [`explore`], with fewer preemptions: for models of four threads, and of two that submit.
pub(crate) fn explore_within(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    run(&builder, model);
}

/// Runs a model in every interleaving there is: for those of two threads, where that takes seconds at most.
pub(crate) fn explore_all(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = None;
    run(&builder, model);
}

fn run(builder: &Builder, model: impl Fn() + Send + Sync + 'static) {
    let tally = Tally { begun: Instant::now(), interleavings: Arc::default() };
    let interleavings = tally.interleavings.clone();
    builder.check(move || {
        interleavings.fetch_add(1, Ordering::Relaxed);
        model();
    });
}

/// Says in the end how much was explored, also of a model that fails.
struct Tally {
    begun: Instant,
    interleavings: Arc<AtomicUsize>,
}

impl Drop for Tally {
    fn drop(&mut self) {
        let (thread, seconds) = (std::thread::current(), self.begun.elapsed().as_secs_f64());
        let count = self.interleavings.load(Ordering::Relaxed);
        eprintln!("{}: {count} interleavings in {seconds:.2} s", thread.name().unwrap_or("a model"));
    }
}

/// A platform, the arenas it is made of, and all that happens on it.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) platform: Platform,
    /// The arenas for tests among them, by their ids.
    nulls: Vec<Option<Arc<Null>>>,
    recording: Arc<Recording>,
}

impl Machine {
    /// Main memory and one device, joined by read and write calls.
    pub(crate) fn staged() -> Self {
        Self::star(1)
    }

    /// Main memory and some devices, each joined to it by read and write calls.
    pub(crate) fn star(devices: u8) -> Self {
        Self::joined(devices, |builder, _| {
            (1..=devices).for_each(|device| {
                kit::join_staged(builder, MAIN, ArenaId(device), LinkSpeed::default());
            });
        })
    }

    /// Main memory and one device that share one storage.
    pub(crate) fn bound(concurrency: Concurrency) -> Self {
        Self::of(1, concurrency, |builder, _| {
            kit::join_bound(builder, MAIN, VIDEO, concurrency, LinkSpeed::default());
        })
    }

    /// Main memory and some devices of exclusive storage, joined by `join`.
    pub(crate) fn joined(devices: u8, join: impl FnOnce(&mut PlatformBuilder, &[Option<Arc<Null>>])) -> Self {
        Self::of(devices, Concurrency::Exclusive, join)
    }

    fn of(
        devices: u8,
        concurrency: Concurrency,
        join: impl FnOnce(&mut PlatformBuilder, &[Option<Arc<Null>>]),
    ) -> Self {
        let main = Arc::new(Null::backed(main_desc()));
        Self::beside(main.clone(), Some(main), (devices, concurrency), join)
    }

    /// Main memory that ships, and one device with storage of its own.
    pub(crate) fn main_mem_staged() -> Self {
        Self::beside(Arc::new(MainMem::new(CPU)), None, (1, Concurrency::Exclusive), |builder, _| {
            kit::join_staged(builder, MAIN, VIDEO, LinkSpeed::default());
        })
    }

    /// Main memory that ships, and one device that uses its storage.
    pub(crate) fn main_mem_bound(concurrency: Concurrency) -> Self {
        Self::beside(Arc::new(MainMem::new(CPU)), None, (1, concurrency), |builder, _| {
            kit::join_bound(builder, MAIN, VIDEO, concurrency, LinkSpeed::default());
        })
    }

    fn beside(
        main: Arc<dyn Arena>,
        null_main: Option<Arc<Null>>,
        (devices, concurrency): (u8, Concurrency),
        join: impl FnOnce(&mut PlatformBuilder, &[Option<Arc<Null>>]),
    ) -> Self {
        let mut builder = builder();
        let descs =
            (1..=devices).map(|device| device_desc(DeviceId(device.into())).with_concurrency(concurrency));
        let nulls: Vec<_> =
            std::iter::once(null_main).chain(descs.map(|desc| Some(Arc::new(Null::backed(desc))))).collect();
        let arenas = nulls[1..].iter().flatten().map(|null| null.clone() as Arc<dyn Arena>);
        for arena in std::iter::once(main).chain(arenas) {
            let kind = if arena.desc().native == CPU { DeviceKind::Cpu } else { DeviceKind::Gpu };
            builder.add_device(DeviceDesc::new(&arena.desc().name, kind));
            builder.add_arena(arena);
        }
        join(&mut builder, &nulls);
        let platform = builder.build().expect("a sound platform");
        let recording = Arc::new(platform.record());
        Self { platform, nulls, recording }
    }

    pub(crate) fn null(&self, arena: ArenaId) -> &Arc<Null> {
        self.nulls[usize::from(arena.0)].as_ref().expect("an arena for tests")
    }

    fn home(&self, device: DeviceId) -> &Null {
        self.null(self.platform.home(device).expect("every device has an arena"))
    }

    pub(crate) fn live_blocks(&self) -> usize {
        self.nulls.iter().flatten().map(|null| null.live_blocks()).sum()
    }

    /// Everything has gone: nothing is left, and what happened may happen.
    pub(crate) fn end(self) {
        assert_eq!(self.live_blocks(), 0);
        let recording = Arc::into_inner(self.recording).expect("every other thread has ended");
        assert_history(&self.platform, &recording.finish());
    }

    pub(crate) fn counted(&self, operations: &[Operation]) -> u64 {
        operations.iter().map(|&operation| self.platform.counters().operation(operation)).sum()
    }
}

/// The path cache is a lock that every plan takes, and the models are about others.
pub(crate) fn builder() -> PlatformBuilder {
    PlatformBuilder::default().without_path_cache().without_default_links()
}

pub(crate) fn main_desc() -> ArenaDesc {
    ArenaDesc::new("main", ArenaKind("test"), CPU)
        .with_remotes(DeviceSet::of(CPU))
        .with_concurrency(Concurrency::BimapFull)
}

pub(crate) fn device_desc(device: DeviceId) -> ArenaDesc {
    ArenaDesc::new(&format!("video{device}"), ArenaKind("test"), device).with_remotes(DeviceSet::of(CPU))
}

/// What a byte holds after so many writes: different for each byte and each number of writes, and never zero.
fn byte(writes: u8, at: u64) -> u8 {
    writes * 16 + at as u8 + 1
}

/// A buffer that the threads of a model share, each with a clone of its own.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) machine: Machine,
    pub(crate) buffer: RawBuffer,
}

impl Shared {
    /// A buffer never written.
    pub(crate) fn raw(machine: &Machine) -> Self {
        let buffer = machine.platform.raw_buffer(BYTES).build().expect("a small buffer");
        Self { machine: machine.clone(), buffer }
    }

    /// A buffer whose bytes the host has written: as version 0.
    pub(crate) fn new(machine: &Machine) -> Self {
        let shared = Self::raw(machine);
        shared.write(CPU, ALL, 0);
        shared
    }

    pub(crate) fn ask(&self, device: DeviceId) -> Acquire<'_> {
        self.machine.platform.acquire(device)
    }

    /// A kernel that overwrites a range with a version.
    pub(crate) fn write(&self, device: DeviceId, range: Range<u64>, version: u8) {
        let region = self.buffer.range(range);
        let mut grants = self.ask(device).write(&region).wait().expect("granted in the end");
        self.put(&mut grants, device, &region, version);
        grants.release().expect("no device is lost");
    }

    /// A kernel that reads everything and writes the next version of it.
    pub(crate) fn bump(&self, device: DeviceId) {
        let mut grants = self.ask(device).read_write(&self.buffer).wait().expect("granted in the end");
        let version = self.seen(&grants, device, &self.buffer);
        self.put(&mut grants, device, &self.buffer, version + 1);
        grants.release().expect("no device is lost");
    }

    /// A kernel that reads a range: the version it finds, before and after others had their chance.
    pub(crate) fn read(&self, device: DeviceId, range: Range<u64>) -> u8 {
        let region = self.buffer.range(range);
        let grants = self.ask(device).read(&region).wait().expect("granted in the end");
        let version = self.seen(&grants, device, &region);
        grants.release().expect("no device is lost");
        version
    }

    /// Brings all bytes to a device, unless a request is in the way. Returns whether it did.
    pub(crate) fn prefetch(&self, device: DeviceId) -> bool {
        match self.buffer.prefetch(device, ALL).wait() {
            Ok(()) => true,
            Err(AcquireError::Busy { .. } | AcquireError::Closed { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// A kernel of a grant writes a version.
    pub(crate) fn put(&self, grants: &mut Grants, device: DeviceId, region: &impl Region, version: u8) {
        let bytes: Vec<_> = region.bytes().map(|at| byte(version, at)).collect();
        if device == CPU {
            grants.slice_mut(region).expect("granted, of the host").copy_from_slice(&bytes);
        } else {
            self.machine.home(device).write(grants, region, &bytes).expect("granted for writing");
        }
    }

    /// The version that a kernel of a grant finds, the same in all bytes.
    pub(crate) fn seen(&self, grants: &Grants, device: DeviceId, region: &impl Region) -> u8 {
        let range = region.bytes();
        let bytes = if device == CPU {
            grants.slice(region).expect("granted, of the host").to_vec()
        } else {
            self.machine.home(device).read(grants, region).expect("granted")
        };
        let version = bytes[0] / 16;
        let whole: Vec<_> = range.map(|at| byte(version, at)).collect();
        assert_eq!(bytes, whole, "stale, torn or misplaced");
        version
    }

    /// The state of this moment is one that may be.
    pub(crate) fn check(&self) {
        let state = self.buffer.snapshot();
        assert_eq!(state.check_invariants(self.machine.platform.routes()), Ok(()));
    }

    /// Everybody has gone, and now the buffer goes.
    pub(crate) fn end(self) {
        end_all([self]);
    }
}

/// As [`Shared::end`], for all buffers of a machine.
pub(crate) fn end_all<const N: usize>(all: [Shared; N]) {
    let machine = all[0].machine.clone();
    for shared in all {
        shared.check();
        assert!(shared.buffer.snapshot().is_idle());
    }
    machine.end();
}

/// A lock with nothing in it, taken by threads right before what loom does not see: it then tries them in
/// every order.
#[derive(Clone, Default)]
pub(crate) struct Meeting(Arc<Mutex<()>>);

impl Meeting {
    pub(crate) fn pass(&self) {
        drop(self.0.lock());
    }
}
