//! Kernels as the driver is asked for them. What they compute is the stand-in's, by their names.

use super::{alloc, arena, cuda, fill, nothing_is_left, platform};
use crate::common::{put, take};
use crate::driver::{code, compiler, stand_in};
use crate::stand_in::{Says, again, is_child};
use dml_arenas::cuda::CudaKernel;
use dml_arenas::launch::{BuildCause, CompiledKernel, Grid, KernelArg};
use dml_core::{Fence, LaunchArg, Misfit, OwnBlock, Scalar, Span, TransferError};
use std::sync::mpsc;
use std::task::Waker;

/// A program with all kernels of the stand-in, as far as it looks.
const PROGRAM: &str =
    "// made by hand\n.version 8.0\n.entry late .entry count .entry follow .entry nothing\n";

fn words(block: &OwnBlock) -> Vec<u32> {
    let bytes = take(block, Span::new(0, block.block().len()));
    bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
}

/// Writes a word after so many microseconds.
fn late(kernel: &CudaKernel, to: &OwnBlock, word: u32, micros: u64, is_beside: bool) -> Fence {
    let args = [
        KernelArg::Block(to.block()),
        KernelArg::Scalar(Scalar::U32(word)),
        KernelArg::Scalar(Scalar::U64(micros)),
    ];
    // SAFETY: it writes the first word of the block.
    unsafe {
        match is_beside {
            true => kernel.launch_part(
                &args,
                &dml_core::Launch::new(&(0..1), &dml_core::ItemShape::line(1), &[]).independent(),
            ),
            false => kernel.launch(&args, Grid::line(0, 1, 1)),
        }
    }
    .unwrap()
}

/// Copies words, each plus one.
fn follow(kernel: &CudaKernel, from: &OwnBlock, to: &OwnBlock, count: u64) -> Fence {
    let args =
        [KernelArg::Block(from.block()), KernelArg::Block(to.block()), KernelArg::Scalar(Scalar::U64(count))];
    // SAFETY: the caller's blocks have so many words.
    unsafe { kernel.launch(&args, Grid::line(0, count, 1)) }.unwrap()
}

#[test]
fn a_program_is_loaded_once_and_lives_as_long_as_its_kernels() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let (loads, kernel) = driver.made_by("cuModuleLoadDataEx", || {
        cuda(&gpu).kernel(PROGRAM, "count", "").unwrap();
        cuda(&gpu).kernel(PROGRAM, "late", "").unwrap()
    });
    assert_eq!((loads, kernel.max_local(), kernel.name()), (1, 512, "late"));
    let block = alloc(&gpu, 4);
    assert_eq!(late(&kernel, &block, 7, 0, false).wait(), Ok(0));
    assert_eq!(words(&block), [7]);
    let held = driver.hold();
    let fence = late(&kernel, &block, 8, 0, false);
    // The stand-in ends the process where a kernel runs whose program is gone.
    drop((kernel, block, gpu, platform));
    assert_eq!(driver.count("modules"), 1);
    drop(held);
    assert_eq!(fence.wait(), Ok(0));
    nothing_is_left(driver);
}

#[test]
fn what_the_driver_says_of_a_program_is_told() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let refused = cuda(&gpu).kernel(".version 8.0\nrefused", "late", "").unwrap_err();
    let BuildCause::Compile(log) = &refused.cause else { panic!("{refused}") };
    assert_eq!((log.as_str(), refused.kernel.as_str()), ("line 3: no such instruction", "late"));
    let damaged = cuda(&gpu).kernel(".version 8.0\ndamaged", "late", "").unwrap_err();
    let BuildCause::Framework { call: "cuModuleLoadDataEx", code: 218, .. } = &damaged.cause else {
        panic!("{damaged}")
    };
    let none = cuda(&gpu).kernel(PROGRAM, "lately", "").unwrap_err();
    assert!(matches!(none.cause, BuildCause::NoKernel(_)) && none.kernel == "lately", "{none}");
    driver.fail("cuFuncGetAttribute", 0, code::INVALID_VALUE);
    let failed = cuda(&gpu).kernel(PROGRAM, "late", "").map(drop).unwrap_err();
    assert!(matches!(failed.cause, BuildCause::Framework { call: "cuFuncGetAttribute", .. }), "{failed}");
    cuda(&gpu).declare_lost("the test said so");
    let lost = cuda(&gpu).kernel(PROGRAM, "late", "").map(drop).unwrap_err();
    assert!(matches!(lost.cause, BuildCause::Framework { call: "cuCtxPushCurrent", .. }), "{lost}");
    drop((gpu, platform));
    nothing_is_left(driver);
}

