//! Unmeasured devices: they compute real packages of a run if they could help, and are measured afterwards.

#![cfg(not(dml_loom))]

use dml::Kernel;
use dml::arenas::{Null, kit};
use dml::core::internal::sync::Arc;
use dml::core::{
    ArenaDesc, ArenaId, ArenaKind, DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence, LinkSpeed,
};
use dml::prelude::*;
use dml::scheduler::policy::RecordedDecisions;
use dml::scheduler::{Footprint, KernelError, Knowledge, Reason, Report};
use dml_verify::{Audited, watched};
use std::time::{Duration, Instant};

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);
const ITEMS: u64 = 4096;
const ITEM_BYTES: u64 = 16;
const FAST: LinkSpeed = LinkSpeed { latency_ns: 0, bytes_per_s: 1_000_000_000, remap_ns: 0 };

/// A processor and a GPU with a memory of its own. Items of two buffers are numbers that a kernel moves on by
/// one step.
struct Machine {
    platform: Audited,
    buffers: [Buffer<u32>; 2],
    /// From the first buffer to the second one, and back.
    kernels: [Kernel; 2],
}

fn memory(platform: &Platform, arena: u8) -> &Null {
    platform.arena(ArenaId(arena)).downcast_ref::<Null>().expect("all are")
}

impl Machine {
    /// The processor and the GPU take so long for an item.
    fn new(items: [Duration; 2], speed: LinkSpeed) -> Self {
        let mut builder = Platform::builder();
        builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
        let cpu = DeviceSet::of(CPU);
        builder.add_arena(Arc::new(Null::backed(
            ArenaDesc::new("main", ArenaKind("test"), CPU).with_remotes(cpu),
        )));
        builder.add_device(DeviceDesc::new("gpu:0", DeviceKind::Accelerator).with_compute_units(4));
        let video = ArenaDesc::new("video", ArenaKind("test"), GPU).with_remotes(cpu);
        let video = builder.add_arena(Arc::new(Null::backed(video)));
        kit::join_staged(&mut builder, ArenaId(0), video, speed);
        let platform = Audited::new(builder.build().expect("a sound platform"));
        let buffers = [0, 1].map(|_| platform.buffer::<u32>(ITEMS * ITEM_BYTES / 4).build().unwrap());
        let kernels = [0, 1].map(|from| {
            let [input, output] = [&buffers[from], &buffers[1 - from]];
            let stencil = Footprint::neighbourhood(ITEM_BYTES, 1);
            let kernel = Kernel::new("step", 1)
                .argument(dml::scheduler::Argument::part(input, dml::core::Access::ReadOnly, stencil))
                .argument(dml::scheduler::Argument::part(
                    output,
                    dml::core::Access::WriteInvalidate,
                    Footprint::one_to_one(ITEM_BYTES),
                ));
            let variant = |arena: u8, item: Duration| {
                let (there, input, output) = (Platform::clone(&platform), input.clone(), output.clone());
                move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
                    std::thread::sleep(item * package.items() as u32);
                    let bytes = package.start() * ITEM_BYTES..package.end() * ITEM_BYTES;
                    let before = memory(&there, arena).read(grants, &input.raw().range(bytes.clone()))?;
                    let after = before.chunks_exact(4).flat_map(|value| {
                        let value = u32::from_ne_bytes(value.try_into().expect("four bytes"));
                        value.wrapping_mul(3).wrapping_add(1).to_ne_bytes()
                    });
                    let after: Vec<u8> = after.collect();
                    memory(&there, arena).write(grants, &output.raw().range(bytes), &after)?;
                    Ok(Fence::done(0))
                }
            };
            kernel.variant(CPU, variant(0, items[0])).variant(GPU, variant(1, items[1]))
        });
        let numbers: Vec<u32> = (0..ITEMS as u32 * ITEM_BYTES as u32 / 4).collect();
        buffers[0].store(&numbers).unwrap();
        Self { platform, buffers, kernels }
    }

    fn run(&self, knowledge: &Knowledge) -> Report {
        let run = Coexecutor::new(&self.platform).knowledge(knowledge).record_decisions();
        let kernel = self.kernels[0].clone();
        let report = watched("a run", move || run.run(&kernel, ITEMS).unwrap()).join();
        self.check(1);
        let decisions = report.decisions.as_ref().expect("they are recorded");
        decisions.replay().unwrap();
        assert_eq!(&decisions.to_string().parse::<RecordedDecisions>().unwrap(), decisions);
        report
    }

    /// Checks the numbers after so many steps.
    fn check(&self, steps: usize) {
        let mut found = vec![0; (ITEMS * ITEM_BYTES / 4) as usize];
        self.buffers[steps % 2].load_into(&mut found).unwrap();
        let after = |number: u32| (0..steps).fold(number, |value, _| value.wrapping_mul(3).wrapping_add(1));
        let wrong = (0..).zip(&found).find(|(number, value)| after(*number) != **value);
        assert_eq!(wrong, None);
    }

    fn items(report: &Report) -> [u64; 2] {
        [CPU, GPU].map(|device| {
            report.devices.iter().find(|work| work.device == device).map_or(0, |work| work.items)
        })
    }
}

