//! The machine of one buffer with its environment: plans carried out step by step, kernels that run and fail,
//! and storages that record what was really written to them.
//!
//! ```text
//!   ask / prefetch / bind ──▶ BufferState ──▶ Execution (both production code) ──begin──▶ ──report──▶ granted ──release──▶
//! ```
//! [`Machine`] stands for the engine and its arenas. It does what an [`Execution`] says, one micro-step at a
//! time and with the plans in any order. It uses no thread, clock or arena. Within a plan it chooses only
//! which of the copies under way ends first. It is a value (`Clone`, `Eq`, `Hash`), so that the model checker
//! can explore it. The property tests and the fuzzer drive the same type through [`Op`]. Beside the machine
//! it keeps a *ghost*: which storages hold the last committed bytes, computed from what kernels and copies
//! did. [`Machine::check`] compares the machine with the ghost.

mod ghost;
mod op;
mod refine;
mod rest;
mod runner;
pub mod topology;

pub use op::{How, Mix, Op, from_bytes, ops, run};
pub use refine::refine;
pub use rest::Served;
pub use runner::{LEN, Tally};

use dml_core::internal::state::{
    Admission, Alloc, Begin, Brings, BufferState, CopyId, CopyKind, CopyOp, Execution, Finished, Initial,
    Lifecycle, Next, Outcome, Refusal, Report, Request, Routes, Step, SyncPlan,
};
use dml_core::{
    Access, Allocation, ArenaId, ArenaSet, Claim, Claims, Concurrency, DeviceId, KernelId, OwnerId, Span,
    Ticket,
};
use ghost::{Ghost, Underway};

/// A plan under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Running {
    execution: Execution,
    /// The sources of its copies under way.
    underway: Vec<Underway>,
}

/// A granted request whose kernel runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Holding {
    grant: OwnerId,
    arena: ArenaId,
    claims: Claims,
    is_submission: bool,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The request has access.
    Granted,
    /// A plan is under way.
    Running,
    /// The request waits in the queue.
    Queued,
    /// The request cannot have access now, and does not wait.
    Busy,
    /// The request can never have access.
    Refused(Refusal),
}

/// The machine of one buffer, and its environment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    state: BufferState,
    running: Vec<Running>,
    holding: Vec<Holding>,
    /// The grants whose kernels are on the stream of their arena, in the order in which they started.
    launched: Vec<OwnerId>,
    ghost: Ghost,
    arenas: u8,
    /// Whether an arena broke its contract.
    broken: bool,
    /// The first violation of the contract with the engine.
    complaint: Option<String>,
}

impl Machine {
    /// Makes the machine of an unused buffer of `len` bytes.
    #[must_use]
    pub fn new(routes: &dyn Routes, len: u64, initial: Initial) -> Self {
        let state = BufferState::new(routes, len, initial);
        let ghost = Ghost::new(len, initial);
        let arenas = routes.arenas().len() as u8;
        let (running, holding, launched) = (Vec::new(), Vec::new(), Vec::new());
        Self { state, running, holding, launched, ghost, arenas, broken: false, complaint: None }
    }

    /// Returns the state of the buffer.
    #[must_use]
    pub fn state(&self) -> &BufferState {
        &self.state
    }

