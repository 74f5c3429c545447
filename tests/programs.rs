//! The programs of repeated steps on every set of devices: equal results, only borders move, and what is lost
//! with a worker is computed again.

#![cfg(all(feature = "command", feature = "offload", target_os = "linux", not(dml_loom)))]

use dml::arenas::OffloadArena;
use dml::prelude::*;
use dml_workloads::steps::{Program, Size, Steps};
use std::ops::ControlFlow;
use std::process::Command;

/// The processor, an OpenCL device if there is one, and a worker.
struct Machine {
    platform: Platform,
    devices: Vec<DeviceId>,
}

impl Machine {
    fn new() -> Self {
        let worker = Workers::new(1).program(env!("CARGO_BIN_EXE_dml")).memory(64 << 20);
        let options = DiscoverOptions::default().only(["cpu", "opencl:0", "offload:0"]).offload(worker);
        let options = ["cpu", "opencl:0", "offload:0"]
            .into_iter()
            .fold(options, |options, device| options.limit(device, 1));
        let platform = Platform::builder().discover_with(&options).unwrap().build().unwrap();
        let is_expected = std::env::var("DML_EXPECT").is_ok_and(|names| names.contains("opencl"));
        assert!(!is_expected || platform.device("opencl:0").is_ok(), "there is no OpenCL device");
        let devices =
            ["cpu", "opencl:0", "offload:0"].into_iter().filter_map(|name| platform.device(name).ok());
        let devices = devices.collect();
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
            let shares = [1.0, 0.4, 2.0].into_iter().take(devices.len());
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

/// The process that computes a strip ends at some step, and its memory with it.
#[test]
fn what_is_lost_with_a_worker_is_computed_again() {
    for fatal in [5, 40, 95] {
        let machine = Machine::new();
        let (jacobi, size) = (Steps::Jacobi, Steps::Jacobi.tiny());
        let program = machine.program(jacobi, size);
        let mut worker = Some(machine.worker());
        let iterate = program.iterate(&machine.platform).checkpoint(20).every(5, |stepped| {
            // The step is made twice.
            if stepped.steps == fatal
                && let Some(worker) = worker.take()
            {
                kill(worker);
            }
            Ok(ControlFlow::Continue(()))
        });
        let count = machine.devices.len();
        let iterated = iterate.devices(machine.devices.iter().copied()).shares(vec![1.0; count]).run(100);
        let iterated = iterated.unwrap_or_else(|error| panic!("killed after step {fatal}: {error}"));
        assert_eq!(iterated.failed, [machine.platform.device("offload:0").unwrap()]);
        program.verify(100).unwrap();
        let found = program.digest(100).unwrap();
        // The same steps where nothing was lost.
        let other = Machine::new();
        let program = other.program(jacobi, size);
        program.iterate(&other.platform).devices([other.devices[0]]).run(100).unwrap();
        assert_eq!(found, program.digest(100).unwrap(), "killed after step {fatal}");
    }
}
