//! What is decided of devices on the same cores, and what a run teaches in which they took turns.

use super::tests::{candidate, record};
use super::*;
use crate::knowledge::decide::TRIES;
use crate::policy::Freight;

/// The processor, a driver and a worker that have parts of its cores, and a GPU, of which these rates are known.
fn on_cores(parts: [f64; 3], is_comparable: bool) -> Vec<Candidate<'static>> {
    let [cpu, driver, worker] = parts;
    let near = Freight { setup: 1e-5, per_item: 0.0 };
    let of = |name, part_of_cores, is_host| Candidate { part_of_cores, ..candidate(name, near, is_host) };
    let driver = Candidate { is_comparable, ..of("driver", driver, false) };
    vec![of("cpu", cpu, true), driver, of("worker", worker, false), of("gpu", 0.0, false)]
}

fn with_rates(rates: &[(&str, f64)]) -> Knowledge {
    let knowledge = Knowledge::new();
    for (device, rate) in rates {
        let mut book = knowledge.0.lock();
        let notes = book.page("kernel", 1 << 20).devices.entry((*device).to_owned()).or_default();
        notes.rate.add(*rate);
        notes.peak.add(*rate);
        notes.setup.add(1e-5);
    }
    knowledge
}

/// Runs of which nothing but this is known.
fn add_runs(knowledge: &Knowledge, runs: usize, set: &[&str], seconds: f64) {
    for _ in 0..runs {
        let set = set.iter().map(|&name| name.to_owned()).collect();
        knowledge.0.lock().page("kernel", 1 << 20).add_run(set, seconds / (1 << 20) as f64);
    }
}

/// A trial of 1000 items that took so long, of the driver on the cores of the processor.
fn try_driver(knowledge: &Knowledge, took: Duration) {
    let took = [Duration::from_micros(10), took];
    let about = ("kernel", 1 << 20);
    let weight = Weight::of(false, true, knowledge.is_first_trial(about, "driver", true));
    knowledge.learn_trial(about, "driver", 1000, took, weight);
}

/// Its first launch may have compiled the kernel. What is known of it then is kept, as anything is.
#[test]
fn a_rival_whose_trial_took_long_has_another_one() {
    let knowledge = with_rates(&[("cpu", 1e7)]);
    add_runs(&knowledge, 4, &["cpu"], 0.1);
    try_driver(&knowledge, Duration::from_millis(100));
    let candidates = &on_cores([1.0, 1.0, 0.0], true)[..2];
    let reread = Knowledge::parse(&knowledge.to_string()).unwrap();
    for knowledge in [&knowledge, &reread] {
        let selection = knowledge.decide("kernel", 1 << 20, candidates);
        assert_eq!((&selection.members[..], selection.opens), (&[true, true][..], Some(0)), "{selection:?}");
    }
    try_driver(&reread, Duration::from_millis(100));
    let selection = reread.decide("kernel", 1 << 20, candidates);
    assert_eq!(selection.members, [true, false], "twice is no chance: {selection:?}");
    // What is taken counts at once.
    let gpu = with_rates(&[("cpu", 1e7)]);
    gpu.learn_trial(("kernel", 1 << 20), "gpu", 1000, [Duration::from_micros(10); 2], Weight::Claimed);
    assert!(gpu.decide("kernel", 1 << 20, &on_cores([1.0; 3], true)).estimates[3].is_some());
}

/// It computed the rest faster than the processor, though its trial was slower: beside others, with what a first launch takes.
#[test]
fn who_won_the_comparison_computes_the_next_run() {
    let knowledge = with_rates(&[("cpu", 1e7)]);
    try_driver(&knowledge, Duration::from_micros(140));
    {
        let mut book = knowledge.0.lock();
        let notes = book.page("kernel", 1 << 20).devices.get_mut("driver").unwrap();
        notes.rate.add(1.5e7);
        notes.peak.add(1.6e7);
    }
    let selection = knowledge.decide("kernel", 1 << 20, &on_cores([1.0; 3], true)[..2]);
    assert_eq!(selection.members, [false, true], "{selection:?}");
}

