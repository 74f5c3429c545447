//! Kernels that run beside each other, and those in order after them.

use super::{Arc, Arena, alloc, arena, nothing_is_left, opencl, platform};
use crate::common::take;
use crate::driver::{StandIn, code, stand_in};
use dml_arenas::launch::{CompiledKernel, CompiledLauncher, Grid, KernelArg};
use dml_arenas::opencl::OpenClKernel;
use dml_core::MapState;
use dml_core::{
    Access, DeviceId, DeviceSet, Fence, ItemShape, LaunchArg, Launcher, OwnBlock, Platform, RawBuffer,
    Scalar, Span, TransferError,
};
use std::task::{Poll, Waker};

const PROGRAM: &str = "kernel void late(__global uint *to, uint value, ulong microseconds)
    kernel void add(__global uint *data, uint what, ulong end)";
const ONE: Grid = Grid::line(0, 1, 1);
const HOST: DeviceId = DeviceId(0);
const MARKER: &str = "clEnqueueMarkerWithWaitList";
const BARRIER: &str = "clEnqueueBarrierWithWaitList";

/// A device, with a kernel that writes a word after a while, and one that adds to it.
struct Setup {
    driver: StandIn,
    platform: Platform,
    arena: Arc<dyn Arena>,
    slow: OpenClKernel,
    add: OpenClKernel,
}

impl Setup {
    fn new(device: &str) -> Self {
        let driver = stand_in();
        let platform = platform(&[device]);
        let arena = arena(&platform, device);
        let kernel = |name| opencl(&arena).kernel(PROGRAM, name, "").unwrap();
        let [slow, add] = ["late", "add"].map(kernel);
        Self { driver, platform, arena, slow, add }
    }

    fn late(&self, to: &OwnBlock, word: u32, millis: u64) -> Fence {
        let args = [
            KernelArg::Block(to.block()),
            KernelArg::Scalar(Scalar::U32(word)),
            KernelArg::Scalar(Scalar::U64(millis * 1000)),
        ];
        // SAFETY: it writes the first word of the block.
        unsafe {
            self.slow
                .launch_part(&args, &dml_core::Launch::new(&(0..1), &ItemShape::line(1), &[]).independent())
        }
        .unwrap()
    }

    /// Adds one, in order.
    fn add(&self, to: &OwnBlock) -> Result<Fence, TransferError> {
        let args = [
            KernelArg::Block(to.block()),
            KernelArg::Scalar(Scalar::U32(1)),
            KernelArg::Scalar(Scalar::U64(1)),
        ];
        // SAFETY: it changes the first word of the block.
        unsafe { self.add.launch(&args, ONE) }
    }

    fn launcher(&self, name: &str) -> CompiledLauncher<OpenClKernel> {
        // SAFETY: it uses the word that its buffer has.
        unsafe { CompiledLauncher::new(opencl(&self.arena).kernel(PROGRAM, name, "").unwrap()) }
    }

    fn device(&self) -> DeviceId {
        self.platform.device("opencl:0").unwrap()
    }

    /// The word of a buffer.
    fn read(&self, buffer: &RawBuffer) -> u32 {
        let grants = self.platform.acquire(HOST).read(buffer).wait().unwrap();
        u32::from_ne_bytes(grants.read_bytes(buffer).unwrap().try_into().unwrap())
    }

    /// Does something. Returns how many markers and barriers that took, and what it returns.
    fn counted<T>(&self, does: impl FnOnce() -> T) -> ([i64; 2], T) {
        let made = || [MARKER, BARRIER].map(|call| self.driver.made(call));
        let (before, done) = (made(), does());
        let after = made();
        ([0, 1].map(|call| after[call] - before[call]), done)
    }

    fn add_counted(&self, to: &OwnBlock) -> ([i64; 2], Fence) {
        self.counted(|| self.add(to).unwrap())
    }

    fn end<B>(self, blocks: B) {
        let Self { driver, platform, arena, slow, add } = self;
        drop((blocks, arena, slow, add, platform));
        nothing_is_left(driver);
    }
}

fn word(block: &OwnBlock) -> u32 {
    u32::from_ne_bytes(take(block, Span::new(0, 4)).try_into().unwrap())
}

#[test]
fn kernels_in_order_run_after_those_beside_others() {
    let setup = Setup::new("opencl:0");
    let blocks = [0; 3].map(|_| alloc(&setup.arena, 4));
    for round in 0..6 {
        let held = setup.driver.hold();
        let beside = [0, 1, 2].map(|index| setup.late(&blocks[index], 10 * round + index as u32, 3));
        let of = round as usize % 3;
        let (waits, next) = setup.add_counted(&blocks[of]);
        assert_eq!(waits, [2, 1], "a marker in each of the queues beside");
        // What was awaited is not awaited again.
        let (waits, further) = setup.add_counted(&blocks[of]);
        assert_eq!(waits, [0, 0]);
        drop(held);
        assert_eq!((further.wait(), next.wait()), (Ok(0), Ok(0)));
        assert_eq!(word(&blocks[of]), 10 * round + round % 3 + 2);
        assert!(beside.map(Fence::wait).iter().all(|ended| *ended == Ok(0)));
    }
    setup.end(blocks);
}

