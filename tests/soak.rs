//! Many runs of small kernels in one process, one after the other and at once: none fails, and nothing is
//! left of them.
//!
//! `DML_SOAK_RUNS` says how many (500); `cargo xtask soak` makes it 10,000.

#![cfg(all(feature = "command", target_os = "linux", not(dml_loom)))]

use dml::Kernel;
use dml::arenas::{Null, kit};
use dml::core::internal::sync::Arc;
use dml::core::{ArenaDesc, ArenaKind, DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence, LinkSpeed};
use dml::prelude::*;
use dml::scheduler::{KernelError, RunError};
use dml_verify::watched;
use dml_workloads::prepare::{Input, Prepared, Workload};
use std::time::{Duration, Instant};

/// The most items of a run.
const ITEMS: u64 = 6000;
/// The threads that run kernels at once.
const AT_ONCE: u64 = 64;
/// The most bytes by which the process may have grown, whatever the number of runs.
const MOST_GROWTH: u64 = 8 << 20;
const POLICIES: [&str; 6] = ["calibrated", "static", "dynamic:3", "dynamic:20", "hguided", "hguided:2:64"];

/// The processor, whatever workers and OpenCL devices there are, and a device with a memory of its own that
/// always is.
fn platform() -> (Platform, Vec<DeviceId>, DeviceId) {
    let options = DiscoverOptions::default().limit("cpu", 1);
    #[cfg(feature = "offload")]
    let options = options
        .offload(Workers::new(1).program(env!("CARGO_BIN_EXE_dml")).memory(64 << 20))
        .limit("offload:0", 1);
    let mut builder = Platform::builder().discover_with(&options).expect("the command is a worker too");
    let device = builder.add_device(DeviceDesc::new("null:0", DeviceKind::Accelerator));
    let own = ArenaDesc::new("null:0", ArenaKind("test"), device).with_remotes(DeviceSet::of(DeviceId(0)));
    let own = builder.add_arena(Arc::new(Null::backed(own)));
    kit::join_staged(&mut builder, dml::ArenaId(0), own, LinkSpeed::default());
    let platform = builder.build().expect("a sound platform");
    let found = (0..device.0).map(DeviceId).filter(|device| platform.home(*device).is_some()).collect();
    (platform, found, device)
}

/// The kernel `out = a * x + y` on the device that always is.
fn on_null(platform: &Platform, device: DeviceId, a: f32, kernel: Kernel) -> Kernel {
    let buffers: Vec<_> = kernel.arguments().iter().map(|argument| argument.buffer().clone()).collect();
    let platform = platform.clone();
    kernel.variant(device, move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
        let arena = platform.arena(platform.home(device).expect("it has one"));
        let arena = arena.downcast_ref::<Null>().expect("it is one");
        let part = |index: usize| buffers[index].range(package.start() * 4..package.end() * 4);
        let read = |index: usize| -> Result<Vec<f32>, KernelError> {
            Ok(bytemuck::pod_collect_to_vec(&arena.read(grants, &part(index))?))
        };
        let out: Vec<f32> = read(0)?.iter().zip(read(1)?).map(|(x, y)| a * x + y).collect();
        arena.write(grants, &part(2), bytemuck::cast_slice(&out))?;
        Ok(Fence::done(package.items()))
    })
}

fn read(platform: &Platform, buffer: &RawBuffer) -> Vec<f32> {
    let host = platform.host().expect("there is one");
    let grants = platform.acquire(host).read(buffer).wait().expect("it can be read");
    let elements = grants.slice::<f32>(buffer).expect("whole elements").to_vec();
    grants.release().expect("it was read");
    elements
}

/// Numbers that look drawn, the same each time.
struct Drawn(u64);

impl Drawn {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// The memory that the process has in use, in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    pages.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number") * 4096
}

/// Maximum number of idle threads that a process caches ([`Helpers`](dml::core::internal::Helpers)).
const MOST_KEPT: usize = 16;

