//! The programs of repeated steps on every set of devices: equal results, only borders move, and what is lost
//! with a worker is computed again.

#![cfg(all(feature = "command", feature = "offload", target_os = "linux", not(dml_loom)))]

use dml::arenas::OffloadArena;
use dml::core::DeviceKind;
use dml::prelude::*;
use dml_workloads::steps::{Program, Size, Steps};
use std::ops::ControlFlow;
use std::process::Command;

/// The processor and a worker, and devices of OpenCL and CUDA if there are any.
const NAMES: [&str; 5] = ["cpu", "opencl:0", "offload:0", "cuda:0", "cuda:1"];

struct Machine {
    platform: Platform,
    devices: Vec<DeviceId>,
}

impl Machine {
    fn new() -> Self {
        // Only devices that there are can be named.
        let found = DiscoverOptions::default().offload(0);
        let found = Platform::builder().discover_with(&found).unwrap().build().unwrap();
        let is_found = |name: &&str| *name == "offload:0" || found.device(name).is_ok();
        let names: Vec<&str> = NAMES.into_iter().filter(is_found).collect();
        let worker = Workers::new(1).program(env!("CARGO_BIN_EXE_dml")).memory(64 << 20);
        let options = DiscoverOptions::default().only(names.iter().copied()).offload(worker);
        let is_gpu = |name: &str| {
            found.device(name).is_ok_and(|device| found.device_desc(device).kind == DeviceKind::Gpu)
        };
        let on_cores = names.iter().filter(|name| !is_gpu(name));
        let options = on_cores.fold(options, |options, device| options.limit(*device, 1));
        let platform = Platform::builder().discover_with(&options).unwrap().build().unwrap();
        let expected = std::env::var("DML_EXPECT").unwrap_or_default();
        for (framework, device) in [("opencl", "opencl:0"), ("cuda", "cuda:0")] {
            let is_expected = expected.contains(framework);
            assert!(!is_expected || platform.device(device).is_ok(), "there is no {device}");
        }
        let devices = names.into_iter().map(|name| platform.device(name).unwrap()).collect();
        Self { platform, devices }
    }

    fn program(&self, steps: Steps, size: Size) -> Program {
        steps.prepare(&self.platform, &self.devices, size).unwrap()
    }

    fn worker(&self) -> u32 {
        let device = self.platform.device("offload:0").unwrap();
        let arena = self.platform.arena(self.platform.home(device).unwrap()).clone();
        arena.downcast_ref::<OffloadArena>().unwrap().device().process().expect("a process of this machine")
    }
}

/// Has a kernel write where there is no memory, which ends the device.
#[cfg(feature = "cuda")]
fn fault(platform: &Platform, device: DeviceId) {
    const SOURCE: &str = r#"extern "C" __global__ void fault(int* out, unsigned long long end, DmlItems items) {
        out[1ull << 40] = 1;
    }"#;
    let out = platform.buffer::<i32>(1).zeroed().build().unwrap();
    // SAFETY: the driver ends the device's context, and nothing else.
    let launchers = unsafe { dml::arenas::launch::cuda(platform, SOURCE, "fault", "") }.expect("it compiles");
    let kernel = Kernel::new("fault", 1).read_write(&out).end().launchers(launchers).unwrap();
    let failed = Coexecutor::new(platform).devices([device]).run(&kernel, 1);
    assert!(failed.is_err() && platform.lost_devices().contains(device), "{failed:?}");
}

fn kill(process: u32) {
    let sent = Command::new("kill").args(["-KILL", &process.to_string()]).status();
    assert!(sent.expect("the system has kill").success());
}

#[test]
fn every_set_of_devices_computes_the_same_grids() {
    let machine = Machine::new();
    let all = &machine.devices;
    let mut sets: Vec<Vec<DeviceId>> = all.iter().map(|device| vec![*device]).collect();
    sets.extend(all.windows(2).map(<[_]>::to_vec));
    sets.extend([all.clone(), all.iter().rev().copied().collect()]);
    for steps in Steps::ALL {
        let program = machine.program(steps, steps.tiny());
        let mut digest = None;
        for (number, devices) in sets.iter().enumerate() {
            program.reset().unwrap();
            let iterate = program.iterate(&machine.platform).devices(devices.iter().copied());
            let shares = [1.0, 0.4, 2.0, 0.7, 1.0].into_iter().take(devices.len());
            // Corrected strips, and given ones.
            let iterate = if number % 2 == 0 { iterate } else { iterate.shares(shares) };
            let made = iterate.run(program.size().steps).unwrap().steps;
            program.verify(made).unwrap_or_else(|wrong| panic!("{steps} on {devices:?}: {wrong}"));
            let found = program.digest(made).unwrap();
            if steps.is_exact() {
                assert_eq!(*digest.get_or_insert(found), found, "{steps} on {devices:?}");
            }
        }
    }
}

