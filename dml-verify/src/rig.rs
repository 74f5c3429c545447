//! Platforms of test arenas, and kernels that run on them.
//!
//! Every arena of a [`Rig`] has four layers. A backed `Null` moves real bytes and panics when core breaks the contract.
//! A `Faulty` around it follows a script of failures. A `Mortal` simulates the death of the device. A [`Watch`] lets a
//! test stop a call half way. Kernels reach the bytes through the block of their grant and as the native device of the
//! arena, so the arena detects a kernel without access.

use crate::history::Audited;
use crate::mortal::{Mortal, mortal};
use dml_arenas::faulty::{Around, CallKind, Faulty, FaultyCross, Script, Wrapped};
use dml_arenas::null::Null;
use dml_core::state::{BufferState, Status};
use dml_core::sync::{Arc, Mutex};
use dml_core::{
    Allocation, ArenaDesc, ArenaId, ArenaKind, ArenaSet, Binding, Concurrency, ConfigError, CrossArena,
    DeviceDesc, DeviceId, DeviceKind, DeviceSet, Event, EventKind, Grants, HostMapped, HostStaged, Link,
    LinkId, Platform, PlatformBuilder, RawBuffer, Region,
};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The host's device.
pub const CPU: DeviceId = DeviceId(0);
/// The first device after the host.
pub const GPU: DeviceId = DeviceId(1);
/// The second device after the host.
pub const GPU2: DeviceId = DeviceId(2);
/// The third device after the host.
pub const GPU3: DeviceId = DeviceId(3);
/// Main memory.
pub const MAIN_ARENA: ArenaId = ArenaId(0);
/// The memory of [`GPU`].
pub const GPU_ARENA: ArenaId = ArenaId(1);
/// The memory of [`GPU2`].
pub const GPU2_ARENA: ArenaId = ArenaId(2);
/// The memory of [`GPU3`].
pub const GPU3_ARENA: ArenaId = ArenaId(3);

type Hook = Arc<dyn Fn(CallKind) + Send + Sync>;

/// The type of every arena in a test platform. Its outermost hooks are those of a [`Watch`].
pub type TestArena = Wrapped<Mortal<Faulty<Null>>, Watch>;

/// A hook that a test may set on an arena.
#[derive(Default)]
pub struct Watch(Mutex<Option<Hook>>);

impl Around for Watch {
    fn called(&self, kind: CallKind) {
        let hook = self.0.lock().clone();
        if let Some(hook) = hook {
            hook(kind);
        }
    }
}

impl Watch {
    /// Calls `hook` before each later call of core.
    pub fn hook(&self, hook: impl Fn(CallKind) + Send + Sync + 'static) {
        *self.0.lock() = Some(Arc::new(hook));
    }

    /// Stops the next call of a kind until the gate is opened.
    pub fn gate(&self, kind: CallKind) -> Gate {
        let (arrive, arrived) = channel();
        let (open, opened) = channel::<()>();
        let once = Mutex::new(Some((arrive, opened)));
        self.hook(move |call| {
            if call == kind {
                let taken = once.lock().take();
                if let Some((arrive, opened)) = taken {
                    let _ = arrive.send(());
                    let _ = opened.recv();
                }
            }
        });
        Gate { arrived, open }
    }
}

/// The control of a call that is stopped half way.
#[derive(Debug)]
pub struct Gate {
    arrived: Receiver<()>,
    open: Sender<()>,
}

impl Gate {
    /// Waits until the call has come.
    pub fn arrived(&self) {
        self.arrived.recv().expect("the call comes");
    }

