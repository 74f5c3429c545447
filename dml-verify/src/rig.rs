//! Platforms of test arenas, and kernels that run on them.
//!
//! Every arena is a [`Rig`]'s own: a backed `Null` (it moves real bytes and panics when core breaks the contract), in a
//! `Faulty` (it fails on cue) on a device that may die (`Mortal`), behind a hook that a test may set to stop a call half way. Kernels reach the bytes through
//! the block of their grant and as the arena's native device, so that a kernel without access is caught.

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

/// The host.
pub const CPU: DeviceId = DeviceId(0);
/// The first further device.
pub const GPU: DeviceId = DeviceId(1);
/// The second further device.
pub const GPU2: DeviceId = DeviceId(2);
/// The third further device.
pub const GPU3: DeviceId = DeviceId(3);
/// Main memory.
pub const MAIN_ARENA: ArenaId = ArenaId(0);
/// The first further device's memory.
pub const GPU_ARENA: ArenaId = ArenaId(1);
/// The second further device's memory.
pub const GPU2_ARENA: ArenaId = ArenaId(2);
/// The third further device's memory.
pub const GPU3_ARENA: ArenaId = ArenaId(3);

type Hook = Arc<dyn Fn(CallKind) + Send + Sync>;

/// The arena of every test platform: its hooks are those of a [`Watch`].
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
    /// Calls `hook` before every call of core.
    pub fn hook(&self, hook: impl Fn(CallKind) + Send + Sync + 'static) {
        *self.0.lock() = Some(Arc::new(hook));
    }

    /// Stops the first call of a kind until the gate is opened.
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

