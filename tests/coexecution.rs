//! One kernel over several devices: every item once, whatever fails on the way.

#![cfg(not(dml_loom))]

use dml::arenas::{FaultyCross, Null, Script, faulty::Fault, kit};
use dml::core::internal::sync::{Arc, Condvar, Mutex};
use dml::core::{
    Access, Allocation, Arena, ArenaDesc, ArenaId, ArenaKind, Concurrency, DeviceDesc, DeviceId, DeviceKind,
    DeviceSet, Fence, Grants, HostStaged, Launch, LaunchArg, LaunchError, Launcher, Link, LinkSpeed, Misfit,
    Platform, PlatformBuilder, Span, TransferError,
};
use dml::scheduler::{
    Argument, Coexecutor, Footprint, Hooks, Kernel, KernelError, Package, Report, RunError, UnitId,
    policy::PolicySpec,
};
use dml_verify::{Audited, Death, Mortal, watched};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

const DEVICES: u16 = 3;
const ITEM_BYTES: u64 = 4;
const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);
const GPU2: DeviceId = DeviceId(2);
/// What the target holds before the run.
const OLD: u32 = 7;

/// Main memory and two devices with memories of their own, joined to it by read and write calls.
fn platform() -> Audited {
    platform_with(|builder, arena| kit::join_staged(builder, ArenaId(0), arena, LinkSpeed::default()))
}

fn platform_with(join: impl Fn(&mut PlatformBuilder, ArenaId)) -> Audited {
    let mut builder = Platform::builder();
    for (name, kind) in [("cpu", DeviceKind::Cpu), ("gpu:0", DeviceKind::Gpu), ("gpu:1", DeviceKind::Gpu)] {
        builder.add_device(DeviceDesc::new(name, kind));
    }
    let cpu = DeviceSet::of(DeviceId(0));
    let main = ArenaDesc::new("main", ArenaKind("test"), DeviceId(0))
        .with_remotes(cpu)
        .with_concurrency(Concurrency::BimapFull);
    builder.add_arena(Arc::new(dml_verify::mortal(Null::backed(main))));
    for (device, name) in [(1, "video:0"), (2, "video:1")] {
        let video = ArenaDesc::new(name, ArenaKind("test"), DeviceId(device)).with_remotes(cpu);
        let arena = builder.add_arena(Arc::new(dml_verify::mortal(Null::backed(video))));
        join(&mut builder, arena);
    }
    Audited::new(builder.build().expect("a sound platform"))
}

/// The memory of a device, which may die.
fn mortal(platform: &Platform, device: DeviceId) -> &Mortal<Null> {
    let home = platform.home(device).expect("every device has one");
    platform.arena(home).downcast_ref::<Mortal<Null>>().expect("all are mortal")
}

/// out[i] = in[i] * 3 + i, in the device's memory; plus the old contents, if they are read.
fn compute(
    platform: &Platform,
    device: DeviceId,
    (buffers, access): ([&dml::RawBuffer; 2], Access),
    package: &Package,
    grants: &mut Grants,
) {
    let arena = mortal(platform, device).inner();
    let part =
        |buffer: &dml::RawBuffer| buffer.range(package.start() * ITEM_BYTES..package.end() * ITEM_BYTES);
    let read = |buffer| -> Vec<u32> {
        bytemuck::pod_collect_to_vec(&arena.read(grants, &part(buffer)).expect("granted"))
    };
    let old = if access.reads() { read(buffers[1]) } else { vec![0; package.items() as usize] };
    let output: Vec<u32> = read(buffers[0])
        .into_iter()
        .zip(old)
        .zip(package.range())
        .map(|((value, old), item)| triple(value, item).wrapping_add(old))
        .collect();
    arena.write(grants, &part(buffers[1]), bytemuck::cast_slice(&output)).expect("granted for writing");
}

fn triple(value: u32, item: u64) -> u32 {
    value.wrapping_mul(3).wrapping_add(item as u32)
}

fn input(items: u64) -> Vec<u32> {
    (0..items as u32).map(|i| i.wrapping_mul(2_654_435_761) | 1).collect()
}

