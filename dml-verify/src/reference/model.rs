//! The reference model: bytes with versions, the requests that hold them, and the requests that wait for
//! them.
//!
//! ```text
//!   cell      contents (unwritten │ zeros │ a version) · poisoned? · arenas that hold them: for sure │ perhaps
//!   ask       kernel · arena · per buffer the bytes wanted · how many buffers it holds · queued │ woken
//! ```
//! The model knows what a user of the interface can know: the bytes asked for and written, the answers, and
//! the requests that were woken. Of the platform it knows the arenas, and which of them may share storage. It
//! does not know map states, plans, segments or queues.

use super::ask::{Ask, AskId, Momentary, Part, Waits};
use super::cell::{Cell, Contents, Standing, Sure};
use super::judge::{Answer, Lesson};
use super::op::{Beginning, Make};
use dml_core::{Access, Allocation, ArenaId, ArenaSet, BufferId, Link, Platform};
use std::collections::BTreeMap;
use std::ops::Range;

/// The model of all buffers and requests of a platform.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) arenas: u8,
    /// The pairs of root and member that a link can bind.
    pub(super) binds: Vec<(ArenaId, ArenaId)>,
    /// The arenas whose native device is lost.
    pub(super) lost: ArenaSet,
    pub(super) buffers: Vec<Buffer>,
    pub(super) asks: BTreeMap<AskId, Ask>,
    kin: Kin,
    next_ask: AskId,
    version: u64,
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

/// What a kernel wrote: a range of one buffer, in one version.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) buffer: usize,
    pub(super) range: Range<u64>,
    pub(super) version: u64,
}

/// The answers to requests.
impl Model {
    /// Adds an acquire. Without a named kernel, it gets a kernel of its own.
    pub(super) fn ask(&mut self, kernel: Option<u64>, arena: ArenaId, parts: Vec<Part>) -> AskId {
        self.next_ask += 1;
        let kernel = kernel.unwrap_or((1 << 32) + self.next_ask);
        let doomed = Vec::new();
        let ask = Ask { kernel, arena, parts, granted: 0, waits: None, doomed, is_on_stream: false };
        self.asks.insert(self.next_ask, ask);
        self.next_ask
    }

    /// Takes the answer to an acquire, and checks that it is allowed. All parts before the one that it is
    /// about were granted. An acquire that ended with an error is removed.
    pub(super) fn answered(&mut self, id: AskId, answer: &Answer<'_>) -> Result<(), String> {
        while let Some(part) = self.asks[&id].next_part().cloned() {
            let is_here = answer.is_about(self.buffers[part.buffer].id);
            let here = if is_here { answer } else { &Answer::Granted };
            self.part_answered(id, &part, here)?;
            if is_here {
                return Ok(());
            }
        }
        match answer {
            Answer::Granted => Ok(()),
            other => Err(format!("{other:?}, though everything was granted")),
        }
    }

    /// Takes the answer to the next part of an acquire.
    fn part_answered(&mut self, id: AskId, part: &Part, answer: &Answer<'_>) -> Result<(), String> {
        let (expect, is_new) = match (self.asks[&id].waits.clone(), answer) {
            (None, _) => (self.expect(id, part, &[]), true),
            (Some(Waits::Queued), Answer::Waits(_)) => return Ok(()),
            (Some(Waits::Queued), _) => return Err(format!("{answer:?} without having been woken")),
            (Some(Waits::Woken(..)), Answer::Waits(_)) => return Err("woken, and not answered".to_owned()),
            (Some(Waits::Woken(expect, _)), _) => (*expect, false),
        };
        let lessons = expect.judge(answer).map_err(|why| format!("{why}: {answer:?}, {expect:?}"))?;
        if is_new || matches!(answer, Answer::Granted) {
            self.learn(part.buffer, &lessons);
        }
        if answer.reached_a_plan() {
            self.passed(&self.to_bring(id, part));
        }
        match answer {
            Answer::Granted => self.granted(id, part),
            Answer::Waits(_) => self.queued(id, part.buffer),
            Answer::Error(_) | Answer::Fault(_) => {
                self.asks.remove(&id);
            }
        }
        Ok(())
    }

    fn granted(&mut self, id: AskId, part: &Part) {
        let ask = self.asks.get_mut(&id).expect("it was answered");
        ask.waits = None;
        ask.granted += 1;
        let (arena, is_doomed) = (ask.arena, ask.doomed.contains(&part.buffer));
        // Bytes brought into storage that was lost meanwhile do not count.
        if !is_doomed {
            self.brought(&self.to_bring(id, part), arena);
        }
    }

