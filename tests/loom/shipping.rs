//! Arenas that ship, in place of those for tests: main memory, with a device beside it, and heaps.

use crate::rig::{ALL, CPU, GPU, LEFT, Machine, RIGHT, Shared, explore_all, thread};
use dml::arenas::kit::{Heap, PAGE_BYTES};
use dml::core::Concurrency;
use dml::core::internal::sync::Arc;

#[test]
fn i02_no_update_is_lost_between_main_memory_and_a_device_with_copies() {
    explore_all(|| {
        let mine = Shared::new(&Machine::main_mem_staged());
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.bump(GPU));
        mine.bump(CPU);
        other.join().expect("the other writer ends");
        assert_eq!((mine.read(CPU, ALL), mine.read(GPU, ALL)), (2, 2));
        mine.end();
    });
}

#[test]
fn i11_no_update_is_lost_in_main_memory_that_a_device_uses_in_turns() {
    explore_all(|| {
        let mine = Shared::new(&Machine::main_mem_bound(Concurrency::Exclusive));
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.bump(GPU));
        mine.bump(CPU);
        other.join().expect("the other writer ends");
        assert_eq!((mine.read(GPU, ALL), mine.read(CPU, ALL)), (2, 2));
        mine.end();
    });
}

/// Both hold their half at once; loom sees the race where one reaches into the other.
#[test]
fn i11_both_write_their_halves_of_main_memory_that_they_share() {
    explore_all(|| {
        let mine = Shared::new(&Machine::main_mem_bound(Concurrency::BimapFull));
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.write(GPU, RIGHT, 2));
        mine.write(CPU, LEFT, 1);
        other.join().expect("the other writer ends");
        assert_eq!((mine.read(GPU, LEFT), mine.read(CPU, RIGHT)), (1, 2));
        mine.end();
    });
}

#[test]
fn what_two_threads_take_of_a_heap_is_apart_and_comes_back() {
    explore_all(|| {
        let heap = Arc::new(Heap::new(3 * PAGE_BYTES));
        let theirs = heap.clone();
        let other = thread::spawn(move || {
            let taken = theirs.take(PAGE_BYTES).expect("two pages are left at least");
            theirs.give_back(taken);
            theirs.take(PAGE_BYTES + 1)
        });
        let first = heap.take(PAGE_BYTES).expect("a page is left at least");
        let second = other.join().expect("the other ends");
        if let Some(second) = second {
            assert!(first.end() <= second.start() || second.end() <= first.start(), "{first} and {second}");
            assert_eq!(heap.take(1), None);
            heap.give_back(second);
        }
        heap.give_back(first);
        assert!(heap.take(3 * PAGE_BYTES).is_some(), "all of it is free");
    });
}
