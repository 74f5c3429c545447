//! What a run refuses before it begins, and how an application chooses devices.

#![cfg(not(dml_loom))]

use dml::Kernel;
use dml::arenas::{Null, kit};
use dml::core::internal::sync::Arc;
use dml::core::{
    ArenaDesc, ArenaId, ArenaKind, Concurrency, DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence, Launch,
    LaunchArg, LaunchError, Launcher, LinkSpeed, Misfit,
};
use dml::prelude::*;
use dml::scheduler::{CheckError, FootprintFault, KernelError, RunError};
use dml_verify::{Audited, watched};
use std::sync::atomic::{AtomicUsize, Ordering};

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);
const SMALL: DeviceId = DeviceId(2);
const ITEMS: u64 = 64;

/// Main memory and two devices with memories of their own, of 64 units and of 4.
fn platform() -> Audited {
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_device(DeviceDesc::new("gpu:0", DeviceKind::Gpu).with_compute_units(64));
    builder.add_device(DeviceDesc::new("gpu:1", DeviceKind::Gpu).with_compute_units(4));
    let cpu = DeviceSet::of(CPU);
    let main = ArenaDesc::new("main", ArenaKind("test"), CPU).with_remotes(cpu);
    builder.add_arena(Arc::new(Null::backed(main.with_concurrency(Concurrency::BimapFull))));
    for (name, device) in [("video:0", GPU), ("video:1", SMALL)] {
        let video = ArenaDesc::new(name, ArenaKind("test"), device).with_remotes(cpu);
        let video = builder.add_arena(Arc::new(Null::backed(video)));
        kit::join_staged(&mut builder, ArenaId(0), video, LinkSpeed::default());
    }
    Audited::new(builder.build().expect("a sound platform"))
}

fn data(platform: &Platform) -> Buffer<u32> {
    platform.buffer_from((0..ITEMS as u32).map(|i| i * 7 + 3).collect::<Vec<_>>()).expect("a small buffer")
}

/// Computes nothing.
fn idle(package: &Package, _: &mut Grants) -> Result<Fence, KernelError> {
    Ok(Fence::done(package.items()))
}

fn changes(data: &Buffer<u32>) -> Kernel {
    Kernel::new("idle", 8).read_write(data)
}

/// A launcher that takes so many arguments, and computes nothing.
#[derive(Clone, Default)]
struct Takes {
    count: usize,
    asked: Arc<AtomicUsize>,
    launched: Arc<AtomicUsize>,
}

impl Launcher for Takes {
    fn check(&self, arguments: &[LaunchArg]) -> Result<(), Misfit> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let (kernel, takes, given) = ("takes".to_owned(), self.count, arguments.len());
        if takes == given { Ok(()) } else { Err(Misfit::Count { kernel, takes, given }) }
    }

    fn launch(&self, _: &Launch<'_>, _: &mut Grants) -> Result<Fence, LaunchError> {
        self.launched.fetch_add(1, Ordering::SeqCst);
        Ok(Fence::done(0))
    }
}

#[test]
fn a_filter_chooses_among_the_devices_that_have_a_variant() {
    let platform = platform();
    let data = data(&platform);
    let kernel = changes(&data).variant(SMALL, idle).variant(CPU, idle);
    let run = |passes: fn(&DeviceDesc) -> bool, kernel: &Kernel| {
        let run = Coexecutor::new(&platform).policy("dynamic:8".parse().unwrap()).devices_where(passes);
        run.run(kernel, ITEMS)
            .map(|report| report.devices.iter().map(|device| device.device).collect::<Vec<_>>())
    };
    // In the platform's order, whatever that of the variants.
    assert_eq!(run(|_| true, &kernel), Ok(vec![CPU, SMALL]));
    assert_eq!(run(|desc| desc.kind == DeviceKind::Gpu, &kernel), Ok(vec![SMALL]));
    let both = kernel.clone().variant(GPU, idle);
    assert_eq!(run(|desc| desc.compute_units > 4, &both), Ok(vec![GPU]));
    // The last choice counts.
    let named = Coexecutor::new(&platform).devices_where(|_| false).devices([CPU]);
    assert!(named.run(&kernel, ITEMS).is_ok());
    // An empty choice is told, with what there was to choose from.
    let none = run(|desc| desc.compute_units > 4, &kernel).unwrap_err();
    assert_eq!(
        none.to_string(),
        "kernel idle: no device to run on: the filter lets gpu:0 pass, and the kernel has variants for gpu:1, cpu"
    );
    let none = run(|_| false, &changes(&data)).unwrap_err();
    let nobody = RunError::NonePassed { kernel: "idle".to_owned(), passed: Vec::new(), variants: Vec::new() };
    assert_eq!(none, nobody);
    assert!(none.to_string().contains("lets none pass, and the kernel has variants for none"), "{none}");
}

