//! The gate through which helpers of a kernel on the host come in.

// It is private, for no one else's threads are to come in.
#[path = "../../dml-arenas/src/launch/gate.rs"]
mod gate;

use crate::rig::{explore, explore_all};
use gate::Gate;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use loom::thread::spawn;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What the leading thread has borrowed: helpers read it, and whoever leads writes to it before and after.
struct Lent(UnsafeCell<u32>);

// SAFETY: loom says which accesses nothing orders. It is what the models are about.
unsafe impl Sync for Lent {}

impl Lent {
    fn read(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|value| unsafe { *value })
    }

    fn write(&self, new: u32) {
        // SAFETY: as above.
        self.0.with_mut(|value| unsafe { *value = new });
    }
}

#[test]
fn nobody_uses_what_was_lent_after_the_gate_is_closed() {
    explore(|| {
        let (lent, helped) = (Lent(UnsafeCell::new(0)), AtomicUsize::new(0));
        lent.write(1);
        let mut helpers = Vec::new();
        let share = || {
            assert_eq!(lent.read(), 1);
            helped.fetch_add(1, Relaxed);
        };
        Gate::open(&share, |gate| {
            for _ in 0..2 {
                let gate = gate.clone();
                helpers.push(spawn(move || gate.help(|| ())));
            }
            share();
        });
        lent.write(2);
        let helped = helped.load(Relaxed);
        assert!((1..=3).contains(&helped));
        helpers.into_iter().for_each(|helper| helper.join().expect("no panic"));
    });
}

#[test]
fn a_helper_that_calls_another_one_is_waited_for() {
    explore(|| {
        let lent = Lent(UnsafeCell::new(0));
        let share = || _ = lent.read();
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
        lent.write(1);
        helper.expect("spawned").join().expect("no panic");
    });
}

#[test]
fn the_panic_of_a_helper_is_heard() {
    explore_all(|| {
        let lent = Lent(UnsafeCell::new(0));
        let comes_in = AtomicUsize::new(0);
        let share = || {
            lent.read();
            comes_in.fetch_add(1, Relaxed);
            std::panic::resume_unwind(Box::new("a helper"));
        };
        let mut helper = None;
        let opened = catch_unwind(AssertUnwindSafe(|| {
            Gate::open(&share, |gate| {
                let gate = gate.clone();
                helper = Some(spawn(move || gate.help(|| ())));
            });
        }));
        lent.write(1);
        assert_eq!(opened.is_err(), comes_in.load(Relaxed) == 1);
        helper.expect("spawned").join().expect("the panic is the leading thread's");
    });
}
