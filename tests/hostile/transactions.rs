//! Grants and kernels in flight are transactions: nothing is committed without a release, and no request is
//! admitted before the launched work has ended.

use crate::vault::{self, CPU, Call, Deed, GPU, Join, Lie, Plan, failing, platform};
use dml::core::internal::sync::Arc;
use dml::core::{AcquireError, Buffer, Completion, Fence, Grants, Platform, TransferError};
use dml_verify::{block_on, poll_once};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, Waker};

fn sevens() -> (Platform, Buffer<u32>) {
    let platform = platform(Join::Staged, &Plan::none(), Lie::None);
    let buffer = platform.buffer_from(vec![7_u32; 50]).expect("a small buffer");
    // The device has them too, so that they survive a writer there.
    buffer.raw().prefetch(GPU, 0..200).wait().unwrap();
    (platform, buffer)
}

fn poisoned(buffer: &Buffer<u32>) -> bool {
    match buffer.read().map(drop) {
        Err(AcquireError::Poisoned { restorable, .. }) => restorable,
        other => panic!("{other:?}"),
    }
}

/// What a function does whose launch fails: it returns early, and its grants are dropped.
#[test]
fn an_early_return_commits_nothing() {
    let (platform, buffer) = sevens();
    let launch = || -> Result<(), Box<dyn std::error::Error>> {
        let mut grants = platform.acquire(GPU).read_write(&buffer).wait()?;
        grants.write_bytes(&buffer.range(0..10), &[0x44; 40])?;
        Err("the launch fails")?;
        grants.release()?;
        Ok(())
    };
    assert!(launch().is_err());
    assert!(poisoned(&buffer), "what was half written is not read");
    buffer.raw().restore(0..200).unwrap();
    assert_eq!(*buffer.read().unwrap(), [7; 50]);
    // A buffer that was never written stays unreadable.
    let fresh = platform.buffer::<u32>(4).build().unwrap();
    let grants = platform.acquire(GPU).write(&fresh).wait().unwrap();
    let _ = grants.native(&fresh).unwrap();
    drop(grants);
    assert!(fresh.read().is_err());
}

#[test]
fn what_was_only_read_or_not_looked_at_is_as_it_was() {
    let (platform, buffer) = sevens();
    drop(platform.acquire(GPU).write(&buffer).wait().unwrap());
    let grants = platform.acquire(GPU).read_write(&buffer).wait().unwrap();
    assert_eq!(grants.read_bytes(&buffer.range(0..1)).unwrap(), 7_u32.to_ne_bytes());
    drop(grants);
    let view = buffer.read_write().unwrap();
    assert_eq!(view[3], 7);
    drop(view);
    assert_eq!((&*buffer.read().unwrap(), buffer.raw().snapshot().commit_seq().0), (&[7; 50][..], 0));
    // A kernel that never began, though it had its storage.
    let grants = platform.acquire(GPU).write(&buffer).wait().unwrap();
    let _ = grants.block(&buffer).unwrap();
    grants.not_started().unwrap();
    assert_eq!(*buffer.read().unwrap(), [7; 50]);
}

#[test]
fn a_host_view_commits_by_its_own_call() {
    let (_, buffer) = sevens();
    let mut view = buffer.read_write().unwrap();
    view[0] = 8;
    drop(view);
    assert!(poisoned(&buffer));
    buffer.raw().restore(0..200).unwrap();
    let mut view = buffer.read_write().unwrap();
    view[0] = 8;
    view.release().unwrap();
    assert_eq!(buffer.read().unwrap()[..2], [8, 7]);
}

/// A wait that is given up beside a kernel that fails.
#[test]
fn a_cancelled_wait_beside_a_failing_kernel_commits_nothing() {
    let (platform, buffer) = sevens();
    let grants = platform.acquire(GPU).read_write(&buffer).wait().unwrap();
    let running = grants.in_flight(Fence::running(|| Err(TransferError::Infeasible)));
    let mut waiting = platform.acquire(CPU).read(&buffer).into_future();
    assert!(poll_once(&mut waiting).is_pending());
    drop(running);
    drop(waiting);
    assert!(poisoned(&buffer));
}

