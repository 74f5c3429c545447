//! The reference model: bytes with versions, the requests that hold them, and the requests that wait for them.
//!
//! ```text
//!   cell      contents (unwritten │ zeros │ a version) · poisoned? · arenas that hold them: for sure │ perhaps
//!   ask       kernel · arena · per buffer the bytes wanted · how many buffers it holds · queued │ woken
//! ```
//! The model knows what a user of the interface can know: the bytes asked for and written, the answers, and the
//! requests that were woken. Of the platform it knows the arenas, and which of them may share storage. It does not know
//! map states, plans, segments or queues. A user cannot tell, for example, which arenas a copy passed on its way. The
//! model keeps two bounds for that: the arenas that hold a byte for sure, and those that perhaps do. The answers narrow
//! the bounds.

use super::expect::{Expect, Lesson, Outcome};
use super::op::{Beginning, Make};
use dml_core::{Access, Allocation, ArenaId, ArenaSet, BufferId, Platform};
use std::collections::BTreeMap;
use std::ops::Range;

/// How sure something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sure {
    No,
    Perhaps,
    Yes,
}

/// What a byte holds, or what it held before a writer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    Unwritten,
    Zeros,
    /// Written by the commit of this number; number zero wrote zeros.
    Version(u64),
}

/// What a request to read a byte finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Readable,
    /// Either readable, or poisoned and lost: the answers have not shown which.
    Unsure,
    Unwritten,
    /// Poisoned; the value says whether the contents can be restored.
    Poisoned(Sure),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    contents: Contents,
    poisoned: bool,
    /// The arenas that hold the contents for sure.
    sure: ArenaSet,
    perhaps: ArenaSet,
    /// Whether any arena still holds the contents of a written byte.
    kept: Sure,
}

impl Cell {
    pub(super) fn standing(&self) -> Standing {
        match (self.contents, self.poisoned, self.kept) {
            (Contents::Unwritten, false, _) => Standing::Unwritten,
            (Contents::Unwritten, true, _) | (Contents::Version(_), _, Sure::No) => {
                Standing::Poisoned(Sure::No)
            }
            (Contents::Zeros, true, _) => Standing::Poisoned(Sure::Yes),
            (Contents::Version(_), true, kept) => Standing::Poisoned(kept),
            (Contents::Version(_), false, Sure::Perhaps) => Standing::Unsure,
            (Contents::Zeros, false, _) | (Contents::Version(_), false, Sure::Yes) => Standing::Readable,
        }
    }

    /// Removes `gone` from the arenas that hold the byte. Those in `not_sure` hold it no more for sure.
    fn shrink(&mut self, not_sure: ArenaSet, gone: ArenaSet) {
        self.sure = self.sure.minus(not_sure).minus(gone);
        self.perhaps = self.perhaps.minus(gone);
        self.kept = match self.kept {
            _ if !self.sure.is_empty() => Sure::Yes,
            _ if self.perhaps.is_empty() => Sure::No,
            Sure::Yes => Sure::Perhaps,
            kept => kept,
        };
    }

    pub(super) fn is_sure_in(&self, arena: ArenaId) -> bool {
        self.sure.contains(arena)
    }

    /// Returns whether freeing an arena could lose the contents.
    pub(super) fn may_be_last_in(&self, arena: ArenaId) -> bool {
        self.is_written()
            && self.kept != Sure::No
            && self.sure.without(arena).is_empty()
            && self.perhaps.contains(arena)
    }

