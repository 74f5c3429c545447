//! Operations on a [`Machine`], what generates them, and how a list of them is run.

use super::{Machine, request};
use dml_core::state::{Lifecycle, Outcome, Routes};
use dml_core::{Access, ArenaId, Claim, GrantId, Platform, Span, Ticket, normalise};
use proptest::prelude::*;

/// The bytes of the buffer.
pub const LEN: u64 = 12;

/// One thing that happens. Numbers that name one of several are taken modulo how many there are; where there is none,
/// nothing happens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are what the operation is about")]
pub enum Op {
    /// A kernel asks.
    Ask { arena: u8, span: Span, access: Access, and: Option<(Span, Access)>, waits: bool },
    /// The engine does the next thing for a plan.
    Advance { which: usize },
    /// The next thing for a plan goes wrong.
    Fail { which: usize },
    /// A kernel ends.
    Release { which: usize, outcome: Outcome },
    /// A kernel goes on reading.
    Downgrade { which: usize },
    /// Bytes are brought before anybody asks.
    Prefetch { arena: u8, span: Span },
    /// A request that waits is given up.
    Cancel { which: usize },
    /// Poisoned bytes are restored.
    Restore { span: Span },
    /// An arena comes to share another's storage.
    Bind { arena: u8, root: u8 },
    /// Storage is freed.
    Free { arena: u8 },
    /// The device of an arena is lost.
    Lose { arena: u8 },
    /// The buffer is closed.
    Close,
}

/// How often what may happen does, beside the rest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mix {
    /// The weight of bindings.
    pub binds: u32,
    /// The weight of lost devices.
    pub losses: u32,
}

fn span() -> impl Strategy<Value = Span> {
    prop_oneof![
        Just(Span::new(0, LEN)),
        (0..LEN, 1..7u64).prop_map(|(at, len)| Span::new(at, (at + len).min(LEN)))
    ]
}

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![4 => Just(Access::ReadOnly), 2 => Just(Access::WriteInvalidate), 2 => Just(Access::ReadWrite)]
}

fn op(mix: Mix) -> impl Strategy<Value = Op> {
    let outcome = prop_oneof![
        4 => Just(Outcome::Done),
        1 => Just(Outcome::NotStarted),
        1 => Just(Outcome::Clean),
        1 => Just(Outcome::Failed)
    ];
    let and = prop::option::weighted(0.2, (span(), access()));
    // A weight of zero is not allowed; what must not happen is replaced.
    let restore = || span().prop_map(|span| Op::Restore { span });
    let bind = (0..4u8, 0..4u8).prop_map(|(arena, root)| Op::Bind { arena, root });
    let lose = (0..4u8).prop_map(|arena| Op::Lose { arena });
    let bind = if mix.binds > 0 { bind.boxed() } else { restore().boxed() };
    let lose = if mix.losses > 0 { lose.boxed() } else { restore().boxed() };
    prop_oneof![
        12 => (0..4u8, span(), access(), and, any::<bool>())
            .prop_map(|(arena, span, access, and, waits)| Op::Ask { arena, span, access, and, waits }),
        24 => (0..6usize).prop_map(|which| Op::Advance { which }),
        1 => (0..6usize).prop_map(|which| Op::Fail { which }),
        8 => (0..6usize, outcome).prop_map(|(which, outcome)| Op::Release { which, outcome }),
        1 => (0..6usize).prop_map(|which| Op::Downgrade { which }),
        3 => (0..4u8, span()).prop_map(|(arena, span)| Op::Prefetch { arena, span }),
        1 => (0..6usize).prop_map(|which| Op::Cancel { which }),
        1 => restore(),
        mix.binds.max(1) => bind,
        2 => (0..4u8).prop_map(|arena| Op::Free { arena }),
        mix.losses.max(1) => lose,
        1 => prop::bool::weighted(0.1).prop_map(|closes| match closes {
            true => Op::Close,
            false => Op::Restore { span: Span::new(0, LEN) },
        }),
    ]
}

/// Up to `most` operations.
pub fn ops(mix: Mix, most: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(mix), 1..most.max(2))
}

/// Runs operations one after the other, holds the machine against the specification after each, and brings everything to
/// its end: nobody is left waiting, and the buffer closes.
///
/// # Panics
/// When anything contradicts the specification.
pub fn run(platform: &Platform, zeroed: bool, ops: &[Op]) {
    let routes = platform.routes();
    let mut runner = Runner { routes, machine: Machine::new(routes, LEN, zeroed), next: 0, tickets: 0 };
    for op in ops {
        runner.step(op);
        runner.check();
    }
    runner.finish();
}

struct Runner<'a> {
    routes: &'a dyn Routes,
    machine: Machine,
    next: u64,
    tickets: u64,
}

/// One of them, by a number; none of none.
fn pick<T>(mut all: impl ExactSizeIterator<Item = T>, which: usize) -> Option<T> {
    let count = all.len();
    (count > 0).then(|| all.nth(which % count)).flatten()
}

impl Runner<'_> {
    fn arena(&self, index: u8) -> ArenaId {
        ArenaId(index % self.routes.arenas().len() as u8)
    }

    fn grant(&mut self) -> GrantId {
        self.next += 1;
        GrantId(self.next)
    }

    fn check(&self) {
        if let Err(contradiction) = self.machine.check(self.routes) {
            panic!("{contradiction}\n{:#?}", self.machine);
        }
    }

    fn step(&mut self, op: &Op) {
        let routes = self.routes;
        match *op {
            Op::Ask { arena, span, access, and, waits } => {
                let (grant, arena) = (self.grant(), self.arena(arena));
                let more = and.map(|(span, access)| Claim { span, access });
                let claims = normalise(std::iter::once(Claim { span, access }).chain(more));
                self.tickets += 1;
                let ticket = waits.then_some(Ticket(self.tickets));
                let _ = self.machine.ask(routes, request(grant, arena, claims), ticket);
            }
            Op::Advance { which } => {
                if let Some((owner, _)) = pick(self.machine.running(), which) {
                    self.machine.advance(routes, owner);
                }
            }
            Op::Fail { which } => {
                if let Some((owner, _)) = pick(self.machine.running(), which) {
                    self.machine.fail(routes, owner);
                }
            }
            Op::Release { which, outcome } => {
                if let Some(grant) = pick(self.machine.holding(), which) {
                    self.machine.release(routes, grant, outcome);
                }
            }
            Op::Downgrade { which } => {
                if let Some(grant) = pick(self.machine.holding(), which) {
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
            Op::Lose { arena } => {
                let device = routes.arena(self.arena(arena)).native;
                self.machine.lose(routes, device);
            }
            Op::Close => self.machine.close(routes),
        }
    }

    /// Everything under way comes to its end; nobody is left.
    fn finish(mut self) {
        while !self.machine.is_at_rest() {
            let running = self.machine.running().next();
            let holding = self.machine.holding().next();
            match (running, holding) {
                (Some((owner, _)), _) => self.machine.advance(self.routes, owner),
                (None, Some(grant)) => self.machine.release(self.routes, grant, Outcome::NotStarted),
                (None, None) => panic!("somebody waits for nobody\n{:#?}", self.machine),
            }
            self.check();
        }
        assert!(self.machine.state().is_idle(), "{:#?}", self.machine);
        self.machine.close(self.routes);
        self.check();
        assert_eq!(self.machine.state().lifecycle(), Lifecycle::Closed);
    }
}
