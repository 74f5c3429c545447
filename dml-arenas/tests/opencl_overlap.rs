//! Kernels and transfers of one OpenCL device overlap, also on one buffer, and keep the order that core
//! relies on.
//!
//! A gate holds one queue back while the others must go on. Without a device the tests say so and pass,
//! unless `DML_EXPECT=opencl`.

#![cfg(all(feature = "opencl", not(dml_loom)))]

mod common;

use common::gate::Gate;
use common::{copy_in, copy_out, pattern, put, take, with_opencl};
use dml_arenas::OpenClArena;
use dml_arenas::launch::{Grid, KernelArg};
use dml_arenas::opencl::OpenClKernel;
use dml_core::MapState;
use dml_core::internal::sync::Arc;
use dml_core::{Arena, DeviceId, DeviceSet, Fence, HostMemory, OwnBlock, Platform, RangeOf, Scalar, Span};
use std::task::Waker;
use std::time::{Duration, Instant};

const CPU: DeviceId = DeviceId(0);

fn opencl(test: &str) -> Option<(Platform, DeviceId, Arc<dyn Arena>)> {
    let (platform, device) = with_opencl(test)?;
    let arena = platform.home(device).map(|arena| platform.arena(arena).clone())?;
    let own = (*arena).downcast_ref::<OpenClArena>().expect("an OpenCL device has an OpenCL arena");
    let [inward, outward] = own.transfer_queues();
    if inward == outward {
        eprintln!("SKIPPED {test}: the device has one queue for all commands");
        return None;
    }
    Some((platform, device, arena))
}