    pub(super) fn is_written(&self) -> bool {
        matches!(self.contents, Contents::Version(_))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Buffer {
    pub(super) id: BufferId,
    pub(super) is_external: bool,
    pub(super) is_closed: bool,
    pub(super) cells: Vec<Cell>,
    /// The waiting requests, in the order in which they came.
    pub(super) queue: Vec<AskId>,
}

/// The bytes that one request wants of one buffer, each with its access.
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

    pub(super) fn conflicts(&self, other: &Self) -> bool {
        let pairs = self.bytes.iter().zip(&other.bytes);
        self.buffer == other.buffer
            && pairs.filter_map(|(ours, theirs)| (*ours).zip(*theirs)).any(|(a, b)| a.writes() || b.writes())
    }

    fn at(&self, access: impl Fn(Access) -> bool) -> impl Iterator<Item = usize> {
        (0..).zip(&self.bytes).filter(move |(_, byte)| byte.is_some_and(&access)).map(|(at, _)| at)
    }
}

pub(super) type AskId = u64;

/// The state of a request that is not granted yet.
#[derive(Clone, Debug)]
pub(super) enum Waits {
    Queued,
    /// The request was answered, but its future has not been polled since. The fields are the possible answers, and
    /// whether the request holds its bytes since then.
    Woken(Box<Expect>, Sure),
}

/// A request. It is granted, or it waits and holds only the first of its buffers.
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
}

impl Ask {
    /// Returns the part that the request holds of a buffer, and how sure that is.
    fn holds(&self, buffer: usize) -> Option<(&Part, Sure)> {
        let index = self.parts.iter().position(|part| part.buffer == buffer)?;
        let sure = match &self.waits {
            _ if index < self.granted => Sure::Yes,
            Some(Waits::Woken(_, holds)) if index == self.granted => *holds,
            _ => Sure::No,
        };
        (sure != Sure::No).then_some((&self.parts[index], sure))
    }

    /// Returns whether the request was answered for this buffer and its plan may be under way.
    pub(super) fn is_admitted(&self, buffer: usize) -> bool {
        matches!(self.waits, Some(Waits::Woken(..)))
            && self.parts.get(self.granted).is_some_and(|part| part.buffer == buffer)
    }
}

/// The model of all buffers and requests of a platform.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) arenas: u8,
    /// For each arena, the arenas with which it may come to share storage, itself included.
    kin: Vec<ArenaSet>,
    /// The pairs of root and member that a link can bind.
    pub(super) binds: Vec<(ArenaId, ArenaId)>,
    /// The arenas whose native device is lost.
    pub(super) lost: ArenaSet,
    pub(super) buffers: Vec<Buffer>,
    pub(super) asks: BTreeMap<AskId, Ask>,
    next_ask: AskId,
    version: u64,
}

impl Model {
    pub(super) fn new(platform: &Platform) -> Self {
        let arenas = platform.arenas().len() as u8;
        let bound = |link: &&dml_core::Link| matches!(link.allocation, Allocation::Bound(_));
        let binds: Vec<_> = platform.links().iter().filter(bound).map(|link| (link.from, link.to)).collect();
        let mut kin: Vec<ArenaSet> = (0..arenas).map(|arena| ArenaSet::of(ArenaId(arena))).collect();
        for _ in 0..arenas {
            for (a, b) in &binds {
                let both = kin[usize::from(a.0)].union(kin[usize::from(b.0)]);
                both.iter().for_each(|arena| kin[usize::from(arena.0)] = both);
            }
        }
        Self {
            arenas,
            kin,
            binds,
            lost: ArenaSet::EMPTY,
            buffers: Vec::new(),
            asks: BTreeMap::new(),
            next_ask: 0,
            version: 0,
        }
    }

    /// Returns the arenas that may share storage with this one.
    pub(super) fn kin(&self, arena: ArenaId) -> ArenaSet {
        self.kin[usize::from(arena.0)]
    }

    fn kin_of(&self, arenas: ArenaSet) -> ArenaSet {
        arenas.iter().fold(arenas, |all, arena| all.union(self.kin(arena)))
    }

    fn alive(&self) -> ArenaSet {
        (0..self.arenas).map(ArenaId).collect::<ArenaSet>().minus(self.lost)
    }

