//! What is kept, what is decided by it, and what it looks like as text.

use super::*;
use crate::knowledge::decide::Members;
use crate::policy::Freight;
use proptest::prelude::*;

/// A device as it is: items per second, and seconds to set it going.
#[derive(Clone, Copy, Debug)]
struct Truth {
    rate: f64,
    setup: f64,
}

const NAMES: [&str; 3] = ["cpu", "gpu", "worker"];

/// A machine on which devices neither help nor disturb each other.
struct World {
    devices: Vec<Truth>,
    items: u64,
    knowledge: Knowledge,
}

impl World {
    fn new(devices: &[Truth], items: u64) -> Self {
        Self { devices: devices.to_vec(), items, knowledge: Knowledge::new() }
    }

    fn candidates(&self) -> Vec<Candidate<'static>> {
        let each = self.devices.iter().zip(NAMES).enumerate();
        let candidate = |(index, (truth, name)): (usize, (&Truth, &'static str))| Candidate {
            name,
            freight: Freight { setup: truth.setup / 2.0, per_item: 0.0 },
            is_host: index == 0,
        };
        each.map(candidate).collect()
    }

    /// The seconds that a set of devices takes at best.
    fn seconds(&self, members: &[bool]) -> f64 {
        let of = || self.devices.iter().zip(members).filter(|(_, member)| **member).map(|(truth, _)| truth);
        let rate: f64 = of().map(|truth| truth.rate).sum();
        let work: f64 = of().map(|truth| truth.setup * truth.rate).sum();
        // A device that is not going before the others are done lengthens the run.
        let longest = of().map(|truth| truth.setup).fold(0.0, f64::max);
        ((self.items as f64 + work) / rate).max(longest)
    }

    fn best_seconds(&self) -> f64 {
        let sets = (1_u32..1 << self.devices.len())
            .map(|set| (0..self.devices.len()).map(|index| set & 1 << index != 0).collect::<Vec<bool>>());
        sets.map(|set| self.seconds(&set)).fold(f64::INFINITY, f64::min)
    }

    /// Decides, and lets the world answer. Among others every device looks a little slower than it is.
    fn run(&self) -> (Members, f64) {
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
            notes.rate.add(if together { truth.rate * 0.9 } else { truth.rate });
            notes.peak.add(truth.rate);
            notes.setup.add(truth.setup);
            names.push(name.to_owned());
        }
        names.sort_unstable();
        page.sets.entry(names).or_default().add(seconds / self.items as f64);
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
            (0..11).for_each(|_| drop(world.run()));
            let (_, seconds) = world.run();
            let best = world.best_seconds();
            assert!(seconds <= best * 1.05, "{items} items on {devices:?}: {seconds} s, {best} s at best");
        }
    }
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
fn where_nothing_is_known_the_host_opens_and_without_it_all_begin() {
    let world = World::new(&[Truth { rate: 1e8, setup: 1e-5 }; 3], 1 << 20);
    let decision = world.knowledge.decide("kernel", world.items, &world.candidates());
    assert_eq!((decision.members, decision.opens), (vec![true; 3], Some(0)));
    let strangers = &world.candidates()[1..];
    let decision = world.knowledge.decide("kernel", world.items, strangers);
    assert_eq!((decision.members, decision.opens), (vec![true; 2], None));
}

#[test]
fn what_is_known_of_a_size_helps_with_others_and_other_kernels_do_not() {
    let world = World::new(&[Truth { rate: 1e8, setup: 1e-5 }, Truth { rate: 1e9, setup: 2e-4 }], 1 << 26);
    for _ in 0..12 {
        world.run();
    }
    let tiny = world.knowledge.decide("kernel", 64, &world.candidates());
    assert_eq!(tiny.members, [true, false], "the host is done before the other has begun");
    let other = world.knowledge.decide("another", 64, &world.candidates());
    assert_eq!(other.estimates, [None, None]);
}

#[test]
fn one_slow_run_changes_nothing() {
    let world = World::new(&[Truth { rate: 1e8, setup: 1e-5 }, Truth { rate: 1e8, setup: 1e-5 }], 1 << 24);
    (0..11).for_each(|_| drop(world.run()));
    let (members, _) = world.run();
    let names: Vec<String> = NAMES[..2].iter().map(|name| (*name).to_owned()).collect();
    world.knowledge.0.lock().page("kernel", 1 << 24).sets.get_mut(&names).expect("it is the best").add(1.0);
    assert_eq!(world.knowledge.decide("kernel", 1 << 24, &world.candidates()).members, members);
}

/// A set may be known of which some device is not, from another program or another version.
#[test]
fn a_member_has_no_reason_to_be_left_out() {
    let text = "dml knowledge 1\npage 12 kernel\ndevice cpu rate 1e6 peak 1e6 setup 1e-5\n\
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
    let heading = "dml knowledge 1\n";
    for (text, line, what) in [
        ("", 1, "not the heading"),
        ("dml knowledge 2\n", 1, "not the heading"),
        ("dml knowledge 1\nset cpu seconds 1\n", 2, "not a page"),
        ("dml knowledge 1\npage 64 k\n", 2, "not a size class"),
        ("dml knowledge 1\npage 3 %zz\n", 2, "not a name"),
        ("dml knowledge 1\npage 3 k\nset cpu\n", 3, "no seconds"),
        ("dml knowledge 1\npage 3 k\nset seconds 1\n", 3, "no device"),
        ("dml knowledge 1\npage 3 k\nset cpu seconds 1 -1\n", 3, "no seconds, or not positive"),
        ("dml knowledge 1\npage 3 k\ndevice cpu rate 1 peak 1\n", 3, "no setup"),
        ("dml knowledge 1\npage 3 k\ndevice cpu rate nan peak 1 setup 1\n", 3, "no rate, or not positive"),
        ("dml knowledge 1\npage 3 k\ndevices\n", 3, "neither page"),
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
    fn no_text_makes_reading_panic(text in "(dml knowledge 1\n)?((page|device|set|seconds|rate|[0-9]|%| |\n){0,40})") {
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
