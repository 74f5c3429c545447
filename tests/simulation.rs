//! Seeds of the deterministic simulation. `cargo xtask simulate` runs as many more as one likes.
//!
//! `DML_SIMULATE_SEEDS=FIRST..END` replaces the seeds. One that fails prints everything that happened.

#![cfg(not(dml_loom))]

use dml::core::record::Event;
use dml_verify::simulate::{Tally, run};
use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// How many seeds a run has by itself.
const SEEDS: u64 = 10_000;

fn seeds() -> Range<u64> {
    let Ok(asked) = std::env::var("DML_SIMULATE_SEEDS") else { return 0..SEEDS };
    let ends = asked.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    let (from, to) = ends.unwrap_or_else(|| panic!("DML_SIMULATE_SEEDS is FIRST..END, not `{asked}`"));
    from..to
}

fn one(seed: u64) -> (Tally, Vec<Event>) {
    catch_unwind(AssertUnwindSafe(|| run(seed))).unwrap_or_else(|panic| {
        eprintln!("seed {seed} failed; again with: cargo xtask simulate {seed}..{}", seed + 1);
        resume_unwind(panic)
    })
}

fn part(which: u64, of: u64) {
    let (mut tally, mut count) = (Tally::default(), 0);
    for seed in seeds().filter(|seed| seed % of == which) {
        let (happened, _) = one(seed);
        tally += happened;
        count += 1;
    }
    eprintln!("simulation: {count} seeds, {tally}");
    // Of everything there was some, where there were seeds enough.
    let Tally { calls, faults, granted, copies, aborted, waited, cancelled, lost_devices } = tally;
    let rarest = [calls, faults, granted, copies, aborted, waited, cancelled, lost_devices].into_iter().min();
    assert!(count < 1_000 || rarest > Some(0), "{tally}");
}

#[test]
fn every_second_seed() {
    part(0, 2);
}

#[test]
fn every_other_seed() {
    part(1, 2);
}

/// What follows from the seed alone: everything but when it was, and numbers that grow in a process.
fn shape(seed: u64) -> Vec<String> {
    let (_, events) = run(seed);
    // Buffers too, and other tests of the process may make some in between.
    let buffers: BTreeSet<_> = events.iter().map(|event| event.buffer).collect();
    let number = |event: &Event| buffers.range(..event.buffer).count();
    let kind = |event: &Event| {
        // Kernels without a name are numbered through the life of a process.
        let text = format!("{:?}", event.kind);
        text.split(", ").filter(|part| !part.contains("kernel: ")).collect::<Vec<_>>().join(", ")
    };
    events.iter().map(|event| format!("{} {}", number(event), kind(event))).collect()
}

#[test]
fn a_seed_says_everything() {
    for seed in 0..200 {
        assert_eq!(shape(seed), shape(seed), "seed {seed}");
    }
    assert_ne!(shape(1), shape(2));
}
