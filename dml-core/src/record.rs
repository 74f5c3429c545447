//! What happened: counters that always run, and an event stream that runs when asked for.
//!
//! The events of one buffer are in the order in which its state changed: each is recorded under the buffer's lock.
//! From the stream alone one can check that every reader saw the latest commit and that no copy was needless.

use crate::id::{BufferId, LinkId};
use crate::sync::{Arc, Mutex};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use crate::state::EventKind;

/// A call on an arena, as counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Storage allocated.
    Alloc,
    /// Storage bound to another arena's.
    Bind,
    /// A remote device given access.
    Map,
    /// The native device given access again.
    Unmap,
    /// A framework's read call (device to host).
    Read,
    /// A framework's write call (host to device).
    Write,
    /// A copy by the processor, or between two devices directly.
    Copy,
    /// A fill with zeros.
    Fill,
    /// A kernel launched.
    Kernel,
}

/// Every operation, in the order of their counters.
pub const OPERATIONS: [Operation; 9] = [
    Operation::Alloc,
    Operation::Bind,
    Operation::Map,
    Operation::Unmap,
    Operation::Read,
    Operation::Write,
    Operation::Copy,
    Operation::Fill,
    Operation::Kernel,
];

impl Operation {
    /// The operation's name in the command's JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::Bind => "bind",
            Self::Map => "map",
            Self::Unmap => "unmap",
            Self::Read => "read",
            Self::Write => "write",
            Self::Copy => "copy",
            Self::Fill => "fill",
            Self::Kernel => "kernel",
        }
    }
}

#[derive(Debug, Default)]
struct LinkCounter {
    bytes: AtomicU64,
    copies: AtomicU64,
    ns: AtomicU64,
}

/// The counters of a platform. Counting is a relaxed addition; nothing is ordered by it.
#[derive(Debug)]
pub struct Counters {
    operations: [AtomicU64; OPERATIONS.len()],
    links: Vec<LinkCounter>,
}

/// What one link has carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The link.
    pub link: LinkId,
    /// Bytes moved.
    pub bytes: u64,
    /// Copies made.
    pub copies: u64,
    /// Time between start and completion, summed over the copies.
    pub duration: Duration,
}

impl Counters {
    pub(crate) fn new(links: usize) -> Self {
        Self {
            operations: std::array::from_fn(|_| AtomicU64::new(0)),
            links: (0..links).map(|_| LinkCounter::default()).collect(),
        }
    }

    /// Counts one operation.
    pub fn count(&self, operation: Operation) {
        self.operations[operation as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_transfer(&self, link: LinkId, bytes: u64, duration: Duration) {
        let counter = &self.links[usize::from(link.0)];
        counter.bytes.fetch_add(bytes, Ordering::Relaxed);
        counter.copies.fetch_add(1, Ordering::Relaxed);
        counter.ns.fetch_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How often each operation was called, in the order of [`OPERATIONS`].
    #[must_use]
    pub fn operations(&self) -> [(Operation, u64); OPERATIONS.len()] {
        OPERATIONS.map(|operation| (operation, self.operation(operation)))
    }

    /// How often one operation was called.
    #[must_use]
    pub fn operation(&self, operation: Operation) -> u64 {
        self.operations[operation as usize].load(Ordering::Relaxed)
    }

    /// What each link that carried anything has carried.
    #[must_use]
    pub fn transfers(&self) -> Vec<Transfer> {
        (0..)
            .map(LinkId)
            .zip(&self.links)
            .map(|(link, counter)| Transfer {
                link,
                bytes: counter.bytes.load(Ordering::Relaxed),
                copies: counter.copies.load(Ordering::Relaxed),
                duration: Duration::from_nanos(counter.ns.load(Ordering::Relaxed)),
            })
            .filter(|transfer| transfer.copies > 0)
            .collect()
    }

    /// Sets every counter back to zero.
    pub fn reset(&self) {
        self.operations.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
        for link in &self.links {
            for counter in [&link.bytes, &link.copies, &link.ns] {
                counter.store(0, Ordering::Relaxed);
            }
        }
    }
}

/// An event, its buffer and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Since the platform was built.
    pub at: Duration,
    /// The buffer.
    pub buffer: BufferId,
    /// What happened.
    pub kind: EventKind,
}

/// Collects events while a recording runs.
#[derive(Debug)]
pub(crate) struct Recorder {
    on: AtomicBool,
    since: Instant,
    tape: Mutex<Tape>,
}

/// The events since the oldest recording that runs began.
#[derive(Debug, Default)]
struct Tape {
    next: u64,
    /// The recordings that run: their numbers, and where in `events` each began.
    running: Vec<(u64, usize)>,
    events: Vec<Event>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self { on: AtomicBool::new(false), since: Instant::now(), tape: Mutex::new(Tape::default()) }
    }

    /// Returns whether anybody records.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Records an event; `kind` is evaluated only when recording is on.
    pub(crate) fn record<E: Into<Option<EventKind>>>(&self, buffer: BufferId, kind: impl FnOnce() -> E) {
        if self.is_on()
            && let Some(kind) = kind().into()
        {
            self.tape.lock().events.push(Event { at: self.since.elapsed(), buffer, kind });
        }
    }

    /// Begins a recording and returns its number.
    fn start(&self) -> u64 {
        let mut tape = self.tape.lock();
        tape.next += 1;
        let entry = (tape.next, tape.events.len());
        tape.running.push(entry);
        self.on.store(true, Ordering::Relaxed);
        tape.next
    }

    /// Ends a recording; what it recorded, where it is still running. The tape goes with the last one.
    fn stop(&self, recording: u64) -> Vec<Event> {
        let mut tape = self.tape.lock();
        let Some(index) = tape.running.iter().position(|(number, _)| *number == recording) else {
            return Vec::new();
        };
        let (_, from) = tape.running.remove(index);
        if tape.running.is_empty() {
            self.on.store(false, Ordering::Relaxed);
            let mut events = std::mem::take(&mut tape.events);
            events.drain(..from);
            events
        } else {
            let events = tape.events[from..].to_vec();
            // What came before the oldest of those that go on is nobody's any more.
            let oldest = tape.running.iter().map(|(_, from)| *from).min().unwrap_or_default();
            tape.events.drain(..oldest);
            tape.running.iter_mut().for_each(|(_, from)| *from -= oldest);
            events
        }
    }
}

/// A running recording of a platform; ends and yields its events with [`Recording::finish`].
#[derive(Debug)]
#[must_use = "a recording ends when it is dropped"]
pub struct Recording {
    recorder: Arc<Recorder>,
    number: u64,
}

impl Recording {
    pub(crate) fn start(recorder: Arc<Recorder>) -> Self {
        let number = recorder.start();
        Self { recorder, number }
    }

    /// Ends the recording: the events since it began, in order. Several may run at once; each has its own.
    #[must_use]
    pub fn finish(self) -> Vec<Event> {
        self.recorder.stop(self.number)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        drop(self.recorder.stop(self.number));
    }
}
