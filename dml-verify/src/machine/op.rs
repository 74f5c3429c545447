//! Operations on a [`Machine`](super::Machine), and their generators.

use super::runner::{LEN, Runner};
use crate::random::Random;
use dml_core::internal::state::{Brings, Initial, Outcome};
use dml_core::{Access, Platform, Span};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// One operation. A number that names one of several objects is taken modulo how many there are. Where there
/// is none, nothing happens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are what the operation is about")]
pub enum Op {
    /// A kernel asks for access; with `again`, it is the kernel that asked before.
    Ask {
        arena: u8,
        span: Span,
        access: Access,
        and: Option<(Span, Access)>,
        waits: bool,
        again: bool,
        submits: bool,
    },
    /// The engine takes the next step of a plan.
    Advance { which: usize },
    /// A step of a plan fails.
    Fail { which: usize, how: How },
    /// A kernel ends.
    Release { which: usize, outcome: Outcome },
    /// A kernel is downgraded to a reader.
    Downgrade { which: usize },
    /// Bytes are prefetched.
    Prefetch { arena: u8, span: Span },
    /// A request that waits is given up.
    Cancel { which: usize },
    /// Poisoned bytes are restored.
    Restore { span: Span },
    /// An arena is bound to another's storage.
    Bind { arena: u8, root: u8 },
    /// An arena gets storage of the application.
    Attach { arena: u8, brings: Brings },
    /// Storage is freed.
    Free { arena: u8 },
    /// An arena will not be used any more.
    WillNotUse { arena: u8, home: Option<u8> },
    /// The device of an arena is lost.
    Lose { arena: u8 },
    /// The buffer is closed.
    Close,
}

/// How a step of a plan fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// An arena reports a failure.
    Fails,
    /// An arena breaks its contract.
    Breaks,
    /// The owner of the plan gives it up.
    IsGivenUp,
}

/// The weights of the operations that only some platforms or runs need.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mix {
    /// The weight of bindings.
    pub binds: u32,
    /// The weight of lost devices.
    pub losses: u32,
}

/// The bytes from which one operation is made. Only whole bytes are drawn, and cut to size afterwards. A
/// range of another size would draw for ever once a fuzzer's bytes are used up.
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

/// Returns the weight of each sort of operation, in the order in which [`made`] makes them.
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
            // One request in five names a second range.
            let and = (more < 52).then(|| (self::span(last, more), access(last)));
            let again = (52..72).contains(&more);
            let (waits, submits) = (which % 2 == 0, which % 8 < 3);
            Op::Ask { arena, span, access: access(drawn), and, waits, again, submits }
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
        9 => match drawn {
            // One in five has a home that takes the contents.
            0..52 => Op::WillNotUse { arena, home: Some(which) },
            52..128 => Op::WillNotUse { arena, home: None },
            _ => Op::Free { arena },
        },
        10 => Op::Lose { arena },
        // No request succeeds on a closed buffer, so closing comes seldom.
        _ if drawn < 26 => Op::Close,
        _ if drawn < 70 => Op::Attach { arena, brings: Brings::Contents },
        _ if drawn < 114 => Op::Attach { arena, brings: Brings::Room },
        _ => Op::Restore { span },
    }
}

fn op(mix: Mix) -> impl Strategy<Value = Op> {
    any::<Drawn>().prop_map(move |drawn| made(mix, drawn))
}

/// The approximate number of a fuzzer's bytes that make one operation.
const BYTES_PER_OP: usize = 32;
/// The largest number of operations made of one input.
const MOST_OPS: usize = 400;

/// Decodes a fuzzer's bytes: the index of a platform in [`Shape::OF_THE_MACHINE`](crate::Shape), whether the
/// buffer begins as zeros, and the operations. The generators are those of the property tests, which draw
/// their random numbers from the bytes.
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

/// Returns a strategy for fewer than `most` operations.
pub fn ops(mix: Mix, most: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(mix), 1..most.max(2))
}

/// Makes one operation from pseudo-random numbers.
pub(super) fn drawn(mix: Mix, random: &mut Random) -> Op {
    made(mix, std::array::from_fn(|_| random.below(256) as u8))
}

/// Runs operations one after the other, and checks the machine after each. Then ends everything under way: no
/// request is left waiting, every arena can read what it should, and the buffer closes.
///
/// # Panics
/// When the machine contradicts the specification.
pub fn run(platform: &Platform, zeroed: bool, ops: &[Op]) {
    let initial = if zeroed { Initial::Zeroed } else { Initial::Undefined };
    let mut runner = Runner::new(platform.routes(), initial);
    ops.iter().for_each(|op| runner.step(op));
    let _ = runner.finish();
}
