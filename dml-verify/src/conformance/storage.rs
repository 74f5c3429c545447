//! Checks of an arena's description, and of the blocks that it makes.

use super::Subject;
use super::desk::{assert_same, pattern};
use dml_core::MapState;
use dml_core::{Concurrency, OwnBlock};

/// Sizes in bytes, around those at which allocators change their strategy.
const SIZES: [u64; 8] = [0, 1, 63, 64, 4095, 4097, (1 << 20) + 3, (33 << 20) + 1];

/// The fixed facts agree with each other and with the platform, and do not change.
///
/// # Panics
/// When the arena breaks this rule.
pub fn the_description_is_consistent(subject: &Subject) {
    let desc = subject.desc();
    assert!(!desc.name.is_empty(), "the arena has no name");
    assert!(!desc.kind.0.is_empty(), "{} is of no kind", desc.name);
    assert!(desc.alloc_align.is_power_of_two(), "{} aligns to {} bytes", desc.name, desc.alloc_align);
    let is_known = |device: dml_core::DeviceId| usize::from(device.0) < subject.platform().devices().len();
    assert!(
        (desc.is_store() || is_known(desc.native)) && desc.remotes.iter().all(is_known),
        "{desc:?} names an unknown device"
    );
    // An arena without remotes can still be one of many that use another's storage.
    let is_alone = desc.remotes.is_empty() && subject.root().1 == Concurrency::Exclusive;
    assert!(
        desc.concurrency == Concurrency::Exclusive || !is_alone,
        "{} is {:?} with nobody",
        desc.name,
        desc.concurrency
    );
    assert!(
        !desc.is_always_bimapped() || desc.concurrency != Concurrency::Exclusive,
        "{} is always bimapped and exclusive",
        desc.name
    );
    assert!(
        MapState::initial(desc).is_well_formed(desc),
        "{} begins in a map state it cannot have",
        desc.name
    );
    let before = subject.arena().desc().clone();
    drop(subject.alloc(100));
    assert_eq!(&before, subject.arena().desc(), "the description changes");
}

/// A block of any size is as long as asked for, aligned, and readable at once. The host sees it if the memory
/// is the host's.
///
/// # Panics
/// When the arena breaks this rule.
pub fn blocks_are_as_asked_for(subject: &Subject) {
    let desc = subject.desc();
    for len in SIZES.into_iter().filter(|&len| subject.fits_twice(len)) {
        let block = subject.alloc(len);
        // Core accepts a block that is longer than asked for.
        let had = block.block().len();
        assert!(had >= len, "{had} bytes instead of {len}");
        assert_eq!(block.block().is_empty(), had == 0, "a block of {had} bytes is empty or not");
        let (is_host, before) = (desc.native == subject.host(), block.seen());
        assert_eq!(before.is_some(), is_host, "the host is native, and so sees a block: {len} bytes");
        // The fresh bytes are unspecified but readable.
        let fresh = subject.take(&block, 0, len as usize);
        if let (Some(before), Some(address)) = (before, block.address()) {
            assert_eq!(before.len() as u64, had, "the host sees the whole block");
            let is_aligned = (address as u64).is_multiple_of(desc.alloc_align);
            assert!(
                len == 0 || is_aligned,
                "{len} bytes at {address:#x} are not aligned to {}",
                desc.alloc_align
            );
            assert_same(&before[..len as usize], &fresh, "a fresh block as the host sees it");
        }
        let bytes = pattern(len, len as usize);
        subject.put(&block, 0, &bytes);
        assert_same(&subject.take(&block, 0, len as usize), &bytes, format_args!("a block of {len}"));
        if let Some(seen) = block.seen() {
            assert_same(&seen[..len as usize], &bytes, "what the host sees");
        }
        block.free();
    }
}

/// Blocks that live at the same time share no bytes, also after blocks between them were freed.
///
/// # Panics
/// When the arena breaks this rule.
pub fn blocks_share_no_bytes(subject: &Subject) {
    // Two blocks of every size in turn; the first of each size still lives when the second is written. The
    // largest sizes have one block each, and only for a short time.
    let small =
        || SIZES.into_iter().filter(|&len| len <= 2 << 20 && subject.fits_twice(len.saturating_mul(4)));
    let large = SIZES.into_iter().filter(|&len| len > 2 << 20 && subject.fits_twice(len));
    let lens: Vec<u64> = small().chain(small().rev()).collect();
    let mut blocks: Vec<_> = lens.iter().map(|&len| (subject.alloc(len), len as usize)).collect();
    for round in 0..2 {
        written_apart(subject, &blocks, 100 * round);
        // In the second round, a new block takes the place of every second one, which is freed.
        for (block, len) in blocks.iter_mut().skip(1).step_by(2) {
            let fresh = subject.alloc(*len as u64);
            std::mem::replace(block, fresh).free();
        }
    }
    for len in large {
        written_apart(
            subject,
            &[subject.alloc(len), subject.alloc(len)].map(|block| (block, len as usize)),
            7,
        );
    }
}

/// Writes all blocks, then checks each of them.
fn written_apart(subject: &Subject, blocks: &[(OwnBlock, usize)], base: u64) {
    for (seed, (block, len)) in (base..).zip(blocks) {
        subject.put(block, 0, &pattern(seed, *len));
    }
    for (seed, (block, len)) in (base..).zip(blocks) {
        let what = format_args!("block {seed} of {len} bytes after the others were written");
        assert_same(&subject.take(block, 0, *len), &pattern(seed, *len), what);
    }
}
