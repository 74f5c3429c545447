//! Devices alone: when they are tried, and before whom.

use super::tests::{Truth, World, candidate};
use super::{Candidate, Knowledge};
use crate::policy::Freight;

/// A host's memory is full of what is copied for the other device, so that no package shows what it does alone.
#[test]
fn a_device_that_others_disturb_all_the_time_is_tried_alone_too() {
    let devices = [Truth { rate: 9e8, setup: 1e-5 }, Truth { rate: 4e8, setup: 1e-4 }];
    let mut world = World::new(&devices, 1 << 24);
    (world.among_others, world.seen_among_others) = (0.25, 0.4);
    let runs: Vec<_> = (0..12).map(|_| world.run().0).collect();
    assert_eq!(runs.last(), Some(&vec![true, false]), "{runs:?}");
    // One that promises far less is not.
    world = World::new(&devices, 1 << 24);
    (world.among_others, world.seen_among_others) = (0.25, 0.2);
    let runs: Vec<_> = (0..64).map(|_| world.run().0).collect();
    assert!(!runs.contains(&vec![true, false]), "{runs:?}");
}

/// What was never tried costs a run of which nobody knows how long it takes, so that is rare. But then it comes before one more try of the best device.
#[test]
fn what_was_never_tried_alone_waits_for_its_time_and_then_for_nobody() {
    let members = |runs: u64, peak: f64| {
        let text = format!(
            "dml knowledge 2\npage 22 kernel\ndevice cpu rate 5e6 peak {peak} setup 1e-5\ndevice gpu rate 1e7 peak 2e7 setup 1e-4\n\
             set gpu seconds 1e-7 1e-7\nset cpu gpu seconds 2e-7 2e-7\nruns {runs}\n"
        );
        let world = World {
            knowledge: Knowledge::parse(&text).expect("it is well formed"),
            ..World::new(&[Truth { rate: 8e6, setup: 1e-5 }, Truth { rate: 1e7, setup: 1e-4 }], 1 << 22)
        };
        world.knowledge.decide("kernel", 1 << 22, &world.candidates()).members
    };
    // 1.25 times the time of the gpu, whose third try is due.
    assert_eq!([3, 4, 5, 8].map(|runs| members(runs, 8e6)[0]), [false, true, false, true]);
    assert_eq!([3, 4, 8].map(|runs| members(runs, 6.5e6)[0]), [false; 3], "1.54 times");
    // One that promises more is tried at once.
    assert_eq!(members(3, 1.1e7), [true, false]);
}

/// Tries that cost much are made in few runs, those that cost little at once.
#[test]
fn a_device_alone_that_was_slow_waits_for_its_time() {
    let members = |runs: u64, alone: &str, together: &str| {
        let text = format!(
            "dml knowledge 2\npage 22 kernel\ndevice cpu rate 2e6 peak 9e8 setup 1e-5\ndevice gpu rate 1 peak 1 setup 9\n\
             set cpu seconds {alone}\nset cpu gpu seconds {together}\nruns {runs}\n"
        );
        let world = World {
            knowledge: Knowledge::parse(&text).expect("it is well formed"),
            ..World::new(&[Truth { rate: 2e6, setup: 1e-5 }, Truth { rate: 1.0, setup: 9.0 }], 1 << 22)
        };
        world.knowledge.decide("kernel", 1 << 22, &world.candidates()).members
    };
    let (alone, both) = ([true, false], [true, true]);
    // Together 0.84 s; alone 1.7 s, 1.3 s and 0.9 s.
    for (times, waits) in
        [("4e-7", true), ("3.2e-7 3.2e-7", true), ("2.2e-7", false), ("2.2e-7 2.2e-7 2.2e-7 2.2e-7", false)]
    {
        assert_eq!(members(7, times, "2e-7 2e-7"), if waits { both } else { alone }, "{times}");
        assert_eq!(members(8, times, "2e-7 2e-7"), alone, "{times}");
    }
    assert_eq!(members(8, "4e-7 4e-7", "2e-7 2e-7"), both, "it is not near");
    assert_eq!(
        members(8, "2.2e-7 2.2e-7 2.2e-7 2.2e-7 2.2e-7", "2e-7 2e-7"),
        both,
        "it was tried often enough"
    );
    // Nobody minds a hundredth of a second.
    assert_eq!(members(7, "3.2e-9 3.2e-9", "2e-9 2e-9"), alone);
}

/// What it takes to call a device up in a run is more than such a run takes, so nobody ever is. Alone the device takes less.
#[test]
fn a_device_that_short_runs_never_call_up_is_tried_alone_if_it_could_be_faster() {
    let known = |seconds: &str| {
        let text = format!(
            "dml knowledge 2\npage 3 kernel\ndevice cpu rate 4e4 peak 4e4 setup 1e-6\nset cpu seconds {seconds}\nruns 9\n"
        );
        Knowledge::parse(&text).expect("it is well formed")
    };
    let far = Freight { setup: 150e-6, per_item: 0.0 };
    let host = candidate("cpu", Freight { setup: 1e-5, per_item: 0.0 }, true);
    let gpu =
        |setup, per_item| Candidate { alone: Freight { setup, per_item }, ..candidate("gpu", far, false) };
    let members = |knowledge: &Knowledge, other: Candidate<'static>| {
        let selection = knowledge.decide("kernel", 8, &[host, other]);
        assert_eq!(selection.opens, None);
        selection.members
    };
    // Eight items take the host 200 us.
    let knowledge = known("2.5e-5 2.5e-5 2.5e-5");
    assert_eq!(members(&knowledge, gpu(64e-6, 0.0)), [false, true]);
    assert_eq!(members(&knowledge, gpu(64e-6, 6.9e-6)), [false, true]);
    assert_eq!(members(&knowledge, gpu(64e-6, 7.1e-6)), [true, false], "moving the data takes too long");
    assert_eq!(members(&knowledge, gpu(119e-6, 0.0)), [false, true]);
    assert_eq!(members(&knowledge, gpu(121e-6, 0.0)), [true, false], "it takes too long to begin");
    assert_eq!(
        members(&known("2.5e-5 2.5e-5"), gpu(64e-6, 0.0)),
        [true, false],
        "the host may be faster yet"
    );
    assert_eq!(members(&known("1e-5 1e-5 1e-5"), gpu(64e-6, 0.0)), [true, false], "the host takes 80 us");
    // Once it was tried, it is as known as any.
    let tried = "dml knowledge 2\npage 3 kernel\ndevice cpu rate 4e4 peak 4e4 setup 1e-6\ndevice gpu rate 3e4 peak 3e4 setup 2e-4\n\
                 set cpu seconds 2.5e-5 2.5e-5 2.5e-5\nset gpu seconds 6e-5\nruns 9\n";
    let tried = Knowledge::parse(tried).expect("it is well formed");
    assert_eq!(members(&tried, gpu(64e-6, 0.0)), [true, false]);
    // What computes on the cores of the host has what the host has.
    let worker = Candidate { part_of_cores: 1.0, ..gpu(64e-6, 0.0) };
    assert_eq!(members(&knowledge, worker), [true, false]);
}