#[test]
fn arguments_are_held_against_what_the_driver_says_of_the_kernel() {
    stand_in();
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let late = cuda(&gpu).kernel(PROGRAM, "late", "").unwrap();
    let count = cuda(&gpu).kernel(PROGRAM, "count", "").unwrap();
    let [byte, word, long] = [Scalar::U8(1), Scalar::U32(1), Scalar::U64(1)].map(LaunchArg::Scalar);
    assert_eq!(late.fits(&[long.clone(), word.clone(), long.clone()]), Ok(()));
    let wrong = late.fits(&[long.clone(), byte, long.clone()]).unwrap_err();
    assert!(matches!(wrong, Misfit::Argument { index: 1, .. }), "{wrong}");
    let few = late.fits(&[long.clone(), word]).unwrap_err();
    assert!(matches!(few, Misfit::Count { takes: 3, given: 2, .. }), "{few}");
    // The last parameter of the other is its items, which are no argument.
    assert_eq!(count.fits(&[long.clone(), long.clone()]), Ok(()));
    let few = count.fits(std::slice::from_ref(&long)).unwrap_err();
    assert!(matches!(few, Misfit::Count { takes: 2, given: 1, .. }), "{few}");
    let nothing = cuda(&gpu).kernel(PROGRAM, "nothing", "").unwrap();
    assert_eq!(nothing.fits(&[]), Ok(()));
    let many = nothing.fits(std::slice::from_ref(&long)).unwrap_err();
    assert!(matches!(many, Misfit::Count { takes: 0, given: 1, .. }), "{many}");
    let block = alloc(&gpu, 4);
    let args = [
        KernelArg::Block(block.block()),
        KernelArg::Scalar(Scalar::U32(1)),
        KernelArg::Scalar(Scalar::U64(1)),
    ];
    // SAFETY: refused.
    let refused = unsafe { late.launch(&args, Grid::line(1, 1, 1)) }.map(drop).unwrap_err();
    assert!(refused.to_string().contains("has no DmlItems"), "{refused}");
    let other = alloc(&super::arena(&super::platform(&["cuda:1"]), "cuda:1"), 4);
    let args = [
        KernelArg::Block(other.block()),
        KernelArg::Scalar(Scalar::U32(1)),
        KernelArg::Scalar(Scalar::U64(1)),
    ];
    // SAFETY: refused.
    let refused = unsafe { late.launch(&args, Grid::line(0, 1, 1)) }.map(drop).unwrap_err();
    assert!(
        refused.to_string().contains("argument 0 of kernel late: the block belongs to another"),
        "{refused}"
    );
}

#[test]
fn kernels_run_in_order_and_those_beside_others_before_the_next_in_order() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let [slow, next] = ["late", "follow"].map(|name| cuda(&gpu).kernel(PROGRAM, name, "").unwrap());
    let blocks = [0; 4].map(|_| alloc(&gpu, 4));
    let to = alloc(&gpu, 4);
    for round in 0..6 {
        let held = driver.hold();
        let beside =
            [0, 1, 2].map(|index| late(&slow, &blocks[index], 10 * round + index as u32, 3000, true));
        let (waits, last) =
            driver.made_by("cuStreamWaitEvent", || follow(&next, &blocks[round as usize % 3], &to, 1));
        assert_eq!(waits, 2, "one for each of the streams beside");
        // What was awaited is not awaited again.
        let (waits, further) = driver.made_by("cuStreamWaitEvent", || follow(&next, &to, &blocks[3], 1));
        assert_eq!(waits, 0);
        drop(held);
        for fence in beside {
            assert_eq!(fence.wait(), Ok(0));
        }
        assert_eq!((last.wait(), further.wait()), (Ok(0), Ok(0)));
        assert_eq!(words(&to), [10 * round + round % 3 + 1]);
        assert_eq!(words(&blocks[3]), [10 * round + round % 3 + 2]);
    }
    // The tail is the end of all of them.
    let held = driver.hold();
    let running = [0, 1, 2].map(|index| late(&slow, &blocks[index], 99, 1000, true));
    let mut tail = gpu.tail().unwrap();
    let (says, told) = mpsc::channel();
    assert!(tail.poll(&Waker::from(std::sync::Arc::new(Says(says)))).is_pending());
    drop(held);
    told.recv_timeout(std::time::Duration::from_secs(20)).expect("it is told");
    assert!(blocks[..3].iter().all(|block| words(block) == [99]));
    drop((running, tail, blocks, to, slow, next, gpu, platform));
    nothing_is_left(driver);
}

