//! Counters that always run, and an event stream that runs on request.
//!
//! The events of one buffer appear in the order of its state changes, because each is recorded under the
//! buffer's lock. The stream alone suffices to check that every reader saw the latest commit and that no copy
//! was needless.

use crate::base::id::BufferId;
use crate::base::rank::{Rank, Ranked};
use crate::base::sync::Arc;
use crate::state::EventKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// An event, its buffer and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The time since the platform was built.
    pub at: Duration,
    /// The buffer that the event belongs to.
    pub buffer: BufferId,
    /// The event itself.
    pub kind: EventKind,
}

/// Collects events while a recording runs.
#[derive(Debug)]
pub(crate) struct Recorder {
    on: AtomicBool,
    since: Instant,
    tape: Ranked<Tape>,
}

/// The events since the start of the oldest running recording.
#[derive(Debug, Default)]
struct Tape {
    next: u64,
    /// The running recordings: their numbers, and the index in `events` at which each started.
    running: Vec<(u64, usize)>,
    events: Vec<Event>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self {
            on: AtomicBool::new(false),
            since: Instant::now(),
            tape: Ranked::new(Rank::Leaf, Tape::default()),
        }
    }

    /// Returns the time since the platform was built.
    pub(crate) fn now(&self) -> Duration {
        self.since.elapsed()
    }

    /// Returns whether a recording is running.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Records an event. `kind` is evaluated only while a recording runs.
    pub(crate) fn record<E: Into<Option<EventKind>>>(&self, buffer: BufferId, kind: impl FnOnce() -> E) {
        if self.is_on()
            && let Some(kind) = kind().into()
        {
            self.tape.lock().events.push(Event { at: self.now(), buffer, kind });
        }
    }

    /// Starts a recording and returns its number.
    fn start(&self) -> u64 {
        let mut tape = self.tape.lock();
        tape.next += 1;
        let entry = (tape.next, tape.events.len());
        tape.running.push(entry);
        self.on.store(true, Ordering::Relaxed);
        tape.next
    }

    /// Stops a recording and returns its events; none if it has already stopped. The last recording to stop
    /// empties the tape.
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
            // No running recording needs the events before the start of the oldest one.
            let oldest = tape.running.iter().map(|(_, from)| *from).min().unwrap_or_default();
            tape.events.drain(..oldest);
            tape.running.iter_mut().for_each(|(_, from)| *from -= oldest);
            events
        }
    }
}

/// A running recording of a platform. [`Recording::finish`] stops it and returns its events.
///
/// # Examples
/// ```
/// # use dml_core::{AcquireError, Buffer, Platform};
/// # fn example(platform: &Platform, buffer: &Buffer<f32>) -> Result<(), AcquireError> {
/// let recording = platform.record();
/// let sum: f32 = buffer.read()?.iter().sum();
/// for event in recording.finish() {
///     println!("{:?} {}: {:?}", event.at, event.buffer, event.kind);
/// }
/// # Ok(())
/// # }
/// ```
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

    /// Stops the recording and returns the events since its start, in order. Recordings that run at the same
    /// time are independent.
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

#[cfg(all(test, not(dml_loom)))]
mod tests {
    use super::*;

    /// Three recordings begin one after the other and end in every order. Each has exactly the events
    /// recorded while it ran.
    #[test]
    fn recordings_have_their_own_events_in_whatever_order_they_end() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let recorder = Recorder::new();
            let mut next = 0;
            let mut record = || {
                next += 1;
                recorder.record(BufferId(next), || EventKind::Closed);
            };
            record();
            let numbers = [(); 3].map(|()| {
                let number = recorder.start();
                record();
                number
            });
            for (ended, which) in (0..).zip(order) {
                let events = recorder.stop(numbers[which]);
                let found: Vec<u64> = events.iter().map(|event| event.buffer.0).collect();
                let expected: Vec<u64> = (which as u64 + 2..=4 + ended).collect();
                assert_eq!(found, expected, "recording {which}, where they end as {order:?}");
                assert!(recorder.stop(numbers[which]).is_empty(), "it has ended");
                record();
            }
            assert!(!recorder.is_on());
        }
    }
}