/// Returns the number of the process's threads, without the cached ones up to that maximum, and without the
/// waker thread of an OpenCL device, which the first awaited event starts.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux tells");
    let names = tasks.map(|task| std::fs::read_to_string(task.expect("Linux tells").path().join("comm")));
    let names: Vec<String> = names.flatten().collect();
    let count = |start: &str| names.iter().filter(|name| name.starts_with(start)).count();
    let (kept, wakers) = (count("dml helper"), count("opencl wakers"));
    names.len() - kept.min(MOST_KEPT) - wakers.min(1)
}

/// Waits until there are no more threads than before: one that has told its end is about to be gone.
fn settle(before: usize) {
    let begun = Instant::now();
    while threads() > before {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} threads, {before} before", threads());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One after the other, with changing policies, devices and sizes; some are started, and some of these
/// cancelled.
struct Changing<'a> {
    platform: &'a Platform,
    null: &'a Null,
    coexecutor: Coexecutor,
    devices: Vec<DeviceId>,
    kernel: Kernel,
    prepared: &'a dyn Prepared,
    expected: Vec<f32>,
    drawn: Drawn,
    cancelled: u64,
}

impl Changing<'_> {
    fn run(&mut self, number: u64) {
        let drawn = &mut self.drawn;
        let chosen = 1 + drawn.below((1 << self.devices.len()) - 1);
        let is_in = |index: usize| chosen & (1 << index) != 0;
        let devices = self.devices.iter().enumerate().filter(|(index, _)| is_in(*index)).map(|(_, id)| *id);
        let policy = POLICIES[drawn.below(POLICIES.len() as u64) as usize];
        let class = 1 + drawn.below(12);
        let items = 1 + drawn.below(1 << class);
        let collect_on = self.platform.host().filter(|_| drawn.below(3) > 0);
        let run = self.coexecutor.clone().devices(devices).collect_on(collect_on);
        let run = run.policy(policy.parse().expect("a policy"));
        self.prepared.reset().expect("nobody uses it");
        let what = format!("run {number}: {policy}, devices {chosen:b}, {items} items");
        let told = match number % 8 {
            0 => run.start(&self.kernel, items).and_then(|mut running| running.wait()),
            4 => run.start(&self.kernel, items).and_then(|mut running| {
                running.cancel();
                running.wait()
            }),
            _ => run.run(&self.kernel, items),
        };
        // It writes its calls down.
        drop(self.null.take_calls());
        match told {
            Ok(report) => {
                assert!(report.failures.is_empty(), "{what}: {:?}", report.failures);
                let out = read(self.platform, &self.prepared.outputs()[0].clone());
                let pairs = out.iter().zip(&self.expected).take(items as usize);
                // Devices round in their own ways.
                let wrong = pairs.enumerate().find(|(_, (is, due))| (**is - **due).abs() > 1e-5);
                assert_eq!(wrong, None, "{what}");
            }
            Err(RunError::Cancelled { failures, .. }) if number % 8 == 4 && failures.is_empty() => {
                self.cancelled += 1;
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
}

/// So many threads, each of which runs a kernel over the host and another device, all of them on the same
/// inputs.
fn at_once(platform: &Platform, null: DeviceId) {
    let a = 3.0_f32;
    let values = |by: f32| (0..ITEMS).map(|item| (item % 977) as f32 * by).collect::<Vec<_>>();
    let x = platform.buffer_from(values(1.0)).expect("a small buffer");
    let y = platform.buffer_from(values(0.5)).expect("a small buffer");
    let barrier = std::sync::Barrier::new(AT_ONCE as usize);
    std::thread::scope(|scope| {
        for number in 0..AT_ONCE {
            let (x, y, barrier) = (&x, &y, &barrier);
            scope.spawn(move || {
                let out = platform.buffer::<f32>(ITEMS).build().expect("a small buffer");
                let host = launch::host(platform, |call| {
                    let a: f32 = call.scalar(0)?;
                    let [x, y, out] = call.parts([1, 2, 3])?;
                    let inputs = x.slice::<f32>()?.iter().zip(y.slice::<f32>()?);
                    out.slice_mut::<f32>()?.iter_mut().zip(inputs).for_each(|(out, (x, y))| *out = a * x + y);
                    Ok(())
                });
                let kernel = Kernel::new("at once", 16).scalar(a).read(x).read(y).write(&out);
                let kernel = kernel.launchers(host.expect("there are threads")).expect("they fit");
                let kernel = on_null(platform, null, a, kernel);
                let policy = POLICIES[number as usize % POLICIES.len()].parse().expect("a policy");
                barrier.wait();
                let report = Coexecutor::new(platform).policy(policy).run(&kernel, ITEMS);
                assert!(report.unwrap_or_else(|error| panic!("run {number}: {error}")).failures.is_empty());
                let expected = x.read().expect("it is read only");
                let expected = expected.iter().map(|x| a * x + x * 0.5);
                assert!(expected.eq(out.read().expect("it was computed").iter().copied()), "run {number}");
            });
        }
    });
    for buffer in [&x, &y] {
        assert!(buffer.raw().leaked_grants().is_empty());
    }
}

#[test]
fn a_process_that_runs_kernels_again_and_again_keeps_nothing_of_them() {
    let runs: u64 = std::env::var("DML_SOAK_RUNS").map_or(500, |runs| runs.parse().expect("a number"));
    let soak = watched("the soak", move || {
        let (platform, found, null) = platform();
        let prepared =
            Workload::Saxpy.prepare(&platform, &found, &Input::Size(ITEMS)).expect("a small problem");
        prepared.reset().expect("nobody uses it");
        let first = Coexecutor::new(&platform).devices([found[0]]);
        first.run(prepared.kernel(), ITEMS).expect("nothing is wrong");
        prepared.verify().expect("it is right");
        let expected = read(&platform, &prepared.outputs()[0].clone());
        let [x, y] = [0, 1].map(|index| read(&platform, prepared.kernel().arguments()[index].buffer()));
        // The factor is the workload's own.
        let at = (0..x.len()).max_by(|&one, &other| x[one].abs().total_cmp(&x[other].abs())).expect("some");
        let a = (expected[at] - y[at]) / x[at];
        let kernel = on_null(&platform, null, a, prepared.kernel().clone());
        let arena = platform.arena(platform.home(null).expect("it has one"));
        let mut changing = Changing {
            platform: &platform,
            null: arena.downcast_ref().expect("it is one"),
            coexecutor: Coexecutor::new(&platform),
            devices: found.iter().copied().chain([null]).collect(),
            kernel,
            prepared: &*prepared,
            expected,
            drawn: Drawn(0x5EED),
            cancelled: 0,
        };
        let begun = Instant::now();
        let warm = runs / 5;
        at_once(&platform, null);
        (0..warm).for_each(|number| changing.run(number));
        let (memory, tasks) = (resident(), threads());
        (warm..runs).for_each(|number| changing.run(number));
        at_once(&platform, null);
        settle(tasks);
        let (after, seconds) = (resident(), begun.elapsed().as_secs_f64());
        println!(
            "soak: {runs} runs on {} devices and 2 x {AT_ONCE} at once in {seconds:.1} s, {} cancelled; {} KiB after {warm} runs, {} KiB at the end; {tasks} threads",
            changing.devices.len(),
            changing.cancelled,
            memory >> 10,
            after >> 10,
        );
        for argument in changing.kernel.arguments() {
            assert!(argument.buffer().leaked_grants().is_empty());
        }
        assert!(after <= memory + MOST_GROWTH, "{memory} bytes after {warm} runs, {after} after {runs}");
        assert!(runs < 100 || changing.cancelled > 0, "no run was cancelled in time");
    });
    soak.join_within(Duration::from_secs(120 + runs / 10));
}