    /// Lets the call continue.
    pub fn open(self) {
        let _ = self.open.send(());
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// A builder of test platforms.
#[derive(Debug)]
pub struct Rig {
    builder: PlatformBuilder,
    /// The number of links so far.
    links: u16,
    /// A link that will be added later, and the script of its failures.
    link_script: Option<(LinkId, Script)>,
}

impl Default for Rig {
    fn default() -> Self {
        Self::new()
    }
}

impl Rig {
    /// Starts with the host and its main memory: device 0 and arena 0.
    pub fn new() -> Self {
        Self::with_main(Script::new())
    }

    /// Does the same as [`Rig::new`], with a script for main memory.
    pub fn with_main(script: Script) -> Self {
        let builder = PlatformBuilder::default().without_default_links();
        let mut rig = Self { builder, links: 0, link_script: None };
        rig.builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
        let desc = ArenaDesc::new("main", ArenaKind("main"), CPU)
            .with_remotes(DeviceSet::of(CPU))
            .with_concurrency(Concurrency::BimapFull);
        rig.add(desc, script);
        rig
    }

    fn add(&mut self, desc: ArenaDesc, script: Script) -> ArenaId {
        let inner = mortal(Faulty::new(Null::backed(desc), script));
        self.builder.add_arena(Arc::new(TestArena::around(inner, Watch::default())))
    }

    /// Adds a device with a memory that the host can map.
    pub fn gpu(self, concurrency: Concurrency) -> Self {
        self.gpu_with(concurrency, Script::new())
    }

    /// Does the same as [`Rig::gpu`], with a script for the memory.
    pub fn gpu_with(mut self, concurrency: Concurrency, script: Script) -> Self {
        let index = self.builder.devices().len();
        let device = self.builder.add_device(DeviceDesc::new(&format!("gpu{index}"), DeviceKind::Gpu));
        let desc = ArenaDesc::new(&format!("gpu{index}"), ArenaKind("gpu"), device)
            .with_remotes(DeviceSet::of(CPU))
            .with_concurrency(concurrency);
        self.add(desc, script);
        self
    }

    /// Makes the mechanism of one link fail as `script` says. The link must be added after this call. Links are
    /// numbered in the order in which they are added, and a pair joined in both directions takes two numbers.
    pub fn with_link_script(mut self, link: LinkId, script: Script) -> Self {
        self.link_script = Some((link, script));
        self
    }

    /// Adds copies by read and write calls in both directions. They do not change the map state.
    pub fn staged(mut self, a: ArenaId, b: ArenaId) -> Self {
        let ends = [(a, self.native(a)), (b, self.native(b))];
        self.join(ends, Allocation::Internal, &HostStaged::default());
        self
    }

    /// Adds copies between main memory and `device`, which is mapped for the host.
    pub fn mapped(mut self, device: ArenaId) -> Self {
        self.join([(MAIN_ARENA, CPU), (device, CPU)], Allocation::Internal, &HostMapped::default());
        self
    }

    /// Adds a binding, by which both arenas can share one storage.
    pub fn bound(mut self, a: ArenaId, b: ArenaId, concurrency: Concurrency) -> Self {
        let ends = [(a, self.native(a)), (b, self.native(b))];
        self.join(ends, Allocation::Bound(concurrency), &Binding::default());
        self
    }

    /// Adds copies by read and write calls in one direction only.
    pub fn one_way(mut self, from: ArenaId, to: ArenaId) -> Self {
        let ends = [(from, self.native(from)), (to, self.native(to))];
        self.link(ends, Allocation::Internal, &HostStaged::default());
        self
    }

    fn native(&self, arena: ArenaId) -> DeviceId {
        self.builder.arenas()[usize::from(arena.0)].desc().native
    }

    /// Joins two arenas in both directions, each reached through the device beside it.
    fn join<C: CrossArena + Clone + 'static>(
        &mut self,
        [a, b]: [(ArenaId, DeviceId); 2],
        allocation: Allocation,
        mechanism: &C,
    ) {
        self.link([a, b], allocation, mechanism);
        self.link([b, a], allocation, mechanism);
    }

    fn link<C: CrossArena + Clone + 'static>(
        &mut self,
        [(from, source_via), (to, target_via)]: [(ArenaId, DeviceId); 2],
        allocation: Allocation,
        mechanism: &C,
    ) {
        let id = LinkId(self.links);
        self.links += 1;
        let script = self.link_script.take_if(|(link, _)| *link == id);
        let mechanism: Arc<dyn CrossArena> = match script {
            Some((_, script)) => Arc::new(FaultyCross::new(mechanism.clone(), script)),
            None => Arc::new(mechanism.clone()),
        };
        self.builder.add_link(Link { from, to, source_via, target_via, allocation }, mechanism);
    }

