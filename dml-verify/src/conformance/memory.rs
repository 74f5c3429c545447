//! Checks of a lack of memory: the error says how much and in which arena, and the arena goes on.

use super::Subject;
use super::desk::{Known, assert_same, pattern};
use dml_core::{AllocError, OwnBlock};
use std::sync::{Mutex, PoisonError};

/// The number of blocks that fill an arena of known capacity.
const BLOCKS: u64 = 8;
/// Held while a check fills a memory, because two checks that fill the same memory would take each other's
/// share.
static FILLING: Mutex<()> = Mutex::new(());
/// The number of bytes written at each end of a large block.
const EDGE_BYTES: u64 = 5003;

#[track_caller]
fn refused(subject: &Subject, bytes: u64) {
    let error = subject.arena().alloc(bytes).expect_err("so much memory cannot be had");
    assert!(error.is_out_of_memory(), "{bytes} bytes: {error}");
    let (AllocError::OutOfMemory { arena, bytes: asked } | AllocError::TooLarge { arena, bytes: asked, .. }) =
        &error
    else {
        panic!("{bytes} bytes: {error:?}")
    };
    assert_eq!((arena, *asked), (&subject.desc().name, bytes), "the error says where and how much: {error}");
}

/// A request for more than any memory has fails with an error that names the arena and the bytes, and changes
/// nothing.
///
/// # Panics
/// When the arena breaks this rule.
pub fn too_much_is_an_error(subject: &Subject) {
    let known = Known::new(subject, 4099, 11);
    let limit = subject.max_alloc_bytes().map(|limit| limit + 1);
    let capacity = subject.largest_bytes().map(|capacity| capacity + 1);
    for bytes in [u64::MAX, u64::MAX - 4095, 1 << 60].into_iter().chain(limit).chain(capacity) {
        refused(subject, bytes);
        known.check();
        Known::new(subject, 4099, 12).check();
    }
}

/// Returns the size of the blocks that fill an arena.
fn unit_bytes(subject: &Subject, capacity: u64) -> u64 {
    subject.max_alloc_bytes().unwrap_or(u64::MAX).min(capacity / BLOCKS)
}

/// Allocates blocks of `unit` bytes until an allocation fails.
fn fill_up(subject: &Subject, capacity: u64, unit: u64) -> Vec<OwnBlock> {
    let mut blocks = Vec::new();
    let error = loop {
        match OwnBlock::alloc(subject.arena(), unit) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
        let had = blocks.len() as u64 * unit;
        assert!(had <= capacity, "{had} bytes were had of {capacity}");
    };
    assert!(error.is_out_of_memory(), "{error}");
    assert!(error.to_string().contains(&*subject.desc().name), "{error} names the arena");
    assert!(!blocks.is_empty(), "not even {unit} bytes of {capacity} can be had");
    blocks
}

/// An arena of limited capacity reports when it is full. The blocks allocated before are intact, and freed
/// memory can be allocated again, also in one piece.
///
/// # Panics
/// When the arena breaks this rule.
pub fn fullness_is_an_error(subject: &Subject) {
    let Some(capacity) = subject.capacity_bytes() else { return };
    let _alone = FILLING.lock().unwrap_or_else(PoisonError::into_inner);
    let unit = unit_bytes(subject, capacity);
    let edge = EDGE_BYTES.min(unit / 2);
    let edges = |seed: usize| {
        let (edge, unit) = (edge as usize, unit as usize);
        [(0, pattern(seed as u64, edge)), (unit - edge, pattern(seed as u64 + 1000, edge))]
    };
    let check = |blocks: &[OwnBlock], every: usize| {
        for (seed, block) in blocks.iter().enumerate().step_by(every) {
            for (start, bytes) in edges(seed) {
                let found = subject.take(block, start, start + bytes.len());
                assert_same(&found, &bytes, format_args!("block {seed} of a full arena, from {start}"));
            }
        }
    };
    let mut blocks = fill_up(subject, capacity, unit);
    let count = blocks.len();
    for (seed, block) in blocks.iter().enumerate() {
        edges(seed).iter().for_each(|(start, bytes)| subject.put(block, *start, bytes));
    }
    assert!(subject.arena().alloc(unit).is_err(), "a full arena stays full");
    check(&blocks, 1);
    blocks.drain(..).for_each(|block| block.free());
    // The arena is filled again, and every second block is freed first.
    blocks = fill_up(subject, capacity, unit);
    assert_eq!(blocks.len(), count, "blocks of {unit} bytes after all were freed");
    for (seed, block) in blocks.iter().enumerate() {
        edges(seed).iter().for_each(|(start, bytes)| subject.put(block, *start, bytes));
    }
    let (first, second): (Vec<_>, Vec<_>) =
        blocks.into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
    first.into_iter().for_each(|(_, block)| block.free());
    for (seed, block) in &second {
        for (start, bytes) in edges(*seed) {
            let found = subject.take(block, start, start + bytes.len());
            assert_same(&found, &bytes, format_args!("block {seed} beside freed ones"));
        }
    }
    second.into_iter().for_each(|(_, block)| block.free());
    let whole = (count as u64 * unit).min(subject.max_alloc_bytes().unwrap_or(u64::MAX));
    let block = subject.alloc(whole);
    subject.put(&block, (whole - edge) as usize, &pattern(3, edge as usize));
    drop(block);
    assert_eq!(fill_up(subject, capacity, unit).len(), count, "blocks after one large one was dropped");
}

/// Freed or dropped memory can be allocated again, however often. A block is freed with its last reference.
///
/// # Panics
/// When the arena breaks this rule.
pub fn freed_memory_can_be_had_again(subject: &Subject) {
    let capacity = subject.capacity_bytes().unwrap_or(8 << 20);
    let _alone = FILLING.lock().unwrap_or_else(PoisonError::into_inner);
    let unit = unit_bytes(subject, capacity);
    for round in 0..3 * BLOCKS as usize {
        let block = subject.alloc(unit);
        let other = block.clone();
        subject.put(&block, round, &pattern(round as u64, 77));
        match round % 3 {
            0 => drop(block),
            1 => block.free(),
            _ => {
                // A copy under way keeps what it needs, but only until it ends.
                let sheet = super::desk::Sheet::scrap(77);
                let fence = sheet.copy_out_of(&block, round as u64);
                let _ = fence.expect("a copy starts").wait();
                assert_same(&sheet.bytes(), &pattern(round as u64, 77), "a block about to go");
                drop(block);
            }
        }
        if round % 3 != 1 {
            assert_same(
                &subject.take(&other, round, round + 77),
                &pattern(round as u64, 77),
                "the last reference",
            );
        }
        drop(other);
    }
    if subject.capacity_bytes().is_some() {
        let before = fill_up(subject, capacity, unit).len();
        for round in 0..3 {
            let count = fill_up(subject, capacity, unit).len();
            assert_eq!(count, before, "blocks of {unit} bytes in round {round}");
        }
    }
}
