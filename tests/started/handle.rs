//! What a handle tells, who may wait for it, and what becomes of a run whose handle is dropped.

use super::{CPU, GPU, ITEMS, Slot, Turn, Work, until};
use dml::Kernel;
use dml::arenas::Null;
use dml::core::internal::sync::{Arc, Mutex};
use dml::core::{
    Allocation, ArenaDesc, ArenaId, ArenaKind, Concurrency, CopyJob, CopyQuery, Cost, CrossArena, DeviceDesc,
    DeviceKind, DeviceSet, Fence, Link, TransferError,
};
use dml::prelude::*;
use dml::scheduler::{DeviceProgress, Hooks, KernelError, RunError, UnitId};
use dml_verify::{block_on, poll_once, watched};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// A kernel whose packages are computed when the gate of their number is open.
fn gated() -> (Work, Arc<Slot<u64>>) {
    let gate = Arc::new(Slot::<u64>::default());
    let opened = gate.clone();
    let work = Work::new(Access::WriteInvalidate, move |turn| {
        if let Turn::Computing(number) = turn {
            until(|| opened.wait() > number);
        }
        Ok(())
    });
    (work, gate)
}

#[test]
fn a_started_run_tells_how_far_it_has_come_and_the_same_end_again_and_again() {
    let (work, gate) = gated();
    let run = watched("a started run", move || {
        gate.set(0);
        let mut running =
            work.coexecutor().devices([GPU]).collect_on(None).start(&work.kernel, ITEMS).unwrap();
        assert!(poll_once(&mut running).is_pending() && !running.is_ended());
        let none = running.wait_timeout(Duration::ZERO);
        assert_eq!(none, Err(RunError::Timeout { kernel: "triple".to_owned(), waited: Duration::ZERO }));
        for packages in 1..=20 {
            assert_eq!(running.progress().items, ITEMS);
            gate.set(packages);
            until(|| running.progress().computed == packages * 20);
            let devices = running.progress().devices;
            let [DeviceProgress { device: GPU, packages: told, items, .. }] = devices[..] else {
                panic!("{devices:?}")
            };
            assert_eq!((told, items), (packages, packages * 20));
        }
        let report = running.wait().expect("nothing is wrong");
        assert_eq!(report.packages.len(), 20);
        assert!(running.is_ended());
        assert_eq!(poll_once(&mut running), Poll::Ready(Ok(report.clone())));
        assert_eq!(running.wait_timeout(Duration::ZERO), Ok(report.clone()));
        assert_eq!(running.wait(), Ok(report));
        work
    });
    run.join().assert_computed();
}

#[test]
fn what_cannot_run_is_refused_where_it_is_started() {
    let work = Work::new(Access::WriteInvalidate, |_| Ok(()));
    let nobody = work.coexecutor().devices([]).start(&work.kernel, ITEMS).unwrap_err();
    assert_eq!(nobody, RunError::NoDevices { kernel: "triple".to_owned() });
    let mut view = work.target.write().unwrap();
    view.fill(9);
    let held = work.coexecutor().start(&work.kernel, ITEMS).unwrap_err();
    let buffer = work.target.raw().name();
    assert_eq!(held, RunError::HeldByCaller { kernel: "triple".to_owned(), index: 1, buffer });
    view.release().unwrap();
    // Of no items there is nothing to wait for.
    assert!(work.coexecutor().start(&work.kernel, 0).unwrap().wait().unwrap().packages.is_empty());
    // A name that no thread can have.
    let idle = |_: &Package, _: &mut Grants| -> Result<Fence, KernelError> { Ok(Fence::done(0)) };
    let odd = Kernel::new("odd\0name", 1).variant(CPU, idle);
    assert!(work.coexecutor().start(&odd, 5).unwrap().wait().is_ok());
    // All others come with the wait.
    let failing = Work::new(Access::WriteInvalidate, |turn| match turn {
        Turn::Launch(_) => Err("no".into()),
        _ => Ok(()),
    });
    let told = failing.coexecutor().start(&failing.kernel, ITEMS).unwrap().wait().unwrap_err();
    let RunError::Unfinished { missing, failures, .. } = told else { panic!("{told}") };
    assert_eq!((missing, failures.len()), (ITEMS, 2));
}

