//! What is kept, what is decided by it, and what it looks like as text.

use super::*;
use crate::knowledge::decide::{Members, TRIES};
use crate::policy::Freight;
use proptest::prelude::*;

/// A device as it is: items per second, and seconds to set it going.
#[derive(Clone, Copy, Debug)]
pub(super) struct Truth {
    pub(super) rate: f64,
    pub(super) setup: f64,
}

const NAMES: [&str; 3] = ["cpu", "gpu", "worker"];

/// A device with units of its own.
pub(super) fn candidate(name: &str, freight: Freight, is_host: bool) -> Candidate<'_> {
    Candidate {
        name,
        freight,
        alone: freight,
        is_host,
        is_near: false,
        part_of_cores: 0.0,
        is_comparable: false,
        model: None,
    }
}

/// A machine on which devices do not help each other.
pub(super) struct World {
    pub(super) devices: Vec<Truth>,
    pub(super) items: u64,
    pub(super) knowledge: Knowledge,
    /// The part of its rate that is left to a device among others.
    pub(super) among_others: f64,
    /// The part of it that its best package shows there.
    pub(super) seen_among_others: f64,
}

impl World {
    pub(super) fn new(devices: &[Truth], items: u64) -> Self {
        Self {
            devices: devices.to_vec(),
            items,
            knowledge: Knowledge::new(),
            among_others: 1.0,
            seen_among_others: 1.0,
        }
    }

    pub(super) fn candidates(&self) -> Vec<Candidate<'static>> {
        let each = self.devices.iter().zip(NAMES).enumerate();
        let candidate = |(index, (truth, name)): (usize, (&Truth, &'static str))| Candidate {
            name,
            freight: Freight { setup: truth.setup / 2.0, per_item: 0.0 },
            alone: Freight { setup: truth.setup / 2.0, per_item: 0.0 },
            is_host: index == 0,
            part_of_cores: 0.0,
            is_near: false,
            is_comparable: false,
            model: None,
        };
        each.map(candidate).collect()
    }

    /// The seconds that a set of devices takes at best.
    fn seconds(&self, members: &[bool]) -> f64 {
        let of = || self.devices.iter().zip(members).filter(|(_, member)| **member).map(|(truth, _)| truth);
        let left = if of().count() > 1 { self.among_others } else { 1.0 };
        let rate: f64 = of().map(|truth| truth.rate * left).sum();
        let work: f64 = of().map(|truth| truth.setup * truth.rate * left).sum();
        // A device that is not going before the others are done lengthens the run.
        let longest = of().map(|truth| truth.setup).fold(0.0, f64::max);
        ((self.items as f64 + work) / rate).max(longest)
    }

    fn best_seconds(&self) -> f64 {
        let sets = (1_u32..1 << self.devices.len())
            .map(|set| (0..self.devices.len()).map(|index| set & 1 << index != 0).collect::<Vec<bool>>());
        sets.map(|set| self.seconds(&set)).fold(f64::INFINITY, f64::min)
    }

    /// Runs so many times, and returns what the last one was.
    fn runs(&self, runs: usize) -> (Members, f64) {
        (1..runs).for_each(|_| drop(self.run()));
        self.run()
    }

    /// Decides, and lets the world answer. Among others every device looks a little slower than it is.
    pub(super) fn run(&self) -> (Members, f64) {
        let decision = self.knowledge.decide("kernel", self.items, &self.candidates());
        let seconds = self.seconds(&decision.members);
        let together = decision.members.iter().filter(|member| **member).count() > 1;
        let mut book = self.knowledge.0.lock();
        let page = book.page("kernel", self.items);
        let mut names = Vec::new();
        for ((truth, name), _) in
            self.devices.iter().zip(NAMES).zip(&decision.members).filter(|(_, member)| **member)
        {
            let notes = page.devices.entry(name.to_owned()).or_default();
            notes.rate.add(if together { truth.rate * 0.9 * self.among_others } else { truth.rate });
            notes.peak.add(if together { truth.rate * self.seen_among_others } else { truth.rate });
            notes.setup.add(truth.setup);
            names.push(name.to_owned());
        }
        names.sort_unstable();
        page.add_run(names, seconds / self.items as f64);
        (decision.members, seconds)
    }
}

#[test]
fn after_a_dozen_runs_the_best_set_is_used() {
    let truth = |rate, setup| Truth { rate, setup };
    let machines = [
        // Two equal cores; a GPU of seventy times the host; a device far away; three of a kind.
        vec![truth(1e8, 1e-5), truth(1e8, 1e-4)],
        vec![truth(1e8, 1e-5), truth(7e9, 5e-4)],
        vec![truth(1e9, 1e-5), truth(1e9, 1e-1)],
        vec![truth(1e8, 1e-5), truth(1.2e8, 1e-4), truth(0.9e8, 1e-4)],
    ];
    for devices in machines {
        for items in (0..9).map(|step| 8_u64.pow(step)) {
            let world = World::new(&devices, items);
            let seconds = world.runs(12).1;
            let best = world.best_seconds();
            assert!(seconds <= best * 1.05, "{items} items on {devices:?}: {seconds} s, {best} s at best");
        }
    }
}