/// The processor is never out of a run because of a device on its cores: that may be a thousand times as slow.
#[test]
fn a_processor_of_which_nothing_is_known_begins_beside_one_on_its_cores() {
    for is_comparable in [true, false] {
        let selection = with_rates(&[("driver", 1.0)]).decide(
            "kernel",
            1 << 20,
            &on_cores([1.0, 1.0, 0.0], is_comparable)[..2],
        );
        assert_eq!((selection.members[0], selection.opens), (true, Some(0)), "{selection:?}");
    }
}

/// A rival computes nothing beside others, so moving its data has to be faster than they are.
#[test]
fn whose_data_moves_as_slowly_as_the_host_computes_is_no_rival() {
    let knowledge = with_rates(&[("cpu", 1e7)]);
    for (per_item, is_compared) in [(0.5e-7, true), (0.9e-7, false)] {
        let mut candidates = on_cores([1.0, 1.0, 0.0], true);
        candidates[1].freight.per_item = per_item;
        let selection = knowledge.decide("kernel", 1 << 20, &candidates[..2]);
        assert_eq!(selection.members, [true, is_compared], "{selection:?}");
    }
}

#[test]
fn devices_of_which_something_is_known_have_cores_of_their_own() {
    let decide = |rates: &[(&str, f64)], parts| {
        with_rates(rates).decide("kernel", 1 << 20, &on_cores(parts, true)).members
    };
    let all = [("cpu", 1e6), ("driver", 2e6), ("worker", 0.9e6), ("gpu", 1.5e6)];
    // The fastest comes first, and a GPU takes no cores.
    assert_eq!(decide(&all, [1.0; 3]), [false, true, false, true]);
    assert_eq!(decide(&all, [0.5; 3]), [true, true, false, true]);
    assert_eq!(decide(&all, [1.0 / 3.0; 3]), [true; 4]);
    assert_eq!(decide(&all, [0.5, 1.0, 0.5]), [false, true, false, true]);
    let faster = [("cpu", 3e6), ("driver", 2e6), ("worker", 0.9e6), ("gpu", 1.5e6)];
    assert_eq!(decide(&faster, [0.5, 1.0, 0.5]), [true, false, true, true]);
}

#[test]
fn a_stranger_on_the_same_cores_is_compared_with_the_host_alone() {
    let decide = |rates: &[(&str, f64)], driver, is_comparable| {
        with_rates(rates).decide("kernel", 1 << 20, &on_cores([1.0, driver, 0.0], is_comparable))
    };
    let (cpu, rest) = (("cpu", 1e6), [("worker", 1e6), ("gpu", 2e6)]);
    let alone = [cpu, ("worker", 1e-3), ("gpu", 1e-3)];
    let compared = decide(&alone, 1.0, true);
    assert_eq!((&compared.members[..], compared.opens), (&[true, true, false, false][..], Some(0)));
    // Who cannot be compared is left out, and so is who would take cores from several.
    for (rates, is_comparable) in [(alone, false), ([cpu, rest[0], rest[1]], true)] {
        let selection = decide(&rates, 1.0, is_comparable);
        assert_eq!(selection.reasons[1], Some(Reason::SameCores), "{selection:?}");
        assert_eq!(selection.opens, None);
    }
    // With cores of its own it may join.
    let selection = decide(&[("cpu", 1e6), rest[0], rest[1]], 0.0, false);
    assert_eq!((&selection.members[..], selection.opens), (&[true; 4][..], Some(0)));
}

/// A run of less than 10 ms ends before it is compared, so it is tried alone.
#[test]
fn who_was_never_compared_because_runs_are_short_is_tried_alone() {
    for (seconds, is_comparable, is_tried) in
        [(9e-3, true, true), (11e-3, true, false), (1.9e-3, true, true), (9e-3, false, false)]
    {
        let knowledge = with_rates(&[("cpu", (1 << 20) as f64 / seconds)]);
        for _ in 0..=TRIES {
            let mut book = knowledge.0.lock();
            book.page("kernel", 1 << 20).add_run(vec!["cpu".to_owned()], seconds / (1 << 20) as f64);
        }
        let candidates = &on_cores([1.0; 3], is_comparable)[..2];
        let selection = knowledge.decide("kernel", 1 << 20, candidates);
        let found = selection.members[..] == [false, true];
        assert_eq!(found, is_tried, "{seconds} s, {is_comparable}: {selection:?}");
    }
}