    fn queued(&mut self, id: AskId, buffer: usize) {
        self.asks.get_mut(&id).expect("it was answered").waits = Some(Waits::Queued);
        self.buffers[buffer].queue.push(id);
    }

    /// Notes that waiting requests were woken, and checks that they may have been let in. `during` lists what
    /// other requests may have held meanwhile.
    pub(super) fn woken(&mut self, ids: &[AskId], during: &[Momentary]) -> Result<(), String> {
        // Where one operation wakes several requests, an earlier one may have admitted a later one.
        let together: Vec<(AskId, Momentary)> = ids.iter().map(|id| (*id, self.momentary(*id))).collect();
        for buffer in 0..self.buffers.len() {
            for id in self.buffers[buffer].queue.clone().into_iter().filter(|id| ids.contains(id)) {
                let others = together.iter().filter(|(other, _)| *other != id).map(|(_, part)| part);
                let during: Vec<_> = others.chain(during).cloned().collect();
                self.let_in(id, &during)?;
            }
        }
        Ok(())
    }

    fn momentary(&self, id: AskId) -> Momentary {
        let ask = &self.asks[&id];
        Momentary { kernel: ask.kernel, part: ask.waiting_part().clone() }
    }

    fn let_in(&mut self, id: AskId, during: &[Momentary]) -> Result<(), String> {
        let part = self.asks[&id].waiting_part().clone();
        let expect = self.expect(id, &part, during);
        let holds = expect.woken().map_err(|why| format!("{why}: woken, {expect:?}"))?;
        self.buffers[part.buffer].queue.retain(|waiting| *waiting != id);
        if holds != Sure::No {
            self.passed(&part);
        }
        let ask = self.asks.get_mut(&id).expect("who waits is known");
        ask.waits = Some(Waits::Woken(Box::new(expect), holds));
        Ok(())
    }

    /// Checks that no request waits without a reason.
    pub(super) fn stuck(&self) -> Result<(), String> {
        for (index, buffer) in self.buffers.iter().enumerate() {
            let Some(&head) = buffer.queue.first() else { continue };
            let expect = self.expect(head, self.asks[&head].waiting_part(), &[]);
            if buffer.is_closed || expect.must_be_answered() {
                return Err(format!("request {head} waits for buffer {index} for ever: {expect:?}"));
            }
        }
        Ok(())
    }

    /// Removes an acquire that was given up, or a grant that has ended.
    pub(super) fn give_up(&mut self, id: AskId) {
        self.asks.remove(&id);
        self.buffers.iter_mut().for_each(|buffer| buffer.queue.retain(|waiting| *waiting != id));
    }
}

/// The ends of grants.
impl Model {
    /// Ends the parts of a grant that `of` selects, and counts what its kernel wrote, except where the
    /// storage was lost.
    pub(super) fn commit(&mut self, id: AskId, written: &[Written], of: impl Fn(&Part) -> bool) {
        let ask = self.asks[&id].clone();
        for part in ask.parts.iter().filter(|part| of(part)) {
            if ask.doomed.contains(&part.buffer) {
                self.poison(ask.arena, part);
            } else {
                self.commit_part(ask.arena, part, written);
            }
        }
    }

    fn commit_part(&mut self, arena: ArenaId, part: &Part, written: &[Written]) {
        let perhaps = self.kin(arena).minus(self.lost);
        for at in part.at(Access::writes) {
            let by = |by: &&Written| by.buffer == part.buffer && by.range.contains(&(at as u64));
            let version = written.iter().find(by).map(|by| by.version);
            self.buffers[part.buffer].cells[at].committed(version, ArenaSet::of(arena), perhaps);
        }
    }

    /// Notes that the kernel of a grant failed in the parts that `of` selects.
    pub(super) fn fail(&mut self, id: AskId, of: impl Fn(&Part) -> bool) {
        let ask = self.asks[&id].clone();
        ask.parts.iter().filter(|part| of(part)).for_each(|part| self.poison(ask.arena, part));
    }

    fn poison(&mut self, arena: ArenaId, part: &Part) {
        let kin = self.kin(arena);
        let cells = &mut self.buffers[part.buffer].cells;
        part.at(Access::writes).for_each(|at| cells[at].poisoned(arena, kin));
    }

    /// Turns every access of a grant into a read.
    pub(super) fn downgrade(&mut self, id: AskId) {
        let ask = self.asks.get_mut(&id).expect("it is granted");
        for byte in ask.parts.iter_mut().flat_map(|part| &mut part.bytes) {
            *byte = byte.map(|_| Access::ReadOnly);
        }
    }

