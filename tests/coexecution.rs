//! One kernel over several devices: every item once, whatever fails on the way.

#![cfg(not(dml_loom))]

use dml::arenas::{Null, null};
use dml::core::sync::{Arc, Mutex};
use dml::core::{
    Access, ArenaDesc, ArenaId, ArenaKind, Concurrency, DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence,
    Grants, LinkSpeed, Platform, Span, TransferError,
};
use dml::scheduler::{
    Argument, Coexecutor, Footprint, Hooks, Kernel, KernelError, Package, PolicySpec, RunError, UnitId,
};
use dml_verify::Audited;
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

const DEVICES: u16 = 3;
const ITEM_BYTES: u64 = 4;

/// Main memory and two devices with memories of their own.
fn platform() -> Audited {
    let mut builder = Platform::builder();
    for (name, kind) in [("cpu", DeviceKind::Cpu), ("gpu:0", DeviceKind::Gpu), ("gpu:1", DeviceKind::Gpu)] {
        builder.add_device(DeviceDesc::new(name, kind));
    }
    let cpu = DeviceSet::of(DeviceId(0));
    let main = ArenaDesc::new("main", ArenaKind("test"), DeviceId(0))
        .with_remotes(cpu)
        .with_concurrency(Concurrency::BimapFull);
    builder.add_arena(Arc::new(Null::backed(main)));
    for (device, name) in [(1, "video:0"), (2, "video:1")] {
        let video = ArenaDesc::new(name, ArenaKind("test"), DeviceId(device)).with_remotes(cpu);
        let arena = builder.add_arena(Arc::new(Null::backed(video)));
        null::join_staged(&mut builder, ArenaId(0), arena, LinkSpeed::default());
    }
    Audited::new(builder.build().expect("a sound platform"))
}

/// out[i] = in[i] * 3 + i, in whatever memory the device has.
fn compute(
    platform: &Platform,
    device: DeviceId,
    buffers: [&dml::RawBuffer; 2],
    package: &Package,
    grants: &Grants,
) {
    let arena = platform.arena(platform.home(device).expect("every device has one")).clone();
    let arena = arena.downcast_ref::<Null>().expect("all are Null");
    let block = |buffer| grants.block(buffer).expect("granted").expect("a package has bytes").clone();
    let span = Span::new(package.start() * ITEM_BYTES, package.end() * ITEM_BYTES);
    let bytes = arena.read(&block(buffers[0]), device, span);
    let input: &[u32] = &bytemuck::pod_collect_to_vec(&bytes);
    let output: Vec<u32> = input
        .iter()
        .zip(package.range())
        .map(|(value, item)| value.wrapping_mul(3).wrapping_add(item as u32))
        .collect();
    arena.write(&block(buffers[1]), device, span.start(), bytemuck::cast_slice(&output));
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
fn run(case: &Case) -> Result<dml::scheduler::Report, RunError> {
    let platform = platform();
    let input: Vec<u32> = (0..case.items as u32).map(|i| i.wrapping_mul(2_654_435_761) | 1).collect();
    let source = platform.buffer_from(input.clone()).expect("a small buffer");
    let target = platform.buffer_from(vec![7u32; case.items as usize]).expect("a small buffer");
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
                            return Ok(Fence::running(|| Err(TransferError::DeviceLost)));
                        }
                    }
                }
                compute(&platform, device, [&source, &target], package, grants);
                Ok(Fence::done(0))
            },
        );
    }
    let report = Coexecutor::new(&platform)
        .policy(case.policy)
        .powers(case.powers.clone())
        .run(&kernel, case.items)?;
    let computed: u64 = report.devices.iter().map(|device| device.items).sum();
    assert_eq!(computed, case.items);
    let mut starts: Vec<_> = report.packages.iter().map(|record| record.package.range()).collect();
    starts.sort_by_key(|range| range.start);
    assert!(starts.windows(2).all(|pair| pair[0].end == pair[1].start), "a gap or an overlap: {starts:?}");
    for (item, (out, value)) in target.read().expect("all is released").iter().zip(&input).enumerate() {
        assert_eq!(*out, value.wrapping_mul(3).wrapping_add(item as u32), "item {item}");
    }
    assert!(target.raw().snapshot().is_idle() && source.raw().snapshot().is_idle());
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
        // One device always works, so the work can always be finished. Where the old contents are needed, that is the
        // host, which holds the only copy of them: had it failed over them, they would be lost.
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
