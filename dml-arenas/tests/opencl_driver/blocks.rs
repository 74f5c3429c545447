//! Blocks: how they are had and given back, what the host sees of them, and memory that others have.

use super::{
    Arc, Arena, LARGEST_BYTES, MEMORY_BYTES, alloc, arena, fill, nothing_is_left, opencl, platform,
    platform_with,
};
use crate::common::{pattern, put, take};
use crate::driver::{code, stand_in};
use crate::stand_in::{again, is_child};
use dml_arenas::{DiscoverOptions, Sharing};
use dml_core::MapState;
use dml_core::{
    AcquireError, AllocError, Concurrency, DeviceId, DeviceSet, OwnBlock, Platform, Scalar, Span,
    TransferError,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

const CPU: DeviceId = DeviceId(0);
const MAPPED: MapState = MapState::Mapped(DeviceSet::of(CPU));

#[track_caller]
fn refused(arena: &Arc<dyn Arena>, len: u64) -> AllocError {
    OwnBlock::alloc(arena, len).map(drop).unwrap_err()
}

/// Returns the message that `does` panics with.
fn panics<T>(does: impl FnOnce() -> T) -> String {
    let panic = catch_unwind(AssertUnwindSafe(does)).map(drop).expect_err("it does not panic");
    panic.downcast_ref::<String>().expect("a text").clone()
}

#[test]
fn a_device_has_so_much_memory_and_no_more() {
    let driver = stand_in();
    for device in super::DEVICES {
        let platform = platform(&[device]);
        let arena = arena(&platform, device);
        let (limit_bytes, name) = (LARGEST_BYTES, arena.desc().name.clone());
        let bytes = LARGEST_BYTES + 1;
        assert_eq!(refused(&arena, bytes), AllocError::TooLarge { arena: name.clone(), bytes, limit_bytes });
        let out_of = |bytes| AllocError::OutOfMemory { arena: name.clone(), bytes };
        let mut all: Vec<_> =
            (0..MEMORY_BYTES / LARGEST_BYTES).map(|_| alloc(&arena, LARGEST_BYTES)).collect();
        for bytes in [0, 1, LARGEST_BYTES] {
            assert_eq!(refused(&arena, bytes), out_of(bytes));
        }
        drop(all.pop());
        let small = alloc(&arena, 1);
        assert_eq!(refused(&arena, LARGEST_BYTES), out_of(LARGEST_BYTES));
        drop(small);
        all.push(alloc(&arena, LARGEST_BYTES));
        drop((all, arena, platform));
        nothing_is_left(driver);
    }
}

#[test]
fn what_the_driver_says_of_an_allocation_is_told_and_nothing_stays_reserved() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    let name = arena.desc().name.clone();
    let framework = |call, text: &str| AllocError::Framework {
        arena: name.clone(),
        call,
        code: -30,
        message: text.into(),
    };
    let no_memory = AllocError::OutOfMemory { arena: name.clone(), bytes: 5 };
    let too_large = AllocError::TooLarge { arena: name.clone(), bytes: 5, limit_bytes: LARGEST_BYTES };
    for (call, code, expected) in [
        ("clCreateBuffer", code::INVALID_VALUE, framework("clCreateBuffer", "CL_INVALID_VALUE")),
        ("clCreateBuffer", code::NO_MEMORY, no_memory.clone()),
        ("clCreateBuffer", -61, too_large),
        ("clEnqueueWriteBuffer", code::INVALID_VALUE, framework("clEnqueueWriteBuffer", "CL_INVALID_VALUE")),
        ("clEnqueueWriteBuffer", code::OUT_OF_RESOURCES, no_memory.clone()),
        // Memory is had at its first use, so that is made at once.
        ("end of clEnqueueWriteBuffer", code::NO_MEMORY, no_memory.clone()),
        (
            "end of clEnqueueWriteBuffer",
            code::INVALID_VALUE,
            framework("clEnqueueWriteBuffer", "CL_INVALID_VALUE"),
        ),
        ("clWaitForEvents", code::INVALID_VALUE, framework("clWaitForEvents", "CL_INVALID_VALUE")),
    ] {
        driver.fail(call, 0, code);
        assert_eq!(refused(&arena, 5), expected, "{call} {code}");
        // A block whose command could not be waited for is freed with the next block.
        driver.until("blocks", i64::from(call == "clWaitForEvents"));
        assert!(!arena.is_lost());
    }
    let all: Vec<_> = (0..MEMORY_BYTES / LARGEST_BYTES).map(|_| alloc(&arena, LARGEST_BYTES)).collect();
    drop(all);
    for call in ["clCreateBuffer", "end of clEnqueueWriteBuffer"] {
        driver.fail(call, 0, code::DEVICE_NOT_AVAILABLE);
        assert_eq!(refused(&arena, 5), AllocError::DeviceLost { arena: name.clone(), loss: None });
        assert!(arena.is_lost());
    }
    drop((arena, platform));
    nothing_is_left(driver);
}

