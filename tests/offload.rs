//! Workers under the whole layer: this program's buffers and co-executions, and the command's own program as
//! the worker.

#![cfg(all(feature = "command", feature = "offload", target_os = "linux", not(dml_loom)))]

use dml::arenas::OffloadArena;
use dml::core::Arena;
use dml::prelude::*;
use dml::scheduler::{RunError, check_footprints};
use dml_verify::Audited;
use dml_workloads::prepare::{Input, Prepared, Workload};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A platform of the processor and so many workers.
fn platform(workers: u32) -> Platform {
    platform_with(workers, |options| options)
}

fn of(workers: u32) -> Workers {
    Workers::new(workers).program(env!("CARGO_BIN_EXE_dml")).memory(256 << 20)
}

fn platform_with(workers: u32, change: impl FnOnce(DiscoverOptions) -> DiscoverOptions) -> Platform {
    let names = (0..workers).map(|number| format!("offload:{number}"));
    let options = (0..workers)
        .fold(DiscoverOptions::default(), |options, number| options.limit(format!("offload:{number}"), 1))
        .only(std::iter::once("cpu".to_owned()).chain(names))
        .limit("cpu", 1)
        .offload(of(workers));
    let builder = Platform::builder().discover_with(&change(options)).expect("the command is a worker too");
    builder.build().expect("what discovery adds fits together")
}

fn device(platform: &Platform, name: &str) -> DeviceId {
    platform.device(name).expect("it was asked for")
}

fn arena(platform: &Platform, name: &str) -> Arc<dyn Arena> {
    platform.arena(platform.home(device(platform, name)).expect("every device has one")).clone()
}

fn process(platform: &Platform, name: &str) -> u32 {
    let arena = arena(platform, name);
    let offload: &OffloadArena = arena.downcast_ref().expect("it is a worker's");
    offload.device().process().expect("a process of this machine")
}

fn kill(process: u32) {
    send("-KILL", process);
}

fn send(signal: &str, process: u32) {
    let sent = Command::new("kill").args([signal.to_owned(), process.to_string()]).status();
    assert!(sent.expect("the system has kill").success());
}

