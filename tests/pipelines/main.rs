//! Several packages of a device under way at once, and devices that are left out.

#![cfg(not(dml_loom))]

mod late;

use dml::Kernel;
use dml::arenas::{Null, kit};
use dml::core::internal::sync::{Arc, Condvar, Mutex};
use dml::core::{
    Allocation, ArenaDesc, ArenaId, ArenaKind, Binding, Completion, Concurrency, DeviceDesc, DeviceId,
    DeviceKind, DeviceSet, Fence, Grants, Link, LinkSpeed, Platform, PlatformBuilder, TransferError,
};
use dml::prelude::*;
use dml::scheduler::policy::Decision;
use dml::scheduler::{Hooks, KernelError, Knowledge, Report, RunError, UnitId, policy::Computed};
use dml_verify::{Audited, watched};
use std::task::{Poll, Waker};
use std::time::Duration;

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);
const ITEMS: u64 = 400;

/// Main memory, and a device with a memory of its own.
fn platform() -> Audited {
    platform_with(|_, _| ())
}

/// The same, with more between main memory and the device's.
fn platform_with(more: impl FnOnce(&mut PlatformBuilder, ArenaId)) -> Audited {
    platform_of(1, more)
}

/// The same, of a processor with so many cores.
fn platform_of(cores: u32, more: impl FnOnce(&mut PlatformBuilder, ArenaId)) -> Audited {
    platform_priced(cores, LinkSpeed::default(), more)
}

/// The same, where transfers have a price.
fn platform_priced(
    cores: u32,
    speed: LinkSpeed,
    more: impl FnOnce(&mut PlatformBuilder, ArenaId),
) -> Audited {
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu).with_compute_units(cores));
    builder.add_device(DeviceDesc::new("gpu:0", DeviceKind::Gpu));
    let cpu = DeviceSet::of(CPU);
    let main = ArenaDesc::new("main", ArenaKind("test"), CPU).with_remotes(cpu);
    builder.add_arena(Arc::new(Null::backed(main.with_concurrency(Concurrency::BimapFull))));
    let video = ArenaDesc::new("video", ArenaKind("test"), GPU).with_remotes(cpu);
    let video = builder.add_arena(Arc::new(Null::backed(video)));
    kit::join_staged(&mut builder, ArenaId(0), video, speed);
    more(&mut builder, video);
    Audited::new(builder.build().expect("a sound platform"))
}

/// target[i] = source[i] * 3 + i, in the memory of a device.
fn compute(
    platform: &Platform,
    device: DeviceId,
    buffers: [&Buffer<u32>; 2],
    package: &Package,
    grants: &mut Grants,
) {
    let home = platform.home(device).expect("it has one");
    let arena = platform.arena(home).downcast_ref::<Null>().expect("all are");
    let part = |buffer: &Buffer<u32>| buffer.raw().range(package.start() * 4..package.end() * 4);
    let source: Vec<u32> =
        bytemuck::pod_collect_to_vec(&arena.read(grants, &part(buffers[0])).expect("granted"));
    let target: Vec<u32> =
        source.iter().zip(package.range()).map(|(value, item)| triple(*value, item)).collect();
    arena.write(grants, &part(buffers[1]), bytemuck::cast_slice(&target)).expect("granted for writing");
}

fn triple(value: u32, item: u64) -> u32 {
    value.wrapping_mul(3).wrapping_add(item as u32)
}

/// A kernel and its buffers. `ends` makes the fence of each package, from its number on its device.
struct Work {
    platform: Audited,
    source: Vec<u32>,
    target: Buffer<u32>,
    kernel: Kernel,
}

type Ends = dyn Fn(DeviceId, u64) -> Result<Fence, KernelError> + Send + Sync;

impl Work {
    fn new(ends: Arc<Ends>) -> Self {
        Self::on(platform(), ends)
    }

