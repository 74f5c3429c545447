//! Requests in the model: which bytes they want, what they hold, and what they wait for.

use super::cell::Sure;
use super::expect::Expect;
use dml_core::{Access, ArenaId};
use std::ops::Range;

pub(super) type AskId = u64;

/// An acquire. It is granted, or it waits and holds only the first of its buffers.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) kernel: u64,
    pub(super) arena: ArenaId,
    /// The parts, sorted by buffer.
    pub(super) parts: Vec<Part>,
    /// The number of parts that are granted.
    pub(super) granted: usize,
    pub(super) waits: Option<Waits>,
    /// The buffers whose storage in this arena was lost. The grant can only fail there.
    pub(super) doomed: Vec<usize>,
    /// Whether it is a submission whose kernel runs in order on the stream of its arena.
    pub(super) is_on_stream: bool,
}

/// The state of an acquire that waits.
#[derive(Clone, Debug)]
pub(super) enum Waits {
    Queued,
    /// It was let in, but its future has not been polled since. The fields are the answers that it may get,
    /// and whether it holds its bytes since then.
    Woken(Box<Expect>, Sure),
}

impl Ask {
    /// Returns the first part that is not granted.
    pub(super) fn next_part(&self) -> Option<&Part> {
        self.parts.get(self.granted)
    }

    /// Returns the part that waits in a queue.
    pub(super) fn waiting_part(&self) -> &Part {
        &self.parts[self.granted]
    }

    /// Returns the parts in the order in which they are released: those that only read come first.
    pub(super) fn releases(&self) -> impl Iterator<Item = &Part> + Clone {
        let parts = |writes| self.parts.iter().rev().filter(move |part| part.writes() == writes);
        parts(false).chain(parts(true))
    }

    /// Returns whether the kernel runs behind that of a granted acquire, on the same stream.
    pub(super) fn follows(&self, other: &Self) -> bool {
        self.is_on_stream && other.is_on_stream && self.arena == other.arena
    }

    /// Returns the part that the acquire holds of a buffer, and how sure that is.
    pub(super) fn holds(&self, buffer: usize) -> Option<(&Part, Sure)> {
        let index = self.parts.iter().position(|part| part.buffer == buffer)?;
        let sure = match &self.waits {
            _ if index < self.granted => Sure::Yes,
            Some(Waits::Woken(_, holds)) if index == self.granted => *holds,
            _ => Sure::No,
        };
        (sure != Sure::No).then_some((&self.parts[index], sure))
    }

    /// Returns whether the acquire was let in to this buffer and its plan may be under way.
    pub(super) fn is_admitted(&self, buffer: usize) -> bool {
        matches!(self.waits, Some(Waits::Woken(..)))
            && self.next_part().is_some_and(|part| part.buffer == buffer)
    }
}

/// The bytes that an acquire wants of one buffer, each with its access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) buffer: usize,
    pub(super) bytes: Vec<Option<Access>>,
}

impl Part {
    pub(super) fn new(buffer: usize, len: u64) -> Self {
        Self { buffer, bytes: vec![None; len as usize] }
    }

    /// Adds a range. A byte named with two different accesses is read and written.
    pub(super) fn add(&mut self, range: Range<u64>, access: Access) {
        for byte in &mut self.bytes[range.start as usize..range.end as usize] {
            *byte =
                Some(byte.map_or(access, |before| if before == access { access } else { Access::ReadWrite }));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.iter().all(Option::is_none)
    }

    /// Returns the maximal ranges whose bytes have the same access.
    pub(super) fn runs(&self) -> Vec<(Range<u64>, Access)> {
        let mut runs: Vec<(Range<u64>, Access)> = Vec::new();
        for (at, access) in (0..).zip(&self.bytes) {
            let Some(access) = *access else { continue };
            match runs.last_mut() {
                Some((run, of)) if *of == access && run.end == at => run.end = at + 1,
                _ => runs.push((at..at + 1, access)),
            }
        }
        runs
    }

    pub(super) fn writes(&self) -> bool {
        self.bytes.iter().flatten().any(|access| access.writes())
    }

    pub(super) fn conflicts(&self, other: &Self) -> bool {
        let pairs = self.bytes.iter().zip(&other.bytes);
        self.buffer == other.buffer
            && pairs.filter_map(|(ours, theirs)| (*ours).zip(*theirs)).any(|(a, b)| a.writes() || b.writes())
    }

    /// Removes the bytes that another part writes.
    pub(super) fn cut_written(&mut self, by: &Self) {
        by.at(Access::writes).for_each(|at| self.bytes[at] = None);
    }

    /// Returns the overlaps of our runs with the runs of another part.
    pub(super) fn overlaps(&self, other: &Self) -> Vec<Range<u64>> {
        let mut overlaps = Vec::new();
        for (theirs, _) in other.runs().into_iter().filter(|_| other.buffer == self.buffer) {
            for (ours, _) in self.runs() {
                overlaps.push(ours.start.max(theirs.start)..ours.end.min(theirs.end));
            }
        }
        overlaps.retain(|both| !both.is_empty());
        overlaps
    }

    /// Returns the bytes whose access `is` one of the wanted kind.
    pub(super) fn at(&self, is: impl Fn(Access) -> bool) -> impl Iterator<Item = usize> {
        (0..).zip(&self.bytes).filter(move |(_, byte)| byte.is_some_and(&is)).map(|(at, _)| at)
    }
}

/// What a request held, perhaps for a moment, during one operation.
#[derive(Clone, Debug)]
pub(super) struct Momentary {
    pub(super) kernel: u64,
    pub(super) part: Part,
}