#[test]
fn a_run_is_awaited_by_whoever_polled_last() {
    struct Count(AtomicU64);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (work, gate) = gated();
    let run = watched("a run that is awaited", move || {
        gate.set(0);
        let mut running = work.coexecutor().start(&work.kernel, ITEMS).unwrap();
        let [first, last] = [0, 0].map(|_| Arc::new(Count(AtomicU64::new(0))));
        for waker in [&first, &last] {
            let waker = Waker::from(waker.clone());
            assert!(Pin::new(&mut running).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert_eq!(Arc::strong_count(&first), 1, "the waker of the first poll is gone");
        gate.set(u64::MAX);
        until(|| running.is_ended());
        until(|| last.0.load(Ordering::SeqCst) == 1);
        assert_eq!(first.0.load(Ordering::SeqCst), 0);
        assert!(block_on(&mut running).is_ok());
        work.assert_computed();
        // From its start, by an executor.
        let again = work.coexecutor().start(&work.kernel, ITEMS).unwrap();
        assert!(block_on(again).is_ok());
        work
    });
    run.join().assert_computed();
}

/// A waker that cancels when it is woken, and panics as it is woken and as it is dropped.
struct Broken(Slot<dml::scheduler::RunCanceller>);

impl Wake for Broken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wait().cancel();
        resume_unwind(Box::new("a waker's own fault"));
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            resume_unwind(Box::new("a waker's destructor"));
        }
    }
}

#[test]
fn a_waker_that_panics_and_calls_back_disturbs_nobody() {
    for drops in [false, true] {
        let (work, gate) = gated();
        let run = watched("a run with a broken waker", move || {
            gate.set(0);
            let mut running = work.coexecutor().start(&work.kernel, ITEMS).unwrap();
            let broken = Arc::new(Broken(Slot::default()));
            broken.0.set(running.canceller());
            let waker = Waker::from(broken);
            assert!(Pin::new(&mut running).poll(&mut Context::from_waker(&waker)).is_pending());
            // The handle has the last reference.
            drop(waker);
            gate.set(u64::MAX);
            if drops {
                drop(running);
            } else {
                assert!(running.wait().is_ok());
                work.assert_computed();
            }
        });
        run.join();
    }
}

/// Notes when it is dropped, and panics then.
struct Mark(Arc<AtomicBool>);

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
        if !std::thread::panicking() {
            resume_unwind(Box::new("a hook's destructor"));
        }
    }
}

impl Hooks for Mark {}

#[test]
fn dropping_the_handle_cancels_the_run_and_waits_for_what_is_launched() {
    let ended = Arc::new(AtomicU64::new(0));
    let launched = Arc::new(AtomicU64::new(0));
    let (ends, launches) = (ended.clone(), launched.clone());
    let gate = Arc::new(Slot::<()>::default());
    let opened = gate.clone();
    let work = Work::new(Access::WriteInvalidate, move |turn| {
        match turn {
            Turn::Launch(_) => _ = launches.fetch_add(1, Ordering::SeqCst),
            Turn::Computing(_) => {
                opened.wait();
                ends.fetch_add(1, Ordering::SeqCst);
            }
            _ => {}
        }
        Ok(())
    });
    let gone = Arc::new(AtomicBool::new(false));
    let mark = Mark(gone.clone());
    let run = watched("a handle that is dropped", move || {
        let running = work.coexecutor().start_with(&work.kernel, ITEMS, mark).unwrap();
        until(|| launched.load(Ordering::SeqCst) >= 2);
        let canceller = running.canceller();
        let opener = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            gate.set(());
        });
        drop(running);
        assert!(gone.load(Ordering::SeqCst), "the hooks are gone");
        let (launched, ended) = (launched.load(Ordering::SeqCst), ended.load(Ordering::SeqCst));
        assert!(launched == ended && launched < 20, "{ended} of {launched} have ended");
        assert_eq!(work.left(), ITEMS - launched * 20);
        canceller.cancel();
        opener.join().unwrap();
        work
    });
    run.join();
}

/// A hook that has the handle of its own run.
struct Own {
    slot: Arc<Mutex<Option<Running>>>,
    told: Arc<Mutex<Vec<RunError>>>,
    _mark: Arc<()>,
}

