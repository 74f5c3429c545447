//! A device that orders its work, whose copies and kernels end as a test says.

use dml::arenas::Null;
use dml::core::{
    AcquireError, Allocation, Arena, ArenaDesc, ArenaId, ArenaKind, BlockRef, Buffer, BusyReason, Completion,
    Concurrency, CopyIn, CopyJob, CopyOut, CopyQuery, Cost, CrossArena, DeviceDesc, DeviceId, DeviceKind,
    DeviceSet, Fence, Fill, Grants, HostStaged, InFlight, Link, MapReport, MapRequest, MapState, NewBlock,
    Platform, TransferError, UnmapRequest, ViewError,
};
use dml_verify::held::HeldCopies;
use dml_verify::{Audited, block_on, watched};
use std::any::Any;
use std::future::IntoFuture;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

const WORDS: u64 = 16;
const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);

type Ended = Option<Result<u64, TransferError>>;

/// The end of a kernel.
#[derive(Clone, Debug, Default)]
struct Kernel(Arc<(Mutex<Ended>, Condvar)>);

impl Kernel {
    fn ended(result: Result<u64, TransferError>) -> Self {
        let kernel = Self::default();
        kernel.end(result);
        kernel
    }

    fn end(&self, result: Result<u64, TransferError>) {
        *self.0.0.lock().unwrap() = Some(result);
        self.0.1.notify_all();
    }

    fn result(&self) -> Result<u64, TransferError> {
        let (limit, running) = (Duration::from_secs(20), self.0.0.lock().unwrap());
        let ended = self.0.1.wait_timeout_while(running, limit, |ended| ended.is_none());
        ended.unwrap().0.clone().unwrap_or(Err(TransferError::Finished))
    }

    fn fence(&self) -> Fence {
        Fence::awaited(self.clone())
    }
}

impl Completion for Kernel {
    fn wait(self: Box<Self>) -> Result<u64, TransferError> {
        self.result()
    }