    /// Returns the ranges of a buffer whose bytes have the same standing. An unsure byte is a range of its own.
    pub(super) fn alike(&self, buffer: usize) -> Vec<Range<u64>> {
        let cells = &self.buffers[buffer].cells;
        let mut all: Vec<Range<u64>> = Vec::new();
        for at in 0..cells.len() {
            let same = at > 0 && cells[at].standing() == cells[at - 1].standing();
            match all.last_mut() {
                Some(last) if same && cells[at].standing() != Standing::Unsure => last.end += 1,
                _ => all.push(at as u64..at as u64 + 1),
            }
        }
        all
    }

    /// Returns a version number for bytes about to be written.
    pub(super) fn new_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Adds a buffer and returns its index. External bytes begin with `version`, in the arena `home`.
    pub(super) fn add_buffer(&mut self, id: BufferId, make: Make, version: u64, home: ArenaId) -> usize {
        let is_external = make.beginning == Beginning::External;
        let contents = match make.beginning {
            Beginning::Unwritten => Contents::Unwritten,
            Beginning::Zeros => Contents::Zeros,
            Beginning::External => Contents::Version(version),
        };
        let sure = if is_external { ArenaSet::of(home).minus(self.lost) } else { ArenaSet::EMPTY };
        let kept = if is_external && sure.is_empty() { Sure::No } else { Sure::Yes };
        let cell = Cell { contents, poisoned: false, sure, perhaps: sure, kept };
        let cells = vec![cell; make.len as usize];
        self.buffers.push(Buffer { id, is_external, is_closed: false, cells, queue: Vec::new() });
        self.buffers.len() - 1
    }

    /// Returns the version that a byte holds: zero for zeros, `None` for an unwritten byte.
    pub(super) fn version_at(&self, buffer: usize, at: u64) -> Option<u64> {
        match self.buffers[buffer].cells[at as usize].contents {
            Contents::Unwritten => None,
            Contents::Zeros => Some(0),
            Contents::Version(version) => Some(version),
        }
    }

    /// Returns the requests that hold part of a buffer, and how sure that is.
    pub(super) fn users(&self, buffer: usize) -> impl Iterator<Item = (AskId, &Ask, &Part, Sure)> {
        self.asks.iter().filter_map(move |(id, ask)| {
            let (part, sure) = ask.holds(buffer)?;
            Some((*id, ask, part, sure))
        })
    }

    /// Returns whether a request was admitted to the buffer and has not carried out its plan.
    pub(super) fn is_admitting(&self, buffer: usize) -> bool {
        self.asks.values().any(|ask| ask.is_admitted(buffer))
    }

    /// Returns whether no request holds the buffer, waits for it, or is being admitted to it.
    pub(super) fn is_quiet(&self, buffer: usize) -> bool {
        !self.is_admitting(buffer)
            && self.users(buffer).next().is_none()
            && self.buffers[buffer].queue.is_empty()
    }

    /// Adds a request. Without a named kernel, it gets a kernel of its own.
    pub(super) fn ask(&mut self, kernel: Option<u64>, arena: ArenaId, parts: Vec<Part>) -> AskId {
        self.next_ask += 1;
        let kernel = kernel.unwrap_or((1 << 32) + self.next_ask);
        let ask = Ask { kernel, arena, parts, granted: 0, waits: None, doomed: Vec::new() };
        self.asks.insert(self.next_ask, ask);
        self.next_ask
    }

