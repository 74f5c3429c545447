//! Copies that end when they are told to, so that a test can act while they run.

use crate::history::Audited;
use crate::platforms::CPU;
use dml_arenas::Null;
use dml_core::internal::sync::{Arc, Condvar, Mutex};
use dml_core::{
    Allocation, ArenaDesc, ArenaId, ArenaKind, Completion, Concurrency, CopyJob, CopyQuery, Cost, CrossArena,
    DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence, HostStaged, Link, Platform, TransferError,
};
use std::task::{Poll, Waker};

/// A copy that has begun. Its bytes have moved, and its end is held back.
#[derive(Debug, Default)]
pub struct HeldCopy {
    end: Mutex<End>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct End {
    result: Option<Result<u64, TransferError>>,
    waker: Option<Waker>,
    waiting: usize,
    polled: usize,
}

impl HeldCopy {
    /// Ends the copy.
    pub fn end(&self, result: Result<u64, TransferError>) {
        let waker = {
            let mut end = self.end.lock();
            end.result = Some(result);
            end.waker.take()
        };
        self.ended.notify_all();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Returns how often the copy was polled.
    #[must_use]
    pub fn polled(&self) -> usize {
        self.end.lock().polled
    }

    /// Returns how many threads have blocked for the end.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.end.lock().waiting
    }
}

struct Ending(Arc<HeldCopy>);

impl Completion for Ending {
    fn wait(self: Box<Self>) -> Result<u64, TransferError> {
        let mut end = self.0.end.lock();
        end.waiting += 1;
        loop {
            match end.result.clone() {
                Some(result) => return result,
                // A failed test ends even if it has not ended its copies.
                None if std::thread::panicking() => return Ok(0),
                None => end = self.0.ended.wait(end),
            }
        }
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>> {
        let mut end = self.0.end.lock();
        end.polled += 1;
        match end.result.clone() {
            Some(result) => Poll::Ready(result),
            None => {
                end.waker = Some(waker.clone());
                Poll::Pending
            }
        }
    }
}

/// Staged copies whose ends are held back, one by one.
#[derive(Debug, Default)]
pub struct HeldCopies {
    inner: HostStaged,
    begun: Mutex<Vec<Arc<HeldCopy>>>,
}

impl HeldCopies {
    /// Returns the copies that have begun, in the order of their beginning.
    #[must_use]
    pub fn begun(&self) -> Vec<Arc<HeldCopy>> {
        self.begun.lock().clone()
    }
}

impl CrossArena for HeldCopies {
    fn name(&self) -> &str {
        "held"
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        self.inner.can_copy(query)
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        self.inner.copy(job)?.wait()?;
        let held = Arc::<HeldCopy>::default();
        self.begun.lock().push(held.clone());
        Ok(Fence::awaited(Ending(held)))
    }
}

/// Builds main memory and two gpus. All copies pass through main memory, and all are held back.
///
/// # Panics
/// Never: the platform is sound.
#[must_use]
pub fn held_star() -> (Audited, Arc<HeldCopies>) {
    let held = Arc::<HeldCopies>::default();
    (star_of([held.clone(), held.clone(), held.clone(), held.clone()]), held)
}

/// Builds main memory and two gpus. The mechanisms carry the copies from the first gpu, to it, to the second
/// one, and from it, in this order.
///
/// # Panics
/// Never: the platform is sound.
#[must_use]
pub fn star_of(mechanisms: [Arc<dyn CrossArena>; 4]) -> Audited {
    let mut builder = Platform::builder().without_default_links();
    for (name, kind) in [("cpu", DeviceKind::Cpu), ("gpu", DeviceKind::Gpu), ("gpu2", DeviceKind::Gpu)] {
        let device = builder.add_device(DeviceDesc::new(name, kind));
        let is_host = device == CPU;
        let remotes = if is_host { DeviceSet::of(CPU) } else { DeviceSet::EMPTY };
        let width = if is_host { Concurrency::BimapFull } else { Concurrency::Exclusive };
        let desc = ArenaDesc::new(name, ArenaKind("test"), device).with_remotes(remotes);
        builder.add_arena(Arc::new(Null::backed(desc.with_concurrency(width))));
    }
    for ((from, to), mechanism) in [(1, 0), (0, 1), (0, 2), (2, 0)].into_iter().zip(mechanisms) {
        let link = Link {
            from: ArenaId(from),
            to: ArenaId(to),
            source_via: DeviceId(from.into()),
            target_via: DeviceId(to.into()),
            allocation: Allocation::Internal,
        };
        builder.add_link(link, mechanism);
    }
    Audited::new(builder.build().expect("a sound platform"))
}