/// The kernel on some devices, none of which is in trouble.
fn sound_kernel(
    platform: &Platform,
    [source, target]: [&dml::Buffer<u32>; 2],
    access: Access,
    local: u64,
    devices: impl IntoIterator<Item = DeviceId>,
) -> Kernel {
    let per_item = || Footprint::PerItem { bytes: ITEM_BYTES };
    let kernel = Kernel::new("triple", local)
        .argument(Argument::part(source, Access::ReadOnly, per_item()))
        .argument(Argument::part(target, access, per_item()));
    devices.into_iter().fold(kernel, |kernel, device| {
        let (platform, buffers) = (platform.clone(), [source.raw().clone(), target.raw().clone()]);
        kernel.variant(device, move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
            compute(&platform, device, (buffers.each_ref(), access), package, grants);
            Ok(Fence::done(0))
        })
    })
}

/// Every item is in the report once, and in the target as if computed once.
fn assert_complete(report: &Report, input: &[u32], target: &dml::Buffer<u32>, access: Access) {
    let computed: u64 = report.devices.iter().map(|device| device.items).sum();
    assert_eq!(computed, input.len() as u64);
    let mut starts: Vec<_> = report.packages.iter().map(|record| record.package.range()).collect();
    starts.sort_by_key(|range| range.start);
    assert!(starts.windows(2).all(|pair| pair[0].end == pair[1].start), "a gap or an overlap: {starts:?}");
    for record in &report.packages {
        let turns = [record.start, record.begun, record.computed, record.end];
        assert!(turns.is_sorted() && turns[0] < turns[1], "{record:?}");
    }
    let old = if access.reads() { OLD } else { 0 };
    for ((out, value), item) in target.read().expect("all is released").iter().zip(input).zip(0..) {
        assert_eq!(*out, triple(*value, item).wrapping_add(old), "item {item}");
    }
    assert!(target.raw().snapshot().is_idle());
}

/// What a device does instead of its first so many packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    None,
    Refuses,
    Panics,
    FailsInFlight,
}

struct Case {
    items: u64,
    local: u64,
    policy: PolicySpec,
    powers: Vec<f64>,
    troubles: Vec<(Trouble, u64)>,
    access: Access,
}

/// Runs the case and checks every item; the run's own outcome is the result.
fn run(case: &Case) -> Result<Report, RunError> {
    let platform = platform();
    let input = input(case.items);
    let source = platform.buffer_from(input.clone()).expect("a small buffer");
    let target = platform.buffer_from(vec![OLD; case.items as usize]).expect("a small buffer");
    let access = case.access;
    let per_item = || Footprint::PerItem { bytes: ITEM_BYTES };
    let mut kernel = Kernel::new("triple", case.local)
        .argument(Argument::part(&source, Access::ReadOnly, per_item()))
        .argument(Argument::part(&target, case.access, per_item()));
    for (device, &(trouble, after)) in (0..DEVICES).map(DeviceId).zip(&case.troubles) {
        let (platform, source, target) = (platform.clone(), source.raw().clone(), target.raw().clone());
        let packages = AtomicU64::new(0);
        kernel = kernel.variant(
            device,
            move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
                if packages.fetch_add(1, Ordering::Relaxed) >= after {
                    match trouble {
                        Trouble::None => {}
                        Trouble::Refuses => return Err("refused".into()),
                        Trouble::Panics => panic!("a kernel's panic"),
                        Trouble::FailsInFlight => {
                            return Ok(Fence::running(|| Err(TransferError::DeviceLost { loss: None })));
                        }
                    }
                }
                compute(&platform, device, ([&source, &target], access), package, grants);
                Ok(Fence::done(0))
            },
        );
    }
    let report = Coexecutor::new(&platform)
        .policy(case.policy.clone())
        .powers(case.powers.clone())
        .run(&kernel, case.items)?;
    assert_complete(&report, &input, &target, access);
    assert!(source.raw().snapshot().is_idle());
    Ok(report)
}

fn policies() -> impl Strategy<Value = PolicySpec> {
    prop_oneof![
        Just(PolicySpec::Static),
        (1u64..40).prop_map(|packages| PolicySpec::Dynamic { packages }),
        (1.0f64..4.0).prop_map(|k| PolicySpec::HGuided { k, min: None }),
    ]
}

