//! Runs where the system has no thread to give. One test, since it is about the whole process.

#![cfg(all(not(dml_loom), target_os = "linux"))]

use dml::Kernel;
use dml::core::internal::sync::{Arc, Condvar, Mutex};
use dml::core::{DeviceId, Fence, Grants};
use dml::prelude::*;
use dml::scheduler::{Hooks, KernelError, Reason, RunError, UnitId};
use dml_verify::platforms::{CPU, GPU, null, pair};
use dml_verify::watched;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::thread::{Builder, ThreadId, current};

const ITEMS: u64 = 400;

/// A kernel that writes to each item of the target three times its number. `ends` makes the fence of each
/// package.
fn kernel(
    platform: &Platform,
    target: &Buffer<u32>,
    ends: impl Fn(DeviceId) -> Result<Fence, KernelError> + Clone + Send + Sync + 'static,
) -> Kernel {
    let kernel = Kernel::new("triple", 10).argument(Argument::part(
        target,
        Access::WriteInvalidate,
        Footprint::PerItem { bytes: 4 },
    ));
    [CPU, GPU].into_iter().fold(kernel, |kernel, device| {
        let (platform, target, ends) = (platform.clone(), target.clone(), ends.clone());
        kernel.variant(device, move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
            let arena = null(&platform, platform.home(device).expect("it has one"));
            let triples: Vec<u32> = package.range().map(|item| item as u32 * 3).collect();
            let part = target.raw().range(package.start() * 4..package.end() * 4);
            arena.write(grants, &part, bytemuck::cast_slice(&triples)).expect("granted for writing");
            ends(device)
        })
    })
}

/// Returns the fence of a package that its device computes until a thread waits for it.
fn under_way(_: DeviceId) -> Result<Fence, KernelError> {
    Ok(Fence::running(|| Ok(0)))
}

/// Reads the target, which a thread that holds a part of it cannot do.
struct Reads(Buffer<u32>);

impl Hooks for Reads {
    fn package_done(&self, _: &Package, _: DeviceId) {
        self.0.read().map(drop).expect("the thread holds nothing");
    }
}

/// The threads of units, and those that bring results; and which units began.
#[derive(Default)]
struct Threads(Mutex<Vec<ThreadId>>, Mutex<Vec<UnitId>>);

impl Hooks for Threads {
    fn unit_start(&self, unit: UnitId, _: DeviceId) {
        self.0.lock().push(current().id());
        self.1.lock().push(unit);
    }

    fn package_done(&self, _: &Package, _: DeviceId) {
        self.0.lock().push(current().id());
    }
}

/// Does something while the process may have no more memory than now, and a little: too little for a thread's
/// stack.
fn without_threads<R>(act: impl FnOnce() -> R) -> R {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    let pages: u64 = pages.split_whitespace().next().and_then(|pages| pages.parse().ok()).expect("a number");
    let before = getrlimit(Resource::As);
    let little = Rlimit { current: Some(pages * 4096 + (1 << 20)), maximum: before.maximum };
    setrlimit(Resource::As, little).expect("less is granted to anybody");
    let thread = Builder::new().spawn(|| ());
    let done = act();
    setrlimit(Resource::As, before).expect("as it was");
    assert!(thread.is_err(), "there was a thread to be had");
    done
}

#[test]
fn a_run_is_done_by_its_caller_and_none_is_started() {
    // Made before, so that there is one.
    watched("runs without a thread", || {
        // No thread has ended before any of these, whose stack could be had again.
        results_are_brought_by_who_holds_nothing();
        others_compute_what_there_is_no_thread_for();
        who_is_called_up_last_computes_on_the_callers_thread();
        who_had_no_thread_is_called_up_when_the_others_fail();
        nobody_is_waited_for_by_who_holds_something();
    })
    .join();
}

/// Returns a buffer of sevens, so that it can be read before it is computed.
fn sevens(platform: &Platform) -> Buffer<u32> {
    platform.buffer_from(vec![7; ITEMS as usize]).expect("a small buffer")
}

/// One device has several packages under way, and the results of those before are to be brought.
fn results_are_brought_by_who_holds_nothing() {
    let platform = pair();
    let target = sevens(&platform);
    let kernel = kernel(&platform, &target, under_way);
    let coexecutor =
        Coexecutor::new(&platform).devices([GPU]).policy("dynamic:10".parse().expect("a policy"));
    let report = without_threads(|| coexecutor.run_with(&kernel, ITEMS, &Reads(target.clone())));
    assert_eq!(report.expect("nothing is wrong").packages.len(), 10);
    assert!(target.read().expect("computed").iter().zip(0..).all(|(value, item)| *value == item * 3));
}

/// The device that begins fails, and only the device that it calls up is left.
fn who_is_called_up_last_computes_on_the_callers_thread() {
    let platform = pair();
    let target = sevens(&platform);
    let fails = |device| if device == CPU { Err("it fails".into()) } else { Ok(Fence::done(0)) };
    let kernel = kernel(&platform, &target, fails);
    let coexecutor = Coexecutor::new(&platform).devices([CPU, GPU]);
    let report = without_threads(|| coexecutor.run(&kernel, ITEMS)).expect("the other one computes");
    assert_eq!((report.failures.len(), report.devices[1].items), (1, ITEMS));
    assert!(target.read().expect("computed").iter().zip(0..).all(|(value, item)| *value == item * 3));
}

