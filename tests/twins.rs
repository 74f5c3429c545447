//! Several unmeasured devices of one model: one begins, and the others join where the run is long.

#![cfg(not(dml_loom))]

use dml::Kernel;
use dml::arenas::{Null, kit};
use dml::core::internal::sync::Arc;
use dml::core::{
    ArenaDesc, ArenaId, ArenaKind, DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence, LinkSpeed,
};
use dml::prelude::*;
use dml::scheduler::policy::RecordedDecisions;
use dml::scheduler::{KernelError, Knowledge, Reason, Report};
use dml_verify::{Audited, watched};
use std::time::{Duration, Instant};

const CPU: DeviceId = DeviceId(0);
const LOCAL: u64 = 10;
const ITEMS: u64 = 4003;
/// Results of 16 kB travel for 16 ms, so that a device that computes alone has several packages.
const SPEED: LinkSpeed = LinkSpeed { latency_ns: 0, bytes_per_s: 1_000_000, remap_ns: 0 };

/// GPUs with these models, the kernel, and what it writes.
struct Machine {
    platform: Audited,
    target: Buffer<u32>,
    kernel: Kernel,
    gpus: Vec<DeviceId>,
}

fn squares(items: std::ops::Range<u64>) -> Vec<u8> {
    items.flat_map(|item| (item as u32).wrapping_mul(item as u32).to_ne_bytes()).collect()
}

impl Machine {
    /// Each GPU takes `item` for an item, and fails if it is the one that `fails`.
    fn new(models: &[&str], item: Duration, fails: Option<usize>) -> Self {
        Self::at_speed(SPEED, models, &vec![item; models.len()], fails)
    }

    /// As `new`, with the time that each GPU takes, and links of another speed.
    fn at_speed(speed: LinkSpeed, models: &[&str], took: &[Duration], fails: Option<usize>) -> Self {
        let mut builder = Platform::builder();
        builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
        let cpu = DeviceSet::of(CPU);
        let main = ArenaDesc::new("main", ArenaKind("test"), CPU).with_remotes(cpu);
        builder.add_arena(Arc::new(Null::backed(main)));
        let mut gpus = Vec::new();
        for (index, model) in models.iter().enumerate() {
            let (name, memory) = (format!("gpu:{index}"), format!("memory {index}"));
            let gpu = DeviceId(index as u16 + 1);
            builder.add_device(
                DeviceDesc::new(&name, DeviceKind::Gpu).with_model(*model).with_compute_units(64),
            );
            let video = ArenaDesc::new(&memory, ArenaKind("test"), gpu).with_remotes(cpu);
            let video = builder.add_arena(Arc::new(Null::backed(video)));
            kit::join_staged(&mut builder, ArenaId(0), video, speed);
            gpus.push(gpu);
        }
        let platform = Audited::new(builder.build().expect("a sound platform"));
        let target = platform.buffer::<u32>(ITEMS).build().unwrap();
        let mut kernel = Kernel::new("square", LOCAL).write(&target);
        for (index, &gpu) in gpus.iter().enumerate() {
            let (there, output, arena) =
                (Platform::clone(&platform), target.clone(), ArenaId(index as u8 + 1));
            let item = took[index];
            let compute = move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
                if fails == Some(index) {
                    return Err("it does not compute".into());
                }
                std::thread::sleep(item * package.items() as u32);
                let bytes = package.start() * 4..package.end() * 4;
                let memory = there.arena(arena).downcast_ref::<Null>().expect("all are");
                memory.write(grants, &output.raw().range(bytes), &squares(package.range()))?;
                Ok(Fence::done(0))
            };
            kernel = kernel.variant(gpu, compute);
        }
        Self { platform, target, kernel, gpus }
    }

    fn run(&self, knowledge: &Knowledge) -> Report {
        let run = Coexecutor::new(&self.platform).devices(self.gpus.iter().copied());
        let run = run.knowledge(knowledge).record_decisions();
        let kernel = self.kernel.clone();
        let report = watched("a run", move || run.run(&kernel, ITEMS).unwrap()).join();
        let grants = self.platform.acquire(CPU).read(&self.target).wait().unwrap();
        assert_eq!(grants.read_bytes(&self.target).unwrap(), squares(0..ITEMS), "{report:?}");
        grants.release().unwrap();
        let decisions = report.decisions.as_ref().expect("they are recorded");
        decisions.replay().unwrap();
        assert_eq!(&decisions.to_string().parse::<RecordedDecisions>().unwrap(), decisions);
        report
    }

    fn items(&self, report: &Report) -> Vec<u64> {
        let of = |gpu: &DeviceId| report.devices.iter().find(|device| device.device == *gpu);
        self.gpus.iter().map(|gpu| of(gpu).map_or(0, |device| device.items)).collect()
    }
}