fn troubles() -> impl Strategy<Value = Trouble> {
    prop_oneof![
        3 => Just(Trouble::None),
        1 => Just(Trouble::Refuses),
        1 => Just(Trouble::Panics),
        1 => Just(Trouble::FailsInFlight),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn every_item_is_computed_once_whoever_fails(
        items in 0u64..3000,
        local in 1u64..70,
        policy in policies(),
        powers in prop::collection::vec(0.01f64..1.0, 3),
        trouble in prop::collection::vec((troubles(), 0u64..4), 2),
        reads in any::<bool>(),
    ) {
        // One device always works, so the work can always be finished. Where the old contents are needed,
        // that is the host, which holds the only copy of them: had it failed over them, they would be lost.
        let (troubles, access) = if reads {
            (vec![(Trouble::None, 0), trouble[0], trouble[1]], Access::ReadWrite)
        } else {
            (vec![trouble[0], trouble[1], (Trouble::None, 0)], Access::WriteInvalidate)
        };
        let report = run(&Case { items, local, policy, powers, troubles, access });
        prop_assert!(report.is_ok(), "{report:?}");
    }
}

#[test]
fn a_unit_that_fails_is_named_and_others_finish() {
    let troubles = vec![(Trouble::None, 0), (Trouble::Refuses, 1), (Trouble::None, 0)];
    let policy = PolicySpec::Dynamic { packages: 30 };
    let case =
        Case { items: 3000, local: 10, policy, powers: vec![1.0; 3], troubles, access: Access::ReadWrite };
    let report = run(&case).expect("two units are left");
    assert!(report.failures.len() <= 1);
    for failure in &report.failures {
        assert_eq!((failure.device, failure.message.as_str()), (DeviceId(1), "refused"));
    }
}

#[test]
fn when_every_unit_fails_the_missing_items_are_counted() {
    let troubles = vec![(Trouble::Refuses, 0), (Trouble::Panics, 0), (Trouble::FailsInFlight, 0)];
    let case = Case {
        items: 1000,
        local: 10,
        policy: PolicySpec::Static,
        powers: vec![1.0; 3],
        troubles,
        access: Access::WriteInvalidate,
    };
    match run(&case) {
        Err(RunError::Unfinished { missing: 1000, failures, .. }) => {
            assert!(!failures.is_empty());
            assert!(failures.iter().all(|failure| {
                ["refused", "a kernel's panic", "device lost"]
                    .iter()
                    .any(|text| failure.message.contains(text))
            }));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_cannot_run_is_refused_before_it_begins() {
    let platform = platform();
    let buffer = platform.buffer_from(vec![1u32; 10]).expect("a small buffer");
    let nothing = |_: &Package, _: &mut Grants| -> Result<Fence, KernelError> { Ok(Fence::done(0)) };
    let kernel = Kernel::new("nothing", 1).variant(DeviceId(0), nothing);
    let on = |devices: &[u16]| Coexecutor::new(&platform).devices(devices.iter().copied().map(DeviceId));
    assert!(matches!(on(&[]).run(&kernel, 1), Err(RunError::NoDevices { .. })));
    assert!(matches!(on(&[1]).run(&kernel, 1), Err(RunError::NoVariant { device, .. }) if device == "gpu:0"));
    assert!(
        matches!(on(&[0, 0]).run(&kernel, 1), Err(RunError::DuplicateDevice { device }) if device == "cpu")
    );
    let powers = on(&[0]).powers([1.0, 2.0]).run(&kernel, 1);
    assert!(matches!(powers, Err(RunError::Powers { powers: 2, devices: 1 })));
    assert!(matches!(on(&[0]).powers([f64::NAN]).run(&kernel, 1), Err(RunError::Policy(_))));
    let whole = Kernel::new("whole", 1)
        .argument(Argument::part(&buffer, Access::ReadWrite, Footprint::Whole))
        .variant(DeviceId(0), nothing);
    assert!(matches!(on(&[0]).run(&whole, 1), Err(RunError::WholeWrite { index: 0, .. })));
}

#[test]
fn hooks_see_every_turn() {
    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);
    impl Hooks for Log {
        fn director_start(&self) {
            self.0.lock().push("director start".to_owned());
        }
        fn director_end(&self) {
            self.0.lock().push("director end".to_owned());
        }
        fn unit_start(&self, unit: UnitId, _: DeviceId) {
            self.0.lock().push(format!("{unit} start"));
        }
        fn unit_end(&self, unit: UnitId, _: DeviceId) {
            self.0.lock().push(format!("{unit} end"));
        }
        fn package_done(&self, package: &Package, _: DeviceId) {
            self.0.lock().push(format!("{} done", package.unit()));
        }
    }
    let platform = platform();
    let kernel = Kernel::new("nothing", 1)
        .variant(DeviceId(0), |_: &Package, _: &mut Grants| -> Result<Fence, KernelError> {
            Ok(Fence::done(0))
        });
    let log = Log::default();
    let run = Coexecutor::new(&platform).policy(PolicySpec::Dynamic { packages: 2 });
    run.run_with(&kernel, 10, &log).expect("nothing fails");
    assert_eq!(*log.0.lock(), ["director start", "u0 start", "u0 done", "u0 done", "u0 end", "director end"]);
}

/// When the first device dies, as seen by the co-execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    BeforeItsFirstPackage,
    /// The launch fails.
    AtLaunch,
    /// The launch panics.
    InAPanic,
    /// The kernel's fence fails.
    DuringAKernel,
    /// The kernel ends well, and what is asked of the memory next fails.
    BeforeCollecting,
    /// The package is complete.
    AfterAPackage,
    /// There is nothing more to do.
    AfterItsLastPackage,
}

/// A run in which the first device dies at its n-th package.
struct Dying<'a> {
    moment: Moment,
    package: u64,
    policy: &'a PolicySpec,
    access: Access,
    collect_on: Option<DeviceId>,
}

/// Kills a device at a turn of the run.
struct Killer<'a> {
    platform: &'a Platform,
    dying: &'a Dying<'a>,
    done: AtomicU64,
    /// The items of these packages.
    items: AtomicU64,
}

