//! Trials: a device of which nothing is known computes into memory of its own, beside those who compute, and holds nobody up.

#![cfg(not(dml_loom))]

mod homes;
mod overtaking;
mod parts;

use dml::Kernel;
use dml::arenas::{Null, kit};
use dml::core::sync::{Arc, Condvar, Mutex};
use dml::core::{
    ArenaDesc, ArenaId, ArenaKind, BufferCopy, Concurrency, DeviceDesc, DeviceId, DeviceKind, DeviceSet,
    Fence, Launch, LaunchArg, LaunchError, Launcher, LinkSpeed, Misfit,
};
use dml::prelude::*;
use dml::scheduler::{KernelError, Knowledge, PackageRecord, Report, RunError};
use dml_verify::{Audited, watched};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);
const VIDEO: ArenaId = ArenaId(1);
const LOCAL: u64 = 10;
const ITEMS: u64 = 4003;
/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(10);

/// Where results go at the end: this process reaches that memory, or has to have them copied on the device and brought there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Reached,
    Apart,
}

fn platform(other: DeviceKind, speed: LinkSpeed, sharing: Option<Concurrency>, home: Home) -> Audited {
    let mut builder = Platform::builder();
    for (name, kind) in [("cpu", DeviceKind::Cpu), ("gpu:0", other)] {
        // Units of its own are no cores, however many there are.
        let units = if kind == DeviceKind::Cpu { 1 } else { 64 };
        builder.add_device(DeviceDesc::new(name, kind).with_units(units));
    }
    let cpu = DeviceSet::of(CPU);
    let main = ArenaDesc::new("main", ArenaKind("test"), CPU).with_remotes(cpu);
    let main = Null::backed(main.with_concurrency(Concurrency::BimapFull));
    builder.add_arena(Arc::new(match home {
        Home::Reached => main,
        Home::Apart => main.with_host(DeviceId(9)),
    }));
    let mut video = ArenaDesc::new("video", ArenaKind("test"), GPU).with_remotes(cpu);
    video.concurrency = sharing.unwrap_or(video.concurrency);
    let video = builder.add_arena(Arc::new(Null::backed(video)));
    kit::join_staged(&mut builder, ArenaId(0), video, speed);
    if let Some(sharing) = sharing {
        kit::join_bound(&mut builder, ArenaId(0), video, sharing, speed);
        builder.allow_binding(ArenaId(0), video);
    }
    Audited::new(builder.build().expect("a sound platform"))
}

fn video(platform: &Platform) -> &Null {
    platform.arena(VIDEO).downcast_ref::<Null>().expect("it is one")
}

/// Something that happens once, and is waited for.
#[derive(Clone, Default)]
struct Signal(Arc<(Mutex<bool>, Condvar)>);

impl Signal {
    fn set(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }

    fn is_set(&self) -> bool {
        *self.0.0.lock()
    }

    fn wait(&self) {
        let mut is_set = self.0.0.lock();
        while !*is_set {
            is_set = self.0.1.wait(is_set);
        }
    }
}

/// What the launcher of the GPU does in a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Well,
    CopiesNothing,
    PanicsAsked,
    NotStarted,
    Fails,
    Panics,
    /// Its panic goes on for longer than the run.
    PanicsLong,
    FailsInFlight,
    CopyFails,
    CopyPanics,
    Exchanges,
    /// Its launch returns when it has ended.
    LaunchesLong,
    /// The first part of a trial has ended when it is launched, and the others hang.
    LaterPartsHang,
    /// Well in all parts that a trial has at first, and in none of those after them.
    FurtherPartsFail,
    /// Well in a trial, and not at all by itself.
    FailsAlone,
    /// Well, and others hear what a trial computes to.
    Lends,
}

/// Takes its time to be dropped.
struct Slow;