    /// Takes the answer to a request, and checks that the answer is allowed. A request that ended with an error is
    /// removed.
    pub(super) fn answered(&mut self, id: AskId, outcome: &Outcome<'_>) -> Result<(), String> {
        loop {
            let ask = &self.asks[&id];
            let Some(part) = ask.parts.get(ask.granted) else {
                return match outcome {
                    Outcome::Granted => Ok(()),
                    other => Err(format!("{other:?}, though everything was granted")),
                };
            };
            let (buffer, arena) = (part.buffer, ask.arena);
            let ends = outcome.ends_at(self.buffers[buffer].id);
            let (expect, is_new) = match ask.waits.clone() {
                Some(Waits::Queued) if ends && matches!(outcome, Outcome::Waits(_)) => return Ok(()),
                Some(Waits::Queued) => return Err(format!("{outcome:?} without having been woken")),
                Some(Waits::Woken(expect, _)) => (*expect, false),
                None => (self.expect(id, part, false, &[]), true),
            };
            let here = if ends { outcome } else { &Outcome::Granted };
            if !is_new && matches!(here, Outcome::Waits(_)) {
                return Err("woken, and not answered".to_owned());
            }
            let lessons = expect.judge(here).map_err(|why| format!("{why}: {here:?}, {expect:?}"))?;
            if is_new || matches!(here, Outcome::Granted) {
                self.learn(buffer, &lessons);
            }
            if here.reached_a_plan() {
                self.spread(id, buffer);
            }
            match here {
                Outcome::Granted => {
                    self.arrived(id, arena);
                    let ask = self.asks.get_mut(&id).expect("just looked at");
                    ask.waits = None;
                    ask.granted += 1;
                }
                Outcome::Waits(_) => {
                    self.asks.get_mut(&id).expect("just looked at").waits = Some(Waits::Queued);
                    self.buffers[buffer].queue.push(id);
                    return Ok(());
                }
                Outcome::Error(_) | Outcome::Fault(_) => {
                    self.asks.remove(&id);
                    return Ok(());
                }
            }
        }
    }

    /// Notes that the bytes which the next part of a request reads are in its arena now.
    fn arrived(&mut self, id: AskId, arena: ArenaId) {
        let ask = &self.asks[&id];
        let part = ask.parts[ask.granted].clone();
        // Bytes brought into storage that was lost meanwhile do not count.
        if !ask.doomed.contains(&part.buffer) {
            self.brought(&part, arena);
        }
    }

    /// Notes that the bytes which a part reads are in an arena now.
    pub(super) fn brought(&mut self, part: &Part, arena: ArenaId) {
        let cells = &mut self.buffers[part.buffer].cells;
        for at in part.at(Access::reads) {
            cells[at].sure = cells[at].sure.with(arena);
            cells[at].perhaps = cells[at].perhaps.with(arena);
            cells[at].kept = Sure::Yes;
        }
    }

    /// Notes that copies for a request may have left bytes in any arena, and that bindings may have spread bytes to
    /// kin.
    fn spread(&mut self, id: AskId, buffer: usize) {
        let ask = &self.asks[&id];
        let part = ask.parts[ask.granted].clone();
        debug_assert_eq!(part.buffer, buffer, "the part that was answered");
        self.passed(&part);
    }

    /// Widens the bounds by what copies for a part may have done. Bytes that it reads may be in any arena; all other
    /// bytes may have spread to the kin of their arenas.
    pub(super) fn passed(&mut self, part: &Part) {
        let alive = self.alive();
        for at in part.at(Access::reads) {
            let cell = &mut self.buffers[part.buffer].cells[at];
            if cell.kept != Sure::No {
                cell.perhaps = cell.perhaps.union(alive);
            }
        }
        let kin = self.kin.clone();
        for cell in self.buffers[part.buffer].cells.iter_mut().filter(|cell| cell.kept != Sure::No) {
            let all =
                cell.perhaps.iter().fold(cell.perhaps, |all, arena| all.union(kin[usize::from(arena.0)]));
            cell.perhaps = all.intersection(alive);
        }
    }

    pub(super) fn learn(&mut self, buffer: usize, lessons: &[Lesson]) {
        for lesson in lessons {
            self.know(buffer, lesson.span.clone(), lesson.is_kept);
        }
    }

    /// Notes that bytes are kept or lost, where that was not known.
    pub(super) fn know(&mut self, buffer: usize, span: Range<u64>, is_kept: bool) {
        for cell in &mut self.buffers[buffer].cells[span.start as usize..span.end as usize] {
            if cell.is_written() && cell.kept == Sure::Perhaps {
                cell.kept = if is_kept { Sure::Yes } else { Sure::No };
            }
        }
    }

