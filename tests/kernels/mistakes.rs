use super::opencl;
use dml::Kernel;
use dml::arenas::launch::{self, HostLauncher};
use dml::core::Misfit;
use dml::prelude::*;
use dml::scheduler::RunError;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

fn platform() -> Platform {
    let options = DiscoverOptions::default().only(["cpu"]);
    Platform::builder().discover_with(&options).unwrap().build().unwrap()
}

fn told(error: &RunError) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The run did not end, and could not be cancelled.
#[test]
fn a_function_that_acquires_what_it_was_given_is_told() {
    let platform = platform();
    let (input, out) =
        (platform.buffer_from(vec![1_u32; 100]).unwrap(), platform.buffer::<u32>(100).build().unwrap());
    for by_team in [false, true] {
        let own = out.clone();
        let function = move |call: &mut launch::Call<'_>| {
            call.part(1)?.slice_mut::<u32>()?.fill(own.read()?[0]);
            Ok(())
        };
        let launcher =
            if by_team { HostLauncher::by_team(2, function) } else { HostLauncher::new(2, function) };
        let kernel = Kernel::new("own", 16).read(&input).write(&out);
        let kernel = kernel.launchers([(DeviceId(0), launcher.unwrap())]).unwrap();
        let error = told(&Coexecutor::new(&platform).run(&kernel, 100).unwrap_err());
        assert!(error.contains("this thread holds it: release"), "{by_team}: {error}");
    }
}

/// The only contents were poisoned.
#[test]
fn a_function_that_fails_before_it_writes_spoils_nothing() {
    let platform = platform();
    let data = platform.buffer_from((0..100_u32).collect::<Vec<_>>()).unwrap();
    let launchers = launch::host(&platform, |call| {
        call.part(1)?.slice::<u32>()?;
        call.scalar::<i32>(0).map(drop)
    });
    let kernel =
        Kernel::new("scale", 16).scalar(2.0_f32).read_write(&data).launchers(launchers.unwrap()).unwrap();
    let error = told(&Coexecutor::new(&platform).run(&kernel, 100).unwrap_err());
    assert!(error.contains("argument 0: the scalar is F32(2.0), not i32"), "{error}");
    assert!(data.read().unwrap().iter().copied().eq(0..100));
}

/// The place was one in the library.
#[test]
fn poisoned_results_name_the_run_that_left_them() {
    let platform = platform();
    let out = platform.buffer::<u32>(100).build().unwrap();
    let launchers = launch::host(&platform, |call| {
        call.part(0)?.slice_mut::<u32>()?[0] = 1;
        Err("half way".into())
    });
    let kernel = Kernel::new("half", 16).write(&out).launchers(launchers.unwrap()).unwrap();
    let coexecutor = Coexecutor::new(&platform);
    let (failed, line) = (coexecutor.run(&kernel, 100), line!());
    failed.unwrap_err();
    let error = out.read().unwrap_err().to_string();
    let grant = format!("the grant acquired at tests/kernels/mistakes.rs:{line}:");
    assert!(error.contains(&grant) && error.contains("was released as failed"), "{error}");
}

/// Every run began with the device that fails.
#[test]
fn an_undivided_kernel_avoids_the_device_on_which_it_failed() {
    let Some((platform, device)) = opencl() else { return };
    let out = platform.buffer::<u32>(100).build().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counts = calls.clone();
    let host = launch::host(&platform, move |_| {
        counts.fetch_add(1, Relaxed);
        Err("no luck".into())
    });
    let source = "kernel void fill(global uint *out, ulong end) { if (get_global_id(0) < end) out[get_global_id(0)] = 7; }";
    // SAFETY: it writes the elements of its items.
    let opencl = unsafe { launch::opencl(&platform, source, "fill", "") }.unwrap();
    let kernel = Kernel::new("fill", 16).undivided().write(&out).end();
    let kernel = kernel.launchers(host.unwrap()).unwrap().launchers(opencl).unwrap();
    let coexecutor = Coexecutor::new(&platform).devices([DeviceId(0), device]);
    for _ in 0..10 {
        coexecutor.run(&kernel, 100).unwrap();
        assert_eq!(out.read().unwrap()[..], [7; 100]);
    }
    assert_eq!(calls.load(Relaxed), 1);
}

#[test]
fn shapes_that_are_set_in_another_order_are_the_same() {
    let shape = |kernel: Kernel| format!("{kernel:?}");
    let two = || Kernel::new("two", 4);
    let expected = shape(two().rows(53, 8).along(0).unwrap());
    assert_eq!(shape(two().along(0).unwrap().rows(53, 8)), expected);
    assert_eq!(shape(two().rows(7, 1).along(0).unwrap().rows(53, 8)), expected);
    assert_ne!(shape(two().rows(53, 8)), expected);
}

#[test]
fn numbers_that_describe_nothing_are_told_as_such() {
    let platform = platform();
    let data = platform.buffer_from(vec![0_u32; 100]).unwrap();
    for (footprint, expected) in [
        (Footprint::overlapping(0, 4, 0), "a group has no items"),
        (Footprint::layers(4, 0, 0), "a row has no bytes"),
        (Footprint::rows(0, 4, 0), "a row has no items"),
    ] {
        let kernel = Kernel::new("odd", 16).argument(Argument::part(&data, Access::ReadOnly, footprint));
        let kernel = kernel.launchers(launch::host(&platform, |_| Ok(())).unwrap()).unwrap();
        let error = told(&Coexecutor::new(&platform).run(&kernel, 100).unwrap_err());
        assert!(error.contains(expected), "{error}");
    }
    let mut kernel = Kernel::new("short", 16).read(&data).scalar(1_u32);
    let refused = kernel.set_scalar(9, 2_u32).unwrap_err();
    assert_eq!(refused, Misfit::Missing { kernel: "short".into(), index: 9, takes: 2 });
    assert_eq!(refused.to_string(), "kernel short has no argument 9: it takes 2");
}

/// The wait for it did not end.
#[test]
fn a_thread_that_writes_what_a_run_reads_is_not_to_wait_for_it() {
    let platform = platform();
    let (input, out) =
        (platform.buffer_from(vec![1_u32; 100]).unwrap(), platform.buffer::<u32>(100).build().unwrap());
    let launchers = launch::host(&platform, |call| {
        let [input, out] = call.parts([0, 1])?;
        out.slice_mut::<u32>()?.copy_from_slice(input.slice()?);
        Ok(())
    });
    let kernel = Kernel::new("copy", 16).read(&input).write(&out).launchers(launchers.unwrap()).unwrap();
    let read = input.read().unwrap();
    Coexecutor::new(&platform).start(&kernel, 100).unwrap().wait().expect("both read");
    drop(read);
    let held = input.read_write().unwrap();
    let mut running = Coexecutor::new(&platform).start(&kernel, 100).unwrap();
    let refused = running.wait().unwrap_err();
    assert!(matches!(&refused, RunError::HeldByCaller { index: 0, .. }), "{refused}");
    held.release().unwrap();
    running.wait().unwrap();
}