    fn on(platform: Audited, ends: Arc<Ends>) -> Self {
        let source: Vec<u32> = (0..ITEMS as u32).map(|i| i.wrapping_mul(2_654_435_761) | 1).collect();
        let input = platform.buffer_from(source.clone()).expect("a small buffer");
        let target = platform.buffer::<u32>(ITEMS).build().expect("a small buffer");
        let mut kernel = Kernel::new("triple", 10)
            .argument(Argument::part(&input, Access::ReadOnly, Footprint::PerItem { bytes: 4 }))
            .argument(Argument::part(&target, Access::WriteInvalidate, Footprint::PerItem { bytes: 4 }));
        for device in [CPU, GPU] {
            let (platform, buffers, ends) = (platform.clone(), [input.clone(), target.clone()], ends.clone());
            let launched = std::sync::atomic::AtomicU64::new(0);
            kernel = kernel.variant(device, move |package: &Package, grants: &mut Grants| {
                compute(&platform, device, buffers.each_ref(), package, grants);
                ends(device, launched.fetch_add(1, std::sync::atomic::Ordering::SeqCst))
            });
        }
        Self { platform, source, target, kernel }
    }

    fn assert_computed(&self) {
        let target = self.target.read().expect("it was computed");
        let expected = self.source.iter().zip(0..).map(|(value, item)| triple(*value, item));
        assert!(expected.eq(target.iter().copied()));
    }
}

/// A number that grows, and that others wait for.
#[derive(Default)]
struct Turns {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Turns {
    fn add(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    fn wait_for(&self, count: u64) {
        let mut now = self.count.lock();
        while *now < count {
            now = self.changed.wait(now);
        }
    }
}

/// Counts the packages whose results are where they belong.
struct Done(Arc<Turns>);

impl Hooks for Done {
    fn package_done(&self, _: &Package, _: DeviceId) {
        self.0.add();
    }
}

/// Runs the kernel on the GPU in packages of 40 items, and fails where that takes forever.
fn run_in_ten(work: Work, done: Arc<Turns>) -> Work {
    let run = watched("a run in ten packages", move || {
        let coexecutor = Coexecutor::new(&work.platform).devices([GPU]).policy("dynamic:10".parse().unwrap());
        let report = coexecutor.run_with(&work.kernel, ITEMS, &Done(done)).expect("nothing is wrong");
        assert_eq!(report.packages.len(), 10);
        assert_in_order(&report);
        work
    });
    run.join()
}

/// The turns of every package of the GPU come one after the other, and the report's sums are those of its
/// packages.
fn assert_in_order(report: &Report) {
    for record in &report.packages {
        let turns = [record.start, record.begun, record.computed, record.end];
        assert!(turns.windows(2).all(|pair| pair[0] < pair[1]), "{record:?}");
    }
    for pair in report.packages.windows(2) {
        assert!(pair[0].package.index() < pair[1].package.index());
        assert!(pair[0].computed <= pair[1].begun, "the device computes one package at a time: {pair:?}");
    }
    let end = report.packages.iter().map(|record| record.end).max().expect("it has packages");
    let [device] = &report.devices[..] else { panic!("{:?}", report.devices) };
    assert_eq!((device.end, report.duration), (end, end));
    assert!(device.busy <= end - report.packages[0].start, "time counts once");
}

#[test]
fn the_next_package_is_launched_before_the_one_in_front_has_ended() {
    let launched = Arc::new(Turns::default());
    let turns = launched.clone();
    let work = Work::new(Arc::new(move |_, number| {
        turns.add();
        let turns = turns.clone();
        // The last one has none behind it.
        Ok(Fence::running(move || {
            turns.wait_for((number + 2).min(10));
            Ok(0)
        }))
    }));
    run_in_ten(work, Arc::default()).assert_computed();
}

#[test]
fn results_are_brought_while_the_next_package_is_computed() {
    let done = Arc::new(Turns::default());
    let turns = done.clone();
    let work = Work::new(Arc::new(move |_, number| {
        let turns = turns.clone();
        Ok(Fence::running(move || {
            turns.wait_for(number);
            Ok(0)
        }))
    }));
    run_in_ten(work, done).assert_computed();
}

/// Work that has ended when so many packages are launched, which its fence says when it is asked. A wait for
/// other work takes a millisecond.
struct Ended(Arc<Turns>, u64);

impl Completion for Ended {
    fn wait(self: Box<Self>) -> Result<u64, TransferError> {
        if !self.has_ended() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(0)
    }

    fn poll(&mut self, _: &Waker) -> Poll<Result<u64, TransferError>> {
        Poll::Ready(Ok(0))
    }