/// NVIDIA's driver fills by a kernel, which begins when those of other queues have ended.
#[test]
fn memory_is_had_without_a_kernel() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    let (fills, (writes, block)) = driver
        .made_by("clEnqueueFillBuffer", || driver.made_by("clEnqueueWriteBuffer", || alloc(&arena, 1000)));
    assert_eq!((fills, writes), (0, 1));
    drop((block, arena, platform));
    nothing_is_left(driver);
}

#[test]
fn a_mapping_shows_all_bytes_and_what_is_written_there_is_the_devices() {
    let driver = stand_in();
    for device in super::DEVICES {
        let platform = platform(&[device]);
        let arena = arena(&platform, device);
        let block = alloc(&arena, 1000);
        put(&block, 0, &pattern(1000, 3));
        for round in 0..3_u8 {
            assert_eq!(arena.map_state(block.block()), Some(MapState::Unmapped));
            assert_eq!(block.map(CPU, MAPPED), Ok(MAPPED));
            assert_eq!((arena.map_state(block.block()), driver.count("mapped")), (Some(MAPPED), 1));
            let mut expected = pattern(1000, 3);
            expected[..usize::from(round)].fill(9);
            assert_eq!(block.seen().unwrap(), expected, "{device} {round}");
            block.overwrite(usize::from(round), &[9]);
            assert_eq!(block.unmap(MapState::Unmapped), Ok(MapState::Unmapped));
        }
        assert_eq!(take(&block, Span::new(1, 1000))[..4], [9, 9, pattern(1000, 3)[3], pattern(1000, 3)[4]]);
        // A block that is mapped still when it goes is unmapped, at once.
        block.map(CPU, MAPPED).unwrap();
        drop(block);
        driver.until("blocks", 0);
        drop((arena, platform));
        nothing_is_left(driver);
    }
}

#[test]
fn host_and_device_never_have_a_block_both() {
    stand_in();
    let platform = platform(&["opencl:0", "opencl:1"]);
    let arena = arena(&platform, "opencl:0");
    let block = alloc(&arena, 100);
    let said = panics(|| block.unmap(MapState::Unmapped));
    assert!(said.starts_with("core bug: opencl:0 was to unmap a block that is not mapped"), "{said}");
    block.map(CPU, MAPPED).unwrap();
    let said = panics(|| block.map(CPU, MAPPED));
    assert!(said.starts_with("core bug: opencl:0 was to map a block that is mapped"), "{said}");
    let said = panics(|| fill(&block, 1));
    let expected = "core bug: opencl:0 was asked to touch bytes 0..100 of a block mapped for the host";
    assert_eq!(said, expected);
    block.unmap(MapState::Unmapped).unwrap();
    assert_eq!(fill(&block, 1).wait(), Ok(100));
    let said = panics(|| block.map(DeviceId(1), MAPPED));
    assert!(said.starts_with("core bug: opencl:0 cannot be mapped for device"), "{said}");
    let said = panics(|| block.fill(Span::new(99, 101), 1));
    assert!(said.contains("opencl:0 was asked for bytes 99..101 of a block of 100 bytes"), "{said}");
    assert_eq!(block.fill(Span::new(99, 100), 1).unwrap().wait(), Ok(1));
    let other = block.asked_of(&super::arena(&platform, "opencl:1"));
    let said = panics(|| fill(&other, 1));
    assert!(said.starts_with("core bug: opencl:1 was handed a block of another arena"), "{said}");
}

