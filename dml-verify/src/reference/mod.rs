//! Runs sequences of operations on a platform and checks them against a reference model of bytes and
//! requests.
//!
//! ```text
//!   proptest │ fuzzer's bytes ──▶ Setup, [Op] ──▶ World ──each op──▶ platform ──answer──┐
//!                                                   └───── told what was done ──▶ Model ◀┘ may that be answered?
//! ```
//! The same sequences serve three times: as a state machine that proptest shrinks (`tests/reference.rs`),
//! with a fault in every call (`tests/exhaustive.rs`), and from a fuzzer's bytes ([`from_bytes`]). The model
//! checks that the documented contract allows each answer. In the end it checks what every byte holds.

mod ask;
mod cell;
mod expect;
mod fault;
mod judge;
mod model;
mod op;
mod request;
mod shipping;
mod storage;
mod submit;
mod world;

pub use fault::{Armed, is_told};
pub use op::{Beginning, Bytes, Does, End, KERNELS, Make, Mix, NONE, Op, Setup, Want, Way, op, setup};
pub use shipping::Shipping;
pub use world::{Tally, World};

use crate::Shape;
use crate::history::Audited;
use dml_core::Access;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// The approximate number of a fuzzer's bytes that make one operation.
const BYTES_PER_OP: usize = 88;
/// The largest number of operations made of one input.
const MOST_OPS: usize = 400;

/// Runs a sequence, then releases every grant and reads every byte in every arena.
///
/// # Panics
/// When an answer, a byte, an invariant or the history contradicts the model.
pub fn run(platform: Audited, buffers: &[Make], ops: &[Op]) -> Tally {
    let mut world = World::new(platform, buffers, None);
    ops.iter().for_each(|op| world.step(op));
    world.finish()
}

/// Returns the sequence that a fuzzer's bytes encode, made by the same strategies as every other sequence.
/// Returns `None` where the bytes encode none.
#[must_use]
pub fn from_bytes(mix: Mix, bytes: &[u8]) -> Option<(Setup, Vec<Op>)> {
    let mut runner = runner(RngAlgorithm::PassThrough, bytes);
    let setup = setup(&Shape::OF_SEQUENCES, 4).new_tree(&mut runner).ok()?.current();
    let strategy = op(mix);
    let count = (bytes.len() / BYTES_PER_OP).clamp(1, MOST_OPS);
    let ops =
        (0..count).map(|_| Some(strategy.new_tree(&mut runner).ok()?.current())).collect::<Option<_>>()?;
    Some((setup, ops))
}

/// Returns the short sequence of a seed: 6 to 12 operations on one buffer or two, the same in every run. For
/// an odd seed, the sequence opens with a writer and two requests that wait for it, in arenas that the seed
/// chooses.
#[must_use]
pub fn from_seed(shapes: &[Shape], seed: u64) -> (Setup, Vec<Op>) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = runner(RngAlgorithm::ChaCha, &bytes);
    let opening = if seed % 2 == 1 { crowd(seed / 2) } else { Vec::new() };
    let (least, most) = (6 - opening.len(), 13 - opening.len());
    let count = least + (seed / 2) as usize % (most - least);
    let strategy = (setup(shapes, 2), proptest::collection::vec(op(Mix::Short), count));
    let (setup, ops) = strategy.new_tree(&mut runner).expect("nothing is filtered").current();
    (setup, [opening, ops].concat())
}

fn runner(algorithm: RngAlgorithm, seed: &[u8]) -> TestRunner {
    let config = Config { failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(algorithm, seed))
}

/// Returns a writer, a reader and a read-write request for the same bytes, and the writer's release.
fn crowd(number: u64) -> Vec<Op> {
    let digit = |place: u32| (number / 6u64.pow(place) % 6) as u8;
    let ask = |way, arena, access| Op::Acquire {
        way,
        kernel: KERNELS,
        arena,
        wants: vec![Want { buffer: 0, bytes: Bytes::All, access }],
        looks: true,
    };
    vec![
        ask(Way::Try, digit(0), Access::WriteInvalidate),
        ask(Way::Eager, digit(0) + 1 + digit(1) % 2, Access::ReadOnly),
        ask(Way::Eager, digit(2), Access::ReadWrite),
        Op::Release { which: 0, end: End::Done, skip: 0 },
    ]
}