    fn has_ended(&self) -> bool {
        *self.0.count.lock() >= self.1
    }
}

/// Preparing a package takes as long as its inputs travel.
#[test]
fn results_of_a_package_that_has_ended_are_brought_while_the_next_one_is_prepared() {
    let done = Arc::new(Turns::default());
    let turns = done.clone();
    let work = Work::new(Arc::new(move |_, number| {
        turns.wait_for(number);
        Ok(ended(&turns, 0))
    }));
    run_in_ten(work, done).assert_computed();
}

fn ended(launched: &Arc<Turns>, count: u64) -> Fence {
    Fence::awaited(Ended(launched.clone(), count))
}

/// Each waits for the other one's launch: with fewer threads than devices neither would end.
#[test]
fn devices_launch_at_once() {
    let launched = Arc::new(Turns::default());
    let work = Work::new(Arc::new(move |_, _| {
        launched.add();
        launched.wait_for(2);
        Ok(Fence::done(0))
    }));
    let run = watched("a run on two devices", move || {
        let coexecutor =
            Coexecutor::new(&work.platform).devices([CPU, GPU]).policy("static".parse().unwrap());
        let report = coexecutor.run(&work.kernel, ITEMS).expect("nothing is wrong");
        assert_eq!(report.packages.len(), 2);
        work
    });
    run.join().assert_computed();
}

/// Brings results for as long as the unit does not go on to its next packages.
struct Brings(Arc<Turns>);

impl Hooks for Brings {
    fn package_done(&self, package: &Package, _: DeviceId) {
        // When a package is done, the two behind it are launched. The one after them is not before the unit
        // has gone on.
        self.0.wait_for((package.index() + 4).min(10));
    }
}

#[test]
fn the_next_package_is_launched_while_results_are_brought() {
    let launched = Arc::new(Turns::default());
    let turns = launched.clone();
    let work = Work::new(Arc::new(move |_, _| {
        turns.add();
        Ok(Fence::running(|| Ok(0)))
    }));
    let run = watched("a run that goes on while results are brought", move || {
        let coexecutor = Coexecutor::new(&work.platform).devices([GPU]).policy("dynamic:10".parse().unwrap());
        coexecutor.run_with(&work.kernel, ITEMS, &Brings(launched)).expect("nothing is wrong");
        work
    });
    run.join().assert_computed();
}

/// What the reader reads, once it is made.
type Place = Arc<Mutex<Option<(Platform, Buffer<u32>)>>>;

/// A unit with a package in flight must not wait for a buffer: here the reader waits for the first package,
/// and the second one would wait behind the reader.
#[test]
fn a_reader_of_everything_comes_between_two_packages_in_flight() {
    let reader: Arc<Mutex<Option<std::thread::JoinHandle<bool>>>> = Arc::default();
    let place: Place = Arc::default();
    let (there, asked) = (place.clone(), reader.clone());
    let work = Work::new(Arc::new(move |_, number| {
        if number == 0 {
            let (platform, target) = there.lock().clone().expect("it is there");
            let begun = Arc::new(Turns::default());
            let begins = begun.clone();
            let thread = std::thread::spawn(move || {
                begins.add();
                // What no package has computed yet cannot be read, and a lost place in the queue would not be
                // noticed.
                platform.acquire(CPU).read_write(&target).wait().map(Grants::release).is_ok()
            });
            begun.wait_for(1);
            // The request is in the queue by now, or will be soon; both orders have to end.
            std::thread::sleep(Duration::from_millis(20));
            *asked.lock() = Some(thread);
        }
        Ok(Fence::running(|| {
            std::thread::sleep(Duration::from_millis(1));
            Ok(0)
        }))
    }));
    let mut view = work.target.write().expect("nobody uses it");
    view.fill(7);
    view.release().expect("it was written");
    *place.lock() = Some((Platform::clone(&work.platform), work.target.clone()));
    let work = run_in_ten(work, Arc::default());
    let thread = reader.lock().take().expect("it was started");
    watched("a reader of everything", move || assert!(thread.join().expect("it does not panic"))).join();
    place.lock().take();
    work.assert_computed();
}

/// A hook holds nothing of the run: it may read what is done, and compute with it on all devices.
#[test]
fn a_hook_may_compute_with_what_the_run_has_done() {
    struct Again {
        platform: Platform,
        kernel: Kernel,
        computed: Buffer<u32>,
        seen: Mutex<Vec<String>>,
    }
    impl Hooks for Again {
        fn package_done(&self, _: &Package, _: DeviceId) {
            let run = Coexecutor::new(&self.platform).policy("dynamic:4".parse().unwrap());
            let told = run.run(&self.kernel, ITEMS).map(drop).map_err(|error| error.to_string());
            let read = self.computed.read().map(drop).map_err(|error| error.to_string());
            self.seen.lock().extend([told, read].into_iter().filter_map(Result::err));
        }
    }
    for collect_on in [None, Some(CPU)] {
        let work = Work::new(Arc::new(|_, _| {
            Ok(Fence::running(|| {
                std::thread::sleep(Duration::from_micros(500));
                Ok(0)
            }))
        }));
        let mut view = work.target.write().expect("nobody uses it");
        view.fill(7);
        view.release().expect("it was written");
        let platform = Platform::clone(&work.platform);
        let spare = platform.buffer::<u32>(ITEMS).build().expect("a small buffer");
        let reads = |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
            let _ = grants;
            Ok(Fence::done(package.items()))
        };
        let whole = Argument::part(&spare, Access::ReadWrite, Footprint::PerItem { bytes: 4 });
        let mut view = spare.write().expect("nobody uses it");
        view.fill(1);
        view.release().expect("it was written");
        let kernel = Kernel::new("again", 10).read_all(&work.target).argument(whole);
        let kernel = [CPU, GPU].into_iter().fold(kernel, |kernel, device| kernel.variant(device, reads));
        let hooks = Again { platform, kernel, computed: work.target.clone(), seen: Mutex::new(Vec::new()) };
        let run = watched("a run whose hooks run kernels", move || {
            let coexecutor = Coexecutor::new(&work.platform).policy("dynamic:12".parse().unwrap());
            coexecutor
                .collect_on(collect_on)
                .run_with(&work.kernel, ITEMS, &hooks)
                .expect("nothing is wrong");
            let seen = std::mem::take(&mut *hooks.seen.lock());
            (work, seen)
        });
        let (work, seen) = run.join();
        assert_eq!(seen, [""; 0]);
        work.assert_computed();
    }
}

#[test]
fn what_a_run_could_not_do_is_refused_before_it_begins() {
    let work = Work::new(Arc::new(|_, _| Ok(Fence::done(0))));
    let run =
        |kernel: &Kernel| Coexecutor::new(&work.platform).run(kernel, ITEMS).expect_err("it is refused");
    // The calling thread would wait for itself.
    let mut view = work.target.write().expect("nobody uses it");
    view.fill(7);
    let told = run(&work.kernel);
    let buffer = work.target.raw().name();
    assert_eq!(told, RunError::HeldByCaller { kernel: "triple".to_owned(), index: 1, buffer });
    view.release().expect("it was written");
    // A footprint counts from the start of the buffer, not from that of a part.
    let variant = |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
        let _ = grants;
        Ok(Fence::done(package.items()))
    };
    let part = || Kernel::new("part", 10).read_all(&work.target.range(100..200)).variant(CPU, variant);
    let told = run(&part());
    let buffer = work.target.raw().name();
    assert_eq!(told, RunError::PartOfBuffer { kernel: "part".to_owned(), index: 0, buffer, bytes: 400..800 });
    // Packages would read what others write.
    let twice = Kernel::new("twice", 10).read_all(&work.target).write(&work.target).variant(CPU, variant);
    let told = run(&twice);
    assert_eq!(told, RunError::OneBufferTwice { kernel: "twice".to_owned(), first: 0, second: 1 });
}