    /// Returns the buffers for which a grant may report a lost device when it ends, and whether that is certain. A part
    /// without bytes is granted even where the storage is lost, so its loss is reported at the end.
    pub(super) fn hears_of_loss(&self, ask: &Ask) -> Vec<(usize, Sure)> {
        let kin_lost = !self.kin(ask.arena).intersection(self.lost).is_empty();
        let hears = |part: &Part| match ask.doomed.contains(&part.buffer) {
            true => Some((part.buffer, Sure::Yes)),
            false if part.is_empty() && self.lost.contains(ask.arena) => Some((part.buffer, Sure::Yes)),
            false if part.is_empty() && kin_lost => Some((part.buffer, Sure::Perhaps)),
            false => None,
        };
        ask.parts.iter().filter_map(hears).collect()
    }

    /// Notes that waiting requests were woken. `during` lists the parts that other requests may have held meanwhile.
    pub(super) fn woken(&mut self, ids: &[AskId], during: &[(u64, Part)]) -> Result<(), String> {
        // Where one operation wakes several requests, an earlier one may have admitted a later one.
        let also = |id: &AskId| {
            let ask = &self.asks[id];
            (ask.kernel, ask.parts[ask.granted].clone(), *id)
        };
        let together: Vec<_> = ids.iter().map(also).collect();
        for buffer in 0..self.buffers.len() {
            for id in self.buffers[buffer].queue.clone().into_iter().filter(|id| ids.contains(id)) {
                let ask = &self.asks[&id];
                let others = together.iter().filter(|(.., other)| *other != id);
                let others = others.map(|(kernel, part, _)| (*kernel, part.clone()));
                let during: Vec<_> = others.chain(during.iter().cloned()).collect();
                let expect = self.expect(id, &ask.parts[ask.granted], true, &during);
                let holds = expect.woken().map_err(|why| format!("{why}: woken, {expect:?}"))?;
                self.buffers[buffer].queue.retain(|waiting| *waiting != id);
                if holds != Sure::No {
                    self.spread(id, buffer);
                }
                let ask = self.asks.get_mut(&id).expect("who waits is known");
                ask.waits = Some(Waits::Woken(Box::new(expect), holds));
            }
        }
        Ok(())
    }

    /// Removes a request that was given up, or a grant that has ended.
    pub(super) fn give_up(&mut self, id: AskId) {
        self.asks.remove(&id);
        self.buffers.iter_mut().for_each(|buffer| buffer.queue.retain(|waiting| *waiting != id));
    }

    /// Ends the parts of a grant that `of` selects, and counts their writes, except where the storage was lost.
    /// `written` lists buffer, range and version of what the kernel wrote.
    pub(super) fn commit(
        &mut self,
        id: AskId,
        written: &[(usize, Range<u64>, u64)],
        of: impl Fn(&Part) -> bool,
    ) {
        let ask = self.asks[&id].clone();
        let held = ArenaSet::of(ask.arena);
        for part in ask.parts.iter().filter(|part| of(part)) {
            if ask.doomed.contains(&part.buffer) {
                self.poison(ask.arena, part);
                continue;
            }
            let perhaps = self.kin(ask.arena).minus(self.lost);
            for at in part.at(Access::writes) {
                let cell = &mut self.buffers[part.buffer].cells[at];
                let by = |(buffer, range, _): &&(usize, Range<u64>, u64)| {
                    *buffer == part.buffer && range.contains(&(at as u64))
                };
                let contents = match (written.iter().find(by), cell.contents) {
                    (Some((_, _, version)), _) => Contents::Version(*version),
                    // Zeros that a kernel left unchanged count as written from now on.
                    (None, Contents::Zeros) => Contents::Version(0),
                    (None, contents) => contents,
                };
                *cell = Cell { contents, poisoned: false, sure: held, perhaps, kept: Sure::Yes };
            }
        }
    }