/// A wait does not block once `has_ended` returns true. Kernels of some frameworks can only be waited for.
#[test]
fn a_flight_that_has_ended_says_so() {
    let (platform, buffer) = sevens();
    let flight = |kernel: Fence| platform.acquire(GPU).read(&buffer).wait().unwrap().in_flight(kernel);
    let work = Arc::new(Work::default());
    let running = flight(Fence::awaited(End(work.clone())));
    assert!(!running.has_ended());
    work.ended.store(true, Ordering::SeqCst);
    assert!(running.has_ended());
    assert_eq!(work.waited.load(Ordering::SeqCst), 0, "to ask is not to wait");
    drop(running);
    let can_only_be_waited_for = flight(Fence::running(|| Ok(0)));
    assert!(!can_only_be_waited_for.has_ended());
    can_only_be_waited_for.wait().unwrap().release().unwrap();
    let done = flight(Fence::done(0));
    assert!(done.has_ended());
    done.wait().unwrap().release().unwrap();
    let unwell = vault::platform(Join::Staged, &Plan::always_at(Call::FenceHasEnded, Deed::Panic), Lie::None);
    let panics = flight(vault::kernel(&unwell).unwrap());
    assert!(!panics.has_ended());
    panics.wait().unwrap().release().unwrap();
}

/// Work that ends when it is told to.
#[derive(Default)]
struct Work {
    ended: AtomicBool,
    waited: AtomicUsize,
}

struct End(Arc<Work>);