/// There is no thread for one of the two, and the other one fails, before it has computed anything or later.
fn who_had_no_thread_is_called_up_when_the_others_fail() {
    let platform = pair();
    let coexecutor = |policy: &str| {
        Coexecutor::new(&platform).devices([CPU, GPU]).policy(policy.parse().expect("a policy"))
    };
    for policy in ["static", "dynamic:10", "hguided"] {
        for good in [0, 1] {
            let target = sevens(&platform);
            let left = Arc::new(Mutex::new(good));
            let fails = move |device| {
                let mut left = left.lock();
                let is_good = device == CPU || *left > 0;
                *left -= i32::from(device == GPU && is_good);
                if is_good { Ok(Fence::done(0)) } else { Err("it fails".into()) }
            };
            let kernel = kernel(&platform, &target, fails);
            let report = without_threads(|| coexecutor(policy).run(&kernel, ITEMS));
            let report = report.unwrap_or_else(|error| panic!("{policy}: {error}"));
            assert_eq!(report.devices.iter().map(|device| device.items).sum::<u64>(), ITEMS, "{policy}");
            assert!(report.devices[0].items > 0 && report.failures.len() == 1, "{policy}: {report:?}");
            assert!(report.left_out.is_empty(), "{policy}: {report:?}");
            assert_eq!(report.called_up.iter().map(|called| called.device).collect::<Vec<_>>(), [CPU]);
            assert!(target.read().expect("computed").iter().zip(0..).all(|(value, item)| *value == item * 3));
        }
    }
}

/// Another thread waits for all of the target meanwhile.
fn nobody_is_waited_for_by_who_holds_something() {
    let platform = pair();
    let target = sevens(&platform);
    let launched = Arc::new((Mutex::new(0), Condvar::new()));
    let (writes, begins) = ((Platform::clone(&platform), target.clone()), launched.clone());
    // A thread has memory of its own to get before it begins.
    let has_begun = Arc::new(std::sync::Barrier::new(2));
    let begun = has_begun.clone();
    let writer = std::thread::spawn(move || {
        begun.wait();
        let mut count = begins.0.lock();
        while *count < 3 {
            count = begins.1.wait(count);
        }
        drop(count);
        let (platform, target) = writes;
        let grants = platform.acquire(CPU).read_write(&target).wait().expect("its turn comes");
        grants.release().expect("nothing is wrong");
    });
    has_begun.wait();
    let asked = target.raw().clone();
    let ends = move |device| {
        let mut count = launched.0.lock();
        *count += 1;
        launched.1.notify_all();
        let is_third = *count == 3;
        drop(count);
        while is_third && asked.snapshot().queue().len() == 0 {
            std::thread::yield_now();
        }
        under_way(device)
    };
    let kernel = kernel(&platform, &target, ends);
    let coexecutor =
        Coexecutor::new(&platform).devices([GPU]).policy("dynamic:10".parse().expect("a policy"));
    let report = without_threads(|| coexecutor.run(&kernel, ITEMS)).expect("nothing is wrong");
    assert_eq!(report.packages.len(), 10);
    writer.join().expect("nothing is wrong");
    // Later there are threads again.
    let report = coexecutor.start(&kernel, ITEMS).expect("a thread").wait().expect("nothing is wrong");
    assert_eq!(report.packages.len(), 10);
    assert!(target.read().expect("computed").iter().zip(0..).all(|(value, item)| *value == item * 3));
}

fn others_compute_what_there_is_no_thread_for() {
    let platform = pair();
    let target = platform.buffer::<u32>(ITEMS).build().expect("a small buffer");
    let kernel = kernel(&platform, &target, |_| Ok(Fence::done(0)));
    let coexecutor = |policy: &str| {
        Coexecutor::new(&platform).devices([CPU, GPU]).policy(policy.parse().expect("a policy"))
    };
    let threads = Threads::default();
    for policy in ["static", "dynamic:10", "hguided"] {
        let report = without_threads(|| coexecutor(policy).run_with(&kernel, ITEMS, &threads));
        let report = report.unwrap_or_else(|error| panic!("{policy}: {error}"));
        assert_eq!(report.devices.iter().map(|device| device.items).sum::<u64>(), ITEMS, "{policy}");
        assert!(report.left_out.iter().any(|left| left.reason == Reason::NoThread), "{policy}: {report:?}");
        assert!(
            target.read().expect("computed").iter().eq(&(0..ITEMS as u32).map(|i| i * 3).collect::<Vec<_>>())
        );
    }
    assert_eq!(threads.1.into_inner(), [UnitId(1); 3], "nothing begins of a unit without a thread");
    assert!(threads.0.into_inner().iter().all(|thread| *thread == current().id()));
    let started = without_threads(|| coexecutor("static").start(&kernel, ITEMS));
    assert!(matches!(&started, Err(RunError::NoThread { kernel, .. }) if kernel == "triple"), "{started:?}");
}