impl Hooks for Killer<'_> {
    fn package_done(&self, package: &Package, device: DeviceId) {
        if device != GPU {
            return;
        }
        self.items.fetch_add(package.items(), Ordering::SeqCst);
        let number = self.done.fetch_add(1, Ordering::SeqCst);
        if number == self.dying.package && self.dying.moment == Moment::AfterAPackage {
            mortal(self.platform, GPU).die();
        }
    }

    fn unit_end(&self, _: UnitId, device: DeviceId) {
        if device == GPU && self.dying.moment == Moment::AfterItsLastPackage {
            mortal(self.platform, GPU).die();
        }
    }
}

/// A device's first launch, for which the others wait, so that it has work whatever the policy.
#[derive(Default)]
struct Head {
    launched: Mutex<bool>,
    changed: Condvar,
}

impl Head {
    fn start(&self) {
        *self.launched.lock() = true;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let mut launched = self.launched.lock();
        while !*launched {
            launched = self.changed.wait(launched);
        }
    }
}

const DYING_ITEMS: u64 = 600;

/// The kernel over both buffers, in which the first device dies where `dying` says.
fn dying_kernel(
    platform: &Platform,
    [source, target]: [&dml::Buffer<u32>; 2],
    &Dying { moment, package: last, access, .. }: &Dying<'_>,
) -> Kernel {
    let per_item = || Footprint::PerItem { bytes: ITEM_BYTES };
    let mut kernel = Kernel::new("triple", 10)
        .argument(Argument::part(source, Access::ReadOnly, per_item()))
        .argument(Argument::part(target, access, per_item()));
    let head = Arc::new(Head::default());
    if moment == Moment::BeforeItsFirstPackage {
        head.start();
    }
    for device in (0..DEVICES).map(DeviceId) {
        let (platform, head) = (platform.clone(), head.clone());
        let buffers = [source.raw().clone(), target.raw().clone()];
        let packages = AtomicU64::new(0);
        let launch = move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
            if device != GPU {
                head.wait();
                compute(&platform, device, (buffers.each_ref(), access), package, grants);
                return Ok(Fence::done(0));
            }
            head.start();
            let dies = packages.fetch_add(1, Ordering::SeqCst) == last;
            if dies && moment == Moment::AtLaunch {
                mortal(&platform, GPU).die();
                return Err("nobody answers".into());
            }
            if dies && moment == Moment::InAPanic {
                mortal(&platform, GPU).die();
                panic!("nobody answers");
            }
            compute(&platform, device, (buffers.each_ref(), access), package, grants);
            if !dies {
                return Ok(Fence::done(0));
            }
            let theirs = platform.clone();
            Ok(match moment {
                Moment::DuringAKernel => Fence::running(move || {
                    mortal(&theirs, GPU).die();
                    Err(TransferError::DeviceLost { loss: None })
                }),
                Moment::BeforeCollecting => Fence::running(move || {
                    mortal(&theirs, GPU).die_at(Death::Before(1));
                    Ok(0)
                }),
                _ => Fence::done(0),
            })
        };
        kernel = kernel.variant(device, launch);
    }
    kernel
}

