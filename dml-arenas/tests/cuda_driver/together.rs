//! Submitted kernels that follow each other at once, which the driver gets together.

use super::{alloc, arena, cuda, nothing_is_left, platform};
use crate::common::take;
use crate::driver::{StandIn, code, stand_in};
use dml_arenas::cuda::CudaKernel;
use dml_arenas::launch::{self, CompiledKernel, KernelArg};
use dml_core::{AcquireError, Fence, ItemShape, Launch, Launcher, OwnBlock, Scalar, Span, SubmitError};
use dml_core::{Buffer, Platform};
use std::sync::Arc;

const PROGRAM: &str = "// made by hand\n.version 8.0\n.entry late .entry follow .entry nothing\n";
/// Number of kernels that are launched together.
const TOGETHER: usize = 8;
/// Number of programs that an arena remembers.
const PROGRAMS: i64 = 128;

fn word(block: &OwnBlock) -> u32 {
    u32::from_ne_bytes(take(block, Span::new(0, 4)).try_into().unwrap())
}

/// Submits a kernel that writes a word.
fn late(kernel: &CudaKernel, to: &OwnBlock, word: usize, is_followed: bool) -> Fence {
    let scalars = [Scalar::U32(word as u32), Scalar::U64(0)].map(KernelArg::Scalar);
    let args = [KernelArg::Block(to.block()), scalars[0], scalars[1]];
    let (items, shape) = (0..1, ItemShape::line(1));
    let mut launch = Launch::new(&items, &shape, &[]);
    (launch.is_submission, launch.is_followed) = (true, is_followed);
    // SAFETY: it writes the first word of the block.
    unsafe { kernel.launch_part(&args, &launch) }.unwrap()
}

/// Submits kernels, of which the last one may be followed. Returns their fences, and how often the driver
/// launched a kernel and a graph.
fn several(
    (driver, kernel, to): (StandIn, &CudaKernel, &OwnBlock),
    count: usize,
    is_followed: bool,
) -> (Vec<Fence>, [i64; 2]) {
    let submit = |at| late(kernel, to, at, is_followed || at < count);
    let (graphs, (kernels, fences)) = driver
        .made_by("cuGraphLaunch", || driver.made_by("cuLaunchKernel", || (1..=count).map(submit).collect()));
    (fences, [kernels, graphs])
}

fn wait(fences: Vec<Fence>) {
    fences.into_iter().for_each(|fence| assert_eq!(fence.wait(), Ok(0)));
}

#[test]
fn eight_kernels_that_follow_each_other_are_one_graph() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let (kernel, to) = (cuda(&gpu).kernel(PROGRAM, "late", "").unwrap(), alloc(&gpu, 4));
    let scene = (driver, &kernel, &to);
    // Fewer, and one alone, are launched one by one. The graph is made once.
    for (count, launches) in [(1, [1, 0]), (7, [7, 0]), (8, [0, 1]), (16, [0, 2]), (19, [3, 2]), (2, [2, 0])]
    {
        let (fences, made) = several(scene, count, false);
        assert_eq!(made, launches, "{count}");
        wait(fences);
        assert_eq!(word(&to), count as u32);
    }
    assert_eq!((driver.count("graphs"), driver.count("pushed")), (2, 0));
    // The graph keeps a program that the arena forgets for others.
    drop(kernel);
    for other in 0..PROGRAMS {
        cuda(&gpu).kernel(&format!("{PROGRAM}// {other}"), "nothing", "").unwrap();
    }
    assert_eq!((driver.count("modules"), driver.count("graphs")), (PROGRAMS, 0));
    let kernel = cuda(&gpu).kernel(PROGRAM, "late", "").unwrap();
    let (fences, made) = several((driver, &kernel, &to), 8, false);
    assert_eq!(made, [0, 1]);
    wait(fences);
    drop((kernel, to, gpu, platform));
    nothing_is_left(driver);
}

