//! One buffer's machine with the environment it runs in: plans carried out step by step, kernels that run and fail, and
//! storages that hold what was really put there.
//!
//! ```text
//!   ask / prefetch / bind ──▶ BufferState (production code) ──▶ plans half way ──step──▶ done ──▶ granted ──release──▶
//!                                                                      └──fault──▶ waits for its copies, aborts
//! ```
//! [`Machine`] does what the engine does, one micro-step at a time and in any order of the plans, with no thread, clock or
//! arena. It is a value (`Clone`, `Eq`, `Hash`), so that the model checker can explore it; the property tests and the
//! fuzzer drive the same one through [`Op`]. Beside the machine it keeps a *ghost*: which storages hold the last
//! committed bytes, by what kernels and copies did. [`Machine::check`] holds the machine against it.

mod ghost;
mod op;
mod runner;
pub mod shapes;
pub mod topology;

pub use op::{Mix, Op, from_bytes, ops, run};
pub use runner::{LEN, Tally};

use dml_core::state::{
    Admission, Alloc, Begin, BufferState, CopyKind, Initial, Lifecycle, Outcome, Refusal, Request, Routes,
    Step, SyncPlan,
};
use dml_core::{
    Allocation, ArenaId, ArenaSet, Claims, Concurrency, DeviceId, GrantId, KernelId, Span, Ticket,
};
use ghost::{Ghost, Underway};
use std::collections::VecDeque;

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A kernel will be granted access.
    Kernel,
    /// Bytes are brought before anybody asks.
    Prefetch,
    /// An arena comes to share another's storage.
    Binding,
}

/// A plan half way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Running {
    owner: GrantId,
    purpose: Purpose,
    /// The steps to come, the next one first.
    steps: VecDeque<Step>,
    underway: VecDeque<Underway>,
    failed: bool,
}

/// A kernel with access.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Holding {
    grant: GrantId,
    arena: ArenaId,
    claims: Claims,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It has access.
    Granted,
    /// A plan is under way.
    Running,
    /// It waits.
    Queued,
    /// It could not have it now, and does not wait.
    Busy,
    /// It cannot have it.
    Refused(Refusal),
}

/// The machine of one buffer, and everything around it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    state: BufferState,
    running: Vec<Running>,
    holding: Vec<Holding>,
    ghost: Ghost,
    arenas: u8,
    /// The first thing that went against the contract with the engine.
    complaint: Option<String>,
}

impl Machine {
    /// A buffer of `len` bytes that nobody uses.
    #[must_use]
    pub fn new(routes: &dyn Routes, len: u64, initial: Initial) -> Self {
        let state = BufferState::new(routes, len, initial);
        let ghost = Ghost::new(len, initial);
        let arenas = routes.arenas().len() as u8;
        Self { state, running: Vec::new(), holding: Vec::new(), ghost, arenas, complaint: None }
    }

    /// The machine itself.
    #[must_use]
    pub fn state(&self) -> &BufferState {
        &self.state
    }

