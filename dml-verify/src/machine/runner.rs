//! Carries operations out on a [`Machine`], and checks it after each operation and at the end.

use super::op::How;
use super::{Asked, Machine, Op, request};
use dml_core::internal::state::{
    Alloc, CopyKind, Execution, Initial, Lifecycle, Loss, Outcome, Routes, Status, Step,
};
use dml_core::{
    Access, Allocation, ArenaId, ArenaSet, Claim, Claims, CopyQuery, KernelId, Link, LinkId, OwnerId, Span,
    Ticket,
};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::AddAssign;

/// The length of the buffer, in bytes.
pub const LEN: u64 = 12;

/// Counts what happened in one or several runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the counted things")]
pub struct Tally {
    pub operations: u64,
    pub grants: u64,
    pub copies: u64,
    pub refreshes: u64,
    pub fills: u64,
    pub binds: u64,
    pub losses: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.grants += other.grants;
        self.copies += other.copies;
        self.refreshes += other.refreshes;
        self.fills += other.fills;
        self.binds += other.binds;
        self.losses += other.losses;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations, grants, copies, refreshes, fills, binds, losses } = self;
        write!(f, "{operations} operations, {grants} grants, {copies} copies, {refreshes} refreshes, ")?;
        write!(f, "{fills} fills, {binds} bindings, {losses} losses")
    }
}

/// A machine with the counters that its operations need.
pub(super) struct Runner<'a> {
    routes: &'a dyn Routes,
    machine: Machine,
    next: u64,
    tickets: u64,
    granted: BTreeSet<OwnerId>,
    tally: Tally,
}

/// Picks one item by its number, counted around; `None` where there are no items.
fn pick<T>(mut all: impl ExactSizeIterator<Item = T>, which: usize) -> Option<T> {
    let count = all.len();
    (count > 0).then(|| all.nth(which % count)).flatten()
}

impl<'a> Runner<'a> {
    pub(super) fn new(routes: &'a dyn Routes, initial: Initial) -> Self {
        let machine = Machine::new(routes, LEN, initial);
        Self { routes, machine, next: 0, tickets: 0, granted: BTreeSet::new(), tally: Tally::default() }
    }

    fn arena(&self, index: u8) -> ArenaId {
        ArenaId(index % self.routes.arenas().len() as u8)
    }

    fn grant(&mut self) -> OwnerId {
        self.next += 1;
        OwnerId(self.next)
    }

    /// Checks the machine against the specification.
    fn check(&mut self) {
        if let Err(contradiction) = self.machine.check(self.routes) {
            panic!("{contradiction}\n{:#?}", self.machine);
        }
        self.granted.extend(self.machine.holding());
    }

    fn advance(&mut self, owner: OwnerId, which: usize) {
        match self.machine.advance(self.routes, owner, which) {
            Some(Step::Bind { .. }) => self.tally.binds += 1,
            Some(Step::Copy(copy)) => match copy.kind {
                CopyKind::Bytes { .. } => self.tally.copies += 1,
                CopyKind::Refresh { .. } => self.tally.refreshes += 1,
                CopyKind::Fill => self.tally.fills += 1,
            },
            Some(Step::Allocate { .. } | Step::Map { .. }) | None => {}
        }
    }

    /// Returns the owner of the plan that a number names, and which of its copies the number names.
    fn plan(&self, which: usize) -> Option<(OwnerId, usize)> {
        let plans = self.machine.running();
        let copy = which / plans.len().max(1);
        pick(plans, which).map(|execution| (execution.owner(), copy))
    }

    /// Carries out one operation, and checks the machine.
    pub(super) fn step(&mut self, op: &Op) {
        self.act(op);
        self.tally.operations += 1;
        self.check();
    }