impl Completion for End {
    fn wait(self: Box<Self>) -> Result<u64, TransferError> {
        self.0.waited.fetch_add(1, Ordering::SeqCst);
        self.0.ended.store(true, Ordering::SeqCst);
        Ok(0)
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>> {
        if self.0.ended.swap(true, Ordering::SeqCst) {
            return Poll::Ready(Ok(0));
        }
        waker.wake_by_ref();
        Poll::Pending
    }

    fn has_ended(&self) -> bool {
        self.0.ended.load(Ordering::SeqCst)
    }
}

use std::future::IntoFuture;

#[test]
fn a_kernel_in_flight_is_a_future() {
    let (platform, buffer) = sevens();
    let work = Arc::new(Work::default());
    let mut grants = platform.acquire(GPU).read_write(&buffer).wait().unwrap();
    grants.write_bytes(&buffer, bytemuck::cast_slice(&[9_u32; 50])).unwrap();
    let grants = block_on(grants.in_flight(Fence::awaited(End(work.clone())))).unwrap();
    assert_eq!(work.waited.load(Ordering::SeqCst), 0, "it was awaited, not waited for");
    grants.release().unwrap();
    assert_eq!(*buffer.read().unwrap(), [9; 50]);
    // Polled on after its end it hands nothing out.
    let mut running = platform.acquire(GPU).read(&buffer).wait().unwrap().in_flight(Fence::done(0));
    assert!(matches!(poll_once(&mut running), Poll::Ready(Ok(_))));
    assert!(matches!(poll_once(&mut running), Poll::Ready(Err(TransferError::Finished))));
}

#[test]
fn a_dropped_flight_waits_lets_nobody_in_and_commits_nothing() {
    let (platform, buffer) = sevens();
    let work = Arc::new(Work::default());
    let mut grants = platform.acquire(GPU).read_write(&buffer).wait().unwrap();
    grants.write_bytes(&buffer, &[1; 200]).unwrap();
    let mut running = grants.in_flight(Fence::awaited(End(work.clone())));
    assert!(poll_once(&mut running).is_pending());
    assert!(platform.acquire(CPU).read(&buffer).try_now().is_err_and(|error| error.is_busy()));
    drop(running);
    assert_eq!(work.waited.load(Ordering::SeqCst), 1);
    assert!(poisoned(&buffer));
    // A fence that panics is a failed kernel, and the panic reaches no caller.
    for how in 0..3 {
        buffer.raw().restore(0..200).unwrap();
        let grants = platform.acquire(GPU).read_write(&buffer).wait().unwrap();
        let mut running =
            grants.in_flight(Fence::running(|| std::panic::resume_unwind(Box::new("a stranger's fence"))));
        match how {
            0 => drop(running),
            1 => assert!(matches!(running.wait().map(drop), Err(TransferError::Panicked { .. }))),
            _ => assert!(matches!(poll_once(&mut running), Poll::Ready(Err(TransferError::Panicked { .. })))),
        }
        assert!(poisoned(&buffer));
    }
}

/// Storage that was handed out is taken back when the arena says that nothing launched on it is left.
#[test]
fn what_was_launched_ends_before_anybody_is_let_in() {
    for ends in ["dropped", "failed", "panicked", "not clean"] {
        let seen = Arc::new(std::sync::OnceLock::<Buffer<u32>>::new());
        let (looked_at, told) = (seen.clone(), Arc::new(AtomicUsize::new(0)));
        let busy = told.clone();
        let plan = Plan::at(
            Call::Tail,
            Deed::First(Arc::new(move || {
                let buffer = looked_at.get().expect("there by now");
                let asked = buffer.raw().platform().acquire(CPU).read(buffer).try_now();
                busy.fetch_add(usize::from(asked.is_err_and(|error| error.is_busy())), Ordering::SeqCst);
            })),
        );
        let platform = platform(Join::Staged, &plan, Lie::None);
        let buffer = platform.buffer_from(vec![7_u32; 50]).unwrap();
        assert!(seen.set(buffer.clone()).is_ok());
        let acquire = platform.acquire(GPU);
        let acquire = if ends == "not clean" { acquire.write(&buffer) } else { acquire.read_write(&buffer) };
        let grants = acquire.wait().unwrap();
        let _ = grants.block(&buffer).unwrap();
        match ends {
            "dropped" => drop(grants),
            "failed" => grants.failed().unwrap(),
            "not clean" => assert!(matches!(grants.clean(), Err(AcquireError::NotClean { .. }))),
            _ => {
                let kernel = std::thread::spawn(move || {
                    let _mine = grants;
                    std::panic::resume_unwind(Box::new("a kernel's own fault"));
                });
                assert!(kernel.join().is_err());
            }
        }
        assert_eq!(told.load(Ordering::SeqCst), 1, "{ends}: the end was waited for, with everybody out");
        assert!(poisoned(&buffer), "{ends}");
    }
}

/// Of no bytes nothing is written, so that a drop has nothing to poison.
#[test]
fn a_copy_of_no_bytes_writes_nothing() {
    let (platform, buffer) = sevens();
    let target = platform.buffer_from(vec![1_u32; 50]).unwrap();
    let mut there = platform.acquire(GPU).read_write(&buffer).wait().unwrap();
    let mut home = platform.acquire(CPU).read_write(&target).wait().unwrap();
    there.write_bytes(&buffer.range(3..3), &[]).unwrap();
    there.read_bytes_to(&buffer.range(3..3), &mut home, &target.range(4..4)).unwrap();
    drop((there, home));
    assert_eq!((buffer.read().unwrap()[3], target.read().unwrap()[4]), (7, 1));
}

/// A transfer that was waited for is no launch: dropping its grants does not wait for launches of others.
#[test]
fn nobody_waits_for_the_end_of_launches_that_are_not_theirs() {
    let plan = Plan::always_at(Call::Tail, Deed::None);
    let platform = platform(Join::Staged, &plan, Lie::None);
    let (buffer, target) =
        (platform.buffer_from(vec![7_u32; 50]).unwrap(), platform.buffer_from(vec![1_u32; 50]).unwrap());
    let mut grants = platform.acquire(GPU).read_write(&buffer).wait().unwrap();
    let mut targets = platform.acquire(CPU).write(&target).wait().unwrap();
    grants.write_bytes(&buffer.range(0..2), &[9; 8]).unwrap();
    assert_eq!(grants.read_bytes(&buffer.range(1..2)).unwrap(), [9; 4]);
    grants.read_bytes_to(&buffer, &mut targets, &target).unwrap();
    drop((grants, targets));
    assert_eq!(plan.met.load(Ordering::SeqCst), 0, "the tail was asked for");
    // A block that was handed out may be launched on.
    let other = platform.buffer_from(vec![7_u32; 50]).unwrap();
    for handed_out in [false, true] {
        let grants = platform.acquire(GPU).read(&other).wait().unwrap();
        assert_eq!(grants.read_bytes(&other.range(1..2)).unwrap(), 7_u32.to_ne_bytes());
        if handed_out {
            let _ = grants.granted(&other, dml::core::Access::ReadOnly).unwrap();
        }
        drop(grants);
        assert_eq!(plan.met.load(Ordering::SeqCst), usize::from(handed_out));
    }
}

/// A transfer that failed may still be in flight, so dropping its grants waits for the device.
#[test]
fn the_end_of_a_transfer_that_failed_is_waited_for() {
    type Copies = fn(&mut Grants, &mut Grants, &[Buffer<u32>; 2]) -> Result<(), AcquireError>;
    let ways: [(&str, Copies); 3] = [
        ("write_bytes", |there, _, [buffer, _]| there.write_bytes(buffer, &[9; 200])),
        ("read_bytes", |there, _, [buffer, _]| there.read_bytes(buffer).map(drop)),
        ("read_bytes_to", |there, home, [buffer, target]| there.read_bytes_to(buffer, home, target)),
    ];
    for (what, copies) in ways {
        let plan = Plan::always_at(Call::Tail, Deed::None);
        let platform = failing(&plan, Lie::None);
        let buffers = [0; 2].map(|_| platform.buffer::<u32>(50).build().unwrap());
        let mut there = platform.acquire(GPU).write(&buffers[0]).wait().unwrap();
        let mut home = platform.acquire(CPU).write(&buffers[1]).wait().unwrap();
        let failed = copies(&mut there, &mut home, &buffers).unwrap_err();
        let AcquireError::CopyFailed { from, to, .. } = failed else { panic!("{what}: {failed:?}") };
        let home_is = if what == "read_bytes_to" { "main" } else { "vault" };
        assert!(&*from.name == "vault" && to.name.contains(home_is), "{what}: {from} to {to}");
        assert_eq!(plan.met.load(Ordering::SeqCst), 0, "{what}: nothing was dropped");
        drop(there);
        assert_eq!(plan.met.load(Ordering::SeqCst), 1, "{what}");
    }
}

/// The arena may write there at any time, so no request is admitted at either end.
#[test]
fn an_arena_that_keeps_what_it_copies_to_wedges_both_ends() {
    let platform = platform(Join::Staged, &Plan::none(), Lie::KeepsCopyOut);
    let buffer = platform.buffer::<u32>(50).build().unwrap();
    let target = platform.buffer_from(vec![1_u32; 50]).unwrap();
    let mut grants = platform.acquire(GPU).write(&buffer).wait().unwrap();
    grants.write_bytes(&buffer, &[9; 200]).unwrap();
    let mut targets = platform.acquire(CPU).write(&target).wait().unwrap();
    let kept = grants.read_bytes_to(&buffer, &mut targets, &target).unwrap_err();
    assert!(matches!(kept, AcquireError::ArenaContract { .. }), "{kept:?}");
    assert!(targets.slice::<u32>(&target).is_err() || targets.slice_mut::<u32>(&target).is_err());
    assert!(grants.block(&buffer).is_err());
    drop((grants, targets));
    for one in [&buffer, &target] {
        assert!(matches!(one.read(), Err(AcquireError::Wedged { .. })), "{one:?}");
    }
}