#[test]
fn a_device_that_others_disturb_is_found_to_be_better_alone() {
    let devices = [Truth { rate: 1e8, setup: 1e-5 }, Truth { rate: 3e8, setup: 1e-4 }];
    let mut world = World::new(&devices, 1 << 24);
    // Together they compute four tenths of what the second one does alone, and no sum of rates says so.
    world.among_others = 0.3;
    let runs: Vec<_> = (0..12).map(|_| world.run()).collect();
    assert_eq!(runs.first().map(|(members, _)| &members[..]), Some(&[true, true][..]));
    assert_eq!(runs.last().map(|(members, _)| &members[..]), Some(&[false, true][..]));
    let decision = world.knowledge.decide("kernel", 1 << 24, &world.candidates());
    let Some(Reason::Slower { seconds, with_it_seconds: Some(with_it) }) = decision.reasons[0] else {
        panic!("{:?}", decision.reasons)
    };
    assert!((with_it / world.seconds(&[true, true]) - 1.0).abs() < 1e-6, "{with_it}");
    assert!((seconds / world.seconds(&[false, true]) - 1.0).abs() < 1e-6, "{seconds}");
    let told = decision.reasons[0].as_ref().map(ToString::to_string);
    assert_eq!(told.as_deref(), Some("runs took 139888 us with it and 56024 us without"));
}

#[test]
fn what_is_tried_alone_is_tried_twice_and_others_are_told_so() {
    let world = World::new(&[Truth { rate: 1e8, setup: 1e-5 }, Truth { rate: 3e8, setup: 1e-4 }], 1 << 24);
    let mut world = World { among_others: 0.3, ..world };
    world.run();
    world.among_others = 0.2;
    for _ in 0..TRIES {
        let decision = world.knowledge.decide("kernel", 1 << 24, &world.candidates());
        assert_eq!((&decision.members[..], &decision.reasons[0]), (&[false, true][..], &Some(Reason::Trial)));
        // It turns out to be slow, so that the best set is still the other one, and its peak still promises much.
        let mut book = world.knowledge.0.lock();
        let page = book.page("kernel", 1 << 24);
        page.sets.entry(vec!["gpu".to_owned()]).or_default().add(1e-7);
    }
    let decision = world.knowledge.decide("kernel", 1 << 24, &world.candidates());
    assert_ne!(decision.members, [false, true]);
}

#[test]
fn the_nearest_size_says_what_a_device_does() {
    let knowledge = Knowledge::new();
    for (class, rate) in [(4, 4e3), (10, 1e4), (20, 2e4)] {
        let mut book = knowledge.0.lock();
        let page = book.page("kernel", 1 << class);
        let notes = page.devices.entry("cpu".to_owned()).or_default();
        notes.rate.add(rate);
        // A page without a rate says nothing, however near it is.
        book.page("kernel", 1 << 16).devices.entry("cpu".to_owned()).or_default().setup.add(1.0);
    }
    let cpu = candidate("cpu", Freight { setup: 0.0, per_item: 0.0 }, true);
    for (class, rate) in [(0, 4e3), (5, 4e3), (9, 1e4), (12, 1e4), (16, 2e4), (40, 2e4)] {
        let decision = knowledge.decide("kernel", 1 << class, &[cpu]);
        assert_eq!(decision.estimates[0].map(|estimate| estimate.rate), Some(rate), "class {class}");
    }
}

#[test]
fn only_sets_of_those_who_could_take_part_count() {
    let world = World::new(&[Truth { rate: 1e8, setup: 1e-5 }, Truth { rate: 1e8, setup: 1e-5 }], 1 << 24);
    (0..12).for_each(|_| drop(world.run()));
    // With a third device runs were a hundred times as fast. It is not among the candidates.
    let names = ["cpu", "worker"].map(str::to_owned).to_vec();
    for _ in 0..4 {
        let mut book = world.knowledge.0.lock();
        book.page("kernel", 1 << 24).sets.entry(names.clone()).or_default().add(1e-10);
    }
    let decision = world.knowledge.decide("kernel", 1 << 24, &world.candidates());
    assert_eq!(decision.members, [true, true]);
}

#[test]
fn of_two_sets_that_are_about_as_fast_the_smaller_is_used() {
    let world = World::new(&[Truth { rate: 1e8, setup: 1e-5 }, Truth { rate: 1e8, setup: 1e-5 }], 1 << 24);
    let mut book = world.knowledge.0.lock();
    let page = book.page("kernel", 1 << 24);
    for name in ["cpu", "gpu"] {
        let notes = page.devices.entry(name.to_owned()).or_default();
        notes.rate.add(1e8);
        notes.setup.add(1e-5);
    }
    for (names, seconds) in [(vec!["cpu", "gpu"], 0.98e-9), (vec!["cpu"], 1e-9), (vec!["gpu"], 1.02e-9)] {
        let set = page.sets.entry(names.into_iter().map(str::to_owned).collect()).or_default();
        (0..5).for_each(|_| set.add(seconds));
    }
    drop(book);
    let decision = world.knowledge.decide("kernel", 1 << 24, &world.candidates());
    assert_eq!(decision.members, [true, false]);
    assert!(matches!(decision.reasons[1], Some(Reason::Slower { with_it_seconds: Some(_), .. })));
}