#[test]
fn a_package_that_fails_in_flight_takes_no_other_along() {
    for failing in [0, 1, 3] {
        let work = Work::new(Arc::new(move |device, number| {
            let fails = device == GPU && number == failing;
            Ok(Fence::running(move || {
                let refused = TransferError::Framework { call: "run", code: -5, message: "no".into() };
                if fails { Err(refused) } else { Ok(0) }
            }))
        }));
        let run = watched("a run with a failing package", move || {
            let coexecutor = Coexecutor::new(&work.platform).policy("dynamic:10".parse().unwrap());
            (coexecutor.run(&work.kernel, ITEMS), work)
        });
        let (report, work) = run.join();
        let report = report.expect("the other device finishes it");
        let items: u64 = report.packages.iter().map(|record| record.package.items()).sum();
        assert_eq!(items, ITEMS, "every item once");
        assert!(report.failures.iter().all(|failure| failure.device == GPU));
        work.assert_computed();
    }
}

/// The GPU takes twenty milliseconds for every package, the host none.
fn slow_gpu() -> Work {
    Work::new(Arc::new(|device, _| {
        Ok(if device == GPU {
            Fence::running(|| {
                std::thread::sleep(Duration::from_millis(20));
                Ok(0)
            })
        } else {
            Fence::done(0)
        })
    }))
}

