//! Operations on a [`Machine`], what generates them, and how a list of them is run.

use super::{Machine, request};
use dml_core::state::{Lifecycle, Outcome, Routes};
use dml_core::{Access, ArenaId, Claim, GrantId, Platform, Span, Ticket, normalise};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

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

/// What the bytes are that an operation is made of. Everything is made of whole bytes, cut to size, because a fuzzer's
/// bytes come to an end, and numbers drawn from a range of another size are then drawn for ever.
type Drawn = [u8; 8];

fn span(form: u8, at: u8) -> Span {
    let at = u64::from(at) % LEN;
    match form {
        0..128 => Span::new(0, LEN),
        _ => Span::new(at, (at + 1 + u64::from(form % 6)).min(LEN)),
    }
}

fn access(drawn: u8) -> Access {
    match drawn % 8 {
        0..4 => Access::ReadOnly,
        4..6 => Access::WriteInvalidate,
        _ => Access::ReadWrite,
    }
}

fn outcome(drawn: u8) -> Outcome {
    match drawn % 8 {
        0..5 => Outcome::Done,
        5 => Outcome::NotStarted,
        6 => Outcome::Clean,
        _ => Outcome::Failed,
    }
}

/// How often each sort of operation comes, in the order in which [`made`] makes them.
fn weights(mix: Mix) -> [u32; 12] {
    [12, 24, 1, 8, 1, 3, 1, 1, mix.binds, 2, mix.losses, 1]
}

fn made(mix: Mix, [kind, which, arena, form, at, drawn, more, last]: Drawn) -> Op {
    let weights = weights(mix);
    let mut left = u32::from(kind) * weights.iter().sum::<u32>() / 256;
    let sort = weights.iter().position(|&weight| {
        let here = left < weight;
        left = left.saturating_sub(weight);
        here
    });
    let (span, pick) = (span(form, at), usize::from(which));
    match sort.unwrap_or(0) {
        0 => {
            // One in five names a second range.
            let and = (more < 52).then(|| (self::span(last, more), access(last)));
            Op::Ask { arena, span, access: access(drawn), and, waits: which % 2 == 0 }
        }
        1 => Op::Advance { which: pick },
        2 => Op::Fail { which: pick },
        3 => Op::Release { which: pick, outcome: outcome(drawn) },
        4 => Op::Downgrade { which: pick },
        5 => Op::Prefetch { arena, span },
        6 => Op::Cancel { which: pick },
        7 => Op::Restore { span },
        8 => Op::Bind { arena, root: which },
        9 => Op::Free { arena },
        10 => Op::Lose { arena },
        // A closed buffer is the end of it all, so it comes seldom.
        _ if drawn < 26 => Op::Close,
        _ => Op::Restore { span },
    }
}

fn op(mix: Mix) -> impl Strategy<Value = Op> {
    any::<Drawn>().prop_map(move |drawn| made(mix, drawn))
}

/// The bytes of a fuzzer's input that make one operation, about.
const BYTES_PER_OP: usize = 32;
/// The most operations made of one input.
const MOST_OPS: usize = 400;

/// What a fuzzer's bytes stand for: which platform of [`shapes::all`](super::shapes::all), whether the buffer begins as
/// zeros, and the operations; made by the generators of the property tests, whose random numbers the bytes are.
#[must_use]
pub fn from_bytes(bytes: &[u8]) -> Option<(usize, bool, Vec<Op>)> {
    let rng = TestRng::from_seed(RngAlgorithm::PassThrough, bytes);
    let config = Config { failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, rng);
    let (shape, zeroed) = any::<(u8, u8)>().new_tree(&mut runner).ok()?.current();
    let strategy = op(Mix { binds: 3, losses: 1 });
    let count = (bytes.len() / BYTES_PER_OP).clamp(1, MOST_OPS);
    let ops =
        (0..count).map(|_| Some(strategy.new_tree(&mut runner).ok()?.current())).collect::<Option<_>>()?;
    Some((usize::from(shape), zeroed % 2 == 1, ops))
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
