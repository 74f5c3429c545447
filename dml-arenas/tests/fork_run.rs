//! Forks of a process that has a run on its way: the child has the handle, and not the run.

#![cfg(all(target_os = "linux", not(dml_loom)))]

#[path = "common/forks.rs"]
mod forks;

use dml_arenas::MainMem;
use dml_core::{DeviceDesc, DeviceId, DeviceKind, Fence, Grants, Platform};
use dml_scheduler::{Coexecutor, Kernel, KernelError, Package, RunError, Running};
use forks::{Fork, Leave, child, fork, leave};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const CPU: DeviceId = DeviceId(0);
const ITEMS: u64 = 40;

/// Counts how often it was woken, and whether it was dropped.
struct Count(AtomicU64);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn polled(running: &mut Running, waker: &Waker) -> Poll<Result<(), RunError>> {
    Pin::new(running).poll(&mut Context::from_waker(waker)).map(|told| told.map(drop))
}

#[test]
fn a_fork_has_the_handle_of_a_run_and_not_the_run() {
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_arena(Arc::new(MainMem::new(CPU)));
    let platform = builder.build().unwrap();
    let data = platform.buffer_from((0..ITEMS as u32).collect::<Vec<_>>()).unwrap();
    let is_open = Arc::new(AtomicBool::new(false));
    let opened = is_open.clone();
    let kernel = Kernel::new("add one", 1).read_write(&data).variant(
        CPU,
        move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
            while !opened.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_micros(100));
            }
            let mut views = grants.views()?;
            views[0].slice_mut::<u32>()?.iter_mut().for_each(|value| *value += 1);
            Ok(Fence::done(package.items()))
        },
    );
    let mut running = Coexecutor::new(&platform).start(&kernel, ITEMS).unwrap();
    let count = Arc::new(Count(AtomicU64::new(0)));
    let waker = Waker::from(count.clone());
    assert!(polled(&mut running, &waker).is_pending());
    let forked = || Err(RunError::Forked { kernel: "add one".to_owned() });
    child(|| {
        assert_eq!(running.wait().map(drop), forked());
        assert_eq!(running.wait_timeout(Duration::from_secs(60)).map(drop), forked());
        assert_eq!(polled(&mut running, Waker::noop()), Poll::Ready(forked()));
        assert!(running.is_ended());
        assert_eq!((running.progress().computed, running.progress().items), (0, ITEMS));
        running.cancel();
        running.canceller().cancel();
    })
    .ends_well();
    let dropped = match fork() {
        Fork::Child => leave(Leave::AtOnce, move || {
            drop(running);
            assert_eq!(count.0.load(Ordering::SeqCst), 0);
        }),
        Fork::Parent(child) => child,
    };
    dropped.ends_well();
    // Nothing of that has reached the run.
    assert!(!running.is_ended() && polled(&mut running, &waker).is_pending());
    is_open.store(true, Ordering::SeqCst);
    running.wait().expect("nobody cancelled it here");
    assert!((1..).zip(&*data.read().unwrap()).all(|(expected, value)| expected == *value));
}