    fn poll(&mut self, _: &Waker) -> Poll<Result<u64, TransferError>> {
        Poll::Ready(self.result())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

type First = Box<dyn FnOnce() + Send>;

/// What the next call of foreign code does first.
#[derive(Clone, Default)]
struct Hook(Arc<Mutex<Option<First>>>);

impl Hook {
    fn set(&self, first: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap() = Some(Box::new(first));
    }

    fn call(&self) {
        let first = self.0.lock().unwrap().take();
        first.into_iter().for_each(|first| first());
    }
}

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

/// Copies from the device, which can follow a kernel.
#[derive(Debug, Default)]
struct Follows {
    hook: Hook,
    inner: HostStaged,
    /// The errors of the next copies behind a kernel.
    errors: Mutex<Vec<TransferError>>,
    copies: Mutex<usize>,
}

impl CrossArena for Follows {
    fn name(&self) -> &str {
        "follows"
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        self.inner.can_copy(query)
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        *self.copies.lock().unwrap() += 1;
        self.inner.copy(job)
    }

    fn copy_behind(&self, job: CopyJob, kernel: &Fence) -> Result<Fence, TransferError> {
        self.hook.call();
        let kernel = kernel.completion::<Kernel>().ok_or(TransferError::Infeasible)?.clone();
        let error = self.errors.lock().unwrap().pop();
        if error == Some(TransferError::Infeasible) {
            return Err(TransferError::Infeasible);
        }
        let inner = self.inner.clone();
        Ok(Fence::running(move || {
            // As a framework may, it copies what a failed kernel left.
            let _ = kernel.result();
            let moved = inner.copy(job)?.wait()?;
            error.map_or(Ok(moved), Err)
        }))
    }
}

/// An arena that orders kernels behind transfers.
#[derive(Debug)]
struct Orders(Null, Hook);

impl Arena for Orders {
    fn desc(&self) -> &ArenaDesc {
        self.0.desc()
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, dml::core::AllocError> {
        self.0.alloc(len)
    }

    fn map(&self, request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        self.0.map(request)
    }

    fn unmap(&self, request: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        self.0.unmap(request)
    }

    fn map_state(&self, block: &BlockRef) -> Option<MapState> {
        self.0.map_state(block)
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        self.0.copy_in(copy)
    }

    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError> {
        self.0.copy_out(copy)
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        self.0.fill(fill)
    }

    fn free(&self, block: BlockRef) {
        self.0.free(block);
    }

    fn orders_work(&self) -> bool {
        true
    }

    fn launch_behind(&self, _: &[&Fence]) -> bool {
        self.1.call();
        true
    }
}

struct Scene {
    platform: Audited,
    held: Arc<HeldCopies>,
    follows: Arc<Follows>,
    launch: Hook,
}

impl Scene {
    fn new() -> Self {
        let (held, follows) = (Arc::<HeldCopies>::default(), Arc::<Follows>::default());
        let mut builder = Platform::builder().without_default_links();
        let device = builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
        let desc = ArenaDesc::new("cpu", ArenaKind("test"), device).with_remotes(DeviceSet::of(CPU));
        builder.add_arena(Arc::new(Null::backed(desc.with_concurrency(Concurrency::BimapFull))));
        let device = builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
        let (launch, desc) = (Hook::default(), ArenaDesc::new("gpu", ArenaKind("test"), device));
        builder.add_arena(Arc::new(Orders(Null::backed(desc), launch.clone())));
        let mechanisms: [Arc<dyn CrossArena>; 2] = [held.clone(), follows.clone()];
        for ((from, to), mechanism) in [(0, 1), (1, 0)].into_iter().zip(mechanisms) {
            let (source_via, target_via) = (DeviceId(from.into()), DeviceId(to.into()));
            let (from, to, allocation) = (ArenaId(from), ArenaId(to), Allocation::Internal);
            builder.add_link(Link { from, to, source_via, target_via, allocation }, mechanism);
        }
        Self { platform: Audited::new(builder.build().unwrap()), held, follows, launch }
    }

    fn words(&self, value: u32) -> Buffer<u32> {
        let buffer = self.platform.buffer::<u32>(WORDS).build().unwrap();
        let mut view = buffer.write().unwrap();
        view.iter_mut().zip(0..).for_each(|(word, at)| *word = value + at);
        view.release().unwrap();
        buffer
    }

    /// Acquires `a` for reading, whose copy is held back, and `b` for overwriting.
    fn grants(&self, a: &Buffer<u32>, b: &Buffer<u32>) -> Grants {
        self.platform.acquire(GPU).read(a).write(b).ahead().wait().unwrap()
    }

    /// Computes on the device what a kernel would, and launches it.
    fn launched(&self, mut grants: Grants, b: &Buffer<u32>, value: u32, kernel: &Kernel) -> InFlight {
        grants.before_launch(true).unwrap();
        let bytes: Vec<u8> = (0..WORDS).flat_map(|at| (value + at as u32).to_ne_bytes()).collect();
        grants.write_bytes(b, &bytes).unwrap();
        grants.in_flight(kernel.fence())
    }

    fn end_copies(&self, result: Result<u64, TransferError>) {
        self.held.begun().last().expect("a copy has begun").end(result);
    }

    fn expect(&self, buffer: &Buffer<u32>, value: u32) {
        assert!(buffer.read().unwrap().iter().zip(0..).all(|(word, at)| *word == value + at));
    }
}

const ALL: Result<u64, TransferError> = Ok(WORDS * 4);

fn broken() -> TransferError {
    TransferError::Framework { call: "copy", code: -5, message: "it broke".into() }
}

fn is_poisoned(buffer: &Buffer<u32>) -> bool {
    matches!(buffer.read(), Err(AcquireError::Poisoned { .. }))
}

#[test]
fn i30_a_kernel_begins_while_its_input_is_on_its_way() {
    let scene = Scene::new();
    let (a, b, kernel) = (scene.words(1), scene.words(2), Kernel::ended(Ok(0)));
    let mut flight = scene.launched(scene.grants(&a, &b), &b, 40, &kernel);
    // Others get the input once it is there, and not before.
    let error = scene.platform.acquire(GPU).read(&a).try_now().unwrap_err();
    assert!(error.is_busy(), "{error:?}");
    scene.end_copies(ALL);
    flight.wait_for_inputs();
    scene.platform.acquire(GPU).read(&a).try_now().unwrap().release().unwrap();
    flight.wait().unwrap().release().unwrap();
    scene.expect(&b, 40);
    scene.expect(&a, 1);
}

/// A program need not wait for the input by a call of its own.
#[test]
fn i30_a_release_waits_for_inputs() {
    let scene = Scene::new();
    let (a, b, kernel) = (scene.words(1), scene.words(2), Kernel::ended(Ok(0)));
    let flight = scene.launched(scene.grants(&a, &b), &b, 40, &kernel);
    let released = watched("a release", move || flight.wait().unwrap().release());
    scene.end_copies(ALL);
    released.join().unwrap();
    scene.expect(&b, 40);
    // A future is granted ahead as well.
    let c = scene.words(3);
    let grants = block_on(scene.platform.acquire(GPU).read(&c).write(&b).ahead().into_future()).unwrap();
    let flight = scene.launched(grants, &b, 50, &kernel);
    scene.end_copies(ALL);
    block_on(flight).unwrap().release().unwrap();
    scene.expect(&b, 50);
}

#[test]
fn i30_an_input_that_does_not_come_fails_its_kernel() {
    for asks in [false, true] {
        let scene = Scene::new();
        let (a, b, kernel) = (scene.words(1), scene.words(2), Kernel::ended(Ok(0)));
        let mut flight = scene.launched(scene.grants(&a, &b), &b, 40, &kernel);
        scene.end_copies(Err(broken()));
        if asks {
            flight.wait_for_inputs();
        }
        let error = flight.wait().unwrap().release().unwrap_err();
        assert!(matches!(error, AcquireError::CopyFailed { .. }), "{error:?}");
        assert!(is_poisoned(&b));
        scene.expect(&a, 1);
        assert!(scene.platform.leaked_grants().is_empty());
    }
}

/// A launch that cannot be ordered waits, and changes nothing if an input does not come.
#[test]
fn i30_other_launches_wait_for_inputs() {
    let scene = Scene::new();
    let (a, b) = (scene.words(1), scene.words(2));
    let mut grants = scene.grants(&a, &b);
    let unread = grants.read_bytes(&a).unwrap_err();
    assert!(matches!(unread, AcquireError::Busy { reason: BusyReason::Copying, .. }), "{unread:?}");
    let waits = watched("a launch", move || grants.before_launch(false).map(|()| grants));
    scene.end_copies(ALL);
    let grants = waits.join().unwrap();
    assert_eq!(grants.read_bytes(&a).unwrap()[..4], 1_u32.to_ne_bytes());
    drop(grants);
    scene.expect(&b, 2);
    let c = scene.words(3);
    let mut grants = scene.grants(&c, &b);
    scene.end_copies(Err(broken()));
    let error = grants.before_launch(false).unwrap_err();
    assert!(matches!(error, AcquireError::CopyFailed { .. }), "{error:?}");
    assert!(matches!(grants.native(&c), Ok(None)), "it is not granted");
    drop(grants);
    scene.expect(&b, 2);
    scene.expect(&c, 3);
}

/// The host does not see what is on its way to it.
#[test]
fn i30_views_of_the_host_are_complete() {
    let scene = Scene::new();
    let (a, b) = (scene.words(1), scene.words(2));
    let kernel = Kernel::ended(Ok(0));
    let flight = scene.launched(scene.grants(&a, &b), &b, 40, &kernel);
    scene.end_copies(ALL);
    flight.wait().unwrap().release().unwrap();
    let mut grants = scene.platform.acquire(CPU).read(&b).ahead().wait().unwrap();
    let unseen = grants.slice::<u32>(&b).map(<[u32]>::len);
    assert!(matches!(unseen, Ok(16) | Err(ViewError::NotHost { .. })), "{unseen:?}");
    grants.before_launch(true).unwrap();
    assert_eq!(grants.slice::<u32>(&b).unwrap()[0], 40);
}

#[test]
fn i30_results_that_come_are_there_when_the_grant_ends() {
    let scene = Scene::new();
    let (a, b, kernel) = (scene.words(1), scene.words(2), Kernel::default());
    let mut flight = scene.launched(scene.grants(&a, &b), &b, 40, &kernel);
    assert!(flight.bring_results(CPU));
    assert!(!flight.bring_results(GPU), "they come to one place");
    scene.end_copies(ALL);
    let released = watched("a release", move || flight.wait().unwrap().release());
    kernel.end(Ok(0));
    released.join().unwrap();
    assert_eq!(scene.platform.acquire(CPU).read(&b).try_now().unwrap().slice::<u32>(&b).unwrap()[3], 43);
    assert_eq!(*scene.follows.copies.lock().unwrap(), 0, "no copy but that behind the kernel");
}

#[test]
fn i30_results_of_a_failed_kernel_are_valid_nowhere() {
    for dropped in [false, true] {
        let scene = Scene::new();
        let (a, b, kernel) = (scene.words(1), scene.words(2), Kernel::default());
        let mut flight = scene.launched(scene.grants(&a, &b), &b, 40, &kernel);
        assert!(flight.bring_results(CPU));
        scene.end_copies(ALL);
        kernel.end(Err(broken()));
        if dropped {
            drop(flight);
        } else {
            assert_eq!(flight.wait().unwrap_err(), broken());
        }
        assert!(is_poisoned(&b));
        // What it had is overwritten.
        let lost = b.restore().unwrap_err();
        assert!(matches!(lost, AcquireError::NotRestorable { .. }), "{lost:?}");
        let mut view = b.write().unwrap();
        view.fill(7);
        view.release().unwrap();
        assert_eq!(b.read().unwrap()[5], 7);
        assert!(scene.platform.leaked_grants().is_empty());
    }
}

#[test]
fn i30_results_come_to_memory_that_is_allocated_for_them() {
    let scene = Scene::new();
    let (a, kernel) = (scene.words(1), Kernel::ended(Ok(0)));
    let b = scene.platform.buffer::<u32>(WORDS).build().unwrap();
    let mut flight = scene.launched(scene.grants(&a, &b), &b, 40, &kernel);
    assert!(flight.bring_results(CPU));
    scene.end_copies(ALL);
    flight.wait().unwrap().release().unwrap();
    scene.expect(&b, 40);
    assert_eq!(*scene.follows.copies.lock().unwrap(), 0);
}

#[test]
fn i30_what_a_failed_kernel_sent_is_not_taken_for_zeros() {
    let scene = Scene::new();
    let (a, kernel) = (scene.words(1), Kernel::default());
    let b = scene.platform.buffer::<u32>(WORDS).zeroed().build().unwrap();
    assert_eq!(b.read().unwrap()[0], 0);
    let mut flight = scene.launched(scene.grants(&a, &b), &b, 40, &kernel);
    assert!(flight.bring_results(CPU));
    scene.end_copies(ALL);
    kernel.end(Err(broken()));
    flight.wait().unwrap_err();
    b.restore().unwrap();
    assert!(b.read().unwrap().iter().all(|word| *word == 0));
}

/// A copy of results that fails, or that cannot be ordered, is made again for those that read.
#[test]
fn i30_results_that_do_not_come_are_fetched() {
    for error in [broken(), TransferError::Infeasible] {
        let scene = Scene::new();
        let (a, b, kernel) = (scene.words(1), scene.words(2), Kernel::default());
        scene.follows.errors.lock().unwrap().push(error.clone());
        let mut flight = scene.launched(scene.grants(&a, &b), &b, 40, &kernel);
        assert_eq!(flight.bring_results(CPU), error != TransferError::Infeasible);
        scene.end_copies(ALL);
        kernel.end(Ok(0));
        flight.wait().unwrap().release().unwrap();
        scene.expect(&b, 40);
        assert_eq!(*scene.follows.copies.lock().unwrap(), 1);
    }
}

/// What a kernel changes stays with the device, so that its old contents survive a failure.
#[test]
fn i30_bytes_that_are_changed_can_be_restored() {
    let scene = Scene::new();
    let b = scene.words(2);
    let asks = {
        let (platform, b) = (Platform::clone(&scene.platform), b.clone());
        watched("an acquire", move || platform.acquire(GPU).read_write(&b).ahead().wait())
    };
    while scene.held.begun().is_empty() {
        std::thread::yield_now();
    }
    scene.end_copies(ALL);
    let kernel = Kernel::default();
    let mut flight = scene.launched(asks.join().unwrap(), &b, 40, &kernel);
    assert!(!flight.bring_results(CPU));
    kernel.end(Err(broken()));
    flight.wait().unwrap_err();
    b.restore().unwrap();
    scene.expect(&b, 2);
}

/// A copy that cannot be ordered overwrites nothing, so the old contents survive a failure.
#[test]
fn i30_results_that_cannot_be_ordered_leave_what_is_there() {
    let scene = Scene::new();
    let (a, b, kernel) = (scene.words(1), scene.words(2), Kernel::default());
    scene.follows.errors.lock().unwrap().push(TransferError::Infeasible);
    let mut flight = scene.launched(scene.grants(&a, &b), &b, 40, &kernel);
    assert!(!flight.bring_results(CPU));
    scene.end_copies(ALL);
    kernel.end(Err(broken()));
    flight.wait().unwrap_err();
    b.restore().unwrap();
    scene.expect(&b, 2);
}

/// Code of an arena and of a mechanism may call back into core, and a panic of it is no order.
#[test]
fn i22_what_orders_work_may_call_back_and_panic() {
    let scene = Scene::new();
    let (a, b, kernel) = (scene.words(1), scene.words(2), Kernel::default());
    let calls_back = || {
        let (platform, a, b) = (Platform::clone(&scene.platform), a.clone(), b.clone());
        move || {
            assert!(platform.acquire(GPU).read(&a).try_now().unwrap_err().is_busy());
            assert!(platform.acquire(CPU).write(&b).try_now().unwrap_err().is_busy());
            platform.notice_losses();
        }
    };
    scene.launch.set(calls_back());
    let mut flight = scene.launched(scene.grants(&a, &b), &b, 40, &kernel);
    scene.follows.hook.set(calls_back());
    assert!(flight.bring_results(CPU));
    scene.end_copies(ALL);
    kernel.end(Ok(0));
    flight.wait().unwrap().release().unwrap();
    scene.expect(&b, 40);
    // A launch that cannot be ordered waits for its input.
    let (c, kernel) = (scene.words(3), Kernel::ended(Ok(0)));
    let grants = scene.grants(&c, &b);
    scene.end_copies(ALL);
    scene.launch.set(|| panic!("an arena that panics"));
    let mut flight = scene.launched(grants, &b, 50, &kernel);
    assert!(!flight.wait_for_inputs(), "it was waited for");
    scene.follows.hook.set(|| panic!("a mechanism that panics"));
    assert!(!flight.bring_results(CPU));
    flight.wait().unwrap().release().unwrap();
    scene.expect(&b, 50);
    assert!(scene.platform.leaked_grants().is_empty());
}