fn run(work: &Work, knowledge: &Knowledge) -> Result<Report, RunError> {
    Coexecutor::new(&work.platform).knowledge(knowledge).run(&work.kernel, ITEMS)
}

#[test]
fn a_device_that_only_lengthens_the_run_is_left_out_with_a_reason() {
    let (work, knowledge) = (slow_gpu(), Knowledge::new());
    let mut last = None;
    for _ in 0..12 {
        last = Some(run(&work, &knowledge).expect("nothing is wrong"));
        work.assert_computed();
    }
    let last = last.expect("it ran");
    let [left_out] = &last.left_out[..] else { panic!("{:?}", last.left_out) };
    assert_eq!(left_out.device, GPU);
    assert!(!left_out.reason.to_string().is_empty());
    assert_eq!(last.balance(), 1.0, "who was left out does not count");
    // What was learned can be kept.
    let again = run(&work, &knowledge.detached()).expect("nothing is wrong");
    assert_eq!(again.left_out.len(), 1);
}

#[test]
fn a_run_teaches_how_fast_its_device_is() {
    for device in [CPU, GPU] {
        let knowledge = Knowledge::new();
        let work = Work::new(Arc::new(|_, _| {
            Ok(Fence::running(|| {
                std::thread::sleep(Duration::from_millis(1));
                Ok(0)
            }))
        }));
        let coexecutor = Coexecutor::new(&work.platform).knowledge(&knowledge).devices([device]);
        let other = coexecutor.clone().policy("dynamic:10".parse().unwrap());
        other.run(&work.kernel, ITEMS).expect("nothing is wrong");
        assert_eq!(knowledge.kernels(), [], "only runs of the default policy teach");
        for _ in 0..2 {
            coexecutor.run(&work.kernel, ITEMS).expect("nothing is wrong");
        }
        let name = if device == CPU { "cpu*1" } else { "gpu:0*1" };
        assert_eq!(knowledge.kernels(), [(work.kernel.name().to_owned(), vec![name.to_owned()])]);
        work.assert_computed();
    }
}

/// Where a device finds the bytes in storage that it shares, it computes at another speed than where they are
/// brought.
#[test]
fn a_device_that_uses_buffers_in_place_is_known_as_another_one() {
    let bind = |builder: &mut PlatformBuilder, video| {
        let allocation = Allocation::Bound(Concurrency::Exclusive);
        let link = Link { from: ArenaId(0), to: video, source_via: CPU, target_via: CPU, allocation };
        builder.add_link(link, Arc::new(Binding::new(LinkSpeed::default())));
        builder.prefer_binding(ArenaId(0), video);
    };
    let known_as = |platform: &Platform, of_the_application: bool| {
        let buffer = if of_the_application {
            platform.buffer_from(vec![0_u32; ITEMS as usize]).expect("a small buffer")
        } else {
            platform.buffer::<u32>(ITEMS).build().expect("a small buffer")
        };
        let part = |access| Argument::part(&buffer, access, Footprint::PerItem { bytes: 4 });
        let kernel = Kernel::new("fill", 10).argument(part(Access::WriteInvalidate));
        let kernel = kernel.variant(GPU, |_: &Package, grants: &mut Grants| {
            let _ = grants;
            Ok(Fence::done(0))
        });
        let knowledge = Knowledge::new();
        Coexecutor::new(platform).knowledge(&knowledge).run(&kernel, ITEMS).expect("nothing is wrong");
        let [(_, devices)] = &knowledge.kernels()[..] else { panic!("one has run") };
        devices[0].clone()
    };
    let (apart, sharing) = (platform(), platform_with(bind));
    assert_eq!(known_as(&apart, false), "gpu:0*1");
    assert_eq!(known_as(&sharing, false), "gpu:0*1 in place");
    assert_eq!(
        known_as(&sharing, true),
        "gpu:0*1 in place",
        "the root's storage is the application's vector"
    );
}