impl Drop for Slow {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Computes `x ^ 0x55` on the GPU's memory.
struct Gpu {
    platform: Platform,
    target: RawBuffer,
    does: Does,
    cues: Cues,
}

impl Launcher for Gpu {
    fn check(&self, _: &[LaunchArg]) -> Result<(), Misfit> {
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        let [LaunchArg::Buffer { buffer: source, .. }, LaunchArg::Buffer { buffer: target, .. }] =
            launch.arguments
        else {
            return Err(LaunchError::not_started("two buffers"));
        };
        let is_trial = *target != self.target;
        let bytes = launch.items.start * 4..launch.items.end * 4;
        let values = video(&self.platform).read(grants, &source.range(bytes.clone())).expect("granted");
        let values: Vec<u8> = values
            .chunks(4)
            .flat_map(|x| (u32::from_ne_bytes(x.try_into().unwrap()) ^ 0x55).to_ne_bytes())
            .collect();
        if !is_trial {
            if self.does == Does::FailsAlone {
                self.cues.refused.set();
                return Err(LaunchError::not_started("it does not want to"));
            }
            self.cues.others.fetch_add(1, Ordering::SeqCst);
            self.cues.by_itself.lock().push(launch.items.clone());
            video(&self.platform).write(grants, &target.range(bytes), &values).expect("granted");
            return Ok(Fence::done(0));
        }
        let before = self.cues.trials.fetch_add(1, Ordering::SeqCst);
        if self.does == Does::Lends {
            *self.cues.own.lock() = Some(target.clone());
        }
        self.cues.launched.set();
        match self.does {
            Does::NotStarted => return Err(LaunchError::not_started("it does not want to")),
            Does::Fails => return Err(LaunchError::failed("it failed")),
            Does::Panics => panic!("a launcher that panics"),
            Does::PanicsLong => {
                let _unwinds = Slow;
                panic!("a launcher that panics")
            }
            Does::Exchanges => {
                let other = self.platform.acquire(GPU).write(&self.platform.raw_buffer(8).build().unwrap());
                drop(std::mem::replace(grants, other.wait().unwrap()));
                return Ok(Fence::done(0));
            }
            Does::LaunchesLong => self.cues.may_end.wait(),
            Does::FurtherPartsFail if before >= 4 => return Err(LaunchError::failed("it failed")),
            _ => {}
        }
        video(&self.platform).write(grants, &target.range(bytes), &values).expect("granted");
        if self.does == Does::LaterPartsHang && before == 0 {
            return Ok(Fence::done(0));
        }
        let (may_end, fails) = (self.cues.may_end.clone(), self.does == Does::FailsInFlight);
        Ok(Fence::running(move || {
            may_end.wait();
            if fails { Err(dml::core::TransferError::Finished) } else { Ok(0) }
        }))
    }

    fn copies(&self) -> bool {
        assert_ne!(self.does, Does::PanicsAsked, "a launcher that panics");
        self.does != Does::CopiesNothing
    }