/// The caller would otherwise hear of it when all is computed, or wait for itself.
#[test]
fn the_result_of_a_reduction_that_the_caller_holds_is_refused_before_the_run() {
    let platform = platform();
    let (data, total) = (data(&platform), platform.buffer_from(vec![5_u64]).unwrap());
    let takes = Takes { count: 2, ..Takes::default() };
    let kernel = Kernel::new("sum", 8)
        .read(&data)
        .reduce(&total, 0_u64, |one, other| one + other)
        .launchers([(CPU, takes.clone())])
        .unwrap();
    let buffer = total.raw().name();
    let refused = RunError::HeldByCaller { kernel: "sum".to_owned(), index: 1, buffer };
    let view = total.read().unwrap();
    assert_eq!(Coexecutor::new(&platform).run(&kernel, ITEMS).unwrap_err(), refused);
    assert_eq!(Coexecutor::new(&platform).start(&kernel, ITEMS).unwrap_err(), refused);
    drop(view);
    let view = total.write().unwrap();
    assert_eq!(Coexecutor::new(&platform).run(&kernel, ITEMS).unwrap_err(), refused);
    drop(view);
    assert_eq!(takes.launched.load(Ordering::SeqCst), 0);
}

#[test]
fn arguments_that_are_added_behind_a_launcher_are_checked_when_a_run_begins() {
    let platform = platform();
    let data = data(&platform);
    let takes = Takes { count: 1, ..Takes::default() };
    let kernel = changes(&data).launchers([(GPU, takes.clone())]).unwrap();
    assert_eq!(takes.asked.load(Ordering::SeqCst), 1);
    Coexecutor::new(&platform).run(&kernel, ITEMS).unwrap();
    assert_eq!(takes.asked.load(Ordering::SeqCst), 1, "it has seen all of them");
    takes.launched.store(0, Ordering::SeqCst);
    let more = kernel.scalar(2.5_f32);
    let told = Coexecutor::new(&platform).run(&more, ITEMS).unwrap_err();
    let cause = "kernel takes takes 1 arguments, not 2".to_owned();
    assert_eq!(told, RunError::Misfit { kernel: "idle".to_owned(), device: "gpu:0".to_owned(), cause });
    let told = check_footprints(&platform, &more, ITEMS, GPU).unwrap_err();
    assert!(matches!(told, CheckError::Refused(RunError::Misfit { .. })), "{told}");
    assert_eq!(takes.launched.load(Ordering::SeqCst), 0);
    // What fits after all is not refused.
    let two = Takes { count: 2, ..Takes::default() };
    let early = changes(&data).scalar(1_u32).launchers([(GPU, two)]).unwrap();
    let panics = changes(&data).launchers([(GPU, Panics)]).unwrap().scalar(1_u32);
    assert!(Coexecutor::new(&platform).run(&early, ITEMS).is_ok());
    let told = Coexecutor::new(&platform).run(&panics, ITEMS).unwrap_err().to_string();
    assert!(told.contains("the launcher panicked: two are too many"), "{told}");
}

/// A launcher that panics at the sight of a second argument.
struct Panics;

impl Launcher for Panics {
    fn check(&self, arguments: &[LaunchArg]) -> Result<(), Misfit> {
        assert!(arguments.len() < 2, "two are too many");
        Ok(())
    }

    fn launch(&self, _: &Launch<'_>, _: &mut Grants) -> Result<Fence, LaunchError> {
        Ok(Fence::done(0))
    }
}