#[test]
fn a_change_of_map_state_that_the_driver_refuses_changes_nothing() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    let block = alloc(&arena, 100);
    put(&block, 0, &pattern(100, 1));
    for (failing, call, code, message) in [
        ("clEnqueueMapBuffer", "clEnqueueMapBuffer", -30, "CL_INVALID_VALUE"),
        ("end of clEnqueueMapBuffer", "clEnqueueMapBuffer", -12, "CL_MAP_FAILURE"),
    ] {
        driver.fail(failing, 0, code);
        let refused = block.map(CPU, MAPPED).unwrap_err();
        let expected = TransferError::Framework { call, code: code.into(), message: message.into() };
        assert_eq!((refused, arena.map_state(block.block())), (expected, Some(MapState::Unmapped)));
        assert_eq!(take(&block, Span::new(0, 100)), pattern(100, 1));
    }
    let block = alloc(&arena, 100);
    put(&block, 0, &pattern(100, 2));
    block.map(CPU, MAPPED).unwrap();
    block.overwrite(0, &[7]);
    driver.fail("clEnqueueUnmapMemObject", 0, code::INVALID_VALUE);
    let refused = block.unmap(MapState::Unmapped).unwrap_err();
    assert!(matches!(refused, TransferError::Framework { call: "clEnqueueUnmapMemObject", .. }), "{refused}");
    assert_eq!((arena.map_state(block.block()), block.seen().unwrap()[0]), (Some(MAPPED), 7));
    assert_eq!(block.unmap(MapState::Unmapped), Ok(MapState::Unmapped));
    assert_eq!(take(&block, Span::new(0, 1)), [7]);
    // What was enqueued is under way, though it could not be handed over.
    block.map(CPU, MAPPED).unwrap();
    driver.fail("clFlush", 0, code::INVALID_VALUE);
    let refused = block.unmap(MapState::Unmapped).unwrap_err();
    assert!(matches!(refused, TransferError::Framework { call: "clFlush", .. }), "{refused}");
    assert_eq!(arena.map_state(block.block()), Some(MapState::Unmapped));
}

#[test]
fn an_unmap_that_nobody_waits_for_is_handed_to_the_device() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let block = alloc(&arena(&platform, "opencl:0"), 100);
    block.map(CPU, MAPPED).unwrap();
    block.unmap(MapState::Unmapped).unwrap();
    driver.until("queued", 0);
    assert_eq!(driver.count("mapped"), 0);
}

#[test]
fn an_address_that_the_driver_does_not_tell_is_an_error() {
    if !is_child() {
        return again("blocks::an_address_that_the_driver_does_not_tell_is_an_error", &[]);
    }
    let driver = stand_in();
    let platform = platform(&["opencl:1"]);
    let arena = arena(&platform, "opencl:1");
    let block = alloc(&arena, 100);
    driver.fail("address of clEnqueueMapBuffer", 0, 1);
    let refused = block.map(CPU, MAPPED).unwrap_err();
    let expected =
        TransferError::Framework { call: "clEnqueueMapBuffer", code: -12, message: "CL_MAP_FAILURE".into() };
    assert_eq!(refused, expected);
    // It is mapped still, as far as the driver knows.
    std::mem::forget((block, arena, platform));
}

/// Adds one to all words, on the device.
fn add(platform: &Platform, device: &str, data: &dml_core::Buffer<u32>) {
    use dml_arenas::launch::{Grid, KernelArg};
    let arena = arena(platform, device);
    let source = "kernel void add(__global uint *data, uint what, ulong end)";
    let kernel = opencl(&arena).kernel(source, "add", "").unwrap();
    let grants = platform.acquire(platform.device(device).unwrap()).read_write(data).wait().unwrap();
    let block = grants.block(data).unwrap().unwrap();
    let args = [
        KernelArg::Block(block),
        KernelArg::Scalar(Scalar::U32(1)),
        KernelArg::Scalar(Scalar::U64(data.len())),
    ];
    // SAFETY: it changes the words that were granted.
    let fence = unsafe { kernel.launch(&args, Grid::line(0, data.len(), 0)) }.unwrap();
    grants.in_flight(fence).wait().unwrap().release().unwrap();
}

#[test]
fn a_bound_device_uses_the_hosts_memory_in_place_or_mirrors_it() {
    let driver = stand_in();
    for device in ["opencl:0", "opencl:1", "opencl:2"] {
        let platform = platform_with(DiscoverOptions::default().sharing(Sharing::bound(device)), &[device]);
        let data = platform.buffer_from((0..10_000_u32).collect::<Vec<_>>()).unwrap();
        let (copies, ()) = driver.made_by("clEnqueueWriteBuffer", || {
            for round in 1..4 {
                add(&platform, device, &data);
                assert!(data.read().unwrap().iter().copied().eq(round..10_000 + round), "{device}");
            }
        });
        assert_eq!(copies, 0);
        drop((data, platform));
        nothing_is_left(driver);
    }
}

