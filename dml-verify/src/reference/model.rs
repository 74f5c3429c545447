//! The reference model: bytes with versions, who holds which, and who waits for which.
//!
//! ```text
//!   cell      contents (unwritten │ zeros │ a version) · poisoned? · arenas that hold them: for sure │ perhaps
//!   ask       kernel · arena · per buffer the bytes wanted · how many buffers it holds · queued │ woken
//! ```
//! It knows what a user of the interface can know: the bytes asked for and written, what was answered, who was woken;
//! and of the platform which arenas there are and which of them may share storage. Of map states, plans, segments and
//! queues it knows nothing. What such a user cannot tell, such as which arenas a copy passed on its way, it keeps as two
//! bounds, the arenas that hold a byte for sure and those that perhaps do, and learns from the answers.

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

/// What a byte holds, or held before a writer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    Unwritten,
    Zeros,
    /// Written by the commit of this number; number zero wrote zeros.
    Version(u64),
}

/// What a reader of a byte meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Readable,
    /// Readable, or poisoned and lost.
    Unsure,
    Unwritten,
    /// Whether it can be restored.
    Poisoned(Sure),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    contents: Contents,
    poisoned: bool,
    /// The arenas that hold the contents for sure, and those that perhaps do.
    sure: ArenaSet,
    perhaps: ArenaSet,
    /// Whether a written byte's contents are still somewhere.
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

    /// Fewer arenas hold it.
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

    /// Whether freeing an arena could lose the contents.
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
    /// Who waits, in the order in which they came.
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

    /// Adds a range; a byte named twice is read and written, unless both say the same.
    pub(super) fn add(&mut self, range: Range<u64>, access: Access) {
        for byte in &mut self.bytes[range.start as usize..range.end as usize] {
            *byte =
                Some(byte.map_or(access, |before| if before == access { access } else { Access::ReadWrite }));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.iter().all(Option::is_none)
    }

    /// Its ranges of one access each.
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

/// How a request that is not granted yet stands.
#[derive(Clone, Debug)]
pub(super) enum Waits {
    Queued,
    /// It was answered and has not heard how: what could be answered, and whether it holds its bytes since then.
    Woken(Box<Expect>, Sure),
}

/// A request: granted, or waiting with the first of its buffers granted.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) kernel: u64,
    pub(super) arena: ArenaId,
    /// In the order of the buffers.
    pub(super) parts: Vec<Part>,
    /// How many of them are granted.
    pub(super) granted: usize,
    pub(super) waits: Option<Waits>,
    /// The buffers in which its storage was lost: there it can only fail.
    pub(super) doomed: Vec<usize>,
}

impl Ask {
    /// What it holds of a buffer, and how sure that is.
    fn holds(&self, buffer: usize) -> Option<(&Part, Sure)> {
        let index = self.parts.iter().position(|part| part.buffer == buffer)?;
        let sure = match &self.waits {
            _ if index < self.granted => Sure::Yes,
            Some(Waits::Woken(_, holds)) if index == self.granted => *holds,
            _ => Sure::No,
        };
        (sure != Sure::No).then_some((&self.parts[index], sure))
    }

    /// Whether it was answered for this buffer and its plan may be under way.
    pub(super) fn is_admitted(&self, buffer: usize) -> bool {
        matches!(self.waits, Some(Waits::Woken(..)))
            && self.parts.get(self.granted).is_some_and(|part| part.buffer == buffer)
    }
}

