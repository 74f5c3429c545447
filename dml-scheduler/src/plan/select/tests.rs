//! Selection of devices for given knowledge.

use super::*;
use crate::base::package::Package;
use crate::model::{Knowledge, Member, Ran};
use crate::plan::moving::Moved;
use crate::report::PackageRecord;
use dml_core::DeviceId;
use std::time::Duration;

const ITEMS: u64 = 100_000;
/// Exploration budget with which nothing is explored, in seconds.
const BROKE: f64 = -1.0;

/// A device of a test: its time per item, its setup time per run, and its share of the cores.
#[derive(Clone, Copy)]
struct Device {
    item_us: f64,
    setup_us: f64,
    part_of_cores: f64,
    is_host: bool,
    /// Transfer time of its inputs, in seconds.
    inward: f64,
}

const HOST: Device = Device { item_us: 1.0, setup_us: 5.0, part_of_cores: 1.0, is_host: true, inward: 0.0 };
const GPU: Device = Device { item_us: 0.5, setup_us: 200.0, part_of_cores: 0.0, is_host: false, inward: 0.0 };

fn member(index: usize, device: &Device) -> Member {
    Member {
        device: DeviceId(index as u16),
        name: index.to_string(),
        bytes: [0.0, device.inward * 1e9],
        per_byte: 1e-9,
        width: Width::ONE,
        is_host: device.is_host,
        has_launched: false,
    }
}

/// Adds runs of `items` items to the knowledge, in which devices compute the given parts at the same time.
fn teach(knowledge: &Knowledge, devices: &[Device], items: u64, parts: &[(usize, u64)], slowdown: f64) {
    let members: Vec<Member> =
        devices.iter().enumerate().map(|(index, device)| member(index, device)).collect();
    let time = |us: f64| Duration::from_secs_f64(us * 1e-6);
    let record = |&(index, part): &(usize, u64)| {
        let device = &devices[index];
        let begun = time(device.setup_us);
        let ended = begun + time(part as f64 * device.item_us * slowdown);
        let package = Package::new(0..part, UnitId(index), index as u64);
        let device = DeviceId(index as u16);
        PackageRecord {
            package,
            device,
            start: begun,
            begun,
            computed: ended,
            noticed_late: false,
            end: ended,
        }
    };
    let packages: Vec<PackageRecord> = parts.iter().map(record).collect();
    let run = Ran {
        kernel: "kernel",
        items,
        duration: packages.iter().map(|record| record.end).max().unwrap(),
        packages: &packages,
        called_up: &[],
        chosen: &[],
        is_alone: parts.len() == 1,
        without_exploring: None,
    };
    // The first package of a process is a cold start.
    (0..3).for_each(|_| knowledge.learn(&members, &run));
}

fn select(knowledge: &Knowledge, devices: &[Device], items: u64, credit: f64) -> Selection {
    let names: Vec<String> = (0..devices.len()).map(|index| index.to_string()).collect();
    knowledge.with("kernel", |model| {
        let candidate = |(index, device): (usize, &Device)| Candidate {
            model: model.device(&names[index]).filter(|model| model.is_known()),
            name: &names[index],
            twin: None,
            moving: Moving {
                inward: Moved { bytes: device.inward * 1e9, seconds: device.inward },
                is_host: device.is_host,
                ..Moving::default()
            },
            packages: 1.0,
            part_of_cores: device.part_of_cores,
            width: Width::ONE,
            latent: 0,
            has_failed: false,
        };
        let candidates: Vec<Candidate<'_>> = devices.iter().enumerate().map(candidate).collect();
        Choice {
            items: items as f64,
            groups: items / 10,
            candidates: &candidates,
            credit,
            is_undivided: false,
        }
        .select()
    })
}

/// Returns knowledge of each device alone, from runs of all items.
fn alone(devices: &[Device]) -> Knowledge {
    let knowledge = Knowledge::new();
    (0..devices.len()).for_each(|index| {
        // After nine runs no device is tried again.
        (0..3).for_each(|_| teach(&knowledge, devices, ITEMS, &[(index, ITEMS)], 1.0));
    });
    knowledge
}

#[test]
fn nothing_is_chosen_where_nothing_is_known() {
    let selection = select(&Knowledge::new(), &[HOST, GPU], ITEMS, 0.0);
    assert_eq!((selection.members.len(), selection.explorers.len()), (0, 2));
}

/// 100 ms and 50 ms alone become 33 ms together.
#[test]
fn devices_that_shorten_the_run_share_it_by_their_speeds() {
    let devices = [HOST, GPU];
    let Selection { members, shares, seconds, reasons, .. } =
        select(&alone(&devices), &devices, ITEMS, BROKE);
    assert_eq!((members, reasons), (vec![0, 1], vec![None, None]));
    assert!((seconds - 33.4e-3).abs() < 0.2e-3, "{seconds}");
    assert!((shares[1].items / ITEMS as f64 - 2.0 / 3.0).abs() < 0.01, "{shares:?}");
}

