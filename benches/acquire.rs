//! What the data layer itself costs: each program of `dml bench acquire` as a benchmark of criterion.
//!
//! `cargo bench --bench acquire [-- PROGRAM]`; the mutex pair calibrates the machine. Times of two threads
//! are those of each.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use criterion::{Criterion, criterion_group, criterion_main};
use dml_workloads::overhead::Program;

const SIZES: [Program; 9] = [
    Program::Buffers(1_000),
    Program::Buffers(1_000_000),
    Program::Ranges(1),
    Program::Ranges(10),
    Program::Ranges(1_000),
    Program::Ranges(100_000),
    Program::Held(10),
    Program::Held(1_000),
    Program::Held(10_000),
];

fn acquire(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("acquire");
    for program in Program::PLAIN.into_iter().chain(SIZES) {
        let prepared = program.prepare().expect("there is memory");
        group.bench_function(program.to_string(), |b| {
            b.iter_custom(|operations| prepared.run(operations).expect("nothing fails"));
        });
    }
    group.finish();
}

criterion_group!(benches, acquire);
criterion_main!(benches);