/// A run of so many milliseconds without failures.
fn report(
    platform: &Platform,
    millis: u64,
    devices: Vec<crate::DeviceReport>,
    packages: Vec<PackageRecord>,
) -> Report {
    Report {
        platform: platform.id(),
        kernel: "kernel".to_owned(),
        policy: crate::PolicySpec::Calibrated,
        begun: Duration::ZERO,
        duration: Duration::from_millis(millis),
        devices,
        packages,
        failures: Vec::new(),
        left_out: Vec::new(),
        called_up: Vec::new(),
        decisions: None,
    }
}

/// Two devices that took turns in the first run: how long it took says nothing of any later one, and each computed while the other did not.
#[test]
fn a_run_with_turns_teaches_what_each_device_did_in_its_own() {
    let mut builder = Platform::builder();
    for name in ["cpu", "driver"] {
        builder.add_device(dml_core::DeviceDesc::new(name, DeviceKind::Cpu));
    }
    let platform = builder.build().unwrap();
    let devices = [DeviceId(0), DeviceId(1)];
    let worked = |device| crate::DeviceReport {
        device,
        packages: 2,
        items: 500,
        busy: Duration::from_millis(10),
        end: Duration::from_millis(18),
        known_rate: None,
    };
    // The processor computes from 0 to 2 and from 12 to 20, the other one from 1 to 2 and from 2 to 12.
    let (devices_did, packages) = (
        devices.map(worked).to_vec(),
        vec![
            record(devices[0], 0..100, 0, 2),
            record(devices[1], 900..1000, 1, 2),
            record(devices[1], 100..500, 2, 12),
            record(devices[0], 500..900, 12, 20),
        ],
    );
    let report = report(&platform, 20, devices_did, packages);
    let name = |device: DeviceId| platform.devices()[usize::from(device.0)].name.to_string();
    let learned = |are_rivals| {
        let knowledge = Knowledge::new();
        let odd = Odd { claimed: vec![report.packages[1].package.clone()], are_rivals, ..Odd::default() };
        knowledge.learn(&platform, ("kernel", 1000), name, &report, odd);
        let book = knowledge.0.lock();
        let page = book.0.values().next().unwrap();
        let rates = ["cpu", "driver"].map(|device| page.devices[device].rate.last().unwrap().round() as u64);
        (rates, page.sets.len(), page.runs)
    };
    // All of what a device did may be a trial's, in several packages: then the trial teaches more. Without one of them it does not.
    let did_rest = |claimed: &[usize]| {
        let knowledge = Knowledge::new();
        let claimed = claimed.iter().map(|&index| report.packages[index].package.clone()).collect();
        knowledge.learn(&platform, ("kernel", 1000), name, &report, Odd { claimed, ..Odd::default() });
        let mut book = knowledge.0.lock();
        book.page("kernel", 1000).devices.get("driver").map(|notes| notes.rate.len())
    };
    assert_eq!([did_rest(&[1, 2]), did_rest(&[1]), did_rest(&[])], [None, Some(1), Some(1)]);
    // What trials showed before is forgotten with the first turn.
    let tried = Knowledge::new();
    for weight in [Weight::First, Weight::Again] {
        tried.learn_trial(("kernel", 1000), "driver", 1000, [Duration::from_millis(1); 2], weight);
    }
    let odd = Odd { claimed: vec![report.packages[1].package.clone()], are_rivals: true, ..Odd::default() };
    tried.learn(&platform, ("kernel", 1000), name, &report, odd);
    let driver = tried.0.lock().page("kernel", 1000).devices["driver"].clone();
    assert_eq!((driver.rate.len(), driver.is_only_tried), (1, false));
    // 500 items in 2 + 8 ms; 400 in 10, and 100 in a trial, beside the other one.
    assert_eq!(learned(true), ([50_000, 40_000], 0, 1));
    assert_eq!(learned(false), ([25_000, 45_455], 1, 1));
    // What was no trial's package says what the device does, if it is the only one.
    let only = |claimed: bool, trials: &[Weight]| {
        let mut report = report.clone();
        report.packages.remove(1);
        let knowledge = Knowledge::new();
        for &weight in trials {
            knowledge.learn_trial(("kernel", 1000), "driver", 1000, [Duration::from_millis(1); 2], weight);
        }
        let claimed: Vec<Package> = claimed.then(|| report.packages[1].package.clone()).into_iter().collect();
        let is_computed = claimed.is_empty();
        knowledge.learn(&platform, ("kernel", 1000), name, &report, Odd { claimed, ..Odd::default() });
        let is_cold = knowledge.is_first_trial(("kernel", 1000), "driver", false);
        assert_eq!(is_cold, !is_computed && trials.is_empty(), "a run warms a device up, too");
        let mut book = knowledge.0.lock();
        let notes = book.page("kernel", 1000).devices.get("driver").cloned().unwrap_or_default();
        (notes.rate.len(), notes.peak.len(), notes.is_only_tried)
    };
    assert_eq!((only(false, &[]), only(true, &[])), ((1, 1, false), (0, 0, false)));
    // Then trials are forgotten, except those that were taken.
    let trials = [Weight::First, Weight::Again, Weight::Again];
    assert_eq!((only(false, &trials), only(true, &trials)), ((1, 1, false), (2, 2, true)));
    assert_eq!(only(false, &[Weight::First, Weight::Again, Weight::Claimed, Weight::Again]), (3, 3, false));
}

