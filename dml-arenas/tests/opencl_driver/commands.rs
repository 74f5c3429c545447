//! Commands: the order in which they run, what they hold meanwhile, and how they fail.

use super::{Arc, Arena, alloc, arena, fill, nothing_is_left, opencl, platform};
use crate::common::{pattern, put, take};
use crate::driver::{code, stand_in};
use dml_arenas::launch::{Grid, KernelArg};
use dml_arenas::opencl::OpenClKernel;
use dml_core::MapState;
use dml_core::{DeviceId, DeviceSet, Fence, HostMemory, OwnBlock, Scalar, Span, TransferError};
use std::task::{Poll, Waker};

const CPU: DeviceId = DeviceId(0);
const MAPPED: MapState = MapState::Mapped(DeviceSet::of(CPU));

fn kernel(arena: &Arc<dyn Arena>) -> OpenClKernel {
    let source = "kernel void late(__global uint *to, uint value, ulong microseconds)";
    opencl(arena).kernel(source, "late", "").unwrap()
}

/// Writes a word after so many milliseconds.
fn late(kernel: &OpenClKernel, to: &OwnBlock, word: u32, millis: u64) -> Fence {
    let args = [
        KernelArg::Block(to.block()),
        KernelArg::Scalar(Scalar::U32(word)),
        KernelArg::Scalar(Scalar::U64(millis * 1000)),
    ];
    // SAFETY: it writes the first word of the block.
    unsafe { kernel.launch(&args, Grid::line(0, 1, 1)) }.unwrap()
}

fn framework(call: &'static str, code: i64, message: &str) -> TransferError {
    TransferError::Framework { call, code, message: message.into() }
}

#[test]
fn transfers_each_way_and_kernels_have_queues_of_their_own_where_they_may() {
    stand_in();
    let platform = platform(&["opencl:0", "opencl:2", "opencl:1"]);
    for (device, are_apart) in [("opencl:0", true), ("opencl:1", true), ("opencl:2", false)] {
        let arena = arena(&platform, device);
        let own = opencl(&arena);
        let (kernels, [inward, outward], context) = (own.queue(), own.transfer_queues(), own.context());
        assert_eq!(
            (kernels != inward, kernels != outward, inward != outward),
            (are_apart, are_apart, are_apart)
        );
        assert!([kernels, inward, outward].iter().all(|queue| *queue != context && queue.0 != 0));
        let [busy, block] = [4, 100].map(|len| alloc(&arena, len));
        let kernel = kernel(&arena);
        let mut fence = late(&kernel, &busy, 7, 300);
        assert_eq!(fill(&block, 7).wait(), Ok(100));
        let mut to = HostMemory::zeroed(100).unwrap();
        let all = Span::new(0, 100);
        assert_eq!(block.copy_out(0, &mut to, all).unwrap().wait(), Ok(100));
        block.map(CPU, MAPPED).unwrap();
        assert_eq!(block.seen().unwrap(), [7; 100]);
        assert_eq!(fence.poll(Waker::noop()).is_pending(), are_apart, "{device}");
        assert_eq!(fence.wait(), Ok(0));
        block.unmap(MapState::Unmapped).unwrap();
    }
}

#[test]
fn new_memory_waits_for_no_other_command() {
    let driver = stand_in();
    let platform = platform(&["opencl:2"]);
    let arena = arena(&platform, "opencl:2");
    let busy = alloc(&arena, 4);
    let mut fence = late(&kernel(&arena), &busy, 7, 300);
    drop(alloc(&arena, 100));
    assert!(fence.poll(Waker::noop()).is_pending());
    assert_eq!(fence.wait(), Ok(0));
    drop((busy, arena, platform));
    nothing_is_left(driver);
}