/// A call stopped half way.
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

    /// Lets it go on.
    pub fn open(self) {
        let _ = self.open.send(());
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// A platform being made.
#[derive(Debug)]
pub struct Rig {
    builder: PlatformBuilder,
    /// How many links there are.
    links: u16,
    /// What goes wrong on a link to come.
    link_script: Option<(LinkId, Script)>,
}

impl Default for Rig {
    fn default() -> Self {
        Self::new()
    }
}

impl Rig {
    /// The host and its main memory: device 0, arena 0.
    pub fn new() -> Self {
        Self::with_main(Script::new())
    }

    /// As [`Rig::new`], with a script for main memory.
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

    /// A further device with a memory that the host can map.
    pub fn gpu(self, concurrency: Concurrency) -> Self {
        self.gpu_with(concurrency, Script::new())
    }

    /// As [`Rig::gpu`], with a script for its memory.
    pub fn gpu_with(mut self, concurrency: Concurrency, script: Script) -> Self {
        let index = self.builder.devices().len();
        let device = self.builder.add_device(DeviceDesc::new(&format!("gpu{index}"), DeviceKind::Gpu));
        let desc = ArenaDesc::new(&format!("gpu{index}"), ArenaKind("gpu"), device)
            .with_remotes(DeviceSet::of(CPU))
            .with_concurrency(concurrency);
        self.add(desc, script);
        self
    }

    /// Lets the mechanism of one link go wrong as `script` says. The links that are added after this count: they are
    /// numbered in the order in which they are added, a pair that is joined in both directions having two.
    pub fn with_link_script(mut self, link: LinkId, script: Script) -> Self {
        self.link_script = Some((link, script));
        self
    }

    /// Copies by read and write calls in both directions; the map state stays.
    pub fn staged(mut self, a: ArenaId, b: ArenaId) -> Self {
        let ends = [(a, self.native(a)), (b, self.native(b))];
        self.join(ends, Allocation::Internal, &HostStaged::default());
        self
    }

    /// Copies by mapping `device` for the host.
    pub fn mapped(mut self, device: ArenaId) -> Self {
        self.join([(MAIN_ARENA, CPU), (device, CPU)], Allocation::Internal, &HostMapped::default());
        self
    }

    /// One storage for both.
    pub fn bound(mut self, a: ArenaId, b: ArenaId, concurrency: Concurrency) -> Self {
        let ends = [(a, self.native(a)), (b, self.native(b))];
        self.join(ends, Allocation::Bound(concurrency), &Binding::default());
        self
    }

    /// Copies by read and write calls in one direction only.
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

    /// The platform, under the history checker.
    ///
    /// # Panics
    /// When a link or an arena does not fit the others.
    #[must_use]
    pub fn build(self) -> Audited {
        Audited::new(self.plain())
    }

    /// The platform, with nothing recorded: for those who drive the pure machine, or check by themselves.
    ///
    /// # Panics
    /// As [`Rig::build`].
    #[must_use]
    pub fn plain(self) -> Platform {
        self.try_plain().expect("a platform without problems")
    }

    /// As [`Rig::plain`].
    ///
    /// # Errors
    /// Whatever does not fit.
    pub fn try_plain(self) -> Result<Platform, ConfigError> {
        self.builder.build()
    }
}

/// Main memory and one exclusive gpu, joined by read and write calls.
#[must_use]
pub fn pair() -> Audited {
    Rig::new().gpu(Concurrency::Exclusive).staged(MAIN_ARENA, GPU_ARENA).build()
}

/// Main memory and one gpu whose data the host reaches by mapping alone.
#[must_use]
pub fn mapped_pair(concurrency: Concurrency) -> Audited {
    Rig::new().gpu(concurrency).mapped(GPU_ARENA).build()
}

/// Main memory and two gpus, each joined to main memory only: between the gpus there are two hops.
#[must_use]
pub fn star() -> Audited {
    Rig::new()
        .gpu(Concurrency::Exclusive)
        .gpu(Concurrency::Exclusive)
        .staged(MAIN_ARENA, GPU_ARENA)
        .staged(MAIN_ARENA, GPU2_ARENA)
        .build()
}

/// Main memory and one gpu that can share storage, and do nothing else.
#[must_use]
pub fn bound_pair(concurrency: Concurrency) -> Audited {
    Rig::new().gpu(concurrency).bound(MAIN_ARENA, GPU_ARENA, concurrency).build()
}

/// An arena of a rig.
///
/// # Panics
/// When the platform is not a rig's.
pub fn test_arena(platform: &Platform, id: ArenaId) -> &TestArena {
    platform.arena(id).downcast_ref::<TestArena>().expect("every arena is a test arena")
}

/// The arena that records and polices.
pub fn null(platform: &Platform, id: ArenaId) -> &Null {
    test_arena(platform, id).inner().inner().inner()
}

/// How many blocks are alive in all arenas.
pub fn live_blocks(platform: &Platform) -> usize {
    (0..platform.arenas().len()).map(|id| null(platform, ArenaId(id as u8)).live_blocks()).sum()
}

/// A byte that depends on everything, and is never zero.
pub fn byte(seed: u64, offset: u64) -> u8 {
    let mut x =
        seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ offset.wrapping_add(1).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^= x >> 32;
    x = x.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^= x >> 29;
    (x % 255) as u8 + 1
}

/// The bytes of a range in the pattern of a seed.
pub fn bytes(seed: u64, range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(|offset| byte(seed, offset)).collect()
}

/// A kernel that writes `bytes` at `offset` of the buffer, on the arena of its grant.
pub fn put(grants: &mut Grants, region: &impl Region, offset: u64, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let part = region.buffer().range(offset..offset + bytes.len() as u64);
    let arena = grants.arena(region).expect("granted");
    let null = null(region.buffer().platform(), arena);
    null.write(grants, &part, bytes).expect("granted for writing");
}

/// A kernel that reads a range of the buffer, on the arena of its grant.
pub fn get(grants: &Grants, region: &impl Region, range: std::ops::Range<u64>) -> Vec<u8> {
    if range.is_empty() {
        return Vec::new();
    }
    let arena = grants.arena(region).expect("granted");
    let null = null(region.buffer().platform(), arena);
    null.read(grants, &region.buffer().range(range)).expect("granted")
}

/// Overwrites a range in an arena with the pattern of `seed`.
pub fn write(buffer: &RawBuffer, arena: ArenaId, range: std::ops::Range<u64>, seed: u64) {
    let region = buffer.range(range.clone());
    let mut grants =
        buffer.platform().acquire_in(arena).write(&region).try_now().expect("free to be written");
    put(&mut grants, buffer, range.start, &bytes(seed, range.clone()));
    grants.release().expect("committed");
}

/// Changes a range in an arena to the pattern of `seed`, by read-write access.
pub fn change(buffer: &RawBuffer, arena: ArenaId, range: std::ops::Range<u64>, seed: u64) {
    let region = buffer.range(range.clone());
    let mut grants =
        buffer.platform().acquire_in(arena).read_write(&region).try_now().expect("free to be changed");
    put(&mut grants, buffer, range.start, &bytes(seed, range.clone()));
    grants.release().expect("committed");
}

/// Reads a range in an arena.
pub fn read(buffer: &RawBuffer, arena: ArenaId, range: std::ops::Range<u64>) -> Vec<u8> {
    let region = buffer.range(range.clone());
    let grants = buffer.platform().acquire_in(arena).read(&region).try_now().expect("free to be read");
    get(&grants, buffer, range)
}

/// A buffer of so many bytes, with nothing in them.
pub fn raw(platform: &Platform, len: u64) -> RawBuffer {
    platform.raw_buffer(len).build().expect("not too large")
}

/// Checks every state invariant.
pub fn check(buffer: &RawBuffer) -> BufferState {
    let state = buffer.snapshot();
    if let Err(violation) = state.check_invariants(buffer.platform().routes()) {
        panic!("{violation}\n{state:#?}");
    }
    state
}

/// The segments as range, valid-set and status.
pub fn segments(buffer: &RawBuffer) -> Vec<(std::ops::Range<u64>, ArenaSet, Status)> {
    let state = check(buffer);
    state.segments().iter().map(|(span, content)| (span.to_range(), content.valid, content.status)).collect()
}

/// A set of arenas.
pub fn arenas(ids: impl IntoIterator<Item = ArenaId>) -> ArenaSet {
    ids.into_iter().collect()
}

/// The copies among events, as source, destination and range.
pub fn copies(events: &[Event]) -> Vec<(Option<ArenaId>, ArenaId, std::ops::Range<u64>)> {
    let copy = |event: &Event| match event.kind {
        EventKind::CopyStarted { from, to, span, .. } => Some((from, to, span.to_range())),
        _ => None,
    };
    events.iter().filter_map(copy).collect()
}

/// How many copies of bytes (not fills, not refreshes) the arenas were asked for.
pub fn byte_copies(platform: &Platform) -> u64 {
    platform.counters().transfers().iter().map(|transfer| transfer.copies).sum()
}

/// Polls a future once, with a waker that does nothing.
pub fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs a future to its end on this thread, which sleeps while there is nothing to do.
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

/// Runs `act` on a thread of its own. A hang becomes a failure; nothing else depends on the time.
pub fn watched<R: Send + 'static>(what: &str, act: impl FnOnce() -> R + Send + 'static) -> Watched<R> {
    let (done, ended) = channel();
    std::thread::spawn(move || {
        let _ = done.send(std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)));
    });
    Watched { what: what.to_owned(), ended }
}

/// A thread that must end.
#[derive(Debug)]
pub struct Watched<R> {
    what: String,
    ended: Receiver<std::thread::Result<R>>,
}

impl<R> Watched<R> {
    /// Its result.
    ///
    /// # Panics
    /// When it panicked, or does not end within 20 seconds.
    pub fn join(self) -> R {
        self.join_within(Duration::from_secs(20))
    }

    /// As [`Watched::join`], with another limit.
    ///
    /// # Panics
    /// When it panicked, or does not end within `limit`.
    pub fn join_within(self, limit: Duration) -> R {
        match self.ended.recv_timeout(limit) {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => panic!("{} hangs", self.what),
        }
    }
}