impl Hooks for Own {
    fn package_done(&self, _: &Package, _: DeviceId) {
        let running = loop {
            // Later packages find no handle.
            match (self.slot.lock().take(), self.told.lock().is_empty()) {
                (Some(running), _) => break Some(running),
                (None, false) => break None,
                (None, true) => std::thread::yield_now(),
            }
        };
        if let Some(mut running) = running {
            self.told.lock().extend(running.wait().err());
            self.told.lock().extend(running.wait_timeout(Duration::from_millis(1)).err());
            drop(running);
        }
    }
}

#[test]
fn a_hook_cannot_wait_for_its_own_run_and_may_drop_it() {
    for (collect_on, devices) in
        [None, Some(CPU)].into_iter().flat_map(|on| [vec![CPU], vec![GPU], vec![CPU, GPU]].map(|it| (on, it)))
    {
        let run = watched("a hook that has its own run", move || {
            let work = Work::new(Access::WriteInvalidate, |_| Ok(()));
            let (slot, told, mark) = <(Arc<Mutex<_>>, Arc<Mutex<Vec<_>>>, Arc<()>)>::default();
            let own = Own { slot: slot.clone(), told: told.clone(), _mark: mark.clone() };
            let run = work.coexecutor().devices(devices).collect_on(collect_on);
            *slot.lock() = Some(run.start_with(&work.kernel, ITEMS, own).unwrap());
            until(|| Arc::strong_count(&mark) == 1);
            let told = std::mem::take(&mut *told.lock());
            let kernel = || "triple".to_owned();
            let waited = Duration::from_millis(1);
            assert_eq!(
                told,
                [RunError::WithinItself { kernel: kernel() }, RunError::Timeout { kernel: kernel(), waited }]
            );
            assert!(work.target.raw().leaked_grants().is_empty());
        });
        run.join();
    }
}

/// A hook that panics at the first package.
struct Panics(AtomicBool);

impl Hooks for Panics {
    fn package_done(&self, _: &Package, _: DeviceId) {
        assert!(self.0.swap(true, Ordering::SeqCst), "a hook's own fault");
    }
}

#[test]
fn a_hook_that_panics_is_heard_once_by_who_waits() {
    for awaits in [false, true] {
        let run = watched("hooks that panic", move || {
            let work = Work::new(Access::WriteInvalidate, |_| Ok(()));
            let hooks = Panics(AtomicBool::new(false));
            let mut running = work.coexecutor().start_with(&work.kernel, ITEMS, hooks).unwrap();
            let heard = catch_unwind(AssertUnwindSafe(|| {
                if awaits { block_on(&mut running).map(drop) } else { running.wait().map(drop) }
            }));
            let text = heard.expect_err("the hook has panicked");
            assert!(text.downcast_ref::<&str>().is_some_and(|text| text.contains("a hook's own fault")));
            assert!(running.wait().is_ok());
            work.assert_computed();
            // Once the handle is dropped, no waiter is left to get the panic.
            let hooks = Panics(AtomicBool::new(false));
            let running = work.coexecutor().start_with(&work.kernel, ITEMS, hooks).unwrap();
            until(|| running.is_ended());
            drop(running);
        });
        run.join();
    }
}

/// A hook that keeps a grant of the target: the packages of its own thread would wait for it for ever.
struct Keeps {
    target: Buffer<u32>,
    kept: Mutex<Option<Grants>>,
}

impl Hooks for Keeps {
    fn unit_start(&self, _: UnitId, device: DeviceId) {
        let asked = self.target.raw().platform().acquire(device).read(&self.target);
        *self.kept.lock() = Some(asked.wait().expect("nobody has it yet"));
    }
}

#[test]
fn a_hook_that_keeps_a_grant_is_told_in_a_started_run_as_in_any_other() {
    let run = watched("hooks that keep a grant", || {
        let work = Work::new(Access::WriteInvalidate, |_| Ok(()));
        let keeps = || Keeps { target: work.target.clone(), kept: Mutex::new(None) };
        let coexecutor = work.coexecutor().devices([CPU]);
        let ran = coexecutor.run_with(&work.kernel, ITEMS, &keeps()).unwrap_err();
        let started = coexecutor.start_with(&work.kernel, ITEMS, keeps()).unwrap().wait().unwrap_err();
        for error in [ran, started] {
            let RunError::Unfinished { missing: ITEMS, failures, .. } = &error else { panic!("{error}") };
            let [failure] = &failures[..] else { panic!("{failures:?}") };
            assert!(failure.message.contains("while this thread holds it"), "{}", failure.message);
        }
        assert_eq!(work.left(), ITEMS);
    });
    run.join();
}

