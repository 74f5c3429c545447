//! Checks of many threads that use one arena.

use super::Subject;
use super::desk::{Known, assert_same, pattern};
use dml_core::Span;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Barrier;

const THREADS: usize = 4;
const ROUNDS: usize = 12;

/// Runs rounds of two halves on every thread. No thread begins a half before all threads have ended the last
/// one. Panics are reported at the end, so that no thread waits for one that is gone.
fn rounds(write: impl Fn(usize, usize) + Sync, check: impl Fn(usize, usize) + Sync) {
    let barrier = Barrier::new(THREADS);
    let work = |thread: usize| {
        let mut outcome = Ok(());
        for round in 0..ROUNDS {
            for half in [&write as &(dyn Fn(usize, usize) + Sync), &check] {
                let ended = catch_unwind(AssertUnwindSafe(|| half(thread, round)));
                outcome = outcome.and(ended);
                barrier.wait();
            }
        }
        outcome
    };
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().and_then(|outcome| outcome)).collect()
    });
    outcomes.into_iter().for_each(|outcome| outcome.unwrap_or_else(|panic| resume_unwind(panic)));
}

/// Threads that copy to and from disjoint parts of one block at once do not disturb each other.
///
/// # Panics
/// When the arena breaks this rule.
pub fn threads_share_a_block(subject: &Subject) {
    let part = 40_001;
    let known = Known::new(subject, THREADS * part, 5);
    let block = &known.block;
    let seed = |thread, round| (round * THREADS + thread) as u64 + 50;
    rounds(
        |thread, round| {
            let start = thread * part;
            if round % 3 == 2 {
                let span = Span::new(start as u64, (start + 1000) as u64);
                let fence = block.fill(span, seed(thread, round) as u8);
                assert_eq!(fence.expect("a fill starts").wait(), Ok(1000));
            } else {
                // Each part is written in pieces, while other threads write theirs.
                for (at, piece) in pattern(seed(thread, round), part).chunks(9_973).enumerate() {
                    subject.put(block, start + at * 9_973, piece);
                    assert_same(
                        &subject.take(block, start + at * 9_973, start + at * 9_973 + piece.len()),
                        piece,
                        format_args!("piece {at} of thread {thread}"),
                    );
                }
            }
        },
        |thread, round| {
            // The thread checks what its neighbour wrote.
            let thread = (thread + 1) % THREADS;
            let mut expected = pattern(seed(thread, round - usize::from(round % 3 == 2)), part);
            if round % 3 == 2 {
                expected[..1000].fill(seed(thread, round) as u8);
            }
            let found = subject.take(block, thread * part, (thread + 1) * part);
            assert_same(&found, &expected, format_args!("the part of thread {thread} in round {round}"));
        },
    );
}

/// Threads that allocate, fill, copy and free blocks of their own at once do not disturb each other.
///
/// # Panics
/// When the arena breaks this rule.
pub fn threads_have_blocks_of_their_own(subject: &Subject) {
    let live: Vec<_> = (0..THREADS).map(|_| std::sync::Mutex::new(None)).collect();
    let len = |round: usize| [1, 4097, 70_001, 64, 513, 262_147][round % 6];
    let seed = |thread, round| (round * THREADS + thread) as u64 + 900;
    rounds(
        |thread, round| {
            let (len, seed) = (len(round), seed(thread, round));
            let block = subject.alloc(len as u64);
            subject.put(&block, 0, &pattern(seed, len));
            let fence = block.fill(Span::new(0, len as u64 / 3), seed as u8);
            assert_eq!(fence.expect("a fill starts").wait(), Ok(len as u64 / 3));
            // A short-lived block lies between the others.
            let other = subject.alloc(len as u64);
            subject.put(&other, 0, &pattern(seed + 1, len));
            other.free();
            *live[thread].lock().expect("nobody panics with it") = Some(block);
        },
        |thread, round| {
            let (len, seed) = (len(round), seed(thread, round));
            let mut expected = pattern(seed, len);
            expected[..len / 3].fill(seed as u8);
            let block = live[thread].lock().expect("nobody panics with it").take();
            let block = block.expect("the first half made one");
            assert_same(
                &subject.take(&block, 0, len),
                &expected,
                format_args!("the block of thread {thread} in round {round}"),
            );
            block.free();
        },
    );
}