#[test]
fn the_host_begins_a_run_of_which_nothing_is_known_and_others_are_called_up() {
    let gpu = Arc::new(Turns::default());
    let turns = gpu.clone();
    let work = Work::new(Arc::new(move |device, number| {
        if device == GPU {
            turns.add();
            return Ok(Fence::done(0));
        }
        // A run of which one package takes so long is long enough for the other one, which is called up
        // meanwhile.
        assert!(number > 0 || *turns.count.lock() == 0, "the host begins");
        turns.wait_for(1);
        Ok(Fence::done(0))
    }));
    let run = watched("a run in which the GPU is called up", move || {
        let knowledge = Knowledge::new();
        let report = run(&work, &knowledge).expect("nothing is wrong");
        (report, work)
    });
    let (report, work) = run.join();
    assert!(report.devices.iter().all(|device| device.items > 0), "{:?}", report.devices);
    assert!(report.left_out.is_empty());
    work.assert_computed();
}

/// Brings the results of the first package of the GPU for as long as the GPU has launched nothing further.
struct BringsTheFirst(Arc<Turns>, Mutex<bool>);

impl Hooks for BringsTheFirst {
    fn package_done(&self, _: &Package, device: DeviceId) {
        if device == GPU && !std::mem::replace(&mut *self.1.lock(), true) {
            self.0.wait_for(2);
        }
    }
}

/// The unit's speed is unknown, so it has one package at a time. But a package's time is known when the
/// package ends, and not only when its results have arrived.
#[test]
fn a_unit_of_which_nothing_is_known_goes_on_while_its_results_are_brought() {
    let launched = Arc::new(Turns::default());
    let turns = launched.clone();
    let work = Work::new(Arc::new(move |device, _| {
        if device == GPU {
            turns.add();
        } else {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Fence::done(0))
    }));
    let run = watched("a run in which a GPU is called up", move || {
        let hooks = BringsTheFirst(launched, Mutex::new(false));
        let coexecutor = Coexecutor::new(&work.platform).record_decisions();
        let report = coexecutor.run_with(&work.kernel, ITEMS, &hooks).expect("nothing is wrong");
        (report, work)
    });
    let (report, work) = run.join();
    work.assert_computed();
    // What the policy hears of the end is what it hears later.
    let decisions = report.decisions.expect("asked for");
    let told = |what: fn(&Decision) -> Option<&Computed>, unit: usize| -> Vec<Computed> {
        let told = decisions.decisions().iter().filter_map(what);
        told.filter(|computed| computed.unit == UnitId(unit)).cloned().collect()
    };
    let ended =
        |unit| told(|decision| if let Decision::Ended(of) = decision { Some(of) } else { None }, unit);
    let computed =
        |unit| told(|decision| if let Decision::Computed(of) = decision { Some(of) } else { None }, unit);
    let packages = |device| report.packages.iter().filter(|record| record.device == device).count();
    assert_eq!((ended(0).len(), computed(0).len()), (0, packages(CPU)), "its results are where they belong");
    assert_eq!((ended(1).len(), computed(1).len()), (packages(GPU), packages(GPU)));
    for early in ended(1) {
        let is_it = |later: &Computed| (later.items, later.ended) == (early.items, early.ended);
        assert!(computed(1).iter().any(is_it), "{early:?}: {decisions}");
    }
}