/// Estimates for 100 items come from runs of 100,000: the host needs 105 us, the GPU 250 us.
#[test]
fn a_device_that_needs_longer_to_begin_than_the_others_take_is_left_out() {
    let devices = [HOST, GPU];
    let Selection { members, reasons, .. } = select(&alone(&devices), &devices, 100, BROKE);
    assert_eq!(members, [0]);
    assert!(matches!(reasons[1], Some(Reason::SetUp { .. })), "{reasons:?}");
}

/// A device with a sixtieth of the host's speed saves less than `LEAST_GAIN` of the run.
#[test]
fn a_device_that_saves_next_to_nothing_is_left_out() {
    let slow = Device { item_us: 60.0, ..GPU };
    let devices = [HOST, slow];
    let Selection { members, reasons, .. } = select(&alone(&devices), &devices, ITEMS, BROKE);
    assert_eq!(members, [0]);
    assert!(matches!(reasons[1], Some(Reason::Slower { .. })), "{reasons:?}");
}

#[test]
fn of_two_on_the_same_cores_the_faster_one_is_chosen() {
    let driver = Device { item_us: 0.4, is_host: false, ..HOST };
    let devices = [HOST, driver];
    let Selection { members, reasons, .. } = select(&alone(&devices), &devices, ITEMS, BROKE);
    assert_eq!(members, [1]);
    assert!(matches!(reasons[0], Some(Reason::Slower { .. })), "{reasons:?}");
    let halves = [Device { part_of_cores: 0.5, ..HOST }, Device { part_of_cores: 0.5, ..driver }];
    assert_eq!(select(&alone(&halves), &halves, ITEMS, BROKE).members, [0, 1], "each has its own cores");
}

/// Together both take twice as long as each would alone, so sharing saves nothing.
#[test]
fn what_devices_slow_each_other_down_by_is_learned() {
    let devices = [HOST, GPU];
    let knowledge = alone(&devices);
    (0..3).for_each(|_| teach(&knowledge, &devices, ITEMS, &[(0, 33_333), (1, 66_667)], 2.0));
    let Selection { members, .. } = select(&knowledge, &devices, ITEMS, BROKE);
    assert_eq!(members, [1]);
}

/// The GPU was measured only beside the host, and both were slow. Alone it may be faster.
#[test]
fn a_device_that_was_never_alone_is_tried_alone_as_far_as_credit_goes() {
    let gpu = Device { item_us: 0.6, setup_us: 5.0, ..GPU };
    let devices = [HOST, gpu];
    let knowledge = Knowledge::new();
    (0..3).for_each(|_| teach(&knowledge, &devices, ITEMS, &[(0, ITEMS)], 1.0));
    teach(&knowledge, &devices, ITEMS, &[(0, 50_000), (1, 50_000)], 4.0);
    let poor = select(&knowledge, &devices, ITEMS, BROKE);
    let rich = select(&knowledge, &devices, ITEMS, 1.0);
    assert_eq!((poor.members, rich.members.clone()), (vec![0], vec![1]));
    assert!(rich.seconds > rich.best_seconds, "the trial may cost the difference");
}

/// Of an unmeasured device, only the transfer time is known.
#[test]
fn an_unknown_device_is_explored_if_it_could_help() {
    let knowledge = Knowledge::new();
    (0..3).for_each(|_| teach(&knowledge, &[HOST], ITEMS, &[(0, ITEMS)], 1.0));
    let explored = |gpu: Device, items: u64, credit: f64| {
        select(&knowledge, &[HOST, gpu], items, credit).explorers.len() == 1
    };
    assert!(explored(GPU, ITEMS, 0.0));
    assert!(!explored(GPU, 90, 100e-6), "the host is done in 95 us");
    assert!(!explored(Device { inward: 2.5, ..GPU }, ITEMS, 100e-6), "its data moves for 25 times as long");
    // The device may help in longer runs, and the budget covers its cost of 150 us.
    assert!(explored(GPU, 90, 200e-6) && !explored(GPU, 70, 200e-6), "not with seven work-groups");
    let trial = select(&knowledge, &[HOST, GPU], 70, 200e-6);
    assert_eq!(trial.members, [1], "all seven go to the explorer");
    assert_eq!(trial.reasons, [Some(Reason::Trial), None]);
    assert_eq!(select(&knowledge, &[HOST, GPU], 70, 100e-6).members, [0]);
    // 50 us are more than a tenth of 300 us.
    assert!(!explored(GPU, 300, 0.0) && explored(GPU, 300, 100e-6));
    let rival = Device { part_of_cores: 1.0, ..GPU };
    let selection = select(&knowledge, &[HOST, rival], ITEMS, 0.0);
    assert_eq!(selection.explorers[0].turns_with, [UnitId(0)]);
}
