//! The pure machine on platforms made at random. `cargo xtask topologies` runs as many more as one likes.
//!
//! `DML_TOPOLOGY_SEEDS=FIRST..END` replaces the seeds. One that fails prints its platform and how to run it
//! again.

#![cfg(not(dml_loom))]

use dml_verify::machine::{Tally, topology};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

/// How many seeds a run has by itself.
const SEEDS: u64 = 20_000;

fn seeds() -> Range<u64> {
    let Ok(asked) = std::env::var("DML_TOPOLOGY_SEEDS") else { return 0..SEEDS };
    let ends = asked.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    let (from, to) = ends.unwrap_or_else(|| panic!("DML_TOPOLOGY_SEEDS is FIRST..END, not `{asked}`"));
    from..to
}

fn one(seed: u64) -> Tally {
    catch_unwind(AssertUnwindSafe(|| topology::run(seed))).unwrap_or_else(|panic| {
        eprintln!("{}", topology::describe(seed));
        eprintln!("seed {seed} failed; again with: cargo xtask topologies {seed}..{}", seed + 1);
        resume_unwind(panic)
    })
}

fn part(which: u64, of: u64) {
    let begun = Instant::now();
    let (mut tally, mut count) = (Tally::default(), 0_u64);
    for seed in seeds().filter(|seed| seed % of == which) {
        tally += one(seed);
        count += 1;
    }
    eprintln!("topologies: {count}, {tally}, {:.1} s", begun.elapsed().as_secs_f64());
    // Of everything there was some, where there were seeds enough.
    let Tally { operations, grants, copies, refreshes, fills, binds, losses } = tally;
    let rarest = [operations, grants, copies, refreshes, fills, binds, losses].into_iter().min();
    assert!(count < 1_000 || rarest > Some(0), "{tally}");
}

#[test]
fn i02_every_second_seed() {
    part(0, 2);
}

#[test]
fn i02_every_other_seed() {
    part(1, 2);
}