    /// Builds the platform under the history checker.
    ///
    /// # Panics
    /// When a link or an arena does not fit the others.
    #[must_use]
    pub fn build(self) -> Audited {
        Audited::new(self.plain())
    }

    /// Builds the platform without recording. It serves tests that drive the pure machine or do their own checks.
    ///
    /// # Panics
    /// Under the same conditions as [`Rig::build`].
    #[must_use]
    pub fn plain(self) -> Platform {
        self.try_plain().expect("a platform without problems")
    }

    /// Does the same as [`Rig::plain`], but returns problems instead of panicking.
    ///
    /// # Errors
    /// [`ConfigError`] when a link or an arena does not fit the others.
    pub fn try_plain(self) -> Result<Platform, ConfigError> {
        self.builder.build()
    }
}

/// Builds main memory and one exclusive gpu, joined by read and write calls.
#[must_use]
pub fn pair() -> Audited {
    Rig::new().gpu(Concurrency::Exclusive).staged(MAIN_ARENA, GPU_ARENA).build()
}

/// Builds main memory and one gpu whose data the host reaches only by mapping.
#[must_use]
pub fn mapped_pair(concurrency: Concurrency) -> Audited {
    Rig::new().gpu(concurrency).mapped(GPU_ARENA).build()
}

/// Builds main memory and two gpus that are joined only to main memory. A path between the gpus has two hops.
#[must_use]
pub fn star() -> Audited {
    Rig::new()
        .gpu(Concurrency::Exclusive)
        .gpu(Concurrency::Exclusive)
        .staged(MAIN_ARENA, GPU_ARENA)
        .staged(MAIN_ARENA, GPU2_ARENA)
        .build()
}

/// Builds main memory and one gpu that can share storage and have no other link.
#[must_use]
pub fn bound_pair(concurrency: Concurrency) -> Audited {
    Rig::new().gpu(concurrency).bound(MAIN_ARENA, GPU_ARENA, concurrency).build()
}

/// Returns one arena of a rig.
///
/// # Panics
/// When the platform was not built by a rig.
pub fn test_arena(platform: &Platform, id: ArenaId) -> &TestArena {
    platform.arena(id).downcast_ref::<TestArena>().expect("every arena is a test arena")
}

/// Returns the innermost arena, which records the calls and checks the contract.
pub fn null(platform: &Platform, id: ArenaId) -> &Null {
    test_arena(platform, id).inner().inner().inner()
}

/// Returns the number of live blocks in all arenas.
pub fn live_blocks(platform: &Platform) -> usize {
    (0..platform.arenas().len()).map(|id| null(platform, ArenaId(id as u8)).live_blocks()).sum()
}

/// Returns a byte that depends on seed and offset and is never zero.
pub fn byte(seed: u64, offset: u64) -> u8 {
    let mut x =
        seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ offset.wrapping_add(1).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^= x >> 32;
    x = x.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^= x >> 29;
    (x % 255) as u8 + 1
}

/// Returns the bytes of a range in the pattern of a seed.
pub fn bytes(seed: u64, range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(|offset| byte(seed, offset)).collect()
}

/// Acts as a kernel that writes `bytes` at `offset` of the buffer, in the arena of its grant.
pub fn put(grants: &mut Grants, region: &impl Region, offset: u64, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let part = region.buffer().range(offset..offset + bytes.len() as u64);
    let arena = grants.arena(region).expect("granted");
    let null = null(region.buffer().platform(), arena);
    null.write(grants, &part, bytes).expect("granted for writing");
}

/// Acts as a kernel that reads a range of the buffer, in the arena of its grant.
pub fn get(grants: &Grants, region: &impl Region, range: std::ops::Range<u64>) -> Vec<u8> {
    if range.is_empty() {
        return Vec::new();
    }
    let arena = grants.arena(region).expect("granted");
    let null = null(region.buffer().platform(), arena);
    null.read(grants, &region.buffer().range(range)).expect("granted")
}

