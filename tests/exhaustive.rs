//! Every call of every arena and every copy over every link goes wrong once, in every way, in a thousand
//! sequences.
//!
//! ```text
//!   sequence ──▶ run without faults: its calls ──▶ for each call, for each fault: a trial
//! ```
//! A *trial* runs the sequence again with one fault in it, against the reference model. The operation that
//! meets the fault fails as a whole or succeeds as a whole, and names the arena, the bytes and the cause. It
//! leaves no trace except what only helps (I-15), and works when it is repeated. Waiters go on (L-3). In the
//! end all bytes are right and nothing is left. Sequences are numbered, so every run has the same ones.

#![cfg(not(dml_loom))]

use dml::arenas::Script;
use dml::arenas::faulty::{CallKind, Fault};
use dml::core::internal::sync::{Arc, Mutex};
use dml::core::{ArenaId, Concurrency, TransferError};
use dml_verify::reference::{Armed, Op, Setup, Tally, World, from_seed};
use dml_verify::{Place, Shape, test_arena};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Once;
use std::time::Duration;

/// How many sequences each shape of platform has.
const SEQUENCES: u64 = 160;

/// The faults that make a difference in a call of a kind.
fn faults(kind: CallKind) -> Vec<Fault> {
    let slow = Fault::Slow(Duration::ZERO);
    match kind {
        CallKind::Free => vec![Fault::Panic, slow],
        CallKind::Alloc => vec![Fault::fail(), Fault::Short(0), Fault::Short(2), Fault::Panic, slow],
        CallKind::Attach | CallKind::Bind | CallKind::Map | CallKind::Unmap => {
            vec![
                Fault::fail(),
                Fault::FailInFence(TransferError::DeviceLost { loss: None }),
                Fault::Panic,
                slow,
            ]
        }
        _ => vec![
            Fault::fail(),
            Fault::FailInFence(TransferError::DeviceLost { loss: None }),
            Fault::Short(0),
            Fault::Short(2),
            slow,
            Fault::Panic,
            Fault::PanicInFence,
        ],
    }
}

/// Whether the fault must have been heard of.
fn is_heard(kind: CallKind, fault: &Fault) -> bool {
    kind != CallKind::Free && !matches!(fault, Fault::Slow(_) | Fault::Short(2))
}

/// What was tried.
#[derive(Debug, Default)]
struct Trials {
    calls: u64,
    trials: u64,
    tally: Tally,
}

thread_local! {
    /// Whether a member of shared storage is kept by an arena that panics over it, so that its root cannot
    /// go.
    static KEEPS_BLOCKS: Cell<bool> = const { Cell::new(false) };
}

/// Scripted panics are no news, nor those that follow from a block that is kept; all others are.
fn hush() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let follows = |text: &str| KEEPS_BLOCKS.get() && text.ends_with("blocks are bound to it");
            let is_old = |text: &str| text.starts_with("scripted panic") || follows(text);
            if !info.payload_as_str().is_some_and(is_old) {
                others(info);
            }
        }));
    });
}

/// Runs a sequence without faults; the calls it makes, each with its number.
fn calls((setup, ops): &(Setup, Vec<Op>)) -> Vec<(Place, u64, CallKind)> {
    let platform = setup.shape.build();
    let (clone, count) = ((*platform).clone(), platform.arenas().len() as u8);
    let noted = Arc::new(Mutex::new(Vec::new()));
    for arena in (0..count).map(ArenaId) {
        let notes = noted.clone();
        test_arena(&platform, arena).hook(move |kind| notes.lock().push((arena, kind)));
    }
    // The calls are those of a run with a fault.
    let armed = Armed { place: Place::Arena(ArenaId(0)), fault: Fault::Panic, kind: CallKind::Copy };
    let mut world = World::new(platform, &setup.buffers, Some(armed));
    ops.iter().for_each(|op| world.step(op));
    let _ = world.finish();
    let mut numbers = vec![0; usize::from(count)];
    let of_arenas = noted.lock().clone().into_iter().map(|(arena, kind)| {
        numbers[usize::from(arena.0)] += 1;
        (Place::Arena(arena), numbers[usize::from(arena.0)], kind)
    });
    let mut calls: Vec<_> = of_arenas.collect();
    for transfer in clone.counters().transfers() {
        calls.extend((1..=transfer.copies).map(|n| (Place::Link(transfer.link), n, CallKind::Copy)));
    }
    calls
}

fn trial((setup, ops): &(Setup, Vec<Op>), (place, n, kind): (Place, u64, CallKind), fault: Fault) -> Tally {
    KEEPS_BLOCKS.set((kind, &fault) == (CallKind::Free, &Fault::Panic));
    let script = Script::new().at(n, fault.clone());
    let armed = Armed { place, fault, kind };
    let platform = setup.shape.rig().scripted(place, script).build();
    let mut world = World::new(platform, &setup.buffers, Some(armed));
    ops.iter().for_each(|op| world.step(op));
    world.finish()
}

fn enumerate(shape: Shape) {
    hush();
    let mut all = Trials::default();
    for seed in 0..SEQUENCES {
        let sequence = from_seed(&[shape], seed);
        let calls = calls(&sequence);
        all.calls += calls.len() as u64;
        for call in calls {
            for fault in faults(call.2) {
                let tried = catch_unwind(AssertUnwindSafe(|| {
                    let tally = trial(&sequence, call, fault.clone());
                    assert!(tally.faults == 1 || !is_heard(call.2, &fault), "nobody heard of the fault");
                    tally
                }));
                let tally = tried.unwrap_or_else(|panic| {
                    eprintln!("sequence {seed}, {fault:?} in {call:?}: {sequence:?}");
                    resume_unwind(panic)
                });
                all.tally.add(tally);
                all.trials += 1;
            }
        }
    }
    let Trials { calls, trials, tally } = &all;
    eprintln!("{shape:?}: {SEQUENCES} sequences, {calls} calls, {trials} trials, {tally:?}");
    assert!(tally.faults * 2 > *trials, "most faults are heard of");
    assert!(tally.waited_through_faults > 0, "nobody waited while a fault struck");
}

#[test]
fn i15_one_gpu_joined_by_copies() {
    enumerate(Shape::Pair);
}

#[test]
fn i15_two_hops() {
    enumerate(Shape::Star);
}

#[test]
fn i15_mapped_copies() {
    enumerate(Shape::Mapped);
}

#[test]
fn i15_every_way_at_once() {
    enumerate(Shape::EveryWay);
}

#[test]
fn i15_bound_exclusive() {
    enumerate(Shape::Bound(Concurrency::Exclusive));
}

#[test]
fn i15_bound_for_reading() {
    enumerate(Shape::Bound(Concurrency::BimapRead));
}

#[test]
fn i15_bound_coherently() {
    enumerate(Shape::Bound(Concurrency::BimapFull));
}

#[test]
fn i15_two_gpus_bound_to_main_memory() {
    enumerate(Shape::TwoBound);
}

#[test]
fn i15_six_arenas() {
    enumerate(Shape::Wide);
}