/// The first run of an irregular kernel found out too late what the devices do together, and some packages of it were cheap.
#[test]
fn those_who_promise_much_together_are_tried_before_devices_alone() {
    let text = "dml knowledge 2\npage 22 kernel\ndevice cpu rate 2e6 peak 9e8 setup 1e-5\n\
        device gpu rate 2e6 peak 9e8 setup 1e-4\nset cpu gpu seconds 4e-7\nruns 1\n";
    let world = World {
        knowledge: Knowledge::parse(text).expect("it is well formed"),
        ..World::new(&[Truth { rate: 2e6, setup: 1e-5 }, Truth { rate: 2e6, setup: 1e-4 }], 1 << 22)
    };
    let members = |runs: usize| (0..runs).map(|_| world.run().0).collect::<Vec<_>>();
    let runs = members(32);
    assert_eq!(runs[0], [true, true]);
    let alone = runs.iter().filter(|members| **members != [true, true]).count();
    assert!(
        (1..=8).contains(&alone),
        "{alone} of 32 runs are of one device, and take twice as long: {runs:?}"
    );
    assert!(runs[1..6].iter().filter(|members| **members != [true, true]).count() <= 3, "{runs:?}");
}

/// While something else had the cores, two of them took as long as one. That is not true for ever.
#[test]
fn what_was_learned_on_a_busy_machine_is_learned_anew() {
    let truth = |rate| Truth { rate, setup: 1e-5 };
    let mut world = World::new(&[truth(1e8), truth(1e8)], 1 << 24);
    world.among_others = 0.45;
    // So many that its pair has been tried more often than any set has samples.
    (0..600).for_each(|_| drop(world.run()));
    assert_eq!(world.run().0.iter().filter(|member| **member).count(), 1, "together is slower now");
    world.among_others = 1.0;
    let runs: Vec<_> = (0..1200).map(|_| world.run().0).collect();
    assert!(
        runs[1180..].iter().filter(|members| **members == [true, true]).count() > 15,
        "{:?}",
        &runs[1180..]
    );
}

/// The kernel is another one under the same name, or the machine was busy: what was known of others would keep them out for ever.
#[test]
fn a_set_that_becomes_much_faster_is_of_another_kernel() {
    let seconds = |world: &World, names: &[&str], times: &[f64]| {
        for &time in times {
            let mut book = world.knowledge.0.lock();
            let page = book.page("kernel", 1 << 24);
            page.add_run(names.iter().map(|name| (*name).to_owned()).collect(), time);
            for name in names {
                page.devices.entry((*name).to_owned()).or_default().rate.add(1.0 / time);
            }
        }
    };
    let page = |world: &World| world.knowledge.0.lock().page("kernel", 1 << 24).clone();
    let sets = |world: &World| page(world).sets.into_values().map(|times| times.len()).collect::<Vec<_>>();
    let new = || {
        let world =
            World::new(&[Truth { rate: 1e8, setup: 1e-5 }, Truth { rate: 1e8, setup: 1e-4 }], 1 << 24);
        seconds(&world, &["cpu", "gpu"], &[6e-9, 6e-9, 6e-9]);
        seconds(&world, &["cpu"], &[1e-8, 9e-9, 1e-8]);
        world
    };
    let (world, busy) = (new(), new());
    seconds(&world, &["cpu"], &[3e-9]);
    assert_eq!(sets(&world), [4, 3], "once is chance");
    seconds(&world, &["cpu"], &[3e-9]);
    assert_eq!(sets(&world), [2]);
    let learned = page(&world);
    assert_eq!((learned.runs, learned.devices.len(), learned.devices["cpu"].rate.len()), (2, 1, 2));
    let decision = world.knowledge.decide("kernel", 1 << 24, &world.candidates());
    assert_eq!(decision.members, [true, true], "the other one is a stranger again");
    // A little faster, or faster than all but one, or slower: nothing of that is another kernel.
    seconds(&busy, &["cpu"], &[6.5e-9, 6.5e-9, 9e-8, 9e-8, 9e-9, 8e-9]);
    assert_eq!(sets(&busy), [9, 3]);
}