#[test]
fn only_a_mirror_takes_memory_of_the_device() {
    let driver = stand_in();
    for (device, is_mirrored) in [("opencl:1", false), ("opencl:0", true)] {
        let platform = platform_with(DiscoverOptions::default().sharing(Sharing::bound(device)), &[device]);
        let device_id = platform.device(device).unwrap();
        let bound = |_| {
            let data = platform.raw_buffer(LARGEST_BYTES).build().unwrap();
            platform.acquire(device_id).write(&data).wait().unwrap().release().unwrap();
            data
        };
        let data: Vec<_> = (0..3).map(bound).collect();
        let arena = arena(&platform, device);
        let left: Vec<_> = (0..4).map_while(|_| OwnBlock::alloc(&arena, LARGEST_BYTES).ok()).collect();
        assert_eq!(left.len(), if is_mirrored { 1 } else { 4 }, "{device}");
        drop((left, arena, data, platform));
        nothing_is_left(driver);
    }
}

#[test]
fn a_binding_that_is_mapped_elsewhere_is_refused() {
    let test = "blocks::a_binding_that_is_mapped_elsewhere_is_refused";
    if !is_child() {
        return again(test, &[("STAND_IN_MAPS_ELSEWHERE", "1")]);
    }
    let driver = stand_in();
    let platform =
        platform_with(DiscoverOptions::default().sharing(Sharing::bound("opencl:0")), &["opencl:0"]);
    let data = platform.buffer_from(vec![1_u32; 100]).unwrap();
    add(&platform, "opencl:0", &data);
    let refused = data.read().map(drop).unwrap_err().to_string();
    assert!(refused.contains("clEnqueueMapBuffer failed: CL_MAP_FAILURE"), "{refused}");
    driver.until("mapped", 0);
    driver.until("queued", 0);
}

#[test]
fn a_binding_without_bytes_is_as_good_as_another() {
    let driver = stand_in();
    let platform =
        platform_with(DiscoverOptions::default().sharing(Sharing::bound("opencl:0")), &["opencl:0"]);
    let data = platform.buffer_from(Vec::<u32>::new()).unwrap();
    let device = platform.device("opencl:0").unwrap();
    for _ in 0..2 {
        platform.acquire(device).read_write(&data).wait().unwrap().release().unwrap();
        assert!(data.read().unwrap().is_empty());
    }
    drop((data, platform));
    nothing_is_left(driver);
}

#[test]
fn the_hosts_memory_stays_until_the_device_is_done_with_it() {
    let driver = stand_in();
    let platform =
        platform_with(DiscoverOptions::default().sharing(Sharing::bound("opencl:0")), &["opencl:0"]);
    let data = platform.buffer_from(vec![1_u32; 100]).unwrap();
    add(&platform, "opencl:0", &data);
    drop(data.read().unwrap());
    let held = driver.hold();
    // The unmap is in flight, and no thread waits for it.
    let device = platform.device("opencl:0").unwrap();
    platform.acquire(device).read(&data).wait().unwrap().release().unwrap();
    assert_eq!(driver.count("queued"), 1);
    let freeing = std::thread::spawn(move || drop((data, platform)));
    driver.until("asleep", 1);
    assert!(!freeing.is_finished());
    drop(held);
    freeing.join().unwrap();
    nothing_is_left(driver);
}