    /// Notes that the kernel of a grant failed in the parts that `of` selects.
    pub(super) fn fail(&mut self, id: AskId, of: impl Fn(&Part) -> bool) {
        let ask = self.asks[&id].clone();
        ask.parts.iter().filter(|part| of(part)).for_each(|part| self.poison(ask.arena, part));
    }

    fn poison(&mut self, arena: ArenaId, part: &Part) {
        let kin = self.kin(arena);
        for at in part.at(Access::writes) {
            let cell = &mut self.buffers[part.buffer].cells[at];
            cell.poisoned = true;
            cell.shrink(kin, ArenaSet::of(arena));
        }
    }

    /// Turns every access of a grant into a read.
    pub(super) fn downgrade(&mut self, id: AskId) {
        let ask = self.asks.get_mut(&id).expect("it is granted");
        for byte in ask.parts.iter_mut().flat_map(|part| &mut part.bytes) {
            *byte = byte.map(|_| Access::ReadOnly);
        }
    }

    /// Notes that poisoned bytes have their contents back.
    pub(super) fn restored(&mut self, buffer: usize, range: &Range<u64>) {
        for cell in &mut self.buffers[buffer].cells[range.start as usize..range.end as usize] {
            cell.poisoned = false;
            if cell.is_written() {
                cell.kept = Sure::Yes;
            }
        }
    }

    /// Notes that the storage of an arena was freed.
    ///
    /// # Errors
    /// When the arena held the only copy of a written byte.
    pub(super) fn freed(&mut self, buffer: usize, arena: ArenaId) -> Result<(), String> {
        let gone = ArenaSet::of(arena);
        for (at, cell) in self.buffers[buffer].cells.iter_mut().enumerate() {
            if cell.is_written() && cell.kept == Sure::Yes && cell.perhaps == gone {
                return Err(format!("byte {at} was nowhere else"));
            }
            cell.sure = cell.sure.minus(gone);
            cell.perhaps = cell.perhaps.minus(gone);
        }
        self.passed(&Part::new(buffer, 0));
        Ok(())
    }

    /// Notes that a device is lost. `storage` names the arenas of each buffer whose storage was lost.
    ///
    /// # Errors
    /// When `storage` lacks an arena of a lost device, or names one that could not share storage with it.
    pub(super) fn lose(&mut self, arena: ArenaId, storage: &BTreeMap<usize, ArenaSet>) -> Result<(), String> {
        self.lost = self.lost.with(arena);
        let gone = ArenaSet::of(arena);
        let kin = self.kin_of(self.lost);
        for buffer in &mut self.buffers {
            for cell in &mut buffer.cells {
                let kept = cell.kept;
                cell.shrink(kin, gone);
                if !cell.is_written() {
                    // Lost zeros can be filled in again, so the byte itself is not lost.
                    cell.kept = kept;
                }
            }
        }
        for (buffer, lost) in storage {
            if !self.lost.is_subset(*lost) || !lost.is_subset(kin) {
                return Err(format!(
                    "{lost:?} are lost in buffer {buffer}, the devices of {:?} are",
                    self.lost
                ));
            }
        }
        for ask in self.asks.values_mut() {
            for index in 0..ask.parts.len() {
                let buffer = ask.parts[index].buffer;
                if ask.holds(buffer).is_some()
                    && storage.get(&buffer).is_some_and(|lost| lost.contains(ask.arena))
                {
                    ask.doomed.push(buffer);
                }
            }
            if let Some(Waits::Woken(expect, _)) = &mut ask.waits {
                expect.device_was_lost();
            }
        }
        Ok(())
    }

    /// Checks that no request waits without a reason.
    pub(super) fn stuck(&self) -> Result<(), String> {
        for (index, buffer) in self.buffers.iter().enumerate() {
            let Some(&head) = buffer.queue.first() else { continue };
            let ask = &self.asks[&head];
            let expect = self.expect(head, &ask.parts[ask.granted], true, &[]);
            if buffer.is_closed || expect.must_be_answered() {
                return Err(format!("request {head} waits for buffer {index} for ever: {expect:?}"));
            }
        }
        Ok(())
    }
}