#[test]
fn a_trial_weighs_as_much_as_is_known_of_it() {
    use Weight::{Again, Claimed, First};
    let of = |is_rival| {
        [[true, true], [true, false], [false, true], [false, false]]
            .map(|[is_taken, is_first]| Weight::of(is_taken, is_rival, is_first))
    };
    assert_eq!(of(false), [Claimed, Claimed, First, Again]);
    // What a rival does beside the host is no rate, though it was fast enough.
    assert_eq!(of(true), [First, Again, First, Again]);
}

/// Drivers compile or load kernels in each process, and what is known outlives processes.
#[test]
fn the_first_trial_of_each_process_teaches_nothing() {
    let about = ("kernel", 1 << 13);
    let cold = |knowledge: &Knowledge, device: &str, is_rival: bool| {
        let weight = Weight::of(false, is_rival, knowledge.is_first_trial(about, device, is_rival));
        knowledge.learn_trial(
            about,
            device,
            1 << 13,
            [Duration::from_micros(10), Duration::from_millis(100)],
            weight,
        );
        weight
    };
    let again = |knowledge: &Knowledge| Knowledge::parse(&knowledge.to_string()).unwrap();
    let mut knowledge = Knowledge::new();
    for _ in 0..3 {
        assert_eq!(cold(&knowledge, "gpu", false), Weight::First);
        knowledge = again(&knowledge);
        assert!(knowledge.to_string().contains("device gpu rate peak setup"), "{knowledge}");
    }
    assert_eq!([(), ()].map(|()| cold(&knowledge, "gpu", false)), [Weight::First, Weight::Again]);
    // Who disturbs the host is not tried out for ever.
    assert_eq!(cold(&knowledge, "driver", true), Weight::First);
    assert_eq!(cold(&again(&knowledge), "driver", true), Weight::Again);
    // What a run taught in another process says nothing of this one.
    let run = Knowledge::parse("dml knowledge 2\npage 13 kernel\ndevice gpu rate 1e6 peak 1e6 setup 1e-5\n")
        .unwrap();
    assert!(run.is_first_trial(about, "gpu", false));
}

/// The first one may be of a compiler, and any one of a launch and little else: a device is not left out of long runs for that.
#[test]
fn trials_that_nobody_took_count_at_their_size_alone() {
    const SHORT: u64 = 1 << 13;
    let knowledge = Knowledge::new();
    knowledge.0.lock().page("kernel", SHORT).devices.entry("cpu".to_owned()).or_default().rate.add(3e7);
    let try_gpu = |millis, weight| {
        let took = [Duration::from_micros(10), Duration::from_millis(millis)];
        knowledge.learn_trial(("kernel", SHORT), "gpu", SHORT, took, weight);
    };
    // The rate of the GPU in a short run and in a long one, in items per millisecond. Where it is not known, it takes part, and the processor begins.
    let rates = || {
        let near = Freight { setup: 1e-5, per_item: 0.0 };
        let candidates = [candidate("cpu", near, true), candidate("gpu", near, false)];
        let reread = Knowledge::parse(&knowledge.to_string()).unwrap();
        [SHORT, SHORT * 2, SHORT << 13].map(|items| {
            let selection = knowledge.decide("kernel", items, &candidates);
            assert_eq!(selection, reread.decide("kernel", items, &candidates));
            let rate = selection.estimates[1].map(|estimate| (estimate.rate / 1e3) as u64);
            assert!(rate.is_some() || (selection.members[1] && selection.opens == Some(0)), "{selection:?}");
            rate
        })
    };
    try_gpu(20, Weight::First);
    assert_eq!(rates(), [None; 3], "it may have been the compiler");
    try_gpu(4, Weight::Again);
    assert_eq!(rates(), [Some(2048), None, None], "it may have been the launch");
    try_gpu(2, Weight::Claimed);
    assert_eq!(rates(), [Some(4096); 3], "what was taken is as good as a package");
    try_gpu(1, Weight::Again);
    assert_eq!(rates(), [Some(4096); 3], "trials add to it");
}

