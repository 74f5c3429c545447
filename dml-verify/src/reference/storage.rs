//! Which answers are allowed to operations that ask for no access: prefetch, restore, free, bind.

use super::expect::Outcome;
use super::model::{Model, Part, Standing, Sure};
use dml_core::{Access, AcquireError, ArenaId, BindRefusal, BusyReason, FreeRefusal};
use std::ops::Range;

impl Model {
    /// Judges the answer to a prefetch of `range` into an arena.
    pub(super) fn prefetched(
        &mut self,
        buffer: usize,
        arena: ArenaId,
        range: &Range<u64>,
        outcome: &Outcome<'_>,
    ) -> Result<(), String> {
        let mut part = Part::new(buffer, self.buffers[buffer].cells.len() as u64);
        part.add(range.clone(), Access::ReadOnly);
        if !self.buffers[buffer].queue.is_empty() {
            let queue =
                matches!(outcome, Outcome::Error(AcquireError::Busy { reason: BusyReason::Queue, .. }));
            return queue.then_some(()).ok_or_else(|| format!("{outcome:?} beside requests that wait"));
        }
        // Unlike a request, a prefetch of no bytes reports a lost device.
        let lost = matches!(outcome, Outcome::Error(AcquireError::DeviceLost { arena: lost, .. }) if lost.id == arena);
        if lost && part.is_empty() && self.lost.contains(arena) {
            return Ok(());
        }
        let ask = self.ask(None, arena, vec![part.clone()]);
        let expect = self.expect(ask, &part, false, &[]);
        self.give_up(ask);
        let lessons =
            expect.judge(outcome).map_err(|why| format!("{why}: prefetch {outcome:?}, {expect:?}"))?;
        self.learn(buffer, &lessons);
        if outcome.reached_a_plan() {
            self.passed(&part);
        }
        if matches!(outcome, Outcome::Granted) {
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
        let standing = |at: u64| self.buffers[buffer].cells[at as usize].standing();
        let lost = |at: u64| match standing(at) {
            Standing::Poisoned(Sure::No) => Sure::Yes,
            Standing::Poisoned(Sure::Perhaps) | Standing::Unsure => Sure::Perhaps,
            _ => Sure::No,
        };
        let wrong = |why: String| Err(format!("{why}: restore {range:?} of buffer {buffer}, {result:?}"));
        match result {
            Err(AcquireError::Busy { reason: BusyReason::Conflict, .. }) if held != Sure::No => Ok(()),
            _ if held == Sure::Yes => wrong("somebody holds it".to_owned()),
            Ok(()) => match range.clone().find(|at| lost(*at) == Sure::Yes) {
                Some(at) => wrong(format!("byte {at} is lost")),
                None => {
                    self.restored(buffer, range);
                    Ok(())
                }
            },
            Err(AcquireError::NotRestorable { span, .. }) => {
                let named = span.to_range();
                let inside = range.start <= named.start && named.end <= range.end && !named.is_empty();
                let all = named.clone().all(|at| lost(at) != Sure::No);
                let first = (range.start..named.start).all(|at| lost(at) != Sure::Yes);
                let whole = named.end == range.end || lost(named.end) != Sure::Yes;
                if !(inside && all && first && whole) {
                    return wrong("that is not what is lost first".to_owned());
                }
                self.know(buffer, range.start..named.start, true);
                self.know(buffer, named, false);
                Ok(())
            }
            _ => wrong("nothing is in the way".to_owned()),
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
        let may_be_used =
            self.is_admitting(buffer) || self.users(buffer).any(|(_, ask, ..)| kin.contains(ask.arena));
        let is_external = self.buffers[buffer].is_external && arena == ArenaId(0);
        let wrong = |why: &str| Err(format!("{why}: free {arena} of buffer {buffer}, {result:?}"));
        match result {
            Ok(()) if used => wrong("somebody uses it"),
            Ok(()) if is_external => wrong("it is the application's"),
            Ok(()) => self.freed(buffer, arena),
            Err(AcquireError::NotFreeable { arena: named, reason, .. }) if named.id == arena => {
                let may = match reason {
                    FreeRefusal::InUse => may_be_used,
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
        outcome: &Outcome<'_>,
    ) -> Result<(), String> {
        let has_link = self.binds.contains(&(root, arena));
        let is_closed = self.buffers[buffer].is_closed;
        let certain = |of: ArenaId| {
            self.users(buffer).any(|(_, ask, part, sure)| {
                // A request that has not carried out its plan may have no storage yet.
                let there = sure == Sure::Yes && !ask.is_admitted(buffer) && !part.is_empty();
                ask.arena == of && there && !ask.doomed.contains(&buffer)
            })
        };
        let has_storage =
            |of: ArenaId| certain(of) || self.buffers[buffer].cells.iter().any(|cell| cell.is_sure_in(of));
        let kin = self.kin(root);
        let may_be_used =
            self.is_admitting(buffer) || self.users(buffer).any(|(_, ask, ..)| kin.contains(ask.arena));
        let wrong = |why: &str| Err(format!("{why}: bind {arena} to {root}, buffer {buffer}, {outcome:?}"));
        match outcome {
            Outcome::Granted | Outcome::Fault(_) => {
                if !has_link || is_closed || self.lost.contains(arena) || self.lost.contains(root) {
                    return wrong("it cannot be done");
                }
                if has_storage(arena) || certain(root) {
                    return wrong("one of them is not free for it");
                }
                self.passed(&Part::new(buffer, self.buffers[buffer].cells.len() as u64));
                Ok(())
            }
            Outcome::Error(AcquireError::NotBindable { arena: named, root: of, reason, .. })
                if (named.id, of.id) == (arena, root) =>
            {
                let may = match reason {
                    BindRefusal::NoLink => !has_link,
                    _ if !has_link => false,
                    BindRefusal::NotOpen => is_closed || !self.lost.intersection(kin).is_empty(),
                    _ if is_closed || self.lost.contains(arena) || self.lost.contains(root) => false,
                    BindRefusal::AlreadyAllocated => true,
                    _ if has_storage(arena) => false,
                    // With more than two arenas that may share storage, the root may be a member itself.
                    BindRefusal::RootNotAllocated => kin.len() > 2 || !has_storage(root),
                    BindRefusal::InTransition => self.is_admitting(buffer),
                    BindRefusal::InUse => may_be_used,
                    _ => false,
                };
                if may { Ok(()) } else { wrong("there is no such reason") }
            }
            _ => wrong("that is no answer to it"),
        }
    }
}
