//! Programs written by hand, with which DML is compared: what they ask of the driver, and what they do when
//! it refuses.

use super::nothing_is_left;
use crate::common::pattern;
use crate::driver::{code, stand_in};
use crate::stand_in::{again, is_child};
use dml_arenas::native::HandWritten;
use dml_arenas::opencl::native::hand::{Arg, Commands, Device, Kernel, MapFor};
use dml_arenas::opencl::native::{Baseline, BaselineArg, BaselineError, BaselineSpec};

const ADD: &str = "kernel void add(__global uint *data, uint what, ulong end)
    kernel void pass(__global uint *from, __global uint *to, float factor) kernel void narrow(__global uint *data)";

/// Adds 5 to the first words of a buffer, which has `words` zeros before, and has an input that it does not
/// look at.
fn spec(device: usize, words: usize, items: [usize; 2], local: [usize; 2]) -> BaselineSpec<'static> {
    let args = vec![BaselineArg::Output(words * 4), BaselineArg::U32(5), BaselineArg::U64(words as u64)];
    BaselineSpec { device, limit: None, source: ADD, kernel: "add", options: "-DX", args, items, local }
}

fn pass(device: usize, len: usize) -> BaselineSpec<'static> {
    let input = BaselineArg::Input(pattern(len, 3));
    let args = vec![input, BaselineArg::Output(len), BaselineArg::F32(1.5)];
    let (items, local) = ([len, 1], [1, 1]);
    BaselineSpec { device, limit: None, source: ADD, kernel: "pass", options: "", args, items, local }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
}

#[track_caller]
fn failed<T>(result: Result<T, BaselineError>, code: i64) {
    match result.map(drop) {
        Err(BaselineError::Call { framework: "OpenCL", code: told, .. }) if told == code => {}
        other => panic!("{other:?}, not {code}"),
    }
}

#[test]
fn a_run_writes_computes_and_reads_again_and_again() {
    let driver = stand_in();
    for device in 0..4 {
        for make in [Baseline::new, Baseline::suited] {
            let mut baseline = make(spec(device, 100, [90, 1], [64, 1])).unwrap();
            assert_eq!(driver.options(), "-DX");
            for round in 1..4_u32 {
                assert!(baseline.run().unwrap().as_nanos() > 0);
                assert_eq!(driver.launched(), "add 0+128/64 memory 05000000 6400000000000000");
                let found = words(baseline.output(0));
                assert!(found.iter().all(|word| *word == 5 * round), "{device} {round}: {found:?}");
            }
            drop(baseline);
            nothing_is_left(driver);
        }
    }
}

#[test]
fn data_moves_by_copies_or_by_maps_where_the_host_shares_the_memory() {
    let driver = stand_in();
    let calls =
        ["clEnqueueWriteBuffer", "clEnqueueReadBuffer", "clEnqueueMapBuffer", "clEnqueueUnmapMemObject"];
    for (device, is_suited, expected) in
        [(0, false, [1, 1, 0, 0]), (0, true, [1, 1, 0, 0]), (1, false, [1, 1, 0, 0]), (1, true, [0, 0, 2, 2])]
    {
        let make = if is_suited { Baseline::suited } else { Baseline::new };
        let mut baseline = make(pass(device, 100)).unwrap();
        baseline.run().unwrap();
        let before = calls.map(|call| driver.made(call));
        baseline.run().unwrap();
        assert_eq!(driver.launched(), "pass 0+100/1 memory memory 0000c03f");
        let after = calls.map(|call| driver.made(call));
        // Before the clock runs, the host takes the inputs back and gives up the outputs: a map and an unmap
        // each.
        assert_eq!([0, 1, 2, 3].map(|at| after[at] - before[at]), expected, "{device} {is_suited}");
    }
}