    /// Returns the buffers for which a grant may report a lost device when it ends, and whether that is
    /// certain. A part without bytes is granted even where the storage is lost, so its loss is reported at
    /// the end.
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
}

/// What happens to bytes otherwise.
impl Model {
    /// Notes that the bytes which a part reads are in an arena now.
    pub(super) fn brought(&mut self, part: &Part, arena: ArenaId) {
        let cells = &mut self.buffers[part.buffer].cells;
        part.at(Access::reads).for_each(|at| cells[at].brought(arena));
    }

    /// Widens the bounds by what copies for a part may have done. Bytes that it reads may be in any arena;
    /// all other bytes may have spread by bindings to the kin of their arenas.
    pub(super) fn passed(&mut self, part: &Part) {
        let alive = (0..self.arenas).map(ArenaId).collect::<ArenaSet>().minus(self.lost);
        let cells = &mut self.buffers[part.buffer].cells;
        part.at(Access::reads).for_each(|at| cells[at].widened(|perhaps| perhaps.union(alive)));
        for cell in cells {
            cell.widened(|perhaps| self.kin.of_all(perhaps).intersection(alive));
        }
    }

    pub(super) fn learn(&mut self, buffer: usize, lessons: &[Lesson]) {
        for lesson in lessons {
            self.know(buffer, lesson.span.clone(), lesson.is_kept);
        }
    }

    /// Notes that bytes are kept or lost, where that was not known.
    pub(super) fn know(&mut self, buffer: usize, span: Range<u64>, is_kept: bool) {
        self.cells_in(buffer, &span).iter_mut().for_each(|cell| cell.know(is_kept));
    }

    /// Notes that poisoned bytes have their contents back.
    pub(super) fn restored(&mut self, buffer: usize, range: &Range<u64>) {
        self.cells_in(buffer, range).iter_mut().for_each(Cell::restored);
    }

    fn cells_in(&mut self, buffer: usize, range: &Range<u64>) -> &mut [Cell] {
        &mut self.buffers[buffer].cells[range.start as usize..range.end as usize]
    }

    /// Notes that the storage of an arena was freed.
    ///
    /// # Errors
    /// When the arena held the only copy of a written byte.
    pub(super) fn freed(&mut self, buffer: usize, arena: ArenaId) -> Result<(), String> {
        let cells = &mut self.buffers[buffer].cells;
        if let Some(at) = cells.iter().position(|cell| cell.is_last_in(arena)) {
            return Err(format!("byte {at} was nowhere else"));
        }
        cells.iter_mut().for_each(|cell| cell.freed(arena));
        self.passed(&Part::new(buffer, 0));
        Ok(())
    }

    /// Notes that the device of some arenas is lost. `storage` names the arenas of each buffer whose storage
    /// was lost.
    ///
    /// # Errors
    /// When `storage` lacks an arena of a lost device, or names one that could not share storage with it.
    pub(super) fn lose(
        &mut self,
        arenas: ArenaSet,
        storage: &BTreeMap<usize, ArenaSet>,
    ) -> Result<(), String> {
        self.lost = self.lost.union(arenas);
        let kin = self.kin.of_all(self.lost);
        for cell in self.buffers.iter_mut().flat_map(|buffer| &mut buffer.cells) {
            cell.lost(arenas, kin);
        }
        for (buffer, lost) in storage {
            if !self.lost.is_subset(*lost) || !lost.is_subset(kin) {
                let devices = self.lost;
                return Err(format!("{lost:?} are lost in buffer {buffer}, the devices of {devices:?} are"));
            }
        }
        self.asks.values_mut().for_each(|ask| hit(ask, storage));
        Ok(())
    }
}

/// Notes what a lost device means for an acquire.
fn hit(ask: &mut Ask, storage: &BTreeMap<usize, ArenaSet>) {
    let is_lost = |buffer: &usize| storage.get(buffer).is_some_and(|lost| lost.contains(ask.arena));
    let held = ask.parts.iter().map(|part| part.buffer).filter(|buffer| ask.holds(*buffer).is_some());
    let doomed: Vec<usize> = held.filter(is_lost).collect();
    ask.doomed.extend(doomed);
    if let Some(Waits::Woken(expect, _)) = &mut ask.waits {
        expect.device_was_lost();
    }
}

