//! Page-locked memory: main memory whose pages are registered when that pays, and the arena of page-locked
//! memory.

use super::{MIB, alloc, arena, cuda, home, nothing_is_left, platform, platform_with};
use crate::common::{pattern, put, take};
use crate::driver::{StandIn, code, stand_in};
use crate::stand_in::reads_by;
use dml_arenas::{DiscoverOptions, HostArena, Sharing};
use dml_core::internal::sync::Arc;
use dml_core::{AllocError, Arena, Block, Buffer, OwnBlock, Platform, Span};

/// Sends a buffer of main memory to a GPU, as if the host had changed it.
fn send(platform: &Platform, gpu: &str, buffer: &Buffer<u8>) {
    let mut view = buffer.read_write().unwrap();
    view[0] = view[0].wrapping_add(1);
    view.release().unwrap();
    let gpu = platform.device(gpu).unwrap();
    platform.acquire(gpu).read(buffer).wait().unwrap().release().unwrap();
}

/// How many cores there are, for one, is read from files.
#[test]
fn a_transfer_reads_no_file() {
    let _driver = stand_in();
    for options in [DiscoverOptions::default(), DiscoverOptions::default().page_locks(0)] {
        let platform = platform_with(options, &["cuda:0"]);
        for bytes in [5000, MIB as usize] {
            let buffer = platform.buffer_from(pattern(bytes, 1)).unwrap();
            send(&platform, "cuda:0", &buffer);
            let reads = reads_by(|| (0..100).for_each(|_| send(&platform, "cuda:0", &buffer)));
            assert!(
                reads.is_none_or(|reads| reads < 50),
                "{reads:?} reads in 100 transfers of {bytes} bytes"
            );
        }
    }
}

/// How often a buffer is sent until its pages are locked.
fn sent_until_locked(driver: StandIn, platform: &Platform, gpu: &str, buffer: &Buffer<u8>) -> u32 {
    let before = driver.made("cuMemHostRegister_v2");
    let is_locked = |_: &u32| {
        send(platform, gpu, buffer);
        driver.made("cuMemHostRegister_v2") > before
    };
    (1..100).find(is_locked).expect("locking pays at last")
}

#[test]
fn what_is_sent_often_is_locked_once_for_all_gpus_and_unlocked_before_it_goes() {
    let driver = stand_in();
    // Without scratch memory, so that nothing else is locked.
    let options = DiscoverOptions::default().locked_scratch(0);
    let platform = platform_with(options, &["cuda:0", "cuda:1", "cuda:2"]);
    let buffer = platform.buffer_from(pattern(MIB as usize, 1)).unwrap();
    let times = sent_until_locked(driver, &platform, "cuda:0", &buffer);
    assert!(times > 1, "one transfer does not pay for it");
    assert_eq!(driver.count("locked"), 1);
    for gpu in ["cuda:0", "cuda:1", "cuda:2", "cuda:1"] {
        let (made, ()) = driver.made_by("cuMemHostRegister_v2", || send(&platform, gpu, &buffer));
        assert_eq!(made, 0, "{gpu}: it is locked for all of them");
    }
    let expected = pattern(MIB as usize, 1);
    assert_eq!(buffer.read().unwrap()[1..], expected[1..]);
    // The stand-in ends the process where the pages are not locked any more while they move.
    drop(buffer);
    assert_eq!(driver.count("locked"), 0);
    drop(platform);
    nothing_is_left(driver);
}

#[test]
fn what_would_exceed_the_limit_or_is_refused_goes_without_a_lock() {
    let driver = stand_in();
    let limits = DiscoverOptions::default().locked_scratch(0).page_locks(3 * MIB / 2);
    let platform = platform_with(limits, &["cuda:0"]);
    let [one, two] = [1, 2].map(|seed| platform.buffer_from(pattern(MIB as usize, seed)).unwrap());
    sent_until_locked(driver, &platform, "cuda:0", &one);
    let (made, ()) =
        driver.made_by("cuMemHostRegister_v2", || (0..40).for_each(|_| send(&platform, "cuda:0", &two)));
    assert_eq!((made, driver.count("locked")), (0, 1));
    drop(one);
    // There is room now.
    assert_eq!(sent_until_locked(driver, &platform, "cuda:0", &two), 1);
    drop(two);
    // A refusal is no error, and is asked for again when a lock would have paid once more.
    let three = platform.buffer_from(pattern(MIB as usize, 3)).unwrap();
    driver.fail("cuMemHostRegister_v2", 0, code::OUT_OF_MEMORY);
    let times = sent_until_locked(driver, &platform, "cuda:0", &three);
    assert_eq!(driver.count("locked"), 0);
    assert_eq!(sent_until_locked(driver, &platform, "cuda:0", &three), times);
    assert_eq!(driver.count("locked"), 1);
    assert!(!arena(&platform, "cuda:0").is_lost());
    drop((three, platform));
    nothing_is_left(driver);
}

#[test]
fn pages_that_the_program_has_locked_count_as_locked_and_stay_so() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let memory = pattern(16 << 20, 5);
    driver.register(cuda(&gpu).context().0, &memory);
    let buffer = platform.buffer_from(memory).unwrap();
    sent_until_locked(driver, &platform, "cuda:0", &buffer);
    // That is asked once, and counts as a lock.
    let again = || (0..20).for_each(|_| send(&platform, "cuda:0", &buffer));
    assert_eq!(driver.made_by("cuMemHostRegister_v2", again).0, 0);
    // One command each from then on: not staged piece by piece.
    let (copies, ()) = driver.made_by("cuMemcpyHtoDAsync_v2", || send(&platform, "cuda:0", &buffer));
    assert_eq!(copies, 1);
    let back = buffer.into_vec().unwrap();
    assert_eq!(back[1..], pattern(16 << 20, 5)[1..]);
    drop((gpu, platform));
    driver.until("locked", 1);
    // The program's own lock is what is left.
}

