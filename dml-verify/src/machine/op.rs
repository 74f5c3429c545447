//! Operations on a [`Machine`](super::Machine), and what generates them.

use super::runner::{LEN, Runner};
use crate::random::Random;
use dml_core::state::{Initial, Outcome};
use dml_core::{Access, Platform, Span};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// One thing that happens. Numbers that name one of several are taken modulo how many there are; where there is none,
/// nothing happens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are what the operation is about")]
pub enum Op {
    /// A kernel asks; perhaps the one that asked before.
    Ask { arena: u8, span: Span, access: Access, and: Option<(Span, Access)>, waits: bool, again: bool },
    /// The engine does the next thing for a plan.
    Advance { which: usize },
    /// Something of a plan goes wrong.
    Fail { which: usize, how: How },
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

/// How something of a plan goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// An arena says that it failed.
    Fails,
    /// An arena breaks its contract.
    Breaks,
    /// Whoever it is for wants it no more.
    IsGivenUp,
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
            let again = (52..72).contains(&more);
            Op::Ask { arena, span, access: access(drawn), and, waits: which % 2 == 0, again }
        }
        1 => Op::Advance { which: pick },
        2 => {
            let how = match drawn % 8 {
                0 => How::Breaks,
                1 | 2 => How::IsGivenUp,
                _ => How::Fails,
            };
            Op::Fail { which: pick, how }
        }
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

/// One operation, by numbers of a sequence that looks like chance.
pub(super) fn drawn(mix: Mix, random: &mut Random) -> Op {
    made(mix, std::array::from_fn(|_| random.below(256) as u8))
}

/// Runs operations one after the other, holds the machine against the specification after each, and brings everything to
/// its end: nobody is left waiting, every arena can read what it should, and the buffer closes.
///
/// # Panics
/// When anything contradicts the specification.
pub fn run(platform: &Platform, zeroed: bool, ops: &[Op]) {
    let initial = if zeroed { Initial::Zeroed } else { Initial::Undefined };
    let mut runner = Runner::new(platform.routes(), initial);
    ops.iter().for_each(|op| runner.step(op));
    let _ = runner.finish();
}