/// The first one's event is recorded late, and the second is launched meanwhile.
#[test]
fn the_end_of_a_kernel_is_not_that_of_another_one_that_is_launched_at_once() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let kernel = cuda(&gpu).kernel(PROGRAM, "late", "").unwrap();
    let blocks = [0; 2].map(|_| alloc(&gpu, 4));
    let records = driver.made("cuEventRecord");
    driver.pause("cuEventRecord", 200);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| late(&kernel, &blocks[0], 1, 0, false));
        while driver.made("cuEventRecord") == records {
            std::thread::yield_now();
        }
        let mut second = late(&kernel, &blocks[1], 2, 1_500_000, false);
        assert_eq!(first.join().unwrap().wait(), Ok(0));
        assert!(second.poll(Waker::noop()).is_pending(), "its end was waited for");
        assert_eq!(second.wait(), Ok(0));
    });
    drop((blocks, kernel, gpu, platform));
    nothing_is_left(driver);
}

/// A kernel in order waits for those beside others, and not between another one and its event.
#[test]
fn the_end_of_a_kernel_is_not_that_of_what_is_beside() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let kernel = cuda(&gpu).kernel(PROGRAM, "late", "").unwrap();
    let blocks = [0; 4].map(|_| alloc(&gpu, 4));
    // The next one beside others has another stream.
    assert_eq!(late(&kernel, &blocks[0], 1, 0, true).wait(), Ok(0));
    assert_eq!(late(&kernel, &blocks[0], 1, 0, false).wait(), Ok(0));
    let records = driver.made("cuEventRecord");
    driver.pause("cuEventRecord", 200);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| late(&kernel, &blocks[1], 1, 0, false));
        while driver.made("cuEventRecord") == records {
            std::thread::yield_now();
        }
        let mut slow = late(&kernel, &blocks[2], 2, 1_500_000, true);
        let next = late(&kernel, &blocks[3], 3, 0, false);
        assert_eq!(first.join().unwrap().wait(), Ok(0));
        assert!(slow.poll(Waker::noop()).is_pending(), "its end was waited for");
        assert_eq!((slow.wait(), next.wait()), (Ok(0), Ok(0)));
    });
    drop((blocks, kernel, gpu, platform));
    nothing_is_left(driver);
}

#[test]
fn a_launch_covers_its_items_in_as_many_parts_as_the_driver_needs() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let kernel = cuda(&gpu).kernel(PROGRAM, "count", "").unwrap();
    let rows = 70_000_u64;
    let to = alloc(&gpu, rows * 16 * 4);
    for (first, many, local, launches) in [
        (0, rows, 1, 2),
        (10, 65_535, 1, 1),
        (10, 65_536, 1, 2),
        (0, rows, 2, 1),
        (7, 30, 7, 1),
        (3, 0, 1, 0),
    ] {
        assert_eq!(fill(&to, 0).wait(), Ok(rows * 16 * 4));
        let args = [KernelArg::Block(to.block()), KernelArg::Scalar(Scalar::U64(rows * 16))];
        let launch = Grid::new([2, first, 0], [9, many, 1], [4, local, 1]);
        let (made, fence) = driver.made_by("cuLaunchKernel", || {
            // SAFETY: it ends at the end of the block.
            unsafe { kernel.launch(&args, launch) }.unwrap()
        });
        assert_eq!((made, fence.wait()), (launches, Ok(0)), "{launch:?}");
        for (index, found) in words(&to).into_iter().enumerate() {
            let [x, y] = [index as u64 % 16, index as u64 / 16];
            let is_item = (2..11).contains(&x) && (first..first + many).contains(&y);
            assert_eq!(found, u32::from(is_item), "{x}, {y} of {launch:?}");
        }
    }
}