    fn act(&mut self, op: &Op) {
        let routes = self.routes;
        match *op {
            Op::Ask { arena, span, access, and, waits, again, submits } => {
                // One kernel may make several requests.
                let before = KernelId(self.next);
                let (grant, arena) = (self.grant(), self.arena(arena));
                let more = and.map(|(span, access)| Claim { span, access });
                let claims = Claims::new(std::iter::once(Claim { span, access }).chain(more));
                self.tickets += 1;
                let ticket = waits.then_some(Ticket(self.tickets));
                let mut request = request(grant, arena, claims);
                if again {
                    request.kernel = before;
                }
                request.is_submission = submits;
                let _ = self.machine.ask(routes, request, ticket);
            }
            Op::Advance { which } => {
                if let Some((owner, copy)) = self.plan(which) {
                    self.advance(owner, copy);
                }
            }
            Op::Fail { which, how } => match (self.plan(which), how) {
                (Some((owner, copy)), How::Fails) => self.machine.fail(routes, owner, copy),
                (Some((owner, copy)), How::Breaks) => self.machine.break_contract(routes, owner, copy),
                (Some((owner, _)), How::IsGivenUp) => self.machine.give_up(owner),
                (None, _) => {}
            },
            Op::Release { which, outcome } => match pick(self.machine.holding(), which) {
                Some(grant) if self.machine.launched().any(|launched| launched == grant) => {
                    let arena = self.machine.arena_of(grant);
                    self.machine.end_first(routes, arena, outcome == Outcome::Failed);
                }
                // Two of three submissions start.
                Some(grant) if self.machine.can_launch(grant) && which % 3 != 0 => {
                    self.machine.launch(routes, grant);
                }
                // One that may not start any more included.
                Some(grant) if self.machine.is_submission(grant) => {
                    self.machine.release(routes, grant, Outcome::NotStarted);
                }
                Some(grant) => self.machine.release(routes, grant, outcome),
                None => {}
            },
            Op::Downgrade { which } => {
                if let Some(grant) = pick(self.machine.holding(), which)
                    && !self.machine.is_submission(grant)
                {
                    self.machine.downgrade(routes, grant);
                }
            }
            Op::Prefetch { arena, span } => {
                let (owner, arena) = (self.grant(), self.arena(arena));
                let _ = self.machine.prefetch(routes, owner, arena, span);
            }
            Op::Cancel { which } => {
                let ticket = pick(self.machine.state().queue(), which).map(|waiting| waiting.ticket);
                if let Some(ticket) = ticket {
                    assert!(self.machine.cancel(routes, ticket), "it waits");
                }
            }
            Op::Restore { span } => {
                let _ = self.machine.restore(routes, span);
            }
            Op::Bind { arena, root } => {
                let (owner, arena, root) = (self.grant(), self.arena(arena), self.arena(root));
                self.machine.bind(routes, owner, arena, root);
            }
            Op::Free { arena } => {
                self.machine.free(routes, self.arena(arena));
            }
            Op::Attach { arena, brings } => {
                self.machine.attach(routes, self.arena(arena), brings);
            }
            Op::WillNotUse { arena, home } => {
                let (owner, arena) = (self.grant(), self.arena(arena));
                let home = home.map(|home| self.arena(home));
                self.machine.will_not_use(routes, owner, arena, home);
            }
            Op::Lose { arena } => {
                self.tally.losses += 1;
                let device = routes.arena(self.arena(arena)).native;
                self.machine.lose(routes, device);
            }
            Op::Close => self.machine.close(routes),
        }
    }

    /// Ends everything under way.
    fn rest(&mut self) {
        while !self.machine.is_at_rest() {
            let running = self.machine.running().next().map(Execution::owner);
            let holding = self.machine.holding().next();
            match (running, holding) {
                (Some(owner), _) => self.advance(owner, 0),
                (None, Some(grant)) => self.machine.end(self.routes, grant),
                (None, None) => panic!("somebody waits for nobody\n{:#?}", self.machine),
            }
            self.check();
        }
        assert!(self.machine.state().is_idle(), "{:#?}", self.machine);
    }

