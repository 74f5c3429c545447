//! Which answers are allowed to operations that ask for no access: prefetch, restore, free, bind.

use super::ask::Part;
use super::cell::{Standing, Sure};
use super::judge::Answer;
use super::model::Model;
use dml_core::{Access, AcquireError, ArenaId, ArenaSet, BindRefusal, BusyReason, FreeRefusal};
use std::ops::Range;

impl Model {
    /// Judges the answer to a prefetch of `range` into an arena.
    pub(super) fn prefetched(
        &mut self,
        buffer: usize,
        arena: ArenaId,
        range: &Range<u64>,
        answer: &Answer<'_>,
    ) -> Result<(), String> {
        let mut part = Part::new(buffer, self.buffers[buffer].cells.len() as u64);
        part.add(range.clone(), Access::ReadOnly);
        if self.streams_write(buffer, range) && !self.buffers[buffer].is_closed {
            let waits = matches!(answer, Answer::Waits(_));
            return waits.then_some(()).ok_or_else(|| format!("{answer:?} behind kernels in flight"));
        }
        if !self.buffers[buffer].queue.is_empty() {
            let queue = matches!(answer, Answer::Error(AcquireError::Busy { reason: BusyReason::Queue, .. }));
            return queue.then_some(()).ok_or_else(|| format!("{answer:?} beside requests that wait"));
        }
        // Unlike a request, a prefetch of no bytes reports a lost device.
        let lost =
            matches!(answer, Answer::Error(AcquireError::DeviceLost { arena: lost, .. }) if lost.id == arena);
        if lost && part.is_empty() && self.lost.contains(arena) {
            return Ok(());
        }
        let ask = self.ask(None, arena, vec![part.clone()]);
        let expect = self.expect(ask, &part, &[]);
        self.give_up(ask);
        let lessons =
            expect.judge(answer).map_err(|why| format!("{why}: prefetch {answer:?}, {expect:?}"))?;
        self.learn(buffer, &lessons);
        if answer.reached_a_plan() {
            self.passed(&part);
        }
        if matches!(answer, Answer::Granted) {
            self.brought(&part, arena);
        }
        Ok(())
    }

    /// Judges the answer to restoring `range`.
    pub(super) fn judge_restore(
        &mut self,
        buffer: usize,
        range: &Range<u64>,
        result: &Result<(), AcquireError>,
    ) -> Result<(), String> {
        if self.buffers[buffer].is_closed {
            let refused = matches!(result, Err(AcquireError::Closed { .. }));
            return refused.then_some(()).ok_or_else(|| format!("{result:?} of a closed buffer"));
        }
        let holds = |part: &Part| {
            let bytes = &part.bytes[range.start as usize..range.end as usize];
            bytes.iter().any(Option::is_some)
        };
        let held = self.users(buffer).filter(|(_, _, part, _)| holds(part)).map(|(.., sure)| sure).max();
        let held = held.unwrap_or(Sure::No);
        let wrong = |why: &str| Err(format!("{why}: restore {range:?} of buffer {buffer}, {result:?}"));
        match result {
            Err(AcquireError::Busy { reason: BusyReason::Conflict, .. }) if held != Sure::No => Ok(()),
            _ if held == Sure::Yes => wrong("somebody holds it"),
            Ok(()) if range.clone().any(|at| self.is_lost(buffer, at) == Sure::Yes) => {
                wrong("some of it is lost")
            }
            Ok(()) => {
                self.restored(buffer, range);
                Ok(())
            }
            Err(AcquireError::NotRestorable { span, .. }) => {
                let named = span.to_range();
                if !self.is_first_lost(buffer, range, &named) {
                    return wrong("that is not what is lost first");
                }
                self.know(buffer, range.start..named.start, true);
                self.know(buffer, named, false);
                Ok(())
            }
            _ => wrong("nothing is in the way"),
        }
    }

    /// Returns whether `named` may be the first bytes of `range` that cannot be restored, and all that follow
    /// on them.
    fn is_first_lost(&self, buffer: usize, range: &Range<u64>, named: &Range<u64>) -> bool {
        let is_lost = |at: u64| self.is_lost(buffer, at);
        let is_inside = range.start <= named.start && named.end <= range.end && !named.is_empty();
        is_inside
            && named.clone().all(|at| is_lost(at) != Sure::No)
            && (range.start..named.start).all(|at| is_lost(at) != Sure::Yes)
            && (named.end == range.end || is_lost(named.end) != Sure::Yes)
    }

    /// Returns whether the contents of a byte are lost.
    fn is_lost(&self, buffer: usize, at: u64) -> Sure {
        match self.buffers[buffer].cells[at as usize].standing() {
            Standing::Poisoned(Sure::No) => Sure::Yes,
            Standing::Poisoned(Sure::Perhaps) | Standing::Unsure => Sure::Perhaps,
            _ => Sure::No,
        }
    }