/// A sample of several threads may be their waking up and little else, or be one thread's.
#[test]
fn who_opens_a_run_has_its_devices_threads() {
    for (cores, opens) in [(1, r#"{"unit":0,"fills":10}"#), (2, r#"{"unit":0,"fills":20}"#)] {
        let work = Work::on(platform_of(cores, |_, _| ()), Arc::new(|_, _| Ok(Fence::done(0))));
        let coexecutor = Coexecutor::new(&work.platform).knowledge(&Knowledge::new()).record_decisions();
        let report = coexecutor.run(&work.kernel, ITEMS).expect("nothing is wrong");
        let decisions = report.decisions.expect("asked for").to_string();
        assert!(decisions.contains(opens), "{cores} cores: {decisions}");
    }
}

/// The report gives a reason for every device that got no work, even if none was decided before the run.
#[test]
fn who_is_never_called_up_is_told_as_left_out() {
    // Its results would travel for seconds.
    let slow = LinkSpeed { bytes_per_s: 10, ..LinkSpeed::default() };
    let work = Work::on(platform_priced(1, slow, |_, _| ()), Arc::new(|_, _| Ok(Fence::done(0))));
    let report = Coexecutor::new(&work.platform).run(&work.kernel, 80).expect("nothing is wrong");
    let [left_out] = &report.left_out[..] else { panic!("{:?}", report.left_out) };
    assert_eq!(left_out.device, GPU);
    assert!(left_out.reason.to_string().contains("not called up"), "{}", left_out.reason);
    assert_eq!(report.balance(), 1.0, "who was left out does not count");
}

/// Who was called up and came too late for any package is left out, and nothing else. It does not count for
/// the balance.
#[test]
fn who_comes_too_late_is_told_as_left_out() {
    struct Late(Arc<Turns>);
    impl Hooks for Late {
        fn unit_start(&self, _: UnitId, device: DeviceId) {
            if device == GPU {
                self.0.wait_for(ITEMS);
            }
        }
        fn package_done(&self, package: &Package, _: DeviceId) {
            package.range().for_each(|_| self.0.add());
        }
    }
    let work = Work::new(Arc::new(|_, _| {
        std::thread::sleep(Duration::from_millis(5));
        Ok(Fence::done(0))
    }));
    let report = watched("a run whose GPU comes too late", move || {
        let late = Late(Arc::default());
        let report = Coexecutor::new(&work.platform).run_with(&work.kernel, ITEMS, &late);
        work.assert_computed();
        report.expect("nothing is wrong")
    });
    let report = report.join();
    assert_eq!(report.devices[1].items, 0, "{:?}", report.devices);
    let [left_out] = &report.left_out[..] else { panic!("{:?}", report.left_out) };
    assert_eq!(left_out.device, GPU);
    assert!(left_out.reason.to_string().contains("too late"), "{}", left_out.reason);
    assert_eq!((report.called_up.len(), report.balance()), (0, 1.0));
}

#[test]
fn where_the_host_fails_at_the_opening_the_others_compute_all() {
    let work = Work::new(Arc::new(|device, _| match device {
        CPU => Err("the host is out of order".into()),
        _ => Ok(Fence::done(0)),
    }));
    let report = run(&work, &Knowledge::new()).expect("the GPU computes all of it");
    work.assert_computed();
    assert_eq!(report.failures.iter().map(|failure| failure.device).collect::<Vec<_>>(), [CPU]);
    assert_eq!(report.devices[1].items, ITEMS);
}

#[test]
fn who_was_left_out_finishes_what_the_others_cannot() {
    let (good, knowledge) = (slow_gpu(), Knowledge::new());
    for _ in 0..12 {
        run(&good, &knowledge).expect("nothing is wrong");
    }
    let failing = Work::new(Arc::new(|device, _| match device {
        CPU => Err("the host is out of order".into()),
        _ => Ok(Fence::done(0)),
    }));
    let known = format!("{knowledge:?}");
    let report = run(&failing, &knowledge).expect("the GPU computes all of it");
    assert_eq!(format!("{knowledge:?}"), known, "a run with failures teaches nothing");
    assert_eq!(report.left_out, [], "who computed all of it was needed");
    failing.assert_computed();
    assert_eq!(report.failures.iter().map(|failure| failure.device).collect::<Vec<_>>(), [CPU]);
    assert_eq!(report.devices[1].items, ITEMS);
    assert!(report.left_out.is_empty(), "it was needed after all");
}