/// Of every four the first and the last have one queue.
#[test]
fn kernels_beside_others_wait_for_none_of_another_queue() {
    for (device, are_beside) in
        [("opencl:0", true), ("opencl:3", true), ("opencl:1", false), ("opencl:2", false)]
    {
        let setup = Setup::new(device);
        let blocks = [0; 4].map(|_| alloc(&setup.arena, 4));
        let mut slow = setup.late(&blocks[0], 1, 300);
        let rest: Vec<Fence> = blocks[1..].iter().map(|block| setup.late(block, 2, 0)).collect();
        let mut rest = rest.into_iter();
        for fence in rest.by_ref().take(2) {
            assert_eq!(fence.wait(), Ok(0));
        }
        assert_eq!(slow.poll(Waker::noop()).is_pending(), are_beside, "{device}");
        assert_eq!(rest.next().unwrap().wait(), Ok(0));
        assert_eq!(slow.poll(Waker::noop()), Poll::Ready(Ok(0)));
        let (waits, next) = setup.add_counted(&blocks[0]);
        assert_eq!((waits, next.wait()), (if are_beside { [2, 1] } else { [0, 0] }, Ok(0)), "{device}");
        drop((slow, rest));
        setup.end(blocks);
    }
}

#[test]
fn the_tail_is_the_end_of_kernels_beside_each_other_too() {
    let setup = Setup::new("opencl:0");
    let block = alloc(&setup.arena, 4);
    for count in 1..6 {
        let mut running: Vec<_> = (0..count).map(|_| setup.late(&block, 7, 20)).collect();
        assert_eq!(setup.arena.tail().unwrap().wait(), Ok(0));
        assert!(running.iter_mut().all(|fence| fence.poll(Waker::noop()) == Poll::Ready(Ok(0))), "{count}");
    }
    setup.end(block);
}

/// Its unmap is in the kernels' queue. The driver ends the process if a kernel uses memory that the host has.
#[test]
fn what_was_mapped_is_used_in_the_order_of_its_unmap() {
    let setup = Setup::new("opencl:0");
    let blocks = [0; 3].map(|_| alloc(&setup.arena, 4));
    for round in 1..4 {
        for block in &blocks {
            block.map(HOST, MapState::Mapped(DeviceSet::of(HOST))).unwrap();
        }
        let held = setup.driver.hold();
        let fences: Vec<_> = blocks
            .iter()
            .map(|block| {
                block.unmap(MapState::Unmapped).unwrap();
                setup.late(block, round, 0)
            })
            .collect();
        drop(held);
        assert!(fences.into_iter().map(Fence::wait).all(|ended| ended == Ok(0)));
        assert!(blocks.iter().all(|block| word(block) == round));
    }
    setup.end(blocks);
}

#[test]
fn a_refused_wait_for_kernels_beside_is_told_and_nothing_begins() {
    let setup = Setup::new("opencl:0");
    let block = alloc(&setup.arena, 4);
    for (call, told, after) in [
        (MARKER, MARKER, 0),
        (MARKER, MARKER, 1),
        (BARRIER, BARRIER, 0),
        ("clFlush", "clFlush before a launch", 0),
        ("clFlush", "clFlush before a launch", 1),
    ] {
        assert_eq!(setup.late(&block, 5, 0).wait(), Ok(0));
        setup.driver.fail(call, after, code::OUT_OF_RESOURCES);
        let (launches, refused) = setup.driver.made_by("clEnqueueNDRangeKernel", || setup.add(&block));
        let error = refused.map(drop).unwrap_err();
        assert!(
            matches!(&error, TransferError::Framework { call, code: -5, .. } if *call == told),
            "{error}"
        );
        assert_eq!((launches, OpenClKernel::may_have_begun(&error)), (0, false));
        // It is awaited the next time.
        let (waits, next) = setup.add_counted(&block);
        assert_eq!((waits, next.wait(), word(&block)), ([2, 1], Ok(0), 6));
    }
    setup.end(block);
}

/// Those of the same grants run in their order, and others may run beside each other.
#[test]
fn a_launcher_runs_independent_launches_beside_others() {
    let setup = Setup::new("opencl:0");
    let [slow, add] = ["late", "add"].map(|name| setup.launcher(name));
    let (buffer, other) = (setup.platform.raw_buffer(4).build().unwrap(), alloc(&setup.arena, 4));
    let arguments = |value, last| {
        let (buffer, access) = (buffer.clone(), Access::ReadWrite);
        let ranges = (0..4).into();
        let numbers = [Scalar::U32(value), Scalar::U64(last)].map(LaunchArg::Scalar);
        [LaunchArg::Buffer { buffer, access, ranges }].into_iter().chain(numbers).collect::<Vec<_>>()
    };
    for shape in [ItemShape::line(1), ItemShape::rows(1, [1; 2]), ItemShape::planes([1; 2], [1; 3])] {
        for (independent, expected) in [(true, [0, 0]), (false, [2, 1])] {
            // Something is beside, which what is independent does not wait for.
            assert_eq!(setup.late(&other, 1, 0).wait(), Ok(0));
            let mut grants = setup.platform.acquire(setup.device()).write(&buffer).wait().unwrap();
            let mut launch = |launcher: &CompiledLauncher<OpenClKernel>, arguments: &[LaunchArg]| {
                let items = 0..1;
                let launch = dml_core::Launch::new(&items, &shape, arguments);
                let launch = if independent { launch.independent() } else { launch };
                launcher.launch(&launch, &mut grants).unwrap()
            };
            let (waits, first) = setup.counted(|| launch(&slow, &arguments(30, 20_000)));
            assert_eq!(waits, expected, "{shape:?}");
            let second = launch(&add, &arguments(4, 1));
            assert_eq!((second.wait(), first.wait()), (Ok(0), Ok(0)));
            grants.release().unwrap();
            assert_eq!(setup.read(&buffer), 34, "{shape:?}");
        }
    }
    setup.end((slow, add, buffer, other));
}