    fn copy(&self, copies: &[BufferCopy], grants: &mut Grants) -> Result<Fence, LaunchError> {
        assert!(self.cues.may_end.is_set(), "what is copied is computed");
        self.cues.copied.set();
        match self.does {
            Does::CopyFails => return Err(LaunchError::failed("it failed")),
            Does::CopyPanics => panic!("a launcher that panics"),
            _ => {}
        }
        for BufferCopy { from, to, bytes, .. } in copies {
            let values = video(&self.platform).read(grants, &from.range(bytes.clone())).expect("granted");
            video(&self.platform).write(grants, &to.range(bytes.clone()), &values).expect("granted");
        }
        Ok(Fence::done(0))
    }
}

/// What a test sees of a trial, and what it decides.
#[derive(Clone, Default)]
struct Cues {
    /// What is computed in a trial may end.
    may_end: Signal,
    /// A trial was launched; its results were copied.
    launched: Signal,
    copied: Signal,
    /// The device was to compute by itself, and did not.
    refused: Signal,
    trials: Arc<AtomicU64>,
    /// Packages that the GPU computed by itself, and their items.
    others: Arc<AtomicU64>,
    by_itself: Arc<Mutex<Vec<Range<u64>>>>,
    /// What the last trial computes to, if it says so.
    own: Arc<Mutex<Option<RawBuffer>>>,
    /// Who uses that as well.
    taken: Arc<Mutex<Option<Grants>>>,
    /// Held by the kernel's variants.
    kept: Arc<()>,
}

impl Cues {
    /// Waits until a trial is launched, or long enough for it.
    fn leave_time_for_a_trial(&self) {
        wait_for(|| self.launched.is_set(), Duration::from_millis(100));
    }
}

/// Waits until something is so, or for as long as that may take.
fn wait_for(is_so: impl Fn() -> bool, limit: Duration) {
    let begun = Instant::now();
    while !is_so() && begun.elapsed() < limit {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// A run, and what happens in it.
struct Scene {
    platform: Audited,
    source: Buffer<u32>,
    target: Buffer<u32>,
    cues: Cues,
    kernel: Kernel,
    knowledge: Knowledge,
}

/// What the host does before it computes its package of this number, from 0.
type OnHost = fn(u64, &Cues) -> Result<(), KernelError>;

fn scene(does: Does, on_host: OnHost) -> Scene {
    scene_with(DeviceKind::Gpu, LinkSpeed::default(), does, on_host)
}

/// The device uses the storage of main memory for what it reads.
fn scene_sharing(sharing: Concurrency, on_host: OnHost) -> Scene {
    let platform = platform(DeviceKind::Gpu, LinkSpeed::default(), Some(sharing), Home::Apart);
    let scene = scene_on(platform, Does::Well, on_host);
    scene.source.raw().bind(VIDEO, ArenaId(0)).unwrap();
    scene
}

fn scene_with(other: DeviceKind, speed: LinkSpeed, does: Does, on_host: OnHost) -> Scene {
    scene_on(platform(other, speed, None, Home::Apart), does, on_host)
}

fn scene_on(platform: Audited, does: Does, on_host: OnHost) -> Scene {
    let source = platform.buffer::<u32>(ITEMS).build().unwrap();
    let values: Vec<u32> = (0..ITEMS as u32).map(|i| i * 5 + 1).collect();
    let mut grants = platform.acquire(CPU).write(&source).wait().unwrap();
    grants.write_bytes(&source, bytemuck::cast_slice(&values)).unwrap();
    grants.release().unwrap();
    let target = platform.buffer::<u32>(ITEMS).build().unwrap();
    let (cues, packages) = (Cues::default(), AtomicU64::new(0));
    let (there, input, output, seen) =
        (Platform::clone(&platform), source.clone(), target.clone(), cues.clone());
    let host = move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
        on_host(packages.fetch_add(1, Ordering::SeqCst), &seen)?;
        // The host takes its time, so that others could help.
        std::thread::sleep(Duration::from_micros(300));
        let arena = there.arena(ArenaId(0)).downcast_ref::<Null>().expect("all are");
        let bytes = package.start() * 4..package.end() * 4;
        let values = computed(&arena.read(grants, &input.raw().range(bytes.clone()))?);
        arena.write(grants, &output.raw().range(bytes), &values)?;
        Ok(Fence::done(0))
    };
    let gpu =
        Gpu { platform: Platform::clone(&platform), target: target.raw().clone(), does, cues: cues.clone() };
    let kernel = Kernel::new("copy", LOCAL).read(&source).write(&target).variant(CPU, host);
    let kernel = kernel.launchers([(GPU, gpu)]).unwrap();
    Scene { platform, source, target, cues, kernel, knowledge: Knowledge::new() }
}

/// What the kernel makes of elements.
fn computed(values: &[u8]) -> Vec<u8> {
    let compute = |x: &[u8]| (u32::from_ne_bytes(x.try_into().unwrap()) ^ 0x55).to_ne_bytes();
    values.chunks(4).flat_map(compute).collect()
}

impl Scene {
    fn knowing(mut self, knowledge: &Knowledge) -> Self {
        self.knowledge = knowledge.clone();
        self
    }

    fn run(&self) -> Result<Report, RunError> {
        self.run_of(ITEMS)
    }

    fn run_of(&self, items: u64) -> Result<Report, RunError> {
        // As many as the devices have units: they are not each other's rivals.
        let run = Coexecutor::new(&self.platform).cores(2).record_decisions().knowledge(&self.knowledge);
        let kernel = self.kernel.clone();
        watched("a run", move || run.run(&kernel, items)).join()
    }

    /// Checks all results, and that the packages of a report are all items, each once.
    fn check(&self, report: &Report) {
        let grants = self.platform.acquire(CPU).read(&self.target).wait().unwrap();
        let bytes = grants.read_bytes(&self.target).unwrap();
        grants.release().unwrap();
        let values: &[u32] = bytemuck::cast_slice(&bytes);
        let wrong = values.iter().zip(0_u32..).find(|(value, i)| **value != (i * 5 + 1) ^ 0x55);
        assert_eq!(wrong, None, "{report:?}");
        let mut packages: Vec<_> = report.packages.iter().map(|record| record.package.range()).collect();
        packages.sort_by_key(|package| package.start);
        let end = packages.iter().fold(0, |next, package| {
            assert_eq!(package.start, next, "{packages:?}");
            package.end
        });
        assert_eq!(end, ITEMS);
        report.decisions.as_ref().expect("they are recorded").replay().unwrap();
    }

    /// Lets a trial end that nobody waits for, and waits until it holds nothing.
    fn let_it_end(&self) {
        // What it computed goes last.
        let before = video(&self.platform).live_blocks();
        self.cues.may_end.set();
        let (there, source) = (Platform::clone(&self.platform), self.source.clone());
        watched("the end of the trial", move || {
            there.acquire(CPU).read_write(&source).wait().unwrap().release().unwrap();
            while video(&there).live_blocks() >= before {
                std::thread::yield_now();
            }
        })
        .join();
    }

    fn packages_of_gpu<'a>(&self, report: &'a Report) -> Vec<&'a PackageRecord> {
        report.packages.iter().filter(|record| record.device == GPU).collect()
    }

