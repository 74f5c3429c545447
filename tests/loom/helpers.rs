//! Threads that help: the gate through which they come in, and those that are kept.

use crate::rig::{explore, explore_all};
use dml::core::internal::sync::{Arc, Condvar, Mutex};
use dml::core::internal::{Gate, Helpers};
use loom::cell::UnsafeCell;
use loom::thread::spawn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The data that the leading thread lends. Helpers read it; the leading thread writes it before and after.
///
/// A read that races panics in a helper. The thread that opened the gate gets a helper's panics, but they are
/// lost once the gate is closed. So reads are counted before and after, in atomics outside the model.
struct Lent {
    value: UnsafeCell<u32>,
    begun: AtomicUsize,
    ended: AtomicUsize,
}

// SAFETY: loom says which accesses nothing orders. It is what the models are about.
unsafe impl Sync for Lent {}

impl Lent {
    fn new() -> Self {
        let lent = Self { value: UnsafeCell::new(0), begun: AtomicUsize::new(0), ended: AtomicUsize::new(0) };
        lent.write(1);
        lent
    }

    fn read(&self) {
        self.begun.fetch_add(1, Relaxed);
        // SAFETY: as above.
        assert_eq!(self.value.with(|value| unsafe { *value }), 1);
        self.ended.fetch_add(1, Relaxed);
    }

    fn write(&self, new: u32) {
        // SAFETY: as above.
        self.value.with_mut(|value| unsafe { *value = new });
    }

    /// How many have read it. None of them came too late.
    fn reads(&self) -> usize {
        let ended = self.ended.load(Relaxed);
        assert_eq!(self.begun.load(Relaxed), ended, "who came too late has used what was lent");
        ended
    }
}

#[test]
fn nobody_uses_what_was_lent_after_the_gate_is_closed() {
    explore(|| {
        let lent = Lent::new();
        let mut helpers = Vec::new();
        let share = || lent.read();
        Gate::open(&share, |gate| {
            for _ in 0..2 {
                let gate = gate.clone();
                helpers.push(spawn(move || gate.help(|| ())));
            }
            share();
        });
        lent.write(2);
        let reads = lent.reads();
        helpers.into_iter().for_each(|helper| helper.join().expect("no panic"));
        assert_eq!(lent.reads(), reads, "nobody came in later");
    });
}

#[test]
fn a_helper_that_calls_another_one_is_waited_for() {
    explore(|| {
        let lent = Lent::new();
        let share = || lent.read();
        let mut helper = None;
        Gate::open(&share, |gate| {
            let (first, second) = (gate.clone(), gate.clone());
            helper = Some(spawn(move || {
                let mut other = None;
                first.help(|| other = Some(spawn(move || second.help(|| ()))));
                if let Some(other) = other {
                    other.join().expect("no panic");
                }
            }));
        });
        lent.write(2);
        let reads = lent.reads();
        helper.expect("spawned").join().expect("no panic");
        assert_eq!(lent.reads(), reads, "nobody came in later");
    });
}

#[test]
fn the_panic_of_a_helper_is_heard() {
    explore_all(|| {
        let lent = Lent::new();
        let share = || {
            lent.read();
            std::panic::resume_unwind(Box::new("a helper"));
        };
        let mut helper = None;
        let opened = catch_unwind(AssertUnwindSafe(|| {
            Gate::open(&share, |gate| {
                let gate = gate.clone();
                helper = Some(spawn(move || gate.help(|| ())));
            });
        }));
        lent.write(2);
        let reads = lent.reads();
        assert_eq!(opened.is_err(), reads == 1);
        helper.expect("spawned").join().expect("the panic is the leading thread's");
        assert_eq!(lent.reads(), reads, "nobody came in later");
    });
}

/// A thread that is about to be idle is called, or sent home, or a new one begins meanwhile. One whose task
/// never comes would keep the model from its end.
#[test]
fn every_task_is_done_and_no_thread_is_left() {
    explore(|| {
        let helpers = Helpers::new(1);
        let done = Arc::new((Mutex::new(0), Condvar::new()));
        for _ in 0..2 {
            let done = done.clone();
            let task = move || {
                *done.0.lock() += 1;
                done.1.notify_all();
            };
            helpers.call(task).expect("a model has threads");
        }
        let mut count = done.0.lock();
        while *count < 2 {
            count = done.1.wait(count);
        }
        drop(count);
        drop(helpers);
    });
}