#[test]
fn shared_virtual_memory_is_the_devices_and_the_hosts() {
    let driver = stand_in();
    let platform =
        platform_with(DiscoverOptions::default().sharing(Sharing::fine_grained("opencl:1")), &["opencl:1"]);
    let id = platform.arena_named("svm").unwrap();
    let svm = platform.arena(id).clone();
    let desc = svm.desc();
    assert_eq!((desc.kind.0, desc.concurrency, desc.alloc_align), ("svm", Concurrency::BimapFull, 128));
    assert!(desc.remotes.contains(CPU) && desc.alloc_cost > dml_core::Cost::ZERO);
    let own = arena(&platform, "opencl:1");
    assert_eq!((own.desc().remotes, own.desc().concurrency), (DeviceSet::EMPTY, Concurrency::BimapFull));
    // What is allocated there is zero, and counts as the device's memory.
    let block = alloc(&svm, 1000);
    assert_eq!(block.seen().unwrap(), [0; 1000]);
    assert_eq!(driver.count("shared"), 1);
    let empty = alloc(&svm, 0);
    assert_eq!((empty.seen().unwrap().len(), driver.count("shared")), (0, 2));
    let all: Vec<_> = (0..4).map_while(|_| OwnBlock::alloc(&own, LARGEST_BYTES).ok()).collect();
    assert_eq!(all.len(), 3);
    let name = desc.name.clone();
    let out_of = |bytes| AllocError::OutOfMemory { arena: name.clone(), bytes };
    assert_eq!(refused(&svm, LARGEST_BYTES), out_of(LARGEST_BYTES));
    drop((block, empty, all));
    assert_eq!(driver.count("shared"), 0);
    drop(alloc(&svm, LARGEST_BYTES));
    driver.fail("clSVMAlloc", 0, code::INVALID_VALUE);
    assert_eq!(refused(&svm, 7), out_of(7));
    // One storage serves both, at once, and no bytes are moved.
    let data = platform.buffer::<u32>(5000).build().unwrap();
    let mut view = data.write().unwrap();
    view.fill(1);
    view.release().unwrap();
    for call in ["clEnqueueMapBuffer", "clEnqueueReadBuffer", "clEnqueueWriteBuffer"] {
        let (made, ()) = driver.made_by(call, || {
            let before = data.read().unwrap()[0];
            add(&platform, "opencl:1", &data);
            assert!(data.read().unwrap().iter().all(|word| *word == before + 1));
        });
        assert_eq!(made, 0, "{call}");
    }
    drop((data, svm, own, platform));
    nothing_is_left(driver);
}

/// The driver limits what it allocates and what the device is given, not what the processor has.
#[test]
fn more_than_the_device_takes_is_the_hosts_alone() {
    let driver = stand_in();
    let platform =
        platform_with(DiscoverOptions::default().sharing(Sharing::fine_grained("opencl:1")), &["opencl:1"]);
    let svm = platform.arena(platform.arena_named("svm").unwrap()).clone();
    let (bytes, limit_bytes) = (LARGEST_BYTES + 1, LARGEST_BYTES);
    let block = alloc(&svm, bytes);
    assert!(block.seen().unwrap().iter().all(|byte| *byte == 0));
    assert_eq!(driver.count("shared"), 0);
    let largest = u64::MAX;
    assert!(matches!(refused(&svm, largest), AllocError::TooLarge { bytes, .. } if bytes == largest));
    let data = platform.buffer::<u8>(bytes).build().unwrap();
    let mut view = data.write().unwrap();
    view.iter_mut().zip(0_u32..).for_each(|(byte, at)| *byte = (at * 31) as u8);
    view.release().unwrap();
    let device = platform.device("opencl:1").unwrap();
    let refused = platform.acquire(device).read(&data).wait().map(drop).unwrap_err();
    let AcquireError::Alloc { cause, .. } = refused else { panic!("{refused}") };
    assert_eq!(cause, AllocError::TooLarge { arena: "opencl:1".into(), bytes, limit_bytes });
    assert!(data.read().unwrap().iter().zip(0_u32..).all(|(byte, at)| *byte == (at * 31) as u8));
    drop((block, data, svm, platform));
    nothing_is_left(driver);
}

#[test]
fn a_fork_has_lost_the_devices_memory_and_says_why() {
    stand_in();
    let platform = platform_with(
        DiscoverOptions::default().sharing(Sharing::fine_grained("opencl:1")),
        &["opencl:1", "opencl:0"],
    );
    for name in ["svm", "opencl:0"] {
        let arena = platform.arena(platform.arena_named(name).unwrap()).clone();
        let block = alloc(&arena, 100);
        assert!(!arena.is_lost() && arena.loss().is_none());
        let child = crate::forks::child(|| {
            assert!(arena.is_lost());
            let loss = arena.loss().expect("it is known why");
            assert_eq!(
                &*loss,
                "this process is a fork of one that uses OpenCL, which drivers do not survive"
            );
            assert_eq!(
                block.fill(Span::new(0, 100), 1).map(drop),
                Err(TransferError::DeviceLost { loss: None })
            );
            assert!(refused(&arena, 5).is_device_lost());
            drop(block);
        });
        child.ends_well();
    }
}