#[test]
fn those_who_promise_much_more_together_are_tried_now_and_then() {
    let world = World::new(&[Truth { rate: 1e8, setup: 1e-5 }, Truth { rate: 1e8, setup: 1e-4 }], 1 << 24);
    let add = |names: &[&str], seconds: f64| {
        let mut book = world.knowledge.0.lock();
        let page = book.page("kernel", 1 << 24);
        for (name, truth) in NAMES.iter().zip(&world.devices) {
            let notes = page.devices.entry((*name).to_owned()).or_default();
            notes.rate.add(truth.rate);
            notes.setup.add(truth.setup);
        }
        page.sets.entry(names.iter().map(|name| (*name).to_owned()).collect()).or_default().add(seconds);
    };
    let members = || world.knowledge.decide("kernel", 1 << 24, &world.candidates()).members;
    // Each takes ten nanoseconds per item. Both together should take half of that, and take twice as long.
    (0..5).for_each(|_| ["cpu", "gpu"].iter().for_each(|name| add(&[name], 1e-8)));
    add(&["cpu", "gpu"], 2e-8);
    for _ in 2..=12 {
        add(&["cpu", "gpu"], 2e-8);
        assert_eq!(members(), [true, false], "not in every run");
        world.knowledge.0.lock().page("kernel", 1 << 24).runs = 8;
        assert_eq!(members(), [true, true], "its runs may have met a busy machine");
        world.knowledge.0.lock().page("kernel", 1 << 24).runs = 9;
    }
    // It keeps its promise once: then it may do so again, at once. If it does not, that was chance.
    add(&["cpu", "gpu"], 5e-9);
    assert_eq!(members(), [true, true]);
    add(&["cpu", "gpu"], 2e-8);
    assert_eq!(members(), [true, false]);
}

#[test]
fn a_stranger_is_tried_where_it_could_help_and_the_host_begins() {
    let world = World::new(&[Truth { rate: 1e8, setup: 1e-5 }], 1 << 24);
    (0..4).for_each(|_| drop(world.run()));
    let decide = |items: u64, setup: f64, per_item: f64| {
        let mut candidates = world.candidates();
        candidates.push(candidate("gpu", Freight { setup, per_item }, false));
        world.knowledge.decide("kernel", items, &candidates)
    };
    let tried = decide(1 << 24, 1e-3, 1e-10);
    assert_eq!((&tried.members[..], tried.opens), (&[true, true][..], Some(0)));
    // It is set going too late, or its data moves no faster than the host computes.
    for (setup, per_item) in [(1.0, 1e-10), (1e-3, 1e-7)] {
        let decision = decide(1 << 24, setup, per_item);
        assert_eq!((&decision.members[..], decision.opens), (&[true, false][..], None));
        assert!(matches!(decision.reasons[1], Some(Reason::Unknown { .. })), "{:?}", decision.reasons);
    }
}

/// Runs of less than 5 ms may have ended before it was called up, again and again.
#[test]
fn a_stranger_of_short_runs_is_tried_alone() {
    let alone = |items: u64| {
        let world = World::new(&[Truth { rate: 1e8, setup: 1e-5 }], items);
        (0..32).for_each(|_| drop(world.run()));
        let mut candidates = world.candidates();
        candidates.push(candidate("gpu", Freight { setup: 1e-4, per_item: 1e-10 }, false));
        world.knowledge.decide("kernel", items, &candidates).members == [false, true]
    };
    assert_eq!([480_000, 520_000].map(alone), [true, false]);
}

#[test]
fn of_few_runs_the_fastest_counts_and_of_more_the_lower_median() {
    let mut samples = Samples::default();
    let expected = [(9.0, 9.0), (3.0, 3.0), (5.0, 3.0), (8.0, 5.0), (7.0, 7.0), (4.0, 5.0)];
    for (sample, expected) in expected {
        samples.add(sample);
        assert_eq!(samples.expected_seconds(), Some(expected), "{samples:?}");
    }
}

#[test]
fn there_are_only_so_many_pages() {
    let knowledge = Knowledge::new();
    for number in 0..MOST_PAGES + 3 {
        let mut book = knowledge.0.lock();
        let samples = &mut book.page(&format!("kernel {number:05}"), 1).sets;
        samples.entry(vec!["cpu".to_owned()]).or_default().add(1.0);
    }
    assert_eq!(knowledge.pages(), MOST_PAGES);
    let text = knowledge.to_string();
    assert_eq!(Knowledge::parse(&text).map(|knowledge| knowledge.pages()), Ok(MOST_PAGES));
    let told = Knowledge::parse(&format!("{text}page 3 more\n")).expect_err("one too many");
    assert_eq!(told.what, "too many pages");
    // A set's names come in any order.
    let text = "dml knowledge 2\npage 3 k\nset b a seconds 1e0\n";
    assert_eq!(Knowledge::parse(text).map(|knowledge| knowledge.to_string()), Ok(text.replace("b a", "a b")));
}

#[test]
fn every_device_that_is_left_out_is_so_for_a_reason() {
    let world = World::new(&[Truth { rate: 1e8, setup: 1e-5 }, Truth { rate: 1e8, setup: 1.0 }], 1000);
    for _ in 0..12 {
        world.run();
    }
    let decision = world.knowledge.decide("kernel", 1000, &world.candidates());
    assert_eq!(decision.members, [true, false]);
    let told = decision.reasons[1].as_ref().expect("it is left out").to_string();
    assert!(told.contains("us"), "{told}");
}