fn is_there(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn prepare(
    platform: &Platform,
    devices: &[&str],
    workload: Workload,
    input: &Input<'_>,
) -> Box<dyn Prepared> {
    let devices: Vec<_> = devices.iter().map(|name| device(platform, name)).collect();
    let prepared = workload.prepare(platform, &devices, input).expect("the worker has every workload");
    prepared.reset().expect("the host can write");
    prepared
}

fn run(
    platform: &Platform,
    prepared: &dyn Prepared,
    policy: &str,
) -> Result<dml::scheduler::Report, RunError> {
    let policy = policy.parse().expect("a policy");
    Coexecutor::new(platform).policy(policy).run(prepared.kernel(), prepared.items())
}

#[test]
fn every_workload_touches_what_its_footprints_name_in_a_worker() {
    let platform = Audited::new(platform(1));
    for workload in Workload::ALL {
        let prepared = prepare(&platform, &["offload:0"], workload, &Input::Size(131));
        let worker = device(&platform, "offload:0");
        let packages = check_footprints(&platform, prepared.kernel(), prepared.items(), worker);
        assert!(packages.unwrap_or_else(|error| panic!("{workload}: {error}")).packages >= 1);
    }
}

#[test]
fn every_workload_is_co_executed_by_every_policy_with_workers() {
    let platform = Audited::new(platform(2));
    for workload in Workload::ALL {
        for policy in ["static", "dynamic:13", "hguided"] {
            for devices in [&["offload:0"][..], &["cpu", "offload:0"], &["offload:1", "cpu", "offload:0"]] {
                for input in [Input::Size(1), Input::Size(131), Input::Tiny] {
                    let prepared = prepare(&platform, devices, workload, &input);
                    let report = run(&platform, &*prepared, policy).expect("nothing fails");
                    assert!(report.failures.is_empty(), "{:?}", report.failures);
                    prepared.collect().expect("the host can read");
                    prepared
                        .verify()
                        .unwrap_or_else(|error| panic!("{workload}, {policy}, {devices:?}: {error}"));
                }
            }
        }
    }
}

#[test]
fn a_co_execution_in_shared_memory_moves_no_result() {
    let names = ["cpu", "offload:0", "offload:1"];
    let platform = platform_with(2, |options| options.sharing(Sharing::memory(names).bytes(256 << 20)));
    let platform = Audited::new(platform);
    for workload in Workload::ALL {
        for policy in ["static", "dynamic:13", "hguided"] {
            platform.counters().reset();
            let prepared = prepare(&platform, &names, workload, &Input::Tiny);
            let report = run(&platform, &*prepared, policy).expect("nothing fails");
            assert!(report.failures.is_empty(), "{:?}", report.failures);
            prepared.collect().expect("the host can read");
            prepared.verify().unwrap_or_else(|error| panic!("{workload}, {policy}: {error}"));
            // Vectors of the application go to the workers, at most once for both. Results are where they
            // are.
            let transfers = platform.counters().transfers();
            let main = platform.home(device(&platform, "cpu")).expect("main memory");
            let is_brought = |link: dml::core::LinkId| platform.links()[usize::from(link.0)].from == main;
            assert!(transfers.iter().all(|one| one.bytes == 0 || is_brought(one.link)), "{transfers:?}");
            if workload == Workload::Mandelbrot {
                assert!(transfers.iter().all(|one| one.bytes == 0), "{transfers:?}");
            }
        }
    }
}

#[test]
fn a_worker_computes_on_as_many_threads_as_it_is_limited_to() {
    let cores = std::thread::available_parallelism().expect("it is known").get() as u32;
    for limit in [1, cores] {
        let platform = platform_with(1, |options| options.limit("offload:0", limit));
        let prepared = prepare(&platform, &["offload:0"], Workload::Mandelbrot, &Input::Tiny);
        run(&platform, &*prepared, "dynamic:3").expect("nothing fails");
        let tasks = format!("/proc/{}/task", process(&platform, "offload:0"));
        // Its first thread answers questions, one serves the pipeline, and both sleep while the others
        // compute.
        assert_eq!(std::fs::read_dir(tasks).expect("it runs").count() as u32, 2 + limit);
    }
}

#[test]
fn data_goes_from_worker_to_worker() {
    let platform = platform(2);
    let data: Vec<u32> = (0..3_000_000).map(|i: u32| i.wrapping_mul(2_654_435_761)).collect();
    let buffer = platform.buffer_from(data.clone()).expect("a small buffer");
    for name in ["offload:0", "offload:1", "offload:0"] {
        let mut grants =
            platform.acquire(device(&platform, name)).read_write(&buffer).wait().expect("nothing fails");
        let part = buffer.raw().range(4_000_001..4_000_101);
        grants.write_bytes(&part, &[name.as_bytes()[8]; 100]).expect("granted for writing");
        grants.release().expect("there");
    }
    let mut expected: Vec<u8> = data.iter().flat_map(|value| value.to_ne_bytes()).collect();
    expected[4_000_001..4_000_101].fill(b'0');
    let bytes: Vec<u8> = buffer.read().expect("there").iter().flat_map(|value| value.to_ne_bytes()).collect();
    assert!(bytes == expected);
}

#[test]
fn an_awaited_copy_to_a_worker_gives_its_thread_back() {
    struct Park(std::thread::Thread);
    impl std::task::Wake for Park {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let platform = platform(1);
    let data: Vec<u64> = (0..4_000_000_u64).map(|i| i * i).collect();
    let buffer = platform.buffer_from(data.clone()).expect("it fits");
    let waker = std::task::Waker::from(Arc::new(Park(std::thread::current())));
    let mut context = std::task::Context::from_waker(&waker);
    let mut pending = 0;
    for name in ["offload:0", "cpu"] {
        let acquire = platform.acquire(device(&platform, name)).read_write(&buffer);
        let mut acquire = std::pin::pin!(std::future::IntoFuture::into_future(acquire));
        let grants = loop {
            match acquire.as_mut().poll(&mut context) {
                std::task::Poll::Ready(grants) => break grants.expect("nothing fails"),
                std::task::Poll::Pending => {
                    pending += 1;
                    std::thread::park();
                }
            }
        };
        grants.block(&buffer).expect("granted");
        grants.release().expect("there");
    }
    assert!(pending >= 2, "32 MB each way were copied by the thread that polls");
    assert!(*buffer.read().expect("there") == data);
}

#[test]
fn a_killed_worker_takes_what_it_alone_had_and_nothing_else() {
    let platform = Audited::new(platform(2));
    let (cpu, worker) = (device(&platform, "cpu"), device(&platform, "offload:0"));
    let read = platform.buffer_from((0..10_000_u32).collect::<Vec<_>>()).expect("a small buffer");
    let written = platform.buffer_from(vec![7_u32; 10_000]).expect("a small buffer");
    let untouched = platform.buffer::<u32>(10).build().expect("a small buffer");
    platform.acquire(worker).read(&read).wait().expect("there").release().expect("there");
    let grants = platform.acquire(worker).read_write(&written.range(0..5_000)).wait().expect("there");
    grants.block(&written).expect("granted");
    grants.release().expect("there");
    kill(process(&platform, "offload:0"));
    wait_until("the loss is known", || arena(&platform, "offload:0").is_lost());

    let asked = platform.acquire(worker).read(&read).wait().map(drop);
    // The bytes were valid there, and core does not notice the loss before a call of the arena.
    assert!(asked.is_ok() || asked.unwrap_err().is_device_lost());
    let error = written.read().map(drop).expect_err("only the worker had half of it");
    assert!(error.is_device_lost(), "{error}");
    // It says whose worker it was, and what it died of.
    let text = error.to_string();
    assert!(text.contains("offload:0") && text.contains("its worker ended (signal: 9"), "{text}");
    assert!(platform.lost_devices().contains(worker));
    let error = platform.acquire(worker).read(&read).wait().expect_err("it is known now");
    let text = error.to_string();
    assert!(error.is_device_lost() && text.contains("offload:0") && text.contains("signal: 9"), "{text}");
    assert!(read.read().expect("the host has it").iter().copied().eq(0..10_000));
    let error = written.read().map(drop).expect_err("nobody has half of it");
    assert!(matches!(error, AcquireError::Poisoned { restorable: false, .. }), "{error}");
    let rest = platform.acquire(cpu).read(&written.range(5_000..10_000)).wait().expect("the host has it");
    assert_eq!(rest.slice::<u32>(&written.range(5_000..10_000)).expect("on the host"), [7; 5_000]);
    drop(rest);
    for (buffer, value) in [(&written, 1), (&untouched, 2)] {
        let mut view = buffer.write().expect("overwriting heals");
        view.fill(value);
        view.release().expect("there");
    }
    // The other worker has nothing to do with it.
    let other = device(&platform, "offload:1");
    platform.acquire(other).read(&written).wait().expect("there").release().expect("there");
    assert_eq!(*written.read().expect("there"), [1; 10_000]);
    // And where one was lost, a new one can be started.
    let next = self::platform(1);
    let prepared = prepare(&next, &["offload:0"], Workload::Saxpy, &Input::Tiny);
    run(&next, &*prepared, "static").expect("the new one works");
    prepared.verify().expect("and is right");
}

/// What this process has that could leak.
#[derive(Debug)]
struct Holdings {
    descriptors: usize,
    /// Number of threads, without the idle ones that the process caches.
    threads: usize,
    kept: usize,
    windows: usize,
    children: Vec<String>,
    /// The names of the threads, for people.
    at_work: Vec<String>,
}

/// Maximum number of idle threads that a process caches ([`Helpers`](dml::core::internal::Helpers)).
const MOST_KEPT: usize = 16;

impl Holdings {
    /// Whether there is no more than there was, and nothing at all of what only workers need.
    fn is_within(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors
            && self.threads <= before.threads
            && self.kept <= MOST_KEPT
            && self.windows == 0
            && self.children.is_empty()
    }
}

fn holdings() -> Holdings {
    let count = |folder: &str| std::fs::read_dir(folder).expect("Linux tells").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux tells");
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux tells").filter_map(Result::ok);
    let (mut children, mut at_work) = (Vec::new(), Vec::new());
    for task in tasks {
        children.extend(std::fs::read_to_string(task.path().join("children")));
        at_work.extend(std::fs::read_to_string(task.path().join("comm")).map(|name| name.trim().to_owned()));
    }
    at_work.sort();
    let kept = at_work.iter().filter(|name| name.starts_with("dml helper")).count();
    Holdings {
        descriptors: count("/proc/self/fd"),
        threads: at_work.len() - kept,
        kept,
        windows: maps.lines().filter(|line| line.contains("memfd:")).count(),
        children: children.iter().flat_map(|list| list.split_whitespace()).map(str::to_owned).collect(),
        at_work,
    }
}

/// Evenly spread over the range, from a number.
fn draw(number: u64, below: u64) -> u64 {
    let mut value = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (value ^ (value >> 27)) % below
}

#[test]
fn a_hundred_kills_at_random_moments_leave_a_right_result_or_a_clear_error() {
    const KILLS: u64 = 100;
    let workloads = [
        (Workload::Saxpy, Input::Size(400_000)),
        (Workload::Gaussian, Input::Size(90)),
        (Workload::Mandelbrot, Input::Size(20_000)),
    ];
    let sets = [
        &["cpu", "offload:0"][..],
        &["offload:1", "offload:0"],
        &["offload:0", "cpu", "offload:1"],
        &["offload:0"],
    ];
    let policies = ["dynamic:20", "hguided", "static"];
    // A thread that rayon starts on first use, and the like, is no leak.
    drop(prepare(&platform(1), &["cpu", "offload:0"], Workload::Saxpy, &Input::Tiny));
    wait_until("its threads have ended", || {
        !holdings().at_work.iter().any(|name| name.starts_with("dml-cpu"))
    });
    let before = holdings();
    let mut lengths = std::collections::BTreeMap::new();
    let (mut right, mut failed, mut noticed) = (0, 0, 0);
    for kills in 0..KILLS {
        let pick = |salt: u64, below: usize| draw(kills * 7 + salt, below as u64) as usize;
        let (workload, input) = workloads[pick(0, 3)];
        let (devices, policy) = (sets[pick(1, 4)], policies[pick(2, 3)]);
        let platform = platform(2);
        // The history keeps books of every byte: too much for the long vectors.
        let audited = (workload != Workload::Saxpy).then(|| Audited::new(platform.clone()));
        let prepared = prepare(&platform, devices, workload, &input);
        let length = *lengths.entry((workload, devices)).or_insert_with(|| {
            let begun = Instant::now();
            run(&platform, &*prepared, policy).expect("nothing has failed yet");
            prepared.reset().expect("the host can write");
            begun.elapsed()
        });
        let moment = length.mul_f64(draw(kills * 7 + 3, 1000) as f64 / 900.0);
        let victims = [process(&platform, "offload:0"), process(&platform, "offload:1")];
        let outcome = std::thread::scope(|scope| {
            let running = scope.spawn(|| run(&platform, &*prepared, policy));
            std::thread::sleep(moment);
            kill(victims[0]);
            running.join().expect("a co-execution does not panic")
        });
        let context = format!("kill {kills}, {workload}, {policy}, {devices:?}, after {moment:?}");
        match outcome {
            Ok(report) => {
                prepared.collect().unwrap_or_else(|error| panic!("{context}: {error}"));
                prepared.verify().unwrap_or_else(|error| panic!("{context}: {error}"));
                noticed += usize::from(!report.failures.is_empty());
                right += 1;
            }
            Err(RunError::Unfinished { failures, missing, .. }) => {
                assert!(devices == ["offload:0"], "{context}: others were left: {failures:?}");
                assert!(
                    missing > 0 && failures.iter().all(|failure| failure.message.contains("lost")),
                    "{context}: {failures:?}"
                );
                failed += 1;
            }
            Err(error) => panic!("{context}: {error}"),
        }
        drop((prepared, audited, platform));
        assert!(!victims.into_iter().any(is_there), "{context}: a process is left");
    }
    let mut after = holdings();
    let begun = Instant::now();
    // Threads that were told to end take their time.
    while !after.is_within(&before) && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
        after = holdings();
    }
    assert!(after.is_within(&before), "something is left: {after:?} where there was {before:?}");
    println!("{right} right, {noticed} of them after the loss was noticed; {failed} clear errors");
    assert_eq!(right + failed, KILLS);
    assert!(noticed >= 5 && failed >= 1, "the kills met nothing: {noticed} noticed, {failed} failed");
}

#[test]
fn a_worker_that_hangs_during_a_co_execution_is_given_up_and_others_finish() {
    let limit = Duration::from_millis(400);
    for policy in ["dynamic:20", "hguided", "static"] {
        let platform = platform_with(1, |options| options.offload(of(1).time_limit(Some(limit))));
        let platform = Audited::new(platform);
        let prepared = prepare(&platform, &["cpu", "offload:0"], Workload::Mandelbrot, &Input::Size(30_000));
        let process = process(&platform, "offload:0");
        // From the start, so that its first package never ends.
        send("-STOP", process);
        let report = run(&platform, &*prepared, policy).expect("the processor is left");
        prepared.collect().expect("the host can read");
        prepared.verify().unwrap_or_else(|error| panic!("{policy}: {error}"));
        let [failure] = &report.failures[..] else { panic!("{policy}: {:?}", report.failures) };
        let expected =
            format!("device offload:0 was lost: its worker did not answer to mandelbrot within {limit:?}");
        assert_eq!(failure.message, expected);
        drop((prepared, platform));
        assert!(!is_there(process), "a stopped worker is left");
    }
}

#[test]
fn a_command_that_is_killed_leaves_no_worker() {
    let arguments = ["bench", "mandelbrot", "--devices", "cpu,offload:0", "--size", "paper", "--runs", "1"];
    let mut owner =
        Command::new(env!("CARGO_BIN_EXE_dml")).args(arguments).spawn().expect("the command was built");
    let children = || {
        let list = std::fs::read_dir(format!("/proc/{}/task", owner.id())).into_iter().flatten();
        let lists = list.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
        lists
            .flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
            .collect::<Vec<_>>()
    };
    let mut workers = Vec::new();
    wait_until("the worker runs", || {
        workers = children();
        !workers.is_empty()
    });
    owner.kill().expect("it runs");
    owner.wait().expect("it ends");
    for worker in workers {
        let worker = worker.parse().expect("a number");
        wait_until("the worker is gone", || !is_there(worker));
    }
}