#[test]
fn a_launch_that_fails_says_whether_it_may_have_begun() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let kernel = cuda(&gpu).kernel(PROGRAM, "count", "").unwrap();
    let to = alloc(&gpu, 1024);
    let launch = Grid::new([0; 3], [1, 70_000, 1], [1, 1, 1]);
    for (call, after, begun) in
        [("cuLaunchKernel", 0, false), ("cuLaunchKernel", 1, true), ("cuEventRecord", 0, true)]
    {
        driver.fail(call, after, code::INVALID_VALUE);
        let args = [KernelArg::Block(to.block()), KernelArg::Scalar(Scalar::U64(256))];
        // SAFETY: it ends at the end of the block.
        let failed = unsafe { kernel.launch(&args, launch) }.map(drop).unwrap_err();
        assert!(matches!(failed, TransferError::Framework { .. }), "{failed}");
        assert_eq!(CudaKernel::may_have_begun(&failed), begun, "{failed}");
        // What had begun has ended.
        assert_eq!(driver.count("queued"), 0);
        assert_eq!(driver.count("pushed"), 0);
    }
}

#[test]
fn local_memory_beyond_the_usual_is_asked_for_once() {
    let driver = stand_in();
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let kernel = cuda(&gpu).kernel(PROGRAM, "count", "").unwrap();
    let to = alloc(&gpu, 64);
    let with = |parts: &[u64]| {
        let mut args = vec![KernelArg::Block(to.block()), KernelArg::Scalar(Scalar::U64(16))];
        args.extend(parts.iter().map(|&bytes| KernelArg::Local(bytes)));
        driver.made_by("cuFuncSetAttribute", || {
            // SAFETY: it ends at the end of the block.
            unsafe { kernel.launch(&args, Grid::line(0, 16, 4)) }.map(Fence::wait)
        })
    };
    for (parts, asked) in [
        (&[48 << 10][..], 0),
        (&[(48 << 10) + 1], 1),
        (&[40 << 10, 9 << 10], 1),
        (&[48 << 10], 0),
        (&[49 << 10], 0),
    ] {
        assert_eq!(with(parts), (asked, Ok(Ok(0))), "{parts:?}");
    }
    // Each kernel has a limit of its own, which the driver has one of for each name.
    let block = alloc(&gpu, 8);
    let [late, again] = ["late", "count"].map(|name| cuda(&gpu).kernel(PROGRAM, name, "").unwrap());
    let local = KernelArg::Local(49 << 10);
    let [word, long] = [Scalar::U32(1), Scalar::U64(0)].map(KernelArg::Scalar);
    for (kernel, second, asked) in [(&late, word, 1), (&late, word, 0), (&again, long, 0)] {
        let mut args = vec![KernelArg::Block(block.block()), second, local];
        args.extend((kernel.name() == "late").then_some(long));
        let launch = || {
            // SAFETY: it writes the first word of the block, or nothing.
            unsafe { kernel.launch(&args, Grid::line(0, 1, 1)) }.unwrap().wait()
        };
        assert_eq!(driver.made_by("cuFuncSetAttribute", launch), (asked, Ok(0)), "{}", kernel.name());
    }
    let (_, refused) = with(&[201 << 10]);
    assert!(refused.unwrap_err().to_string().contains("cannot have 205824 bytes of local memory"));
    put(&to, 0, &[1; 64]);
}

/// A source with all kernels of the stand-in, as far as it looks.
const SOURCE: &str = "late count follow";

