//! Arenas and mechanisms that take time, move bytes at random moments, and fail.

use super::executor::{below, is_running, now_ns, pass, wake_at};
use crate::Layers;
use dml_arenas::Null;
use dml_arenas::faulty::{Around, CallKind, Piece, Wrapped};
use dml_core::internal::sync::{Arc, Mutex};
use dml_core::{
    AllocError, Arena, ArenaDesc, ArenaId, Completion, CopyJob, CopyQuery, Cost, CrossArena, Fence, LinkId,
    MapReport, TransferError,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, Waker};

/// How often calls fail: once in this many calls, or never.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weather {
    pub(super) faults: Option<u64>,
}

/// The state that the arenas of a simulation share.
#[derive(Debug, Default)]
pub(super) struct Sky {
    pub(super) weather: Weather,
    pub(super) faults: AtomicU64,
    pub(super) calls: AtomicU64,
}

impl Sky {
    /// Counts a call, and returns whether it fails.
    fn strikes(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let strikes = is_running() && self.weather.faults.is_some_and(|often| below(often) == 0);
        if strikes {
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
        strikes
    }
}

/// Lets a random time pass, or none.
fn linger() {
    if is_running() && below(3) > 0 {
        pass(below(2_000));
    }
}

fn broken() -> TransferError {
    TransferError::Framework { call: "simulated", code: -1, message: "the seed says so".into() }
}

/// A `Null` arena whose calls take time.
pub(super) type SimArena = Wrapped<Null, Fickle>;

/// What makes an arena take its time, and fail.
#[derive(Debug)]
pub(super) struct Fickle {
    sky: Arc<Sky>,
    is_gone: Arc<AtomicBool>,
}

impl Layers for Arc<Sky> {
    fn arena(&self, _id: ArenaId, desc: ArenaDesc) -> Arc<dyn Arena> {
        let fickle = Fickle { sky: self.clone(), is_gone: Arc::default() };
        Arc::new(SimArena::around(Null::backed(desc), fickle))
    }

    fn mechanism<C: CrossArena + 'static>(&self, _id: LinkId, inner: C) -> Arc<dyn CrossArena> {
        Arc::new(SimCross { inner, sky: self.clone() })
    }
}

impl Fickle {
    /// Makes every later call fail.
    pub(super) fn lose(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }
}

impl Around for Fickle {
    fn stored<R>(
        &self,
        arena: &ArenaDesc,
        kind: CallKind,
        bytes: u64,
        make: impl FnOnce(u64) -> Result<R, AllocError>,
    ) -> Result<R, AllocError> {
        if kind == CallKind::Attach {
            return make(bytes);
        }
        linger();
        let arena = arena.name.clone();
        if self.is_gone() {
            return Err(AllocError::DeviceLost { arena, loss: None });
        }
        if self.sky.strikes() {
            return Err(AllocError::OutOfMemory { arena, bytes });
        }
        let block = make(bytes);
        linger();
        block
    }

    fn remapped(
        &self,
        _arena: &ArenaDesc,
        _kind: CallKind,
        change: impl FnOnce() -> Result<MapReport, TransferError>,
    ) -> Result<MapReport, TransferError> {
        linger();
        if self.is_gone() {
            return Err(TransferError::DeviceLost { loss: None });
        }
        if self.sky.strikes() {
            return Err(broken());
        }
        let report = change();
        linger();
        report
    }

    /// A transfer is carried out at once, at its end, or in two halves; or it goes wrong.
    fn moved<T: Piece>(&self, arena: &Arc<dyn Arena>, piece: T) -> Result<Fence, TransferError> {
        if self.is_gone() {
            return Err(TransferError::DeviceLost { loss: None });
        }
        if !is_running() {
            return piece.start(&**arena);
        }
        let (wrong, how) = (self.sky.strikes(), below(3));
        if wrong && how == 0 {
            return Err(broken());
        }
        let len = piece.bytes();
        let cut = below(len + 1);
        let (now, later) = piece.cut(cut);
        now.start(&**arena)?.wait()?;
        let (is_gone, arena) = (self.is_gone.clone(), arena.clone());
        let end = move || {
            if is_gone.load(Ordering::Relaxed) {
                return Err(TransferError::DeviceLost { loss: None });
            }
            match (wrong, how) {
                (true, 1) => return Err(broken()),
                // The bytes still missing; the count is zero if all were moved at once.
                (true, _) => return if cut < len { Ok(cut) } else { Err(broken()) },
                _ => {}
            }
            later.start(&*arena)?.wait()?;
            Ok(len)
        };
        let ends_ns = now_ns() + below(5_000);
        Ok(Fence::awaited(Ending { ends_ns, is_timed: false, end: Mutex::new(Some(Box::new(end))) }))
    }
}

type End = Box<dyn FnOnce() -> Result<u64, TransferError> + Send>;

/// The end of a transfer, at its virtual time.
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

/// A mechanism in which time passes before and after the processor moves the bytes.
#[derive(Debug)]
struct SimCross<C> {
    inner: C,
    sky: Arc<Sky>,
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