/// The footprint is asked again when the arguments of a launch are made, and panics then.
#[test]
fn a_footprint_that_panics_at_a_launch_is_told_with_its_place() {
    let platform = platform();
    let (data, other) = (data(&platform), data(&platform));
    let asked = Arc::new(AtomicUsize::new(0));
    let counts = asked.clone();
    // Neither when the run is checked nor when the package is acquired.
    let limit = Arc::new(AtomicUsize::new(usize::MAX));
    let until = limit.clone();
    let footprint = Footprint::of(move |items| {
        assert!(counts.fetch_add(1, Ordering::SeqCst) < until.load(Ordering::SeqCst), "asked too often");
        items.start * 4..items.end * 4
    });
    let kernel = Kernel::new("twice", 8)
        .read(&data)
        .scalar(1_u32)
        .argument(Argument::part(&other, Access::ReadOnly, footprint))
        .launchers([(GPU, Takes { count: 3, ..Takes::default() })])
        .unwrap();
    let run = Coexecutor::new(&platform).policy("dynamic:1".parse().unwrap());
    run.run(&kernel, ITEMS).expect("it is asked as often as it likes");
    let often = asked.swap(0, Ordering::SeqCst);
    let messages: Vec<String> = (0..often)
        .filter_map(|last| {
            asked.store(0, Ordering::SeqCst);
            limit.store(last, Ordering::SeqCst);
            run.run(&kernel, ITEMS).err().map(|error| error.to_string())
        })
        .collect();
    assert!(!messages.is_empty());
    for message in &messages {
        let end = "items 0..64: the footprint panicked: asked too often";
        assert!(message.contains("kernel twice, argument 2, ") && message.contains(end), "{message}");
    }
}

#[test]
fn a_footprint_of_no_picture_is_told_as_such() {
    let platform = platform();
    let data = data(&platform);
    for (footprint, what) in [
        (Footprint::rows(0, 16, 1), "a row has no items"),
        (Footprint::tiles(0, 4, 2, 16), "a row of tiles is empty"),
    ] {
        let argument = Argument::part(&data, Access::ReadOnly, footprint);
        let fault = argument.ranges(0..8).unwrap_err();
        assert!(matches!(fault, FootprintFault::NoPicture { .. }), "{fault}");
        let takes = Takes { count: 1, ..Takes::default() };
        let kernel = Kernel::new("rows", 8).argument(argument).launchers([(GPU, takes)]).unwrap();
        let told = Coexecutor::new(&platform).run(&kernel, ITEMS).unwrap_err().to_string();
        assert!(told.contains(what), "{told}");
        let told = check_footprints(&platform, &kernel, ITEMS, GPU).unwrap_err().to_string();
        assert!(told.contains(what), "{told}");
    }
}

#[test]
fn what_was_made_for_another_platform_is_refused() {
    let (here, there) = (platform(), platform());
    let (own, foreign) = (data(&here), data(&there));
    let kernel = changes(&own).variant_for_kind(&here, DeviceKind::Gpu, idle);
    assert!(Coexecutor::new(&here).run(&kernel, ITEMS).is_ok());
    let refused = |kernel: &Kernel, what: &str| {
        let told = Coexecutor::new(&here).run(kernel, ITEMS).unwrap_err();
        assert_eq!(told, RunError::OtherPlatform { kernel: "idle".to_owned(), what: what.to_owned() });
    };
    let kind = "a variant for a kind of devices or arenas";
    refused(&changes(&own).variant_for_kind(&there, DeviceKind::Gpu, idle), kind);
    refused(&changes(&own).variant_for_arenas(&there, ArenaKind("test"), idle), kind);
    refused(&Kernel::new("idle", 8).read(&own).read(&foreign).variant(CPU, idle), "the buffer of argument 1");
}

#[test]
fn the_check_of_footprints_does_not_wait_for_ever() {
    let platform = platform();
    let (data, other) = (data(&platform), data(&platform));
    let takes = Takes { count: 2, ..Takes::default() };
    let kernel = Kernel::new("check", 8).read(&other).read_write(&data).launchers([(GPU, takes)]).unwrap();
    // A held view for reading does not conflict with the check.
    let view = data.read().unwrap();
    check_footprints(&platform, &kernel, ITEMS, GPU).expect("it can be read");
    drop(view);
    let view = data.write().unwrap();
    let told = check_footprints(&platform, &kernel, ITEMS, GPU).unwrap_err();
    let CheckError::Refused(RunError::HeldByCaller { index: 1, .. }) = told else { panic!("{told}") };
    let (there, of) = (Platform::clone(&platform), kernel.clone());
    let check = watched("a check of a buffer that another thread holds", move || {
        check_footprints(&there, &of, ITEMS, GPU).unwrap_err().to_string()
    });
    assert!(check.join().contains("5s"));
    drop(view);
}