/// It is called up, computes a short package first, and most of the rest.
#[test]
fn a_device_that_could_help_is_explored_and_known_afterwards() {
    let machine = Machine::new([Duration::from_micros(20), Duration::from_micros(2)], FAST);
    let begun = Instant::now();
    // A busy machine may keep it from joining.
    loop {
        let knowledge = Knowledge::new();
        let report = machine.run(&knowledge);
        let [_, of_gpu] = Machine::items(&report);
        if of_gpu > ITEMS / 2 {
            assert_eq!(report.called_up.iter().map(|called| called.device).collect::<Vec<_>>(), [GPU]);
            let first = report.packages.iter().find(|record| record.device == GPU).unwrap();
            assert!(first.package.items() <= ITEMS / 8, "{report:?}");
            // Now both are known, and begin at once or not at all.
            let report = machine.run(&knowledge);
            assert!(report.called_up.is_empty(), "{report:?}");
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{report:?}");
    }
}

/// 16 bytes at 10 B/s take many times what the processor takes for an item, also on a busy machine.
#[test]
fn a_device_whose_data_moves_too_slowly_is_never_asked() {
    let slow = LinkSpeed { bytes_per_s: 10, ..FAST };
    let machine = Machine::new([Duration::from_micros(5), Duration::ZERO], slow);
    let knowledge = Knowledge::new();
    for run in 0..5 {
        let report = machine.run(&knowledge);
        assert_eq!(Machine::items(&report)[1], 0, "{report:?}");
        let [left_out] = &report.left_out[..] else { panic!("{report:?}") };
        match left_out.reason {
            Reason::NotCalledUp { .. } => assert_eq!(run, 0, "nothing was known: {report:?}"),
            Reason::Unknown { .. } | Reason::SetUp { .. } => assert!(run > 0, "{report:?}"),
            _ => panic!("{report:?}"),
        }
    }
}

/// What a device has shown is not looked for again: runs are the processor's alone.
#[test]
fn a_device_that_turned_out_slow_is_not_explored_for_ever() {
    let machine = Machine::new([Duration::from_micros(2), Duration::from_micros(400)], FAST);
    let knowledge = Knowledge::new();
    let explored = (0..30).filter(|_| Machine::items(&machine.run(&knowledge))[1] > 0).count();
    assert!(explored <= 6, "{explored} of 30 runs");
}

/// Steps of a stencil whose results stay where they were computed: only the rows at the border move, whatever
/// hands packages out.
#[test]
fn the_packages_of_the_next_step_go_where_their_data_is() {
    let policies = [
        PolicySpec::Calibrated,
        PolicySpec::HGuided { k: 2.0, min: None },
        PolicySpec::Dynamic { packages: 20 },
    ];
    for policy in policies {
        // Parts follow the devices' speeds, and so does who takes part: a busy machine disturbs that, but not
        // three times.
        let moved: Vec<Vec<u64>> =
            std::iter::repeat_with(|| bytes_of_each_step(policy.clone())).take(3).collect();
        let late = |moved: &Vec<u64>| {
            let mut late = moved[moved.len() / 2..].to_vec();
            late.sort_unstable();
            late[late.len() / 2]
        };
        let all = ITEMS * ITEM_BYTES;
        assert!(
            moved.iter().map(late).min().is_some_and(|least| least <= all / 8),
            "{policy}: {moved:?} of {all}"
        );
    }
}

/// What moves in each of 24 steps of two kernels in turns.
fn bytes_of_each_step(policy: PolicySpec) -> Vec<u64> {
    let (machine, knowledge, steps) =
        (Machine::new([Duration::from_micros(4); 2], FAST), Knowledge::new(), 24);
    let run = Coexecutor::new(&machine.platform).knowledge(&knowledge).policy(policy).collect_on(None);
    let step = |step: usize| {
        machine.platform.counters().reset();
        run.run(&machine.kernels[step % 2], ITEMS).unwrap();
        machine.platform.counters().transfers().iter().map(|transfer| transfer.bytes).sum()
    };
    let moved = (0..steps).map(step).collect();
    machine.check(steps);
    moved
}