    /// All results were brought home, those of trials as others.
    fn all_is_home(&self) {
        for (bytes, valid, _) in dml_verify::segments(self.target.raw()) {
            assert!(valid.contains(ArenaId(0)), "{bytes:?} of {valid:?}");
        }
    }
}

/// A call of a launcher may outlive its run, with its grants. Whoever looks at the history waits for it: what a trial computed to goes after its grants.
impl Drop for Scene {
    fn drop(&mut self) {
        let is_there = |buffer: &Buffer<u32>| buffer.raw().snapshot().arena(VIDEO).alloc.is_allocated();
        let own = || [&self.source, &self.target].into_iter().filter(|buffer| is_there(buffer)).count();
        // One that never ends is a contradiction of the history.
        wait_for(|| video(&self.platform).live_blocks() <= own(), LONG);
    }
}

fn in_order(record: &PackageRecord, report: &Report) {
    let times = [record.start, record.begun, record.computed, record.end];
    assert!(times.is_sorted() && record.end <= report.duration, "{record:?} of {:?}", report.duration);
}

/// The host has computed some packages when the trial ends, and goes on when its results are taken.
#[test]
fn what_a_trial_has_computed_is_taken_as_far_as_nobody_has_it() {
    let scene = scene(Does::Well, |package, cues| {
        match package {
            0 => cues.launched.wait(),
            3 => {
                assert!(!cues.copied.is_set(), "it has not ended");
                cues.may_end.set();
                cues.copied.wait();
            }
            _ => {}
        }
        Ok(())
    });
    let report = scene.run().unwrap();
    scene.all_is_home();
    scene.check(&report);
    let [record] = scene.packages_of_gpu(&report)[..] else { panic!("one package, in {report:?}") };
    assert_eq!(record.package.end(), ITEMS);
    let host: u64 = report.packages.iter().map(|record| record.package.items()).sum::<u64>();
    assert_eq!((host, scene.cues.trials.load(Ordering::SeqCst)), (ITEMS, 1));
    assert_eq!(scene.cues.others.load(Ordering::SeqCst), 0, "nothing was computed again");
    assert!(record.package.start() >= 4 * LOCAL, "the host's packages are its own: {record:?}");
    in_order(record, &report);
    assert!(report.failures.is_empty() && report.left_out.is_empty(), "{report:?}");
    let called: Vec<DeviceId> = report.called_up.iter().map(|called| called.device).collect();
    assert_eq!(called, [GPU]);
    let gpu = report.devices.iter().find(|device| device.device == GPU).unwrap();
    assert_eq!((gpu.packages, gpu.items), (1, record.package.items()));
    assert_eq!(gpu.busy, record.end - record.start);
}