#[test]
fn what_is_known_of_a_size_helps_with_others_and_other_kernels_do_not() {
    let world = World::new(&[Truth { rate: 1e8, setup: 1e-5 }, Truth { rate: 1e9, setup: 2e-4 }], 1 << 26);
    for _ in 0..12 {
        world.run();
    }
    let tiny = world.knowledge.decide("kernel", 64, &world.candidates());
    assert_eq!(tiny.members, [true, false], "the host is done before the other has begun");
    assert!(matches!(tiny.reasons[1], Some(Reason::SetUp { .. })), "{:?}", tiny.reasons);
    let other = world.knowledge.decide("another", 64, &world.candidates());
    assert_eq!(other.estimates, [None, None]);
}

#[test]
fn one_slow_run_changes_nothing() {
    let world = World::new(&[Truth { rate: 1e8, setup: 1e-5 }, Truth { rate: 1e8, setup: 1e-5 }], 1 << 24);
    let members = world.runs(12).0;
    let names: Vec<String> = NAMES[..2].iter().map(|name| (*name).to_owned()).collect();
    world.knowledge.0.lock().page("kernel", 1 << 24).sets.get_mut(&names).expect("it is the best").add(1.0);
    assert_eq!(world.knowledge.decide("kernel", 1 << 24, &world.candidates()).members, members);
}

/// What is known of two devices, after the line of their page.
fn decided(lines: &str) -> Selection {
    let world = World::new(&[Truth { rate: 1e6, setup: 1e-5 }, Truth { rate: 1e6, setup: 1.0 }], 4096);
    let knowledge = Knowledge::parse(&format!("dml knowledge 2\npage 12 kernel\n{lines}")).unwrap();
    knowledge.decide("kernel", 4096, &world.candidates())
}

#[test]
fn who_was_there_and_slow_is_told_so_and_not_that_it_takes_long_to_set_going() {
    let cpu = "device cpu rate 1e6 peak 1e6 setup 1e-5";
    let both =
        "set cpu seconds 1e-6 1e-6 1e-6 1e-6 1e-6\nset cpu gpu seconds 1e-4 1e-4 1e-4 1e-4 1e-4\nruns 17\n";
    let told =
        |gpu: &str, sets: &str| decided(&format!("{cpu}\ndevice gpu {gpu}\n{sets}")).reasons[1].clone();
    let slower = told("rate 1e6 peak 1e6 setup 1e0", both);
    assert!(matches!(slower, Some(Reason::Slower { with_it_seconds: Some(_), .. })), "{slower:?}");
    let alone = "set cpu seconds 1e-6 1e-6 1e-6 1e-6 1e-6\nruns 17\n";
    let slower = told("rate 1e3 peak 1e3 setup 1e-5", alone);
    assert!(matches!(slower, Some(Reason::Slower { with_it_seconds: None, .. })), "{slower:?}");
    let late = told("rate 1e6 peak 1e6 setup 1e0", alone);
    assert!(matches!(late, Some(Reason::SetUp { .. })), "{late:?}");
}

/// What a device promises has to be more than chance, which is a part of what the fastest takes alone.
#[test]
fn a_device_that_promises_next_to_nothing_is_left_out() {
    let members = |rate: &str| {
        let gpu = format!("device gpu rate {rate} peak {rate} setup 1e-5\n");
        decided(&format!("device cpu rate 1e6 peak 1e6 setup 1e-5\n{gpu}")).members
    };
    assert_eq!(members("1e4"), [true, false], "a hundredth");
    assert_eq!(members("1e6"), [true, true], "half of it");
}

/// A set may be known of which some device is not, from another program or another version.
#[test]
fn a_member_has_no_reason_to_be_left_out() {
    let text = "dml knowledge 2\npage 12 kernel\ndevice cpu rate 1e6 peak 1e6 setup 1e-5\n\
                set cpu seconds 1e-6 1e-6\nset gpu seconds 1e-9 1e-9\n";
    let world = World {
        knowledge: Knowledge::parse(text).expect("it is well formed"),
        ..World::new(&[Truth { rate: 1e6, setup: 1e-5 }, Truth { rate: 1e9, setup: 10.0 }], 4096)
    };
    let decision = world.knowledge.decide("kernel", 4096, &world.candidates());
    let each = decision.members.iter().zip(&decision.reasons);
    assert!(each.clone().all(|(member, reason)| *member == reason.is_none()), "{decision:?}");
    assert!(decision.members.contains(&true));
}

#[test]
fn who_is_never_called_up_in_time_is_tried_alone() {
    let known = |times: usize, seconds: f64| {
        let (samples, rate) = (vec![seconds.to_string(); times].join(" "), seconds.recip());
        let device = format!("device cpu rate {rate} peak {rate} setup 1e-5");
        let text = format!("dml knowledge 2\npage 12 kernel\n{device}\nset cpu seconds {samples}\n");
        let world = World {
            knowledge: Knowledge::parse(&text).expect("it is well formed"),
            ..World::new(&[Truth { rate: 1e7, setup: 1e-5 }, Truth { rate: 1e9, setup: 1e-5 }], 4096)
        };
        let decision = world.knowledge.decide("kernel", 4096, &world.candidates());
        (decision.members, decision.opens)
    };
    assert_eq!(known(2, 1e-7), (vec![true, true], Some(0)), "it may be called up yet");
    assert_eq!(known(3, 1e-7), (vec![false, true], None));
    assert_eq!(known(3, 1e-5), (vec![true, true], Some(0)), "there is time to call it up");
}

