//! Memory of the device: what is kept, what makes room, and what is said when there is none.

use super::{MEMORY_BYTES, MIB, alloc, arena, cuda, fill, nothing_is_left, platform};
use crate::driver::{code, stand_in};
use dml_core::{AllocError, Block, OwnBlock};

fn address(block: &OwnBlock) -> usize {
    Block::native(&**block.block()).0
}

#[test]
fn freed_memory_serves_the_next_block_of_its_size() {
    let driver = stand_in();
    for (gpu, call) in [("cuda:0", "cuMemAllocFromPoolAsync"), ("cuda:2", "cuMemAlloc_v2")] {
        let platform = platform(&[gpu]);
        let arena = arena(&platform, gpu);
        let first = address(&alloc(&arena, MIB));
        let (asked, second) = driver.made_by(call, || address(&alloc(&arena, MIB - 511)));
        // Without pools nothing is kept: others could not have it.
        let is_kept = gpu == "cuda:0";
        assert_eq!(asked, i64::from(!is_kept), "{gpu}");
        assert!(!is_kept || first == second);
        assert_eq!(driver.made_by(call, || drop(alloc(&arena, MIB + 1))).0, 1, "{gpu}");
        // A sixteenth of the device is kept, and no more: by the arena, and by its pool.
        let blocks = [0; 10].map(|_| alloc(&arena, 2 * MIB));
        drop(blocks);
        driver.until("queued", 0);
        if is_kept {
            assert_eq!(driver.count("kept"), (MEMORY_BYTES / 16) as i64);
            let kept = driver.count("blocks");
            assert!((6..=8).contains(&kept), "{kept} blocks of 2 MiB are kept, of at most 16 MiB");
        } else {
            assert_eq!(driver.count("blocks"), 0);
        }
        let larger = alloc(&arena, MEMORY_BYTES / 16 + 1);
        drop(larger);
        drop((arena, platform));
        nothing_is_left(driver);
    }
}

#[test]
fn memory_is_there_for_every_stream_when_it_is_had() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let arena = arena(&platform, "cuda:0");
    // Others use it in their streams: the stand-in ends the process where one may not yet.
    for len in [1, 1000, MIB] {
        assert_eq!(fill(&alloc(&arena, len), 1).wait(), Ok(len));
    }
    assert_eq!(driver.count("queued"), 0);
}

#[test]
fn what_is_kept_makes_room_and_a_full_device_says_so() {
    let driver = stand_in();
    for gpu in ["cuda:0", "cuda:2"] {
        let platform = platform(&[gpu]);
        let arena = arena(&platform, gpu);
        assert_eq!(cuda(&arena).capacity_bytes(), MEMORY_BYTES);
        let half = alloc(&arena, MEMORY_BYTES / 2);
        // Freed in small pieces, wanted as one.
        drop([0; 12].map(|_| alloc(&arena, MIB)));
        let other = alloc(&arena, MEMORY_BYTES / 2);
        let calls = ["cuMemAllocFromPoolAsync", "cuMemAlloc_v2"];
        let asked = || calls.map(|call| driver.made(call));
        let before = asked();
        let full = OwnBlock::alloc(&arena, 1).map(drop).unwrap_err();
        assert!(matches!(&full, AllocError::OutOfMemory { arena, bytes: 1 } if &**arena == gpu), "{full}");
        assert_eq!(asked(), before, "the driver is not asked for what cannot be there");
        drop(half);
        assert_eq!(fill(&alloc(&arena, MEMORY_BYTES / 2), 3).wait(), Ok(MEMORY_BYTES / 2));
        drop(other);
        let large = OwnBlock::alloc(&arena, MEMORY_BYTES + 1).map(drop).unwrap_err();
        assert!(matches!(large, AllocError::TooLarge { limit_bytes: MEMORY_BYTES, .. }), "{large}");
        // All of it, at once.
        drop(alloc(&arena, MEMORY_BYTES));
        drop((arena, platform));
        nothing_is_left(driver);
    }
}

#[test]
fn another_program_s_memory_is_waited_for_neither_counted_as_ours() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let arena = arena(&platform, "cuda:0");
    drop([0; 3].map(|_| alloc(&arena, MIB)));
    // The device has less than it says: what is idle goes back before a second try.
    driver.fail("cuMemAllocFromPoolAsync", 0, code::OUT_OF_MEMORY);
    let (trims, block) = driver.made_by("cuMemPoolTrimTo", || alloc(&arena, 5 * MIB));
    assert_eq!((trims, driver.count("blocks")), (1, 1));
    drop(block);
    // Another failure is none of memory: nothing is given back for it.
    driver.fail("cuMemAllocFromPoolAsync", 0, code::INVALID_VALUE);
    let (trims, refused) = driver.made_by("cuMemPoolTrimTo", || OwnBlock::alloc(&arena, 6 * MIB).map(drop));
    let refused = refused.unwrap_err();
    assert_eq!(trims, 0);
    assert!(
        matches!(&refused, AllocError::Framework { call: "cuMemAllocFromPoolAsync", code: 1, .. }),
        "{refused}"
    );
    assert!(!arena.is_lost());
    // Nor is a failure of the device.
    driver.fail("cuMemAllocFromPoolAsync", 0, code::LAUNCH_FAILED);
    let lost = OwnBlock::alloc(&arena, 6 * MIB).map(drop).unwrap_err();
    assert!(lost.is_device_lost() && arena.is_lost(), "{lost}");
    drop((arena, platform));
    nothing_is_left(driver);
}
