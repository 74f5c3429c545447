//! A memory of limited size whose copies are done by a thread of its own, in order: nothing of it is mapped,
//! and its fences are awaited.

use dml_arenas::MainMem;
use dml_core::internal::sync::{Condvar, Mutex};
use dml_core::{
    AllocError, Arena, ArenaDesc, ArenaKind, Block, BlockRef, Completion, CopyIn, CopyOut, DeviceId, Fence,
    Fill, NativeHandle, NewBlock, Span, TransferError,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::task::{Poll, Waker};

/// What is wrong with a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// Nothing.
    None,
    /// A block's last 64 bytes are given away again where it has more than a page.
    Overlap,
    /// Blocks dropped without [`Arena::free`] are lost.
    DropLeaks,
    /// Freed neighbours do not become one.
    Fragments,
    /// It is never full.
    Bottomless,
    /// Fences never call a waker.
    NeverWakes,
    /// The second poll of a fence calls the waker of the first poll.
    WakesTheFirst,
    /// Fences say that they have ended when they begin.
    SaysTooSoon,
    /// Without power it does not say that it is lost.
    LossHidden,
    /// Without power it goes on.
    LossIgnored,
    /// Without power its fences never end.
    LossHangs,
}

type Job = Box<dyn FnOnce() + Send>;

/// The arena.
#[derive(Debug)]
pub(crate) struct Pool {
    desc: ArenaDesc,
    defect: Defect,
    inner: Arc<MainMem>,
    memory: BlockRef,
    heap: Arc<Mutex<Heap>>,
    jobs: Sender<Job>,
    power: Arc<AtomicBool>,
}

/// The free stretches, by their start.
#[derive(Debug)]
struct Heap {
    free: BTreeMap<u64, u64>,
    joins: bool,
}

impl Heap {
    fn take(&mut self, len: u64) -> Option<u64> {
        let (&start, &room) = self.free.iter().find(|&(_, &room)| room >= len)?;
        self.free.remove(&start);
        if room > len {
            self.free.insert(start + len, room - len);
        }
        Some(start)
    }

    fn give(&mut self, mut start: u64, mut len: u64) {
        if self.joins {
            if let Some(after) = self.free.remove(&(start + len)) {
                len += after;
            }
            if let Some((&before, &room)) = self.free.range(..start).next_back()
                && before + room == start
            {
                (start, len) = (before, room + len);
            }
        }
        if len > 0 {
            self.free.insert(start, len);
        }
    }
}

/// A stretch of the pool's memory.
#[derive(Debug)]
struct Stretch {
    start: u64,
    len: u64,
    room: u64,
    heap: Arc<Mutex<Heap>>,
    returns: Mutex<bool>,
}

impl Block for Stretch {
    fn len(&self) -> u64 {
        self.len
    }

    fn native(&self) -> NativeHandle {
        NativeHandle(self.start as usize)
    }
}

impl Drop for Stretch {
    fn drop(&mut self) {
        if *self.returns.get_mut() {
            self.heap.lock().give(self.start, self.room);
        }
    }
}

impl Pool {
    /// Room for the larger blocks of the suite, several times.
    pub(crate) const CAPACITY_BYTES: u64 = 48 << 20;

    /// A pool that works.
    pub(crate) fn new(native: DeviceId, capacity: u64) -> Self {
        Self::with(native, capacity, Defect::None)
    }

    /// A pool with a defect.
    pub(crate) fn with(native: DeviceId, capacity: u64, defect: Defect) -> Self {
        let inner = Arc::new(MainMem::new(DeviceId(0)));
        let memory = inner.alloc(capacity).expect("memory for a test").into_block();
        let joins = defect != Defect::Fragments;
        let heap = Heap { free: BTreeMap::from([(0, capacity)]), joins };
        let (jobs, queue) = channel::<Job>();
        // It ends with the arena, which holds the one sender.
        std::thread::spawn(move || queue.into_iter().for_each(|job| job()));
        let desc = ArenaDesc::new("pool", ArenaKind("pool"), native);
        let power = Arc::new(AtomicBool::new(true));
        Self { desc, defect, inner, memory, heap: Arc::new(Mutex::new(heap)), jobs, power }
    }

    /// What is switched off to lose the device.
    pub(crate) fn power(&self) -> Arc<AtomicBool> {
        self.power.clone()
    }

    fn is_off(&self) -> bool {
        !self.power.load(Ordering::SeqCst)
    }

    fn own(&self, block: &BlockRef, span: Span) -> Span {
        let own = block.downcast_ref::<Stretch>().filter(|own| Arc::ptr_eq(&own.heap, &self.heap));
        let own =
            own.unwrap_or_else(|| panic!("core bug: pool was handed a block of another arena: {block:?}"));
        assert!(span.end() <= own.len, "core bug: pool was asked for bytes {span} of {}", own.len);
        Span::new(own.start + span.start(), own.start + span.end())
    }