fn pinned(platform: &Platform) -> Arc<dyn Arena> {
    platform.arena(platform.arena_named("cuda_pinned").unwrap()).clone()
}

fn with_pinned(limit_bytes: u64) -> Platform {
    platform_with(DiscoverOptions::default().sharing(Sharing::page_locked(limit_bytes)), &["cuda:0"])
}

fn address(block: &OwnBlock) -> usize {
    Block::native(&**block.block()).0
}

#[test]
fn page_locked_memory_is_kept_for_blocks_of_about_its_size() {
    let driver = stand_in();
    let platform = with_pinned(64 * MIB);
    let pinned = pinned(&platform);
    assert_eq!(pinned.downcast_ref::<HostArena>().unwrap().capacity_bytes(), 64 * MIB);
    const UNIT: u64 = 64 << 10;
    let large = alloc(&pinned, 100 * UNIT);
    let at = address(&large);
    assert_eq!(driver.count("locked"), 1);
    drop(large);
    assert_eq!(driver.count("locked"), 1, "it is kept");
    for (units, is_kept) in [(79, false), (80, true), (100, true), (101, false)] {
        let (made, block) = driver.made_by("cuMemHostRegister_v2", || alloc(&pinned, units * UNIT));
        assert_eq!(made, i64::from(!is_kept), "{units} units");
        assert_eq!(address(&block) == at, is_kept, "{units} units");
        put(&block, units * UNIT - 5, &[1, 2, 3, 4, 5]);
    }
}

#[test]
fn of_what_is_kept_the_best_fit_is_taken_and_the_limit_counts_all_of_it() {
    let driver = stand_in();
    const UNIT: u64 = 64 << 10;
    let platform = with_pinned(10 * UNIT);
    let pinned = pinned(&platform);
    let [four, five] = [4, 5].map(|units| alloc(&pinned, units * UNIT));
    let at = [&four, &five].map(address);
    let full =
        |units: u64| matches!(OwnBlock::alloc(&pinned, units * UNIT), Err(AllocError::OutOfMemory { .. }));
    assert!(full(2) && driver.count("locked") == 2);
    let one = alloc(&pinned, UNIT - 1);
    assert!(full(1) && driver.count("locked") == 3);
    drop(four);
    drop(five);
    let again = alloc(&pinned, 4 * UNIT);
    assert_eq!(address(&again), at[0], "the smaller one that fits");
    // What is idle goes where it has to, and no more of it.
    let two = alloc(&pinned, 2 * UNIT);
    assert_eq!(driver.count("locked"), 3, "five went for two");
    drop((again, two, one));
    // What has room beside it stays.
    drop(alloc(&pinned, 10 * UNIT));
    drop(alloc(&pinned, 4 * UNIT));
    assert_eq!(driver.count("locked"), 1, "the whole went for a part");
    let six = alloc(&pinned, 6 * UNIT);
    assert_eq!(driver.count("locked"), 2, "there is room for both");
    drop(six);
    let all = alloc(&pinned, 10 * UNIT);
    assert_eq!(driver.count("locked"), 1);
    assert!(full(1));
    let large = OwnBlock::alloc(&pinned, 10 * UNIT + 1).map(drop).unwrap_err();
    assert!(matches!(large, AllocError::TooLarge { limit_bytes, .. } if limit_bytes == 10 * UNIT), "{large}");
    drop((all, pinned, platform));
    nothing_is_left(driver);
}

#[test]
fn memory_that_cannot_be_made_takes_nothing_of_the_limit() {
    let driver = stand_in();
    // More than a process can have, and no more than the limit.
    let limit_bytes = 1 << 62;
    let platform = with_pinned(limit_bytes);
    let pinned = pinned(&platform);
    for _ in 0..3 {
        let full = OwnBlock::alloc(&pinned, limit_bytes).map(drop).unwrap_err();
        assert!(full.is_out_of_memory(), "{full}");
    }
    drop(alloc(&pinned, 1000));
    assert_eq!(driver.count("locked"), 1);
}

#[test]
fn page_locked_memory_works_as_ordinary_memory_where_the_driver_refuses() {
    let driver = stand_in();
    let platform = with_pinned(4 * MIB);
    let pinned = pinned(&platform);
    driver.fail("cuMemHostRegister_v2", 0, code::OUT_OF_MEMORY);
    let block = alloc(&pinned, MIB);
    assert_eq!(driver.count("locked"), 0);
    let bytes = pattern(MIB as usize, 3);
    put(&block, 0, &bytes);
    assert_eq!(take(&block, Span::new(0, MIB)), bytes);
    assert!(!pinned.is_lost() && pinned.loss().is_none());
    // Buffers of main memory lie there, and go to the GPU and back in one command each.
    let buffer = platform.buffer::<u8>(MIB).build().unwrap();
    let mut view = buffer.write().unwrap();
    view.copy_from_slice(&bytes);
    view.release().unwrap();
    assert_eq!(driver.count("locked"), 1);
    let gpu = platform.device("cuda:0").unwrap();
    let (copies, ()) = driver.made_by("cuMemcpyHtoDAsync_v2", || {
        platform.acquire(gpu).read_write(&buffer).wait().unwrap().release().unwrap();
    });
    assert_eq!(copies, 1);
    assert_eq!(*buffer.read().unwrap(), bytes);
    assert_ne!(home(&platform, "cpu"), platform.arena_named("cuda_pinned").unwrap());
    drop((buffer, block, pinned, platform));
    nothing_is_left(driver);
}