/// Each program's bytes per step and cut: rows or planes of its margin both ways, and all positions of
/// `nbody` to whom lacks them.
#[test]
fn only_borders_move() {
    let machine = Machine::new();
    let [cpu, worker] = ["cpu", "offload:0"].map(|name| machine.platform.device(name).unwrap());
    for steps in Steps::ALL {
        let size = steps.tiny();
        let border = match steps {
            Steps::Jacobi => 2 * size.columns * 8,
            Steps::Stencil2d => 2 * size.columns * 4,
            Steps::Stencil3d => 2 * size.columns * size.rows * 4,
            Steps::Prk => 4 * size.columns * 8,
            Steps::Nbody => size.columns * 16,
            Steps::GrayScott => 4 * size.columns * 4,
            other => panic!("{other} has no known border"),
        };
        let program = machine.program(steps, size);
        let run = |count| {
            program.iterate(&machine.platform).devices([cpu, worker]).shares([1.0, 1.0]).run(count).unwrap()
        };
        run(4);
        machine.platform.counters().reset();
        run(10);
        let moved: u64 = machine.platform.counters().transfers().iter().map(|transfer| transfer.bytes).sum();
        assert_eq!(moved, 10 * border, "{steps}");
    }
}

/// What one kernel reads of another device's rows is changed by the next one, which waits for it.
#[test]
fn what_others_wait_for_comes_first() {
    let machine = Machine::new();
    let program = machine.program(Steps::Prk, Steps::Prk.tiny());
    let devices = ["cpu", "offload:0"].map(|name| machine.platform.device(name).unwrap());
    let iterate = program.iterate(&machine.platform).devices(devices).shares([1.0, 1.0]).record();
    let packages = iterate.run(1).unwrap().report.unwrap().packages;
    // A border and the interior, of two kernels.
    for device in devices {
        let of_device = packages.iter().filter(|record| record.device == device);
        let items: Vec<u64> = of_device.map(|record| record.package.items()).collect();
        assert_eq!((items[0], items[2], items.len()), (4, 4, 4), "{items:?}");
    }
}

/// The process that computes a strip ends at some step, and its memory with it.
#[test]
fn what_is_lost_with_a_worker_is_computed_again() {
    for after in [5, 40, 95] {
        is_computed_again("offload:0", after, |machine| kill(machine.worker()));
    }
}

#[cfg(feature = "cuda")]
#[test]
fn what_is_lost_with_a_gpu_is_computed_again() {
    let gpu = |machine: &Machine| machine.platform.device("cuda:0");
    if gpu(&Machine::new()).is_err() {
        eprintln!("skipped: no CUDA device");
        return;
    }
    // The process cannot use it again.
    is_computed_again("cuda:0", 40, |machine| fault(&machine.platform, gpu(machine).unwrap()));
}

/// Makes 100 steps and loses a device `after` some of them. Compares the grids with those of one device.
fn is_computed_again(lost: &str, after: u64, lose: impl Fn(&Machine)) {
    let machine = Machine::new();
    let (jacobi, size) = (Steps::Jacobi, Steps::Jacobi.tiny());
    let program = machine.program(jacobi, size);
    program.iterate(&machine.platform).devices([machine.devices[0]]).run(100).unwrap();
    let expected = program.digest(100).unwrap();
    program.reset().unwrap();
    let mut is_well = true;
    let iterate = program.iterate(&machine.platform).checkpoint(20).every(5, |stepped| {
        // The step is made twice.
        if stepped.steps == after && std::mem::take(&mut is_well) {
            lose(&machine);
        }
        Ok(ControlFlow::Continue(()))
    });
    let count = machine.devices.len();
    let iterated = iterate.devices(machine.devices.iter().copied()).shares(vec![1.0; count]).run(100);
    let iterated = iterated.unwrap_or_else(|error| panic!("lost after step {after}: {error}"));
    // A fault of one GPU may end others that access its memory.
    let may_fail = |device: &DeviceId| {
        let kind = machine.platform.device_desc(*device).kind;
        *device == machine.platform.device(lost).unwrap() || lost == "cuda:0" && kind == DeviceKind::Gpu
    };
    assert!(!iterated.failed.is_empty() && iterated.failed.iter().all(may_fail), "{:?}", iterated.failed);
    program.verify(100).unwrap();
    assert_eq!(program.digest(100).unwrap(), expected, "lost after step {after}");
}