#[test]
fn only_outputs_in_memory_of_the_device_are_written_beforehand() {
    let driver = stand_in();
    for (make, expected) in [(Baseline::new as fn(BaselineSpec<'_>) -> _, 1), (Baseline::suited, 0)] {
        let (writes, made) = driver.made_by("clEnqueueWriteBuffer", || make(pass(1, 100)));
        assert_eq!((writes, driver.count("queued")), (expected, 0));
        drop(made.unwrap());
    }
}

#[test]
fn work_items_are_padded_along_both_axes() {
    let driver = stand_in();
    for (items, local, expected) in [
        ([90, 1], [64, 1], "add 0+128/64"),
        ([90, 1], [0, 1], "add 0+90"),
        ([90, 1], [1, 0], "add 0+90"),
        ([90, 7], [0, 1], "add 0+90 0+7"),
        ([90, 7], [16, 4], "add 0+96/16 0+8/4"),
        ([90, 1], [16, 4], "add 0+96/16 0+4/4"),
    ] {
        Baseline::new(spec(0, 100, items, local)).unwrap().run().unwrap();
        let launched = driver.launched();
        assert_eq!(launched.split(" memory").next(), Some(expected));
    }
    // A group that the device does not take is not cut.
    let mut large = Baseline::new(spec(0, 100, [90, 7], [1000, 1])).unwrap();
    failed(large.run(), -54);
    let (launches, ()) = driver.made_by("clEnqueueNDRangeKernel", || {
        for items in [[0, 1], [1, 0]] {
            for make in [Baseline::new, Baseline::suited] {
                make(spec(1, 0, items, [1, 1])).unwrap().run().unwrap();
            }
        }
    });
    assert_eq!(launches, 0);
}

#[test]
fn buffers_without_bytes_move_nothing() {
    let driver = stand_in();
    for call in ["clEnqueueWriteBuffer", "clEnqueueReadBuffer", "clEnqueueMapBuffer"] {
        let (made, ()) = driver.made_by(call, || {
            for make in [Baseline::new, Baseline::suited] {
                let mut baseline = make(pass(1, 0)).unwrap();
                assert_eq!((driver.count("blocks"), driver.count("over host memory")), (2, 0));
                baseline.run().unwrap();
            }
        });
        assert_eq!(made, 0, "{call}");
    }
    nothing_is_left(driver);
}

#[test]
fn whatever_fails_in_a_run_is_told_when_the_queue_is_finished() {
    let driver = stand_in();
    for (make, device, calls) in [
        (
            Baseline::new as fn(BaselineSpec<'_>) -> _,
            0,
            &["clEnqueueWriteBuffer", "clEnqueueNDRangeKernel", "clEnqueueReadBuffer", "clFinish"][..],
        ),
        (
            Baseline::suited,
            1,
            &["clEnqueueMapBuffer", "clEnqueueUnmapMemObject", "clEnqueueNDRangeKernel", "clFinish"],
        ),
    ] {
        for call in calls {
            for after in 0..2 {
                let mut baseline = make(pass(device, 100)).unwrap();
                baseline.run().unwrap();
                let (made, _) = driver.made_by(call, || baseline.run().unwrap());
                if made <= after {
                    continue;
                }
                driver.fail(call, after as i32, code::OUT_OF_RESOURCES);
                failed(baseline.run(), -5);
                // What the host takes back before the clock runs is waited for by the next run.
                if *call != "clFinish" && device == 0 {
                    assert_eq!(driver.count("queued"), 0, "{call} {after}");
                }
                baseline.run().unwrap();
                drop(baseline);
                nothing_is_left(driver);
            }
        }
    }
}

#[test]
fn what_cannot_be_made_says_why_and_leaves_nothing() {
    let driver = stand_in();
    for call in
        ["clCreateContext", "clCreateCommandQueue", "clCreateBuffer", "clCreateKernel", "clSetKernelArg"]
    {
        driver.fail(call, 0, code::OUT_OF_RESOURCES);
        failed(Baseline::new(pass(0, 100)), -5);
        nothing_is_left(driver);
    }
    let mut wrong = pass(0, 100);
    wrong.source = "#error";
    let Err(BaselineError::Build { kernel, log }) = Baseline::new(wrong) else { panic!("it is wrong") };
    assert!(kernel == "pass" && log.contains("the source is wrong"), "{kernel}: {log}");
    for (device, limit, reason) in [
        (9, None, "there are 8 OpenCL devices"),
        (8, None, "there are 8 OpenCL devices"),
        (5, None, "its driver has no compiler"),
        (1, Some(9), "it has 8 compute units"),
    ] {
        let refused = Baseline::new(BaselineSpec { limit, ..pass(device, 100) }).map(drop).unwrap_err();
        let expected =
            BaselineError::Device { device: format!("opencl:{device}"), reason: reason.to_owned() };
        assert_eq!(refused.to_string(), expected.to_string());
    }
    let mut part = Baseline::new(BaselineSpec { limit: Some(3), ..pass(1, 100) }).unwrap();
    assert_eq!(driver.count("devices"), 1);
    part.run().unwrap();
    drop(part);
    nothing_is_left(driver);
}

#[test]
fn outputs_are_numbered_without_the_inputs() {
    stand_in();
    let mut baseline = Baseline::new(pass(0, 100)).unwrap();
    baseline.run().unwrap();
    assert_eq!(baseline.output(0).len(), 100);
    let panic = std::panic::catch_unwind(|| baseline.output(1).len()).unwrap_err();
    assert_eq!(panic.downcast_ref::<String>().unwrap(), "the kernel has no output 1");
}

#[test]
fn a_map_that_is_elsewhere_is_an_error() {
    if !is_child() {
        return again("by_hand::a_map_that_is_elsewhere_is_an_error", &[("STAND_IN_MAPS_ELSEWHERE", "1")]);
    }
    stand_in();
    let mut baseline = Baseline::suited(pass(1, 100)).unwrap();
    failed(baseline.run(), -12);
    // Nothing can unmap it.
    std::mem::forget(baseline);
}

/// A program's calls, as it counts them.
fn counted(calls: dml_arenas::native::Calls) -> [u64; 7] {
    let dml_arenas::native::Calls { alloc, bind, map, unmap, read, write, kernel, .. } = calls;
    [alloc, bind, map, unmap, read, write, kernel]
}

fn add<'run>(
    commands: &mut Commands<'run, '_>,
    kernel: &mut Kernel,
    buffer: &dml_arenas::opencl::native::hand::Buffer<'run>,
    [items, local]: [[usize; 2]; 2],
) -> Result<(), BaselineError> {
    commands.set_args(kernel, &[Arg::Buffer(buffer), Arg::U32(3), Arg::U64(10)])?;
    // SAFETY: the kernel ends at word 10, which the buffer has; it is not mapped.
    unsafe { commands.launch(kernel, items, local) }
}

#[test]
fn a_program_does_what_it_says_and_counts_it() {
    let driver = stand_in();
    let device = Device::open(0).unwrap();
    let mut kernel = device.kernel(ADD, "add").unwrap();
    let input: Vec<u32> = (0..10).collect();
    let mut changed: Vec<u32> = (100..110).collect();
    let ((), calls) = device
        .run(|commands| {
            let mut own = commands.buffer::<u32>(10)?;
            commands.write(&mut own, &input)?;
            add(commands, &mut kernel, &own, [[10, 1], [4, 1]])?;
            let mut found = [0_u32; 10];
            commands.read(&own, &mut found)?;
            assert_eq!(driver.launched(), "add 0+12/4 memory 03000000 0a00000000000000");
            assert!(found.into_iter().eq(3..13));
            add(commands, &mut kernel, &own, [[1, 3], [1, 2]])?;
            assert_eq!(driver.launched(), "add 0+1/1 0+4/2 memory 03000000 0a00000000000000");
            let mut mapped = commands.map::<u32>(&mut own, MapFor::Changing)?;
            assert_eq!((driver.count("mapped"), mapped[..3].to_vec()), (1, vec![6, 4, 5]));
            mapped[9] = 7;
            commands.unmap(mapped)?;
            let mapped = commands.map::<u32>(&mut own, MapFor::Reading)?;
            assert_eq!(mapped[8..], [11, 7]);
            commands.unmap(mapped)?;
            let bound = commands.bound(&input)?;
            commands.read(&bound, &mut found)?;
            assert!(found.into_iter().eq(0..10));
            let mut both = commands.bound_mut(&mut changed)?;
            add(commands, &mut kernel, &both, [[10, 1], [1, 1]])?;
            let mapped = commands.map::<u32>(&mut both, MapFor::Reading)?;
            assert!(mapped.iter().copied().eq(103..113));
            commands.unmap(mapped)?;
            // Nothing is asked for where there is nothing.
            let mut none = commands.buffer::<u32>(0)?;
            commands.write::<u32>(&mut none, &[])?;
            commands.read::<u32>(&none, &mut [])?;
            let _empty = commands.bound::<u32>(&[])?;
            assert!(
                commands.map::<u32>(&mut none, MapFor::Reading).map(|mapped| commands.unmap(mapped))?.is_ok()
            );
            Ok::<_, BaselineError>(())
        })
        .unwrap();
    assert_eq!(counted(calls), [2, 3, 4, 4, 2, 1, 3]);
    assert!(changed.into_iter().eq(103..113));
    drop((kernel, device));
    nothing_is_left(driver);
}

#[test]
fn a_program_that_fails_or_panics_has_ended_when_that_is_told() {
    let driver = stand_in();
    let device = Device::open(0).unwrap();
    let input = [1_u32; 10];
    let write = |commands: &mut Commands<'_, '_>| {
        let mut own = commands.buffer::<u32>(10)?;
        // SAFETY: the input outlives the run.
        let input: &[u32] = unsafe { std::slice::from_raw_parts(input.as_ptr(), 10) };
        commands.write(&mut own, input)
    };
    let (finishes, refused) = driver.made_by("clFinish", || {
        device.run(|commands| {
            write(commands)?;
            Err::<(), _>(BaselineError::Device { device: "mine".to_owned(), reason: "says so".to_owned() })
        })
    });
    assert!(matches!(refused.unwrap_err(), BaselineError::Device { device, .. } if device == "mine"));
    assert_eq!((finishes, driver.count("queued")), (1, 0));
    let (finishes, panic) = driver.made_by("clFinish", || {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = device.run(|commands| {
                write(commands)?;
                if driver.count("queued") > 0 { panic!("so it is") } else { Ok::<_, BaselineError>(()) }
            });
        }))
    });
    assert_eq!(*panic.unwrap_err().downcast_ref::<&str>().unwrap(), "so it is");
    assert_eq!((finishes, driver.count("queued")), (1, 0));
    driver.fail("clFinish", 0, code::OUT_OF_RESOURCES);
    failed(device.run(|_| Ok::<_, BaselineError>(())), -5);
    for call in ["clCreateBuffer", "clEnqueueWriteBuffer"] {
        driver.fail(call, 0, code::OUT_OF_RESOURCES);
        failed(device.run(|commands| write(commands)), -5);
    }
    failed(device.kernel(ADD, "stretch"), -46);
    assert!(
        matches!(device.kernel("#error", "add"), Err(BaselineError::Build { kernel, .. }) if kernel == "add")
    );
    let refused = Device::open(4).map(drop).unwrap_err().to_string();
    assert!(refused.contains("opencl:4") && refused.contains("is not available"), "{refused}");
    drop(device);
    nothing_is_left(driver);
}

#[test]
fn elements_beyond_a_buffer_are_refused() {
    stand_in();
    let device = Device::open(0).unwrap();
    let panics = |does: fn(&mut Commands<'_, '_>) -> Result<(), BaselineError>| {
        let run = || device.run(|commands| does(commands)).map(drop);
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_err();
        panic.downcast_ref::<String>().unwrap().clone()
    };
    let said = panics(|commands| {
        let mut own = commands.buffer::<u32>(2)?;
        commands.write(&mut own, &[1_u32; 3])
    });
    assert_eq!(said, "12 bytes for a buffer of 8");
    let said = panics(|commands| {
        let own = commands.buffer::<u32>(2)?;
        commands.read(&own, &mut [0_u32; 3])
    });
    assert_eq!(said, "12 bytes of a buffer of 8");
}