/// Where the process reaches their home, they are not copied on the device before, and whoever fails at it loses nothing.
#[test]
fn results_go_straight_home_where_this_process_reaches_it() {
    for does in [Does::Well, Does::CopyFails, Does::CopyPanics] {
        let platform = platform(DeviceKind::Gpu, LinkSpeed::default(), None, Home::Reached);
        let scene = scene_on(platform, does, |package, cues| {
            if package == 0 {
                cues.launched.wait();
                cues.may_end.set();
            }
            Ok(())
        });
        let report = scene.run().unwrap();
        scene.check(&report);
        assert!(!scene.cues.copied.is_set(), "{does:?}");
        assert!(report.failures.is_empty(), "{does:?}: {report:?}");
    }
}

/// Nobody hears of the trial. What it reads is held until it has ended, and nothing else of the run is left.
#[test]
fn a_run_does_not_wait_for_a_trial() {
    let mut scene = scene(Does::Well, |package, cues| {
        if package == 0 {
            cues.launched.wait();
        }
        Ok(())
    });
    let report = scene.run().unwrap();
    scene.check(&report);
    assert!(scene.packages_of_gpu(&report).is_empty(), "{report:?}");
    assert_eq!(report.left_out.iter().map(|left| left.device).collect::<Vec<_>>(), [GPU]);
    scene.kernel = Kernel::new("none", 1);
    assert_eq!(Arc::strong_count(&scene.cues.kept), 1, "no copy of the kernel is left");
    let busy = scene.platform.acquire(CPU).write(&scene.source).try_now().unwrap_err();
    assert!(busy.is_busy(), "{busy}");
    scene.platform.acquire(CPU).write(&scene.target).try_now().unwrap().release().unwrap();
    let knows_gpu = || scene.knowledge.to_string().contains("device gpu:0");
    assert!(!knows_gpu(), "{}", scene.knowledge);
    scene.let_it_end();
    assert!(!scene.cues.copied.is_set(), "nobody is there to take it");
    assert!(knows_gpu(), "what it showed is for the next run: {}", scene.knowledge);
}

/// A driver may have compiled in it, or loaded the kernel. A device that was judged by that would never compute again, at any size.
#[test]
fn the_first_trial_says_little_if_nobody_takes_its_results() {
    let awaits_launch: OnHost = |package, cues| {
        if package == 0 {
            cues.launched.wait();
        }
        Ok(())
    };
    let knowledge = Knowledge::new();
    let scene_like_it = || scene(Does::Well, awaits_launch).knowing(&knowledge);
    // The second trial begins before the first one has ended: both may wait for the same compiler.
    let scenes = [scene_like_it(), scene_like_it()];
    for scene in &scenes {
        let report = scene.run().unwrap();
        assert!(scene.packages_of_gpu(&report).is_empty(), "{report:?}");
    }
    for scene in &scenes {
        scene.let_it_end();
        assert!(knowledge.to_string().contains("device gpu:0*64 rate peak setup "), "{knowledge}");
    }
    let third = scene_like_it();
    third.run().unwrap();
    third.let_it_end();
    assert!(knowledge.to_string().contains("device gpu:0*64 tried rate "), "{knowledge}");
}