#[test]
fn whoever_comes_after_an_unmap_waits_for_it() {
    stand_in();
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    let [busy, block] = [4, 100].map(|len| alloc(&arena, len));
    let kernel = kernel(&arena);
    let all = Span::new(0, 100);
    let source = HostMemory::holding(pattern(100, 5));
    for command in 0..4 {
        block.map(CPU, MAPPED).unwrap();
        block.overwrite(0, &[command; 100]);
        // The unmap comes behind this, and no one waits. A command on the block beforehand would end the
        // process.
        let fence = late(&kernel, &busy, 7, 50);
        block.unmap(MapState::Unmapped).unwrap();
        match command {
            0 => assert_eq!(take(&block, all), [0; 100]),
            1 => {
                assert_eq!(block.copy_in(0, &source, all).unwrap().wait(), Ok(100));
                assert_eq!(take(&block, all), pattern(100, 5));
            }
            2 => {
                assert_eq!(fill(&block, 9).wait(), Ok(100));
                assert_eq!(take(&block, all), [9; 100]);
            }
            _ => {
                block.map(CPU, MAPPED).unwrap();
                assert_eq!(block.seen().unwrap(), [3; 100]);
                block.unmap(MapState::Unmapped).unwrap();
            }
        }
        assert_eq!(fence.wait(), Ok(0));
    }
}

#[test]
fn what_a_command_uses_is_held_until_it_has_ended() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    let block = alloc(&arena, 1000);
    let source = HostMemory::holding(pattern(1000, 5));
    let held = driver.hold();
    let fence = block.copy_in(0, &source, Span::new(0, 1000)).unwrap();
    assert!(source.is_lent());
    // The block goes, the memory stays.
    drop((block, arena, platform));
    assert_eq!((driver.count("blocks"), driver.count("contexts")), (1, 1));
    drop(held);
    assert_eq!(fence.wait(), Ok(1000));
    assert!(!source.is_lent());
    nothing_is_left(driver);
}

#[test]
fn commands_without_bytes_ask_nothing_of_the_driver() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let block = alloc(&arena(&platform, "opencl:0"), 10);
    let none = Span::new(5, 5);
    let mut memory = HostMemory::zeroed(10).unwrap();
    for call in ["clEnqueueWriteBuffer", "clEnqueueReadBuffer", "clEnqueueFillBuffer", "clFlush"] {
        let (made, moved) = driver.made_by(call, || {
            [
                block.copy_in(5, &memory, none).unwrap().wait(),
                block.copy_out(5, &mut memory, none).unwrap().wait(),
                block.fill(none, 1).unwrap().wait(),
            ]
        });
        assert_eq!((made, moved), (0, [Ok(0), Ok(0), Ok(0)]));
    }
}

/// The call of each command, with the command.
type Commands = [(&'static str, fn(&OwnBlock, &mut HostMemory) -> Result<Fence, TransferError>); 3];
const COMMANDS: Commands = [
    ("clEnqueueWriteBuffer", |block, memory| block.copy_in(3, memory, Span::new(0, 7))),
    ("clEnqueueReadBuffer", |block, memory| block.copy_out(3, memory, Span::new(0, 7))),
    ("clEnqueueFillBuffer", |block, _| block.fill(Span::new(3, 10), 1)),
];

#[test]
fn a_command_that_is_refused_says_which_call_it_was_and_the_next_one_works() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let block = alloc(&arena(&platform, "opencl:0"), 1000);
    let mut memory = HostMemory::zeroed(10).unwrap();
    for (call, command) in COMMANDS {
        driver.fail(call, 0, code::INVALID_VALUE);
        let refused = command(&block, &mut memory).map(drop).unwrap_err();
        assert_eq!(refused, framework(call, -30, "CL_INVALID_VALUE"));
        assert!(!memory.is_lent());
        // It was enqueued, so the error comes when it has ended.
        driver.fail("clFlush", 0, code::INVALID_OPERATION);
        let refused = command(&block, &mut memory).map(drop).unwrap_err();
        assert_eq!(refused, framework("clFlush", -59, "CL_INVALID_OPERATION"));
        assert!(!memory.is_lent());
        driver.until("queued", 0);
        assert_eq!(command(&block, &mut memory).unwrap().wait(), Ok(7));
    }
    assert!(!arena(&platform, "opencl:0").is_lost());
}

#[test]
fn the_end_of_a_command_is_told_as_it_was() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    let block = alloc(&arena, 1000);
    let mut memory = HostMemory::zeroed(10).unwrap();
    for (call, command) in COMMANDS {
        driver.fail(&format!("end of {call}"), 0, code::OUT_OF_RESOURCES);
        let end = command(&block, &mut memory).unwrap().wait();
        assert_eq!(end, Err(framework(call, -5, "CL_OUT_OF_RESOURCES")));
        // The wait fails, and then the question how it ended. The driver says of the wait that the command
        // failed, or something else.
        for (code, said) in [(-14, call), (-5, "clWaitForEvents")] {
            let fence = command(&block, &mut memory).unwrap();
            driver.fail("clWaitForEvents", 0, code);
            let Err(TransferError::Framework { call: told, code: got, .. }) = fence.wait() else { panic!() };
            assert_eq!((told, got), (said, i64::from(code)));
        }
        let fence = command(&block, &mut memory).unwrap();
        driver.fail("clGetEventInfo", 0, code::OUT_OF_RESOURCES);
        assert_eq!(fence.wait(), Err(framework("clGetEventInfo", -5, "CL_OUT_OF_RESOURCES")));
        assert_eq!(command(&block, &mut memory).unwrap().wait(), Ok(7));
    }
    assert!(!arena.is_lost());
}