/// The next one never comes, and all else that is asked of the device comes behind.
#[test]
fn a_kernel_that_waits_for_the_next_one_runs_before_all_else() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let (kernel, to) = (cuda(&gpu).kernel(PROGRAM, "late", "").unwrap(), alloc(&gpu, 4));
    let scene = (driver, &kernel, &to);
    let waiting = |count| {
        let (fences, made) = several(scene, count, true);
        assert_eq!(made, [0, 0], "the next ones are waited for");
        fences
    };
    wait(waiting(1));
    assert_eq!(word(&to), 1);
    let fences = waiting(3);
    assert!(!fences[1].has_ended() || driver.count("queued") == 0, "the end is not known before the launch");
    wait(fences);
    assert_eq!(word(&to), 3);
    // The last one is dropped first.
    waiting(5).into_iter().rev().for_each(drop);
    assert_eq!(word(&to), 5);
    let fences = waiting(2);
    let plain = {
        let scalars = [Scalar::U32(9), Scalar::U64(0)].map(KernelArg::Scalar);
        let args = [KernelArg::Block(to.block()), scalars[0], scalars[1]];
        // SAFETY: it writes the first word of the block.
        unsafe { kernel.launch(&args, launch::Grid::line(0, 1, 1)) }.unwrap()
    };
    assert_eq!(plain.wait(), Ok(0));
    assert_eq!(word(&to), 9);
    wait(fences);
    assert_eq!(word(&to), 9);
    let fences = waiting(6);
    drop((kernel, to, gpu, platform));
    wait(fences);
    nothing_is_left(driver);
}

#[test]
fn what_the_driver_refuses_of_a_graph_is_launched_one_by_one() {
    for (call, at) in [
        ("cuGraphCreate", 0),
        ("cuGraphAddKernelNode_v2", 0),
        ("cuGraphAddKernelNode_v2", 7),
        ("cuGraphInstantiateWithFlags", 0),
        ("cuGraphExecKernelNodeSetParams_v2", 0),
        ("cuGraphExecKernelNodeSetParams_v2", 5),
    ] {
        let driver = stand_in();
        let platform = platform(&["cuda:0"]);
        let gpu = arena(&platform, "cuda:0");
        let (kernel, to) = (cuda(&gpu).kernel(PROGRAM, "late", "").unwrap(), alloc(&gpu, 4));
        driver.fail(call, at, code::OUT_OF_MEMORY);
        let scene = (driver, &kernel, &to);
        let first = several(scene, TOGETHER, false);
        let expected = if call.contains("Exec") { [0, 1] } else { [8, 0] };
        assert_eq!(first.1, expected, "{call}");
        wait(first.0);
        // It is not tried again.
        for _ in 0..2 {
            let (fences, made) = several(scene, TOGETHER, false);
            assert_eq!(made, [8, 0], "{call}");
            wait(fences);
            assert_eq!((word(&to), driver.count("graphs")), (8, 0));
        }
        drop((kernel, to, gpu, platform));
        nothing_is_left(driver);
    }
}

#[test]
fn kernels_that_could_not_be_launched_fail_and_those_before_them_do_not() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let (kernel, to) = (cuda(&gpu).kernel(PROGRAM, "late", "").unwrap(), alloc(&gpu, 4));
    let scene = (driver, &kernel, &to);
    let cases = [
        (5, "cuLaunchKernel", 2, 3),
        (7, "cuLaunchKernel", 0, 1),
        (3, "cuLaunchKernel", 2, 3),
        (8, "cuGraphLaunch", 0, 1),
        (16, "cuGraphLaunch", 1, 9),
        (20, "cuLaunchKernel", 1, 18),
    ];
    // A stream waits for the last of several kernels first.
    let in_both_orders = cases.into_iter().flat_map(|case| [(case, false), (case, true)]);
    for ((count, call, after, fails), is_reversed) in in_both_orders {
        let (before, _) = several(scene, 1, false);
        driver.fail(call, after, code::OUT_OF_MEMORY);
        let (fences, _) = several(scene, count, false);
        let (behind, _) = several(scene, 1, false);
        let mut numbered: Vec<_> = (1..).zip(fences).collect();
        if is_reversed {
            numbered.reverse();
        }
        for (number, fence) in numbered {
            let ended = fence.wait();
            assert_eq!(ended.is_err(), number >= fails, "{number} of {count}, {call}: {ended:?}");
            if let Err(error) = ended {
                let error = error.to_string();
                assert!(error.contains(call) && error.contains("OUT_OF_MEMORY"), "{error}");
            }
        }
        wait(before);
        wait(behind);
        assert_eq!(driver.count("pushed"), 0);
    }
    drop((kernel, to, gpu, platform));
    nothing_is_left(driver);
}