/// Buffers, and what is known of them.
impl Model {
    pub(super) fn new(platform: &Platform) -> Self {
        let arenas = platform.arenas().len() as u8;
        let bound = |link: &&Link| matches!(link.allocation, Allocation::Bound(_));
        let binds: Vec<_> = platform.links().iter().filter(bound).map(|link| (link.from, link.to)).collect();
        Self {
            arenas,
            kin: Kin::new(arenas, &binds),
            binds,
            lost: ArenaSet::EMPTY,
            buffers: Vec::new(),
            asks: BTreeMap::new(),
            next_ask: 0,
            version: 0,
        }
    }

    /// Adds a buffer and returns its index. External bytes begin with `version`, in the arena `home`.
    pub(super) fn add_buffer(&mut self, id: BufferId, make: Make, version: u64, home: ArenaId) -> usize {
        let (contents, sure) = match make.beginning {
            Beginning::Unwritten => (Contents::Unwritten, ArenaSet::EMPTY),
            Beginning::Zeros => (Contents::Zeros, ArenaSet::EMPTY),
            Beginning::External => (Contents::Version(version), ArenaSet::of(home).minus(self.lost)),
        };
        let is_external = make.beginning == Beginning::External;
        let cells = vec![Cell::new(contents, sure); make.len as usize];
        self.buffers.push(Buffer { id, is_external, is_closed: false, cells, queue: Vec::new() });
        self.buffers.len() - 1
    }

    /// Returns a version number for bytes about to be written.
    pub(super) fn new_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Returns the version that a byte holds: zero for zeros, `None` for an unwritten byte.
    pub(super) fn version_at(&self, buffer: usize, at: u64) -> Option<u64> {
        self.buffers[buffer].cells[at as usize].version()
    }

    /// Returns the ranges of a buffer whose bytes have the same standing. An unsure byte is a range of its
    /// own.
    pub(super) fn alike(&self, buffer: usize) -> Vec<Range<u64>> {
        let cells = &self.buffers[buffer].cells;
        let alike = |one: &Cell, next: &Cell| {
            one.standing() == next.standing() && next.standing() != Standing::Unsure
        };
        let mut end = 0;
        let range = |run: &[Cell]| {
            end += run.len() as u64;
            end - run.len() as u64..end
        };
        cells.chunk_by(alike).map(range).collect()
    }

    /// Returns the arenas that may share storage with this one, itself included.
    pub(super) fn kin(&self, arena: ArenaId) -> ArenaSet {
        self.kin.of(arena)
    }

    /// Returns the requests that hold part of a buffer, and how sure that is.
    pub(super) fn users(&self, buffer: usize) -> impl Iterator<Item = (AskId, &Ask, &Part, Sure)> {
        self.asks.iter().filter_map(move |(id, ask)| {
            let (part, sure) = ask.holds(buffer)?;
            Some((*id, ask, part, sure))
        })
    }

    /// Returns the part without the bytes that kernels before it on its stream write: those need not be
    /// brought.
    pub(super) fn to_bring(&self, id: AskId, part: &Part) -> Part {
        let mut part = part.clone();
        let ask = &self.asks[&id];
        let before = self.users(part.buffer).filter(|(of, other, ..)| *of != id && ask.follows(other));
        before.for_each(|(_, _, before, _)| part.cut_written(before));
        part
    }

    /// Returns whether a kernel on a stream writes any byte of a range.
    pub(super) fn streams_write(&self, buffer: usize, range: &Range<u64>) -> bool {
        let writes = |part: &Part| part.at(Access::writes).any(|at| range.contains(&(at as u64)));
        self.users(buffer).any(|(_, ask, part, _)| ask.is_on_stream && writes(part))
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
}

/// For each arena, the arenas with which it may come to share storage, itself included.
#[derive(Clone, Debug)]
struct Kin(Vec<ArenaSet>);

impl Kin {
    fn new(arenas: u8, binds: &[(ArenaId, ArenaId)]) -> Self {
        let mut kin = Self((0..arenas).map(|arena| ArenaSet::of(ArenaId(arena))).collect());
        for _ in 0..arenas {
            for (a, b) in binds {
                let both = kin.of(*a).union(kin.of(*b));
                both.iter().for_each(|arena| kin.0[usize::from(arena.0)] = both);
            }
        }
        kin
    }

    fn of(&self, arena: ArenaId) -> ArenaSet {
        self.0[usize::from(arena.0)]
    }

    fn of_all(&self, arenas: ArenaSet) -> ArenaSet {
        arenas.iter().fold(arenas, |all, arena| all.union(self.of(arena)))
    }
}