#[test]
fn a_device_that_is_gone_is_lost_for_good() {
    for (call, code) in [("end of clEnqueueFillBuffer", -2), ("clEnqueueFillBuffer", -36), ("clFlush", -33)] {
        let driver = stand_in();
        let platform = platform(&["opencl:0"]);
        let arena = arena(&platform, "opencl:0");
        let block = alloc(&arena, 100);
        assert!(!arena.is_lost() && arena.loss().is_none());
        driver.fail(call, 0, code);
        let end = block.fill(Span::new(0, 100), 1).and_then(Fence::wait);
        assert_eq!((end, arena.is_lost()), (Err(TransferError::DeviceLost { loss: None }), true), "{call}");
        driver.lose(0, code::DEVICE_NOT_AVAILABLE);
        assert!(OwnBlock::alloc(&arena, 5).map(drop).unwrap_err().is_device_lost());
        assert_eq!(block.map(CPU, MAPPED), Err(TransferError::DeviceLost { loss: None }));
        driver.lose(0, 0);
        drop((block, arena, platform));
        nothing_is_left(driver);
    }
}

#[test]
fn the_tail_of_a_device_is_the_end_of_its_kernels() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    let busy = alloc(&arena, 4);
    let mut fence = late(&kernel(&arena), &busy, 0x0707_0707, 50);
    assert_eq!(arena.tail().unwrap().wait(), Ok(0));
    assert!(matches!(fence.poll(Waker::noop()), Poll::Ready(Ok(0))));
    driver.fail("clFinish", 0, code::INVALID_OPERATION);
    let refused = arena.tail().unwrap().wait();
    assert_eq!(refused, Err(framework("clFinish", -59, "CL_INVALID_OPERATION")));
    assert_eq!(take(&busy, Span::new(0, 4)), [7; 4]);
}

#[test]
fn bytes_arrive_where_they_belong_and_nowhere_else() {
    stand_in();
    for device in super::DEVICES {
        let platform = platform(&[device]);
        let block = alloc(&arena(&platform, device), 100);
        put(&block, 0, &[1; 100]);
        put(&block, 3, &pattern(7, 9));
        assert_eq!(block.fill(Span::new(20, 23), 2).unwrap().wait(), Ok(3));
        let mut expected = vec![1; 100];
        expected[3..10].copy_from_slice(&pattern(7, 9));
        expected[20..23].fill(2);
        assert_eq!(take(&block, Span::new(0, 100)), expected);
        assert_eq!(take(&block, Span::new(4, 22)), expected[4..22]);
    }
}