/// Every third package at most is the first one's alone. A busy machine may have it compute more.
#[test]
fn the_second_of_two_joins_a_long_run_of_which_nothing_is_known() {
    let machine = Machine::new(&["one", "one"], Duration::from_micros(20), None);
    let begun = Instant::now();
    loop {
        let report = machine.run(&Knowledge::new());
        assert_eq!(report.called_up.len(), 1, "{report:?}");
        let first = report.packages.iter().find(|record| record.package.start() == 0).unwrap();
        assert_eq!(first.device, machine.gpus[0], "it begins");
        assert!(first.package.items() > ITEMS / 20, "as it would alone: {report:?}");
        if machine.items(&report)[1] > ITEMS / 3 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{report:?}");
    }
}

#[test]
fn a_run_of_few_work_groups_is_the_first_ones() {
    let machine = Machine::new(&["one", "one"], Duration::ZERO, None);
    let run = Coexecutor::new(&machine.platform).devices(machine.gpus.iter().copied());
    let report = run.run(&machine.kernel, LOCAL * 8).unwrap();
    assert_eq!(machine.items(&report), [LOCAL * 8, 0]);
    let [left_out] = &report.left_out[..] else { panic!("{report:?}") };
    assert!(matches!(left_out.reason, Reason::NotCalledUp { .. }), "{report:?}");
}

/// The relative speed of devices of different models is unknown. The first one begins as it would alone.
#[test]
fn of_devices_of_different_models_the_first_begins_as_well() {
    let machine = Machine::new(&["one", "other"], Duration::from_micros(20), None);
    let begun = Instant::now();
    loop {
        let report = machine.run(&Knowledge::new());
        let first = report.packages.iter().find(|record| record.package.start() == 0).unwrap();
        assert_eq!(first.device, machine.gpus[0], "it begins: {report:?}");
        assert_eq!(report.called_up.len(), 1, "{report:?}");
        if machine.items(&report)[1] > ITEMS / 3 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{report:?}");
    }
    // A short run costs nothing for the other one.
    let quick = Machine::new(&["one", "other"], Duration::ZERO, None);
    let run = Coexecutor::new(&quick.platform).devices(quick.gpus.iter().copied());
    let report = run.knowledge(&Knowledge::new()).run(&quick.kernel, LOCAL * 8).unwrap();
    assert_eq!(quick.items(&report), [LOCAL * 8, 0]);
    // And where it fails, the other one computes.
    let machine = Machine::new(&["one", "other"], Duration::from_micros(5), Some(0));
    assert_eq!(machine.items(&machine.run(&Knowledge::new())), [0, ITEMS]);
}

/// Runs learn which of these devices is faster. They do so even where next to nothing travels, and all is one
/// package of the first device, which ends when the run does.
#[test]
fn who_began_does_not_keep_later_runs_if_another_is_faster() {
    for (speed, micros) in [(SPEED, 20), (LinkSpeed::default(), 5)] {
        let slow_first = [Duration::from_micros(micros), Duration::ZERO];
        let machine = Machine::at_speed(speed, &["one", "other"], &slow_first, None);
        let (knowledge, begun) = (Knowledge::new(), Instant::now());
        while machine.items(&machine.run(&knowledge))[1] < ITEMS * 3 / 4 {
            assert!(begun.elapsed() < Duration::from_secs(60), "{speed:?}");
        }
    }
}

#[test]
fn where_the_one_that_begins_fails_its_twins_compute() {
    let machine = Machine::new(&["one", "one", "one"], Duration::from_micros(5), Some(0));
    let report = machine.run(&Knowledge::new());
    assert_eq!(machine.items(&report)[0], 0, "{report:?}");
    assert_eq!(machine.items(&report).iter().sum::<u64>(), ITEMS);
}

/// Who says how fast they are beside each other is believed.
#[test]
fn where_powers_are_given_all_begin() {
    let machine = Machine::new(&["one", "one"], Duration::from_micros(20), None);
    let run = Coexecutor::new(&machine.platform).devices(machine.gpus.iter().copied()).powers([0.05, 1.0]);
    let report = run.run(&machine.kernel, ITEMS).unwrap();
    assert!(report.called_up.is_empty(), "{report:?}");
    let first = |gpu| report.packages.iter().find(|record| record.device == gpu).unwrap().package.items();
    assert!(first(machine.gpus[0]) < first(machine.gpus[1]), "{report:?}");
}

/// What one has shown is expected of all, so that all begin in the next run. On a busy machine the one may
/// show so little that its twins do not pay, hence the loop.
#[test]
fn what_one_has_shown_is_expected_of_all() {
    let machine = Machine::new(&["one", "one", "one"], Duration::from_micros(20), None);
    let begun = Instant::now();
    loop {
        let knowledge = Knowledge::new();
        let alone = Coexecutor::new(&machine.platform).devices([machine.gpus[1]]).knowledge(&knowledge);
        for _ in 0..2 {
            alone.run(&machine.kernel, ITEMS).unwrap();
        }
        let report = machine.run(&knowledge);
        let all_begin = report.called_up.is_empty()
            && report.devices.iter().all(|device| device.known_rate.is_some() && device.items > 0);
        if all_begin {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{report:?}");
    }
}