    /// Ends everything under way, checks that every arena reads what it should be able to read, and closes
    /// the buffer.
    pub(super) fn finish(mut self) -> Tally {
        self.rest();
        if self.machine.state().lifecycle() == Lifecycle::Open {
            for arena in (0..self.machine.arenas()).map(ArenaId) {
                self.is_served(arena);
                self.can_be_overwritten(arena);
            }
        }
        self.machine.close(self.routes);
        self.check();
        assert_eq!(self.machine.state().lifecycle(), Lifecycle::Closed);
        self.tally.grants += self.granted.len() as u64;
        self.tally
    }

    /// Returns a copy of the machine for a trial.
    fn trial(&self) -> Runner<'a> {
        let Self { routes, next, tickets, .. } = *self;
        let (machine, granted) = (self.machine.clone(), BTreeSet::new());
        Runner { routes, machine, next, tickets, granted, tally: Tally::default() }
    }

    /// Runs a kernel without competitors: it asks, is granted, and ends.
    fn is_granted(&mut self, arena: ArenaId, claims: &Claims, why: &str) {
        let (grant, before) = (self.grant(), self.machine.clone());
        let asked = self.machine.ask(self.routes, request(grant, arena, claims.clone()), None);
        let served = matches!(asked, Asked::Granted | Asked::Running);
        assert!(served, "{why}: {arena} is {asked:?} for {claims:?}\n{before:#?}");
        loop {
            let Some(owner) = self.machine.running().next().map(Execution::owner) else { break };
            self.advance(owner, 0);
            self.check();
        }
        let granted = self.machine.holding().next() == Some(grant);
        assert!(granted, "{why}, and a plan fails: {arena}, {claims:?}\n{before:#?}");
        self.machine.release(self.routes, grant, Outcome::Done);
        self.check();
    }

    /// Checks that an arena of a machine at rest can read every byte that can reach it.
    fn is_served(&self, arena: ArenaId) {
        let state = self.machine.state();
        if state.arena(arena).loss != Loss::None {
            return;
        }
        let readable = state.segments().iter().filter(|(_, content)| match content.status {
            Status::Zeroed => true,
            Status::Defined => {
                self.reach(content.valid).contains(arena) || self.reach_by_binding(content.valid, arena)
            }
            Status::Undefined | Status::Poisoned(_) => false,
        });
        let claims = Claims::new(readable.map(|(span, _)| Claim { span, access: Access::ReadOnly }));
        if !claims.is_empty() {
            self.trial().is_granted(arena, &claims, "nobody is there");
        }
    }

    /// Checks that bytes written into an arena without storage can be read by an arena that could have shared
    /// storage with it.
    fn can_be_overwritten(&self, arena: ArenaId) {
        let state = self.machine.state();
        if state.arena(arena).loss != Loss::None || state.arena(arena).alloc != Alloc::Unallocated {
            return;
        }
        let claims = |access| Claims::new([Claim { span: Span::new(0, LEN), access }]);
        let mut trial = self.trial();
        trial.is_granted(arena, &claims(Access::WriteInvalidate), "nobody is there");
        // Bindings do not chain. So at least one of the arenas that need a binding must be able to read,
        // whichever has the storage.
        let is_root = |root: ArenaId| {
            state.arena(root).loss == Loss::None && !matches!(state.arena(root).alloc, Alloc::Bound { .. })
        };
        let is_free = |member: ArenaId| {
            state.arena(member).loss == Loss::None && state.arena(member).alloc == Alloc::Unallocated
        };
        let needs = |link: &&Link| {
            let (there, back) = (self.moved(link.from), self.moved(link.to));
            let apart = !(there.contains(link.to) && back.contains(link.from));
            matches!(link.allocation, Allocation::Bound(_)) && apart
        };
        let partner = |link: &Link| match () {
            () if link.to == arena && is_root(link.from) => Some(link.from),
            () if link.from == arena && is_free(link.to) => Some(link.to),
            () => None,
        };
        let partners: ArenaSet = self.routes.links().iter().filter(needs).filter_map(partner).collect();
        let reads = |partner: ArenaId| {
            let (mut trial, claims) = (trial.trial(), claims(Access::ReadOnly));
            let grant = trial.grant();
            let asked = trial.machine.ask(self.routes, request(grant, partner, claims), None);
            matches!(asked, Asked::Granted | Asked::Running)
        };
        let is_read = partners.is_empty() || partners.iter().any(reads);
        assert!(is_read, "{arena} needs one of {partners:?}, none of which reads it\n{:#?}", self.machine);
        for other in trial.reach(ArenaSet::of(arena)).iter() {
            trial.trial().is_granted(other, &claims(Access::ReadOnly), "somebody has written");
        }
    }

    /// Returns whether a link can move bytes.
    fn moves(&self, id: LinkId, link: &Link) -> bool {
        let query = CopyQuery { bytes: LEN, remap_source: false, remap_target: false, allocates: false };
        let priced = || self.routes.cost(id, &query).is_some_and(|cost| cost.is_feasible());
        link.allocation == Allocation::Internal && priced()
    }

    /// Returns the arenas that bytes of an arena can reach by links that move bytes, with nothing lost and
    /// nothing shared.
    fn moved(&self, from: ArenaId) -> ArenaSet {
        self.closure(ArenaSet::of(from), |reached, id, link| {
            reached.contains(link.from) && self.moves(id, link)
        })
    }

    /// Returns the arenas that bytes valid in `valid` can reach without competitors: by links that move
    /// bytes, and by shared storage. This search is independent of the planner, and ignores costs.
    fn reach(&self, valid: ArenaSet) -> ArenaSet {
        let state = self.machine.state();
        let there = |arena: ArenaId| state.arena(arena).loss == Loss::None;
        let group = |reached: ArenaSet, arena| !reached.intersection(state.group(arena)).is_empty();
        let mut reached = valid;
        loop {
            let all = (0..self.machine.arenas()).map(ArenaId).filter(|&arena| there(arena));
            let shared = all.filter(|&arena| group(reached, arena)).fold(reached, ArenaSet::with);
            let more = self.closure(shared, |reached, id, link| {
                reached.contains(link.from) && there(link.from) && there(link.to) && self.moves(id, link)
            });
            if more == reached {
                return reached;
            }
            reached = more;
        }
    }

    /// Returns whether bytes can reach an arena without storage by the only binding that it has.
    fn reach_by_binding(&self, valid: ArenaSet, arena: ArenaId) -> bool {
        let (state, reached) = (self.machine.state(), self.reach(valid));
        let nothing_lost =
            (0..self.machine.arenas()).all(|arena| state.arena(ArenaId(arena)).loss == Loss::None);
        let mut roots = self
            .routes
            .links()
            .iter()
            .filter(|link| link.to == arena && matches!(link.allocation, Allocation::Bound(_)));
        let Some(root) = roots.next().map(|link| link.from) else { return false };
        nothing_lost
            && roots.all(|link| link.from == root)
            && reached.contains(root)
            && matches!(state.arena(root).alloc, Alloc::Internal | Alloc::External)
            && state.arena(arena).alloc == Alloc::Unallocated
    }

    /// Returns the arenas reached from `from` over any number of the links that `crosses` admits.
    fn closure(&self, from: ArenaSet, crosses: impl Fn(ArenaSet, LinkId, &Link) -> bool) -> ArenaSet {
        let mut reached = from;
        loop {
            let links = (0..).map(LinkId).zip(self.routes.links());
            let more = links.filter(|(id, link)| crosses(reached, *id, link));
            let more = more.fold(reached, |all, (_, link)| all.with(link.to));
            if more == reached {
                return reached;
            }
            reached = more;
        }
    }
}
