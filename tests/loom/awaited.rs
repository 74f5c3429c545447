//! Copies that end in a thread of their own, as a device's do, while a future awaits them (I-3, I-15, L-4).

use crate::rig::{ALL, CPU, GPU, MAIN, Machine, Shared, VIDEO, explore, explore_all, thread};
use dml::core::internal::sync::{Arc, Condvar, Mutex};
use dml::core::{Allocation, Completion, CopyJob, CopyQuery, Cost, CrossArena, Fence, Link, TransferError};
use loom::future::block_on;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A mechanism that leaves its copy to the thread that calls [`Engine::serve`].
struct Engine {
    due: Mutex<Option<Due>>,
    arrived: Condvar,
}

struct Due {
    job: CopyJob,
    end: Arc<End>,
}

impl Engine {
    /// Waits for a copy, carries it out and says so.
    fn serve(&self) {
        let mut due = self.due.lock();
        let copy = loop {
            match due.take() {
                Some(copy) => break copy,
                None => due = self.arrived.wait(due),
            }
        };
        drop(due);
        let copied = copy.job.write().expect("started");
        copy.end.reach(copied.wait().expect("copied"));
    }
}

impl CrossArena for Engine {
    fn name(&self) -> &'static str {
        "engine"
    }

    fn can_copy(&self, _query: &CopyQuery) -> Option<Cost> {
        Some(Cost::from_ns(1))
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        let end = Arc::new(End::default());
        *self.due.lock() = Some(Due { job, end: end.clone() });
        self.arrived.notify_all();
        Ok(Fence::awaited(Awaited(end)))
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Engine")
    }
}

/// The end of one copy: how many bytes there were, or who wants to know.
#[derive(Default)]
struct End {
    state: Mutex<(Option<u64>, Option<Waker>)>,
    reached: Condvar,
}

impl End {
    fn reach(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.0 = Some(bytes);
        let waker = state.1.take();
        drop(state);
        self.reached.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

struct Awaited(Arc<End>);

impl Completion for Awaited {
    fn wait(self: Box<Self>) -> Result<u64, TransferError> {
        let mut state = self.0.state.lock();
        loop {
            match state.0 {
                Some(bytes) => return Ok(bytes),
                None => state = self.0.reached.wait(state),
            }
        }
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, TransferError>> {
        let mut state = self.0.state.lock();
        match state.0 {
            Some(bytes) => Poll::Ready(Ok(bytes)),
            None => {
                state.1 = Some(waker.clone());
                Poll::Pending
            }
        }
    }
}

/// A buffer that the host has written, and what copies it to the device.
fn with_engine() -> (Shared, Arc<Engine>) {
    let mut made = None;
    let machine = Machine::joined(1, |builder, _| {
        let engine = Arc::new(Engine { due: Mutex::new(None), arrived: Condvar::new() });
        let (from, to, allocation) = (MAIN, VIDEO, Allocation::Internal);
        builder.add_link(Link { from, to, source_via: CPU, target_via: GPU, allocation }, engine.clone());
        made = Some(engine);
    });
    (Shared::new(&machine), made.expect("made with the machine"))
}

#[test]
fn l04_a_copy_that_ends_wakes_the_future_that_awaits_it() {
    explore_all(|| {
        let (mine, engine) = with_engine();
        let device = thread::spawn(move || engine.serve());
        let grants = block_on(mine.ask(GPU).read(&mine.buffer).into_future()).expect("granted in the end");
        assert_eq!(mine.seen(&grants, GPU, &mine.buffer), 0);
        drop(grants);
        device.join().expect("the device's thread ends");
        mine.end();
    });
}

/// The dropped request no longer needs the bytes, but their copy is in flight: a writer of the source waits
/// for the copy all the same.
#[test]
fn i15_a_future_dropped_while_its_copy_runs_keeps_writers_off() {
    explore(|| {
        let (mine, engine) = with_engine();
        let device = thread::spawn(move || engine.serve());
        let mut future = mine.ask(GPU).read(&mine.buffer).into_future();
        let polled = Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop()));
        let theirs = mine.clone();
        let writer = thread::spawn(move || theirs.write(CPU, ALL, 1));
        drop((polled, future));
        device.join().expect("the device's thread ends");
        writer.join().expect("the writer ends");
        assert_eq!(mine.read(CPU, ALL), 1);
        mine.end();
    });
}

/// The thread that keeps the prefetch writes its bytes: it notices the end of the copy itself.
#[test]
fn l03_a_writer_ends_a_prefetch_that_is_kept() {
    explore_all(|| {
        let (mine, engine) = with_engine();
        let device = thread::spawn(move || engine.serve());
        let coming = mine.buffer.prefetch(GPU, ALL);
        mine.write(CPU, ALL, 1);
        assert_eq!(coming.wait(), Ok(()), "the bytes came before the writer's");
        device.join().expect("the device's thread ends");
        mine.end();
    });
}

/// As before, by a future.
#[test]
fn l04_the_end_of_a_kept_prefetch_wakes_the_future_behind_it() {
    explore_all(|| {
        let (mine, engine) = with_engine();
        let device = thread::spawn(move || engine.serve());
        let coming = mine.buffer.prefetch(GPU, ALL);
        let writer = mine.ask(CPU).write(&mine.buffer).into_future();
        drop(block_on(writer).expect("granted in the end"));
        assert_eq!(coming.wait(), Ok(()));
        device.join().expect("the device's thread ends");
        mine.end();
    });
}

/// The task that asked and a writer carry one prefetch on, and neither takes the wake-up of the other.
#[test]
fn l04_the_asker_and_a_writer_share_a_prefetch() {
    explore(|| {
        let (mine, engine) = with_engine();
        let coming = mine.buffer.prefetch(GPU, ALL);
        let theirs = mine.clone();
        let writer = thread::spawn(move || theirs.write(CPU, ALL, 1));
        let device = thread::spawn(move || engine.serve());
        assert_eq!(block_on(coming), Ok(()));
        writer.join().expect("the writer ends");
        device.join().expect("the device's thread ends");
        mine.end();
    });
}

/// A close ends a prefetch that another thread gives up meanwhile.
#[test]
fn l06_a_close_and_the_end_of_a_prefetch() {
    explore(|| {
        let (mine, engine) = with_engine();
        let coming = mine.buffer.prefetch(GPU, ALL);
        let closed = mine.buffer.clone();
        let closer = thread::spawn(move || closed.close());
        let device = thread::spawn(move || engine.serve());
        drop(coming);
        closer.join().expect("the closer ends");
        device.join().expect("the device's thread ends");
        mine.end();
    });
}