/// The host has all of such a run in its first package, so that nobody else ever had a part.
#[test]
fn runs_of_one_package_become_those_of_the_faster_device() {
    let knowledge = Knowledge::new();
    let awaits_trial: OnHost = |_, cues| {
        cues.leave_time_for_a_trial();
        cues.may_end.set();
        Ok(())
    };
    let run = || {
        let scene = scene(Does::Well, awaits_trial).knowing(&knowledge);
        scene.cues.may_end.set();
        let report = scene.run_of(LOCAL).unwrap();
        let decisions = report.decisions.as_ref().expect("they are recorded");
        decisions.replay().unwrap();
        let tries = decisions.to_string().contains("\nopens u0 undivided threads ");
        (scene.packages_of_gpu(&report).len(), tries)
    };
    // The first run shows what the host takes: nobody is asked to try a device out before. And the first trial may have been a compiler's time.
    assert_eq!(run(), (0, false));
    for told in ["device gpu:0*64 rate peak setup ", "device gpu:0*64 tried rate "] {
        assert_eq!(run(), (0, true), "{knowledge}");
        let seen = knowledge.clone();
        watched("the end of the trial", move || {
            while !seen.to_string().contains(told) {
                std::thread::yield_now();
            }
        })
        .join();
    }
    assert!((0..4).any(|_| run() == (1, false)), "{knowledge}");
}

/// A driver compiles in its launch, or hangs there.
#[test]
fn a_run_does_not_wait_for_a_launch() {
    let mut scene = scene(Does::LaunchesLong, |package, cues| {
        if package == 0 {
            cues.launched.wait();
        }
        Ok(())
    });
    let report = scene.run().unwrap();
    scene.check(&report);
    assert!(scene.packages_of_gpu(&report).is_empty(), "{report:?}");
    scene.kernel = Kernel::new("none", 1);
    scene.let_it_end();
    assert_eq!(Arc::strong_count(&scene.cues.kept), 1, "no copy of the kernel is left");
}

/// While it reads what only one of them can use at a time, those who compute would wait for it.
#[test]
fn a_device_that_shares_its_inputs_exclusively_is_not_tried_out() {
    for (sharing, is_tried) in [(Concurrency::Exclusive, false), (Concurrency::BimapFull, true)] {
        let scene = scene_sharing(sharing, |package, cues| {
            if package == 0 {
                cues.leave_time_for_a_trial();
            }
            cues.may_end.set();
            Ok(())
        });
        let report = scene.run().unwrap();
        scene.check(&report);
        assert_eq!(scene.cues.trials.load(Ordering::SeqCst) > 0, is_tried, "{sharing:?}");
        // A trial may find its inputs in use, and then it is none; nobody is to ask for it.
        let decisions = report.decisions.expect("they are recorded").to_string();
        assert_eq!(decisions.contains("\ntries u1 "), is_tried, "{sharing:?}: {decisions}");
    }
}

#[test]
fn a_trial_that_fails_is_as_if_there_had_been_none() {
    for does in [
        Does::CopiesNothing,
        Does::PanicsAsked,
        Does::NotStarted,
        Does::Fails,
        Does::Panics,
        Does::FailsInFlight,
        Does::CopyFails,
        Does::CopyPanics,
        Does::Exchanges,
    ] {
        let computes = || {
            let scene = scene(does, |package, cues| {
                if package == 0 {
                    cues.leave_time_for_a_trial();
                }
                cues.may_end.set();
                Ok(())
            });
            let report = scene.run().unwrap();
            scene.check(&report);
            let is_tried = !matches!(does, Does::CopiesNothing | Does::PanicsAsked);
            assert_eq!(scene.cues.trials.load(Ordering::SeqCst), u64::from(is_tried), "{does:?}");
            assert_eq!(
                scene.cues.copied.is_set(),
                matches!(does, Does::CopyFails | Does::CopyPanics),
                "{does:?}"
            );
            assert!(report.failures.is_empty(), "{does:?}: {report:?}");
            // What it computes in the run says how fast it is, and the trial does not.
            let known = scene.knowledge.to_string();
            let rates = known.split_once("device gpu:0*64 rate").map_or("", |(_, rest)| rest);
            let rates = rates.split_once(" peak").map_or("", |(rates, _)| rates);
            assert!(rates.split_whitespace().count() <= 1, "{does:?}: {known}");
            scene.cues.others.load(Ordering::SeqCst) > 0
        };
        // On a busy machine the host may be done before.
        assert!((0..20).any(|_| computes()), "{does:?}: it computes as others do");
    }
}