/// A set is known by what it took, though one of it got nothing: it would get nothing again.
#[test]
fn whoever_was_chosen_and_got_nothing_was_tried() {
    let mut builder = Platform::builder();
    for name in ["cpu", "gpu"] {
        builder.add_device(dml_core::DeviceDesc::new(name, DeviceKind::Gpu));
    }
    let platform = builder.build().unwrap();
    let devices = [DeviceId(0), DeviceId(1)];
    let of = |device, items: u64| crate::DeviceReport {
        device,
        packages: items.min(1),
        items,
        busy: Duration::from_millis(10),
        end: Duration::from_millis(10),
        known_rate: None,
    };
    let devices_did = vec![of(devices[0], 8), of(devices[1], 0)];
    let report = report(&platform, 10, devices_did, vec![record(devices[0], 0..8, 0, 10)]);
    let name = |device: DeviceId| platform.devices()[usize::from(device.0)].name.to_string();
    let sets = |chosen: &[DeviceId]| {
        let knowledge = Knowledge::new();
        let odd = Odd { chosen: chosen.to_vec(), ..Odd::default() };
        knowledge.learn(&platform, ("kernel", 8), name, &report, odd);
        let text = knowledge.to_string();
        assert!(text.contains("\nruns 1\n"), "{text}");
        text.lines().filter(|line| line.starts_with("set ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let (alone, both) = ("set cpu seconds 1.25e-3", "set cpu gpu seconds 1.25e-3");
    assert_eq!(sets(&devices), [alone, both]);
    // Who was to be called up later was not tried.
    assert_eq!(sets(&[]), [alone]);
    assert_eq!(sets(&devices[..1]), [alone]);
}

/// Packages beside each other end one soon after the other. Together they show how fast the device is.
#[test]
fn the_best_package_is_no_end_of_one_beside_another() {
    let of = |packages: &[(u64, u64, u64)]| {
        let records: Vec<PackageRecord> = packages
            .iter()
            .map(|&(items, begun, computed)| {
                let mut record = record(DeviceId(0), 0..items, 0, 0);
                (record.begun, record.computed) =
                    (Duration::from_micros(begun), Duration::from_micros(computed));
                record
            })
            .collect();
        (peak(records.iter(), 100e-6) / 1e6 * 1000.0).round() / 1000.0
    };
    // 1000 items in 1100 us, 100 of which every package costs.
    assert_eq!(of(&[(1000, 0, 1100)]), 1.0);
    assert_eq!(of(&[(1000, 0, 1100), (1000, 0, 1103), (1000, 0, 1106)]), 2.982, "3000 in 1006");
    assert_eq!(of(&[(1000, 0, 1106), (1000, 0, 1100), (1000, 0, 1103)]), 2.982, "in any order");
    // The better one of two that are apart.
    assert_eq!(of(&[(1000, 0, 1100), (4000, 1100, 2200)]), 4.0);
    assert_eq!(of(&[(4000, 0, 1100), (1000, 1100, 2200)]), 4.0);
    // A short last one says nothing beside others.
    assert_eq!(of(&[(1000, 0, 1100), (4000, 1100, 2200), (100, 2300, 2360)]), 4.0);
    // Nothing but short ones: a fiftieth of the time is computing at least.
    assert_eq!(of(&[(10, 0, 20), (10, 20, 40)]), 25.0);
    assert_eq!(of(&[]), 0.0);
}