fn run_dying(dying: &Dying<'_>) -> Result<Report, RunError> {
    run_dying_counted(dying).0
}

/// Also returns how many items the dying device has completed.
fn run_dying_counted(dying: &Dying<'_>) -> (Result<Report, RunError>, u64) {
    let platform = platform();
    let input = input(DYING_ITEMS);
    let source = platform.buffer_from(input.clone()).expect("a small buffer");
    let target = platform.buffer_from(vec![OLD; input.len()]).expect("a small buffer");
    let kernel = dying_kernel(&platform, [&source, &target], dying);
    if dying.moment == Moment::BeforeItsFirstPackage {
        mortal(&platform, GPU).die();
    }
    let killer = Killer { platform: &platform, dying, done: AtomicU64::new(0), items: AtomicU64::new(0) };
    let run = Coexecutor::new(&platform).policy(dying.policy.clone()).collect_on(dying.collect_on);
    let ended = run.run_with(&kernel, DYING_ITEMS, &killer);
    let items = killer.items.load(Ordering::SeqCst);
    let Ok(report) = ended else { return (ended, items) };
    assert_complete(&report, &input, &target, dying.access);
    assert_eq!(
        platform.lost_devices(),
        mortal(&platform, GPU).is_lost().then_some(GPU).into_iter().collect()
    );
    (Ok(report), items)
}

fn the_three() -> [PolicySpec; 3] {
    [PolicySpec::Static, PolicySpec::Dynamic { packages: 12 }, PolicySpec::HGuided { k: 2.0, min: Some(20) }]
}

/// The failures of a report name the first device, and say that it was lost.
fn assert_named(report: &Report, dying: &str) {
    for failure in &report.failures {
        assert_eq!(failure.device, GPU, "{dying}");
        assert!(failure.message.contains("device gpu:0 was lost"), "{dying}: {}", failure.message);
    }
}

#[test]
fn a_device_that_dies_takes_nothing_along() {
    use Moment::{
        AfterAPackage, AfterItsLastPackage, AtLaunch, BeforeItsFirstPackage, DuringAKernel, InAPanic,
    };
    let moments =
        [BeforeItsFirstPackage, AtLaunch, InAPanic, DuringAKernel, AfterAPackage, AfterItsLastPackage];
    for policy in the_three() {
        for moment in moments {
            for collect_on in [Some(CPU), Some(GPU), Some(GPU2), None] {
                let access = Access::WriteInvalidate;
                let dying = Dying { moment, package: 0, policy: &policy, access, collect_on };
                let what = format!("{moment:?}, {policy}, collected on {collect_on:?}");
                let report = run_dying(&dying).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_named(&report, &what);
                // The dead device's packages do not count, unless another device has collected their results.
                let kept = report.packages.iter().any(|record| record.device == GPU);
                let collected = matches!(collect_on, Some(CPU | GPU2))
                    && matches!(moment, AfterAPackage | AfterItsLastPackage);
                assert_eq!(kept, collected, "{what}");
                let noted = !collected && moment != BeforeItsFirstPackage;
                assert!(!noted || report.failures.len() == 1, "{what}: {:?}", report.failures);
                if noted && moment == AfterItsLastPackage {
                    let message = &report.failures[0].message;
                    assert!(message.contains("with the results of"), "{what}: {message}");
                }
            }
        }
    }
}

#[test]
fn results_that_were_not_collected_in_time_are_computed_again() {
    for policy in the_three() {
        for collect_on in [CPU, GPU2] {
            let (moment, access) = (Moment::BeforeCollecting, Access::WriteInvalidate);
            let dying = Dying { moment, package: 0, policy: &policy, access, collect_on: Some(collect_on) };
            let report = run_dying(&dying).unwrap_or_else(|error| panic!("{policy}: {error}"));
            assert_eq!(report.failures.len(), 1, "{policy}");
            assert_named(&report, "before collecting");
            assert!(report.packages.iter().all(|record| record.device != GPU), "{policy}");
        }
    }
}