    /// Judges the answer to freeing the storage of an arena.
    pub(super) fn judge_free(
        &mut self,
        buffer: usize,
        arena: ArenaId,
        result: &Result<(), AcquireError>,
    ) -> Result<(), String> {
        if self.buffers[buffer].is_closed {
            return Ok(());
        }
        let kin = self.kin(arena);
        let used = self.users(buffer).any(|(_, ask, _, sure)| ask.arena == arena && sure == Sure::Yes);
        let is_external = self.buffers[buffer].is_external && arena == ArenaId(0);
        let wrong = |why: &str| Err(format!("{why}: free {arena} of buffer {buffer}, {result:?}"));
        match result {
            Ok(()) if used => wrong("somebody uses it"),
            Ok(()) if is_external => wrong("it is the application's"),
            Ok(()) => self.freed(buffer, arena),
            Err(AcquireError::NotFreeable { arena: named, reason, .. }) if named.id == arena => {
                let may = match reason {
                    FreeRefusal::InUse => self.may_be_used(buffer, kin),
                    _ if used => return wrong("somebody uses it, which is said first"),
                    FreeRefusal::External => is_external,
                    FreeRefusal::StillBound => !is_external && kin.len() > 1,
                    FreeRefusal::WouldLoseData => {
                        !is_external
                            && self.buffers[buffer].cells.iter().any(|cell| cell.may_be_last_in(arena))
                    }
                    _ => false,
                };
                if may { Ok(()) } else { wrong("there is no such reason") }
            }
            Err(_) => wrong("that is no answer to it"),
        }
    }

    /// Judges the answer to binding an arena to the storage of `root`.
    pub(super) fn judge_bind(
        &mut self,
        buffer: usize,
        (arena, root): (ArenaId, ArenaId),
        answer: &Answer<'_>,
    ) -> Result<(), String> {
        let has_link = self.binds.contains(&(root, arena));
        let is_closed = self.buffers[buffer].is_closed;
        let is_lost = self.lost.contains(arena) || self.lost.contains(root);
        let kin = self.kin(root);
        let wrong = |why: &str| Err(format!("{why}: bind {arena} to {root}, buffer {buffer}, {answer:?}"));
        match answer {
            Answer::Granted | Answer::Fault(_) => {
                if !has_link || is_closed || is_lost {
                    return wrong("it cannot be done");
                }
                if self.has_storage(buffer, arena) || self.is_in_use(buffer, root) {
                    return wrong("one of them is not free for it");
                }
                self.passed(&Part::new(buffer, self.buffers[buffer].cells.len() as u64));
                Ok(())
            }
            Answer::Error(AcquireError::NotBindable { arena: named, root: of, reason, .. })
                if (named.id, of.id) == (arena, root) =>
            {
                let may = match reason {
                    BindRefusal::NoLink => !has_link,
                    _ if !has_link => false,
                    BindRefusal::NotOpen => is_closed || !self.lost.intersection(kin).is_empty(),
                    _ if is_closed || is_lost => false,
                    BindRefusal::AlreadyAllocated => true,
                    _ if self.has_storage(buffer, arena) => false,
                    // With more than two arenas that may share storage, the root may be a member itself.
                    BindRefusal::RootNotAllocated => kin.len() > 2 || !self.has_storage(buffer, root),
                    BindRefusal::InTransition => self.is_admitting(buffer),
                    BindRefusal::InUse => self.may_be_used(buffer, kin),
                    _ => false,
                };
                if may { Ok(()) } else { wrong("there is no such reason") }
            }
            _ => wrong("that is no answer to it"),
        }
    }
    /// Returns whether a request may use the storage that these arenas share.
    fn may_be_used(&self, buffer: usize, kin: ArenaSet) -> bool {
        self.is_admitting(buffer) || self.users(buffer).any(|(_, ask, ..)| kin.contains(ask.arena))
    }

    /// Returns whether an arena surely has storage: bytes are there, or a request holds some.
    fn has_storage(&self, buffer: usize, arena: ArenaId) -> bool {
        self.is_in_use(buffer, arena) || self.buffers[buffer].cells.iter().any(|cell| cell.is_sure_in(arena))
    }

    /// Returns whether a request surely holds bytes in an arena that still has storage.
    fn is_in_use(&self, buffer: usize, arena: ArenaId) -> bool {
        self.users(buffer).any(|(_, ask, part, sure)| {
            // A request that has not carried out its plan may have no storage yet.
            let there = sure == Sure::Yes && !ask.is_admitted(buffer) && !part.is_empty();
            ask.arena == arena && there && !ask.doomed.contains(&buffer)
        })
    }
}