#[test]
fn source_is_compiled_for_its_device_once_and_kept_for_later_processes() {
    let test = "kernels::source_is_compiled_for_its_device_once_and_kept_for_later_processes";
    if let Some(expected) = std::env::var_os("DML_TEST_COMPILES") {
        let (driver, compiler) = (stand_in(), compiler());
        let platform = platform(&["cuda:0", "cuda:1"]);
        let [known, unknown] = ["cuda:0", "cuda:1"].map(|gpu| arena(&platform, gpu));
        let kernel = cuda(&known).kernel(SOURCE, "late", "-lineinfo  --maxrregcount=32").unwrap();
        let first = "// made by --std=c++17 --gpu-architecture=sm_90 -lineinfo --maxrregcount=32\n";
        let text = driver.program();
        assert!(
            text.starts_with(first) && text.ends_with("#line 1 \"kernel.cu\"\nlate count follow"),
            "{text}"
        );
        assert!(text.contains("struct DmlItems"), "{text}");
        let block = alloc(&known, 4);
        assert_eq!(late(&kernel, &block, 5, 0, false).wait(), Ok(0));
        assert_eq!(words(&block), [5]);
        // A device that the compiler does not know gets what an older one would run.
        cuda(&unknown).kernel(SOURCE, "late", "-lineinfo  --maxrregcount=32").unwrap();
        let text = driver.program();
        assert!(text.starts_with("// made by --std=c++17 --gpu-architecture=compute_90 "), "{text}");
        cuda(&known).kernel(SOURCE, "count", "-lineinfo  --maxrregcount=32").unwrap();
        cuda(&known).kernel(SOURCE, "count", "").unwrap();
        assert_eq!(compiler.counts(), [expected.to_str().unwrap().parse().unwrap(), 0]);
        return;
    }
    let cache = tempfile::tempdir().unwrap();
    let folder = cache.path().to_str().unwrap();
    let run = |driver, compiles| {
        let environment =
            [("XDG_CACHE_HOME", folder), ("STAND_IN_VERSION", driver), ("DML_TEST_COMPILES", compiles)];
        again(test, &environment);
    };
    run("13000", "3");
    assert_eq!(std::fs::read_dir(cache.path().join("dml/cuda")).unwrap().count(), 3);
    run("13000", "0");
    // Another driver is another compiler behind it.
    run("13010", "3");
    // What is damaged is made again.
    for file in std::fs::read_dir(cache.path().join("dml/cuda")).unwrap() {
        std::fs::write(file.unwrap().path(), "damaged").unwrap();
    }
    run("13010", "3");
}

#[test]
fn what_the_compiler_says_is_told_and_its_programs_go() {
    if !is_child() {
        // With a cache of its own: what others have compiled is no business of this test.
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().to_str().unwrap();
        again("kernels::what_the_compiler_says_is_told_and_its_programs_go", &[("XDG_CACHE_HOME", folder)]);
        let kept = std::fs::read_dir(cache.path().join("dml/cuda")).map_or(0, Iterator::count);
        assert_eq!(kept, 1, "what is refused is not kept");
        return;
    }
    let (_driver, compiler) = (stand_in(), compiler());
    let platform = platform(&["cuda:0"]);
    let gpu = arena(&platform, "cuda:0");
    let refused =
        |source: &str, options: &str| cuda(&gpu).kernel(source, "late", options).map(drop).unwrap_err().cause;
    let BuildCause::Compile(log) = refused("wrong", "") else { panic!("another error") };
    assert_eq!(log, "kernel.cu(2): error: wrong");
    let BuildCause::Compile(log) = refused("wordless", "") else { panic!("another error") };
    assert_eq!(log, "another error");
    let BuildCause::Compile(log) = refused("late", "--unknown") else { panic!("another error") };
    assert_eq!(log, "unknown option");
    for (source, failed) in [("no memory", "nvrtcCreateProgram"), ("too large", "nvrtcCompileProgram")] {
        let BuildCause::Framework { call, code, message } = refused(source, "") else { panic!("{source}") };
        assert_eq!((call, code, &*message), (failed, 1, "out of memory"));
    }
    for (source, options, what) in [("la\0te", "", "the source"), ("late", "-a\0b", "the options")] {
        assert_eq!(refused(source, options), BuildCause::ZeroCharacter(what));
    }
    // A condition has another definition compiled than the one in the text, which is given a parameter more.
    let other = "__global__ void late(int* a) { a[blockIdx.x] = 1; }";
    let refused = cuda(&gpu).package_kernel(other, "late", "").map(drop).unwrap_err();
    assert!(matches!(refused.cause, BuildCause::NotDivisible(_)), "{refused}");
    assert_eq!(compiler.counts()[1], 0);
}