/// Most runs alone met a busy machine. What the device did once, it may do again.
#[test]
fn a_set_that_was_faster_once_is_tried_until_its_median_says_what_it_is() {
    let members_after = |runs: u64, alone: &str| {
        let devices = ["cpu", "gpu"].map(|name| format!("device {name} rate 1e5 peak 1e5 setup 1e-5\n"));
        let sets =
            format!("set cpu seconds {alone}\nset gpu seconds 2e-6 2e-6 2e-6 2e-6 2e-6\nruns {runs}\n");
        let text = format!("dml knowledge 2\npage 12 kernel\n{}{sets}", devices.concat());
        let world = World {
            knowledge: Knowledge::parse(&text).expect("it is well formed"),
            ..World::new(&[Truth { rate: 1e6, setup: 1e-5 }, Truth { rate: 1e6, setup: 1.0 }], 4096)
        };
        world.knowledge.decide("kernel", 4096, &world.candidates()).members
    };
    let members = |alone: &str| members_after(16, alone);
    assert_eq!(members("9e-6 9e-6 9e-6 1e-6 9e-6"), [true, false]);
    assert_eq!(members_after(17, "9e-6 9e-6 9e-6 1e-6 9e-6"), [false, true], "not in every run");
    assert_eq!(
        members_after(17, "9e-6 9e-6 9e-6 9e-6 1e-6"),
        [true, false],
        "its last run may have been no chance"
    );
    assert_eq!(members("9e-6 9e-6 9e-6 9e-6 9e-6 1e-6 9e-6 9e-6 9e-6"), [false, true], "it is not fast");
    assert_eq!(members("9e-6 9e-6 9e-6 9e-6 9e-6"), [false, true], "it never was");
}

/// How many runs there were says when something is tried again.
#[test]
fn the_number_of_runs_is_kept() {
    let text = "dml knowledge 2\npage 3 k\nset a seconds 1e0\nruns 17\n";
    assert_eq!(Knowledge::parse(text).map(|knowledge| knowledge.to_string()).as_deref(), Ok(text));
}

/// The time that a device takes for any package is kept, read again, and what the next run begins with.
#[test]
fn what_any_package_takes_is_kept() {
    let line = "device gpu rate 4e6 peak 5e6 setup 1e-4 latency 8e-3 1e-2 9e-3 kernel 5e6 7e6 6e6";
    let text = format!("dml knowledge 2\npage 12 kernel\ndevice cpu rate 1e6 peak 1e6 setup 1e-5\n{line}\n");
    let knowledge = Knowledge::parse(&text).unwrap();
    assert_eq!(knowledge.to_string(), text);
    let candidate = |name, is_host| candidate(name, Freight { setup: 1e-4, per_item: 0.0 }, is_host);
    let selection = knowledge.decide("kernel", 5000, &[candidate("cpu", true), candidate("gpu", false)]);
    assert_eq!(selection.latencies, [0.0, 8e-3]);
    assert_eq!(selection.kernels, [None, Some(6e6)]);
    for wrong in ["kernel 0", "kernel x"] {
        let told = Knowledge::parse(&text.replace("kernel 5e6 7e6 6e6", wrong)).unwrap_err();
        assert_eq!((told.line, told.what), (4, "a kernel's rate that is not positive numbers"));
    }
    for wrong in ["latency 0", "latency x"] {
        let told = Knowledge::parse(&text.replace("latency 8e-3 1e-2 9e-3", wrong)).unwrap_err();
        assert_eq!((told.line, told.what), (4, "a latency that is not positive numbers"));
    }
}

/// A package of a device, and when it was computed, in milliseconds.
pub(super) fn record(
    device: DeviceId,
    items: std::ops::Range<u64>,
    begun: u64,
    computed: u64,
) -> PackageRecord {
    let [begun, computed] = [begun, computed].map(Duration::from_millis);
    let package = crate::Package::new(items, crate::UnitId(0), 0);
    let (start, noticed_late, end) = (Duration::ZERO, false, computed);
    PackageRecord { package, device, start, begun, computed, noticed_late, end }
}

