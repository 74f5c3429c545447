//! How much of a run's transfers lies under compute: what the report and the recorded events say together.

#![cfg(not(dml_loom))]

use dml::Kernel;
use dml::arenas::{Null, kit};
use dml::core::internal::sync::Arc;
use dml::core::record::EventKind;
use dml::core::{
    ArenaDesc, ArenaId, ArenaKind, Concurrency, DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence, LinkSpeed,
};
use dml::prelude::*;
use dml::scheduler::{Hooks, KernelError, metrics};
use dml_verify::{Audited, watched};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);
const ITEMS: u64 = 4000;
const PACKAGES: u64 = 10;

fn platform() -> Audited {
    let mut builder = Platform::builder();
    for (name, kind) in [("cpu", DeviceKind::Cpu), ("gpu:0", DeviceKind::Gpu)] {
        builder.add_device(DeviceDesc::new(name, kind));
    }
    let cpu = DeviceSet::of(CPU);
    let main = ArenaDesc::new("main", ArenaKind("test"), CPU).with_remotes(cpu);
    builder.add_arena(Arc::new(Null::backed(main.with_concurrency(Concurrency::BimapFull))));
    let video = ArenaDesc::new("video", ArenaKind("test"), GPU).with_remotes(cpu);
    let video = builder.add_arena(Arc::new(Null::backed(video)));
    kit::join_staged(&mut builder, ArenaId(0), video, LinkSpeed::default());
    Audited::new(builder.build().expect("a sound platform"))
}

/// Counts the packages that are done.
struct Done(Arc<AtomicU64>);

impl Hooks for Done {
    fn package_done(&self, _: &Package, _: DeviceId) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Each package computes until the results of the one before are where they belong. So all results but the
/// last move under compute, on the clock of the events as on that of the report.
#[test]
fn results_that_move_while_the_next_package_computes_lie_under_compute() {
    // A busy machine may stop a thread between the end of a copy and its record.
    let (wrong, attempts) = (|_: &usize| moves_under_compute().is_err(), 5);
    assert!((0..attempts).take_while(wrong).count() < attempts, "{:?}", moves_under_compute());
}

fn moves_under_compute() -> Result<(), String> {
    let platform = platform();
    let source = platform.buffer_from((0..ITEMS as u32).map(|i| i * 5 + 1).collect::<Vec<_>>()).unwrap();
    let target = platform.buffer::<u32>(ITEMS).build().unwrap();
    let done = Arc::new(AtomicU64::new(0));
    let (there, ended, output) = (Platform::clone(&platform), done.clone(), target.clone());
    let kernel = Kernel::new("copy", 10).read(&source).write(&target).variant(
        GPU,
        move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
            let part = output.raw().range(package.start() * 4..package.end() * 4);
            let values: Vec<u32> = package.range().map(|item| item as u32 ^ 0x55).collect();
            let arena = there.arena(there.home(GPU).expect("it has one"));
            let arena = arena.downcast_ref::<Null>().expect("all are");
            arena.write(grants, &part, bytemuck::cast_slice(&values)).expect("granted");
            let (ended, before) = (ended.clone(), package.start() / (ITEMS / PACKAGES));
            Ok(Fence::running(move || {
                while ended.load(Ordering::SeqCst) < before {
                    std::thread::sleep(Duration::from_micros(50));
                }
                Ok(0)
            }))
        },
    );
    // Something happens before, so that the clocks differ.
    std::thread::sleep(Duration::from_millis(20));
    let recording = platform.record();
    let run = Coexecutor::new(&platform).policy(format!("dynamic:{PACKAGES}").parse().unwrap());
    let hooks = Done(done);
    let report = watched("a run", move || run.run_with(&kernel, ITEMS, &hooks).unwrap()).join();
    let events = recording.finish();
    assert_eq!(report.packages.len() as u64, PACKAGES);
    let home = ArenaId(1);
    let mut outward: Vec<_> = events
        .iter()
        .filter(|event| matches!(event.kind, EventKind::CopyDone { from: Some(from), .. } if from == home))
        .map(|event| event.at)
        .collect();
    outward.sort();
    assert_eq!(outward.len() as u64, PACKAGES);
    outward.pop();
    let computing: Vec<_> = report.computing().collect();
    if let Some(at) = outward.iter().find(|at| !computing.iter().any(|interval| interval.contains(at))) {
        return Err(format!("{at:?} of {computing:?}"));
    }
    let overlap = report.overlap(&events);
    assert!(!overlap.under_compute.is_zero() && overlap.under_compute <= overlap.transfer, "{overlap:?}");
    let all: Duration = metrics::transfers(&events).iter().map(|copy| copy.end - copy.start).sum();
    assert!(overlap.transfer <= all, "{overlap:?} of {all:?}");
    Ok(())
}

#[test]
fn a_recording_that_saw_nothing_has_no_part() {
    let platform = platform();
    let data = platform.buffer_from(vec![3_u32; 40]).unwrap();
    let idle = |package: &Package, _: &mut Grants| -> Result<Fence, KernelError> {
        Ok(Fence::done(package.items()))
    };
    let kernel = Kernel::new("idle", 10).read_write(&data).variant(CPU, idle);
    let recording = platform.record();
    let report = Coexecutor::new(&platform).run(&kernel, 40).unwrap();
    assert_eq!(report.overlap(&recording.finish()).part(), None);
}

#[test]
#[cfg(all(feature = "command", feature = "opencl"))]
fn the_json_of_a_benchmark_says_how_much_lies_under_compute() {
    let run = std::process::Command::new(env!("CARGO_BIN_EXE_dml"))
        .args(["bench", "saxpy", "--size", "tiny", "--devices", "cpu", "--runs", "1", "--json"])
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
        .output()
        .expect("the command runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let told: serde_json::Value = serde_json::from_slice(&run.stdout).expect("JSON");
    let expected = serde_json::json!({ "transfer_s": 0.0, "under_compute_s": 0.0, "part": null });
    assert_eq!(told["under_compute"], expected, "one memory");
}