/// Whoever began is gone, and the one that was tried out computes what is left, while nobody knows how its trial ends.
#[test]
fn a_host_that_fails_during_a_trial_leaves_the_rest_to_the_device() {
    let scene = scene(Does::Well, |package, cues| {
        cues.launched.wait();
        if package == 1 { Err("it failed".into()) } else { Ok(()) }
    });
    let report = scene.run().unwrap();
    scene.check(&report);
    assert_eq!(report.failures.iter().map(|failure| failure.device).collect::<Vec<_>>(), [CPU]);
    assert!(scene.cues.others.load(Ordering::SeqCst) > 0);
    scene.let_it_end();
}

/// So slow that a trial is of some items only, by the prices of the links.
fn slow() -> LinkSpeed {
    LinkSpeed { bytes_per_s: 200_000, ..LinkSpeed::default() }
}

/// The device fails by itself, perhaps while what was claimed from its trial is copied: then that package is lost to it too, and the host computes it.
#[test]
fn what_was_claimed_for_a_device_that_retires_is_computed_again() {
    let retires = || {
        let scene = scene_with(DeviceKind::Gpu, slow(), Does::FailsAlone, |package, cues| {
            match package {
                0 => {
                    cues.launched.wait();
                    cues.may_end.set();
                }
                // The other one begins with the next package.
                1 => wait_for(|| cues.copied.is_set(), Duration::from_secs(1)),
                2 => wait_for(|| cues.refused.is_set(), Duration::from_secs(1)),
                _ => {}
            }
            Ok(())
        });
        let report = scene.run().unwrap();
        scene.check(&report);
        let failed: Vec<_> = report.failures.iter().map(|failure| failure.device).collect();
        let is_asked = scene.cues.refused.is_set();
        assert_eq!(failed, if is_asked { vec![GPU] } else { vec![] }, "{report:?}");
        is_asked
    };
    // On a busy machine the host may have all that the trial did not compute.
    assert!((0..20).any(|_| retires()), "it fails by itself");
}

/// Nobody is left but the trial.
#[test]
fn what_a_trial_has_computed_counts_when_nobody_is_left() {
    let scene = scene(Does::FailsAlone, |package, cues| {
        if package == 0 {
            cues.launched.wait();
            return Ok(());
        }
        cues.may_end.set();
        cues.copied.wait();
        Err("it failed".into())
    });
    let error = scene.run().unwrap_err();
    assert!(matches!(error, RunError::Unfinished { missing: 1..ITEMS, .. }), "{error:?}");
}

#[test]
fn a_cancelled_run_does_not_wait_for_a_trial() {
    let scene = scene(Does::Well, |package, cues| {
        if package == 0 {
            cues.launched.wait();
        }
        Ok(())
    });
    let mut running = Coexecutor::new(&scene.platform).start(&scene.kernel, ITEMS).unwrap();
    scene.cues.launched.wait();
    running.cancel();
    let ended = watched("a cancelled run", move || running.wait()).join();
    assert!(matches!(ended, Err(RunError::Cancelled { .. })), "{ended:?}");
    scene.let_it_end();
    assert!(!scene.cues.copied.is_set(), "nobody is there to take it");
}

/// A kernel that reads what it changes would have to be given a copy of it. Such a kernel is not tried out, and neither is a processor.
#[test]
fn what_is_changed_in_place_is_not_tried_out() {
    let scene = scene(Does::Well, |package, cues| {
        std::thread::sleep(Duration::from_millis(if package == 0 { 5 } else { 0 }));
        cues.may_end.set();
        Ok(())
    });
    let gpu = Gpu {
        platform: Platform::clone(&scene.platform),
        target: scene.target.raw().clone(),
        does: Does::Well,
        cues: scene.cues.clone(),
    };
    let idle = |package: &Package, _: &mut Grants| -> Result<Fence, KernelError> {
        std::thread::sleep(Duration::from_millis(if package.start() == 0 { 5 } else { 0 }));
        Ok(Fence::done(0))
    };
    scene.platform.acquire(CPU).write(&scene.target).wait().unwrap().release().unwrap();
    let kernel = Kernel::new("change", LOCAL).read(&scene.source).read_write(&scene.target);
    let kernel = kernel.variant(CPU, idle).launchers([(GPU, gpu)]).unwrap();
    let run = Coexecutor::new(&scene.platform);
    watched("a run", move || run.run(&kernel, ITEMS).unwrap()).join();
    assert_eq!(scene.cues.trials.load(Ordering::SeqCst), 0);
}