/// Everything the model knows.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) arenas: u8,
    /// Of each arena, those with which it may come to share storage, itself included.
    kin: Vec<ArenaSet>,
    /// Roots and members that a link binds.
    pub(super) binds: Vec<(ArenaId, ArenaId)>,
    /// The arenas whose device is lost.
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

    /// The arenas that may share storage with this one.
    pub(super) fn kin(&self, arena: ArenaId) -> ArenaSet {
        self.kin[usize::from(arena.0)]
    }

    fn kin_of(&self, arenas: ArenaSet) -> ArenaSet {
        arenas.iter().fold(arenas, |all, arena| all.union(self.kin(arena)))
    }

    fn alive(&self) -> ArenaSet {
        (0..self.arenas).map(ArenaId).collect::<ArenaSet>().minus(self.lost)
    }

    /// The ranges of a buffer in which all bytes stand alike.
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

    /// A number for what is about to be written.
    pub(super) fn new_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Adds a buffer, with what is in it where it begins with anything; its index.
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

    /// What a byte holds, as the number of its version; zeros are of version zero.
    pub(super) fn version_at(&self, buffer: usize, at: u64) -> Option<u64> {
        match self.buffers[buffer].cells[at as usize].contents {
            Contents::Unwritten => None,
            Contents::Zeros => Some(0),
            Contents::Version(version) => Some(version),
        }
    }

    /// Whoever holds something of a buffer, or perhaps does.
    pub(super) fn users(&self, buffer: usize) -> impl Iterator<Item = (AskId, &Ask, &Part, Sure)> {
        self.asks.iter().filter_map(move |(id, ask)| {
            let (part, sure) = ask.holds(buffer)?;
            Some((*id, ask, part, sure))
        })
    }

    /// Whether somebody was let in and has not carried out the plan that comes with it.
    pub(super) fn is_admitting(&self, buffer: usize) -> bool {
        self.asks.values().any(|ask| ask.is_admitted(buffer))
    }

    /// Whether nobody holds, waits for, or is being let into a buffer.
    pub(super) fn is_quiet(&self, buffer: usize) -> bool {
        !self.is_admitting(buffer)
            && self.users(buffer).next().is_none()
            && self.buffers[buffer].queue.is_empty()
    }

    /// A new request of a named kernel, or of nobody in particular.
    pub(super) fn ask(&mut self, kernel: Option<u64>, arena: ArenaId, parts: Vec<Part>) -> AskId {
        self.next_ask += 1;
        let kernel = kernel.unwrap_or((1 << 32) + self.next_ask);
        let ask = Ask { kernel, arena, parts, granted: 0, waits: None, doomed: Vec::new() };
        self.asks.insert(self.next_ask, ask);
        self.next_ask
    }

    /// A request went as far as `outcome` says; what it says must be an answer that may be given. A request that ended
    /// with an error is gone.
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

    /// The bytes that the next part of a request reads are in its arena now.
    fn arrived(&mut self, id: AskId, arena: ArenaId) {
        let ask = &self.asks[&id];
        let part = ask.parts[ask.granted].clone();
        // Where the storage was lost meanwhile, what is in it counts no more.
        if !ask.doomed.contains(&part.buffer) {
            self.brought(&part, arena);
        }
    }

    /// The bytes that a part reads are in an arena now.
    pub(super) fn brought(&mut self, part: &Part, arena: ArenaId) {
        let cells = &mut self.buffers[part.buffer].cells;
        for at in part.at(Access::reads) {
            cells[at].sure = cells[at].sure.with(arena);
            cells[at].perhaps = cells[at].perhaps.with(arena);
            cells[at].kept = Sure::Yes;
        }
    }

    /// Copies for a request may have left bytes in any arena, and bindings made for it in their kin.
    fn spread(&mut self, id: AskId, buffer: usize) {
        let ask = &self.asks[&id];
        let part = ask.parts[ask.granted].clone();
        debug_assert_eq!(part.buffer, buffer, "the part that was answered");
        self.passed(&part);
    }

    /// As the copies for a part may have left things: what it reads anywhere, everything else within its kin.
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

    /// It turned out whether bytes are kept or lost, where that was not known.
    pub(super) fn know(&mut self, buffer: usize, span: Range<u64>, is_kept: bool) {
        for cell in &mut self.buffers[buffer].cells[span.start as usize..span.end as usize] {
            if cell.is_written() && cell.kept == Sure::Perhaps {
                cell.kept = if is_kept { Sure::Yes } else { Sure::No };
            }
        }
    }

    /// The buffers in which a grant hears of a lost device when it ends, where it is the last to be asked among several;
    /// and whether that is sure. One without bytes is granted even where the storage is lost, and hears of it then.
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

    /// Some of those who wait were woken. `during` is what somebody held for a moment meanwhile.
    pub(super) fn woken(&mut self, ids: &[AskId], during: &[(u64, Part)]) -> Result<(), String> {
        // Of several woken by one operation, a later one may have been let in by an earlier change.
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

    /// A request is given up, or a grant ends without having been used.
    pub(super) fn give_up(&mut self, id: AskId) {
        self.asks.remove(&id);
        self.buffers.iter_mut().for_each(|buffer| buffer.queue.retain(|waiting| *waiting != id));
    }

    /// Some parts of a grant ended and their writes count, save where its storage was lost. `written` is what was written
    /// of each buffer, by the number of the version.
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
                    // Zeros that a kernel has left as they were are contents like any other now.
                    (None, Contents::Zeros) => Contents::Version(0),
                    (None, contents) => contents,
                };
                *cell = Cell { contents, poisoned: false, sure: held, perhaps, kept: Sure::Yes };
            }
        }
    }

    /// A grant's kernel failed.
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

    /// A grant goes on as a reader.
    pub(super) fn downgrade(&mut self, id: AskId) {
        let ask = self.asks.get_mut(&id).expect("it is granted");
        for byte in ask.parts.iter_mut().flat_map(|part| &mut part.bytes) {
            *byte = byte.map(|_| Access::ReadOnly);
        }
    }

    /// Poisoned bytes have their contents back.
    pub(super) fn restored(&mut self, buffer: usize, range: &Range<u64>) {
        for cell in &mut self.buffers[buffer].cells[range.start as usize..range.end as usize] {
            cell.poisoned = false;
            if cell.is_written() {
                cell.kept = Sure::Yes;
            }
        }
    }

    /// An arena's storage was freed.
    ///
    /// # Errors
    /// When it held the only copy of something.
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

    /// A device is gone. `storage` says in which arenas of each buffer storage went with it.
    ///
    /// # Errors
    /// When that is less than the device's own or more than could share it.
    pub(super) fn lose(&mut self, arena: ArenaId, storage: &BTreeMap<usize, ArenaSet>) -> Result<(), String> {
        self.lost = self.lost.with(arena);
        let gone = ArenaSet::of(arena);
        let kin = self.kin_of(self.lost);
        for buffer in &mut self.buffers {
            for cell in &mut buffer.cells {
                let kept = cell.kept;
                cell.shrink(kin, gone);
                if !cell.is_written() {
                    // Zeros can be made again, but who had them filled in has its storage no more.
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

    /// Whoever waits though nothing stands in the way.
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