fn follow(platform: &Platform) -> Arc<dyn Launcher> {
    let gpu = platform.device("cuda:0").unwrap();
    // SAFETY: the kernel copies as many words as its last argument says, which both buffers have.
    unsafe { launch::kernel(platform, gpu, PROGRAM, "follow") }.unwrap()
}

/// A chain, far ahead of its device. The driver is slow once, so that kernels wait for their launch.
#[test]
fn submissions_far_ahead_are_launched_together_and_in_their_order() {
    const KERNELS: u32 = 200;
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let (gpu, follow) = (platform.device("cuda:0").unwrap(), follow(&platform));
    let buffers: [Buffer<u32>; 2] = [0; 2].map(|_| platform.buffer_from(vec![0; 4]).unwrap());
    let next = |number: u32| {
        let (from, to) = (&buffers[number as usize % 2], &buffers[(number as usize + 1) % 2]);
        platform.submit(gpu, &follow).read(from).write(to).scalar(4_u64).items(4)
    };
    next(0).unwrap().wait().unwrap();
    let held = driver.hold();
    let (graphs, (kernels, ())) = driver.made_by("cuGraphLaunch", || {
        driver.made_by("cuLaunchKernel", || {
            (1..20).for_each(|number| drop(next(number).unwrap()));
            driver.pause("cuLaunchKernel", 50);
            (20..KERNELS).for_each(|number| drop(next(number).unwrap()));
            drop(held);
            platform.settle(gpu).unwrap();
        })
    });
    assert_eq!(kernels + TOGETHER as i64 * graphs, i64::from(KERNELS) - 1);
    assert!(graphs > 0, "none was launched together");
    assert_eq!(*buffers[KERNELS as usize % 2].read().unwrap(), [KERNELS; 4]);
    drop((buffers, follow, platform));
    nothing_is_left(driver);
}

/// The failure of a graph is that of its first kernel, and of all behind it.
#[test]
fn a_graph_that_is_not_launched_fails_its_submissions() {
    const KERNELS: u64 = 100;
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let (gpu, follow) = (platform.device("cuda:0").unwrap(), follow(&platform));
    let source: Buffer<u32> = platform.buffer_from(vec![1; 4]).unwrap();
    let targets: Vec<Buffer<u32>> = (0..KERNELS).map(|_| platform.buffer_from(vec![0; 4]).unwrap()).collect();
    // Their memory is there before the driver is held up.
    targets.iter().for_each(|to| platform.acquire(gpu).write(to).wait().unwrap().release().unwrap());
    platform.acquire(gpu).read(&source).wait().unwrap().release().unwrap();
    let held = driver.hold();
    driver.fail("cuGraphLaunch", 1, code::OUT_OF_MEMORY);
    for (number, to) in (1..).zip(&targets) {
        if number == 20 {
            driver.pause("cuLaunchKernel", 50);
        }
        let submit = platform.submit(gpu, &follow).read(&source).write(to).scalar(4_u64);
        assert_eq!(submit.items(4).unwrap().number(), number);
    }
    drop(held);
    let error = platform.settle(gpu).unwrap_err();
    let SubmitError::Failed { number: failed, .. } = &error else { panic!("{error:?}") };
    assert!(error.to_string().contains("cuGraphLaunch"), "{error}");
    for (number, to) in (1..).zip(&targets) {
        match to.read() {
            Ok(view) => assert!(number < *failed && *view == [2; 4], "{number} of {failed}: {view:?}"),
            Err(AcquireError::Poisoned { .. }) => assert!(number >= *failed, "{number} of {failed}"),
            Err(error) => panic!("{error}"),
        }
    }
    // The next ones are launched again.
    let to = platform.buffer_from(vec![0_u32; 4]).unwrap();
    platform.submit(gpu, &follow).read(&source).write(&to).scalar(4_u64).items(4).unwrap().wait().unwrap();
    assert_eq!(*to.read().unwrap(), [2; 4]);
    drop((source, targets, to, follow, platform));
    nothing_is_left(driver);
}