/// While inputs travel nobody looks whether a package is computed, and these may take much longer than that.
#[test]
fn what_kernels_take_is_seen_in_packages_whose_ends_were_waited_for() {
    let [mut first, mut second, third] = [
        record(DeviceId(0), 0..100, 0, 9),
        record(DeviceId(0), 100..500, 1, 18),
        record(DeviceId(0), 500..600, 18, 20),
    ];
    let cost = PACKAGE_SECONDS;
    let near = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-9, "{found}");
    near(kernel_rate([&second, &third, &first].into_iter(), 0.0), 600.0 / 20e-3);
    (first.noticed_late, second.noticed_late) = (true, true);
    near(kernel_rate([&second, &third, &first].into_iter(), 0.0), 100.0 / 2e-3);
    near(kernel_rate([&second, &third, &first].into_iter(), cost), 100.0 / (2e-3 - cost));
    assert_eq!(
        kernel_rate([&second, &third].into_iter(), 1.0),
        100.0 / (2e-3 * LEAST_NET),
        "it takes some time"
    );
    assert_eq!(kernel_rate([&second, &first].into_iter(), cost), 0.0, "nobody knows");
}

/// Of packages that were computed one after the other: what one waited for the other is no time of its own.
#[test]
fn what_any_package_takes_is_seen_in_what_was_computed() {
    let [first, second, third] = [
        record(DeviceId(0), 0..100, 0, 9),
        record(DeviceId(0), 100..500, 1, 18),
        record(DeviceId(0), 500..600, 18, 21),
    ];
    assert_eq!(latency([&second, &first].into_iter()), 9e-3);
    assert_eq!(latency([&second, &first, &third].into_iter()), 0.0, "a hundred items took 3 ms");
}

/// Every figure of a run, by hand: its time per item, and of each device its rate, its best package net of the cost, and what passed
/// before its first package began and after its last one was computed.
#[test]
fn a_run_is_learned_device_by_device() {
    let mut builder = Platform::builder();
    builder.add_device(dml_core::DeviceDesc::new("gpu", DeviceKind::Gpu));
    builder.add_device(dml_core::DeviceDesc::new("idle", DeviceKind::Gpu));
    let platform = builder.build().unwrap();
    let worked = |device, items| crate::DeviceReport {
        device,
        packages: 2,
        items,
        busy: Duration::from_millis(18),
        end: Duration::from_millis(18),
        known_rate: None,
    };
    let mut last = record(DeviceId(0), 100..300, 10, 18);
    last.end = Duration::from_millis(21);
    let mut report = Report {
        platform: platform.id(),
        kernel: "kernel".to_owned(),
        policy: crate::PolicySpec::Calibrated,
        begun: Duration::ZERO,
        duration: Duration::from_millis(30),
        devices: vec![worked(DeviceId(0), 300), worked(DeviceId(1), 0)],
        packages: vec![record(DeviceId(0), 0..100, 2, 10), last],
        failures: Vec::new(),
        left_out: Vec::new(),
        called_up: Vec::new(),
        decisions: None,
    };
    let knowledge = Knowledge::new();
    let name = |device: DeviceId| platform.devices()[usize::from(device.0)].name.to_string();
    for (items, duration) in [(0, 30), (300, 0)] {
        report.duration = Duration::from_millis(duration);
        knowledge.learn(&platform, ("kernel", items), name, &report, Odd::default());
        assert_eq!(knowledge.pages(), 0, "{items} items in {duration} ms");
    }
    report.duration = Duration::from_millis(30);
    knowledge.learn(&platform, ("kernel", 300), name, &report, Odd::default());
    let book = knowledge.0.lock();
    let page = &book.0[&Topic { kernel: "kernel".to_owned(), class: 8 }];
    assert_eq!(page.sets.keys().collect::<Vec<_>>(), [&["gpu".to_owned()]], "who had nothing is no member");
    assert_eq!(page.sets[&["gpu".to_owned()][..]].last(), Some(30e-3 / 300.0));
    let notes = &page.devices["gpu"];
    let near = |found: &Samples, expected: f64| {
        let found = found.last().unwrap();
        assert!((found / expected - 1.0).abs() < 1e-9, "{found}, not {expected}");
    };
    near(&notes.rate, 300.0 / 16e-3);
    near(&notes.peak, 200.0 / (8e-3 - DEVICE_PACKAGE_SECONDS));
    near(&notes.setup, 2e-3 + 3e-3);
}