/// Acquires a range for writing in an arena, and overwrites it with the pattern of `seed`.
pub fn write(buffer: &RawBuffer, arena: ArenaId, range: std::ops::Range<u64>, seed: u64) {
    let region = buffer.range(range.clone());
    let mut grants =
        buffer.platform().acquire_in(arena).write(&region).try_now().expect("free to be written");
    put(&mut grants, buffer, range.start, &bytes(seed, range.clone()));
    grants.release().expect("committed");
}

/// Acquires a range for reading and writing in an arena, and changes it to the pattern of `seed`.
pub fn change(buffer: &RawBuffer, arena: ArenaId, range: std::ops::Range<u64>, seed: u64) {
    let region = buffer.range(range.clone());
    let mut grants =
        buffer.platform().acquire_in(arena).read_write(&region).try_now().expect("free to be changed");
    put(&mut grants, buffer, range.start, &bytes(seed, range.clone()));
    grants.release().expect("committed");
}

/// Acquires a range for reading in an arena, and returns its bytes.
pub fn read(buffer: &RawBuffer, arena: ArenaId, range: std::ops::Range<u64>) -> Vec<u8> {
    let region = buffer.range(range.clone());
    let grants = buffer.platform().acquire_in(arena).read(&region).try_now().expect("free to be read");
    get(&grants, buffer, range)
}

/// Creates a buffer of `len` bytes without contents.
pub fn raw(platform: &Platform, len: u64) -> RawBuffer {
    platform.raw_buffer(len).build().expect("not too large")
}

/// Checks every state invariant, and returns the checked state.
pub fn check(buffer: &RawBuffer) -> BufferState {
    let state = buffer.snapshot();
    if let Err(violation) = state.check_invariants(buffer.platform().routes()) {
        panic!("{violation}\n{state:#?}");
    }
    state
}

/// Returns the range, valid-set and status of every segment.
pub fn segments(buffer: &RawBuffer) -> Vec<(std::ops::Range<u64>, ArenaSet, Status)> {
    let state = check(buffer);
    state.segments().iter().map(|(span, content)| (span.to_range(), content.valid, content.status)).collect()
}

/// Collects arenas into a set.
pub fn arenas(ids: impl IntoIterator<Item = ArenaId>) -> ArenaSet {
    ids.into_iter().collect()
}

/// Returns the source, destination and range of every copy that starts among `events`.
pub fn copies(events: &[Event]) -> Vec<(Option<ArenaId>, ArenaId, std::ops::Range<u64>)> {
    let copy = |event: &Event| match event.kind {
        EventKind::CopyStarted { from, to, span, .. } => Some((from, to, span.to_range())),
        _ => None,
    };
    events.iter().filter_map(copy).collect()
}

/// Returns the number of copies of bytes that the platform has counted. Fills and refreshes do not count.
pub fn byte_copies(platform: &Platform) -> u64 {
    platform.counters().transfers().iter().map(|transfer| transfer.copies).sum()
}

/// Polls a future once, with a waker that does nothing.
pub fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs a future to its end on this thread, which sleeps between wake-ups.
pub fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

/// Runs `act` on a separate thread, so that a hang becomes a failure. Nothing else depends on time.
pub fn watched<R: Send + 'static>(what: &str, act: impl FnOnce() -> R + Send + 'static) -> Watched<R> {
    let (done, ended) = channel();
    std::thread::spawn(move || {
        let _ = done.send(std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)));
    });
    Watched { what: what.to_owned(), ended }
}

/// A thread that must end within a time limit.
#[derive(Debug)]
pub struct Watched<R> {
    what: String,
    ended: Receiver<std::thread::Result<R>>,
}

impl<R> Watched<R> {
    /// Waits for the thread, and returns its result.
    ///
    /// # Panics
    /// When the thread panicked, or does not end within 20 seconds.
    pub fn join(self) -> R {
        self.join_within(Duration::from_secs(20))
    }

    /// Does the same as [`Watched::join`], with another limit.
    ///
    /// # Panics
    /// When the thread panicked, or does not end within `limit`.
    pub fn join_within(self, limit: Duration) -> R {
        match self.ended.recv_timeout(limit) {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => panic!("{} hangs", self.what),
        }
    }
}