#[test]
fn the_handles_of_a_run_that_has_ended_keep_nothing_of_it() {
    let run = watched("handles that are kept", || {
        for _ in 0..100 {
            let options = DiscoverOptions::default().only(["cpu"]);
            let platform = Platform::builder().discover_with(&options).unwrap().build().unwrap();
            let memory = Arc::downgrade(platform.arena(ArenaId(0)));
            let target = platform.buffer::<u32>(ITEMS).build().unwrap();
            let gate = Arc::<Slot<u64>>::default();
            let opens = gate.clone();
            let host = launch::host(&platform, move |call| {
                opens.wait();
                call.part(0)?.slice_mut::<u32>()?.fill(7);
                Ok(())
            });
            let kernel = Kernel::new("fill", 1).write(&target).launchers(host.unwrap()).unwrap();
            let mut running = Coexecutor::new(&platform).start(&kernel, ITEMS).unwrap();
            let canceller = running.canceller();
            drop((kernel, target, platform));
            gate.set(1);
            running.wait().unwrap();
            assert!(memory.upgrade().is_none(), "the platform, with the target, is kept");
            canceller.cancel();
            assert!(running.wait().is_ok());
        }
    });
    run.join();
}

/// A link that waits for a run as it goes.
struct Asks {
    slot: Arc<Mutex<Option<Running>>>,
    told: Arc<Mutex<Option<RunError>>>,
}

impl std::fmt::Debug for Asks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Asks")
    }
}

impl CrossArena for Asks {
    fn name(&self) -> &str {
        "asks"
    }

    fn can_copy(&self, _: &CopyQuery) -> Option<Cost> {
        None
    }

    fn copy(&self, _: CopyJob) -> Result<Fence, TransferError> {
        Err(TransferError::DeviceLost { loss: None })
    }
}

impl Drop for Asks {
    fn drop(&mut self) {
        let mut running = self.slot.lock().take().expect("it was given the run");
        *self.told.lock() = running.wait().err();
        panic!("a stranger panics as it goes");
    }
}

/// With the last buffer of a run goes its platform, whose plug-ins may ask the run, and may panic.
#[test]
fn what_goes_with_a_run_may_wait_for_it_and_panic() {
    let run = watched("a plug-in that waits for the run with which it goes", || {
        let (slot, told) = <(Arc<Mutex<Option<Running>>>, Arc<Mutex<Option<RunError>>>)>::default();
        let mut builder = Platform::builder();
        builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
        for name in ["main", "other"] {
            let desc = ArenaDesc::new(name, ArenaKind("test"), CPU).with_remotes(DeviceSet::of(CPU));
            builder.add_arena(Arc::new(Null::backed(desc.with_concurrency(Concurrency::BimapFull))));
        }
        let (from, to, allocation) = (ArenaId(0), ArenaId(1), Allocation::Internal);
        let link = Link { from, to, source_via: CPU, target_via: CPU, allocation };
        builder.add_link(link, Arc::new(Asks { slot: slot.clone(), told: told.clone() }));
        let platform = builder.build().unwrap();
        let target = platform.buffer::<u32>(ITEMS).build().unwrap();
        let gate = Arc::<Slot<u64>>::default();
        let opens = gate.clone();
        let kernel =
            Kernel::new("fill", 1).write(&target).variant(CPU, move |_: &Package, _: &mut Grants| {
                opens.wait();
                Ok(Fence::done(0))
            });
        let running = Coexecutor::new(&platform).start(&kernel, ITEMS).unwrap();
        *slot.lock() = Some(running);
        drop((kernel, target, platform));
        gate.set(1);
        until(|| told.lock().is_some());
        assert_eq!(*told.lock(), Some(RunError::WithinItself { kernel: "fill".to_owned() }));
    });
    run.join();
}