    /// The owners of the plans under way, and what they are for.
    pub fn running(&self) -> impl ExactSizeIterator<Item = (GrantId, Purpose)> + '_ {
        self.running.iter().map(|running| (running.owner, running.purpose))
    }

    /// The step that a plan will carry out next, unless it waits for its copies or is given up first.
    #[must_use]
    pub fn next_step(&self, owner: GrantId) -> Option<Step> {
        let index = self.running.iter().position(|running| running.owner == owner)?;
        let running = &self.running[index];
        if running.failed || self.ends_copy(index) { None } else { running.steps.front().copied() }
    }

    /// The grants that kernels hold.
    pub fn holding(&self) -> impl ExactSizeIterator<Item = GrantId> + '_ {
        self.holding.iter().map(|holding| holding.grant)
    }

    /// Whether a grant holds bytes for writing.
    #[must_use]
    pub fn writes(&self, grant: GrantId) -> bool {
        let found = self.holding.iter().find(|holding| holding.grant == grant);
        found.is_some_and(|holding| holding.claims.iter().any(|claim| claim.access.writes()))
    }

    /// Whether a request waits.
    #[must_use]
    pub fn is_waiting(&self, grant: GrantId) -> bool {
        self.state.queue().any(|waiting| waiting.request.grant == grant)
    }

    /// Whether nobody uses the buffer, waits for it, or is about to.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.running.is_empty() && self.holding.is_empty() && self.state.queue().len() == 0
    }

    /// How many arenas the platform has.
    #[must_use]
    pub fn arenas(&self) -> u8 {
        self.arenas
    }

    /// Lets every plan and every kernel come to its end, and closes the buffer: whether everybody was served, and nothing
    /// contradicts the specification on the way.
    #[must_use]
    pub fn comes_to_rest(mut self, routes: &dyn Routes) -> bool {
        while !self.is_at_rest() {
            let (running, holding) = (self.running().next(), self.holding().next());
            match (running, holding) {
                (Some((owner, _)), _) => self.advance(routes, owner),
                (None, Some(grant)) => self.release(routes, grant, Outcome::NotStarted),
                (None, None) => return false,
            }
        }
        let idle = self.state.is_idle();
        self.close(routes);
        idle && self.state.lifecycle() == Lifecycle::Closed && self.check(routes).is_ok()
    }

    /// The same machine with commits and tickets counted from the start and users in the order of their grants: two that
    /// differ only in these behave alike.
    #[must_use]
    pub fn canonical(mut self) -> Self {
        self.state = self.state.canonical();
        self.running.sort_by_key(|running| running.owner);
        self.holding.sort_by_key(|holding| holding.grant);
        self
    }

    /// What contradicts the specification, if anything does.
    ///
    /// # Errors
    /// The first contradiction found: of the machine's own invariants, of what is in the storages, or of what an honest
    /// engine and honest arenas may expect.
    pub fn check(&self, routes: &dyn Routes) -> Result<(), String> {
        if let Some(complaint) = &self.complaint {
            return Err(complaint.clone());
        }
        self.state.check_invariants(routes).map_err(|violation| violation.to_string())?;
        if self.state.lifecycle() == Lifecycle::Wedged {
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

    /// Asks for access; with `waits`, the request is queued where it cannot have it now.
    pub fn ask(&mut self, routes: &dyn Routes, request: Request, waits: Option<Ticket>) -> Asked {
        match self.state.begin(routes, &request) {
            Begin::Busy { .. } => match waits {
                Some(ticket) => {
                    self.state.enqueue(ticket, request);
                    self.settle(routes);
                    Asked::Queued
                }
                None => Asked::Busy,
            },
            begin => self.begun(request, begin),
        }
    }

    /// Makes bytes valid in an arena before anybody asks.
    pub fn prefetch(&mut self, routes: &dyn Routes, owner: GrantId, arena: ArenaId, span: Span) -> Asked {
        match self.state.prefetch(routes, owner, arena, span) {
            Begin::Granted(_) => Asked::Granted,
            Begin::Plan(plan) => self.run(plan, Purpose::Prefetch),
            Begin::Busy { .. } => Asked::Busy,
            Begin::Refused(refusal) => Asked::Refused(refusal),
        }
    }

    /// Binds an arena to another's storage, where a link of the platform does that.
    pub fn bind(&mut self, routes: &dyn Routes, owner: GrantId, arena: ArenaId, root: ArenaId) -> bool {
        let concurrency = routes.links().iter().find_map(|link| match link.allocation {
            Allocation::Bound(concurrency) if (link.from, link.to) == (root, arena) => Some(concurrency),
            _ => None,
        });
        let plan = concurrency.map(|concurrency| self.state.bind(owner, arena, root, concurrency));
        let Some(Ok(plan)) = plan else { return false };
        self.run(plan, Purpose::Binding);
        true
    }

    fn begun(&mut self, request: Request, begin: Begin) -> Asked {
        match begin {
            Begin::Granted(seq) => {
                let now = self.state.commit_seq();
                self.expect(seq == now, || format!("{} sees commit {seq:?} of {now:?}", request.grant));
                self.granted(request.grant);
                Asked::Granted
            }
            Begin::Plan(plan) => self.run(plan, Purpose::Kernel),
            Begin::Busy { .. } => Asked::Busy,
            Begin::Refused(refusal) => Asked::Refused(refusal),
        }
    }

    fn run(&mut self, plan: SyncPlan, purpose: Purpose) -> Asked {
        let (owner, steps) = (plan.owner, plan.steps.into());
        self.running.push(Running { owner, purpose, steps, underway: VecDeque::new(), failed: false });
        Asked::Running
    }

    /// A kernel begins, and reads what it asked to read.
    fn granted(&mut self, grant: GrantId) {
        let entry = self.state.requestors().iter().find(|entry| entry.grant == grant);
        let Some((arena, claims)) = entry.map(|entry| (entry.arena, entry.claims.clone())) else {
            return self.expect(false, || format!("{grant} is granted and not in the requestor-set"));
        };
        let unfit = self.ghost.unfit(&self.state, arena, &claims);
        self.expect(unfit.is_none(), || {
            format!(
                "I-4: {grant} reads byte {} in {arena}, which holds something else",
                unfit.unwrap_or_default()
            )
        });
        self.holding.push(Holding { grant, arena, claims });
    }

    /// The next thing the engine would do for a plan; it works.
    ///
    /// # Panics
    /// When no plan of this owner is under way.
    pub fn advance(&mut self, routes: &dyn Routes, owner: GrantId) {
        let index = self.index(owner);
        if self.ends_copy(index) {
            let underway = self.running[index].underway.pop_front().expect("just found");
            self.copied(routes, &underway);
        } else if self.running[index].failed {
            self.give_up(routes, index);
        } else {
            match self.running[index].steps.pop_front() {
                Some(step) if self.cannot(step) => self.running[index].failed = true,
                Some(step) => self.carry_out(routes, index, step),
                None => self.finish(routes, index),
            }
        }
        self.settle(routes);
    }

    /// The next thing the engine would do for a plan; it goes wrong. Nothing can go wrong in a plan that only has to be
    /// finished or given up.
    ///
    /// # Panics
    /// When no plan of this owner is under way.
    pub fn fail(&mut self, routes: &dyn Routes, owner: GrantId) {
        let index = self.index(owner);
        let running = &mut self.running[index];
        if running.underway.is_empty() && (running.failed || running.steps.is_empty()) {
            return self.advance(routes, owner);
        }
        if self.ends_copy(index) {
            // The destination holds anything now; the machine hears of it only when the plan is given up.
            self.running[index].underway.pop_front();
        }
        self.running[index].failed = true;
        self.settle(routes);
    }

    /// Whether something of the plan can still go wrong.
    #[must_use]
    pub fn can_fail(&self, owner: GrantId) -> bool {
        let found = self.running.iter().find(|running| running.owner == owner);
        found.is_some_and(|running| {
            !running.underway.is_empty() || (!running.failed && !running.steps.is_empty())
        })
    }

    fn index(&self, owner: GrantId) -> usize {
        let found = self.running.iter().position(|running| running.owner == owner);
        found.expect("a plan of this owner is under way")
    }

    /// Whether what comes next is to wait for the oldest copy under way.
    fn ends_copy(&self, index: usize) -> bool {
        let Running { steps, underway, failed, .. } = &self.running[index];
        let waits = match steps.front() {
            _ if *failed => true,
            // Who may use a storage beside whom changes with these: what is under way ends first.
            None | Some(Step::Map { .. } | Step::Bind { .. }) => true,
            Some(Step::Copy(copy)) => underway
                .iter()
                .any(|begun| Some(begun.copy.to) == copy.from() && begun.copy.span.overlaps(copy.span)),
            Some(Step::Allocate { .. }) => false,
        };
        waits && !underway.is_empty()
    }

    /// Whether a step asks something of a memory that is lost: no arena does it then. Copies are the machine's to refuse.
    fn cannot(&self, step: Step) -> bool {
        let lost = |arena: ArenaId| self.state.arena(arena).is_lost();
        match step {
            Step::Allocate { arena } | Step::Map { arena, .. } => lost(arena),
            Step::Bind { arena, root, .. } => lost(arena) || lost(root),
            Step::Copy(_) => false,
        }
    }

    fn carry_out(&mut self, routes: &dyn Routes, index: usize, step: Step) {
        let owner = self.running[index].owner;
        match step {
            Step::Allocate { arena } => {
                let has = self.state.arena(arena).alloc.is_allocated();
                self.expect(!has, || format!("{arena} is to be allocated and has storage already"));
                self.state.allocated(arena);
                self.ghost.allocated(arena);
            }
            Step::Bind { arena, root, concurrency } => {
                let (has, there) = (self.state.arena(arena).alloc, self.state.arena(root).alloc);
                self.expect(!has.is_allocated(), || {
                    format!("{arena} is to be bound and has storage already")
                });
                self.expect(there.is_allocated(), || format!("{root} is to be shared and has no storage"));
                self.state.bound(routes, arena, root, concurrency);
                self.ghost.bound(arena);
                self.clear_coherent(routes);
            }
            Step::Map { arena, device, target } => {
                let state = *self.state.arena(arena);
                self.expect(state.alloc.is_allocated(), || {
                    format!("{arena} is to be mapped and has no storage")
                });
                // An honest arena: it is asked for nothing it has already, and reports what it was asked for.
                self.expect(state.map != target, || format!("{arena} is {target:?} already"));
                let breach = self.state.mapped(routes, owner, (arena, device, target), target);
                self.expect(breach.is_ok(), || format!("an honest arena is told that it {breach:?}"));
            }
            Step::Copy(copy) => {
                for end in copy.from().into_iter().chain([copy.to]) {
                    let there = self.state.arena(end).alloc.is_allocated();
                    self.expect(there, || format!("I-5: {end} is copied and has no storage"));
                }
                if self.state.started(copy.id).is_err() {
                    self.running[index].failed = true;
                    return;
                }
                let underway = self.ghost.started(&self.state, copy);
                match copy.kind {
                    CopyKind::Refresh { .. } => self.copied(routes, &underway),
                    _ => self.running[index].underway.push_back(underway),
                }
            }
        }
    }

    fn copied(&mut self, routes: &dyn Routes, underway: &Underway) {
        self.ghost.copied(&self.state, underway);
        self.clear_coherent(routes);
        self.state.copied(routes, underway.copy.id);
    }

    fn give_up(&mut self, routes: &dyn Routes, index: usize) {
        let running = self.running.remove(index);
        self.state.abort(routes, running.owner);
    }

    fn finish(&mut self, routes: &dyn Routes, index: usize) {
        let Running { owner, purpose, .. } = self.running.remove(index);
        match purpose {
            Purpose::Kernel => {
                if self.state.finish(routes, owner).is_ok() {
                    self.granted(owner);
                }
            }
            Purpose::Prefetch | Purpose::Binding => self.state.finish_prefetch(routes, owner),
        }
    }

    /// A kernel ends. One that overwrites cannot be clean: it has failed then.
    ///
    /// # Panics
    /// When no kernel holds this grant.
    pub fn release(&mut self, routes: &dyn Routes, grant: GrantId, outcome: Outcome) {
        let Holding { arena, claims, .. } = self.let_go(grant);
        // The kernel has written before it ends, and its storage may be gone with it.
        let before = self.state.clone();
        let mut released = self.state.release(routes, grant, outcome);
        if released == Err(Refusal::NotClean) {
            released = self.state.release(routes, grant, Outcome::Failed);
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

    /// A writing kernel goes on reading. With its device lost it fails, and nothing changes.
    ///
    /// # Panics
    /// When no kernel holds this grant.
    pub fn downgrade(&mut self, routes: &dyn Routes, grant: GrantId) {
        let Holding { arena, claims, .. } = self.let_go(grant);
        if self.state.downgrade(routes, grant).is_ok() {
            self.ghost.wrote(&self.state, arena, &claims, true);
            self.clear_coherent(routes);
            self.granted(grant);
        } else {
            self.holding.push(Holding { grant, arena, claims });
        }
        self.settle(routes);
    }

    fn let_go(&mut self, grant: GrantId) -> Holding {
        let found = self.holding.iter().position(|holding| holding.grant == grant);
        self.holding.remove(found.expect("a kernel holds this grant"))
    }

    /// A request that waits is given up; whether it did.
    pub fn cancel(&mut self, routes: &dyn Routes, ticket: Ticket) -> bool {
        let cancelled = self.state.cancel(ticket);
        self.settle(routes);
        cancelled
    }

    /// Poisoned bytes get their last committed contents back, where they can.
    pub fn restore(&mut self, routes: &dyn Routes, span: Span) -> Result<bool, Refusal> {
        let restored = self.state.restore(span);
        self.settle(routes);
        restored
    }

    /// Storage is freed, where it can be; whether it was.
    pub fn free(&mut self, routes: &dyn Routes, arena: ArenaId) -> bool {
        let freed = self.state.free(routes, arena).is_ok();
        if freed {
            self.ghost.allocated(arena);
            self.clear_coherent(routes);
        }
        self.settle(routes);
        freed
    }

    /// A device is gone with what its memories held.
    pub fn lose(&mut self, routes: &dyn Routes, device: DeviceId) {
        let gone = (0..).map(ArenaId).zip(routes.arenas()).filter(|(_, desc)| desc.native == device);
        let gone: ArenaSet = gone.map(|(arena, _)| arena).collect();
        self.state.device_lost(routes, device);
        self.ghost.lost(gone);
        self.settle(routes);
    }

    /// No more requests are taken.
    pub fn close(&mut self, routes: &dyn Routes) {
        let refused = self.state.close(routes);
        refused.into_iter().for_each(|admission| self.admit(admission));
        self.settle(routes);
    }

    /// What follows every change: whoever can be let in is.
    fn settle(&mut self, routes: &dyn Routes) {
        let admitted = self.state.pump(routes);
        admitted.into_iter().for_each(|admission| self.admit(admission));
    }

    fn admit(&mut self, Admission { request, begin, .. }: Admission) {
        let busy = matches!(begin, Begin::Busy { .. });
        self.expect(!busy, || format!("{} is let in and busy", request.grant));
        self.begun(request, begin);
    }

    /// Where sharing is coherent nobody is stale.
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

/// A request of a kernel that nobody else is.
#[must_use]
pub fn request(grant: GrantId, arena: ArenaId, claims: Claims) -> Request {
    Request { kernel: KernelId(grant.0), grant, arena, claims }
}