    /// Returns the plans under way.
    pub fn running(&self) -> impl ExactSizeIterator<Item = &Execution> + '_ {
        self.running.iter().map(|running| &running.execution)
    }

    /// Returns the grants that kernels hold.
    pub fn holding(&self) -> impl ExactSizeIterator<Item = OwnerId> + '_ {
        self.holding.iter().map(|holding| holding.grant)
    }

    /// Returns whether a grant holds bytes for writing.
    #[must_use]
    pub fn writes(&self, grant: OwnerId) -> bool {
        let found = self.holding.iter().find(|holding| holding.grant == grant);
        found.is_some_and(|holding| holding.claims.iter().any(|claim| claim.access.writes()))
    }

    /// Returns whether a request waits.
    #[must_use]
    pub fn is_waiting(&self, grant: OwnerId) -> bool {
        self.state.queue().any(|waiting| waiting.request.grant == grant)
    }

    /// Returns whether no plan is under way, no kernel holds a grant, and no request waits.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.running.is_empty() && self.holding.is_empty() && self.state.queue().len() == 0
    }

    /// Returns the number of arenas of the platform.
    #[must_use]
    pub fn arenas(&self) -> u8 {
        self.arenas
    }

    /// Returns the same machine with commits and tickets counted from the start, and users in the order of
    /// their grants. Two machines that differ only in these behave alike.
    #[must_use]
    pub fn canonical(mut self) -> Self {
        self.state = self.state.canonical();
        self.running.sort_by_key(|running| running.execution.owner());
        self.holding.sort_by_key(|holding| holding.grant);
        self
    }

    /// Checks the machine against the specification.
    ///
    /// # Errors
    /// The first contradiction found: in the machine's own invariants, in the storages, or in what honest
    /// arenas and an honest engine may expect.
    pub fn check(&self, routes: &dyn Routes) -> Result<(), String> {
        if let Some(complaint) = &self.complaint {
            return Err(complaint.clone());
        }
        self.state.check_invariants(routes).map_err(|violation| violation.to_string())?;
        if self.state.lifecycle() == Lifecycle::Wedged && !self.broken {
            return Err("wedged, and no arena broke its contract".to_owned());
        }
        let left_behind = self.state.clone().pump(routes);
        if let Some(admission) = left_behind.first() {
            return Err(format!("L-3: {} could have been let in before", admission.request.grant));
        }
        self.ghost.contradiction(&self.state).map_or(Ok(()), Err)
    }

    fn expect(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds && self.complaint.is_none() {
            self.complaint = Some(what());
        }
    }

    /// Asks for access. With a ticket in `waits`, the request is queued if it cannot have access now.
    pub fn ask(&mut self, routes: &dyn Routes, request: Request, waits: Option<Ticket>) -> Asked {
        let asked = match (self.state.begin(routes, &request), waits) {
            (Begin::Busy { .. }, Some(ticket)) => {
                self.state.enqueue(ticket, request);
                // As a buffer does: nothing has changed for those that wait.
                return Asked::Queued;
            }
            (begin, _) => self.begun(&request, begin),
        };
        self.settle(routes);
        asked
    }

    /// Prefetches bytes into an arena.
    pub fn prefetch(&mut self, routes: &dyn Routes, owner: OwnerId, arena: ArenaId, span: Span) -> Asked {
        let asked = match self.state.prefetch(routes, owner, arena, span) {
            Begin::Granted(_) => Asked::Granted,
            Begin::Plan(plan) => self.run(plan),
            Begin::Busy { .. } => Asked::Busy,
            Begin::Refused(refusal) => Asked::Refused(refusal),
        };
        self.settle(routes);
        asked
    }

    /// Binds an arena to another's storage, if a link of the platform allows it. Returns whether the binding
    /// began.
    pub fn bind(&mut self, routes: &dyn Routes, owner: OwnerId, arena: ArenaId, root: ArenaId) -> bool {
        let concurrency = routes.links().iter().find_map(|link| match link.allocation {
            Allocation::Bound(concurrency) if (link.from, link.to) == (root, arena) => Some(concurrency),
            _ => None,
        });
        let plan = concurrency.map(|concurrency| self.state.bind(owner, arena, root, concurrency));
        let Some(Ok(plan)) = plan else { return false };
        self.run(plan);
        self.settle(routes);
        true
    }

    fn begun(&mut self, request: &Request, begin: Begin) -> Asked {
        match begin {
            Begin::Granted(seq) => {
                let now = self.state.commit_seq();
                self.expect(seq == now, || format!("{} sees commit {seq:?} of {now:?}", request.grant));
                self.granted(request.grant);
                Asked::Granted
            }
            Begin::Plan(plan) => self.run(plan),
            Begin::Busy { .. } => Asked::Busy,
            Begin::Refused(refusal) => Asked::Refused(refusal),
        }
    }

    fn run(&mut self, plan: SyncPlan) -> Asked {
        self.running.push(Running { execution: Execution::new(plan), underway: Vec::new() });
        Asked::Running
    }

    /// Starts a kernel, and checks the bytes that it asked to read.
    fn granted(&mut self, grant: OwnerId) {
        let entry = self.state.requestors().iter().find(|entry| entry.grant == grant);
        let Some(entry) = entry.cloned() else {
            return self.expect(false, || format!("{grant} is granted and not in the requestor-set"));
        };
        let (arena, claims, is_submission) = (entry.arena, entry.claims, entry.is_submission);
        if !is_submission {
            self.reads(grant, arena, &claims);
        }
        self.holding.push(Holding { grant, arena, claims, is_submission });
    }

    /// Checks the bytes that a kernel now reads.
    fn reads(&mut self, grant: OwnerId, arena: ArenaId, claims: &Claims) {
        let unfit = self.ghost.unfit(&self.state, arena, claims);
        self.expect(unfit.is_none(), || {
            format!(
                "I-4: {grant} reads byte {} in {arena}, which holds something else",
                unfit.unwrap_or_default()
            )
        });
    }

    /// Returns whether the kernel of a grant can start on the stream of its arena.
    #[must_use]
    pub fn can_launch(&self, grant: OwnerId) -> bool {
        let may = |holding: &Holding| holding.grant == grant && holding.is_submission;
        !self.launched.contains(&grant) && self.holding.iter().any(may)
    }

    /// Starts the kernel of a submission behind those on the stream of its arena. It ends instead if one of
    /// them failed, and so did not write what it reads.
    ///
    /// # Panics
    /// When it cannot start.
    pub fn launch(&mut self, routes: &dyn Routes, grant: OwnerId) {
        assert!(self.can_launch(grant), "{grant} can start");
        match self.state.start(grant) {
            Ok(()) => self.launched.push(grant),
            Err(refusal) => {
                let failed = matches!(refusal, Refusal::Poisoned { .. });
                self.expect(failed, || format!("{grant} is granted and cannot start: {refusal:?}"));
                self.release(routes, grant, Outcome::NotStarted);
            }
        }
        // Submissions may have waited for its start.
        self.settle(routes);
    }

    /// Returns the grants whose kernels are on a stream, in the order in which they started.
    pub fn launched(&self) -> impl ExactSizeIterator<Item = OwnerId> + '_ {
        self.launched.iter().copied()
    }

    /// Ends the first kernel on the stream of an arena. If it fails, all others on the stream fail with it.
    ///
    /// # Panics
    /// When no kernel is on the stream.
    pub fn end_first(&mut self, routes: &dyn Routes, arena: ArenaId, fails: bool) {
        let on = |holding: &&Holding| holding.arena == arena && self.launched.contains(&holding.grant);
        let holding: Vec<Holding> = self.holding.iter().filter(on).cloned().collect();
        let of = |grant: &OwnerId| holding.iter().find(|holding| holding.grant == *grant);
        let stream: Vec<Holding> = self.launched.iter().filter_map(of).cloned().collect();
        let first = stream.first().expect("a kernel is on the stream");
        if !fails && !self.state.arena(arena).is_lost() {
            self.reads(first.grant, arena, &first.claims);
            return self.release(routes, first.grant, Outcome::Done);
        }
        for holding in stream {
            self.release(routes, holding.grant, Outcome::Failed);
        }
    }

    /// Ends a kernel that has not failed: the first on its stream if it is on one, otherwise as not started.
    ///
    /// # Panics
    /// When no kernel holds this grant.
    pub fn end(&mut self, routes: &dyn Routes, grant: OwnerId) {
        match self.launched.contains(&grant) {
            true => self.end_first(routes, self.arena_of(grant), false),
            false => self.release(routes, grant, Outcome::NotStarted),
        }
    }

    /// Returns whether a grant is that of a submission.
    #[must_use]
    pub fn is_submission(&self, grant: OwnerId) -> bool {
        self.holding.iter().any(|holding| holding.grant == grant && holding.is_submission)
    }

    /// Returns the arena of a grant.
    ///
    /// # Panics
    /// When no kernel holds this grant.
    #[must_use]
    pub fn arena_of(&self, grant: OwnerId) -> ArenaId {
        let found = self.holding.iter().find(|holding| holding.grant == grant);
        found.expect("a kernel holds this grant").arena
    }

    /// Takes the next step of a plan: ends a step that has begun, begins another, or ends a copy that the
    /// plan waits for. `which`, counted around, chooses that copy. Returns the step that began, if one did.
    ///
    /// # Panics
    /// When no plan of this owner is under way.
    pub fn advance(&mut self, routes: &dyn Routes, owner: OwnerId, which: usize) -> Option<Step> {
        let index = self.index(owner);
        let Self { state, running, .. } = self;
        let execution = &mut running[index].execution;
        let mut begun = None;
        if let Some(step) = execution.doing() {
            self.report(routes, index, step, Report::Done);
        } else {
            match execution.next(state) {
                Next::Do(step) => {
                    begun = Some(step);
                    self.begin(routes, index, step);
                }
                Next::Refused(refusal) => {
                    let lost = self.state.lifecycle() == Lifecycle::Wedged || self.is_any_lost();
                    self.expect(lost, || format!("a copy begins and cannot: {refusal:?}"));
                }
                Next::Wait => {
                    let copy = pick(execution, which).expect("something is waited for");
                    self.report(routes, index, copy, Report::Done);
                }
                Next::Finish => self.finish(routes, index),
                Next::GiveUp => {
                    let mut given_up = self.running.remove(index);
                    let _ = given_up.execution.give_up(routes, &mut self.state);
                }
            }
        }
        self.settle(routes);
        begun
    }

    /// Fails a step that has begun: the one that the plan is doing, or one of its copies under way.
    ///
    /// # Panics
    /// When no plan of this owner is under way.
    pub fn fail(&mut self, routes: &dyn Routes, owner: OwnerId, which: usize) {
        self.go_wrong(routes, owner, which, Report::Failed);
    }

    /// Fails a step as [`fail`](Self::fail) does, because an arena breaks its contract.
    ///
    /// # Panics
    /// When no plan of this owner is under way.
    pub fn break_contract(&mut self, routes: &dyn Routes, owner: OwnerId, which: usize) {
        self.go_wrong(routes, owner, which, Report::Broken);
    }

    /// Gives a plan up on behalf of its owner: no further step begins, and the steps under way end first.
    /// Does nothing while an arena is being called.
    ///
    /// # Panics
    /// When no plan of this owner is under way.
    pub fn give_up(&mut self, owner: OwnerId) {
        let index = self.index(owner);
        let execution = &mut self.running[index].execution;
        if execution.doing().is_none() {
            execution.stop();
        }
    }

    fn go_wrong(&mut self, routes: &dyn Routes, owner: OwnerId, which: usize, report: Report) {
        let index = self.index(owner);
        let execution = &self.running[index].execution;
        if let Some(step) = execution.doing().or_else(|| pick(execution, which)) {
            self.broken |= report == Report::Broken;
            self.report(routes, index, step, report);
            self.settle(routes);
        }
    }

    /// Returns how many steps of a plan can fail now.
    #[must_use]
    pub fn failures(&self, owner: OwnerId) -> usize {
        let execution = &self.running[self.index(owner)].execution;
        usize::from(execution.doing().is_some()).max(execution.under_way().len())
    }

    /// Returns how many choices [`advance`](Self::advance) has: more than one only where the plan may wait
    /// for copies.
    #[must_use]
    pub fn choices(&self, owner: OwnerId) -> usize {
        let execution = &self.running[self.index(owner)].execution;
        if execution.doing().is_some() { 1 } else { execution.under_way().len().max(1) }
    }

    fn index(&self, owner: OwnerId) -> usize {
        let found = self.running.iter().position(|running| running.execution.owner() == owner);
        found.expect("a plan of this owner is under way")
    }

    fn is_any_lost(&self) -> bool {
        (0..self.arenas).any(|arena| self.state.arena(ArenaId(arena)).is_lost())
    }

    /// Returns whether a step other than a copy needs a lost memory, so that no arena can do it. The machine
    /// refuses such copies itself.
    fn cannot(&self, step: Step) -> bool {
        let lost = |arena: ArenaId| self.state.arena(arena).is_lost();
        match step {
            Step::Allocate { arena } | Step::Map { arena, .. } => lost(arena),
            Step::Bind { arena, root, .. } => lost(arena) || lost(root),
            Step::Copy(_) => false,
        }
    }

    /// Asks an arena to do a step.
    fn begin(&mut self, routes: &dyn Routes, index: usize, step: Step) {
        if self.cannot(step) {
            return self.report(routes, index, step, Report::Failed);
        }
        match step {
            Step::Allocate { arena } => {
                let has = self.state.arena(arena).alloc.is_allocated();
                self.expect(!has, || format!("{arena} is to be allocated and has storage already"));
            }
            Step::Bind { arena, root, .. } => {
                let (has, there) = (self.state.arena(arena).alloc, self.state.arena(root).alloc);
                self.expect(!has.is_allocated(), || {
                    format!("{arena} is to be bound and has storage already")
                });
                self.expect(there.is_allocated(), || format!("{root} is to be shared and has no storage"));
                self.is_used(index, self.state.group(arena).union(self.state.group(root)));
            }
            Step::Map { arena, target, .. } => {
                let state = *self.state.arena(arena);
                self.expect(state.alloc.is_allocated(), || {
                    format!("{arena} is to be mapped and has no storage")
                });
                self.expect(state.map != target, || format!("{arena} is {target:?} already"));
                self.is_used(index, self.state.group(arena));
            }
            Step::Copy(copy) => {
                for end in copy.from().into_iter().chain([copy.to]) {
                    let there = self.state.arena(end).alloc.is_allocated();
                    self.expect(there, || format!("I-5: {end} is copied and has no storage"));
                }
                let underway = self.ghost.started(&self.state, copy);
                self.running[index].underway.push(underway);
                if let CopyKind::Refresh { .. } = copy.kind {
                    // A refresh moves no bytes.
                    self.report(routes, index, step, Report::Done);
                }
            }
        }
    }

    /// Checks that no copy of the plan uses a storage whose sharing is about to change.
    fn is_used(&mut self, index: usize, group: ArenaSet) {
        let uses = |copy: &CopyOp| copy.from().into_iter().chain([copy.to]).any(|end| group.contains(end));
        let copies = self.running[index].execution.under_way().copied();
        let used = copies.filter(uses).map(|copy| copy.id).min();
        self.expect(used.is_none(), || format!("{used:?} runs while its storage changes"));
    }

    /// Reports the end of a step, successful or not.
    fn report(&mut self, routes: &dyn Routes, index: usize, step: Step, report: Report) {
        let underway = match step {
            Step::Copy(copy) => Some(self.ends(index, copy.id)),
            _ => None,
        };
        if let (Some(underway), Report::Done) = (&underway, report) {
            self.ghost.copied(&self.state, underway);
            self.clear_coherent(routes);
        }
        let execution = &mut self.running[index].execution;
        let breach = execution.report(routes, &mut self.state, step, report);
        self.expect(breach.is_ok(), || format!("an honest arena is told that it {breach:?}"));
        match (step, report) {
            (Step::Allocate { arena }, Report::Done) => self.ghost.allocated(arena),
            (Step::Bind { arena, .. }, Report::Done) => {
                self.ghost.bound(arena);
                self.clear_coherent(routes);
            }
            _ => {}
        }
    }

    /// Removes a copy that ends, and returns what it has read. If the copy failed, its destination may hold
    /// any bytes.
    fn ends(&mut self, index: usize, id: CopyId) -> Underway {
        let underway = &mut self.running[index].underway;
        let at = underway.iter().position(|underway| underway.copy.id == id);
        underway.remove(at.expect("it has begun"))
    }

    fn finish(&mut self, routes: &dyn Routes, index: usize) {
        let mut running = self.running.remove(index);
        let owner = running.execution.owner();
        let entry = self.state.requestors().iter().find(|entry| entry.grant == owner);
        let is_submission = entry.is_some_and(|entry| entry.is_submission);
        let finished = running.execution.finish(routes, &mut self.state);
        let granted = match finished {
            Ok(Finished::Granted(entry)) => Some(entry.grant),
            Ok(Finished::Prefetched { .. } | Finished::Bound) | Err(_) => None,
        };
        let refused = finished.err();
        let lost = self.state.lifecycle() == Lifecycle::Wedged || self.is_any_lost();
        // A kernel before it on its stream may have failed during the plan.
        let failed = is_submission && matches!(refused, Some(Refusal::Poisoned { .. }));
        self.expect(refused.is_none() || lost || failed, || {
            format!("a plan is done and refused: {refused:?}")
        });
        self.expect(running.underway.is_empty(), || {
            format!("finished with {:?} under way", running.underway)
        });
        if let Some(grant) = granted {
            self.granted(grant);
        }
    }

    /// Ends a kernel. A kernel that overwrites cannot end clean; it then counts as failed.
    ///
    /// # Panics
    /// When no kernel holds this grant.
    pub fn release(&mut self, routes: &dyn Routes, grant: OwnerId, outcome: Outcome) {
        let Holding { arena, claims, .. } = self.let_go(grant);
        // The kernel wrote before it ended, and the release may drop its storage.
        let before = self.state.clone();
        let mut released = self.state.release_kernel(routes, (grant, arena, &claims), outcome);
        if released == Err(Refusal::NotClean) {
            released = self.state.release_kernel(routes, (grant, arena, &claims), Outcome::Failed);
        }
        match released {
            Ok(release) => match release.outcome {
                Outcome::Done => self.ghost.wrote(&before, arena, &claims, true),
                Outcome::Failed => self.ghost.wrote(&before, arena, &claims, false),
                Outcome::NotStarted | Outcome::Clean => {}
            },
            Err(refusal) => self.expect(false, || format!("{grant} cannot be released: {refusal:?}")),
        }
        self.clear_coherent(routes);
        self.settle(routes);
    }

    /// Downgrades a writing kernel to a reader. If its device is lost, the downgrade fails and changes
    /// nothing.
    ///
    /// # Panics
    /// When no kernel holds this grant.
    pub fn downgrade(&mut self, routes: &dyn Routes, grant: OwnerId) {
        let holding = self.let_go(grant);
        let Holding { arena, ref claims, .. } = holding;
        if self.state.downgrade(routes, grant).is_ok() {
            self.ghost.wrote(&self.state, arena, claims, true);
            self.clear_coherent(routes);
            self.granted(grant);
        } else {
            self.holding.push(holding);
        }
        self.settle(routes);
    }

    fn let_go(&mut self, grant: OwnerId) -> Holding {
        let found = self.holding.iter().position(|holding| holding.grant == grant);
        self.launched.retain(|launched| *launched != grant);
        self.holding.remove(found.expect("a kernel holds this grant"))
    }

    /// Gives up a waiting request. Returns whether the request was still waiting.
    pub fn cancel(&mut self, routes: &dyn Routes, ticket: Ticket) -> bool {
        let cancelled = self.state.cancel(ticket);
        self.settle(routes);
        cancelled
    }

    /// Restores the last committed contents of poisoned bytes, where that is possible.
    pub fn restore(&mut self, routes: &dyn Routes, span: Span) -> Result<bool, Refusal> {
        let restored = self.state.restore(span);
        self.settle(routes);
        restored
    }

    /// Frees storage, where that is possible. Returns whether it was freed.
    pub fn free(&mut self, routes: &dyn Routes, arena: ArenaId) -> bool {
        let freed = self.state.free(routes, arena).is_ok();
        if freed {
            self.ghost.allocated(arena);
            self.clear_coherent(routes);
        }
        self.settle(routes);
        freed
    }

    /// Gives an arena storage of the application, where that is possible.
    pub fn attach(&mut self, routes: &dyn Routes, arena: ArenaId, brings: Brings) {
        if let Ok(commit) = self.state.attach(routes, arena, brings) {
            self.ghost.allocated(arena);
            if commit.is_some() {
                let span = Span::new(0, self.state.len());
                let claims = Claims::new([Claim { span, access: Access::WriteInvalidate }]);
                self.ghost.wrote(&self.state, arena, &claims, true);
            }
        }
        self.settle(routes);
    }

    /// Says that an arena will not be used. Its only contents go to `home`, where that can begin.
    pub fn will_not_use(
        &mut self,
        routes: &dyn Routes,
        owner: OwnerId,
        arena: ArenaId,
        home: Option<ArenaId>,
    ) {
        if let Ok(Begin::Plan(plan)) = self.state.will_not_use(routes, owner, arena, home) {
            self.run(plan);
        }
        self.settle(routes);
    }

    /// Declares a device lost, with the contents of its memories.
    pub fn lose(&mut self, routes: &dyn Routes, device: DeviceId) {
        let gone = (0..).map(ArenaId).zip(routes.arenas()).filter(|(_, desc)| desc.native == device);
        let gone: ArenaSet = gone.map(|(arena, _)| arena).collect();
        let _ = self.state.device_lost(routes, device);
        self.ghost.lost(gone);
        self.settle(routes);
    }

    /// Closes the buffer: no more requests are accepted.
    pub fn close(&mut self, routes: &dyn Routes) {
        let refused = self.state.close(routes);
        refused.into_iter().for_each(|admission| self.admit(admission));
        self.settle(routes);
    }

    /// Admits every request that can be admitted. Follows every change.
    fn settle(&mut self, routes: &dyn Routes) {
        let gone = |arena: &ArenaId| {
            let state = self.state.arena(*arena);
            state.is_retired && !state.alloc.is_allocated()
        };
        let gone: ArenaSet = (0..self.arenas).map(ArenaId).filter(gone).collect();
        if !gone.is_empty() {
            gone.iter().for_each(|arena| self.ghost.allocated(arena));
            self.clear_coherent(routes);
        }
        let admitted = self.state.pump(routes);
        admitted.into_iter().for_each(|admission| self.admit(admission));
    }

    fn admit(&mut self, Admission { request, begin, .. }: Admission) {
        let busy = matches!(begin, Begin::Busy { .. });
        self.expect(!busy, || format!("{} is let in and busy", request.grant));
        self.begun(&request, begin);
    }

    /// Marks no arena as stale where the sharing is coherent.
    fn clear_coherent(&mut self, routes: &dyn Routes) {
        for (arena, _) in (0..).map(ArenaId).zip(routes.arenas()) {
            let shared = match self.state.arena(arena).alloc {
                Alloc::Bound { root, .. } => root,
                _ => arena,
            };
            let group = self.state.group(arena);
            let narrowest =
                group.iter().fold(routes.arena(shared).concurrency, |narrowest, member| {
                    match self.state.arena(member).alloc {
                        Alloc::Bound { concurrency, .. } => narrowest.min(concurrency),
                        _ => narrowest,
                    }
                });
            if narrowest == Concurrency::BimapFull {
                self.ghost.coherent(group);
            }
        }
    }
}

/// Returns one of the copies under way, counted around.
fn pick(execution: &Execution, which: usize) -> Option<Step> {
    let mut copies = execution.under_way();
    let which = which % copies.len().max(1);
    copies.nth(which).map(|copy| Step::Copy(*copy))
}

/// Makes a request of a submission.
#[must_use]
pub fn submission(grant: OwnerId, arena: ArenaId, claims: Claims) -> Request {
    Request { is_submission: true, ..request(grant, arena, claims) }
}

/// Makes a request of a kernel that makes no other request.
#[must_use]
pub fn request(grant: OwnerId, arena: ArenaId, claims: Claims) -> Request {
    Request { kernel: KernelId(grant.0), grant, arena, claims, is_submission: false }
}