    /// Has the thread do something to the memory; `block` lives until that is done.
    fn start(
        &self,
        block: &BlockRef,
        work: impl FnOnce(&MainMem, &BlockRef) -> Result<Fence, TransferError> + Send + 'static,
    ) -> Fence {
        if self.is_off() && self.defect != Defect::LossIgnored {
            return match self.defect {
                Defect::LossHangs => Fence::running(|| {
                    loop {
                        std::thread::park();
                    }
                }),
                _ => Fence::running(|| Err(TransferError::DeviceLost { loss: None })),
            };
        }
        let end = Arc::new(End::default());
        let (inner, memory, block, told) =
            (self.inner.clone(), self.memory.clone(), block.clone(), end.clone());
        let job = Box::new(move || {
            let ended = work(&inner, &memory).and_then(Fence::wait);
            drop(block);
            told.tell(ended);
        });
        assert!(self.jobs.send(job).is_ok(), "the thread outlives the arena");
        Fence::awaited(Awaited { end, defect: self.defect, first: None, polls: 0 })
    }
}

/// How a job ended, once it has.
#[derive(Debug, Default)]
struct End {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ended: Option<Result<u64, TransferError>>,
    /// Of the last poll.
    waker: Option<Waker>,
}

impl End {
    fn tell(&self, ended: Result<u64, TransferError>) {
        let waker = {
            let mut state = self.state.lock();
            state.ended = Some(ended);
            state.waker.take()
        };
        self.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

struct Awaited {
    end: Arc<End>,
    defect: Defect,
    /// Of the first poll, for a fence with a defect.
    first: Option<Waker>,
    polls: u32,
}

impl Completion for Awaited {
    fn wait(self: Box<Self>) -> Result<u64, TransferError> {
        let mut state = self.end.state.lock();
        loop {
            if let Some(ended) = state.ended.take() {
                return ended;
            }
            state = self.end.changed.wait(state);
        }
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>> {
        self.polls += 1;
        match (self.defect, self.polls) {
            (Defect::NeverWakes, _) => return Poll::Pending,
            (Defect::WakesTheFirst, 1) => {
                self.first = Some(waker.clone());
                return Poll::Pending;
            }
            (Defect::WakesTheFirst, 2) => {
                self.first.take().expect("polled before").wake();
                return Poll::Pending;
            }
            (Defect::SaysTooSoon, 1) => {
                waker.wake_by_ref();
                return Poll::Pending;
            }
            _ => {}
        }
        let mut state = self.end.state.lock();
        match state.ended.take() {
            Some(ended) => Poll::Ready(ended),
            None => {
                state.waker = Some(waker.clone());
                Poll::Pending
            }
        }
    }

    fn has_ended(&self) -> bool {
        match self.defect {
            Defect::None => self.end.state.lock().ended.is_some(),
            defect => defect == Defect::SaysTooSoon,
        }
    }
}

impl Arena for Pool {
    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        if self.is_off() && self.defect != Defect::LossIgnored {
            return Err(AllocError::DeviceLost { arena: self.desc.name.clone(), loss: None });
        }
        let full = || AllocError::OutOfMemory { arena: self.desc.name.clone(), bytes: len };
        let room = len.checked_next_multiple_of(64).ok_or_else(full)?;
        let taken = if self.defect == Defect::Overlap && room > 4096 { room - 64 } else { room };
        let start = match self.heap.lock().take(taken) {
            None if self.defect == Defect::Bottomless && room <= 1 << 30 => 0,
            start => start.ok_or_else(full)?,
        };
        let returns = Mutex::new(self.defect != Defect::DropLeaks);
        let heap = self.heap.clone();
        // With an overlap, what is past the end of the memory is not given out.
        let len = len.min(self.memory.len() - start);
        Ok(NewBlock::new(Arc::new(Stretch { start, len, room: taken, heap, returns })))
    }

    fn free(&self, block: BlockRef) {
        self.own(&block, Span::new(0, 0));
        if let Some(own) = block.downcast_ref::<Stretch>() {
            *own.returns.lock() = true;
        }
    }

    fn is_lost(&self) -> bool {
        self.is_off() && self.defect != Defect::LossHidden
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        let at = self.own(copy.block(), copy.span());
        let (block, _, from) = copy.into_parts();
        Ok(self.start(&block, move |inner, memory| {
            // SAFETY: the pool's thread alone touches its memory, one job after the other, and waits for
            // each.
            inner.copy_in(unsafe { CopyIn::new(memory, at.start(), from) })
        }))
    }

    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError> {
        let at = self.own(copy.block(), copy.span());
        let (block, _, to) = copy.into_parts();
        Ok(self.start(&block, move |inner, memory| {
            // SAFETY: as in `copy_in`.
            inner.copy_out(unsafe { CopyOut::new(memory, at.start(), to) })
        }))
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        let at = self.own(fill.block(), fill.span());
        let block = fill.block().clone();
        Ok(self.start(&block, move |inner, memory| {
            // SAFETY: as in `copy_in`.
            let filled = inner.fill(unsafe { Fill::new(memory, at, fill.byte()) });
            drop(fill);
            filled
        }))
    }
}
