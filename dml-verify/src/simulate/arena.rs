//! Arenas and mechanisms that take their time, move bytes when they like, and fail.

use super::executor::{below, is_running, now_ns, pass, wake_at};
use dml_arenas::Null;
use dml_core::state::MapState;
use dml_core::sync::{Arc, Mutex};
use dml_core::{
    AllocError, Arena, ArenaDesc, Backing, BlockRef, Completion, CopyIn, CopyJob, CopyOut, CopyQuery, Cost,
    CrossArena, Fence, Fill, MapReport, MapRequest, NewBlock, TransferError, UnmapRequest,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, Waker};

/// How often things go wrong: once in so many calls, or never.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weather {
    pub(super) faults: Option<u64>,
}

/// What the arenas of a simulation have in common.
#[derive(Debug, Default)]
pub(super) struct Sky {
    pub(super) weather: Weather,
    pub(super) faults: AtomicU64,
    pub(super) calls: AtomicU64,
}

impl Sky {
    /// Whether this call goes wrong.
    fn strikes(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let strikes = is_running() && self.weather.faults.is_some_and(|often| below(often) == 0);
        if strikes {
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
        strikes
    }
}

/// Time goes by, more or less.
fn linger() {
    if is_running() && below(3) > 0 {
        pass(below(2_000));
    }
}

fn broken() -> TransferError {
    TransferError::Framework { call: "simulated", code: -1, message: "the seed says so".into() }
}

/// A `Null` that takes time.
#[derive(Debug)]
pub(super) struct SimArena {
    null: Arc<Null>,
    sky: Arc<Sky>,
    lost: Arc<AtomicBool>,
}

impl SimArena {
    pub(super) fn new(desc: ArenaDesc, sky: Arc<Sky>) -> Self {
        Self { null: Arc::new(Null::backed(desc)), sky, lost: Arc::default() }
    }

    pub(super) fn null(&self) -> &Null {
        &self.null
    }

    /// From now on every call fails.
    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    fn storage(
        &self,
        bytes: u64,
        make: impl FnOnce() -> Result<NewBlock, AllocError>,
    ) -> Result<NewBlock, AllocError> {
        linger();
        let arena = self.null.desc().name.clone();
        if self.is_lost() {
            return Err(AllocError::DeviceLost { arena });
        }
        if self.sky.strikes() {
            return Err(AllocError::OutOfMemory { arena, bytes });
        }
        let block = make();
        linger();
        block
    }

    fn remap(
        &self,
        change: impl FnOnce() -> Result<MapReport, TransferError>,
    ) -> Result<MapReport, TransferError> {
        linger();
        if self.is_lost() {
            return Err(TransferError::DeviceLost);
        }
        if self.sky.strikes() {
            return Err(broken());
        }
        let report = change();
        linger();
        report
    }

    /// A transfer of `len` bytes, which `carry_out` does for a part of it: at once, at its end, or in two halves; or it goes
    /// wrong.
    fn transfer<R: Send + 'static>(
        &self,
        request: R,
        len: u64,
        split_at: impl FnOnce(R, u64) -> (R, R),
        carry_out: impl Fn(&Null, R) -> Result<Fence, TransferError> + Send + 'static,
    ) -> Result<Fence, TransferError> {
        if self.is_lost() {
            return Err(TransferError::DeviceLost);
        }
        if !is_running() {
            return carry_out(&self.null, request);
        }
        let (wrong, how) = (self.sky.strikes(), below(3));
        if wrong && how == 0 {
            return Err(broken());
        }
        let cut = below(len + 1);
        let (now, later) = split_at(request, cut);
        carry_out(&self.null, now)?.wait()?;
        let (lost, null) = (self.lost.clone(), self.null.clone());
        let end = move || {
            if lost.load(Ordering::Relaxed) {
                return Err(TransferError::DeviceLost);
            }
            match (wrong, how) {
                (true, 1) => return Err(broken()),
                // Whatever is missing: nothing, where all was moved at once.
                (true, _) => return if cut < len { Ok(cut) } else { Err(broken()) },
                _ => {}
            }
            carry_out(&null, later)?.wait()?;
            Ok(len)
        };
        let ends_ns = now_ns() + below(5_000);
        Ok(Fence::awaited(Ending { ends_ns, is_timed: false, end: Mutex::new(Some(Box::new(end))) }))
    }
}

type End = Box<dyn FnOnce() -> Result<u64, TransferError> + Send>;

/// The end of a transfer, at its time.
struct Ending {
    ends_ns: u64,
    is_timed: bool,
    end: Mutex<Option<End>>,
}

impl Ending {
    fn end(&self) -> Result<u64, TransferError> {
        let end = self.end.lock().take();
        end.map_or(Ok(0), |end| end())
    }
}

impl Completion for Ending {
    fn wait(self: Box<Self>) -> Result<u64, TransferError> {
        if is_running() && now_ns() < self.ends_ns {
            pass(self.ends_ns - now_ns());
        }
        self.end()
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>> {
        if now_ns() >= self.ends_ns {
            return Poll::Ready(self.end());
        }
        if !self.is_timed {
            self.is_timed = true;
            wake_at(self.ends_ns, waker.clone());
        }
        Poll::Pending
    }
}

impl Arena for SimArena {
    fn desc(&self) -> &ArenaDesc {
        self.null.desc()
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        self.storage(len, || self.null.alloc(len))
    }

    fn attach(&self, storage: &Backing) -> Result<BlockRef, AllocError> {
        self.null.attach(storage)
    }

    fn bind(&self, root: &Backing) -> Result<NewBlock, AllocError> {
        self.storage(root.len(), || self.null.bind(root))
    }

    fn free(&self, block: BlockRef) {
        self.null.free(block);
    }

    fn map(&self, request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        self.remap(|| self.null.map(request))
    }

    fn unmap(&self, request: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        self.remap(|| self.null.unmap(request))
    }

    fn map_state(&self, block: &BlockRef) -> Option<MapState> {
        self.null.map_state(block)
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        let len = copy.len();
        self.transfer(copy, len, CopyIn::split_at, Null::copy_in)
    }

    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError> {
        let len = copy.len();
        self.transfer(copy, len, CopyOut::split_at, Null::copy_out)
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        let len = fill.len();
        self.transfer(fill, len, Fill::split_at, Null::fill)
    }
}

/// A mechanism in which time passes before and after the bytes are moved by the processor.
#[derive(Debug)]
pub(super) struct SimCross<C> {
    pub(super) inner: C,
    pub(super) sky: Arc<Sky>,
}

impl<C: CrossArena> CrossArena for SimCross<C> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn can_copy(&self, query: &CopyQuery) -> Option<Cost> {
        self.inner.can_copy(query)
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        linger();
        if self.sky.strikes() {
            return Err(broken());
        }
        let fence = self.inner.copy(job);
        linger();
        fence
    }
}