/// Returns whether a fence ends within a time that is ample for a device that is not held back.
fn ends(fence: &mut Fence) -> bool {
    let begun = Instant::now();
    loop {
        if fence.poll(Waker::noop()).map(|ended| ended.expect("the command succeeds")).is_ready() {
            return true;
        }
        if begun.elapsed() > Duration::from_secs(5) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns whether a fence is still running after a while.
fn is_held(fence: &mut Fence) -> bool {
    std::thread::sleep(Duration::from_millis(50));
    fence.poll(Waker::noop()).is_pending()
}

#[test]
fn transfers_and_maps_wait_for_no_kernel() {
    let Some((_platform, _, arena)) = opencl("transfers_and_maps_wait_for_no_kernel") else { return };
    let block = OwnBlock::alloc(&arena, 10_000).unwrap();
    let bytes = pattern(10_000, 5);
    let gate = Gate::kernels(&arena);
    assert!(ends(&mut copy_in(&block, 0, &bytes).unwrap()), "a transfer to the device waits for kernels");
    let mut back = HostMemory::zeroed(10_000).unwrap();
    assert!(
        ends(&mut copy_out(&block, 0, &mut back).unwrap()),
        "a transfer from the device waits for kernels"
    );
    assert_eq!(back.bytes(), bytes);
    assert!(ends(&mut block.fill(Span::new(100, 200), 9).unwrap()), "a fill waits for kernels");
    // A map that waits hangs until the gate opens by itself, and this assertion comes too late.
    let begun = Instant::now();
    block.map(CPU, MapState::Mapped(DeviceSet::of(CPU))).unwrap();
    assert!(begun.elapsed() < common::gate::LONG, "a map waits for kernels");
    assert_eq!(block.seen().unwrap()[..300], [&bytes[..100], &[9; 100], &bytes[200..300]].concat());
    gate.open();
    block.free();
}

#[test]
fn transfers_of_one_buffer_go_both_ways_at_once() {
    let Some((_platform, _, arena)) = opencl("transfers_of_one_buffer_go_both_ways_at_once") else { return };
    let block = OwnBlock::alloc(&arena, 10_000).unwrap();
    let bytes = pattern(10_000, 8);
    put(&block, 0, &bytes);
    let mut back = HostMemory::zeroed(4_000).unwrap();

    let gate = Gate::inward(&arena);
    let mut held = copy_in(&block, 5_000, &pattern(5_000, 1)).unwrap();
    assert!(ends(&mut copy_out(&block, 1_000, &mut back).unwrap()), "outward waits for inward");
    assert_eq!(back.bytes(), &bytes[1_000..5_000]);
    assert!(is_held(&mut held));
    gate.open();
    assert_eq!(held.wait(), Ok(5_000));

    let gate = Gate::outward(&arena);
    let mut held = copy_out(&block, 5_000, &mut back).unwrap();
    assert!(ends(&mut copy_in(&block, 0, &pattern(5_000, 2)).unwrap()), "inward waits for outward");
    assert!(is_held(&mut held));
    gate.open();
    assert_eq!(held.wait(), Ok(4_000));
    assert_eq!(back.bytes(), &pattern(5_000, 1)[..4_000]);
    assert_eq!(take(&block, Span::new(0, 10_000)), [pattern(5_000, 2), pattern(5_000, 1)].concat());
}

/// Bytes that the host wrote through a mapping arrive only with the unmap, and no thread waits for that.
#[test]
fn commands_in_other_queues_wait_for_the_unmap() {
    let Some((_platform, _, arena)) = opencl("commands_in_other_queues_wait_for_the_unmap") else { return };
    let mapped = MapState::Mapped(DeviceSet::of(CPU));
    let blocks: Vec<OwnBlock> = (0..3).map(|_| OwnBlock::alloc(&arena, 1_000).unwrap()).collect();
    for block in &blocks {
        block.map(CPU, mapped).unwrap();
        block.overwrite(0, &pattern(1_000, 6));
    }
    let gate = Gate::kernels(&arena);
    for block in &blocks {
        block.unmap(MapState::Unmapped).unwrap();
    }
    let mut back = HostMemory::zeroed(1_000).unwrap();
    let mut out = copy_out(&blocks[0], 0, &mut back).unwrap();
    let mut into = copy_in(&blocks[1], 0, &pattern(500, 7)).unwrap();
    let mut fill = blocks[2].fill(Span::new(0, 10), 3).unwrap();
    assert!(is_held(&mut out), "a copy from the device does not wait for the unmap");
    assert!(is_held(&mut into), "a copy to the device does not wait for the unmap");
    assert!(is_held(&mut fill), "a fill does not wait for the unmap");
    gate.open();
    for fence in [out, into, fill] {
        fence.wait().unwrap();
    }
    assert_eq!(back.bytes(), pattern(1_000, 6));
    let second = take(&blocks[1], Span::new(0, 1_000));
    assert_eq!(second, [&pattern(500, 7), &pattern(1_000, 6)[500..]].concat());
}

/// It touches the words of its items alone.
const ADD: &str = "
    __kernel void add(__global uint* words, uint more) { words[get_global_id(0)] += more; }";

fn add(kernel: &OpenClKernel, block: &dml_core::BlockRef, words: std::ops::Range<u64>) -> Fence {
    let launch = Grid::line(words.start, words.end - words.start, 0);
    // SAFETY: the items are words of the block, which the caller has on grant until the fence has ended.
    unsafe { kernel.launch(&[KernelArg::Block(block), KernelArg::Scalar(Scalar::U32(1_000_000))], launch) }
        .unwrap()
}

fn seen(platform: &Platform, range: &RangeOf<u32>) -> Vec<u32> {
    let grants = platform.acquire(CPU).read(range).wait().unwrap();
    let words = grants.slice::<u32>(range).unwrap().to_vec();
    grants.release().unwrap();
    words
}

/// Through core: while a kernel runs on one half of a buffer, the host reads and replaces the other half.
#[test]
fn a_range_moves_while_a_kernel_runs_on_another() {
    const ITEMS: u64 = 200_000;
    let Some((platform, device, arena)) = opencl("a_range_moves_while_a_kernel_runs_on_another") else {
        return;
    };
    let kernel = (*arena).downcast_ref::<OpenClArena>().unwrap().kernel(ADD, "add", "").unwrap();
    let data = platform.buffer_from((0..ITEMS as u32).collect::<Vec<_>>()).unwrap();
    let (low, high) = (data.range(0..ITEMS / 2), data.range(ITEMS / 2..ITEMS));
    // Both halves are valid on the device alone.
    let grants = platform.acquire(device).read_write(&data).wait().unwrap();
    let block = grants.block(&data).unwrap().unwrap().clone();
    let flight = grants.in_flight(add(&kernel, &block, 0..ITEMS));
    flight.wait().unwrap().release().unwrap();

    let grants = platform.acquire(device).read_write(&low).wait().unwrap();
    let gate = Gate::kernels(&arena);
    let flight = grants.in_flight(add(&kernel, &block, 0..ITEMS / 2));
    drop(block);
    // The host gets the other half from the device, writes it, and the device gets it back.
    assert_eq!(seen(&platform, &high)[..3], [1_100_000, 1_100_001, 1_100_002]);
    let mut view = platform.acquire(CPU).write(&high).wait().unwrap();
    view.slice_mut::<u32>(&high).unwrap().iter_mut().zip(7..).for_each(|(word, index)| *word = index);
    view.release().unwrap();
    platform.acquire(device).read(&high).wait().unwrap().release().unwrap();
    gate.open();
    flight.wait().unwrap().release().unwrap();
    let (low, high) = (seen(&platform, &low), seen(&platform, &high));
    assert!(low.iter().zip(2_000_000..).all(|(word, index)| *word == index));
    assert!(high.iter().zip(7..).all(|(word, index)| *word == index));
}