/// It would compute on the host's own cores.
#[test]
fn a_processor_is_not_tried_out() {
    let on_host: OnHost = |package, cues| {
        std::thread::sleep(Duration::from_millis(if package == 0 { 5 } else { 0 }));
        cues.may_end.set();
        Ok(())
    };
    for (kind, trials) in [(DeviceKind::Cpu, 0), (DeviceKind::Accelerator, 1)] {
        let scene = scene_with(kind, LinkSpeed::default(), Does::Well, on_host);
        scene.check(&scene.run().unwrap());
        assert_eq!(scene.cues.trials.load(Ordering::SeqCst), trials, "{kind}");
    }
}

/// Eight devices that never end have all the threads that there are for trials. Others are called up as if there were no trials.
#[test]
fn where_no_thread_is_to_be_had_there_is_no_trial() {
    // The threads are those of the process, and other tests would have some of them.
    let (name, alone) = ("where_no_thread_is_to_be_had_there_is_no_trial", "DML_TEST_ALONE");
    if ["NEXTEST", alone].iter().all(|variable| std::env::var_os(variable).is_none()) {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let output = command.args(["--exact", name]).env(alone, "1").output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && told.contains("1 passed"), "{output:?}");
        return;
    }
    let on_host: OnHost = |package, cues| {
        if package == 0 {
            cues.launched.wait();
        }
        Ok(())
    };
    let held: Vec<Scene> = (0..8).map(|_| scene(Does::Well, on_host)).collect();
    for scene in &held {
        scene.check(&scene.run().unwrap());
    }
    let late = scene(Does::Well, |package, cues| {
        std::thread::sleep(Duration::from_millis(if package == 0 { 5 } else { 0 }));
        if package == 2 {
            wait_for(|| cues.others.load(Ordering::SeqCst) > 0, LONG);
        }
        Ok(())
    });
    late.check(&late.run().unwrap());
    assert_eq!(late.cues.trials.load(Ordering::SeqCst), 0);
    assert!(late.cues.others.load(Ordering::SeqCst) > 0, "it was called up");
    held.iter().for_each(Scene::let_it_end);
    // The threads are there again.
    let again = scene(Does::Well, on_host);
    again.cues.may_end.set();
    again.check(&again.run().unwrap());
    assert!(again.cues.copied.is_set());
}

/// The trial asks for what it reads, and does not wait for it: it would stand in the way of whoever waits behind it.
#[test]
fn a_trial_whose_inputs_are_in_use_is_none() {
    let scene = scene(Does::Well, |package, cues| {
        // There is time for a trial.
        std::thread::sleep(Duration::from_millis(if package == 0 { 20 } else { 0 }));
        cues.may_end.set();
        Ok(())
    });
    // The last items are the trial's first, and the host's last.
    let last = scene.source.range(ITEMS - LOCAL..ITEMS);
    let held = scene.platform.acquire(CPU).read_write(&last).wait().unwrap().hand_over();
    let (run, kernel) = (Coexecutor::new(&scene.platform).record_decisions(), scene.kernel.clone());
    let running = watched("a run", move || run.run(&kernel, ITEMS));
    // On a busy machine the host may leave nothing to the device but what is held.
    let begun = Instant::now();
    while scene.cues.others.load(Ordering::SeqCst) == 0 && begun.elapsed() < Duration::from_secs(2) {
        std::thread::yield_now();
    }
    held.clean().unwrap();
    let report = running.join().unwrap();
    scene.check(&report);
    assert_eq!(scene.cues.trials.load(Ordering::SeqCst), 0);
}