/// Cores compute one item after the other: of them, packages that differ and take as long are a chance.
#[test]
fn what_any_package_takes_is_learned_of_gpus_alone() {
    let mut builder = Platform::builder();
    builder.add_device(dml_core::DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_device(dml_core::DeviceDesc::new("gpu", DeviceKind::Gpu));
    let platform = builder.build().unwrap();
    let devices = [DeviceId(0), DeviceId(1)];
    let worked = |device| crate::DeviceReport {
        device,
        packages: 2,
        items: 500,
        busy: Duration::from_millis(18),
        end: Duration::from_millis(18),
        known_rate: None,
    };
    let packages =
        devices.map(|device| [record(device, 0..100, 0, 9), record(device, 100..500, 9, 18)]).concat();
    let report = Report {
        platform: platform.id(),
        kernel: "kernel".to_owned(),
        policy: crate::PolicySpec::Calibrated,
        begun: Duration::ZERO,
        duration: Duration::from_millis(18),
        devices: devices.map(worked).to_vec(),
        packages,
        failures: Vec::new(),
        left_out: Vec::new(),
        called_up: Vec::new(),
        decisions: None,
    };
    let knowledge = Knowledge::new();
    let name = |device: DeviceId| platform.devices()[usize::from(device.0)].name.to_string();
    knowledge.learn(&platform, ("kernel", 1000), name, &report, Odd::default());
    let text = knowledge.to_string();
    let of = |device: &str| text.lines().find(|line| line.starts_with(device)).unwrap().to_owned();
    assert!(of("device gpu").ends_with(" latency 9e-3"), "{text}");
    assert!(!of("device cpu").contains("latency"), "{text}");
    // When the kernel has become another one, so has its latency.
    let mut book = knowledge.0.lock();
    let page = book.page("kernel", 1000);
    let notes = page.devices.get_mut("gpu").unwrap();
    for latency in [3e-3, 2e-3] {
        notes.latency.add(latency);
        notes.kernel.add(1.0 / latency);
    }
    page.keep_the_last_of(&["cpu".to_owned(), "gpu".to_owned()]);
    assert_eq!(page.devices["gpu"].latency.least(), Some(2e-3));
    assert_eq!(page.devices["gpu"].latency.len(), 1);
    assert_eq!(
        page.devices["gpu"].kernel.median(),
        Some(1.0 / 2e-3),
        "nor is the rate of its kernels that of others"
    );
    assert_eq!(page.sets.keys().collect::<Vec<_>>(), [&["cpu".to_owned(), "gpu".to_owned()]]);
}

#[test]
fn only_the_last_samples_count() {
    let mut samples = Samples::default();
    for sample in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        samples.add(sample);
    }
    assert_eq!((samples.len(), samples.median()), (0, None));
    (1..=20).for_each(|sample| samples.add(f64::from(sample)));
    assert_eq!((samples.len(), samples.median()), (KEPT, Some(16.0)));
}

#[test]
fn a_wrong_line_is_named() {
    let heading = "dml knowledge 2\n";
    for (text, line, what) in [
        ("", 1, "not the heading"),
        ("dml knowledge 3\n", 1, "not the heading"),
        ("dml knowledge 1\n", 1, "not the heading"),
        ("dml knowledge 2\nset cpu seconds 1\n", 2, "not a page"),
        ("dml knowledge 2\npage 64 k\n", 2, "not a size class"),
        ("dml knowledge 2\npage 3 %zz\n", 2, "not a name"),
        ("dml knowledge 2\npage 3 k\nset cpu\n", 3, "no seconds"),
        ("dml knowledge 2\npage 3 k\nset seconds 1\n", 3, "no device"),
        ("dml knowledge 2\npage 3 k\nset cpu seconds 1 -1\n", 3, "no seconds, or not positive"),
        ("dml knowledge 2\npage 3 k\ndevice cpu rate 1 peak 1\n", 3, "no setup"),
        ("dml knowledge 2\npage 3 k\ndevice cpu rate nan peak 1 setup 1\n", 3, "no rate, or not positive"),
        ("dml knowledge 2\npage 3 k\ndevice cpu untried rate 1 peak 1 setup 1\n", 3, "not one name"),
        ("dml knowledge 2\npage 3 k\ndevices\n", 3, "neither page"),
    ] {
        let told = Knowledge::parse(text).expect_err(text);
        assert_eq!(told.line, line, "{text:?}");
        assert!(told.to_string().contains(what), "{text:?}: {told}");
    }
    assert_eq!(Knowledge::parse(heading).expect("empty").pages(), 0);
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(
        pages in prop::collection::vec((".{0,8}", any::<u64>(), ".{0,8}", prop::collection::vec(1e-12..1e12_f64, 0..12)), 0..6)
    ) {
        let knowledge = Knowledge::new();
        for (kernel, items, device, samples) in pages {
            let mut book = knowledge.0.lock();
            let page = book.page(&kernel, items);
            for sample in samples {
                page.devices.entry(device.clone()).or_default().rate.add(sample);
                let mut set = vec![device.clone(), "seconds".to_owned()];
                set.sort_unstable();
                page.sets.entry(set).or_default().add(sample);
            }
        }
        let text = knowledge.to_string();
        let again = Knowledge::parse(&text).expect("its own text");
        prop_assert_eq!(again.to_string(), text);
    }

    #[test]
    fn no_text_makes_reading_panic(text in "(dml knowledge 2\n)?((page|device|set|seconds|rate|[0-9]|%| |\n){0,40})") {
        let _ = Knowledge::parse(&text);
    }

    #[test]
    fn somebody_always_takes_part(
        devices in prop::collection::vec((1e-3..1e12_f64, 1e-9..1e3_f64), 1..4),
        items in any::<u64>(),
        runs in 0..14_usize,
    ) {
        let devices: Vec<Truth> = devices.into_iter().map(|(rate, setup)| Truth { rate, setup }).collect();
        let world = World::new(&devices, items.max(1));
        for _ in 0..=runs {
            let (members, _) = world.run();
            prop_assert!(members.contains(&true));
        }
    }
}