#[test]
fn what_a_dead_device_was_to_change_is_given_back() {
    for policy in the_three() {
        for moment in
            [Moment::BeforeItsFirstPackage, Moment::AtLaunch, Moment::InAPanic, Moment::DuringAKernel]
        {
            for collect_on in [Some(CPU), None] {
                let dying =
                    Dying { moment, package: 0, policy: &policy, access: Access::ReadWrite, collect_on };
                let report =
                    run_dying(&dying).unwrap_or_else(|error| panic!("{moment:?}, {policy}: {error}"));
                assert_named(&report, "changed");
            }
        }
    }
}

#[test]
fn what_was_changed_and_lost_is_missing_and_counted() {
    for policy in the_three() {
        let (moment, access) = (Moment::AfterItsLastPackage, Access::ReadWrite);
        let dying = Dying { moment, package: 0, policy: &policy, access, collect_on: None };
        let (Err(RunError::Unfinished { missing, failures, .. }), completed) = run_dying_counted(&dying)
        else {
            panic!("{policy}: the old contents are gone, and so are the new ones")
        };
        // On a busy machine the device may have completed all of them.
        assert!(missing > 0 && missing == completed, "{policy}: {missing} of {completed}");
        let [failure] = &*failures else { panic!("{policy}: {failures:?}") };
        assert!(failure.message.contains("gpu:0 was lost with the results of"), "{}", failure.message);
        // Collected, they are not lost.
        let report = run_dying(&Dying { collect_on: Some(CPU), ..dying }).expect("all is collected");
        assert!(report.failures.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn nothing_computed_is_lost_whenever_devices_die(
        items in 1u64..400,
        local in 1u64..30,
        policy in policies(),
        powers in prop::collection::vec(0.01f64..1.0, 3),
        deaths in prop::collection::vec(prop::option::of((any::<bool>(), 1u64..25)), 2),
        collect_on in prop_oneof![Just(Some(CPU)), Just(Some(GPU)), Just(Some(GPU2)), Just(None)],
        changes in any::<bool>(),
    ) {
        let platform = platform();
        let access = if changes { Access::ReadWrite } else { Access::WriteInvalidate };
        let input = input(items);
        let source = platform.buffer_from(input.clone()).expect("a small buffer");
        let target = platform.buffer_from(vec![OLD; input.len()]).expect("a small buffer");
        let devices = (0..DEVICES).map(DeviceId);
        let kernel = sound_kernel(&platform, [&source, &target], access, local, devices);
        for (device, death) in [GPU, GPU2].into_iter().zip(deaths) {
            if let Some((during, call)) = death {
                let death = if during { Death::During(call) } else { Death::Before(call) };
                mortal(&platform, device).die_at(death);
            }
        }
        let run = Coexecutor::new(&platform).policy(policy).powers(powers).collect_on(collect_on);
        let ended = run.run(&kernel, items);
        // A device that dies later does not affect the run.
        [GPU, GPU2].into_iter().for_each(|device| mortal(&platform, device).spare());
        match ended {
            Ok(report) => assert_complete(&report, &input, &target, access),
            Err(RunError::Unfinished { missing, failures, .. }) => {
                // What was to be changed and is lost cannot be made again; nothing else is ever missing.
                prop_assert!(changes && missing > 0 && missing <= items && !failures.is_empty(), "{:?}", failures);
                let lost = platform.lost_devices();
                prop_assert!(failures.iter().any(|failure| lost.contains(failure.device)));
                // What is left was changed once or not at all.
                for (item, value) in (0..items).zip(&input) {
                    let bytes = item * ITEM_BYTES..(item + 1) * ITEM_BYTES;
                    if target.raw().is_readable(bytes) == Ok(true) {
                        let part = target.range(item..item + 1);
                        let seen = platform.acquire(CPU).read(&part).wait().expect("readable");
                        let seen = seen.slice::<u32>(&part).expect("on the host")[0];
                        let new = triple(*value, item).wrapping_add(OLD);
                        prop_assert!(seen == OLD || seen == new, "item {}: {}", item, seen);
                    }
                }
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}

#[test]
fn a_package_is_complete_when_its_results_are_collected_however_busy_they_are() {
    /// Looks whether what is done is where it was to be.
    struct Looks(dml::RawBuffer, AtomicU64);
    impl Hooks for Looks {
        fn package_done(&self, package: &Package, _: DeviceId) {
            self.1.fetch_add(1, Ordering::SeqCst);
            let span = Span::new(package.start() * ITEM_BYTES, package.end() * ITEM_BYTES);
            let state = self.0.snapshot();
            let collected =
                state.segments().in_span(span).all(|(_, content)| content.valid.contains(ArenaId(0)));
            assert!(collected, "{package} counts as complete and is not collected");
        }
    }
    let join = |builder: &mut PlatformBuilder, arena| {
        // No way round through the other device.
        *builder = std::mem::take(builder).without_default_links();
        kit::join_mapped(builder, ArenaId(0), arena, LinkSpeed::default());
    };
    let platform = platform_with(join);
    let items = 40u64;
    let source = platform.buffer_from(input(items)).expect("a small buffer");
    // One item more than the run has: a kernel of the application's works on it, in the same storage.
    let target = platform.buffer::<u32>(items + 1).build().expect("a small buffer");
    let theirs = platform.acquire(GPU).write(&target.range(items..items + 1)).try_now().expect("free");
    let kernel = sound_kernel(&platform, [&source, &target], Access::WriteInvalidate, 10, [GPU]);
    let looks = Arc::new(Looks(target.raw().clone(), AtomicU64::new(0)));
    let run = Coexecutor::new(&platform).policy(PolicySpec::Dynamic { packages: 4 });
    let seen = looks.clone();
    let running = watched("the run", move || run.run_with(&kernel, items, &*seen));
    // While its storage is in use on the device, the host cannot map it: the first package is not collected.
    while target.raw().snapshot().queue().len() == 0 && looks.1.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(looks.1.load(Ordering::SeqCst), 0, "complete without being collected");
    drop(theirs);
    let report = running.join().expect("nothing fails");
    assert_eq!((report.packages.len(), report.failures.len()), (4, 0));
}

#[test]
fn results_that_cannot_be_collected_are_not_computed_twice() {
    // What comes back from the device fails once; the device itself is well.
    let platform = platform_with(|builder, arena| {
        let native = builder.arenas()[usize::from(arena.0)].desc().native;
        let allocation = Allocation::Internal;
        let there = Link { from: ArenaId(0), to: arena, source_via: CPU, target_via: native, allocation };
        let back = Link { from: arena, to: ArenaId(0), source_via: native, target_via: CPU, allocation };
        let fails = Script::new().at(1, Fault::fail());
        builder.add_link(there, Arc::new(HostStaged::default()));
        builder.add_link(back, Arc::new(FaultyCross::new(HostStaged::default(), fails)));
        *builder = std::mem::take(builder).without_default_links();
    });
    let (items, access) = (100, Access::ReadWrite);
    let input = input(items);
    let source = platform.buffer_from(input.clone()).expect("a small buffer");
    let target = platform.buffer_from(vec![OLD; input.len()]).expect("a small buffer");
    let kernel = sound_kernel(&platform, [&source, &target], access, 10, [GPU, CPU]);
    let report = Coexecutor::new(&platform).policy(PolicySpec::Static).run(&kernel, items);
    let report = report.expect("the host is left");
    assert_complete(&report, &input, &target, access);
    assert!(platform.lost_devices().is_empty());
    // Its unit gives up, and its package counts.
    let [failure] = &*report.failures else { panic!("{:?}", report.failures) };
    assert!(report.packages.iter().any(|record| record.package == failure.package), "{failure:?}");
}

#[test]
fn a_unit_whose_source_is_lost_takes_another() {
    let platform = platform();
    let (items, access) = (50u64, Access::WriteInvalidate);
    let input = input(items);
    let source = platform.buffer::<u32>(items).build().expect("a small buffer");
    let target = platform.buffer::<u32>(items).build().expect("a small buffer");
    // The input is on both devices, and not in main memory: the first one is asked, which is gone.
    let all = Span::new(0, items * ITEM_BYTES);
    let mut grants = platform.acquire(GPU).write(&source).try_now().expect("free");
    let null = mortal(&platform, GPU).inner();
    null.write(&mut grants, &source, bytemuck::cast_slice(&input)).expect("granted for writing");
    grants.release().expect("committed");
    source.raw().prefetch(GPU2, all.to_range()).wait().expect("a copy of it");
    if source.raw().snapshot().arena(ArenaId(0)).alloc.is_allocated() {
        source.raw().free(ArenaId(0)).expect("others have it");
    }
    mortal(&platform, GPU).die();
    let kernel = sound_kernel(&platform, [&source, &target], access, 1, [CPU]);
    let report = Coexecutor::new(&platform).run(&kernel, items).expect("the other device has it too");
    assert!(report.failures.is_empty() && platform.lost_devices() == DeviceSet::of(GPU));
    assert_complete(&report, &input, &target, access);
}

/// Adds the items' values to a partial, and fails at a package in the way that `moment` says; without one,
/// with an error of a device that goes on.
struct Summing {
    platform: Platform,
    device: DeviceId,
    fails: Option<(u64, Option<Moment>)>,
    packages: AtomicU64,
    head: Arc<Head>,
}

impl Launcher for Summing {
    fn check(&self, _: &[LaunchArg]) -> Result<(), Misfit> {
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        let [LaunchArg::Buffer { buffer: source, .. }, LaunchArg::Buffer { buffer: partial, .. }] =
            launch.arguments
        else {
            panic!("two buffers")
        };
        if self.fails.is_some() {
            self.head.start()
        } else {
            self.head.wait()
        }
        let arena = mortal(&self.platform, self.device).inner();
        let items = launch.items.clone();
        let part = source.range(items.start * ITEM_BYTES..items.end * ITEM_BYTES);
        let values: Vec<u32> = bytemuck::pod_collect_to_vec(&arena.read(grants, &part).expect("granted"));
        let added: u64 =
            values.into_iter().zip(items).map(|(value, item)| u64::from(triple(value, item))).sum();
        let old: u64 = bytemuck::pod_read_unaligned(&arena.read(grants, partial).expect("granted"));
        arena.write(grants, partial, bytemuck::bytes_of(&(old + added))).expect("granted for writing");
        let number = self.packages.fetch_add(1, Ordering::SeqCst);
        let Some((_, moment)) = self.fails.filter(|(package, _)| *package == number) else {
            return Ok(Fence::done(0));
        };
        if moment.is_some() {
            mortal(&self.platform, self.device).die();
        }
        let lost = || Err(TransferError::DeviceLost { loss: None });
        match moment {
            Some(Moment::DuringAKernel) => Ok(Fence::running(lost)),
            Some(Moment::AfterAPackage) => Ok(Fence::done(0)),
            _ => Err(LaunchError::failed("nobody answers")),
        }
    }
}

#[test]
fn every_item_is_added_once_whatever_fails_on_the_way() {
    let input = input(DYING_ITEMS);
    let expected: u64 = (0..).zip(&input).map(|(item, value)| u64::from(triple(*value, item))).sum();
    let moments = [None, Some(Moment::AtLaunch), Some(Moment::DuringAKernel), Some(Moment::AfterAPackage)];
    let cases = moments.into_iter().flat_map(|moment| [0, 2].map(|package| (moment, package)));
    for (moment, package) in cases {
        for (policy, collect_on) in
            the_three().into_iter().flat_map(|policy| [None, Some(CPU)].map(move |on| (policy.clone(), on)))
        {
            let platform = platform();
            let source = platform.buffer_from(input.clone()).expect("a small buffer");
            let total = platform.buffer_from(vec![77_u64]).expect("a small buffer");
            let head = Arc::new(Head::default());
            let launcher = |device: DeviceId| Summing {
                platform: platform.clone(),
                device,
                fails: (device == GPU).then_some((package, moment)),
                packages: AtomicU64::new(0),
                head: head.clone(),
            };
            let kernel = Kernel::new("sum", 10)
                .read(&source)
                .reduce(&total, 0_u64, |one, other| one + other)
                .launchers([GPU, CPU, GPU2].map(|device| (device, launcher(device))))
                .expect("anything fits");
            let run = Coexecutor::new(&platform).policy(policy.clone()).collect_on(collect_on);
            let report = run.run(&kernel, DYING_ITEMS);
            let case = format!("{moment:?} at {package}, {policy:?}, collected on {collect_on:?}");
            let report = report.unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!(total.read().expect("all is released")[0], expected, "{case}");
            let computed: u64 = report.devices.iter().map(|device| device.items).sum();
            assert_eq!(computed, DYING_ITEMS, "{case}");
        }
    }
}
